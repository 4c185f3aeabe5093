//! The state of one guest that is to leave its node, and the steps for it.

use std::time::Duration;

use drydock_api::{
    hyperconverged::EvictionStrategy,
    hypervisor::{RemainingGuest, RemainingState},
    kubevirt::{
        Condition, Phase, VirtualMachineInstance, VirtualMachineInstanceMigration,
        migration::MigrationPhase,
        names::EVACUATION_PREFIX,
        status::{DrainRequest, Evacuation, FailedMigration},
    },
};
use jiff::Timestamp;

use super::{
    CORDON_SEEN_WITHIN, DrainStep, DrainedGuest, NodeMarks, drain_target,
    state::{EvacuationCause, EvacuationState},
};
use crate::{
    conditions::ConditionStatus,
    eviction::{Migratable, evacuation_request, falls_back, is_finished, wants_mark},
    launcher_pod,
    migration::{
        deadlines::{Attempts, Failures, Retry, after},
        purpose::MigrationPurpose,
        record::MigrationRecord,
        record::reached_at,
        waiting::{WAITING, Waiting},
    },
    quantity,
    vm_conditions::{find, is_pod_terminating},
};

/// Annotation of a migration that evacuates a node: digest of the circumstances at its creation.
pub const CIRCUMSTANCES: &str = "drydock.dev/drain-circumstances";
/// Resolution of the times of failures, which distinguish counted failures from others.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// Maximum length of a stored failure message, in characters.
const MAX_MESSAGE_CHARS: usize = 512;

/// The situation of a guest in a drain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Situation {
    /// State of the guest; `None` if nothing requests the guest to leave.
    pub state: Option<EvacuationState>,
    /// The requester of the guest's departure.
    pub requester: Option<DrainRequest>,
    /// Steps to take at once.
    pub steps: Vec<DrainStep>,
    /// When to evaluate the guest again without a change.
    pub wake: Option<Timestamp>,
}

impl Situation {
    /// Applies back-off from an earlier refusal: sets the message and returns the earliest retry time.
    pub(super) fn held_up(&mut self, guest: &DrainedGuest<'_>, now: Timestamp) -> Option<Timestamp> {
        let refused = guest.refused.as_ref()?;
        let is_next = matches!(self.state, Some(EvacuationState::ToBeMarked | EvacuationState::MayGo));
        if is_next {
            let message = format!(
                "the API server rejects the request to move the guest ({}); the request is retried",
                refused.message
            );
            self.state = Some(EvacuationState::Blocked(EvacuationCause::Refused, message));
        }
        (is_next || !self.steps.is_empty())
            .then_some(refused.again_at)
            .filter(|again| now < *again)
    }

    /// Sets a state for a guest that nothing requests to leave, if its node is to be drained or is cordoned: the node
    /// cannot be powered off before that guest has left.
    pub(super) fn account_for(&mut self, guest: &DrainedGuest<'_>, marks: NodeMarks, now: Timestamp) {
        if self.state.is_none() && marks != NodeMarks::default() {
            self.state = Some(unrequested(guest, now));
        }
    }

    /// Returns the guest as reported in the drain status.
    pub(super) fn remaining(&self, guest: &DrainedGuest<'_>) -> Option<RemainingGuest> {
        let (state, why, message) = match self.state.clone()? {
            EvacuationState::ToBeMarked => (
                RemainingState::Waiting,
                EvacuationCause::Migration,
                "the guest is about to be marked for evacuation".into(),
            ),
            EvacuationState::MayGo => (
                RemainingState::Waiting,
                EvacuationCause::Migration,
                "the guest's migration is about to be created".into(),
            ),
            EvacuationState::Moving(message) => (RemainingState::Moving, EvacuationCause::Migration, message),
            EvacuationState::Waiting(why, message) => (RemainingState::Waiting, why, message),
            EvacuationState::Blocked(why, message) => (RemainingState::Blocked, why, message),
            EvacuationState::ShuttingDown(why, message) => (RemainingState::ShuttingDown, why, message),
        };
        let metadata = &guest.instance.metadata;
        Some(RemainingGuest {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            state,
            reason: why.reason().into(),
            message,
        })
    }
}

/// Returns the situation of a guest and the steps for it.
pub(super) fn situation(guest: &DrainedGuest<'_>, marks: NodeMarks, attempts: Attempts, now: Timestamp) -> Situation {
    let instance = guest.instance;
    let node = instance.node_name();
    let marked = evacuation_request::of(instance);
    let phase = instance.phase();
    if phase.is_some_and(Phase::is_final) {
        // The guest no longer exists. Only a leftover evacuation request can keep the node from being empty.
        return Situation {
            steps: marked.map(|_| unmarking(instance)).into_iter().collect(),
            ..Situation::default()
        };
    }
    if is_finished(instance) {
        let deleted = || EvacuationState::ShuttingDown(EvacuationCause::Deleted, "the guest is being shut down".into());
        return Situation {
            state: (marks != NodeMarks::default() || marked == node).then(deleted),
            requester: marks.own_request(),
            ..Situation::default()
        };
    }
    let before = match (marked, evacuation_request::evacuation(instance)) {
        // The guest has left the node that it was marked to leave.
        (Some(marked), _) if Some(marked) != node => return cancelled(guest, marks),
        (Some(_), Some(evacuation)) if !marks.holds(evacuation.requested_by) => return cancelled(guest, marks),
        // Clients written for KubeVirt set the node only.
        (Some(_), None) => {
            let requester = evacuation_request::requester(marks.cordoned, marks.tainted, marks.in_maintenance);
            return to_be_marked(guest, requester, now);
        }
        (None, _) => return unmarked(guest, marks, now),
        (Some(_), Some(evacuation)) => evacuation.clone(),
    };
    let mut after = counted(&before, guest);
    notice_change(&mut after, guest.circumstances.as_deref());
    if after.requested_by == DrainRequest::Eviction
        && (marks.cordoned || marks.own_request().is_some())
        && is_recent(&after, now)
    {
        after.requested_by = marks.own_request().unwrap_or(DrainRequest::Cordon);
    }
    let (state, wake) = state(guest, &after, attempts, now);
    Situation {
        state: Some(state),
        requester: Some(after.requested_by),
        steps: if after == before {
            Vec::new()
        } else {
            vec![marking(instance, after)]
        },
        wake,
    }
}

fn is_recent(evacuation: &Evacuation, now: Timestamp) -> bool {
    now.duration_since(evacuation.requested_at).unsigned_abs() <= CORDON_SEEN_WITHIN
}

fn marking(instance: &VirtualMachineInstance, evacuation: Evacuation) -> DrainStep {
    DrainStep::Mark {
        namespace: instance.metadata.namespace.clone().unwrap_or_default(),
        name: instance.metadata.name.clone().unwrap_or_default(),
        node: instance.node_name().unwrap_or_default().into(),
        evacuation,
    }
}

fn unmarking(instance: &VirtualMachineInstance) -> DrainStep {
    DrainStep::Unmark {
        namespace: instance.metadata.namespace.clone().unwrap_or_default(),
        name: instance.metadata.name.clone().unwrap_or_default(),
    }
}

/// Returns the situation of an unmarked guest. It gets marked if its node requests all guests to leave.
fn unmarked(guest: &DrainedGuest<'_>, marks: NodeMarks, now: Timestamp) -> Situation {
    let Some(requester) = marks.own_request() else {
        return Situation::default();
    };
    if wants_mark(guest.instance, guest.strategy, guest.made, now) {
        return to_be_marked(guest, requester, now);
    }
    Situation {
        state: Some(stays(guest)),
        requester: Some(requester),
        ..Situation::default()
    }
}

/// Returns the situation of a guest that gets a new evacuation request.
fn to_be_marked(guest: &DrainedGuest<'_>, requester: DrainRequest, now: Timestamp) -> Situation {
    Situation {
        state: Some(EvacuationState::ToBeMarked),
        requester: Some(requester),
        steps: vec![marking(guest.instance, evacuation_request::new(requester, now))],
        wake: None,
    }
}

/// Returns the situation of a guest that nothing requests to leave any more: removes its evacuation request, and cancels
/// migrations that have not begun.
fn cancelled(guest: &DrainedGuest<'_>, marks: NodeMarks) -> Situation {
    let mut steps = vec![unmarking(guest.instance)];
    if marks.own_request().is_none() {
        steps.extend(
            guest
                .migrations
                .iter()
                .filter(|migration| is_queued(migration))
                .map(|migration| {
                    let metadata = &migration.metadata;
                    let instance = guest.key().1.to_owned();
                    DrainStep::Cancel {
                        namespace: metadata.namespace.clone().unwrap_or_default(),
                        instance,
                        name: metadata.name.clone().unwrap_or_default(),
                        uid: metadata.uid.clone().unwrap_or_default(),
                    }
                }),
        );
    }
    Situation {
        steps,
        ..Situation::default()
    }
}

/// Returns whether a migration evacuates a node and has not begun.
fn is_queued(migration: &VirtualMachineInstanceMigration) -> bool {
    let record = MigrationRecord::of(migration);
    MigrationPurpose::of(migration) == MigrationPurpose::Evacuation && !record.is_given_up() && !record.has_sides()
}

/// Returns the state of a guest that nothing requests to leave.
fn unrequested(guest: &DrainedGuest<'_>, now: Timestamp) -> EvacuationState {
    let mut migrations = guest.migrations.iter();
    if let Some(migration) = migrations.find(|migration| !MigrationRecord::of(migration).is_over()) {
        return under_way(migration);
    }
    if wants_mark(guest.instance, guest.strategy, guest.made, now) {
        let message = "no evacuation is requested: a cordon alone moves no guests, kubectl drain does".into();
        return EvacuationState::Waiting(EvacuationCause::NotRequested, message);
    }
    stays(guest)
}

/// Returns the state of a guest that is not to be migrated.
pub(super) fn stays(guest: &DrainedGuest<'_>) -> EvacuationState {
    match (not_migrated(guest), &guest.held_by) {
        (EvacuationState::ShuttingDown(..), Some(pdb)) => EvacuationState::Blocked(
            EvacuationCause::DisruptionBudget,
            format!("the PodDisruptionBudget {pdb} currently allows no eviction of the guest's pod"),
        ),
        (state, _) => state,
    }
}

fn not_migrated(guest: &DrainedGuest<'_>) -> EvacuationState {
    let restarts = falls_back(guest.instance);
    match (guest.strategy, Migratable::of(guest.instance)) {
        (EvictionStrategy::LiveMigrate, Migratable::No { reason, message }) if !restarts => EvacuationState::Blocked(
            EvacuationCause::NotMigratable,
            format!(
                "the guest cannot be migrated ({reason}: {message}); shut the guest down, or annotate the \
                 VirtualMachineInstance with drydock.dev/evacuation-fallback: restart"
            ),
        ),
        (EvictionStrategy::LiveMigrate, Migratable::NotKnown) if !restarts => EvacuationState::Blocked(
            EvacuationCause::NotKnownYet,
            "the node's agent has not reported whether the guest can be migrated".into(),
        ),
        (EvictionStrategy::LiveMigrate | EvictionStrategy::LiveMigrateIfPossible, _) => EvacuationState::ShuttingDown(
            EvacuationCause::Restart,
            "the guest cannot be migrated: it is shut down when its pod is evicted, and started elsewhere if its \
             VirtualMachine requires it"
                .into(),
        ),
        (EvictionStrategy::None | EvictionStrategy::External, _) => EvacuationState::ShuttingDown(
            EvacuationCause::NotProtected,
            "the eviction strategy is None: the guest is shut down when its pod is evicted".into(),
        ),
    }
}

/// Returns the state of a marked guest, and when to evaluate it again.
pub(super) fn state(
    guest: &DrainedGuest<'_>,
    evacuation: &Evacuation,
    attempts: Attempts,
    now: Timestamp,
) -> (EvacuationState, Option<Timestamp>) {
    if let Some(migration) = guest
        .migrations
        .iter()
        .find(|migration| !MigrationRecord::of(migration).is_over())
    {
        return (under_way(migration), None);
    }
    if is_pod_terminating(guest.instance) {
        let message = "the guest's pod is being deleted, which shuts the guest down".into();
        return (
            EvacuationState::ShuttingDown(EvacuationCause::PodTerminating, message),
            None,
        );
    }
    if guest.strategy == EvictionStrategy::External {
        let message = "the eviction strategy is External: a component other than Drydock must move the guest".into();
        return (EvacuationState::Waiting(EvacuationCause::External, message), None);
    }
    match Migratable::of(guest.instance) {
        Migratable::Yes => {}
        Migratable::NotKnown => {
            let end = crate::eviction::grace_end(guest.made).filter(|end| now < *end);
            let message = "the node's agent has not yet reported whether the guest can be migrated".into();
            let state = if end.is_some() {
                EvacuationState::Waiting(EvacuationCause::NotKnownYet, message)
            } else {
                stays(guest)
            };
            return (state, end);
        }
        Migratable::No { .. } => return (stays(guest), None),
    }
    let last = evacuation.last_failure.as_ref();
    let failures = Failures {
        count: evacuation.failures,
        last: last.map(|failure| failure.at),
        outdated: last.is_some_and(|failure| failure.outdated),
    };
    match attempts.next(MigrationPurpose::Evacuation, failures, now) {
        Retry::Go => {}
        Retry::WaitUntil(until) => {
            let message = waits_until(evacuation, attempts, until);
            return (EvacuationState::Waiting(EvacuationCause::BackOff, message), Some(until));
        }
        Retry::GiveUp { sentence, .. } => {
            return (
                EvacuationState::Blocked(EvacuationCause::CannotEvacuate, sentence),
                None,
            );
        }
    }
    drain_target::state(guest, now)
}

/// Returns the human-readable reason and time of the next attempt.
fn waits_until(evacuation: &Evacuation, attempts: Attempts, until: Timestamp) -> String {
    let last = evacuation.last_failure.as_ref();
    let why = match last.map(|failure| (failure.reason.as_deref(), failure.message.as_deref())) {
        Some((Some(reason), Some(message))) => format!("{reason}: {message}"),
        Some((Some(why), None) | (None, Some(why))) => why.to_owned(),
        _ => "no reason reported".into(),
    };
    let failures = evacuation.failures;
    match last {
        Some(last) if last.outdated => format!(
            "{failures} migration attempts have failed ({why}); after a relevant change of nodes, guest or \
             configuration, the next attempt is made at {until}"
        ),
        _ => format!(
            "{failures} of {} migration attempts have failed ({why}); the next attempt is made at {until}, or earlier \
             after a relevant change of nodes, guest or configuration",
            attempts.most
        ),
    }
}

/// Returns the state of a guest with an unfinished migration.
///
/// Once the target pod exists, the message stays constant until the guest has left, unless an agent is late. Progress and
/// target are on the migration; repeating them here would cost one write for each of many guests.
fn under_way(migration: &VirtualMachineInstanceMigration) -> EvacuationState {
    let name = migration.metadata.name.as_deref().unwrap_or_default();
    match waiting(migration) {
        Some(condition) => {
            let reason = condition.reason.clone().unwrap_or_else(|| "Queued".into());
            let message = condition.message.as_deref().unwrap_or_default();
            let message = format!("migration {name} waits: {message}");
            if Waiting::is_refusal(&reason) {
                EvacuationState::Blocked(EvacuationCause::Queued(reason), message)
            } else {
                EvacuationState::Waiting(EvacuationCause::Queued(reason), message)
            }
        }
        None => EvacuationState::Moving(format!("migration {name} is moving the guest")),
    }
}

/// Returns the condition with the reason why a migration waits.
fn waiting(migration: &VirtualMachineInstanceMigration) -> Option<&Condition> {
    let conditions = migration.status.as_ref().map(|status| status.conditions.as_slice());
    find(conditions.unwrap_or_default(), WAITING).filter(|condition| condition.status == ConditionStatus::True.as_str())
}

/// Returns whether the API server refuses the target pod of a migration.
pub(super) fn is_refused(migration: &VirtualMachineInstanceMigration) -> bool {
    let reason = waiting(migration).and_then(|condition| condition.reason.as_deref());
    reason.is_some_and(Waiting::is_refusal)
}

/// Returns the name of the migration for an attempt to evacuate a guest. The same attempt always gets the same name, so
/// that a migration that the controller does not remember is not created twice. `take` counts the names that migrations
/// of other instances already have.
pub fn migration_name(instance: &VirtualMachineInstance, evacuation: Option<&Evacuation>, take: u32) -> String {
    let attempt = evacuation.map(|evacuation| {
        let uid = instance.metadata.uid.as_deref().unwrap_or_default();
        format!("{uid}/{}/{}", evacuation.requested_at, evacuation.failures)
    });
    let identity = format!("{}/{take}", attempt.unwrap_or_default());
    format!("{EVACUATION_PREFIX}{}", launcher_pod::suffix(&identity))
}

/// Returns the evacuation request, updated with all failed evacuation migrations since it was set.
fn counted(mark: &Evacuation, guest: &DrainedGuest<'_>) -> Evacuation {
    let failures = guest.migrations.iter().filter_map(|migration| {
        let name = migration.metadata.name.as_deref().unwrap_or_default();
        Some((failure(migration)?, name))
    });
    let mut failed: Vec<(FailedMigration, &str)> = failures.collect();
    failed.sort_by(|(one, _), (other, _)| (one.at, &one.uid).cmp(&(other.at, &other.uid)));
    let mut counted = mark.clone();
    for (mut failure, name) in failed {
        let is_news = match &counted.last_failure {
            None => failure.at >= counted.requested_at,
            Some(last) => (last.at, &last.uid) < (failure.at, &failure.uid),
        };
        if !is_news {
            // Clocks of replicas differ, so the failure may be new all the same. If it were not counted, the next
            // attempt would get the name of this migration, and could not be created.
            if name != migration_name(guest.instance, Some(&counted), 0) {
                continue;
            }
            // The time is later than that of the last counted failure, so that no failure counts twice.
            let last = counted.last_failure.as_ref();
            failure.at = last.map_or(counted.requested_at, |last| after(last.at, CLOCK_STEP));
        }
        counted.failures = counted.failures.saturating_add(1);
        counted.last_failure = Some(failure);
    }
    counted
}

/// Records whether the circumstances have changed since the last failure. The flag stays set until the next attempt has
/// failed, whatever changes meanwhile: each change ends one wait. If the circumstances of the failed attempt are
/// unknown, the first known ones are recorded for it.
fn notice_change(mark: &mut Evacuation, circumstances: Option<&str>) {
    if let (Some(failure), Some(now)) = (&mut mark.last_failure, circumstances) {
        let then = failure.circumstances.get_or_insert_with(|| now.to_owned());
        failure.outdated |= then != now;
    }
}

/// Returns when and why an evacuation migration has failed by itself; `None` if it was canceled.
fn failure(migration: &VirtualMachineInstanceMigration) -> Option<FailedMigration> {
    let status = migration.status.as_ref()?;
    let is_ours = MigrationPurpose::of(migration) == MigrationPurpose::Evacuation
        && migration.metadata.deletion_timestamp.is_none();
    if !is_ours || status.phase != Some(MigrationPhase::Failed) {
        return None;
    }
    let failed_at = reached_at(migration, MigrationPhase::Failed)?;
    let message = status
        .migration_state
        .as_ref()
        .and_then(|state| state.failure_reason.as_deref());
    let annotations = migration.metadata.annotations.as_ref();
    Some(FailedMigration {
        uid: migration.metadata.uid.clone()?,
        at: failed_at,
        reason: status.reason.clone(),
        message: message.map(|message| message.chars().take(MAX_MESSAGE_CHARS).collect()),
        circumstances: annotations.and_then(|all| all.get(CIRCUMSTANCES).cloned()),
        outdated: false,
    })
}

/// Returns the memory of a guest in bytes; 0 if it is not reported.
pub fn memory(instance: &VirtualMachineInstance) -> u64 {
    let current = instance
        .status
        .as_ref()
        .and_then(|status| status.memory.as_ref()?.guest_current.clone());
    current.and_then(|text| quantity::bytes(&text)).unwrap_or(0)
}
