//! The work queue of the reconcilers: many objects, one reconcile at a time per key.
//!
//! ```text
//!  watches ──change────▶ ┌ keys ┐            ┌─▶ reconcile(key) ─▶ Ok(Requeue::OnChange)  dropped until it is added
//!  others  ──add(key)──▶ │      │ ─ bounded ─┼─▶ reconcile(key) ─▶ Ok(Requeue::At(time))  requeued then, or when added
//!  elected ──all()─────▶ └──────┘            └─▶ reconcile(key) ─▶ Err                    requeued after a back-off
//! ```
//!
//! # Guarantees
//! - At most one reconcile runs per key. A key that is added during its reconcile is reconciled once more.
//! - Keys are reconciled only while this process is the leader. A new term starts with all keys, so no change in
//!   between is lost. When the term ends, running reconciles are dropped at their current `await`.
//! - After a failure the key waits 0.2 s to 60 s, doubling, with jitter. A change shortens the wait to 0.2 s but does
//!   not end it, so a reconcile that modifies the objects that trigger it cannot spin. A success resets the back-off.
//! - Each reconcile is a span with the fields `controller`, the name of the queue, and `key`.
//! - The first of consecutive failures of a key is logged as a warning, the others at debug level.
//! - Keys that were reconciled and do not wait for a time use no memory.
//! - Other tasks of the thread run between any two reconciles, however many keys are ready.
//! - A change does not wait behind a sweep of all objects, but behind one page of it at most.

use std::{error::Error, fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    CacheChange, Key, Trigger, chain, clock,
    lease::{LeaderTerm, Leadership},
};

mod metrics;
mod queue;

pub use metrics::{ReconcileMetrics, WorkQueueMetrics};

use metrics::QueueMetrics;
use queue::{KeyQueue, ReconcileResult, after};

/// Delay after the first failure.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Number of keys of a sweep that are added together.
const PAGE: usize = 200;
/// Maximum number of ready keys at which the next page of a sweep is added.
///
/// Changes therefore do not wait behind the whole sweep. The number is large enough for the reconciles that begin until
/// the page is added.
const LOW: usize = 50;
/// Maximum delay after a failure.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Time of the next reconcile of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requeue {
    /// On the next change.
    #[default]
    OnChange,
    /// At this wall-clock time, or on an earlier change.
    At(Timestamp),
}

impl Requeue {
    /// Returns the earlier of `self` and `other`.
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

/// The keys of objects to reconcile. Clones share one queue.
#[derive(Clone)]
pub struct WorkQueue {
    /// Name for logs, such as `instances`.
    name: &'static str,
    at_once: usize,
    queue: Arc<Mutex<KeyQueue>>,
    added: Trigger,
    /// Notified when no more than [`LOW`] keys are ready.
    low: Arc<Notify>,
    metrics: QueueMetrics,
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
    /// Creates a queue that runs up to `at_once` reconciles concurrently, and counts in `metrics`.
    pub fn new(name: &'static str, at_once: usize, metrics: &WorkQueueMetrics) -> Self {
        Self {
            name,
            at_once: at_once.max(1),
            queue: Arc::default(),
            added: Trigger::new(),
            low: Arc::default(),
            metrics: metrics.of_queue(name),
        }
    }

    /// Enqueues a key. Never waits and never fails; outside a leadership term the key is discarded.
    pub fn add(&self, key: Key) {
        if self.change(|queue| queue.add(key, Instant::now())) {
            self.added.notify();
        }
    }

    /// Enqueues the keys of a sweep, one page at a time.
    ///
    /// A page is added when the previous one is nearly reconciled, so keys that are added in the meantime wait for one
    /// page at most. `page` returns up to the given number of keys that follow the given key, the last one of the
    /// previous page; an empty page ends the sweep.
    pub async fn add_pages(&self, page: impl Fn(Option<&Key>, usize) -> Vec<Key>) {
        let mut last = None;
        loop {
            self.until_low().await;
            let keys = page(last.as_ref(), PAGE);
            let Some(end) = keys.last() else { return };
            last = Some(end.clone());
            keys.into_iter().for_each(|key| self.add(key));
        }
    }

    /// Waits until no more than [`LOW`] keys are ready. Lets other tasks run in any case.
    async fn until_low(&self) {
        tokio::task::yield_now().await;
        loop {
            let mut notified = pin!(self.low.notified());
            // Notifications count from this call on.
            notified.as_mut().enable();
            if self.queue.lock().ready() <= LOW {
                return;
            }
            notified.await;
        }
    }

    /// Enqueues the key of an object that a watch event reported; for [`Watch::on_change`](crate::Watch::on_change).
    pub fn apply<K>(&self, change: &CacheChange<K>) {
        if let CacheChange::Object { key, .. } = change {
            self.add(key.clone());
        }
    }

    /// Returns the number of keys that are queued or being reconciled.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Returns whether no key is queued or being reconciled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reconciles keys during each leadership term of this process, until `stopping`.
    ///
    /// Each term starts with the keys that `all` returns; `all` should wait until the caches are synced.
    ///
    /// # Assumptions
    /// Called only once. `reconcile` may be dropped at any `await`.
    pub async fn run<A, F, L, R, W, E>(
        &self,
        stopping: &CancellationToken,
        mut leadership: Leadership,
        all: A,
        reconcile: L,
    ) where
        A: Fn() -> F,
        F: Future<Output = Vec<Key>>,
        L: Fn(Key) -> R,
        R: Future<Output = Result<W, E>>,
        W: Into<Requeue>,
        E: Error + 'static,
    {
        while let Some(term) = stopping.run_until_cancelled(leadership.elected()).await {
            self.queue.lock().open();
            stopping
                .run_until_cancelled(term.run(self.work(&term, &all, &reconcile)))
                .await;
            self.change(KeyQueue::close);
        }
    }

    /// Reconciles keys; never returns.
    async fn work<A, F, L, R, W, E>(&self, term: &LeaderTerm, all: &A, reconcile: &L)
    where
        A: Fn() -> F,
        F: Future<Output = Vec<Key>>,
        L: Fn(Key) -> R,
        R: Future<Output = Result<W, E>>,
        W: Into<Requeue>,
        E: Error + 'static,
    {
        // The keys of `all` are added in pages, like a sweep.
        let mut rest = all().await.into_iter();
        let mut running = FuturesUnordered::new();
        loop {
            if rest.len() > 0 && self.queue.lock().ready() <= LOW {
                rest.by_ref().take(PAGE).for_each(|key| self.add(key));
            }
            // After a pause of the process, the end of the term may not have been signalled yet.
            let free = running.len() < self.at_once && term.is_valid();
            let next = if free { self.take() } else { None };
            let begins = next.is_some();
            if let Some(key) = next {
                let span = tracing::info_span!("reconcile", controller = self.name, %key);
                let reconcile = async {
                    let begun = Instant::now();
                    let result = reconcile(key.clone()).await;
                    self.metrics.ended(begun.elapsed(), result.is_err());
                    (key, result)
                };
                running.push(reconcile.instrument(span));
            }
            let due = self.queue.lock().next();
            let due = due.filter(|_| running.len() < self.at_once && term.is_valid());
            tokio::select! {
                biased;
                Some((key, result)) = running.next() => {
                    self.done(key, result);
                    // A reconcile that finds nothing to change never waits, so other tasks get their turn after it.
                    tokio::task::yield_now().await;
                }
                // The reconcile that has just begun was polled up to its first request.
                () = tokio::task::yield_now(), if begins => {}
                () = self.added.notified() => {}
                () = clock::sleep_until_instant(due) => {}
            }
        }
    }

    fn take(&self) -> Option<Key> {
        let now = Instant::now();
        let (key, since) = self.change(|queue| queue.take(now))?;
        self.metrics.begun(now - since);
        Some(key)
    }

    fn done<W: Into<Requeue>, E: Error + 'static>(&self, key: Key, result: Result<W, E>) {
        let now = Instant::now();
        match result.map(Into::into) {
            Ok(Requeue::OnChange) => {
                self.change(|queue| queue.done(key, &ReconcileResult::OnChange, now));
            }
            Ok(Requeue::At(at)) => {
                let due = after(now, clock::until(at, clock::now()));
                self.change(|queue| queue.done(key, &ReconcileResult::At(due), now));
            }
            Err(error) => {
                let shown = key.to_string();
                let first = self.change(|queue| queue.done(key, &ReconcileResult::Failed, now));
                let (queue, error) = (self.name, chain(&error));
                if first {
                    tracing::warn!(queue, key = shown, %error, "reconcile failed, retrying");
                } else {
                    tracing::debug!(queue, key = shown, %error, "reconcile failed again, retrying");
                }
            }
        }
    }

    /// Changes the queue and updates the metrics of its length.
    fn change<T>(&self, change: impl FnOnce(&mut KeyQueue) -> T) -> T {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        let (added, ready) = queue.readied();
        self.metrics.readied(added, ready);
        if ready <= LOW {
            self.low.notify_waiters();
        }
        result
    }
}

#[cfg(test)]
mod tests;
