//! Time limit for a guest's response. The limit counts only time in which this process itself was scheduled.
//!
//! On a busy node, this process may sleep far longer than intended. The guest, in the same control group, gets as
//! little CPU time in the same period. A wait therefore consists of short parts, and each part counts for no more than
//! its intended duration:
//!
//! ```text
//!  wanted      100 ms     100 ms     100 ms
//!  took        100 ms     4 s        100 ms        counts as 300 ms
//! ```

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

/// Maximum length of one part of a wait.
const PART: Duration = Duration::from_millis(100);
/// Minimum length of a part, which is the precision of `poll(2)`.
const MIN_COUNTED_TIME: Duration = Duration::from_millis(1);

/// Remaining time of the limit.
#[derive(Debug)]
pub(super) struct TimeLimit {
    left: Duration,
}

impl TimeLimit {
    /// Creates a limit of this length.
    pub(super) fn new(left: Duration) -> Self {
        Self { left }
    }

    /// Waits until `fd` is ready.
    ///
    /// # Errors
    /// `TimedOut` if `fd` is not ready in time; otherwise the kernel's error.
    pub(super) fn wait(&mut self, fd: BorrowedFd<'_>, flags: PollFlags) -> io::Result<()> {
        self.wait_by(|part| {
            let timeout = PollTimeout::try_from(part).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(fd, flags)], timeout) {
                Ok(ready) => Ok(ready > 0),
                Err(Errno::EINTR) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Waits like [`Self::wait`], but calls `wait` for each part. `wait` returns whether the wait is over.
    fn wait_by(&mut self, mut wait: impl FnMut(Duration) -> io::Result<bool>) -> io::Result<()> {
        while !self.left.is_zero() {
            let part = self.left.clamp(MIN_COUNTED_TIME, PART);
            let begun = Instant::now();
            let ready = wait(part)?;
            let counts = begun.elapsed().min(part);
            // A part that a signal interrupts counts for its actual duration, but at least for `MIN_COUNTED_TIME`.
            self.left = self
                .left
                .saturating_sub(if ready { counts } else { counts.max(MIN_COUNTED_TIME) });
            if ready {
                return Ok(());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// A connection whose reads and writes block until the time limit has expired.
#[derive(Debug)]
pub(super) struct LimitedStream<'a> {
    /// The non-blocking stream.
    pub(super) stream: &'a TcpStream,
    /// Common time limit of all reads and writes.
    pub(super) time_limit: &'a mut TimeLimit,
}

impl LimitedStream<'_> {
    fn retry(&mut self, flags: PollFlags, mut act: impl FnMut(&TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            match act(self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.time_limit.wait(self.stream.as_fd(), flags)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl Read for LimitedStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::POLLIN, |mut stream| stream.read(buffer))
    }
}

impl Write for LimitedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::POLLOUT, |mut stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn late_wakeups_count_for_no_more_than_was_wanted() {
        let mut time_limit = TimeLimit::new(Duration::from_millis(250));
        let mut parts = Vec::new();
        let timed_out = time_limit.wait_by(|part| {
            parts.push(part);
            // The node is busy, so the wait returns late.
            thread::sleep(part * 3);
            Ok(false)
        });
        assert_eq!(timed_out.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let wanted = [100, 100, 50].map(Duration::from_millis);
        assert_eq!(parts, wanted, "three times the time was given");
    }

    #[test]
    fn response_after_late_wakeup_is_in_time() {
        let mut time_limit = TimeLimit::new(Duration::from_millis(100));
        let mut waits = 0;
        let waited = time_limit.wait_by(|part| {
            waits += 1;
            thread::sleep(part * 2);
            Ok(true)
        });
        waited.unwrap();
        assert_eq!(waits, 1);
        assert_eq!(time_limit.left, Duration::ZERO);
    }
}
