//! The detail of each failure, and which reason replaces the failure's own.

use serde_json::{Value, json};

use super::*;
use crate::launcher_pod::MIGRATION_UID;

fn migration(target: &Value) -> VirtualMachineInstanceMigration {
    serde_json::from_value(json!({
        "metadata": {"name": "m", "uid": "u"}, "spec": {"vmiName": "vm"},
        "status": {"source": {"node": "a", "message": "source's"}, "target": target},
    }))
    .unwrap()
}

fn pods(status: &Value) -> [Arc<Pod>; 1] {
    let pod = json!({"metadata": {"name": "q", "labels": {MIGRATION_UID: "u"}}, "status": status});
    [serde_json::from_value(pod).map(Arc::new).unwrap()]
}

fn deadline(reason: &'static str) -> PhaseDeadline {
    PhaseDeadline {
        at: jiff::Timestamp::UNIX_EPOCH,
        reason,
        sentence: "late".into(),
    }
}

#[test]
fn each_failure_has_the_detail_of_the_cause() {
    let refused = json!({"node": "b", "state": "Refused", "message": "target's"});
    let gone = json!({"node": "b", "state": "Gone", "message": "target's"});
    let silent = json!({"node": "b", "state": "Gone"});
    let deadline = deadline("StartTimedOut");
    let ended = json!({"phase": "Failed", "containerStatuses": [{
        "name": "compute", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1, "message": r#"{"outcome": "Failed", "message": "pod's"}"#}},
    }]});
    let (ended, running) = (pods(&ended), pods(&json!({"phase": "Running"})));
    for (failure, target, pods, expected) in [
        (MigrationFailure::Overdue, &refused, &running, "late"),
        (MigrationFailure::GuestStayed, &refused, &running, "target's"),
        (MigrationFailure::GuestStayed, &gone, &running, "source's"),
        (MigrationFailure::GuestEnded, &refused, &running, "target's"),
        (MigrationFailure::GuestEnded, &silent, &running, "source's"),
        (MigrationFailure::TargetLost, &gone, &running, "target's"),
        (MigrationFailure::TargetLost, &silent, &running, "source's"),
        (MigrationFailure::TargetRefused, &refused, &running, "target's"),
        (MigrationFailure::TargetRefused, &silent, &running, ""),
        (MigrationFailure::LostOnTarget, &gone, &running, "target's"),
        (MigrationFailure::LostOnTarget, &silent, &running, ""),
        (MigrationFailure::PodEnded, &gone, &ended, "pod's"),
        (MigrationFailure::PodEnded, &gone, &running, ""),
        (MigrationFailure::AnotherMigration, &gone, &ended, ""),
        (MigrationFailure::InstanceMissing, &gone, &ended, ""),
        (MigrationFailure::InstanceEnded, &gone, &ended, ""),
        (MigrationFailure::NotMigratable, &gone, &ended, ""),
        (MigrationFailure::Canceled, &gone, &ended, ""),
        (MigrationFailure::PodRemoved, &gone, &ended, ""),
        (MigrationFailure::SourceNodeGone, &gone, &ended, ""),
    ] {
        let found = detail(failure, &migration(target), pods, Some(&deadline));
        assert_eq!(found, expected, "{failure:?} {target}");
    }
    let without = detail(MigrationFailure::Overdue, &migration(&gone), &running, None);
    assert_eq!(without, "");
    assert_eq!(detail(MigrationFailure::PodEnded, &migration(&gone), &[], None), "");
}

#[test]
fn overdue_target_pod_on_a_node_has_a_separate_reason() {
    let (not_ready, unschedulable) = (deadline(TARGET_POD_NOT_READY), deadline("TargetPodUnschedulable"));
    for (failure, deadline, expected) in [
        (MigrationFailure::Overdue, Some(&not_ready), Some(TARGET_POD_NOT_READY)),
        (MigrationFailure::Overdue, Some(&unschedulable), None),
        (MigrationFailure::Overdue, None, None),
        (MigrationFailure::PodRemoved, Some(&not_ready), None),
    ] {
        assert_eq!(reason(failure, deadline), expected, "{failure:?} {deadline:?}");
    }
}
