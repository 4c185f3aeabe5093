//! A program on a pseudo-terminal, and the text that a user would see.

use std::{
    fs::File,
    io::Read,
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, ExitStatus, Stdio},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    pty::{Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;

/// Milliseconds without output after which waiting for a text fails.
const PATIENCE: u16 = 30_000;

/// Locked while a program is started. Another program that starts at the same time would inherit the pseudo-terminal
/// and keep it open.
pub(crate) static STARTING: Mutex<()> = Mutex::new(());

/// A program in a window.
pub(crate) struct Window {
    child: Child,
    master: File,
    slave: OwnedFd,
    pub(crate) written: String,
    seen: Grid,
}

impl Window {
    /// Starts the plugin in a window with this size.
    pub(crate) fn open(columns: u16, lines: u16, words: &[&str]) -> Self {
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let _starting = STARTING.lock();
        let pty = openpty(&size, None).unwrap();
        // Cloned descriptors are closed in programs that are started later.
        let (master, slave) = (pty.master.try_clone().unwrap(), pty.slave.try_clone().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_kubectl-drydock"))
            .args(words)
            .env("TZ", "UTC")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .stdout(Stdio::from(slave.try_clone().unwrap()))
            .stderr(Stdio::from(slave.try_clone().unwrap()))
            .spawn()
            .unwrap();
        Self {
            child,
            master: master.into(),
            slave,
            written: String::new(),
            seen: Grid::new(columns.into()),
        }
    }

    /// Waits until a text is visible in the window. Returns the whole visible text.
    pub(crate) fn until(&mut self, text: &str) -> String {
        loop {
            let seen = self.seen.text();
            if seen.contains(text) && !self.is_being_drawn() {
                return seen;
            }
            assert!(self.read(), "the program has ended without {text:?}:\n{seen}");
        }
    }

    /// Returns whether the end of a block has not arrived yet.
    fn is_being_drawn(&self) -> bool {
        self.written.rfind("\x1b[2K") > self.written.rfind("\x1b[J")
    }

    /// Changes the width of the window.
    pub(crate) fn resize(&mut self, columns: u16) {
        let done = Command::new("stty")
            .args(["cols", &columns.to_string()])
            .stdin(self.slave.try_clone().unwrap())
            .status()
            .unwrap();
        assert!(done.success());
        self.seen.resize(columns.into());
        // The kernel sends this signal to the processes of a terminal's session.
        self.send(Signal::SIGWINCH);
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Presses Ctrl-C.
    pub(crate) fn interrupt(&self) {
        self.send(Signal::SIGINT);
    }

    /// Waits for the end of the program. Returns its exit code and the visible text.
    pub(crate) fn close(mut self) -> (Option<i32>, String) {
        // Now only the program has the pseudo-terminal open, so its end is the end of the output.
        self.slave = OwnedFd::from(File::open("/dev/null").unwrap());
        while self.read() {}
        let status: ExitStatus = self.child.wait().unwrap();
        (status.code(), self.seen.text())
    }

    /// Reads the next output. Returns false at the end.
    fn read(&mut self) -> bool {
        let mut ready = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        assert_ne!(
            poll(&mut ready, PollTimeout::from(PATIENCE)).unwrap(),
            0,
            "nothing has come:\n{}",
            self.seen.text()
        );
        let mut buffer = [0; 4096];
        // Reading from a pseudo-terminal that no process has open fails.
        let Ok(count @ 1..) = self.master.read(&mut buffer) else {
            return false;
        };
        let text = String::from_utf8_lossy(&buffer[..count]).into_owned();
        self.written.push_str(&text);
        self.seen.take(&text);
        true
    }
}

impl Drop for Window {
    /// Kills a program that a test has not waited for.
    fn drop(&mut self) {
        // Both calls fail if the program has ended, which is harmless.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The visible characters of a window. It supports the escape sequences that the plugin uses.
struct Grid {
    columns: usize,
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    pending: String,
}

impl Grid {
    fn new(columns: usize) -> Self {
        Self {
            columns,
            rows: vec![Vec::new()],
            row: 0,
            column: 0,
            pending: String::new(),
        }
    }

    /// Processes output. An incomplete escape sequence is kept for the next call.
    fn take(&mut self, written: &str) {
        self.pending.push_str(written);
        let text = std::mem::take(&mut self.pending);
        let mut rest = text.as_str();
        while let Some(next) = rest.chars().next() {
            if next == '\x1b' {
                let Some(end) = rest.find(|character: char| character.is_ascii_alphabetic()) else {
                    self.pending = rest.to_owned();
                    return;
                };
                // A sequence has `[`, a number, and a letter.
                self.escape(&rest[2..=end]);
                rest = &rest[end + 1..];
                continue;
            }
            match next {
                '\r' => self.column = 0,
                '\n' => self.down(),
                other => self.put(other),
            }
            rest = &rest[next.len_utf8()..];
        }
    }

    /// Wraps all rows at another width, like a terminal.
    fn resize(&mut self, columns: usize) {
        self.columns = columns;
        let rows = std::mem::take(&mut self.rows);
        let wrap = |row: Vec<char>| -> Vec<Vec<char>> {
            if row.is_empty() {
                vec![row]
            } else {
                row.chunks(columns).map(<[char]>::to_vec).collect()
            }
        };
        self.rows = rows.into_iter().flat_map(wrap).collect();
        self.row = self.rows.len() - 1;
    }

    fn down(&mut self) {
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push(Vec::new());
        }
    }

    fn put(&mut self, character: char) {
        assert!(
            self.column < self.columns,
            "a line is wider than the window:\n{}",
            self.text()
        );
        let (row, column) = (self.row, self.column);
        let line = &mut self.rows[row];
        line.resize(line.len().max(column + 1), ' ');
        line[column] = character;
        self.column += 1;
    }

    fn escape(&mut self, code: &str) {
        match code.split_at(code.len().saturating_sub(1)) {
            (count, "A") => self.row -= count.parse::<usize>().unwrap(),
            ("2", "K") => self.rows[self.row].clear(),
            ("", "J") => {
                self.rows[self.row].truncate(self.column);
                self.rows.truncate(self.row + 1);
            }
            (_, "m") => {}
            other => panic!("{other:?} is not a sequence that is used"),
        }
    }

    fn text(&self) -> String {
        let rows = self
            .rows
            .iter()
            .map(|row| row.iter().collect::<String>().trim_end().to_owned());
        rows.collect::<Vec<_>>().join("\n")
    }
}
