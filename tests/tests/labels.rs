//! Labels are correct and complete, and are restored after foreign changes.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use drydock_api::{Hypervisor, annotations, labels as keys, reasons};
use drydock_tests::{
    Cluster, agent,
    oracle::{self, LabelInputs},
    watching::{until, until_some},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn labels_equal_an_independent_computation_from_virsh() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    for node in &cluster.nodes {
        let expected = oracle::labels(&cluster, node, &LabelInputs::default()).await?;
        ensure!(expected.len() > 20, "virsh prints too little: {expected:?}");
        let found = cluster.cpu_labels(node).await?;
        assert_eq!(found, expected, "{node}");
    }
    Ok(())
}

/// Returns a pod that selects a node with this label. The test checks only whether the pod is scheduled.
fn picky(name: &str, label: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeSelector": {label: "true"},
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "sleep", "image": "busybox", "command": ["sleep", "3600"]}],
        },
    }))?)
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn scheduler_places_pods_by_cpu_feature_and_model_labels() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let (whole, masked) = (cluster.first(), cluster.second());
    // With emulation no model that needs AVX2 is usable, so a second feature stands for the models.
    let (feature, mask) = ("avx2", "avx2,aes");
    let feature_label = format!("{}{feature}", keys::CPU_FEATURE);
    let before: BTreeSet<String> = cluster.cpu_labels(masked).await?.into_keys().collect();
    cluster
        .annotate(masked, &[(annotations::MASK_CPU_FEATURES, Some(mask))])
        .await?;
    cluster.until_label(masked, &feature_label, None).await?;

    let inputs = LabelInputs {
        mask: mask.split(',').map(Into::into).collect(),
        ..LabelInputs::default()
    };
    let expected = oracle::labels(&cluster, masked, &inputs).await?;
    until_some("the masked labels", || async {
        Ok((cluster.cpu_labels(masked).await? == expected).then_some(()))
    })
    .await?;
    let lost = before
        .iter()
        .find(|key| key.starts_with(keys::CPU_MODEL) && !expected.contains_key(*key));
    let model_label = lost.context("no model of this machine needs a masked feature")?.clone();
    let status = cluster.hypervisor(masked).await?.status.context("no status")?;
    assert_eq!(status.masked_features, ["aes", feature]);

    let pods = Api::<Pod>::namespaced(cluster.client.clone(), "default");
    for (kind, label) in [("feature", &feature_label), ("model", &model_label)] {
        for turn in 0..10 {
            let name = format!("picky-{kind}-{turn}");
            pods.create(&PostParams::default(), &picky(&name, label)?).await?;
            let placed = until(pods.clone(), &name, "a node", |pod: &Pod| {
                pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
            })
            .await?;
            let node = placed.spec.and_then(|spec| spec.node_name).unwrap_or_default();
            assert_eq!(node, whole, "{name} requires {label}");
            cluster.delete_pod_now("default", &name).await?;
        }
    }
    cluster
        .annotate(masked, &[(annotations::MASK_CPU_FEATURES, None)])
        .await?;
    cluster.until_label(masked, &model_label, Some("true")).await?;
    let after: BTreeSet<String> = cluster.cpu_labels(masked).await?.into_keys().collect();
    assert_eq!(after, before);
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn tampered_labels_are_restored_and_foreign_labels_kept() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let before = cluster.cpu_labels(node).await?;
    let real = before
        .keys()
        .find(|key| key.starts_with(keys::CPU_MODEL))
        .context("no model")?
        .clone();
    let forged = [
        "cpu-model.node.kubevirt.io/Forged",
        "cpu-vendor.node.kubevirt.io/Forged",
        "cpu-minimum.node.drydock.dev/Forged",
        "kubevirt.io/s390-pv",
        "kubevirt.io/tdx",
        "cpu-model.node.kubevirt.io/kvm64",
    ];
    let foreign = [
        "kubevirt.io/sev-custom",
        "cpu-model.node.kubevirt.io.example/x",
        "example.com/mine",
    ];
    let mut changes: Vec<(&str, Option<&str>)> =
        forged.iter().chain(&foreign).map(|key| (*key, Some("true"))).collect();
    changes.push((&real, None));
    changes.push((keys::SCHEDULABLE, Some("false")));
    cluster.label(node, &changes).await?;
    until_some("the initial labels", || async {
        let labels = cluster.node(node).await?.metadata.labels.unwrap_or_default();
        let schedulable = labels.get(keys::SCHEDULABLE).is_some_and(|value| value == "true");
        Ok((schedulable && cluster.cpu_labels(node).await? == before).then_some(()))
    })
    .await?;
    let now = cluster.node(node).await?;
    for key in foreign {
        ensure!(now.labels().contains_key(key), "{key} of another owner was removed");
    }
    cluster.label(node, &foreign.map(|key| (key, None))).await?;
    let events = cluster.node_events(node, reasons::events::LABELS_CHANGED).await?;
    ensure!(!events.is_empty(), "no event reports the changed labels");
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn skip_node_freezes_labels_until_removed() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let (skipped, other) = (cluster.first(), cluster.second());
    let forged = "cpu-model.node.kubevirt.io/Forged";
    for unfreeze in [None, Some("false")] {
        cluster
            .annotate(skipped, &[(annotations::SKIP_NODE, Some("True"))])
            .await?;
        cluster
            .until_condition(skipped, "Labelled", "False", "SkippedByAnnotation")
            .await?;
        for node in [skipped, other] {
            cluster
                .label(node, &[(forged, Some("true")), (keys::SCHEDULABLE, Some("false"))])
                .await?;
        }
        // The agent of the other node has observed the same change and reverted it. The agent of the skipped node has
        // corrected `schedulable`, so it has observed the forged label too.
        cluster.until_label(other, forged, None).await?;
        cluster.until_label(skipped, keys::SCHEDULABLE, Some("true")).await?;
        ensure!(
            cluster.cpu_labels(skipped).await?.contains_key(forged),
            "a frozen label was removed"
        );
        cluster.annotate(skipped, &[(annotations::SKIP_NODE, unfreeze)]).await?;
        cluster.until_label(skipped, forged, None).await?;
        cluster
            .until_condition(skipped, "Labelled", "True", "LabelsCurrent")
            .await?;
    }
    cluster.annotate(skipped, &[(annotations::SKIP_NODE, None)]).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn invalid_mask_is_refused_and_previous_mask_stays() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let masked = format!("{}avx2", keys::CPU_FEATURE);
    cluster
        .annotate(node, &[(annotations::MASK_CPU_FEATURES, Some("avx2"))])
        .await?;
    cluster.until_label(node, &masked, None).await?;
    cluster
        .annotate(node, &[(annotations::MASK_CPU_FEATURES, Some("avx2 a/b"))])
        .await?;
    let refused = cluster
        .until_condition(node, "ConfigurationAccepted", "False", "Refused")
        .await?;
    let status = refused.status.context("no status")?;
    ensure!(
        status.conditions.iter().any(|c| c.message.contains("a/b")),
        "{:?}",
        status.conditions
    );
    assert_eq!(status.masked_features, ["avx2"]);
    cluster
        .annotate(node, &[(annotations::MASK_CPU_FEATURES, None)])
        .await?;
    cluster.until_label(node, &masked, Some("true")).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn hypervisor_reports_all_facts_and_is_recreated_if_deleted() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.first();
    let before = cluster.hypervisor(node).await?;
    let status = before.status.clone().context("no status")?;
    let facts = status.facts.context("no facts")?;
    let virtualization = facts.virtualization.clone().context("no virtualization")?;
    ensure!(
        virtualization.models.len() > 50,
        "{} models",
        virtualization.models.len()
    );
    ensure!(
        virtualization.models.iter().any(|model| !model.blockers.is_empty()),
        "no reasons for unusable models"
    );
    ensure!(!virtualization.features.is_empty() && !virtualization.machine_types.is_empty());
    let owner = before.owner_references().first().context("no owner")?;
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Node", node));
    assert_eq!(
        agent::condition(&before, "KVMAvailable"),
        ("False".into(), "NoKVMDevice".into())
    );
    assert_eq!(
        agent::condition(&before, "Ready"),
        ("True".into(), "ReadyByEmulation".into())
    );

    cluster.delete(&["hypervisor", node])?;
    let uid = before.uid();
    let again = until(
        Api::all(cluster.client.clone()),
        node,
        "a new Hypervisor with facts",
        |found: &Hypervisor| found.uid() != uid && found.status.as_ref().is_some_and(|status| status.facts.is_some()),
    )
    .await?;
    assert_eq!(agent::condition(&again, "Ready").0, "True");

    let table = cluster.kubectl(&["get", "hv", "-o", "wide"])?;
    for text in [
        "VENDOR",
        "HOST-MODEL",
        "USABLE-MODELS",
        "KVM",
        "READY",
        node,
        "ReadyByEmulation",
    ] {
        ensure!(table.contains(text), "{text} is not in\n{table}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn labels_and_hypervisor_come_back_with_a_node_that_was_deleted() -> Result<()> {
    let cluster = Cluster::connect().await?;
    cluster.reset().await?;
    let node = cluster.second();
    let before = cluster.cpu_labels(node).await?;
    let uid = cluster.node(node).await?.uid();
    cluster.delete(&["node", node])?;
    cluster.embedded("restart", &[&format!("kubelet.{node}")])?;
    until_some("all labels on the new node", || async {
        let Ok(found) = cluster.node(node).await else {
            return Ok(None);
        };
        Ok((found.uid() != uid && cluster.cpu_labels(node).await? == before).then_some(()))
    })
    .await?;
    let new: Node = cluster.node(node).await?;
    until_some("a Hypervisor owned by the new node", || async {
        let Ok(found) = cluster.hypervisor(node).await else {
            return Ok(None);
        };
        Ok(found
            .owner_references()
            .iter()
            .any(|owner| Some(&owner.uid) == new.uid().as_ref())
            .then_some(()))
    })
    .await?;
    cluster.until_label(node, keys::SCHEDULABLE, Some("true")).await?;
    Ok(())
}
