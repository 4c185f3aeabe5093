//! Work on many objects, one key at a time: what reconcilers share.
//!
//! ```text
//!  watches ──hear(change)──▶ ┌ keys ┐            ┌─▶ look(key) ─▶ Ok(Requeue::OnChange)   forgotten until it is added
//!  anyone  ──add(key)──────▶ │      │ ─ bounded ─┼─▶ look(key) ─▶ Ok(Requeue::At(time))   again then, or when added
//!  elected ──all()─────────▶ └──────┘            └─▶ look(key) ─▶ Err                  again after a back-off
//! ```
//!
//! # Guarantees
//! - A key is looked at by one look at a time. What is added during its look makes it looked at once more.
//! - Nothing is looked at unless this process leads. A new term begins with all keys; what changes meanwhile is not lost.
//!   When the term is over, looks are dropped where they wait.
//! - After a failure the key waits 0.2 s to 60 s, doubling, with jitter; news shorten that to 0.2 s but do not end it,
//!   so that a look that changes what wakes it cannot spin. A success forgets failures.
//! - The first failure of a key in a row is logged as a warning, the others for debugging.
//! - Keys that were looked at and have nothing to wait for cost no memory.

use crate::{
    Change, Key, Trigger, chain, clock,
    lease::{Leadership, Term},
};
use futures::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use std::{
    error::Error,
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod queue;

use queue::{Done, Queue, after};

/// The first wait after a failure.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(200);
/// The longest.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// When a look wants the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requeue {
    /// When something changes.
    #[default]
    OnChange,
    /// At this time of day, or when something changes before.
    At(Timestamp),
}

impl Requeue {
    /// The earlier of two.
    #[must_use]
    pub fn or_at(self, other: Option<Timestamp>) -> Self {
        match (self, other) {
            (wake, None) => wake,
            (Self::OnChange, Some(at)) => Self::At(at),
            (Self::At(one), Some(other)) => Self::At(one.min(other)),
        }
    }
}

impl From<()> for Requeue {
    fn from((): ()) -> Self {
        Self::OnChange
    }
}

/// The keys of objects that have to be looked at. Clones are the same.
#[derive(Clone)]
pub struct WorkQueue {
    /// For logs, such as `instances`.
    name: &'static str,
    at_once: usize,
    queue: Arc<Mutex<Queue>>,
    added: Trigger,
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue")
            .field("name", &self.name)
            .field("keys", &self.len())
            .finish_non_exhaustive()
    }
}

impl WorkQueue {
    /// Work of which `at_once` looks go on at a time.
    pub fn new(name: &'static str, at_once: usize) -> Self {
        Self {
            name,
            at_once: at_once.max(1),
            queue: Arc::default(),
            added: Trigger::new(),
        }
    }

    /// A key has to be looked at. Neither waits nor fails; without a term nothing is kept.
    pub fn add(&self, key: Key) {
        if self.lock().add(key) {
            self.added.notify();
        }
    }

    /// Adds the key of an object that a watch found changed: for [`Watch::on_change`](crate::Watch::on_change).
    pub fn hear<K>(&self, change: &Change<K>) {
        if let Change::Object { key, .. } = change {
            self.add(key.clone());
        }
    }

    /// How many keys are being looked at or wait for it.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nothing is being looked at nor waits for it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at keys in each term of this process, until `stopping`.
    ///
    /// Each term begins with the keys of `all`, which should wait until the caches have their first answers.
    ///
    /// # Assumptions
    /// Called once. `look` bears being dropped at any `await`.
    pub async fn run<A, F, L, R, W, E>(&self, stopping: &CancellationToken, mut leadership: Leadership, all: A, look: L)
    where
        A: Fn() -> F,
        F: Future<Output = Vec<Key>>,
        L: Fn(Key) -> R,
        R: Future<Output = Result<W, E>>,
        W: Into<Requeue>,
        E: Error + 'static,
    {
        while let Some(term) = stopping.run_until_cancelled(leadership.elected()).await {
            self.lock().open();
            stopping
                .run_until_cancelled(term.lost().run_until_cancelled(self.work(&term, &all, &look)))
                .await;
            self.lock().close();
        }
    }

    /// Looks at keys for ever.
    async fn work<A, F, L, R, W, E>(&self, term: &Term, all: &A, look: &L)
    where
        A: Fn() -> F,
        F: Future<Output = Vec<Key>>,
        L: Fn(Key) -> R,
        R: Future<Output = Result<W, E>>,
        W: Into<Requeue>,
        E: Error + 'static,
    {
        for key in all().await {
            self.lock().add(key);
        }
        let mut looks = FuturesUnordered::new();
        loop {
            // A process that stood still may not have been told yet that its term is over.
            while looks.len() < self.at_once && term.is_valid() {
                let Some(key) = self.take() else { break };
                looks.push(async { (key.clone(), look(key).await) });
            }
            let due = self.lock().next();
            let due = due.filter(|_| looks.len() < self.at_once && term.is_valid());
            tokio::select! {
                Some((key, result)) = looks.next() => self.done(key, result),
                () = self.added.notified() => {}
                () = clock::sleep_until_instant(due) => {}
            }
        }
    }

    fn take(&self) -> Option<Key> {
        self.lock().take(Instant::now())
    }

    fn done<W: Into<Requeue>, E: Error + 'static>(&self, key: Key, result: Result<W, E>) {
        let now = Instant::now();
        match result.map(Into::into) {
            Ok(Requeue::OnChange) => {
                self.lock().done(key, &Done::OnChange, now);
            }
            Ok(Requeue::At(at)) => {
                let due = after(now, clock::until(at, clock::now()));
                self.lock().done(key, &Done::At(due), now);
            }
            Err(error) => {
                let shown = key.to_string();
                let first = self.lock().done(key, &Done::Failed, now);
                let (work, error) = (self.name, chain(&error));
                if first {
                    tracing::warn!(work, key = shown, %error, "could not be seen to; tried again");
                } else {
                    tracing::debug!(work, key = shown, %error, "could still not be seen to; tried again");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
