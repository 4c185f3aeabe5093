//! The observations that a plan for an instance depends on.

use std::{collections::BTreeSet, sync::Arc};

use drydock_api::kubevirt::{
    VirtualMachineInstance, VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationState, SourceState, TargetState},
    status::VolumeStatus,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    launcher_pod::pending::Hindrance,
    migration::{
        record::MigrationRecord,
        sides::{source, target},
    },
    placement::Targets,
};

/// The controller's observations of an instance.
#[derive(Clone, Copy, Debug)]
pub struct ObservedInstance<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// The pods that the instance controls.
    pub pods: &'a [Arc<Pod>],
    /// Whether the pods were listed by the API server itself after the instance was read, so that a pod that is not
    /// listed does not exist.
    pub confirmed: bool,
    /// State of the instance's node.
    pub node: NodeState,
    /// States of other nodes that the instance's pods were on, by name.
    pub other_nodes: &'a [(String, NodeState)],
    /// Whether the agent of the instance's node is unresponsive too.
    pub unresponsive: bool,
    /// State of the instance's migrations.
    pub moving: Moving<'a>,
    /// Volumes of the instance that are PersistentVolumeClaims, with their known properties.
    pub claims: &'a [VolumeStatus],
    /// Why no node can run the instance, if its pod is not bound to a node.
    pub misfit: Option<&'a str>,
    /// Whether another node could run the instance.
    pub targets: Option<&'a Targets>,
    /// Digest of the requirements that a new pod of the instance would have on a node; `None` if no pod waits for a
    /// node.
    pub requirements_digest: Option<&'a str>,
    /// Why the creation of the instance's pod failed, if it was attempted.
    pub failed_create: Option<&'a str>,
    /// Volumes that the kubelet could not mount: (UID of the pod, the kubelet's last message).
    pub unmounted: &'a [(String, String)],
    /// The newest warning among the events of the instance's pod, if they were read.
    pub warning: Option<&'a Hindrance>,
}

/// The state of an instance according to its migrations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moving<'a> {
    /// Whether an unfinished migration has named both sides. The guest's end is not reported before that migration is
    /// over.
    pub under_way: bool,
    /// The node on which the guest is by now, regardless of `status.nodeName`.
    pub moved_to: Option<&'a str>,
    /// State of the newest started migration, as KubeVirt reports it.
    pub state: Option<&'a MigrationState>,
    /// Current mode of that migration, as its source has reported it since `state`.
    pub mode: Option<MigrationMode>,
    /// All existing migrations of the instance.
    pub migrations: &'a [Arc<VirtualMachineInstanceMigration>],
}

impl Moving<'_> {
    /// Returns whether the agent of either side has reported that the pod with that UID contains no guest and will
    /// not get one any more.
    pub(super) fn have_emptied(&self, uid: &str) -> bool {
        self.migrations.iter().any(|migration| {
            let record = MigrationRecord::of(migration);
            let is_source = || source(migration).is_some_and(|side| side.pod_uid.as_deref() == Some(uid));
            let is_target = || target(migration).is_some_and(|side| side.pod_uid.as_deref() == Some(uid));
            let left = matches!(record.source, Some(SourceState::Stopped | SourceState::Ended));
            let empty = matches!(
                record.target,
                Some(TargetState::Refused | TargetState::Gone | TargetState::Ended)
            );
            (left && is_source()) || (empty && is_target())
        })
    }
}

/// Returns UID and node of each pod that the guest may arrive in: those of migrations that have named both sides and are
/// not over. Such a pod may have been deleted by force before `activePods` names it.
pub(super) fn arrivals(migrations: &[Arc<VirtualMachineInstanceMigration>]) -> impl Iterator<Item = (String, String)> {
    let moves = migrations.iter().filter(|migration| {
        let record = MigrationRecord::of(migration);
        record.has_sides() && !record.is_over()
    });
    moves.filter_map(|migration| {
        let side = target(migration)?;
        Some((side.pod_uid.clone()?, side.node.clone()?))
    })
}

/// Returns the nodes other than the instance's own whose state its plan depends on: those of its pods, and those on which
/// the guest may be or arrive.
pub fn other_nodes(
    instance: &VirtualMachineInstance,
    pods: &[Arc<Pod>],
    migrations: &[Arc<VirtualMachineInstanceMigration>],
) -> BTreeSet<String> {
    let status = instance.status.as_ref();
    let here = status.and_then(|status| status.node_name.as_ref());
    let of_pods = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
    let recorded = status
        .into_iter()
        .flat_map(|status| status.active_pods.values().cloned());
    let coming = arrivals(migrations).map(|(_, node)| node);
    let all = of_pods.chain(recorded).chain(coming);
    all.filter(|node| Some(node) != here).collect()
}

/// State of a node's agent according to its Lease, by this process's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentSign {
    /// The agent has renewed its Lease in time, or the state is not known (yet).
    MayLive,
    /// The agent has not renewed its Lease in time, or has none although there was time to create one.
    Unresponsive,
}

/// State of a node, as far as it matters for deciding whether a pod's container has ended on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The node exists, and its kubelet is responsive.
    Ready,
    /// The node exists, and its kubelet is unresponsive.
    NotReady {
        /// When Kubernetes noticed that the kubelet is unresponsive, in whole seconds.
        since: Option<Timestamp>,
    },
    /// An administrator confirms that the node is off: the node has the taint `node.kubernetes.io/out-of-service`.
    OutOfService,
    /// The API server confirms that the Node does not exist, and its agent is unresponsive. By deleting the Node, the
    /// administrator has confirmed that the node is off.
    Gone,
    /// The API server confirms that the Node does not exist, but its agent may be alive. The agent ends the guests of
    /// its node and reports each end.
    Deleted,
    /// The state is unknown, or there is no node yet.
    Unknown,
}

impl NodeState {
    /// Returns the state of a node whose Node object does not exist, as confirmed by the API server.
    pub fn of_deleted(agent: AgentSign) -> Self {
        match agent {
            AgentSign::Unresponsive => Self::Gone,
            AgentSign::MayLive => Self::Deleted,
        }
    }

    /// Returns whether the API server confirms that the Node object does not exist.
    pub fn is_without_object(self) -> bool {
        matches!(self, Self::Gone | Self::Deleted)
    }

    /// Returns whether certainly no container runs on the node any more.
    pub fn is_gone_for_good(self) -> bool {
        matches!(self, Self::OutOfService | Self::Gone)
    }
}

impl ObservedInstance<'_> {
    /// Returns the state of a node that a pod of the instance is, or was, on.
    pub(super) fn state_of(&self, node: &str) -> NodeState {
        let status = self.instance.status.as_ref();
        if status.and_then(|status| status.node_name.as_deref()) == Some(node) {
            return self.node;
        }
        let other = self.other_nodes.iter().find(|(name, _)| name == node);
        other.map_or(NodeState::Unknown, |(_, state)| *state)
    }
}
