//! The structure of reconcilers without a work queue. A change may concern everything that they reconcile.
//!
//! ```text
//!  caches ──▶ Trigger ───┐
//!                        ├─▶ reconcile ─┬─▶ Ok:  when to reconcile again without a change
//!  the time has come ────┘              └─▶ Err: logged; back-off
//! ```
//!
//! Each reconcile has a span and the metrics of a reconcile from a work queue.

use std::{future::Future, time::Duration};

use drydock_runtime::{
    Backoff, Process, ReconcileMetrics, Trigger, WorkQueueMetrics, chain,
    clock::{self, Instant},
    lease::{LeaderTerm, Leadership},
};
use jiff::Timestamp;
use tracing::{Instrument, info_span, warn};

/// Reconciles after each change while this process leads.
pub(crate) trait Triggered: Sync {
    /// State that is kept between reconciles. It is reset at the start of each leadership term.
    type Kept: Default + Send;

    /// Name of the reconciler in spans and metrics.
    const NAME: &'static str;
    /// First and maximum pause after an error.
    const RETRY: (Duration, Duration);
    /// Log message for an error of a request.
    const FAILURE: &'static str;

    /// Waits until the caches have synced.
    fn wait_until_synced(&self) -> impl Future<Output = ()> + Send;

    /// Reconciles once. Returns the time of the next reconcile without a change. The future may be dropped at any
    /// `await`.
    ///
    /// # Errors
    /// If a request to the API server fails. It is safe to reconcile again.
    fn reconcile(
        &self,
        kept: &mut Self::Kept,
        term: &LeaderTerm,
    ) -> impl Future<Output = kube::Result<Option<Timestamp>>> + Send;

    /// Returns the latest time of the next reconcile, which also applies during the back-off after an error.
    fn due(kept: &Self::Kept) -> Option<Instant> {
        let _ = kept;
        None
    }

    /// Returns the minimum pause after a reconcile. Changes within the pause are handled by one reconcile.
    fn pause(kept: &Self::Kept) -> Duration {
        let _ = kept;
        Duration::ZERO
    }
}

/// Reconciles after each notification of `changed` during each leadership term of this process, until the process
/// stops.
pub(crate) async fn run<R: Triggered>(
    reconciler: R,
    changed: Trigger,
    mut leadership: Leadership,
    process: Process,
    metrics: WorkQueueMetrics,
) {
    let (stopping, metrics) = (process.stopping(), metrics.of_reconciler(R::NAME));
    while let Some(term) = stopping.run_until_cancelled(leadership.elected()).await {
        let leading = term.run(lead(&reconciler, &changed, &term, &metrics));
        stopping.run_until_cancelled(leading).await;
    }
}

async fn lead<R: Triggered>(reconciler: &R, changed: &Trigger, term: &LeaderTerm, metrics: &ReconcileMetrics) {
    reconciler.wait_until_synced().await;
    keep_reconciling(reconciler, changed, term, metrics).await;
}

/// Reconciles after each notification of `changed`, and whenever a reconcile is due, until the future is dropped.
pub(crate) async fn keep_reconciling<R: Triggered>(
    reconciler: &R,
    changed: &Trigger,
    term: &LeaderTerm,
    metrics: &ReconcileMetrics,
) {
    let mut backoff = Backoff::new(R::RETRY.0, R::RETRY.1);
    let mut kept = R::Kept::default();
    loop {
        let reconcile = async {
            let result = reconciler.reconcile(&mut kept, term).await;
            result.inspect_err(|error| warn!(error = %chain(error), "{}", R::FAILURE))
        };
        let again = match measured(R::NAME, metrics, reconcile).await {
            Ok(again) => {
                backoff.reset();
                again
            }
            Err(_) => clock::now().checked_add(backoff.delay()).ok(),
        };
        tokio::time::sleep(R::pause(&kept)).await;
        tokio::select! {
            () = changed.notified() => {}
            () = clock::sleep_until(again) => {}
            () = clock::sleep_until_instant(R::due(&kept)) => {}
        }
    }
}

/// Runs a reconcile of the reconciler `name` in a span, and records its duration and whether it failed.
///
/// # Errors
/// Returns the error of the reconcile.
pub(crate) async fn measured<T, E>(
    name: &'static str,
    metrics: &ReconcileMetrics,
    reconcile: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let begun = Instant::now();
    let result = reconcile.instrument(info_span!("reconcile", controller = name)).await;
    metrics.ended(begun.elapsed(), result.is_err());
    result
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use drydock_runtime::{
        Registry,
        fake::{candidate, keep_elected_while},
    };
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{Patch, PatchParams},
        core::Status,
    };
    use parking_lot::Mutex;
    use prometheus_client::encoding::text;
    use tokio::sync::mpsc;

    use super::*;
    use crate::fake_cluster::lost_leadership::check_each_request;

    /// Reconciler that sends the number of each reconcile within its term, and returns these results one after the
    /// other.
    struct Scripted {
        results: Mutex<Vec<kube::Result<Option<Duration>>>>,
        reconciled: mpsc::UnboundedSender<usize>,
    }

    impl Triggered for Scripted {
        type Kept = usize;
        const NAME: &'static str = "scripted";
        const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
        const FAILURE: &'static str = "the script has failed";

        async fn wait_until_synced(&self) {}

        async fn reconcile(&self, kept: &mut usize, _: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
            *kept += 1;
            self.reconciled.send(*kept).unwrap();
            let mut results = self.results.lock();
            let result = if results.is_empty() {
                Ok(None)
            } else {
                results.remove(0)
            };
            result.map(|again| again.map(|pause| clock::now() + pause))
        }

        fn due(kept: &usize) -> Option<Instant> {
            (*kept == DUE_AFTER).then(|| Instant::now() + Duration::from_millis(500))
        }

        fn pause(_: &usize) -> Duration {
            Duration::from_millis(10)
        }
    }

    /// Number of the reconcile after which the next one is due before the back-off of an error ends.
    const DUE_AFTER: usize = 5;

    fn failure() -> kube::Error {
        let status = Status::failure("the message", "InternalError").with_code(500);
        kube::Error::Api(status.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn reconciles_follow_changes_times_and_errors_of_a_term() {
        let process = Process::new();
        let (leadership, server) = candidate(&process, Trigger::new());
        let (reconciled, mut received) = mpsc::unbounded_channel();
        let scripted = Scripted {
            results: Mutex::new(vec![
                Ok(None),
                Ok(Some(Duration::from_secs(1))),
                Err(failure()),
                Ok(None),
                Err(failure()),
            ]),
            reconciled,
        };
        let changed = Trigger::new();
        changed.notify();
        let leads = Arc::new(AtomicBool::new(false));
        let serving = keep_elected_while(server, Arc::clone(&leads));
        let mut registry = Registry::with_prefix("drydock");
        let metrics = WorkQueueMetrics::register(&mut registry);
        let running = run(scripted, changed.clone(), leadership.clone(), process.clone(), metrics);
        let test = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(received.try_recv().is_err(), "it does not lead");
            leads.store(true, Ordering::Relaxed);
            assert_eq!(received.recv().await, Some(1), "the term begins");
            assert_eq!(received.recv().await, Some(2), "the change from before");
            assert_eq!(received.recv().await, Some(3), "the time that the second returned");
            assert_eq!(received.recv().await, Some(4), "the back-off of the third");
            changed.notify();
            changed.notify();
            assert_eq!(received.recv().await, Some(5), "both changes");
            let failed_at = Instant::now();
            assert_eq!(received.recv().await, Some(6), "it is due");
            assert!(failed_at.elapsed() < Scripted::RETRY.0 / 2);
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(received.try_recv().is_err(), "nothing has changed");

            leads.store(false, Ordering::Relaxed);
            while leadership.term().is_some() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            changed.notify();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(received.try_recv().is_err(), "it leads no more");
            leads.store(true, Ordering::Relaxed);
            assert_eq!(received.recv().await, Some(1), "another term has begun");
            let mut exposed = String::new();
            text::encode(&mut exposed, &registry).unwrap();
            for line in [
                r#"drydock_workqueue_work_duration_seconds_count{name="scripted"} 7"#,
                r#"drydock_workqueue_retries_total{name="scripted"} 2"#,
            ] {
                assert!(exposed.contains(line), "{line} is not in {exposed}");
            }
            process.stop();
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(running, test) } => {}
            () = serving => {}
        }
    }

    /// Reconciler that reads once and writes twice.
    struct Writer(Api<ConfigMap>);

    impl Triggered for Writer {
        type Kept = ();
        const NAME: &'static str = "writer";
        const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
        const FAILURE: &'static str = "the writer has failed";

        async fn wait_until_synced(&self) {}

        async fn reconcile(&self, (): &mut (), _: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
            self.0.get_opt("read").await?;
            for name in ["first", "second"] {
                let patch = Patch::Merge(serde_json::json!({}));
                self.0.patch(name, &PatchParams::default(), &patch).await?;
            }
            Ok(None)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_leadership_was_lost() {
        let start = |client, process, leadership| {
            let writer = Writer(Api::namespaced(client, "shop"));
            run(writer, Trigger::new(), leadership, process, WorkQueueMetrics::default())
        };
        check_each_request(&["read", "first", "second"], start, None).await;
    }
}
