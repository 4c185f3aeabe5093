//! Tests of plans for nodes with guests of every kind.

use serde_json::json;

use super::{
    fixture::{cluster, node},
    *,
};

const GIB: u64 = 1 << 30;

fn planned(snapshot: &Snapshot, nodes: &[&str]) -> DrainPlan {
    let names: Vec<String> = nodes.iter().map(|&name| name.into()).collect();
    plan(snapshot, &names).unwrap()
}

fn names(guests: &[GuestPlan]) -> Vec<&str> {
    guests.iter().map(|guest| guest.name.as_str()).collect()
}

#[test]
fn guests_move_stop_or_block() {
    let plan = planned(&cluster(), &["a"]);
    let node = &plan.nodes[0];
    assert_eq!(names(&node.moves), ["api", "web"], "{plan:#?}");
    assert_eq!(names(&node.stops), ["scratch"]);
    assert_eq!(names(&node.blocks), ["cache"]);
    assert!(
        node.moves.iter().all(|guest| guest.target.is_some()),
        "{:#?}",
        node.moves
    );
    assert_eq!(node.moves[0].memory_bytes, 4 * GIB);
    assert_eq!(plan.verdict(), Verdicts::SomeBlock);
    insta::assert_snapshot!(text(&plan, "14:02:11", 80));
}

#[test]
fn plan_fits_narrow_terminals_without_cutting_names() {
    let plan = planned(&cluster(), &["a"]);
    let text = text(&plan, "14:02:11", 40);
    assert!(
        text.contains("shop/scratch") && text.contains("drydock.dev/evacuation-fallback=restart"),
        "{text}"
    );
    insta::assert_snapshot!(text);
}

#[test]
fn several_nodes_are_one_question() {
    // Node `c` has room for the guests of `b` alone, but not for those of `a` and `b` together.
    let mut snapshot = cluster();
    snapshot.nodes[2] = Arc::new(node("c", "9Gi"));
    let blocked = |plan: &DrainPlan| -> usize { plan.nodes.iter().map(|node| node.blocks.len()).sum() };
    assert_eq!(blocked(&planned(&snapshot, &["b"])), 0);
    let both = planned(&snapshot, &["a", "b"]);
    assert_eq!(both.nodes.len(), 2);
    let crowded: Vec<_> = both
        .nodes
        .iter()
        .flat_map(|node| &node.blocks)
        .map(|guest| guest.reason.as_str())
        .collect();
    assert!(crowded.contains(&"NoTargetAvailable"), "{both:#?}");
    // No guest of a drained node goes to another drained node.
    let targets: Vec<_> = both
        .nodes
        .iter()
        .flat_map(|node| &node.moves)
        .filter_map(|guest| guest.target.as_deref())
        .collect();
    assert!(targets.iter().all(|target| *target == "c"), "{targets:?}");
}

#[test]
fn remedies_suit_the_guest() {
    let plan = planned(&cluster(), &["a"]);
    let remedy = plan.nodes[0].blocks[0].remedy.clone().unwrap();
    assert_eq!(
        remedy.command.as_deref(),
        Some("kubectl annotate vmi -n shop cache drydock.dev/evacuation-fallback=restart")
    );
    let mut alone = cluster();
    for instance in &mut alone.instances {
        Arc::make_mut(instance).metadata.owner_references = None;
    }
    let remedy = planned(&alone, &["a"]).nodes[0].blocks[0].remedy.clone().unwrap();
    assert_eq!(remedy.command.as_deref(), Some("kubectl delete vmi -n shop cache"));
}

#[test]
fn pods_that_wait_for_pdbs_are_shown_with_pod_counts() {
    let plan = planned(&cluster(), &["a"]);
    let node = &plan.nodes[0];
    assert_eq!(node.pods_leaving, 1);
    let waits = &node.pods_waiting[0];
    assert_eq!(
        (waits.name.as_str(), waits.budget.as_str(), waits.ready, waits.required),
        ("pg-0", "pg", 1, 1)
    );
}

#[test]
fn room_counts_the_loss_of_one_more_node() {
    let room = |c: &str| {
        let mut snapshot = cluster();
        snapshot.nodes[2] = Arc::new(node("c", c));
        planned(&snapshot, &["b"]).room
    };
    // Node `a` has four guests of 4 GiB, and the guest of `b` moves to `a` as well.
    for (c, missing, lost) in [
        ("32Gi", 0, None),
        ("16Gi", 4 * GIB, Some("a")),
        ("1Gi", 19 * GIB, Some("a")),
    ] {
        let room = room(c);
        assert_eq!((room.missing_bytes, room.lost.as_deref()), (missing, lost), "{c}");
    }
}

#[test]
fn room_without_another_open_node_names_no_amount() {
    let mut snapshot = cluster();
    for node in &mut snapshot.nodes {
        Arc::make_mut(node).spec.get_or_insert_default().unschedulable = Some(true);
    }
    let plan = planned(&snapshot, &["a"]);
    assert_eq!(plan.room.nodes, 0);
    let text = text(&plan, "14:02:11", 80);
    assert!(
        text.contains("ROOM             no other node accepts virtual machines\n"),
        "{text}"
    );
    assert!(!text.contains("one more node"), "{text}");
}

#[test]
fn room_is_that_of_nodes_that_take_guests() {
    let free = |change: fn(&mut Snapshot)| {
        let mut snapshot = cluster();
        change(&mut snapshot);
        planned(&snapshot, &["a"]).room.free_bytes / GIB
    };
    // Of 32 GiB on both, 4 are taken and 8 arrive.
    assert_eq!(free(|_| {}), 20);
    let on_b = 16 - 8;
    assert_eq!(free(|snapshot| drop(snapshot.hypervisors.remove(2))), on_b - 4);
    let tainted: fn(&mut Snapshot) = |snapshot| {
        let taint = json!([{"key": "a", "effect": "NoSchedule"}]);
        Arc::make_mut(&mut snapshot.nodes[2])
            .spec
            .get_or_insert_default()
            .taints = serde_json::from_value(taint).unwrap();
    };
    assert_eq!(free(tainted), on_b - 4);
    let preferred: fn(&mut Snapshot) = |snapshot| {
        let taint = json!([{"key": "a", "effect": "PreferNoSchedule"}]);
        Arc::make_mut(&mut snapshot.nodes[2])
            .spec
            .get_or_insert_default()
            .taints = serde_json::from_value(taint).unwrap();
    };
    assert_eq!(free(preferred), 20);
}

#[test]
fn empty_node_would_be_empty_at_once() {
    let plan = planned(&cluster(), &["c"]);
    assert_eq!(plan.verdict(), Verdicts::AllMove);
    let text = text(&plan, "14:02:11", 80);
    assert!(
        text.starts_with("c: 0 virtual machines, 0 other pods; as of 14:02:11; nothing was changed\n"),
        "{text}"
    );
}

#[test]
fn unread_kinds_are_named_in_the_plan() {
    let mut snapshot = cluster();
    snapshot.budgets.clear();
    snapshot.unread.push(UnreadKind {
        resource: "poddisruptionbudgets".into(),
        why: "forbidden".into(),
    });
    let plan = planned(&snapshot, &["c"]);
    assert!(text(&plan, "14:02:11", 80).ends_with("not considered:  poddisruptionbudgets (forbidden)\n"));
}

#[test]
fn unknown_node_is_an_error() {
    assert_eq!(plan(&cluster(), &["z".to_owned()]), Err(NoSuchNode("z".into())));
}

#[test]
fn end_is_estimated_from_migrations_that_have_succeeded() {
    let mut snapshot = cluster();
    let migration = |phase: &str| -> Arc<_> {
        let migration = json!({"metadata": {"namespace": "shop", "name": "m"}, "spec": {"vmiName": "other"},
            "status": {"phase": phase, "migrationState": {"startTimestamp": "2026-11-27T13:00:00Z",
                "endTimestamp": "2026-11-27T13:00:20Z"}}});
        Arc::new(serde_json::from_value(migration).unwrap())
    };
    let end = |snapshot: &Snapshot| {
        let plan = planned(snapshot, &["b"]);
        plan.nodes[0].end.map(|end| end.duration_since(plan.at).as_secs())
    };
    snapshot.migrations.push(migration("Failed"));
    assert_eq!(end(&snapshot), None);
    snapshot.migrations.push(migration("Succeeded"));
    // The amount of data of the finished migration is the memory of its guest.
    assert_eq!(end(&snapshot), Some(20));
}
