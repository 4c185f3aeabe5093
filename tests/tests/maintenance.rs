//! Nodes in maintenance: cordoned, drained, kept empty and restored, and the reported status.
//!
//! Most tests create Nodes without a kubelet, and determine themselves when a pod has ended. One test drains a real
//! node.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use drydock_api::maintenance::{
    self, EXCLUDE_FROM_REMEDIATION, Group, IN_PROGRESS, LEASE_NAMESPACE, NodeMaintenance, NodeMaintenanceStatus,
    PLANNED, UNSCHEDULABLE_TAINT,
};
use drydock_tests::{
    Cluster,
    cluster::{now, setting},
    own_parts::CONTROLLERS,
    watching::{until, until_some},
};
use futures::future::join_all;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Label of all Nodes that tests have created.
const MADE: &str = "drydock.dev/made-by-a-test";
const SPACE: &str = "maintained";

/// A cluster without NodeMaintenances, and with a namespace for pods.
struct MaintenanceCluster {
    cluster: Cluster,
}

impl MaintenanceCluster {
    async fn new() -> Result<Self> {
        let world = Self {
            cluster: Cluster::connect().await?,
        };
        world.clear().await?;
        let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}});
        world
            .api::<Namespace>()
            .create(&PostParams::default(), &serde_json::from_value(space)?)
            .await?;
        Ok(world)
    }

    async fn clear(&self) -> Result<()> {
        for group in Group::ALL {
            self.cluster.no_maintenance(group).await?;
        }
        let ending: Api<Pod> = Api::namespaced(self.cluster.client.clone(), "ending");
        for pod in ending.list(&ListParams::default()).await?.items {
            let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            ending.patch(&pod.name_any(), &PatchParams::default(), &patch).await?;
        }
        for space in [SPACE, "ending"] {
            if self.api::<Namespace>().get_metadata_opt(space).await?.is_some() {
                self.cluster.delete_pods_now(space).await?;
                self.cluster.delete(&["namespace", space])?;
            }
        }
        let (parameters, made) = (DeleteParams::default(), ListParams::default().labels(MADE));
        self.api::<Node>().delete_collection(&parameters, &made).await?;
        let reserved = ListParams::default().labels("drydock.dev/maintenance-reservation");
        let own = Api::<Lease>::namespaced(self.cluster.client.clone(), "drydock");
        own.delete_collection(&parameters, &reserved).await?;
        self.cluster.delete_all::<Lease>(LEASE_NAMESPACE).await
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Api::all(self.cluster.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client.clone(), SPACE)
    }

    fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.cluster.client.clone(), SPACE)
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.cluster.client.clone(), LEASE_NAMESPACE)
    }

    /// Returns the Lease of a node, with the namespace and the name that the operator of this group uses.
    async fn lease(&self, group: Group, node: &str) -> Result<Option<Lease>> {
        let (namespace, name) = match group {
            Group::Medik8s => (LEASE_NAMESPACE, format!("node-{node}")),
            Group::KubeVirt => ("drydock", node.to_owned()),
        };
        let api = Api::<Lease>::namespaced(self.cluster.client.clone(), namespace);
        Ok(api.get_opt(&name).await?)
    }

    fn maintenances(&self, group: Group) -> Api<NodeMaintenance> {
        Api::all_with(self.cluster.client.clone(), &group)
    }

    /// Creates a Node that all components regard as ready.
    async fn node(&self, name: &str, unschedulable: bool) -> Result<Node> {
        let now = now();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {MADE: "true"}},
            "spec": {"unschedulable": unschedulable, "taints": [{"key": MADE, "effect": "NoSchedule"}]},
            "status": {"conditions": [{
                "type": "Ready", "status": "True", "reason": "Test", "message": "",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }]},
        });
        let node = serde_json::from_value(node)?;
        Ok(self.api::<Node>().create(&PostParams::default(), &node).await?)
    }

    /// Creates a pod on a node that all components regard as running and ready.
    async fn pod(&self, name: &str, node: &str) -> Result<Pod> {
        self.pod_with(name, node, &json!({"name": name, "labels": {"app": name}}))
            .await
    }

    async fn owned_by_a_daemon_set_that_is_not_there(&self, name: &str, node: &str) -> Result<Pod> {
        // The garbage collector may delete the pod first; the pod's own grace period keeps it until its eviction.
        let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "missing", "uid": "missing", "controller": true});
        let metadata = json!({"name": name, "ownerReferences": [owner]});
        self.pod_with(name, node, &metadata).await
    }

    async fn pod_with(&self, name: &str, node: &str, metadata: &Value) -> Result<Pod> {
        let pod = json!({
            "metadata": metadata,
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 600, "tolerations": [{"operator": "Exists"}],
                     "containers": [{"name": "c", "image": "busybox"}]},
        });
        self.pods()
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let (api, status) = (self.pods(), Patch::Strategic(status));
        Ok(api.patch_status(name, &PatchParams::default(), &status).await?)
    }

    async fn budget(&self, name: &str, app: &str, min_available: i32) -> Result<()> {
        let budget = json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
        });
        self.budgets()
            .create(&PostParams::default(), &serde_json::from_value(budget)?)
            .await?;
        // A PDB without a status allows no eviction either, but for another reason.
        let counted = |budget: &PodDisruptionBudget| {
            budget
                .status
                .as_ref()
                .is_some_and(|status| status.expected_pods == 1 && status.current_healthy == 1)
        };
        until(self.budgets(), name, "the budget to be counted", counted).await?;
        Ok(())
    }

    async fn create(&self, group: Group, name: &str, spec: &Value) -> kube::Result<DynamicObject> {
        let kind = GroupVersionKind::gvk(group.as_str(), maintenance::VERSION, maintenance::KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, maintenance::PLURAL);
        let api = Api::<DynamicObject>::all_with(self.cluster.client.clone(), &resource);
        let object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
        api.create(&PostParams::default(), &object).await
    }

    async fn maintain(&self, group: Group, node: &str) -> Result<DynamicObject> {
        Ok(self
            .create(group, node, &json!({"nodeName": node, "reason": "a test"}))
            .await?)
    }

    async fn until(
        &self,
        group: Group,
        name: &str,
        what: &str,
        condition: impl Fn(&NodeMaintenanceStatus) -> bool,
    ) -> Result<NodeMaintenanceStatus> {
        let api = self.maintenances(group);
        let met = |object: &NodeMaintenance| object.status.as_ref().is_some_and(&condition);
        let object = until_of(api, name, what, met).await?;
        object.status.context("no status")
    }

    async fn until_phase(&self, group: Group, name: &str, phase: &str) -> Result<NodeMaintenanceStatus> {
        let is = |status: &NodeMaintenanceStatus| status.phase.as_deref() == Some(phase);
        self.until(group, name, &format!("phase {phase}"), is).await
    }

    async fn until_reason(&self, group: Group, name: &str, reason: &str) -> Result<NodeMaintenanceStatus> {
        let is = |status: &NodeMaintenanceStatus| drained(status) == reason;
        self.until(group, name, &format!("reason {reason}"), is).await
    }

    async fn until_evicted(&self, name: &str) -> Result<()> {
        let leaves = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        until(self.pods(), name, "an eviction", leaves).await.map(drop)
    }

    /// Reports the end of a pod, as its kubelet does.
    async fn end(&self, name: &str) -> Result<()> {
        self.cluster.delete_pod_now(SPACE, name).await
    }

    async fn finish(&self, group: Group, name: &str) -> Result<()> {
        let api = self.maintenances(group);
        api.delete(name, &DeleteParams::default()).await?;
        until_some("the maintenance to go", || async {
            Ok(self.maintenances(group).get_opt(name).await?.is_none().then_some(()))
        })
        .await
    }

    async fn events(&self, of: &str) -> Result<Vec<(String, String, String)>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.cluster.events(of).await?;
        let fields = |event: &Value| (text(&event["reason"]), text(&event["type"]), text(&event["note"]));
        Ok(events.iter().map(fields).collect())
    }

    async fn until_event(&self, of: &str, reason: &str) -> Result<(String, String)> {
        until_some(&format!("event {reason} on {of}"), || async {
            let found = self.events(of).await?.into_iter().find(|(known, ..)| known == reason);
            Ok(found.map(|(_, type_, note)| (type_, note)))
        })
        .await
    }
}

/// Like [`until`], for a kind whose group is only known at run time.
async fn until_of(
    api: Api<NodeMaintenance>,
    name: &str,
    what: &str,
    condition: impl Fn(&NodeMaintenance) -> bool,
) -> Result<NodeMaintenance> {
    let last = std::sync::Mutex::new(None);
    let found = until_some(what, || async {
        let object = api.get(name).await?;
        let met = condition(&object);
        if let Ok(mut last) = last.lock() {
            *last = object.status.clone();
        }
        Ok(met.then_some(object))
    })
    .await;
    found.with_context(|| format!("last state: {:?}", last.lock().ok().and_then(|last| last.clone())))
}

fn drained(status: &NodeMaintenanceStatus) -> &str {
    let drained = status.conditions.iter().find(|condition| condition.type_ == "Drained");
    drained.map_or("", |drained| &drained.reason)
}

fn taints(node: &Node) -> BTreeSet<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints
        .into_iter()
        .flatten()
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
        .collect()
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

fn in_progress(node: &Node) -> Option<(String, Option<String>)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == IN_PROGRESS)?;
    Some((condition.status.clone(), condition.reason.clone()))
}

fn is_planned(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.type_ == PLANNED)
        .any(|condition| condition.status == "True")
}

/// Returns the message of an expected error of the API server.
fn refusal<K: std::fmt::Debug>(result: kube::Result<K>) -> Result<String> {
    match result {
        Err(kube::Error::Api(status)) => Ok(status.message.clone()),
        other => anyhow::bail!("not refused: {other:?}"),
    }
}

/// Checks that a node is cordoned for a maintenance of this group, and that its Lease is held.
async fn check_closed(world: &MaintenanceCluster, group: Group, name: &str) -> Result<()> {
    let node = world.api::<Node>().get(name).await?;
    assert!(is_cordoned(&node));
    let wanted = [UNSCHEDULABLE_TAINT, group.drain_taint()].map(|key| format!("{key}:NoSchedule"));
    ensure!(
        wanted.iter().all(|taint| taints(&node).contains(taint)),
        "{:?}",
        taints(&node)
    );
    assert_eq!(node.labels()[EXCLUDE_FROM_REMEDIATION], "true");
    assert_eq!(in_progress(&node), Some(("True".into(), Some("AdminRequested".into()))));
    let lease = world.lease(group, name).await?.context("no Lease")?;
    let spec = lease.spec.context("no spec")?;
    assert_eq!(spec.holder_identity.as_deref(), Some("node-maintenance"));
    assert_eq!(
        (spec.lease_duration_seconds, spec.lease_transitions),
        (Some(3600), Some(0))
    );
    assert_eq!(lease.metadata.owner_references.context("no owner")?[0].kind, "Node");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn both_groups_close_empty_and_restore_a_node() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    for (group, name) in [(Group::Medik8s, "ghost-m"), (Group::KubeVirt, "ghost-k")] {
        world.node(name, false).await?;
        world.pod(name, name).await?;
        world.maintain(group, name).await?;
        world.until_evicted(name).await?;
        let status = world.until_reason(group, name, "Terminating").await?;
        assert_eq!(
            (status.total_pods, status.eviction_pods, status.pending),
            (Some(1), Some(1), Some(1))
        );
        assert_eq!(status.pending_pods, [name]);
        assert_eq!(status.pending_pods_refs[0].namespace, SPACE);
        check_closed(&world, group, name).await?;

        world.end(name).await?;
        let status = world.until_phase(group, name, "Succeeded").await?;
        assert_eq!(
            (status.drain_progress, status.pending, status.last_error),
            (Some(100), Some(0), None)
        );
        assert!(status.completion_time.is_some() && status.pods.is_empty() && status.pending_pods.is_empty());
        let shown = world
            .cluster
            .kubectl(&["get", &format!("nodemaintenances.{}", group.as_str())])?;
        for text in [
            "NODE",
            "PHASE",
            "PROGRESS",
            "PENDING",
            "REASON",
            "Succeeded",
            "100",
            "Drained",
        ] {
            ensure!(shown.contains(text), "no {text} in {shown}");
        }

        world.finish(group, name).await?;
        let node = world.api::<Node>().get(name).await?;
        ensure!(
            !is_cordoned(&node) && taints(&node) == BTreeSet::from([format!("{MADE}:NoSchedule")]),
            "{:?}",
            node.spec
        );
        assert_eq!(node.labels().get(EXCLUDE_FROM_REMEDIATION), None);
        assert_eq!(in_progress(&node).context("no condition")?.0, "False");
        let lease = world.lease(group, name).await?;
        match group {
            Group::Medik8s => assert_eq!(lease, None),
            Group::KubeVirt => {
                let spec = lease.and_then(|lease| lease.spec).context("the Lease was deleted")?;
                assert_eq!(spec.holder_identity.as_deref(), Some("node-maintenance"));
                assert_eq!((spec.renew_time, spec.lease_duration_seconds), (None, None));
            }
        }
        for (reason, text) in [
            ("BeginMaintenance", "Begin a node maintenance"),
            ("SucceedMaintenance", "Node maintenance was succeeded"),
            ("RemovedMaintenance", "Removed a node maintenance"),
            ("UncordonNode", "Uncordon a node"),
        ] {
            let (type_, note) = world.until_event(name, reason).await?;
            assert_eq!((type_.as_str(), note.as_str()), ("Normal", text));
        }
    }
    world.clear().await
}

/// Checks that the reservation for a NodeMaintenance that was never stored holds for a while, and then expires.
async fn check_expiring_reservation(world: &MaintenanceCluster, reservations: &Api<Lease>) -> Result<()> {
    world.node("ghost-c", false).await?;
    let reserved = |renewed: jiff::Timestamp| {
        let name = "nodemaintenance.medik8s.io/never-stored";
        serde_json::from_value::<Lease>(json!(drydock_core::maintenance::reservation::of(
            "ghost-c", name, "request", renewed
        )))
    };
    // The controller ignores a reservation without the label, so the webhook has to detect its expiry.
    let mut lease = reserved(now())?;
    lease.metadata.labels = None;
    reservations.create(&PostParams::default(), &lease).await?;
    let message = refusal(
        world
            .create(Group::Medik8s, "late", &json!({"nodeName": "ghost-c"}))
            .await,
    )?;
    ensure!(
        message.contains("a NodeMaintenance for node ghost-c already exists"),
        "{message}"
    );
    let over = Patch::Merge(json!({"spec": reserved(now() - jiff::SignedDuration::from_secs(80))?.spec}));
    reservations
        .patch("maintenance-ghost-c", &PatchParams::default(), &over)
        .await?;
    world
        .create(Group::Medik8s, "late", &json!({"nodeName": "ghost-c"}))
        .await?;
    until_some("the reservation to be deleted", || async {
        Ok(reservations
            .get_opt("maintenance-ghost-c")
            .await?
            .is_none()
            .then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn invalid_maintenances_get_the_messages_clients_expect() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let prefix = "admission webhook \"vnodemaintenance.kb.io\" denied the request: ";
    for group in Group::ALL {
        let missing = world.create(group, "x", &json!({"nodeName": "missing"})).await;
        assert_eq!(
            refusal(missing)?,
            format!("{prefix}invalid nodeName, no node with name missing found")
        );
    }
    for (held, node) in [(Group::Medik8s, "ghost-a"), (Group::KubeVirt, "ghost-d")] {
        world.node(node, false).await?;
        world.maintain(held, node).await?;
        // The webhook's cache shows the first NodeMaintenance, and the webhook then reads it from the API server.
        world.until_phase(held, node, "Succeeded").await?;
        for group in Group::ALL {
            let second = world.create(group, "second", &json!({"nodeName": node})).await;
            assert_eq!(
                refusal(second)?,
                format!("{prefix}invalid nodeName, a NodeMaintenance for node {node} already exists")
            );
        }
    }
    let api = world.maintenances(Group::Medik8s);
    let patch = |spec: Value| {
        let api = api.clone();
        async move {
            let patch = Patch::Merge(json!({"spec": spec}));
            api.patch("ghost-a", &PatchParams::default(), &patch).await
        }
    };
    let moved = refusal(patch(json!({"nodeName": "other"})).await)?;
    ensure!(moved.contains("updating spec.NodeName isn't allowed"), "{moved}");
    patch(json!({"reason": "another one"})).await?;
    for (spec, field) in [
        (json!({"nodeName": ""}), "spec.nodeName"),
        (json!({"nodeName": "ghost-a", "timeout": "soon"}), "spec.timeout"),
        (json!({"nodeName": "ghost-a", "timeout": "0s"}), "spec.timeout"),
        (
            json!({"nodeName": "ghost-a", "gracePeriodSeconds": 0}),
            "spec.gracePeriodSeconds",
        ),
    ] {
        let message = refusal(world.create(Group::KubeVirt, "bad", &spec).await)?;
        ensure!(message.contains(field), "{message}");
    }
    let reservations: Api<Lease> = Api::namespaced(world.cluster.client.clone(), "drydock");
    check_expiring_reservation(&world, &reservations).await?;
    // A dry run writes neither the object nor a reservation.
    world.node("ghost-b", false).await?;
    let manifest = "apiVersion: nodemaintenance.medik8s.io/v1beta1\nkind: NodeMaintenance\nmetadata: {name: dry}\n\
                    spec: {nodeName: ghost-b}\n";
    world.cluster.kubectl_with(&["create", "--dry-run=server"], manifest)?;
    assert!(reservations.get_opt("maintenance-ghost-b").await?.is_none());
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn second_of_two_concurrent_maintenances_is_refused() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let pairs: usize = setting("DRYDOCK_TEST_PAIRS").map_or(Ok(100), |text| text.parse())?;
    let mut outcomes = BTreeMap::new();
    for pair in 0..pairs {
        let name = format!("ghost-{pair}");
        world.node(&name, false).await?;
        let spec = json!({"nodeName": &name});
        let other = format!("{name}-again");
        // Half of the pairs belong to one group.
        let groups = if pair % 2 == 0 {
            Group::ALL
        } else {
            [Group::Medik8s, Group::Medik8s]
        };
        let both = tokio::join!(
            world.create(groups[0], &name, &spec),
            world.create(groups[1], &other, &spec)
        );
        let mut admitted = 0;
        for result in [both.0, both.1] {
            match result {
                Ok(_) => admitted += 1,
                refused => {
                    let message = refusal(refused)?;
                    ensure!(
                        message.contains(&format!("a NodeMaintenance for node {name} already exists")),
                        "{message}"
                    );
                }
            }
        }
        *outcomes.entry(admitted).or_insert(0_usize) += 1;
    }
    println!("admitted of two: {outcomes:?}");
    assert_eq!(outcomes.keys().copied().collect::<Vec<i32>>(), [1]);
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn foreign_cordon_stays_and_own_cordon_is_renewed() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    world.node("ghost-a", true).await?;
    world.node("ghost-b", false).await?;
    let group = Group::Medik8s;
    for name in ["ghost-a", "ghost-b"] {
        world.maintain(group, name).await?;
        world.until_phase(group, name, "Succeeded").await?;
    }
    let status = world.until_phase(group, "ghost-a", "Succeeded").await?;
    assert_eq!(status.node_was_unschedulable, Some(true));
    let uncordoned = async || {
        let events = world.events("ghost-a").await?;
        anyhow::Ok(events.iter().filter(|event| event.0 == "UncordonNode").count())
    };
    let before = uncordoned().await?;
    world.finish(group, "ghost-a").await?;
    let node = world.api::<Node>().get("ghost-a").await?;
    ensure!(
        is_cordoned(&node) && !taints(&node).contains("medik8s.io/drain:NoSchedule"),
        "{:?}",
        node.spec
    );
    // Events are recorded after their action, so an UncordonNode event would already exist.
    world.until_event("ghost-a", "RemovedMaintenance").await?;
    assert_eq!(uncordoned().await?, before);

    world.cluster.kubectl(&["uncordon", "ghost-b"])?;
    let (type_, _) = world.until_event("ghost-b", "CordonedAgain").await?;
    assert_eq!(type_, "Warning");
    until(world.api::<Node>(), "ghost-b", "another cordon", is_cordoned).await?;
    assert_eq!(
        world.until_phase(group, "ghost-b", "Succeeded").await?.phase.as_deref(),
        Some("Succeeded")
    );
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn blocked_pod_names_the_pdb_and_goes_when_permitted() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    world.node("ghost-a", false).await?;
    world.pod("guarded", "ghost-a").await?;
    world.budget("keeper", "guarded", 1).await?;
    let group = Group::Medik8s;
    world.maintain(group, "ghost-a").await?;
    let status = world
        .until(group, "ghost-a", "the budget to be named", |status| {
            drained(status) == "BlockedByBudget" && status.pods.iter().all(|pod| pod.blocked_by.is_some())
        })
        .await?;
    let pod = &status.pods[0];
    let blocker = pod.blocked_by.clone().context("no blocker")?;
    assert_eq!(
        (blocker.kind.as_str(), blocker.name.as_str()),
        ("PodDisruptionBudget", "keeper")
    );
    assert_eq!(
        (
            blocker.disruptions_allowed,
            blocker.current_healthy,
            blocker.desired_healthy,
            blocker.expected_pods
        ),
        (0, 1, 1, 1)
    );
    let message = pod.last_refusal.clone().unwrap_or_default();
    ensure!(
        message.contains("disruption budget keeper needs 1 healthy pods and has 1 currently"),
        "{message}"
    );
    let error = status.last_error.unwrap_or_default();
    ensure!(
        error.starts_with("error when evicting pods/\"guarded\" -n \"maintained\": "),
        "{error}"
    );
    let patch = Patch::Merge(json!({"spec": {"minAvailable": 0}}));
    world.budgets().patch("keeper", &PatchParams::default(), &patch).await?;
    world.until_evicted("guarded").await?;
    world.end("guarded").await?;
    let status = world.until_phase(group, "ghost-a", "Succeeded").await?;
    assert_eq!((status.last_error, status.drain_progress), (None, Some(100)));

    // Pods that arrive later are evicted too, including a pod of a deleted DaemonSet, which would not be created again.
    world.pod("late", "ghost-a").await?;
    world
        .owned_by_a_daemon_set_that_is_not_there("orphan", "ghost-a")
        .await?;
    world.until_evicted("orphan").await?;
    world.end("orphan").await?;
    world.until_evicted("late").await?;
    world.until_phase(group, "ghost-a", "Running").await?;
    world.end("late").await?;
    world.until_phase(group, "ghost-a", "Succeeded").await?;

    // For a pod with two PDBs, Kubernetes returns an error instead of a refusal.
    world.pod("twice", "ghost-a").await?;
    world.until_evicted("twice").await?;
    world.end("twice").await?;
    world.finish(group, "ghost-a").await?;
    world.pod("twice", "ghost-a").await?;
    world.budget("one", "twice", 1).await?;
    world.budget("two", "twice", 1).await?;
    world.maintain(group, "ghost-a").await?;
    let status = world.until_reason(group, "ghost-a", "SeveralBudgets").await?;
    let message = status.pods[0].last_refusal.clone().unwrap_or_default();
    ensure!(message.contains("more than one PodDisruptionBudget"), "{message}");
    world.budgets().delete("one", &DeleteParams::default()).await?;
    world.until_reason(group, "ghost-a", "BlockedByBudget").await?;
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_controller_that_is_killed_goes_on_and_evicts_nothing_twice() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    // Evictions of pods with these names in earlier tests do not count.
    let before = std::fs::read_to_string(world.cluster.audit_log())?.len();
    world.node("ghost-a", false).await?;
    for name in ["first", "guarded"] {
        world.pod(name, "ghost-a").await?;
    }
    world.budget("keeper", "guarded", 1).await?;
    let group = Group::Medik8s;
    world.maintain(group, "ghost-a").await?;
    world.until_evicted("first").await?;
    world.until_reason(group, "ghost-a", "BlockedByBudget").await?;
    world.cluster.kubectl(&[
        "-n",
        "drydock",
        "delete",
        "pods",
        "-l",
        "app.kubernetes.io/name=drydock-controller",
        "--grace-period=0",
        "--force",
    ])?;
    world.cluster.rolled_out(CONTROLLERS)?;
    let patch = Patch::Merge(json!({"spec": {"minAvailable": 0}}));
    world.budgets().patch("keeper", &PatchParams::default(), &patch).await?;
    world.until_evicted("guarded").await?;
    for name in ["first", "guarded"] {
        world.end(name).await?;
    }
    let status = world.until_phase(group, "ghost-a", "Succeeded").await?;
    assert_eq!((status.total_pods, status.eviction_pods), (Some(2), Some(2)));
    let log = std::fs::read_to_string(world.cluster.audit_log())?;
    let mut accepted: BTreeMap<String, usize> = BTreeMap::new();
    let since = log.get(before..).context("the audit log was truncated")?;
    for event in since
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        let object = &event["objectRef"];
        let is_eviction = object["subresource"] == "eviction" && object["namespace"] == SPACE;
        let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
        if is_eviction && event["stage"] == "ResponseComplete" && code < 300 {
            let name = object["name"].as_str().unwrap_or_default().to_owned();
            *accepted.entry(name).or_default() += 1;
        }
    }
    assert_eq!(accepted.get("first"), Some(&1), "{accepted:?}");
    world.finish(group, "ghost-a").await?;
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn deleted_node_and_stolen_lease_are_distinguished() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let group = Group::Medik8s;
    for name in ["ghost-a", "ghost-b", "ghost-c"] {
        world.node(name, false).await?;
    }
    for name in ["ghost-a", "ghost-b"] {
        world.maintain(group, name).await?;
        world.until_phase(group, name, "Succeeded").await?;
    }
    world.api::<Node>().delete("ghost-a", &DeleteParams::default()).await?;
    let status = world.until_phase(group, "ghost-a", "Failed").await?;
    assert_eq!(status.last_error.as_deref(), Some("nodes \"ghost-a\" not found"));
    let (type_, note) = world.until_event("ghost-a", "FailedMaintenance").await?;
    assert_eq!(
        (type_.as_str(), note.as_str()),
        ("Warning", "Failed a node maintenance")
    );
    world.finish(group, "ghost-a").await?;

    let now = now();
    let stolen = json!({"spec": {
        "holderIdentity": "somebody", "leaseDurationSeconds": 3600, "renewTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(now),
    }});
    world
        .leases()
        .patch("node-ghost-b", &PatchParams::default(), &Patch::Merge(&stolen))
        .await?;
    let status = world
        .until(group, "ghost-b", "the end", |status| {
            drained(status) == "LeaseLost" && status.completion_time.is_some()
        })
        .await?;
    let error = status.last_error.unwrap_or_default();
    ensure!(
        error.starts_with("maintenance failed: lease could not be extended after"),
        "{error}"
    );
    let node = world.api::<Node>().get("ghost-b").await?;
    assert!(!is_cordoned(&node));
    let lease = world.leases().get("node-ghost-b").await?;
    assert_eq!(
        lease.spec.and_then(|spec| spec.holder_identity).as_deref(),
        Some("somebody")
    );
    world.finish(group, "ghost-b").await?;

    // If another holder has the Lease from the beginning, the maintenance waits, announces itself on the node, and does
    // not cordon it.
    let mut foreign = stolen;
    foreign["metadata"] = json!({"name": "node-ghost-c"});
    world
        .leases()
        .create(&PostParams::default(), &serde_json::from_value(foreign)?)
        .await?;
    world.maintain(group, "ghost-c").await?;
    let status = world.until_reason(group, "ghost-c", "WaitingForLease").await?;
    let error = status.last_error.unwrap_or_default();
    ensure!(
        error.contains("held by different owner: somebody errorOnLeaseCount 0"),
        "{error}"
    );
    // The Node's condition is written before the status with the pending pods.
    let node = world.api::<Node>().get("ghost-c").await?;
    assert!(!is_cordoned(&node) && is_planned(&node));
    let over = json!({"spec": {"leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    world
        .leases()
        .patch("node-ghost-c", &PatchParams::default(), &Patch::Merge(&over))
        .await?;
    world.until_phase(group, "ghost-c", "Succeeded").await?;
    assert!(!is_planned(&world.api::<Node>().get("ghost-c").await?));
    let taken = world.leases().get("node-ghost-c").await?.spec.context("no spec")?;
    assert_eq!(
        (taken.holder_identity.as_deref(), taken.lease_transitions),
        (Some("node-maintenance"), Some(1))
    );
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn unresponsive_node_is_reported_until_fenced() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let group = Group::Medik8s;
    world.node("ghost-a", false).await?;
    world.pod("stuck", "ghost-a").await?;
    world.maintain(group, "ghost-a").await?;
    world.until_evicted("stuck").await?;
    world.until_reason(group, "ghost-a", "Terminating").await?;
    // Kubernetes sets this status forty seconds after the last heartbeat of the node's kubelet.
    let unresponsive =
        json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}});
    let (nodes, parameters) = (world.api::<Node>(), PatchParams::default());
    nodes
        .patch_status("ghost-a", &parameters, &Patch::Strategic(unresponsive))
        .await?;
    let status = world.until_reason(group, "ghost-a", "NodeUnreachable").await?;
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(
        (status.pods.len(), status.pods[0].reason.as_str()),
        (1, "NodeUnreachable")
    );
    assert_eq!(status.estimated_end, None);
    // No component knows whether the pod has ended. By a rule of Kubernetes, the pod stays until the node is known to
    // be off.
    let pod = world.pods().get("stuck").await?;
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(600));
    world.cluster.kubectl(&[
        "taint",
        "nodes",
        "ghost-a",
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    ])?;
    let status = world.until_phase(group, "ghost-a", "Succeeded").await?;
    assert_eq!((status.pods.len(), status.drain_progress), (0, Some(100)));
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn ending_namespace_and_finalizer_of_a_pod_are_waited_for() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let group = Group::KubeVirt;
    world.node("ghost-a", false).await?;
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ending"}});
    world
        .api::<Namespace>()
        .create(&PostParams::default(), &serde_json::from_value(space)?)
        .await?;
    let pods: Api<Pod> = Api::namespaced(world.cluster.client.clone(), "ending");
    let pod = json!({
        "metadata": {"name": "kept", "finalizers": ["drydock.dev/a-test"]},
        "spec": {"nodeName": "ghost-a", "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}],
                 "containers": [{"name": "c", "image": "busybox"}]},
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
        .await?;
    world
        .api::<Namespace>()
        .delete("ending", &DeleteParams::default())
        .await?;
    until(pods.clone(), "kept", "a deletion", |pod: &Pod| {
        pod.metadata.deletion_timestamp.is_some()
    })
    .await?;
    // Reports the end of the pod, as its kubelet would.
    world.cluster.delete_pod_now("ending", "kept").await?;
    world.maintain(group, "ghost-a").await?;
    let status = world.until_reason(group, "ghost-a", "HeldByFinalizers").await?;
    assert_eq!(status.pending_pods, ["kept"]);
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("kept", &PatchParams::default(), &patch).await?;
    world.until_phase(group, "ghost-a", "Succeeded").await?;
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn maintenance_timeout_fails_and_gives_the_node_back() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let group = Group::Medik8s;
    world.node("ghost-a", false).await?;
    world.pod("guarded", "ghost-a").await?;
    world.budget("keeper", "guarded", 1).await?;
    world
        .create(group, "ghost-a", &json!({"nodeName": "ghost-a", "timeout": "3s"}))
        .await?;
    let status = world
        .until(group, "ghost-a", "the end", |status| {
            drained(status) == "TimedOut" && status.completion_time.is_some()
        })
        .await?;
    let error = status.last_error.unwrap_or_default();
    ensure!(
        error.starts_with("maintenance failed: the node was not empty after 3s: error when evicting"),
        "{error}"
    );
    assert!(!is_cordoned(&world.api::<Node>().get("ghost-a").await?));
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_blocked_node_holds_up_no_other() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let group = Group::Medik8s;
    world.node("ghost-stuck", false).await?;
    world.pod("guarded", "ghost-stuck").await?;
    world.budget("keeper", "guarded", 1).await?;
    world.maintain(group, "ghost-stuck").await?;
    world.until_reason(group, "ghost-stuck", "BlockedByBudget").await?;
    let names: Vec<String> = (0..50).map(|number| format!("ghost-{number}")).collect();
    for name in &names {
        world.node(name, false).await?;
    }
    let start = std::time::Instant::now();
    let made = join_all(names.iter().map(|name| world.maintain(group, name))).await;
    made.into_iter().collect::<Result<Vec<_>>>()?;
    let created = start.elapsed();
    until_some("all nodes to be cordoned", || async {
        let list = ListParams::default().labels(MADE);
        let nodes = world.api::<Node>().list(&list).await?;
        Ok(nodes.items.iter().all(is_cordoned).then_some(()))
    })
    .await?;
    println!(
        "50 maintenances: created after {created:?}, all nodes cordoned after {:?}",
        start.elapsed()
    );
    world.until_reason(group, "ghost-stuck", "BlockedByBudget").await?;
    world.clear().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn real_node_is_emptied_of_a_pod_that_ignores_sigterm() -> Result<()> {
    let world = MaintenanceCluster::new().await?;
    let group = Group::Medik8s;
    let node = world.cluster.second().to_owned();
    // The first process of the pod has no handler for SIGTERM, so the kernel ignores the signal.
    let stubborn = json!({
        "metadata": {"name": "stubborn"},
        "spec": {"nodeName": &node, "terminationGracePeriodSeconds": 600, "containers": [{
            "name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "100000"],
        }]},
    });
    world
        .pods()
        .create(&PostParams::default(), &serde_json::from_value(stubborn)?)
        .await?;
    let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    until(world.pods(), "stubborn", "running", runs).await?;
    world
        .create(group, "real", &json!({"nodeName": &node, "gracePeriodSeconds": 2}))
        .await?;
    let status = world.until_phase(group, "real", "Succeeded").await?;
    ensure!(
        status.eviction_pods >= Some(1) && status.total_pods > status.eviction_pods,
        "{status:?}"
    );
    assert!(world.pods().get_opt("stubborn").await?.is_none());
    // Agents are not evicted: the DaemonSet controller would create them again.
    world.cluster.agent_pod(&node).await?;
    world.finish(group, "real").await?;
    assert!(!is_cordoned(&world.api::<Node>().get(&node).await?));
    world.clear().await
}
