//! Executes [`drydock_core::maintenance::next`]: nodes that a NodeMaintenance names are drained and kept empty.
//!
//! ```text
//!  maintenances of both groups ─┐
//!  nodes, their Leases ─────────┼─▶ key: the node ─▶ reconcile: one action after the other, until none is due
//!  pods of these nodes ─────────┤                      └─▶ evictions: requested, not awaited
//!  PDBs that allow evictions ───┘                             └─▶ response: node enqueued again
//! ```
//!
//! A reconcile never waits for a pod, so that one stuck node delays no other. Nodes without a maintenance cost
//! nothing: pods, PDBs and DaemonSets are watched only while a node is in maintenance.

mod evictions;
mod leases;
mod status_writer;
mod surroundings;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use drydock_api::{
    maintenance::{FINALIZER, Group, NodeMaintenance},
    node_reference,
};
use drydock_core::maintenance::{
    self, Event as MaintenanceEvent, Next, Seen, Turn, conflicts, is_touched,
    lease::{LeaseWrite, Release},
    next,
    pods::{self, Known, Target},
    report::{self, Failure},
};
use drydock_runtime::{
    Event, Events, Key, Process, Requeue, Severity, Watches, WorkQueue, WorkQueueMetrics, clock, lease::Leadership,
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
};
use kube::{Api, Client, Resource, ResourceExt};
use tracing::info;

use self::{
    evictions::Evictions,
    leases::{Leases, Written},
    surroundings::NodeContext,
};
use crate::{
    maintenances::Maintenances,
    node_pods::{Kept, NodePods},
    nodes::Nodes,
    reconciler::{self, ReconcileError, Reconciler},
};

/// How many nodes are reconciled concurrently. A reconcile only waits for the API server.
const MAX_CONCURRENT_RECONCILES: usize = 128;
/// Maximum number of actions in one reconcile; there are never more than a dozen to do.
const STEPS: usize = 40;

/// The namespaces of Leases.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Namespace of the Leases of nodes that maintenances of the newer group name.
    pub(crate) leases: String,
    /// Namespace of the Leases of nodes that maintenances of the older group name.
    pub(crate) kubevirt_leases: String,
    /// Namespace of the reservations of nodes: the controller's own.
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
    surroundings: NodeContext,
    evictions: Evictions,
    events: Events,
    kept: Mutex<HashMap<String, Kept>>,
    /// Maintenances that were logged as overdue.
    overdue: Mutex<HashSet<(Group, Key)>>,
}

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// It was executed.
    Yes,
    /// The objects have changed since it was planned.
    Changed,
    /// The maintenance was deleted, which its watch will show.
    Gone,
}

impl Done {
    fn yes_if(done: bool) -> Self {
        if done { Self::Yes } else { Self::Changed }
    }
}

/// A node's Lease during one reconcile, including writes that the watch shows only later.
struct LeaseSeen {
    lease: Option<Lease>,
    failure: Option<String>,
}

/// The queues of the task.
#[derive(Clone, Debug)]
pub(crate) struct MaintenanceQueues {
    /// The nodes to reconcile.
    pub(crate) nodes: WorkQueue,
    /// The evictions to request.
    evictions: WorkQueue,
}

impl MaintenanceQueues {
    /// Creates the queues, which count in `metrics`.
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
    #[expect(clippy::too_many_arguments, reason = "each is a different thing it looks at")]
    pub(crate) fn new(
        client: Client,
        watches: &Watches,
        maintenances: Maintenances,
        nodes: Nodes,
        pods: NodePods,
        places: &Places,
        events: Events,
        work: &MaintenanceQueues,
    ) -> Self {
        let evictions = Evictions::new(client.clone(), work);
        let (unblocking, queue) = (evictions.clone(), work.nodes.clone());
        let surroundings = NodeContext::new(client.clone(), watches, move |namespace| {
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
            surroundings,
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

impl Reconciler for MaintenanceTask {
    async fn all(&self) -> Vec<Key> {
        tokio::join!(
            self.maintenances.wait_until_synced(),
            self.nodes.wait_until_synced(),
            self.leases.wait_until_synced()
        );
        let nodes = self.maintenances.nodes();
        nodes.iter().map(|node| Key::cluster(node)).collect()
    }

    async fn reconcile(&self, key: &Key) -> Result<Requeue, ReconcileError> {
        let node = &*key.name;
        let shown = self.maintenances.of_node(node);
        let mut wake = Requeue::OnChange;
        let all: Vec<(Group, Key, NodeMaintenance)> = shown
            .iter()
            .filter_map(|(group, object)| {
                let key = Key::of(object.as_ref());
                let newest = self.maintenances.of_group(*group).newest(&key)?;
                Some((*group, key, newest))
            })
            .collect();
        self.keep(node, all.iter().any(|(_, _, object)| holds_node(object)));
        let objects: Vec<&NodeMaintenance> = all.iter().map(|(_, _, object)| object).collect();
        let holder = conflicts::holder(&objects);
        let mut failed = None;
        for (index, (group, key, _)) in all.iter().enumerate() {
            // A maintenance whose request fails holds up no other.
            match self.see_to(node, *group, key, holder != Some(index)).await {
                Ok(Requeue::OnChange) => {}
                Ok(Requeue::At(at)) => wake = wake.or_at(Some(at)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // Last, since the maintenances do not wait for it.
        let settled = self.leases.settle_reservation(node, &shown, clock::now()).await;
        match failed {
            Some(error) => Err(error),
            None => Ok(wake.or_at(settled?)),
        }
    }
}

impl MaintenanceTask {
    /// Watches the pods of a node while a maintenance holds it, and PDBs and DaemonSets while there is any such node.
    fn keep(&self, node: &str, holds: bool) {
        let mut kept = self.lock();
        if holds {
            kept.entry(node.to_owned()).or_insert_with(|| self.pods.keep(node));
        } else if kept.remove(node).is_some() {
            self.evictions.forget(node);
        }
        self.surroundings.want(!kept.is_empty());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes one action after the other for one maintenance, until none is due.
    async fn see_to(
        &self,
        node_name: &str,
        group: Group,
        key: &Key,
        has_rival: bool,
    ) -> Result<Requeue, ReconcileError> {
        let mut lease = LeaseSeen {
            lease: self.leases.of_node(group, node_name).await?,
            failure: None,
        };
        for _ in 0..STEPS {
            let Some(object) = self.maintenances.of_group(group).newest(key) else {
                return Ok(Requeue::OnChange);
            };
            let node = self.node(node_name).await?;
            let pods = self.pods.of(node_name);
            let gone = self.gone_daemon_sets(pods.as_deref().unwrap_or_default()).await?;
            let turn = self.plan(group, &object, node.as_ref(), &lease, pods.as_deref(), &gone, has_rival);
            let Turn { next, events, wake } = turn;
            let rests = matches!(next, Next::Wait | Next::Evict(..));
            let is_last = next == Next::RemoveFinalizer;
            let done = self
                .execute(group, key, &object, node.as_ref(), &mut lease, next)
                .await?;
            match done {
                // An action that failed because objects have changed is planned again, without an event.
                Done::Changed => {}
                Done::Gone => return Ok(Requeue::OnChange),
                Done::Yes => {
                    self.record_event(group, &object, node.as_ref(), &events);
                    if is_last {
                        self.overdue
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .remove(&(group, key.clone()));
                        self.maintenances.of_group(group).forget(key);
                        return Ok(Requeue::OnChange);
                    }
                    if rests {
                        self.log_overdue(group, key);
                        return Ok(Requeue::OnChange.or_at(wake));
                    }
                }
            }
        }
        Err(ReconcileError::Unsettled("its maintenance does not come to rest"))
    }

    /// Plans the next action from the current state.
    #[expect(clippy::too_many_arguments, reason = "each is a different thing that is known")]
    fn plan(
        &self,
        group: Group,
        object: &NodeMaintenance,
        node: Option<&Node>,
        lease: &LeaseSeen,
        pods: Option<&[Arc<Pod>]>,
        gone: &HashSet<(String, String)>,
        has_rival: bool,
    ) -> Turn {
        let node_name = &object.spec.node_name;
        if let Some(pods) = pods {
            self.evictions.keep_only(node_name, pods);
        }
        next(&Seen {
            now: clock::now(),
            group,
            object,
            node,
            lease: lease.lease.as_ref(),
            lease_failure: lease.failure.as_deref(),
            has_rival,
            pods,
            pods_are_current: self.pods.is_clear(node_name),
            known: Known {
                daemon_set_is_gone: &|namespace, name| gone.contains(&(namespace.to_owned(), name.to_owned())),
                budgets: &self.surroundings.budgets(),
            },
            attempts: &|uid| self.evictions.attempt(uid),
        })
    }

    /// Logs once that a node is not empty although its evictions began a while ago, with the message of the
    /// operators: people and tests search the log for it.
    fn log_overdue(&self, group: Group, key: &Key) {
        let Some(object) = self.maintenances.of_group(group).newest(key) else {
            return;
        };
        let status = object.status.unwrap_or_default();
        let mut logged = self.overdue.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Returns the node; `None` if the API server confirms that it does not exist.
    async fn node(&self, name: &str) -> kube::Result<Option<Node>> {
        match self.nodes.nodes.newest(&Key::cluster(name)) {
            Some(node) => Ok(Some(node)),
            None => self.node_api.get_opt(name).await,
        }
    }

    /// Returns the DaemonSets of these pods that no longer exist.
    async fn gone_daemon_sets(&self, pods: &[Arc<Pod>]) -> kube::Result<HashSet<(String, String)>> {
        let named: HashSet<(&str, &str)> = pods.iter().filter_map(|pod| pods::daemon_set(pod)).collect();
        let mut gone = HashSet::new();
        for (namespace, name) in named {
            if self.surroundings.daemon_set_is_gone(namespace, name).await? {
                gone.insert((namespace.to_owned(), name.to_owned()));
            }
        }
        Ok(gone)
    }

    fn evict(&self, node: &str, targets: Vec<Target>) {
        for target in targets {
            self.evictions.request(node, target);
        }
    }

    /// Executes one action.
    async fn execute(
        &self,
        group: Group,
        key: &Key,
        object: &NodeMaintenance,
        node: Option<&Node>,
        lease: &mut LeaseSeen,
        next: Next,
    ) -> Result<Done, ReconcileError> {
        match next {
            Next::Wait => Ok(Done::Yes),
            Next::Evict(targets, status) => {
                self.evict(&object.spec.node_name, targets);
                match status {
                    Some(status) => self.report(group, key, object, &status).await,
                    None => Ok(Done::Yes),
                }
            }
            Next::AddFinalizer => {
                let mut finalizers = object.finalizers().to_vec();
                finalizers.push(FINALIZER.into());
                self.write_finalizers(group, key, object, &finalizers).await
            }
            Next::RemoveFinalizer => {
                let mut finalizers = object.finalizers().to_vec();
                finalizers.retain(|name| name != FINALIZER);
                let done = self.write_finalizers(group, key, object, &finalizers).await?;
                if done == Done::Yes {
                    info!(maintenance = %key, group = group.as_str(), node = object.spec.node_name, "a maintenance is over");
                }
                Ok(done)
            }
            Next::Report(status) => self.report(group, key, object, &status).await,
            Next::WriteLease(write) => self.write_lease(group, lease, &write).await,
            Next::ReleaseLease(release) => self.release_lease(group, lease, release).await,
            Next::WriteNode(patch) => match node {
                Some(node) => self.patch_node(node, patch).await,
                None => Ok(Done::Changed),
            },
            Next::WriteCondition(stage) => {
                self.write_condition(&object.spec.node_name, &key.name, stage).await?;
                Ok(Done::Yes)
            }
        }
    }

    async fn release_lease(
        &self,
        group: Group,
        seen: &mut LeaseSeen,
        release: Release,
    ) -> Result<Done, ReconcileError> {
        let lease = match release {
            Release::Delete => {
                if let Some(held) = seen.lease.take() {
                    seen.lease = self.leases.delete(group, &held).await?;
                }
                return Ok(Done::yes_if(seen.lease.is_none()));
            }
            Release::Empty(lease) => *lease,
        };
        match self.leases.write(group, &LeaseWrite { exists: true, lease }).await? {
            Written::Done(written) => {
                seen.lease = Some(*written);
                Ok(Done::Yes)
            }
            Written::Changed(now) => {
                seen.lease = now.map(|now| *now);
                Ok(Done::Changed)
            }
            Written::Refused(message) => Err(ReconcileError::Refused {
                step: "the release of its Lease",
                message,
            }),
        }
    }

    async fn write_lease(
        &self,
        group: Group,
        seen: &mut LeaseSeen,
        write: &LeaseWrite,
    ) -> Result<Done, ReconcileError> {
        Ok(match self.leases.write(group, write).await? {
            Written::Done(written) => {
                seen.lease = Some(*written);
                Done::Yes
            }
            Written::Changed(now) => {
                seen.lease = now.map(|now| *now);
                Done::Changed
            }
            Written::Refused(why) => {
                seen.failure = Some(why);
                Done::Changed
            }
        })
    }

    fn api(&self, group: Group) -> Api<NodeMaintenance> {
        Api::all_with(self.client.clone(), &group)
    }

    fn record_event(&self, group: Group, object: &NodeMaintenance, node: Option<&Node>, events: &[MaintenanceEvent]) {
        for event in events {
            let regarding = if event.on_node {
                node_reference(&object.spec.node_name, node.and_then(ResourceExt::uid))
            } else {
                object.object_ref(&group)
            };
            self.events.publish(Event {
                regarding,
                related: None,
                severity: if event.warning {
                    Severity::Warning
                } else {
                    Severity::Normal
                },
                reason: event.reason.into(),
                action: "Maintain".into(),
                note: event.message.clone(),
            });
        }
    }
}

/// Returns whether a maintenance needs the pods of its node.
fn holds_node(object: &NodeMaintenance) -> bool {
    let status = object.status.clone().unwrap_or_default();
    object.metadata.deletion_timestamp.is_none()
        && !Failure::of(&status).is_some_and(Failure::is_final)
        && (is_touched(&status) || maintenance::has_finalizer(object))
}
