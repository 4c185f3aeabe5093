//! Annotations that are refused or admitted.

use serde_json::{Value, json};

use super::{
    super::{AdmittedKind, VERSION, annotations::REFUSED},
    instance, machine, refusal_text,
};

fn annotated(mut object: Value, at: &str, key: &str, value: &str) -> Value {
    let metadata = object.pointer_mut(at).unwrap().as_object_mut().unwrap();
    metadata.insert("annotations".into(), json!({(key): value}));
    object
}

/// Returns a replica set with the machine's template.
fn replica_set(machine: &Value) -> Value {
    let mut template = machine["spec"]["template"].clone();
    template["metadata"]["labels"] = json!({"app": "shop"});
    json!({
        "metadata": {"name": "set", "namespace": "shop"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "shop"}}, "template": template},
    })
}

#[test]
fn annotations_that_are_not_carried_out_are_refused() {
    for key in REFUSED {
        let refused = format!("annotations[{key}] is not supported by Drydock {VERSION}");
        let object = annotated(instance(), "/metadata", key, r#"[{"image": "example.org/hook"}]"#);
        assert_eq!(
            refusal_text(&object, AdmittedKind::Instance),
            format!("metadata.{refused}")
        );
        let inner = annotated(machine(instance()), "/spec/template/metadata", key, "true");
        let expected = format!("spec.template.metadata.{refused}");
        assert_eq!(refusal_text(&inner, AdmittedKind::Machine), expected);
        assert_eq!(refusal_text(&replica_set(&inner), AdmittedKind::ReplicaSet), expected);
        for nothing in ["", "false", "[]", " "] {
            let object = annotated(instance(), "/metadata", key, nothing);
            assert_eq!(refusal_text(&object, AdmittedKind::Instance), "", "{key}: {nothing:?}");
        }
        // A machine's own annotations are not those of its instances.
        let outer = annotated(machine(instance()), "/metadata", key, "true");
        assert_eq!(refusal_text(&outer, AdmittedKind::Machine), "", "{key}");
    }
}

#[test]
fn harmless_annotations_are_kept() {
    for (key, value) in [
        ("vm.kubevirt.io/os", "fedora"),
        ("vm.kubevirt.io/validations", "[{}]"),
        ("os.template.kubevirt.io/fedora", "true"),
        ("name.os.template.kubevirt.io/fedora", "Fedora"),
        ("kubevirt.io/latest-observed-api-version", "v1"),
        ("kubevirt.io/memfd", "false"),
        ("kubevirt.io/allow-pod-bridge-network-live-migration", "true"),
        ("sidecar.istio.io/inject", "true"),
        ("descheduler.alpha.kubernetes.io/evict", "true"),
        ("drydock.dev/evacuation-fallback", "restart"),
        ("example.org/anything", "true"),
    ] {
        assert_eq!(
            refusal_text(&annotated(instance(), "/metadata", key, value), AdmittedKind::Instance),
            "",
            "{key}"
        );
        let inner = annotated(machine(instance()), "/spec/template/metadata", key, value);
        assert_eq!(refusal_text(&inner, AdmittedKind::Machine), "", "{key}");
    }
}
