//! Conditions of virtual machines whose transition time changes only with their status.
//!
//! KubeVirt's conditions have an optional reason and message, so they have a type of their own, distinct from that of
//! [`crate::conditions`].

use drydock_api::kubevirt::{Condition, VirtualMachineInstance, names::conditions::READY};
use jiff::Timestamp;

use crate::conditions::{ConditionStatus, whole_seconds};

/// Returns the condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns whether the condition of this type is `True`.
pub fn holds(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == ConditionStatus::True.as_str())
}

/// Reason of an instance's condition `Ready`: its pod is being deleted, which shuts the guest down. KubeVirt's name.
pub const POD_TERMINATING: &str = "PodTerminating";

/// Returns whether the pod of an instance is being deleted, which shuts its guest down.
pub fn is_pod_terminating(instance: &VirtualMachineInstance) -> bool {
    let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice());
    find(conditions.unwrap_or_default(), READY).is_some_and(|ready| {
        ready.status == ConditionStatus::False.as_str() && ready.reason.as_deref() == Some(POD_TERMINATING)
    })
}

/// Returns a condition in its current state. Its transition time is that of `previous` if the status is the same. An
/// empty reason or message is omitted.
pub fn condition(
    previous: &[Condition],
    type_: &str,
    status: ConditionStatus,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> Condition {
    let since = find(previous, type_)
        .filter(|before| before.status == status.as_str())
        .and_then(|before| before.last_transition_time)
        .unwrap_or_else(|| whole_seconds(now).0);
    let non_empty = |text: String| (!text.is_empty()).then_some(text);
    Condition {
        type_: type_.into(),
        status: status.as_str().into(),
        reason: non_empty(reason.into()),
        message: non_empty(message.into()),
        last_transition_time: Some(since),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_moves_with_the_status_only() {
        let early: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
        let late: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let first = condition(&[], "Ready", ConditionStatus::False, "A", "", early);
        assert_eq!(first.message, None);
        let second = condition(
            std::slice::from_ref(&first),
            "Ready",
            ConditionStatus::False,
            "B",
            "b",
            late,
        );
        assert_eq!(second.last_transition_time, first.last_transition_time);
        assert_eq!(second.reason.as_deref(), Some("B"));
        let third = condition(&[second], "Ready", ConditionStatus::True, "", "", late);
        assert_eq!((third.last_transition_time, third.reason), (Some(late), None));
    }
}
