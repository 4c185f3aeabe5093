//! The device shares for KVM survive every restart, and the pods of guests may do nothing beyond the needs of their
//! network.

use anyhow::{Context, Result, ensure};
use drydock_api::{
    labels as keys,
    launcher::{KVM_RESOURCE, SECCOMP_PROFILE},
};
use drydock_tests::{
    Cluster,
    own_parts::AGENTS,
    recorder::states_of,
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{LogParams, PostParams},
};
use serde_json::{Value, json};

/// All shares of a node, in the API's notation for one thousand.
const ALL: &str = "1k";

/// Returns the node's allocatable shares as reported by the kubelet.
fn allocatable(node: &Node) -> Option<&str> {
    let all = node.status.as_ref()?.allocatable.as_ref()?;
    all.get(KVM_RESOURCE).map(|quantity| quantity.0.as_str())
}

/// Waits until all shares of the node are allocatable.
async fn until_offered(cluster: &Cluster, node: &str) -> Result<()> {
    let what = format!("{ALL} {KVM_RESOURCE}");
    until(Api::all(cluster.client.clone()), node, &what, |node: &Node| {
        allocatable(node) == Some(ALL)
    })
    .await?;
    Ok(())
}

/// Runs a script in the agent's image on a node, like a guest's pod. Returns the ended pod and its output.
async fn run(cluster: &Cluster, node: &str, name: &str, seccomp: Value, script: &str) -> Result<(Pod, String)> {
    let agent = cluster.agent_pod(node).await?;
    let image = agent.spec.and_then(|spec| spec.containers.into_iter().next()?.image);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "securityContext": {"runAsUser": 107, "runAsGroup": 107, "runAsNonRoot": true, "seccompProfile": seccomp},
            "containers": [{
                "name": "compute",
                "image": image.context("no image")?,
                "command": ["sh", "-c", script],
                "resources": {"limits": {KVM_RESOURCE: "1"}},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }))?;
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default");
    pods.create(&PostParams::default(), &pod).await?;
    let phase = |pod: &Pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.phase.clone())
            .unwrap_or_default()
    };
    let ended = until(pods.clone(), name, "the script's end", |pod: &Pod| {
        ["Succeeded", "Failed"].contains(&phase(pod).as_str())
    })
    .await?;
    let printed = pods.logs(name, &LogParams::default()).await.unwrap_or_default();
    cluster.delete_pod_now("default", name).await?;
    Ok((ended, printed))
}

fn localhost() -> Value {
    json!({"type": "Localhost", "localhostProfile": SECCOMP_PROFILE})
}

/// Checks that a pod that requests a share gets one and runs.
async fn a_share_can_be_had(cluster: &Cluster, node: &str, name: &str) -> Result<()> {
    let (pod, printed) = run(cluster, node, name, localhost(), "ls /dev; echo done").await?;
    ensure!(printed.contains("done"), "{:?}: {printed}", pod.status);
    // Guests on these clusters are emulated, which needs no device.
    ensure!(!printed.contains("kvm"), "{printed}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn every_node_has_kvm_shares_and_allocates_shares_to_pods() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    for (number, node) in cluster.nodes.iter().enumerate() {
        until_offered(&cluster, node).await?;
        a_share_can_be_had(&cluster, node, &format!("share-{number}")).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_kubelet_that_restarts_has_the_shares_again() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    for turn in 0..3 {
        cluster.embedded("restart", &[&format!("kubelet.{node}")])?;
        // The plugin registers with the new kubelet only after a while; pods that arrive earlier are rejected.
        until_some("the shares", || async {
            let metrics = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")]);
            let registered = format!("kubelet_device_plugin_registration_total{{resource_name=\"{KVM_RESOURCE}\"}}");
            Ok(metrics.is_ok_and(|text| text.contains(&registered)).then_some(()))
        })
        .await?;
        until_offered(&cluster, node).await?;
        a_share_can_be_had(&cluster, node, &format!("after-restart-{turn}")).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_rollout_of_agents_takes_no_share_away() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    // Between the registrations of the two agents, the kubelet has no shares. The kubelet's report, every ten seconds,
    // may fall into this interval, but not twice in a row.
    let first = shares_in_rollout(&cluster, "first-rollout").await?;
    if first.iter().all(|share| share.as_deref() == Some(ALL)) {
        return Ok(());
    }
    let second = shares_in_rollout(&cluster, "second-rollout").await?;
    ensure!(
        second.iter().all(|share| share.as_deref() == Some(ALL)),
        "the rollouts changed the shares: {first:?}, {second:?}"
    );
    Ok(())
}

/// Replaces the agents. Returns the shares of the first node in all of its states in the meantime.
async fn shares_in_rollout(cluster: &Cluster, pod: &str) -> Result<Vec<Option<String>>> {
    let node = cluster.first();
    until_offered(cluster, node).await?;
    let old = cluster.agent_pod(node).await?.uid().unwrap_or_default();
    let recorder = cluster.record_node(node).await?;
    cluster.restart(AGENTS)?;
    cluster.rolled_out(AGENTS)?;
    cluster.until_new_agent(node, &old).await?;
    // The kubelet allocates the shares of the new agent.
    a_share_can_be_had(cluster, node, pod).await?;
    until_offered(cluster, node).await?;
    let states = states_of(recorder.stop().await?, node);
    Ok(states
        .iter()
        .map(|state| allocatable(state).map(str::to_owned))
        .collect())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn killed_agent_comes_back_with_all_shares() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    until_offered(&cluster, node).await?;
    let killed = cluster.agent_process(node)?;
    cluster.on_node(node, &format!("kill -KILL {killed}"))?;
    until_some("another agent", || async {
        Ok(cluster.agent_process(node).is_ok_and(|now| now != killed).then_some(()))
    })
    .await?;
    // The kubelet rejects pods as long as no plugin is registered.
    until_some("a share", || async {
        let given = a_share_can_be_had(&cluster, node, "after-kill").await;
        Ok(given.is_ok().then_some(()))
    })
    .await?;
    until_offered(&cluster, node).await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn guest_network_may_sandbox_passt_and_nothing_else() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    cluster
        .until_condition(node, "GuestNetwork", "True", "Available")
        .await?;
    cluster.until_label(node, keys::GUEST_NETWORK, Some("true")).await?;
    let passt = "passt --one-off --socket /tmp/socket --pid /tmp/pid && echo passt runs
        for kind in net cgroup; do unshare --user --$kind true && echo leaked $kind; done
        unshare --user --mount true && echo leaked mount
        echo done";
    let (_, printed) = run(&cluster, node, "network", localhost(), passt).await?;
    ensure!(printed.contains("passt runs") && printed.contains("done"), "{printed}");
    ensure!(!printed.contains("leaked"), "{printed}");
    // Shows that the profile is necessary: the runtime's default profile blocks passt.
    let (_, printed) = run(&cluster, node, "no-network", json!({"type": "RuntimeDefault"}), passt).await?;
    ensure!(!printed.contains("passt runs") && printed.contains("done"), "{printed}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn a_profile_that_is_removed_or_changed_comes_back() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let file = format!("/var/lib/kubelet/seccomp/{SECCOMP_PROFILE}");
    let before = cluster.in_agent(node, &format!("cat {file}")).await?;
    ensure!(before.contains("pivot_root"), "{before}");
    for damage in [
        format!("rm {file}"),
        format!("echo '{{}}' > {file}"),
        // The directory is moved first, so that it disappears atomically: if it were emptied first, the file would be
        // restored before the directory could be removed.
        format!("d=$(dirname {file}); mv $d $d.away && rm -r $d.away"),
    ] {
        cluster.in_agent(node, &damage).await?;
        until_some("the profile", || async {
            let now = cluster.in_agent(node, &format!("cat {file}")).await;
            Ok(now.is_ok_and(|now| now == before).then_some(()))
        })
        .await
        .context(damage)?;
    }
    cluster
        .until_condition(node, "GuestNetwork", "True", "Available")
        .await?;
    Ok(())
}
