//! Converts a browser's keys for guests: to bytes on a serial port, and to X11 keysyms on a display.
//!
//! Names and codes of keys are defined by the W3C's UI Events (`KeyboardEvent.key`, `KeyboardEvent.code`), bytes by
//! xterm ("XTerm Control Sequences", PC-style function keys), keysyms by RFC 6143, 7.5.4, and X11's `keysymdef.h`.

use serde::Deserialize;

/// A key that was pressed or released.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(in crate::console) struct KeyPress {
    /// Meaning of the key: a character, or a name such as `Enter`.
    pub(super) key: String,
    /// Position of the key on the keyboard, such as `KeyQ` or `Numpad7`.
    pub(super) code: String,
    /// Whether the key was pressed. Otherwise it was released.
    pub(super) down: bool,
    pub(super) ctrl: bool,
    pub(super) alt: bool,
    pub(super) shift: bool,
}

impl KeyPress {
    /// Returns a press or release of Enter.
    pub(super) fn enter(down: bool) -> Self {
        Self {
            key: "Enter".into(),
            code: "Enter".into(),
            down,
            ..Self::default()
        }
    }
}

/// Keys whose escape sequence ends with a letter, each with that letter.
const LETTERS: [(&str, char); 10] = [
    ("ArrowUp", 'A'),
    ("ArrowDown", 'B'),
    ("ArrowRight", 'C'),
    ("ArrowLeft", 'D'),
    ("End", 'F'),
    ("Home", 'H'),
    ("F1", 'P'),
    ("F2", 'Q'),
    ("F3", 'R'),
    ("F4", 'S'),
];
/// Keys whose escape sequence contains a number, each with that number.
const NUMBERS: [(&str, u8); 12] = [
    ("Insert", 2),
    ("Delete", 3),
    ("PageUp", 5),
    ("PageDown", 6),
    ("F5", 15),
    ("F6", 17),
    ("F7", 18),
    ("F8", 19),
    ("F9", 20),
    ("F10", 21),
    ("F11", 23),
    ("F12", 24),
];

/// Returns the bytes that a terminal sends for a pressed key. Returns nothing for a modifier key or an unknown key.
/// `application` is whether the guest has switched the arrow keys to application mode.
pub(super) fn bytes(key: &KeyPress, application: bool) -> Vec<u8> {
    if !key.down {
        return Vec::new();
    }
    let modifiers = 1 + u8::from(key.shift) + 2 * u8::from(key.alt) + 4 * u8::from(key.ctrl);
    if let Some((_, letter)) = LETTERS.iter().find(|(name, _)| *name == key.key) {
        let is_function = key.key.starts_with('F');
        return match modifiers {
            1 if application || is_function => format!("\x1bO{letter}"),
            1 => format!("\x1b[{letter}"),
            modifiers => format!("\x1b[1;{modifiers}{letter}"),
        }
        .into_bytes();
    }
    if let Some((_, number)) = NUMBERS.iter().find(|(name, _)| *name == key.key) {
        return match modifiers {
            1 => format!("\x1b[{number}~"),
            modifiers => format!("\x1b[{number};{modifiers}~"),
        }
        .into_bytes();
    }
    let plain = match key.key.as_str() {
        "Tab" if key.shift => return b"\x1b[Z".to_vec(),
        "Enter" => b"\r".to_vec(),
        "Tab" => b"\t".to_vec(),
        "Backspace" => vec![if key.ctrl { 0x08 } else { 0x7f }],
        "Escape" => b"\x1b".to_vec(),
        name => {
            let mut characters = name.chars();
            match (characters.next(), characters.next()) {
                // Some systems report AltGr as Ctrl and Alt. AltGr has produced the character.
                (Some(character), None) if key.ctrl && key.alt => return character.to_string().into_bytes(),
                (Some(character), None) if key.ctrl => match control(character) {
                    Some(byte) => vec![byte],
                    None => return Vec::new(),
                },
                (Some(character), None) => character.to_string().into_bytes(),
                _ => return Vec::new(),
            }
        }
    };
    if key.alt {
        [&b"\x1b"[..], &plain].concat()
    } else {
        plain
    }
}

/// Returns the control character for Ctrl and a key.
fn control(character: char) -> Option<u8> {
    match character {
        '@' | ' ' | '2' => Some(0),
        'a'..='z' | 'A'..='Z' | '[' | '\\' | ']' | '^' | '_' => u8::try_from(character).ok().map(|byte| byte & 0x1f),
        '?' | '8' => Some(0x7f),
        '3'..='7' => u8::try_from(character).ok().map(|byte| byte - b'3' + 0x1b),
        '/' | '-' => Some(0x1f),
        _ => None,
    }
}

/// Returns the bytes that a terminal sends for pasted text. Lines end with Enter, and other control characters are left
/// out, so that pasted text cannot press keys.
pub(super) fn pasted(text: &str) -> Vec<u8> {
    let text = text.replace("\r\n", "\r").replace('\n', "\r");
    text.chars()
        .filter(|character| !character.is_control() || matches!(character, '\r' | '\t'))
        .collect::<String>()
        .into_bytes()
}

/// Keysyms by the names of keys. If two keys have the same name, the keysym belongs to the left key or the one in the
/// main block.
const NAMED: [(&str, u32); 33] = [
    ("Backspace", 0xff08),
    ("Tab", 0xff09),
    ("Enter", 0xff0d),
    ("Pause", 0xff13),
    ("ScrollLock", 0xff14),
    ("Escape", 0xff1b),
    ("Home", 0xff50),
    ("ArrowLeft", 0xff51),
    ("ArrowUp", 0xff52),
    ("ArrowRight", 0xff53),
    ("ArrowDown", 0xff54),
    ("PageUp", 0xff55),
    ("PageDown", 0xff56),
    ("End", 0xff57),
    ("PrintScreen", 0xff61),
    ("Insert", 0xff63),
    ("ContextMenu", 0xff67),
    ("NumLock", 0xff7f),
    ("F1", 0xffbe),
    ("F2", 0xffbf),
    ("F3", 0xffc0),
    ("F4", 0xffc1),
    ("F5", 0xffc2),
    ("F6", 0xffc3),
    ("F7", 0xffc4),
    ("F8", 0xffc5),
    ("F9", 0xffc6),
    ("F10", 0xffc7),
    ("F11", 0xffc8),
    ("F12", 0xffc9),
    ("CapsLock", 0xffe5),
    ("Delete", 0xffff),
    ("Clear", 0xff0b),
];
/// Keysyms by the positions of keys, for keys whose name does not identify them.
const PLACED: [(&str, u32); 14] = [
    ("ShiftLeft", SHIFT),
    ("ShiftRight", SHIFT_RIGHT),
    ("ControlLeft", CONTROL),
    ("ControlRight", CONTROL_RIGHT),
    ("AltLeft", ALT),
    ("AltRight", ALT_RIGHT),
    ("MetaLeft", 0xffeb),
    ("MetaRight", 0xffec),
    ("NumpadEnter", 0xff8d),
    ("NumpadMultiply", 0xffaa),
    ("NumpadAdd", 0xffab),
    ("NumpadSubtract", 0xffad),
    ("NumpadDecimal", 0xffae),
    ("NumpadDivide", 0xffaf),
];
/// Keysyms of the numeric keypad while NumLock is off.
const KEYPAD: [(&str, u32); 11] = [
    ("Home", 0xff95),
    ("ArrowLeft", 0xff96),
    ("ArrowUp", 0xff97),
    ("ArrowRight", 0xff98),
    ("ArrowDown", 0xff99),
    ("PageUp", 0xff9a),
    ("PageDown", 0xff9b),
    ("End", 0xff9c),
    ("Clear", 0xff9d),
    ("Insert", 0xff9e),
    ("Delete", 0xff9f),
];
const SHIFT: u32 = 0xffe1;
const SHIFT_RIGHT: u32 = 0xffe2;
const CONTROL: u32 = 0xffe3;
const CONTROL_RIGHT: u32 = 0xffe4;
const ALT: u32 = 0xffe9;
const ALT_RIGHT: u32 = 0xffea;
const DELETE: u32 = 0xffff;
/// Ctrl, Alt and Delete, in the order in which they are pressed.
pub(super) const CTRL_ALT_DELETE: [u32; 3] = [CONTROL, ALT, DELETE];
/// Signs that need Shift on a US keyboard, which QEMU assumes. Uppercase letters need Shift, too.
const SHIFTED: &str = "~!@#$%^&*()_+{}|:\"<>?";

/// Returns the keysym of a key. Returns `None` for keys without one, such as AltGr, dead keys and media keys.
pub(super) fn keysym(key: &KeyPress) -> Option<u32> {
    let of = |table: &[(&str, u32)], name: &str| {
        table
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, keysym)| *keysym)
    };
    // AltGr has the position of the right Alt key. The characters that it produces arrive as keys of their own.
    if key.key == "AltGraph" {
        return None;
    }
    let keypad = key.code.strip_prefix("Numpad");
    if let Some(place) = keypad {
        let digit = place
            .parse::<u32>()
            .ok()
            .filter(|digit| *digit < 10 && key.key == place);
        let found = digit.map(|digit| 0xffb0 + digit).or_else(|| of(&KEYPAD, &key.key));
        if found.is_some() {
            return found;
        }
    }
    if let Some(found) = of(&PLACED, &key.code).or_else(|| of(&NAMED, &key.key)) {
        return Some(found);
    }
    let mut characters = key.key.chars();
    match (characters.next(), characters.next()) {
        (Some(character), None) => of_character(character),
        _ => None,
    }
}

/// Returns the keysym of a character. In Latin-1 this is the code point, and in the rest of Unicode the code point plus
/// 2^24.
fn of_character(character: char) -> Option<u32> {
    match u32::from(character) {
        code @ (0x20..=0x7e | 0xa0..=0xff) => Some(code),
        code @ 0x100.. => Some(0x0100_0000 | code),
        _ => None,
    }
}

/// Returns the key events, pressed (`true`) or released (`false`), that press `keysym` while the keys `held` are down.
/// If a sign needs another state of Shift on a US keyboard than on the user's keyboard, Shift is changed temporarily.
pub(super) fn pressed(keysym: u32, held: &[u32]) -> Vec<(u32, bool)> {
    let is_shift = |keysym: &u32| matches!(*keysym, SHIFT | SHIFT_RIGHT);
    let shifts: Vec<u32> = held.iter().copied().filter(is_shift).collect();
    let is_command = held
        .iter()
        .any(|held| matches!(*held, CONTROL | CONTROL_RIGHT | ALT | ALT_RIGHT));
    let character = char::from_u32(keysym).filter(char::is_ascii_graphic);
    // Letters are not adjusted, because they also depend on CapsLock.
    let sign = character.filter(|character| !character.is_alphabetic() && !is_command);
    match sign.map(|sign| SHIFTED.contains(sign)) {
        Some(true) if shifts.is_empty() => vec![(SHIFT, true), (keysym, true), (SHIFT, false)],
        Some(false) => {
            let released = shifts.iter().map(|shift| (*shift, false));
            let again = shifts.iter().map(|shift| (*shift, true));
            released.chain([(keysym, true)]).chain(again).collect()
        }
        _ => vec![(keysym, true)],
    }
}

/// Returns the key events, pressed (`true`) or released (`false`), that type a text.
pub(super) fn typed(text: &str) -> Vec<(u32, bool)> {
    let mut keys = Vec::new();
    for character in text.replace("\r\n", "\n").chars() {
        let found = match character {
            '\n' | '\r' => Some(0xff0d),
            '\t' => Some(0xff09),
            character => of_character(character),
        };
        let Some(keysym) = found else { continue };
        let shifted = character.is_ascii_uppercase() || SHIFTED.contains(character);
        keys.extend(shifted.then_some((SHIFT, true)));
        keys.extend([(keysym, true), (keysym, false)]);
        keys.extend(shifted.then_some((SHIFT, false)));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a key press from a text such as `ctrl+c`, whose prefixes are modifiers.
    fn pressed(text: &str) -> KeyPress {
        let mut key = KeyPress {
            down: true,
            ..KeyPress::default()
        };
        let mut name = text;
        while let Some((modifier, rest)) = name.split_once('+').filter(|(_, rest)| !rest.is_empty()) {
            match modifier {
                "ctrl" => key.ctrl = true,
                "alt" => key.alt = true,
                _ => key.shift = true,
            }
            name = rest;
        }
        name.clone_into(&mut key.key);
        key
    }

    #[test]
    fn keys_are_the_bytes_of_a_terminal() {
        for (key, expected) in [
            ("a", "a"),
            ("shift+A", "A"),
            ("+", "+"),
            ("é", "é"),
            ("Enter", "\r"),
            ("Tab", "\t"),
            ("shift+Tab", "\x1b[Z"),
            ("Backspace", "\x7f"),
            ("ctrl+Backspace", "\x08"),
            ("Escape", "\x1b"),
            ("ctrl+c", "\x03"),
            ("ctrl+shift+C", "\x03"),
            ("ctrl+]", "\x1d"),
            ("ctrl+ ", "\0"),
            ("ctrl+?", "\x7f"),
            ("ctrl+4", "\x1c"),
            ("ctrl+/", "\x1f"),
            ("ctrl+é", ""),
            ("alt+b", "\x1bb"),
            ("alt+Enter", "\x1b\r"),
            // AltGr on a German keyboard with Windows.
            ("ctrl+alt+@", "@"),
            ("ArrowUp", "\x1b[A"),
            ("ctrl+ArrowLeft", "\x1b[1;5D"),
            ("Home", "\x1b[H"),
            ("shift+End", "\x1b[1;2F"),
            ("Delete", "\x1b[3~"),
            ("ctrl+Delete", "\x1b[3;5~"),
            ("PageUp", "\x1b[5~"),
            ("F1", "\x1bOP"),
            ("F5", "\x1b[15~"),
            ("F12", "\x1b[24~"),
            ("Shift", ""),
            ("Dead", ""),
            ("MediaPlay", ""),
            ("", ""),
        ] {
            let shown = |bytes: Vec<u8>| bytes.escape_ascii().to_string();
            assert_eq!(shown(bytes(&pressed(key), false)), shown(expected.into()), "{key}");
        }
        assert_eq!(bytes(&pressed("ArrowUp"), true), b"\x1bOA");
        assert_eq!(bytes(&pressed("ctrl+ArrowUp"), true), b"\x1b[1;5A");
        let released = KeyPress {
            down: false,
            ..pressed("a")
        };
        assert_eq!(bytes(&released, false), b"");
    }

    #[test]
    fn pasted_text_presses_no_control_keys() {
        assert_eq!(pasted("a\r\nb\nc\td"), b"a\rb\rc\td");
        assert_eq!(pasted("x\x1b[201~\x03\u{9b}é"), "x[201~é".as_bytes());
    }

    #[test]
    fn keys_have_the_keysyms_of_x11() {
        for (name, code, expected) in [
            ("a", "KeyA", Some(0x61)),
            ("A", "KeyA", Some(0x41)),
            (" ", "Space", Some(0x20)),
            ("ß", "Minus", Some(0xdf)),
            ("€", "KeyE", Some(0x0100_20ac)),
            ("Ж", "Semicolon", Some(0x0100_0416)),
            ("Enter", "Enter", Some(0xff0d)),
            ("Enter", "NumpadEnter", Some(0xff8d)),
            ("7", "Digit7", Some(0x37)),
            ("7", "Numpad7", Some(0xffb7)),
            ("Home", "Numpad7", Some(0xff95)),
            ("Home", "Home", Some(0xff50)),
            (".", "NumpadDecimal", Some(0xffae)),
            ("Delete", "NumpadDecimal", Some(0xff9f)),
            ("+", "NumpadAdd", Some(0xffab)),
            ("Delete", "Delete", Some(0xffff)),
            ("Shift", "ShiftLeft", Some(0xffe1)),
            ("Shift", "ShiftRight", Some(0xffe2)),
            ("Control", "ControlRight", Some(0xffe4)),
            ("Alt", "AltLeft", Some(0xffe9)),
            ("AltGraph", "AltRight", None),
            ("Meta", "MetaLeft", Some(0xffeb)),
            ("F1", "F1", Some(0xffbe)),
            ("F12", "F12", Some(0xffc9)),
            ("ArrowUp", "ArrowUp", Some(0xff52)),
            ("PageDown", "PageDown", Some(0xff56)),
            ("Dead", "BracketRight", None),
            ("MediaPlayPause", "", None),
            ("\u{7}", "", None),
            ("", "", None),
        ] {
            let key = KeyPress {
                key: name.into(),
                code: code.into(),
                ..KeyPress::default()
            };
            assert_eq!(keysym(&key), expected, "{name} {code}");
        }
    }

    #[test]
    fn shift_matches_the_sign_on_any_keyboard_layout() {
        let slash = u32::from('/');
        for (sign, held, expected) in [
            ('?', vec![SHIFT], vec![(0x3f, true)]),
            ('?', vec![], vec![(SHIFT, true), (0x3f, true), (SHIFT, false)]),
            ('/', vec![], vec![(slash, true)]),
            // Shift and 7 on a German keyboard.
            (
                '/',
                vec![SHIFT_RIGHT],
                vec![(SHIFT_RIGHT, false), (slash, true), (SHIFT_RIGHT, true)],
            ),
            ('/', vec![SHIFT, CONTROL], vec![(slash, true)]),
            ('A', vec![], vec![(0x41, true)]),
            ('a', vec![SHIFT], vec![(0x61, true)]),
            (' ', vec![SHIFT], vec![(0x20, true)]),
        ] {
            assert_eq!(super::pressed(u32::from(sign), &held), expected, "{sign} {held:?}");
        }
    }

    #[test]
    fn text_is_typed_with_shift_where_needed() {
        assert_eq!(typed("a"), [(0x61, true), (0x61, false)]);
        assert_eq!(
            typed("B!\u{7}")[..4],
            [(SHIFT, true), (0x42, true), (0x42, false), (SHIFT, false)]
        );
        assert_eq!(typed("B!\u{7}").len(), 8);
        assert_eq!(typed("\r\n"), [(0xff0d, true), (0xff0d, false)]);
    }
}
