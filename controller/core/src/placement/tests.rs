//! Which nodes can run what, and why not.

mod circumstances;
mod masks;
mod neighbors;
mod pack;
mod partial_models;
mod reasons;
mod room;
mod scheduling;
mod selectors;
mod targets;

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use drydock_api::facts::{CpuModel, HostModel, MachineType, NodeFacts, Usable, VirtType, VirtualizationFacts};
use serde_json::Value;

use super::*;

fn spec(value: &Value) -> VirtualMachineInstanceSpec {
    serde_json::from_value(value.clone()).unwrap()
}

fn needs(value: &Value) -> Requirements {
    requirements(&spec(value), &Configuration::default(), &Minimum::default())
}

/// Returns the labels of a node that accepts virtual machines, plus `more`.
fn labels(more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = [(ARCHITECTURE, "amd64"), (SCHEDULABLE, "true"), (GUEST_NETWORK, "true")];
    own.iter()
        .chain(more)
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

fn model(name: &str, canonical: Option<&str>, blockers: &[&str]) -> CpuModel {
    CpuModel {
        name: name.into(),
        canonical: canonical.map(Into::into),
        usable: if blockers.is_empty() { Usable::Yes } else { Usable::No },
        blockers: blockers.iter().map(|&name| name.into()).collect(),
        ..CpuModel::default()
    }
}

/// Returns a node with KVM on which guests can have these features, Nehalem, EPYC as host model, but not Haswell.
fn facts(features: &[&str]) -> NodeFacts {
    let machine = |name: &str, deprecated| MachineType {
        name: name.into(),
        deprecated,
        ..MachineType::default()
    };
    NodeFacts {
        virtualization: Some(VirtualizationFacts {
            virt_type: VirtType::Kvm,
            vendor: "AMD".into(),
            features: Arc::new(
                BTreeSet::from_iter(features)
                    .into_iter()
                    .map(|&name| name.into())
                    .collect(),
            ),
            models: Arc::new(vec![
                model("Nehalem", Some("Nehalem-v1"), &[]),
                model("Nehalem-v1", None, &[]),
                model("Nehalem-IBRS", Some("Nehalem-v2"), &[]),
                model("Nehalem-v2", None, &[]),
                model("Haswell", None, &["avx2", "bmi1"]),
                model("EPYC", None, &[]),
                model("qemu64", Some("qemu64-v1"), &[]),
            ]),
            machine_types: Arc::new(vec![
                machine("q35", false),
                machine("pc-q35-10.0", false),
                machine("pc-q35-6.2", true),
            ]),
            host_model: Some(HostModel {
                name: "EPYC".into(),
                ..HostModel::default()
            }),
            ..VirtualizationFacts::default()
        }),
        ..NodeFacts::default()
    }
}
