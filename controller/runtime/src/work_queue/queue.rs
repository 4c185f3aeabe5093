//! The queued keys: a data structure that neither waits nor reads a clock.
//!
//! ```text
//!             add                take
//!  (absent) ───────▶ ready ───────────────▶ busy ─── done, nothing more ──▶ (absent)
//!                      ▲                     │ │
//!                      │ due, or add         │ └── added meanwhile ──▶ ready
//!                      └───── waiting ◀──────┘ requeued for a time, or failed
//! ```

use super::{FIRST_WAIT, LONGEST_WAIT};
use crate::{Backoff, Key};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// The queue; it contains each key at most once.
#[derive(Debug, Default)]
pub(super) struct KeyQueue {
    open: bool,
    /// The keys to reconcile, each with the time at which it became ready.
    ready: VecDeque<(Key, Instant)>,
    /// Number of keys that have become ready since [`Self::readied`] was last called.
    readied: u64,
    /// The keys that wait for a time, ordered by this time.
    waiting: BTreeSet<(Instant, Key)>,
    /// Contains only keys that have a state.
    entries: HashMap<Key, QueueEntry>,
}

#[derive(Debug)]
struct QueueEntry {
    state: KeyState,
    /// Back-off for consecutive failures; `None` unless the last reconcile failed.
    backoff: Option<Backoff>,
}

#[derive(Debug)]
enum KeyState {
    Ready,
    Busy {
        /// Whether the key was added since it was taken.
        again: bool,
    },
    Waiting {
        due: Instant,
        /// The earliest time at which a change makes the key ready.
        no_sooner: Instant,
    },
}

/// The result of a reconcile.
#[derive(Debug)]
pub(super) enum ReconcileResult {
    /// Requeue on the next change.
    OnChange,
    /// Requeue at this time, or on an earlier change.
    At(Instant),
    /// Requeue after a back-off.
    Failed,
}

impl KeyQueue {
    /// Starts accepting keys.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// Drops all state and stops accepting keys.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// Enqueues a key. Returns whether it becomes due earlier than before.
    pub(super) fn add(&mut self, key: Key, now: Instant) -> bool {
        if !self.open {
            return false;
        }
        match self.entries.get_mut(&key) {
            None => {
                let entry = QueueEntry {
                    state: KeyState::Ready,
                    backoff: None,
                };
                self.entries.insert(key.clone(), entry);
                self.make_ready(key, now);
                true
            }
            Some(entry) => match &mut entry.state {
                KeyState::Ready => false,
                KeyState::Busy { again } => {
                    *again = true;
                    false
                }
                KeyState::Waiting { due, no_sooner } if *no_sooner < *due => {
                    self.waiting.remove(&(*due, key.clone()));
                    *due = *no_sooner;
                    self.waiting.insert((*due, key));
                    true
                }
                KeyState::Waiting { .. } => false,
            },
        }
    }

    /// Returns the next key to reconcile, and the time since which it was ready. The key is busy until
    /// [`done`](Self::done).
    pub(super) fn take(&mut self, now: Instant) -> Option<(Key, Instant)> {
        while let Some((due, _)) = self.waiting.first()
            && *due <= now
        {
            let (due, key) = self.waiting.pop_first()?;
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.state = KeyState::Ready;
            }
            self.make_ready(key, due);
        }
        let (key, since) = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.state = KeyState::Busy { again: false };
        }
        Some((key, since))
    }

    /// Returns the earliest due time of the waiting keys.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Records the result of a reconcile. Returns whether it is the first failure after a success.
    pub(super) fn done(&mut self, key: Key, done: &ReconcileResult, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        let again = matches!(entry.state, KeyState::Busy { again: true });
        let first = matches!(done, ReconcileResult::Failed) && entry.backoff.is_none();
        let (due, no_sooner) = match done {
            ReconcileResult::OnChange | ReconcileResult::At(_) if again => (now, now),
            ReconcileResult::OnChange => {
                self.entries.remove(&key);
                return false;
            }
            ReconcileResult::At(due) => (*due, now),
            ReconcileResult::Failed => {
                let backoff = entry
                    .backoff
                    .get_or_insert_with(|| Backoff::new(FIRST_WAIT, LONGEST_WAIT));
                let delay = backoff.delay();
                // A reconcile that modifies the objects that trigger it must not spin.
                let delay = if again { delay.min(FIRST_WAIT) } else { delay };
                (now + delay, now + delay.min(FIRST_WAIT))
            }
        };
        if !matches!(done, ReconcileResult::Failed) {
            entry.backoff = None;
        }
        if due <= now {
            entry.state = KeyState::Ready;
            self.make_ready(key, now);
        } else {
            entry.state = KeyState::Waiting { due, no_sooner };
            self.waiting.insert((due, key));
        }
        first
    }

    fn make_ready(&mut self, key: Key, since: Instant) {
        self.ready.push_back((key, since));
        self.readied += 1;
    }

    /// Returns how many keys have become ready since the last call, and how many are ready.
    pub(super) fn readied(&mut self) -> (u64, usize) {
        (std::mem::take(&mut self.readied), self.ready())
    }

    /// Returns how many keys are ready.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns the number of keys that are ready, busy or waiting.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Returns `now + span`. If the sum overflows, returns about 30 years from `now`, which is as good as never.
pub(super) fn after(now: Instant, span: Duration) -> Instant {
    now.checked_add(span)
        .unwrap_or_else(|| now + Duration::from_secs(1_000_000_000))
}
