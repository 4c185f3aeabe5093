//! Where a virtual machine can run: the requirements on its node, why it fits none, and which other nodes it could
//! move to while it runs.
//!
//! ```text
//!  manifest, configuration ─▶ requirements() ─▶ selectors of the pod ─▶ the scheduler
//!                                   │
//!  nodes, their full CPU sets ──────┴─▶ fit() ─▶ nodes that fit; for each reason, those that do not
//!                                   └─▶ migration_targets() ─▶ the same, by the guest's actual CPU
//! ```
//!
//! Selectors are by labels, which omit the features that every node is expected to have; the reasons come from the full
//! sets in the Hypervisors. A node fits only if both agree: labels that are skipped or outdated are then the reason.
//! [`mask`](crate::mask) explains how nodes' masks affect running guests.
//!
//! Free resources of a node, pod affinity and topology spread are evaluated as the scheduler does ([`room`],
//! [`neighbors`]), and guests that leave a node at the same time compete for room ([`pack`]). Unknown facts never rule
//! out a node.

mod affinity;
mod circumstances;
mod fit;
mod masks;
mod misfit;
mod models;
mod neighbors;
mod offer;
mod pack;
mod pod;
pub(crate) mod requirements;
pub mod room;
mod targets;

use drydock_api::{
    kubevirt::{VirtualMachineInstanceSpec, domain_spec::FeaturePolicy},
    labels::{
        CPU_FEATURE, CPU_MINIMUM, CPU_MODEL, GUEST_NETWORK, MACHINE_TYPE, OBSOLETE_HOST_MODEL, SCHEDULABLE, TRUE,
    },
};
use k8s_openapi::api::core::v1::NodeSelectorRequirement;

use crate::{
    configuration::Configuration,
    default_cpu::{HOST_MODEL, default_model, is_hosts_own},
    launcher_pod::{Demand, requests},
    minimum_cpu::Minimum,
    obsolete::ObsoleteModels,
};

pub use affinity::keeps_off;
pub use circumstances::circumstances;
pub use fit::{Fit, NodeView, fit};
pub use masks::{admit_masked, lift_masks};
pub use misfit::Misfit;
pub use models::admit_partial_models;
pub use neighbors::{Neighbors, Newcomer, PodMoves, PodName, Rules, name_of, prune_affinity};
pub use pack::{DepartingGuest, DepartureOutlook, PackingResult, RulesOf, pack};
pub use pod::could_take;
pub use requirements::{BoundVolume, Requirements};
pub use room::{NodeRoom, PodShare, ResourceAmounts};
pub use targets::{Targets, migration_targets, require_recorded_cpu, target_misfits};

/// Label of a node: its architecture.
const ARCHITECTURE: &str = "kubernetes.io/arch";
/// Label of a node: its own name, set by the kubelet.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Families of machine types: prefix of the versioned names, and the name without a version.
const FAMILIES: [(&str, &str); 4] = [
    ("pc-q35-", "q35"),
    ("pc-i440fx-", "pc"),
    ("virt-", "virt"),
    ("s390-ccw-virtio-", "s390-ccw-virtio"),
];

/// Returns the architecture of a virtual machine, by its Kubernetes name.
pub fn architecture(spec: &VirtualMachineInstanceSpec) -> &str {
    spec.architecture.as_deref().unwrap_or("amd64")
}

/// Returns a virtual machine's requirements on its node. Computed requirements override the manifest's selectors, as
/// in KubeVirt.
///
/// - A machine type selects on the name of its family, `q35` for `pc-q35-9.2`: versions that are deprecated in QEMU
///   have no labels and run all the same, and all versions come with the launcher's image, not with the node. [`fit`]
///   looks up each version in the full sets.
/// - `<model>-v1` is another name of `<model>`, under which nodes offer it.
/// - Without a model, the guest gets the default of its architecture ([`default_model`]).
/// - A feature of the minimum CPU model selects on the label of the whole minimum.
/// - Forbidding a feature of the minimum CPU model results in a selector that no node matches: labels do not show
///   which nodes lack it, and a guest on a node that has it would never start.
pub fn requirements(
    spec: &VirtualMachineInstanceSpec,
    configuration: &Configuration,
    minimum: &Minimum,
) -> Requirements {
    let devices = &spec.domain.devices;
    let mut needs = Requirements {
        node_selector: spec.node_selector.clone(),
        network: !devices.interfaces.is_empty() || devices.autoattach_pod_interface != Some(false),
        machine: spec
            .domain
            .machine
            .as_ref()
            .and_then(|machine| machine.type_.clone().filter(|name| !name.is_empty())),
        obsolete: ObsoleteModels::with(configuration.obsolete_cpu_models.iter().cloned()),
        demand: Demand::of(spec, configuration.use_emulation),
        requests: requests(spec, configuration.use_emulation),
        ..Requirements::default()
    };
    needs.select(ARCHITECTURE, architecture(spec));
    needs.select(SCHEDULABLE, TRUE);
    if needs.network {
        needs.select(GUEST_NETWORK, TRUE);
    }
    if let Some(machine) = needs.machine.clone() {
        needs.select(&machine_key(&machine), TRUE);
    }
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    let model = cpu.model.as_deref().filter(|model| !model.is_empty());
    match model.unwrap_or_else(|| default_model(architecture(spec), configuration)) {
        HOST_MODEL => {
            needs.host_model = true;
            needs.expressions.push(expression(OBSOLETE_HOST_MODEL, "DoesNotExist"));
        }
        model if is_hosts_own(model) => {}
        named => {
            needs.select(&model_key(named), TRUE);
            needs.model = Some(named.into());
        }
    }
    // Only amd64 has a minimum model, and therefore features without labels of their own.
    let implied = |name: &String| architecture(spec) == "amd64" && minimum.features.contains(name);
    let whole = format!("{CPU_MINIMUM}{}", minimum.model);
    for feature in cpu.features {
        let own = format!("{CPU_FEATURE}{}", feature.name);
        match feature.policy.unwrap_or(FeaturePolicy::Require) {
            FeaturePolicy::Require => {
                if implied(&feature.name) {
                    needs.select(&whole, TRUE);
                    needs.minimum.clone_from(&minimum.features);
                } else {
                    needs.select(&own, TRUE);
                }
                needs.features.push(feature.name);
            }
            FeaturePolicy::Forbid if implied(&feature.name) => {
                for operator in ["Exists", "DoesNotExist"] {
                    needs.expressions.push(expression(&whole, operator));
                }
                needs.forbidden_minimum.push(feature.name);
            }
            FeaturePolicy::Forbid => {
                needs.expressions.push(expression(&own, "DoesNotExist"));
                needs.forbidden.push(feature.name);
            }
            FeaturePolicy::Disable => needs.disabled.push(feature.name),
            FeaturePolicy::Force | FeaturePolicy::Optional => {}
        }
    }
    needs
}

/// Returns the label key of nodes with that CPU model.
fn model_key(model: &str) -> String {
    format!("{CPU_MODEL}{}", model.strip_suffix("-v1").unwrap_or(model))
}

/// Returns the label key of nodes with that machine type.
fn machine_key(machine: &str) -> String {
    format!("{MACHINE_TYPE}{}", family(machine))
}

/// Returns a machine type without its version.
fn family(machine: &str) -> &str {
    let versioned = |begin: &str| {
        machine
            .strip_prefix(begin)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    FAMILIES
        .iter()
        .find(|(begin, _)| versioned(begin))
        .map_or(machine, |(_, name)| name)
}

fn expression(key: &str, operator: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: None,
    }
}

/// Selects only these nodes, or none of them, by the label with their names: for properties that no label shows. The
/// expression stays true for a running pod, as names do not change.
fn nodes_by_name(operator: &str, mut names: Vec<String>) -> NodeSelectorRequirement {
    names.sort_unstable();
    NodeSelectorRequirement {
        values: Some(names),
        ..expression(HOSTNAME, operator)
    }
}

#[cfg(test)]
mod tests;
