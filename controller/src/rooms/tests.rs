use std::collections::BTreeMap;

use drydock_api::kubevirt::VirtualMachineInstanceSpec;
use drydock_core::placement::Requirements;
use serde_json::{Value, json};

use super::*;

fn pod(name: &str, node: Option<&str>, change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "labels": {"a": "b"}},
        "spec": {"nodeName": node, "priority": 5, "preemptionPolicy": "PreemptLowerPriority", "containers": [
            {"name": "one", "image": "i", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
            {"name": "two", "image": "i", "resources": {"requests": {"cpu": "1"}}},
        ]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

fn requested(rooms: &Rooms, node: &str, own: &[Key]) -> Option<(u64, u64)> {
    let room = rooms.of(node, own)?;
    Some((room.requested("cpu", i32::MIN), room.requested("pods", i32::MIN)))
}

#[test]
fn room_of_a_node_counts_bound_pods_that_stay() {
    let rooms = Rooms::filled([
        pod("a", Some("x"), |_| {}),
        pod("b", Some("x"), |pod| pod["status"] = json!({"phase": "Pending"})),
        pod("elsewhere", Some("y"), |_| {}),
        pod("unbound", None, |_| {}),
        pod("over", Some("x"), |pod| pod["status"]["phase"] = json!("Succeeded")),
        pod("deleted", Some("x"), |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }),
    ]);
    assert_eq!(requested(&rooms, "x", &[]), Some((3000, 2)));
    assert_eq!(requested(&rooms, "y", &[]), Some((1500, 1)));
    assert_eq!(requested(&rooms, "z", &[]), Some((0, 0)));
    let own = [Key::namespaced("n", "a"), Key::namespaced("n", "elsewhere")];
    assert_eq!(requested(&rooms, "x", &own), Some((1500, 1)));
    assert_eq!(
        requested(&rooms, "x", &[]),
        Some((3000, 2)),
        "the sum itself is as it was"
    );
    assert_eq!(rooms.priority(&own), Some(5));
    assert_eq!(rooms.priority(&[Key::namespaced("n", "gone")]), None);
}

#[test]
fn room_that_is_not_known_is_none() {
    assert_eq!(requested(&Rooms::default(), "x", &[]), None);
}

#[test]
fn sums_follow_each_change_of_a_pod() {
    let sums = Sums::default();
    let change = |old: Option<&Pod>, new: Option<&Pod>| {
        let pruned = |pod: Option<&Pod>| {
            pod.map(|pod| {
                let mut pod = pod.clone();
                prune(&mut pod);
                Arc::new(pod)
            })
        };
        sums.observe(&CacheChange::Object {
            key: Key::namespaced("n", "a"),
            old: pruned(old),
            new: pruned(new),
        })
    };
    let unbound = pod("a", None, |_| {});
    let bound = pod("a", Some("x"), |_| {});
    let ready = pod("a", Some("x"), |pod| pod["status"]["podIP"] = json!("10.0.0.2"));
    let resized = pod("a", Some("x"), |pod| {
        pod["status"]["containerStatuses"] = json!([
            {"name": "one", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "allocatedResources": {"cpu": "2"}},
        ]);
    });
    let deleted = pod("a", Some("x"), |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    let cpu = |sums: &Sums| sums.0.lock().get("x").map(|room| room.requested("cpu", i32::MIN));
    for (old, new, is_news, expected) in [
        (None, Some(&unbound), false, None),
        (Some(&unbound), Some(&bound), true, Some(1500)),
        (Some(&bound), Some(&ready), false, Some(1500)),
        (Some(&ready), Some(&resized), true, Some(3000)),
        (Some(&resized), Some(&deleted), true, None),
        (Some(&deleted), None, false, None),
    ] {
        assert_eq!((change(old, new), cpu(&sums)), (is_news, expected));
    }
}

#[test]
fn pod_is_kept_in_few_bytes() {
    let mut kept = pod("a", Some("x"), |_| {});
    let before = PodShare::of(&kept).map(|(node, share)| (node.to_owned(), share));
    prune(&mut kept);
    assert_eq!(
        PodShare::of(&kept).map(|(node, share)| (node.to_owned(), share)),
        before
    );
    assert!(serde_json::to_string(&kept).unwrap().len() < 300);
    let never = |pod: &mut Value| pod["spec"]["preemptionPolicy"] = json!("Never");
    let mut never = pod("a", None, never);
    prune(&mut never);
    assert_eq!(never.spec.as_ref().map(yields_to), Some(i32::MIN));
}

#[test]
fn neighbors_of_a_node_are_kept_through_pruning() {
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "guest"}}}]}});
    let guard = pod("guard", Some("x"), |pod| pod["spec"]["affinity"] = affinity.clone());
    let rooms = Rooms::filled([guard, pod("plain", Some("y"), |_| {})]);
    let labels = |name: &str| BTreeMap::from([("kubernetes.io/hostname".to_owned(), name.to_owned())]);
    let (of_x, of_y) = (labels("x"), labels("y"));
    let views = [("x", &of_x), ("y", &of_y)].map(|(name, labels)| NodeView {
        name,
        labels: Some(labels),
        ..NodeView::default()
    });
    let spec: VirtualMachineInstanceSpec = serde_json::from_value(json!({"domain": {}, "affinity": {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}}}))
    .unwrap();
    let needs = Requirements::default();
    let admitted = |rooms: &Rooms, app: &str| -> Vec<&str> {
        let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
        let newcomer = Newcomer {
            namespace: "n",
            labels: &labels,
            spec: &spec,
            needs: &needs,
            excluded: &[],
        };
        let rules = rooms.rules(&newcomer, &PodMoves::default(), || Cow::Borrowed(&views));
        views
            .iter()
            .filter(|view| rules.admit(view))
            .map(|view| view.name)
            .collect()
    };
    assert_eq!(admitted(&rooms, "guest"), ["y"], "the guard keeps it off x");
    assert_eq!(admitted(&rooms, "other"), ["x", "y"]);
    assert_eq!(
        admitted(&Rooms::default(), "guest"),
        ["x", "y"],
        "the pods are not known"
    );
}
