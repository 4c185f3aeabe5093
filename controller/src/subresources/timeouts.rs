//! The time limits of streams.

use std::time::Duration;

use drydock_runtime::clock::{Instant, sleep_until_instant};
use parking_lot::Mutex;

use super::stream_end::EndedSide;

/// Time limits of streams; `None` means no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamTimeouts {
    /// Time limit without data in either direction.
    pub(crate) idle: Option<Duration>,
    /// Time limit of the whole stream.
    pub(crate) total: Option<Duration>,
}

/// Start time of a stream, and the times of the last client message and of the last data.
#[derive(Debug)]
pub(super) struct StreamActivity {
    begin: Instant,
    last: Mutex<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    message: Option<Instant>,
    data: Instant,
}

impl StreamActivity {
    /// Returns the activity of a stream that starts now.
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            begin: now,
            last: Mutex::new(Last {
                message: None,
                data: now,
            }),
        }
    }

    /// Records a message of the client of any kind.
    pub(super) fn message(&self) {
        self.set(|last, now| last.message = Some(now));
    }

    /// Records data of either side.
    pub(super) fn data(&self) {
        self.set(|last, now| last.data = now);
    }

    fn set(&self, set: impl FnOnce(&mut Last, Instant)) {
        set(&mut self.last.lock(), Instant::now());
    }

    fn last(&self) -> Last {
        *self.last.lock()
    }

    /// Returns the time of the last message of the client.
    pub(super) fn last_message(&self) -> Option<Instant> {
        self.last().message
    }
}

impl StreamTimeouts {
    /// Waits until the stream has exceeded a time limit.
    pub(super) async fn exceeded(self, activity: &StreamActivity) -> EndedSide {
        loop {
            let idle = self
                .idle
                .map(|idle| (activity.last().data + idle, EndedSide::Idle(idle)));
            let total = self
                .total
                .map(|total| (activity.begin + total, EndedSide::Expired(total)));
            let first = [idle, total].into_iter().flatten().min_by_key(|(at, _)| *at);
            if let Some((at, end)) = first
                && at <= Instant::now()
            {
                return end;
            }
            sleep_until_instant(first.map(|(at, _)| at)).await;
        }
    }
}
