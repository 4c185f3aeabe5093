//! The resources that pods take of a node, and the rest.

use std::sync::Arc;

use drydock_api::launcher::KVM_RESOURCE;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};
use serde_json::json;

use super::*;

fn taken(pod: &Value) -> Vec<(String, u64)> {
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    let requests = ResourceAmounts::of_pod(&pod);
    requests
        .iter()
        .map(|(name, amount)| (name.to_owned(), amount))
        .collect()
}

fn container(name: &str, cpu: &str, always: bool) -> Value {
    let mut container = json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
    if always {
        container["restartPolicy"] = json!("Always");
    }
    container
}

#[test]
fn requests_of_a_pod_are_those_of_the_scheduler() {
    let (one, two) = (container("one", "1", false), container("two", "500m", false));
    let granted = |cpu: &str| {
        json!({"containerStatuses": [{"name": "one", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "resources": {"requests": {"cpu": cpu}}}]})
    };
    let mut infeasible = granted("250m");
    infeasible["conditions"] = json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
    for (what, spec, status, cpu) in [
        ("containers", json!({"containers": [one, two]}), json!({}), 1500),
        ("none", json!({"containers": [{"name": "one"}]}), json!({}), 0),
        (
            "a great init container",
            json!({"containers": [one], "initContainers": [container("i", "3", false), container("j", "2", false)]}),
            json!({}),
            3000,
        ),
        (
            "a sidecar beside what comes after it",
            json!({"containers": [one], "initContainers": [container("s", "1", true), container("j", "2", false)]}),
            json!({}),
            3000,
        ),
        (
            "an init container before the sidecar",
            json!({"containers": [one], "initContainers": [container("j", "2", false), container("s", "500m", true)]}),
            json!({}),
            2000,
        ),
        (
            "overhead",
            json!({"containers": [one], "overhead": {"cpu": "100m"}}),
            json!({}),
            1100,
        ),
        (
            "the pod's own",
            json!({"containers": [one, two], "resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "100m"}}),
            json!({}),
            4100,
        ),
        (
            "a limit alone",
            json!({"containers": [{"name": "one", "resources": {"limits": {"cpu": "2"}}}]}),
            json!({}),
            2000,
        ),
        ("granted more", json!({"containers": [one]}), granted("2"), 2000),
        (
            "granted less so far",
            json!({"containers": [one]}),
            granted("250m"),
            1000,
        ),
        ("never granted more", json!({"containers": [one]}), infeasible, 250),
    ] {
        let found = taken(&json!({"spec": spec, "status": status}));
        let expected: Vec<_> = (cpu > 0).then(|| ("cpu".to_owned(), cpu)).into_iter().collect();
        assert_eq!(found, expected, "{what}");
    }
    assert_eq!(
        taken(
            &json!({"spec": {"containers": [{"name": "a", "resources": {"requests": {"memory": "1Gi", "example.com/gpu": "2"}}}]}})
        ),
        [("example.com/gpu".to_owned(), 2), ("memory".to_owned(), 1 << 30)]
    );
}

fn share(priority: i32, requests: &Value) -> PodShare {
    let pod = json!({"spec": {"nodeName": "a", "priority": priority, "containers": [{"name": "c", "resources": {"requests": requests}}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    PodShare::of(&pod).unwrap().1
}

#[test]
fn room_is_summed_by_priority_and_given_back() {
    let mut room = NodeRoom::default();
    let (low, high) = (share(0, &json!({"cpu": "1"})), share(10, &json!({"cpu": "2"})));
    room.add(&low);
    room.add(&high);
    for (priority, cpu, pods) in [
        (i32::MIN, 3000, 2),
        (0, 3000, 2),
        (1, 2000, 1),
        (10, 2000, 1),
        (11, 0, 0),
    ] {
        assert_eq!(
            (room.requested("cpu", priority), room.requested("pods", priority)),
            (cpu, pods)
        );
    }
    room.remove(&high);
    assert_eq!((room.requested("cpu", 0), room.requested("pods", 0)), (1000, 1));
    room.remove(&low);
    assert!(room.is_empty());
    room.remove(&low);
    assert_eq!(room, NodeRoom::default());
}

fn quantities(value: &Value) -> BTreeMap<String, Quantity> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Returns the reasons against a guest of 1 GiB (and about 132 MiB of overhead) on nodes that offer this and have
/// these pods.
fn reasons(offered: &Value, pods: &[PodShare], priority: Option<i32>) -> String {
    let manifest = json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {"autoattachGraphicsDevice": false}}});
    let mut needs = needs(&manifest);
    needs.priority = priority;
    let (labels, mut offered) = (labels(&[]), quantities(offered));
    offered.insert("ephemeral-storage".into(), Quantity("100Gi".into()));
    let mut room = NodeRoom::default();
    pods.iter().for_each(|share| room.add(share));
    let view = NodeView {
        name: "a",
        labels: Some(&labels),
        allocatable: Some(&offered),
        shares: Some(1000),
        room: Some(Arc::new(room)),
        ..NodeView::default()
    };
    let found = fit(&needs, &spec(&manifest), &Rules::default(), &[view]);
    if found.fits.is_empty() {
        found.reasons()
    } else {
        String::new()
    }
}

#[test]
fn each_exhausted_resource_is_a_reason_with_amounts() {
    let all = json!({"cpu": "4", "memory": "8Gi", "pods": "2", KVM_RESOURCE: "1k"});
    let memory = share(0, &json!({"memory": "7Gi"}));
    let cpu = share(0, &json!({"cpu": "3950m"}));
    let kvm = share(0, &json!({KVM_RESOURCE: "1000"}));
    let small = share(0, &json!({"cpu": "10m"}));
    for (what, pods, priority, expected) in [
        ("nothing", vec![], Some(0), ""),
        ("a small pod", vec![small.clone()], Some(0), ""),
        (
            "memory",
            vec![memory.clone()],
            Some(0),
            "1 node has 1.0 GiB of memory free of the requested 1.2 GiB (a)",
        ),
        ("what may be preempted", vec![memory.clone()], Some(1), ""),
        ("what may be preempted or not", vec![memory.clone()], None, ""),
        (
            "CPUs",
            vec![cpu],
            Some(0),
            "1 node has 0.0 CPUs free of the requested 0.1 (a)",
        ),
        (
            "virtualization",
            vec![kvm],
            Some(0),
            "1 node has 0 of devices.kubevirt.io/kvm free of the requested 1 (a)",
        ),
        (
            "pods",
            vec![small.clone(), small],
            Some(0),
            "1 node has reached the maximum number of pods (a)",
        ),
    ] {
        assert_eq!(reasons(&all, &pods, priority), expected, "{what}");
    }
    // A resource that a node does not list is no obstacle, nor is a resource that another reason covers.
    assert_eq!(reasons(&json!({KVM_RESOURCE: "1k"}), &[memory], Some(0)), "");
    assert_eq!(
        reasons(&json!({"memory": "1Gi", KVM_RESOURCE: "1k"}), &[], Some(0)),
        "1 node has less memory than the requested 1146Mi (a)"
    );
}

#[test]
fn largest_free_amount_of_several_nodes_is_named() {
    let manifest = json!({"domain": {"memory": {"guest": "2Gi"}, "resources": {"requests": {"example.com/gpu": "1"}}}});
    let mut needs = needs(&manifest);
    needs.priority = Some(0);
    let (labels, offered) = (
        labels(&[]),
        quantities(&json!({"memory": "8Gi", "ephemeral-storage": "100Gi", "example.com/gpu": "1"})),
    );
    let node = |name, taken: &str| {
        let mut room = NodeRoom::default();
        room.add(&share(0, &json!({"memory": taken})));
        NodeView {
            name,
            labels: Some(&labels),
            allocatable: Some(&offered),
            room: Some(Arc::new(room)),
            ..NodeView::default()
        }
    };
    let found = fit(
        &needs,
        &spec(&manifest),
        &Rules::default(),
        &[node("a", "7Gi"), node("b", "6500Mi"), node("c", "8Gi")],
    );
    assert_eq!(
        found.reasons(),
        "3 nodes have at most 1.6 GiB of memory free of the requested 2.2 GiB (a, b, c)"
    );
    let found = fit(
        &needs,
        &spec(&manifest),
        &Rules::default(),
        &[node("a", "7Gi"), node("b", "1Gi")],
    );
    assert_eq!(found.fits, ["b"]);
}
