//! Conversion of the output of a guest or a program to lines that can be logged.
//!
//! ```text
//! bytes ──▶ characters ──▶ without escape sequences, controls as \xNN ──▶ `guest: ` + at most 1 KiB
//! ```
//!
//! Each line begins with the prefix and contains nothing that a terminal or a log interprets as the end of a line. The
//! output can therefore not imitate a line of another source. At most one line is buffered, even if it never ends.

#[cfg(test)]
mod tests;

/// Maximum length of a line's text in bytes. Longer text continues on the next line.
pub(crate) const LONGEST: usize = 1024;

/// Position within an escape sequence (ECMA-48). Sequences set colours and move the cursor, and are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sequence {
    None,
    /// The position after ESC and any intermediate bytes.
    Escape,
    /// The position after ESC [ and this number of parameter bytes.
    Control(u8),
}

/// Maximum length of a sequence's parameters in bytes. Text with more parameters is not treated as a sequence.
const PARAMETERS: u8 = 64;

/// Converts output to lines.
#[derive(Debug)]
pub(crate) struct ConsoleLines {
    prefix: &'static str,
    /// Current line, with its prefix.
    line: String,
    /// Bytes of an incomplete character.
    partial: Vec<u8>,
    sequence: Sequence,
    /// Whether the last character was a carriage return that ended a line.
    returned: bool,
}

impl ConsoleLines {
    /// Creates a converter for lines that begin with `prefix`.
    pub(crate) fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            line: prefix.to_owned(),
            partial: Vec::with_capacity(4),
            sequence: Sequence::None,
            returned: false,
        }
    }

    /// Processes output. Calls `emit` with each complete line, including its newline.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut emit: impl FnMut(&str)) {
        for &byte in bytes {
            if byte.is_ascii() {
                self.give_up_partial(&mut emit);
                self.character(char::from(byte), &mut emit);
                continue;
            }
            self.partial.push(byte);
            match std::str::from_utf8(&self.partial) {
                Ok(text) => {
                    let character = text.chars().next();
                    self.partial.clear();
                    if let Some(character) = character {
                        self.character(character, &mut emit);
                    }
                }
                // The character is still incomplete.
                Err(error) if error.error_len().is_none() => {}
                Err(_) => {
                    // The last byte may be the start of a character.
                    self.partial.pop();
                    self.give_up_partial(&mut emit);
                    self.partial.push(byte);
                    if std::str::from_utf8(&self.partial).is_err_and(|error| error.error_len().is_some()) {
                        self.give_up_partial(&mut emit);
                    }
                }
            }
        }
    }

    /// Returns whether the current line is unfinished.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.line.len() > self.prefix.len() || !self.partial.is_empty()
    }

    /// Ends the current line if it has text.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(&str)) {
        self.give_up_partial(&mut emit);
        if self.is_unfinished() {
            self.end_line(&mut emit);
        }
    }

    /// Adds the bytes of an invalid character to the line in escaped form.
    fn give_up_partial(&mut self, emit: &mut impl FnMut(&str)) {
        for byte in std::mem::take(&mut self.partial) {
            self.escaped(u32::from(byte), emit);
        }
    }

    fn character(&mut self, character: char, emit: &mut impl FnMut(&str)) {
        if self.in_sequence(character) {
            return;
        }
        let returned = std::mem::take(&mut self.returned);
        match character {
            '\n' if returned => {}
            '\n' => self.end_line(emit),
            // The line is redrawn, like a progress display, or the character is the first half of CR LF.
            '\r' => {
                if self.line.len() > self.prefix.len() {
                    self.end_line(emit);
                    self.returned = true;
                } else {
                    self.returned = returned;
                }
            }
            '\u{1b}' => self.sequence = Sequence::Escape,
            '\t' => self.text("\t", emit),
            _ if deceives(character) => self.escaped(u32::from(character), emit),
            _ => self.text(character.encode_utf8(&mut [0; 4]), emit),
        }
    }

    /// Returns whether the character belongs to an escape sequence.
    fn in_sequence(&mut self, character: char) -> bool {
        let (next, belongs) = match (self.sequence, character) {
            (Sequence::None, _) => return false,
            (Sequence::Escape, '[') => (Sequence::Control(0), true),
            (Sequence::Escape, ' '..='/') => (Sequence::Escape, true),
            (Sequence::Escape, '0'..='~') => (Sequence::None, true),
            (Sequence::Control(length), ' '..='?') if length < PARAMETERS => (Sequence::Control(length + 1), true),
            (Sequence::Control(_), '@'..='~') => (Sequence::None, true),
            (Sequence::Escape | Sequence::Control(_), _) => (Sequence::None, false),
        };
        self.sequence = next;
        belongs
    }

    fn escaped(&mut self, code: u32, emit: &mut impl FnMut(&str)) {
        if code <= 0xff {
            self.text(&format!("\\x{code:02x}"), emit);
        } else {
            self.text(&format!("\\u{{{code:x}}}"), emit);
        }
    }

    fn text(&mut self, text: &str, emit: &mut impl FnMut(&str)) {
        self.returned = false;
        if self.line.len() + text.len() > self.prefix.len() + LONGEST {
            self.end_line(emit);
        }
        self.line.push_str(text);
    }

    fn end_line(&mut self, emit: &mut impl FnMut(&str)) {
        self.line.push('\n');
        emit(&self.line);
        self.line.truncate(self.prefix.len());
    }
}

/// Returns whether a character ends lines, reverses text or hides it.
///
/// Control characters are included, and the Unicode characters that have such an effect.
fn deceives(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}
