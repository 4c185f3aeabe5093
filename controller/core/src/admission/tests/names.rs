//! Admitted names, and the names derived from them: of pods, their volumes, labels and PDBs, members of sets, and
//! migrations.

use std::{collections::BTreeMap, sync::Arc};

use drydock_api::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, names::EVACUATION_PREFIX,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::{Strategy, prop, prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::{
    super::{
        AdmittedKind,
        migration_requests::prepared,
        rules::name_rules::{is_dns_label, is_dns_subdomain, is_label_value},
    },
    instance, machine, refusal_text,
};
use crate::{
    configuration::Configuration,
    eviction::own_pdb,
    label_keys,
    launcher_pod::{PodInput, TargetPodInput, host_uuid, pod, suffix, target_pod},
    machine::instance_of::instance_of,
    minimum_cpu::Minimum,
    placement::requirements,
    replica_set,
};

/// Object names: DNS subdomains of up to 253 characters, as the API server accepts them.
fn names() -> impl Strategy<Value = String> {
    let parts = prop::collection::vec("[a-z0-9]([a-z0-9-]{0,80}[a-z0-9])?", 1..8);
    (parts, 1_usize..=253).prop_map(|(parts, longest)| {
        let name: String = parts.join(".").chars().take(longest).collect();
        name.trim_end_matches(['.', '-']).to_owned()
    })
}

/// Volumes with names of the maximum length, and with the names of the pod's own volumes.
fn volumes() -> Value {
    let long = "v".repeat(63);
    json!([
        {"name": "root", "containerDisk": {"image": "example.org/disk"}},
        {"name": "run", "emptyDisk": {"capacity": "1Gi"}},
        {"name": "disks", "emptyDisk": {"capacity": "1Gi"}},
        {"name": long, "cloudInitNoCloud": {"secretRef": {"name": "s".repeat(253)}, "networkDataSecretRef": {"name": "n"}}},
        {"name": format!("{}0", "v".repeat(62)), "persistentVolumeClaim": {"claimName": "c".repeat(253)}},
    ])
}

fn check_pod(pod: &Pod) -> Result<(), proptest::test_runner::TestCaseError> {
    let name = pod.metadata.name.as_deref().unwrap();
    prop_assert!(is_dns_subdomain(name), "{}", name);
    for (key, value) in pod.metadata.labels.iter().flatten() {
        prop_assert!(label_keys::is_valid(key) && is_label_value(value), "{}={}", key, value);
    }
    for key in pod.metadata.annotations.iter().flatten().map(|(key, _)| key) {
        prop_assert!(label_keys::is_valid(key), "{}", key);
    }
    let spec = pod.spec.as_ref().unwrap();
    let hostname = spec.hostname.as_deref().unwrap();
    prop_assert!(is_dns_label(hostname), "{}", hostname);
    let mut volumes: Vec<&str> = spec
        .volumes
        .iter()
        .flatten()
        .map(|volume| volume.name.as_str())
        .collect();
    let count = volumes.len();
    volumes.sort_unstable();
    volumes.dedup();
    prop_assert_eq!(volumes.len(), count);
    for volume in volumes {
        prop_assert!(is_dns_label(volume), "{}", volume);
    }
    Ok(())
}

/// Checks everything that is created for an admitted instance.
fn check_instance(
    mut made: VirtualMachineInstance,
    migration: &str,
) -> Result<(), proptest::test_runner::TestCaseError> {
    made.metadata.uid = Some("5d307ca9-b3ef-428c-8861-06e72d69f223".into());
    let name = made.metadata.name.clone().unwrap();
    let object = json!({"metadata": {"name": name, "labels": made.metadata.labels}, "spec": made.spec});
    prop_assert_eq!(refusal_text(&object, AdmittedKind::Instance), "");
    let requirements = requirements(&made.spec, &Configuration::default(), &Minimum::default());
    let (suffix, host_uuid) = (suffix(migration), host_uuid(migration));
    let input = PodInput {
        instance: &made,
        image: "example.org/launcher",
        requirements: &requirements,
        claims: &BTreeMap::new(),
        suffix: &suffix,
        host_uuid: &host_uuid,
        emulation: false,
        arriving: None,
    };
    let target = TargetPodInput {
        uid: "4b2b0a54-4e0a-4a4b-9d9a-0f4d0c3ab001",
        name: migration,
        rejected: 0,
        avoided: &[],
        by_manifest: false,
        leaving: &[],
    };
    for mut pod in [pod(&input), target_pod(&input, target)] {
        check_pod(&pod)?;
        pod.metadata.uid = Some("p".into());
        let pdb = own_pdb::of(&pod).unwrap();
        prop_assert!(is_dns_subdomain(pdb.metadata.name.as_deref().unwrap()));
    }
    let refused_for = json!({"metadata": {"name": migration}, "spec": {"vmiName": name}});
    prop_assert_eq!(refusal_text(&refused_for, AdmittedKind::Migration), "");
    let labels = prepared(&refused_for).unwrap()["metadata"]["labels"].clone();
    prop_assert_eq!(labels, json!({"kubevirt.io/vmi-name": name}));
    let evacuation = format!("{EVACUATION_PREFIX}{}", crate::launcher_pod::suffix(migration));
    prop_assert!(is_dns_subdomain(&evacuation) && is_label_value(&evacuation));
    Ok(())
}

/// Checks that a name is refused only because of its length, which the refusal states.
fn check_refusal(refusal_text: &str, name: &str) -> Result<(), proptest::test_runner::TestCaseError> {
    prop_assert!(name.len() > 63, "{}: {}", name, refusal_text);
    prop_assert!(
        refusal_text.starts_with("metadata.name: `") && refusal_text.contains("at most 63 characters"),
        "{}",
        refusal_text
    );
    Ok(())
}

proptest! {
    #[test]
    fn names_derived_from_admitted_names_are_valid(name in names(), migration in names()) {
        let mut object = instance();
        object["metadata"]["name"] = json!(name);
        object["spec"]["volumes"] = volumes();
        let refused = refusal_text(&object, AdmittedKind::Instance);
        let mut machine = machine(object.clone());
        machine["metadata"]["name"] = json!(name);
        prop_assert_eq!(&refusal_text(&machine, AdmittedKind::Machine), &refused);
        if refused.is_empty() {
            check_instance(serde_json::from_value(object).unwrap(), &migration)?;
            let machine: VirtualMachine = serde_json::from_value(machine).unwrap();
            check_instance(instance_of(&machine), &migration)?;
        } else {
            check_refusal(&refused, &name)?;
        }
    }

    #[test]
    fn members_of_an_admitted_set_are_admitted(name in names()) {
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": instance()["spec"]});
        let set = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": "set-uid"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        });
        let refused = refusal_text(&set, AdmittedKind::ReplicaSet);
        if !refused.is_empty() {
            return check_refusal(&refused, &name);
        }
        let set: VirtualMachineInstanceReplicaSet = serde_json::from_value(set).unwrap();
        let instances: [Arc<VirtualMachineInstance>; 0] = [];
        let plan = replica_set::plan(&replica_set::ObservedReplicaSet {
            now: Timestamp::UNIX_EPOCH,
            set: &set,
            instances: &instances,
            is_deleted: &|_| false,
            is_taken: &|_| false,
            confirmed: true,
            failure: None,
        });
        prop_assert_eq!(plan.create.len(), 3);
        for member in plan.create {
            check_instance(replica_set::instance_of(&set, &member), &name)?;
        }
    }
}
