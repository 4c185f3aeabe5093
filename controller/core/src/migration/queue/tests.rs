//! Table tests of the queue's order, and property tests of the queue with stale caches.

mod behind_caches;
mod fairness;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::*;
use crate::configuration::Configuration;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn limits(per_cluster: u32, outbound_per_node: u32, inbound_per_node: u32) -> MigrationSettings {
    MigrationSettings {
        per_cluster,
        outbound_per_node,
        inbound_per_node,
        ..Configuration::default().migrations
    }
}

fn waiting() -> QueueStage {
    QueueStage::Waiting
}

fn placing() -> QueueStage {
    QueueStage::Placing { held_up: false }
}

fn stuck() -> QueueStage {
    QueueStage::Placing { held_up: true }
}

fn placed(target: &str) -> QueueStage {
    QueueStage::Placed {
        target: target.into(),
        ready: NOW,
    }
}

fn ready_for_long(target: &str) -> QueueStage {
    QueueStage::Placed {
        target: target.into(),
        ready: NOW - MAX_OVERTAKING - SignedDuration::from_secs(1),
    }
}

fn holding(target: &str) -> QueueStage {
    QueueStage::Holding { target: target.into() }
}

/// Entries of equal age and urgency, named m0, m1 ... in the given order.
fn queue(stages: Vec<(&str, QueueStage)>) -> Vec<QueuedMigration> {
    let entry = |(number, (source, stage)): (usize, (&str, QueueStage))| QueuedMigration {
        uid: format!("m{number}"),
        name: format!("default/m{number}"),
        urgency: Urgency::None,
        created: NOW,
        order: 0,
        source: source.into(),
        stage,
    };
    stages.into_iter().enumerate().map(entry).collect()
}

/// Name, limits, source node and stage of each entry, and the expected results.
type Case = (
    &'static str,
    MigrationSettings,
    Vec<(&'static str, QueueStage)>,
    Vec<&'static str>,
);

fn outcomes(grants: &Grants) -> Vec<String> {
    let mut all: Vec<String> = grants.place.iter().map(|uid| format!("{uid} place")).collect();
    all.extend(grants.slots.iter().map(|uid| format!("{uid} slot")));
    let waits = grants.waiting.iter();
    all.extend(waits.map(|(uid, wait)| format!("{uid} {} {}", wait.reason.as_str(), wait.place)));
    all
}

/// Slots, by the limits of the cluster and of both nodes.
fn slot_cases() -> Vec<Case> {
    vec![
        ("nothing to do", limits(5, 2, 2), vec![], vec![]),
        (
            "a slot only for a pod that is ready",
            limits(5, 2, 2),
            vec![("a", waiting()), ("a", placing()), ("a", placed("b"))],
            vec!["m0 place", "m2 slot"],
        ),
        (
            "the cluster's limit",
            limits(2, 9, 9),
            vec![("a", holding("x")), ("b", placed("y")), ("c", placed("z"))],
            vec!["m1 slot", "m2 ClusterLimit 1"],
        ),
        (
            "a full source node lets others pass",
            limits(9, 1, 9),
            vec![("a", holding("x")), ("a", placed("y")), ("b", placed("y"))],
            vec!["m2 slot", "m1 SourceNodeLimit 1"],
        ),
        (
            "a full target node lets others pass",
            limits(9, 9, 1),
            vec![("a", holding("x")), ("b", placed("x")), ("b", placed("y"))],
            vec!["m2 slot", "m1 TargetNodeLimit 1"],
        ),
        (
            "a lowered limit takes nothing away",
            limits(1, 1, 1),
            vec![
                ("a", holding("x")),
                ("a", holding("x")),
                ("b", holding("x")),
                ("c", placed("y")),
            ],
            vec!["m3 ClusterLimit 1"],
        ),
        (
            "a long wait reserves the free slots of its nodes",
            limits(9, 1, 1),
            vec![
                ("z", holding("x")),
                ("a", ready_for_long("x")),
                ("a", placed("y")),
                ("b", placed("y")),
            ],
            vec!["m3 slot", "m1 TargetNodeLimit 1", "m2 SourceNodeLimit 2"],
        ),
        (
            "only the first such one",
            limits(9, 1, 1),
            vec![
                ("z", holding("x")),
                ("a", ready_for_long("x")),
                ("b", ready_for_long("x")),
                ("b", placed("y")),
            ],
            vec!["m3 slot", "m1 TargetNodeLimit 1", "m2 TargetNodeLimit 2"],
        ),
    ]
}

/// Target pods that are placed before they have a slot.
fn placement_cases() -> Vec<Case> {
    vec![
        (
            "of a node as many are placed as run",
            limits(9, 2, 9),
            vec![
                ("a", holding("x")),
                ("a", holding("x")),
                ("a", waiting()),
                ("a", waiting()),
                ("a", waiting()),
                ("b", waiting()),
            ],
            vec![
                "m2 place",
                "m3 place",
                "m5 place",
                "m2 SourceNodeLimit 1",
                "m3 SourceNodeLimit 2",
                "m4 SourceNodeLimit 3",
            ],
        ),
        (
            "one pod for each slot of the cluster",
            limits(1, 9, 9),
            vec![("a", holding("x")), ("b", waiting()), ("c", waiting())],
            vec!["m1 place", "m1 ClusterLimit 1", "m2 ClusterLimit 2"],
        ),
        (
            "pods on their way are enough",
            limits(1, 9, 9),
            vec![("a", placing()), ("b", waiting())],
            vec!["m1 PlacementLimit 1"],
        ),
        (
            "those that a busy target holds up leave room for others of their node",
            limits(9, 1, 1),
            vec![
                ("z", holding("x")),
                ("a", placed("x")),
                ("a", placed("x")),
                ("a", waiting()),
                ("a", waiting()),
                ("a", waiting()),
            ],
            vec![
                "m3 place",
                "m4 place",
                "m1 TargetNodeLimit 1",
                "m2 TargetNodeLimit 2",
                "m5 SourceNodeLimit 3",
            ],
        ),
    ]
}

/// Target pods that no node takes.
fn unplaced_cases() -> Vec<Case> {
    vec![
        (
            "pods that find no node hold up neither slots nor other pods",
            limits(2, 9, 9),
            vec![("a", stuck()), ("b", stuck()), ("c", placed("x")), ("d", waiting())],
            vec!["m3 place", "m2 slot"],
        ),
        (
            "but do not pile up",
            limits(2, 9, 9),
            vec![
                ("a", stuck()),
                ("b", stuck()),
                ("c", stuck()),
                ("d", waiting()),
                ("e", waiting()),
            ],
            vec!["m3 place", "m4 PlacementLimit 1"],
        ),
        (
            "a pod on its way will wait for a slot, and one that finds no node for that",
            limits(9, 1, 9),
            vec![
                ("a", holding("x")),
                ("a", placing()),
                ("b", placing()),
                ("c", holding("x")),
                ("c", stuck()),
            ],
            vec!["m1 SourceNodeLimit 1"],
        ),
    ]
}

#[test]
fn slots_and_places_are_given_within_the_limits() {
    let groups = [slot_cases(), placement_cases(), unplaced_cases()];
    for (name, limits, stages, expected) in groups.into_iter().flatten() {
        assert_eq!(outcomes(&grants(&limits, &queue(stages), NOW)), expected, "{name}");
    }
}

#[test]
fn the_order_is_urgency_then_age_then_uid() {
    let mut entries = queue(vec![("a", placed("x")); 5]);
    entries[1].created = NOW - SignedDuration::from_secs(1);
    entries[2].urgency = Urgency::SystemMaintenance;
    entries[3].urgency = Urgency::SystemCritical;
    entries[4].urgency = Urgency::UserTriggered;
    let grants = grants(&limits(9, 9, 9), &entries, NOW);
    assert_eq!(grants.slots, ["m3", "m4", "m2", "m1", "m0"]);
}

#[test]
fn migration_urgency_follows_priority_or_purpose() {
    for (priority, annotation, expected) in [
        (None, None, Urgency::None),
        (None, Some("kubevirt.io/evacuationMigration"), Urgency::SystemCritical),
        (
            None,
            Some("kubevirt.io/workloadUpdateMigration"),
            Urgency::UserTriggered,
        ),
        (
            Some("system-maintenance"),
            Some("kubevirt.io/evacuationMigration"),
            Urgency::SystemMaintenance,
        ),
        (Some("user-triggered"), None, Urgency::UserTriggered),
        (
            Some("system-critical"),
            Some("kubevirt.io/workloadUpdateMigration"),
            Urgency::SystemCritical,
        ),
    ] {
        let annotations: BTreeMap<&str, &str> = annotation.map(|key| (key, "")).into_iter().collect();
        let migration: VirtualMachineInstanceMigration = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "m", "annotations": annotations},
            "spec": {"vmiName": "vm", "priority": priority},
        }))
        .unwrap();
        assert_eq!(Urgency::of(&migration), expected, "{priority:?} {annotation:?}");
    }
    let weights = [
        Urgency::None,
        Urgency::SystemMaintenance,
        Urgency::UserTriggered,
        Urgency::SystemCritical,
    ]
    .map(|urgency| urgency as u8);
    assert_eq!(weights, [0, 20, 50, 100]);
}

#[test]
fn queued_migration_reports_reason_and_place() {
    for (reason, place, expected) in [
        (
            WaitReason::ClusterLimit(5),
            1,
            "the cluster has reached its limit of parallel migrations (5); queue position 1",
        ),
        (
            WaitReason::SourceNodeLimit(2),
            10,
            "the source node has reached its limit of outbound migrations (2); queue position 10",
        ),
        (
            WaitReason::TargetNodeLimit(2),
            11,
            "the target node has reached its limit of inbound migrations (2); queue position about 20",
        ),
        (
            WaitReason::PlacementLimit(5),
            301,
            "the target pods that are starting fill the cluster's limit of parallel migrations (5); queue position \
             about 400",
        ),
    ] {
        assert_eq!(Wait::new(reason, place).to_string(), expected);
    }
}

#[test]
fn end_of_one_migration_changes_few_other_waits() {
    let mut entries = queue(vec![("a", waiting()); 1000]);
    let limits = limits(0, 9, 9);
    let before: BTreeMap<_, _> = grants(&limits, &entries, NOW).waiting.into_iter().collect();
    entries.remove(0);
    let after = grants(&limits, &entries, NOW).waiting;
    let news = after.iter().filter(|(uid, wait)| before[uid] != *wait).count();
    assert!(news <= 30, "{news}");
    assert_eq!(after.len(), 999);
}
