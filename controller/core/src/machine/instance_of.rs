//! Creation of an instance from a machine's template, and the record of which template it was created from.

use std::collections::BTreeMap;

use drydock_api::kubevirt::{
    VirtualMachine, VirtualMachineInstance,
    machine::InstanceTemplate,
    names::{FINALIZER, TEMPLATE, VM_GENERATION, VM_NAME},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Returns the instance of a machine: its template under its name. Firmware UUID and MAC addresses are derived from
/// namespace and name, so they are the same at each start.
pub fn instance_of(machine: &VirtualMachine) -> VirtualMachineInstance {
    let name = machine.metadata.name.clone().unwrap_or_default();
    let mut instance = of_template(&machine.spec.template);
    let labels = instance.metadata.labels.get_or_insert_default();
    labels.insert(VM_NAME.into(), name.clone());
    let annotations = instance.metadata.annotations.get_or_insert_default();
    annotations.insert(TEMPLATE.into(), template_fingerprint(&machine.spec.template));
    if let Some(generation) = machine.metadata.generation {
        annotations.insert(VM_GENERATION.into(), generation.to_string());
    }
    instance.metadata.name = Some(name.clone());
    instance.metadata.namespace.clone_from(&machine.metadata.namespace);
    instance.metadata.owner_references = Some(vec![owner("VirtualMachine", name, machine.metadata.uid.clone())]);
    instance
}

/// Returns an instance without a name: labels, annotations and spec of a template. The instance already has the
/// finalizer that its pods require, which saves a write.
pub(crate) fn of_template(template: &InstanceTemplate) -> VirtualMachineInstance {
    let given = template.metadata.clone().unwrap_or_default();
    VirtualMachineInstance {
        metadata: ObjectMeta {
            labels: given.labels,
            annotations: given.annotations,
            finalizers: Some(vec![FINALIZER.into()]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Returns the owner reference that makes an object of KubeVirt's API the controller of an instance. Foreground
/// deletion of the object waits for the instance.
pub(crate) fn owner(kind: &str, name: String, uid: Option<String>) -> OwnerReference {
    OwnerReference {
        api_version: "kubevirt.io/v1".into(),
        kind: kind.into(),
        name,
        uid: uid.unwrap_or_default(),
        controller: Some(true),
        // Finalizers ensure the order; `true` would require permissions on finalizers in some clusters.
        block_owner_deletion: None,
    }
}

/// Returns the machine's generation from which the instance was created.
pub fn made_of_generation(instance: &VirtualMachineInstance) -> Option<i64> {
    let annotations: &BTreeMap<_, _> = instance.metadata.annotations.as_ref()?;
    annotations.get(VM_GENERATION)?.parse().ok()
}

/// Returns a hash that distinguishes templates. The machine's generation does not: it also changes with the run
/// strategy.
pub fn template_fingerprint(template: &InstanceTemplate) -> String {
    // Maps are sorted and fields are ordered, so equal templates have equal serializations.
    let text = serde_json::to_vec(template).unwrap_or_default();
    format!("{:016x}", fingerprint(&text))
}

/// Returns the FNV-1a hash of 64 bits: the same on every machine and in every version, which the standard library's
/// hasher does not guarantee.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn fingerprint_matches_the_published_test_values() {
        assert_eq!(fingerprint(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fingerprint(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
