//! A candidate for a Lease: sends the requests, waits, and reports whether it leads.

use super::{
    RequestOutcome,
    election::{Election, ElectionStep, LeaseRequest, Terms},
    outcome, seconds, taken_by,
};
use crate::{CacheChange, Process, Trigger, Watch, WatchStarter, clock, jittered};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for work under a term to end. If it does not end, the process stops without releasing the Lease.
const WORK_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The Lease to acquire, and the identity of the candidate.
#[derive(Clone, Debug)]
pub struct Candidacy {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// The candidate's identity. Unique to this process; a successor in the same pod must not use it either.
    pub identity: String,
    /// The field manager of writes.
    pub field_manager: &'static str,
}

/// The exclusive right to act for a limited time.
///
/// A task that acts under the term keeps a clone, and ends and drops it when [`lost`](Self::lost) is cancelled. When
/// the process stops, the Lease is released as soon as no clone is left, so that the next leader need not wait.
#[derive(Clone, Debug)]
pub struct LeaderTerm {
    lost: CancellationToken,
    base: Instant,
    /// End of the term, in milliseconds after `base`.
    until: Arc<AtomicU64>,
    _acting: Arc<TaskTrackerToken>,
}

impl LeaderTerm {
    /// Returns a token that is cancelled when the term ends, before another candidate can lead. A new term may follow,
    /// also for this process.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Returns whether the term lasts, by the clock and not only by notification.
    ///
    /// To be called right before a write: after a long pause of the process, the end of the term may not have been
    /// signalled yet. A term that has ended by the clock does not continue, even if a late response shows that the
    /// Lease was renewed in time: a new term follows.
    pub fn is_valid(&self) -> bool {
        let until = self.base + Duration::from_millis(self.until.load(Ordering::Acquire));
        if Instant::now() >= until {
            self.lost.cancel();
        }
        !self.lost.is_cancelled()
    }

    /// Runs `work` until the term ends.
    ///
    /// `work` is not polled after the end of the term by the clock, even if the end has not been signalled yet: after a
    /// pause of the process, `work` sends no further request.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let while_valid = poll_fn(|context| {
            if self.is_valid() {
                work.as_mut().poll(context).map(Some)
            } else {
                Poll::Ready(None)
            }
        });
        self.lost.run_until_cancelled(while_valid).await.flatten()
    }

    fn extend(&self, until: Instant) {
        let millis = until.saturating_duration_since(self.base).as_millis();
        self.until
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::Release);
    }
}

/// Whether this process leads. Clones share one state.
///
/// # Guarantees
/// At any time, at most one of all candidates for a Lease has a valid [`LeaderTerm`]; see the module `election` for the
/// reason.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<LeaderTerm>>);

impl Leadership {
    /// Competes for the Lease until the process stops, then releases it.
    ///
    /// `released` is notified when another candidate has released the Lease, for example by [`releases`].
    pub fn stand(process: &Process, client: Client, candidacy: Candidacy, released: Trigger) -> Self {
        let (current, receiver) = watch::channel(None);
        let elector = Elector {
            api: Api::namespaced(client, &candidacy.namespace),
            election: Election::new(candidacy.identity.clone(), Terms::default(), Instant::now()),
            candidacy,
            released,
            current,
            acting: TaskTracker::new(),
            failing: false,
        };
        let stopping = process.stopping();
        process.spawn_critical("standing for leader", async move {
            elector.run(stopping).await;
        });
        Self(receiver)
    }

    /// Returns the term of this process, if it leads.
    pub fn term(&self) -> Option<LeaderTerm> {
        self.0.borrow().clone().filter(LeaderTerm::is_valid)
    }

    /// Waits until this process leads. Never returns if the process stops first.
    pub async fn elected(&mut self) -> LeaderTerm {
        loop {
            if let Some(term) = self.term() {
                return term;
            }
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Watches the Lease, and notifies the returned trigger when the Lease is free.
///
/// A standby that only polled the Lease would leave the cluster without a leader until its next poll.
pub fn releases(client: &Client, watches: &WatchStarter, candidacy: &Candidacy) -> Trigger {
    let signal = Trigger::new();
    let notify = signal.clone();
    let watch = Watch::<Lease>::namespaced(client.clone(), &candidacy.namespace, "the leader's Lease")
        .fields(format!("metadata.name={}", candidacy.name))
        .on_change(move |change| {
            if let CacheChange::Object { new: Some(lease), .. } = change
                && let Some(spec) = &lease.spec
                && spec.holder_identity.as_deref().is_none_or(str::is_empty)
            {
                notify.notify();
            }
        });
    watches.start(watch);
    signal
}

struct Elector {
    api: Api<Lease>,
    candidacy: Candidacy,
    election: Election,
    released: Trigger,
    current: watch::Sender<Option<LeaderTerm>>,
    acting: TaskTracker,
    failing: bool,
}

impl Elector {
    async fn run(mut self, stopping: CancellationToken) {
        while !stopping.is_cancelled() {
            let now = Instant::now();
            match self.election.step(now) {
                ElectionStep::Wait(until) => {
                    // Jitter separates candidates that poll at the same time.
                    let pause = if self.current.borrow().is_some() {
                        until - now
                    } else {
                        jittered(until - now)
                    };
                    let released = self.released.clone();
                    let pause = async {
                        tokio::select! {
                            () = tokio::time::sleep(pause) => false,
                            () = released.notified() => true,
                        }
                    };
                    let waited = stopping.run_until_cancelled(self.unless_the_term_ends(pause)).await;
                    if waited == Some(Some(true)) {
                        self.election.released(Instant::now());
                    }
                }
                ElectionStep::Send(action) => {
                    let executing = execute(&self.api, &self.candidacy, &action);
                    let Some(response) = stopping.run_until_cancelled(self.unless_the_term_ends(executing)).await
                    else {
                        break;
                    };
                    // The term ended while the request was in flight: the API server may still have executed it.
                    let response =
                        response.unwrap_or_else(|| RequestOutcome::Unknown("the leader's term has ended".to_owned()));
                    self.log(&response);
                    self.election.complete(&action, response, now, Instant::now());
                }
            }
            self.publish(Instant::now());
        }
        self.resign().await;
    }

    /// Awaits `doing`, at most until the end of the current term.
    async fn unless_the_term_ends<T>(&self, doing: impl Future<Output = T>) -> Option<T> {
        let end = self
            .current
            .borrow()
            .is_some()
            .then(|| self.election.leads_until(Instant::now()))
            .flatten();
        tokio::select! {
            done = doing => Some(done),
            () = clock::sleep_until_instant(end) => None,
        }
    }

    /// Publishes whether this process leads.
    fn publish(&self, now: Instant) {
        let current = self.current.borrow().clone();
        match (self.election.leads_until(now), current) {
            (Some(until), Some(term)) if term.is_valid() => term.extend(until),
            (Some(until), _) => {
                let term = LeaderTerm {
                    lost: CancellationToken::new(),
                    base: now,
                    until: Arc::default(),
                    _acting: Arc::new(self.acting.token()),
                };
                term.extend(until);
                tracing::info!(
                    lease = self.candidacy.name,
                    identity = self.candidacy.identity,
                    "leading"
                );
                self.current.send_replace(Some(term));
            }
            (None, Some(term)) => {
                tracing::warn!(lease = self.candidacy.name, "no longer leading");
                term.lost.cancel();
                self.current.send_replace(None);
            }
            (None, None) => {}
        }
    }

    /// Ends the term. Releases the Lease once all work under the term has ended.
    async fn resign(mut self) {
        if let Some(term) = self.current.send_replace(None) {
            term.lost.cancel();
        }
        self.acting.close();
        if tokio::time::timeout(WORK_ENDS_WITHIN, self.acting.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                lease = self.candidacy.name,
                "the Lease was not released: work of the term has not ended"
            );
            return;
        }
        if let Some(release) = self.election.resign(Instant::now()) {
            match execute(&self.api, &self.candidacy, &release).await {
                RequestOutcome::Done(_) => tracing::info!(lease = self.candidacy.name, "released the Lease"),
                RequestOutcome::Missing | RequestOutcome::Conflict => {}
                RequestOutcome::Unknown(reason) => {
                    tracing::warn!(lease = self.candidacy.name, reason, "could not release the Lease");
                }
            }
        }
    }

    fn log(&mut self, outcome: &RequestOutcome) {
        let lease = &self.candidacy.name;
        match (outcome, self.failing) {
            (RequestOutcome::Unknown(reason), false) => {
                tracing::warn!(lease, reason, "could not read or write the Lease, retrying");
                self.failing = true;
            }
            (RequestOutcome::Done(_), true) => {
                tracing::info!(lease, "the Lease can be renewed again");
                self.failing = false;
            }
            _ => {}
        }
    }
}

async fn execute(api: &Api<Lease>, candidacy: &Candidacy, action: &LeaseRequest) -> RequestOutcome {
    let Candidacy { name, identity, .. } = candidacy;
    let now = MicroTime(clock::now());
    let field_manager = Some(candidacy.field_manager.to_owned());
    let duration = seconds(Terms::default().duration);
    let write = match action {
        LeaseRequest::Read => return outcome(REQUEST_TIMEOUT, api.get(name)).await,
        LeaseRequest::Create => {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    lease_transitions: Some(0),
                    ..taken_by(identity, Terms::default().duration)
                }),
            };
            let params = PostParams {
                field_manager,
                ..PostParams::default()
            };
            return outcome(REQUEST_TIMEOUT, api.create(&params, &lease)).await;
        }
        LeaseRequest::Take { version, transitions } => json!({
            "metadata": {"resourceVersion": version},
            "spec": {
                "holderIdentity": identity, "leaseDurationSeconds": duration, "leaseTransitions": transitions,
                "acquireTime": now.clone(), "renewTime": now,
            },
        }),
        LeaseRequest::Renew { version } => json!({
            "metadata": {"resourceVersion": version},
            "spec": {"renewTime": now},
        }),
        LeaseRequest::Release { version } => json!({
            "metadata": {"resourceVersion": version},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now},
        }),
    };
    let params = PatchParams {
        field_manager,
        ..PatchParams::default()
    };
    outcome(REQUEST_TIMEOUT, api.patch(name, &params, &Patch::Merge(write))).await
}

#[cfg(test)]
mod tests;
