//! Reconciliation of one VirtualMachineInstanceReplicaSet: which instances are created and deleted so that the desired
//! number exists.
//!
//! ```text
//!  its instances ─┬─ label changed: released ───────────▶ no owner
//!                 ├─ ended, or being deleted ───────────▶ do not count; the ended are deleted
//!                 │    └─ never ran, just now ──────────▶ holds its slot for a while
//!                 └─ active ─── too many ──▶ the least useful are deleted
//!                           └── too few ───▶ some are created, at most 250 at a time
//! ```
//!
//! Names are derived from the set's name in a fixed order, so that a controller with stale caches creates no instance
//! twice: the API server refuses a second one of the same name. And live instances are only deleted according to the
//! API server's own state: a cache may still have an old, smaller replica count, or a surplus instance that another
//! controller has deleted since.

mod ranking;

use std::sync::Arc;

use drydock_api::kubevirt::{
    Condition, Phase, VirtualMachineInstance, VirtualMachineInstanceReplicaSet,
    names::{
        conditions as types,
        reasons::{EVICTED, EVICTED_BY_KUBELET},
    },
    replica_set::VirtualMachineInstanceReplicaSetStatus,
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    conditions::ConditionStatus,
    label_selector::{Invalid, Selector},
    launcher_pod::cut,
    machine::{
        MachineEvent,
        instance_of::{fingerprint, of_template, owner},
        reached_running,
    },
    vm_conditions::{condition, find, holds, is_pod_terminating},
};

/// Maximum number of instances that are created at a time, and of instances that are deleted at a time (KubeVirt's
/// value).
pub const BURST: usize = 250;

/// Delay between the end of an instance whose guest never ran and its replacement: otherwise an instance that cannot
/// start would be recreated continuously.
pub const REPLACED_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// The controller's observations of a replica set.
#[derive(Clone, Copy)]
pub struct ObservedReplicaSet<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The set.
    pub set: &'a VirtualMachineInstanceReplicaSet,
    /// The instances that the set controls.
    pub instances: &'a [Arc<VirtualMachineInstance>],
    /// Returns whether this process has deleted the instance with this UID, although the cache does not show that
    /// yet.
    pub is_deleted: &'a dyn Fn(&str) -> bool,
    /// Returns whether an instance of this name exists in the set's namespace, whatever its owner.
    pub is_taken: &'a dyn Fn(&str) -> bool,
    /// Whether the set and its instances were read from the API server itself.
    pub confirmed: bool,
    /// The failed request, if one was attempted and failed.
    pub failure: Option<&'a FailedRequest>,
}

/// A failed request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// The kind of the request.
    pub tried: Tried,
    /// The API server's message.
    pub message: String,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tried {
    /// Creation of an instance.
    Create,
    /// Deletion of an instance.
    Delete,
}

/// Why a set creates no instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CreationRefusal {
    /// The selector is invalid.
    InvalidSelector,
    /// The selector would not match the created instances.
    SelectorDoesNotMatchTemplate,
    /// The API server refused to create an instance.
    FailedCreate,
    /// The API server refused to delete an instance.
    FailedDelete,
}

impl CreationRefusal {
    /// All refusals.
    pub const ALL: [Self; 4] = [
        Self::InvalidSelector,
        Self::SelectorDoesNotMatchTemplate,
        Self::FailedCreate,
        Self::FailedDelete,
    ];

    /// Returns the reason for the condition `ReplicaFailure` and for the event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::InvalidSelector => "InvalidSelector",
            Self::SelectorDoesNotMatchTemplate => "SelectorDoesNotMatchTemplate",
            Self::FailedCreate => "FailedCreate",
            Self::FailedDelete => "FailedDelete",
        }
    }
}

/// The actions, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaSetPlan {
    /// Whether the set and its instances have to be read from the API server itself before anything is done.
    pub confirm: bool,
    /// Instances that the set no longer controls.
    pub release: Vec<ReplicaName>,
    /// Instances to delete.
    pub delete: Vec<ReplicaName>,
    /// Names of instances to create; [`instance_of`] returns the objects.
    pub create: Vec<String>,
    /// The status to write; `None` if it needs no change.
    pub status: Option<VirtualMachineInstanceReplicaSetStatus>,
    /// Events on the set.
    pub events: Vec<MachineEvent>,
    /// When to reconcile again if nothing changes before.
    pub wake: Option<Timestamp>,
}

/// Name and UID of an instance of the set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaName {
    /// Name of the instance.
    pub name: String,
    /// UID of the instance, which is a precondition.
    pub uid: String,
}

impl ReplicaName {
    fn of(instance: &VirtualMachineInstance) -> Self {
        Self {
            name: instance.metadata.name.clone().unwrap_or_default(),
            uid: instance.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// Returns the instance with this name that a set creates.
pub fn instance_of(set: &VirtualMachineInstanceReplicaSet, name: &str) -> VirtualMachineInstance {
    let mut instance = of_template(&set.spec.template);
    let owner_name = set.metadata.name.clone().unwrap_or_default();
    instance.metadata.name = Some(name.into());
    instance.metadata.namespace.clone_from(&set.metadata.namespace);
    instance.metadata.owner_references = Some(vec![owner(
        "VirtualMachineInstanceReplicaSet",
        owner_name,
        set.metadata.uid.clone(),
    )]);
    instance
}

/// Plans the actions for a replica set.
pub fn plan(observed: &ObservedReplicaSet<'_>) -> ReplicaSetPlan {
    let set = observed.set;
    let selector = match usable_selector(set) {
        Ok(selector) => selector,
        Err((refusal, message)) => return refused(observed, refusal, &message),
    };
    let mut parts = SetMembers::of(observed, &selector);
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let mut plan = ReplicaSetPlan::default();
    let still = set.metadata.deletion_timestamp.is_some() || set.spec.paused == Some(true);
    if !still {
        plan.release = parts
            .strangers
            .iter()
            .map(|instance| ReplicaName::of(instance))
            .collect();
        plan.delete = parts.ended.iter().map(|instance| ReplicaName::of(instance)).collect();
        let counted = parts.active.len() + parts.held.len();
        // Of a surplus, instances that have ended and only hold a slot go first.
        let surplus = parts.active.len().saturating_sub(wanted);
        let held = parts.held.len().min(counted.saturating_sub(wanted));
        if surplus > 0 && !observed.confirmed {
            return ReplicaSetPlan {
                confirm: true,
                ..ReplicaSetPlan::default()
            };
        }
        plan.delete.extend(
            parts
                .held
                .iter()
                .take(held)
                .map(|(instance, _)| ReplicaName::of(instance)),
        );
        if surplus > 0 {
            parts.active.sort_by_cached_key(|instance| ranking::rank(instance));
            plan.delete.extend(
                parts
                    .active
                    .iter()
                    .take(surplus)
                    .map(|instance| ReplicaName::of(instance)),
            );
        }
        plan.delete.truncate(BURST);
        let missing = wanted.saturating_sub(counted).min(BURST);
        plan.create = free_names(set, observed.is_taken).take(missing).collect();
        plan.wake = parts.held.iter().skip(held).map(|(_, until)| *until).min();
    }
    let status = status(observed, &selector, &parts);
    let before = set.status.clone().unwrap_or_default();
    plan.events = events(&before, &status);
    plan.status = (before != status).then_some(status);
    plan
}

/// Returns the selector, if it is valid and matches the created instances.
fn usable_selector(set: &VirtualMachineInstanceReplicaSet) -> Result<Selector<'_>, (CreationRefusal, String)> {
    let selector =
        Selector::new(&set.spec.selector).map_err(|Invalid(message)| (CreationRefusal::InvalidSelector, message))?;
    let labels = set
        .spec
        .template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.as_ref());
    if selector.matches(labels) {
        return Ok(selector);
    }
    let message =
        format!("spec.template.metadata.labels do not match spec.selector ({selector}): no instances are created");
    Err((CreationRefusal::SelectorDoesNotMatchTemplate, message))
}

/// Returns the plan for a set with an invalid spec: nothing is done, and the status reports why.
fn refused(observed: &ObservedReplicaSet<'_>, refusal: CreationRefusal, message: &str) -> ReplicaSetPlan {
    let before = observed.set.status.clone().unwrap_or_default();
    let mut status = before.clone();
    status.conditions = vec![condition(
        &before.conditions,
        types::REPLICA_FAILURE,
        ConditionStatus::True,
        refusal.reason(),
        message,
        observed.now,
    )];
    ReplicaSetPlan {
        events: events(&before, &status),
        status: (before != status).then_some(status),
        ..ReplicaSetPlan::default()
    }
}

/// The instances of a set, by their state.
struct SetMembers<'a> {
    /// Instances whose labels no longer match.
    strangers: Vec<&'a VirtualMachineInstance>,
    /// Instances whose guests have ended.
    ended: Vec<&'a VirtualMachineInstance>,
    /// Instances that ended recently without ever running; each holds its slot until the time.
    held: Vec<(&'a VirtualMachineInstance, Timestamp)>,
    /// Instances that run, or will run.
    active: Vec<&'a VirtualMachineInstance>,
}

impl<'a> SetMembers<'a> {
    fn of(observed: &ObservedReplicaSet<'a>, selector: &Selector<'_>) -> Self {
        let mut parts = Self {
            strangers: Vec::new(),
            ended: Vec::new(),
            held: Vec::new(),
            active: Vec::new(),
        };
        for instance in observed.instances {
            let uid = instance.metadata.uid.as_deref().unwrap_or_default();
            if instance.metadata.deletion_timestamp.is_some() || (observed.is_deleted)(uid) {
                continue;
            }
            if !selector.matches(instance.metadata.labels.as_ref()) {
                parts.strangers.push(instance);
                continue;
            }
            match instance.phase() {
                Some(phase) if phase.is_final() => match held_until(instance, phase) {
                    Some(until) if until > observed.now => parts.held.push((instance, until)),
                    _ => parts.ended.push(instance),
                },
                _ if is_pod_terminating(instance) => {}
                _ => parts.active.push(instance),
            }
        }
        parts
    }
}

fn conditions_of(instance: &VirtualMachineInstance) -> &[Condition] {
    instance.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// Returns until when an ended instance holds its slot; `None` if its guest ran, or if it was evicted.
fn held_until(instance: &VirtualMachineInstance, last: Phase) -> Option<Timestamp> {
    let status = instance.status.as_ref()?;
    let was_evicted = [EVICTED, EVICTED_BY_KUBELET]
        .map(Some)
        .contains(&status.reason.as_deref());
    if reached_running(instance) || was_evicted {
        return None;
    }
    let transitions = &status.phase_transition_timestamps;
    let ended = transitions.iter().find(|transition| transition.phase == last)?;
    ended.phase_transition_timestamp.checked_add(REPLACED_AFTER).ok()
}

/// Maximum length of the part of a member's name that comes from its set: instance names become label values, which
/// are limited to 63 characters, and a hyphen and the member's own six take part of them.
const LONGEST_BASE: usize = 63 - 7;

/// Yields the free names of the set, in a fixed order.
fn free_names<'a>(
    set: &'a VirtualMachineInstanceReplicaSet,
    is_taken: &'a dyn Fn(&str) -> bool,
) -> impl Iterator<Item = String> + 'a {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let base = cut(name, LONGEST_BASE);
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    (0u32..)
        .map(move |index| format!("{base}-{}", suffix(fingerprint(format!("{uid}/{index}").as_bytes()))))
        .filter(move |name| !is_taken(name))
}

/// Returns six letters and digits of those that Kubernetes uses for generated names: no vowels, no look-alikes.
fn suffix(mut number: u64) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // The lowest bits of the fingerprint vary least.
    number ^= number >> 32;
    (0..6)
        .map(|_| {
            let letter = usize::try_from(number % 27).map_or(b'x', |index| LETTERS[index]);
            number /= 27;
            char::from(letter)
        })
        .collect()
}

fn status(
    observed: &ObservedReplicaSet<'_>,
    selector: &Selector<'_>,
    parts: &SetMembers<'_>,
) -> VirtualMachineInstanceReplicaSetStatus {
    let before = observed.set.status.clone().unwrap_or_default();
    let new_condition = |type_: &str, reason: &str, message: &str| {
        condition(
            &before.conditions,
            type_,
            ConditionStatus::True,
            reason,
            message,
            observed.now,
        )
    };
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let ready = |instance: &&&VirtualMachineInstance| holds(conditions_of(instance), types::READY);
    let mut conditions = Vec::new();
    let wanted = observed.set.spec.replicas.unwrap_or(1);
    let complete = count(parts.active.len()) == wanted;
    match observed.failure {
        Some(failure) => {
            let refusal = match failure.tried {
                Tried::Create => CreationRefusal::FailedCreate,
                Tried::Delete => CreationRefusal::FailedDelete,
            };
            conditions.push(new_condition(
                types::REPLICA_FAILURE,
                refusal.reason(),
                &failure.message,
            ));
        }
        // Until the wanted number exists, the last failure stays reported.
        None if !complete => {
            let reported =
                [CreationRefusal::FailedCreate, CreationRefusal::FailedDelete].map(|refusal| Some(refusal.reason()));
            let failure = find(&before.conditions, types::REPLICA_FAILURE);
            conditions.extend(
                failure
                    .filter(|failure| reported.contains(&failure.reason.as_deref()))
                    .cloned(),
            );
        }
        None => {}
    }
    if observed.set.spec.paused == Some(true) {
        conditions.push(new_condition(
            types::REPLICA_PAUSED,
            "Paused",
            "no instances are created or deleted",
        ));
    }
    VirtualMachineInstanceReplicaSetStatus {
        replicas: count(parts.active.len()),
        ready_replicas: count(parts.active.iter().filter(ready).count()),
        label_selector: Some(selector.to_string()),
        conditions,
    }
}

/// Returns the events for the changes in this plan.
fn events(
    before: &VirtualMachineInstanceReplicaSetStatus,
    after: &VirtualMachineInstanceReplicaSetStatus,
) -> Vec<MachineEvent> {
    let failure = |status: &VirtualMachineInstanceReplicaSetStatus| {
        find(&status.conditions, types::REPLICA_FAILURE)
            .map(|failure| (failure.reason.clone(), failure.message.clone()))
    };
    let (Some((reason, message)), old) = (failure(after), failure(before)) else {
        return Vec::new();
    };
    let refusal = CreationRefusal::ALL
        .into_iter()
        .find(|refusal| reason.as_deref() == Some(refusal.reason()));
    match refusal {
        Some(refusal) if old != Some((reason, message.clone())) => vec![MachineEvent {
            warning: true,
            reason: refusal.reason(),
            message: message.unwrap_or_default(),
        }],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
