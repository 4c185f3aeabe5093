//! Executes [`drydock_core::drain::plan`]: drains the nodes that are to be empty, and reports their progress.
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
mod outlooks;
mod previewer;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use drydock_api::{
    Hypervisor,
    kubevirt::{
        Phase, VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPriority,
        names::EVICTION_SOURCE, status,
    },
};
use drydock_core::{
    drain::{
        DrainInput, DrainReport, DrainStep, DrainedGuest, DrainingNode, NodeDrainPlan, NodeMarks, node_conditions,
        plan, preview,
    },
    eviction::evacuation_request,
    migration::{deadlines::Attempts, sides::target},
};
use drydock_runtime::{
    Backoff, Event, Events, Key, Severity, Trigger, chain,
    clock::{self, Instant},
    is_refusal,
    lease::LeaderTerm,
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tracing::{info, warn};

use crate::{
    evacuation_requests::{self, EvacuationRequest},
    instances::Instances,
    launchers::Launchers,
    migrations::Migrations,
    node_pods::{NodePods, PodsGuard},
    reconciler::{CONFLICT_DELAY, triggered::Triggered},
    refusals::{RefusedStep, StepRefusals},
    requests::{api_of, deleting},
};
use circumstances::CircumstanceDigests;
use drain_status::Reports;
use evacuations::{CreationOutcome, EvacuationMigration};
pub(crate) use metrics::DrainMetrics;
use outlooks::Outlooks;
pub(crate) use previewer::Previewer;
use previewer::guest;

/// Minimum interval between plans: changes within it are handled by one plan.
const PAUSE: Duration = Duration::from_millis(20);
/// Minimum interval between plans, as a multiple of the last plan's duration: planning a large cluster takes longer.
const BATCH_FACTOR: u32 = 4;
/// Maximum number of concurrent actions: a plan for many nodes has hundreds, and migration slots wait for them.
const MAX_CONCURRENT_ACTIONS: usize = 16;
/// Debounce for status-only changes: they are written this much later, together with later ones. Keeps the status
/// under one second old.
const STATUS_DEBOUNCE: Duration = Duration::from_millis(700);

/// Drains nodes.
pub(crate) struct DrainTask {
    client: Client,
    instances: Instances,
    migrations: Migrations,
    launchers: Launchers,
    pods: NodePods,
    events: Events,
    changed: Trigger,
    attempts: Attempts,
    reports: Reports,
    previewer: Previewer,
    refusals: StepRefusals,
    outlooks: Outlooks,
    circumstances: CircumstanceDigests,
}

/// The observed state of one node.
struct DrainObservation {
    name: String,
    marks: NodeMarks,
    instances: Vec<(VirtualMachineInstance, Vec<Arc<VirtualMachineInstanceMigration>>)>,
    arriving: usize,
    evictable: Option<usize>,
    hypervisor: Option<Arc<Hypervisor>>,
}

/// The instances that a plan was made for, as they were observed.
type PlannedGuests<'a> = HashMap<Key, &'a VirtualMachineInstance>;

/// What one plan keeps for the next.
pub(crate) struct KeptPlan {
    /// The watched pods of each node that is being drained.
    nodes: BTreeMap<String, PodsGuard>,
    /// When to execute the parts that only report, if there may be some.
    report_at: Option<Instant>,
    pause: Duration,
    /// Delays after conflicts. The first is short, since not every change of an instance notifies drains.
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
        tokio::join!(
            self.instances.wait_until_synced(),
            self.migrations.wait_until_synced(),
            self.launchers.wait_until_synced()
        );
    }

    async fn reconcile(&self, kept: &mut KeptPlan, _: &LeaderTerm) -> kube::Result<Option<Timestamp>> {
        let reporting = kept.report_at.is_some_and(|at| at <= Instant::now());
        kept.pause = PAUSE;
        let result = self.plan_and_execute(&mut kept.nodes, reporting, &mut kept.pause).await;
        // Also after an error: a guest whose step fails each time does not hold up the reports.
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
            // Another writer was faster; the watch is about to show its change, unless it is interrupted.
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
    /// Creates the task over these caches. `changed` is notified when it is to plan again.
    pub(crate) fn new(
        client: Client,
        previewer: Previewer,
        pods: NodePods,
        events: Events,
        metrics: DrainMetrics,
        (refusals, changed): (StepRefusals, Trigger),
    ) -> Self {
        Self {
            reports: Reports::new(&client, events.clone(), metrics),
            instances: previewer.instances.clone(),
            migrations: previewer.migrations.clone(),
            launchers: previewer.launchers.clone(),
            previewer,
            client,
            pods,
            events,
            changed,
            attempts: Attempts::default(),
            refusals,
            outlooks: Outlooks::default(),
            circumstances: CircumstanceDigests::default(),
        }
    }

    /// Makes one plan and executes it; with `reporting`, also the parts that only report. Returns when to make the next
    /// plan even if nothing changes. Sets `pause` to the time to wait before a plan that follows a change.
    async fn plan_and_execute(
        &self,
        kept: &mut BTreeMap<String, PodsGuard>,
        reporting: bool,
        pause: &mut Duration,
    ) -> kube::Result<Option<Timestamp>> {
        let began = Instant::now();
        let configuration = self.launchers.configuration.get();
        let observed = self.gather(&configuration.migrations.drain_taint_key, kept);
        let mut nodes: Vec<DrainingNode<'_>> = observed.iter().map(|node| self.draining(node)).collect();
        let evaluated_again = self.outlooks.apply(&self.launchers, &mut nodes);
        let NodeDrainPlan {
            steps,
            reports,
            refused,
            wake,
        } = plan(&DrainInput {
            now: clock::now(),
            nodes: &nodes,
            limits: &configuration.migrations,
            attempts: self.attempts,
            rate: self.previewer.migration_rate.rate(),
        });
        self.refusals.keep_drains(&refused);
        *pause = PAUSE.max(began.elapsed() * BATCH_FACTOR);
        let due = steps.iter().filter(|step| reporting || !is_report(step));
        let planned = observed.iter().flat_map(|node| &node.instances);
        let planned = planned.map(|(instance, _)| (Key::of(instance), instance)).collect();
        let mut failed = self.execute_all(due, &planned).await?;
        if reporting {
            let reported = at_once(reports.iter().map(|report| self.report(report)).collect()).await?;
            failed = failed.or(reported);
            self.reports.retain(|node| self.launchers.nodes.exists(node));
            self.preview().await?;
        }
        let now = clock::now();
        let reported = reports.iter().filter_map(DrainReport::node_reports_from);
        let reported = reported.filter(|at| *at > now).min();
        failed.map_or(Ok([wake, evaluated_again, reported].into_iter().flatten().min()), Err)
    }

    /// Writes the drain preview of each node that requests one, and removes it where it is no longer requested.
    ///
    /// # Errors
    /// The first error of a request to the API server, after the other nodes were previewed.
    async fn preview(&self) -> kube::Result<()> {
        let nodes = &self.launchers.nodes;
        let mut requested = BTreeSet::new();
        nodes.nodes.shown().for_each(|key, node| {
            if preview::is_requested(node) {
                requested.insert(key.name.to_string());
            }
        });
        let mut concerned = Vec::new();
        nodes.hypervisors.for_each(|key, hypervisor| {
            let shown = hypervisor
                .status
                .as_ref()
                .is_some_and(|status| status.drain_preview.is_some());
            if shown || requested.contains(&*key.name) {
                concerned.push(Arc::clone(hypervisor));
            }
        });
        let mut result = Ok(());
        for hypervisor in concerned {
            let name = hypervisor.name_any();
            let lines = requested.contains(&name).then(|| {
                let note = preview::taint_note(&self.launchers.configuration.get().migrations.drain_taint_key);
                let mut lines = self.previewer.lines(&name);
                lines.push(note);
                lines
            });
            result = result.and(self.reports.preview(&hypervisor, lines, clock::now()).await);
        }
        result
    }

    /// Returns the nodes that are being drained, were being drained, or have marked guests.
    fn gather(&self, taint_key: &str, kept: &mut BTreeMap<String, PodsGuard>) -> Vec<DrainObservation> {
        let mut names = BTreeSet::new();
        let mut marks = BTreeMap::new();
        self.launchers.nodes.nodes.shown().for_each(|key, node| {
            let marks_of = NodeMarks::of(node, taint_key);
            if marks_of != NodeMarks::default() || Reports::is_noteworthy(node) {
                names.insert(key.name.to_string());
            }
            marks.insert(key.name.to_string(), marks_of);
        });
        self.launchers.nodes.hypervisors.for_each(|key, hypervisor| {
            if hypervisor.status.as_ref().is_some_and(|status| status.drain.is_some()) {
                names.insert(key.name.to_string());
            }
        });
        for key in self.instances.marked() {
            let instance = self.instances.get(&key);
            names.extend(instance.and_then(|instance| instance.node_name().map(str::to_owned)));
        }
        kept.retain(|node, _| names.contains(node));
        let arriving = self.arriving();
        names
            .into_iter()
            .map(|name| {
                let marks = marks.get(&name).copied().unwrap_or_default();
                if marks == NodeMarks::default() {
                    kept.remove(&name);
                } else {
                    kept.entry(name.clone()).or_insert_with(|| self.pods.keep(&name));
                }
                let arriving = arriving.get(&name).copied().unwrap_or_default();
                self.gather_node(name, marks, arriving)
            })
            .collect()
    }

    fn gather_node(&self, name: String, marks: NodeMarks, arriving: usize) -> DrainObservation {
        let keys = self.instances.on_node(&name);
        let instances = keys.iter().filter_map(|key| {
            let instance = self.instances.objects.newest(key)?;
            let is_over = instance.phase().is_some_and(Phase::is_final);
            // A guest that has ended is no longer on the node, but its evacuation request has to be removed.
            let counts = instance.node_name() == Some(name.as_str())
                && (!is_over || evacuation_request::of(&instance).is_some());
            counts.then(|| (instance, self.migrations.of_instance(key)))
        });
        let instances = instances.collect();
        let evictable = self.pods.of(&name).filter(|_| self.pods.is_clear(&name));
        DrainObservation {
            marks,
            instances,
            arriving,
            evictable: evictable.map(|pods| pods.iter().filter(|pod| node_conditions::counts(pod)).count()),
            hypervisor: self.launchers.nodes.hypervisors.get(&Key::cluster(&name)),
            name,
        }
    }

    /// Returns the number of guests that are about to arrive, by node.
    fn arriving(&self) -> BTreeMap<String, usize> {
        let mut arriving = BTreeMap::new();
        for migration in self.migrations.unfinished() {
            if let Some(node) = target(&migration).and_then(|side| side.node.clone()) {
                *arriving.entry(node).or_default() += 1;
            }
        }
        arriving
    }

    fn draining<'a>(&self, observed: &'a DrainObservation) -> DrainingNode<'a> {
        let guests = observed.instances.iter().map(|(instance, migrations)| DrainedGuest {
            refused: self.refusals.of(&RefusedStep::Drain(Key::of(instance)), clock::now()),
            circumstances: evacuation_request::evacuation(instance)
                .and_then(|mark| mark.last_failure.as_ref())
                .map(|_| self.circumstances.of(&self.launchers, instance)),
            ..guest(&self.launchers, instance, migrations.clone())
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

    /// Executes steps concurrently, but creates the migrations of one node in their order: the first ones get its slots.
    /// Returns the first error that the API server responded with, if any.
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
            // A refusal that concerns one guest must not hold up all others.
            Err(kube::Error::Api(status)) if is_refusal(&status) => {
                warn!(?step, refused = status.message, "step of a drain refused, retrying");
                self.refusals.note(drain, &status.message, clock::now());
                self.changed.notify();
                return Ok(());
            }
            // The object was deleted or has changed since the plan was made: the watch is about to show it.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error),
            Ok(()) => {}
        }
        self.refusals.forget(&drain);
        Ok(())
    }

    /// Returns the newest state of an instance, unless its evacuation request has changed since the plan: then another
    /// plan follows.
    fn unchanged(&self, key: &Key, planned: Option<&VirtualMachineInstance>) -> Option<VirtualMachineInstance> {
        let newest = self.instances.objects.newest(key)?;
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
        let stored = mark.set(&self.api(key), &instance, false).await?;
        self.instances.objects.remember(key, stored);
        info!(vmi = %key, node, by = evacuation.requested_by.as_str(), failures = evacuation.failures, "instance marked to leave its node");
        Ok(())
    }

    async fn unmark(&self, key: &Key, planned: Option<&VirtualMachineInstance>) -> kube::Result<()> {
        let Some(instance) = self.unchanged(key, planned) else {
            return Ok(());
        };
        let stored = evacuation_requests::remove_from(&self.api(key), &instance).await?;
        self.instances.objects.remember(key, stored);
        if instance.annotations().contains_key(EVICTION_SOURCE) {
            let patch = json!({"metadata": {"uid": instance.uid(), "annotations": {EVICTION_SOURCE: null}}});
            let parameters = PatchParams::default();
            self.api(key)
                .patch(&key.name, &parameters, &Patch::Merge(patch))
                .await?;
        }
        info!(vmi = %key, "instance no longer marked to leave its node");
        Ok(())
    }

    async fn migrate(&self, key: &Key, node: &str, priority: MigrationPriority, order: usize) -> kube::Result<()> {
        // The request to leave the node may have been withdrawn since the plan was made.
        let is_marked = |instance: &VirtualMachineInstance| evacuation_request::of(instance) == Some(node);
        let Some(instance) = self.instances.objects.newest(key).filter(is_marked) else {
            return Ok(());
        };
        let evacuation = EvacuationMigration {
            instance: &instance,
            node,
            priority,
            order,
            circumstances: &self.circumstances.of(&self.launchers, &instance),
        };
        match evacuation.create(&self.migrations_in(key)).await {
            Ok(CreationOutcome::Made(made)) => {
                let name = made.name_any();
                info!(migration = %Key::of(&made), migration_uid = made.metadata.uid, vmi = %key, node, "migration created for the drain of a node");
                self.migrations.remember_made(made);
                self.record_event(
                    &instance,
                    Severity::Normal,
                    "SuccessfulCreate",
                    &format!("Created Migration {name}"),
                );
                Ok(())
            }
            Ok(CreationOutcome::WasMade(found)) => {
                found.into_iter().for_each(|found| self.migrations.remember_made(found));
                Ok(())
            }
            Err(error) => {
                if let kube::Error::Api(status) = &error
                    && is_refusal(status)
                {
                    let note = format!("Error creating a Migration: {}", chain(&error));
                    self.record_event(&instance, Severity::Warning, "FailedCreate", &note);
                }
                Err(error)
            }
        }
    }

    async fn cancel_migration(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<()> {
        let parameters = deleting(Some(uid.into()));
        let api = Api::<VirtualMachineInstanceMigration>::namespaced(self.client.clone(), namespace);
        api.delete(name, &parameters).await?;
        info!(
            migration = format!("{namespace}/{name}"),
            migration_uid = uid,
            "migration canceled: no request for it is left"
        );
        Ok(())
    }

    async fn report(&self, report: &DrainReport) -> kube::Result<()> {
        let nodes = &self.launchers.nodes;
        let key = Key::cluster(&report.node);
        let node: Option<Arc<Node>> = nodes.nodes.shown().get(&key);
        if let Some(hypervisor) = nodes.hypervisors.get(&key) {
            self.reports.drain(&hypervisor, report).await?;
        }
        match node {
            Some(node) => self.reports.conditions(&node, report, clock::now()).await,
            None => Ok(()),
        }
    }

    fn api(&self, key: &Key) -> Api<VirtualMachineInstance> {
        api_of(&self.client, key)
    }

    fn migrations_in(&self, key: &Key) -> Api<VirtualMachineInstanceMigration> {
        api_of(&self.client, key)
    }

    fn record_event(&self, instance: &VirtualMachineInstance, severity: Severity, reason: &'static str, note: &str) {
        self.events
            .publish(Event::new(instance.object_ref(&()), "Evacuate", severity, reason, note));
    }
}

/// Returns whether the newest state of an instance has the node and the evacuation request that were observed.
fn is_same_request(observed: &VirtualMachineInstance, newest: &VirtualMachineInstance) -> bool {
    fn request(instance: &VirtualMachineInstance) -> impl PartialEq + '_ {
        let status = instance.status.as_ref();
        status.map(|status| (&status.node_name, &status.evacuation_node_name, &status.evacuation))
    }
    observed.metadata.uid == newest.metadata.uid && request(observed) == request(newest)
}

/// Returns whether a step only reports a result and does not move a guest.
fn is_report(step: &DrainStep) -> bool {
    matches!(step, DrainStep::Unmark { .. })
}

/// Returns which steps follow each other: the migrations of each node. All others are alone.
fn chains<'s>(steps: impl Iterator<Item = &'s DrainStep>) -> Vec<Vec<&'s DrainStep>> {
    let mut chains: Vec<Vec<&DrainStep>> = Vec::new();
    let mut of_nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for step in steps {
        let chain = match step {
            DrainStep::Migrate { node, .. } => *of_nodes.entry(node).or_insert(chains.len()),
            _ => chains.len(),
        };
        match chains.get_mut(chain) {
            Some(known) => known.push(step),
            None => chains.push(vec![step]),
        }
    }
    chains
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
