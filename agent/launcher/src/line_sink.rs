//! Non-blocking output for lines. Lines that do not fit are dropped and counted.
//!
//! ```text
//! line ──▶ queue of at most 64 KiB ──▶ as much as the pipe accepts now
//!   └─ no room: counted; `launcher: 17 lines were dropped here, ...` once there is room again
//! ```

use std::{
    collections::VecDeque,
    fs::File,
    io::{ErrorKind, Write},
    os::fd::AsFd,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Maximum number of queued bytes.
const QUEUE: usize = 64 * 1024;
/// Maximum number of bytes written at once.
///
/// A writable pipe accepts this number of bytes atomically and without blocking (`PIPE_BUF` of pipe(7)). Therefore the
/// pipe, which other processes share, does not have to be non-blocking.
const MAX_BYTES_PER_WRITE: usize = 4096;

/// Queue of lines for an output.
#[derive(Debug)]
pub(crate) struct LineSink {
    to: File,
    /// Description of the lines, for the message about dropped lines.
    what: &'static str,
    queue: VecDeque<u8>,
    dropped: u64,
    /// Whether writing has failed permanently.
    broken: bool,
}

impl LineSink {
    /// Creates an output to a pipe, a file or a terminal.
    pub(crate) fn new(to: File, what: &'static str) -> Self {
        Self {
            to,
            what,
            queue: VecDeque::new(),
            dropped: 0,
            broken: false,
        }
    }

    /// Queues a complete line, including its newline.
    pub(crate) fn line(&mut self, line: &str) {
        let note = self.note();
        let room = QUEUE.saturating_sub(self.queue.len());
        if self.broken || note.len() + line.len() > room {
            self.dropped += 1;
            return;
        }
        if self.dropped > 0 {
            self.queue.extend(note.as_bytes());
            self.dropped = 0;
        }
        self.queue.extend(line.as_bytes());
    }

    /// Returns the message about dropped lines. The message is empty if no lines were dropped.
    fn note(&self) -> String {
        match self.dropped {
            0 => String::new(),
            1 => format!(
                "launcher: 1 line {} was dropped here: it was not read in time\n",
                self.what
            ),
            n => format!(
                "launcher: {n} lines {} were dropped here: they were not read in time\n",
                self.what
            ),
        }
    }

    /// Returns the descriptor to poll, if data is left to write.
    pub(crate) fn waits(&self) -> Option<PollFd<'_>> {
        self.has_more()
            .then(|| PollFd::new(self.to.as_fd(), PollFlags::POLLOUT))
    }

    /// Writes as much as possible without blocking.
    pub(crate) fn flush(&mut self) {
        while self.can_be_written() {
            if self.queue.is_empty() {
                let note = self.note();
                self.queue.extend(note.as_bytes());
                self.dropped = 0;
            }
            let whole = self.whole_lines();
            match self.to.write(&self.queue.make_contiguous()[..whole]) {
                Ok(written) => drop(self.queue.drain(..written)),
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return,
                // The reader has closed the output permanently.
                Err(_) => {
                    self.broken = true;
                    self.queue = VecDeque::new();
                }
            }
        }
    }

    /// Flushes the queue, and waits briefly to flush the rest, because the last lines are important.
    pub(crate) fn flush_last(&mut self, milliseconds: u16) {
        self.flush();
        if let Some(wait) = self.waits() {
            // After a timeout, one more attempt is made too.
            let _ = poll(&mut [wait], PollTimeout::from(milliseconds));
            self.flush();
        }
    }

    /// Returns the length of the complete lines at the front of the queue that can be written at once.
    fn whole_lines(&self) -> usize {
        let most = self.queue.len().min(MAX_BYTES_PER_WRITE);
        let end = self.queue.range(..most).rposition(|&byte| byte == b'\n');
        end.map_or(most, |at| at + 1)
    }

    /// Returns whether data is left to write, including the message about dropped lines.
    fn has_more(&self) -> bool {
        !self.broken && (!self.queue.is_empty() || self.dropped > 0)
    }

    fn can_be_written(&self) -> bool {
        if !self.has_more() {
            return false;
        }
        let mut fds = [PollFd::new(self.to.as_fd(), PollFlags::POLLOUT)];
        // A missing reader shows as an error of the write.
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{PipeReader, Read},
        os::fd::OwnedFd,
    };

    use proptest::{collection::vec, prelude::*};

    use super::{LineSink, QUEUE};

    fn outlet() -> (LineSink, PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        (LineSink::new(File::from(OwnedFd::from(writer)), "of the guest"), reader)
    }

    /// Reads the available data, up to `most` bytes.
    fn take(reader: &mut PipeReader, most: usize) -> Vec<u8> {
        use std::os::fd::AsFd;

        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut buffer = vec![0; most];
        let ready = poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap();
        let length = if ready > 0 && most > 0 {
            reader.read(&mut buffer).unwrap()
        } else {
            0
        };
        buffer.truncate(length);
        buffer
    }

    fn drain(outlet: &mut LineSink, reader: &mut PipeReader) -> String {
        let mut all = Vec::new();
        loop {
            outlet.flush();
            let taken = take(reader, 1 << 16);
            if taken.is_empty() {
                return String::from_utf8(all).unwrap();
            }
            all.extend(taken);
        }
    }

    #[test]
    fn a_reader_that_keeps_up_gets_everything() {
        let (mut outlet, mut reader) = outlet();
        let mut expected = String::new();
        for number in 0..5000 {
            let line = format!("guest: {number}\n");
            outlet.line(&line);
            expected.push_str(&line);
            outlet.flush();
            if number % 100 == 99 {
                assert_eq!(drain(&mut outlet, &mut reader), expected);
                expected.clear();
            }
        }
        assert_eq!(outlet.dropped, 0);
    }

    #[test]
    fn stalled_reader_blocks_no_writer_and_gets_the_dropped_count() {
        let (mut outlet, mut reader) = outlet();
        let line = format!("guest: {}\n", "x".repeat(1000));
        for _ in 0..10_000 {
            outlet.line(&line);
            outlet.flush();
            assert!(outlet.queue.len() <= QUEUE);
        }
        let all = drain(&mut outlet, &mut reader);
        let (notes, lines): (Vec<&str>, Vec<&str>) = all.lines().partition(|line| line.starts_with("launcher: "));
        assert_eq!(notes.len(), 1, "{notes:?}");
        let dropped: usize = notes[0].split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(lines.len() + dropped, 10_000);
    }

    #[test]
    fn dropped_output_is_reported_when_idle() {
        let (mut outlet, mut reader) = outlet();
        let line = format!("guest: {}\n", "x".repeat(1000));
        for _ in 0..1000 {
            outlet.line(&line);
        }
        while !outlet.queue.is_empty() {
            outlet.queue.drain(..line.len());
        }
        // The output waits for the pipe although no line is queued.
        assert!(outlet.waits().is_some());
        outlet.flush();
        assert!(outlet.waits().is_none());
        let text = String::from_utf8(take(&mut reader, 1 << 16)).unwrap();
        assert!(
            text.starts_with("launcher: ") && text.ends_with("in time\n"),
            "{text:?}"
        );
    }

    #[test]
    fn closed_reader_blocks_no_writer() {
        let (mut outlet, reader) = outlet();
        drop(reader);
        outlet.line("guest: a\n");
        outlet.flush();
        outlet.line("guest: b\n");
        assert!(outlet.waits().is_none());
        assert!(outlet.broken);
    }

    proptest! {
        #[test]
        fn each_line_comes_out_whole_and_in_order_or_is_counted(
            steps in vec((1_usize..60, 0_usize..3000, prop_oneof![Just(0_usize), 0_usize..40_000]), 0..60)
        ) {
            let (mut outlet, mut reader) = outlet();
            let (mut out, mut number) = (Vec::new(), 0_u64);
            for (lines, length, taken) in steps {
                for _ in 0..lines {
                    outlet.line(&format!("guest: {number} {}\n", "x".repeat(length)));
                    number += 1;
                }
                outlet.flush();
                out.extend(take(&mut reader, taken));
                prop_assert!(outlet.queue.len() <= QUEUE);
            }
            out.extend(drain(&mut outlet, &mut reader).into_bytes());
            let (mut next, out) = (0_u64, String::from_utf8(out).unwrap());
            for line in out.lines() {
                if let Some(note) = line.strip_prefix("launcher: ") {
                    next += note.split(' ').next().unwrap().parse::<u64>().unwrap();
                } else {
                    let got = line.strip_prefix("guest: ").and_then(|line| line.split(' ').next()).unwrap();
                    prop_assert_eq!(got.parse::<u64>().unwrap(), next);
                    next += 1;
                }
            }
            prop_assert_eq!(next, number);
        }
    }
}
