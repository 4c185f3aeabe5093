use drydock_api::{
    hyperconverged::EvictionStrategy::{self, External, LiveMigrate, LiveMigrateIfPossible, None as Nothing},
    kubevirt::{VirtualMachineInstance, status::DrainRequest},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use serde_json::{Value, json};

use super::{
    Allowed::{AsShown, ForGood},
    EvictionDecision::{self, Allow, Mark, Refuse},
    EvictionInput,
    EvictionRefusal::{self, InProgress, InstanceUnknown, NotMigratable, TargetPod},
    GRACE, Lookup, decide, evacuation_request, own_pdb, pdbs,
};

fn made() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn pod(change: Value) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": "virt-launcher-web-1", "namespace": "n", "uid": "p", "creationTimestamp": made().to_string(),
            "labels": {"kubevirt.io": "virt-launcher", "drydock.dev/launcher": "l1", "app": "web"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "web", "uid": "u", "controller": true}],
        },
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running"},
    });
    merge(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, change: Value) {
    match change {
        Value::Object(fields) if into.is_object() => {
            for (key, value) in fields {
                merge(&mut into[key], value);
            }
        }
        other => *into = other,
    }
}

/// A VMI on node `a`; `migratable` is the status of its condition, if it has one.
fn instance(migratable: Option<&str>, change: Value) -> VirtualMachineInstance {
    let conditions: Vec<Value> = migratable
        .map(|status| json!({"type": "LiveMigratable", "status": status, "reason": "R", "message": "m"}))
        .into_iter()
        .collect();
    let mut instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "n", "uid": "u"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": "a", "conditions": conditions},
    });
    merge(&mut instance, change);
    serde_json::from_value(instance).unwrap()
}

fn input<'a>(
    pod: &'a Pod,
    instance: Lookup<&'a VirtualMachineInstance>,
    strategy: EvictionStrategy,
) -> EvictionInput<'a> {
    EvictionInput {
        now: made() + SignedDuration::from_secs(10),
        pod,
        instance,
        strategy,
        is_target: false,
    }
}

#[test]
fn each_eviction_strategy_matches_the_decision_table() {
    let plain = pod(json!({}));
    let late = made() + SignedDuration::try_from(GRACE).unwrap();
    // Its migratability may have changed by now; its strategy cannot.
    let as_shown = Allow(AsShown);
    for (strategy, yes, no, unknown, unknown_late) in [
        (Nothing, Allow(ForGood), Allow(ForGood), Allow(ForGood), Allow(ForGood)),
        (LiveMigrateIfPossible, Mark, as_shown.clone(), Mark, as_shown),
        (LiveMigrate, Mark, Refuse(NotMigratable), Mark, Refuse(NotMigratable)),
        (External, Mark, Mark, Mark, Mark),
    ] {
        for (migratable, now, expected) in [
            (Some("True"), made(), &yes),
            (Some("False"), made(), &no),
            (None, made(), &unknown),
            (Some("Unknown"), made(), &unknown),
            (None, late, &unknown_late),
        ] {
            let instance = instance(migratable, json!({}));
            let mut input = input(&plain, Lookup::There(&instance), strategy);
            input.now = now;
            assert_eq!(decide(&input), *expected, "{strategy:?} {migratable:?} at {now}");
        }
    }
}

#[test]
fn guest_with_fallback_is_shut_down_instead_of_blocking() {
    let annotated = json!({"metadata": {"annotations": {"drydock.dev/evacuation-fallback": "restart"}}});
    let plain = pod(json!({}));
    for (migratable, expected) in [(Some("False"), Allow(AsShown)), (Some("True"), Mark)] {
        let instance = instance(migratable, annotated.clone());
        assert_eq!(decide(&input(&plain, Lookup::There(&instance), LiveMigrate)), expected);
    }
    let other = json!({"metadata": {"annotations": {"drydock.dev/evacuation-fallback": "other"}}});
    let instance = instance(Some("False"), other);
    assert_eq!(
        decide(&input(&plain, Lookup::There(&instance), LiveMigrate)),
        Refuse(NotMigratable)
    );
}

#[test]
fn pod_without_a_guest_may_be_evicted_and_unknown_pod_may_not() {
    let there = instance(Some("True"), json!({}));
    let cases: [(Value, Lookup<&VirtualMachineInstance>, EvictionDecision); 9] = [
        (
            json!({"metadata": {"labels": {"kubevirt.io": "other"}}}),
            Lookup::There(&there),
            Allow(ForGood),
        ),
        (
            json!({"status": {"phase": "Succeeded"}}),
            Lookup::There(&there),
            Allow(ForGood),
        ),
        (json!({"status": {"phase": "Failed"}}), Lookup::Unknown, Allow(ForGood)),
        (
            json!({"metadata": {"deletionTimestamp": made().to_string()}}),
            Lookup::There(&there),
            Allow(ForGood),
        ),
        (json!({}), Lookup::Absent, Allow(ForGood)),
        (json!({}), Lookup::Unknown, Refuse(InstanceUnknown)),
        (
            json!({"spec": {"nodeName": "b"}}),
            Lookup::There(&there),
            Allow(AsShown),
        ),
        (
            json!({"spec": {"nodeName": null}}),
            Lookup::There(&there),
            Allow(AsShown),
        ),
        (json!({}), Lookup::There(&there), Mark),
    ];
    for (change, instance, expected) in cases {
        let pod = pod(change.clone());
        assert_eq!(decide(&input(&pod, instance, LiveMigrate)), expected, "{change}");
    }
    for over in [
        json!({"status": {"phase": "Succeeded"}}),
        json!({"metadata": {"deletionTimestamp": made().to_string()}}),
    ] {
        let over = instance(Some("True"), over);
        assert_eq!(
            decide(&input(&pod(json!({})), Lookup::There(&over), LiveMigrate)),
            Allow(ForGood)
        );
    }
}

#[test]
fn both_pods_of_a_guest_that_moves_are_kept() {
    let moving = instance(Some("True"), json!({"status": {"evacuationNodeName": "a"}}));
    let source = pod(json!({}));
    assert_eq!(
        decide(&input(&source, Lookup::There(&moving), LiveMigrate)),
        Refuse(InProgress)
    );
    let target = pod(json!({"spec": {"nodeName": "b"}}));
    let mut input = input(&target, Lookup::There(&moving), LiveMigrate);
    input.is_target = true;
    assert_eq!(decide(&input), Refuse(TargetPod));
    // An evacuation request for a node that the VMI has already left does not apply to its current node.
    let again = instance(
        Some("True"),
        json!({"status": {"nodeName": "b", "evacuationNodeName": "a"}}),
    );
    input.instance = Lookup::There(&again);
    input.is_target = false;
    assert_eq!(decide(&input), Mark);
}

#[test]
fn pod_is_not_released_by_a_state_older_than_the_guest() {
    // The guest went from a to b, and then into this pod on a. `name` is the source pod of the newest migration in the
    // cache.
    let shown = |node: &str, name: &str, completed: bool| {
        instance(
            Some("True"),
            json!({"status": {"nodeName": node, "migrationState": {"sourcePod": name, "completed": completed}}}),
        )
    };
    let here = pod(json!({}));
    let own = "virt-launcher-web-1";
    for (instance, expected) in [
        // The state before the guest arrived, which the API server does not confirm.
        (shown("b", "virt-launcher-web-0", true), Allow(AsShown)),
        (shown("b", "virt-launcher-web-2", true), Allow(AsShown)),
        (shown("b", own, false), Allow(AsShown)),
        (shown("a", "virt-launcher-web-2", true), Mark),
        // The guest has moved on since.
        (shown("b", own, true), Allow(ForGood)),
        (shown("a", own, true), Mark),
    ] {
        let input = input(&here, Lookup::There(&instance), LiveMigrate);
        assert_eq!(decide(&input), expected, "{:?}", instance.status);
        // Until its end is visible, a migration may still bring the guest.
        let arriving = EvictionInput {
            is_target: true,
            ..input
        };
        if expected != Mark {
            assert_eq!(decide(&arriving), Refuse(TargetPod), "{:?}", instance.status);
        }
    }
}

#[test]
fn the_texts_are_those_that_drainers_compare() {
    let text = |refusal: EvictionRefusal| refusal.text("n", "web", "why");
    assert_eq!(
        text(InProgress),
        r#"Evacuation in progress: Eviction triggered evacuation of VMI "n/web""#
    );
    assert_eq!(
        text(EvictionRefusal::Triggered),
        r#"Eviction triggered evacuation of VMI "n/web""#
    );
    assert_eq!(
        text(NotMigratable),
        "VMI web is configured with an eviction strategy but is not live-migratable"
    );
    assert_eq!(text(TargetPod), "Eviction request for target Pod");
    assert_eq!(text(InstanceUnknown), "kubevirt failed getting the vmi: why");
    assert_eq!(
        text(EvictionRefusal::NotMarked),
        "kubevirt failed marking the vmi for eviction: why"
    );
    assert_eq!(
        text(EvictionRefusal::Unreadable),
        "failed to parse the eviction object: why"
    );
}

#[test]
fn evacuation_mark_records_the_requester() {
    for (cordoned, tainted, maintenance, expected) in [
        (false, false, false, DrainRequest::Eviction),
        (true, false, false, DrainRequest::Cordon),
        (true, true, false, DrainRequest::Taint),
        (true, true, true, DrainRequest::Maintenance),
    ] {
        assert_eq!(evacuation_request::requester(cordoned, tainted, maintenance), expected);
    }
    let plain = instance(Some("True"), json!({}));
    let evacuation = evacuation_request::new(DrainRequest::Cordon, made());
    let status = evacuation_request::status(&plain, "a", &evacuation, made());
    assert_eq!(status["evacuationNodeName"], "a");
    assert_eq!(status["evacuation"]["requestedBy"], "Cordon");
    assert_eq!(status["conditions"][0]["message"], "VMI is marked for eviction");
    let marked = evacuation_request::marked(&plain, "a", &evacuation);
    assert_eq!(evacuation_request::evacuation(&marked), Some(&evacuation));
    assert_eq!(evacuation_request::evacuation(&plain), None);
}

#[test]
fn pdb_selects_only_the_protected_pod() {
    let own = pod(json!({}));
    let made = own_pdb::of(&own).unwrap();
    assert!(own_pdb::is_ours(&made));
    assert!(own_pdb::selects(&made, &own));
    assert!(!own_pdb::selects(
        &made,
        &pod(json!({"metadata": {"labels": {"drydock.dev/launcher": "l2"}}}))
    ));
    assert!(!own_pdb::selects(&made, &pod(json!({"metadata": {"namespace": "m"}}))));
    assert_eq!(made.metadata.name.as_deref(), Some("virt-launcher-web-1"));
    // The PDB is deleted with that pod, and not with another pod of the same name.
    assert!(own_pdb::goes_with(&made, &own));
    assert!(!own_pdb::goes_with(
        &made,
        &pod(json!({"metadata": {"uid": "another"}}))
    ));
    assert_eq!(own_pdb::instance_of(&made), Some("web"));
    assert!(own_pdb::of(&pod(json!({"metadata": {"uid": null}}))).is_none());
    let foreign: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "n"},
        "spec": {"maxUnavailable": 1, "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}},
    }))
    .unwrap();
    assert!(own_pdb::selects(&foreign, &own) && !own_pdb::is_ours(&foreign));
}

#[test]
fn pdb_exists_while_an_eviction_would_move_the_guest() {
    let late = made() + SignedDuration::from_mins(10);
    for (strategy, migratable, now, expected) in [
        (Nothing, Some("True"), made(), false),
        (LiveMigrate, Some("True"), late, true),
        (LiveMigrate, None, made(), true),
        (LiveMigrate, Some("False"), late, true),
        (LiveMigrate, None, late, true),
        (LiveMigrateIfPossible, Some("True"), late, true),
        (LiveMigrateIfPossible, Some("False"), late, false),
        (External, Some("False"), late, true),
    ] {
        let instance = instance(migratable, json!({}));
        let protected = own_pdb::is_protected(&instance, strategy, &pod(json!({})), now);
        assert_eq!(protected, expected, "{strategy:?} {migratable:?}");
    }
    let annotated = json!({"metadata": {"annotations": {"drydock.dev/evacuation-fallback": "restart"}}});
    let falls_back = instance(Some("False"), annotated);
    assert!(!own_pdb::is_protected(&falls_back, LiveMigrate, &pod(json!({})), late));
}

/// A marked VMI that may be migrated and that no other node can take since second 20.
fn nowhere(change: Value) -> VirtualMachineInstance {
    let mut status = json!({"status": {
        "evacuationNodeName": "a", "evacuation": {"requestedBy": "Cordon", "requestedAt": made().to_string()},
        "activePods": {"p": "a"},
        "conditions": [
            {"type": "LiveMigratable", "status": "True"},
            {"type": "MigrationTargetAvailable", "status": "False", "reason": "InsufficientResources", "message": "m",
             "lastTransitionTime": (made() + SignedDuration::from_secs(20)).to_string()},
        ],
    }});
    merge(&mut status, change);
    instance(None, status)
}

#[test]
fn guest_without_a_target_is_shut_down_where_possible_only() {
    let plain = pod(json!({}));
    let annotated = json!({"metadata": {"annotations": {"drydock.dev/evacuation-fallback": "restart"}}});
    let in_progress = || Refuse(InProgress);
    let unknown = json!([
        {"type": "LiveMigratable", "status": "True"},
        {"type": "MigrationTargetAvailable", "status": "False", "reason": "GuestCPUUnknown",
         "lastTransitionTime": made().to_string()},
    ]);
    for (what, change, strategy, second, expected) in [
        ("it may be", json!({}), LiveMigrateIfPossible, 35, Allow(AsShown)),
        ("not yet", json!({}), LiveMigrateIfPossible, 34, in_progress()),
        ("it has to move", json!({}), LiveMigrate, 999, in_progress()),
        (
            "it has to move or restart",
            annotated.clone(),
            LiveMigrate,
            35,
            Allow(AsShown),
        ),
        (
            "it has to move or restart, not yet",
            annotated.clone(),
            LiveMigrate,
            34,
            in_progress(),
        ),
        (
            "something else moves it, annotated",
            annotated,
            External,
            999,
            in_progress(),
        ),
        ("something else moves it", json!({}), External, 999, in_progress()),
        (
            "marked later",
            json!({"status": {"evacuation": {"requestedAt": (made() + SignedDuration::from_secs(60)).to_string()}}}),
            LiveMigrateIfPossible,
            74,
            in_progress(),
        ),
        (
            "not marked",
            json!({"status": {"evacuationNodeName": null, "evacuation": null}}),
            LiveMigrateIfPossible,
            999,
            Mark,
        ),
        (
            "on its way",
            json!({"status": {"migrationState": {"migrationUid": "m"}}}),
            LiveMigrateIfPossible,
            999,
            in_progress(),
        ),
        (
            "a pod waits for it elsewhere",
            json!({"status": {"activePods": {"q": "b"}}}),
            LiveMigrateIfPossible,
            999,
            in_progress(),
        ),
        (
            "nothing is known of other nodes",
            json!({"status": {"conditions": unknown}}),
            LiveMigrateIfPossible,
            999,
            in_progress(),
        ),
    ] {
        let instance = nowhere(change);
        let mut input = input(&plain, Lookup::There(&instance), strategy);
        input.now = made() + SignedDuration::from_secs(second);
        assert_eq!(decide(&input), expected, "{what}");
        let protected = own_pdb::is_protected(&instance, strategy, &plain, input.now);
        assert_eq!(protected, expected != Allow(AsShown), "its budget: {what}");
    }
}

#[test]
fn pdb_of_a_guest_without_target_is_deleted_in_time() {
    let instance = std::sync::Arc::new(nowhere(json!({})));
    let own = std::sync::Arc::new(pod(json!({})));
    let guarded = vec![pdbs::PodPdbs {
        own: own_pdb::of(&own).map(std::sync::Arc::new),
        foreign: None,
        pod: own,
    }];
    let planned = |second| {
        pdbs::plan(&pdbs::ObservedPdbs {
            now: made() + SignedDuration::from_secs(second),
            instance: instance.clone(),
            strategy: LiveMigrateIfPossible,
            pods: guarded.clone(),
        })
    };
    // The grace for unknown migratability is over by then.
    let before = planned(30);
    assert_eq!(before.delete.len(), 0);
    assert_eq!(before.wake, Some(made() + SignedDuration::from_secs(35)));
    assert_eq!(planned(35).delete.len(), 1);
}
