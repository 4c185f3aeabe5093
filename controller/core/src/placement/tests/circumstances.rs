//! Changes that allow an immediate retry of a failed migration.

use drydock_api::{facts::TscCounter, kubevirt::VirtualMachineInstance};
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::api::resource::Quantity};
use serde_json::json;

use super::*;

/// A guest on `here`, the node `b` that suits it, and `poor`, which does not.
#[derive(Clone)]
struct PlacementWorld {
    instance: VirtualMachineInstance,
    configuration: Configuration,
    nodes: [KnownObjects; 3],
    reversed: bool,
}

#[derive(Clone)]
struct KnownObjects {
    name: &'static str,
    labels: BTreeMap<String, String>,
    facts: NodeFacts,
    masked: Vec<String>,
    agent_version: &'static str,
    cordoned: bool,
    taints: Vec<Taint>,
    allocatable: BTreeMap<String, Quantity>,
    room: Option<Arc<NodeRoom>>,
}

impl KnownObjects {
    fn new(name: &'static str, features: &[&str]) -> Self {
        Self {
            name,
            labels: labels(&[(HOSTNAME, name)]),
            facts: facts(features),
            masked: Vec::new(),
            agent_version: "1",
            cordoned: false,
            taints: Vec::new(),
            allocatable: serde_json::from_value(json!({"memory": "8Gi", "pods": "110"})).unwrap(),
            room: Some(Arc::default()),
        }
    }

    fn virtualization(&mut self) -> &mut VirtualizationFacts {
        self.facts.virtualization.as_mut().unwrap()
    }

    fn mask(&mut self) {
        self.masked = vec!["avx2".into()];
        let mask = BTreeSet::from(["avx2".to_owned()]);
        self.facts = crate::mask::apply(&self.facts, &mask, &BTreeMap::new());
    }
}

impl PlacementWorld {
    fn new() -> Self {
        let instance = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {"domain": {}},
            "status": {"nodeName": "here", "drydock": {
                "guestCPU": {"model": "EPYC", "required": ["avx2"]}, "virtType": "kvm"}},
        });
        Self {
            instance: serde_json::from_value(instance).unwrap(),
            configuration: Configuration::default(),
            nodes: [
                KnownObjects::new("here", &["avx2"]),
                KnownObjects::new("b", &["avx2"]),
                KnownObjects::new("poor", &[]),
            ],
            reversed: false,
        }
    }

    fn digest(&self) -> String {
        let mut views: Vec<_> = self
            .nodes
            .iter()
            .map(|node| NodeView {
                name: node.name,
                labels: Some(&node.labels),
                cordoned: node.cordoned,
                taints: &node.taints,
                facts: Some(&node.facts),
                masked: &node.masked,
                agent_version: node.agent_version,
                shares: Some(1000),
                allocatable: Some(&node.allocatable),
                room: node.room.clone(),
            })
            .collect();
        let source = views[0].clone();
        if self.reversed {
            views.reverse();
        }
        let mut needs = requirements(&self.instance.spec, &self.configuration, &Minimum::default());
        lift_masks(&mut needs, &source);
        circumstances(&self.instance, &needs, Some(&source), &views, &self.configuration)
    }
}

#[test]
fn circumstances_are_all_that_could_let_a_migration_succeed() {
    type Change = fn(&mut PlacementWorld);
    let taint = |key: &str| Taint {
        key: key.into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    let changes: [(&str, Change); 16] = [
        ("mask of the target", |world| world.nodes[1].mask()),
        ("mask of both", |world| {
            world.nodes[0].mask();
            world.nodes[1].mask();
        }),
        ("mask of the source", |world| world.nodes[0].mask()),
        ("agent of the target", |world| world.nodes[1].agent_version = "2"),
        ("agent of the source", |world| world.nodes[0].agent_version = "2"),
        ("QEMU of the target", |world| {
            world.nodes[1].virtualization().qemu_version = "11".into();
        }),
        ("kernel of the source", |world| {
            world.nodes[0].facts.kernel = "7.0".into();
        }),
        ("target cordoned", |world| world.nodes[1].cordoned = true),
        ("target no more ready", |world| {
            world.nodes[1].labels.insert(SCHEDULABLE.into(), "false".into());
        }),
        ("resources of the target", |world| {
            world.nodes[1].allocatable.insert("pods".into(), Quantity("250".into()));
        }),
        ("another node gets the feature", |world| {
            world.nodes[2].facts = facts(&["avx2"]);
        }),
        ("configuration of migrations", |world| {
            world.configuration.migrations.post_copy = true;
        }),
        ("obsolete models", |world| {
            world.configuration.obsolete_cpu_models.insert("Haswell".into());
        }),
        ("spec of the guest", |world| {
            world.instance.spec.node_selector.insert(HOSTNAME.into(), "b".into());
        }),
        ("CPU of the guest", |world| {
            let record = world.instance.status.as_mut().unwrap().drydock.as_mut().unwrap();
            record.guest_cpu.as_mut().unwrap().required.clear();
        }),
        ("node of the guest", |world| {
            world.instance.status.as_mut().unwrap().node_name = Some("elsewhere".into());
        }),
    ];
    let before = PlacementWorld::new().digest();
    let mut seen = BTreeSet::from([before.clone()]);
    for (what, change) in changes {
        let mut world = PlacementWorld::new();
        change(&mut world);
        let after = world.digest();
        assert_ne!(after, before, "{what}");
        assert_eq!(after, world.digest(), "{what}");
        seen.insert(after);
    }
    let mut tainted = PlacementWorld::new();
    tainted.nodes[1].taints.push(taint("closed"));
    assert_ne!(tainted.digest(), before);
    assert!(seen.len() > 10, "changes have distinct digests: {seen:?}");
}

#[test]
fn circumstances_digest_ignores_attempts_and_time() {
    type Change = fn(&mut PlacementWorld);
    let changes: [(&str, Change); 8] = [
        ("order", |world| world.reversed = true),
        ("another label", |world| {
            world.nodes[1].labels.insert("seen-at".into(), "12:00".into());
        }),
        ("taint of the source", |world| {
            world.nodes[0].taints.push(Taint::default());
        }),
        ("source cordoned", |world| world.nodes[0].cordoned = true),
        ("measured frequency", |world| {
            world.nodes[1].virtualization().tsc = Some(TscCounter {
                frequency_hz: 2_100_003_000,
                scalable: true,
            });
        }),
        ("pods of the target", |world| world.nodes[1].room = None),
        ("node that does not suit all the same", |world| {
            world.nodes[2].facts.kernel = "7.0".into();
            world.nodes[2].cordoned = true;
        }),
        ("status of the guest", |world| {
            let status = world.instance.status.as_mut().unwrap();
            status.migration_state = Some(serde_json::from_value(json!({"failed": true})).unwrap());
            status.evacuation_node_name = Some("here".into());
        }),
    ];
    let before = PlacementWorld::new().digest();
    for (what, change) in changes {
        let mut world = PlacementWorld::new();
        change(&mut world);
        assert_eq!(world.digest(), before, "{what}");
    }
}
