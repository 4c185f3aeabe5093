//! Executes [`drydock_core::instance::plan`]: creates the pod of each instance, and reports the end of instances.
//!
//! ```text
//!  instances, pods ──┐
//!  nodes ────────────┼─▶ which instance ─▶ reconcile ─▶ plan ─▶ pod, finalizer, label, status, event
//!  configuration ────┘
//! ```

use std::{collections::HashMap, sync::Arc, time::Duration};

use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    kubevirt::{
        Phase, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceStatus,
        names::{BY_DRYDOCK, EVICTION_IN_PROGRESS, FINALIZER, NODE_NAME},
        status::VolumeStatus,
    },
};
use drydock_core::{
    instance::{InstancePlan, InstanceStep, Moving, NodeState, ObservedInstance, may_be_obsolete, other_nodes, plan},
    launcher_pod::pending::StartingPod,
    migration::{
        observed::MigrationFacts,
        sides::{source, target},
    },
    placement::{self, Targets},
};
use drydock_runtime::{
    EventRecorder, Key, Process, Requeue, Severity, Trigger, WorkQueue, apply_status, clock, is_refusal,
    lease::Leadership, version_of,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};
use kube::{ResourceExt, api::Patch};
use parking_lot::Mutex;
use serde_json::json;
use tracing::info;

use crate::{
    guest_context::GuestContext,
    launchers::{PodDeletion, PodPurpose},
    nodes::NodePair,
    reconciler::{self, Executed, Queued, ReconcileError, Reconciler},
    refusals::{RefusedStep, StepRefusals},
    requests::{patching, with_finalizer, without_finalizer},
};

/// Maximum number of instances that are reconciled concurrently.
pub(crate) const MAX_CONCURRENT_RECONCILES: usize = 16;
/// Changes of nodes and configuration within this time are handled together.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);
/// Minimum interval between reconciles because of changed resource usage on nodes, which changes with every pod.
const ROOMS_PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of unfinished instances that are reconciled in each such interval, in addition to those that are
/// marked to leave a node.
const INSTANCES_PER_SWEEP: usize = 1000;

/// Reconciles all instances.
pub(crate) struct InstanceTask {
    context: GuestContext,
    events: EventRecorder,
    /// UID of each instance's pod for which the API server has responded to the probe request. Kept until the request is
    /// no longer planned.
    probed_pods: Mutex<HashMap<Key, String>>,
}

impl InstanceTask {
    /// Creates the task with these caches.
    pub(crate) fn new(context: GuestContext) -> Self {
        Self {
            events: context.events.recorder("Reconcile"),
            context,
            probed_pods: Mutex::default(),
        }
    }

    /// Reconciles instances while this process leads, until `process` stops.
    pub(crate) async fn run(
        self,
        process: Process,
        leadership: Leadership,
        work: WorkQueue,
        (cluster_changed, rooms): (Trigger, Trigger),
    ) {
        let stopping = process.stopping();
        let sweeping = async {
            loop {
                cluster_changed.notified().await;
                work.add_pages(|last, count| self.context.instances.unfinished_after(last, count))
                    .await;
                // Nodes change in bursts, such as when agents apply a configuration or a zone comes back.
                clock::sleep_until_instant(Some(clock::Instant::now() + SWEEP_PAUSE)).await;
            }
        };
        let following = async {
            loop {
                rooms.notified().await;
                self.follow_rooms(&work).await;
            }
        };
        tokio::join!(
            reconciler::run(&self, &work, &stopping, leadership),
            stopping.run_until_cancelled(sweeping),
            stopping.run_until_cancelled(following),
        );
    }

    /// Enqueues each instance once after the resource usage on nodes has changed. In a large cluster, a part of the
    /// instances is enqueued at a time.
    async fn follow_rooms(&self, work: &WorkQueue) {
        let mut last = None;
        loop {
            let part = self
                .context
                .instances
                .unfinished_after(last.as_ref(), INSTANCES_PER_SWEEP);
            let Some(end) = part.last() else { return };
            last = Some(end.clone());
            // Instances that are being evicted may have to be shut down.
            for key in self.context.instances.marked().into_iter().chain(part) {
                work.add(key);
            }
            clock::sleep_until_instant(Some(clock::Instant::now() + ROOMS_PAUSE)).await;
        }
    }
}

/// An instance, and the inputs of its plan.
pub(crate) struct InstanceObservation {
    now: Timestamp,
    instance: VirtualMachineInstance,
    pods: Vec<Arc<Pod>>,
    /// Whether the pods were listed from the API server.
    confirmed: bool,
    migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
    node: NodeState,
    other_nodes: Vec<(String, NodeState)>,
    unresponsive: bool,
    claims: Vec<VolumeStatus>,
    unmounted: Vec<(String, String)>,
    pending: StartingPod,
    misfit: Option<String>,
    targets: Option<Targets>,
    requirements_digest: Option<String>,
    /// Reason why the API server refused to create the pod of the instance.
    failed_create: Option<String>,
}

impl InstanceObservation {
    fn view(&self) -> ObservedInstance<'_> {
        let mut view = ObservedInstance {
            now: self.now,
            instance: &self.instance,
            unresponsive: self.unresponsive,
            pods: &self.pods,
            confirmed: self.confirmed,
            node: self.node,
            other_nodes: &self.other_nodes,
            moving: Moving::default(),
            claims: &self.claims,
            misfit: self.misfit.as_deref(),
            targets: self.targets.as_ref(),
            requirements_digest: self.requirements_digest.as_deref(),
            failed_create: self.failed_create.as_deref(),
            unmounted: &self.unmounted,
            warning: self.pending.hindrance.as_ref().filter(|_| self.pending.wants_events),
        };
        view.moving = moving(view, &self.migrations);
        view
    }
}

impl Reconciler for InstanceTask {
    type Observed = InstanceObservation;
    type Plan = InstancePlan;

    async fn observe(&self, key: &Key) -> Result<Option<InstanceObservation>, ReconcileError> {
        let Some(instance) = self.context.instances.objects.newest(key) else {
            self.probed_pods.lock().remove(key);
            return Ok(None);
        };
        let pods = self.context.launchers.of(&instance);
        let status = instance.status.as_ref();
        let here = status.and_then(|status| status.node_name.as_deref());
        let migrations = self.context.migrations.newest_of_instance(key);
        let (node, other_nodes) = self.states(&instance, &pods, &migrations).await?;
        let now = clock::now();
        let mut observed = InstanceObservation {
            now,
            unresponsive: here.is_some_and(|node| self.context.launchers.nodes.unresponsive_agents.contains(node)),
            confirmed: false,
            migrations,
            node,
            other_nodes,
            claims: self.context.launchers.claims.of(&instance),
            unmounted: self.context.launchers.unmounted(&pods),
            pending: self.pending(&instance, &pods, now).await,
            misfit: None,
            targets: None,
            requirements_digest: may_be_obsolete(&pods).then(|| self.context.launchers.requirements_digest(&instance)),
            failed_create: None,
            instance,
            pods,
        };
        let moved_to = observed.view().moving.moved_to;
        (observed.misfit, observed.targets) = self.fit(&observed.instance, &observed.pods, moved_to);
        Ok(Some(observed))
    }

    fn plan(&self, _: &Key, observed: &InstanceObservation) -> InstancePlan {
        plan(&observed.view())
    }

    async fn execute(
        &self,
        key: &Key,
        observed: &mut InstanceObservation,
        plan: InstancePlan,
    ) -> Result<Executed, ReconcileError> {
        if plan.confirm {
            observed.pods = self.context.launchers.list(&observed.instance).await?;
            observed.confirmed = true;
            return Ok(Executed::Replan);
        }
        if observed.failed_create.is_none() {
            if !plan
                .steps
                .iter()
                .any(|step| matches!(step, InstanceStep::ProbeImages { .. }))
            {
                self.probed_pods.lock().remove(key);
            }
            observed.failed_create = self.take_steps(key, &mut observed.instance, &plan.steps).await?;
            if observed.failed_create.is_some() {
                return Ok(Executed::Replan);
            }
        }
        if let Some(wanted) = &plan.status {
            self.write_status(key, &mut observed.instance, wanted).await?;
        }
        if let Some(message) = observed.failed_create.take() {
            // The status already reports the refusal. The queue retries with back-off.
            let step = "the creation of the pod";
            return Err(ReconcileError::Refused { step, message });
        }
        Ok(Executed::Requeue(Requeue::OnChange.or_at(observed.pending.wake)))
    }
}

impl Queued for InstanceTask {
    async fn all(&self) -> Vec<Key> {
        self.context.wait_until_synced().await;
        self.context.instances.keys()
    }

    fn refusable(&self, key: &Key) -> Option<(&StepRefusals, RefusedStep)> {
        Some((&self.context.refusals, RefusedStep::Pod(key.clone())))
    }
}

impl InstanceTask {
    /// Returns the state of the first pod of an instance whose guest does not run yet, with the obstacle to its start.
    async fn pending(&self, instance: &VirtualMachineInstance, pods: &[Arc<Pod>], now: Timestamp) -> StartingPod {
        let phase = instance.phase();
        match pods {
            [pod] if phase.unwrap_or_default() < Phase::Running => self.context.launchers.pending(pod, now).await,
            _ => StartingPod::default(),
        }
    }

    /// Returns the state of the node that an instance is on, and the states of other nodes that its plan depends on.
    async fn states(
        &self,
        instance: &VirtualMachineInstance,
        pods: &[Arc<Pod>],
        migrations: &[Arc<VirtualMachineInstanceMigration>],
    ) -> kube::Result<(NodeState, Vec<(String, NodeState)>)> {
        let nodes = &self.context.launchers.nodes;
        let here = instance.status.as_ref().and_then(|status| status.node_name.as_deref());
        let node = match here {
            Some(name) => nodes.state(name).await?,
            None => NodeState::Unknown,
        };
        let mut states = Vec::new();
        for name in other_nodes(instance, pods, migrations) {
            let state = nodes.state(&name).await?;
            states.push((name, state));
        }
        Ok((node, states))
    }

    /// Returns the reason why no node can run an instance whose pod has no node. For a running instance, also returns
    /// the possible target nodes.
    fn fit(
        &self,
        instance: &VirtualMachineInstance,
        pods: &[Arc<Pod>],
        moved_to: Option<&str>,
    ) -> (Option<String>, Option<Targets>) {
        let status = instance.status.as_ref();
        let running = status.and_then(|status| status.phase) == Some(Phase::Running);
        let unplaced = pods
            .iter()
            .any(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
        if !running && !unplaced {
            return (None, None);
        }
        let (nodes, rooms) = (&self.context.launchers.nodes, &self.context.launchers.rooms);
        let own: Vec<Key> = pods.iter().map(|pod| Key::of(pod.as_ref())).collect();
        let here = moved_to.or_else(|| status.and_then(|status| status.node_name.as_deref()));
        let here = here.filter(|_| running).and_then(|name| nodes.pair(name));
        let source = here.as_ref().map(NodePair::view);
        let mut requirements = self.context.launchers.requirements(&instance.spec, source.as_ref());
        requirements.priority = rooms.priority(&own);
        requirements.volumes = self.context.launchers.claims.bound(instance);
        let pairs = nodes.pairs();
        let views = pairs.iter().map(|pair| rooms.complete(pair.view(), &own));
        let rules = self.context.launchers.rules(instance, pods, &requirements, || {
            pairs.iter().map(NodePair::view).collect()
        });
        if !running {
            let fit = placement::fit(&requirements, &instance.spec, &rules, &views.collect::<Vec<_>>());
            return (fit.fits.is_empty().then(|| fit.sentence()), None);
        }
        let mut instance = instance.clone();
        if let (Some(status), Some(node)) = (&mut instance.status, moved_to) {
            status.node_name = Some(node.to_owned());
        }
        let targets = placement::migration_targets(&instance, &requirements, source.as_ref(), &rules, &views);
        (None, Some(targets))
    }

    /// Executes the steps. Returns the message of the API server if the API server refuses to create the pod.
    async fn take_steps(
        &self,
        key: &Key,
        instance: &mut VirtualMachineInstance,
        steps: &[InstanceStep],
    ) -> Result<Option<String>, ReconcileError> {
        for step in steps {
            match step {
                InstanceStep::AddFinalizer => self.add_finalizer(key, instance).await?,
                InstanceStep::RemoveFinalizer => self.remove_finalizer(key, instance).await?,
                InstanceStep::Label(node) => {
                    let patch = json!({"metadata": {"labels": {NODE_NAME: node}}});
                    self.merge(key, instance, patch).await?;
                }
                InstanceStep::DeletePod { name, uid, grace } => {
                    let deletion = PodDeletion {
                        grace: *grace,
                        ..PodDeletion::of(uid)
                    };
                    self.delete_pod(key, instance, name, deletion, "").await?;
                }
                InstanceStep::ReplacePod {
                    name,
                    uid,
                    resource_version,
                } => {
                    let deletion = PodDeletion {
                        version: resource_version.as_deref(),
                        ..PodDeletion::of(uid)
                    };
                    // Once the watch shows the deletion, another pod is created.
                    let cause = ": the pod had no node, and the configuration has changed";
                    self.delete_pod(key, instance, name, deletion, cause).await?;
                }
                InstanceStep::AnnotateEviction { name, uid, in_progress } => {
                    let value = in_progress.then_some(BY_DRYDOCK);
                    self.context
                        .launchers
                        .annotate(instance, (name, uid), EVICTION_IN_PROGRESS, value)
                        .await?;
                }
                InstanceStep::ProbeImages { name, uid, containers } => {
                    self.probe_images(key, instance, (name, uid), containers).await?;
                }
                InstanceStep::CreatePod => match self.create_pod(instance).await {
                    Ok(()) => {}
                    // The status reports a refusal of the API server. Other errors are retried.
                    Err(kube::Error::Api(status)) if is_refusal(&status) => {
                        self.events
                            .record(instance, Severity::Warning, "FailedCreate", status.message.as_str());
                        return Ok(Some(status.message));
                    }
                    Err(source) => {
                        return Err(ReconcileError::Failed {
                            step: "the creation of the pod",
                            source,
                        });
                    }
                },
            }
        }
        Ok(None)
    }

    /// Patches the instance, if it has not changed since it was observed.
    async fn merge(
        &self,
        key: &Key,
        instance: &mut VirtualMachineInstance,
        mut patch: serde_json::Value,
    ) -> kube::Result<()> {
        // The patch applies to this object only, not to another object with its name.
        patch["metadata"]["uid"] = json!(instance.uid());
        patch["metadata"]["resourceVersion"] = json!(instance.resource_version());
        let stored = self
            .context
            .api(key)
            .patch(&instance.name_any(), &patching(), &Patch::Merge(patch))
            .await?;
        self.written(key, instance, stored);
        Ok(())
    }

    /// Records the response to a write. Only the version of the observed instance is updated, so that later writes of
    /// the same plan are refused if another writer has changed the instance since it was observed.
    fn written(&self, key: &Key, instance: &mut VirtualMachineInstance, stored: VirtualMachineInstance) {
        instance
            .metadata
            .resource_version
            .clone_from(&stored.metadata.resource_version);
        self.context.instances.objects.remember(key, stored);
    }

    async fn add_finalizer(&self, key: &Key, instance: &mut VirtualMachineInstance) -> kube::Result<()> {
        let finalizers = with_finalizer(instance, FINALIZER);
        let mut patch = json!({"metadata": {"finalizers": finalizers}});
        // Defaults for fields that the manifest omits. Admission sets them, unless the webhook could not be reached.
        let whole = self.context.launchers.whole(instance);
        if whole != instance.spec {
            patch["spec"] = json!(whole);
        }
        self.merge(key, instance, patch).await
    }

    async fn remove_finalizer(&self, key: &Key, instance: &mut VirtualMachineInstance) -> kube::Result<()> {
        let finalizers = without_finalizer(instance, FINALIZER);
        let patch = json!({"metadata": {"finalizers": finalizers}});
        match self.merge(key, instance, patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            result => {
                self.context.instances.objects.forget(key);
                result
            }
        }
    }

    /// Deletes a pod. `cause` follows the name of the pod in the event, and may be empty.
    async fn delete_pod(
        &self,
        key: &Key,
        instance: &VirtualMachineInstance,
        name: &str,
        deletion: PodDeletion<'_>,
        cause: &str,
    ) -> kube::Result<()> {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        if self.context.launchers.delete(namespace, name, deletion).await? {
            info!(vmi = %key, pod = name, "pod deleted{cause}");
            let note = format!("Deleted virtual machine pod {name}{cause}");
            self.events.record(instance, Severity::Normal, "SuccessfulDelete", note);
        }
        Ok(())
    }

    async fn create_pod(&self, instance: &VirtualMachineInstance) -> kube::Result<()> {
        let (pod, made) = self.context.launchers.create(instance, PodPurpose::Start).await?;
        if made {
            let name = pod.name_any();
            let note = format!("Created virtual machine pod {name}");
            info!(vmi = %Key::of(instance), pod = name, "pod created");
            self.events.record(instance, Severity::Normal, "SuccessfulCreate", note);
        }
        Ok(())
    }

    /// Starts the image digest probes in a guest's pod. If the API server refuses them, migrations copy the whole
    /// disks.
    async fn probe_images(
        &self,
        key: &Key,
        instance: &VirtualMachineInstance,
        (name, uid): (&str, &str),
        containers: &[EphemeralContainer],
    ) -> Result<(), ReconcileError> {
        if self.probed_pods.lock().get(key).is_some_and(|probed| probed == uid) {
            return Ok(());
        }
        match self.context.launchers.run_beside(instance, name, uid, containers).await {
            Err(kube::Error::Api(status)) if is_refusal(&status) => {
                let why = &status.message;
                info!(
                    vmi = %Key::of(instance),
                    pod = name,
                    why,
                    "the API server refused the image digest probe, migrations will copy whole disks"
                );
            }
            Err(source) => {
                return Err(ReconcileError::Failed {
                    step: "the image digest probe in the pod",
                    source,
                });
            }
            Ok(()) => {}
        }
        // The response is recorded after the request, because the reconcile may be interrupted during the request.
        self.probed_pods.lock().insert(key.clone(), uid.into());
        Ok(())
    }

    /// Writes the controller's part of the status if the instance has not changed since it was observed, except by this
    /// reconcile's own writes.
    async fn write_status(
        &self,
        key: &Key,
        instance: &mut VirtualMachineInstance,
        wanted: &VirtualMachineInstanceStatus,
    ) -> kube::Result<()> {
        let metadata = version_of(instance);
        let stored = apply_status(&self.context.api(key), metadata, CONTROLLER_FIELD_MANAGER, wanted).await?;
        self.written(key, instance, stored);
        Ok(())
    }
}

/// Returns the state that the migrations of an instance record about it.
fn moving<'a>(observed: ObservedInstance<'a>, migrations: &'a [Arc<VirtualMachineInstanceMigration>]) -> Moving<'a> {
    let state_of = |node: Option<&str>| {
        let node = node?;
        let other = observed.other_nodes.iter().find(|(name, _)| name == node);
        let here = observed.instance.node_name();
        other
            .map(|(_, state)| *state)
            .or_else(|| (here == Some(node)).then_some(observed.node))
    };
    drydock_core::migration::observed::moving(migrations, |migration| MigrationFacts {
        migration,
        instance: Some(observed.instance),
        instance_confirmed: false,
        pods: observed.pods,
        pods_confirmed: observed.confirmed,
        source_node: state_of(source(migration).and_then(|side| side.node.as_deref())).unwrap_or(NodeState::Unknown),
        target_node: state_of(target(migration).and_then(|side| side.node.as_deref())).unwrap_or(NodeState::Unknown),
        another: false,
        may_place: false,
        has_slot: false,
        overdue: false,
    })
}

#[cfg(test)]
mod sweep_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unbound_tests;
#[cfg(test)]
mod write_fault_tests;
