//! Tests of blocks for terminals of all sizes.

use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-11-27T14:02:11Z";
const WIDE: Canvas = Canvas {
    width: 80,
    height: 24,
    colour: false,
};
const SMALL: Canvas = Canvas { width: 40, ..WIDE };

fn guest(name: &str, state: &str, message: &str) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    json!({"namespace": namespace, "name": name, "state": state, "reason": "Any", "message": message})
}

fn drain(total: u32, remaining: &[Value]) -> DrainStatus {
    let count = |state: &str| remaining.iter().filter(|guest| guest["state"] == state).count();
    serde_json::from_value(
        json!({"startedAt": NOW, "estimatedEnd": "2026-11-27T14:09:00Z", "total": total,
        "left": remaining.len(), "moving": count("Moving"), "waiting": count("Waiting"), "blocked": count("Blocked"),
        "shuttingDown": count("ShuttingDown"), "remaining": remaining}),
    )
    .unwrap()
}

fn moving(name: &str, target: &str, left: u64, end: &str) -> Arc<VirtualMachineInstanceMigration> {
    let (namespace, name) = name.split_once('/').unwrap();
    let migration = json!({"metadata": {"namespace": namespace, "name": "m"}, "spec": {"vmiName": name},
        "status": {"phase": "Running", "sourceNode": "worker-1", "target": {"node": target}, "source": {"node": "worker-1",
            "progress": {"summary": "", "dataTotal": 4_294_967_296_u64, "dataProcessed": 0, "dataRemaining": left,
                "estimatedEnd": end}}}});
    Arc::new(serde_json::from_value(migration).unwrap())
}

/// Returns a node with guests in every state.
fn course() -> NodeCourse {
    NodeCourse {
        name: "worker-1".into(),
        drain: Some(drain(
            7,
            &[
                guest(
                    "shop/cache",
                    "Blocked",
                    "the guest cannot be migrated (DisksNotLiveMigratable: PVC data is not shared)",
                ),
                guest(
                    "db/replica",
                    "Waiting",
                    "the source node has reached its limit of outbound migrations (2); queue position 1",
                ),
                guest("shop/web", "Moving", "its migration is under way"),
                guest("shop/api", "Moving", "its migration is under way"),
                guest("dev/scratch", "ShuttingDown", "the guest is being shut down"),
            ],
        )),
        migrations: vec![
            moving("shop/web", "worker-2", 1_500_000_000, "2026-11-27T14:02:49Z"),
            moving("shop/api", "worker-13", 3_950_000_000, "2026-11-27T14:04:06Z"),
        ],
        pods: Some("1 pod waits for the PodDisruptionBudget pg".into()),
        end: None,
    }
}

fn shown(nodes: &[&NodeCourse], canvas: Canvas) -> Vec<String> {
    let lines = block(
        &Block {
            nodes,
            now: NOW.parse().unwrap(),
            zone: &TimeZone::UTC,
            unreachable_since: None,
            goes_on: true,
        },
        canvas,
    );
    assert!(lines.len() <= canvas.height, "{lines:#?}");
    assert!(
        canvas.colour || lines.iter().all(|line| line.chars().count() <= canvas.width),
        "{lines:#?}"
    );
    lines
}

#[test]
fn block_has_a_line_for_each_guest_at_80_columns() {
    insta::assert_snapshot!(shown(&[&course()], WIDE).join("\n"));
}

#[test]
fn block_wraps_messages_below_names_at_40_columns() {
    insta::assert_snapshot!(shown(&[&course()], Canvas { height: 40, ..SMALL }).join("\n"));
}

#[test]
fn block_counts_guests_beyond_the_terminal_height() {
    let states = ["Waiting", "Moving", "Waiting", "Waiting", "Blocked", "Waiting"];
    let guests: Vec<Value> = (0..30)
        .map(|index| guest(&format!("shop/vm-{index}"), states[index % states.len()], "as it is"))
        .collect();
    let node = NodeCourse {
        name: "worker-1".into(),
        drain: Some(drain(40, &guests)),
        ..NodeCourse::default()
    };
    insta::assert_snapshot!(shown(&[&node], WIDE).join("\n"));
    // The list in the report is truncated at a hundred guests.
    let mut more = node.clone();
    more.drain.as_mut().unwrap().left = 130;
    let lines = shown(&[&more], Canvas { height: 12, ..WIDE });
    assert_eq!(lines[9], "  and 126 more", "{lines:#?}");
}

#[test]
fn several_nodes_are_shown_with_the_drain_results() {
    let ended = |name: &str, end: DrainEnd| NodeCourse {
        name: name.into(),
        drain: Some(drain(3, &[])),
        end: Some(end),
        ..NodeCourse::default()
    };
    let nodes = [
        course(),
        ended("worker-2", DrainEnd::Empty),
        ended("worker-3", DrainEnd::Cancelled),
        ended("worker-4", DrainEnd::Failed("it was not empty within 45m".into())),
        NodeCourse {
            name: "worker-5".into(),
            ..NodeCourse::default()
        },
    ];
    let nodes: Vec<&NodeCourse> = nodes.iter().collect();
    insta::assert_snapshot!(shown(&nodes, WIDE).join("\n"));
    // If there are too few lines, drains that have not ended come first.
    let lines = shown(&nodes, Canvas { height: 9, ..WIDE });
    assert!(
        lines[0].starts_with("worker-1") && lines.iter().any(|line| line.starts_with("worker-5")),
        "{lines:#?}"
    );
}

#[test]
fn broken_connection_is_reported_with_the_time() {
    let node = course();
    let lines = block(
        &Block {
            nodes: &[&node],
            now: NOW.parse().unwrap(),
            zone: &TimeZone::UTC,
            unreachable_since: Some("2026-11-27T14:01:00Z".parse().unwrap()),
            goes_on: false,
        },
        WIDE,
    );
    let last = lines.iter().rev().take(2).rev().cloned().collect::<Vec<_>>();
    assert_eq!(
        last,
        [
            "no updates since 14:01:00: the API server cannot be reached; the drain continues",
            "  in the cluster"
        ]
    );
}

#[test]
fn block_fits_terminals_of_any_size() {
    let mut long = course();
    let name = "a-namespace-with-a-rather-long-name/a-virtual-machine-with-a-name-that-is-longer-than-the-line";
    long.drain.as_mut().unwrap().remaining[0] = serde_json::from_value(guest(name, "Blocked", "it stays")).unwrap();
    for width in 1..120 {
        for height in [1, 2, 5, 8, 13, 24, 200] {
            let canvas = Canvas {
                width,
                height,
                colour: false,
            };
            let lines = shown(&[&long, &course()], canvas);
            let text: String = lines
                .iter()
                .flat_map(|line| line.chars())
                .filter(|c| *c != ' ')
                .collect();
            assert!(height < 200 || width < 20 || text.contains(name), "{lines:#?}");
        }
    }
}

#[test]
fn colours_change_no_text() {
    let canvas = Canvas { colour: true, ..WIDE };
    let painted = shown(&[&course()], canvas);
    let plain: Vec<String> = painted
        .iter()
        .map(|line| {
            ["\x1b[0m", "\x1b[1;31m", "\x1b[32m", "\x1b[33m"]
                .iter()
                .fold(line.clone(), |line, code| line.replace(code, ""))
        })
        .collect();
    assert_eq!(plain, shown(&[&course()], WIDE));
    assert!(
        painted
            .iter()
            .any(|line| line.starts_with("  \x1b[1;31mBLOCKED\x1b[0m   shop/cache")),
        "{painted:#?}"
    );
}

#[test]
fn migration_is_shown_with_the_waiting_reason() {
    let wait = json!({"metadata": {"namespace": "shop", "name": "m"}, "spec": {"vmiName": "db"},
        "status": {"phase": "Pending", "sourceNode": "worker-1", "conditions": [{"type": "Waiting", "status": "True",
            "reason": "ClusterLimit", "message": "the cluster has reached its limit of parallel migrations (5); queue position 2"}]}});
    let failed = json!({"metadata": {"namespace": "shop", "name": "m"}, "spec": {"vmiName": "db"},
        "status": {"phase": "Failed", "sourceNode": "worker-1", "target": {"node": "worker-2"},
            "migrationState": {"failed": true, "failureReason": "the target refused the guest"}}});
    let of = |value: Value| -> VirtualMachineInstanceMigration { serde_json::from_value(value).unwrap() };
    let all = [
        moving("shop/web", "worker-2", 1_500_000_000, "2026-11-27T14:02:49Z")
            .as_ref()
            .clone(),
        of(wait),
        of(failed),
    ];
    let mut text = Vec::new();
    for canvas in [WIDE, SMALL] {
        for one in &all {
            text.extend(migration(one, NOW.parse().unwrap(), canvas));
        }
    }
    insta::assert_snapshot!(text.join("\n"));
}
