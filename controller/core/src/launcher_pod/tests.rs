//! The parts of a manifest that affect the pod.

use drydock_api::launcher::{CloudInitText, DiskSource, GuestProbe, PodGuest, ProbeAction};
use k8s_openapi::api::core::v1::NodeSelectorTerm;
use serde_json::{Value, json};

use super::*;
use crate::{configuration::Configuration, minimum_cpu::Minimum, placement::requirements};

fn instance(spec: &Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "shop", "uid": "u-1", "labels": {"app": "x"},
            "annotations": {"note": "n", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
        "spec": spec,
    }))
    .unwrap()
}

fn made(spec: &Value, claims: &[(&str, ClaimMode)]) -> Pod {
    let instance = instance(spec);
    let requirements = requirements(&instance.spec, &Configuration::default(), &Minimum::default());
    let claims = claims.iter().map(|(name, mode)| ((*name).to_owned(), *mode)).collect();
    pod(&PodInput {
        instance: &instance,
        image: "localhost/drydock/launcher",
        requirements: &requirements,
        claims: &claims,
        suffix: "abcde",
        host_uuid: "00000000-0000-0000-0000-000000000001",
        emulation: false,
        arriving: None,
    })
}

fn small(extra: Value) -> Value {
    let mut spec = json!({"domain": {"memory": {"guest": "64Mi"}, "devices": {}}});
    merge(&mut spec, extra);
    spec
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn container(pod: &Pod) -> &Container {
    &pod.spec.as_ref().unwrap().containers[0]
}

fn guest(pod: &Pod) -> PodGuest {
    let env = container(pod).env.as_ref().unwrap();
    serde_json::from_str(env[0].value.as_ref().unwrap()).unwrap()
}

#[test]
fn the_whole_pod_of_a_small_guest() {
    let pod = made(
        &small(json!({
            "domain": {"devices": {
                "disks": [{"name": "root"}, {"name": "init"}],
                "interfaces": [{"name": "default", "ports": [{"name": "http", "port": 80}, {"port": 53, "protocol": "UDP"}]}],
            }},
            "volumes": [
                {"name": "root", "containerDisk": {"image": "registry.example/disk:1", "imagePullSecret": "pull"}},
                {"name": "init", "cloudInitNoCloud": {"secretRef": {"name": "user"}, "networkData": "version: 2"}},
            ],
        })),
        &[],
    );
    insta::assert_snapshot!(serde_saphyr::to_string(&pod).unwrap());
}

/// Every field of a manifest that affects the pod.
fn everything() -> Value {
    small(json!({
        "architecture": "amd64",
        "nodeSelector": {"zone": "a"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}}],
            },
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}]},
        },
        "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "x"}}}],
        "priorityClassName": "system-cluster-critical",
        "schedulerName": "own-scheduler",
        "hostname": "host", "subdomain": "sub",
        "dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"], "searches": ["example"]},
        "terminationGracePeriodSeconds": 180,
        "livenessProbe": {"tcpSocket": {"port": 22}, "initialDelaySeconds": 120, "periodSeconds": 3},
        "readinessProbe": {"httpGet": {"port": "http", "path": "/ok"}, "timeoutSeconds": 2, "successThreshold": 1, "failureThreshold": 4},
        "domain": {
            "cpu": {"cores": 2, "model": "Nehalem", "features": [{"name": "avx2"}, {"name": "sse2"}, {"name": "svm", "policy": "forbid"}]},
            "memory": {"guest": "256Mi"},
            "machine": {"type": "q35"},
            "resources": {"requests": {"memory": "200Mi", "cpu": "300m"}, "limits": {"memory": "256Mi", "cpu": "1"}},
            "devices": {"interfaces": [{"name": "default", "ports": [{"name": "http", "port": 80}]}]},
        },
        "volumes": [
            {"name": "image", "containerDisk": {"image": "registry.example/disk", "path": "/disk/a.img", "imagePullPolicy": "Never"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "files", "readOnly": true}},
            {"name": "raw", "dataVolume": {"name": "blocks"}},
            {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
            {"name": "init", "cloudInitNoCloud": {"userDataBase64": "eA==", "networkDataSecretRef": {"name": "network"}}},
        ],
    }))
}

#[test]
fn the_whole_pod_of_a_guest_with_everything() {
    let pod = made(
        &everything(),
        &[("files", ClaimMode::Filesystem), ("blocks", ClaimMode::Block)],
    );
    insta::assert_snapshot!(serde_saphyr::to_string(&pod).unwrap());
}

/// Returns the pod of an instance, on another node.
fn other<'a>(
    instance: &'a VirtualMachineInstance,
    requirements: &'a Requirements,
    claims: &'a BTreeMap<String, ClaimMode>,
) -> PodInput<'a> {
    PodInput {
        instance,
        image: "i",
        requirements,
        claims,
        suffix: "other",
        host_uuid: "h2",
        emulation: false,
        arriving: None,
    }
}

/// Returns a migration while those nodes are being drained.
fn moving(leaving: &[String]) -> TargetPodInput<'_> {
    TargetPodInput {
        uid: "m-1",
        name: "move",
        rejected: 0,
        by_manifest: false,
        avoided: &[],
        leaving,
    }
}

#[test]
fn target_avoids_drained_nodes_regardless_of_affinity() {
    let terms = |required: Value, leaving: &[&str]| {
        let mut spec = everything();
        spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        let instance = instance(&spec);
        let leaving: Vec<String> = leaving.iter().map(ToString::to_string).collect();
        let (requirements, claims) = (Requirements::default(), BTreeMap::new());
        let pod = target_pod(&other(&instance, &requirements, &claims), moving(&leaving));
        let affinity = serde_json::to_value(pod.spec.unwrap().affinity.unwrap()).unwrap();
        affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
    };
    let not_on = |node: &str| json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
    let expressions = json!([{"key": "disk", "operator": "Exists"}]);
    let bound = json!({"matchExpressions": [{"key": "guest.node.drydock.dev/h2", "operator": "Exists"}]});
    assert_eq!(
        terms(json!(null), &["a", "b"]),
        json!([{"matchFields": [not_on("a"), not_on("b")]}, bound])
    );
    assert_eq!(
        terms(
            json!({"nodeSelectorTerms": [{"matchExpressions": expressions}, {"matchFields": [not_on("z")]}, {}]}),
            &["a"]
        ),
        json!([{"matchExpressions": expressions, "matchFields": [not_on("a")]}, {"matchFields": [not_on("z"), not_on("a")]}, {}, bound])
    );
    assert_eq!(terms(json!(null), &[]), json!(null));
}

#[test]
fn a_target_is_the_same_pod_on_another_node() {
    let instance = instance(&everything());
    let requirements = requirements(&instance.spec, &Configuration::default(), &Minimum::default());
    let claims = BTreeMap::new();
    let input = other(&instance, &requirements, &claims);
    let mut target = target_pod(&input, moving(&[]));
    let labels = target.metadata.labels.as_mut().unwrap();
    assert_eq!(labels.remove("kubevirt.io/migrationJobUID").as_deref(), Some("m-1"));
    assert_eq!(labels["kubevirt.io/created-by"], "u-1");
    let annotations = target.metadata.annotations.as_mut().unwrap();
    assert_eq!(
        annotations.remove("kubevirt.io/migrationJobName").as_deref(),
        Some("move")
    );
    let affinity = target.spec.as_mut().unwrap().affinity.as_mut().unwrap();
    let anti = affinity.pod_anti_affinity.as_mut().unwrap();
    let terms = anti
        .required_during_scheduling_ignored_during_execution
        .as_mut()
        .unwrap();
    let apart = serde_json::to_value(terms.pop().unwrap()).unwrap();
    assert_eq!(
        apart,
        json!({"labelSelector": {"matchLabels": {"kubevirt.io/created-by": "u-1"}}, "topologyKey": "kubernetes.io/hostname"})
    );
    assert_eq!(terms.len(), 1, "the manifest's own stays");
    assert_eq!(target, pod(&input), "and nothing else differs");
}

#[test]
fn a_term_that_matches_nothing_goes_on_matching_nothing() {
    // Network, architecture, readiness, no obsolete host model; the last term is that of the pod's own label.
    const ALL: usize = 4;
    let terms = |terms: Value| {
        let pod = made(
            &small(
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}),
            ),
            &[],
        );
        let node = pod.spec.unwrap().affinity.unwrap().node_affinity.unwrap();
        let required = node.required_during_scheduling_ignored_during_execution.unwrap();
        let expressions = |term: NodeSelectorTerm| term.match_expressions.map_or(0, |all| all.len());
        required
            .node_selector_terms
            .into_iter()
            .map(expressions)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        terms(json!([{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}])),
        [0, ALL, 1]
    );
    assert_eq!(terms(json!([])), [1], "only the pod's own label, which no node has");
}

#[test]
fn script_text_survives_the_kubelet() {
    let script = "#!/bin/sh\necho $$ $(HOME) $(KUBERNETES_SERVICE_HOST) \\$x";
    let pod = made(
        &small(json!({"volumes": [{"name": "init", "cloudInitNoCloud": {"userData": script}}]})),
        &[],
    );
    let value = container(&pod).env.as_ref().unwrap()[0].value.clone().unwrap();
    assert!(!value.contains('$'), "{value}");
    let DiskSource::CloudInitNoCloud(init) = &guest(&pod).disks[0].source else {
        unreachable!("{value}")
    };
    assert_eq!(init.user_data, Some(CloudInitText::Plain(script.into())));
}

#[test]
fn names_of_volumes_never_meet() {
    let long = "x".repeat(63);
    let pod = made(
        &small(json!({"volumes": [
            {"name": "run", "containerDisk": {"image": "a:1"}},
            {"name": "disks", "containerDisk": {"image": "b:1"}},
            {"name": "volume-run", "containerDisk": {"image": "c:1"}},
            {"name": "user-i", "containerDisk": {"image": "d:1"}},
            {"name": "i", "cloudInitNoCloud": {"secretRef": {"name": "s"}, "networkDataSecretRef": {"name": "s"}}},
            {"name": long, "cloudInitNoCloud": {"secretRef": {"name": "s"}, "networkDataSecretRef": {"name": "s"}}},
        ]})),
        &[],
    );
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let names: std::collections::BTreeSet<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names.len(), volumes.len(), "{names:?}");
    assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
    let mounts = container(&pod).volume_mounts.as_ref().unwrap();
    assert!(mounts.iter().all(|mount| names.contains(mount.name.as_str())));
    let of = |path: &str| {
        mounts
            .iter()
            .find(|mount| mount.mount_path == path)
            .map(|mount| mount.name.as_str())
    };
    assert_eq!(of("/run/drydock"), Some("run"));
    assert_eq!(of("/images/user-i"), Some("user-i"), "a guest's volume keeps its name");
    assert_ne!(of("/images/run"), Some("run"));
}

#[test]
fn guest_hostname_matches_kubevirt() {
    let called = |name: &str, hostname: Option<&str>| {
        let mut instance = instance(&small(json!({"hostname": hostname,
            "volumes": [{"name": "i", "cloudInitNoCloud": {"userData": "x"}}]})));
        instance.metadata.name = Some(name.into());
        let pod = pod(&PodInput {
            instance: &instance,
            image: "i",
            requirements: &Requirements::default(),
            claims: &BTreeMap::new(),
            suffix: "s",
            host_uuid: "h",
            emulation: false,
            arriving: None,
        });
        let DiskSource::CloudInitNoCloud(init) = guest(&pod).disks.remove(0).source else {
            unreachable!("{name}")
        };
        assert_eq!(pod.spec.unwrap().hostname.as_ref(), Some(&init.hostname));
        (init.hostname, init.instance_id)
    };
    assert_eq!(called("db.shop", None), ("db".into(), "db.shop.shop".into()));
    assert_eq!(called("db", Some("other")), ("other".into(), "db.shop".into()));
    let long = format!("{}-{}", "a".repeat(62), "b".repeat(100));
    assert_eq!(called(&long, None).0, "a".repeat(62));
}

#[test]
fn pod_grace_period_leaves_time_for_the_final_report() {
    for (seconds, of_pod, of_guest) in [
        (json!(0), 5, 0),
        (json!(5), 5, 5),
        (json!(600), 600, 600),
        (Value::Null, 30, 30),
    ] {
        let pod = made(&small(json!({"terminationGracePeriodSeconds": seconds})), &[]);
        assert_eq!(
            pod.spec.as_ref().unwrap().termination_grace_period_seconds,
            Some(of_pod)
        );
        assert_eq!(guest(&pod).grace_period_seconds, of_guest);
    }
}

#[test]
fn instance_metadata_is_not_copied_to_pod() {
    let mut instance = instance(&small(json!({})));
    let labels = instance.metadata.labels.as_mut().unwrap();
    labels.extend([
        (NODE_NAME.to_owned(), "n".to_owned()),
        (CREATED_BY.to_owned(), "another".to_owned()),
    ]);
    let annotations = instance.metadata.annotations.as_mut().unwrap();
    annotations.extend([
        (LAST_APPLIED.to_owned(), "{}".to_owned()),
        (APP_ARMOR_PROFILE.to_owned(), "drydock-launcher".to_owned()),
    ]);
    let pod = pod(&PodInput {
        instance: &instance,
        image: "i",
        requirements: &Requirements::default(),
        claims: &BTreeMap::new(),
        suffix: "s",
        host_uuid: "h",
        emulation: false,
        arriving: None,
    });
    let labels = pod.metadata.labels.unwrap();
    assert_eq!((labels.get(NODE_NAME), labels[CREATED_BY].as_str()), (None, "u-1"));
    assert_eq!(pod.metadata.annotations.unwrap().get(LAST_APPLIED), None);
    let confined = pod.spec.unwrap().security_context.unwrap().app_armor_profile.unwrap();
    assert_eq!(
        (confined.type_.as_str(), confined.localhost_profile.as_deref()),
        ("Localhost", Some("drydock-launcher"))
    );
}

#[test]
fn target_pod_uses_the_image_digest_of_the_start() {
    let instance = instance(&small(json!({"volumes": [
        {"name": "known", "containerDisk": {"image": "registry.example/disk"}},
        {"name": "always", "containerDisk": {"image": "registry.example/disk:1", "imagePullPolicy": "Always"}},
        {"name": "unknown", "containerDisk": {"image": "registry.example/other"}},
    ]})));
    let digest = |name: &str| (name.to_owned(), "registry.example/disk@sha256:aaaa".to_owned());
    let images = BTreeMap::from([digest("known"), digest("always")]);
    let of = |arriving| {
        let requirements = Requirements::default();
        let claims = BTreeMap::new();
        let pod = pod(&PodInput {
            arriving,
            ..other(&instance, &requirements, &claims)
        });
        let volumes = pod.spec.unwrap().volumes.unwrap().into_iter();
        let images = volumes.filter_map(|volume| {
            let image = volume.image?;
            Some(format!("{} {}", image.reference?, image.pull_policy?))
        });
        images.collect::<Vec<_>>()
    };
    let arriving = Arriving {
        sizes: &BTreeMap::new(),
        images: &images,
    };
    assert_eq!(
        of(Some(arriving)),
        [
            "registry.example/disk@sha256:aaaa IfNotPresent",
            "registry.example/disk@sha256:aaaa IfNotPresent",
            "registry.example/other IfNotPresent"
        ]
    );
    assert_eq!(
        of(None),
        [
            "registry.example/disk IfNotPresent",
            "registry.example/disk:1 IfNotPresent",
            "registry.example/other IfNotPresent",
            "i IfNotPresent"
        ],
        "where it begins, the launcher's image can distinguish these images"
    );
}

#[test]
fn claims_are_files_or_devices() {
    let volumes = json!({"volumes": [
        {"name": "file", "persistentVolumeClaim": {"claimName": "c1"}},
        {"name": "block", "dataVolume": {"name": "c2"}},
    ]});
    let pod = made(
        &small(volumes),
        &[("c1", ClaimMode::Filesystem), ("c2", ClaimMode::Block)],
    );
    let mounts = container(&pod).volume_mounts.as_ref().unwrap();
    assert!(
        mounts.iter().any(|mount| mount.mount_path == "/volumes/file"),
        "{mounts:?}"
    );
    let devices = container(&pod).volume_devices.as_ref().unwrap();
    assert_eq!(devices[0].device_path, "/devices/block");
    let guest = guest(&pod);
    assert_eq!(guest.disks[0].source, DiskSource::Filesystem {});
    assert_eq!(guest.disks[1].source, DiskSource::Block {});
}

#[test]
fn scheduling_fields_are_kept_and_each_term_gets_cpu_needs() {
    let terms = json!([
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
    ]);
    let pod = made(
        &small(json!({
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
            "tolerations": [{"key": "t", "operator": "Exists"}],
            "priorityClassName": "high",
            "schedulerName": "own",
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "hostname": "h", "subdomain": "s",
            "terminationGracePeriodSeconds": 7,
            "livenessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 3},
            "readinessProbe": {"httpGet": {"port": 80, "path": "/ok"}},
        })),
        &[],
    );
    let spec = pod.spec.as_ref().unwrap();
    let affinity = spec.affinity.clone().unwrap().node_affinity.unwrap();
    let required = affinity.required_during_scheduling_ignored_during_execution.unwrap();
    let (own, ordinary) = required.node_selector_terms.split_last().unwrap();
    for term in ordinary {
        let last = term.match_expressions.as_ref().unwrap().last().unwrap();
        assert_eq!(last.operator, "DoesNotExist");
    }
    assert_eq!(ordinary.len(), 2);
    assert_eq!(
        serde_json::to_value(own).unwrap(),
        json!({"matchExpressions": [{"key": "guest.node.drydock.dev/00000000-0000-0000-0000-000000000001", "operator": "Exists"}]})
    );
    assert_eq!(spec.node_selector, None);
    assert_eq!(spec.tolerations.as_ref().unwrap().len(), 1);
    assert_eq!(spec.priority_class_name.as_deref(), Some("high"));
    assert_eq!(spec.scheduler_name.as_deref(), Some("own"));
    assert_eq!(spec.topology_spread_constraints.as_ref().unwrap().len(), 1);
    assert_eq!(
        (spec.hostname.as_deref(), spec.subdomain.as_deref()),
        (Some("h"), Some("s"))
    );
    assert_eq!(spec.termination_grace_period_seconds, Some(7));
    assert_eq!(guest(&pod).grace_period_seconds, 7);
    assert_eq!(guest(&pod).probes.liveness.unwrap().period_seconds, 3);
    assert!(guest(&pod).probes.readiness.is_some());
}

/// Returns a probe with these times: delay, time-out, period, and the thresholds of success and failure.
fn probe(action: ProbeAction, times: [u32; 5]) -> Option<GuestProbe> {
    let [
        initial_delay_seconds,
        timeout_seconds,
        period_seconds,
        success_threshold,
        failure_threshold,
    ] = times;
    Some(GuestProbe {
        action,
        initial_delay_seconds,
        timeout_seconds,
        period_seconds,
        success_threshold,
        failure_threshold,
    })
}

fn tcp(host: Option<&str>, port: u16) -> ProbeAction {
    ProbeAction::Tcp {
        host: host.map(str::to_owned),
        port,
    }
}

#[test]
fn launcher_carries_out_probes_and_kubelet_none() {
    let interfaces = json!([{"name": "default", "ports": [{"name": "ssh", "port": 22}]}]);
    let of = |probe: Value| {
        let pod = made(
            &small(json!({
                "domain": {"devices": {"interfaces": interfaces}}, "livenessProbe": probe, "readinessProbe": probe,
            })),
            &[],
        );
        let container = container(&pod);
        assert_eq!(container.liveness_probe, None);
        assert_eq!(container.readiness_probe, None);
        assert_eq!(container.startup_probe, None);
        let probes = guest(&pod).probes;
        assert_eq!(probes.liveness, probes.readiness);
        probes.readiness
    };
    let defaults = [0, 1, 10, 1, 3];
    for (given, expected) in [
        (json!({"tcpSocket": {"port": 8080}}), probe(tcp(None, 8080), defaults)),
        (
            json!({"tcpSocket": {"port": "ssh", "host": ""}}),
            probe(tcp(None, 22), defaults),
        ),
        (
            json!({"tcpSocket": {"port": 22, "host": "192.0.2.1"}}),
            probe(tcp(Some("192.0.2.1"), 22), defaults),
        ),
        (
            json!({"tcpSocket": {"port": 1}, "timeoutSeconds": 0, "periodSeconds": 0, "failureThreshold": 0}),
            probe(tcp(None, 1), defaults),
        ),
        (
            json!({
                "httpGet": {"port": 80, "scheme": "HTTPS", "path": "ok", "httpHeaders": [{"name": "a", "value": "b"}]},
                "initialDelaySeconds": 4, "timeoutSeconds": 5, "periodSeconds": 6, "successThreshold": 7,
                "failureThreshold": 8,
            }),
            probe(
                ProbeAction::Http {
                    tls: true,
                    host: None,
                    port: 80,
                    path: "/ok".into(),
                    headers: vec![("a".into(), "b".into())],
                },
                [4, 5, 6, 7, 8],
            ),
        ),
        (
            json!({"httpGet": {"port": "ssh"}}),
            probe(
                ProbeAction::Http {
                    tls: false,
                    host: None,
                    port: 22,
                    path: "/".into(),
                    headers: Vec::new(),
                },
                defaults,
            ),
        ),
        (json!({}), None),
    ] {
        assert_eq!(of(given.clone()), expected, "{given}");
    }
}

#[test]
fn arriving_guest_is_probed_without_delay() {
    let instance = instance(&everything());
    let (requirements, claims) = (Requirements::default(), BTreeMap::new());
    let mut input = other(&instance, &requirements, &claims);
    input.arriving = None;
    assert_eq!(guest(&pod(&input)).probes.liveness.unwrap().initial_delay_seconds, 120);
    let (sizes, images) = (BTreeMap::new(), BTreeMap::new());
    input.arriving = Some(Arriving {
        sizes: &sizes,
        images: &images,
    });
    let probe = guest(&pod(&input)).probes.liveness.unwrap();
    assert_eq!((probe.initial_delay_seconds, probe.period_seconds), (0, 3));
}

#[test]
fn memory_is_the_guests_and_the_overhead() {
    let request = |spec: Value, kind: &str| -> Option<u64> {
        let pod = made(&spec, &[]);
        let resources = container(&pod).resources.clone().unwrap();
        let amounts = if kind == "limits" {
            resources.limits
        } else {
            resources.requests
        };
        amounts.unwrap().get("memory").map(|amount| amount.0.parse().unwrap())
    };
    let extra = (112 + 8 + 16) * (1 << 20) + (64 << 20) / 512;
    assert_eq!(request(small(json!({})), "requests"), Some((64 << 20) + extra));
    // Twice the overhead, which prevents a LimitRange from setting a default limit.
    assert_eq!(request(small(json!({})), "limits"), Some((64 << 20) + 2 * extra));
    let more_than_requested = small(json!({"domain": {"resources": {"requests": {"memory": "32Mi"}}}}));
    assert_eq!(request(more_than_requested, "limits"), Some((64 << 20) + 2 * extra));
    let limited = small(json!({"domain": {"resources": {"limits": {"memory": "128Mi"}}}}));
    assert_eq!(request(limited, "limits"), Some((128 << 20) + extra));
    let blind =
        small(json!({"domain": {"devices": {"autoattachGraphicsDevice": false}, "cpu": {"cores": 2, "sockets": 2}}}));
    assert_eq!(
        overhead(&instance(&blind).spec, true),
        (112 + 32 + 160) * (1 << 20) + (64 << 20) / 512
    );
}

#[test]
fn cpu_request_defaults_to_a_tenth() {
    let request = |spec: Value| {
        let pod = made(&spec, &[]);
        container(&pod).resources.clone().unwrap().requests.unwrap()["cpu"]
            .0
            .clone()
    };
    assert_eq!(request(small(json!({"domain": {"cpu": {"cores": 3}}}))), "300m");
    assert_eq!(
        request(small(json!({"domain": {"resources": {"requests": {"cpu": 1}}}}))),
        "1"
    );
    assert_eq!(
        request(small(json!({"domain": {"resources": {"limits": {"cpu": "2"}}}}))),
        "2"
    );
}

/// Requests and limits of the resources for which LimitRanges have defaults, in bytes and thousandths.
#[test]
fn a_limit_range_finds_nothing_to_fill_in() {
    let extra = (112 + 8 + 16) * (1 << 20) + (64 << 20) / 512;
    let memory = (64 << 20) + extra;
    let usual_memory = (memory, memory + extra);
    let usual_disks = (50_000_000, 1 << 44);
    for (resources, cpu, memory, disks) in [
        (json!({}), (100, 3000), usual_memory, usual_disks),
        (
            json!({"requests": {"cpu": "4"}}),
            (4000, 6000),
            usual_memory,
            usual_disks,
        ),
        (
            json!({"limits": {"cpu": "500m"}}),
            (500, 500),
            usual_memory,
            usual_disks,
        ),
        (
            json!({"limits": {"memory": "128Mi"}}),
            (100, 3000),
            ((128 << 20) + extra, (128 << 20) + extra),
            usual_disks,
        ),
        (
            json!({"limits": {"ephemeral-storage": "1G"}}),
            (100, 3000),
            usual_memory,
            (50_000_000, 1_050_000_000),
        ),
        (
            json!({"requests": {"ephemeral-storage": "1G"}, "limits": {"ephemeral-storage": "2G"}}),
            (100, 3000),
            usual_memory,
            (1_050_000_000, 2_050_000_000),
        ),
    ] {
        let pod = made(&small(json!({"domain": {"resources": resources}})), &[]);
        let declared = container(&pod).resources.clone().unwrap();
        let (requests, limits) = (declared.requests.unwrap(), declared.limits.unwrap());
        let both = |name: &str, read: fn(&str) -> Option<u64>| {
            let amounts = [&requests, &limits].map(|amounts| read(&amounts[name].0).unwrap());
            (amounts[0], amounts[1])
        };
        assert_eq!(both("cpu", crate::quantity::milli_cpus), cpu, "{resources}");
        assert_eq!(both("memory", crate::quantity::bytes), memory, "{resources}");
        assert_eq!(both("ephemeral-storage", crate::quantity::bytes), disks, "{resources}");
    }
}

#[test]
fn tag_is_resolved_once_at_start_as_kubernetes_would() {
    let of = |disk: Value, architecture: Option<&str>, arrives: bool| {
        let mut spec = small(json!({"volumes": [{"name": "d", "containerDisk": disk}]}));
        spec["architecture"] = json!(architecture);
        let instance = instance(&spec);
        let (requirements, claims) = (Requirements::default(), BTreeMap::new());
        let (sizes, images) = (BTreeMap::new(), BTreeMap::new());
        let arriving = Arriving {
            sizes: &sizes,
            images: &images,
        };
        let pod = pod(&PodInput {
            arriving: arrives.then_some(arriving),
            ..other(&instance, &requirements, &claims)
        });
        let spec = pod.spec.unwrap();
        let volume = spec.volumes.unwrap().into_iter().find_map(|volume| volume.image);
        let before = spec.init_containers.unwrap_or_default();
        let before: Vec<_> = before
            .into_iter()
            .map(|one| format!("{} {}", one.image.unwrap(), one.image_pull_policy.unwrap()))
            .collect();
        (volume.unwrap().pull_policy.unwrap(), before.join(", "))
    };
    for (image, policy, volume, before) in [
        ("disk", None, "IfNotPresent", "disk Always"),
        ("disk:latest", None, "IfNotPresent", "disk:latest Always"),
        ("host:5000/disk", None, "IfNotPresent", "host:5000/disk Always"),
        ("disk:1", None, "IfNotPresent", ""),
        ("disk@sha256:0", None, "IfNotPresent", ""),
        ("disk:1", Some("Always"), "IfNotPresent", "disk:1 Always"),
        ("disk@sha256:0", Some("Always"), "IfNotPresent", ""),
        ("disk", Some("IfNotPresent"), "IfNotPresent", ""),
        ("disk", Some("Never"), "Never", ""),
    ] {
        let disk = json!({"image": image, "imagePullPolicy": policy});
        let kept = (volume.to_owned(), before.to_owned());
        assert_eq!(of(disk.clone(), None, false), kept, "{disk}");
        // A guest that arrives by migration has already started with an image.
        assert_eq!(
            of(disk.clone(), None, true),
            (volume.to_owned(), String::new()),
            "{disk}"
        );
    }
    let policy = |architecture: &str| of(json!({"image": "disk"}), Some(architecture), false);
    assert_eq!(policy("amd64"), ("IfNotPresent".into(), "disk Always".into()));
    assert_eq!(
        policy("arm64"),
        ("Always".into(), String::new()),
        "nothing could run there"
    );
}

#[test]
fn container_before_guests_adds_nothing_to_pod() {
    let mut spec = everything();
    spec["volumes"] = json!([
        {"name": "a", "containerDisk": {"image": "one"}},
        {"name": "b", "containerDisk": {"image": "two"}},
        {"name": "c", "containerDisk": {"image": "one"}},
    ]);
    let pod = made(&spec, &[]);
    let guests = container(&pod).resources.clone().unwrap();
    let before = pod.spec.as_ref().unwrap().init_containers.clone().unwrap();
    let images: Vec<_> = before.iter().map(|one| one.image.as_deref().unwrap()).collect();
    assert_eq!(images, ["one", "two"], "one for each image");
    for one in before {
        let resources = one.resources.unwrap();
        for (own, guests) in [
            (resources.requests, guests.requests.clone()),
            (resources.limits, guests.limits.clone()),
        ] {
            let (own, guests) = (own.unwrap(), guests.unwrap());
            assert_eq!(own.keys().collect::<Vec<_>>(), ["cpu", "ephemeral-storage", "memory"]);
            assert!(own.iter().all(|(name, amount)| guests[name] == *amount), "{own:?}");
        }
        assert_eq!(one.security_context, container(&pod).security_context);
        let mounts: Vec<_> = one
            .volume_mounts
            .unwrap()
            .into_iter()
            .map(|mount| mount.mount_path)
            .collect();
        assert_eq!(
            mounts,
            ["/launcher"],
            "no disk, which would be that of the image before"
        );
    }
}

#[test]
fn instance_id_matches_the_selector_of_virtctl_expose() {
    for (name, expected) in [
        ("vm", "vm".to_owned()),
        (&"b".repeat(63), "b".repeat(63)),
        (&"a".repeat(64), format!("{}-0098ba82", "a".repeat(54))),
    ] {
        assert_eq!(names::id(name), expected);
    }
}

#[test]
fn names_are_labels_and_the_same_each_time() {
    assert_eq!(suffix("u-1"), suffix("u-1"));
    assert_ne!(suffix("u-1"), suffix("u-2"));
    assert_ne!(host_uuid("u-1"), host_uuid("u-2"));
    let long = name(&"a.".repeat(100), "abcde");
    assert!(
        long.len() <= 63 && long.ends_with("-abcde") && !long.contains(".-"),
        "{long}"
    );
}

#[test]
fn object_volumes_are_mounted_with_filesystem_labels() {
    let pod = made(
        &small(json!({"volumes": [
            {"name": "a", "configMap": {"name": "settings", "optional": true}},
            {"name": "b", "sysprep": {"secret": {"name": "unattended"}}},
            {"name": "c", "serviceAccount": {"serviceAccountName": "guest"}},
            {"name": "d", "downwardAPI": {"volumeLabel": "FACTS", "fields": [
                {"path": "all", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "memory", "resourceFieldRef": {"containerName": "compute", "resource": "limits.memory", "divisor": "1Mi"}},
            ]}},
        ]})),
        &[],
    );
    assert_eq!(
        pod.spec.as_ref().unwrap().service_account_name.as_deref(),
        Some("guest")
    );
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let volume = |name: &str| volumes.iter().find(|volume| volume.name == name).unwrap();
    let map = volume("a").config_map.as_ref().unwrap();
    assert_eq!((map.name.as_str(), map.optional), ("settings", Some(true)));
    let secret = volume("b").secret.as_ref().unwrap();
    assert_eq!(
        (secret.secret_name.as_deref(), secret.optional),
        (Some("unattended"), Some(false))
    );
    let token = volume("c").projected.as_ref().unwrap().sources.as_ref().unwrap();
    let token = token
        .iter()
        .find_map(|source| source.service_account_token.as_ref())
        .unwrap();
    assert_eq!((token.path.as_str(), token.audience.as_ref()), ("token", None));
    let facts = volume("d").downward_api.as_ref().unwrap().items.as_ref().unwrap();
    assert_eq!(facts[0].field_ref.as_ref().unwrap().field_path, "metadata.labels");
    let memory = facts[1].resource_field_ref.as_ref().unwrap();
    assert_eq!(memory.divisor.as_ref().unwrap().0, "1Mi");
    let mounts = container(&pod).volume_mounts.as_ref().unwrap();
    for name in ["a", "b", "c", "d"] {
        let path = format!("/secrets/{name}/files");
        assert!(
            mounts
                .iter()
                .any(|mount| mount.name == name && mount.mount_path == path)
        );
    }
    let labels: Vec<_> = guest(&pod)
        .disks
        .into_iter()
        .map(|disk| match disk.source {
            DiskSource::Files { label } => label,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(labels, ["cfgdata", "unattendCfg", "cfgdata", "FACTS"]);
}

#[test]
fn public_keys_are_mounted_for_the_cloud_init_volume() {
    let keys = |secret: &str, method: &str| json!({"sshPublicKey": {"source": {"secret": {"secretName": secret}}, "propagationMethod": {(method): {}}}});
    let spec = small(json!({
        "accessCredentials": [keys("a", "noCloud"), keys("b", "configDrive"), keys("c", "noCloud")],
        "volumes": [{"name": "i", "cloudInitNoCloud": {"userData": "x"}}],
    }));
    let pod = made(&spec, &[]);
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let mounts = container(&pod).volume_mounts.as_ref().unwrap();
    let secret_at = |path: &str| {
        let name = &mounts.iter().find(|mount| mount.mount_path == path)?.name;
        let volume = volumes.iter().find(|volume| volume.name == *name)?;
        volume.secret.as_ref()?.secret_name.as_deref()
    };
    assert_eq!(secret_at("/secrets/i/keys0"), Some("a"));
    assert_eq!(secret_at("/secrets/i/keys1"), Some("c"));
    assert_eq!(secret_at("/secrets/i/keys2"), None);
    let DiskSource::CloudInitNoCloud(init) = guest(&pod).disks.remove(0).source else {
        unreachable!()
    };
    assert_eq!(init.key_secrets, 2);
}

#[test]
fn instances_of_one_machine_share_the_cloud_init_identity() {
    let of = |uid: &str| {
        let mut instance = instance(&small(
            json!({"volumes": [{"name": "i", "cloudInitNoCloud": {"userData": "x"}}]}),
        ));
        instance.metadata.uid = Some(uid.into());
        let requirements = Requirements::default();
        guest(&pod(&PodInput {
            instance: &instance,
            image: "i",
            requirements: &requirements,
            claims: &BTreeMap::new(),
            suffix: "s",
            host_uuid: "h",
            emulation: true,
            arriving: None,
        }))
    };
    assert_eq!(of("u-1").disks, of("u-2").disks);
}

#[test]
fn computed_requirements_override_the_manifest_selector() {
    let pod = made(
        &small(
            json!({"nodeSelector": {"zone": "a", "kubevirt.io/schedulable": "false", "kubernetes.io/arch": "arm64"}}),
        ),
        &[],
    );
    let affinity = serde_json::to_value(pod.spec.unwrap().affinity.unwrap()).unwrap();
    let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let is = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    assert_eq!(
        terms[0]["matchExpressions"],
        json!([
            is("drydock.dev/guest-network", "true"),
            is("kubernetes.io/arch", "amd64"),
            is("kubevirt.io/schedulable", "true"),
            is("zone", "a"),
            {"key": "node-labeller.kubevirt.io/obsolete-host-model", "operator": "DoesNotExist"},
        ])
    );
    assert_eq!(terms.as_array().map(Vec::len), Some(2));
}

#[test]
fn the_name_of_a_guests_label_is_valid() {
    let key = guest_label(&host_uuid("u-1"));
    assert!(crate::label_keys::is_valid(&key), "{key}");
    assert!(key.len() <= GUEST_PREFIX + 63, "{key}");
}

/// Length of the prefix of guest labels, in bytes.
const GUEST_PREFIX: usize = drydock_api::labels::GUEST.len();

#[test]
fn a_digest_follows_instance_and_configuration_alone() {
    let digest = |spec: &Value, configuration: &Configuration, minimum: &Minimum| {
        let spec = instance(spec).spec;
        let needs = requirements(&spec, configuration, minimum);
        requirements_digest(&spec, &needs, configuration.use_emulation)
    };
    let (configuration, minimum) = (Configuration::default(), Minimum::default());
    let first = digest(&everything(), &configuration, &minimum);
    assert_eq!(first, digest(&everything(), &configuration, &minimum));
    let annotations = made(&everything(), &[]).metadata.annotations.unwrap();
    assert_eq!(annotations[REQUIREMENTS_DIGEST], first, "it is on the pod");
    let emulating = Configuration {
        use_emulation: true,
        ..Configuration::default()
    };
    let least = Minimum {
        model: "least".into(),
        features: ["sse2".to_owned()].into(),
    };
    let mut elsewhere = everything();
    elsewhere["nodeSelector"]["zone"] = json!("b");
    for (what, other) in [
        ("emulation", digest(&everything(), &emulating, &minimum)),
        ("minimum", digest(&everything(), &configuration, &least)),
        ("manifest", digest(&elsewhere, &configuration, &minimum)),
    ] {
        assert_ne!(first, other, "{what}");
    }
}

#[test]
fn labels_that_others_set_are_carried_to_the_target() {
    let labels = |pairs: &[(&str, &str)]| -> Option<BTreeMap<String, String>> {
        Some(
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        )
    };
    let mut source = Pod::default();
    source.metadata.labels = labels(&[
        ("app", "of the source"),
        ("team", "shop"),
        ("drydock.dev/launcher", "1"),
        ("kubevirt.io/created-by", "u-1"),
        ("kubevirt.io/migrationJobUID", "earlier"),
        ("kubevirt.io/nodeName", "a"),
    ]);
    source.metadata.annotations = labels(&[("cni.example/address", "10.0.0.1")]);
    let mut target = Pod::default();
    target.metadata.labels = labels(&[("app", "of the instance"), ("drydock.dev/launcher", "2")]);
    carry_labels(&mut target, &source);
    let expected = labels(&[
        ("app", "of the instance"),
        ("drydock.dev/launcher", "2"),
        ("team", "shop"),
    ]);
    assert_eq!((target.metadata.labels, target.metadata.annotations), (expected, None));
}
