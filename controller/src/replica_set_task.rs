//! Executes [`drydock_core::replica_set::plan`]: each replica set has as many instances as its spec requests.
//!
//! Instances are created in batches of 1, 2, 4 and so on. A batch is created only if the previous one succeeded, so a
//! set whose instances cannot be created costs one request per attempt.

use std::sync::Arc;

use drydock_api::{
    CONTROLLER_FIELD_MANAGER, controlling_owner,
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceReplicaSet, replica_set::VirtualMachineInstanceReplicaSetStatus,
    },
};
use drydock_core::{
    label_selector::Selector,
    replica_set::{FailedRequest, ObservedReplicaSet, ReplicaName, ReplicaSetPlan, Tried, instance_of, plan},
};
use drydock_runtime::{
    AssumeCache, Cache, EventRecorder, Key, Process, Requeue, Severity, Watch, WatchStarter, WorkQueue, apply_status,
    clock, identity_of, is_refusal, lease::Leadership,
};
use futures::future::join_all;
use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{ListParams, Patch},
};
use serde_json::json;
use tracing::info;

use crate::{
    guest_context::GuestContext,
    pruning::prune_metadata,
    reconciler::{self, Executed, Queued, ReconcileError, Reconciler},
    refusals::{RefusedStep, StepRefusals},
    requests::{deleting, patching, unless_missing, writing},
};

/// Maximum number of replica sets that are reconciled concurrently.
pub(crate) const MAX_CONCURRENT_RECONCILES: usize = 4;
/// Maximum number of instances that are deleted concurrently or created in one batch.
const BATCH: usize = 16;

/// Reconciles all replica sets.
pub(crate) struct ReplicaSetTask {
    context: GuestContext,
    sets: AssumeCache<VirtualMachineInstanceReplicaSet>,
    events: EventRecorder,
}

/// Error: an instance with the name to create exists, but the watch does not show it yet.
const NOT_SEEN_YET: ReconcileError = ReconcileError::Unsettled("an instance exists that the watch has not shown yet");

/// Result of a request.
enum ReplicaOutcome {
    Done,
    /// The API server has refused the request. The status reports the message.
    Refused(String),
    /// The request is retried.
    Again(ReconcileError),
}

impl ReplicaSetTask {
    /// Starts watching. `work` is the queue of sets to reconcile; the caller also has to enqueue the sets that
    /// changes of instances concern.
    pub(crate) fn new(context: GuestContext, watches: &WatchStarter, work: &WorkQueue) -> Self {
        let queue = work.clone();
        let sets = Watch::<VirtualMachineInstanceReplicaSet>::all(context.client.clone(), "replica sets");
        Self {
            sets: AssumeCache::start(watches, sets, prune, &[], move |change| queue.apply(change)),
            events: context.events.recorder("Reconcile"),
            context,
        }
    }

    /// Returns the sets that the watch shows.
    pub(crate) fn shown(&self) -> Cache<VirtualMachineInstanceReplicaSet> {
        self.sets.shown().clone()
    }

    /// Reconciles replica sets while this process leads, until `process` stops.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, work: WorkQueue) {
        reconciler::run(&self, &work, &process.stopping(), leadership).await;
    }
}

/// A replica set, and the inputs of its plan.
pub(crate) struct ReplicaSetObservation {
    now: Timestamp,
    set: VirtualMachineInstanceReplicaSet,
    instances: Vec<Arc<VirtualMachineInstance>>,
    /// Whether the set and its instances were read from the API server.
    confirmed: bool,
    /// Request that the API server has refused.
    failure: Option<FailedRequest>,
}

impl Reconciler for ReplicaSetTask {
    type Observed = ReplicaSetObservation;
    type Plan = ReplicaSetPlan;

    async fn observe(&self, key: &Key) -> Result<Option<ReplicaSetObservation>, ReconcileError> {
        let Some(set) = self.sets.newest(key) else {
            return Ok(None);
        };
        Ok(Some(ReplicaSetObservation {
            now: clock::now(),
            instances: self.context.instances.of_set(&set.uid().unwrap_or_default()),
            set,
            confirmed: false,
            failure: None,
        }))
    }

    fn plan(&self, key: &Key, observed: &ReplicaSetObservation) -> ReplicaSetPlan {
        plan(&ObservedReplicaSet {
            now: observed.now,
            set: &observed.set,
            instances: &observed.instances,
            is_deleted: &|uid| self.context.instances.is_deleted(uid),
            is_taken: &|name| self.context.instances.get(&key.beside(name)).is_some(),
            confirmed: observed.confirmed,
            failure: observed.failure.as_ref(),
        })
    }

    async fn execute(
        &self,
        key: &Key,
        observed: &mut ReplicaSetObservation,
        plan: ReplicaSetPlan,
    ) -> Result<Executed, ReconcileError> {
        if plan.confirm {
            let Some(found) = self.as_they_are(key, &observed.set).await? else {
                // The watch will show the deletion.
                return Ok(Executed::Requeue(Requeue::OnChange));
            };
            (observed.set, observed.instances) = found;
            observed.confirmed = true;
            return Ok(Executed::Replan);
        }
        let result = match &observed.failure {
            Some(failure) => Err(ReplicaOutcome::Refused(failure.message.clone())),
            None => match self.change_instances(key, &observed.set, &plan).await {
                Err((tried, ReplicaOutcome::Refused(message))) => {
                    // The next plan also reports the failure. The numbers in the status are still the observed ones.
                    observed.failure = Some(FailedRequest { tried, message });
                    return Ok(Executed::Replan);
                }
                result => result.map_err(|(_, outcome)| outcome),
            },
        };
        if let Some(status) = &plan.status {
            self.write_status(key, &observed.set, status).await?;
        }
        for event in &plan.events {
            let severity = Severity::of(event.warning);
            self.events
                .record(&observed.set, severity, event.reason, event.message.clone());
        }
        match result {
            Ok(()) | Err(ReplicaOutcome::Done) => Ok(Executed::Requeue(Requeue::OnChange.or_at(plan.wake))),
            Err(ReplicaOutcome::Refused(message)) => {
                let step = "a change of the set's instances";
                Err(ReconcileError::Refused { step, message })
            }
            Err(ReplicaOutcome::Again(error)) => Err(error),
        }
    }
}

impl Queued for ReplicaSetTask {
    async fn all(&self) -> Vec<Key> {
        tokio::join!(
            self.sets.shown().wait_until_synced(),
            self.context.instances.wait_until_synced()
        );
        self.sets.shown().keys()
    }

    fn refusable(&self, key: &Key) -> Option<(&StepRefusals, RefusedStep)> {
        Some((&self.context.refusals, RefusedStep::Replicas(key.clone())))
    }
}

impl ReplicaSetTask {
    /// Reads a set and its instances from the API server. Returns `None` if the set no longer exists.
    async fn as_they_are(
        &self,
        key: &Key,
        set: &VirtualMachineInstanceReplicaSet,
    ) -> kube::Result<Option<(VirtualMachineInstanceReplicaSet, Vec<Arc<VirtualMachineInstance>>)>> {
        let Some(mut found) = self
            .context
            .api::<VirtualMachineInstanceReplicaSet>(key)
            .get_opt(&key.name)
            .await?
        else {
            return Ok(None);
        };
        if found.uid() != set.uid() {
            return Ok(None);
        }
        prune(&mut found);
        // Instances whose labels no longer match are not listed. They are released according to the cache.
        let labels =
            Selector::new(&found.spec.selector).map_or_else(|_| String::new(), |selector| selector.to_string());
        let listed = self
            .context
            .api(key)
            .list(&ListParams::default().labels(&labels))
            .await?;
        let owned = |instance: &VirtualMachineInstance| {
            controlling_owner(&instance.metadata).map(|owner| &owner.uid) == found.metadata.uid.as_ref()
        };
        let instances = listed.items.into_iter().filter(owned).map(Arc::new).collect();
        Ok(Some((found, instances)))
    }

    /// Releases, deletes and creates instances, up to the first request that fails.
    async fn change_instances(
        &self,
        key: &Key,
        set: &VirtualMachineInstanceReplicaSet,
        todo: &ReplicaSetPlan,
    ) -> Result<(), (Tried, ReplicaOutcome)> {
        for target in &todo.release {
            let released = self.release(key, set, target).await;
            released.map_err(|error| (Tried::Delete, ReplicaOutcome::Again(error.into())))?;
        }
        for batch in todo.delete.chunks(BATCH) {
            let outcomes = join_all(batch.iter().map(|target| self.delete(key, set, target))).await;
            first_failure(outcomes).map_or(Ok(()), |failure| Err((Tried::Delete, failure)))?;
        }
        let (mut left, mut size) = (todo.create.as_slice(), 1);
        while !left.is_empty() {
            let (batch, rest) = left.split_at(size.min(left.len()));
            let outcomes = join_all(batch.iter().map(|name| self.create(key, set, name))).await;
            first_failure(outcomes).map_or(Ok(()), |failure| Err((Tried::Create, failure)))?;
            (left, size) = (rest, (size * 2).min(BATCH));
        }
        Ok(())
    }

    /// Removes the set from the owners of an instance.
    async fn release(
        &self,
        key: &Key,
        set: &VirtualMachineInstanceReplicaSet,
        target: &ReplicaName,
    ) -> kube::Result<()> {
        let place = key.beside(&target.name);
        let Some(instance) = self.context.instances.get(&place) else {
            return Ok(());
        };
        let uid = set.uid();
        let owners: Vec<_> = instance
            .owner_references()
            .iter()
            .filter(|owner| Some(&owner.uid) != uid.as_ref())
            .collect();
        let patch = json!({"metadata": {
            "uid": target.uid,
            "resourceVersion": instance.resource_version(),
            "ownerReferences": owners,
        }});
        let api = self.context.api::<VirtualMachineInstance>(key);
        let response = api
            .patch_metadata(&target.name, &patching(), &Patch::Merge(patch))
            .await;
        unless_missing(response).map(drop)
    }

    async fn delete(&self, key: &Key, set: &VirtualMachineInstanceReplicaSet, target: &ReplicaName) -> ReplicaOutcome {
        let parameters = deleting(Some(target.uid.clone()));
        let place = key.beside(&target.name);
        match self
            .context
            .api::<VirtualMachineInstance>(key)
            .delete(&target.name, &parameters)
            .await
        {
            Ok(_) => {
                info!(vmirs = %key, vmi = %place, "instance deleted");
                self.context.instances.deleted(&place, &target.uid);
                let note = format!(
                    "Stopped the virtual machine by deleting the virtual machine instance {}",
                    target.name
                );
                self.events.record(set, Severity::Normal, "SuccessfulDelete", note);
                ReplicaOutcome::Done
            }
            // The instance was deleted or replaced by another one. The watch will show it.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => ReplicaOutcome::Done,
            Err(error) => ReplicaOutcome::of(error),
        }
    }

    async fn create(&self, key: &Key, set: &VirtualMachineInstanceReplicaSet, name: &str) -> ReplicaOutcome {
        match self.context.api(key).create(&writing(), &instance_of(set, name)).await {
            Ok(made) => {
                info!(vmirs = %key, vmi = %Key::of(&made), "instance created");
                self.context.instances.created(made);
                let note = format!("Started the virtual machine by creating the new virtual machine instance {name}");
                self.events.record(set, Severity::Normal, "SuccessfulCreate", note);
                ReplicaOutcome::Done
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => ReplicaOutcome::Again(NOT_SEEN_YET),
            Err(error) => ReplicaOutcome::of(error),
        }
    }

    /// Writes the status. This task is its only writer, so the write needs no version.
    async fn write_status(
        &self,
        key: &Key,
        set: &VirtualMachineInstanceReplicaSet,
        status: &VirtualMachineInstanceReplicaSetStatus,
    ) -> kube::Result<()> {
        let stored = apply_status(
            &self.context.api(key),
            identity_of(set),
            CONTROLLER_FIELD_MANAGER,
            status,
        )
        .await;
        // A set that was deleted in the meantime has no status to write.
        if let Some(stored) = unless_missing(stored)? {
            self.sets.remember(key, stored);
        }
        Ok(())
    }
}

impl ReplicaOutcome {
    fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if is_refusal(&status) => Self::Refused(status.message),
            error => Self::Again(error.into()),
        }
    }
}

/// Returns the first outcome that is not `Done`.
fn first_failure(outcomes: Vec<ReplicaOutcome>) -> Option<ReplicaOutcome> {
    outcomes
        .into_iter()
        .find(|outcome| !matches!(outcome, ReplicaOutcome::Done))
}

fn prune(set: &mut VirtualMachineInstanceReplicaSet) {
    prune_metadata(&mut set.metadata);
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_fault_tests;
