//! Which phases are written by themselves.

use serde_json::{Value, json};

use super::*;
use crate::{
    launcher_pod::MIGRATION_UID,
    migration::{cluster::MigrationFailure, waiting::WAITING},
};

/// Name, reported wait, phases entered, actual wait, and whether the write is deferred.
type Case<'a> = (&'a str, Option<&'a str>, &'a [MigrationPhase], Option<Waiting>, bool);

fn waits(reason: &str) -> Waiting {
    Waiting {
        reason: reason.into(),
        message: "5".into(),
    }
}

fn migration(reported: Option<&str>) -> VirtualMachineInstanceMigration {
    let conditions: Vec<Value> = reported
        .map(|reason| json!({"type": WAITING, "status": "True", "reason": reason, "message": "5"}))
        .into_iter()
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "m", "uid": "u"},
        "spec": {"vmiName": "vm"},
        "status": {
            "conditions": conditions,
            "phaseTransitionTimestamps":
                [{"phase": "PreparingTarget", "phaseTransitionTimestamp": "1970-01-01T00:01:40Z"}],
            "source": {"node": "a", "startTimestamp": "1970-01-01T00:01:40Z"},
        },
    }))
    .unwrap()
}

/// The migration's target pod, created in second 100.
fn pod() -> Arc<Pod> {
    serde_json::from_value(json!({
        "metadata": {"name": "q", "labels": {MIGRATION_UID: "u"}, "creationTimestamp": "1970-01-01T00:01:40Z"},
        "status": {"phase": "Pending"},
    }))
    .map(Arc::new)
    .unwrap()
}

const BEGUN: Timestamp = Timestamp::constant(100, 0);

fn cases() -> Vec<Case<'static>> {
    use MigrationPhase::{Pending, PreparingTarget, Running, Scheduled, Scheduling, TargetReady};
    let limit = || Some(waits("SourceNodeLimit"));
    vec![
        ("its first word", None, &[Pending, Scheduling], None, true),
        ("and there is no slot yet", None, &[Pending, Scheduling], limit(), true),
        (
            "but no node either",
            None,
            &[Pending, Scheduling],
            Some(waits("TargetPodUnschedulable")),
            false,
        ),
        ("it waits before its pod is made", None, &[Pending], limit(), false),
        ("it waits on", Some("SourceNodeLimit"), &[Scheduling], limit(), true),
        (
            "it waits for another turn",
            Some("PlacementLimit"),
            &[Scheduling],
            limit(),
            true,
        ),
        ("it waits no more", Some("SourceNodeLimit"), &[Scheduling], None, true),
        (
            "it is refused no more",
            Some("RejectedByResourceQuota"),
            &[Scheduling],
            None,
            false,
        ),
        (
            "it has had its turn, and no node",
            Some("PlacementLimit"),
            &[Scheduling],
            Some(waits("TargetPodUnschedulable")),
            false,
        ),
        (
            "its pod is ready",
            Some("SourceNodeLimit"),
            &[Scheduling, Scheduled],
            limit(),
            false,
        ),
        ("its sides are named", None, &[PreparingTarget], None, false),
        ("its target is ready", None, &[TargetReady], None, true),
        ("it moves", None, &[TargetReady, Running], None, true),
        (
            "it moves, and was not known to",
            Some("ClusterLimit"),
            &[Running],
            None,
            false,
        ),
    ]
}

#[test]
fn passing_phase_is_written_only_beside_another_change() {
    for (name, reported, enter, waiting, quiet) in cases() {
        let change = StatusChange {
            enter: enter.to_vec(),
            waiting,
            ..StatusChange::default()
        };
        let migration = migration(reported);
        let pods = [pod()];
        let by = |now| may_be_over_by(&migration, &change, &pods, now);
        assert_eq!(by(BEGUN), quiet.then(|| BEGUN + STATUS_COALESCE), "{name}");
        assert_eq!(by(BEGUN + STATUS_COALESCE), None, "{name}, for long");
        // The time comes from a clock that is ahead.
        assert_eq!(by(BEGUN - STATUS_COALESCE), None, "{name}, in the future");
    }
    for (name, change) in [
        (
            "aborted",
            StatusChange {
                abort: Some((MigrationFailure::Canceled, String::new())),
                ..ready()
            },
        ),
        (
            "source is gone",
            StatusChange {
                source_gone: true,
                ..ready()
            },
        ),
        (
            "failed",
            StatusChange {
                fail: Some((MigrationFailure::Canceled, String::new())),
                ..ready()
            },
        ),
    ] {
        let by = may_be_over_by(&migration(None), &change, &[pod()], BEGUN);
        assert_eq!(by, None, "{name}");
    }
}

fn ready() -> StatusChange {
    StatusChange {
        enter: vec![MigrationPhase::TargetReady],
        ..StatusChange::default()
    }
}

#[test]
fn passing_phase_without_a_known_start_is_written_at_once() {
    use MigrationPhase::{Running, Scheduling, TargetReady};
    let mut unknown = migration(None);
    let status = unknown.status.as_mut().unwrap();
    status.phase_transition_timestamps.clear();
    status.source = None;
    for (phase, begins) in [
        (TargetReady, &migration(None)),
        (Running, &migration(None)),
        (Scheduling, &migration(None)),
    ] {
        let change = StatusChange {
            enter: vec![phase],
            ..StatusChange::default()
        };
        let pods = [pod()];
        let by = |migration, pods| may_be_over_by(migration, &change, pods, BEGUN);
        assert_eq!(by(begins, &pods), Some(BEGUN + STATUS_COALESCE), "{phase:?}");
        assert_eq!(by(&unknown, &[]), None, "{phase:?}");
    }
}
