//! Models that a guest requests without some of their features.

use serde_json::json;

use super::*;
use crate::launcher_pod::{PodInput, pod};

/// Returns a node on which that model lacks these features.
fn node(model_name: &str, blockers: &[&str]) -> NodeFacts {
    let mut facts = facts(&["avx2"]);
    let virtualization = facts.virtualization.as_mut().unwrap();
    Arc::make_mut(&mut virtualization.models).push(model(model_name, None, blockers));
    facts
}

/// Returns the needs of a guest that requests Rapids without `disabled`, in a cluster of these nodes.
fn needs_without(disabled: &[&str], nodes: &[NodeView<'_>]) -> (Requirements, Fit) {
    let features: Vec<_> = disabled
        .iter()
        .map(|name| json!({"name": name, "policy": "disable"}))
        .collect();
    let manifest = json!({"domain": {"cpu": {"model": "Rapids", "features": features}, "devices": {}}});
    let mut needs = needs(&manifest);
    admit_partial_models(&mut needs, nodes.iter().cloned());
    let fit = fit(&needs, &spec(&manifest), &Rules::default(), nodes);
    (needs, fit)
}

const MODEL: &str = "cpu-model.node.kubevirt.io/Rapids";

#[test]
fn disabled_features_are_not_demanded_of_a_node() {
    let (whole, no_tsx, old) = (
        node("Rapids", &[]),
        node("Rapids", &["hle", "rtm"]),
        node("Rapids", &["hle", "rtm", "amx-tile"]),
    );
    let named = |name: &str, more: &[(&str, &str)]| labels(&[&[(HOSTNAME, name)], more].concat());
    let of = [
        named("whole", &[(MODEL, "true")]),
        named("no-tsx", &[]),
        named("old", &[]),
        named("new", &[]),
    ];
    let view = |name, labels, facts| NodeView {
        name,
        labels: Some(labels),
        facts,
        ..NodeView::default()
    };
    let nodes = [
        view("whole", &of[0], Some(&whole)),
        view("no-tsx", &of[1], Some(&no_tsx)),
        view("old", &of[2], Some(&old)),
        view("new", &of[3], None),
    ];
    for (disabled, selected, kept_off, fits) in [
        (&[][..], true, None, &["whole"][..]),
        // The nodes lack other features: the label stays.
        (&["avx2"], true, None, &["whole"]),
        (&["hle"], true, None, &["whole"]),
        (
            &["hle", "rtm"],
            false,
            Some(vec!["old".to_owned()]),
            &["whole", "no-tsx"],
        ),
        (&["hle", "rtm", "amx-tile"], false, None, &["whole", "no-tsx", "old"]),
    ] {
        let (needs, fit) = needs_without(disabled, &nodes);
        assert_eq!(needs.node_selector.contains_key(MODEL), selected, "{disabled:?}");
        let off = needs.expressions.iter().find(|expression| expression.key == HOSTNAME);
        assert_eq!(
            off.and_then(|expression| expression.values.clone()),
            kept_off,
            "{disabled:?}"
        );
        assert!(off.is_none_or(|expression| expression.operator == "NotIn"));
        // An unknown node is admitted to the scheduler only.
        let known: Vec<&str> = fit
            .fits
            .iter()
            .map(String::as_str)
            .filter(|name| *name != "new")
            .collect();
        assert_eq!(known, fits, "{disabled:?}");
    }
    let (_, fit) = needs_without(&["hle", "rtm"], &nodes[2..3]);
    assert_eq!(
        fit.sentence(),
        "no node can run the virtual machine: 1 node lacks the CPU model Rapids because of missing amx-tile (old)"
    );
}

#[test]
fn partial_model_reaches_the_pod_as_names_of_nodes() {
    let (no_tsx, old) = (node("Rapids", &["hle"]), node("Rapids", &["amx-tile"]));
    let (first, second) = (labels(&[(HOSTNAME, "a")]), labels(&[(HOSTNAME, "b")]));
    let view = |labels, facts| NodeView {
        labels: Some(labels),
        facts: Some(facts),
        ..NodeView::default()
    };
    let (requirements, _) = needs_without(&["hle"], &[view(&first, &no_tsx), view(&second, &old)]);
    let instance = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "n", "uid": "u"},
        "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}},
    }))
    .unwrap();
    let made = pod(&PodInput {
        instance: &instance,
        image: "image",
        requirements: &requirements,
        claims: &BTreeMap::new(),
        suffix: "x",
        host_uuid: "u",
        emulation: false,
        arriving: None,
    });
    let text = serde_json::to_string(&made).unwrap();
    assert!(
        text.contains(r#"{"key":"kubernetes.io/hostname","operator":"NotIn","values":["b"]}"#),
        "{text}"
    );
    assert!(!text.contains("cpu-model.node.kubevirt.io"), "{text}");
}

#[test]
fn obsolete_and_foreign_nodes_do_not_make_a_model_partial() {
    let no_tsx = node("Rapids", &["hle"]);
    let mut foreign = labels(&[(HOSTNAME, "z")]);
    foreign.insert(ARCHITECTURE.into(), "s390x".into());
    let view = NodeView {
        labels: Some(&foreign),
        facts: Some(&no_tsx),
        ..NodeView::default()
    };
    let (needs, _) = needs_without(&["hle"], std::slice::from_ref(&view));
    assert!(needs.node_selector.contains_key(MODEL));

    let near = labels(&[(HOSTNAME, "a")]);
    let view = NodeView {
        labels: Some(&near),
        ..view
    };
    let mut needs = Requirements {
        obsolete: ObsoleteModels::with(["Rapids".to_owned()]),
        ..super::needs(&json!({"domain": {"cpu": {
            "model": "Rapids", "features": [{"name": "hle", "policy": "disable"}]}}}))
    };
    admit_partial_models(&mut needs, [view]);
    assert!(needs.node_selector.contains_key(MODEL));
}
