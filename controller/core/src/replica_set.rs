//! What the controller does about one VirtualMachineInstanceReplicaSet: which instances are made
//! and deleted so that there are as many as wanted.
//!
//! ```text
//!  its instances ─┬─ label changed: let go ─────────────▶ nobody's
//!                 ├─ ended, or being deleted ───────────▶ do not count; the ended are deleted
//!                 │    └─ never ran, just now ──────────▶ holds its place for a while
//!                 └─ active ─── too many ──▶ the least useful are deleted
//!                           └── too few ───▶ some are made, at most 250 at a time
//! ```
//!
//! Names follow from the set, one after the other, so that a controller whose caches are behind
//! makes none twice: the API server refuses a second one of the name. And what may live is only deleted
//! by what the API server itself says: a cache may show a smaller number from before, or an instance too
//! many that another controller has deleted since.

mod ranking;
pub mod selector;

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
    conditions::Status,
    launcher_pod::cut,
    machine::{
        Event,
        instance_of::{fingerprint, of_template, owner},
        reached_running,
    },
    vm_conditions::{condition, find, holds},
};
use selector::{Invalid, Selector};

/// At most so many instances are made, and as many deleted, at a time (KubeVirt's number).
pub const BURST: usize = 250;

/// An instance that ended before its guest ran is replaced so long after its end: one that cannot
/// start would otherwise be made anew without rest.
pub const REPLACED_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// Reason of the condition `Ready` of an instance whose pod is on its way out.
const POD_TERMINATING: &str = "PodTerminating";

/// What the controller sees of a replica set.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// The time.
    pub now: Timestamp,
    /// The set.
    pub set: &'a VirtualMachineInstanceReplicaSet,
    /// The instances that it controls.
    pub instances: &'a [Arc<VirtualMachineInstance>],
    /// Whether an instance with this UID was deleted by us, though that cannot be seen yet.
    pub is_deleted: &'a dyn Fn(&str) -> bool,
    /// Whether there is an instance of this name in the set's namespace, whoever it belongs to.
    pub is_taken: &'a dyn Fn(&str) -> bool,
    /// The API server itself was asked for the set and its instances.
    pub confirmed: bool,
    /// What the API server did not do, if something was tried.
    pub failure: Option<&'a Failure>,
}

/// What the API server did not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was tried.
    pub tried: Tried,
    /// What it said.
    pub message: String,
}

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tried {
    /// To make an instance.
    Create,
    /// To delete one.
    Delete,
}

/// Why a set makes no instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The selector cannot be understood.
    InvalidSelector,
    /// What is made would not be counted.
    SelectorDoesNotMatchTemplate,
    /// The API server did not make one.
    FailedCreate,
    /// The API server did not delete one.
    FailedDelete,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::InvalidSelector,
        Self::SelectorDoesNotMatchTemplate,
        Self::FailedCreate,
        Self::FailedDelete,
    ];

    /// The reason of the condition `ReplicaFailure` and of the event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::InvalidSelector => "InvalidSelector",
            Self::SelectorDoesNotMatchTemplate => "SelectorDoesNotMatchTemplate",
            Self::FailedCreate => "FailedCreate",
            Self::FailedDelete => "FailedDelete",
        }
    }
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The API server itself has to be asked for the set and its instances before anything is done.
    pub confirm: bool,
    /// Instances that the set controls no longer.
    pub release: Vec<Target>,
    /// Instances that are deleted.
    pub delete: Vec<Target>,
    /// Instances that are made, by name; [`instance_of`] says what they are.
    pub create: Vec<String>,
    /// The status; `None` if it is as it should be.
    pub status: Option<VirtualMachineInstanceReplicaSetStatus>,
    /// Events on the set.
    pub events: Vec<Event>,
    /// When to look again, if nothing changes before.
    pub wake: Option<Timestamp>,
}

/// One instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its UID, which is a precondition.
    pub uid: String,
}

impl Target {
    fn of(instance: &VirtualMachineInstance) -> Self {
        Self {
            name: instance.metadata.name.clone().unwrap_or_default(),
            uid: instance.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// The instance of this name that a set makes.
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

/// What is to be done about a replica set.
pub fn plan(observed: &Observed<'_>) -> Plan {
    let set = observed.set;
    let selector = match usable_selector(set) {
        Ok(selector) => selector,
        Err((refusal, message)) => return refused(observed, refusal, &message),
    };
    let mut parts = Parts::of(observed, &selector);
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let mut plan = Plan::default();
    let still = set.metadata.deletion_timestamp.is_some() || set.spec.paused == Some(true);
    if !still {
        plan.release = parts.strangers.iter().map(|instance| Target::of(instance)).collect();
        plan.delete = parts.ended.iter().map(|instance| Target::of(instance)).collect();
        let counted = parts.active.len() + parts.held.len();
        // Those that hold a place are the first to give it up.
        let surplus = parts.active.len().saturating_sub(wanted);
        let held = parts.held.len().min(counted.saturating_sub(wanted));
        if surplus > 0 && !observed.confirmed {
            return Plan {
                confirm: true,
                ..Plan::default()
            };
        }
        plan.delete
            .extend(parts.held.iter().take(held).map(|(instance, _)| Target::of(instance)));
        if surplus > 0 {
            parts.active.sort_by_cached_key(|instance| ranking::rank(instance));
            plan.delete
                .extend(parts.active.iter().take(surplus).map(|instance| Target::of(instance)));
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

/// The selector, if it can be understood and counts what the set makes.
fn usable_selector(set: &VirtualMachineInstanceReplicaSet) -> Result<Selector<'_>, (Refusal, String)> {
    let selector = Selector::new(&set.spec.selector).map_err(|Invalid(message)| (Refusal::InvalidSelector, message))?;
    let labels = set
        .spec
        .template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.as_ref());
    if selector.matches(labels) {
        return Ok(selector);
    }
    let message = format!("spec.template.metadata.labels do not match spec.selector ({selector}): nothing is made");
    Err((Refusal::SelectorDoesNotMatchTemplate, message))
}

/// A set that cannot be carried out as it is written: nothing is done, and it says why.
fn refused(observed: &Observed<'_>, refusal: Refusal, message: &str) -> Plan {
    let before = observed.set.status.clone().unwrap_or_default();
    let mut status = before.clone();
    status.conditions = vec![condition(
        &before.conditions,
        types::REPLICA_FAILURE,
        Status::True,
        refusal.reason(),
        message,
        observed.now,
    )];
    Plan {
        events: events(&before, &status),
        status: (before != status).then_some(status),
        ..Plan::default()
    }
}

/// The instances of a set, by what they are to it.
struct Parts<'a> {
    /// Their labels do not match any more.
    strangers: Vec<&'a VirtualMachineInstance>,
    /// Their guests have ended.
    ended: Vec<&'a VirtualMachineInstance>,
    /// Ended just now without ever running; each holds its place until then.
    held: Vec<(&'a VirtualMachineInstance, Timestamp)>,
    /// They run, or will.
    active: Vec<&'a VirtualMachineInstance>,
}

impl<'a> Parts<'a> {
    fn of(observed: &Observed<'a>, selector: &Selector<'_>) -> Self {
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
            match phase(instance) {
                Some(phase) if phase.is_final() => match held_until(instance, phase) {
                    Some(until) if until > observed.now => parts.held.push((instance, until)),
                    _ => parts.ended.push(instance),
                },
                _ if is_terminating(instance) => {}
                _ => parts.active.push(instance),
            }
        }
        parts
    }
}

fn phase(instance: &VirtualMachineInstance) -> Option<Phase> {
    instance.status.as_ref()?.phase
}

fn conditions_of(instance: &VirtualMachineInstance) -> &[Condition] {
    instance.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// Whether its pod is on its way out, so that it will end.
fn is_terminating(instance: &VirtualMachineInstance) -> bool {
    find(conditions_of(instance), types::READY)
        .is_some_and(|ready| ready.status == "False" && ready.reason.as_deref() == Some(POD_TERMINATING))
}

/// Until when an instance that has ended holds its place; `None` if its guest ran, or if nothing
/// is wrong with it.
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

/// What a member's name keeps of its set's: names of instances become labels, which hold 63 characters, a hyphen and
/// the member's own six among them.
const LONGEST_BASE: usize = 63 - 7;

/// Names of the set that are free, in a fixed order.
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

/// Six letters and digits that Kubernetes uses for such names: no vowels, nothing that looks like
/// another.
fn suffix(mut number: u64) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    // The lowest bits of the fingerprint differ least.
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
    observed: &Observed<'_>,
    selector: &Selector<'_>,
    parts: &Parts<'_>,
) -> VirtualMachineInstanceReplicaSetStatus {
    let before = observed.set.status.clone().unwrap_or_default();
    let say = |type_: &str, reason: &str, message: &str| {
        condition(&before.conditions, type_, Status::True, reason, message, observed.now)
    };
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let ready = |instance: &&&VirtualMachineInstance| holds(conditions_of(instance), types::READY);
    let mut conditions = Vec::new();
    let wanted = observed.set.spec.replicas.unwrap_or(1);
    let complete = count(parts.active.len()) == wanted;
    match observed.failure {
        Some(failure) => {
            let refusal = match failure.tried {
                Tried::Create => Refusal::FailedCreate,
                Tried::Delete => Refusal::FailedDelete,
            };
            conditions.push(say(types::REPLICA_FAILURE, refusal.reason(), &failure.message));
        }
        // Until there are as many as wanted, the last failure is what there is to say.
        None if !complete => {
            let told = [Refusal::FailedCreate, Refusal::FailedDelete].map(|refusal| Some(refusal.reason()));
            let failure = find(&before.conditions, types::REPLICA_FAILURE);
            conditions.extend(
                failure
                    .filter(|failure| told.contains(&failure.reason.as_deref()))
                    .cloned(),
            );
        }
        None => {}
    }
    if observed.set.spec.paused == Some(true) {
        conditions.push(say(types::REPLICA_PAUSED, "Paused", "nothing is made or deleted"));
    }
    VirtualMachineInstanceReplicaSetStatus {
        replicas: count(parts.active.len()),
        ready_replicas: count(parts.active.iter().filter(ready).count()),
        label_selector: Some(selector.to_string()),
        conditions,
    }
}

/// Events for what changes with this plan.
fn events(
    before: &VirtualMachineInstanceReplicaSetStatus,
    after: &VirtualMachineInstanceReplicaSetStatus,
) -> Vec<Event> {
    let failure = |status: &VirtualMachineInstanceReplicaSetStatus| {
        find(&status.conditions, types::REPLICA_FAILURE)
            .map(|failure| (failure.reason.clone(), failure.message.clone()))
    };
    let (Some((reason, message)), old) = (failure(after), failure(before)) else {
        return Vec::new();
    };
    let refusal = Refusal::ALL
        .into_iter()
        .find(|refusal| reason.as_deref() == Some(refusal.reason()));
    match refusal {
        Some(refusal) if old != Some((reason, message.clone())) => vec![Event {
            warning: true,
            reason: refusal.reason(),
            message: message.unwrap_or_default(),
        }],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
