//! A restarted kubelet admits the guests of its node again, even if the labels that the guests' pods select have
//! changed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use drydock_api::{
    kubevirt::names::{LAUNCHER, conditions as types},
    labels as keys,
};
use drydock_core::launcher_pod::guest_label;
use drydock_tests::{
    Cluster,
    guests::{NAMESPACE, bare_instance, ticks, without_a_gap},
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use kube::{ResourceExt, api::PostParams};
use serde_json::json;

/// A label that the guests' own manifests select.
const OWN: &str = "example.com/kubelet-restart";
/// A model and a feature beyond the minimum CPU model that every machine can emulate.
const MODEL: &str = "Nehalem";
const FEATURE: &str = "popcnt";
/// Guests that together use every node requirement: a named CPU model and the host's, a network, a label.
const GUESTS: [&str; 2] = ["named", "like-the-host"];

/// Returns the manifest of a small guest that selects [`OWN`], with additional lines of its domain.
fn guest(name: &str, domain: &str) -> String {
    let selector = format!("spec:\n  nodeSelector: {{{OWN}: here}}\n");
    bare_instance(name)
        .replace("spec:\n", &selector)
        .replace("  domain:\n", &format!("  domain:\n{domain}"))
}

/// Allows agents on all nodes, or on none.
fn agents(cluster: &Cluster, anywhere: bool) -> Result<()> {
    let value = if anywhere { json!(null) } else { json!("here") };
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"example.com/no-agent": value}}}}});
    let patch = patch.to_string();
    cluster.kubectl(&[
        "-n",
        "drydock",
        "patch",
        "daemonset",
        "drydock-agent",
        "--patch",
        &patch,
    ])?;
    Ok(())
}

fn phase(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.unwrap_or_default()
}

/// Returns the required terms of a pod's node affinity.
fn terms(pod: &Pod) -> Result<&[NodeSelectorTerm]> {
    let spec = pod.spec.as_ref().context("no spec")?;
    let node = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = node.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    Ok(&required.context("no required node affinity")?.node_selector_terms)
}

/// Returns label changes after which a node matches none of the expressions in a pod's ordinary terms.
///
/// The kubelet's own labels are omitted, since the kubelet restores them.
fn contradiction(pod: &Pod) -> Result<Vec<(String, Option<&'static str>)>> {
    let (_, ordinary) = terms(pod)?.split_last().context("no term")?;
    let expressions = ordinary.iter().flat_map(|term| term.match_expressions.iter().flatten());
    let changes = expressions.filter(|one| !one.key.starts_with("kubernetes.io/"));
    Ok(changes
        .map(|one| (one.key.clone(), (one.operator == "DoesNotExist").then_some("true")))
        .collect())
}

/// Runs a pod on a node to its end, bypassing the scheduler.
///
/// A kubelet admits pods in the order of their creation, so it has processed all older pods when this one has ended.
async fn run_another(cluster: &Cluster, node: &str, image: &str) -> Result<()> {
    let name = "after-the-restart";
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{"name": "end", "image": image, "command": ["true"]}],
        },
    }))?;
    cluster.pods().create(&PostParams::default(), &pod).await?;
    let ended = until(
        cluster.pods(),
        name,
        "the end of a pod created after the restart",
        |pod: &Pod| ["Succeeded", "Failed"].contains(&phase(pod)),
    )
    .await?;
    cluster.delete_pod_now(NAMESPACE, name).await?;
    ensure!(phase(&ended) == "Succeeded", "{:?}", ended.status);
    Ok(())
}

/// Starts the guests, waits until they run and the Node has their labels, and returns their pods.
async fn started(cluster: &Cluster, node: &str) -> Result<Vec<Pod>> {
    let labels = cluster.cpu_labels(node).await?;
    for key in [
        format!("{}{MODEL}", keys::CPU_MODEL),
        format!("{}{FEATURE}", keys::CPU_FEATURE),
    ] {
        ensure!(labels.contains_key(&key), "{key} is not among {:?}", labels.keys());
    }
    let named = format!("    cpu: {{model: {MODEL}, features: [{{name: {FEATURE}, policy: require}}]}}\n");
    let like_the_host = "    cpu: {model: host-model}\n";
    for (name, domain) in GUESTS.into_iter().zip([named.as_str(), like_the_host]) {
        cluster.apply(&guest(name, domain)).await?;
    }
    let mut pods = Vec::new();
    for name in GUESTS {
        cluster.until_console(name, "drydock-guest ready").await?;
        cluster.until_vm_condition(name, types::READY, "True").await?;
        let pod = cluster.launcher(name).await?;
        let launcher = pod.labels().get(LAUNCHER).context("no identity")?;
        cluster.until_label(node, &guest_label(launcher), Some("true")).await?;
        let spec = pod.spec.as_ref().context("no spec")?;
        ensure!(spec.node_selector.as_ref().is_none_or(BTreeMap::is_empty), "{spec:?}");
        pods.push(pod);
    }
    Ok(pods)
}

/// Restarts the kubelet without the agents and the labels that the guests' pods select, and checks that the guests
/// continue.
async fn restart(cluster: &Cluster, node: &str) -> Result<()> {
    let agent = cluster.agent_pod(node).await?;
    let image = agent.spec.and_then(|spec| spec.containers.into_iter().next()?.image);
    let image = image.context("an agent without an image")?;
    let pods = started(cluster, node).await?;

    agents(cluster, false)?;
    cluster.until_label(node, keys::SCHEDULABLE, Some("false")).await?;
    until_some("no agent", || async {
        Ok(cluster.agent_pod(node).await.is_err().then_some(()))
    })
    .await?;
    let mut changes = BTreeSet::new();
    for pod in &pods {
        changes.extend(contradiction(pod)?);
    }
    let changes: Vec<(&str, Option<&str>)> = changes.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    for key in [OWN, keys::SCHEDULABLE, keys::GUEST_NETWORK, keys::OBSOLETE_HOST_MODEL] {
        ensure!(
            changes.iter().any(|(changed, _)| *changed == key),
            "{key} is not in {changes:?}"
        );
    }
    cluster.label(node, &changes).await?;

    cluster.embedded("restart", &[&format!("kubelet.{node}")])?;
    run_another(cluster, node, &image).await?;
    for (name, before) in GUESTS.into_iter().zip(&pods) {
        let count = ticks(&cluster.console(name).await?).len();
        until_some(&format!("{name} to go on"), || async {
            Ok((ticks(&cluster.console(name).await?).len() > count + 10).then_some(()))
        })
        .await?;
        let pod = cluster.launcher(name).await?;
        ensure!(pod.uid() == before.uid(), "{name} is in another pod");
        ensure!(
            phase(&pod) == "Running" && pod.metadata.deletion_timestamp.is_none(),
            "{name}: {:?}",
            pod.status
        );
        without_a_gap(&ticks(&cluster.console(name).await?))?;
    }

    // A node without an agent accepts no new guest, although its existing guests stay.
    cluster.label(node, &[(OWN, Some("here"))]).await?;
    cluster.apply(&guest("late", "")).await?;
    cluster
        .until_vm_condition("late", types::POD_SCHEDULED, "False")
        .await?;
    let late = cluster.launcher("late").await?;
    ensure!(
        late.spec.is_some_and(|spec| spec.node_name.is_none()),
        "a guest was scheduled to a node without an agent"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn kubelet_restart_ends_no_guest_despite_changed_labels() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    let node = cluster.first().to_owned();
    cluster.label(&node, &[(OWN, Some("here"))]).await?;
    let result = restart(&cluster, &node).await;
    // The following tests need the agents, whatever the result of this test is.
    agents(&cluster, true)?;
    let whole = cluster.until_whole().await;
    cluster.label(&node, &[(OWN, None)]).await?;
    result?;
    whole?;

    // The labels of ended guests are removed with the next change of the Node's labels.
    cluster.no_guests().await?;
    let forged = format!("{}Forged", keys::CPU_MODEL);
    cluster.label(&node, &[(&forged, Some("true"))]).await?;
    until_some("the removal of the labels of the guests", || async {
        let node = cluster.node(&node).await?;
        let left = node
            .labels()
            .keys()
            .any(|key| key.starts_with(keys::GUEST) || *key == forged);
        Ok((!left).then_some(()))
    })
    .await
}
