//! Metrics of work queues, with the names and the label that client-go uses and dashboards of controllers expect.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::metrics::Label;

/// Bucket bounds in seconds.
///
/// A reconcile without a request takes less than a millisecond; a reconcile whose requests time out takes half a
/// minute.
const BOUNDS: [f64; 9] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

/// Metrics of all work queues of a process.
#[derive(Clone, Debug)]
pub struct WorkQueueMetrics {
    depth: Family<QueueLabel, Gauge>,
    adds: Family<QueueLabel, Counter>,
    retries: Family<QueueLabel, Counter>,
    queued: Family<QueueLabel, Histogram, fn() -> Histogram>,
    work: Family<QueueLabel, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabel {
    name: Label,
}

/// The metrics of one queue.
#[derive(Clone, Debug)]
pub(super) struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    queued: Histogram,
    reconciles: ReconcileMetrics,
}

/// The metrics of the reconciles of one reconciler.
#[derive(Clone, Debug)]
pub struct ReconcileMetrics {
    retries: Counter,
    work: Histogram,
}

impl Default for WorkQueueMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(BOUNDS);
        Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            queued: Family::new_with_constructor(histogram),
            work: Family::new_with_constructor(histogram),
        }
    }
}

impl WorkQueueMetrics {
    /// Creates the metrics and registers them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "workqueue_depth",
            "Keys that are ready to be reconciled, without keys that wait for a time",
            metrics.depth.clone(),
        );
        registry.register(
            "workqueue_adds",
            "Keys that became ready because of a change, a due time or a retry",
            metrics.adds.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Failed reconciles; each is retried after a back-off",
            metrics.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time for which a key was ready before its reconcile began",
            metrics.queued.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Duration of a reconcile, successful or not",
            metrics.work.clone(),
        );
        metrics
    }

    pub(super) fn of_queue(&self, name: Label) -> QueueMetrics {
        let label = QueueLabel { name };
        QueueMetrics {
            depth: self.depth.get_or_create(&label).clone(),
            adds: self.adds.get_or_create(&label).clone(),
            queued: self.queued.get_or_create(&label).clone(),
            reconciles: self.of_reconciler(name),
        }
    }

    /// Returns the metrics of a reconciler without a queue, under the same names as those of queues.
    pub fn of_reconciler(&self, name: &'static str) -> ReconcileMetrics {
        let label = QueueLabel { name };
        ReconcileMetrics {
            retries: self.retries.get_or_create(&label).clone(),
            work: self.work.get_or_create(&label).clone(),
        }
    }
}

impl QueueMetrics {
    /// Records that `added` keys have become ready, and that now `ready` keys are ready.
    pub(super) fn readied(&self, added: u64, ready: usize) {
        self.adds.inc_by(added);
        self.depth.set(i64::try_from(ready).unwrap_or(i64::MAX));
    }

    /// Records the start of the reconcile of a key that was ready for `waited`.
    pub(super) fn begun(&self, waited: Duration) {
        self.queued.observe(waited.as_secs_f64());
    }

    /// Records the end of a reconcile.
    pub(super) fn ended(&self, took: Duration, failed: bool) {
        self.reconciles.ended(took, failed);
    }
}

impl ReconcileMetrics {
    /// Records the end of a reconcile.
    pub fn ended(&self, took: Duration, failed: bool) {
        self.work.observe(took.as_secs_f64());
        if failed {
            self.retries.inc();
        }
    }
}
