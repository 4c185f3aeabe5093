//! The structure of reconcilers with a work queue.
//!
//! ```text
//!                    ┌─── Executed::Replan ◀─┐
//!                    ▼                       │
//!  key ──▶ observe ──▶ plan ──▶ execute ─────┴─▶ Executed::Requeue
//!          caches,     rules    requests,    └─▶ Err ┬ conflict: another writer was faster; requeued for its change
//!          requests    of core  status               ├ refusal:  recorded in `StepRefusals`; back-off of the work queue
//!                                                    └ others:   back-off of the work queue
//! ```

pub(crate) mod triggered;

use std::{future::Future, time::Duration};

use drydock_runtime::{CancellationToken, Key, Requeue, WorkQueue, clock, lease::Leadership};
use thiserror::Error;

use crate::refusals::{RefusedStep, StepRefusals};

/// Time for which a reconcile that met a conflict waits for the change of the other writer. The watch shows the change
/// within milliseconds, unless the watch is interrupted.
pub(crate) const CONFLICT_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of plans in one reconcile. A maintenance has the longest sequences: a dozen actions, each of which
/// may meet a conflict.
const MAX_PLANS: usize = 40;

/// Reason why an object could not be reconciled.
#[derive(Debug, Error)]
pub(crate) enum ReconcileError {
    /// A request to the API server failed.
    #[error("the request to the API server failed")]
    Api(#[from] kube::Error),
    /// The API server refused a step, and the object's status reports the message.
    #[error("{step} was refused: {message}")]
    Refused {
        /// Refused step, such as `the creation of the pod`.
        step: &'static str,
        /// Message of the API server.
        message: String,
    },
    /// A step failed. The next reconcile repeats it.
    #[error("{step} failed")]
    Failed {
        /// Failed step, such as `the creation of the pod`.
        step: &'static str,
        /// Error of the request.
        #[source]
        source: kube::Error,
    },
    /// The observed objects contradict each other, because a cache is outdated.
    #[error("{0}")]
    Unsettled(&'static str),
}

impl ReconcileError {
    fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { message, .. } => Some(message),
            _ => None,
        }
    }

    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.is_conflict())
    }
}

/// The result of executing a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    /// The observation was extended or the objects have changed, so the next steps are planned.
    Replan,
    /// Nothing more has to be done now.
    Requeue(Requeue),
}

/// Reconciles an object in three steps: observe, plan and execute. Only the first and the last send requests.
pub(crate) trait Reconciler: Sync {
    /// The state on which a plan depends.
    type Observed: Send + Sync;
    /// The planned steps.
    type Plan: Send;

    /// Observes the object with a key and related objects. Returns `None` if nothing has to be done, for example for an
    /// object that no longer exists.
    ///
    /// # Errors
    /// If a request to the API server fails.
    fn observe(&self, key: &Key) -> impl Future<Output = Result<Option<Self::Observed>, ReconcileError>> + Send;

    /// Returns the planned steps. Only applies the rules of `core` to the observation.
    fn plan(&self, key: &Key, observed: &Self::Observed) -> Self::Plan;

    /// Executes a plan, and updates `observed` with new and changed objects.
    ///
    /// # Errors
    /// If a request to the API server fails. It is safe to reconcile again.
    fn execute(
        &self,
        key: &Key,
        observed: &mut Self::Observed,
        plan: Self::Plan,
    ) -> impl Future<Output = Result<Executed, ReconcileError>> + Send;

    /// Reconciles one object. The future may be dropped at any `await`.
    ///
    /// # Errors
    /// If a request to the API server fails, or the object does not settle. It is safe to reconcile again.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Requeue, ReconcileError>> + Send {
        async move {
            let Some(mut observed) = self.observe(key).await? else {
                return Ok(Requeue::OnChange);
            };
            for _ in 0..MAX_PLANS {
                let plan = self.plan(key, &observed);
                if let Executed::Requeue(requeue) = self.execute(key, &mut observed, plan).await? {
                    return Ok(requeue);
                }
            }
            Err(ReconcileError::Unsettled(
                "the object is not settled after the maximum number of plans",
            ))
        }
    }
}

/// A reconciler with a work queue.
pub(crate) trait Queued: Reconciler {
    /// Waits until the caches have synced, and returns the keys of all objects.
    fn all(&self) -> impl Future<Output = Vec<Key>> + Send;

    /// Returns the step of an object whose refusals [`run`] records, and the collection that it records them in.
    fn refusable(&self, key: &Key) -> Option<(&StepRefusals, RefusedStep)> {
        let _ = key;
        None
    }
}

/// Reconciles the keys of `work` during each leadership term of this process, until `stopping`.
pub(crate) async fn run(
    reconciler: &impl Queued,
    work: &WorkQueue,
    stopping: &CancellationToken,
    leadership: Leadership,
) {
    let all = || reconciler.all();
    let reconcile = |key: Key| async move { reconcile(reconciler, &key).await };
    work.run(stopping, leadership, all, reconcile).await;
}

/// Reconciles one object, records a refusal, and waits for the other writer after a conflict.
pub(crate) async fn reconcile(reconciler: &impl Queued, key: &Key) -> Result<Requeue, ReconcileError> {
    let result = reconciler.reconcile(key).await;
    if let Some((refusals, step)) = reconciler.refusable(key) {
        match result.as_ref().err().and_then(ReconcileError::refusal) {
            Some(message) => refusals.note(step, message, clock::now()),
            None => refusals.forget(&step),
        }
    }
    match result {
        Err(error) if error.is_conflict() => Ok(Requeue::OnChange.or_at(clock::now().checked_add(CONFLICT_DELAY).ok())),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use drydock_core::drain::DrainRefusal;
    use drydock_runtime::{Process, WorkQueueMetrics};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{Patch, PatchParams},
        core::Status,
    };
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::fake_cluster::lost_leadership::check_each_request;

    /// Reconciler whose executions return these results, one after the other.
    struct Scripted {
        results: Mutex<Vec<Result<Executed, ReconcileError>>>,
        refusals: StepRefusals,
    }

    impl Scripted {
        fn new(results: impl IntoIterator<Item = Result<Executed, ReconcileError>>) -> Self {
            Self {
                results: Mutex::new(results.into_iter().collect()),
                refusals: StepRefusals::default(),
            }
        }
    }

    impl Reconciler for Scripted {
        /// Number of executed plans.
        type Observed = usize;
        /// Whether the plan is the first one.
        type Plan = bool;

        async fn observe(&self, observed: &Key) -> Result<Option<usize>, ReconcileError> {
            Ok((*observed == key()).then_some(0))
        }

        fn plan(&self, _: &Key, observed: &usize) -> bool {
            *observed == 0
        }

        async fn execute(&self, _: &Key, observed: &mut usize, is_first: bool) -> Result<Executed, ReconcileError> {
            assert_eq!(is_first, *observed == 0);
            *observed += 1;
            self.results.lock().remove(0)
        }
    }

    impl Queued for Scripted {
        async fn all(&self) -> Vec<Key> {
            vec![key()]
        }

        fn refusable(&self, key: &Key) -> Option<(&StepRefusals, RefusedStep)> {
            Some((&self.refusals, RefusedStep::Pod(key.clone())))
        }
    }

    fn key() -> Key {
        Key::namespaced("shop", "web")
    }

    fn response(code: u16, reason: &str) -> kube::Error {
        let status = Status::failure("the message", reason).with_code(code);
        kube::Error::Api(status.boxed())
    }

    fn refused() -> ReconcileError {
        ReconcileError::Refused {
            step: "the creation of the pod",
            message: "exceeded quota".into(),
        }
    }

    fn failed(source: kube::Error) -> ReconcileError {
        ReconcileError::Failed {
            step: "the creation of the pod",
            source,
        }
    }

    /// Returns the kind of result that the work queue receives: a requeue at a time, on change, or an error.
    fn kind(result: &Result<Requeue, ReconcileError>) -> &'static str {
        match result {
            Ok(Requeue::OnChange) => "on change",
            Ok(Requeue::At(_)) => "at a time",
            Err(_) => "error",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn conflicts_wait_for_the_change_and_other_errors_back_off() {
        for (result, expected) in [
            (Ok(Executed::Requeue(Requeue::OnChange)), "on change"),
            (Err(response(409, "Conflict").into()), "at a time"),
            (Err(response(409, "AlreadyExists").into()), "error"),
            (Err(response(429, "TooManyRequests").into()), "error"),
            (Err(response(500, "InternalError").into()), "error"),
            // The step itself met the conflict, for example a deletion with preconditions. It is repeated with
            // back-off.
            (Err(failed(response(409, "Conflict"))), "error"),
            (Err(refused()), "error"),
            (Err(ReconcileError::Unsettled("caches differ")), "error"),
        ] {
            let shown = format!("{result:?}");
            let scripted = Scripted::new([result]);
            assert_eq!(kind(&reconcile(&scripted, &key()).await), expected, "{shown}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_is_recorded_until_a_reconcile_ends_otherwise() {
        let refusals = StepRefusals::default();
        for after in [
            Ok(Executed::Requeue(Requeue::OnChange)),
            Err(response(409, "Conflict").into()),
            Err(failed(response(500, "InternalError"))),
        ] {
            let scripted = Scripted {
                refusals: refusals.clone(),
                ..Scripted::new([Err(refused()), after])
            };
            let step = RefusedStep::Pod(key());
            assert!(reconcile(&scripted, &key()).await.is_err());
            let recorded: Option<DrainRefusal> = refusals.of(&step, clock::now());
            assert_eq!(
                recorded.map(|refused| refused.message.to_string()),
                Some("exceeded quota".into())
            );
            let _ = reconcile(&scripted, &key()).await;
            assert_eq!(refusals.of(&step, clock::now()), None);
        }
    }

    #[tokio::test]
    async fn reconcile_plans_again_until_a_plan_requeues() {
        let requeue = Executed::Requeue(Requeue::OnChange);
        let scripted = Scripted::new([Ok(Executed::Replan), Ok(Executed::Replan), Ok(requeue)]);
        assert_eq!(scripted.reconcile(&key()).await.unwrap(), Requeue::OnChange);
        assert!(scripted.results.lock().is_empty());
        // Nothing is planned for an object that does not exist.
        let absent = Key::namespaced("shop", "absent");
        assert_eq!(scripted.reconcile(&absent).await.unwrap(), Requeue::OnChange);
        let endless = Scripted::new((0..MAX_PLANS).map(|_| Ok(Executed::Replan)));
        let unsettled = endless.reconcile(&key()).await;
        assert!(matches!(unsettled, Err(ReconcileError::Unsettled(_))), "{unsettled:?}");
    }

    /// Reconciler that reads once and writes twice.
    struct Writer(Api<ConfigMap>);

    impl Reconciler for Writer {
        type Observed = ();
        type Plan = ();

        async fn observe(&self, _: &Key) -> Result<Option<()>, ReconcileError> {
            self.0.get_opt("read").await?;
            Ok(Some(()))
        }

        fn plan(&self, _: &Key, (): &()) {}

        async fn execute(&self, _: &Key, (): &mut (), (): ()) -> Result<Executed, ReconcileError> {
            for name in ["first", "second"] {
                let patch = Patch::Merge(json!({}));
                self.0.patch(name, &PatchParams::default(), &patch).await?;
            }
            Ok(Executed::Requeue(Requeue::OnChange))
        }
    }

    impl Queued for Writer {
        async fn all(&self) -> Vec<Key> {
            vec![key()]
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_leadership_was_lost() {
        let start = |client, process: Process, leadership| async move {
            let writer = Writer(Api::namespaced(client, "shop"));
            let work = WorkQueue::new("test", 1, &WorkQueueMetrics::default());
            run(&writer, &work, &process.stopping(), leadership).await;
        };
        check_each_request(&["read", "first", "second"], start, None).await;
    }
}
