//! Draws a block of lines on a terminal and redraws it with ANSI escape sequences (ECMA-48).

use std::{
    io::{self, IsTerminal, Write},
    os::fd::{AsFd, OwnedFd},
};

use drydock_view::{live::Canvas, text::WIDTH};

/// Height in lines of a terminal that does not report its height.
const HEIGHT: usize = 24;

/// A terminal on which a view can be redrawn.
#[derive(Debug)]
pub struct LiveTerminal(OwnedFd);

impl LiveTerminal {
    /// Returns the terminal of standard output. Returns `None` if standard output is not a terminal.
    pub fn stdout() -> Option<Self> {
        let out = io::stdout();
        if !out.is_terminal() {
            return None;
        }
        out.as_fd().try_clone_to_owned().ok().map(Self)
    }

    /// Returns the current number of columns and lines.
    pub(crate) fn size(&self) -> (usize, usize) {
        // A pseudo-terminal without a window reports 0 columns.
        let size = terminal_size::terminal_size_of(&self.0).filter(|(width, height)| width.0 > 0 && height.0 > 0);
        size.map_or((WIDTH, HEIGHT), |(width, height)| (width.0.into(), height.0.into()))
    }
}

impl From<OwnedFd> for LiveTerminal {
    fn from(terminal: OwnedFd) -> Self {
        Self(terminal)
    }
}

/// Lines that are redrawn on a terminal.
#[derive(Debug)]
pub(crate) struct Screen {
    live: LiveTerminal,
    colour: bool,
    drawn: Vec<String>,
    width: usize,
}

impl Screen {
    pub(crate) fn new(live: LiveTerminal, colour: bool) -> Self {
        Self {
            live,
            colour,
            drawn: Vec::new(),
            width: 0,
        }
    }

    /// Returns the current size of the area for lines. One line is reserved for the cursor.
    pub(crate) fn canvas(&self) -> Canvas {
        let (width, height) = self.live.size();
        Canvas {
            width,
            height: height.saturating_sub(1).max(1),
            colour: self.colour,
        }
    }

    /// Replaces the lines that were drawn before. Writes nothing if the lines and the width are the same.
    ///
    /// # Errors
    /// If the terminal cannot be written to.
    pub(crate) fn draw(&mut self, lines: Vec<String>, canvas: Canvas, out: &mut dyn Write) -> io::Result<()> {
        if lines == self.drawn && canvas.width == self.width {
            return Ok(());
        }
        // A terminal that has become narrower has wrapped the drawn lines, and a terminal that has become lower has scrolled
        // them away.
        let above = rows(&self.drawn, canvas.width).min(canvas.height);
        out.write_all(replacing(above, &lines).as_bytes())?;
        out.flush()?;
        (self.drawn, self.width) = (lines, canvas.width);
        Ok(())
    }
}

/// Returns the sequence that writes lines in place of the `above` rows before the cursor.
fn replacing(above: usize, lines: &[String]) -> String {
    let mut text = String::from("\r");
    if above > 0 {
        text.push_str(&format!("\x1b[{above}A"));
    }
    for line in lines {
        // The line is erased before it is written, because the cursor stays on the last column after a line of the full
        // width.
        text.push_str("\x1b[2K");
        text.push_str(line);
        text.push('\n');
    }
    text.push_str("\x1b[J");
    text
}

/// Returns the number of terminal rows that lines occupy.
fn rows(lines: &[String], width: usize) -> usize {
    lines
        .iter()
        .map(|line| columns(line).max(1).div_ceil(width.max(1)))
        .sum()
}

/// Returns the number of columns of a line, without escape sequences that set colours.
fn columns(line: &str) -> usize {
    let mut parts = line.split('\x1b');
    let first = parts.next().map_or(0, |part| part.chars().count());
    let others = parts.map(|part| part.split_once('m').map_or(0, |(_, text)| text.chars().count()));
    first + others.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(all: &[&str]) -> Vec<String> {
        all.iter().map(|&line| line.into()).collect()
    }

    #[test]
    fn lines_replace_those_that_were_drawn_before() {
        for (above, text, expected) in [
            (0, &["a", "b"][..], "\r\x1b[2Ka\n\x1b[2Kb\n\x1b[J"),
            (2, &["c"], "\r\x1b[2A\x1b[2Kc\n\x1b[J"),
            (1, &[], "\r\x1b[1A\x1b[J"),
        ] {
            assert_eq!(replacing(above, &lines(text)), expected);
        }
    }

    #[test]
    fn lines_of_a_narrower_terminal_take_more_rows() {
        let drawn = lines(&["12345678", "", "\x1b[1;31mBLOCKED\x1b[0m x"]);
        for (width, expected) in [(80, 3), (9, 3), (8, 4), (4, 6), (0, 18)] {
            assert_eq!(rows(&drawn, width), expected, "{width}");
        }
    }

    #[test]
    fn nothing_is_written_without_a_change() {
        let terminal = std::fs::File::open("/dev/null").unwrap();
        let mut screen = Screen::new(OwnedFd::from(terminal).into(), false);
        let canvas = screen.canvas();
        assert_eq!((canvas.width, canvas.height), (80, 23));
        let mut draw = |text: &[&str], width: usize| {
            let mut out = Vec::new();
            screen.draw(lines(text), Canvas { width, ..canvas }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(draw(&["a", "b"], 80), "\r\x1b[2Ka\n\x1b[2Kb\n\x1b[J");
        assert_eq!(draw(&["a", "b"], 80), "");
        assert_eq!(draw(&["a", "c"], 80), "\r\x1b[2A\x1b[2Ka\n\x1b[2Kc\n\x1b[J");
        assert_ne!(draw(&["a", "c"], 40), "");
    }
}
