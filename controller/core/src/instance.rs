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
pub mod inputs;
mod unbound;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::{
    kubevirt::{
        Condition, Phase, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceStatus,
        migration::{MigrationMode, MigrationState, SourceState, TargetState},
        names::{FINALIZER, NODE_NAME, conditions as types},
        status::{PhaseTransition, VolumeStatus},
    },
    launcher::CONTAINER,
    leases::STALE_AFTER,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EphemeralContainer, Pod};

use crate::{
    conditions::{ConditionStatus, whole_seconds},
    eviction::{descheduler, evacuation_request},
    launcher_pod::{
        LEAST_GRACE_PERIOD,
        image_identity::wanted_image_probes,
        made_for,
        pending::{Hindrance, NOT_SCHEDULED, pending},
    },
    migration::{
        record::MigrationRecord,
        sides::{source, target},
    },
    placement::Targets,
    vm_conditions::{condition, find},
};
use ending::{EndedGuest, ended};
use unbound::replace_obsolete;

pub use unbound::may_be_obsolete;

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
    fn have_emptied(&self, uid: &str) -> bool {
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
fn arrivals(migrations: &[Arc<VirtualMachineInstanceMigration>]) -> impl Iterator<Item = (String, String)> {
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
    fn state_of(&self, node: &str) -> NodeState {
        let status = self.instance.status.as_ref();
        if status.and_then(|status| status.node_name.as_deref()) == Some(node) {
            return self.node;
        }
        let other = self.other_nodes.iter().find(|(name, _)| name == node);
        other.map_or(NodeState::Unknown, |(_, state)| *state)
    }
}

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

/// The fate of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// The container of the pod may be running.
    Alive,
    /// The container of the pod has ended.
    Ended(EndedGuest),
    /// The node of the pod is gone for good.
    GoneWithItsNode,
    /// The pod no longer exists, and no component has reported the end of its container.
    Vanished,
}

/// Conditions that only the controller writes.
const OWN_CONDITIONS: [&str; 4] = [
    types::POD_SCHEDULED,
    types::SYNCHRONIZED,
    types::MIGRATION_TARGET_AVAILABLE,
    types::FENCING_REQUIRED,
];

/// Reason of a final phase: the guest was lost with its node.
pub const NODE_GONE: &str = "NodeGone";
/// Reason of an instance's condition `Ready`: its node does not respond, and the guest may still run on that node.
pub const NODE_NOT_READY: &str = "NodeNotReady";

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

/// Returns whether the guest is or was in this pod: its agent has reported that, or a migration has brought it into the
/// pod and its agent has not reported it yet.
fn is_known(observed: &ObservedInstance<'_>, here: Option<&str>, pod: &Pod) -> bool {
    let drydock = observed
        .instance
        .status
        .as_ref()
        .and_then(|status| status.drydock.as_ref());
    let recorded = drydock.and_then(|drydock| drydock.pod_uid.as_deref());
    let brought = observed.moving.state.filter(|state| {
        let arrived = state.completed || observed.moving.moved_to.is_some();
        arrived && !state.failed && state.target_node.as_deref() == here
    });
    let name = brought.and_then(|state| state.target_pod.as_deref());
    (recorded.is_some() && recorded == pod.metadata.uid.as_deref())
        || (name.is_some() && name == pod.metadata.name.as_deref())
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

/// The pods of an instance and their fates.
struct PodsView<'a> {
    fates: Vec<(String, Fate)>,
    /// The pod that the guest runs, or will run, in.
    main: Option<(Option<&'a Pod>, Fate)>,
}

impl<'a> PodsView<'a> {
    fn of(observed: &ObservedInstance<'a>) -> Self {
        let status = observed.instance.status.as_ref();
        let here = (observed.moving.moved_to).or(status.and_then(|status| status.node_name.as_deref()));
        let recorded_uids: BTreeSet<&str> = status
            .and_then(|status| status.drydock.as_ref())
            .map(|drydock| drydock.ended_pods.iter().map(String::as_str).collect())
            .unwrap_or_default();
        let is_here = |node: Option<&str>| here.is_some() && node == here;
        let gone = |node: Option<&str>| node.is_some_and(|node| observed.state_of(node).is_gone_for_good());
        // Of several pods on its node, the guest is in the live one. The others are leftovers of earlier migrations:
        // pods that it has left, and pods that it never reached.
        let rank = |pod: &Pod, fate: &Fate| {
            let made = pod.metadata.creation_timestamp.clone();
            (*fate == Fate::Alive, is_known(observed, here, pod), made)
        };
        let mut fates = Vec::new();
        let mut main: Option<(Option<&Pod>, Fate)> = None;
        let mut best = None;
        for pod in observed.pods {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let reported = pod
                .metadata
                .uid
                .as_deref()
                .is_some_and(|uid| recorded_uids.contains(uid));
            let fate = match ended(pod) {
                Some(mut ended) => {
                    // The agent has pressed the power button, which the launcher does not know.
                    ended.evicted |= reported || node.is_some_and(|node| observed.state_of(node).is_without_object());
                    // The user deleted the instance, upon which the controller deleted the pod.
                    ended.evicted &= observed.instance.metadata.deletion_timestamp.is_none();
                    Fate::Ended(ended)
                }
                // The agent reports the end before the kubelet writes it, or while the kubelet cannot.
                None if reported => reported_end(observed.instance, &uid(pod)),
                None if gone(node) => Fate::GoneWithItsNode,
                None => Fate::Alive,
            };
            let rank = Some(rank(pod, &fate));
            if (is_here(node) || here.is_none()) && rank >= best {
                best = rank;
                main = Some((Some(pod.as_ref()), fate.clone()));
            }
            fates.push((uid(pod), fate));
        }
        let recorded = status.map(|status| status.active_pods.clone()).unwrap_or_default();
        for (uid, node) in recorded.into_iter().chain(arrivals(observed.moving.migrations)) {
            if fates.iter().any(|(known, _)| *known == uid) {
                continue;
            }
            let fate = if recorded_uids.contains(uid.as_str()) || observed.moving.have_emptied(&uid) {
                reported_end(observed.instance, &uid)
            } else if gone(Some(&node)) {
                Fate::GoneWithItsNode
            } else {
                Fate::Vanished
            };
            if is_here(Some(&node)) && !matches!(main, Some((_, Fate::Alive))) {
                main = Some((None, fate.clone()));
            }
            fates.push((uid, fate));
        }
        Self { fates, main }
    }
}

/// Returns the end of a guest as reported by its node's agent, or by the agent of either side of its migration.
fn reported_end(instance: &VirtualMachineInstance, pod_uid: &str) -> Fate {
    let drydock = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    let ending = drydock.and_then(|drydock| drydock.ending.as_ref());
    Fate::Ended(match ending.filter(|ending| ending.pod_uid == pod_uid) {
        Some(ending) => EndedGuest {
            outcome: Some(ending.outcome),
            message: ending.message.clone(),
            evicted: ending.evicted,
            by_kubelet: ending.by_kubelet,
        },
        None => EndedGuest {
            outcome: None,
            message: "the guest's pod or Node was deleted; the node's agent reported the end of the guest".into(),
            evicted: true,
            by_kubelet: false,
        },
    })
}

/// Returns the controller's desired part of the status.
fn wanted_status(
    observed: &ObservedInstance<'_>,
    before: &VirtualMachineInstanceStatus,
    fates: &[(String, Fate)],
    main: Option<&(Option<&Pod>, Fate)>,
) -> VirtualMachineInstanceStatus {
    let pod = main.and_then(|(pod, _)| *pod);
    let fate = main.map(|(_, fate)| fate);
    let node_name = (observed.moving.moved_to.map(str::to_owned))
        .or_else(|| before.node_name.clone())
        .or_else(|| pod?.spec.as_ref()?.node_name.clone());
    let qos_class = (before.qos_class.clone()).or_else(|| pod?.status.as_ref()?.qos_class.clone());
    let mut draft = Draft::new(observed, before, pod);
    if !draft.old_phase.is_final() {
        draft.apply_fate(fate, node_name.as_deref().unwrap_or_default());
    }
    if draft.old_phase == Phase::Running
        && let Some(Fate::Alive | Fate::Vanished) = fate
        && let Some(message) = unresponsive_message(observed, before)
    {
        draft.set_condition(types::READY, ConditionStatus::False, NODE_NOT_READY, message);
    }
    if let (Some(pod), Some(Fate::Alive)) = (pod, fate) {
        draft.apply_live_pod(pod);
    }
    let evacuation_node_name = draft.apply_eviction_mark();
    if draft.reason.is_none() && draft.phase.is_some_and(|phase| phase < Phase::Running) {
        draft.reason = hindrance(&draft.conditions);
    }
    VirtualMachineInstanceStatus {
        phase: draft.phase,
        reason: draft.reason,
        phase_transition_timestamps: transitions(before, draft.phase, observed.now),
        conditions: draft.conditions,
        node_name,
        evacuation_node_name,
        migration_state: migration_state(observed, before),
        qos_class,
        active_pods: active_pods(observed, before, fates),
        volume_status: observed.claims.to_vec(),
        ..VirtualMachineInstanceStatus::default()
    }
}

/// Phase, reason and conditions of a status, while they are composed.
struct Draft<'a> {
    observed: &'a ObservedInstance<'a>,
    before: &'a VirtualMachineInstanceStatus,
    old_phase: Phase,
    phase: Option<Phase>,
    reason: Option<String>,
    conditions: Vec<Condition>,
}

impl<'a> Draft<'a> {
    /// Starts with the parts of the previous status that remain. From Running on, the agent owns the phase until the
    /// guest ends.
    fn new(observed: &'a ObservedInstance<'a>, before: &'a VirtualMachineInstanceStatus, pod: Option<&Pod>) -> Self {
        let old_phase = before.phase.unwrap_or_default();
        let mut draft = Self {
            observed,
            before,
            old_phase,
            phase: (old_phase < Phase::Running).then(|| early_phase(old_phase, pod)),
            reason: None,
            conditions: Vec::new(),
        };
        if old_phase.is_final() {
            draft.phase = Some(old_phase);
            draft.reason.clone_from(&before.reason);
            draft.conditions.extend(find(&before.conditions, types::READY).cloned());
        }
        draft
    }

    fn set_condition(&mut self, type_: &str, status: ConditionStatus, reason: &str, message: String) {
        let previous = &self.before.conditions;
        let condition = condition(previous, type_, status, reason, message, self.observed.now);
        self.conditions.push(condition);
    }

    /// Applies the fate of the guest's pod on `node`; `None` if the pod does not exist yet.
    fn apply_fate(&mut self, fate: Option<&Fate>, node: &str) {
        match fate {
            // The guest may have continued on another node; the end of the migration decides.
            Some(Fate::Ended(_) | Fate::GoneWithItsNode) if self.observed.moving.under_way => {}
            Some(Fate::Ended(ended)) => {
                if let Some(last) = ended.phase() {
                    self.phase = Some(last);
                    self.reason = Some(ended.reason().into());
                    self.set_condition(
                        types::READY,
                        ConditionStatus::False,
                        "GuestNotRunning",
                        ended.message.clone(),
                    );
                }
            }
            Some(Fate::GoneWithItsNode) => {
                self.phase = Some(Phase::Failed);
                self.reason = Some(NODE_GONE.into());
                let message = format!("node {node} was deleted or is out of service; the guest is lost");
                self.set_condition(types::READY, ConditionStatus::False, "GuestNotRunning", message);
            }
            Some(Fate::Vanished) => {
                if let Some((reason, message)) = fencing(self.observed.state_of(node), node) {
                    self.set_condition(types::FENCING_REQUIRED, ConditionStatus::True, reason, message);
                }
            }
            Some(Fate::Alive) => {}
            None => {
                if let Some(failure) = self.observed.failed_create {
                    self.set_condition(
                        types::SYNCHRONIZED,
                        ConditionStatus::False,
                        "FailedCreate",
                        failure.into(),
                    );
                }
                let message = "the guest's pod does not exist yet".to_owned();
                self.set_condition(types::READY, ConditionStatus::False, "PodNotExists", message);
            }
        }
    }

    /// Applies the state of the guest's live pod: the obstacle that prevents a new pod from running, and whether
    /// another node could take a running guest.
    fn apply_live_pod(&mut self, pod: &Pod) {
        let observed = self.observed;
        if self.old_phase < Phase::Running {
            if let Some(hindrance) = pod_hindrance(observed, pod) {
                self.apply_hindrance(hindrance);
            }
            let message = "the guest is not running yet".to_owned();
            self.set_condition(types::READY, ConditionStatus::False, "GuestNotRunning", message);
        } else if let Some(targets) = observed.targets {
            let status = ConditionStatus::from(targets.available);
            let message = targets.message.clone();
            self.set_condition(types::MIGRATION_TARGET_AVAILABLE, status, &targets.reason, message);
        }
    }

    fn apply_hindrance(&mut self, hindrance: Hindrance) {
        let Hindrance {
            reason,
            message,
            unscheduled,
        } = hindrance;
        if unscheduled {
            let misfit = self.observed.misfit.filter(|_| reason != NOT_SCHEDULED);
            let message = misfit.map_or(message, str::to_owned);
            self.set_condition(types::POD_SCHEDULED, ConditionStatus::False, &reason, message);
        } else {
            self.set_condition(types::SYNCHRONIZED, ConditionStatus::False, &reason, message);
        }
    }

    /// Withdraws the eviction request for a node that the guest has left. Returns the status's `evacuationNodeName` in
    /// that case.
    fn apply_eviction_mark(&mut self) -> Option<String> {
        let arrived = self.observed.moving.moved_to;
        if arrived.is_some_and(|node| evacuation_request::is_orphaned(self.observed.instance, node)) {
            let message = "the guest has moved to another node".to_owned();
            self.set_condition(types::EVICTION_REQUESTED, ConditionStatus::False, "Moved", message);
            return Some(String::new());
        }
        if let Some(kept) = find(&self.before.conditions, types::EVICTION_REQUESTED)
            && kept.status == ConditionStatus::False.as_str()
        {
            // The field manager that requested the eviction still owns part of that condition: without the controller's
            // part, the condition would lose required fields.
            self.conditions.push(kept.clone());
        }
        None
    }
}

/// Returns the reason why a guest does not run yet, if there is an obstacle.
fn hindrance(conditions: &[Condition]) -> Option<String> {
    let kept = |type_: &str, status: ConditionStatus| {
        let condition = find(conditions, type_).filter(|condition| condition.status == status.as_str())?;
        condition.reason.clone()
    };
    kept(types::FENCING_REQUIRED, ConditionStatus::True)
        .or_else(|| kept(types::POD_SCHEDULED, ConditionStatus::False))
        .or_else(|| kept(types::SYNCHRONIZED, ConditionStatus::False))
}

/// Returns why a guest whose pod vanished from a node is not started elsewhere; `None` while the node is ready, since
/// its agent is about to report the guest's end.
fn fencing(state: NodeState, node: &str) -> Option<(&'static str, String)> {
    match state {
        NodeState::Ready => None,
        NodeState::Deleted => Some((
            "NodeDeletedAgentAlive",
            format!(
                "Node {node} was deleted, but the node's agent renews its Lease, so the guest may still run there; the \
                 guest starts elsewhere once the agent has reported the end of the guest, or has not renewed its Lease \
                 for {} s",
                STALE_AFTER.as_secs()
            ),
        )),
        NodeState::NotReady { .. } | NodeState::OutOfService | NodeState::Gone | NodeState::Unknown => Some((
            "PodLostOnUnresponsiveNode",
            format!(
                "the guest's pod was deleted while node {node} did not respond, so it is unknown whether the guest \
                 still runs there; make sure that the node is powered off, then delete the Node or add the taint \
                 node.kubernetes.io/out-of-service to the Node"
            ),
        )),
    }
}

/// Returns the message about a running guest whose node is unresponsive. A newer report of the agent takes
/// precedence, as only a live agent reports; and this message stays until the agent reports otherwise.
fn unresponsive_message(observed: &ObservedInstance<'_>, before: &VirtualMachineInstanceStatus) -> Option<String> {
    let mut conditions = before.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == types::READY)?;
    let is_ready = ready.status == ConditionStatus::True.as_str();
    if ready.reason.as_deref() == Some(NODE_NOT_READY) && !is_ready {
        return ready.message.clone();
    }
    let reported_at = ready.last_transition_time?;
    let unresponsive = observed.unresponsive && observed.moving.moved_to.is_none();
    match observed.node {
        NodeState::NotReady { since: Some(since) } if unresponsive && is_ready && reported_at <= since => {
            let node = before.node_name.as_deref().unwrap_or_default();
            Some(format!("node {node} does not respond; the guest may still run there"))
        }
        _ => None,
    }
}

/// Returns the state of the newest migration. For the instance, a migration is completed once the guest has arrived,
/// slightly before the migration itself reports that. Progress is reported on the migration; the state on the instance
/// changes only when the migration begins, ends, is cancelled or disturbs the guest.
fn migration_state(observed: &ObservedInstance<'_>, before: &VirtualMachineInstanceStatus) -> Option<MigrationState> {
    let mut state = observed.moving.state.cloned()?;
    state.mode = observed.moving.mode.or(state.mode);
    if observed.moving.moved_to.is_some() {
        state.completed = true;
        state.end_timestamp = state.end_timestamp.or_else(|| Some(whole_seconds(observed.now).0));
    }
    let disturbs = |state: &MigrationState| state.mode.filter(|mode| *mode != MigrationMode::PreCopy);
    let same = |recorded: &&MigrationState| {
        recorded.migration_uid == state.migration_uid
            && (recorded.completed
                || (!state.completed
                    && recorded.abort_requested == state.abort_requested
                    && disturbs(recorded) == disturbs(&state)))
    };
    Some(before.migration_state.as_ref().filter(same).cloned().unwrap_or(state))
}

/// Returns the phase of an instance whose guest does not run yet.
fn early_phase(before: Phase, pod: Option<&Pod>) -> Phase {
    let Some(pod) = pod else {
        return Phase::Pending;
    };
    let running = container_state(pod).is_some_and(|state| state.running.is_some());
    if running || before == Phase::Scheduled {
        Phase::Scheduled
    } else {
        Phase::Scheduling
    }
}

fn container_state(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::ContainerState> {
    pod.status
        .as_ref()?
        .container_statuses
        .as_ref()?
        .iter()
        .find(|container| container.name == CONTAINER)?
        .state
        .as_ref()
}

/// Returns the pods on nodes in which the guest may be, or may arrive, by UID: those that have not ended and that the
/// guest has not left for good. Pods with an unknown fate stay.
fn active_pods(
    observed: &ObservedInstance<'_>,
    before: &VirtualMachineInstanceStatus,
    fates: &[(String, Fate)],
) -> BTreeMap<String, String> {
    let mut active = BTreeMap::new();
    for (uid, fate) in fates {
        // The guest's former pod is removed in the same write that reports the guest's new node. The pod that the guest
        // has moved to stays until the migration is over: then its end is the guest's end.
        let decides = |node: &String| observed.moving.moved_to.is_none_or(|moved_to| moved_to == node);
        let recorded = observed.moving.under_way && before.active_pods.get(uid).is_some_and(decides);
        let over = matches!(fate, Fate::Ended(_) | Fate::GoneWithItsNode) || observed.moving.have_emptied(uid);
        if over && !recorded {
            continue;
        }
        let pod = observed
            .pods
            .iter()
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid));
        let bound = pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        // A migration's target pod counts once the migration has named both sides.
        let comes = pod.is_some_and(|pod| made_for(pod).is_some()) && !observed.moving.under_way;
        if comes && !before.active_pods.contains_key(uid) {
            continue;
        }
        let recorded = || before.active_pods.get(uid).cloned();
        let coming = || arrivals(observed.moving.migrations).find_map(|(pod, node)| (pod == *uid).then_some(node));
        if let Some(node) = bound.or_else(recorded).or_else(coming) {
            active.insert(uid.clone(), node);
        }
    }
    active
}

/// Reasons of a waiting container while its volumes are mounted and its image is pulled.
const BEING_CREATED: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Returns the obstacle that prevents a pod from running, including the namespace of a missing input.
fn pod_hindrance(observed: &ObservedInstance<'_>, pod: &Pod) -> Option<Hindrance> {
    let namespace = observed.instance.metadata.namespace.as_deref().unwrap_or_default();
    let pending = pending(pod, observed.now);
    // Kubelets' messages about volumes take precedence over the message that the pod has not been prepared.
    let is_unexplained = pending.hindrance.is_none() || pending.wants_events;
    let mut uids = observed.unmounted.iter();
    let unmounted =
        uids.find(|(of, _)| is_unexplained && is_being_created(pod) && pod.metadata.uid.as_ref() == Some(of));
    if let Some(message) = unmounted.and_then(|(_, message)| inputs::unmounted(message, namespace)) {
        return Some(Hindrance {
            reason: inputs::FAILED_MOUNT.into(),
            message,
            unscheduled: false,
        });
    }
    let mut found = pending.explained(observed.warning.cloned()).hindrance?;
    if found.unscheduled {
        found.message = inputs::unscheduled(found.message, namespace);
    } else if found.reason == inputs::FAILED_MOUNT {
        found.message = inputs::unmounted(&found.message, namespace).unwrap_or(found.message);
    }
    Some(found)
}

/// Returns whether the pod's container waits for its volumes or its image.
fn is_being_created(pod: &Pod) -> bool {
    let waiting = container_state(pod).and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    reason.is_some_and(|reason| BEING_CREATED.contains(&reason))
}

/// Returns the first transition to each phase that the controller reports.
fn transitions(before: &VirtualMachineInstanceStatus, phase: Option<Phase>, now: Timestamp) -> Vec<PhaseTransition> {
    let mut transitions: Vec<PhaseTransition> = before
        .phase_transition_timestamps
        .iter()
        .filter(|transition| transition.phase != Phase::Running)
        .cloned()
        .collect();
    if let Some(phase) = phase
        && !transitions.iter().any(|transition| transition.phase == phase)
    {
        transitions.push(PhaseTransition {
            phase,
            phase_transition_timestamp: whole_seconds(now).0,
        });
    }
    transitions
}

/// Returns whether writing `wanted` would change `current`.
fn differs(current: &VirtualMachineInstanceStatus, wanted: &VirtualMachineInstanceStatus) -> bool {
    let same_conditions = wanted
        .conditions
        .iter()
        .all(|condition| current.conditions.contains(condition))
        && !current.conditions.iter().any(|condition| {
            OWN_CONDITIONS.contains(&condition.type_.as_str())
                && !wanted.conditions.iter().any(|other| other.type_ == condition.type_)
        })
        && !leaves_a_reason(current, wanted);
    let same_transitions = wanted
        .phase_transition_timestamps
        .iter()
        .all(|transition| current.phase_transition_timestamps.contains(transition));
    let same_claims = wanted.volume_status.iter().all(|volume| {
        current.volume_status.iter().any(|other| {
            other.name == volume.name && other.persistent_volume_claim_info == volume.persistent_volume_claim_info
        })
    });
    !(same_conditions
        && same_transitions
        && same_claims
        && (wanted.phase.is_none() || wanted.phase == current.phase)
        && wanted.reason == current.reason
        && wanted.node_name == current.node_name
        && (wanted.evacuation_node_name.is_none() || wanted.evacuation_node_name == current.evacuation_node_name)
        && wanted.active_pods == current.active_pods
        && wanted.migration_state == current.migration_state
        && wanted.qos_class == current.qos_class)
}

/// Returns whether the agent has reported the guest as ready while the controller's reason for the opposite is still
/// present: a field that two field managers have applied is removed only once neither applies it.
fn leaves_a_reason(current: &VirtualMachineInstanceStatus, wanted: &VirtualMachineInstanceStatus) -> bool {
    let is_ready = |condition: &&Condition| condition.type_ == types::READY;
    let stands = current.conditions.iter().find(is_ready).is_some_and(|ready| {
        ready.status == ConditionStatus::True.as_str() && ready.reason.as_ref().is_some_and(|reason| !reason.is_empty())
    });
    stands && !wanted.conditions.iter().any(|condition| is_ready(&condition))
}

#[cfg(test)]
mod tests;
