use drydock_api::hypervisor::DrainStatus;
use serde_json::json;

use super::*;

fn report(in_progress: bool, drained: Drained) -> DrainReport {
    DrainReport {
        node: "a".into(),
        drain: None,
        in_progress,
        drained,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn times_change_with_the_status_alone() {
    let first = wanted(&[], &report(true, Drained::GuestsLeft(2)), at(10));
    let same = wanted(&first, &report(true, Drained::GuestsLeft(1)), at(20));
    assert_eq!(same, first, "one guest less is no news here");
    let over = wanted(&first, &report(false, Drained::PodsLeft(1)), at(30));
    let times: Vec<_> = over
        .iter()
        .map(|condition| condition.last_transition_time.clone().unwrap().0)
        .collect();
    assert_eq!(times, [at(30), at(10)]);
    assert_eq!(over[1].reason.as_deref(), Some("PodsLeft"));
}

#[test]
fn begin_of_a_drain_is_reported_after_some_seconds() {
    let drain: DrainStatus = serde_json::from_value(json!({
        "startedAt": at(10).to_string(), "total": 1, "left": 1, "moving": 1, "waiting": 0, "blocked": 0, "shuttingDown": 0,
    })).unwrap();
    let begun = |drained| DrainReport {
        drain: Some(drain.clone()),
        ..report(true, drained)
    };
    let [idle, left] = [Drained::NotRequested, Drained::GuestsLeft(1)];
    let shown = |before: &DrainReport| wanted(&[], before, at(0));
    let empty = shown(&report(false, Drained::Yes));
    for (case, before, report, now, expected) in [
        (
            "has just begun",
            &shown(&report(false, idle)),
            begun(left),
            at(11),
            true,
        ),
        ("first drain ever", &vec![], begun(left), at(11), true),
        ("lasts", &shown(&report(false, idle)), begun(left), at(14), false),
        ("is reported already", &shown(&begun(idle)), begun(left), at(11), false),
        ("was safe to power off", &empty, begun(left), at(11), false),
        (
            "is over",
            &shown(&begun(left)),
            report(false, Drained::PodsLeft(1)),
            at(11),
            false,
        ),
    ] {
        assert_eq!(is_early(before, &report, now), expected, "{case}");
    }
}

#[test]
fn only_own_drain_conditions_of_the_node_are_read() {
    let node: Node = serde_json::from_value(json!({"status": {"conditions": [
        {"type": "Ready", "status": "True"}, {"type": "Drained", "status": "True"}, {"type": "DrainInProgress", "status": "False"},
    ]}}))
    .unwrap();
    let types: Vec<_> = own(&node).into_iter().map(|condition| condition.type_).collect();
    assert_eq!(types, ["DrainInProgress", "Drained"]);
    assert!(Reports::is_noteworthy(&node));
    assert!(!Reports::is_noteworthy(&Node::default()));
}
