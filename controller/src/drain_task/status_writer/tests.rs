use serde_json::json;

use super::*;

fn report(in_progress: bool, drained: Drained) -> Report {
    Report {
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
fn only_what_is_reported_here_is_read() {
    let node: Node = serde_json::from_value(json!({"status": {"conditions": [
        {"type": "Ready", "status": "True"}, {"type": "Drained", "status": "True"}, {"type": "DrainInProgress", "status": "False"},
    ]}}))
    .unwrap();
    let types: Vec<_> = own(&node).into_iter().map(|condition| condition.type_).collect();
    assert_eq!(types, ["DrainInProgress", "Drained"]);
    assert!(Reports::is_noteworthy(&node));
    assert!(!Reports::is_noteworthy(&Node::default()));
}
