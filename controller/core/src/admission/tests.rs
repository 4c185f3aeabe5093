//! Tests of admission, by topic.

mod annotations;
mod changes;
mod filled_in;
mod manifests;
mod names;
mod values;
mod whole_schema;

use serde_json::{Value, json};

use super::{AdmittedKind, review, sentence};

/// Parses a manifest as users write it.
fn manifest(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

/// Returns a valid instance.
fn instance() -> Value {
    manifest(
        "
        apiVersion: kubevirt.io/v1
        kind: VirtualMachineInstance
        metadata: {name: vm, namespace: shop}
        spec:
          domain:
            memory: {guest: 64Mi}
            devices:
              disks: [{name: root, disk: {bus: virtio}}]
              interfaces: [{name: default, masquerade: {}}]
          networks: [{name: default, pod: {}}]
          volumes: [{name: root, containerDisk: {image: example.org/disk}}]
        ",
    )
}

/// Puts a value into an object, at a JSON pointer whose parents exist.
fn put(object: &mut Value, pointer: &str, value: Value) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}")) {
        Value::Object(fields) => {
            fields.insert(name.into(), value);
        }
        Value::Array(values) => match name.parse::<usize>() {
            Ok(index) => values[index] = value,
            Err(_) => values.push(value),
        },
        other => panic!("{parent} is {other}"),
    }
}

/// Returns a VirtualMachine with the template of this instance.
fn machine(mut instance: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "shop"},
        "spec": {"runStrategy": "Always", "template": {"metadata": {}, "spec": instance["spec"].take()}},
    })
}

fn refusal_text(object: &Value, kind: AdmittedKind) -> String {
    sentence(&review(object, kind))
}
