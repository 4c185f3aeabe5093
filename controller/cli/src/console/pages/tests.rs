use std::sync::Arc;

use drydock_api::{
    hypervisor::DrainStatus,
    maintenance::{Group, NodeMaintenance},
};
use drydock_view::{
    check::{Check, CheckOutcome, Finding, Section},
    plan::Remedy,
    plan::fixture::{cluster, node},
    snapshot::UnreadKind,
};
use serde_json::json;

use maud::html;

use super::{guest_page::GuestPageContext, *};
use crate::console::{
    guest::{Picture, Shown, StreamStatus},
    page::PageElement,
    view::GuestDevice,
};

const NOW: &str = "2026-11-27T14:05:00Z";

/// Returns the fixture with agents that are ready. Node `a` is in maintenance, and one of its guests blocks the drain.
fn drained() -> Snapshot {
    let mut snapshot = cluster();
    for hypervisor in &mut snapshot.hypervisors {
        let condition = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-11-27T13:00:00Z"});
        let status = Arc::make_mut(hypervisor).status.as_mut().unwrap();
        status.conditions = vec![serde_json::from_value(condition).unwrap()];
    }
    let drain: DrainStatus = serde_json::from_value(json!({"startedAt": "2026-11-27T14:00:00Z",
        "estimatedEnd": "2026-11-27T14:09:00Z", "total": 5, "left": 3, "moving": 1, "waiting": 1, "blocked": 1,
        "shuttingDown": 0, "remaining": [
            {"namespace": "shop", "name": "cache", "state": "Blocked", "reason": "NotMigratable", "message": "the guest cannot be migrated"},
            {"namespace": "shop", "name": "web", "state": "Moving", "reason": "Migration", "message": "its migration is under way"},
            {"namespace": "shop", "name": "api", "state": "Waiting", "reason": "Limit", "message": "2 leave the node already"}]}))
    .unwrap();
    Arc::make_mut(&mut snapshot.hypervisors[0])
        .status
        .as_mut()
        .unwrap()
        .drain = Some(drain);
    let maintenance: NodeMaintenance = serde_json::from_value(json!({
        "metadata": {"name": "a", "creationTimestamp": "2026-11-27T14:00:00Z"},
        "spec": {"nodeName": "a", "reason": "new <b>disk</b>"},
        "status": {"phase": "Running", "drainProgress": 40, "lastError": "shop/cache blocks", "pods": [
            {"namespace": "shop", "name": "pg-0", "reason": "BlockedByBudget", "pendingSince": "2026-11-27T14:01:00Z",
             "blockedBy": {"kind": "PodDisruptionBudget", "name": "pg", "disruptionsAllowed": 0, "currentHealthy": 1,
                "desiredHealthy": 1, "expectedPods": 1}}]}}))
    .unwrap();
    snapshot.maintenances.push((Group::Medik8s, Arc::new(maintenance)));
    for (name, instance, status) in [
        (
            "m-1",
            "web",
            json!({"phase": "Running", "sourceNode": "a", "target": {"node": "b"}, "source": {"node": "a", "progress": {
                "summary": "", "dataTotal": 4_294_967_296_u64, "dataProcessed": 0, "dataRemaining": 1_073_741_824_u64,
                "estimatedEnd": "2026-11-27T14:05:38Z"}}}),
        ),
        ("m-2", "api", json!({"phase": "Pending", "sourceNode": "a"})),
        (
            "m-0",
            "other",
            json!({"phase": "Succeeded", "sourceNode": "a", "target": {"node": "b"}}),
        ),
    ] {
        let migration = json!({"metadata": {"namespace": "shop", "name": name, "uid": name,
            "creationTimestamp": "2026-11-27T14:00:00Z"}, "spec": {"vmiName": instance}, "status": status});
        snapshot
            .migrations
            .push(Arc::new(serde_json::from_value(migration).unwrap()));
    }
    snapshot
}

/// Returns a page of a snapshot for a user with these rights.
fn shown(path: &str, snapshot: &Snapshot, rights: &Rights, stale_since: Option<&str>) -> Page {
    with(snapshot, rights, stale_since, |context| {
        render(&ViewPath::parse(path).unwrap(), context)
    })
}

/// Returns the page of a guest with this content.
fn guest_page(path: &str, status: StreamStatus, picture: Picture, circumstances: GuestPageContext) -> Page {
    let mut page = shown(path, &drained(), &Rights::default(), None);
    let shown = Shown { id: 7, status, picture };
    guest_page::show(&mut page, &ViewPath::parse(path).unwrap().view, &shown, circumstances);
    page
}

fn with<T>(
    snapshot: &Snapshot,
    rights: &Rights,
    stale_since: Option<&str>,
    f: impl FnOnce(&PageContext<'_>) -> T,
) -> T {
    let cluster = ClusterContext {
        context: "prod-eu".into(),
        server: "https://10.0.0.1:6443".into(),
        user: "anna".into(),
        careful: true,
    };
    let report = Ok(checked());
    let context = PageContext {
        snapshot,
        now: NOW.parse().unwrap(),
        rights,
        report: Some(&report),
        stale_since: stale_since.map(|since| since.parse().unwrap()),
        cluster: &cluster,
    };
    f(&context)
}

/// Returns a report that has a check with each outcome.
fn checked() -> CheckReport {
    let finding = |outcome, message: &str| Finding {
        outcome,
        message: message.into(),
        remedy: Some(Remedy {
            text: "open it".into(),
            command: Some("kubectl uncordon b".into()),
        }),
    };
    let check = |name, outcome, findings| Check {
        name,
        outcome,
        findings,
    };
    CheckReport {
        at: NOW.parse().unwrap(),
        sections: vec![Section {
            title: "Nodes",
            checks: vec![
                check("kubelets are ready", CheckOutcome::Ok, Vec::new()),
                check(
                    "no node is cordoned",
                    CheckOutcome::Warning,
                    vec![finding(CheckOutcome::Warning, "<b> is cordoned")],
                ),
                check(
                    "nodes accept virtual machines",
                    CheckOutcome::Error,
                    vec![finding(CheckOutcome::Error, "none does")],
                ),
                check("agents are ready", CheckOutcome::Skipped, Vec::new()),
            ],
        }],
        unread: vec![UnreadKind {
            resource: "pods".into(),
            why: "forbidden".into(),
        }],
    }
}

/// Returns the parts of a page as one line each, so that a changed part is one changed line.
fn lines(page: &Page) -> String {
    let line = |part: &PageElement| format!("{} > {}: {}\n", part.into, part.id, part.html);
    page.parts.iter().map(line).collect()
}

#[test]
fn pages_match_the_snapshots() {
    let snapshot = drained();
    for (name, path) in [
        ("nodes", "/nodes"),
        ("node", "/nodes/a"),
        ("machines", "/virtual-machines"),
        ("machine", "/virtual-machines/shop/cache"),
        ("migrations", "/migrations"),
        ("migration", "/migrations/shop/m-1"),
        ("cancel", "/cancel/shop/m-1"),
        ("check", "/check"),
        ("start", "/start/b"),
        ("stop", "/stop/a"),
    ] {
        let page = shown(path, &snapshot, &Rights::default(), None);
        insta::assert_snapshot!(name, lines(&page));
    }
}

#[test]
fn page_parts_are_distinct_and_within_earlier_parts() {
    const DOCUMENT: [&str; 4] = ["page", "dialog", "cluster", "banners"];
    let mut snapshot = drained();
    snapshot.unread.push(UnreadKind {
        resource: "pods".into(),
        why: "forbidden".into(),
    });
    for path in [
        "/nodes",
        "/nodes/a",
        "/nodes/none",
        "/virtual-machines",
        "/virtual-machines/shop/web",
        CONSOLE,
        "/virtual-machines/%3Cb%3E/%3Cb%3E/display",
        "/check",
        "/migrations",
        "/migrations/shop/m-2",
        "/cancel/shop/m-2",
        "/start/a/b",
        "/stop/a",
    ] {
        let page = shown(path, &snapshot, &Rights::default(), Some(NOW));
        for (index, part) in page.parts.iter().enumerate() {
            let earlier = &page.parts[..index];
            assert!(earlier.iter().all(|other| other.id != part.id), "{path} {}", part.id);
            let holds = |other: &PageElement| other.html.contains(&format!("id=\"{}\"", part.into));
            assert!(
                DOCUMENT.contains(&part.into) || earlier.iter().any(holds),
                "{path}: {} is in {}",
                part.id,
                part.into
            );
            let own = format!("id=\"{}\"", part.id);
            let root = part.html.split_once('>').unwrap().0;
            assert!(root.contains(&own), "{path}: {} is not the identity of {root}", part.id);
        }
    }
}

#[test]
fn markup_of_others_is_text_on_every_page() {
    let snapshot = drained();
    for path in [
        "/nodes",
        "/nodes/a",
        "/start/a",
        "/nodes?q=%3Cb%3E",
        "/nodes/%3Cb%3E",
        "/start/%3Cb%3E",
        "/stop/%3Cb%3E",
        "/virtual-machines/%3Cb%3E/%3Cb%3E/display",
    ] {
        let text = lines(&shown(path, &snapshot, &Rights::default(), None));
        assert!(!text.contains("<b>"), "{path}: {text}");
    }
}

const WRITES: GuestPageContext = GuestPageContext {
    read_only: false,
    runs: true,
};
const CONSOLE: &str = "/virtual-machines/shop/web/console";
const DISPLAY: &str = "/virtual-machines/shop/web/display";

#[test]
fn guest_pages_match_the_snapshots() {
    let rows = Picture::Rows(vec![
        html! { "login: " span.cursor { " " } },
        html! { span.f1 { "<b>" } },
    ]);
    let page = guest_page(CONSOLE, StreamStatus::Connected(None), rows, WRITES);
    insta::assert_snapshot!("guest-console", lines(&page));
    let size = Picture::Size(Some((800, 600)));
    let page = guest_page(DISPLAY, StreamStatus::Connected(None), size.clone(), WRITES);
    insta::assert_snapshot!("guest-display", lines(&page));
    let read_only = GuestPageContext {
        read_only: true,
        ..WRITES
    };
    let page = lines(&guest_page(DISPLAY, StreamStatus::Connected(None), size, read_only));
    assert!(
        !page.contains("data-guest") && !page.contains("<form") && page.contains("--read-only"),
        "{page}"
    );
}

#[test]
fn guest_stream_state_has_a_reason_and_a_next_step() {
    let again = "<a href=\"/virtual-machines/shop/web/display\">";
    for (status, runs, expected) in [
        (StreamStatus::Connecting, true, vec!["Connecting"]),
        (
            StreamStatus::Connected(Some("it migrated to node b".into())),
            true,
            vec!["Connected again after: it migrated to node b."],
        ),
        (
            StreamStatus::Reconnecting("it migrated to node b".into()),
            true,
            vec!["Closed: it migrated to node b.", "is reconnecting"],
        ),
        (
            StreamStatus::InUse,
            true,
            vec![
                "Another client",
                "<a href=\"/virtual-machines/shop/web/display/take\">Take it over</a>",
                again,
            ],
        ),
        (
            StreamStatus::Lost,
            true,
            vec!["Another client has taken over the display", again],
        ),
        (
            StreamStatus::Lost,
            false,
            vec!["The guest is no longer running.", again],
        ),
        (
            StreamStatus::Ended("<b>".into()),
            true,
            vec!["The display has ended: &lt;b&gt;.", again],
        ),
    ] {
        let circumstances = GuestPageContext { runs, ..WRITES };
        let page = guest_page(DISPLAY, status.clone(), Picture::Size(None), circumstances);
        let state = &page.parts.iter().find(|part| part.id == "state").unwrap().html;
        for text in expected {
            assert!(state.contains(text), "{status:?}: {state}");
        }
    }
}

#[test]
fn guest_that_cannot_be_opened_has_the_reason_on_both_pages() {
    let devices = |snapshot: &mut Snapshot, phase: &str, attached: bool| {
        for instance in &mut snapshot.instances {
            let instance = Arc::make_mut(instance);
            instance.status.get_or_insert_default().phase = Some(serde_json::from_value(json!(phase)).unwrap());
            instance.spec.domain.devices.autoattach_serial_console = Some(attached);
            instance.spec.domain.devices.autoattach_graphics_device = Some(attached);
        }
    };
    let refused = Rights::none("you lack the right to get it");
    for (phase, attached, rights, expected) in [
        ("Running", true, &Rights::default(), None),
        ("Scheduling", true, &Rights::default(), Some("its phase is Scheduling")),
        (
            "Running",
            false,
            &Rights::default(),
            Some("the virtual machine has no serial console"),
        ),
        ("Running", true, &refused, Some("you lack the right to get it")),
    ] {
        let mut snapshot = drained();
        devices(&mut snapshot, phase, attached);
        let why = with(&snapshot, rights, None, |context| {
            guest_page::unavailable("shop", "web", GuestDevice::Console, context)
        });
        assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
        let machine = lines(&shown("/virtual-machines/shop/web", &snapshot, rights, None));
        let console = lines(&shown(CONSOLE, &snapshot, rights, None));
        match expected {
            None => assert!(machine.contains(&format!("href=\"{CONSOLE}\"")) && !console.contains("unavailable")),
            Some(expected) => {
                assert!(machine.contains(expected) && machine.contains("disabled"), "{machine}");
                assert!(
                    console.contains("Not available: ") && console.contains(expected),
                    "{console}"
                );
            }
        }
    }
    let missing = lines(&shown(
        "/virtual-machines/shop/none/display",
        &drained(),
        &Rights::default(),
        None,
    ));
    assert!(
        missing.contains("Not available: the virtual machine is not running."),
        "{missing}"
    );
}

#[test]
fn action_without_permission_names_the_missing_right() {
    let snapshot = drained();
    let rights = Rights::none("you lack the right to create nodemaintenances");
    for (path, id) in [
        ("/nodes", "node/b"),
        ("/nodes/a", "head"),
        ("/start/b", "start-form"),
        ("/stop/a", "stop-form"),
        ("/migrations/shop/m-2", "head"),
        ("/cancel/shop/m-2", "cancel-form"),
    ] {
        let all = shown(path, &snapshot, &rights, None);
        let part = all.parts.iter().find(|part| part.id == id).unwrap();
        assert!(
            part.html.contains(" disabled") && part.html.contains("you lack the right"),
            "{path}: {}",
            part.html
        );
        let all = shown(path, &snapshot, &Rights::default(), None);
        let part = all.parts.iter().find(|part| part.id == id).unwrap();
        assert!(!part.html.contains(" disabled"), "{path}: {}", part.html);
        let stale = shown(path, &snapshot, &Rights::default(), Some(NOW));
        let part = stale.parts.iter().find(|part| part.id == id).unwrap();
        assert!(part.html.contains(" disabled"), "{path}: {}", part.html);
    }
}

#[test]
fn rows_are_filtered_and_paged() {
    let mut snapshot = cluster();
    snapshot.nodes = (0..250)
        .map(|number| Arc::new(node(&format!("n-{number:03}"), "1Gi")))
        .collect();
    for (path, first, count) in [
        ("/nodes", "node/n-000", 100),
        ("/nodes?page=3", "node/n-200", 50),
        ("/nodes?q=n-24", "node/n-240", 10),
        ("/nodes?q=none", "no-match", 1),
    ] {
        let page = shown(path, &snapshot, &Rights::default(), None);
        let rows: Vec<_> = page.parts.iter().filter(|part| part.into == "node-rows").collect();
        assert_eq!((rows[0].id.as_str(), rows.len()), (first, count), "{path}");
    }
}
