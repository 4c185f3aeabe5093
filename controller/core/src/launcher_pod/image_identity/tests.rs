//! Which references are pinned to which image, and which containerDisks get a probe.

use std::slice;

use serde_json::{Value, json};

use super::*;
use crate::launcher_pod::MIGRATION_UID;

const A: &str = "sha256:aaaa";
const B: &str = "sha256:bbbb";

fn disk(image: &str) -> ContainerDisk {
    serde_json::from_value(json!({"image": image})).unwrap()
}

#[test]
fn image_tag_is_pinned_to_the_digest_of_the_repository() {
    let named = format!("registry.example/disk@{A}");
    for (manifest, image_id, expected) in [
        // The manifest's own digest takes precedence.
        (named.as_str(), None, Some(named.clone())),
        (&named, Some(format!("registry.example/disk@{B}")), Some(named.clone())),
        ("registry.example/disk:1", None, None),
        (
            "registry.example/disk:1",
            Some(format!("registry.example/disk@{B}")),
            Some(format!("registry.example/disk@{B}")),
        ),
        (
            "registry.example/disk",
            Some(format!("registry.example/disk@{B}")),
            Some(format!("registry.example/disk@{B}")),
        ),
        // A port is not a tag.
        (
            "localhost:5000/a/disk",
            Some(format!("localhost:5000/a/disk@{B}")),
            Some(format!("localhost:5000/a/disk@{B}")),
        ),
        (
            "localhost:5000/a/disk:1",
            Some(format!("localhost:5000/a/disk@{B}")),
            Some(format!("localhost:5000/a/disk@{B}")),
        ),
        (
            "localhost/disk:1",
            Some(format!("localhost/disk@{B}")),
            Some(format!("localhost/disk@{B}")),
        ),
        // The runtime fills in what a manifest omits.
        (
            "disk:1",
            Some(format!("docker.io/library/disk@{B}")),
            Some(format!("disk@{B}")),
        ),
        (
            "a/disk:1",
            Some(format!("docker.io/a/disk@{B}")),
            Some(format!("a/disk@{B}")),
        ),
        // The same image in another repository need not exist in this one.
        (
            "registry.example/disk:1",
            Some(format!("registry.example/copy@{B}")),
            None,
        ),
        (
            "registry.example/disk:1",
            Some(format!("mirror.example/disk@{B}")),
            None,
        ),
        ("disk:1", Some(format!("docker.io/a/disk@{B}")), None),
        // An image that was never in a registry.
        ("registry.example/disk:1", Some(B.to_owned()), None),
    ] {
        assert_eq!(
            pinned(&disk(manifest), image_id.as_deref()),
            expected,
            "{manifest} {image_id:?}"
        );
    }
}

/// Returns a guest in pod `p` with a cloud-init disk and these containerDisks: volume, image, recorded ID.
fn guest(disks: &[(&str, &str, Option<&str>)]) -> VirtualMachineInstance {
    let mut volumes = vec![json!({"name": "init", "cloudInitNoCloud": {"userData": "x"}})];
    volumes.extend(
        disks
            .iter()
            .map(|(name, image, _)| json!({"name": name, "containerDisk": {"image": image}})),
    );
    let records: Vec<_> = disks
        .iter()
        .map(|(name, _, id)| json!({"name": name, "imageId": id, "virtualSize": 1, "format": "raw"}))
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default", "uid": "u"},
        "spec": {"domain": {"devices": {}}, "volumes": volumes},
        "status": {"phase": "Running", "drydock": {"podUID": "p", "images": records}},
    }))
    .unwrap()
}

fn pod(value: &Value) -> Pod {
    let mut pod = json!({"metadata": {"name": "virt-launcher-vm", "uid": "p"}, "spec": {"containers": []}});
    for (part, value) in value.as_object().unwrap() {
        for (name, value) in value.as_object().unwrap() {
            pod[part][name] = value.clone();
        }
    }
    serde_json::from_value(pod).unwrap()
}

fn images(volumes: &[(&str, &str)]) -> Value {
    let volumes: Vec<_> = volumes
        .iter()
        .map(|(name, reference)| json!({"name": name, "image": {"reference": reference}}))
        .collect();
    json!(volumes)
}

#[test]
fn layers_go_alone_only_to_the_very_same_images() {
    let a = format!("r.example/a@{A}");
    let b = format!("r.example/b@{B}");
    let known = guest(&[("one", "r.example/a:1", Some(&a)), ("disks", &b, None)]);
    let to = |guest: &VirtualMachineInstance, volumes: &[(&str, &str)]| {
        layers_only(guest, &pod(&json!({"spec": {"volumes": images(volumes)}})))
    };
    // A guest's volume with the name of one of the pod's own volumes has another name in the pod.
    assert!(to(&known, &[("one", &a), ("volume-disks", &b)]));
    assert!(
        !to(&known, &[("one", "r.example/a:1"), ("volume-disks", &b)]),
        "made before it was known"
    );
    assert!(!to(&known, &[("one", &b), ("volume-disks", &b)]), "another image");
    assert!(!to(&known, &[("one", &a)]), "one is missing");
    let unknown = guest(&[("one", "r.example/a:1", None), ("disks", &b, None)]);
    assert!(
        !to(&unknown, &[("one", &a), ("volume-disks", &b)]),
        "nobody knows what it began with"
    );
    assert!(!to(&unknown, &[("one", "r.example/a:1"), ("volume-disks", &b)]));
    assert!(to(&guest(&[]), &[]), "without images there is nothing to differ");
}

#[test]
fn image_of_tag_is_probed_once_where_guest_started() {
    let probes = |guest: &VirtualMachineInstance, of: &Value| {
        let probes = wanted_image_probes(guest, &pod(of));
        let names = probes.into_iter().map(|probe| probe.name);
        names.collect::<Vec<_>>()
    };
    let here = json!({});
    let digest = format!("r.example/b@{A}");
    let tags = guest(&[
        ("one", "r.example/a:1", None),
        ("two", &digest, None),
        ("three", "r.example/c", None),
    ]);
    assert_eq!(probes(&tags, &here), ["image-digest-probe-0", "image-digest-probe-2"]);
    assert_eq!(
        probes(&guest(&[("two", &digest, None)]), &here),
        [""; 0],
        "its name has the digest"
    );
    assert_eq!(
        probes(&guest(&[("one", "r.example/a:1", Some(A))]), &here),
        [""; 0],
        "it is known"
    );
    assert_eq!(probes(&guest(&[]), &here), [""; 0]);
    let cases = [
        (
            json!({"spec": {"ephemeralContainers": [{"name": "image-digest-probe-0"}]}}),
            "they are there",
        ),
        (
            json!({"metadata": {"labels": {MIGRATION_UID: "m"}}}),
            "it has moved there",
        ),
        (json!({"metadata": {"uid": "other"}}), "it is not known to run there"),
    ];
    for (of, why) in &cases {
        assert_eq!(probes(&tags, of), [""; 0], "{why}");
    }
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debugger-x"}]}});
    assert_eq!(probes(&tags, &debugger).len(), 2, "somebody else's");
}

#[test]
fn probe_runs_the_image_and_sees_the_guests_disk() {
    let mut guest = guest(&[
        ("run", "r.example/a:1", None),
        ("launcher-image", "r.example/b:1", None),
    ]);
    guest.spec.volumes[1].container_disk.as_mut().unwrap().path = Some("/disk/b.img".into());
    let probes = wanted_image_probes(&guest, &pod(&json!({})));
    let probe = &probes[0];
    assert_eq!(probe.image.as_deref(), Some("r.example/a:1"));
    let mounts: Vec<_> = probe.volume_mounts.iter().flatten().collect();
    let mounts: Vec<_> = mounts
        .iter()
        .map(|mount| (mount.name.as_str(), mount.mount_path.as_str()))
        .collect();
    // The guest has volumes with both names of the pod's own volumes.
    assert_eq!(mounts, [("volume-run", "/images/run"), ("launcher-1", LAUNCHER_FOLDER)]);
    let command = probe.command.clone().unwrap();
    assert_eq!(
        command[command.len() - 3..],
        ["same-disk", "/images/run", "/disk/b.img"]
    );
    assert_eq!(probe.security_context, Some(security::container()));
    assert_eq!(
        probes[1].command.as_ref().unwrap().last().unwrap(),
        "/images/launcher-image"
    );
}

/// Returns a pod with a probe of volume `one` in that state.
fn with_probe_status(state: &Value, image_id: &str) -> Pod {
    pod(&json!({
        "spec": {
            "volumes": images(&[("one", "r.example/a:1"), ("two", &format!("r.example/b@{B}"))]),
            "ephemeralContainers": [
                {"name": "debugger", "volumeMounts": [{"name": "one", "mountPath": "/images/one"}]},
                {"name": "image-digest-probe-0", "volumeMounts": [
                    {"name": "launcher-image", "mountPath": LAUNCHER_FOLDER}, {"name": "one", "mountPath": "/images/one"}]},
            ],
        },
        "status": {"ephemeralContainerStatuses": [
            {"name": "debugger", "image": "", "imageID": "debugger@sha256:dddd", "ready": false, "restartCount": 0,
             "state": {"terminated": {"exitCode": 0}}},
            {"name": "image-digest-probe-0", "image": "", "imageID": image_id, "ready": false, "restartCount": 0, "state": state},
        ]},
    }))
}

#[test]
fn image_probe_counts_once_succeeded() {
    let instance = guest(&[
        ("one", "r.example/a:1", None),
        ("two", &format!("r.example/b@{B}"), None),
    ]);
    let ids = |state: &Value, image_id: &str| image_ids(&instance.spec, &with_probe_status(state, image_id));
    let by_name = ("two".to_owned(), format!("r.example/b@{B}"));
    let a = format!("r.example/a@{A}");
    let proved = json!({"terminated": {"exitCode": 0}});
    assert_eq!(
        ids(&proved, &a).into_iter().collect::<Vec<_>>(),
        [("one".to_owned(), a.clone()), by_name.clone()]
    );
    for state in [
        json!({"terminated": {"exitCode": 1}}),
        json!({"running": {}}),
        json!({"waiting": {"reason": "ErrImagePull"}}),
        Value::Null,
    ] {
        assert_eq!(
            ids(&state, &a).into_iter().collect::<Vec<_>>(),
            slice::from_ref(&by_name),
            "{state}"
        );
    }
    assert_eq!(
        ids(&proved, "").into_iter().collect::<Vec<_>>(),
        [by_name],
        "the kubelet reports none"
    );
}

#[test]
fn recorded_image_ids_stay_and_unknown_ids_are_added() {
    let instance = guest(&[("one", "a:1", None), ("two", "b:1", Some(B))]);
    let before = instance.status.unwrap().drydock.unwrap().images;
    let ids = [("one", A), ("two", A)].map(|(name, id)| (name.to_owned(), id.to_owned()));
    let after = recorded(&before, &BTreeMap::from(ids));
    let ids: Vec<_> = after.iter().map(|record| record.image_id.as_deref()).collect();
    assert_eq!(ids, [Some(A), Some(B)]);
    assert_eq!(recorded(&before, &BTreeMap::new()), before);
}

#[test]
fn digest_possibly_gone_from_registry_is_not_required() {
    let failed = |why: Value| -> Vec<Arc<VirtualMachineInstanceMigration>> {
        let migration = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "m", "namespace": "default"}, "spec": {"vmiName": "vm"},
            "status": {"phase": "Failed", "reason": why},
        });
        vec![serde_json::from_value(migration).unwrap()]
    };
    assert!(may_be_unobtainable(&failed(json!("TargetPodNotReady"))));
    assert!(!may_be_unobtainable(&failed(json!("DeadlineExceeded"))));
    assert!(!may_be_unobtainable(&failed(Value::Null)));
    assert!(!may_be_unobtainable(&[]));
}
