//! Makes lines that can be logged of whatever a guest, or a program, writes.
//!
//! ```text
//! bytes ──▶ characters ──▶ without escape sequences, controls as \xNN ──▶ `guest: ` + at most 1 KiB
//! ```
//!
//! Each line begins with the prefix and holds nothing that a terminal or a log takes for the end of
//! a line, so nothing that is written can look like a line of somebody else. At most one line is
//! held, however long it gets.

#[cfg(test)]
mod tests;

/// Longest text of a line, in bytes; what is longer continues in a line of its own.
pub(crate) const LONGEST: usize = 1024;

/// Where in an escape sequence (ECMA-48) the text is. Sequences colour and move; they are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sequence {
    None,
    /// After ESC, and bytes that say that more follows.
    Escape,
    /// After ESC [, and so many bytes of parameters.
    Control(u8),
}

/// Longest parameters of a sequence; what is longer is no sequence.
const PARAMETERS: u8 = 64;

/// Text that becomes lines.
#[derive(Debug)]
pub(crate) struct ConsoleLines {
    prefix: &'static str,
    /// The line so far, with its prefix.
    line: String,
    /// A character that is not complete.
    partial: Vec<u8>,
    sequence: Sequence,
    /// Whether the last character was a carriage return that ended a line.
    returned: bool,
}

impl ConsoleLines {
    /// Lines that begin with `prefix`.
    pub(crate) fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            line: prefix.to_owned(),
            partial: Vec::with_capacity(4),
            sequence: Sequence::None,
            returned: false,
        }
    }

    /// Takes in what was written; `emit` gets each complete line, with its end.
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
                // More of it may follow.
                Err(error) if error.error_len().is_none() => {}
                Err(_) => {
                    // The last byte may begin a character itself.
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

    /// Whether there is text without an end.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.line.len() > self.prefix.len() || !self.partial.is_empty()
    }

    /// Ends the line as it is, if there is text.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(&str)) {
        self.give_up_partial(&mut emit);
        if self.is_unfinished() {
            self.end_line(&mut emit);
        }
    }

    /// Bytes that are no character are shown as what they are.
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
            // A line that is drawn anew, as progress is, or half of the line's end.
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

    /// Whether the character belongs to an escape sequence.
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

/// Characters that end lines, turn text round or hide it: controls, and those of Unicode that act
/// as such.
fn deceives(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}
