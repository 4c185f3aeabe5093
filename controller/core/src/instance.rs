//! Reconciliation of one VirtualMachineInstance: its pod, its node, its end.
//!
//! ```text
//!  Pending ──pod created─▶ Scheduling ──container runs──▶ Scheduled ──(agent)──▶ Running
//!     │                      │                              │                    │
//!     └──────────────────────┴──── the pod's container ended, or its node is gone for good ──▶ Succeeded | Failed
//! ```
//!
//! The agent of `status.nodeName` sets Running; this module decides all other changes of the phase. A guest counts as
//! ended only with proof: the kubelet reports that its container has terminated; or its pod is gone and the node's
//! agent reports the guest's end; or the node is gone for good. A pod that merely vanished proves nothing, since it can
//! be force-deleted. Neither does a deleted Node object while the node's agent is alive: the agent first stops its
//! guests and reports each end.

pub mod ending;
mod hindrances;
pub mod inputs;
mod observed_instance;
mod pod_fates;
mod unbound;
mod wanted_status;

use drydock_api::kubevirt::{
    Phase, VirtualMachineInstance, VirtualMachineInstanceStatus,
    names::{FINALIZER, NODE_NAME},
};
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};

use crate::{
    eviction::descheduler,
    launcher_pod::{LEAST_GRACE_PERIOD, image_identity::wanted_image_probes},
};
use ending::ended;
use pod_fates::{Fate, PodsView};
use unbound::replace_obsolete;
use wanted_status::{differs, wanted_status};

pub use observed_instance::{AgentSign, Moving, NodeState, ObservedInstance, other_nodes};
pub use unbound::may_be_obsolete;

/// The actions for an instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstancePlan {
    /// Whether the pods have to be listed by the API server itself before anything is concluded.
    pub confirm: bool,
    /// The steps, in order.
    pub steps: Vec<InstanceStep>,
    /// The controller's part of the status; `None` if it needs no change.
    pub status: Option<VirtualMachineInstanceStatus>,
}

/// One action.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceStep {
    /// Set the finalizer, without which no pod may be created.
    AddFinalizer,
    /// Create the launcher pod.
    CreatePod,
    /// Delete a pod, with a grace period for its guest to shut down.
    DeletePod {
        /// Name of the pod.
        name: String,
        /// UID of the pod, which is a precondition.
        uid: String,
        /// The grace period in seconds, if it is shorter than the pod's.
        grace: Option<i64>,
    },
    /// Delete a pod that has no node yet, so that it is recreated under the configuration in force.
    ReplacePod {
        /// Name of the pod.
        name: String,
        /// UID of the pod, which is a precondition.
        uid: String,
        /// ResourceVersion of the pod, which is a precondition: the pod may have been bound since.
        resource_version: Option<String>,
    },
    /// Set or remove a pod's annotation that informs the descheduler of an eviction in progress.
    AnnotateEviction {
        /// Name of the pod.
        name: String,
        /// UID of the pod, which is a precondition.
        uid: String,
        /// Whether the annotation is set.
        in_progress: bool,
    },
    /// Set the instance's label with the name of its node.
    Label(String),
    /// Add ephemeral containers to the instance's pod that find out which images the guest's disks are based on. The
    /// guest runs on if the API server refuses them.
    ProbeImages {
        /// Name of the pod.
        name: String,
        /// UID of the pod.
        uid: String,
        /// The containers.
        containers: Vec<EphemeralContainer>,
    },
    /// Remove the finalizer.
    RemoveFinalizer,
}

/// Plans the actions for an instance.
pub fn plan(observed: &ObservedInstance<'_>) -> InstancePlan {
    let PodsView { fates, main } = &PodsView::of(observed);
    let status = observed.instance.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or_default();
    let deleting = observed.instance.metadata.deletion_timestamp.is_some();
    let has_finalizer = {
        let finalizers = observed.instance.metadata.finalizers.as_deref().unwrap_or_default();
        finalizers.iter().any(|name| name == FINALIZER)
    };
    let nothing_known = fates.is_empty();
    let vanished = fates.iter().any(|(_, fate)| *fate == Fate::Vanished);
    if (nothing_known || vanished) && !observed.confirmed {
        // The cache may lag behind the API server.
        return InstancePlan {
            confirm: true,
            ..InstancePlan::default()
        };
    }
    let mut steps = Vec::new();
    if deleting || phase.is_final() {
        steps.extend(deletions(observed, fates));
    }
    let over = fates
        .iter()
        .all(|(_, fate)| matches!(fate, Fate::Ended(_) | Fate::GoneWithItsNode));
    if deleting && over {
        if has_finalizer {
            steps.push(InstanceStep::RemoveFinalizer);
        }
        return InstancePlan {
            steps,
            ..InstancePlan::default()
        };
    }
    if !deleting && !phase.is_final() {
        if !has_finalizer {
            steps.push(InstanceStep::AddFinalizer);
        }
        if nothing_known {
            steps.push(InstanceStep::CreatePod);
        }
        if phase < Phase::Scheduled {
            steps.extend(replace_obsolete(observed));
        }
    }
    let wanted = wanted_status(observed, &status, fates, main.as_ref());
    if let Some(node) = &wanted.node_name
        && !deleting
        && label(observed.instance) != Some(node)
    {
        steps.push(InstanceStep::Label(node.clone()));
    }
    if phase == Phase::Running
        && !deleting
        && let Some((Some(pod), Fate::Alive)) = main
    {
        steps.extend(running_pod_steps(observed, pod));
    }
    InstancePlan {
        confirm: false,
        steps,
        status: differs(&status, &wanted).then_some(wanted),
    }
}

/// Returns the deletions of the pods whose containers may be running, once the guest is to end or has ended: the guest
/// may have ended while its launcher has not.
fn deletions(observed: &ObservedInstance<'_>, fates: &[(String, Fate)]) -> Vec<InstanceStep> {
    let living = observed.pods.iter().filter(|pod| {
        let gone = || {
            let fate = fates.iter().find(|(uid, _)| pod.metadata.uid.as_deref() == Some(uid));
            fate.is_some_and(|(_, fate)| *fate == Fate::GoneWithItsNode)
        };
        ended(pod).is_none() && !gone()
    });
    let steps = living.filter_map(|pod| {
        let grace = shorter_grace(observed.instance, pod);
        // A terminating pod is only deleted again with a shorter grace period.
        (pod.metadata.deletion_timestamp.is_none() || grace.is_some()).then(|| InstanceStep::DeletePod {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid(pod),
            grace,
        })
    });
    steps.collect()
}

/// Returns the changes of a pod in which the guest runs: its annotation for the descheduler, and the ephemeral
/// containers that identify images.
fn running_pod_steps(observed: &ObservedInstance<'_>, pod: &Pod) -> Vec<InstanceStep> {
    let mut steps = Vec::new();
    let migrating = observed.moving.under_way;
    if let Some(in_progress) = descheduler::change(observed.instance, pod, migrating) {
        steps.push(InstanceStep::AnnotateEviction {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid(pod),
            in_progress,
        });
    }
    let containers = wanted_image_probes(observed.instance, pod);
    if !containers.is_empty() {
        steps.push(InstanceStep::ProbeImages {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid(pod),
            containers,
        });
    }
    steps
}

/// Returns the guest's grace period in seconds, if the instance's is by now shorter than its pod's: for guests that
/// ignore their power button.
fn shorter_grace(instance: &VirtualMachineInstance, pod: &Pod) -> Option<i64> {
    let wanted = instance.spec.termination_grace_period_seconds?.max(LEAST_GRACE_PERIOD);
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let has = pod.metadata.deletion_grace_period_seconds.or(of_pod)?;
    (wanted < has).then_some(wanted)
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

fn label(instance: &VirtualMachineInstance) -> Option<&String> {
    instance.metadata.labels.as_ref()?.get(NODE_NAME)
}

#[cfg(test)]
mod tests;
