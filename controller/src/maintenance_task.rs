//! Executes [`drydock_core::maintenance::next`]: drains the nodes that a NodeMaintenance names, and keeps them empty.
//!
//! ```text
//!  maintenances of both groups ─┐
//!  nodes, their Leases ─────────┼─▶ key: the node ─▶ reconcile: one action after the other, until none is due
//!  pods of these nodes ─────────┤                      └─▶ evictions: requested, not awaited
//!  PDBs that allow evictions ───┘                             └─▶ response: node enqueued again
//! ```
//!
//! A reconcile never waits for a pod, so that a stuck node does not delay others. Nodes without a maintenance cost
//! nothing: pods, PDBs and DaemonSets are watched only while a node is in maintenance.

mod evictions;
mod leases;
mod maintenance_status;
mod node_context;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_fault_tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use drydock_api::{
    maintenance::{FINALIZER, Group, NodeMaintenance},
    node_reference,
};
use drydock_core::maintenance::{
    self, MaintenanceEvent, MaintenanceStep, ObservedMaintenance, Turn, conflicts, is_touched,
    maintenance_lease::{LeaseFailure, LeaseRelease, LeaseWrite},
    next,
    pods::{self, EvictionTarget, PodContext},
    report::{self, MaintenanceFailure},
};
use drydock_runtime::{
    Event, Events, Key, Process, Requeue, Severity, WatchStarter, WorkQueue, WorkQueueMetrics, clock, lease::Leadership,
};
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use tracing::info;

use self::{
    evictions::PodEvictions,
    leases::{LeaseWriteResult, Leases},
    node_context::NodeContext,
};
use crate::{
    maintenances::Maintenances,
    node_pods::{NodePods, PodsGuard},
    nodes::Nodes,
    reconciler::{self, Executed, Queued, ReconcileError, Reconciler},
    requests::{with_finalizer, without_finalizer},
};

/// Maximum number of nodes that are reconciled concurrently. A reconcile only waits for the API server.
const MAX_CONCURRENT_RECONCILES: usize = 128;
/// Namespaces of Leases.
#[derive(Clone, Debug)]
pub(crate) struct LeaseNamespaces {
    /// Namespace of the Leases of nodes in maintenances of the newer API group.
    pub(crate) leases: String,
    /// Namespace of the Leases of nodes in maintenances of the older API group.
    pub(crate) kubevirt_leases: String,
    /// Namespace of the reservations of nodes, which is the controller's own.
    pub(crate) own: String,
}

/// Reconciles all nodes that are in maintenance.
pub(crate) struct MaintenanceTask {
    client: Client,
    maintenances: Maintenances,
    nodes: Nodes,
    node_api: Api<Node>,
    pods: NodePods,
    leases: Leases,
    node_context: NodeContext,
    evictions: PodEvictions,
    events: Events,
    kept: Mutex<HashMap<String, PodsGuard>>,
    /// Maintenances that have been logged as overdue.
    overdue: Mutex<HashSet<(Group, Key)>>,
}

/// Result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepResult {
    /// The action was executed.
    Yes,
    /// The objects have changed since the action was planned.
    Changed,
    /// The maintenance was deleted. The watch will show it.
    Gone,
}

impl StepResult {
    fn yes_if(done: bool) -> Self {
        if done { Self::Yes } else { Self::Changed }
    }
}

/// A node's Lease during one reconcile, including writes that the watch does not show yet.
#[derive(Default)]
struct LeaseSeen {
    lease: Option<Lease>,
    failure: Option<LeaseFailure>,
}

impl LeaseSeen {
    /// Records the result of a write.
    ///
    /// # Errors
    /// If the write failed.
    fn record(&mut self, result: LeaseWriteResult) -> Result<StepResult, LeaseFailure> {
        match result {
            LeaseWriteResult::Done(written) => {
                self.lease = Some(*written);
                Ok(StepResult::Yes)
            }
            LeaseWriteResult::Changed(now) => {
                self.lease = now.map(|now| *now);
                Ok(StepResult::Changed)
            }
            LeaseWriteResult::Failed(failure) => Err(failure),
        }
    }
}

/// The queues of the task.
#[derive(Clone, Debug)]
pub(crate) struct MaintenanceQueues {
    /// Nodes to reconcile.
    pub(crate) nodes: WorkQueue,
    /// Evictions to request.
    evictions: WorkQueue,
}

impl MaintenanceQueues {
    /// Creates the queues. They report to `metrics`.
    pub(crate) fn new(metrics: &WorkQueueMetrics) -> Self {
        Self {
            nodes: WorkQueue::new("maintenances", MAX_CONCURRENT_RECONCILES, metrics),
            evictions: WorkQueue::new("evictions", evictions::MAX_CONCURRENT_RECONCILES, metrics),
        }
    }
}

impl MaintenanceTask {
    /// Starts the watches that only nodes in maintenance need. The caller also has to enqueue the nodes that changes of
    /// `maintenances`, `nodes` and `pods` concern.
    #[expect(clippy::too_many_arguments, reason = "each argument is a separate dependency")]
    pub(crate) fn new(
        client: Client,
        watches: &WatchStarter,
        maintenances: Maintenances,
        nodes: Nodes,
        pods: NodePods,
        places: &LeaseNamespaces,
        events: Events,
        work: &MaintenanceQueues,
    ) -> Self {
        let evictions = PodEvictions::new(client.clone(), maintenances.clone(), work);
        let (unblocking, queue) = (evictions.clone(), work.nodes.clone());
        let node_context = NodeContext::new(client.clone(), watches, move |namespace| {
            for node in unblocking.unblocked(namespace) {
                queue.add(Key::cluster(&node));
            }
        });
        Self {
            leases: Leases::start(&client, watches, places, &work.nodes),
            node_api: Api::all(client.clone()),
            client,
            maintenances,
            nodes,
            pods,
            node_context,
            evictions,
            events,
            kept: Mutex::default(),
            overdue: Mutex::default(),
        }
    }

    /// Reconciles nodes while this process leads, until `process` stops.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, work: WorkQueue) {
        let stopping = process.stopping();
        let evictions = self.evictions.clone();
        tokio::join!(
            reconciler::run(&self, &work, &stopping, leadership.clone()),
            reconciler::run(&evictions, evictions.work(), &stopping, leadership)
        );
    }
}

/// The maintenances of a node.
pub(crate) struct OfNode {
    shown: Vec<(Group, Arc<NodeMaintenance>)>,
    /// Maintenances including writes that the watches do not show yet.
    newest: Vec<(Group, Key, NodeMaintenance)>,
}

/// The planned actions for a node.
pub(crate) struct NodeActions {
    /// Whether the pods of the node have to be watched.
    needs_pods: bool,
    /// Maintenances of the node, each with whether another maintenance holds the node.
    maintenances: Vec<(Group, Key, bool)>,
}

impl Reconciler for MaintenanceTask {
    type Observed = OfNode;
    type Plan = NodeActions;

    async fn observe(&self, key: &Key) -> Result<Option<OfNode>, ReconcileError> {
        let shown = self.maintenances.of_node(&key.name);
        Ok(Some(OfNode {
            newest: self.maintenances.newest(&shown),
            shown,
        }))
    }

    fn plan(&self, _: &Key, observed: &OfNode) -> NodeActions {
        let objects: Vec<&NodeMaintenance> = observed.newest.iter().map(|(_, _, object)| object).collect();
        let holder = conflicts::holder(&objects);
        let maintenances = observed.newest.iter().enumerate();
        NodeActions {
            needs_pods: objects.iter().any(|object| holds_node(object)),
            maintenances: maintenances
                .map(|(index, (group, key, _))| (*group, key.clone(), holder != Some(index)))
                .collect(),
        }
    }

    async fn execute(&self, key: &Key, observed: &mut OfNode, plan: NodeActions) -> Result<Executed, ReconcileError> {
        let node = &*key.name;
        self.keep(node, plan.needs_pods);
        let reconciled = async {
            let mut wake = Requeue::OnChange;
            let mut failed = None;
            for (group, key, has_rival) in plan.maintenances {
                let maintenance = MaintenanceRun {
                    task: self,
                    node,
                    group,
                    has_conflict: has_rival,
                };
                // A maintenance whose request fails does not delay the others.
                match maintenance.reconcile(&key).await {
                    Ok(Requeue::OnChange) => {}
                    Ok(Requeue::At(at)) => wake = wake.or_at(Some(at)),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            (wake, failed)
        };
        // The maintenances do not wait for the reservation. The reservation does not wait for them: it would hold the
        // node for a while if they ended here and the leadership were lost before it is deleted.
        let settled = self.leases.settle_reservation(node, &observed.shown, clock::now());
        let (settled, (wake, failed)) = tokio::join!(settled, reconciled);
        match failed {
            Some(error) => Err(error),
            None => Ok(Executed::Requeue(wake.or_at(settled?))),
        }
    }
}

impl Queued for MaintenanceTask {
    async fn all(&self) -> Vec<Key> {
        tokio::join!(
            self.maintenances.wait_until_synced(),
            self.nodes.wait_until_synced(),
            self.leases.wait_until_synced()
        );
        self.known_nodes().iter().map(|node| Key::cluster(node)).collect()
    }
}

/// A reconcile of one maintenance, which executes one action after the other until none is due.
struct MaintenanceRun<'a> {
    task: &'a MaintenanceTask,
    node: &'a str,
    group: Group,
    has_conflict: bool,
}

/// A maintenance, and the inputs of its next action.
struct MaintenanceObservation {
    now: Timestamp,
    object: NodeMaintenance,
    node: Option<Node>,
    pods: Option<Vec<Arc<Pod>>>,
    /// Namespace and name of those DaemonSets of the pods that no longer exist.
    gone: HashSet<(String, String)>,
    lease: LeaseSeen,
}

impl MaintenanceRun<'_> {
    /// Observes the maintenance again. `lease` includes writes that the watch does not show yet.
    async fn observe_with(
        &self,
        key: &Key,
        lease: LeaseSeen,
    ) -> Result<Option<MaintenanceObservation>, ReconcileError> {
        let task = self.task;
        let Some(object) = task.maintenances.of_group(self.group).newest(key) else {
            return Ok(None);
        };
        let node = task.node(self.node).await?;
        let pods = task.pods.of(self.node);
        if let Some(pods) = &pods {
            task.evictions.keep_only(self.node, pods);
        }
        let gone = task.gone_daemon_sets(pods.as_deref().unwrap_or_default()).await?;
        Ok(Some(MaintenanceObservation {
            now: clock::now(),
            object,
            node,
            pods,
            gone,
            lease,
        }))
    }
}

impl Reconciler for MaintenanceRun<'_> {
    type Observed = MaintenanceObservation;
    type Plan = Turn;

    async fn observe(&self, key: &Key) -> Result<Option<MaintenanceObservation>, ReconcileError> {
        let lease = LeaseSeen {
            lease: self.task.leases.of_node(self.group, self.node).await?,
            failure: None,
        };
        self.observe_with(key, lease).await
    }

    fn plan(&self, _: &Key, observed: &MaintenanceObservation) -> Turn {
        let task = self.task;
        next(&ObservedMaintenance {
            now: observed.now,
            group: self.group,
            object: &observed.object,
            node: observed.node.as_ref(),
            lease: observed.lease.lease.as_ref(),
            lease_failure: observed.lease.failure.as_ref(),
            has_conflict: self.has_conflict,
            pods: observed.pods.as_deref(),
            pods_are_current: task.pods.are_current(self.node),
            known: PodContext {
                daemon_set_is_gone: &|namespace, name| observed.gone.contains(&(namespace.to_owned(), name.to_owned())),
                pdbs: &task.node_context.pdbs(),
            },
            attempts: &|uid| task.evictions.attempt(uid),
        })
    }

    async fn execute(
        &self,
        key: &Key,
        observed: &mut MaintenanceObservation,
        turn: Turn,
    ) -> Result<Executed, ReconcileError> {
        let (task, group) = (self.task, self.group);
        let Turn { next, events, wake } = turn;
        let rests = matches!(next, MaintenanceStep::Wait | MaintenanceStep::Evict(..));
        let is_last = next == MaintenanceStep::RemoveFinalizer;
        let done = task.act(group, key, observed, next).await?;
        let requeue = match done {
            // If an action failed because objects have changed, the next action is planned without waiting for an
            // event.
            StepResult::Changed => None,
            StepResult::Gone => Some(Requeue::OnChange),
            StepResult::Yes => {
                task.record_events(group, &observed.object, observed.node.as_ref(), &events);
                if is_last {
                    task.forget(group, key);
                    Some(Requeue::OnChange)
                } else {
                    rests.then(|| {
                        task.log_overdue(group, key);
                        Requeue::OnChange.or_at(wake)
                    })
                }
            }
        };
        if let Some(requeue) = requeue {
            return Ok(Executed::Requeue(requeue));
        }
        match self.observe_with(key, std::mem::take(&mut observed.lease)).await? {
            Some(again) => {
                *observed = again;
                Ok(Executed::Replan)
            }
            None => Ok(Executed::Requeue(Requeue::OnChange)),
        }
    }
}

impl MaintenanceTask {
    /// Watches the pods of a node while a maintenance holds it. PDBs and DaemonSets are watched while any node is held.
    fn keep(&self, node: &str, holds: bool) {
        let mut kept = self.kept.lock();
        if holds {
            kept.entry(node.to_owned()).or_insert_with(|| self.pods.keep(node));
        } else if kept.remove(node).is_some() {
            self.evictions.forget(node);
        }
        self.node_context.want(!kept.is_empty());
    }

    /// Returns the nodes that maintenances name, the nodes that are reserved, and the nodes whose pods are watched. The
    /// maintenances of the latter two may have ended while another process was the leader.
    fn known_nodes(&self) -> HashSet<String> {
        let mut nodes: HashSet<String> = self.maintenances.nodes().into_iter().collect();
        nodes.extend(self.leases.reserved_nodes());
        nodes.extend(self.kept.lock().keys().cloned());
        nodes
    }

    /// Drops the state of a maintenance that has ended.
    fn forget(&self, group: Group, key: &Key) {
        let mut overdue = self.overdue.lock();
        overdue.remove(&(group, key.clone()));
        self.maintenances.of_group(group).forget(key);
    }

    /// Logs once that a node is not empty although its evictions began a while ago. The message is the one of the
    /// operators, because users and tests search the log for it.
    fn log_overdue(&self, group: Group, key: &Key) {
        let Some(object) = self.maintenances.of_group(group).newest(key) else {
            return;
        };
        let status = object.status.unwrap_or_default();
        let mut logged = self.overdue.lock();
        let entry = (group, key.clone());
        match report::overdue_at(&status) {
            None => {
                logged.remove(&entry);
            }
            Some(overdue) if overdue <= clock::now() && logged.insert(entry) => {
                let (group, node) = (group.as_str(), &object.spec.node_name);
                info!(maintenance = %key, group, node, pending = status.pending, error = status.last_error, "Reconciling with fixed duration");
            }
            Some(_) => {}
        }
    }

    /// Returns the node. Returns `None` if the API server confirms that the node does not exist.
    async fn node(&self, name: &str) -> kube::Result<Option<Node>> {
        match self.nodes.nodes.newest(&Key::cluster(name)) {
            Some(node) => Ok(Some(node)),
            None => self.node_api.get_opt(name).await,
        }
    }

    /// Returns those DaemonSets of these pods that no longer exist.
    async fn gone_daemon_sets(&self, pods: &[Arc<Pod>]) -> kube::Result<HashSet<(String, String)>> {
        let named: HashSet<(&str, &str)> = pods.iter().filter_map(|pod| pods::daemon_set(pod)).collect();
        let mut gone = HashSet::new();
        for (namespace, name) in named {
            if self.node_context.daemon_set_is_gone(namespace, name).await? {
                gone.insert((namespace.to_owned(), name.to_owned()));
            }
        }
        Ok(gone)
    }

    fn evict(&self, node: &str, targets: Vec<EvictionTarget>) {
        for target in targets {
            self.evictions.request(node, target);
        }
    }

    /// Executes one action.
    async fn act(
        &self,
        group: Group,
        key: &Key,
        observed: &mut MaintenanceObservation,
        next: MaintenanceStep,
    ) -> Result<StepResult, ReconcileError> {
        let MaintenanceObservation {
            object, node, lease, ..
        } = observed;
        match next {
            MaintenanceStep::Wait => Ok(StepResult::Yes),
            MaintenanceStep::Evict(targets, status) => {
                self.evict(&object.spec.node_name, targets);
                match status {
                    Some(status) => self.report(group, key, object, &status).await,
                    None => Ok(StepResult::Yes),
                }
            }
            MaintenanceStep::AddFinalizer => {
                let finalizers = with_finalizer(object, FINALIZER);
                self.write_finalizers(group, key, object, &finalizers).await
            }
            MaintenanceStep::RemoveFinalizer => {
                let finalizers = without_finalizer(object, FINALIZER);
                let done = self.write_finalizers(group, key, object, &finalizers).await?;
                if done == StepResult::Yes {
                    info!(
                        maintenance = %key,
                        group = group.as_str(),
                        node = object.spec.node_name,
                        "the maintenance has ended"
                    );
                }
                Ok(done)
            }
            MaintenanceStep::Report(status) => self.report(group, key, object, &status).await,
            MaintenanceStep::WriteLease(write) => self.write_lease(group, lease, &write).await,
            MaintenanceStep::ReleaseLease(release) => self.release_lease(group, lease, release).await,
            MaintenanceStep::WriteNode(patch) => match node {
                Some(node) => self.patch_node(node, patch).await,
                None => Ok(StepResult::Changed),
            },
            MaintenanceStep::WriteCondition(stage) => {
                self.write_condition(&object.spec.node_name, &key.name, stage).await?;
                Ok(StepResult::Yes)
            }
        }
    }

    async fn release_lease(
        &self,
        group: Group,
        seen: &mut LeaseSeen,
        release: LeaseRelease,
    ) -> Result<StepResult, ReconcileError> {
        let lease = match release {
            LeaseRelease::Delete => {
                if let Some(held) = seen.lease.take() {
                    seen.lease = self.leases.delete(group, &held).await?;
                }
                return Ok(StepResult::yes_if(seen.lease.is_none()));
            }
            LeaseRelease::Empty(lease) => *lease,
        };
        let written = self.leases.write(group, &LeaseWrite { exists: true, lease }).await?;
        seen.record(written).map_err(|failure| ReconcileError::Refused {
            step: "the release of the node's Lease",
            message: failure.why,
        })
    }

    async fn write_lease(
        &self,
        group: Group,
        seen: &mut LeaseSeen,
        write: &LeaseWrite,
    ) -> Result<StepResult, ReconcileError> {
        let written = self.leases.write(group, write).await?;
        Ok(seen.record(written).unwrap_or_else(|failure| {
            seen.failure = Some(failure);
            StepResult::Changed
        }))
    }

    fn api(&self, group: Group) -> Api<NodeMaintenance> {
        Api::all_with(self.client.clone(), &group)
    }

    fn record_events(&self, group: Group, object: &NodeMaintenance, node: Option<&Node>, events: &[MaintenanceEvent]) {
        for event in events {
            let regarding = if event.on_node {
                node_reference(&object.spec.node_name, node.and_then(ResourceExt::uid))
            } else {
                object.object_ref(&group)
            };
            let severity = Severity::of(event.warning);
            self.events.publish(Event::new(
                regarding,
                "Maintain",
                severity,
                event.reason,
                &event.message,
            ));
        }
    }
}

/// Returns whether a maintenance needs the pods of its node.
fn holds_node(object: &NodeMaintenance) -> bool {
    let status = object.status.clone().unwrap_or_default();
    object.metadata.deletion_timestamp.is_none()
        && !MaintenanceFailure::of(&status).is_some_and(MaintenanceFailure::is_final)
        && (is_touched(&status) || maintenance::has_finalizer(object))
}
