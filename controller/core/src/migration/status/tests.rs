//! The controller's status writes for a migration, from its first phase to its last.

use drydock_api::kubevirt::migration::{MigratedGuest, TargetState};
use serde_json::{Value, json};

use super::*;
use crate::migration::named_sides::configuration;

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-01T00:00:09Z";

fn migration(status: &Value) -> VirtualMachineInstanceMigration {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"name": "m", "namespace": "default", "uid": "u"},
        "spec": {"vmiName": "vm"}, "status": status,
    }))
    .unwrap()
}

fn side(of: &str) -> [String; 3] {
    [format!("node-{of}"), format!("pod-{of}"), format!("uid-{of}")]
}

fn sides() -> Sides {
    Sides {
        source: side("a"),
        target: side("b"),
        guest: MigratedGuest {
            instance_uid: Some("i".into()),
            ..MigratedGuest::default()
        },
        configuration: configuration(&crate::configuration::Configuration::default().migrations),
    }
}

fn changed(
    before: &VirtualMachineInstanceMigration,
    change: &StatusChange,
    now: &str,
) -> VirtualMachineInstanceMigrationStatus {
    after(before, change, now.parse().unwrap())
}

/// A migration whose sides are named and have reported a state.
fn under_way() -> VirtualMachineInstanceMigration {
    let change = StatusChange {
        enter: vec![MigrationPhase::PreparingTarget],
        sides: Some(sides()),
        ..StatusChange::default()
    };
    let status = changed(&migration(&json!(null)), &change, EARLY);
    let mut migration = migration(&serde_json::to_value(status).unwrap());
    let status = migration.status.as_mut().unwrap();
    let source = status.source.as_mut().unwrap();
    source.fingerprint = Some("aa".into());
    source.mode = Some(MigrationMode::PreCopy);
    let target = status.target.as_mut().unwrap();
    target.state = Some(TargetState::Running);
    target.address = Some("10.0.0.1:9445".into());
    migration
}

#[test]
fn phases_are_recorded_once_including_skipped_phases() {
    let change = StatusChange {
        enter: vec![MigrationPhase::Pending, MigrationPhase::Scheduling],
        ..StatusChange::default()
    };
    let status = changed(&migration(&json!(null)), &change, EARLY);
    assert_eq!(status.phase, Some(MigrationPhase::Scheduling));
    assert_eq!(status.migration_state, None);
    let again = changed(&migration(&serde_json::to_value(&status).unwrap()), &change, LATE);
    assert_eq!(again.phase_transition_timestamps, status.phase_transition_timestamps);
    assert_eq!(again.phase_transition_timestamps.len(), 2);
}

#[test]
fn success_enters_phases_that_were_over_within_a_moment() {
    use MigrationPhase::{Failed, Pending, PreparingTarget, Running, Succeeded, TargetReady};
    for (before, phase, entered) in [
        (None, Pending, vec![Pending]),
        (Some(PreparingTarget), TargetReady, vec![TargetReady]),
        (Some(PreparingTarget), Succeeded, vec![TargetReady, Running, Succeeded]),
        (Some(TargetReady), Succeeded, vec![Running, Succeeded]),
        (Some(Running), Succeeded, vec![Succeeded]),
        (Some(PreparingTarget), Failed, vec![Failed]),
    ] {
        let mut change = StatusChange::default();
        change.enter(before, phase);
        assert_eq!(change.enter, entered, "{before:?}");
    }
}

#[test]
fn only_phases_that_a_side_acts_on_are_written_at_once() {
    use MigrationPhase::{
        Failed, Pending, PreparingTarget, Running, Scheduled, Scheduling, Succeeded, TargetReady, Unknown,
    };
    for (phase, expected) in [
        (Pending, false),
        (Scheduling, false),
        (Scheduled, false),
        (PreparingTarget, true),
        (TargetReady, false),
        (Running, false),
        (Succeeded, true),
        (Failed, true),
        (Unknown, false),
    ] {
        assert_eq!(is_written_at_once(phase), expected, "{phase:?}");
    }
}

#[test]
fn side_states_are_owned_by_the_sides() {
    let status = changed(&under_way(), &StatusChange::default(), LATE);
    let source = status.source.unwrap();
    assert_eq!(
        (source.node.as_deref(), source.pod_uid.as_deref(), source.fingerprint),
        (Some("node-a"), Some("uid-a"), None)
    );
    let target = status.target.unwrap();
    assert_eq!(
        (target.pod.as_deref(), target.address, target.state),
        (Some("pod-b"), None, None)
    );
    assert_eq!(status.guest.and_then(|guest| guest.instance_uid).as_deref(), Some("i"));
}

#[test]
fn status_is_mirrored_in_kubevirt_fields() {
    let state = changed(&under_way(), &StatusChange::default(), LATE)
        .migration_state
        .unwrap();
    assert_eq!(
        (
            state.source_node.as_deref(),
            state.target_pod.as_deref(),
            state.target_node_address.as_deref()
        ),
        (Some("node-a"), Some("pod-b"), Some("10.0.0.1:9445"))
    );
    assert_eq!(state.start_timestamp.unwrap().to_string(), EARLY);
    assert!(!state.completed && state.target_node_domain_detected && state.end_timestamp.is_none());
    assert_eq!(
        state.migration_configuration.unwrap().completion_timeout_per_gib,
        Some(150)
    );
}

#[test]
fn an_end_has_a_time_and_a_reason() {
    let ended = StatusChange {
        enter: vec![MigrationPhase::Succeeded],
        ..StatusChange::default()
    };
    let status = changed(&under_way(), &ended, LATE);
    let state = status.migration_state.unwrap();
    assert!(state.completed && !state.failed);
    assert_eq!(state.end_timestamp.unwrap().to_string(), LATE);
    let failed = StatusChange {
        fail: Some((MigrationFailure::GuestStayed, "the stream broke".into())),
        ..StatusChange::default()
    };
    let status = changed(&under_way(), &failed, LATE);
    assert_eq!(
        (status.phase, status.reason.as_deref()),
        (Some(MigrationPhase::Failed), Some("GuestStayed"))
    );
    let state = status.migration_state.unwrap();
    assert!(state.completed && state.failed);
    assert_eq!(
        state.failure_reason.as_deref(),
        Some("source node reported migration failed: the stream broke")
    );
}

#[test]
fn migration_failed_before_any_side_exists_has_a_reason() {
    let failed = StatusChange {
        fail: Some((MigrationFailure::Overdue, "the target pod was not scheduled".into())),
        ..StatusChange::default()
    };
    let status = changed(&migration(&json!({"phase": "Scheduling"})), &failed, LATE);
    let state = status.migration_state.unwrap();
    assert_eq!(
        state.failure_reason.as_deref(),
        Some("the migration took too long: the target pod was not scheduled")
    );
    assert_eq!(state.start_timestamp, None);
}

#[test]
fn wait_reason_is_reported_while_waiting() {
    let waiting = |message: &str| StatusChange {
        waiting: Some(Waiting {
            reason: "ClusterLimit".into(),
            message: message.into(),
        }),
        ..StatusChange::default()
    };
    let first = changed(&migration(&json!({"phase": "Pending"})), &waiting("place 2"), EARLY);
    assert_eq!(first.conditions[0].reason.as_deref(), Some("ClusterLimit"));
    let before = migration(&serde_json::to_value(&first).unwrap());
    assert!(!differs(&before, &changed(&before, &waiting("place 2"), LATE)));
    let done = changed(&before, &StatusChange::default(), LATE);
    assert!(done.conditions.is_empty() && differs(&before, &done));
}

#[test]
fn abort_and_abort_result_are_reported_once() {
    let abort = StatusChange {
        abort: Some((MigrationFailure::Overdue, String::new())),
        ..StatusChange::default()
    };
    let status = changed(&under_way(), &abort, EARLY);
    assert_eq!(status.abort.as_ref().unwrap().reason, "DeadlineExceeded");
    assert_eq!(
        status.migration_state.as_ref().unwrap().abort_status.as_deref(),
        Some("Aborting")
    );
    let before = migration(&serde_json::to_value(&status).unwrap());
    let other = StatusChange {
        abort: Some((MigrationFailure::PodEnded, String::new())),
        fail: Some((MigrationFailure::GuestStayed, String::new())),
        ..StatusChange::default()
    };
    let status = changed(&before, &other, LATE);
    assert_eq!(status.abort.unwrap().reason, "DeadlineExceeded");
    assert_eq!(
        status.migration_state.unwrap().abort_status.as_deref(),
        Some("Succeeded")
    );
}

#[test]
fn post_copy_risk_is_reported_only_while_present() {
    let post_copy_condition = |change: &dyn Fn(&mut MigrationSource, &mut MigrationTarget), then: &StatusChange| {
        let mut migration = under_way();
        let status = migration.status.as_mut().unwrap();
        let (source, target) = (status.source.as_mut().unwrap(), status.target.as_mut().unwrap());
        target.state = Some(TargetState::Prepared);
        change(source, target);
        let conditions = changed(&migration, then, LATE).conditions;
        let found = conditions.into_iter().find(|condition| condition.type_ == POST_COPY);
        found.map(|condition| (condition.status, condition.reason.unwrap(), condition.message.unwrap()))
    };
    let nothing = StatusChange::default();
    assert_eq!(post_copy_condition(&|_, _| (), &nothing), None);
    let switched = post_copy_condition(&|source, _| source.mode = Some(MigrationMode::PostCopy), &nothing).unwrap();
    assert_eq!((switched.0.as_str(), switched.1.as_str()), ("True", "Switched"));
    assert!(
        switched.2.contains("the guest is lost if the connection breaks"),
        "{}",
        switched.2
    );
    let broken = |source: &mut MigrationSource, target: &mut MigrationTarget| {
        source.mode = Some(MigrationMode::PostCopy);
        target.reason = Some(POST_COPY_BROKEN.into());
    };
    // For example, the target's libvirtd waits for ever for a QEMU that waits for the remaining memory.
    let broken_for_the_source = |source: &mut MigrationSource, _: &mut MigrationTarget| {
        source.mode = Some(MigrationMode::PostCopy);
        source.reason = Some(POST_COPY_BROKEN.into());
    };
    let expected = ["True", POST_COPY_BROKEN, POST_COPY_BROKEN_MESSAGE].map(str::to_owned);
    assert_eq!(
        post_copy_condition(&broken, &nothing).map(<[String; 3]>::from),
        Some(expected.clone())
    );
    assert_eq!(
        post_copy_condition(&broken_for_the_source, &nothing).map(<[String; 3]>::from),
        Some(expected)
    );
    let arrived = |source: &mut MigrationSource, target: &mut MigrationTarget| {
        source.mode = Some(MigrationMode::PostCopy);
        target.state = Some(TargetState::Running);
    };
    assert_eq!(post_copy_condition(&arrived, &nothing), None);
    let over = StatusChange {
        fail: Some((MigrationFailure::LostOnTarget, String::new())),
        ..StatusChange::default()
    };
    assert_eq!(post_copy_condition(&broken, &over), None);
}

#[test]
fn failure_by_a_deadline_may_have_the_reason_of_the_deadline() {
    for (deadline, reason) in [
        (None, "DeadlineExceeded"),
        (Some("TargetPodNotReady"), "TargetPodNotReady"),
    ] {
        let change = StatusChange {
            fail: Some((MigrationFailure::Overdue, String::new())),
            deadline,
            ..StatusChange::default()
        };
        let status = changed(&migration(&json!({"phase": "Scheduling"})), &change, EARLY);
        assert_eq!(status.reason.as_deref(), Some(reason));
    }
}

#[test]
fn source_node_is_reported_from_the_first_phase_to_the_last() {
    let on = |node: Option<&str>| StatusChange {
        source_node: node.map(str::to_owned),
        ..StatusChange::default()
    };
    for (name, status, seen, expected) in [
        ("new", json!({}), Some("a"), Some("a")),
        ("its node is not known", json!({"sourceNode": "a"}), None, Some("a")),
        (
            "moved by another migration",
            json!({"phase": "Scheduling", "sourceNode": "a"}),
            Some("b"),
            Some("b"),
        ),
        (
            "named",
            json!({"phase": "Running", "source": {"node": "a"}, "target": {"node": "b"}}),
            Some("b"),
            Some("a"),
        ),
        (
            "over",
            json!({"phase": "Succeeded", "sourceNode": "a"}),
            Some("b"),
            Some("a"),
        ),
        // Nothing is written to migrations that were over before the field existed.
        (
            "over before",
            json!({"phase": "Succeeded", "source": {"node": "a"}}),
            Some("b"),
            None,
        ),
    ] {
        let status = changed(&migration(&status), &on(seen), EARLY);
        assert_eq!(status.source_node.as_deref(), expected, "{name}");
    }
}
