//! Determines whether the process at the other end of a Unix socket has read all written data.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use nix::{
    libc::{TIOCOUTQ, c_int},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// Minimum count of a message in bytes. Smaller counts are not messages.
///
/// Each queued message counts with the kernel's own data about it, which is hundreds of bytes. While a message is being
/// freed, the kernel may count one byte for it.
const SMALLEST_MESSAGE: c_int = 64;

/// State of the written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnreadData {
    /// A part of the data has not been read.
    Some,
    /// All data has been read, and the other end is still open.
    Nothing,
    /// The other end is closed. Unread data has been discarded, so it is unknown whether all data was read.
    HungUp,
}

/// Returns whether all data that was written to a connected Unix stream socket has been read.
///
/// # Errors
/// If the descriptor is not a connected Unix stream socket.
#[expect(unsafe_code, reason = "an ioctl has no safe form")]
pub fn unread(socket: BorrowedFd<'_>) -> io::Result<UnreadData> {
    nix::ioctl_read_bad!(outq, TIOCOUTQ, c_int);
    let mut bytes = 0;
    // SAFETY: the descriptor is open, because it is borrowed, and the kernel writes one int to `bytes`.
    unsafe { outq(socket.as_raw_fd(), &raw mut bytes) }?;
    // The order makes the result reliable: the kernel marks a closed socket as hung up before it discards unread
    // data.
    let mut state = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut state, PollTimeout::ZERO)?;
    let events = state[0].revents().unwrap_or(PollFlags::POLLERR);
    if events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
        return Ok(UnreadData::HungUp);
    }
    Ok(if bytes < SMALLEST_MESSAGE {
        UnreadData::Nothing
    } else {
        UnreadData::Some
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn data_is_unread_until_the_last_byte_is_read() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let state_of = |ours: &UnixStream| unread(ours.as_fd()).unwrap();
        assert_eq!(state_of(&ours), UnreadData::Nothing);
        for length in [1, 28, 4096, 100_000] {
            ours.write_all(&vec![7; length]).unwrap();
            assert_eq!(state_of(&ours), UnreadData::Some, "{length}");
            theirs.read_exact(&mut vec![0; length - 1]).unwrap();
            assert_eq!(state_of(&ours), UnreadData::Some, "{length}");
            theirs.read_exact(&mut [0]).unwrap();
            assert_eq!(state_of(&ours), UnreadData::Nothing, "{length}");
        }
    }

    #[test]
    fn a_socket_that_was_closed_proves_nothing() {
        for read in [false, true] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            ours.write_all(b"reply").unwrap();
            if read {
                theirs.read_exact(&mut [0; 5]).unwrap();
            }
            drop(theirs);
            // The kernel has discarded the unread data.
            assert_eq!(unread(ours.as_fd()).unwrap(), UnreadData::HungUp, "{read}");
        }
    }

    #[test]
    fn file_that_is_no_socket_is_an_error() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(unread(file.as_fd()).is_err());
    }
}
