//! Deadlines of each phase, their annotations, and the retries after failures.

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::migration::purpose::MigrationPurpose;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn pod(unschedulable: bool) -> DeadlinePhase {
    DeadlinePhase::TargetPod { unschedulable }
}

fn annotations(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

#[test]
fn each_migration_phase_has_a_deadline() {
    for (part, seconds, reason, sentence) in [
        (
            pod(true),
            300,
            "TargetPodUnschedulable",
            "the target pod was not scheduled within 300 s",
        ),
        (
            pod(false),
            900,
            "TargetPodNotReady",
            "the target pod was not ready within 900 s",
        ),
        (
            DeadlinePhase::Preparing,
            240,
            "PreparationTimedOut",
            "the agent of the target node did not prepare the target within 240 s",
        ),
        (
            DeadlinePhase::Starting,
            240,
            "StartTimedOut",
            "the target was prepared, but the agent of the source node did not start to move the guest within 240 s",
        ),
    ] {
        let deadline = PhaseDeadlines::default().deadline(part, NOW, &annotations(&[]));
        let expected = PhaseDeadline {
            at: NOW + SignedDuration::from_secs(seconds),
            reason,
            sentence: sentence.into(),
        };
        assert_eq!(deadline, expected);
        assert!(!deadline.has_passed(NOW));
        assert!(deadline.has_passed(deadline.at));
    }
}

/// Name, phase, state of the source, target pod with the time of its creation, whether the pod has no node, and reason
/// and second of the deadline. The phase is reached in second 10.
type Row = (
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    Option<Option<&'static str>>,
    bool,
    Option<(&'static str, i64)>,
);

fn deadlines_of_phases() -> Vec<Row> {
    let created = Some("2026-01-01T00:00:05Z");
    vec![
        ("no status yet", None, None, Some(created), false, None),
        ("queued", Some("Pending"), None, None, false, None),
        ("no pod", Some("Scheduling"), None, None, false, None),
        (
            "pod starts",
            Some("Scheduling"),
            None,
            Some(created),
            false,
            Some(("TargetPodNotReady", 5 + 900)),
        ),
        (
            "pod has no node",
            Some("Scheduling"),
            None,
            Some(created),
            true,
            Some(("TargetPodUnschedulable", 5 + 300)),
        ),
        (
            "pod without time",
            Some("Scheduling"),
            None,
            Some(None),
            false,
            Some(("TargetPodNotReady", 10 + 7)),
        ),
        ("pod is ready", Some("Scheduled"), None, Some(created), false, None),
        (
            "target prepares",
            Some("PreparingTarget"),
            None,
            Some(created),
            true,
            Some(("PreparationTimedOut", 10 + 240)),
        ),
        (
            "guest moves early",
            Some("PreparingTarget"),
            Some("Migrating"),
            Some(created),
            false,
            None,
        ),
        (
            "target is ready",
            Some("TargetReady"),
            None,
            Some(created),
            false,
            Some(("StartTimedOut", 10 + 240)),
        ),
        (
            "guest moves",
            Some("TargetReady"),
            Some("Migrating"),
            Some(created),
            false,
            None,
        ),
        (
            "guest moves, as reported",
            Some("Running"),
            None,
            Some(created),
            false,
            None,
        ),
        ("over", Some("Failed"), None, Some(created), false, None),
    ]
}

#[test]
fn deadline_is_that_of_the_phase_until_the_guest_moves() {
    let reached = |phase: &str| json!([{"phase": phase, "phaseTransitionTimestamp": "2026-01-01T00:00:10Z"}]);
    let midnight: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    for (name, phase, source, pod, unschedulable, expected) in deadlines_of_phases() {
        let annotations = pod.filter(Option::is_none).map(|_| json!({PENDING_SECONDS: "7"}));
        let migration: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "metadata": {"name": "m", "annotations": annotations}, "spec": {"vmiName": "vm"},
            "status": phase.map(|phase| json!({
                "phase": phase, "phaseTransitionTimestamps": reached(phase), "source": {"node": "a", "state": source},
            })),
        }))
        .unwrap();
        let pod: Option<Pod> = pod.map(|created| {
            serde_json::from_value(json!({"metadata": {"name": "q", "creationTimestamp": created}})).unwrap()
        });
        let deadline = PhaseDeadlines::default().of_migration(&migration, pod.as_ref(), unschedulable);
        let found = deadline.map(|deadline| (deadline.reason, deadline.at.duration_since(midnight).as_secs()));
        assert_eq!(found, expected, "{name}");
        let unreached: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "metadata": {"name": "m"}, "spec": {"vmiName": "vm"}, "status": {"phase": phase},
        }))
        .unwrap();
        let deadline = PhaseDeadlines::default().of_migration(&unreached, pod.as_ref(), unschedulable);
        assert_eq!(deadline, None, "{name}, without the time of its phase");
    }
}

#[test]
fn annotations_override_and_the_shorter_time_counts() {
    for (given, unschedulable, expected) in [
        (vec![(UNSCHEDULABLE_SECONDS, "7")], true, (7, "TargetPodUnschedulable")),
        (vec![(UNSCHEDULABLE_SECONDS, "7")], false, (900, "TargetPodNotReady")),
        (vec![(PENDING_SECONDS, "10")], false, (10, "TargetPodNotReady")),
        (vec![(PENDING_SECONDS, "10")], true, (10, "TargetPodNotReady")),
        (
            vec![(PENDING_SECONDS, "86400"), (UNSCHEDULABLE_SECONDS, "600")],
            true,
            (600, "TargetPodUnschedulable"),
        ),
    ] {
        let deadline = PhaseDeadlines::default().deadline(pod(unschedulable), NOW, &annotations(&given));
        let seconds = deadline.at.duration_since(NOW).as_secs();
        assert_eq!((seconds, deadline.reason), expected, "{given:?}");
    }
}

#[test]
fn invalid_annotations_are_reported_and_ignored() {
    for bad in [
        "",
        "0",
        "-1",
        "+5",
        "1.5",
        "5s",
        " 5",
        "86401",
        "99999999999999999999",
        "five",
    ] {
        let given = annotations(&[(PENDING_SECONDS, bad), (UNSCHEDULABLE_SECONDS, "7")]);
        let (own, problems) = PhaseDeadlines::default().with_annotations(&given);
        assert_eq!(own.pending, PhaseDeadlines::default().pending, "{bad}");
        assert_eq!(own.unschedulable.as_secs(), 7, "{bad}");
        let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let expected = format!(
            "metadata.annotations[kubevirt.io/migrationPendingPodTimeoutSeconds]: `{bad}` is not allowed; allowed: whole seconds from 1 to 86400"
        );
        assert_eq!(messages, [expected]);
    }
}

#[test]
fn deadline_past_the_maximum_timestamp_is_the_maximum() {
    let deadline = PhaseDeadlines::default().deadline(DeadlinePhase::Preparing, Timestamp::MAX, &annotations(&[]));
    assert_eq!(deadline.at, Timestamp::MAX);
}

fn failed(count: u32, last: Timestamp) -> Failures {
    Failures {
        count,
        last: Some(last),
        outdated: false,
    }
}

#[test]
fn changed_circumstances_end_the_retry_wait() {
    let attempts = Attempts::default();
    let (soon, late) = (NOW + SignedDuration::from_secs(1), NOW + SignedDuration::from_secs(320));
    for (count, now, unchanged, changed) in [
        (1, soon, Some("wait"), Retry::Go),
        (5, soon, Some("wait"), Retry::Go),
        (9, soon, Some("wait"), Retry::Go),
        (9, late, None, Retry::Go),
        (10, soon, Some("end"), Retry::WaitUntil(late)),
        (10, late, Some("end"), Retry::Go),
        (99, soon, Some("end"), Retry::WaitUntil(late)),
        (99, late, Some("end"), Retry::Go),
    ] {
        let failures = failed(count, NOW);
        let found = match attempts.next(MigrationPurpose::Evacuation, failures, now) {
            Retry::Go => None,
            Retry::WaitUntil(_) => Some("wait"),
            Retry::GiveUp { .. } => Some("end"),
        };
        assert_eq!(found, unchanged, "{count} {now}");
        let outdated = Failures {
            outdated: true,
            ..failures
        };
        assert_eq!(
            attempts.next(MigrationPurpose::Evacuation, outdated, now),
            changed,
            "{count} {now}"
        );
    }
}

#[test]
fn the_wait_doubles_up_to_the_longest_and_ends() {
    let attempts = Attempts::default();
    for purpose in [MigrationPurpose::Evacuation, MigrationPurpose::WorkloadUpdate] {
        assert_eq!(attempts.next(purpose, Failures::default(), NOW), Retry::Go);
        for (failures, seconds) in [(1, 20), (2, 40), (3, 80), (4, 160), (5, 320), (6, 320), (9, 320)] {
            let until = NOW + SignedDuration::from_secs(seconds);
            let next = |now| attempts.next(purpose, failed(failures, NOW), now);
            assert_eq!(next(NOW), Retry::WaitUntil(until), "{failures}");
            assert_eq!(next(until - SignedDuration::from_nanos(1)), Retry::WaitUntil(until));
            assert_eq!(next(until), Retry::Go, "{failures}");
        }
    }
}

#[test]
fn wait_is_bounded_after_the_clock_is_set_back() {
    for (ahead, expected) in [
        (20, Retry::WaitUntil(NOW + SignedDuration::from_secs(40))),
        (21, Retry::Go),
        (3600, Retry::Go),
    ] {
        let failures = failed(1, NOW + SignedDuration::from_secs(ahead));
        let next = Attempts::default().next(MigrationPurpose::Evacuation, failures, NOW);
        assert_eq!(next, expected, "{ahead}");
    }
}

#[test]
fn last_failed_attempt_is_reported() {
    for (purpose, expected) in [
        (MigrationPurpose::Evacuation, "CannotEvacuate"),
        (MigrationPurpose::WorkloadUpdate, "CannotUpdateWorkload"),
    ] {
        let Retry::GiveUp { reason, sentence } = Attempts::default().next(purpose, failed(10, NOW), NOW) else {
            panic!("it goes on for ever");
        };
        assert_eq!(reason, expected);
        assert!(sentence.starts_with("all 10 attempts"), "{sentence}");
    }
    assert_eq!(
        Attempts::default().next(MigrationPurpose::UserRequest, failed(99, NOW), NOW),
        Retry::Go
    );
}

proptest! {
    #[test]
    fn waits_are_bounded_and_never_decrease(failures: u32, last in 0i64..1 << 40) {
        let attempts = Attempts { most: u32::MAX, ..Attempts::default() };
        prop_assert!(attempts.wait(failures) <= attempts.wait(failures.saturating_add(1)));
        let last = Timestamp::from_second(last % 253_402_200_000).unwrap();
        match attempts.next(MigrationPurpose::Evacuation, failed(failures, last), last) {
            Retry::WaitUntil(until) => {
                let waited = until.duration_since(last).as_secs();
                prop_assert!((0..=320).contains(&waited), "{waited}");
            }
            Retry::Go => prop_assert_eq!(failures, 0),
            Retry::GiveUp { .. } => prop_assert_eq!(failures, u32::MAX),
        }
    }
}
