//! The time limits of streams.

use std::time::Duration;

use drydock_runtime::clock::{Instant, sleep_until_instant};
use parking_lot::Mutex;

use super::stream_end::EndedSide;

/// The time limits of streams. `None`: no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamTimeouts {
    /// The time without data in either direction.
    pub(crate) idle: Option<Duration>,
    /// The total time.
    pub(crate) total: Option<Duration>,
}

/// The start of a stream, and the times of the last client message and of the last data.
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
    /// Returns the activity of a stream that begins now.
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

    /// Records a message of the client, of whatever kind.
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

    /// Returns when the last message of the client came.
    pub(super) fn last_message(&self) -> Option<Instant> {
        self.last().message
    }
}

impl StreamTimeouts {
    /// Waits until the stream has lasted too long.
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
