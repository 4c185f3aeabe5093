//! Relay of the guest's first serial port.
//!
//! QEMU connects to the relay's socket. The guest's output is read at once, even if the log's reader is slow or
//! missing, so that the guest never blocks on its console.

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

use crate::{console_client::ConsoleClient, console_lines::ConsoleLines, line_sink::LineSink};

/// Idle time after which an unfinished line is shown, because a prompt waits for input.
///
/// An emulated guest that waits for a CPU can pause for 0.2 s in the middle of a line. Its lines should not be split.
const IDLE_TIME: Duration = Duration::from_secs(2);
/// Size of one read in bytes.
const BUFFER: usize = 8 * 1024;

/// Socket for QEMU, the connection of the current QEMU, and the client of the console.
#[derive(Debug)]
pub(crate) struct ConsoleRelay {
    listener: UnixListener,
    connection: Option<UnixStream>,
    client: ConsoleClient,
    lines: ConsoleLines,
    buffer: Vec<u8>,
    /// Time to show the unfinished line.
    finish_at: Option<Instant>,
}

impl ConsoleRelay {
    /// Listens for QEMU on the socket `path`, and for clients on the socket `clients`.
    ///
    /// # Errors
    /// If a socket cannot be created.
    pub(crate) fn listen(path: &Path, clients: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        // Only QEMU, which runs as the same user, can connect.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            connection: None,
            client: ConsoleClient::listen(clients)?,
            lines: ConsoleLines::new("guest: "),
            buffer: vec![0; BUFFER],
            finish_at: None,
        })
    }

    /// Returns the descriptors to poll.
    pub(crate) fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        let connection = self.connection.as_ref().map(|connection| {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, self.client.has_input());
            PollFd::new(connection.as_fd(), flags)
        });
        [Some(listener), connection]
            .into_iter()
            .flatten()
            .chain(self.client.waits())
    }

    /// Returns the latest time of the next call of `work`.
    pub(crate) fn wake(&self) -> Option<Instant> {
        self.finish_at
    }

    /// Reads the guest's output, forwards its lines, and serves the client.
    pub(crate) fn work(&mut self, now: Instant, out: &mut LineSink) {
        self.read(now, out);
        // A new connection replaces the old connection, which QEMU no longer uses.
        if let Ok((connection, _)) = self.listener.accept()
            && connection.set_nonblocking(true).is_ok()
        {
            self.connection = Some(connection);
            self.read(now, out);
        }
        self.client.work(self.connection.as_mut());
        if self.finish_at.is_some_and(|at| at <= now) {
            self.finish(out);
        }
    }

    /// Shows the unfinished line.
    pub(crate) fn finish(&mut self, out: &mut LineSink) {
        self.lines.finish(|line| out.line(line));
        self.finish_at = None;
    }

    fn read(&mut self, now: Instant, out: &mut LineSink) {
        let Some(connection) = &mut self.connection else { return };
        match connection.read(&mut self.buffer) {
            Ok(0) => self.disconnected(out),
            Ok(length) => {
                self.client.print(&self.buffer[..length]);
                self.lines.feed(&self.buffer[..length], |line| out.line(line));
                self.finish_at = self.lines.is_unfinished().then(|| now + IDLE_TIME);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.disconnected(out),
        }
    }

    /// Handles the end of QEMU's connection, after the guest has ended or migrated.
    fn disconnected(&mut self, out: &mut LineSink) {
        self.connection = None;
        self.client.close();
        self.finish(out);
    }

    /// Reads the remaining output of a QEMU that has ended.
    pub(crate) fn drain(&mut self, now: Instant, out: &mut LineSink) {
        // The number of reads is limited by the size of a socket's buffer.
        for _ in 0..64 {
            self.work(now, out);
            out.flush();
        }
        self.finish(out);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        os::{fd::OwnedFd, unix::net::UnixStream},
        thread,
        time::Instant,
    };

    use nix::poll::{PollFd, PollTimeout, poll};
    use tempfile::TempDir;

    use super::ConsoleRelay;
    use crate::line_sink::LineSink;

    /// Returns a console relay, its output, and the reading end of the output.
    fn console(folder: &TempDir) -> (ConsoleRelay, LineSink, std::io::PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        let [socket, clients] = ["console.sock", "clients.sock"].map(|name| folder.path().join(name));
        let console = ConsoleRelay::listen(&socket, &clients).unwrap();
        let outlet = LineSink::new(File::from(OwnedFd::from(writer)), "of the guest");
        (console, outlet, reader)
    }

    fn wait(console: &ConsoleRelay) {
        let mut fds: Vec<PollFd> = console.waits().collect();
        poll(&mut fds, PollTimeout::NONE).unwrap();
    }

    #[test]
    fn guest_never_waits_for_the_console_reader() {
        const LINES: usize = 100_000;
        let folder = TempDir::new().unwrap();
        let (mut console, mut outlet, mut reader) = console(&folder);
        let mut guest = UnixStream::connect(folder.path().join("console.sock")).unwrap();
        let writer = thread::spawn(move || {
            for number in 0..LINES {
                guest.write_all(format!("line {number}\r\n").as_bytes()).unwrap();
            }
        });
        // The guest finishes and disconnects although no process reads the output.
        console.work(Instant::now(), &mut outlet);
        while console.connection.is_some() {
            wait(&console);
            console.work(Instant::now(), &mut outlet);
            outlet.flush();
        }
        writer.join().unwrap();
        // A note in the output contains the number of lines that a late reader has missed.
        let read = thread::spawn(move || {
            let mut all = String::new();
            reader.read_to_string(&mut all).unwrap();
            all
        });
        while outlet
            .waits()
            .is_some_and(|wait| poll(&mut [wait], PollTimeout::NONE).is_ok())
        {
            outlet.flush();
        }
        drop(outlet);
        let all = read.join().unwrap();
        let lines = all.lines().filter(|line| line.starts_with("guest: line ")).count();
        let note = all.lines().find(|line| line.starts_with("launcher: ")).expect("a note");
        let dropped: usize = note.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(lines + dropped, LINES, "{note}");
    }

    #[test]
    fn prompt_without_line_end_is_shown() {
        let folder = TempDir::new().unwrap();
        let (mut console, mut outlet, mut reader) = console(&folder);
        let mut guest = UnixStream::connect(folder.path().join("console.sock")).unwrap();
        guest.write_all(b"login: ").unwrap();
        console.work(Instant::now(), &mut outlet);
        assert!(outlet.waits().is_none());
        let idle_since = console.wake().expect("it comes back for the prompt");
        console.work(idle_since, &mut outlet);
        assert_eq!(console.wake(), None);
        outlet.flush();
        drop(outlet);
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all, "guest: login: \n");
    }

    #[test]
    fn reconnected_qemu_console_is_read() {
        let folder = TempDir::new().unwrap();
        let (mut console, mut outlet, mut reader) = console(&folder);
        for text in ["first\n", "second\n"] {
            let mut guest = UnixStream::connect(folder.path().join("console.sock")).unwrap();
            guest.write_all(text.as_bytes()).unwrap();
            console.work(Instant::now(), &mut outlet);
        }
        outlet.flush();
        drop(outlet);
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all, "guest: first\nguest: second\n");
    }
}
