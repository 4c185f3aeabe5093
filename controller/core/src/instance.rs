//! What the controller does about one VirtualMachineInstance: its pod, its node, its end.
//!
//! ```text
//!  Pending ──pod made──▶ Scheduling ──container runs──▶ Scheduled ──(agent)──▶ Running
//!     │                      │                              │                    │
//!     └──────────────────────┴──── the pod's container ended, or its node is gone for good ──▶ Succeeded | Failed
//! ```
//!
//! The agent of `status.nodeName` makes it Running; everything else about the phase is decided
//! here. A guest is only concluded to have ended by proof: its container has terminated, as its
//! kubelet says; its pod has gone and the node's agent says so; or the node is gone for good. A pod
//! that merely vanished proves nothing, since it can be deleted by force. Neither does a Node object
//! that was deleted while the node's agent lives: the agent stops its guests first, and reports each.

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
    conditions::{Status, whole_seconds},
    eviction::{descheduler, mark},
    launcher_pod::{
        LEAST_GRACE_PERIOD,
        image_identity::wanted_witnesses,
        made_for,
        pending::{Hindrance, NOT_SCHEDULED, pending},
    },
    migration::{
        observed::{source, target},
        record::Record,
    },
    vm_conditions::{condition, find},
};
use ending::{Ended, ended};
use unbound::replace_obsolete;

pub use unbound::may_be_obsolete;

/// What the controller sees of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The time.
    pub now: Timestamp,
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// Its pods, those that it controls.
    pub pods: &'a [Arc<Pod>],
    /// The pods were listed by the API server itself after the instance was read, so that one that
    /// is not among them does not exist.
    pub confirmed: bool,
    /// The node that the instance is on.
    pub node: NodeState,
    /// Other nodes that pods of it were on, by name.
    pub other_nodes: &'a [(String, NodeState)],
    /// Nothing is heard of the agent of its node either.
    pub silent: bool,
    /// What its migrations say.
    pub moving: Moving<'a>,
    /// Its volumes that are PersistentVolumeClaims, with what is known of these.
    pub claims: &'a [VolumeStatus],
    /// Why no node can take it, if its pod is not on one.
    pub misfit: Option<&'a str>,
    /// Whether another node could take it.
    pub targets: Option<&'a Targets>,
    /// Digest of what a new pod of it would require of a node; `None` where no pod waits for a node.
    pub requirements_digest: Option<&'a str>,
    /// Why its pod could not be made, if that was tried.
    pub failed_create: Option<&'a str>,
    /// Volumes that the kubelet could not mount: the UID of the pod, and what it last said of it.
    pub unmounted: &'a [(String, String)],
    /// The newest warning among the events of its pod, if those were needed.
    pub warning: Option<&'a Hindrance>,
}

/// What an instance's migrations say of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moving<'a> {
    /// One that is not over has named both sides: how the guest ends is not said before it is over.
    pub under_way: bool,
    /// The node on which the guest is by now, whatever `status.nodeName` says.
    pub moved_to: Option<&'a str>,
    /// The newest that has begun, as KubeVirt reports it.
    pub state: Option<&'a MigrationState>,
    /// How its guest moves, as its source has said since then.
    pub mode: Option<MigrationMode>,
    /// All that are there.
    pub migrations: &'a [Arc<VirtualMachineInstanceMigration>],
}

impl Moving<'_> {
    /// The agent of a side has said that no guest is in its pod with that UID, and none comes any more.
    fn have_emptied(&self, uid: &str) -> bool {
        self.migrations.iter().any(|migration| {
            let record = Record::of(migration);
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

/// What its Lease shows of a node's agent, by this process's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentSign {
    /// It has renewed its Lease in time, or that is not known (yet).
    MayLive,
    /// It has not renewed its Lease in time, or has none though it had the time to make one.
    Silent,
}

/// A node, as far as it matters to those who wait for something to end there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It is there, its kubelet answers.
    Ready,
    /// It is there, its kubelet does not answer.
    NotReady {
        /// When Kubernetes noticed, a whole second.
        since: Option<Timestamp>,
    },
    /// Somebody vouches that it is off: it has the taint `node.kubernetes.io/out-of-service`.
    OutOfService,
    /// The API server says that there is no such Node, and its agent is silent. Whoever deleted the Node has thereby
    /// confirmed that the node is off.
    Gone,
    /// The API server says that there is no such Node, but its agent may live. The agent ends the guests of its node,
    /// and reports each end.
    Deleted,
    /// Not known, or there is no node yet.
    Unknown,
}

impl NodeState {
    /// The state of a node whose Node object does not exist, as the API server itself says.
    pub fn of_deleted(agent: AgentSign) -> Self {
        match agent {
            AgentSign::Silent => Self::Gone,
            AgentSign::MayLive => Self::Deleted,
        }
    }

    /// There is no Node object of that name.
    pub fn is_without_object(self) -> bool {
        matches!(self, Self::Gone | Self::Deleted)
    }

    /// Nothing runs there any more, for sure.
    pub fn is_gone_for_good(self) -> bool {
        matches!(self, Self::OutOfService | Self::Gone)
    }
}

impl Observed<'_> {
    /// What is known of a node that a pod of the instance is, or was, on.
    fn state_of(&self, node: &str) -> NodeState {
        let status = self.instance.status.as_ref();
        if status.and_then(|status| status.node_name.as_deref()) == Some(node) {
            return self.node;
        }
        let other = self.other_nodes.iter().find(|(name, _)| name == node);
        other.map_or(NodeState::Unknown, |(_, state)| *state)
    }
}

/// Whether another node could take a running instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// One could.
    pub available: bool,
    /// CamelCase reason.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The pods have to be listed by the API server itself before anything is concluded.
    pub confirm: bool,
    /// In this order.
    pub steps: Vec<Step>,
    /// The controller's part of the status; `None` if it is as it should be.
    pub status: Option<VirtualMachineInstanceStatus>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The finalizer is set, without which no pod may be made.
    AddFinalizer,
    /// The launcher pod is made.
    CreatePod,
    /// A pod is deleted, with the time that it has to shut its guest down.
    DeletePod {
        /// Its name.
        name: String,
        /// Its UID, which is a precondition.
        uid: String,
        /// That time in seconds, where it is shorter than what the pod has.
        grace: Option<i64>,
    },
    /// A pod without a node is deleted, to be made anew under the configuration in force.
    ReplacePod {
        /// Its name.
        name: String,
        /// Its UID, which is a precondition.
        uid: String,
        /// Its version, which is a precondition: it may have been bound since.
        resource_version: Option<String>,
    },
    /// The annotation by which the descheduler knows that an eviction goes on is set on a pod, or removed.
    AnnotateEviction {
        /// The pod's name.
        name: String,
        /// Its UID, which is a precondition.
        uid: String,
        /// It is set.
        in_progress: bool,
    },
    /// The instance's label that names its node is set.
    Label(String),
    /// Its pod gets containers that find out which images its guest's disks lie upon. It goes on without.
    Witness {
        /// The pod's name.
        name: String,
        /// Its UID.
        uid: String,
        /// The containers.
        containers: Vec<EphemeralContainer>,
    },
    /// The finalizer is taken off.
    RemoveFinalizer,
}

/// What has become of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// Its container may run.
    Alive,
    /// Its container has ended.
    Ended(Ended),
    /// Its node is gone for good.
    GoneWithItsNode,
    /// It is not there any more, and nobody has said what became of its container.
    Vanished,
}

/// Conditions that the controller alone writes.
const OWN_CONDITIONS: [&str; 4] = [
    types::POD_SCHEDULED,
    types::SYNCHRONIZED,
    types::MIGRATION_TARGET_AVAILABLE,
    types::FENCING_REQUIRED,
];

/// Reason of a final phase whose guest was lost with its node.
pub const NODE_GONE: &str = "NodeGone";
/// Reason of a guest that is not said to be ready because nothing is heard of its node.
pub const NODE_NOT_READY: &str = "NodeNotReady";

/// What is to be done about an instance.
pub fn plan(observed: &Observed<'_>) -> Plan {
    let View { fates, main } = &View::of(observed);
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
        // A cache is a moment behind, or more.
        return Plan {
            confirm: true,
            ..Plan::default()
        };
    }
    let mut steps = Vec::new();
    if deleting || phase.is_final() {
        // Its guest may have ended where its launcher has not.
        let living = observed.pods.iter().filter(|pod| {
            let gone = || {
                let fate = fates.iter().find(|(uid, _)| pod.metadata.uid.as_deref() == Some(uid));
                fate.is_some_and(|(_, fate)| *fate == Fate::GoneWithItsNode)
            };
            ended(pod).is_none() && !gone()
        });
        steps.extend(living.filter_map(|pod| {
            let grace = shorter_grace(observed.instance, pod);
            // One that ends already is only told to end sooner.
            (pod.metadata.deletion_timestamp.is_none() || grace.is_some()).then(|| Step::DeletePod {
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: uid(pod),
                grace,
            })
        }));
    }
    let over = fates
        .iter()
        .all(|(_, fate)| matches!(fate, Fate::Ended(_) | Fate::GoneWithItsNode));
    if deleting && over {
        if has_finalizer {
            steps.push(Step::RemoveFinalizer);
        }
        return Plan {
            steps,
            ..Plan::default()
        };
    }
    if !deleting && !phase.is_final() {
        if !has_finalizer {
            steps.push(Step::AddFinalizer);
        }
        if nothing_known {
            steps.push(Step::CreatePod);
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
        steps.push(Step::Label(node.clone()));
    }
    if phase == Phase::Running
        && !deleting
        && let Some((Some(pod), Fate::Alive)) = main
    {
        let migrating = observed.moving.under_way;
        if let Some(in_progress) = descheduler::change(observed.instance, pod, migrating) {
            steps.push(Step::AnnotateEviction {
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: uid(pod),
                in_progress,
            });
        }
        let containers = wanted_witnesses(observed.instance, pod);
        if !containers.is_empty() {
            steps.push(Step::Witness {
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: uid(pod),
                containers,
            });
        }
    }
    Plan {
        confirm: false,
        steps,
        status: differs(&status, &wanted).then_some(wanted),
    }
}

/// The guest is in this pod, or was: its agent says so, or a migration has brought it there, of which
/// its agent has not told yet.
fn is_known(observed: &Observed<'_>, here: Option<&str>, pod: &Pod) -> bool {
    let drydock = observed
        .instance
        .status
        .as_ref()
        .and_then(|status| status.drydock.as_ref());
    let told = drydock.and_then(|drydock| drydock.pod_uid.as_deref());
    let brought = observed.moving.state.filter(|state| {
        let arrived = state.completed || observed.moving.moved_to.is_some();
        arrived && !state.failed && state.target_node.as_deref() == here
    });
    let name = brought.and_then(|state| state.target_pod.as_deref());
    (told.is_some() && told == pod.metadata.uid.as_deref()) || (name.is_some() && name == pod.metadata.name.as_deref())
}

/// The seconds that a guest has to shut down, if its instance says less by now than its pod has: for guests that ignore
/// their power button.
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

/// The pods of an instance and what has become of them.
struct View<'a> {
    fates: Vec<(String, Fate)>,
    /// The one that its guest runs, or will run, in.
    main: Option<(Option<&'a Pod>, Fate)>,
}

impl<'a> View<'a> {
    fn of(observed: &Observed<'a>) -> Self {
        let status = observed.instance.status.as_ref();
        let here = (observed.moving.moved_to).or(status.and_then(|status| status.node_name.as_deref()));
        let said: BTreeSet<&str> = status
            .and_then(|status| status.drydock.as_ref())
            .map(|drydock| drydock.ended_pods.iter().map(String::as_str).collect())
            .unwrap_or_default();
        let is_here = |node: Option<&str>| here.is_some() && node == here;
        let gone = |node: Option<&str>| node.is_some_and(|node| observed.state_of(node).is_gone_for_good());
        // Of several pods on its node the guest is in the one that lives. The others are what earlier
        // migrations have left: pods that it went away from, and pods that it never arrived in.
        let rank = |pod: &Pod, fate: &Fate| {
            let made = pod.metadata.creation_timestamp.clone();
            (*fate == Fate::Alive, is_known(observed, here, pod), made)
        };
        let mut fates = Vec::new();
        let mut main: Option<(Option<&Pod>, Fate)> = None;
        let mut best = None;
        for pod in observed.pods {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let reported = pod.metadata.uid.as_deref().is_some_and(|uid| said.contains(uid));
            let fate = match ended(pod) {
                Some(mut ended) => {
                    // Its agent has pressed the power button, which the launcher does not know.
                    ended.evicted |= reported || node.is_some_and(|node| observed.state_of(node).is_without_object());
                    // Its user wanted it gone, and the controller has deleted the pod for that.
                    ended.evicted &= observed.instance.metadata.deletion_timestamp.is_none();
                    Fate::Ended(ended)
                }
                // The agent knows it before the kubelet writes it, or while the kubelet cannot.
                None if reported => reported_end(),
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
        for (uid, node) in status.into_iter().flat_map(|status| &status.active_pods) {
            if fates.iter().any(|(known, _)| known == uid) {
                continue;
            }
            let fate = if said.contains(uid.as_str()) || observed.moving.have_emptied(uid) {
                reported_end()
            } else if gone(Some(node)) {
                Fate::GoneWithItsNode
            } else {
                Fate::Vanished
            };
            if is_here(Some(node)) && !matches!(main, Some((_, Fate::Alive))) {
                main = Some((None, fate.clone()));
            }
            fates.push((uid.clone(), fate));
        }
        Self { fates, main }
    }
}

/// The end of a guest that its node's agent, or the agent of a side of its migration, has reported.
fn reported_end() -> Fate {
    Fate::Ended(Ended {
        outcome: None,
        message: "its pod or its Node was deleted; the node's agent saw the guest end".into(),
        evicted: true,
        by_kubelet: false,
    })
}

/// The controller's part of the status, as it should be.
fn wanted_status(
    observed: &Observed<'_>,
    before: &VirtualMachineInstanceStatus,
    fates: &[(String, Fate)],
    main: Option<&(Option<&Pod>, Fate)>,
) -> VirtualMachineInstanceStatus {
    let now = observed.now;
    let old_phase = before.phase.unwrap_or_default();
    let mut wanted = VirtualMachineInstanceStatus {
        node_name: (observed.moving.moved_to.map(str::to_owned)).or_else(|| before.node_name.clone()),
        migration_state: migration_state(observed, before),
        qos_class: before.qos_class.clone(),
        active_pods: active_pods(observed, before, fates),
        volume_status: observed.claims.to_vec(),
        ..VirtualMachineInstanceStatus::default()
    };
    let pod = main.and_then(|(pod, _)| *pod);
    if let Some(pod) = pod {
        if wanted.node_name.is_none() {
            wanted.node_name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        }
        if wanted.qos_class.is_none() {
            wanted.qos_class = pod.status.as_ref().and_then(|status| status.qos_class.clone());
        }
    }
    let mut conditions: Vec<Condition> = Vec::new();
    if old_phase.is_final() {
        let ready = before
            .conditions
            .iter()
            .find(|condition| condition.type_ == types::READY);
        conditions.extend(ready.cloned());
    }
    let mut say = |type_: &str, status: Status, reason: &str, message: String| {
        conditions.push(condition(&before.conditions, type_, status, reason, message, now));
    };
    // Running and beyond is the agent's until there is an end.
    let mut phase = (old_phase < Phase::Running).then(|| early_phase(old_phase, pod));
    let mut reason = before.reason.clone().filter(|_| old_phase.is_final());
    if old_phase.is_final() {
        phase = Some(old_phase);
    } else {
        match main.map(|(_, fate)| fate) {
            // It may have gone on elsewhere, which the migration's end tells.
            Some(Fate::Ended(_) | Fate::GoneWithItsNode) if observed.moving.under_way => {}
            Some(Fate::Ended(ended)) => {
                if let Some(last) = ended.phase() {
                    phase = Some(last);
                    reason = Some(ended.reason().into());
                    say(types::READY, Status::False, "GuestNotRunning", ended.message.clone());
                }
            }
            Some(Fate::GoneWithItsNode) => {
                phase = Some(Phase::Failed);
                reason = Some(NODE_GONE.into());
                let node = wanted.node_name.as_deref().unwrap_or_default();
                let message = format!("node {node} is gone for good, and the guest with it");
                say(types::READY, Status::False, "GuestNotRunning", message);
            }
            Some(Fate::Vanished) => {
                let node = wanted.node_name.as_deref().unwrap_or_default();
                if let Some((reason, message)) = fencing(observed.state_of(node), node) {
                    say(types::FENCING_REQUIRED, Status::True, reason, message);
                }
            }
            Some(Fate::Alive) => {}
            None => {
                if let Some(failure) = observed.failed_create {
                    say(types::SYNCHRONIZED, Status::False, "FailedCreate", failure.into());
                }
                let message = "its pod does not exist yet".to_owned();
                say(types::READY, Status::False, "PodNotExists", message);
            }
        }
    }
    let may_run = matches!(main, Some((_, Fate::Alive | Fate::Vanished)));
    if let Some(message) = unheard(observed, before).filter(|_| may_run && old_phase == Phase::Running) {
        say(types::READY, Status::False, NODE_NOT_READY, message);
    }
    if let (Some(pod), Some(Fate::Alive)) = (pod, main.map(|(_, fate)| fate)) {
        if let Some(Hindrance {
            reason,
            message,
            unscheduled,
        }) = pod_hindrance(observed, pod).filter(|_| old_phase < Phase::Running)
        {
            if unscheduled {
                let misfit = observed.misfit.filter(|_| reason != NOT_SCHEDULED);
                let message = misfit.map_or(message, str::to_owned);
                say(types::POD_SCHEDULED, Status::False, &reason, message);
            } else {
                say(types::SYNCHRONIZED, Status::False, &reason, message);
            }
        }
        if old_phase < Phase::Running {
            let message = "the guest does not run yet".to_owned();
            say(types::READY, Status::False, "GuestNotRunning", message);
        } else if let Some(targets) = observed.targets {
            let status = Status::from(targets.available);
            say(
                types::MIGRATION_TARGET_AVAILABLE,
                status,
                &targets.reason,
                targets.message.clone(),
            );
        }
    }
    let arrived = observed.moving.moved_to;
    if arrived.is_some_and(|node| mark::is_orphaned(observed.instance, node)) {
        let message = "the guest has left the node that it was to leave".to_owned();
        say(types::EVICTION_REQUESTED, Status::False, "Moved", message);
        wanted.evacuation_node_name = Some(String::new());
    } else if let Some(told) = find(&before.conditions, types::EVICTION_REQUESTED)
        && told.status == Status::False.as_str()
    {
        // Whoever marked it still has a part in that condition: left out, it would lose what it must have.
        conditions.push(told.clone());
    }
    if reason.is_none() && phase.is_some_and(|phase| phase < Phase::Running) {
        reason = hindrance(&conditions);
    }
    wanted.phase = phase;
    wanted.reason = reason;
    wanted.conditions = conditions;
    wanted.phase_transition_timestamps = transitions(before, phase, now);
    wanted
}

/// Why a guest does not run yet, if something keeps it from running.
fn hindrance(conditions: &[Condition]) -> Option<String> {
    let kept = |type_: &str, status: Status| {
        let condition = find(conditions, type_).filter(|condition| condition.status == status.as_str())?;
        condition.reason.clone()
    };
    kept(types::FENCING_REQUIRED, Status::True)
        .or_else(|| kept(types::POD_SCHEDULED, Status::False))
        .or_else(|| kept(types::SYNCHRONIZED, Status::False))
}

/// Why a guest whose pod vanished from a node is not started elsewhere; `None` while the node answers, whose agent is
/// about to say that the guest has ended.
fn fencing(state: NodeState, node: &str) -> Option<(&'static str, String)> {
    match state {
        NodeState::Ready => None,
        NodeState::Deleted => Some((
            "NodeDeletedButAgentAlive",
            format!(
                "Node {node} was deleted, but its agent renews its Lease, so the guest may still run there; it starts \
                 elsewhere once the agent has reported its end, or has not renewed its Lease for {} s",
                STALE_AFTER.as_secs()
            ),
        )),
        NodeState::NotReady { .. } | NodeState::OutOfService | NodeState::Gone | NodeState::Unknown => Some((
            "PodVanishedFromSilentNode",
            format!(
                "its pod was deleted while node {node} did not answer, so nobody can say whether the guest still runs there; \
                 make sure that the node is off, then delete the Node or taint it node.kubernetes.io/out-of-service"
            ),
        )),
    }
}

/// What is said of a running guest of whose node nothing is heard. What its agent has said since then stands, as only
/// an agent that is alive says anything; and this stands until the agent says otherwise.
fn unheard(observed: &Observed<'_>, before: &VirtualMachineInstanceStatus) -> Option<String> {
    let mut conditions = before.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == types::READY)?;
    let is_ready = ready.status == Status::True.as_str();
    if ready.reason.as_deref() == Some(NODE_NOT_READY) && !is_ready {
        return ready.message.clone();
    }
    let said = ready.last_transition_time?;
    let unheard_of = observed.silent && observed.moving.moved_to.is_none();
    match observed.node {
        NodeState::NotReady { since: Some(since) } if unheard_of && is_ready && said <= since => {
            let node = before.node_name.as_deref().unwrap_or_default();
            Some(format!("node {node} does not answer; the guest may run on there"))
        }
        _ => None,
    }
}

/// What is said of the newest migration. One that has brought the guest is over for the instance, a
/// moment before the migration itself says so. How it gets on is said there; here it is only said when
/// it begins, ends, is given up or disturbs the guest.
fn migration_state(observed: &Observed<'_>, before: &VirtualMachineInstanceStatus) -> Option<MigrationState> {
    let mut state = observed.moving.state.cloned()?;
    state.mode = observed.moving.mode.or(state.mode);
    if observed.moving.moved_to.is_some() {
        state.completed = true;
        state.end_timestamp = state.end_timestamp.or_else(|| Some(whole_seconds(observed.now).0));
    }
    let disturbs = |state: &MigrationState| state.mode.filter(|mode| *mode != MigrationMode::PreCopy);
    let same = |told: &&MigrationState| {
        told.migration_uid == state.migration_uid
            && (told.completed
                || (!state.completed
                    && told.abort_requested == state.abort_requested
                    && disturbs(told) == disturbs(&state)))
    };
    Some(before.migration_state.as_ref().filter(same).cloned().unwrap_or(state))
}

/// The phase of an instance whose guest does not run yet.
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

/// Pods on nodes in which the guest may be, or may come to be, by UID: those that have not ended and that it has not
/// left for good. Those of which nothing is known stay.
fn active_pods(
    observed: &Observed<'_>,
    before: &VirtualMachineInstanceStatus,
    fates: &[(String, Fate)],
) -> BTreeMap<String, String> {
    let mut active = BTreeMap::new();
    for (uid, fate) in fates {
        // The pod that a guest has left by a migration is told of together with where it is.
        let left = observed.moving.under_way && observed.moving.moved_to.is_none();
        let told = left && before.active_pods.contains_key(uid);
        let over = matches!(fate, Fate::Ended(_) | Fate::GoneWithItsNode) || observed.moving.have_emptied(uid);
        if over && !told {
            continue;
        }
        let pod = observed
            .pods
            .iter()
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid));
        let bound = pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone());
        // One that a migration has made counts once the migration is told where it goes.
        let comes = pod.is_some_and(|pod| made_for(pod).is_some()) && !observed.moving.under_way;
        if comes && !before.active_pods.contains_key(uid) {
            continue;
        }
        if let Some(node) = bound.or_else(|| before.active_pods.get(uid).cloned()) {
            active.insert(uid.clone(), node);
        }
    }
    active
}

/// What a container says while its volumes are mounted and its image is pulled.
const BEING_CREATED: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// What keeps a pod from running, with the namespace of an input that is missing.
fn pod_hindrance(observed: &Observed<'_>, pod: &Pod) -> Option<Hindrance> {
    let namespace = observed.instance.metadata.namespace.as_deref().unwrap_or_default();
    let pending = pending(pod, observed.now);
    // What kubelets say of volumes comes before that they have not prepared the pod.
    let says_no_more = pending.hindrance.is_none() || pending.wants_events;
    let mut uids = observed.unmounted.iter();
    let unmounted = uids.find(|(of, _)| says_no_more && is_being_created(pod) && pod.metadata.uid.as_ref() == Some(of));
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

/// A pod's container waits for its volumes, or for its image.
fn is_being_created(pod: &Pod) -> bool {
    let waiting = container_state(pod).and_then(|state| state.waiting.as_ref());
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
    reason.is_some_and(|reason| BEING_CREATED.contains(&reason))
}

/// The first time of each phase that is the controller's to say.
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

/// Whether writing `wanted` would change `current`.
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

/// Whether the agent has said that the guest is ready while the controller's reason for the opposite stands
/// beside it: fields that two have applied are only gone when both no longer do.
fn leaves_a_reason(current: &VirtualMachineInstanceStatus, wanted: &VirtualMachineInstanceStatus) -> bool {
    let is_ready = |condition: &&Condition| condition.type_ == types::READY;
    let stands = current.conditions.iter().find(is_ready).is_some_and(|ready| {
        ready.status == Status::True.as_str() && ready.reason.as_ref().is_some_and(|reason| !reason.is_empty())
    });
    stands && !wanted.conditions.iter().any(|condition| is_ready(&condition))
}

#[cfg(test)]
mod tests;
