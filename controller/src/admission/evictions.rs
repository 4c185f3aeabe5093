//! Reviews evictions of launcher pods, and sets the evacuation requests that follow from them.
//!
//! ```text
//!  caches ─▶ core: decide ─┬─ Allow ──▶ as shown: pod and instance are read ─▶ core: decide
//!     ▲                    │           for good: the pod's PDB is deleted, allowed
//!     │                    ├─ Mark ───▶ one patch of the instance ──┐ (conflict: both are read ─▶ core: decide)
//!     │                    └─ Refuse ───────────────────────────────┴─▶ 429
//!     ├───────────── held: until the guest has moved, or [`HOLD`] ◀──┘
//!     └─ moved ─▶ the pod is deleted, allowed when it is gone
//! ```
//!
//! Drainers wait for seconds after a 429 (kubectl for five), although most guests have moved sooner. An eviction that
//! would be granted soon is therefore held: for at most [`HOLD`], and at most [`MAX_HELD_EVICTIONS`] at once in this
//! process, so that held requests cannot exhaust the API server. Dry runs are never held. Evictions by the descheduler
//! are not held either, because it evicts many pods one after the other and reads the message.
//!
//! After a granted eviction, drainers check once a second whether the pod still exists. A pod that is to be evicted is
//! therefore deleted as soon as its guest has moved, and the eviction is granted when the pod no longer exists. The API
//! server then responds that there is no such pod, which drainers treat as success.
//!
//! The caches may be outdated. Before an eviction is allowed, the API server is therefore read if the caches do not
//! have the pod or its instance, or may have an outdated state. If the API server does not respond by the end of the
//! hold, the eviction is refused.

mod logged;
mod metrics;

use std::{fmt, sync::Arc, time::Duration};

use drydock_api::kubevirt::{
    VirtualMachineInstance,
    names::{BY_DESCHEDULER, DESCHEDULER, EVICTION_SOURCE, REQUESTED_BY},
};
use drydock_core::{
    drain::estimate::{EstimateInput, time_left},
    eviction::{
        Allowed, EvictionDecision, EvictionRefusal, Lookup, decide, evacuation_request,
        holding::{GONE_WITHIN, HOLD, RELEASED_WITHIN, SETTLED_AFTER, is_worth_holding},
        is_elsewhere, is_launcher, preconditions,
    },
    launcher_pod::made_for,
    migration::record::MigrationRecord,
};
use drydock_runtime::{Key, chain, clock};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Preconditions};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse},
    },
};
use serde_json::json;
use tokio::{
    sync::{SemaphorePermit, watch},
    time::{timeout, timeout_at},
};
use tracing::{debug, info, warn};

use super::denied_with;
use crate::{
    evacuation_requests::EvacuationRequest, guest_context::GuestContext, launcher_owner::owner, launchers::PodDeletion,
};
use logged::LoggedRefusals;
pub(crate) use metrics::HeldEvictions;

/// Maximum number of evictions that are held at once: far below the number of requests that an API server processes at
/// a time (200 mutating requests by default).
pub(crate) const MAX_HELD_EVICTIONS: usize = 8;
/// Maximum number of repetitions of marking an instance, if the request conflicts with other writes to the instance.
const MAX_MARK_REPETITIONS: u32 = 5;
/// Status code and reason of refusals, as for a PDB.
const TOO_MANY_REQUESTS: (u16, &str) = (429, "TooManyRequests");
/// Status code and reason for an eviction whose preconditions do not hold, as in the API server.
const CONFLICT: (u16, &str) = (409, "Conflict");

/// Reviews evictions of launcher pods.
#[derive(Clone)]
pub(crate) struct EvictionReviews {
    context: GuestContext,
    /// Changes when the caches have changed and a held eviction may be granted.
    news: watch::Receiver<u64>,
    held: HeldEvictions,
    logged: Arc<LoggedRefusals>,
}

/// The relevant parts of an eviction.
struct Eviction {
    pod: Key,
    dry_run: bool,
    descheduler: bool,
    preconditions: Option<Preconditions>,
}

impl Eviction {
    /// Returns a permit to hold the eviction, if it may be held and a permit is free.
    fn place<'a>(&self, held: &'a HeldEvictions) -> Option<SemaphorePermit<'a>> {
        let may_be_held = !self.dry_run && !self.descheduler;
        may_be_held.then(|| held.place()).flatten()
    }
}

/// The source of the state of a pod and its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The caches, and the API server for objects that they do not have.
    Caches,
    /// The API server.
    ApiServer,
}

/// The verdict on one eviction in the current state.
struct EvictionVerdict {
    decision: EvictionDecision,
    pod: Option<Arc<Pod>>,
    instance: Option<Arc<VirtualMachineInstance>>,
    /// Error message if the state could not be determined, otherwise empty.
    detail: String,
}

impl EvictionVerdict {
    fn allow() -> Self {
        Self {
            decision: EvictionDecision::Allow(Allowed::ForGood),
            pod: None,
            instance: None,
            detail: String::new(),
        }
    }

    fn unknown(detail: impl fmt::Display) -> Self {
        Self {
            decision: EvictionDecision::Refuse(EvictionRefusal::InstanceUnknown),
            detail: detail.to_string(),
            ..Self::allow()
        }
    }
}

impl EvictionReviews {
    /// Creates a review with these caches. `news` changes when a held eviction may be granted; `held` has the permits
    /// for held evictions.
    pub(crate) fn new(context: GuestContext, news: watch::Receiver<u64>, held: HeldEvictions) -> Self {
        Self {
            context,
            news,
            held,
            logged: Arc::default(),
        }
    }

    /// Reviews one eviction.
    pub(super) async fn review(&self, request: &AdmissionRequest<DynamicObject>) -> AdmissionResponse {
        let response = AdmissionResponse::from(request);
        let eviction = match read(request) {
            Ok(eviction) => eviction,
            Err(detail) => {
                return refused(
                    response,
                    EvictionRefusal::Unreadable,
                    &EvictionVerdict::allow(),
                    &detail,
                );
            }
        };
        let until = clock::Instant::now() + HOLD;
        let mut verdict = match timeout_at(until, self.decide(&eviction, until)).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(conflict)) => return conflicting(response, &eviction, conflict),
            Err(_) => EvictionVerdict::unknown("the API server did not respond in time"),
        };
        match verdict.decision {
            EvictionDecision::Allow(_) => {
                self.logged.forget(&eviction.pod);
                let left = |pod: &Pod| {
                    verdict
                        .instance
                        .as_ref()
                        .is_some_and(|instance| is_elsewhere(instance, pod))
                };
                let prepare = async {
                    match verdict.pod.as_ref().filter(|_| !eviction.dry_run) {
                        Some(pod) if left(pod) => self.end(&eviction, pod, self.news.clone()).await,
                        Some(pod) => self.release(&eviction.pod, pod, self.news.clone()).await,
                        None => {}
                    }
                };
                // The eviction is allowed in any case. If the PDB of the pod still exists, the API server refuses.
                let _ = timeout(GONE_WITHIN, prepare).await;
                response
            }
            EvictionDecision::Refuse(refusal) => {
                let reason = refusal.reason();
                if self.logged.is_transition(&eviction.pod, refusal) {
                    info!(pod = %eviction.pod, reason, "eviction refused");
                } else {
                    debug!(pod = %eviction.pod, reason, "eviction still refused");
                }
                let detail = std::mem::take(&mut verdict.detail);
                refused(response, refusal, &verdict, &detail)
            }
            // `decide` has marked the instance.
            EvictionDecision::Mark => refused(response, EvictionRefusal::Triggered, &verdict, ""),
        }
    }

    /// Returns the verdict on an eviction. Holds the eviction until the time `until` if its guest may have moved by
    /// then.
    ///
    /// # Errors
    /// If the eviction's preconditions do not hold. The text has the reason.
    async fn decide(&self, eviction: &Eviction, until: clock::Instant) -> Result<EvictionVerdict, String> {
        match self.conflict(eviction).await {
            Ok(None) => {}
            Ok(Some(text)) => return Err(text),
            Err(error) => return Ok(EvictionVerdict::unknown(chain(&error))),
        }
        // An instance without an eviction strategy uses the strategy of the configuration, which has to be known.
        self.context.launchers.configuration.resolved().await;
        let mut news = self.news.clone();
        news.mark_unchanged();
        let verdict = self.judge(&eviction.pod).await;
        let mut verdict = self.mark_as_judged(eviction, verdict).await;
        if let EvictionDecision::Refuse(refusal) = verdict.decision
            && refusal.may_pass()
            && let Some(_place) = eviction.place(&self.held)
        {
            let first = refusal;
            verdict = self.hold(&eviction.pod, verdict, news, until).await;
            // The response to the request that triggered the evacuation must not attribute it to another request.
            if let EvictionDecision::Refuse(EvictionRefusal::InProgress) = verdict.decision {
                verdict.decision = EvictionDecision::Refuse(first);
            }
        }
        Ok(verdict)
    }

    /// Returns the reason why an eviction does not apply to the existing pod with its name, if its preconditions
    /// exclude that pod. A cached pod with another version or UID may be outdated. If there is no pod, the API server
    /// itself responds.
    ///
    /// # Errors
    /// If the request to the API server fails.
    async fn conflict(&self, eviction: &Eviction) -> kube::Result<Option<String>> {
        let Some(wanted) = &eviction.preconditions else {
            return Ok(None);
        };
        let shown = self.context.launchers.get(&eviction.pod);
        let is_shown = |pod: &Arc<Pod>| preconditions::conflict(wanted, pod).is_none();
        if wanted.resource_version.is_none() && shown.as_ref().is_some_and(is_shown) {
            return Ok(None);
        }
        let pod = self.context.api(&eviction.pod).get_opt(&eviction.pod.name).await?;
        let pod = pod.filter(is_launcher);
        Ok(pod.and_then(|pod| preconditions::conflict(wanted, &pod)))
    }

    /// Returns the verdict in the current state.
    async fn judge(&self, key: &Key) -> EvictionVerdict {
        let verdict = self.judge_by(key, By::Caches).await;
        match verdict.decision {
            EvictionDecision::Allow(Allowed::AsShown) => self.judge_by(key, By::ApiServer).await,
            _ => verdict,
        }
    }

    /// Returns the verdict for the pod and the instance as read from this source.
    async fn judge_by(&self, key: &Key, by: By) -> EvictionVerdict {
        let pod = match self.context.launchers.get(key).filter(|_| by == By::Caches) {
            Some(pod) => pod,
            None => match self.context.api(key).get_opt(&key.name).await {
                Ok(Some(pod)) => Arc::new(pod),
                Ok(None) => return EvictionVerdict::allow(),
                Err(error) => return EvictionVerdict::unknown(chain(&error)),
            },
        };
        let Some((instance_key, uid)) = owner(&pod).filter(|_| is_launcher(&pod)) else {
            return EvictionVerdict::allow();
        };
        let is = |instance: &VirtualMachineInstance| instance.metadata.uid.as_deref() == Some(uid.as_str());
        let shown = self.context.instances.get(&instance_key);
        let mut instance = shown.filter(|instance| by == By::Caches && is(instance));
        if instance.is_none() {
            match self.context.api(&instance_key).get_opt(&instance_key.name).await {
                Ok(found) => instance = found.filter(is).map(Arc::new),
                Err(error) => return EvictionVerdict::unknown(chain(&error)),
            }
        }
        let strategy = instance
            .as_ref()
            .map(|instance| self.context.launchers.eviction_strategy(instance));
        let decision = decide(&drydock_core::eviction::EvictionInput {
            now: clock::now(),
            pod: &pod,
            instance: instance.as_deref().map_or(Lookup::Absent, Lookup::There),
            strategy: strategy.unwrap_or_else(|| self.context.launchers.configuration.get().eviction_strategy),
            is_target: self.is_target(&instance_key, &pod),
        });
        EvictionVerdict {
            decision,
            pod: Some(pod),
            instance,
            detail: String::new(),
        }
    }

    /// Returns whether a guest is to arrive in a pod by a migration that has not ended or is unknown.
    fn is_target(&self, instance: &Key, pod: &Pod) -> bool {
        let Some(uid) = made_for(pod) else { return false };
        let migrations = self.context.migrations.of_instance(instance);
        let migration = migrations
            .iter()
            .find(|migration| migration.metadata.uid.as_deref() == Some(uid));
        migration.is_none_or(|migration| !MigrationRecord::of(migration).is_over())
    }

    /// Waits until the verdict changes or the time `until` is reached. Returns earlier if holding is not worthwhile.
    async fn hold(
        &self,
        pod: &Key,
        mut verdict: EvictionVerdict,
        mut news: watch::Receiver<u64>,
        until: clock::Instant,
    ) -> EvictionVerdict {
        let began = clock::Instant::now();
        // At the first eviction of a drain, it is not known yet which other guests are to leave.
        let mut judged_at = match verdict.decision {
            EvictionDecision::Refuse(EvictionRefusal::Triggered) => Some(began + SETTLED_AFTER),
            _ => Some(began),
        };
        loop {
            if judged_at.is_some_and(|at| at <= clock::Instant::now()) {
                judged_at = None;
                let held = HOLD.saturating_sub(until.duration_since(clock::Instant::now()));
                if !is_worth_holding(held, self.time_left(&verdict)) {
                    return verdict;
                }
            }
            tokio::select! {
                () = clock::sleep_until_instant(Some(until)) => return verdict,
                () = clock::sleep_until_instant(judged_at) => continue,
                changed = news.changed() => if changed.is_err() { return verdict },
            }
            verdict = match timeout_at(until, self.judge(pod)).await {
                Ok(verdict) => verdict,
                Err(_) => return verdict,
            };
            match verdict.decision {
                EvictionDecision::Refuse(refusal) if refusal.may_pass() => {}
                // The watch does not show the evacuation request yet, or it was removed: neither changes the verdict.
                EvictionDecision::Mark => verdict.decision = EvictionDecision::Refuse(EvictionRefusal::InProgress),
                EvictionDecision::Allow(_) | EvictionDecision::Refuse(_) => return verdict,
            }
        }
    }

    /// Returns the estimated time until the guest of an eviction has moved; `None` if it is unknown.
    fn time_left(&self, verdict: &EvictionVerdict) -> Option<Duration> {
        let instance = verdict.instance.as_deref()?;
        let node = instance.node_name()?;
        let own = EstimateInput::of(instance, self.context.migrations.of_instance(&Key::of(instance)));
        // Migrations that are created later come after the own one, so guests without a migration do not count.
        let others = self.context.migrations.unfinished().into_iter();
        let others = others.filter_map(|migration| EstimateInput::by(migration, node));
        let limits = &self.context.launchers.configuration.get().migrations;
        time_left(
            &own,
            &others.collect::<Vec<_>>(),
            self.context.rate.rate(),
            limits,
            clock::now(),
        )
    }

    /// Marks the instance if the verdict requires that. If the instance has changed since the verdict, decides again
    /// with the state in the API server. Returns the final verdict.
    async fn mark_as_judged(&self, eviction: &Eviction, mut verdict: EvictionVerdict) -> EvictionVerdict {
        let mut repetitions = 0..MAX_MARK_REPETITIONS;
        while verdict.decision == EvictionDecision::Mark {
            let refusal = match self.mark(eviction, &verdict).await {
                Ok(refusal) => refusal,
                // An outdated cache may not show an existing mark. A new mark would reset the failures that the
                // existing one counts.
                Err(kube::Error::Api(status)) if status.is_conflict() && repetitions.next().is_some() => {
                    verdict = self.judge_by(&eviction.pod, By::ApiServer).await;
                    continue;
                }
                Err(error) => {
                    verdict.detail = chain(&error).to_string();
                    EvictionRefusal::NotMarked
                }
            };
            verdict.decision = EvictionDecision::Refuse(refusal);
        }
        verdict
    }

    /// Marks an instance to leave its node. Returns the response to the eviction.
    ///
    /// # Errors
    /// If the request to the API server fails; with a conflict if the instance has changed since the verdict.
    async fn mark(&self, eviction: &Eviction, verdict: &EvictionVerdict) -> kube::Result<EvictionRefusal> {
        let (Some(instance), Some(pod)) = (&verdict.instance, &verdict.pod) else {
            return Ok(EvictionRefusal::InstanceUnknown);
        };
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default();
        let now = clock::now();
        let evacuation = evacuation_request::new(
            self.context
                .launchers
                .nodes
                .requester(&node, &self.context.launchers.configuration.get()),
            now,
        );
        let key = Key::of(instance.as_ref());
        let mark = EvacuationRequest {
            node: &node,
            evacuation: &evacuation,
        };
        mark.set(&self.context.api(&key), instance, eviction.dry_run).await?;
        if eviction.descheduler && !eviction.dry_run {
            let patch = json!({"metadata": {"uid": instance.uid(), "annotations": {EVICTION_SOURCE: DESCHEDULER}}});
            let noted = self
                .context
                .api::<VirtualMachineInstance>(&key)
                .patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            if let Err(error) = noted {
                // The annotation only makes the migration less urgent.
                warn!(
                    vmi = %key,
                    error = %chain(&error),
                    "could not record on the instance that the descheduler requested the eviction"
                );
            }
        }
        info!(vmi = %key, node, by = evacuation.requested_by.as_str(), "instance marked to leave its node");
        Ok(EvictionRefusal::Triggered)
    }

    /// Deletes a pod whose guest has migrated away. If the eviction may be held, waits up to [`GONE_WITHIN`] until
    /// the pod is gone. A PDB does not protect a pod that is being deleted.
    async fn end(&self, eviction: &Eviction, pod: &Pod, mut news: watch::Receiver<u64>) {
        news.mark_unchanged();
        let key = &eviction.pod;
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Err(error) = self
            .context
            .launchers
            .delete(namespace, &key.name, PodDeletion::of(uid))
            .await
        {
            warn!(pod = %key, error = %chain(&error), "could not delete a pod whose guest has migrated away");
            return self.release(key, pod, news).await;
        }
        let Some(_place) = eviction.place(&self.held) else {
            return;
        };
        let until = clock::Instant::now() + GONE_WITHIN;
        let is_there = |pod: &Arc<Pod>| pod.metadata.uid.as_deref() == Some(uid);
        while self.context.launchers.get(key).as_ref().is_some_and(is_there) {
            tokio::select! {
                () = clock::sleep_until_instant(Some(until)) => return,
                changed = news.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Deletes the PDB that would still protect a pod from eviction. The leader deletes the PDB as soon as the guest
    /// has moved. This replica deletes it only if the leader does not.
    async fn release(&self, key: &Key, pod: &Pod, mut news: watch::Receiver<u64>) {
        news.mark_unchanged();
        let until = clock::Instant::now() + RELEASED_WITHIN;
        while let Some(pdb) = self.context.launchers.pdbs.of(pod) {
            tokio::select! {
                () = clock::sleep_until_instant(Some(until)) => {}
                changed = news.changed() => if changed.is_ok() { continue },
            }
            if let Err(error) = self.context.launchers.pdbs.delete(&pdb).await {
                // The API server then refuses the eviction because of the PDB, and the drainer repeats it.
                warn!(
                    pod = %key,
                    error = %chain(&error),
                    "could not delete the PodDisruptionBudget of a pod that may be evicted"
                );
            }
            return;
        }
    }
}

/// Reads an eviction from an admission request.
fn read(request: &AdmissionRequest<DynamicObject>) -> Result<Eviction, String> {
    let eviction = request.object.as_ref().ok_or("the request has no object")?;
    let in_object = eviction
        .data
        .pointer("/deleteOptions/dryRun")
        .and_then(|values| values.as_array());
    let name = if request.name.is_empty() {
        eviction.name_any()
    } else {
        request.name.clone()
    };
    if name.is_empty() {
        return Err("metadata.name is missing; it must be the name of a pod".into());
    }
    let preconditions = match eviction.data.pointer("/deleteOptions/preconditions") {
        None => None,
        Some(value) => serde_json::from_value(value.clone())
            .map_err(|error| format!("deleteOptions.preconditions: {error}; uid and resourceVersion are allowed"))?,
    };
    Ok(Eviction {
        preconditions,
        pod: Key::namespaced(request.namespace.as_deref().unwrap_or_default(), &name),
        dry_run: request.dry_run || in_object.is_some_and(|values| values.iter().any(|value| value == "All")),
        descheduler: eviction
            .annotations()
            .get(REQUESTED_BY)
            .is_some_and(|by| by == BY_DESCHEDULER),
    })
}

/// Returns the response to an eviction whose preconditions do not hold, so that the existing pod with that name is left
/// alone.
fn conflicting(response: AdmissionResponse, eviction: &Eviction, text: String) -> AdmissionResponse {
    info!(pod = %eviction.pod, reason = text, "eviction refused: the preconditions do not match the pod of this name");
    denied_with(response, text, CONFLICT)
}

fn refused(
    response: AdmissionResponse,
    refusal: EvictionRefusal,
    verdict: &EvictionVerdict,
    detail: &str,
) -> AdmissionResponse {
    let (namespace, name) = match &verdict.instance {
        Some(instance) => (instance.namespace().unwrap_or_default(), instance.name_any()),
        None => Default::default(),
    };
    denied_with(response, refusal.text(&namespace, &name, detail), TOO_MANY_REQUESTS)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_fault_tests;
