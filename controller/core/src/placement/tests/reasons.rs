//! Each reason why a node does not fit, and its sentence.

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::api::resource::Quantity};
use serde_json::json;

use super::*;
use crate::minimum_cpu::PENRYN;

fn taint(key: &str, effect: &str) -> Taint {
    Taint {
        key: key.into(),
        effect: effect.into(),
        ..Taint::default()
    }
}

fn reasons(manifest: &Value, view: NodeView<'_>) -> Vec<&'static str> {
    let found = fit(&needs(manifest), &spec(manifest), &Rules::default(), &[view]);
    found.misfits.keys().map(Misfit::reason).collect()
}

fn misfit_text(manifest: &Value, labels: &BTreeMap<String, String>, facts: &NodeFacts) -> String {
    let view = NodeView {
        name: "a",
        labels: Some(labels),
        facts: Some(facts),
        ..NodeView::default()
    };
    fit(&needs(manifest), &spec(manifest), &Rules::default(), &[view]).to_string()
}

#[test]
fn reasons_are_counted_and_most_specific_comes_first() {
    let manifest = json!({"domain": {"cpu": {"model": "Haswell", "features": [{"name": "avx2"}]}}});
    let (plain, poor) = (labels(&[]), facts(&["sse2"]));
    let cordon = [taint("node.kubernetes.io/unschedulable", "NoSchedule")];
    let node = |name, cordoned| NodeView {
        name,
        labels: Some(&plain),
        cordoned,
        taints: if cordoned { &cordon } else { &[] },
        facts: Some(&poor),
        shares: Some(10),
        ..NodeView::default()
    };
    let found = fit(
        &needs(&manifest),
        &spec(&manifest),
        &Rules::default(),
        &[node("a", false), node("b", true)],
    );
    assert!(found.fits.is_empty());
    assert_eq!(
        found.sentence(),
        "no node can run the virtual machine: 2 nodes lack the CPU model Haswell because of missing avx2, bmi1 (a, b), \
         2 lack the CPU feature avx2 (a, b), 1 is unschedulable (b)"
    );
    assert_eq!(
        fit(&needs(&manifest), &spec(&manifest), &Rules::default(), &[]).reasons(),
        "there are no nodes"
    );
}

#[test]
fn reason_of_most_nodes_comes_first_within_a_kind() {
    let manifest = json!({"domain": {"cpu": {"features": [{"name": "aes"}, {"name": "avx2"}]}}});
    let plain = labels(&[("cpu-feature.node.kubevirt.io/aes", "true")]);
    let (aes, none) = (facts(&["aes"]), facts(&[]));
    let nodes = [("a", &aes), ("b", &aes), ("c", &aes), ("d", &none)].map(|(name, facts)| NodeView {
        name,
        labels: Some(&plain),
        facts: Some(facts),
        ..NodeView::default()
    });
    let found = fit(&needs(&manifest), &spec(&manifest), &Rules::default(), &nodes);
    assert_eq!(
        found.reasons(),
        "4 nodes lack the CPU feature avx2, 1 lacks the CPU feature aes (d)"
    );
    assert_eq!(found.first(), Some(&Misfit::LacksFeature("avx2".into())));
}

#[test]
fn sentences_have_an_end() {
    let features: Vec<_> = (0..9)
        .map(|number| json!({"name": format!("feature{number}")}))
        .collect();
    let manifest = json!({"domain": {"cpu": {"features": features}}});
    let (plain, none) = (labels(&[]), facts(&[]));
    let long = "n".repeat(253);
    let names = [format!("{long}1"), format!("{long}2")];
    let nodes = names.each_ref().map(|name| NodeView {
        name,
        labels: Some(&plain),
        facts: Some(&none),
        ..NodeView::default()
    });
    let misfit_text = fit(&needs(&manifest), &spec(&manifest), &Rules::default(), &nodes).sentence();
    assert!(
        misfit_text.len() < 1100 && misfit_text.ends_with("2 lack the CPU feature feature5, and 3 more reasons"),
        "{misfit_text}"
    );
}

#[test]
fn a_model_is_missing_for_a_reason() {
    let cpu = |model: &str| json!({"domain": {"cpu": {"model": model}}});
    let (plain, rich) = (labels(&[]), facts(&[]));
    let labelled = labels(&[("cpu-model.node.kubevirt.io/Nehalem-IBRS", "true")]);
    for (model, labels, expected) in [
        (
            "qemu64",
            &plain,
            "1 node does not offer the CPU model qemu64, which is obsolete (a)",
        ),
        (
            "qemu64-v1",
            &plain,
            "1 node does not offer the CPU model qemu64-v1, which is obsolete (a)",
        ),
        (
            "Haswell",
            &plain,
            "1 node lacks the CPU model Haswell because of missing avx2, bmi1 (a)",
        ),
        ("Itanium", &plain, "1 node lacks the CPU model Itanium (a)"),
        (
            "Nehalem",
            &plain,
            "1 node lacks the label cpu-model.node.kubevirt.io/Nehalem despite having the labelled property (a)",
        ),
        (
            "Nehalem-v2",
            &labelled,
            "1 node offers the CPU model Nehalem-v2 only under the name Nehalem-IBRS (a)",
        ),
    ] {
        assert_eq!(
            misfit_text(&cpu(model), labels, &rich),
            format!("no node can run the virtual machine: {expected}")
        );
    }
    let unknown = NodeView {
        labels: Some(&plain),
        ..NodeView::default()
    };
    assert_eq!(reasons(&cpu("Nehalem"), unknown), ["CPUModelMissing"]);
}

#[test]
fn missing_features_are_distinguished_from_minimum() {
    let manifest = json!({"domain": {"cpu": {"features": [{"name": "sse2"}]}}});
    let plain = labels(&[]);
    let whole = labels(&[("cpu-minimum.node.drydock.dev/Penryn", "true")]);
    let no_node = "no node can run the virtual machine: 1 node lacks";
    assert_eq!(
        misfit_text(&manifest, &plain, &facts(&[])),
        format!("{no_node} the CPU feature sse2 (a)")
    );
    assert_eq!(
        misfit_text(&manifest, &plain, &facts(&["sse2"])),
        format!(
            "{no_node} a part of the minimum CPU model Penryn because of missing apic, clflush, cmov, cx16 and 24 \
             more (a)"
        )
    );
    let all_but_one: Vec<&str> = PENRYN.into_iter().filter(|&name| name != "ssse3").collect();
    assert_eq!(
        misfit_text(&manifest, &plain, &facts(&all_but_one)),
        format!("{no_node} a part of the minimum CPU model Penryn because of missing ssse3 (a)")
    );
    assert_eq!(
        misfit_text(&manifest, &plain, &facts(&PENRYN)),
        format!("{no_node} the label cpu-minimum.node.drydock.dev/Penryn despite having the labelled property (a)")
    );
    let unknown = NodeView {
        labels: Some(&plain),
        ..NodeView::default()
    };
    assert_eq!(reasons(&manifest, unknown), ["CPUMinimumMissing"]);
    assert_eq!(
        misfit_text(&manifest, &whole, &facts(&["sse2"])),
        "1 node could run the virtual machine"
    );
    assert_eq!(
        misfit_text(&manifest, &whole, &facts(&[])),
        format!("{no_node} the CPU feature sse2 (a)"),
        "labels that are older than the facts"
    );
}

#[test]
fn a_feature_of_the_minimum_cannot_be_forbidden() {
    let manifest = json!({"domain": {"cpu": {"features": [{"name": "sse2", "policy": "forbid"}]}}});
    let whole = labels(&[("cpu-minimum.node.drydock.dev/Penryn", "true")]);
    for labels in [&labels(&[]), &whole] {
        let node = NodeView {
            labels: Some(labels),
            ..NodeView::default()
        };
        assert_eq!(reasons(&manifest, node.clone()), ["CPUMinimumForbidden"]);
        // The scheduler finds no node either.
        let met = |expression| affinity::meets(expression, labels.get(&expression.key).map(String::as_str));
        assert!(!needs(&manifest).expressions.iter().all(met));
    }
}

#[test]
fn machine_types_are_matched_in_full() {
    let machine = |name: &str| json!({"domain": {"machine": {"type": name}}});
    let (rich, offered) = (facts(&[]), labels(&[("machine-type.node.kubevirt.io/q35", "true")]));
    for (name, expected) in [
        ("q35", "1 node could run the virtual machine"),
        ("pc-q35-10.0", "1 node could run the virtual machine"),
        ("pc-q35-6.2", "1 node could run the virtual machine"),
        (
            "pc-q35-99.0",
            "no node can run the virtual machine: 1 node lacks the machine type pc-q35-99.0 (a)",
        ),
        (
            "pc-i440fx-10.0",
            "no node can run the virtual machine: 1 node lacks the machine type pc-i440fx-10.0 (a)",
        ),
    ] {
        assert_eq!(misfit_text(&machine(name), &offered, &rich), expected, "{name}");
    }
}

#[test]
fn each_unmet_node_requirement_is_a_distinct_reason() {
    let manifest = json!({
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
        "domain": {"memory": {"guest": "1Gi"}},
    });
    let (rich, good) = (facts(&[]), labels(&[("disk", "ssd"), ("zone", "a")]));
    let node = || NodeView {
        name: "a",
        labels: Some(&good),
        facts: Some(&rich),
        shares: Some(5),
        ..NodeView::default()
    };
    assert_eq!(reasons(&manifest, node()), [""; 0]);
    for (key, value, reason) in [
        ("disk", None, "NodeSelectorNotMet"),
        ("disk", Some("hdd"), "NodeSelectorNotMet"),
        ("zone", None, "NodeAffinityNotMet"),
        (SCHEDULABLE, None, "NoAgent"),
        (SCHEDULABLE, Some("false"), "NodeNotReadyForGuests"),
        (GUEST_NETWORK, Some("false"), "NoGuestNetwork"),
        (ARCHITECTURE, Some("arm64"), "ArchitectureDiffers"),
        (OBSOLETE_HOST_MODEL, Some("true"), "HostModelObsolete"),
    ] {
        let mut labels = good.clone();
        labels.remove(key);
        labels.extend(value.map(|value| (key.to_owned(), value.to_owned())));
        let node = NodeView {
            labels: Some(&labels),
            ..node()
        };
        assert_eq!(reasons(&manifest, node), [reason], "{key}={value:?}");
    }
    let small = |cpu: &str, memory: &str| -> BTreeMap<String, Quantity> {
        [("cpu", cpu), ("memory", memory), ("ephemeral-storage", "100Gi")]
            .map(|(name, amount)| (name.into(), Quantity(amount.into())))
            .into()
    };
    for (has, expected) in [
        (small("1", "2Gi"), &[][..]),
        (small("50m", "2Gi"), &["NodeTooSmall"]),
        (small("1", "1Gi"), &["NodeTooSmall"]),
        (BTreeMap::new(), &[]),
    ] {
        let node = NodeView {
            allocatable: Some(&has),
            ..node()
        };
        assert_eq!(reasons(&manifest, node), expected, "{has:?}");
    }
    let none = NodeView {
        shares: Some(0),
        ..node()
    };
    assert_eq!(reasons(&manifest, none), ["NoVirtualization"]);
}

#[test]
fn taints_exclude_a_node_unless_tolerated() {
    let good = labels(&[]);
    let tolerating = |toleration: Value| json!({"tolerations": [toleration], "domain": {}});
    let cordon = "node.kubernetes.io/unschedulable";
    let nothing = json!({"key": "other"});
    for (tolerations, key, effect, cordoned, expected) in [
        (&nothing, "x", "NoSchedule", false, &["TaintNotTolerated"][..]),
        (&nothing, "x", "NoExecute", false, &["TaintNotTolerated"]),
        (&nothing, "x", "PreferNoSchedule", false, &[]),
        (&nothing, cordon, "NoSchedule", true, &["NodeUnschedulable"]),
        (&nothing, "x", "PreferNoSchedule", true, &["NodeUnschedulable"]),
        (
            &json!({"key": "x", "operator": "Exists"}),
            "x",
            "NoSchedule",
            false,
            &[],
        ),
        (&json!({"key": "x"}), "x", "NoSchedule", false, &[]),
        (
            &json!({"key": "x", "value": "v"}),
            "x",
            "NoSchedule",
            false,
            &["TaintNotTolerated"],
        ),
        (
            &json!({"key": "x", "effect": "NoExecute"}),
            "x",
            "NoSchedule",
            false,
            &["TaintNotTolerated"],
        ),
        (&json!({"operator": "Exists"}), cordon, "NoSchedule", true, &[]),
        (
            &json!({"key": "x", "operator": "Likes"}),
            "x",
            "NoSchedule",
            false,
            &["TaintNotTolerated"],
        ),
    ] {
        let taints = [taint(key, effect)];
        let node = NodeView {
            labels: Some(&good),
            taints: &taints,
            cordoned,
            ..NodeView::default()
        };
        assert_eq!(
            reasons(&tolerating(tolerations.clone()), node),
            expected,
            "{tolerations} {key}:{effect}"
        );
    }
}

#[test]
fn thousand_shares_are_read_in_kubernetes_notation() {
    for (written, shares) in [("1k", Some(1000)), ("7", Some(7)), ("0", Some(0))] {
        let node: k8s_openapi::api::core::v1::Node = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a"}, "status": {"allocatable": {"devices.kubevirt.io/kvm": written}},
        }))
        .unwrap();
        assert_eq!(NodeView::of(&node, None).shares, shares, "{written}");
    }
}

#[test]
fn volume_that_other_nodes_can_use_is_a_reason() {
    let manifest = json!({"domain": {}});
    let mut needs = needs(&manifest);
    let nodes =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]});
    needs.volumes = vec![BoundVolume {
        claim: "data".into(),
        nodes: serde_json::from_value(nodes).unwrap(),
    }];
    let (other, same) = (labels(&[("zone", "a")]), labels(&[("zone", "b")]));
    let views = [("a", &other), ("b", &same)].map(|(name, labels)| NodeView {
        name,
        labels: Some(labels),
        ..NodeView::default()
    });
    let found = fit(&needs, &spec(&manifest), &Rules::default(), &views);
    assert_eq!(found.fits, ["b"]);
    assert_eq!(found.reasons(), "1 node cannot use the volume of the claim data (a)");
    assert_eq!(found.first().map(Misfit::reason), Some("VolumeNotAccessible"));
}
