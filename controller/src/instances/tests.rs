use drydock_api::kubevirt;
use drydock_core::launcher_pod::LAST_APPLIED;
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::ResourceExt;
use serde_json::json;

use super::*;

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

fn instance(name: &str, uid: &str, set: Option<&str>) -> VirtualMachineInstance {
    let owners = set.map(|set| {
        json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "name": "web",
            "uid": set, "controller": true}])
    });
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "default", "uid": uid, "ownerReferences": owners},
        "spec": {"hostname": "big"},
        "status": {"phase": "Running", "nodeName": "n1", "qosClass": "Burstable"},
    }))
    .unwrap()
}

fn shown(instances: &Instances, old: Option<VirtualMachineInstance>, new: Option<VirtualMachineInstance>) {
    let key = Key::of(new.as_ref().or(old.as_ref()).unwrap());
    let change = CacheChange::Object {
        key,
        old: old.map(Arc::new),
        new: new.map(Arc::new),
    };
    instances.objects.observe(&change);
}

fn names(instances: &Instances, set: &str) -> Vec<String> {
    instances
        .of_set(set)
        .iter()
        .map(|instance| instance.name_any())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn created_object_is_assumed_until_shown_or_expired() {
    let instances = Instances::filled([instance("a", "u1", Some("s1"))]);
    instances.created(instance("b", "u2", Some("s1")));
    instances.created(instance("c", "u3", None));
    assert!(instances.get(&key("b")).is_some() && instances.get(&key("c")).is_some());
    assert_eq!(names(&instances, "s1"), ["a", "b"]);
    assert_eq!(names(&instances, "s2"), [""; 0]);
    // The watch has shown the instance, and it was deleted soon after.
    shown(&instances, None, Some(instance("b", "u2", Some("s1"))));
    shown(&instances, Some(instance("b", "u2", Some("s1"))), None);
    assert!(instances.get(&key("b")).is_none());
    assert_eq!(names(&instances, "s1"), ["a"]);
    tokio::time::sleep(SHOWN_WITHIN + Duration::from_millis(1)).await;
    assert!(instances.get(&key("c")).is_none());
    assert!(instances.get(&key("a")).is_some());
}

#[tokio::test(start_paused = true)]
async fn unfinished_instances_are_indexed_by_namespace() {
    let in_phase = |namespace: &str, name: &str, phase: Option<&str>| {
        let mut instance = instance(name, &format!("uid-{name}"), None);
        instance.metadata.namespace = Some(namespace.into());
        let status = instance.status.as_mut().unwrap();
        status.phase = phase.map(|phase| serde_json::from_value(json!(phase)).unwrap());
        instance
    };
    let instances = Instances::filled([
        in_phase("b", "new", None),
        in_phase("b", "running", Some("Running")),
        in_phase("b", "succeeded", Some("Succeeded")),
        in_phase("b", "failed", Some("Failed")),
        in_phase("b-2", "other", Some("Scheduling")),
        in_phase("a", "first", Some("Pending")),
    ]);
    let shown_as = |keys: Vec<Key>| keys.iter().map(Key::to_string).collect::<Vec<_>>();
    let all = |instances: &Instances| shown_as(instances.unfinished_after(None, 100));
    assert_eq!(all(&instances), ["a/first", "b/new", "b/running", "b-2/other"]);
    assert_eq!(
        instances.unfinished_in("b"),
        [Key::namespaced("b", "new"), Key::namespaced("b", "running")]
    );
    assert_eq!(instances.unfinished_in("c"), []);
    // One instance ends, another one is deleted, and the watch does not show a new one yet.
    shown(
        &instances,
        Some(in_phase("b", "running", Some("Running"))),
        Some(in_phase("b", "running", Some("Failed"))),
    );
    shown(&instances, Some(in_phase("a", "first", Some("Pending"))), None);
    instances.created(in_phase("a", "second", None));
    assert_eq!(all(&instances), ["a/second", "b/new", "b-2/other"]);
    // An ended instance that is being deleted may have to wait for its node.
    let mut going = in_phase("b", "running", Some("Failed"));
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-05-01T10:00:00Z")).unwrap();
    shown(
        &instances,
        Some(in_phase("b", "running", Some("Failed"))),
        Some(going.clone()),
    );
    assert_eq!(all(&instances), ["a/second", "b/new", "b/running", "b-2/other"]);
    shown(&instances, Some(going), None);
    assert_eq!(all(&instances), ["a/second", "b/new", "b-2/other"]);
}

#[test]
fn replica_set_is_enqueued_when_instances_join_or_leave() {
    let (old, new) = (instance("a", "u1", Some("s1")), instance("a", "u1", None));
    let change = |old: Option<&VirtualMachineInstance>, new: Option<&VirtualMachineInstance>| {
        sets_of_change(&CacheChange::Object {
            key: key("a"),
            old: old.cloned().map(Arc::new),
            new: new.cloned().map(Arc::new),
        })
    };
    assert_eq!(change(None, Some(&old)), [key("web")]);
    assert_eq!(change(Some(&old), Some(&old)), [key("web")]);
    assert_eq!(change(Some(&old), Some(&new)), [key("web")]);
    assert_eq!(change(None, Some(&new)), []);
}

#[test]
fn managed_fields_and_foreign_annotations_are_pruned() {
    let mut kept = instance("a", "u1", None);
    kept.metadata.managed_fields = Some(Vec::new());
    kept.metadata.annotations = Some(
        [LAST_APPLIED, "drydock.dev/template"]
            .map(|key| (key.into(), "{}".into()))
            .into(),
    );
    prune(&mut kept);
    assert_eq!(kept.metadata.managed_fields, None);
    let annotations = kept.metadata.annotations.unwrap();
    assert_eq!(annotations.into_keys().collect::<Vec<_>>(), ["drydock.dev/template"]);
    // A cache may have a hundred thousand instances.
    assert!(
        size_of::<VirtualMachineInstance>() < 4096,
        "{}",
        size_of::<VirtualMachineInstance>()
    );
}

#[test]
fn object_kept_as_text_loses_nothing() {
    fn same<K: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
        object: &serde_json::Value,
    ) {
        let object: K = serde_json::from_value(object.clone()).unwrap();
        let text = serde_json::to_vec(&object).unwrap();
        assert_eq!(serde_json::from_slice::<K>(&text).unwrap(), object);
    }
    let metadata = json!({
        "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "7", "generation": 1, "finalizers": ["f"],
        "creationTimestamp": "2026-05-01T10:00:00Z", "deletionTimestamp": "2026-05-01T11:00:00Z", "labels": {"l": ""},
        "annotations": {}, "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": true}],
    });
    let spec = json!({
        "evictionStrategy": "LiveMigrate", "terminationGracePeriodSeconds": 0, "hostname": "h", "nodeSelector": {"k": "v"},
        "domain": {
            "cpu": {"model": "host-model", "cores": 2, "features": [{"name": "avx2", "policy": "require"}]},
            "memory": {"guest": "96Mi"}, "resources": {"requests": {"memory": "0.1Gi", "cpu": 1}},
            "devices": {
                "disks": [{"name": "d", "disk": {"bus": "virtio"}, "bootOrder": 1}, {"name": "c", "cdrom": {}}],
                "interfaces": [{"name": "default", "masquerade": {}, "ports": [{"port": 80}]}], "rng": {},
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [
            {"name": "d", "containerDisk": {"image": "i"}}, {"name": "c", "cloudInitNoCloud": {"userDataBase64": "AA=="}},
            {"name": "p", "persistentVolumeClaim": {"claimName": "p"}}, {"name": "e", "emptyDisk": {"capacity": "1Gi"}},
        ],
        "livenessProbe": {"httpGet": {"port": 80, "path": "/"}, "periodSeconds": 3},
        "affinity": {"podAntiAffinity": {}}, "tolerations": [{"operator": "Exists"}],
    });
    same::<VirtualMachineInstance>(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata, "spec": spec,
        "status": {
            "phase": "Running", "nodeName": "n", "activePods": {"u": "n"}, "evacuationNodeName": "n",
            "evacuation": {"requestedAt": "2026-05-01T10:00:00Z", "requestedBy": "Cordon"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-01T10:00:00Z", "lastProbeTime": null}],
            "drydock": {"podUID": "u", "guestCPU": {"model": "EPYC", "vendor": "AMD", "required": ["a"], "disabled": []},
                "images": [{"name": "d", "format": "qcow2", "virtualSize": 1}]},
            "interfaces": [{"name": "default", "ipAddress": "10.0.0.1", "ipAddresses": ["10.0.0.1"]}],
            "phaseTransitionTimestamps": [{"phase": "Running", "phaseTransitionTimestamp": "2026-05-01T10:00:00Z"}],
            "migrationState": {"migrationUid": "m", "completed": true, "startTimestamp": "2026-05-01T10:00:00Z", "mode": "PreCopy"},
        },
    }));
    same::<kubevirt::VirtualMachine>(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": metadata,
        "spec": {"runStrategy": "Always", "template": {"metadata": {"labels": {"l": "m"}}, "spec": spec}},
        "status": {"printableStatus": "Running", "ready": true, "created": true},
    }));
    same::<Pod>(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n", "containers": []},
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "startTime": "2026-05-01T10:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-05-01T10:00:00Z"}],
            "containerStatuses": [{"name": "compute", "image": "i", "imageID": "j", "ready": false, "restartCount": 0, "state":
                {"terminated": {"exitCode": 137, "message": "{}", "finishedAt": "2026-05-01T10:00:00Z"}}}],
        },
    }));
    same::<PodDisruptionBudget>(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
        "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"l": "x"}, "matchExpressions": []}},
    }));
}
