//! Who can run what, and why not.

use drydock_api::facts::{CpuModel, HostModel, NodeFacts, Usable, VirtualizationFacts};
use k8s_openapi::api::core::v1::Taint;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{affinity::meets, *};

fn spec(value: Value) -> VirtualMachineInstanceSpec {
    serde_json::from_value(value).unwrap()
}

fn needs(value: &Value) -> Requirements {
    requirements(&spec(value.clone()), &Configuration::default(), &Minimum::default())
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = [(ARCHITECTURE, "amd64"), (SCHEDULABLE, "true"), (GUEST_NETWORK, "true")];
    own.iter()
        .chain(pairs)
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

fn facts(features: &[&str]) -> NodeFacts {
    let usable = |name: &str, usable, blockers: &[&str]| CpuModel {
        name: name.into(),
        usable,
        blockers: blockers.iter().map(|&name| name.into()).collect(),
        ..CpuModel::default()
    };
    NodeFacts {
        virtualization: Some(VirtualizationFacts {
            features: features.iter().map(|&name| name.into()).collect(),
            models: vec![
                usable("Nehalem", Usable::Yes, &[]),
                usable("Haswell", Usable::No, &["avx2", "bmi1"]),
            ],
            host_model: Some(HostModel {
                name: "EPYC".into(),
                ..HostModel::default()
            }),
            ..VirtualizationFacts::default()
        }),
        ..NodeFacts::default()
    }
}

fn selects(value: &Value, key: &str) -> bool {
    needs(value).node_selector.get(key).map(String::as_str) == Some("true")
}

#[test]
fn a_cpu_becomes_selectors() {
    let named = json!({"domain": {"cpu": {"model": "Nehalem", "features": [
        {"name": "avx2"}, {"name": "sse2", "policy": "require"}, {"name": "aes", "policy": "optional"},
        {"name": "smep", "policy": "force"}, {"name": "svm", "policy": "forbid"},
    ]}, "devices": {}}});
    assert!(selects(&named, "cpu-model.node.kubevirt.io/Nehalem"));
    assert!(selects(&named, "cpu-feature.node.kubevirt.io/avx2"));
    assert!(
        selects(&named, "cpu-minimum.node.drydock.dev/Penryn"),
        "sse2 has no label of its own"
    );
    for absent in ["sse2", "aes", "smep", "svm"] {
        assert!(
            !selects(&named, &format!("cpu-feature.node.kubevirt.io/{absent}")),
            "{absent}"
        );
    }
    let forbidden = &needs(&named).expressions;
    assert_eq!(forbidden.len(), 1, "a named model does not care about host models");
    assert_eq!(forbidden[0].key, "cpu-feature.node.kubevirt.io/svm");

    let host = needs(&json!({"domain": {"devices": {}}}));
    assert_eq!(host.expressions[0].key, OBSOLETE_HOST_MODEL);
    assert_eq!(
        needs(&json!({"domain": {"cpu": {"model": "host-passthrough"}, "devices": {}}})).expressions,
        []
    );
}

#[test]
fn what_is_computed_cannot_be_selected_away() {
    let own = json!({"nodeSelector": {SCHEDULABLE: "false", "zone": "a"}, "domain": {"devices": {}}});
    let selector = needs(&own).node_selector;
    assert_eq!(selector[SCHEDULABLE], "true");
    assert_eq!(selector["zone"], "a");
    assert!(
        !selector.contains_key(GUEST_NETWORK),
        "a guest without interfaces needs no network"
    );
    let with = json!({"domain": {"devices": {"interfaces": [{"name": "default"}]}}});
    assert!(selects(&with, GUEST_NETWORK));
    assert!(selects(
        &json!({"domain": {"machine": {"type": "q35"}, "devices": {}}}),
        "machine-type.node.kubevirt.io/q35"
    ));
    let versioned = json!({"domain": {"machine": {"type": "pc-q35-9.0"}, "devices": {}}});
    assert!(!selects(&versioned, "machine-type.node.kubevirt.io/pc-q35-9.0"));
}

#[test]
fn each_reason_is_counted_and_told() {
    let manifest = json!({"domain": {"cpu": {"model": "Haswell", "features": [{"name": "avx2"}]}, "devices": {}}});
    let plain = labels(&[]);
    let poor = facts(&["sse2"]);
    let taints = [Taint {
        key: CORDON_FOR_TESTS.into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    }];
    let node = |name, cordoned| NodeView {
        name,
        labels: Some(&plain),
        cordoned,
        taints: if cordoned { &taints } else { &[] },
        facts: Some(&poor),
        shares: Some(10),
    };
    let nodes = [node("a", false), node("b", true)];
    let found = fit(&needs(&manifest), &spec(manifest.clone()), &nodes);
    assert!(found.fits.is_empty());
    assert_eq!(
        found.sentence(),
        "no node can run it: 2 nodes lack the CPU model Haswell (for want of avx2, bmi1) (a, b), \
         2 lack the CPU feature avx2 (a, b), 1 is unschedulable (b)"
    );
    let obsolete = json!({"domain": {"cpu": {"model": "qemu64"}, "devices": {}}});
    let found = fit(&needs(&obsolete), &spec(obsolete.clone()), &nodes[..1]);
    assert!(
        found
            .sentence()
            .contains("does not offer the CPU model qemu64, which is obsolete"),
        "{found}"
    );
    assert_eq!(
        fit(&needs(&manifest), &spec(manifest.clone()), &[]).reasons(),
        "there are no nodes"
    );
}

const CORDON_FOR_TESTS: &str = "node.kubernetes.io/unschedulable";

#[test]
fn each_surrounding_is_a_reason_of_its_own() {
    let manifest = json!({
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
        "domain": {"devices": {"interfaces": [{"name": "default"}]}},
    });
    let rich = facts(&[]);
    let good = labels(&[("disk", "ssd"), ("zone", "a")]);
    let reasons = |labels: &BTreeMap<String, String>, taints: &[Taint], shares, cordoned| -> Vec<&'static str> {
        let view = NodeView {
            name: "a",
            labels: Some(labels),
            cordoned,
            taints,
            facts: Some(&rich),
            shares,
        };
        let found = fit(&needs(&manifest), &spec(manifest.clone()), &[view]);
        found.misfits.keys().map(Misfit::reason).collect()
    };
    assert_eq!(reasons(&good, &[], Some(5), false), [""; 0]);
    let without = |key: &str| {
        let mut labels = good.clone();
        labels.remove(key);
        labels
    };
    assert_eq!(reasons(&without("disk"), &[], None, false), ["NodeSelectorNotMet"]);
    assert_eq!(reasons(&without("zone"), &[], None, false), ["NodeAffinityNotMet"]);
    assert_eq!(
        reasons(&without(SCHEDULABLE), &[], None, false),
        ["NodeNotReadyForGuests"]
    );
    assert_eq!(reasons(&without(GUEST_NETWORK), &[], None, false), ["NoGuestNetwork"]);
    assert_eq!(
        reasons(&without(ARCHITECTURE), &[], None, false),
        ["ArchitectureDiffers"]
    );
    assert_eq!(reasons(&good, &[], Some(0), false), ["NoVirtualization"]);
    assert_eq!(reasons(&good, &[], None, true), ["NodeUnschedulable"]);
    let taint = |effect: &str| {
        vec![Taint {
            key: "x".into(),
            effect: effect.into(),
            ..Taint::default()
        }]
    };
    assert_eq!(reasons(&good, &taint("NoSchedule"), None, false), ["TaintNotTolerated"]);
    assert_eq!(reasons(&good, &taint("PreferNoSchedule"), None, false), [""; 0]);
}

#[test]
fn targets_are_judged_by_the_cpu_that_the_guest_has() {
    let instance: drydock_api::kubevirt::VirtualMachineInstance = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
        "spec": {"domain": {"devices": {}}},
        "status": {"nodeName": "a", "drydock": {"guestCPU": {"model": "EPYC", "required": ["avx2"], "disabled": ["svm"]}}},
    }))
    .unwrap();
    let needs = requirements(&instance.spec, &Configuration::default(), &Minimum::default());
    let plain = labels(&[]);
    let (poor, rich) = (facts(&["sse2"]), facts(&["sse2", "avx2"]));
    let node = |name, facts| NodeView {
        name,
        labels: Some(&plain),
        facts: Some(facts),
        ..NodeView::default()
    };
    let found = migration_targets(
        &instance,
        &needs,
        &[node("a", &rich), node("b", &rich), node("c", &poor)],
    );
    assert_eq!((found.available, found.message.as_str()), (true, "b"));
    let none = migration_targets(&instance, &needs, &[node("a", &rich), node("c", &poor)]);
    assert_eq!((none.available, none.reason.as_str()), (false, "CPUFeatureMissing"));
    assert_eq!(none.message, "1 node lacks the CPU feature avx2 (c)");
    assert_eq!(
        migration_targets(&instance, &needs, &[node("a", &rich)]).reason,
        "NoOtherNode"
    );
}

proptest! {
    /// Asking for more never makes more nodes fit.
    #[test]
    fn requirements_only_take_nodes_away(
        have in prop::collection::btree_set("[a-d]", 0..4),
        asked in prop::collection::vec("[a-d]", 0..3),
        more in "[a-d]",
    ) {
        let manifest = |features: &[String]| json!({"domain": {"cpu": {"model": "host-passthrough",
            "features": features.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}, "devices": {}}});
        let plain = labels(&[]);
        let own: Vec<&str> = have.iter().map(String::as_str).collect();
        let facts = facts(&own);
        let count = |features: &[String]| {
            let value = manifest(features);
            let view = NodeView { name: "a", labels: Some(&plain), facts: Some(&facts), ..NodeView::default() };
            fit(&needs(&value), &spec(value), &[view]).fits.len()
        };
        let before = count(&asked);
        prop_assert_eq!(before == 1, asked.iter().all(|feature| have.contains(feature)));
        let mut all = asked.clone();
        all.push(more);
        prop_assert!(count(&all) <= before);
    }

    /// An expression and its opposite never agree.
    #[test]
    fn expressions_and_their_opposites(value in prop::option::of("[0-3]"), values in prop::collection::vec("[0-3]", 1..3)) {
        let expression = |operator: &str| NodeSelectorRequirement {
            key: "k".into(), operator: operator.into(), values: Some(values.clone()),
        };
        let value = value.as_deref();
        prop_assert_ne!(meets(&expression("In"), value), meets(&expression("NotIn"), value));
        prop_assert_ne!(meets(&expression("Exists"), value), meets(&expression("DoesNotExist"), value));
        prop_assert!(!(meets(&expression("Gt"), value) && meets(&expression("Lt"), value)));
        prop_assert!(!meets(&expression("Likes"), value));
    }
}
