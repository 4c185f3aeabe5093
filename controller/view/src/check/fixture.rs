//! A cluster without a misconfiguration, for tests.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::Pod, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{NEEDED_RIGHTS, Right, Survey};
use crate::{plan::fixture::cluster, snapshot::Snapshot};

/// Time at which the objects were read.
pub(super) const AT: &str = "2026-11-27T14:02:11Z";

/// Certificate of an authority that is valid until 2026-11-29T12:00:00Z.
pub(super) const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBQzCB66ADAgECAgECMAoGCCqGSM49BAMCMBIxEDAOBgNVBAMMB2RyeWRvY2sw
HhcNMjYxMTI3MTIwMDAwWhcNMjYxMTI5MTIwMDAwWjASMRAwDgYDVQQDDAdkcnlk
b2NrMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESNeGHtY1iK5e5Dn7U2s5EX2p
f1Ul0yyzglACUI8Wdcw7V5NrsOB7kauqKbfIWSQQM5kPGYtL1I6r0pKk3EoxvaMy
MDAwDwYDVR0TAQH/BAUwAwEB/zAdBgNVHQ4EFgQUfAeqdNlIVorPH6hJhXt8mpdR
XdkwCgYIKoZIzj0EAwIDRwAwRAIgF01uUKFnZEvopEG4UZQV6aPZwGIFDdkteVdI
f1k8wiwCIG8dgGAQrwaADQm9Qq7S5ojfJrI8Rab6KCeaS317K3IB
-----END CERTIFICATE-----
";

/// Returns an object from its JSON.
pub(super) fn of<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// Returns one object of a list for changes.
pub(super) fn changed<T: Clone>(all: &mut [Arc<T>], index: usize) -> &mut T {
    Arc::make_mut(&mut all[index])
}

fn own_pod(component: &str, node: &str) -> Pod {
    of(json!({
        "metadata": {"namespace": "drydock", "name": format!("{component}-{node}"), "labels": own(component)},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn own(component: &str) -> Value {
    json!({"app.kubernetes.io/name": component, "app.kubernetes.io/part-of": "drydock"})
}

fn lease<T: DeserializeOwned>(namespace: &str, name: &str) -> T {
    of(json!({"metadata": {"namespace": namespace, "name": name},
        "spec": {"holderIdentity": name, "renewTime": "2026-11-27T14:02:05.000000Z"}}))
}

/// Returns a pod template with one container and its image.
fn template(component: &str, variables: &Value) -> Value {
    let image = format!("localhost/drydock/{}:v1", component.trim_start_matches("drydock-"));
    json!({"metadata": {"labels": own(component)}, "spec": {
        "nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": component, "image": image, "env": variables}]}})
}

fn webhook(name: &str) -> Value {
    use serde_json::to_value;
    let bundle = to_value(k8s_openapi::ByteString(AUTHORITY.into())).unwrap();
    json!({"name": name, "clientConfig": {"caBundle": bundle}, "admissionReviewVersions": ["v1"],
        "sideEffects": "None", "namespaceSelector": {}, "objectSelector": {}})
}

fn api_service<T: DeserializeOwned>(version: &str) -> T {
    of(
        json!({"metadata": {"name": format!("{version}.subresources.kubevirt.io")},
        "spec": {"groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": {"namespace": "drydock", "name": "drydock-webhooks", "port": 8444}},
        "status": {"conditions": [{"type": "Available", "status": "True"}]}}),
    )
}

/// Makes a node and its Hypervisor report that they are ready.
fn make_ready(snapshot: &mut Snapshot, index: usize) {
    let node = changed(&mut snapshot.nodes, index);
    node.metadata
        .labels
        .get_or_insert_default()
        .insert("kubernetes.io/os".into(), "linux".into());
    let status = node.status.get_or_insert_default();
    status.conditions = of(json!([{"type": "Ready", "status": "True"}]));
    status.node_info = of(
        json!({"architecture": "amd64", "bootID": "", "containerRuntimeVersion": "containerd://2.1.4",
        "kernelVersion": "6.12", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3", "machineID": "",
        "operatingSystem": "linux", "osImage": "", "systemUUID": ""}),
    );
    let conditions = ["Ready", "Inspected", "Labelled", "GuestNetwork", "KVMAvailable"].map(|type_| {
        json!({"type": type_, "status": "True", "reason": "AsExpected", "message": "", "lastTransitionTime": AT})
    });
    let status = changed(&mut snapshot.hypervisors, index).status.get_or_insert_default();
    status.conditions = of(json!(conditions));
    status.agent_version = "0.1.0".into();
}

/// Returns a served CustomResourceDefinition.
fn definition((name, version): (&str, &str)) -> CustomResourceDefinition {
    of(json!({"metadata": {"name": name},
        "spec": {"group": "", "names": {"kind": "", "plural": ""}, "scope": "",
            "versions": [{"name": version, "served": true, "storage": true}]},
        "status": {"conditions": [{"type": "Established", "status": "True"}]}}))
}

/// Returns a cluster of three nodes whose guests can be migrated.
pub(super) fn healthy() -> Survey {
    let mut snapshot = cluster();
    let unmovable = ["cache", "scratch"];
    let is_left = |name: Option<&String>| name.is_some_and(|name| !unmovable.iter().any(|other| name.ends_with(other)));
    snapshot
        .instances
        .retain(|instance| is_left(instance.metadata.name.as_ref()));
    snapshot.pods.retain(|pod| is_left(pod.metadata.name.as_ref()));
    for index in 0..snapshot.nodes.len() {
        make_ready(&mut snapshot, index);
    }
    snapshot
        .pods
        .extend(["a", "b", "c"].map(|node| Arc::new(own_pod("drydock-agent", node))));
    snapshot
        .pods
        .extend(["a", "b"].map(|node| Arc::new(own_pod("drydock-controller", node))));
    Survey {
        snapshot,
        version: Some("v1.36.3".into()),
        deployments: vec![of(json!({
            "metadata": {"namespace": "drydock", "name": "drydock-controller", "labels": own("drydock-controller")},
            "spec": {"replicas": 2, "selector": {}, "template": template("drydock-controller",
                &json!([{"name": "DRYDOCK_LAUNCHER_IMAGE", "value": "localhost/drydock/launcher:v1"}]))},
            "status": {"readyReplicas": 2},
        }))],
        daemon_sets: vec![of(json!({
            "metadata": {"namespace": "drydock", "name": "drydock-agent", "labels": own("drydock-agent")},
            "spec": {"selector": {}, "template": template("drydock-agent", &json!([]))},
        }))],
        mutating: vec![of(json!({"metadata": {"name": "drydock"},
            "webhooks": super::webhooks::MUTATING.map(webhook)}))],
        validating: vec![of(json!({"metadata": {"name": "drydock"},
            "webhooks": super::webhooks::VALIDATING.map(webhook)}))],
        policies: super::kubernetes::POLICIES
            .map(|name| of(json!({"metadata": {"name": name}})))
            .into(),
        policy_bindings: super::kubernetes::POLICIES
            .map(|name| of(json!({"metadata": {"name": name}, "spec": {"policyName": name}})))
            .into(),
        api_services: vec![api_service("v1"), api_service("v1alpha3")],
        definitions: super::DEFINITIONS.map(definition).into(),
        leases: vec![
            lease("drydock", "drydock-controller"),
            lease("drydock-nodes", "a"),
            lease("drydock-nodes", "b"),
            lease("drydock-nodes", "c"),
            lease("kube-node-lease", "a"),
        ],
        namespaces: vec![
            of(
                json!({"metadata": {"name": "drydock", "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}),
            ),
            of(json!({"metadata": {"name": "shop", "labels": {"kubernetes.io/metadata.name": "shop"}}})),
        ],
        endpoints: vec![of(
            json!({"metadata": {"namespace": "drydock", "name": "drydock-webhooks-x"}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]}),
        )],
        rights: NEEDED_RIGHTS
            .map(|(verb, resource, group)| Right {
                verb,
                resource,
                group,
                allowed: true,
            })
            .into(),
        ..Survey::default()
    }
}
