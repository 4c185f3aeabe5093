//! Reconciliation of one VirtualMachine: whether its instance is created, deleted or left alone.
//!
//! ```text
//!               ┌──────────── absent ◀──────────── gone ───────────┐
//!   run strategy│is to run                                         │
//!  (after the   ▼                              run strategy, or    │
//!   back-off)  live ── guest ended ──▶ final ── a stop request ──▶ leaving
//!               └──────────── stop request, Halted ──────────────────▲
//! ```
//!
//! The status is written before the instance is deleted or created. So a controller that stops between two steps loses
//! neither an instance that has to be created again nor a counted failure. A request to start stays in the status until
//! the requested instance exists.

pub mod instance_of;
pub mod printable;
mod start_failure;
mod strategy;

use std::sync::Arc;

use drydock_api::{
    controlling_owner,
    kubevirt::{
        Condition, Phase, RunStrategy, VirtualMachine, VirtualMachineInstance, VirtualMachineStatus,
        instance::StartStrategy,
        machine::{StartFailure, StateChange, StateChangeRequest},
        names::{
            TEMPLATE, VM_FINALIZER, conditions as types,
            reasons::{EVICTED, EVICTED_BY_KUBELET},
        },
    },
};
use jiff::Timestamp;

use crate::{
    conditions::ConditionStatus,
    vm_conditions::{condition, find, holds},
};
use instance_of::{instance_of, made_of_generation, template_fingerprint};
use printable::{PrintableInput, printable};
use start_failure::{is_start_failure, start_failure};
pub use strategy::{DeletionReason, InstanceDecision, RequestedChanges, Standing, decide};

/// The controller's observations of a machine.
#[derive(Clone, Debug)]
pub struct ObservedMachine {
    /// The current time.
    pub now: Timestamp,
    /// The machine.
    pub machine: VirtualMachine,
    /// The instance of the machine's name, whatever its owner.
    pub instance: Option<Arc<VirtualMachineInstance>>,
    /// Whether the instance was read from the API server itself after the machine was read.
    pub confirmed: bool,
    /// Whether the instance is being live migrated.
    pub migrating: bool,
    /// Why the API server rejected the creation of the instance, if the creation was attempted.
    pub failed_create: Option<String>,
}

/// The steps, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachinePlan {
    /// Whether the instance has to be read from the API server itself before anything is concluded.
    pub confirm: bool,
    /// Whether the finalizer is to be set, without which no instance is created.
    pub add_finalizer: bool,
    /// The status to write; `None` if it needs no change.
    pub status: Option<VirtualMachineStatus>,
    /// Events on the machine.
    pub events: Vec<MachineEvent>,
    /// The instance to delete, if any.
    pub delete: Option<InstanceDeletion>,
    /// The instance to create, if any.
    pub create: Option<Box<VirtualMachineInstance>>,
    /// Whether the run strategy of a halted machine is to be changed to Always, since a start was requested.
    pub run: bool,
    /// Whether the finalizer is to be removed, so that the machine can be deleted.
    pub remove_finalizer: bool,
    /// When to reconcile again, if nothing changes before.
    pub wake: Option<Timestamp>,
}

/// An instance that is to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceDeletion {
    /// UID of the instance, which is a precondition.
    pub uid: String,
    /// Why the instance is deleted.
    pub why: DeletionReason,
}

/// An event on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineEvent {
    /// Whether the event's type is Warning; otherwise Normal.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// Why a machine that should run has no instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StartRefusal {
    /// A VirtualMachineInstance of the same name exists and belongs to another owner.
    InstanceNotOwned,
    /// The API server rejected the VirtualMachineInstance.
    FailedCreate,
}

impl StartRefusal {
    /// The reason of the condition `Failure` and of the event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::InstanceNotOwned => "InstanceNotOwned",
            Self::FailedCreate => "FailedCreate",
        }
    }
}

/// Reason of the condition `Ready`: the machine has no instance. KubeVirt's name.
pub const NO_INSTANCE: &str = "VMINotExists";
/// Reason of the event about an instance that ended before its guest ran.
pub const START_FAILED: &str = "StartFailed";

/// Returns the run strategy in force: that of the spec, or the equivalent of `running`.
pub fn run_strategy(machine: &VirtualMachine) -> RunStrategy {
    match (machine.spec.run_strategy, machine.spec.running) {
        (Some(strategy), _) => strategy,
        (None, Some(true)) => RunStrategy::Always,
        (None, _) => RunStrategy::Halted,
    }
}

/// Returns whether the machine is the controller of this instance. The instance's name alone does not show that.
pub fn owns(machine: &VirtualMachine, instance: &VirtualMachineInstance) -> bool {
    controlling_owner(&instance.metadata).is_some_and(|owner| Some(&owner.uid) == machine.metadata.uid.as_ref())
}

/// Returns whether the guest of this instance ever ran.
pub fn reached_running(instance: &VirtualMachineInstance) -> bool {
    instance.status.as_ref().is_some_and(|status| {
        status.phase == Some(Phase::Running)
            || status
                .phase_transition_timestamps
                .iter()
                .any(|transition| transition.phase == Phase::Running)
    })
}

/// Returns the steps for a machine.
pub fn plan(observed: &ObservedMachine) -> MachinePlan {
    let machine = &observed.machine;
    let before = machine.status.clone().unwrap_or_default();
    let evaluation = Evaluation::of(observed, &before);
    let Evaluation {
        own,
        standing,
        deleting,
        run,
        waits_until,
        ..
    } = evaluation;
    let uid = own.and_then(|instance| instance.metadata.uid.as_deref());
    // A cache may be outdated: the instance may exist by now, or be another instance.
    if (deleting && own.is_none() || evaluation.requested.stop_of_another) && !observed.confirmed {
        return MachinePlan {
            confirm: true,
            ..MachinePlan::default()
        };
    }
    let has_finalizer = {
        let mut finalizers = machine.metadata.finalizers.iter().flatten();
        finalizers.any(|name| name == VM_FINALIZER)
    };
    let may_go = matches!(standing, Standing::Absent | Standing::Foreign) || is_orphaning(machine);
    if deleting && may_go {
        return MachinePlan {
            remove_finalizer: has_finalizer,
            ..MachinePlan::default()
        };
    }
    let status = status(observed, &before, &evaluation);
    let delete = match (&evaluation.decision, uid) {
        (InstanceDecision::End(why), Some(uid)) => Some(InstanceDeletion {
            uid: uid.into(),
            why: *why,
        }),
        _ => None,
    };
    let starts = evaluation.starts();
    MachinePlan {
        confirm: false,
        add_finalizer: !deleting && !has_finalizer,
        events: events(&before, &status),
        status: (!same(&before, &status)).then_some(status),
        delete,
        create: starts.then(|| Box::new(started(machine, &before.state_change_requests))),
        run,
        remove_finalizer: false,
        wake: waits_until,
    }
}

/// The state of a machine, and the decision that follows from it.
struct Evaluation<'a> {
    /// The instance of the machine's name, if it is the machine's.
    own: Option<&'a VirtualMachineInstance>,
    standing: Standing,
    strategy: RunStrategy,
    /// Whether the run strategy differs from that of the last status.
    is_new: bool,
    requested: RequestedChanges,
    deleting: bool,
    decision: InstanceDecision,
    /// The consecutive failed attempts to start, if any.
    failures: Option<StartFailure>,
    /// The end of the back-off that a start waits for.
    waits_until: Option<Timestamp>,
    /// Whether the run strategy of a halted machine is to be changed to Always.
    run: bool,
}

impl<'a> Evaluation<'a> {
    fn of(observed: &'a ObservedMachine, before: &VirtualMachineStatus) -> Self {
        let machine = &observed.machine;
        let strategy = run_strategy(machine);
        let instance = observed.instance.as_deref();
        let own = instance.filter(|instance| owns(machine, instance));
        let standing = standing(instance, own);
        let uid = own.and_then(|instance| instance.metadata.uid.as_deref());
        let requested = RequestedChanges::of(&before.state_change_requests, uid);
        let deleting = machine.metadata.deletion_timestamp.is_some();
        let is_new = before.run_strategy != Some(strategy);
        let decision = if deleting {
            on_deletion(machine, standing)
        } else {
            decide(strategy, standing, &requested, is_new)
        };
        let failures = start_failure(strategy, before.start_failure.as_ref(), own, observed.now);
        let retry_after = failures.as_ref().and_then(|failures| failures.retry_after_timestamp);
        Self {
            own,
            standing,
            strategy,
            is_new,
            requested,
            deleting,
            waits_until: retry_after.filter(|at| decision == InstanceDecision::Start && *at > observed.now),
            decision,
            failures,
            run: strategy == RunStrategy::Halted && !deleting && starts_halted(before, strategy),
        }
    }

    /// Returns whether the instance is created now.
    fn starts(&self) -> bool {
        self.decision == InstanceDecision::Start && self.waits_until.is_none()
    }
}

/// Returns the status that follows from an evaluation.
fn status(
    observed: &ObservedMachine,
    before: &VirtualMachineStatus,
    evaluation: &Evaluation<'_>,
) -> VirtualMachineStatus {
    let own = evaluation.own;
    let seen = PrintableInput {
        deleting: evaluation.deleting,
        standing: evaluation.standing,
        ending: matches!(evaluation.decision, InstanceDecision::End(_)),
        starting: evaluation.starts(),
        backing_off: evaluation.waits_until.is_some(),
        migrating: observed.migrating,
    };
    let mut status = VirtualMachineStatus {
        created: own.is_some(),
        ready: own.is_some_and(|instance| holds(conditions_of(instance), types::READY)),
        printable_status: Some(printable(&seen, own).as_str().into()),
        reason: None,
        conditions: conditions(observed, before, evaluation),
        start_failure: evaluation.failures.clone(),
        state_change_requests: requests(&before.state_change_requests, evaluation),
        // As in KubeVirt: the running generation, and the desired one.
        observed_generation: own.and_then(made_of_generation),
        desired_generation: observed.machine.metadata.generation,
        run_strategy: Some(evaluation.strategy),
    };
    status.reason = reason(before, &status, own);
    status
}

/// Returns whether a user has requested that a halted machine starts with its guest paused. Other start requests change
/// the run strategy immediately. A request from before the last change of the run strategy is ignored.
fn starts_halted(before: &VirtualMachineStatus, strategy: RunStrategy) -> bool {
    let is_void = before.run_strategy.is_some_and(|before| before != strategy);
    !is_void && before.state_change_requests.iter().any(is_paused_start)
}

fn is_paused_start(request: &StateChangeRequest) -> bool {
    request.action == StateChange::Start && request.is_paused()
}

/// Returns the new instance of a machine, which starts paused if one of these requests requires it.
fn started(machine: &VirtualMachine, requests: &[StateChangeRequest]) -> VirtualMachineInstance {
    let mut instance = instance_of(machine);
    if requests.iter().any(is_paused_start) {
        instance.spec.start_strategy = Some(StartStrategy::Paused);
    }
    instance
}

/// Returns the state of the instance with the machine's name.
fn standing(instance: Option<&VirtualMachineInstance>, own: Option<&VirtualMachineInstance>) -> Standing {
    let Some(own) = own else {
        return if instance.is_some() {
            Standing::Foreign
        } else {
            Standing::Absent
        };
    };
    if own.metadata.deletion_timestamp.is_some() {
        return Standing::Leaving;
    }
    let status = own.status.as_ref();
    match status.and_then(|status| status.phase).filter(|phase| phase.is_final()) {
        Some(phase) => Standing::Final {
            failed: phase == Phase::Failed,
            evicted: was_evicted(own),
        },
        None => Standing::Live,
    }
}

/// Returns whether the cluster has ended the guest of this instance.
fn was_evicted(instance: &VirtualMachineInstance) -> bool {
    let reason = instance.status.as_ref().and_then(|status| status.reason.as_deref());
    reason == Some(EVICTED) || was_evicted_by_kubelet(instance)
}

/// Returns whether the kubelet evicted the pod of this instance, because of its resource usage or a shortage on its
/// node: a new instance may be evicted again immediately.
fn was_evicted_by_kubelet(instance: &VirtualMachineInstance) -> bool {
    let reason = instance.status.as_ref().and_then(|status| status.reason.as_deref());
    reason == Some(EVICTED_BY_KUBELET)
}

/// Returns whether the deletion of the machine orphans its dependents, so that the instance is kept.
fn is_orphaning(machine: &VirtualMachine) -> bool {
    machine
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|name| name == "orphan")
}

/// Returns the decision for a deleted machine: its instance is deleted too, unless the deletion orphans it.
fn on_deletion(machine: &VirtualMachine, standing: Standing) -> InstanceDecision {
    match standing {
        Standing::Live | Standing::Final { .. } if !is_orphaning(machine) => {
            InstanceDecision::End(DeletionReason::MachineDeleted)
        }
        _ => InstanceDecision::Rest,
    }
}

/// Returns the requests that are still pending, and the request that follows from this decision.
fn requests(before: &[StateChangeRequest], evaluation: &Evaluation<'_>) -> Vec<StateChangeRequest> {
    let Evaluation {
        standing,
        strategy,
        requested,
        ..
    } = evaluation;
    if *strategy == RunStrategy::Halted {
        let paused = before
            .iter()
            .filter(|request| evaluation.run && is_paused_start(request));
        return paused.cloned().collect();
    }
    let runs = *standing == Standing::Live && !requested.stop;
    let mut left: Vec<StateChangeRequest> = before
        .iter()
        .filter(|request| match request.action {
            StateChange::Stop => requested.concerns(request),
            StateChange::Start => !runs,
        })
        .cloned()
        .collect();
    // RerunOnFailure starts by request only; the reason for this start is no longer visible after this reconcile.
    let begins = evaluation.is_new && matches!(standing, Standing::Absent | Standing::Leaving | Standing::Foreign);
    let again = evaluation.decision == InstanceDecision::End(DeletionReason::RunAgain);
    let starts_by_request = *strategy == RunStrategy::RerunOnFailure && (begins || again);
    if starts_by_request && !left.iter().any(|request| request.action == StateChange::Start) {
        left.push(StateChangeRequest {
            action: StateChange::Start,
            uid: None,
            data: None,
        });
    }
    left
}

fn conditions_of(instance: &VirtualMachineInstance) -> &[Condition] {
    instance.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// Returns the machine's conditions: those of its instance, and its own.
fn conditions(
    observed: &ObservedMachine,
    before: &VirtualMachineStatus,
    evaluation: &Evaluation<'_>,
) -> Vec<Condition> {
    let Evaluation { own, standing, .. } = *evaluation;
    let new_condition = |type_: &str, status, reason: &str, message: &str| {
        condition(&before.conditions, type_, status, reason, message, observed.now)
    };
    let own_types = [types::FAILURE, types::RESTART_REQUIRED];
    let mut all: Vec<Condition> = own
        .map_or(&[][..], conditions_of)
        .iter()
        .filter(|condition| !own_types.contains(&condition.type_.as_str()))
        .cloned()
        .collect();
    if find(&all, types::READY).is_none() {
        let (reason, message) = match own {
            None => (NO_INSTANCE, "the virtual machine has no instance"),
            Some(_) => ("GuestNotRunning", "the guest is not running yet"),
        };
        all.push(new_condition(types::READY, ConditionStatus::False, reason, message));
    }
    let refused = |refusal: StartRefusal, message: &str| {
        new_condition(types::FAILURE, ConditionStatus::True, refusal.reason(), message)
    };
    let kept = || {
        // The last failure is reported until the next attempt.
        let failure = find(&before.conditions, types::FAILURE)?;
        let same = failure.reason.as_deref() == Some(StartRefusal::FailedCreate.reason());
        (same && evaluation.decision == InstanceDecision::Start).then(|| failure.clone())
    };
    all.extend(match (standing, observed.failed_create.as_deref()) {
        (Standing::Foreign, _) => Some(refused(
            StartRefusal::InstanceNotOwned,
            "a VirtualMachineInstance of the same name belongs to another owner; Drydock neither uses nor deletes this \
             instance",
        )),
        (_, Some(failure)) => Some(refused(StartRefusal::FailedCreate, failure)),
        (_, None) => kept(),
    });
    if let Some(instance) = own
        && standing == Standing::Live
        && let Some(made_of) = instance.metadata.annotations.as_ref().and_then(|all| all.get(TEMPLATE))
        && *made_of != template_fingerprint(&observed.machine.spec.template)
    {
        all.push(new_condition(
            types::RESTART_REQUIRED,
            ConditionStatus::True,
            "TemplateChanged",
            "the template has changed since the instance was created; the change takes effect at the next start",
        ));
    }
    all.sort_by(|one, other| one.type_.cmp(&other.type_));
    all
}

/// Returns why the machine does not run: the error of its instance's creation, else the reason that its instance
/// reports; between two attempts to start, the reason of the last one.
fn reason(
    before: &VirtualMachineStatus,
    after: &VirtualMachineStatus,
    own: Option<&VirtualMachineInstance>,
) -> Option<String> {
    let failure = find(&after.conditions, types::FAILURE).and_then(|failure| failure.reason.clone());
    failure.or_else(|| match own {
        Some(instance) => instance.status.as_ref()?.reason.clone(),
        None => before.reason.clone().filter(|_| after.start_failure.is_some()),
    })
}

/// Returns the events for the changes from one status to the next.
fn events(before: &VirtualMachineStatus, after: &VirtualMachineStatus) -> Vec<MachineEvent> {
    let mut events = Vec::new();
    if let Some(failure) = find(&after.conditions, types::FAILURE) {
        let known = find(&before.conditions, types::FAILURE)
            .is_some_and(|known| known.reason == failure.reason && known.message == failure.message);
        let refusals = [StartRefusal::InstanceNotOwned, StartRefusal::FailedCreate];
        let refusal = refusals
            .into_iter()
            .find(|refusal| failure.reason.as_deref() == Some(refusal.reason()));
        if let (Some(refusal), false) = (refusal, known) {
            events.push(MachineEvent {
                warning: true,
                reason: refusal.reason(),
                message: failure.message.clone().unwrap_or_default(),
            });
        }
    }
    if holds(&after.conditions, types::RESTART_REQUIRED) && !holds(&before.conditions, types::RESTART_REQUIRED) {
        events.push(MachineEvent {
            warning: false,
            reason: types::RESTART_REQUIRED,
            message: "the template has changed; the change takes effect at the next start".into(),
        });
    }
    if let Some(failures) = &after.start_failure
        && is_start_failure(before.start_failure.as_ref(), failures)
        && let Some(retry) = failures.retry_after_timestamp
    {
        let count = failures.consecutive_fail_count;
        events.push(MachineEvent {
            warning: true,
            reason: START_FAILED,
            message: format!(
                "the instance ended before its guest ran, or the kubelet evicted the instance's pod ({count} \
                 consecutive failures); the next instance may start at {retry}"
            ),
        });
    }
    events
}

/// Returns whether two statuses are equal, apart from the order of conditions, which the API server may change.
fn same(one: &VirtualMachineStatus, other: &VirtualMachineStatus) -> bool {
    let sorted = |status: &VirtualMachineStatus| {
        let mut status = status.clone();
        status.conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
        status
    };
    sorted(one) == sorted(other)
}

#[cfg(test)]
mod tests;
