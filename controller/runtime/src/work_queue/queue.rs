//! Which keys wait for a look: a data structure without waiting and without a clock.
//!
//! ```text
//!             add                take
//!  (absent) ───────▶ ready ───────────────▶ busy ─── done, nothing more ──▶ (absent)
//!                      ▲                     │ │
//!                      │ due, or add         │ └── added meanwhile ──▶ ready
//!                      └───── waiting ◀──────┘ told when to look again, or failed
//! ```

use super::{FIRST_WAIT, LONGEST_WAIT};
use crate::{Backoff, Key};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// Keys that wait, each at most once.
#[derive(Debug, Default)]
pub(super) struct Queue {
    open: bool,
    ready: VecDeque<Key>,
    /// Those that wait for a time, in its order.
    waiting: BTreeSet<(Instant, Key)>,
    /// Keys of which nothing is to be remembered are not in here.
    entries: HashMap<Key, Entry>,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// Failures in a row, if the last look failed.
    backoff: Option<Backoff>,
}

#[derive(Debug)]
enum State {
    Ready,
    Busy {
        /// It was added since it was taken.
        again: bool,
    },
    Waiting {
        due: Instant,
        /// News do not make it ready before.
        no_sooner: Instant,
    },
}

/// What came of a look.
#[derive(Debug)]
pub(super) enum Done {
    /// Nothing to do before something changes.
    OnChange,
    /// Look again then, if nothing changes before.
    At(Instant),
    /// Look again after a while.
    Failed,
}

impl Queue {
    /// Takes keys from now on.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// Forgets everything, and takes no keys from now on.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }

    /// A key is to be looked at; whether that makes it due earlier than it was.
    pub(super) fn add(&mut self, key: Key) -> bool {
        if !self.open {
            return false;
        }
        match self.entries.get_mut(&key) {
            None => {
                let entry = Entry {
                    state: State::Ready,
                    backoff: None,
                };
                self.entries.insert(key.clone(), entry);
                self.ready.push_back(key);
                true
            }
            Some(entry) => match &mut entry.state {
                State::Ready => false,
                State::Busy { again } => {
                    *again = true;
                    false
                }
                State::Waiting { due, no_sooner } if *no_sooner < *due => {
                    self.waiting.remove(&(*due, key.clone()));
                    *due = *no_sooner;
                    self.waiting.insert((*due, key));
                    true
                }
                State::Waiting { .. } => false,
            },
        }
    }

    /// The next key to look at; it is busy until [`done`](Self::done).
    pub(super) fn take(&mut self, now: Instant) -> Option<Key> {
        while let Some((due, _)) = self.waiting.first()
            && *due <= now
        {
            let (_, key) = self.waiting.pop_first()?;
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.state = State::Ready;
            }
            self.ready.push_back(key);
        }
        let key = self.ready.pop_front()?;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.state = State::Busy { again: false };
        }
        Some(key)
    }

    /// When the next key is due of those that wait for a time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.waiting.first().map(|(due, _)| *due)
    }

    /// Takes in what came of a look. Returns, of the first failure after a success, that it is the first.
    pub(super) fn done(&mut self, key: Key, done: &Done, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        let again = matches!(entry.state, State::Busy { again: true });
        let first = matches!(done, Done::Failed) && entry.backoff.is_none();
        let (due, no_sooner) = match done {
            Done::OnChange | Done::At(_) if again => (now, now),
            Done::OnChange => {
                self.entries.remove(&key);
                return false;
            }
            Done::At(due) => (*due, now),
            Done::Failed => {
                let backoff = entry
                    .backoff
                    .get_or_insert_with(|| Backoff::new(FIRST_WAIT, LONGEST_WAIT));
                let delay = backoff.delay();
                // What the look itself has changed must not make it a loop without rest.
                let delay = if again { delay.min(FIRST_WAIT) } else { delay };
                (now + delay, now + delay.min(FIRST_WAIT))
            }
        };
        if !matches!(done, Done::Failed) {
            entry.backoff = None;
        }
        if due <= now {
            entry.state = State::Ready;
            self.ready.push_back(key);
        } else {
            entry.state = State::Waiting { due, no_sooner };
            self.waiting.insert((due, key));
        }
        first
    }

    /// How many keys are ready, busy or wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// The time `span` from `now`; a time that no clock can show is as good as none for about thirty years.
pub(super) fn after(now: Instant, span: Duration) -> Instant {
    now.checked_add(span)
        .unwrap_or_else(|| now + Duration::from_secs(1_000_000_000))
}
