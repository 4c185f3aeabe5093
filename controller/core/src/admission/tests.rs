//! Tests of admission, by what they are about.

mod annotations;
mod changes;
mod filled_in;
mod manifests;
mod names;
mod values;
mod whole_schema;

use serde_json::{Value, json};

use super::{Kind, review, sentence};

/// A manifest, as people write it.
fn manifest(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

/// An instance of which everything is right.
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

/// Puts a value into an object, at a JSON pointer whose parents are there.
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

/// A VirtualMachine that makes such an instance.
fn machine(mut instance: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "shop"},
        "spec": {"runStrategy": "Always", "template": {"metadata": {}, "spec": instance["spec"].take()}},
    })
}

fn told(object: &Value, kind: Kind) -> String {
    sentence(&review(object, kind))
}
