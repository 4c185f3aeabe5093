//! The loop that maintains certificates: it evaluates them on every replica, and renews them on the leader.
//!
//! The loop differs from [`triggered`](crate::reconciler::triggered), since a standby also has to serve a renewed
//! certificate.

use std::{future::Future, time::Duration};

use drydock_runtime::{
    Backoff, CancellationToken, ReconcileMetrics, Trigger, chain, clock,
    lease::{LeaderTerm, Leadership},
};
use jiff::Timestamp;
use thiserror::Error;
use tracing::{debug, warn};

use super::made::MakeError;
use crate::reconciler::{CONFLICT_DELAY, triggered::measured};

/// Reason why a step of the leader failed.
#[derive(Debug, Error)]
pub(super) enum RenewalError {
    #[error(transparent)]
    Make(#[from] MakeError),
    #[error("could not write {what}")]
    Write { what: &'static str, source: kube::Error },
}

impl RenewalError {
    /// Returns whether another writer was faster. The watch shows the change of that writer.
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Write { source: kube::Error::Api(status), .. } if status.code == 409)
    }
}

/// Certificates that the loop maintains.
pub(super) trait Renewed: Send {
    /// Name of the certificates in spans and metrics.
    const NAME: &'static str;
    /// First and maximum pause after an error.
    const RETRY: (Duration, Duration);
    /// Log message of an error.
    const FAILURE: &'static str;

    /// Evaluates the caches on any replica. Returns the time of the next reconcile.
    fn evaluate(&mut self, now: Timestamp) -> Option<Timestamp> {
        let _ = now;
        None
    }

    /// Takes the next step, if there is one and this replica `leads`. Returns the time of the next reconcile. The watch
    /// shows the written objects.
    fn lead(
        &mut self,
        now: Timestamp,
        leads: impl Fn() -> bool + Send + Sync,
    ) -> impl Future<Output = Result<Option<Timestamp>, RenewalError>> + Send;

    /// Counts a failed step.
    fn count_failure(&self) {}
}

/// Reconciles until `stopping`: after each change, when a reconcile is due, and when a term begins or ends.
pub(super) async fn keep_renewing<R: Renewed>(
    mut certificates: R,
    changed: Trigger,
    mut leadership: Leadership,
    stopping: CancellationToken,
    metrics: ReconcileMetrics,
) {
    let mut backoff = Backoff::new(R::RETRY.0, R::RETRY.1);
    loop {
        let now = clock::now();
        let term = leadership.term();
        let mut wake = None;
        let reconcile = async {
            wake = certificates.evaluate(now);
            reconcile(&mut certificates, now, term.as_ref()).await
        };
        let again = match stopping
            .run_until_cancelled(measured(R::NAME, &metrics, reconcile))
            .await
        {
            None => return,
            Some(Ok(again)) => {
                backoff.reset();
                again
            }
            Some(Err(_)) => now.checked_add(backoff.delay()).ok(),
        };
        let another_term = async {
            match &term {
                Some(term) => term.lost().cancelled().await,
                None => drop(leadership.elected().await),
            }
        };
        tokio::select! {
            () = stopping.cancelled() => return,
            () = changed.notified() => {}
            () = clock::sleep_until([wake, again].into_iter().flatten().min()) => {}
            () = another_term => {}
        }
    }
}

/// Takes the leader's step during `term`. After a conflict, waits for the watch to show the change of the other writer,
/// unless the watch is interrupted.
async fn reconcile<R: Renewed>(
    certificates: &mut R,
    now: Timestamp,
    term: Option<&LeaderTerm>,
) -> Result<Option<Timestamp>, RenewalError> {
    let Some(term) = term else {
        return Ok(None);
    };
    // A step may have several writes. None of them may be sent after the end of the term.
    let Some(led) = term.run(certificates.lead(now, || term.is_valid())).await else {
        return Ok(None);
    };
    match led {
        Err(error) if error.is_conflict() => {
            debug!(error = %chain(&error), "another writer has changed the certificates in the meantime");
            Ok(now.checked_add(CONFLICT_DELAY).ok())
        }
        Err(error) => {
            certificates.count_failure();
            warn!(error = %chain(&error), "{}", R::FAILURE);
            Err(error)
        }
        again => again,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use drydock_runtime::{Process, WorkQueueMetrics};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{Patch, PatchParams},
    };
    use serde_json::json;

    use super::*;
    use crate::fake_cluster::lost_leadership::check_each_request;

    const WRITES: [&str; 3] = ["mutating", "validating", "services"];

    /// Writes three times in each step, and counts evaluations.
    struct Writer(Api<ConfigMap>, Arc<AtomicUsize>);

    impl Renewed for Writer {
        const NAME: &'static str = "writer";
        const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
        const FAILURE: &'static str = "the writer has failed";

        fn evaluate(&mut self, _: Timestamp) -> Option<Timestamp> {
            self.1.fetch_add(1, Ordering::Relaxed);
            None
        }

        async fn lead(
            &mut self,
            _: Timestamp,
            _: impl Fn() -> bool + Send + Sync,
        ) -> Result<Option<Timestamp>, RenewalError> {
            for what in WRITES {
                let patch = Patch::Merge(json!({}));
                let written = self.0.patch(what, &PatchParams::default(), &patch).await;
                written.map_err(|source| RenewalError::Write { what, source })?;
            }
            Ok(None)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_renewed_after_the_leadership_was_lost() {
        let evaluations = Arc::new(AtomicUsize::new(0));
        let start = |client, process: Process, leadership| {
            keep_renewing(
                Writer(Api::namespaced(client, "drydock"), Arc::clone(&evaluations)),
                Trigger::new(),
                leadership,
                process.stopping(),
                WorkQueueMetrics::default().of_reconciler(Writer::NAME),
            )
        };
        check_each_request(&WRITES, start, Some(&evaluations)).await;
    }
}
