//! A real API server accepts the pods of guests without warnings, even in a namespace that enforces the restricted Pod
//! Security Standard.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_core::{
    configuration::Configuration,
    launcher_pod::{ClaimMode, PodInput, TargetPodInput, pod, target_pod},
    minimum_cpu::Minimum,
    placement::requirements,
};
use drydock_tests::Cluster;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

const NAMESPACE: &str = "drydock-test-restricted";

/// Creates a namespace that enforces the restricted Pod Security Standard.
async fn restricted(client: &Client) -> Result<Api<Pod>> {
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {
        "name": NAMESPACE,
        "labels": {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "latest"},
    }}))?;
    match Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
    {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        result => drop(result?),
    }
    Ok(Api::namespaced(client.clone(), NAMESPACE))
}

fn instance(spec: &Value) -> Result<VirtualMachineInstance> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "tried.by-a-test", "namespace": NAMESPACE, "uid": "3b0f1c6e-0000-4000-8000-000000000001"},
        "spec": spec,
    }))?)
}

fn small() -> Value {
    json!({"domain": {"memory": {"guest": "64Mi"}}})
}

/// Returns a spec that contains every field with an effect on the pod.
fn everything() -> Value {
    json!({
        "architecture": "amd64",
        "nodeSelector": {"zone": "a"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["4"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            {},
        ]}}},
        "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "x"}}}],
        "schedulerName": "own-scheduler",
        "hostname": "host", "subdomain": "sub",
        "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"], "searches": ["example"]},
        "terminationGracePeriodSeconds": 0,
        "livenessProbe": {"tcpSocket": {"port": 22}, "initialDelaySeconds": 120, "periodSeconds": 3},
        "readinessProbe": {"httpGet": {"port": "http", "path": "/ok"}, "failureThreshold": 4},
        "domain": {
            "cpu": {"cores": 2, "model": "Nehalem-v1", "features": [
                {"name": "avx2"}, {"name": "sse2"}, {"name": "svm", "policy": "forbid"}, {"name": "nx", "policy": "forbid"}]},
            "memory": {"guest": "256Mi"},
            "machine": {"type": "pc-q35-10.0"},
            "resources": {"requests": {"memory": "200Mi", "cpu": "300m"}, "limits": {"memory": "256Mi", "cpu": "1"}},
            "devices": {"interfaces": [{"name": "default", "ports": [{"name": "http", "port": 80}, {"port": 53, "protocol": "UDP"}]}]},
        },
        "volumes": [
            {"name": "image", "containerDisk": {"image": "registry.example/disk", "imagePullSecret": "pull"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "files", "readOnly": true}},
            {"name": "raw", "dataVolume": {"name": "blocks"}},
            {"name": "run", "emptyDisk": {"capacity": "1Gi"}},
            {"name": "disks", "persistentVolumeClaim": {"claimName": "files"}},
            {"name": "init", "cloudInitNoCloud": {"secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "network"}}},
        ],
    })
}

/// Returns the pod of an instance, and the target pod of a migration of it.
fn pods(spec: &Value, emulation: bool) -> Result<[Pod; 2]> {
    let instance = instance(spec)?;
    let needs = requirements(&instance.spec, &Configuration::default(), &Minimum::default());
    let claims = BTreeMap::from([
        ("files".to_owned(), ClaimMode::Filesystem),
        ("blocks".to_owned(), ClaimMode::Block),
    ]);
    let input = PodInput {
        instance: &instance,
        image: "localhost/drydock/launcher",
        requirements: &needs,
        claims: &claims,
        suffix: "abcde",
        host_uuid: "00000000-0000-4000-8000-000000000002",
        emulation,
        arriving: None,
    };
    let migration = TargetPodInput {
        uid: "3b0f1c6e-0000-4000-8000-000000000003",
        rejected: 0,
        name: "move",
        by_manifest: false,
        avoided: &[],
        leaving: &[],
    };
    Ok([pod(&input), target_pod(&input, migration)])
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn the_restricted_standard_admits_the_pods_of_guests() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let pods_of_namespace = restricted(&cluster.client).await?;
    let tried = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for spec in [small(), everything()] {
        for wanted in pods(&spec, true)? {
            let made = pods_of_namespace
                .create(&tried, &wanted)
                .await
                .with_context(|| spec.to_string())?;
            // An API server silently drops a field that it does not know.
            let (wanted, made) = (serde_json::to_value(&wanted.spec)?, serde_json::to_value(&made.spec)?);
            let lost = lost(&wanted, &made, "spec");
            ensure!(lost.is_empty(), "{lost:?}");
        }
    }
    // Checks that the namespace rejects pods that violate the standard.
    let [mut refused, _] = pods(&small(), false)?;
    if let Some(spec) = &mut refused.spec {
        spec.host_pid = Some(true);
    }
    let result = pods_of_namespace.create(&tried, &refused).await;
    ensure!(
        matches!(&result, Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("hostPID")),
        "{result:?}"
    );
    Api::<Namespace>::all(cluster.client.clone())
        .delete(NAMESPACE, &DeleteParams::default())
        .await?;
    Ok(())
}

/// Returns the paths of requested values that are missing or different in the created object.
fn lost(wanted: &Value, made: &Value, at: &str) -> Vec<String> {
    match (wanted, made) {
        (Value::Object(wanted), Value::Object(made)) => wanted
            .iter()
            .flat_map(|(key, value)| match made.get(key) {
                Some(there) => lost(value, there, &format!("{at}.{key}")),
                // The API server may omit empty objects.
                None if value.as_object().is_some_and(serde_json::Map::is_empty) => Vec::new(),
                None => vec![format!("{at}.{key}")],
            })
            .collect(),
        (Value::Array(wanted), Value::Array(made)) if wanted.len() <= made.len() => {
            let pairs = wanted.iter().zip(made).enumerate();
            pairs
                .flat_map(|(index, (wanted, made))| lost(wanted, made, &format!("{at}[{index}]")))
                .collect()
        }
        // The API server normalizes quantities.
        _ if at.contains(".resources.") || wanted == made => Vec::new(),
        _ => vec![at.to_owned()],
    }
}

#[test]
fn lost_values_are_noticed() {
    let wanted = json!({"a": [1, {"b": {}}], "c": "d", "e": {"f": true}});
    assert_eq!(
        lost(
            &wanted,
            &json!({"a": [1, {}, 3], "c": "d", "e": {"f": true}, "g": 1}),
            "x"
        ),
        [""; 0]
    );
    assert_eq!(
        lost(&wanted, &json!({"a": [1], "c": "e", "e": {}}), "x"),
        ["x.a", "x.c", "x.e.f"]
    );
}
