//! The guests of this node, with one task for each VMI.
//!
//! ```text
//!  VMIs of this node ──────┐
//!  launcher pods here ─────┼─▶ LocalGuests ─▶ a GuestTask for each VMI ─▶ libvirt in its pod
//!  the host (NodeTask) ────┘                   (a libvirt that hangs or lies affects only its own task)
//! ```
//!
//! The module does nothing before this agent acts for the node. Guests are not affected when the agent ends: the next
//! agent recovers their state from libvirt and from the objects. The agent ends guests only when the Node object is
//! deleted, so that they can start on another node.

mod commands;
mod directory;
mod events;
mod facts;
mod gates;
mod guest_task;
mod launcher_watches;
mod readiness;
mod status_report;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use drydock_api::{
    facts::{NodeFacts, VirtType},
    kubevirt::VirtualMachineInstance,
};
use drydock_core::{
    instance::ending::{EndedGuest, ended},
    mask::{self, MaskHere, MaskedModels},
    processor,
};
use drydock_runtime::{Events, Key, Process, clock::Instant};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use tokio::sync::watch;
use tracing::{Instrument, info_span};

use crate::{
    metrics::AgentMetrics,
    object_tasks::{ObjectTasks, TaskObservation, pod_differs},
};
pub(crate) use directory::GuestDirectory;
pub(crate) use gates::Gates;
use guest_task::GuestTask;
pub(crate) use launcher_watches::{GuestWatches, LauncherPods};

/// Properties of the host that the guests' tasks need.
///
/// The node's task provides them once this agent acts and the host has been inspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Virtualization type of guests on this host.
    pub(crate) virt_type: VirtType,
    /// Architecture of the host, by libvirt's name.
    pub(crate) architecture: String,
    /// Features that guests must not have when they start on this host, and the effect on guests that arrive by
    /// migration.
    pub(crate) mask: MaskHere,
    /// Features that guests can have on this host, including the masked features.
    pub(crate) features: BTreeSet<String>,
    /// Whether libvirt knows a host model on this host.
    pub(crate) host_model_known: bool,
    /// Whether libvirt can exclude features that cannot be migrated from the CPU of the host; `None` if unknown.
    pub(crate) host_passthrough_migratable: Option<bool>,
    /// Number of physical address bits for guests that take the number from the host.
    pub(crate) address_bits: Option<u32>,
    /// Identity of the processor that guests with the host's own CPU see.
    pub(crate) processor: Option<String>,
}

impl Host {
    /// Creates the description from the facts of an inspection; `None` if the facts do not describe virtualization.
    pub(crate) fn of(facts: &NodeFacts, masked: &BTreeSet<String>, models: &MaskedModels) -> Option<Self> {
        let virtualization = facts.virtualization.as_ref()?;
        let offered = mask::apply(facts, masked, models).virtualization.unwrap_or_default();
        Some(Self {
            virt_type: virtualization.virt_type,
            architecture: libvirt_name(&facts.architecture).into(),
            mask: MaskHere::of(&offered, masked),
            features: virtualization.features.iter().chain(masked).cloned().collect(),
            host_model_known: virtualization.host_model.is_some(),
            host_passthrough_migratable: virtualization.host_passthrough_migratable,
            address_bits: facts.guest_address_bits(),
            processor: processor::identity(facts),
        })
    }
}

/// Returns libvirt's name of an architecture, given Kubernetes's name.
fn libvirt_name(architecture: &str) -> &str {
    match architecture {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        other => other,
    }
}

/// The observed state of one VMI.
#[derive(Clone, Debug)]
pub(crate) struct VmiState {
    /// The VMI.
    pub(crate) instance: Arc<VirtualMachineInstance>,
    /// UID of the VMI's pod on this node, if the controller has named a pod on this node.
    pub(crate) pod_uid: Option<String>,
    /// Pod with the UID `pod_uid`; `None` if the pod does not exist or no longer exists.
    pub(crate) pod: Option<Arc<Pod>>,
    /// End of the guest in that pod, if the pod no longer exists and the watch showed its end.
    pub(crate) ending: Option<EndedGuest>,
    /// Host that the agent runs on.
    pub(crate) host: Arc<Host>,
    /// Time when the deletion of the Node object was confirmed; `None` if the Node was not deleted.
    pub(crate) node_deleted: Option<Instant>,
}

/// Resources that the tasks of guests and migrations share.
#[derive(Clone)]
pub(crate) struct TaskContext {
    pub(crate) client: Client,
    pub(crate) gates: Gates,
    pub(crate) events: Events,
    pub(crate) metrics: AgentMetrics,
    pub(crate) kubelet: PathBuf,
    pub(crate) node: String,
}

#[cfg(test)]
impl TaskContext {
    /// Creates the shared resources of node `a`, whose only launcher pod is `pod`. Events are sent with `for_events`.
    pub(crate) fn fake(client: Client, for_events: Client, pod: Pod, kubelet: PathBuf, process: &Process) -> Self {
        let reporter = drydock_runtime::Reporter {
            component: "test",
            instance: "test".into(),
        };
        let metrics = AgentMetrics::default();
        Self {
            gates: Gates::new(client.clone(), LauncherPods::filled([pod]), metrics.clone()),
            client,
            events: Events::start(process, for_events, reporter, &drydock_runtime::EventMetrics::default()),
            metrics,
            kubelet,
            node: "a".into(),
        }
    }
}

/// The guests of this node.
pub(crate) struct LocalGuests {
    shared: TaskContext,
    watches: GuestWatches,
    host: watch::Receiver<Option<Arc<Host>>>,
    node_deleted: watch::Receiver<Option<Instant>>,
    directory: GuestDirectory,
    process: Process,
    tasks: ObjectTasks<String, VmiState>,
}

impl LocalGuests {
    /// Prepares to serve the guests of the node that `shared` names. `directory` receives the guests' entries.
    pub(crate) fn new(
        shared: TaskContext,
        watches: GuestWatches,
        host: watch::Receiver<Option<Arc<Host>>>,
        node_deleted: watch::Receiver<Option<Instant>>,
        directory: GuestDirectory,
        process: Process,
    ) -> Self {
        Self {
            shared,
            watches,
            host,
            node_deleted,
            directory,
            tasks: ObjectTasks::new(process.clone()),
            process,
        }
    }

    /// Keeps a task for each VMI until the process stops.
    pub(crate) async fn run(mut self) {
        let stopping = self.process.stopping();
        if stopping
            .run_until_cancelled(self.watches.wait_until_synced())
            .await
            .is_none()
        {
            return;
        }
        loop {
            let host = self.host.borrow_and_update().clone();
            if let Some(host) = host {
                self.reconcile(&host);
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.watches.changed() => {}
                changed = self.host.changed() => if changed.is_err() { return },
                changed = self.node_deleted.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Starts and stops tasks, and passes changes to tasks that continue.
    fn reconcile(&mut self, host: &Arc<Host>) {
        let mut present = BTreeSet::new();
        for instance in self.watches.instances() {
            let Some(uid) = instance.uid() else { continue };
            present.insert(uid.clone());
            let seen = self.seen(instance, host);
            self.tasks.update(uid.clone(), seen, |receiver| {
                let span =
                    info_span!("reconcile", controller = "guest", key = %Key::of(receiver.borrow().instance.as_ref()));
                let commands = self.directory.add(&uid, receiver.clone());
                let task = GuestTask::new(self.shared.clone(), receiver, commands);
                (format!("guest {uid}"), task.run().instrument(span).boxed())
            });
        }
        for uid in self.tasks.stop_others(&present) {
            self.directory.remove(&uid);
        }
        let names = |instance: &VirtualMachineInstance, pod_uid: &str| {
            let status = instance.status.as_ref();
            status.is_some_and(|status| status.active_pods.contains_key(pod_uid))
        };
        // Endings are rare. Searching the instances for each ending is cheaper than listing all pods at each change.
        self.watches
            .keep_endings(|uid| self.watches.instances().iter().any(|instance| names(instance, uid)));
        let guests = i64::try_from(self.tasks.len()).unwrap_or(i64::MAX);
        self.shared.metrics.guests.set(guests);
    }

    fn seen(&self, instance: Arc<VirtualMachineInstance>, host: &Arc<Host>) -> VmiState {
        let status = instance.status.as_ref();
        let pod_uid = status.and_then(|status| {
            let here = || status.active_pods.iter().filter(|(_, node)| **node == self.shared.node);
            // A pod that the guest left by a migration may still exist when the guest returns to this node.
            let lives = |uid: &String| self.watches.pod(uid).is_some_and(|pod| ended(&pod).is_none());
            let chosen = here().find(|(uid, _)| lives(uid)).or_else(|| here().next());
            chosen.map(|(uid, _)| uid.clone())
        });
        let pod = pod_uid.as_ref().and_then(|uid| self.watches.pod(uid));
        let gone = pod_uid.as_ref().filter(|_| pod.is_none());
        VmiState {
            instance,
            ending: gone.and_then(|uid| self.watches.ending(uid)),
            pod_uid,
            pod,
            host: Arc::clone(host),
            node_deleted: *self.node_deleted.borrow(),
        }
    }
}

impl TaskObservation for VmiState {
    fn differs(&self, other: &Self) -> bool {
        self.instance.resource_version() != other.instance.resource_version()
            || self.pod_uid != other.pod_uid
            || pod_differs(self.pod.as_deref(), other.pod.as_deref())
            || self.ending != other.ending
            || self.host != other.host
            || self.node_deleted != other.node_deleted
    }
}
