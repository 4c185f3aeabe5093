//! What an agent's token may write, tried with a real one.

use anyhow::{Result, ensure};
use drydock_api::{Hypervisor, labels as keys};
use drydock_tests::Cluster;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

async fn patch_node(client: &Client, node: &str, patch: Value) -> Result<(), kube::Error> {
    Api::<Node>::all(client.clone())
        .patch(node, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(drop)
}

fn refusal(result: Result<(), kube::Error>, what: &str) -> Result<String> {
    match result {
        Ok(()) => anyhow::bail!("{what} was allowed"),
        Err(kube::Error::Api(status)) => {
            ensure!(status.code == 403 || status.code == 422, "{what}: {status:?}");
            Ok(status.message)
        }
        Err(other) => Err(other.into()),
    }
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn an_agent_may_label_its_own_node_and_nothing_else() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let (own, other) = (cluster.first(), cluster.second());
    let agent = cluster.as_agent_of(own).await?;
    let label = |key: &str| json!({"metadata": {"labels": {key: "true"}}});

    for prefix in keys::OWNED_PREFIXES {
        patch_node(&agent, own, label(&format!("{prefix}by-a-test"))).await?;
    }
    for key in keys::OWNED_KEYS {
        patch_node(&agent, own, label(key)).await?;
    }
    patch_node(
        &agent,
        own,
        json!({"metadata": {"labels": {(keys::SCHEDULABLE): "true"}}}),
    )
    .await?;

    let refused = [
        (
            "another node",
            other,
            label("cpu-model.node.kubevirt.io/x"),
            "only write the Node it runs on",
        ),
        (
            "a foreign key",
            own,
            label("example.com/x"),
            "may not change these labels: example.com/x",
        ),
        (
            "a look-alike",
            own,
            label("x.kubevirt.io.evil/x"),
            "x.kubevirt.io.evil/x",
        ),
        (
            "a look-alike prefix",
            own,
            label("cpu-model.node.kubevirt.io.evil/x"),
            "these labels",
        ),
        (
            "a look-alike key",
            own,
            label("kubevirt.io/sev-custom"),
            "kubevirt.io/sev-custom",
        ),
        (
            "a role",
            own,
            label("node-role.kubernetes.io/control-plane"),
            "these labels",
        ),
        (
            "removing a foreign key",
            own,
            json!({"metadata": {"labels": {"kubernetes.io/os": null}}}),
            "kubernetes.io/os",
        ),
        (
            "the spec",
            own,
            json!({"spec": {"unschedulable": true}}),
            "may not change the spec",
        ),
        (
            "a taint",
            own,
            json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}),
            "may not change the spec",
        ),
        (
            "an annotation",
            own,
            json!({"metadata": {"annotations": {"x": "y"}}}),
            "may not change annotations",
        ),
        (
            "a finalizer",
            own,
            json!({"metadata": {"finalizers": ["example.com/x"]}}),
            "finalizers or owners",
        ),
    ];
    for (what, node, patch, expected) in refused {
        let message = refusal(patch_node(&agent, node, patch).await, what)?;
        ensure!(message.contains(expected), "{what}: {message}");
    }
    let nodes = Api::<Node>::all(agent.clone());
    refusal(
        nodes.delete(other, &DeleteParams::default()).await.map(drop),
        "deleting a node",
    )?;
    let status = nodes
        .patch_status(
            own,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": {"phase": "x"}})),
        )
        .await;
    refusal(status.map(drop), "a node's status")?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn an_agent_may_report_its_own_hypervisor_and_lease_and_no_other() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let (own, other) = (cluster.first(), cluster.second());
    let agent = cluster.as_agent_of(own).await?;
    let hypervisors = Api::<Hypervisor>::all(agent.clone());
    let status = Patch::Merge(json!({"status": {"agentVersion": "forged"}}));
    hypervisors.patch_status(own, &PatchParams::default(), &status).await?;
    let parameters = PatchParams::default();
    let message = refusal(
        hypervisors.patch_status(other, &parameters, &status).await.map(drop),
        "another's Hypervisor",
    )?;
    ensure!(message.contains("only write the Hypervisor"), "{message}");
    refusal(
        hypervisors.delete(own, &DeleteParams::default()).await.map(drop),
        "deleting its Hypervisor",
    )?;

    let leases = Api::<Lease>::namespaced(agent.clone(), "drydock-nodes");
    let holder = Patch::Merge(json!({"metadata": {"annotations": {"by": "a-test"}}}));
    leases.patch(own, &parameters, &holder).await?;
    let message = refusal(
        leases.patch(other, &parameters, &holder).await.map(drop),
        "another's Lease",
    )?;
    ensure!(message.contains("only write the Lease"), "{message}");
    let elsewhere = Api::<Lease>::namespaced(agent, "drydock");
    refusal(
        elsewhere
            .patch("drydock-controller", &parameters, &holder)
            .await
            .map(drop),
        "the controller's Lease",
    )?;
    Ok(())
}
