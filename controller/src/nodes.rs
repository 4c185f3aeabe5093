//! The controller's view of nodes: each Node, and the Hypervisor of the same name.

mod shared_facts;

use std::sync::Arc;

use drydock_api::{
    Hypervisor,
    annotations::DRAIN_PREVIEW,
    kubevirt::status::DrainRequest,
    labels::GUEST,
    launcher::KVM_RESOURCE,
    maintenance::{IN_PROGRESS, PLANNED},
    reasons::node::{DRAIN_IN_PROGRESS, DRAINED},
};
use drydock_core::{
    configuration::Configuration,
    drain::{NodeMarks, must_be_left},
    eviction::evacuation_request,
    instance::NodeState,
    minimum_cpu::{Minimum, ReportedMinimum},
    placement::NodeView,
};
use drydock_runtime::{AssumeCache, CacheChange, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, NodeCondition, Toleration},
};
use kube::{Api, Client};
use parking_lot::Mutex;
use shared_facts::SharedFacts;

use crate::{
    liveness_task::{UnresponsiveAgents, agents_leases},
    maintenances::Maintenances,
};

/// Taint that confirms that a node is powered off. An administrator or a fencing operator sets it.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Nodes and Hypervisors. Clones share the caches.
#[derive(Clone)]
pub(crate) struct Nodes {
    api: Api<Node>,
    leases: Api<Lease>,
    pub(crate) nodes: AssumeCache<Node>,
    pub(crate) hypervisors: AssumeCache<Hypervisor>,
    maintenances: Maintenances,
    pub(crate) unresponsive_agents: UnresponsiveAgents,
    /// Result of [`Nodes::pairs`]; `None` after a change.
    pairs: Arc<Mutex<Option<Arc<Vec<NodePair>>>>>,
}

/// A Node, and its Hypervisor if there is one.
#[derive(Debug)]
pub(crate) struct NodePair {
    node: Arc<Node>,
    hypervisor: Option<Arc<Hypervisor>>,
}

impl NodePair {
    /// Returns the node in the form that placement uses.
    pub(crate) fn view(&self) -> NodeView<'_> {
        let status = self
            .hypervisor
            .as_ref()
            .and_then(|hypervisor| hypervisor.status.as_ref());
        NodeView::of(&self.node, status)
    }
}

impl Nodes {
    /// Starts watching. `on_change` is called with the name of each node that has changed in a way that matters to
    /// virtual machines.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        maintenances: Maintenances,
        unresponsive_agents: UnresponsiveAgents,
        on_change: impl Fn(&str) + Clone + Send + 'static,
    ) -> Self {
        let news = on_change.clone();
        let pairs: Arc<Mutex<Option<Arc<Vec<NodePair>>>>> = Arc::default();
        let (of_nodes, of_hypervisors) = (Arc::clone(&pairs), Arc::clone(&pairs));
        let nodes = Watch::<Node>::all(client.clone(), "nodes").listing(ListMode::Streamed);
        let nodes = AssumeCache::start(watches, nodes, prune_node, &[], move |change| {
            notify_if_changed(change, without_drain_conditions, &|name: &str| {
                *of_nodes.lock() = None;
                news(name);
            });
        });
        let shared = SharedFacts::default();
        let hypervisors = Watch::<Hypervisor>::all(client.clone(), "hypervisors in full").listing(ListMode::Streamed);
        let prune = move |hypervisor: &mut Hypervisor| {
            prune_hypervisor(hypervisor);
            if let Some(facts) = hypervisor.status.as_mut().and_then(|status| status.facts.as_mut()) {
                shared.share(facts);
            }
        };
        let hypervisors = AssumeCache::start(watches, hypervisors, prune, &[], move |change| {
            *of_hypervisors.lock() = None;
            notify_if_changed(change, without_drain, &on_change);
        });
        Self {
            api: Api::all(client.clone()),
            leases: agents_leases(client),
            nodes,
            hypervisors,
            maintenances,
            unresponsive_agents,
            pairs,
        }
    }

    /// Creates a cache with the given nodes only.
    #[cfg(test)]
    pub(crate) fn filled(client: &Client, nodes: impl IntoIterator<Item = Node>) -> Self {
        Self {
            api: Api::all(client.clone()),
            leases: agents_leases(client),
            nodes: AssumeCache::filled(nodes),
            hypervisors: AssumeCache::filled([]),
            maintenances: Maintenances::filled([]),
            unresponsive_agents: UnresponsiveAgents::new(|| ()),
            pairs: Arc::default(),
        }
    }

    /// Returns the nodes that are being drained, or are about to be, and whose taints a pod with these tolerations
    /// would tolerate. `key` is the key of the drain taint.
    pub(crate) fn leaving(&self, key: &str, tolerations: &[Toleration]) -> Vec<String> {
        let mut leaving = Vec::new();
        self.nodes.shown().for_each(|name, node| {
            let requested = self.maintenances.concerns(&name.name);
            if must_be_left(node, key, requested, tolerations) {
                leaving.push(name.name.to_string());
            }
        });
        leaving
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(
            self.nodes.shown().wait_until_synced(),
            self.hypervisors.shown().wait_until_synced()
        );
    }

    /// Returns the state of a node. The deletion of its Node object has to be confirmed by the API server, and proves
    /// nothing about its guests while its agent may be alive. An unresponsive agent is confirmed as well.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn state(&self, name: &str) -> kube::Result<NodeState> {
        let node = match self.nodes.shown().get(&Key::cluster(name)) {
            Some(node) => node,
            None => match self.api.get_opt(name).await? {
                Some(node) => Arc::new(node),
                None => {
                    let agent = self.unresponsive_agents.confirmed_sign(&self.leases, name).await?;
                    return Ok(NodeState::of_deleted(agent));
                }
            },
        };
        Ok(state_of(&node))
    }

    /// Returns the origin of an eviction request for a pod on this node, as far as the Node shows it.
    pub(crate) fn requester(&self, name: &str, configuration: &Configuration) -> DrainRequest {
        let node = self.nodes.shown().get(&Key::cluster(name));
        node.map_or(DrainRequest::Eviction, |node| {
            let marks = NodeMarks::of(&node, &configuration.migrations.drain_taint_key);
            evacuation_request::requester(marks.cordoned, marks.tainted, marks.in_maintenance)
        })
    }

    /// Returns all nodes. The pairs are built once after each change, not at each call.
    pub(crate) fn pairs(&self) -> Arc<Vec<NodePair>> {
        let mut pairs = self.pairs.lock();
        if let Some(pairs) = &*pairs {
            return Arc::clone(pairs);
        }
        let found = self
            .nodes
            .shown()
            .all()
            .into_iter()
            .map(|node| self.with_hypervisor(node));
        let found = Arc::new(found.collect::<Vec<_>>());
        *pairs = Some(Arc::clone(&found));
        found
    }

    /// Returns one node.
    pub(crate) fn pair(&self, name: &str) -> Option<NodePair> {
        Some(self.with_hypervisor(self.nodes.shown().get(&Key::cluster(name))?))
    }

    fn with_hypervisor(&self, node: Arc<Node>) -> NodePair {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        NodePair {
            hypervisor: self.hypervisors.shown().get(&Key::cluster(name)),
            node,
        }
    }

    /// Returns the features of the minimum CPU model in force, as the agents resolved them.
    pub(crate) fn minimum(&self, model: &str) -> Minimum {
        // The default model is resolved without reports, so that not every Hypervisor is read for each pod.
        if let Some(minimum) = Minimum::resolve(model, |_| None) {
            return minimum;
        }
        let mut minimum = ReportedMinimum::new(model);
        self.hypervisors.shown().for_each(|key, hypervisor| {
            let report = hypervisor
                .status
                .as_ref()
                .and_then(|status| status.configuration.as_ref());
            if let Some(report) = report {
                minimum.add(key.clone(), report);
            }
        });
        minimum.get()
    }
}

/// Returns the state that a Node object shows.
fn state_of(node: &Node) -> NodeState {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    if taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)) {
        return NodeState::OutOfService;
    }
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "Ready"));
    match ready {
        Some(ready) if ready.status == "True" => NodeState::Ready,
        Some(ready) => NodeState::NotReady {
            since: ready.last_transition_time.as_ref().map(|time| time.0),
        },
        None => NodeState::Unknown,
    }
}

/// Keeps the fields that determine where a virtual machine can run.
fn prune_node(node: &mut Node) {
    if let Some(annotations) = &mut node.metadata.annotations {
        annotations.retain(|name, _| name == DRAIN_PREVIEW);
    }
    // These labels change with each guest, and only the node's kubelet uses them.
    if let Some(labels) = &mut node.metadata.labels {
        labels.retain(|key, _| !key.starts_with(GUEST));
    }
    node.metadata.managed_fields = None;
    if let Some(status) = node.status.take() {
        let ready = status
            .conditions
            .into_iter()
            .flatten()
            .filter(|condition| {
                ["Ready", IN_PROGRESS, PLANNED].contains(&condition.type_.as_str()) || is_of_drains(condition)
            })
            .map(|mut condition| {
                if condition.type_ == "Ready" {
                    // These fields change with every kubelet report, and nothing reads them.
                    condition.last_heartbeat_time = None;
                    condition.message = None;
                }
                condition
            });
        let mut kept = k8s_openapi::api::core::v1::NodeStatus {
            conditions: Some(ready.collect()),
            ..Default::default()
        };
        kept.allocatable = status.allocatable.map(|mut allocatable| {
            // A resource with amount 0 is equivalent to a missing one, except for those that every node has.
            let named = ["cpu", "memory", "pods", KVM_RESOURCE];
            allocatable.retain(|resource, amount| amount.0 != "0" || named.contains(&resource.as_str()));
            allocatable
        });
        node.status = Some(kept);
    }
}

/// Returns whether a condition reports the state of a drain.
fn is_of_drains(condition: &NodeCondition) -> bool {
    [DRAIN_IN_PROGRESS, DRAINED].contains(&condition.type_.as_str())
}

/// Removes conditions whose changes do not matter to virtual machines.
fn without_drain_conditions(node: &mut Node) {
    if let Some(conditions) = node.status.as_mut().and_then(|status| status.conditions.as_mut()) {
        conditions.retain(|condition| !is_of_drains(condition));
    }
}

/// Removes the fields of a Hypervisor whose changes do not matter to virtual machines.
fn without_drain(hypervisor: &mut Hypervisor) {
    if let Some(status) = &mut hypervisor.status {
        status.drain = None;
        status.drain_preview = None;
    }
}

pub(crate) fn prune_hypervisor(hypervisor: &mut Hypervisor) {
    hypervisor.metadata.managed_fields = None;
    if let Some(status) = &mut hypervisor.status {
        status.inspection = None;
    }
}

fn notify_if_changed<K>(change: &CacheChange<K>, strip: fn(&mut K), on_change: &impl Fn(&str))
where
    K: kube::Resource + Clone + PartialEq,
{
    let CacheChange::Object { key, old, new } = change else {
        return;
    };
    let plain = |object: &Option<Arc<K>>| {
        object.as_ref().map(|object| {
            let mut object = object.as_ref().clone();
            object.meta_mut().resource_version = None;
            strip(&mut object);
            object
        })
    };
    if plain(old) != plain(new) {
        on_change(&key.name);
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::{HypervisorSpec, HypervisorStatus, hypervisor::ConfigurationRecord};
    use serde_json::json;

    use super::*;

    const SINCE: &str = "2026-01-01T00:00:00Z";

    fn node(ready: &str, taint: Option<&str>) -> Node {
        let taints: Vec<_> = taint
            .map(|key| json!({"key": key, "effect": "NoExecute"}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "a"}, "spec": {"taints": taints},
            "status": {
                "conditions": [{"type": "Ready", "status": ready, "message": "m", "lastTransitionTime": SINCE}, {"type": "DiskPressure", "status": "False"}],
                "allocatable": {"cpu": "2", "hugepages-2Mi": "0", "devices.kubevirt.io/kvm": "1000"},
                "images": [{"names": ["x"]}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn node_is_ready_unresponsive_or_confirmed_off() {
        let unresponsive = NodeState::NotReady {
            since: Some(SINCE.parse().unwrap()),
        };
        for (ready, taint, state) in [
            ("True", None, NodeState::Ready),
            ("False", None, unresponsive),
            ("Unknown", Some("node.kubernetes.io/unreachable"), unresponsive),
            ("Unknown", Some(OUT_OF_SERVICE), NodeState::OutOfService),
        ] {
            let mut node = node(ready, taint);
            assert_eq!(state_of(&node), state);
            prune_node(&mut node);
            assert_eq!(state_of(&node), state, "after pruning");
        }
        assert_eq!(state_of(&Node::default()), NodeState::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_node_is_gone_once_the_agent_is_unresponsive() {
        let (client, mut server) = drydock_runtime::fake::api_server();
        let mut nodes = Nodes::filled(&client, []);
        let not_found = || async { nodes.state("a").await.unwrap() };
        let (state, ()) = tokio::join!(not_found(), async {
            server.next_request().await.refuse(404, "NotFound");
        });
        assert_eq!(state, NodeState::Deleted, "nothing is known of its agent");
        nodes.unresponsive_agents = UnresponsiveAgents::without_leases();
        let not_found = || async { nodes.state("a").await.unwrap() };
        let (state, ()) = tokio::join!(not_found(), async {
            server.next_request().await.refuse(404, "NotFound");
        });
        assert_eq!(state, NodeState::Deleted, "its agent may make its Lease again");
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}});
        // Response of the API server to the read of the Lease once the Lease counts as absent, and the resulting state.
        for (read, expected) in [
            (Err((404, "NotFound")), Some(NodeState::Gone)),
            (Err((500, "InternalError")), None),
            // The watch has not shown this Lease.
            (Ok(&lease), Some(NodeState::Deleted)),
        ] {
            tokio::time::advance(drydock_api::leases::STALE_AFTER).await;
            let (state, ()) = tokio::join!(nodes.state("a"), async {
                server.next_request().await.refuse(404, "NotFound");
                let request = server.next_request().await;
                assert!(request.path().ends_with("/leases/a"), "{}", request.line);
                match read {
                    Ok(lease) => request.with(lease),
                    Err((code, reason)) => request.refuse(code, reason),
                }
            });
            assert_eq!(state.ok(), expected);
        }
        // An error response proves nothing about the node.
        let (state, ()) = tokio::join!(nodes.state("a"), async {
            server.next_request().await.refuse(500, "InternalError");
        });
        assert!(state.is_err());
    }

    #[test]
    fn unused_node_fields_are_pruned() {
        let mut node = node("True", None);
        prune_node(&mut node);
        let status = node.status.unwrap();
        assert_eq!(status.images, None);
        assert_eq!(status.conditions.unwrap().len(), 1);
        assert_eq!(status.allocatable.unwrap().len(), 2);
    }

    #[test]
    fn a_guest_that_comes_or_goes_on_a_node_is_no_news() {
        let with = |labels: serde_json::Value, version: &str| {
            let mut node = node("True", None);
            node.metadata.labels = serde_json::from_value(labels).unwrap();
            node.metadata.resource_version = Some(version.into());
            prune_node(&mut node);
            Some(Arc::new(node))
        };
        let guest = format!("{GUEST}5b0a");
        let is_news = |old: serde_json::Value, new: serde_json::Value| {
            let notified = std::cell::Cell::new(false);
            let change = CacheChange::Object {
                key: Key::cluster("a"),
                old: with(old, "1"),
                new: with(new, "2"),
            };
            notify_if_changed(&change, without_drain_conditions, &|_: &str| notified.set(true));
            notified.get()
        };
        assert!(!is_news(
            json!({"zone": "a"}),
            json!({"zone": "a", guest.as_str(): "true"})
        ));
        assert!(!is_news(
            json!({"zone": "a", guest.as_str(): "true"}),
            json!({"zone": "a"})
        ));
        assert!(is_news(
            json!({"zone": "a"}),
            json!({"zone": "b", guest.as_str(): "true"})
        ));
    }

    #[tokio::test]
    async fn of_agents_that_disagree_the_first_by_name_counts() {
        let hypervisor = |name: &str, features: &[&str]| {
            let mut hypervisor = Hypervisor::new(name, HypervisorSpec::default());
            hypervisor.status = Some(HypervisorStatus {
                configuration: Some(ConfigurationRecord {
                    min_cpu_model: "Nehalem".into(),
                    min_cpu_features: features.iter().map(ToString::to_string).collect(),
                    ..ConfigurationRecord::default()
                }),
                ..HypervisorStatus::default()
            });
            hypervisor
        };
        let (client, _) = drydock_runtime::fake::api_server();
        let mut nodes = Nodes::filled(&client, []);
        // Caches have no defined order, so the result is checked for several orders.
        for _ in 0..8 {
            nodes.hypervisors = AssumeCache::filled([
                hypervisor("a", &[]),
                hypervisor("c", &["sse2", "nx"]),
                hypervisor("b", &["sse2"]),
                hypervisor("d", &["sse2", "aes"]),
            ]);
            assert_eq!(nodes.minimum("Nehalem").features, ["sse2".to_owned()].into());
        }
        assert!(nodes.minimum("Westmere").features.is_empty());
    }
}
