//! Nodes follow the configuration and report it; invalid settings are rejected by name.

use anyhow::{Context, Result, ensure};
use drydock_api::{HyperConverged, labels as keys, reasons};
use drydock_tests::{
    Cluster,
    oracle::{self, LabelInputs},
    watching::{until, until_some},
};
use kube::Api;

fn hyperconverged(namespace: &str, spec: &str) -> String {
    format!(
        "apiVersion: hco.kubevirt.io/v1beta1\nkind: HyperConverged\nmetadata:\n  name: kubevirt-hyperconverged\n  \
         namespace: {namespace}\nspec: {spec}\n"
    )
}

/// Waits until the condition InForce has a status and a reason, for the current generation of the object.
async fn until_in_force(cluster: &Cluster, namespace: &str, status: &str, reason: &str) -> Result<HyperConverged> {
    let what = format!("InForce={status} {reason}");
    let api = Api::namespaced(cluster.client.clone(), namespace);
    until(api, "kubevirt-hyperconverged", &what, |found: &HyperConverged| {
        let Some(reported) = &found.status else { return false };
        reported.observed_generation == found.metadata.generation
            && reported
                .conditions
                .iter()
                .any(|c| c.type_ == "InForce" && c.status == status && c.reason == reason)
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn labels_follow_obsolete_models_and_the_minimum_model() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let labels = cluster.cpu_labels(node).await?;
    let model = labels
        .keys()
        .filter_map(|key| key.strip_prefix(keys::CPU_MODEL))
        .find(|name| *name == "Nehalem" || *name == "Westmere" || *name == "Penryn")
        .context("no well-known model")?
        .to_owned();
    let spec = format!("{{obsoleteCPUs: {{cpuModels: [{model}], minCPUModel: Nehalem}}}}");
    cluster.kubectl_with(&["apply"], &hyperconverged("drydock", &spec))?;
    until_in_force(&cluster, "drydock", "True", "InForce").await?;
    let inputs = LabelInputs {
        obsolete: vec![model.clone()],
        minimum: Some("Nehalem".into()),
        ..LabelInputs::default()
    };
    for node in &cluster.nodes {
        let expected = oracle::labels(&cluster, node, &inputs).await?;
        assert_eq!(cluster.cpu_labels(node).await?, expected, "{node}");
        ensure!(!expected.contains_key(&format!("{}{model}", keys::CPU_MODEL)));
        ensure!(!expected.contains_key(&format!("{}Penryn", keys::CPU_MINIMUM)));
    }
    let table = cluster.kubectl(&["get", "hyperconverged", "-n", "drydock"])?;
    ensure!(table.contains("IN-FORCE") && table.contains("True"), "{table}");
    cluster.delete(&["hyperconverged", "--all", "-n", "drydock"])?;
    for node in &cluster.nodes {
        until_some("the initial labels", || async {
            Ok((cluster.cpu_labels(node).await? == labels).then_some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn unknown_minimum_model_is_refused_and_last_config_stays() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    cluster.kubectl_with(
        &["apply"],
        &hyperconverged("drydock", "{obsoleteCPUs: {minCPUModel: Nehalem}}"),
    )?;
    until_in_force(&cluster, "drydock", "True", "InForce").await?;
    let before = cluster.cpu_labels(node).await?;
    cluster.kubectl_with(
        &["apply"],
        &hyperconverged("drydock", "{obsoleteCPUs: {minCPUModel: Pendryn}}"),
    )?;
    until_in_force(&cluster, "drydock", "False", "Refused").await?;
    // The nodes reject the configuration one after the other.
    let api = Api::namespaced(cluster.client.clone(), "drydock");
    let names: Vec<&str> = cluster.nodes.iter().map(String::as_str).collect();
    until(
        api,
        "kubevirt-hyperconverged",
        "the refusals of all nodes",
        |found: &HyperConverged| {
            let message = found
                .status
                .as_ref()
                .and_then(|status| status.conditions.first())
                .map(|c| c.message.as_str());
            let wanted = ["spec.obsoleteCPUs.minCPUModel", "Pendryn", "allowed"];
            message.is_some_and(|message| wanted.iter().chain(&names).all(|text| message.contains(text)))
        },
    )
    .await?;
    assert_eq!(cluster.cpu_labels(node).await?, before);
    until_some("an event on the node", || async {
        let events = cluster
            .node_events(node, reasons::events::CONFIGURATION_REFUSED)
            .await?;
        Ok(events
            .iter()
            .any(|event| event["note"].as_str().is_some_and(|note| note.contains("Pendryn")))
            .then_some(()))
    })
    .await?;
    cluster
        .until_condition(node, "ConfigurationAccepted", "False", "Refused")
        .await?;
    cluster.delete(&["hyperconverged", "--all", "-n", "drydock"])?;
    cluster
        .until_condition(node, "ConfigurationAccepted", "True", "Accepted")
        .await?;
    cluster
        .until_label(node, &format!("{}Penryn", keys::CPU_MINIMUM), Some("true"))
        .await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn schema_refuses_invalid_values_and_keeps_unknown_fields() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    for (spec, expected) in [
        (
            "{evictionStrategy: Sometimes}",
            ["spec.evictionStrategy", "LiveMigrate"],
        ),
        (
            "{liveMigrationConfig: {parallelMigrationsPerCluster: 0}}",
            ["parallelMigrationsPerCluster", "1"],
        ),
        (
            "{obsoleteCPUs: {cpuModels: [\"a model\"]}}",
            ["cpuModels", "should match"],
        ),
        ("{featureGates: {x: maybe}}", ["featureGates.x", "boolean"]),
        (
            "{certConfig: {ca: {duration: forever}}}",
            ["certConfig.ca.duration", "should match"],
        ),
    ] {
        let error = cluster
            .kubectl_with(&["apply"], &hyperconverged("drydock", spec))
            .unwrap_err()
            .to_string();
        for text in expected {
            ensure!(error.contains(text), "{spec}: {text} is not in: {error}");
        }
    }
    let spec = "{workloads: {nodePlacement: {}}, liveMigrationConfig: {network: migration}}";
    cluster.kubectl_with(&["apply"], &hyperconverged("drydock", spec))?;
    let kept = cluster.kubectl(&["get", "hyperconverged", "-n", "drydock", "-o", "json"])?;
    ensure!(
        kept.contains("nodePlacement") && kept.contains("\"network\": \"migration\""),
        "{kept}"
    );
    until_in_force(&cluster, "drydock", "True", "InForce").await?;
    cluster.delete(&["hyperconverged", "--all", "-n", "drydock"])
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn single_object_is_in_force_and_others_report_not_in_force() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    for namespace in ["kubevirt", "elsewhere"] {
        let manifest = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n");
        cluster.kubectl_with(&["apply"], &manifest)?;
        cluster.kubectl_with(&["apply"], &hyperconverged(namespace, "{}"))?;
    }
    until_in_force(&cluster, "kubevirt", "True", "InForce").await?;
    until_in_force(&cluster, "elsewhere", "False", "NamespaceNotWatched").await?;
    cluster.kubectl_with(&["apply"], &hyperconverged("drydock", "{}"))?;
    until_in_force(&cluster, "drydock", "True", "InForce").await?;
    until_in_force(&cluster, "kubevirt", "False", "Superseded").await?;
    cluster.delete(&["hyperconverged", "--all", "-n", "drydock"])?;
    until_in_force(&cluster, "kubevirt", "True", "InForce").await?;
    cluster.delete(&["namespace", "kubevirt", "elsewhere"])
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn the_legacy_config_map_is_read_below_hyperconverged() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let penryn = format!("{}Penryn", keys::CPU_MINIMUM);
    cluster.configure(&[("min-cpu-model", "Nehalem")]).await?;
    cluster.until_label(node, &penryn, None).await?;
    cluster.kubectl_with(
        &["apply"],
        &hyperconverged("drydock", "{obsoleteCPUs: {minCPUModel: Penryn}}"),
    )?;
    cluster.until_label(node, &penryn, Some("true")).await?;
    cluster.delete(&["hyperconverged", "--all", "-n", "drydock"])?;
    cluster.until_label(node, &penryn, None).await?;
    cluster
        .configure(&[("migrations", "parallelMigrationsPerCluster: many")])
        .await?;
    cluster
        .until_condition(node, "ConfigurationAccepted", "False", "Refused")
        .await?;
    ensure!(
        !cluster.cpu_labels(node).await?.contains_key(&penryn),
        "the last good configuration is no longer in force"
    );
    cluster.configure(&[]).await?;
    cluster.until_label(node, &penryn, Some("true")).await?;
    Ok(())
}
