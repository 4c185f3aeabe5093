//! The selectors that a manifest results in.

use serde_json::json;

use super::*;

fn selects(value: &Value, key: &str) -> bool {
    needs(value).node_selector.get(key).map(String::as_str) == Some("true")
}

fn absent(needs: &Requirements) -> Vec<&str> {
    let absent = needs
        .expressions
        .iter()
        .filter(|expression| expression.operator == "DoesNotExist");
    absent.map(|expression| expression.key.as_str()).collect()
}

#[test]
fn a_cpu_becomes_selectors() {
    let named = json!({"domain": {"cpu": {"model": "Nehalem", "features": [
        {"name": "avx2"}, {"name": "sse2", "policy": "require"}, {"name": "aes", "policy": "optional"},
        {"name": "smep", "policy": "force"}, {"name": "svm", "policy": "forbid"}, {"name": "vmx", "policy": "disable"},
    ]}, "devices": {}}});
    assert!(selects(&named, "cpu-model.node.kubevirt.io/Nehalem"));
    assert!(selects(&named, "cpu-feature.node.kubevirt.io/avx2"));
    assert!(
        selects(&named, "cpu-minimum.node.drydock.dev/Penryn"),
        "sse2 has no label of its own"
    );
    for unnamed in ["sse2", "aes", "smep", "svm", "vmx"] {
        assert!(
            !selects(&named, &format!("cpu-feature.node.kubevirt.io/{unnamed}")),
            "{unnamed}"
        );
    }
    assert_eq!(absent(&needs(&named)), ["cpu-feature.node.kubevirt.io/svm"]);
    for (cpu, expected) in [
        (json!({}), &[OBSOLETE_HOST_MODEL][..]),
        (json!({"model": ""}), &[OBSOLETE_HOST_MODEL]),
        (json!({"model": "host-model"}), &[OBSOLETE_HOST_MODEL]),
        (json!({"model": "host-passthrough"}), &[]),
        (json!({"model": "max"}), &[]),
        (json!({"model": "Nehalem"}), &[]),
    ] {
        assert_eq!(absent(&needs(&json!({"domain": {"cpu": cpu}}))), expected, "{cpu}");
    }
}

#[test]
fn configured_cpu_model_applies_to_guests_without_a_model() {
    let configuration = Configuration {
        default_cpu_model: Some("Nehalem".into()),
        ..Configuration::default()
    };
    let of = |cpu: Value| {
        let needs = requirements(
            &spec(&json!({"domain": {"cpu": cpu}})),
            &configuration,
            &Minimum::default(),
        );
        (needs.model, needs.host_model)
    };
    assert_eq!(of(json!({})), (Some("Nehalem".into()), false));
    assert_eq!(of(json!({"model": "host-model"})), (None, true));
}

#[test]
fn guest_without_a_model_is_selected_per_architecture_default() {
    for (architecture, use_emulation, host_model) in [
        ("amd64", false, true),
        ("s390x", false, true),
        ("s390x", true, false),
        ("arm64", false, false),
        ("arm64", true, false),
    ] {
        let configuration = Configuration {
            use_emulation,
            ..Configuration::default()
        };
        let value = json!({"architecture": architecture, "domain": {}});
        let needs = requirements(&spec(&value), &configuration, &Minimum::default());
        assert_eq!(
            (needs.host_model, needs.model),
            (host_model, None),
            "{architecture} {use_emulation}"
        );
    }
}

#[test]
fn a_first_version_is_selected_by_the_name_that_nodes_offer() {
    let first = json!({"domain": {"cpu": {"model": "Nehalem-v1"}}});
    assert!(selects(&first, "cpu-model.node.kubevirt.io/Nehalem"));
    assert_eq!(needs(&first).model.as_deref(), Some("Nehalem-v1"));
    assert!(selects(
        &json!({"domain": {"cpu": {"model": "Nehalem-v2"}}}),
        "cpu-model.node.kubevirt.io/Nehalem-v2"
    ));
}

#[test]
fn only_amd64_has_a_minimum() {
    let on = |architecture: &str| json!({"architecture": architecture, "domain": {"cpu": {"model": "host-model", "features": [{"name": "msa"}]}}});
    let minimum = Minimum {
        model: "least".into(),
        features: ["msa".to_owned()].into(),
    };
    let selector = |value: &Value| requirements(&spec(value), &Configuration::default(), &minimum).node_selector;
    let (amd, ibm) = (selector(&on("amd64")), selector(&on("s390x")));
    assert!(
        amd.contains_key("cpu-minimum.node.drydock.dev/least") && !amd.contains_key("cpu-feature.node.kubevirt.io/msa")
    );
    assert!(
        ibm.contains_key("cpu-feature.node.kubevirt.io/msa") && !ibm.contains_key("cpu-minimum.node.drydock.dev/least")
    );
    assert_eq!(ibm[ARCHITECTURE], "s390x");
}

#[test]
fn computed_selector_cannot_be_overridden() {
    let own = json!({"nodeSelector": {SCHEDULABLE: "false", ARCHITECTURE: "arm64", "zone": "a"}, "domain": {}});
    let selector = needs(&own).node_selector;
    assert_eq!(
        (selector[SCHEDULABLE].as_str(), selector[ARCHITECTURE].as_str()),
        ("true", "amd64")
    );
    assert_eq!(selector["zone"], "a");
}

#[test]
fn guest_with_a_network_requires_a_guest_network_node() {
    for (devices, expected) in [
        (json!({"interfaces": [{"name": "default"}]}), true),
        (json!({}), true),
        (json!({"autoattachPodInterface": false}), false),
    ] {
        assert_eq!(
            selects(&json!({"domain": {"devices": devices}}), GUEST_NETWORK),
            expected,
            "{devices}"
        );
    }
}

#[test]
fn machine_type_versions_are_selected_by_family() {
    for (machine, label) in [
        ("q35", "q35"),
        ("pc-q35-10.0", "q35"),
        ("pc-q35-6.2", "q35"),
        ("pc-i440fx-2.4", "pc"),
        ("virt-9.2", "virt"),
        ("s390-ccw-virtio-9.1", "s390-ccw-virtio"),
        ("microvm", "microvm"),
        ("pc-q35-next", "pc-q35-next"),
    ] {
        let value = json!({"domain": {"machine": {"type": machine}}});
        assert!(
            selects(&value, &format!("machine-type.node.kubevirt.io/{label}")),
            "{machine}"
        );
    }
    let none = needs(&json!({"domain": {"machine": {"type": ""}}})).node_selector;
    assert!(!none.keys().any(|key| key.starts_with(MACHINE_TYPE)));
}
