//! Target pods that were rejected by their kubelet.
//!
//! The scheduler knows a node only from its kubelet's last status update. For a few seconds after a device plugin, a
//! static pod or the kubelet itself has started, pods are bound to a node whose kubelet does not admit them
//! (`UnexpectedAdmissionError`, `OutOfcpu`, `OutOfpods` and others). Such a pod fails before any of its containers
//! exists, and the guest is not affected: the migration gets another pod.
//!
//! | newest pod | rejected pods | the migration |
//! |---|---|---|
//! | not rejected | any number | continues with that pod |
//! | rejected | fewer than [`ATTEMPTS`] | gets another pod after [`pause`] |
//! | rejected | [`ATTEMPTS`] | fails with the kubelet's message |
//!
//! The rejected pods themselves are the counter, so every leading controller gets the same result.

use std::{sync::Arc, time::Duration};

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::target_pods::{pod_of, pods_of};
use crate::instance::ending::rejection;

/// Maximum number of rejected target pods of a migration. With [`pause`] the last one is created 15 s after the first
/// rejection at the earliest: a kubelet corrects its node's status within 10 s (its `nodeStatusUpdateFrequency`).
pub const ATTEMPTS: usize = 5;

/// Reason of a wait: the kubelet rejected the target pod, and another pod is created.
pub const TARGET_POD_REJECTED: &str = "TargetPodRejected";

/// The newest target pod was rejected, and another may be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// When the next pod may be created.
    pub again_at: Timestamp,
    /// Number of pods rejected so far.
    pub count: usize,
    /// The kubelet's message for the newest rejected pod.
    pub message: String,
}

/// Returns how long to wait before the next target pod after `count` rejections: 1, 2, 4 and 8 seconds.
pub fn pause(count: usize) -> Duration {
    let doublings = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
    Duration::from_secs(1_u64.checked_shl(doublings).unwrap_or(u64::MAX))
}

/// Returns the number of rejected target pods of a migration.
pub fn count(migration: &VirtualMachineInstanceMigration, pods: &[Arc<Pod>]) -> usize {
    pods_of(migration, pods).filter(|pod| rejection(pod).is_some()).count()
}

/// Returns the rejection after which a migration waits for another target pod; `None` also after the last attempt.
pub fn rejected(migration: &VirtualMachineInstanceMigration, pods: &[Arc<Pod>]) -> Option<Rejected> {
    let count = count(migration, pods);
    if !(1..ATTEMPTS).contains(&count) {
        return None;
    }
    let made = |pod: &Arc<Pod>| pod.metadata.creation_timestamp.as_ref().map(|made| made.0);
    let newest = pods_of(migration, pods).max_by_key(|pod| (rejection(pod).is_none(), made(pod)))?;
    Some(Rejected {
        again_at: made(newest)?.checked_add(pause(count)).ok()?,
        count,
        message: rejection(newest)?,
    })
}

/// Returns whether a migration has a target pod, and waits for no other after a rejection.
pub fn has_pod(migration: &VirtualMachineInstanceMigration, pods: &[Arc<Pod>]) -> bool {
    pod_of(migration, pods).is_some() && rejected(migration, pods).is_none()
}

/// Returns whether a target pod may be created: the queue has granted it, and the pause after the `last` rejection, if
/// there was one, is over.
pub fn may_create(is_granted: bool, last: Option<&Rejected>, now: Timestamp) -> bool {
    is_granted && last.is_none_or(|rejected| rejected.again_at <= now)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::launcher_pod::MIGRATION_UID;

    fn migration() -> VirtualMachineInstanceMigration {
        serde_json::from_value(json!({"metadata": {"name": "m", "uid": "u"}, "spec": {"vmiName": "vm"}})).unwrap()
    }

    fn pod(of: &str, second: u8, status: &Value) -> Arc<Pod> {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": {MIGRATION_UID: of},
                "creationTimestamp": format!("2026-01-01T00:00:0{second}Z")},
            "status": status,
        }))
        .map(Arc::new)
        .unwrap()
    }

    fn no_device() -> Value {
        json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"})
    }

    #[test]
    fn rejected_pods_are_replaced_up_to_a_limit() {
        let comes = json!({"phase": "Pending"});
        let first = pod("u", 0, &no_device());
        let second = pod("u", 2, &no_device());
        let others = pod("v", 1, &no_device());
        let at = |text: &str| {
            Some((
                text.parse::<Timestamp>().unwrap(),
                "UnexpectedAdmissionError: no device".to_owned(),
            ))
        };
        for (what, pods, expected) in [
            ("no pod", vec![], None),
            ("it comes", vec![pod("u", 0, &comes)], None),
            ("one", vec![first.clone()], at("2026-01-01T00:00:01Z")),
            (
                "two, the newest counts",
                vec![second.clone(), first.clone()],
                at("2026-01-01T00:00:04Z"),
            ),
            (
                "another migration's",
                vec![others, first.clone()],
                at("2026-01-01T00:00:01Z"),
            ),
            ("another has been made", vec![first.clone(), pod("u", 1, &comes)], None),
            ("the last", vec![first.clone(); ATTEMPTS], None),
        ] {
            let found = rejected(&migration(), &pods).map(|found| (found.again_at, found.message));
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn target_pod_is_present_unless_another_follows() {
        let comes = json!({"phase": "Pending"});
        let rejected = || pod("u", 0, &no_device());
        for (what, pods, expected) in [
            ("no pod", vec![], false),
            ("another migration's", vec![pod("v", 0, &comes)], false),
            ("starts", vec![pod("u", 0, &comes)], true),
            ("rejected", vec![rejected()], false),
            ("follows a rejected one", vec![rejected(), pod("u", 1, &comes)], true),
            ("the last was rejected", vec![rejected(); ATTEMPTS], true),
        ] {
            assert_eq!(has_pod(&migration(), &pods), expected, "{what}");
        }
    }

    #[test]
    fn pod_is_created_when_granted_and_after_the_pause() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let rejected = Rejected {
            again_at: at(10),
            count: 1,
            message: String::new(),
        };
        for (is_granted, last, now, expected) in [
            (true, None, 9, true),
            (true, Some(&rejected), 9, false),
            (true, Some(&rejected), 10, true),
            (false, None, 9, false),
            (false, Some(&rejected), 10, false),
        ] {
            assert_eq!(
                may_create(is_granted, last, at(now)),
                expected,
                "{is_granted} {last:?} {now}"
            );
        }
    }

    #[test]
    fn pause_doubles_without_overflow() {
        for (count, seconds) in [
            (0, 1),
            (1, 1),
            (2, 2),
            (4, 8),
            (64, 1 << 63),
            (65, u64::MAX),
            (1000, u64::MAX),
        ] {
            assert_eq!(pause(count), Duration::from_secs(seconds), "{count}");
        }
    }
}
