//! The screen of a serial console, which renders the output of the guest as rows of HTML.
//!
//! A serial port does not transmit a size, so the screen has the 80 columns and 24 rows that guests assume.

use avt::{Color, InvalidSize, Pen};
use maud::{Markup, html};

/// Width of the screen in columns.
pub(in crate::console) const COLUMNS: usize = 80;
/// Height of the screen in rows.
pub(in crate::console) const ROWS: usize = 24;
/// Maximum number of characters of a control sequence that is a query.
const LONGEST_QUERY: usize = 4;

/// The 16 colours of the style sheet, as red, green and blue. Other colours are shown as the nearest of them, because
/// the page's policy does not allow inline styles.
const PALETTE: [[u8; 3]; 16] = [
    [0x0c, 0x0e, 0x11],
    [0xff, 0x7b, 0x72],
    [0x6f, 0xdd, 0x8b],
    [0xe3, 0xb3, 0x41],
    [0x79, 0xb8, 0xff],
    [0xe0, 0x8c, 0xff],
    [0x56, 0xd4, 0xdd],
    [0xd0, 0xd3, 0xd6],
    [0x9a, 0xa0, 0xa6],
    [0xff, 0xa1, 0x98],
    [0x8f, 0xf0, 0xa4],
    [0xf8, 0xd7, 0x75],
    [0xa5, 0xd0, 0xff],
    [0xf0, 0xb3, 0xff],
    [0x8c, 0xe9, 0xf0],
    [0xff, 0xff, 0xff],
];
/// Levels of red, green and blue in the 216 colours of xterm that begin at number 16.
const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];

/// A screen, and output that is not shown yet.
pub(super) struct TerminalScreen {
    screen: avt::Terminal,
    /// First bytes of an incomplete character.
    partial: Vec<u8>,
    /// A control sequence that may become a query.
    query: String,
}

impl TerminalScreen {
    /// Returns an empty screen.
    ///
    /// # Errors
    /// If the size is invalid. It is constant.
    pub(super) fn new() -> Result<Self, InvalidSize> {
        Ok(Self {
            screen: avt::Terminal::new(COLUMNS, ROWS)?,
            partial: Vec::new(),
            query: String::new(),
        })
    }

    /// Shows output of the guest, and returns the replies to queries in it. Bytes that are not UTF-8 are shown as
    /// U+FFFD.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut replies = Vec::new();
        let mut input = std::mem::take(&mut self.partial);
        input.extend_from_slice(bytes);
        let mut chunks = input.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            for character in chunk.valid().chars() {
                self.show(character, &mut replies);
            }
            let invalid = chunk.invalid();
            let may_go_on = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if may_go_on && chunks.peek().is_none() {
                self.partial = invalid.to_vec();
            } else if !invalid.is_empty() {
                self.show(char::REPLACEMENT_CHARACTER, &mut replies);
            }
        }
        replies
    }

    fn show(&mut self, character: char, replies: &mut Vec<u8>) {
        self.screen.feed(character);
        if character == '\x1b' {
            self.query.clear();
        } else if self.query.is_empty() || self.query.len() >= LONGEST_QUERY {
            self.query.clear();
            return;
        }
        self.query.push(character);
        match self.query.as_str() {
            "\x1b[5n" => replies.extend_from_slice(b"\x1b[0n"),
            "\x1b[6n" => {
                let cursor = self.screen.cursor();
                let column = cursor.col.min(COLUMNS - 1) + 1;
                replies.extend_from_slice(format!("\x1b[{};{column}R", cursor.row + 1).as_bytes());
            }
            // Identifies the screen as a VT100 with the advanced video option.
            "\x1b[c" | "\x1b[0c" => replies.extend_from_slice(b"\x1b[?1;2c"),
            _ => {}
        }
    }

    /// Returns whether the guest has switched the arrow keys to application mode.
    pub(super) fn has_application_keys(&self) -> bool {
        self.screen.cursor_key_app_mode()
    }

    /// Returns the content of each row. The cell at the cursor is an element with the class `cursor`.
    pub(super) fn rows(&self) -> Vec<Markup> {
        let cursor = self.screen.cursor().position();
        let lines = self.screen.screen().visible_lines().enumerate();
        let rows = lines.map(|(number, line)| {
            let at = cursor.filter(|(_, row)| *row == number);
            runs(line, at.map(|(column, _)| column.min(COLUMNS - 1)))
        });
        rows.collect()
    }
}

/// Returns a line as spans of cells with the same attributes.
fn runs(line: &avt::Line, cursor: Option<usize>) -> Markup {
    let cells = line.cells();
    let is_blank = |cell: &avt::Cell| cell.char() == ' ' && cell.pen().is_default();
    let filled = cells
        .iter()
        .rposition(|cell| !is_blank(cell))
        .map_or(0, |last| last + 1);
    let shown = cells.len().min(filled.max(cursor.map_or(0, |column| column + 1)));
    let mut runs: Vec<(String, String)> = Vec::new();
    for (column, cell) in cells.iter().enumerate().take(shown) {
        // The cell is the second half of a wide character.
        if cell.width() == 0 {
            continue;
        }
        let mut class = class(cell.pen());
        if cursor == Some(column) {
            class.push_str(" cursor");
        }
        match runs.last_mut() {
            Some((last, text)) if *last == class => text.push(cell.char()),
            _ => runs.push((class, cell.char().to_string())),
        }
    }
    html! {
        @for (class, text) in runs {
            @if class.is_empty() { (text) } @else { span class=(class.trim_start()) { (text) } }
        }
    }
}

/// Returns the style sheet's classes for the attributes of a cell, each with a leading space.
fn class(pen: &Pen) -> String {
    let (mut front, mut back) = (pen.foreground().map(nearest), pen.background().map(nearest));
    let mut class = String::new();
    if pen.is_inverse() {
        (front, back) = (back, front);
        for (colour, name) in [(front, " front-back"), (back, " back-front")] {
            class.push_str(if colour.is_none() { name } else { "" });
        }
    }
    for (kind, colour) in [("f", front), ("b", back)] {
        if let Some(colour) = colour {
            class.push_str(&format!(" {kind}{colour}"));
        }
    }
    for (holds, name) in [
        (pen.is_bold(), " bold"),
        (pen.is_faint(), " faint"),
        (pen.is_italic(), " italic"),
        (pen.is_underline(), " underline"),
        (pen.is_strikethrough(), " struck"),
    ] {
        class.push_str(if holds { name } else { "" });
    }
    class
}

/// Returns the index of the nearest colour in [`PALETTE`].
fn nearest(colour: Color) -> usize {
    let wanted = match colour {
        Color::Indexed(number @ 0..16) => return usize::from(number),
        Color::Indexed(number @ 16..232) => {
            let level = |divisor: u8| LEVELS[usize::from((number - 16) / divisor % 6)];
            [level(36), level(6), level(1)]
        }
        // Shades of grey.
        Color::Indexed(number) => [8 + (number - 232) * 10; 3],
        Color::RGB(colour) => [colour.r, colour.g, colour.b],
    };
    let distance = |[red, green, blue]: [u8; 3]| {
        let square = |one: u8, other: u8| u32::from(one.abs_diff(other)).pow(2);
        square(red, wanted[0]) + square(green, wanted[1]) + square(blue, wanted[2])
    };
    (0..PALETTE.len())
        .min_by_key(|&number| distance(PALETTE[number]))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the rows that are not empty after this output.
    fn shown(output: &[u8]) -> Vec<String> {
        let mut terminal = TerminalScreen::new().unwrap();
        terminal.feed(output);
        let rows = terminal.rows().into_iter().map(Markup::into_string);
        rows.filter(|row| !row.is_empty()).collect()
    }

    #[test]
    fn output_is_rows_with_the_cursor_and_colours() {
        let cursor = "<span class=\"cursor\"> </span>";
        for (output, expected) in [
            (&b""[..], vec![cursor.to_owned()]),
            (b"one\r\ntwo", vec!["one".into(), format!("two{cursor}")]),
            (b"over\rO", vec!["O<span class=\"cursor\">v</span>er".into()]),
            (b"\x1b[?25lno cursor", vec!["no cursor".into()]),
            (
                b"\x1b[?25l\x1b[1;31mred\x1b[0m.",
                vec!["<span class=\"f1 bold\">red</span>.".into()],
            ),
            (
                b"\x1b[?25l\x1b[7minverse\x1b[32m!",
                vec![
                    "<span class=\"front-back back-front\">inverse</span><span class=\"front-back b2\">!</span>".into(),
                ],
            ),
            (b"\x1b[?25l\x1b[48;5;21mx", vec!["<span class=\"b4\">x</span>".into()]),
            (
                b"\x1b[?25l\x1b[38;2;255;250;250mx",
                vec!["<span class=\"f15\">x</span>".into()],
            ),
            (b"\x1b[?25l\x1b(0lqk\x1b(B", vec!["\u{250c}\u{2500}\u{2510}".into()]),
            ("\x1b[?25l世界".as_bytes(), vec!["世界".into()]),
            (b"\x1b[?25l\xff\xc3(", vec!["\u{fffd}\u{fffd}(".into()]),
        ] {
            assert_eq!(shown(output), expected, "{}", output.escape_ascii());
        }
    }

    #[test]
    fn markup_of_the_guest_is_text() {
        let rows = shown(b"\x1b[?25l<img src=x onerror=alert(1)> & \"x\"\x1b[31m</span><b>");
        assert_eq!(
            rows,
            ["&lt;img src=x onerror=alert(1)&gt; &amp; &quot;x&quot;<span class=\"f1\">&lt;/span&gt;&lt;b&gt;</span>"]
        );
    }

    #[test]
    fn queries_of_the_guest_get_replies() {
        for (output, expected) in [
            (&b"\x1b[6n"[..], &b"\x1b[1;1R"[..]),
            (b"\r\nabc\x1b[6n", b"\x1b[2;4R"),
            (b"\x1b[999;999H\x1b[6n", b"\x1b[24;80R"),
            (b"\x1b[5n", b"\x1b[0n"),
            (b"\x1b[c\x1b[0c", b"\x1b[?1;2c\x1b[?1;2c"),
            (b"\x1b[16n[6n\x1b]6n", b""),
        ] {
            assert_eq!(
                TerminalScreen::new().unwrap().feed(output),
                expected,
                "{}",
                output.escape_ascii()
            );
        }
    }

    proptest! {
        #[test]
        fn any_split_of_any_bytes_gives_the_same_screen(
            pieces in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..20),
                "\\PC{0,9}".prop_map(String::into_bytes),
                "\u{1b}[\\[\\]()][0-9;?]{0,5}[@-~]".prop_map(String::into_bytes),
            ], 0..20),
            at in any::<prop::sample::Index>(),
        ) {
            let output = pieces.concat();
            let (before, after) = output.split_at(at.index(output.len() + 1));
            let (mut whole, mut split) = (TerminalScreen::new().unwrap(), TerminalScreen::new().unwrap());
            let replies = whole.feed(&output);
            prop_assert_eq!([split.feed(before), split.feed(after)].concat(), replies);
            let text = |terminal: &TerminalScreen| terminal.rows().into_iter().map(Markup::into_string).collect::<Vec<_>>();
            prop_assert_eq!(text(&whole).len(), ROWS);
            prop_assert_eq!(text(&whole), text(&split));
        }
    }
}
