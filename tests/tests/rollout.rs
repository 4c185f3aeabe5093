//! Only one agent at a time acts on a node, and a rollout of the agents changes no label.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use drydock_api::{labels as keys, leases};
use drydock_tests::{Cluster, own_parts::AGENTS, recorder::states_of, watching::until_some};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{Api, ResourceExt};

async fn holder(cluster: &Cluster, node: &str) -> Result<String> {
    let api = Api::<Lease>::namespaced(cluster.client.clone(), leases::NODE_LEASE_NAMESPACE);
    let lease = api.get(node).await?;
    Ok(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_rollout_changes_no_label_and_hands_the_lease_over() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let old = cluster.agent_pod(node).await?.uid().unwrap_or_default();
    until_some("the Lease of the agent's pod", || async {
        Ok((holder(&cluster, node).await? == old).then_some(()))
    })
    .await?;
    let recorder = cluster.record_node(node).await?;
    cluster.restart(AGENTS)?;
    cluster.rolled_out(AGENTS)?;
    let new = cluster.until_new_agent(node, &old).await?;
    until_some("the Lease of the new pod", || async {
        Ok((holder(&cluster, node).await? == new).then_some(()))
    })
    .await?;
    // The new agent acts, since it reverts a forged label.
    cluster
        .label(node, &[("cpu-model.node.kubevirt.io/Forged", Some("true"))])
        .await?;
    cluster
        .until_label(node, "cpu-model.node.kubevirt.io/Forged", None)
        .await?;
    let states = states_of(recorder.stop().await?, node);
    let ours = |node: &Node| {
        let mut labels = node.labels().clone();
        labels.retain(|key, _| {
            (keys::is_owned(key) || keys::READINESS_KEYS.contains(&key.as_str())) && !key.ends_with("Forged")
        });
        labels
    };
    let first = ours(states.first().context("no recorded state")?);
    for state in &states {
        assert_eq!(ours(state), first, "the rollout changed the labels");
    }
    Ok(())
}

/// Labels that another labeller has left on a node, including stale ones.
const ANOTHERS: [&str; 8] = [
    "cpu-model.node.kubevirt.io/Opteron_G2",
    "cpu-model-migration.node.kubevirt.io/kvm64",
    "cpu-feature.node.kubevirt.io/sse2",
    "cpu-feature.node.kubevirt.io/no-such-feature",
    "cpu-vendor.node.kubevirt.io/Other",
    "host-model-cpu.node.kubevirt.io/Old",
    "hyperv.node.kubevirt.io/vpindex",
    "kubevirt.io/s390-pv",
];

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn stopped_agent_is_reported_and_successor_replaces_labels() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let before = cluster.cpu_labels(node).await?;
    let nowhere = r#"{"spec":{"template":{"spec":{"nodeSelector":{"example.com/no-agent":"here"}}}}}"#;
    let anywhere = r#"{"spec":{"template":{"spec":{"nodeSelector":{"example.com/no-agent":null}}}}}"#;
    cluster.kubectl(&[
        "-n",
        "drydock",
        "patch",
        "daemonset",
        "drydock-agent",
        "--patch",
        nowhere,
    ])?;
    cluster.until_label(node, keys::SCHEDULABLE, Some("false")).await?;
    cluster.until_condition(node, "Ready", "False", "AgentStopped").await?;
    until_some("no agent", || async {
        Ok(cluster.agent_pod(node).await.is_err().then_some(()))
    })
    .await?;
    cluster.label(node, &ANOTHERS.map(|key| (key, Some("true")))).await?;
    cluster.kubectl(&[
        "-n",
        "drydock",
        "patch",
        "daemonset",
        "drydock-agent",
        "--patch",
        anywhere,
    ])?;
    cluster.until_new_agent(node, "").await?;
    cluster.until_label(node, keys::SCHEDULABLE, Some("true")).await?;
    until_some("only our CPU labels", || async {
        Ok((cluster.cpu_labels(node).await? == before).then_some(()))
    })
    .await?;
    ensure!(
        cluster
            .hypervisor(node)
            .await?
            .status
            .is_some_and(|status| status.facts.is_some())
    );
    for node in &cluster.nodes {
        cluster.until_label(node, keys::SCHEDULABLE, Some("true")).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn replicas_on_the_same_node_spread_once_another_is_free() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let [kept, drained] = &cluster.nodes[..] else {
        bail!("two nodes are needed");
    };
    cluster.kubectl(&["cordon", drained])?;
    for (pod, node) in cluster.ready_controllers().await? {
        if node == *drained {
            cluster.delete(&["pod", &pod, "--namespace=drydock", "--timeout=90s"])?;
        }
    }
    let are_on = |nodes: usize| {
        let cluster = &cluster;
        move || async move {
            let found = cluster.ready_controllers().await?;
            let different: BTreeSet<_> = found.values().cloned().collect();
            Ok((found.len() == 2 && different.len() == nodes).then_some(found))
        }
    };
    let crowded = until_some("both replicas on one node", are_on(1)).await?;
    ensure!(crowded.values().all(|node| node == kept), "{crowded:?}");
    let api = Api::<Lease>::namespaced(cluster.client.clone(), "drydock");
    let leader = until_some("a leader", || async {
        let holder = api.get(leases::CONTROLLER_LEASE).await?;
        let holder = holder.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        Ok(crowded.keys().find(|pod| holder.starts_with(pod.as_str())).cloned())
    })
    .await?;
    cluster.kubectl(&["uncordon", drained])?;
    let spread = until_some("a replica on each node", are_on(2)).await?;
    ensure!(spread.contains_key(&leader), "the leader {leader} moved: {spread:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn metrics_health_and_the_log_level_are_served() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let node = cluster.first();
    for path in ["livez", "readyz"] {
        cluster.agent_admin(node, path).await?;
    }
    let metrics = cluster.agent_admin(node, "metrics").await?;
    for name in [
        "drydock_inspections_total",
        "drydock_cpu_labels",
        "drydock_condition",
        "process_resident_memory_bytes",
    ] {
        ensure!(metrics.contains(name), "{name} is not in\n{metrics}");
    }
    ensure!(metrics.trim_end().ends_with("# EOF"), "not OpenMetrics");
    let level = cluster.agent_admin(node, "log-level").await?;
    ensure!(level.contains("info"), "{level}");
    Ok(())
}
