use drydock_api::facts::{CpuModel, FactsFingerprint, HostModel, KvmFacts, VirtType, VirtualizationFacts};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};

use super::*;
use crate::{
    conditions::{find, holds},
    configuration::{ConfigurationSource, InvalidValue, Parsed, Reference},
    guest_network::{Profile, UserNamespaces},
};

/// Everything that an [`ObservedNode`] borrows, with the values of a healthy node.
struct Scene {
    now: Timestamp,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    facts: Option<NodeFacts>,
    failure: Option<InspectionFailure>,
    resolution: Resolution,
    mask: BTreeSet<String>,
    masked_models: MaskedModels,
    pins_cpus: bool,
    guest_network: guest_network::ObservedNetwork,
    pods: Option<Vec<Arc<Pod>>>,
    waiting: guest_labels::PendingLabels,
    stopping: bool,
    previous: HypervisorStatus,
}

impl Default for Scene {
    fn default() -> Self {
        let model = |name: &str| CpuModel {
            name: name.into(),
            usable: Usable::Yes,
            ..CpuModel::default()
        };
        Self {
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            labels: BTreeMap::from([("kubernetes.io/os".into(), "linux".into())]),
            annotations: BTreeMap::new(),
            facts: Some(NodeFacts {
                architecture: "amd64".into(),
                kvm: KvmFacts {
                    state: KvmState::Usable,
                    ..KvmFacts::default()
                },
                virtualization: Some(VirtualizationFacts {
                    virt_type: VirtType::Kvm,
                    vendor: "Intel".into(),
                    models: vec![model("Haswell"), model("Penryn")].into(),
                    features: vec!["avx2".into(), "sse2".into()].into(),
                    host_model: Some(HostModel {
                        name: "Haswell".into(),
                        ..HostModel::default()
                    }),
                    ..VirtualizationFacts::default()
                }),
                ..NodeFacts::default()
            }),
            failure: None,
            resolution: Resolution::default(),
            mask: BTreeSet::new(),
            masked_models: MaskedModels::new(),
            pins_cpus: false,
            guest_network: guest_network::ObservedNetwork {
                seccomp: Profile::Installed,
                user_namespaces: UserNamespaces {
                    limit: Some(1000),
                    for_everybody: None,
                },
                app_armor: Profile::NotNeeded,
            },
            pods: Some(Vec::new()),
            waiting: guest_labels::PendingLabels::default(),
            stopping: false,
            previous: HypervisorStatus::default(),
        }
    }
}

impl Scene {
    fn plan(&self) -> NodeUpdatePlan {
        let record = InspectionRecord {
            at: Time(self.now),
            took_milliseconds: 1500,
            fingerprint: FactsFingerprint::default(),
            stale: false,
        };
        plan(&ObservedNode {
            now: self.now,
            labels: &self.labels,
            annotations: &self.annotations,
            inspected: self.facts.as_ref().map(|facts| (facts, &record)),
            failure: self.failure.as_ref(),
            resolution: &self.resolution,
            minimum: &Minimum::default(),
            mask: &self.mask,
            mask_refused: None,
            masked_models: &self.masked_models,
            label_aliases: false,
            pins_cpus: self.pins_cpus,
            guest_network: &self.guest_network,
            guests: LabelledPods {
                node: "a",
                pods: self.pods.as_deref(),
                waiting: self.waiting,
            },
            stopping: self.stopping,
            agent_version: "0.1.0",
            agent_endpoint: None,
            previous: &self.previous,
        })
    }

    /// Executes the plan, as the API server would.
    fn settle(&mut self) -> NodeUpdatePlan {
        let plan = self.plan();
        for (key, value) in plan.labels.clone() {
            match value {
                Some(value) => self.labels.insert(key, value),
                None => self.labels.remove(&key),
            };
        }
        self.previous = plan.status.clone();
        self.waiting = plan.waiting;
        plan
    }

    fn cpu_labels(&self) -> Vec<&str> {
        self.labels
            .keys()
            .map(String::as_str)
            .filter(|key| keys::is_owned(key))
            .collect()
    }
}

fn text(plan: &NodeUpdatePlan) -> String {
    let mut lines = Vec::new();
    for (key, value) in &plan.labels {
        lines.push(
            value
                .as_ref()
                .map_or_else(|| format!("- {key}"), |value| format!("+ {key}={value}")),
        );
    }
    for c in &plan.status.conditions {
        lines.push(format!("  {}={} {}: {}", c.type_, c.status, c.reason, c.message));
    }
    for event in &plan.events {
        lines.push(format!("! {} {}", event.reason, event.message));
    }
    lines.join("\n")
}

#[test]
fn a_healthy_node() {
    insta::assert_snapshot!(text(&Scene::default().plan()));
}

#[test]
fn a_settled_node_has_nothing_to_do() {
    let mut scene = Scene::default();
    scene.settle();
    scene.now = "2026-01-02T00:00:00Z".parse().unwrap();
    let again = scene.plan();
    assert_eq!(again.labels, BTreeMap::new());
    assert_eq!(again.events, []);
    assert_eq!(again.status.conditions, scene.previous.conditions);
}

#[test]
fn skip_node_freezes_cpu_labels_both_ways_and_nothing_else() {
    for (value, skipped) in [
        ("true", true),
        ("True", true),
        ("TRUE", true),
        (" true", true),
        ("false", false),
        ("", false),
        ("yes", false),
    ] {
        let mut scene = Scene::default();
        scene.annotations.insert(annotations::SKIP_NODE.into(), value.into());
        scene
            .labels
            .insert("cpu-model.node.kubevirt.io/forged".into(), "true".into());
        let plan = scene.settle();
        assert_eq!(
            scene.cpu_labels() == ["cpu-model.node.kubevirt.io/forged"],
            skipped,
            "{value:?}"
        );
        assert_eq!(scene.labels[keys::SCHEDULABLE], "true", "{value:?}");
        assert_eq!(
            find(&plan.status.conditions, types::LABELLED).unwrap().reason == "SkippedByAnnotation",
            skipped
        );
        assert!(plan.status.facts.is_some());
        scene.annotations.clear();
        scene.settle();
        assert!(!scene.cpu_labels().contains(&"cpu-model.node.kubevirt.io/forged"));
    }
}

#[test]
fn labels_stay_before_the_first_inspection_unschedulable() {
    let mut scene = Scene {
        facts: None,
        ..Scene::default()
    };
    scene
        .labels
        .insert("cpu-model.node.kubevirt.io/another-labellers".into(), "true".into());
    let plan = scene.settle();
    assert_eq!(scene.cpu_labels(), ["cpu-model.node.kubevirt.io/another-labellers"]);
    assert_eq!(scene.labels[keys::SCHEDULABLE], "false");
    assert_eq!(
        find(&plan.status.conditions, types::INSPECTED).unwrap().status,
        "Unknown"
    );
}

#[test]
fn failed_inspection_keeps_facts_and_is_reported_once() {
    let mut scene = Scene::default();
    scene.settle();
    scene.failure = Some(InspectionFailure {
        reason: "TimedOut".into(),
        message: "no reply from libvirtd within 30 s".into(),
    });
    let plan = scene.settle();
    assert_eq!(plan.labels, BTreeMap::new());
    assert_eq!(
        plan.events.iter().map(|e| e.reason).collect::<Vec<_>>(),
        [events::INSPECTION_FAILED]
    );
    assert!(plan.status.inspection.unwrap().stale);
    assert!(holds(&plan.status.conditions, types::READY));
    assert!(
        find(&plan.status.conditions, types::INSPECTED)
            .unwrap()
            .message
            .contains("are kept")
    );
    assert_eq!(scene.settle().events, []);
}

#[test]
fn masked_features_remove_dependent_model_labels() {
    let mut scene = Scene {
        mask: BTreeSet::from(["avx2".into()]),
        ..Scene::default()
    };
    scene
        .masked_models
        .insert("Haswell".into(), BTreeSet::from(["avx2".into()]));
    let plan = scene.settle();
    assert!(!scene.labels.contains_key("cpu-feature.node.kubevirt.io/avx2"));
    assert!(!scene.labels.contains_key("cpu-model.node.kubevirt.io/Haswell"));
    assert!(scene.labels.contains_key("cpu-model.node.kubevirt.io/Penryn"));
    assert_eq!(
        (plan.status.usable_models, plan.status.masked_features),
        (Some(1), vec!["avx2".to_owned()])
    );
}

#[test]
fn an_obsolete_host_model_is_announced_on_transition_only() {
    let mut scene = Scene::default();
    scene.settle();
    scene
        .resolution
        .configuration
        .obsolete_cpu_models
        .insert("Haswell".into());
    let reasons = |plan: NodeUpdatePlan| plan.events.into_iter().map(|event| event.reason).collect::<Vec<_>>();
    assert_eq!(
        reasons(scene.settle()),
        [events::HOST_MODEL_OBSOLETE, events::LABELS_CHANGED]
    );
    assert_eq!(reasons(scene.settle()), [""; 0]);
    scene.labels.remove("cpu-model.node.kubevirt.io/Penryn");
    assert_eq!(reasons(scene.settle()), [events::LABELS_CHANGED]);
}

#[test]
fn a_refused_configuration_is_announced_once_and_recorded() {
    let mut scene = Scene::default();
    scene.resolution.sources.push(ConfigurationSource {
        kind: "HyperConverged",
        reference: Reference {
            namespace: "drydock".into(),
            name: "hc".into(),
            revision: "3".into(),
        },
        parsed: Parsed {
            problems: vec![InvalidValue::new(
                "spec.obsoleteCPUs.minCPUModel",
                "Pendryn",
                "a CPU model",
            )],
            ..Parsed::default()
        },
    });
    let plan = scene.settle();
    assert!(
        plan.events
            .iter()
            .any(|e| e.reason == events::CONFIGURATION_REFUSED && e.message.contains("Pendryn"))
    );
    assert_eq!(plan.status.configuration.as_ref().unwrap().objects[0].refused.len(), 1);
    assert!(!holds(&plan.status.conditions, types::CONFIGURATION_ACCEPTED));
    assert_eq!(scene.settle().events, []);
}

#[test]
fn a_recorded_configuration_gives_the_same_labels() {
    let mut configuration = Configuration {
        min_cpu_model: "Westmere".into(),
        use_emulation: true,
        ..Configuration::default()
    };
    configuration.obsolete_cpu_models.insert("Haswell".into());
    configuration.feature_gates.insert(GATE_CPU_MANAGER.into(), true);
    let resolution = Resolution {
        configuration: configuration.clone(),
        sources: vec![],
    };
    assert_eq!(recorded(&record(&resolution, &Minimum::default())), configuration);
}

#[test]
fn readiness_labels_follow_the_agent_the_gate_and_the_kubelet() {
    for (stopping, gate, pins, expected) in [
        (false, false, true, ("true", "false")),
        (false, true, true, ("true", "true")),
        (false, true, false, ("true", "false")),
        (true, false, false, ("false", "false")),
    ] {
        let mut scene = Scene {
            stopping,
            pins_cpus: pins,
            ..Scene::default()
        };
        scene
            .resolution
            .configuration
            .feature_gates
            .insert(GATE_CPU_MANAGER.into(), gate);
        scene.settle();
        let found = (
            scene.labels[keys::SCHEDULABLE].as_str(),
            scene.labels[keys::CPU_MANAGER].as_str(),
        );
        assert_eq!(found, expected);
    }
}

#[test]
fn node_without_kvm_and_emulation_explains_the_lack_of_guests() {
    let mut scene = Scene::default();
    let facts = scene.facts.as_mut().unwrap();
    facts.kvm = KvmFacts {
        state: KvmState::NoUsableModel,
        ..KvmFacts::default()
    };
    facts.virtualization.as_mut().unwrap().virt_type = VirtType::Qemu;
    let plan = scene.settle();
    assert_eq!(scene.cpu_labels(), [""; 0]);
    assert_eq!(scene.labels[keys::SCHEDULABLE], "false");
    let ready = find(&plan.status.conditions, types::READY).unwrap();
    assert_eq!(ready.reason, "KVMUnavailable");
    assert_eq!(plan.offer, DeviceOffer::Nothing);
    assert!(ready.message.contains("no CPU model"), "{}", ready.message);
    scene.resolution.configuration.use_emulation = true;
    assert_eq!(scene.settle().offer, DeviceOffer::Emulation);
    assert!(scene.labels.contains_key("cpu-model.node.kubevirt.io/Penryn"));
    assert_eq!(scene.labels[keys::SCHEDULABLE], "true");
}

#[test]
fn missing_guest_network_is_labelled_despite_skip_node() {
    let mut scene = Scene::default();
    scene.annotations.insert(annotations::SKIP_NODE.into(), "true".into());
    scene.settle();
    assert_eq!(scene.labels[keys::GUEST_NETWORK], "true");
    scene.guest_network.seccomp = Profile::Missing("read-only file system".into());
    let plan = scene.settle();
    assert_eq!(scene.labels[keys::GUEST_NETWORK], "false");
    let network = find(&plan.status.conditions, types::GUEST_NETWORK).unwrap();
    assert_eq!(
        (network.status.as_str(), network.reason.as_str()),
        ("False", "SeccompProfileMissing")
    );
    assert!(network.message.contains("read-only file system"), "{}", network.message);
    let reasons = |plan: &NodeUpdatePlan| plan.events.iter().map(|event| event.reason).collect::<Vec<_>>();
    assert_eq!(reasons(&plan), [events::GUEST_NETWORK_UNAVAILABLE]);
    assert_eq!(reasons(&scene.settle()), [""; 0], "reported once");
    assert_eq!(
        scene.labels[keys::SCHEDULABLE],
        "true",
        "a guest without network can run"
    );
    scene.guest_network.seccomp = Profile::Unknown;
    let plan = scene.settle();
    assert_eq!(
        find(&plan.status.conditions, types::GUEST_NETWORK).unwrap().status,
        "Unknown"
    );
    assert_eq!(scene.labels[keys::GUEST_NETWORK], "false", "as it was");
}

#[test]
fn guest_labels_are_written_independently_of_cpu_labels() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "labels": {"drydock.dev/launcher": "x"}},
        "spec": {"nodeName": "a", "containers": []}, "status": {"phase": "Running"},
    }))
    .unwrap();
    let key = "guest.node.drydock.dev/x";
    let skipped = BTreeMap::from([(annotations::SKIP_NODE.to_owned(), "true".to_owned())]);
    for (what, annotations, known) in [
        ("usual", BTreeMap::new(), true),
        ("frozen", skipped, true),
        ("not inspected", BTreeMap::new(), false),
    ] {
        let mut scene = Scene {
            annotations,
            ..Scene::default()
        };
        if !known {
            scene.facts = None;
        }
        let settled = scene.settle().status;
        scene
            .labels
            .insert("guest.node.drydock.dev/stray".into(), "true".into());
        scene.pods = Some(vec![Arc::new(pod.clone())]);
        let plan = scene.settle();
        assert!(plan.labels.is_empty() && plan.wake.is_some(), "{what}: {plan:?}");
        scene.now = plan.wake.unwrap();
        let plan = scene.settle();
        assert_eq!(plan.labels.len(), 2, "{what}: {:?}", plan.labels);
        assert_eq!(plan.labels[key].as_deref(), Some("true"), "{what}");
        assert_eq!(plan.labels["guest.node.drydock.dev/stray"], None, "{what}");
        assert!(plan.events.is_empty(), "{what}: no CPU label has changed");
        assert_eq!(
            plan.status.labels, settled.labels,
            "{what}: nor does the Hypervisor count them"
        );
        assert_eq!(plan.status.conditions, settled.conditions, "{what}");
        let plan = scene.settle();
        assert!(plan.labels.is_empty() && plan.wake.is_none(), "{what}: an idle node");

        scene.pods = None;
        assert!(scene.settle().labels.is_empty(), "{what}: pods are not known");
        scene.pods = Some(Vec::new());
        scene.stopping = true;
        let last = scene.settle();
        assert_eq!(last.labels[key], None, "{what}: the last write takes everything along");
    }
}
