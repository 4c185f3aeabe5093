//! The shape of the reconcilers that have a work queue.
//!
//! ```text
//!  key ──▶ observe ──▶ plan ──▶ execute ──▶ Ok(Requeue)
//!          caches,     core     steps,  └─▶ Err ┬ conflict: another writer was faster; requeued for its change
//!          requests             status          ├ refusal:  recorded in `Refusals`; back-off of the work queue
//!                                               └ others:   back-off of the work queue
//! ```

use std::{future::Future, time::Duration};

use drydock_runtime::{CancellationToken, Key, Requeue, WorkQueue, clock, lease::Leadership};
use thiserror::Error;

use crate::refusals::{Refusals, RefusedStep};

/// How long a reconcile that met a conflict waits for the change of the other writer. The watch shows it within
/// milliseconds, unless it interrupts.
const CONFLICT_DELAY: Duration = Duration::from_secs(1);

/// Why an object could not be reconciled.
#[derive(Debug, Error)]
pub(crate) enum ReconcileError {
    /// A request to the API server failed.
    #[error("the request to the API server failed")]
    Api(#[from] kube::Error),
    /// The API server refused a step, and the object's status reports the message.
    #[error("{step} was refused: {message}")]
    Refused {
        /// What was refused, such as `creation of its pod`.
        step: &'static str,
        /// The API server's message.
        message: String,
    },
    /// A step failed that the next reconcile repeats as it is.
    #[error("{step} failed")]
    Failed {
        /// What failed, such as `creation of its pod`.
        step: &'static str,
        /// The error of the request.
        #[source]
        source: kube::Error,
    },
    /// The observed objects contradict each other: a cache lags behind.
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

/// Reconciles objects, one at a time for each key.
pub(crate) trait Reconciler: Sync {
    /// Waits until the caches have synced, and returns the keys of all objects.
    fn all(&self) -> impl Future<Output = Vec<Key>> + Send;

    /// Reconciles one object. The future may be dropped at any `await`.
    ///
    /// # Errors
    /// If a request to the API server fails; it is safe to reconcile again.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Requeue, ReconcileError>> + Send;

    /// Returns the step of an object whose refusals [`run`] records, and where.
    fn refusable(&self, key: &Key) -> Option<(&Refusals, RefusedStep)> {
        let _ = key;
        None
    }
}

/// Reconciles the keys of `work` during each leadership term of this process, until `stopping`.
pub(crate) async fn run(
    reconciler: &impl Reconciler,
    work: &WorkQueue,
    stopping: &CancellationToken,
    leadership: Leadership,
) {
    let all = || reconciler.all();
    let reconcile = |key: Key| async move { reconcile(reconciler, &key).await };
    work.run(stopping, leadership, all, reconcile).await;
}

/// Reconciles one object, records a refusal, and waits for the other writer after a conflict.
pub(crate) async fn reconcile(reconciler: &impl Reconciler, key: &Key) -> Result<Requeue, ReconcileError> {
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
    use std::sync::Mutex;

    use drydock_core::drain::Refused;
    use kube::core::Status;

    use super::*;

    /// Each reconcile ends with the next of these results.
    struct Scripted {
        results: Mutex<Vec<Result<Requeue, ReconcileError>>>,
        refusals: Refusals,
    }

    impl Reconciler for Scripted {
        async fn all(&self) -> Vec<Key> {
            vec![key()]
        }

        async fn reconcile(&self, _: &Key) -> Result<Requeue, ReconcileError> {
            self.results.lock().unwrap().remove(0)
        }

        fn refusable(&self, key: &Key) -> Option<(&Refusals, RefusedStep)> {
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
            step: "creation of its pod",
            message: "exceeded quota".into(),
        }
    }

    fn failed(source: kube::Error) -> ReconcileError {
        ReconcileError::Failed {
            step: "creation of its pod",
            source,
        }
    }

    /// The result that the work queue gets: a requeue at a time, on change, or an error.
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
            (Ok(Requeue::OnChange), "on change"),
            (Err(response(409, "Conflict").into()), "at a time"),
            (Err(response(409, "AlreadyExists").into()), "error"),
            (Err(response(429, "TooManyRequests").into()), "error"),
            (Err(response(500, "InternalError").into()), "error"),
            // The step itself met it, such as a deletion with preconditions: its own conflict is repeated.
            (Err(failed(response(409, "Conflict"))), "error"),
            (Err(refused()), "error"),
            (Err(ReconcileError::Unsettled("caches differ")), "error"),
        ] {
            let shown = format!("{result:?}");
            let scripted = Scripted {
                results: Mutex::new(vec![result]),
                refusals: Refusals::default(),
            };
            assert_eq!(kind(&reconcile(&scripted, &key()).await), expected, "{shown}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_is_recorded_until_a_reconcile_ends_otherwise() {
        let refusals = Refusals::default();
        for after in [
            Ok(Requeue::OnChange),
            Err(response(409, "Conflict").into()),
            Err(failed(response(500, "InternalError"))),
        ] {
            let scripted = Scripted {
                results: Mutex::new(vec![Err(refused()), after]),
                refusals: refusals.clone(),
            };
            let step = RefusedStep::Pod(key());
            assert!(reconcile(&scripted, &key()).await.is_err());
            let recorded: Option<Refused> = refusals.of(&step);
            assert_eq!(
                recorded.map(|refused| refused.message.to_string()),
                Some("exceeded quota".into())
            );
            let _ = reconcile(&scripted, &key()).await;
            assert_eq!(refusals.of(&step), None);
        }
    }
}
