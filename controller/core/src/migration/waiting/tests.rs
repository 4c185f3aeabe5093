//! Reasons of a wait, their precedence, and when a wait may end without a change.

use serde_json::json;

use super::*;
use crate::migration::queue::WaitReason;

#[test]
fn waiting_condition_names_the_obstacle_of_the_target_pod() {
    let hindrance = |reason: &str, unscheduled| Hindrance {
        reason: reason.into(),
        message: "text".into(),
        unscheduled,
    };
    for (waiting, reason, refused) in [
        (
            Waiting::of_refusal("exceeded quota: q, requested: pods=1"),
            "RejectedByResourceQuota",
            true,
        ),
        (
            Waiting::of_refusal("no PriorityClass with name p was found"),
            "FailedCreate",
            true,
        ),
        (
            Waiting::of_target_pod(&hindrance("Unschedulable", true)),
            "TargetPodUnschedulable",
            false,
        ),
        (
            Waiting::of_target_pod(&hindrance("SchedulingGated", true)),
            "TargetPodUnschedulable",
            false,
        ),
        (
            Waiting::of_target_pod(&hindrance(NOT_SCHEDULED, true)),
            "TargetPodNotScheduled",
            false,
        ),
        (
            Waiting::of_target_pod(&hindrance("ImagePullBackOff", false)),
            "ImagePullBackOff",
            false,
        ),
        (
            Waiting::of_target_pod(&hindrance("FailedMount", false)),
            "FailedMount",
            false,
        ),
    ] {
        assert_eq!(
            (waiting.reason.as_str(), Waiting::is_refusal(&waiting.reason)),
            (reason, refused)
        );
    }
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn rejected(again_at: i64) -> Rejected {
    Rejected {
        again_at: second(again_at),
        count: 2,
        message: "no device".into(),
    }
}

fn starting(hindrance: Option<&str>, wake: Option<i64>) -> StartingPod {
    StartingPod {
        hindrance: hindrance.map(|reason| Hindrance {
            reason: reason.into(),
            message: "text".into(),
            unscheduled: false,
        }),
        wake: wake.map(second),
        wants_events: false,
    }
}

fn deadline(at: i64) -> PhaseDeadline {
    PhaseDeadline {
        at: second(at),
        reason: "TargetPodNotReady",
        sentence: "late".into(),
    }
}

fn awaited(late_from: i64) -> AwaitedAgent {
    AwaitedAgent {
        phase: MigrationPhase::PreparingTarget,
        late_from: second(late_from),
        reason: "TargetNotPrepared",
        message: "late".into(),
    }
}

/// Returns the reason why a migration in this phase waits at second 10.
fn reason(obstacles: Obstacles<'_>, phase: Option<MigrationPhase>) -> Option<String> {
    let record = MigrationRecord {
        phase,
        ..MigrationRecord::default()
    };
    obstacles.waiting(&record, second(10)).map(|waiting| waiting.reason)
}

#[test]
fn migration_waits_for_a_late_agent_once_sides_are_named() {
    use MigrationPhase::{Failed, PreparingTarget, Scheduled, TargetReady};
    let rejected = rejected(9);
    for (name, since, phase, expected) in [
        ("late", 10, PreparingTarget, Some("TargetNotPrepared")),
        ("late for a while", 3, PreparingTarget, Some("TargetNotPrepared")),
        ("not late", 11, PreparingTarget, None),
        ("late in the phase before", 10, TargetReady, None),
        ("late in a migration that fails now", 10, Failed, None),
        ("sides are not named", 10, Scheduled, Some("TargetPodRejected")),
    ] {
        let obstacles = Obstacles {
            rejected: Some(&rejected),
            awaited: Some(&awaited(since)),
            ..Obstacles::default()
        };
        assert_eq!(reason(obstacles, Some(phase)).as_deref(), expected, "{name}");
    }
}

#[test]
fn migration_waits_for_the_first_obstacle_in_order() {
    use MigrationPhase::{Pending, PreparingTarget, Scheduled, Scheduling};
    let queued = Wait {
        reason: WaitReason::ClusterLimit(5),
        place: 3,
    };
    let (rejected, stuck, starts) = (rejected(9), starting(Some("FailedMount"), None), starting(None, None));
    let all = Obstacles {
        refused: Some(("denied", second(9))),
        rejected: Some(&rejected),
        starting: Some(&stuck),
        queued: Some(queued),
        deadline: None,
        awaited: None,
    };
    let not_refused = Obstacles { refused: None, ..all };
    let pod_stuck = Obstacles {
        rejected: None,
        ..not_refused
    };
    let pod_starts = Obstacles {
        starting: Some(&starts),
        ..pod_stuck
    };
    let no_pod = Obstacles {
        starting: None,
        ..pod_stuck
    };
    let granted = Obstacles { queued: None, ..no_pod };
    for (name, obstacles, phase, expected) in [
        ("refused", all, Some(Pending), Some("FailedCreate")),
        ("refused, sides named", all, Some(PreparingTarget), Some("FailedCreate")),
        ("rejected", not_refused, Some(Pending), Some("TargetPodRejected")),
        (
            "rejected, later",
            not_refused,
            Some(Scheduling),
            Some("TargetPodRejected"),
        ),
        ("rejected, sides named", not_refused, Some(PreparingTarget), None),
        ("pod is stuck", pod_stuck, Some(Scheduling), Some("FailedMount")),
        ("pod was stuck", pod_stuck, Some(Scheduled), Some("ClusterLimit")),
        ("phase is not written", pod_stuck, Some(Pending), Some("ClusterLimit")),
        ("pod is stuck, sides named", pod_stuck, Some(PreparingTarget), None),
        ("pod starts", pod_starts, Some(Scheduling), Some("ClusterLimit")),
        ("new", no_pod, None, Some("ClusterLimit")),
        ("queued, sides named", no_pod, Some(PreparingTarget), None),
        ("granted", granted, Some(Scheduled), None),
    ] {
        assert_eq!(reason(obstacles, phase).as_deref(), expected, "{name}");
    }
    let message = |obstacles: Obstacles<'_>| {
        obstacles
            .waiting(&MigrationRecord::default(), second(10))
            .map(|one| one.message)
    };
    assert_eq!(message(no_pod), Some(queued.to_string()));
    let another = "the kubelet rejected the target pod, and another target pod follows (3 of 5): no device";
    assert_eq!(message(not_refused).as_deref(), Some(another));
}

#[test]
fn wait_is_over_at_the_first_time_to_come() {
    let now = second(10);
    for (name, overdue_at, again_at, retry_at, late_at, wake, expected) in [
        ("nothing", None, None, None, None, None, None),
        ("deadline", Some(20), None, None, None, None, Some(20)),
        ("deadline has passed", Some(10), None, None, None, None, None),
        ("rejected", None, Some(11), None, None, None, Some(11)),
        ("next pod is due", None, Some(10), None, None, None, None),
        ("refused", None, None, Some(12), None, None, Some(12)),
        ("retry is due", None, None, Some(10), None, None, None),
        ("pod is checked", None, None, None, None, Some(13), Some(13)),
        ("pod was to be checked", None, None, None, None, Some(9), Some(9)),
        ("agent will be late", Some(20), None, None, Some(11), None, Some(11)),
        ("agent is late", Some(20), None, None, Some(10), None, Some(20)),
        ("all", Some(20), Some(15), Some(14), None, Some(13), Some(13)),
        ("those to come", Some(20), Some(9), Some(10), None, None, Some(20)),
    ] {
        let (deadline, rejected) = (overdue_at.map(deadline), again_at.map(rejected));
        let awaited = late_at.map(awaited);
        let pod = starting(None, wake);
        let obstacles = Obstacles {
            refused: retry_at.map(|at| ("denied", second(at))),
            rejected: rejected.as_ref(),
            starting: Some(&pod),
            queued: None,
            deadline: deadline.as_ref(),
            awaited: awaited.as_ref(),
        };
        assert_eq!(obstacles.reconcile_at(now), expected.map(second), "{name}");
    }
}

#[test]
fn reported_wait_is_that_of_the_condition() {
    let reported = |status: serde_json::Value| {
        let migration = json!({"metadata": {"name": "m"}, "spec": {"vmiName": "vm"}, "status": status});
        Waiting::reported(&serde_json::from_value(migration).unwrap()).map(|one| (one.reason, one.message))
    };
    let condition =
        |type_: &str| json!({"conditions": [{"type": type_, "status": "True", "reason": "R", "message": "m"}]});
    assert_eq!(reported(json!(null)), None);
    assert_eq!(reported(condition("PostCopy")), None);
    assert_eq!(reported(condition("Waiting")), Some(("R".into(), "m".into())));
    let bare = json!({"conditions": [{"type": "Waiting", "status": "True"}]});
    assert_eq!(reported(bare), Some((String::new(), String::new())));
}
