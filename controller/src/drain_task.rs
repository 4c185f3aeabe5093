//! Executes [`drydock_core::drain::plan`]: drains nodes, and reports their progress.
//!
//! ```text
//!  nodes, instances, migrations, pods of draining nodes ─▶ something changed ─▶ one plan for all nodes
//!     ┌──────────────────────────────────────────────────────────────────────────────┘
//!     ├─▶ evacuation requests, migrations
//!     └─▶ Hypervisor.status.drain, conditions of the Node, events
//! ```

mod circumstances;
mod drain_status;
mod evacuations;
mod metrics;
mod node_preview;
mod outlooks;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use drydock_api::{
    Hypervisor,
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPriority, names::EVICTION_SOURCE,
        status,
    },
};
use drydock_core::{
    configuration::Configuration,
    drain::{
        DrainInput, DrainReport, DrainStep, DrainedGuest, DrainingNode, NodeDrainPlan, NodeMarks, chains,
        estimate::DrainRate, is_of_drain, is_same_request, node_conditions, plan, preview,
    },
    eviction::evacuation_request,
    migration::{deadlines::Attempts, sides::target},
};
use drydock_runtime::{
    Backoff, EventRecorder, Key, Severity, Trigger, chain,
    clock::{self, Instant},
    is_refusal,
    lease::LeaderTerm,
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tracing::{info, warn};

use crate::{
    evacuation_requests::{self, EvacuationRequest},
    guest_context::GuestContext,
    node_pods::{NodePods, PodsGuard},
    reconciler::{CONFLICT_DELAY, triggered::Triggered},
    refusals::RefusedStep,
    requests::deleting,
};
use circumstances::CircumstanceDigests;
use drain_status::Reports;
use evacuations::{CreationOutcome, EvacuationMigration};
pub(crate) use metrics::DrainMetrics;
use node_preview::guest;
pub(crate) use node_preview::preview_lines;
use outlooks::{EvaluatedOutlooks, Outlooks};

/// Minimum interval between plans. Changes within it are handled by one plan.
const PAUSE: Duration = Duration::from_millis(20);
/// Minimum interval between plans as a multiple of the duration of the last plan, because planning a large cluster
/// takes longer.
const BATCH_FACTOR: u32 = 4;
/// Maximum number of concurrent actions. A plan for many nodes has hundreds of actions, and migration slots wait for
/// them.
const MAX_CONCURRENT_ACTIONS: usize = 16;
/// Delay of status-only changes, so that they are written together with later ones. The status is still less than one
/// second old.
const STATUS_DEBOUNCE: Duration = Duration::from_millis(700);

/// Drains nodes.
pub(crate) struct DrainTask {
    context: GuestContext,
    pods: NodePods,
    events: EventRecorder,
    changed: Trigger,
    attempts: Attempts,
    reports: Reports,
    outlooks: Outlooks,
    circumstances: CircumstanceDigests,
}

/// The objects of one node.
struct NodeObjects {
    name: String,
    marks: NodeMarks,
    instances: Vec<(VirtualMachineInstance, Vec<Arc<VirtualMachineInstanceMigration>>)>,
    arriving: usize,
    evictable: Option<usize>,
    hypervisor: Option<Hypervisor>,
}

/// The observed state on which one plan for all nodes depends.
struct DrainObservation<'a> {
    now: Timestamp,
    nodes: Vec<DrainingNode<'a>>,
    configuration: Arc<Configuration>,
    rate: Option<DrainRate>,
    outlooks: EvaluatedOutlooks,
}

impl DrainObservation<'_> {
    fn input(&self, attempts: Attempts) -> DrainInput<'_> {
        DrainInput {
            now: self.now,
            nodes: &self.nodes,
            limits: &self.configuration.migrations,
            attempts,
            rate: self.rate,
        }
    }

    /// Returns the instances of the plan as they were observed.
    fn guests(&self) -> PlannedGuests<'_> {
        let guests = self.nodes.iter().flat_map(|node| &node.guests);
        guests.map(|guest| (Key::of(guest.instance), guest.instance)).collect()
    }
}

/// Instances of a plan as they were observed.
type PlannedGuests<'a> = HashMap<Key, &'a VirtualMachineInstance>;

/// State that is kept between plans.
pub(crate) struct KeptPlan {
    /// The watched pods of each node that is being drained.
    nodes: BTreeMap<String, PodsGuard>,
    /// Time at which the steps that only report are due, if there may be some.
    report_at: Option<Instant>,
    pause: Duration,
    /// Delays after conflicts. The first delay is short, because not every change of an instance triggers drains.
    conflicts: Backoff,
}

impl Default for KeptPlan {
    fn default() -> Self {
        Self {
            nodes: BTreeMap::new(),
            report_at: None,
            pause: PAUSE,
            conflicts: Backoff::new(PAUSE, CONFLICT_DELAY),
        }
    }
}

impl Triggered for DrainTask {
    type Kept = KeptPlan;
    const NAME: &'static str = "drains";
    const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
    const FAILURE: &'static str = "drain failed, retrying";

    async fn wait_until_synced(&self) {
        self.context.wait_until_synced().await;
    }

    async fn reconcile(&self, kept: &mut KeptPlan, _: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
        let reporting = kept.report_at.is_some_and(|at| at <= Instant::now());
        kept.pause = PAUSE;
        let result = self.plan_and_execute(&mut kept.nodes, reporting, &mut kept.pause).await;
        // Reports are also written after an error, so that a guest whose step fails repeatedly does not delay them.
        kept.report_at = match kept.report_at {
            _ if reporting => None,
            None => Some(Instant::now() + STATUS_DEBOUNCE),
            waiting => waiting,
        };
        match result {
            Ok(wake) => {
                kept.conflicts.reset();
                Ok(wake)
            }
            // Another writer was faster. The watch will show the change of that writer, unless it is interrupted.
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                Ok(clock::now().checked_add(kept.conflicts.delay()).ok())
            }
            Err(error) => Err(error),
        }
    }

    fn due(kept: &KeptPlan) -> Option<Instant> {
        kept.report_at
    }

    fn pause(kept: &KeptPlan) -> Duration {
        kept.pause
    }
}

impl DrainTask {
    /// Creates the task with these caches. `changed` triggers a new plan.
    pub(crate) fn new(context: GuestContext, pods: NodePods, metrics: DrainMetrics, changed: Trigger) -> Self {
        Self {
            reports: Reports::new(&context.client, &context.events, metrics),
            events: context.events.recorder("Evacuate"),
            context,
            pods,
            changed,
            attempts: Attempts::default(),
            outlooks: Outlooks::default(),
            circumstances: CircumstanceDigests::default(),
        }
    }

    /// Makes one plan and executes it. With `reporting`, the steps that only report are executed as well. Returns the
    /// time of the next plan, even if nothing changes. Sets `pause` to the time to wait before a plan that follows a
    /// change.
    async fn plan_and_execute(
        &self,
        kept: &mut BTreeMap<String, PodsGuard>,
        reporting: bool,
        pause: &mut Duration,
    ) -> kube::Result<Option<Timestamp>> {
        let began = Instant::now();
        let objects = self.gather(kept);
        let mut observed = self.observe(&objects);
        let plan = plan(&observed.input(self.attempts));
        *pause = PAUSE.max(began.elapsed() * BATCH_FACTOR);
        self.execute_plan(&mut observed, plan, reporting).await
    }

    /// Reads the objects of all nodes of a plan, and watches the pods of those that are being drained.
    fn gather(&self, kept: &mut BTreeMap<String, PodsGuard>) -> Vec<NodeObjects> {
        let nodes = self.nodes();
        let is_marked = |node: &String| nodes.get(node).is_some_and(|marks| *marks != NodeMarks::default());
        kept.retain(|node, _| is_marked(node));
        for node in nodes.keys().filter(|node| is_marked(node)) {
            kept.entry(node.clone()).or_insert_with(|| self.pods.keep(node));
        }
        let arriving = self.arriving();
        let gathered = nodes.into_iter().map(|(name, marks)| {
            let arriving = arriving.get(&name).copied().unwrap_or_default();
            self.gather_node(name, marks, arriving)
        });
        gathered.collect()
    }

    /// Adds the other inputs of a plan to the objects of all nodes.
    fn observe<'a>(&self, objects: &'a [NodeObjects]) -> DrainObservation<'a> {
        let mut nodes: Vec<DrainingNode<'_>> = objects.iter().map(|node| self.draining(node)).collect();
        let outlooks = self.outlooks.apply(&self.context.launchers, &mut nodes);
        DrainObservation {
            now: clock::now(),
            outlooks,
            nodes,
            configuration: self.context.launchers.configuration.get(),
            rate: self.context.rate.rate(),
        }
    }

    /// Executes a plan. With `reporting`, the steps that only report are executed as well. Returns the time of the next
    /// plan, even if nothing changes.
    ///
    /// # Errors
    /// The first error of a request to the API server, after the other steps were executed.
    async fn execute_plan(
        &self,
        observed: &mut DrainObservation<'_>,
        plan: NodeDrainPlan,
        reporting: bool,
    ) -> kube::Result<Option<Timestamp>> {
        if let Some(planned) = observed.outlooks.planned.take() {
            self.context.launchers.reserved.replace(planned);
        }
        self.context.refusals.keep_drains(&plan.refused);
        let due = plan.steps.iter().filter(|step| reporting || !step.is_report());
        let mut failed = self.execute_all(due, &observed.guests()).await?;
        if reporting {
            let reported = at_once(plan.reports.iter().map(|report| self.report(report)).collect()).await?;
            failed = failed.or(reported);
            self.preview().await?;
        }
        let again = [plan.wake, observed.outlooks.again, plan.reported_at(clock::now())];
        failed.map_or(Ok(again.into_iter().flatten().min()), Err)
    }

    /// Writes the drain preview of each node that requests one, and removes previews that are no longer requested.
    ///
    /// # Errors
    /// The first error of a request to the API server, after the other nodes were previewed.
    async fn preview(&self) -> kube::Result<()> {
        let mut result = Ok(());
        for (hypervisor, lines) in self.previews() {
            let written = self.reports.preview(&hypervisor, lines, clock::now()).await;
            result = result.and(written.map(|stored| self.remember(stored)));
        }
        result
    }

    /// Returns the nodes that have or request a drain preview, each with the requested lines.
    fn previews(&self) -> Vec<(Hypervisor, Option<Vec<String>>)> {
        let nodes = &self.context.launchers.nodes;
        let mut requested = BTreeSet::new();
        nodes.nodes.shown().for_each(|key, node| {
            if preview::is_requested(node) {
                requested.insert(key.name.to_string());
            }
        });
        let mut concerned = Vec::new();
        nodes.hypervisors.shown().for_each(|key, hypervisor| {
            let status = hypervisor.status.as_ref();
            let is_requested = requested.contains(&*key.name);
            if is_requested || status.is_some_and(|status| status.drain_preview.is_some()) {
                concerned.push((key.clone(), is_requested));
            }
        });
        let previews = concerned.into_iter().filter_map(|(key, is_requested)| {
            let hypervisor = nodes.hypervisors.newest(&key)?;
            let lines = is_requested.then(|| {
                let mut lines = preview_lines(&self.context, &hypervisor.name_any());
                let configuration = self.context.launchers.configuration.get();
                lines.push(preview::taint_note(&configuration.migrations.drain_taint_key));
                lines
            });
            Some((hypervisor, lines))
        });
        previews.collect()
    }

    /// Returns the nodes that are being drained, were being drained, or have marked guests.
    fn nodes(&self) -> BTreeMap<String, NodeMarks> {
        let configuration = self.context.launchers.configuration.get();
        let mut nodes = BTreeMap::new();
        self.context.launchers.nodes.nodes.shown().for_each(|key, node| {
            let marks = NodeMarks::of(node, &configuration.migrations.drain_taint_key);
            if marks != NodeMarks::default() || Reports::is_noteworthy(node) {
                nodes.insert(key.name.to_string(), marks);
            }
        });
        self.context
            .launchers
            .nodes
            .hypervisors
            .shown()
            .for_each(|key, hypervisor| {
                if hypervisor.status.as_ref().is_some_and(|status| status.drain.is_some()) {
                    nodes.entry(key.name.to_string()).or_default();
                }
            });
        for key in self.context.instances.marked() {
            if let Some(node) = self
                .context
                .instances
                .get(&key)
                .as_deref()
                .and_then(VirtualMachineInstance::node_name)
            {
                nodes.entry(node.to_owned()).or_default();
            }
        }
        nodes
    }

    fn gather_node(&self, name: String, marks: NodeMarks, arriving: usize) -> NodeObjects {
        let keys = self.context.instances.on_node(&name);
        let instances = keys.iter().filter_map(|key| {
            let instance = self.context.instances.objects.newest(key)?;
            is_of_drain(&instance, &name).then(|| (instance, self.context.migrations.of_instance(key)))
        });
        let instances = instances.collect();
        let evictable = self.pods.of(&name).filter(|_| self.pods.are_current(&name));
        NodeObjects {
            marks,
            instances,
            arriving,
            evictable: evictable.map(|pods| pods.iter().filter(|pod| node_conditions::counts(pod)).count()),
            hypervisor: self.context.launchers.nodes.hypervisors.newest(&Key::cluster(&name)),
            name,
        }
    }

    /// Returns the number of guests that are about to arrive, by node.
    fn arriving(&self) -> BTreeMap<String, usize> {
        let mut arriving = BTreeMap::new();
        for migration in self.context.migrations.unfinished() {
            if let Some(node) = target(&migration).and_then(|side| side.node.clone()) {
                *arriving.entry(node).or_default() += 1;
            }
        }
        arriving
    }

    fn draining<'a>(&self, observed: &'a NodeObjects) -> DrainingNode<'a> {
        let guests = observed.instances.iter().map(|(instance, migrations)| DrainedGuest {
            refused: self
                .context
                .refusals
                .of(&RefusedStep::Drain(Key::of(instance)), clock::now()),
            circumstances: evacuation_request::evacuation(instance)
                .and_then(|mark| mark.last_failure.as_ref())
                .map(|_| self.circumstances.of(&self.context.launchers, instance)),
            ..guest(&self.context.launchers, instance, migrations.clone())
        });
        let status = observed
            .hypervisor
            .as_ref()
            .and_then(|hypervisor| hypervisor.status.as_ref());
        DrainingNode {
            name: &observed.name,
            marks: observed.marks,
            guests: guests.collect(),
            arriving: observed.arriving,
            evictable: observed.evictable,
            before: status.and_then(|status| status.drain.as_ref()),
        }
    }

    /// Executes steps concurrently, but creates the migrations of one node in their order, because the first ones get
    /// its slots. Returns the first error in a response of the API server.
    ///
    /// # Errors
    /// If the API server does not respond.
    async fn execute_all<'s>(
        &self,
        steps: impl Iterator<Item = &'s DrainStep>,
        planned: &PlannedGuests<'_>,
    ) -> kube::Result<Option<kube::Error>> {
        let in_order = async |chain: Vec<&DrainStep>| {
            let mut failed = None;
            for step in chain {
                match self.execute(step, planned).await {
                    Err(error @ kube::Error::Api(_)) => failed = failed.or(Some(error)),
                    result => result?,
                }
            }
            failed.map_or(Ok(()), Err)
        };
        at_once(chains(steps).into_iter().map(in_order).collect()).await
    }

    async fn execute(&self, step: &DrainStep, planned: &PlannedGuests<'_>) -> kube::Result<()> {
        let done = match step {
            DrainStep::Mark {
                namespace,
                name,
                node,
                evacuation,
            } => {
                let key = Key::namespaced(namespace, name);
                self.mark(&key, planned.get(&key).copied(), node, evacuation).await
            }
            DrainStep::Unmark { namespace, name } => {
                let key = Key::namespaced(namespace, name);
                self.unmark(&key, planned.get(&key).copied()).await
            }
            DrainStep::Migrate {
                namespace,
                name,
                node,
                priority,
                order,
            } => {
                self.migrate(&Key::namespaced(namespace, name), node, *priority, *order)
                    .await
            }
            DrainStep::Cancel {
                namespace, name, uid, ..
            } => self.cancel_migration(namespace, name, uid).await,
        };
        let (namespace, name) = step.instance();
        let drain = RefusedStep::Drain(Key::namespaced(namespace, name));
        match done {
            // A refusal that concerns one guest must not delay the others.
            Err(kube::Error::Api(status)) if is_refusal(&status) => {
                warn!(
                    ?step,
                    refused = status.message,
                    "the API server refused a step of a drain, retrying"
                );
                self.context.refusals.note(drain, &status.message, clock::now());
                self.changed.notify();
                return Ok(());
            }
            // The object was deleted or has changed since the plan was made. The watch will show it.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        self.context.refusals.forget(&drain);
        Ok(())
    }

    /// Returns the newest state of an instance. Returns `None` if its evacuation request has changed since the plan,
    /// because another plan follows then.
    fn unchanged(&self, key: &Key, planned: Option<&VirtualMachineInstance>) -> Option<VirtualMachineInstance> {
        let newest = self.context.instances.objects.newest(key)?;
        if planned.is_some_and(|planned| is_same_request(planned, &newest)) {
            return Some(newest);
        }
        self.changed.notify();
        None
    }

    async fn mark(
        &self,
        key: &Key,
        planned: Option<&VirtualMachineInstance>,
        node: &str,
        evacuation: &status::Evacuation,
    ) -> kube::Result<()> {
        let Some(instance) = self.unchanged(key, planned) else {
            return Ok(());
        };
        let mark = EvacuationRequest { node, evacuation };
        let stored = mark.set(&self.context.api(key), &instance, false).await?;
        self.context.instances.objects.remember(key, stored);
        info!(vmi = %key, node, by = evacuation.requested_by.as_str(), failures = evacuation.failures, "instance marked to leave its node");
        Ok(())
    }

    async fn unmark(&self, key: &Key, planned: Option<&VirtualMachineInstance>) -> kube::Result<()> {
        let Some(instance) = self.unchanged(key, planned) else {
            return Ok(());
        };
        // This annotation is removed first, because it would stay if the evacuation request were removed before it.
        if instance.annotations().contains_key(EVICTION_SOURCE) {
            let patch = json!({"metadata": {"uid": instance.uid(), "annotations": {EVICTION_SOURCE: null}}});
            let parameters = PatchParams::default();
            self.context
                .api::<VirtualMachineInstance>(key)
                .patch(&key.name, &parameters, &Patch::Merge(patch))
                .await?;
        }
        let stored = evacuation_requests::remove_from(&self.context.api(key), &instance).await?;
        self.context.instances.objects.remember(key, stored);
        info!(vmi = %key, "instance no longer marked to leave its node");
        Ok(())
    }

    async fn migrate(&self, key: &Key, node: &str, priority: MigrationPriority, order: usize) -> kube::Result<()> {
        // The request to leave the node may have been withdrawn since the plan was made.
        let is_marked = |instance: &VirtualMachineInstance| evacuation_request::of(instance) == Some(node);
        let Some(instance) = self.context.instances.objects.newest(key).filter(is_marked) else {
            return Ok(());
        };
        let evacuation = EvacuationMigration {
            instance: &instance,
            node,
            priority,
            order,
            circumstances: &self.circumstances.of(&self.context.launchers, &instance),
        };
        match evacuation.create(&self.context.api(key)).await {
            Ok(CreationOutcome::Made(made)) => {
                let name = made.name_any();
                info!(migration = %Key::of(&made), migration_uid = made.metadata.uid, vmi = %key, node, "migration created for the drain of a node");
                self.context.migrations.remember_made(made);
                self.events.record(
                    &instance,
                    Severity::Normal,
                    "SuccessfulCreate",
                    format!("Created Migration {name}"),
                );
                Ok(())
            }
            Ok(CreationOutcome::WasMade(found)) => {
                found
                    .into_iter()
                    .for_each(|found| self.context.migrations.remember_made(found));
                Ok(())
            }
            Err(error) => {
                if let kube::Error::Api(status) = &error
                    && is_refusal(status)
                {
                    let note = format!("Error creating a Migration: {}", chain(&error));
                    self.events.record(&instance, Severity::Warning, "FailedCreate", note);
                }
                Err(error)
            }
        }
    }

    async fn cancel_migration(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<()> {
        let parameters = deleting(Some(uid.into()));
        let key = Key::namespaced(namespace, name);
        let api = self.context.api::<VirtualMachineInstanceMigration>(&key);
        api.delete(name, &parameters).await?;
        info!(
            migration = %key,
            migration_uid = uid,
            "migration canceled: no request to leave the node is left"
        );
        Ok(())
    }

    async fn report(&self, report: &DrainReport) -> kube::Result<()> {
        let nodes = &self.context.launchers.nodes;
        let key = Key::cluster(&report.node);
        if let Some(hypervisor) = nodes.hypervisors.newest(&key) {
            self.remember(self.reports.drain(&hypervisor, report).await?);
        }
        if let Some(node) = nodes.nodes.newest(&key)
            && let Some(stored) = self.reports.conditions(&node, report, clock::now()).await?
        {
            nodes.nodes.remember(&key, stored);
        }
        Ok(())
    }

    /// Records a stored report until the watch shows it.
    fn remember(&self, stored: Option<Hypervisor>) {
        if let Some(stored) = stored {
            self.context
                .launchers
                .nodes
                .hypervisors
                .remember(&Key::of(&stored), stored);
        }
    }
}

/// Runs these futures, up to [`MAX_CONCURRENT_ACTIONS`] at a time. A response with an error does not stop the others:
/// the first such error is returned once all are done.
///
/// # Errors
/// If the API server does not respond.
async fn at_once(things: Vec<impl Future<Output = kube::Result<()>>>) -> kube::Result<Option<kube::Error>> {
    let mut results = stream::iter(things).buffer_unordered(MAX_CONCURRENT_ACTIONS);
    let mut refused = None;
    while let Some(result) = results.next().await {
        match result {
            Ok(()) => {}
            Err(error @ kube::Error::Api(_)) => {
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_fault_tests;
