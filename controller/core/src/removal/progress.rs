//! Progress of the removal from nodes. Nodes that are not ready are not awaited: their kubelets neither end nor start
//! pods.

use k8s_openapi::api::core::v1::{Node, Pod};

/// Returns whether a node's `Ready` condition is true.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns whether Drydock's agent could run on a node.
pub fn is_linux(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get("kubernetes.io/os"))
        .map(String::as_str)
        == Some("linux")
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Returns the names of the pods that still have to end, on ready nodes or not bound yet.
pub fn still_there(pods: &[Pod], nodes: &[Node]) -> Vec<String> {
    let is_awaited =
        |pod: &&Pod| node_of(pod).is_none_or(|on| nodes.iter().any(|node| name(node) == on && is_ready(node)));
    let awaited = pods.iter().filter(is_awaited);
    awaited.filter_map(|pod| pod.metadata.name.clone()).collect()
}

/// Nodes whose folders have not been removed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoldersLeft {
    /// Ready nodes, whose pods will remove the folders.
    pub awaited: Vec<String>,
    /// Nodes that are not ready: an administrator has to remove the folders later.
    pub unreachable: Vec<String>,
}

/// Returns the nodes without a ready pod among `pods`; each pod becomes ready once it has removed its node's folders.
pub fn folders_left(nodes: &[Node], pods: &[Pod]) -> FoldersLeft {
    let mut left = FoldersLeft::default();
    for node in nodes.iter().filter(|node| is_linux(node)) {
        let is_done = pods.iter().any(|pod| node_of(pod) == Some(name(node)) && is_done(pod));
        match (is_done, is_ready(node)) {
            (true, _) => {}
            (false, true) => left.awaited.push(name(node).to_owned()),
            (false, false) => left.unreachable.push(name(node).to_owned()),
        }
    }
    left
}

fn is_done(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn pod(name: &str, node: Option<&str>, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn pods_are_awaited_unless_the_node_is_not_ready_or_gone() {
        let nodes = [node("a", "True"), node("b", "Unknown"), node("c", "False")];
        for (on, awaited) in [
            (Some("a"), true),
            (None, true),
            (Some("b"), false),
            (Some("c"), false),
            (Some("deleted"), false),
        ] {
            assert_eq!(
                !still_there(&[pod("p", on, "True")], &nodes).is_empty(),
                awaited,
                "{on:?}"
            );
        }
    }

    #[test]
    fn folders_are_left_until_the_pod_of_the_node_is_ready() {
        let mut windows = node("w", "True");
        windows.metadata.labels = None;
        let nodes = [node("a", "True"), node("b", "True"), node("c", "Unknown"), windows];
        let strings = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut leaving = pod("b", Some("b"), "True");
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        for (pods, awaited) in [
            (vec![], strings(&["a", "b"])),
            (vec![pod("a", Some("a"), "False")], strings(&["a", "b"])),
            (vec![pod("a", Some("a"), "True")], strings(&["b"])),
            (vec![pod("a", Some("a"), "True"), leaving], strings(&["b"])),
            (vec![pod("a", Some("a"), "True"), pod("b", Some("b"), "True")], vec![]),
        ] {
            let left = folders_left(&nodes, &pods);
            assert_eq!(left.awaited, awaited, "{} pods", pods.len());
            assert_eq!(left.unreachable, strings(&["c"]));
        }
    }
}
