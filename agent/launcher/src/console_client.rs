//! Client of the guest's first serial port.
//!
//! The client is a user who is connected through the node's agent. It receives the output from the time of its
//! connection, and its input goes to the guest.
//!
//! ```text
//!  QEMU ──output──▶ Console ──▶ log
//!    ▲                 └──▶ queue of at most 64 KiB ──▶ client      a slow client loses output, the guest never waits
//!    └──── at most 4 KiB ◀─────────────────────────────── client    a slow guest makes the client wait
//! ```
//!
//! There is one client at a time. The next client replaces it.

use std::{
    collections::VecDeque,
    fs,
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
};

use nix::poll::{PollFd, PollFlags};

/// Maximum output that is queued for the client, in bytes.
const OUTPUT: usize = 64 * 1024;
/// Maximum input that is queued for the guest, in bytes.
const INPUT: usize = 4 * 1024;

/// Socket for clients, and the current client.
#[derive(Debug)]
pub(crate) struct ConsoleClient {
    listener: UnixListener,
    connection: Option<UnixStream>,
    output: VecDeque<u8>,
    /// Number of bytes of output that the client has lost since the last note about lost output.
    lost: usize,
    input: Vec<u8>,
}

impl ConsoleClient {
    /// Listens on a socket at this path.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub(crate) fn listen(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        // Only the agent, which is root, and processes of the same user can connect.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            connection: None,
            output: VecDeque::new(),
            lost: 0,
            input: Vec::new(),
        })
    }

    /// Returns the descriptors to poll.
    pub(crate) fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let listener = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        let connection = self.connection.as_ref().and_then(|connection| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, self.input.len() < INPUT);
            flags.set(PollFlags::POLLOUT, !self.output.is_empty());
            // `poll` returns at once for a client that has disconnected, even without flags. Its input cannot be read
            // before the guest takes some input.
            (!flags.is_empty()).then(|| PollFd::new(connection.as_fd(), flags))
        });
        [Some(listener), connection].into_iter().flatten()
    }

    /// Returns whether input is queued for the guest.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Queues output of the guest for the client.
    pub(crate) fn print(&mut self, bytes: &[u8]) {
        if self.connection.is_none() {
            return;
        }
        let note = self.note();
        if self.output.len() + note.len() + bytes.len() > OUTPUT {
            self.lost += bytes.len();
            return;
        }
        self.output.extend(note.as_bytes());
        self.lost = 0;
        self.output.extend(bytes);
        self.write();
    }

    /// Returns the note about lost output. The note is empty if no output was lost.
    fn note(&self) -> String {
        match self.lost {
            0 => String::new(),
            lost => format!("\r\n[{lost} bytes of output were lost because the client reads too slowly]\r\n"),
        }
    }

    /// Accepts a client, writes queued output to it, and passes its input to the guest.
    pub(crate) fn work(&mut self, guest: Option<&mut UnixStream>) {
        if let Ok((connection, _)) = self.listener.accept() {
            self.close();
            // Without a guest, a client has nothing to connect to.
            if guest.is_some() && connection.set_nonblocking(true).is_ok() {
                self.connection = Some(connection);
            }
        }
        self.write();
        self.read();
        if let Some(guest) = guest {
            self.pass_on(guest);
        }
    }

    /// Ends the client's connection.
    pub(crate) fn close(&mut self) {
        self.write();
        self.connection = None;
        self.output = VecDeque::new();
        self.lost = 0;
        self.input.clear();
    }

    fn write(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        while !self.output.is_empty() {
            match connection.write(self.output.make_contiguous()) {
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.connection = None;
                    self.output = VecDeque::new();
                    return;
                }
            }
        }
        if self.lost > 0 {
            let note = self.note();
            self.output.extend(note.as_bytes());
            self.lost = 0;
        }
    }

    fn read(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let mut buffer = [0; INPUT];
        let room = INPUT - self.input.len();
        if room == 0 {
            return;
        }
        match connection.read(&mut buffer[..room]) {
            Ok(0) => self.connection = None,
            Ok(length) => self.input.extend_from_slice(&buffer[..length]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.connection = None,
        }
    }

    fn pass_on(&mut self, guest: &mut UnixStream) {
        if self.input.is_empty() {
            return;
        }
        match guest.write(&self.input) {
            Ok(written) => drop(self.input.drain(..written)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // The next read of the guest's output detects that the guest has disconnected.
            Err(_) => self.input.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollTimeout, poll};
    use tempfile::TempDir;

    use super::*;

    struct Setup {
        folder: TempDir,
        client: ConsoleClient,
        /// Both ends of QEMU's connection: the launcher's end and QEMU's end.
        guest: (UnixStream, UnixStream),
    }

    fn setup() -> Setup {
        let folder = TempDir::new().unwrap();
        let client = ConsoleClient::listen(&folder.path().join("client.sock")).unwrap();
        let guest = UnixStream::pair().unwrap();
        guest.0.set_nonblocking(true).unwrap();
        Setup { folder, client, guest }
    }

    impl Setup {
        fn connect(&mut self) -> UnixStream {
            let user = UnixStream::connect(self.folder.path().join("client.sock")).unwrap();
            self.client.work(Some(&mut self.guest.0));
            user
        }
    }

    fn read(user: &mut UnixStream, length: usize) -> String {
        let mut bytes = vec![0; length];
        user.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn output_reaches_the_client_and_input_the_guest() {
        let mut setup = setup();
        setup.client.print(b"before");
        let mut user = setup.connect();
        setup.client.print(b"login: ");
        assert_eq!(read(&mut user, 7), "login: ");
        user.write_all(b"root\n").unwrap();
        setup.client.work(Some(&mut setup.guest.0));
        assert_eq!(read(&mut setup.guest.1, 5), "root\n");
    }

    #[test]
    fn next_client_replaces_the_present_client() {
        let mut setup = setup();
        let mut first = setup.connect();
        let mut second = setup.connect();
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        setup.client.print(b"x");
        assert_eq!(read(&mut second, 1), "x");
    }

    #[test]
    fn client_without_a_guest_is_disconnected() {
        let mut setup = setup();
        let mut user = UnixStream::connect(setup.folder.path().join("client.sock")).unwrap();
        setup.client.work(None);
        assert_eq!(user.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn slow_client_loses_output_within_a_bound_and_is_informed() {
        let mut setup = setup();
        let mut user = setup.connect();
        let block = [b'.'; 8192];
        for _ in 0..200 {
            setup.client.print(&block);
            assert!(setup.client.output.len() <= OUTPUT);
        }
        assert!(setup.client.lost > 0);
        user.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let mut all = Vec::new();
        while !all.ends_with(b"reads too slowly]\r\n") {
            let mut buffer = [0; 65536];
            let length = user.read(&mut buffer).unwrap();
            all.extend_from_slice(&buffer[..length]);
            setup.client.work(Some(&mut setup.guest.0));
        }
        let text = String::from_utf8(all).unwrap();
        let dots = text.bytes().filter(|byte| *byte == b'.').count();
        let note = text.split('[').nth(1).unwrap();
        let lost: usize = note.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(dots + lost, 200 * block.len());
    }

    #[test]
    fn input_waits_for_a_guest_that_does_not_read() {
        let mut setup = setup();
        let mut user = setup.connect();
        user.set_nonblocking(true).unwrap();
        let mut sent = 0;
        // The loop ends when the buffers of both sockets and the queue are full.
        while let Ok(length) = user.write(&[b'x'; 4096]) {
            sent += length;
            setup.client.work(Some(&mut setup.guest.0));
        }
        assert_eq!(setup.client.input.len(), INPUT);
        // The launcher waits in the meantime, even after the client has disconnected.
        drop(user);
        let mut waits: Vec<_> = setup.client.waits().collect();
        assert_eq!(poll(&mut waits, PollTimeout::ZERO).unwrap(), 0);
        drop(waits);
        setup.guest.1.set_nonblocking(true).unwrap();
        let mut received = 0;
        let mut buffer = [0; 65536];
        while received < sent {
            if let Ok(length) = setup.guest.1.read(&mut buffer) {
                received += length;
            }
            setup.client.work(Some(&mut setup.guest.0));
        }
        assert_eq!(received, sent);
    }
}
