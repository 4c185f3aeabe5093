//! The guest's first serial port: QEMU connects to a socket here, and whatever the guest writes is
//! read at once, whether or not anybody takes it further. So the guest never waits for its console.

use std::{
    fs,
    io::{self, Read},
    os::{
        fd::AsFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags};

use crate::{console_lines::ConsoleLines, outlet::Outlet};

/// A line without an end is shown after this silence: a prompt waits for an answer.
const SILENCE: Duration = Duration::from_millis(500);
/// How much is read at once.
const BUFFER: usize = 8 * 1024;

/// The socket, and the connection of the QEMU that is connected.
#[derive(Debug)]
pub(crate) struct Console {
    listener: UnixListener,
    connection: Option<UnixStream>,
    lines: ConsoleLines,
    buffer: Vec<u8>,
    /// When the line without an end is shown.
    finish_at: Option<Instant>,
}

impl Console {
    /// Listens on a socket at this path.
    ///
    /// # Errors
    /// If it cannot.
    pub(crate) fn listen(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        // Only for QEMU, which runs as the same user.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            connection: None,
            lines: ConsoleLines::new("guest: "),
            buffer: vec![0; BUFFER],
            finish_at: None,
        })
    }

    /// What to wait for.
    pub(crate) fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        let connection = self
            .connection
            .as_ref()
            .map(|connection| PollFd::new(connection.as_fd(), PollFlags::POLLIN));
        [Some(listener), connection].into_iter().flatten()
    }

    /// When to come back at the latest.
    pub(crate) fn wake(&self) -> Option<Instant> {
        self.finish_at
    }

    /// Reads what the guest wrote, and hands on its lines.
    pub(crate) fn work(&mut self, now: Instant, out: &mut Outlet) {
        self.read(now, out);
        // One that connects again is a QEMU whose former connection is of no use.
        if let Ok((connection, _)) = self.listener.accept()
            && connection.set_nonblocking(true).is_ok()
        {
            self.connection = Some(connection);
            self.read(now, out);
        }
        if self.finish_at.is_some_and(|at| at <= now) {
            self.finish(out);
        }
    }

    /// Shows what has no end.
    pub(crate) fn finish(&mut self, out: &mut Outlet) {
        self.lines.finish(|line| out.line(line));
        self.finish_at = None;
    }

    fn read(&mut self, now: Instant, out: &mut Outlet) {
        let Some(connection) = &mut self.connection else { return };
        match connection.read(&mut self.buffer) {
            Ok(0) => {
                self.connection = None;
                self.finish(out);
            }
            Ok(length) => {
                self.lines.feed(&self.buffer[..length], |line| out.line(line));
                self.finish_at = self.lines.is_unfinished().then(|| now + SILENCE);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => {
                self.connection = None;
                self.finish(out);
            }
        }
    }

    /// Reads all that a QEMU wrote which has ended.
    pub(crate) fn drain(&mut self, now: Instant, out: &mut Outlet) {
        // Bounded by what a socket holds.
        for _ in 0..64 {
            self.work(now, out);
            out.flush();
        }
        self.finish(out);
    }
}
