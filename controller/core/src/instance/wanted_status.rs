//! The controller's part of an instance's status.

use std::collections::BTreeMap;

use drydock_api::kubevirt::{
    Condition, Phase, VirtualMachineInstanceStatus,
    migration::{MigrationMode, MigrationState},
    names::conditions as types,
    status::PhaseTransition,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{
    hindrances::{NODE_NOT_READY, container_state, fencing, hindrance, pod_hindrance, unresponsive_message},
    observed_instance::{ObservedInstance, arrivals},
    pod_fates::Fate,
};
use crate::{
    conditions::{ConditionStatus, whole_seconds},
    eviction::evacuation_request,
    launcher_pod::{
        made_for,
        pending::{Hindrance, NOT_SCHEDULED},
    },
    vm_conditions::{condition, find},
};

/// Conditions that only the controller writes.
const OWN_CONDITIONS: [&str; 4] = [
    types::POD_SCHEDULED,
    types::SYNCHRONIZED,
    types::MIGRATION_TARGET_AVAILABLE,
    types::FENCING_REQUIRED,
];

/// Reason of a final phase: the guest was lost with its node.
pub(super) const NODE_GONE: &str = "NodeGone";

/// Returns the controller's desired part of the status.
pub(super) fn wanted_status(
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
pub(super) fn differs(current: &VirtualMachineInstanceStatus, wanted: &VirtualMachineInstanceStatus) -> bool {
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
