//! Decides when surplus ended migrations are deleted.
//!
//! ```text
//!  ended ─▶ waits ─┬─ no migration has changed for QUIET ─────────┬─▶ oldest deleted
//!                  └─ its instance has twice as many as are kept ─┘
//! ```
//!
//! A deletion takes two requests, because of the finalizer. While guests leave a node, these requests would compete
//! with those that move the guests.

use std::{collections::BTreeSet, time::Duration};

use drydock_core::migration::retention::surplus;
use drydock_runtime::{Key, Trigger, clock};
use parking_lot::Mutex;

/// Time without a change of an unfinished migration before ended migrations are deleted. It is longer than the pauses
/// of a drain.
const QUIET: Duration = Duration::from_secs(15);

/// Ended migrations whose instances may have too many of them.
#[derive(Debug)]
pub(super) struct Trimming {
    state: Mutex<TrimmingState>,
    changed: Trigger,
}

#[derive(Debug)]
struct TrimmingState {
    /// Time at which an unfinished migration was last reconciled.
    active_at: clock::Instant,
    waiting: BTreeSet<Key>,
}

impl Trimming {
    pub(super) fn new() -> Self {
        let state = TrimmingState {
            active_at: clock::Instant::now(),
            waiting: BTreeSet::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Trigger::new(),
        }
    }

    /// Records that a migration is unfinished.
    pub(super) fn active(&self) {
        self.state.lock().active_at = clock::Instant::now();
    }

    /// Returns how many of the `ended` migrations of an instance are to be deleted now. If others have to wait,
    /// `migration` is due again after a quiet period.
    pub(super) fn due(&self, migration: &Key, ended: usize) -> usize {
        let mut state = self.state.lock();
        let (now, later) = surplus(ended, state.active_at.elapsed() >= QUIET);
        if later > 0 && state.waiting.insert(migration.clone()) {
            self.changed.notify();
        }
        now
    }

    /// Waits for a quiet period, and returns the migrations that have waited for it, at least one.
    pub(super) async fn quiet(&self) -> BTreeSet<Key> {
        loop {
            let until = {
                let mut state = self.state.lock();
                let until = state.active_at + QUIET;
                if state.waiting.is_empty() {
                    None
                } else if until <= clock::Instant::now() {
                    return std::mem::take(&mut state.waiting);
                } else {
                    Some(until)
                }
            };
            match until {
                Some(until) => clock::sleep_until_instant(Some(until)).await,
                None => self.changed.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn surplus_waits_until_no_migration_has_changed_for_a_while() {
        let trimming = Trimming::new();
        let [one, other] = ["one", "other"].map(|name| Key::namespaced("shop", name));
        let begun = clock::Instant::now();
        let active = async {
            for _ in 0..3 {
                clock::sleep_until_instant(Some(clock::Instant::now() + QUIET / 2)).await;
                trimming.active();
            }
            assert_eq!(trimming.due(&one, 5), 0);
            assert_eq!(trimming.due(&other, 7), 0);
        };
        let (waited, ()) = tokio::join!(trimming.quiet(), active);
        assert_eq!(waited, BTreeSet::from([other.clone()]));
        assert_eq!(begun.elapsed(), QUIET / 2 * 3 + QUIET);
        assert_eq!(trimming.due(&other, 7), 2, "it is quiet now");
    }
}
