//! A way out for lines that nobody has to take: what does not fit is dropped and counted.
//!
//! ```text
//! line ──▶ queue of at most 64 KiB ──▶ as much as the pipe takes now
//!   └─ no room: counted; `launcher: 17 lines were dropped here, ...` once there is room again
//! ```

use std::{
    collections::VecDeque,
    fs::File,
    io::{ErrorKind, Write},
    os::fd::AsFd,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Most bytes that wait to be taken.
const QUEUE: usize = 64 * 1024;
/// Most that is written at once. A pipe that can be written to takes as much whole and without
/// waiting (`PIPE_BUF` of pipe(7)), so the pipe, which others share, need not be made non-blocking.
const AT_ONCE: usize = 4096;

/// Lines on their way out.
#[derive(Debug)]
pub(crate) struct Outlet {
    to: File,
    /// What the lines are, for the line that says how many were dropped.
    what: &'static str,
    queue: VecDeque<u8>,
    dropped: u64,
    /// Whether it can be written to at all.
    broken: bool,
}

impl Outlet {
    /// A way out to a pipe, a file or a terminal.
    pub(crate) fn new(to: File, what: &'static str) -> Self {
        Self {
            to,
            what,
            queue: VecDeque::new(),
            dropped: 0,
            broken: false,
        }
    }

    /// Takes a whole line, with its end.
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

    /// What says that lines are missing, if some are.
    fn note(&self) -> String {
        match self.dropped {
            0 => String::new(),
            1 => format!(
                "launcher: 1 line {} was dropped here, since nobody took it in time\n",
                self.what
            ),
            n => format!(
                "launcher: {n} lines {} were dropped here, since nobody took them in time\n",
                self.what
            ),
        }
    }

    /// What to wait for, if anything waits to be taken.
    pub(crate) fn waits(&self) -> Option<PollFd<'_>> {
        self.has_more()
            .then(|| PollFd::new(self.to.as_fd(), PollFlags::POLLOUT))
    }

    /// Writes what is taken without waiting.
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
                // Nobody will ever read it.
                Err(_) => {
                    self.broken = true;
                    self.queue = VecDeque::new();
                }
            }
        }
    }

    /// Waits a moment for what is left to be taken; the last lines are worth it.
    pub(crate) fn flush_last(&mut self, milliseconds: u16) {
        self.flush();
        if let Some(wait) = self.waits() {
            // Taken or not: it is tried once more.
            let _ = poll(&mut [wait], PollTimeout::from(milliseconds));
            self.flush();
        }
    }

    /// How much of the queue is whole lines that can be written at once.
    fn whole_lines(&self) -> usize {
        let most = self.queue.len().min(AT_ONCE);
        let end = self.queue.range(..most).rposition(|&byte| byte == b'\n');
        end.map_or(most, |at| at + 1)
    }

    /// Whether something is still to be said, if only how much was dropped.
    fn has_more(&self) -> bool {
        !self.broken && (!self.queue.is_empty() || self.dropped > 0)
    }

    fn can_be_written(&self) -> bool {
        if !self.has_more() {
            return false;
        }
        let mut fds = [PollFd::new(self.to.as_fd(), PollFlags::POLLOUT)];
        // A reader that is gone shows as an error of the write.
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

    use super::{Outlet, QUEUE};

    fn outlet() -> (Outlet, PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        (Outlet::new(File::from(OwnedFd::from(writer)), "of the guest"), reader)
    }

    /// Takes what is there, up to `most` bytes.
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

    fn drain(outlet: &mut Outlet, reader: &mut PipeReader) -> String {
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
        let mut said = String::new();
        for number in 0..5000 {
            let line = format!("guest: {number}\n");
            outlet.line(&line);
            said.push_str(&line);
            outlet.flush();
            if number % 100 == 99 {
                assert_eq!(drain(&mut outlet, &mut reader), said);
                said.clear();
            }
        }
        assert_eq!(outlet.dropped, 0);
    }

    #[test]
    fn a_reader_that_takes_nothing_stops_nobody_and_learns_how_much_it_missed() {
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
    fn what_was_dropped_is_told_when_nothing_else_is() {
        let (mut outlet, mut reader) = outlet();
        let line = format!("guest: {}\n", "x".repeat(1000));
        for _ in 0..1000 {
            outlet.line(&line);
        }
        while !outlet.queue.is_empty() {
            outlet.queue.drain(..line.len());
        }
        // It waits for the pipe though no line does.
        assert!(outlet.waits().is_some());
        outlet.flush();
        assert!(outlet.waits().is_none());
        let told = String::from_utf8(take(&mut reader, 1 << 16)).unwrap();
        assert!(
            told.starts_with("launcher: ") && told.ends_with("in time\n"),
            "{told:?}"
        );
    }

    #[test]
    fn a_reader_that_is_gone_stops_nobody() {
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
