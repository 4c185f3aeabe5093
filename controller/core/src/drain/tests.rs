use std::sync::Arc;

use drydock_api::{
    hyperconverged::EvictionStrategy::{self, External, LiveMigrate, LiveMigrateIfPossible, None as Nothing},
    hypervisor::{DrainStatus, RemainingGuest, RemainingState},
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPriority, status::DrainRequest,
    },
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Node, Toleration},
    apimachinery::pkg::apis::meta::v1::Time,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    DrainInput, DrainRefusal, DrainStep, DrainedGuest, DrainingNode, NodeDrainPlan, NodeMarks, chains, concerns,
    estimate::DrainRate, is_of_drain, is_same_request, must_be_left, node_conditions::Drained, plan,
};
use crate::{
    configuration::Configuration, eviction::evacuation_request, migration::deadlines::Attempts,
    placement::DepartureOutlook,
};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn seconds_ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// A running VMI on node `a`.
fn instance(name: &str, change: impl FnOnce(&mut Value)) -> VirtualMachineInstance {
    let mut instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
        "spec": {"domain": {"devices": {}}},
        "status": {
            "phase": "Running", "nodeName": "a", "memory": {"guestCurrent": "1Gi"},
            "conditions": [{"type": "LiveMigratable", "status": "True"}],
        },
    });
    change(&mut instance);
    serde_json::from_value(instance).unwrap()
}

fn mark(instance: &mut Value, by: &str, at: Timestamp) {
    instance["status"]["evacuationNodeName"] = json!("a");
    instance["status"]["evacuation"] = json!({"requestedBy": by, "requestedAt": at.to_string()});
}

fn marked(name: &str, by: &str) -> VirtualMachineInstance {
    instance(name, |instance| mark(instance, by, seconds_ago(60)))
}

fn migration(uid: &str, phase: &str, change: impl FnOnce(&mut Value)) -> Arc<VirtualMachineInstanceMigration> {
    let mut migration = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {
            "name": format!("m-{uid}"), "namespace": "n", "uid": uid, "creationTimestamp": seconds_ago(50).to_string(),
            "annotations": {"kubevirt.io/evacuationMigration": "a"},
        },
        "spec": {"vmiName": "web"},
        "status": {"phase": phase, "phaseTransitionTimestamps": [
            {"phase": phase, "phaseTransitionTimestamp": seconds_ago(30).to_string()},
        ]},
    });
    change(&mut migration);
    Arc::new(serde_json::from_value(migration).unwrap())
}

fn guest(
    instance: &VirtualMachineInstance,
    strategy: EvictionStrategy,
    migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
) -> DrainedGuest<'_> {
    DrainedGuest {
        instance,
        strategy,
        made: Some(seconds_ago(600)),
        migrations,
        refused: None,
        outlook: DepartureOutlook::Unknown,
        circumstances: None,
        held_by: None,
    }
}

const CORDONED: NodeMarks = NodeMarks {
    cordoned: true,
    tainted: false,
    in_maintenance: false,
};
const TAINTED: NodeMarks = NodeMarks {
    cordoned: false,
    tainted: true,
    in_maintenance: false,
};
const OPEN: NodeMarks = NodeMarks {
    cordoned: false,
    tainted: false,
    in_maintenance: false,
};

fn node<'a>(marks: NodeMarks, guests: Vec<DrainedGuest<'a>>) -> DrainingNode<'a> {
    DrainingNode {
        name: "a",
        marks,
        guests,
        arriving: 0,
        evictable: Some(0),
        before: None,
    }
}

fn planned(nodes: &[DrainingNode<'_>]) -> NodeDrainPlan {
    plan(&DrainInput {
        now: now(),
        nodes,
        limits: &Configuration::default().migrations,
        attempts: Attempts::default(),
        rate: None,
    })
}

/// The plan for one guest on one node.
fn of_one(marks: NodeMarks, guest: DrainedGuest<'_>) -> NodeDrainPlan {
    planned(&[node(marks, vec![guest])])
}

fn reported(plan: &NodeDrainPlan) -> Vec<(RemainingState, String)> {
    let drain = plan.reports[0].drain.as_ref();
    let remaining = drain.map(|drain| drain.remaining.as_slice()).unwrap_or_default();
    remaining
        .iter()
        .map(|guest| (guest.state, guest.reason.clone()))
        .collect()
}

#[test]
fn node_marks_report_cordon_taint_and_maintenance() {
    let node: Node = serde_json::from_value(json!({"spec": {"unschedulable": true, "taints": [
        {"key": "kubevirt.io/drain", "effect": "NoSchedule", "value": "draining"},
        {"key": "medik8s.io/drain", "effect": "NoExecute"},
    ]}}))
    .unwrap();
    let marks = NodeMarks::of(&node, "kubevirt.io/drain");
    assert_eq!(
        (marks.cordoned, marks.tainted, marks.in_maintenance),
        (true, true, false)
    );
    assert!(!NodeMarks::of(&node, "mytaint/drain").tainted);
    assert_eq!(NodeMarks::of(&Node::default(), "k"), OPEN);
}

#[test]
fn change_of_a_field_that_drains_read_concerns_drains() {
    let before = marked("web", "Cordon");
    assert!(concerns(None, Some(&before)) && concerns(Some(&before), None));
    assert!(!concerns(Some(&before), Some(&before)));
    for (path, value, expected) in [
        ("/status/phase", json!("Succeeded"), true),
        ("/status/nodeName", json!("b"), true),
        ("/status/evacuationNodeName", json!("b"), true),
        ("/status/evacuation/failures", json!(1), true),
        ("/status/conditions/0/status", json!("False"), true),
        ("/status/conditions/0/message", json!("text"), false),
        ("/status/memory/guestCurrent", json!("2Gi"), false),
        ("/metadata/deletionTimestamp", json!(now().to_string()), true),
        ("/metadata/generation", json!(2), true),
        ("/metadata/resourceVersion", json!("2"), false),
    ] {
        let mut after = serde_json::to_value(&before).unwrap();
        let (object, field) = path.rsplit_once('/').unwrap();
        after.pointer_mut(object).unwrap()[field] = value;
        let after = serde_json::from_value(after).unwrap();
        assert_eq!(concerns(Some(&before), Some(&after)), expected, "{path}");
    }
}

#[test]
fn node_name_alone_is_a_new_request() {
    let alone = instance("web", |instance| instance["status"]["evacuationNodeName"] = json!("a"));
    // The guest has moved upon an earlier request.
    let again = instance("web", |instance| {
        mark(instance, "Taint", seconds_ago(600));
        instance["status"]["evacuation"]["failures"] = json!(9);
        let moved = json!({"type": "EvictionRequested", "status": "False", "reason": "Moved"});
        instance["status"]["conditions"].as_array_mut().unwrap().push(moved);
    });
    for (marks, requester) in [(OPEN, DrainRequest::Eviction), (CORDONED, DrainRequest::Cordon)] {
        for instance in [&alone, &again] {
            let plan = of_one(marks, guest(instance, LiveMigrate, Vec::new()));
            let expected = DrainStep::Mark {
                namespace: "n".into(),
                name: "web".into(),
                node: "a".into(),
                evacuation: evacuation_request::new(requester, now()),
            };
            assert_eq!(plan.steps, [expected]);
        }
    }
}

#[test]
fn a_plain_cordon_moves_nothing() {
    let plain = instance("web", |_| {});
    let plan = of_one(CORDONED, guest(&plain, LiveMigrate, Vec::new()));
    assert_eq!(plan.steps, []);
    assert_eq!(reported(&plan), [(RemainingState::Waiting, "NotRequested".to_owned())]);
    let drain = plan.reports[0].drain.as_ref().unwrap();
    assert_eq!((drain.requested_by.as_slice(), &drain.finished_at), (&[][..], &None));
    assert!(!plan.reports[0].in_progress);
    assert_eq!(plan.reports[0].drained, Drained::GuestsLeft(1));
}

#[test]
fn taint_marks_movable_guests_and_reports_the_rest() {
    let plain = instance("web", |_| {});
    let immovable = instance("web", |instance| {
        instance["status"]["conditions"] = json!([
            {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "disk x"},
        ]);
    });
    let annotated = {
        let mut annotated = immovable.clone();
        annotated.metadata.annotations = Some([("drydock.dev/evacuation-fallback".into(), "restart".into())].into());
        annotated
    };
    for (instance, strategy, marked, expected) in [
        (&plain, LiveMigrate, true, (RemainingState::Waiting, "Migration")),
        (
            &plain,
            LiveMigrateIfPossible,
            true,
            (RemainingState::Waiting, "Migration"),
        ),
        (&plain, External, true, (RemainingState::Waiting, "Migration")),
        (
            &plain,
            Nothing,
            false,
            (RemainingState::ShuttingDown, "ShutDownWhenEvicted"),
        ),
        (
            &immovable,
            LiveMigrate,
            false,
            (RemainingState::Blocked, "NotMigratable"),
        ),
        (
            &immovable,
            LiveMigrateIfPossible,
            false,
            (RemainingState::ShuttingDown, "RestartWhenEvicted"),
        ),
        (
            &annotated,
            LiveMigrate,
            false,
            (RemainingState::ShuttingDown, "RestartWhenEvicted"),
        ),
    ] {
        let plan = of_one(TAINTED, guest(instance, strategy, Vec::new()));
        assert_eq!(reported(&plan), [(expected.0, expected.1.to_owned())], "{strategy:?}");
        let is_marked = matches!(
            plan.steps.as_slice(),
            [DrainStep::Mark { evacuation, .. }] if evacuation.requested_by == DrainRequest::Taint
        );
        assert_eq!(is_marked, marked, "{strategy:?}: {:?}", plan.steps);
        assert!(plan.reports[0].in_progress);
    }
}

#[test]
fn marked_guest_gets_a_single_migration() {
    let web = marked("web", "Cordon");
    let plan = of_one(CORDONED, guest(&web, LiveMigrate, Vec::new()));
    let expected = DrainStep::Migrate {
        namespace: "n".into(),
        name: "web".into(),
        node: "a".into(),
        priority: MigrationPriority::SystemCritical,
        order: 0,
    };
    assert_eq!(plan.steps, [expected]);
    // The report stays the same from the creation of the target pod until the guest has left.
    let mut shown = Vec::new();
    for phase in ["Pending", "Running"] {
        let under_way = migration("1", phase, |migration| {
            if phase == "Running" {
                migration["status"]["source"] = json!({"node": "a", "state": "Migrating"});
                migration["status"]["target"] = json!({"node": "b", "state": "Prepared"});
            }
        });
        let plan = of_one(CORDONED, guest(&web, LiveMigrate, vec![under_way]));
        assert_eq!(plan.steps, [], "{phase}");
        assert_eq!(
            reported(&plan),
            [(RemainingState::Moving, "Migration".to_owned())],
            "{phase}"
        );
        shown.extend(plan.reports.into_iter().map(|report| report.drain));
    }
    assert_eq!(shown[0], shown[1]);
}

#[test]
fn guest_with_a_deleted_pod_gets_no_migration() {
    // It is shut down because no node could take it, and its agent no longer reports its CPU.
    for outlook in [DepartureOutlook::Unknown, DepartureOutlook::Fits("b".into())] {
        let ends = instance("web", |web| {
            mark(web, "Cordon", now());
            let ready = json!({"type": "Ready", "status": "False", "reason": "PodTerminating"});
            web["status"]["conditions"].as_array_mut().unwrap().push(ready);
        });
        let mut guest = guest(&ends, LiveMigrateIfPossible, Vec::new());
        guest.outlook = outlook;
        assert!(super::competing(&guest, false).is_none());
        let plan = of_one(CORDONED, guest);
        assert_eq!(plan.steps, []);
        let expected = (RemainingState::ShuttingDown, "PodTerminating".to_owned());
        assert_eq!(reported(&plan), [expected]);
    }
}

#[test]
fn the_descheduler_is_in_no_hurry() {
    for (by, expected) in [
        ("Eviction", MigrationPriority::SystemMaintenance),
        ("Maintenance", MigrationPriority::SystemCritical),
    ] {
        let mut web = marked("web", by);
        web.metadata.annotations = Some([("kubevirt.io/eviction-source".into(), "descheduler".into())].into());
        let marks = NodeMarks {
            in_maintenance: by == "Maintenance",
            ..OPEN
        };
        let plan = of_one(marks, guest(&web, LiveMigrate, Vec::new()));
        assert!(matches!(&plan.steps[..], [DrainStep::Migrate { priority, .. }] if *priority == expected));
    }
}

#[test]
fn migration_wait_reason_is_reported() {
    let web = marked("web", "Cordon");
    // The first waits for its turn, the second for the agent of its target.
    for (phase, reason) in [("Pending", "SourceNodeLimit"), ("PreparingTarget", "TargetNotPrepared")] {
        let waiting = migration("1", phase, |migration| {
            migration["status"]["conditions"] =
                json!([{"type": "Waiting", "status": "True", "reason": reason, "message": "for this"}]);
        });
        let plan = of_one(CORDONED, guest(&web, LiveMigrate, vec![waiting]));
        assert_eq!(reported(&plan), [(RemainingState::Waiting, reason.to_owned())]);
    }
    let nowhere = instance("web", |instance| {
        mark(instance, "Cordon", seconds_ago(60));
        instance["status"]["conditions"] = json!([
            {"type": "LiveMigratable", "status": "True"},
            {"type": "MigrationTargetAvailable", "status": "False", "reason": "NoNode", "message": "b lacks avx2"},
        ]);
    });
    let plan = of_one(CORDONED, guest(&nowhere, LiveMigrate, Vec::new()));
    assert_eq!(
        reported(&plan),
        [(RemainingState::Blocked, "NoTargetAvailable".to_owned())]
    );
    assert_eq!(plan.steps, []);
    assert_eq!(plan.reports[0].drain.as_ref().unwrap().blocked, 1);
}

#[test]
fn evacuation_marks_are_removed_with_the_request() {
    for (by, marks, stays) in [
        ("Cordon", CORDONED, true),
        ("Cordon", OPEN, false),
        ("Cordon", TAINTED, true),
        ("Taint", TAINTED, true),
        ("Taint", CORDONED, false),
        (
            "Maintenance",
            NodeMarks {
                in_maintenance: true,
                ..OPEN
            },
            true,
        ),
        ("Maintenance", CORDONED, false),
        ("Eviction", OPEN, true),
    ] {
        let web = marked("web", by);
        let queued = migration("1", "Scheduling", |_| {});
        let plan = of_one(marks, guest(&web, LiveMigrate, vec![queued]));
        let unmarked = plan.steps.iter().any(|step| matches!(step, DrainStep::Unmark { .. }));
        let cancelled = plan
            .steps
            .iter()
            .any(|step| matches!(step, DrainStep::Cancel { uid, .. } if uid == "1"));
        assert_eq!((!unmarked, !cancelled), (stays, stays), "{by} {marks:?}");
    }
}

#[test]
fn guest_marked_by_the_node_alone_gets_a_whole_mark() {
    for (marks, by) in [
        (OPEN, DrainRequest::Eviction),
        (CORDONED, DrainRequest::Cordon),
        (TAINTED, DrainRequest::Taint),
    ] {
        let web = instance("web", |web| web["status"]["evacuationNodeName"] = json!("a"));
        let plan = of_one(marks, guest(&web, LiveMigrate, Vec::new()));
        let [DrainStep::Mark { node, evacuation, .. }] = plan.steps.as_slice() else {
            panic!("{:?}", plan.steps);
        };
        assert_eq!((node.as_str(), evacuation), ("a", &evacuation_request::new(by, now())));
        assert_eq!(reported(&plan), [(RemainingState::Waiting, "Migration".to_owned())]);
        let whole = evacuation_request::marked(&web, "a", evacuation);
        let plan = of_one(marks, guest(&whole, LiveMigrate, Vec::new()));
        assert!(
            matches!(plan.steps.as_slice(), [DrainStep::Migrate { .. }]),
            "{:?}",
            plan.steps
        );
    }
}

#[test]
fn begun_migration_is_not_cancelled() {
    let web = marked("web", "Cordon");
    let begun = migration("1", "PreparingTarget", |migration| {
        migration["status"]["source"] = json!({"node": "a"});
        migration["status"]["target"] = json!({"node": "b"});
    });
    let with_migration = migration("2", "Pending", |migration| {
        migration["metadata"]["annotations"] = json!({});
    });
    let plan = of_one(OPEN, guest(&web, LiveMigrate, vec![begun, with_migration]));
    assert!(
        matches!(plan.steps.as_slice(), [DrainStep::Unmark { .. }]),
        "{:?}",
        plan.steps
    );
}

#[test]
fn a_marked_guest_that_has_ended_is_no_longer_there() {
    for phase in ["Succeeded", "Failed"] {
        let ended = instance("web", |instance| {
            mark(instance, "Cordon", seconds_ago(60));
            instance["status"]["phase"] = json!(phase);
        });
        let plan = planned(&[node(OPEN, vec![guest(&ended, LiveMigrate, Vec::new())])]);
        assert!(
            matches!(plan.steps.as_slice(), [DrainStep::Unmark { .. }]),
            "{phase}: {:?}",
            plan.steps
        );
        assert_eq!(plan.reports[0].drain, None, "{phase}");
    }
}

#[test]
fn a_mark_for_a_node_that_the_guest_has_left_goes() {
    let moved = instance("web", |instance| {
        mark(instance, "Eviction", seconds_ago(60));
        instance["status"]["nodeName"] = json!("b");
    });
    let mut there = node(OPEN, vec![guest(&moved, LiveMigrate, Vec::new())]);
    there.name = "b";
    let plan = planned(&[there]);
    assert!(matches!(plan.steps.as_slice(), [DrainStep::Unmark { .. }]));
    assert_eq!(plan.reports[0].drain, None);
}

#[test]
fn a_lone_eviction_belongs_to_a_cordon_that_is_seen_soon() {
    for (age, marks, becomes) in [
        (5, CORDONED, Some(DrainRequest::Cordon)),
        (5, TAINTED, Some(DrainRequest::Taint)),
        (5, OPEN, None),
        (11, CORDONED, None),
    ] {
        let web = instance("web", |instance| mark(instance, "Eviction", seconds_ago(age)));
        let plan = of_one(marks, guest(&web, LiveMigrate, Vec::new()));
        let by = plan.steps.iter().find_map(|step| match step {
            DrainStep::Mark { evacuation, .. } => Some(evacuation.requested_by),
            _ => None,
        });
        assert_eq!(by, becomes, "{age} {marks:?}");
    }
}

#[test]
fn failures_are_counted_once_and_back_off_to_a_limit() {
    let failed = |uid: &str, at: i64| {
        migration(uid, "Failed", |migration| {
            migration["status"]["phaseTransitionTimestamps"][0]["phaseTransitionTimestamp"] =
                json!(seconds_ago(at).to_string());
            migration["status"]["reason"] = json!("TargetRefused");
        })
    };
    let web = marked("web", "Cordon");
    let plan = of_one(
        CORDONED,
        guest(
            &web,
            LiveMigrate,
            vec![failed("1", 40), failed("2", 10), failed("0", 90)],
        ),
    );
    let [DrainStep::Mark { evacuation, .. }] = plan.steps.as_slice() else {
        panic!("{:?}", plan.steps);
    };
    assert_eq!(
        (
            evacuation.failures,
            evacuation.last_failure.as_ref().unwrap().uid.as_str()
        ),
        (2, "2")
    );
    assert_eq!(reported(&plan), [(RemainingState::Waiting, "BackOff".to_owned())]);
    assert_eq!(plan.wake, Some(seconds_ago(10) + SignedDuration::from_secs(40)));
    // Once the plan is carried out, no failure is counted again.
    let mut after = web.clone();
    after.status.as_mut().unwrap().evacuation = Some(evacuation.clone());
    let again = of_one(
        CORDONED,
        guest(&after, LiveMigrate, vec![failed("1", 40), failed("2", 10)]),
    );
    assert_eq!(again.steps, []);
    // Old migrations may be deleted; the count stays.
    let mut evacuation = evacuation.clone();
    evacuation.failures = 10;
    after.status.as_mut().unwrap().evacuation = Some(evacuation);
    let over = of_one(CORDONED, guest(&after, LiveMigrate, Vec::new()));
    assert_eq!(
        reported(&over),
        [(RemainingState::Blocked, "CannotEvacuate".to_owned())]
    );
    assert_eq!((over.steps, over.wake), (vec![], None));
}

#[test]
fn failed_attempt_counts_regardless_of_the_timestamp() {
    let failed = |uid: &str, name: &str, ago: i64| {
        migration(uid, "Failed", |migration| {
            migration["metadata"]["name"] = json!(name);
            migration["status"]["phaseTransitionTimestamps"][0]["phaseTransitionTimestamp"] =
                json!(seconds_ago(ago).to_string());
        })
    };
    let counted = |instance: &VirtualMachineInstance, migrations: &[Arc<VirtualMachineInstanceMigration>]| {
        let plan = of_one(CORDONED, guest(instance, LiveMigrate, migrations.to_vec()));
        let steps = plan.steps.iter();
        let mut marks = steps.filter_map(|step| match step {
            DrainStep::Mark { evacuation, .. } => Some(evacuation.clone()),
            _ => None,
        });
        let mut after = instance.clone();
        let evacuation = marks.next()?;
        let failures = evacuation.failures;
        after.status.as_mut().unwrap().evacuation = Some(evacuation);
        Some((after, failures))
    };
    let name_of_next = |instance: &VirtualMachineInstance| {
        let evacuation = evacuation_request::evacuation(instance);
        super::guest_steps::migration_name(instance, evacuation, 0)
    };
    // The evacuation request is 60 s old. An earlier one had a migration that failed later than the first of this one, by
    // its clock.
    let web = marked("web", "Cordon");
    let earlier = failed("9", "m-9", 61);
    assert_eq!(counted(&web, std::slice::from_ref(&earlier)), None);
    let mut all = vec![earlier, failed("1", &name_of_next(&web), 62)];
    let (once, failures) = counted(&web, &all).unwrap();
    assert_eq!((failures, counted(&once, &all)), (1, None));
    all.push(failed("0", &name_of_next(&once), 63));
    let (twice, failures) = counted(&once, &all).unwrap();
    assert_eq!((failures, counted(&twice, &all)), (2, None));
}

#[test]
fn changed_circumstances_end_a_back_off_once() {
    let failed = |uid: &str, circumstances: Option<&str>| {
        migration(uid, "Failed", |migration| {
            migration["status"]["phaseTransitionTimestamps"][0]["phaseTransitionTimestamp"] =
                json!(seconds_ago(5).to_string());
            migration["status"]["reason"] = json!("TargetRefused");
            migration["status"]["migrationState"] = json!({"failureReason": "node b masks avx2"});
            if let Some(circumstances) = circumstances {
                migration["metadata"]["annotations"]["drydock.dev/drain-circumstances"] = json!(circumstances);
            }
        })
    };
    let planned =
        |instance: &VirtualMachineInstance, migrations: &[Arc<VirtualMachineInstanceMigration>], now: &str| {
            let has_failed = evacuation_request::evacuation(instance).is_some_and(|mark| mark.last_failure.is_some());
            let plan = of_one(
                CORDONED,
                DrainedGuest {
                    circumstances: has_failed.then(|| now.to_owned()),
                    ..guest(instance, LiveMigrate, migrations.to_vec())
                },
            );
            let mut after = instance.clone();
            for step in &plan.steps {
                if let DrainStep::Mark { evacuation, .. } = step {
                    after.status.as_mut().unwrap().evacuation = Some(evacuation.clone());
                }
            }
            let goes = plan.steps.iter().any(|step| matches!(step, DrainStep::Migrate { .. }));
            let message = plan.reports[0].drain.clone().unwrap().remaining[0].message.clone();
            (after, goes, message)
        };
    // The circumstances recorded for the attempt. Then, for each reconcile: the circumstances, and whether a migration
    // is created.
    type Round = (&'static str, bool);
    let cases: [(Option<&str>, &[Round]); 5] = [
        (Some("masked"), &[("masked", false), ("masked", false)]),
        (Some("masked"), &[("masked", false), ("unmasked", true)]),
        // The circumstances had changed before the attempt failed.
        (Some("unmasked"), &[("masked", true)]),
        // The change stays recorded, whatever follows.
        (Some("unmasked"), &[("masked", true), ("unmasked", true)]),
        // An attempt of an earlier release has no circumstances recorded.
        (None, &[("masked", false), ("masked", false), ("unmasked", true)]),
    ];
    for (noted, rounds) in cases {
        let all = [failed("1", noted)];
        let (mut web, goes, message) = planned(&marked("web", "Cordon"), &all, "");
        assert!(!goes, "{message}");
        assert!(
            message.starts_with(
                "1 of 10 migration attempts have failed (TargetRefused: node b masks avx2); the next attempt is made at"
            ),
            "{message}"
        );
        for (now, expected) in rounds {
            let (after, goes, message) = planned(&web, &all, now);
            assert_eq!(goes, *expected, "{noted:?} {rounds:?} {now}: {message}");
            web = after;
        }
        let (same, ..) = planned(&web, &all, rounds[rounds.len() - 1].0);
        assert_eq!(same, web, "{noted:?}: nothing more is noted");
        // The next attempt fails in the current circumstances: the guest waits as long as they stay the same.
        let again = migration("2", "Failed", |migration| {
            migration["status"]["phaseTransitionTimestamps"][0]["phaseTransitionTimestamp"] =
                json!(seconds_ago(1).to_string());
            migration["metadata"]["annotations"]["drydock.dev/drain-circumstances"] = json!("unmasked");
        });
        let all = [failed("1", noted), again];
        let (after, goes, message) = planned(&web, &all, "unmasked");
        assert!(
            !goes && message.starts_with("2 of 10 migration attempts have failed"),
            "{message}"
        );
        let (_, goes, message) = planned(&after, &all, "unmasked");
        assert!(!goes, "{message}");
    }
}

#[test]
fn small_guests_go_first_and_no_more_than_can_go_soon() {
    let sized = |name: &str, memory: &str| {
        let mut sized = marked(name, "Cordon");
        sized.status.as_mut().unwrap().memory.as_mut().unwrap().guest_current = Some(memory.into());
        sized
    };
    let instances: Vec<_> = (0..20).map(|index| sized(&format!("big{index:02}"), "8Gi")).collect();
    let small = sized("small", "64Mi");
    let mut guests: Vec<DrainedGuest<'_>> = instances
        .iter()
        .map(|instance| guest(instance, LiveMigrate, Vec::new()))
        .collect();
    guests.push(guest(&small, LiveMigrate, Vec::new()));
    let plan = planned(&[node(CORDONED, guests)]);
    let names: Vec<&str> = plan
        .steps
        .iter()
        .map(|step| match step {
            DrainStep::Migrate { name, .. } => name.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names[0], "small");
    // Twice what may run and be placed in addition: 2 per node at once.
    assert_eq!(names.len(), 8);
    assert_eq!(plan.reports[0].drain.as_ref().unwrap().waiting, 21);
}

#[test]
fn refused_target_pods_leave_the_window_to_other_guests() {
    let all: Vec<_> = (0..90).map(|index| marked(&format!("r{index:02}"), "Cordon")).collect();
    let mut other = marked("web", "Cordon");
    let goes = |other: &VirtualMachineInstance, count: usize, reason: &str| {
        let waiting = migration("1", "Pending", |migration| {
            migration["status"]["conditions"] =
                json!([{"type": "Waiting", "status": "True", "reason": reason, "message": "text"}]);
        });
        let waiting = all[..count]
            .iter()
            .map(|instance| guest(instance, LiveMigrate, vec![Arc::clone(&waiting)]));
        let guests = waiting.chain([guest(other, LiveMigrate, Vec::new())]).collect();
        let plan = planned(&[node(CORDONED, guests)]);
        let step = plan.steps.first();
        step.is_some_and(|step| matches!(step, DrainStep::Migrate { name, .. } if name == "web"))
    };
    for (count, reason, expected) in [
        (7, "SourceNodeLimit", true),
        (8, "SourceNodeLimit", false),
        (8, "TargetPodUnschedulable", false),
        (8, "RejectedByResourceQuota", true),
        (8, "FailedCreate", true),
        // More than the window of the cluster, and four times that window.
        (21, "RejectedByResourceQuota", true),
        (80, "RejectedByResourceQuota", false),
    ] {
        assert_eq!(goes(&other, count, reason), expected, "{count} with {reason}");
    }
    // A quota belongs to a namespace.
    other.metadata.namespace = Some("others".into());
    assert!(goes(&other, 90, "RejectedByResourceQuota"));
}

#[test]
fn a_node_is_drained_when_nothing_is_left() {
    for (marks, arriving, evictable, expected) in [
        (CORDONED, 0, Some(0), Drained::Yes),
        (TAINTED, 0, Some(0), Drained::Yes),
        (OPEN, 0, Some(0), Drained::NotRequested),
        (CORDONED, 1, Some(0), Drained::GuestsArriving(1)),
        (CORDONED, 0, Some(2), Drained::PodsLeft(2)),
        (CORDONED, 0, None, Drained::NotKnown),
    ] {
        let mut empty = node(marks, Vec::new());
        empty.arriving = arriving;
        empty.evictable = evictable;
        assert_eq!(planned(&[empty]).reports[0].drained, expected);
    }
}

#[test]
fn drain_status_is_reported_from_start_to_end() {
    let web = marked("web", "Cordon");
    let first = of_one(CORDONED, guest(&web, LiveMigrate, Vec::new()))
        .reports
        .remove(0)
        .drain
        .unwrap();
    assert_eq!((first.total, first.left, first.finished_at.as_ref()), (1, 1, None));
    let shown = |before: &DrainStatus, marks| {
        let mut empty = node(marks, Vec::new());
        empty.before = Some(before);
        planned(&[empty]).reports.remove(0).drain
    };
    let last = shown(&first, CORDONED).unwrap();
    assert_eq!((last.total, last.left), (1, 0));
    assert_eq!(last.requested_by, [DrainRequest::Cordon]);
    assert!(last.finished_at.is_some());
    assert_eq!(last.started_at, first.started_at);
    assert_eq!(shown(&last, CORDONED), Some(last.clone()), "nothing is news");
    assert_eq!(shown(&last, OPEN), None);
}

#[test]
fn node_reports_a_drain_that_lasts() {
    let web = marked("web", "Cordon");
    let plan = of_one(CORDONED, guest(&web, LiveMigrate, Vec::new()));
    let started = plan.reports[0].drain.as_ref().unwrap().started_at.0;
    let due = started + super::SHORT;
    assert_eq!(plan.reports[0].node_reports_from(), Some(due));
    let over = planned(&[node(CORDONED, Vec::new())]);
    assert_eq!(over.reports[0].node_reports_from(), None);
}

#[test]
fn an_estimate_comes_with_the_first_measurement() {
    let guests: Vec<_> = (0..4).map(|index| marked(&format!("g{index}"), "Cordon")).collect();
    let mut rate = DrainRate::default();
    rate.add(std::time::Duration::from_secs(10), 1 << 30);
    let nodes = [node(
        CORDONED,
        guests
            .iter()
            .map(|instance| guest(instance, LiveMigrate, Vec::new()))
            .collect(),
    )];
    let limits = Configuration::default().migrations;
    let shown = |rate| {
        let plan = plan(&DrainInput {
            now: now(),
            nodes: &nodes,
            limits: &limits,
            attempts: Attempts::default(),
            rate,
        });
        plan.reports[0].drain.as_ref().unwrap().estimated_end.clone()
    };
    assert_eq!(shown(None), None);
    // Four guests, two at a time, ten seconds each.
    assert_eq!(shown(Some(rate)).unwrap().0, now() + SignedDuration::from_secs(20));
}

#[test]
fn estimate_follows_the_order_in_which_guests_go() {
    let of_size = |name: &str, gibibytes: u32| {
        let mut instance = marked(name, "Cordon");
        instance.status.as_mut().unwrap().memory.as_mut().unwrap().guest_current = Some(format!("{gibibytes}Gi"));
        instance
    };
    // One second and five for each GiB.
    let mut rate = DrainRate::default();
    for gibibytes in 1..5 {
        rate.add(std::time::Duration::from_secs(1 + 5 * gibibytes), gibibytes << 30);
    }
    // Two at a time, the small ones first: the third begins after 6 s.
    for (sizes, seconds) in [
        ([1, 1, 3], 22),
        ([1, 3, 1], 22),
        ([3, 1, 1], 22),
        ([3, 3, 1], 22),
        ([2, 1, 2], 17),
    ] {
        let guests = ["a", "b", "c"]
            .iter()
            .zip(sizes)
            .map(|(name, size)| of_size(name, size));
        let guests: Vec<_> = guests.collect();
        let all = guests.iter().map(|instance| guest(instance, LiveMigrate, Vec::new()));
        let plan = plan(&DrainInput {
            now: now(),
            nodes: &[node(CORDONED, all.collect())],
            limits: &Configuration::default().migrations,
            attempts: Attempts::default(),
            rate: Some(rate),
        });
        let end = plan.reports[0]
            .drain
            .as_ref()
            .unwrap()
            .estimated_end
            .as_ref()
            .unwrap()
            .0;
        assert_eq!(end, now() + SignedDuration::from_secs(seconds), "{sizes:?}");
    }
}

#[test]
fn estimate_of_a_moving_guest_ends_when_overdue() {
    let web = marked("web", "Cordon");
    let mut rate = DrainRate::default();
    rate.add(std::time::Duration::from_secs(10), 1 << 30);
    for (elapsed, left) in [(0, Some(10)), (4, Some(6)), (10, None), (60, None)] {
        let moving = migration("1", "Running", |migration| {
            migration["status"]["migrationState"] = json!({"startTimestamp": seconds_ago(elapsed).to_string()});
        });
        let plan = plan(&DrainInput {
            now: now(),
            nodes: &[node(CORDONED, vec![guest(&web, LiveMigrate, vec![moving])])],
            limits: &Configuration::default().migrations,
            attempts: Attempts::default(),
            rate: Some(rate),
        });
        let drain = plan.reports[0].drain.as_ref().unwrap();
        let end = drain.estimated_end.as_ref().map(|end| end.0);
        assert_eq!(
            end,
            left.map(|seconds| now() + SignedDuration::from_secs(seconds)),
            "{elapsed}"
        );
        assert_eq!(plan.wake, end, "{elapsed}");
    }
}

#[test]
fn drained_nodes_are_excluded_only_where_no_taint_applies() {
    let node = |spec: Value| serde_json::from_value::<Node>(json!({"metadata": {"name": "n"}, "spec": spec})).unwrap();
    let drain = json!({"key": "kubevirt.io/drain", "effect": "NoSchedule"});
    let everything: Vec<Toleration> = serde_json::from_value(json!([{"operator": "Exists"}])).unwrap();
    for (spec, requested, tolerant, expected) in [
        (json!({}), false, true, false),
        (json!({"unschedulable": true}), false, false, false),
        (json!({"unschedulable": true}), false, true, true),
        (json!({"taints": [drain]}), false, false, false),
        (json!({"taints": [drain]}), false, true, true),
        // The node is about to be cordoned.
        (json!({}), true, false, true),
        (json!({"unschedulable": true}), true, false, false),
        (
            json!({"taints": [{"key": "other", "effect": "NoSchedule"}]}),
            false,
            true,
            false,
        ),
    ] {
        let tolerations = if tolerant { everything.as_slice() } else { &[] };
        let avoided = must_be_left(&node(spec.clone()), "kubevirt.io/drain", requested, tolerations);
        assert_eq!(avoided, expected, "{spec} {requested} {tolerant}");
    }
}

#[test]
fn message_of_the_scheduler_is_in_the_report() {
    let web = marked("web", "Cordon");
    let text = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.";
    let waiting = migration("1", "Scheduling", |migration| {
        migration["status"]["conditions"] =
            json!([{"type": "Waiting", "status": "True", "reason": "TargetPodUnschedulable", "message": text}]);
    });
    let plan = of_one(CORDONED, guest(&web, LiveMigrate, vec![waiting]));
    let shown = &plan.reports[0].drain.as_ref().unwrap().remaining[0];
    assert_eq!(shown.reason, "TargetPodUnschedulable");
    assert_eq!(shown.message, format!("migration m-1 waits: {text}"));
}

/// Returns a marked instance with this status of the condition `MigrationTargetAvailable`.
fn with_target_available(status: &str) -> VirtualMachineInstance {
    instance("web", |instance| {
        mark(instance, "Cordon", seconds_ago(60));
        instance["status"]["conditions"] = json!([
            {"type": "LiveMigratable", "status": "True"},
            {"type": "MigrationTargetAvailable", "status": status, "reason": "R", "message": "by its condition"},
        ]);
    })
}

#[test]
fn departure_outlook_decides_the_drain_of_a_guest() {
    let (yes, no) = (with_target_available("True"), with_target_available("False"));
    let crowded = || DepartureOutlook::Crowded("beside others".into());
    let nowhere = || DepartureOutlook::Nowhere("anyway".into());
    let fits = || DepartureOutlook::Fits("b".into());
    let mut falls_back = yes.clone();
    falls_back.metadata.annotations = Some([("drydock.dev/evacuation-fallback".into(), "restart".into())].into());
    for (instance, strategy, outlook, expected) in [
        (
            &yes,
            LiveMigrate,
            DepartureOutlook::Unknown,
            (RemainingState::Waiting, "Migration", 1),
        ),
        (
            &no,
            LiveMigrate,
            DepartureOutlook::Unknown,
            (RemainingState::Blocked, "by its condition", 0),
        ),
        (
            &no,
            LiveMigrateIfPossible,
            DepartureOutlook::Unknown,
            (RemainingState::ShuttingDown, "by its condition; the guest is", 0),
        ),
        // The current evaluation takes precedence over the condition.
        (&no, LiveMigrate, fits(), (RemainingState::Waiting, "Migration", 1)),
        (&yes, LiveMigrate, nowhere(), (RemainingState::Blocked, "anyway", 0)),
        (
            &yes,
            LiveMigrateIfPossible,
            nowhere(),
            (RemainingState::ShuttingDown, "anyway; the guest is shut down", 0),
        ),
        (
            &falls_back,
            LiveMigrate,
            nowhere(),
            (RemainingState::ShuttingDown, "anyway; the guest is shut down", 0),
        ),
        (
            &yes,
            LiveMigrate,
            crowded(),
            (RemainingState::Blocked, "beside others", 0),
        ),
        // Others may make room for it, or not. It is not shut down for that.
        (
            &yes,
            LiveMigrateIfPossible,
            crowded(),
            (RemainingState::Blocked, "beside others", 0),
        ),
    ] {
        let what = format!("{strategy:?} {outlook:?}");
        let plan = of_one(
            CORDONED,
            DrainedGuest {
                outlook,
                ..guest(instance, strategy, Vec::new())
            },
        );
        let drain = plan.reports[0].drain.as_ref().unwrap();
        let shown = &drain.remaining[0];
        let (state, text, steps) = expected;
        assert_eq!((shown.state, plan.steps.len()), (state, steps), "{what}");
        if steps == 0 {
            assert_eq!(shown.reason, "NoTargetAvailable", "{what}");
            assert!(shown.message.starts_with(text), "{what}: {}", shown.message);
        }
        assert_eq!(drain.blocked, u32::from(state == RemainingState::Blocked), "{what}");
    }
}

#[test]
fn guests_that_are_to_be_migrated_compete_for_room() {
    let web = marked("web", "Cordon");
    let immovable = instance("web", |instance| {
        mark(instance, "Cordon", seconds_ago(60));
        instance["status"]["conditions"][0]["status"] = json!("False");
    });
    let failed = instance("web", |instance| {
        mark(instance, "Cordon", seconds_ago(60));
        instance["status"]["evacuation"]["failures"] = json!(3);
    });
    let deleted = instance("web", |instance| {
        instance["metadata"]["deletionTimestamp"] = json!(seconds_ago(5).to_string());
    });
    let pending = || vec![migration("1", "Pending", |_| {})];
    let over = || vec![migration("1", "Failed", |_| {})];
    for (what, instance, strategy, migrations, has_place, expected) in [
        ("marked", &web, LiveMigrate, Vec::new(), false, Some((false, 0))),
        (
            "if possible",
            &web,
            LiveMigrateIfPossible,
            Vec::new(),
            false,
            Some((false, 0)),
        ),
        (
            "its migration waits",
            &web,
            LiveMigrate,
            pending(),
            false,
            Some((true, 0)),
        ),
        ("its place is taken", &web, LiveMigrate, pending(), true, None),
        (
            "a pod of a failed one is left",
            &web,
            LiveMigrate,
            over(),
            true,
            Some((false, 0)),
        ),
        (
            "failed before",
            &failed,
            LiveMigrate,
            Vec::new(),
            false,
            Some((false, 3)),
        ),
        ("not protected", &web, Nothing, Vec::new(), false, None),
        ("moved by others", &web, External, Vec::new(), false, None),
        ("not migratable", &immovable, LiveMigrate, Vec::new(), false, None),
        ("deleted", &deleted, LiveMigrate, Vec::new(), false, None),
    ] {
        let found = super::competing(&guest(instance, strategy, migrations), has_place);
        let found = found.map(|found| (found.has_migration, found.failures));
        assert_eq!(found, expected, "{what}");
    }
    let refused = DrainedGuest {
        refused: refused(5),
        ..guest(&web, LiveMigrate, Vec::new())
    };
    assert_eq!(super::competing(&refused, false), None);
}

#[test]
fn preview_lists_moves_and_blockers() {
    let moves = instance("moves", |instance| {
        let found =
            json!({"type": "MigrationTargetAvailable", "status": "True", "message": "node b could run the guest"});
        instance["status"]["conditions"].as_array_mut().unwrap().push(found);
    });
    let bare = instance("bare", |_| {});
    let stuck = instance("stuck", |instance| {
        instance["status"]["conditions"][0] = json!({"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "disk x"});
    });
    let limits = Configuration::default().migrations;
    let preview = |guests: Vec<DrainedGuest<'_>>| {
        let nodes = [node(OPEN, guests)];
        let cluster = DrainInput {
            now: now(),
            nodes: &nodes,
            limits: &limits,
            attempts: Attempts::default(),
            rate: None,
        };
        super::preview::preview(&nodes[0], &cluster)
    };
    let lines = preview(vec![
        guest(&moves, LiveMigrate, Vec::new()),
        guest(&bare, Nothing, Vec::new()),
        guest(&stuck, LiveMigrate, Vec::new()),
    ]);
    assert_eq!(
        lines[0],
        "3 virtual machines are on a: 1 would move, 1 would be shut down, 1 would block"
    );
    assert!(
        lines[1].starts_with("n/stuck would block (NotMigratable: "),
        "{lines:?}"
    );
    assert_eq!(lines[2], "n/moves would move (node b could run the guest)");
    assert!(
        lines[3].starts_with("n/bare would be shut down (ShutDownWhenEvicted: "),
        "{lines:?}"
    );
    assert_eq!(preview(Vec::new()), ["no virtual machine is on a"]);
}

/// A running VMI on node `a` that is not live-migratable according to its agent.
fn immovable(name: &str) -> VirtualMachineInstance {
    instance(name, |instance| {
        instance["status"]["conditions"][0] = json!({"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable", "message": "disk x"});
    })
}

#[test]
fn every_guest_of_a_cordoned_node_is_accounted_for() {
    use RemainingState::{Blocked, Moving, ShuttingDown, Waiting};
    let (web, plain, stuck) = (marked("web", "Cordon"), instance("plain", |_| {}), immovable("stuck"));
    let leaving = instance("leaving", |instance| {
        instance["metadata"]["deletionTimestamp"] = json!(now().to_string());
    });
    let moving = || vec![migration("1", "Running", |_| {})];
    for (name, guest, expected) in [
        ("evicted", guest(&web, LiveMigrate, vec![]), (Waiting, "Migration")),
        (
            "not evicted yet",
            guest(&plain, LiveMigrate, vec![]),
            (Waiting, "NotRequested"),
        ),
        (
            "migrated by its user",
            guest(&plain, LiveMigrate, moving()),
            (Moving, "Migration"),
        ),
        (
            "not migratable",
            guest(&stuck, LiveMigrate, vec![]),
            (Blocked, "NotMigratable"),
        ),
        (
            "not protected",
            guest(&plain, Nothing, vec![]),
            (ShuttingDown, "ShutDownWhenEvicted"),
        ),
        (
            "held by a budget of others",
            DrainedGuest {
                held_by: Some("web-pdb".into()),
                ..guest(&plain, Nothing, vec![])
            },
            (Blocked, "DisruptionBudget"),
        ),
        (
            "moves, whatever a budget of others allows",
            DrainedGuest {
                held_by: Some("web-pdb".into()),
                ..guest(&web, LiveMigrate, moving())
            },
            (Moving, "Migration"),
        ),
        (
            "deleted",
            guest(&leaving, LiveMigrate, vec![]),
            (ShuttingDown, "Deleted"),
        ),
    ] {
        let plan = of_one(CORDONED, guest);
        assert_eq!(reported(&plan), [(expected.0, expected.1.to_owned())], "{name}");
        let drain = plan.reports[0].drain.as_ref().unwrap();
        assert_eq!((drain.left, &drain.finished_at), (1, &None), "{name}");
        assert_eq!(drain.blocked, u32::from(expected.0 == Blocked), "{name}");
    }
}

#[test]
fn drain_of_a_cordoned_node_begins_with_the_request() {
    let (plain, web) = (instance("web", |_| {}), marked("web", "Cordon"));
    let cordoned = of_one(CORDONED, guest(&plain, LiveMigrate, vec![]))
        .reports
        .remove(0)
        .drain;
    let mut cordoned = cordoned.unwrap();
    cordoned.started_at.0 = seconds_ago(3600);
    let shown = |instance| {
        let mut node = node(CORDONED, vec![guest(instance, LiveMigrate, vec![])]);
        node.before = Some(&cordoned);
        planned(&[node]).reports.remove(0).drain.unwrap()
    };
    assert_eq!(shown(&plain), cordoned, "nothing is news");
    let with_migration = shown(&web);
    assert_eq!(
        (with_migration.requested_by, with_migration.started_at.0),
        (vec![DrainRequest::Cordon], now())
    );
}

#[test]
fn refused_target_pod_blocks_a_drain_until_created() {
    let web = marked("web", "Cordon");
    for (reason, expected) in [
        ("FailedCreate", RemainingState::Blocked),
        ("RejectedByResourceQuota", RemainingState::Blocked),
        ("ImagePullBackOff", RemainingState::Waiting),
        ("TargetPodNotScheduled", RemainingState::Waiting),
    ] {
        let waiting = migration("1", "Pending", |migration| {
            migration["status"]["conditions"] =
                json!([{"type": "Waiting", "status": "True", "reason": reason, "message": "text"}]);
        });
        let plan = of_one(CORDONED, guest(&web, LiveMigrate, vec![waiting]));
        assert_eq!(reported(&plan), [(expected, reason.to_owned())]);
    }
}

fn refused(seconds: i64) -> Option<DrainRefusal> {
    Some(DrainRefusal {
        message: "exceeded quota: moves".into(),
        again_at: seconds_ago(-seconds),
    })
}

#[test]
fn refused_guest_is_reported_and_retried_when_due() {
    let (plain, marked, stale) = (
        instance("web", |_| {}),
        marked("web", "Taint"),
        marked("web", "Eviction"),
    );
    let no_longer = instance("web", |instance| mark(instance, "Taint", seconds_ago(60)));
    for (what, marks, instance, is_reported) in [
        ("its mark", TAINTED, &plain, true),
        ("its migration", TAINTED, &marked, true),
        ("that its mark is taken away", OPEN, &no_longer, false),
    ] {
        let planned_with = |refused: Option<DrainRefusal>| {
            of_one(
                marks,
                DrainedGuest {
                    refused,
                    ..guest(instance, LiveMigrate, vec![])
                },
            )
        };
        let before = planned_with(None);
        assert_eq!(before.steps.len(), 1, "{what}");
        assert!(before.refused.is_empty(), "{what}");
        let early = planned_with(refused(5));
        assert_eq!((early.steps.len(), early.wake), (0, Some(seconds_ago(-5))), "{what}");
        let again = planned_with(refused(0));
        assert_eq!(again.steps, before.steps, "{what}");
        for plan in [&early, &again] {
            assert_eq!(
                plan.refused.iter().collect::<Vec<_>>(),
                [&("n".into(), "web".into())],
                "{what}"
            );
            if is_reported {
                assert_eq!(reported(plan), [(RemainingState::Blocked, "Refused".into())], "{what}");
                let drain = plan.reports[0].drain.as_ref().unwrap();
                assert!(drain.remaining[0].message.contains("(exceeded quota: moves)"), "{what}");
            }
        }
    }
    // It is moving anyway, so an earlier refusal does not matter.
    let moving = DrainedGuest {
        refused: refused(5),
        ..guest(&stale, LiveMigrate, vec![migration("1", "Pending", |_| {})])
    };
    let plan = of_one(OPEN, moving);
    assert_eq!((plan.refused.len(), plan.wake), (0, None));
    assert_eq!(reported(&plan)[0].0, RemainingState::Moving);
}

#[test]
fn refused_migration_takes_no_slot_of_other_guests() {
    let all: Vec<_> = (0..20).map(|index| marked(&format!("g{index:02}"), "Taint")).collect();
    let names = |refuse: usize| {
        let guests = all.iter().enumerate().map(|(index, instance)| DrainedGuest {
            refused: refused(5).filter(|_| index < refuse),
            ..guest(instance, LiveMigrate, vec![])
        });
        let plan = planned(&[node(TAINTED, guests.collect())]);
        plan.steps
            .iter()
            .map(|step| step.instance().1.to_owned())
            .collect::<Vec<_>>()
    };
    let (none, some) = (names(0), names(3));
    assert_eq!(none.len(), some.len());
    assert_eq!(none[3..], some[..none.len() - 3]);
}

proptest! {
    /// For any guests: all of them are listed. An estimate lies in the future, and exists only if each guest moves or
    /// waits only for its turn.
    #[test]
    fn report_accounts_for_all_guests(
        guests in prop::collection::vec((0..5_usize, 0..4_usize, 0..3_usize, 0..6_usize, any::<bool>()), 0..12),
        tainted: bool, in_maintenance: bool, shown in prop::option::of(-100..100_i64),
    ) {
        let marks = NodeMarks { cordoned: true, tainted, in_maintenance };
        let strategies = [Nothing, LiveMigrate, LiveMigrateIfPossible, External];
        let reasons = ["", "SourceNodeLimit", "FailedCreate", "FailedMount"];
        let all: Vec<_> = guests.iter().enumerate().map(|(index, (by, strategy, migratable, moves, _))| {
            let made = instance(&format!("g{index:02}"), |instance| {
                if let Some(by) = ["Cordon", "Taint", "Maintenance", "Eviction"].get(*by) {
                    mark(instance, by, seconds_ago(5));
                }
                instance["status"]["conditions"][0]["status"] = json!(["True", "False", "Unknown"][*migratable]);
            });
            let migrations: Vec<_> = reasons.get(*moves).map(|reason| migration("m", "Scheduling", |migration| {
                if !reason.is_empty() {
                    migration["status"]["conditions"] = json!([{"type": "Waiting", "status": "True", "reason": reason}]);
                }
            })).into_iter().collect();
            (made, strategies[*strategy], migrations)
        }).collect();
        let held = guests.iter().map(|(.., held)| held.then(|| "pdb".to_owned()));
        let guests: Vec<_> = all.iter().zip(held).map(|((instance, strategy, migrations), held_by)| DrainedGuest {
            held_by,
            ..guest(instance, *strategy, migrations.clone())
        }).collect();
        let count = guests.len();
        let mut before = DrainStatus {
            requested_by: vec![DrainRequest::Cordon],
            started_at: Time(seconds_ago(100)),
            finished_at: None,
            estimated_end: None,
            total: 1, left: 1, moving: 1, waiting: 0, blocked: 0, shutting_down: 0,
            remaining: Vec::new(),
        };
        before.estimated_end = shown.map(|seconds| Time(seconds_ago(seconds)));
        let mut node = node(marks, guests);
        node.before = Some(&before);
        let mut rate = DrainRate::default();
        rate.add(std::time::Duration::from_millis(10_500), 1 << 30);
        let plan = plan(&DrainInput {
            now: now(),
            nodes: &[node],
            limits: &Configuration::default().migrations,
            attempts: Attempts::default(),
            rate: Some(rate),
        });
        let drain = plan.reports[0].drain.as_ref().unwrap();
        prop_assert_eq!((drain.remaining.len(), drain.left as usize), (count, count));
        prop_assert_eq!(drain.left, drain.moving + drain.waiting + drain.blocked + drain.shutting_down);
        prop_assert_eq!(drain.finished_at.is_some(), count == 0);
        let turn = ["Migration", "SourceNodeLimit"];
        let is_known = |guest: &RemainingGuest| match guest.state {
            RemainingState::Moving => true,
            RemainingState::Waiting => turn.contains(&guest.reason.as_str()),
            RemainingState::Blocked | RemainingState::ShuttingDown | RemainingState::Unknown => false,
        };
        let known = count > 0 && drain.remaining.iter().all(is_known);
        prop_assert_eq!(drain.estimated_end.is_some(), known);
        if let Some(end) = &drain.estimated_end {
            prop_assert!(end.0 > now());
            prop_assert!(plan.wake.is_some_and(|wake| wake <= end.0));
        }
    }

    /// For any guests: a plan that was carried out is empty the next time, no guest is moved by two migrations, and no
    /// guest is moved without a request.
    #[test]
    fn a_plan_that_is_carried_out_is_done(
        guests in prop::collection::vec((0..5_usize, 0..4_usize, 0..3_usize, any::<bool>()), 0..12),
        cordoned: bool, tainted: bool, in_maintenance: bool,
    ) {
        let marks = NodeMarks { cordoned, tainted, in_maintenance };
        let strategies = [Nothing, LiveMigrate, LiveMigrateIfPossible, External];
        let mut instances: Vec<(VirtualMachineInstance, EvictionStrategy, Vec<_>)> = guests
            .iter()
            .enumerate()
            .map(|(index, (by, strategy, migratable, failed))| {
                let made = instance(&format!("g{index:02}"), |instance| {
                    if let Some(by) = ["Cordon", "Taint", "Maintenance", "Eviction"].get(*by) {
                        mark(instance, by, seconds_ago(5));
                    }
                    instance["status"]["conditions"][0]["status"] = json!(["True", "False", "Unknown"][*migratable]);
                });
                let history = if *failed { vec![migration(&format!("f{index}"), "Failed", |migration| {
                    migration["status"]["phaseTransitionTimestamps"][0]["phaseTransitionTimestamp"] = json!(now().to_string());
                })] } else { Vec::new() };
                (made, strategies[*strategy], history)
            })
            .collect();
        for round in 0..3 {
            let nodes = [node(marks, instances.iter().map(|(instance, strategy, migrations)| guest(instance, *strategy, migrations.clone())).collect())];
            let plan = planned(&nodes);
            drop(nodes);
            if round == 2 {
                prop_assert_eq!(plan.steps, vec![]);
                break;
            }
            for step in plan.steps {
                match step {
                    DrainStep::Mark { name, node, evacuation, .. } => {
                        let (instance, ..) = instances.iter_mut().find(|(instance, ..)| instance.metadata.name.as_ref() == Some(&name)).unwrap();
                        *instance = evacuation_request::marked(instance, &node, &evacuation);
                    }
                    DrainStep::Unmark { name, .. } => {
                        let (instance, ..) = instances.iter_mut().find(|(instance, ..)| instance.metadata.name.as_ref() == Some(&name)).unwrap();
                        let status = instance.status.as_mut().unwrap();
                        status.evacuation_node_name = None;
                        status.evacuation = None;
                    }
                    DrainStep::Migrate { name, .. } => {
                        let (instance, _, migrations) = instances.iter_mut().find(|(instance, ..)| instance.metadata.name.as_ref() == Some(&name)).unwrap();
                        prop_assert!(instance.status.as_ref().unwrap().evacuation_node_name.is_some());
                        prop_assert!(migrations.iter().all(|migration| migration.status.as_ref().unwrap().phase.unwrap().is_final()));
                        migrations.push(migration("new", "Pending", |_| {}));
                    }
                    DrainStep::Cancel { .. } => {}
                }
            }
        }
    }
}

#[test]
fn migrations_of_one_node_follow_each_other() {
    let migrate = |name: &str, node: &str| DrainStep::Migrate {
        namespace: "shop".into(),
        name: name.into(),
        node: node.into(),
        priority: MigrationPriority::SystemCritical,
        order: 0,
    };
    let unmark = |name: &str| DrainStep::Unmark {
        namespace: "shop".into(),
        name: name.into(),
    };
    let steps = [
        unmark("u"),
        migrate("a", "one"),
        migrate("b", "two"),
        unmark("v"),
        migrate("c", "one"),
        migrate("d", "two"),
        migrate("e", "one"),
    ];
    let names: Vec<Vec<&str>> = chains(steps.iter())
        .iter()
        .map(|chain| chain.iter().map(|step| step.instance().1).collect())
        .collect();
    let expected: [&[&str]; 4] = [&["u"], &["a", "c", "e"], &["b", "d"], &["v"]];
    assert_eq!(names, expected);
}

#[test]
fn ended_guest_is_of_a_drain_while_marked() {
    let at = |phase: &str, is_marked: bool| {
        instance("web", |instance| {
            instance["status"]["phase"] = json!(phase);
            if is_marked {
                mark(instance, "Cordon", seconds_ago(60));
            }
        })
    };
    for (what, instance, node, expected) in [
        ("runs", at("Running", false), "a", true),
        ("runs, marked", at("Running", true), "a", true),
        ("runs elsewhere", at("Running", true), "b", false),
        ("ended", at("Succeeded", false), "a", false),
        ("failed", at("Failed", false), "a", false),
        ("ended, marked", at("Succeeded", true), "a", true),
    ] {
        assert_eq!(is_of_drain(&instance, node), expected, "{what}");
    }
}

#[test]
fn request_is_the_same_until_the_guest_or_mark_changes() {
    let before = marked("web", "Cordon");
    for (path, changed, expected) in [
        ("/metadata/resourceVersion", json!("9"), true),
        ("/metadata/uid", json!("another"), false),
        ("/status/nodeName", json!("b"), false),
        ("/status/evacuationNodeName", json!("b"), false),
        ("/status/evacuation/requestedBy", json!("Taint"), false),
    ] {
        let mut after = serde_json::to_value(&before).unwrap();
        after["metadata"]["resourceVersion"] = json!("1");
        *after.pointer_mut(path).unwrap() = changed;
        let after = serde_json::from_value(after).unwrap();
        assert_eq!(is_same_request(&before, &after), expected, "{path}");
    }
}

#[test]
fn only_the_removal_of_a_request_is_a_report() {
    let (namespace, name, node) = ("n".to_owned(), "web".to_owned(), "a".to_owned());
    let evacuation = evacuation_request::new(DrainRequest::Taint, now());
    let unmark = DrainStep::Unmark {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    assert!(unmark.is_report());
    for step in [
        DrainStep::Mark {
            namespace: namespace.clone(),
            name: name.clone(),
            node: node.clone(),
            evacuation,
        },
        DrainStep::Migrate {
            namespace: namespace.clone(),
            name: name.clone(),
            node,
            priority: MigrationPriority::SystemCritical,
            order: 0,
        },
        DrainStep::Cancel {
            namespace,
            instance: name.clone(),
            name,
            uid: "m".to_owned(),
        },
    ] {
        assert!(!step.is_report(), "{step:?}");
    }
}

#[test]
fn node_reports_a_drain_at_the_next_time_to_come() {
    let report = |in_progress, started: i64| super::DrainReport {
        node: "a".into(),
        drain: Some(DrainStatus {
            requested_by: vec![DrainRequest::Taint],
            started_at: Time(seconds_ago(started)),
            finished_at: None,
            estimated_end: None,
            total: 1,
            left: 1,
            moving: 0,
            waiting: 1,
            blocked: 0,
            shutting_down: 0,
            remaining: Vec::new(),
        }),
        in_progress,
        drained: Drained::NotRequested,
    };
    let ahead = |seconds| Some(now() + SignedDuration::from_secs(seconds));
    for (what, reports, expected) in [
        ("nothing", vec![], None),
        ("begins", vec![report(true, 1)], ahead(3)),
        ("the first of several", vec![report(true, 1), report(true, 2)], ahead(2)),
        ("reported by now", vec![report(true, 4)], None),
        ("not in progress", vec![report(false, 1)], None),
        ("one reported by now", vec![report(true, 9), report(true, 0)], ahead(4)),
    ] {
        let plan = NodeDrainPlan {
            reports,
            ..NodeDrainPlan::default()
        };
        assert_eq!(plan.reported_at(now()), expected, "{what}");
    }
}
