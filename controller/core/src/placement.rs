//! Where a virtual machine can run: what its node must have, why it fits none, and which others
//! could take it while it runs.
//!
//! ```text
//!  manifest, configuration ─▶ requirements() ─▶ selectors of the pod
//!                                   │
//!  nodes, their full CPU sets ──────┴─▶ fit() ─▶ nodes that fit; for each reason, those that do not
//! ```
//!
//! Selectors are by labels, which leave out what every node is expected to have; the reasons are
//! by the full sets in the Hypervisors.

mod affinity;
mod fit;
mod targets;

use std::collections::BTreeMap;

use drydock_api::{
    kubevirt::{VirtualMachineInstanceSpec, domain::FeaturePolicy},
    labels::{
        CPU_FEATURE, CPU_MINIMUM, CPU_MODEL, GUEST_NETWORK, MACHINE_TYPE, OBSOLETE_HOST_MODEL, SCHEDULABLE, TRUE,
    },
};
use k8s_openapi::api::core::v1::NodeSelectorRequirement;

use crate::{configuration::Configuration, minimum::Minimum, obsolete::ObsoleteModels};

pub use fit::{Fit, Misfit, NodeView, fit};
pub use targets::migration_targets;

/// The label that Kubernetes puts on nodes.
const ARCHITECTURE: &str = "kubernetes.io/arch";
/// Machine types that are names for the newest version of themselves: those have labels on every
/// node that can run them. A versioned one comes with the image and is the same on every node.
const UNVERSIONED: [&str; 4] = ["q35", "pc", "virt", "s390-ccw-virtio"];

/// What a virtual machine's node must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// Labels with their values: for the pod's node selector.
    pub node_selector: BTreeMap<String, String>,
    /// For each term of the pod's node affinity.
    pub expressions: Vec<NodeSelectorRequirement>,
    /// The named CPU model, if there is one.
    pub model: Option<String>,
    /// That model counts as obsolete, so no node offers it.
    pub obsolete_model: bool,
    /// Features that the node must have, those of the minimum model among them.
    pub features: Vec<String>,
    /// Features that the node must not have.
    pub forbidden: Vec<String>,
    /// The node's host model must not be an obsolete one.
    pub host_model: bool,
    /// The guest has the pod's network.
    pub network: bool,
}

/// The architecture of a virtual machine, by Kubernetes' name.
pub fn architecture(spec: &VirtualMachineInstanceSpec) -> &str {
    spec.architecture.as_deref().unwrap_or("amd64")
}

/// What the node of a virtual machine must have. What is computed here overrides what the manifest
/// selects, as KubeVirt does it.
pub fn requirements(
    spec: &VirtualMachineInstanceSpec,
    configuration: &Configuration,
    minimum: &Minimum,
) -> Requirements {
    let mut needs = Requirements {
        node_selector: BTreeMap::from([(ARCHITECTURE.to_owned(), architecture(spec).to_owned())]),
        network: !spec.domain.devices.interfaces.is_empty(),
        ..Requirements::default()
    };
    needs.node_selector.extend(
        spec.node_selector
            .iter()
            .map(|(key, value)| (key.clone(), value.clone())),
    );
    let mut select = |key: String| needs.node_selector.insert(key, TRUE.into());
    select(SCHEDULABLE.into());
    if needs.network {
        select(GUEST_NETWORK.into());
    }
    if let Some(machine) = spec
        .domain
        .machine
        .as_ref()
        .and_then(|machine| machine.type_.as_deref())
        && UNVERSIONED.contains(&machine)
    {
        select(format!("{MACHINE_TYPE}{machine}"));
    }
    let cpu = spec.domain.cpu.clone().unwrap_or_default();
    let obsolete = ObsoleteModels::with(configuration.obsolete_cpu_models.iter().cloned());
    match cpu.model.as_deref().unwrap_or("host-model") {
        "host-model" => {
            needs.host_model = true;
            needs.expressions.push(absent(OBSOLETE_HOST_MODEL));
        }
        "host-passthrough" => {}
        named => {
            select(format!("{CPU_MODEL}{named}"));
            needs.obsolete_model = obsolete.lists(named);
            needs.model = Some(named.into());
        }
    }
    // Only amd64 has a minimum, and so features without labels of their own.
    let prunes = architecture(spec) == "amd64";
    for feature in cpu.features {
        let implied = prunes && minimum.features.contains(&feature.name);
        match feature.policy.unwrap_or(FeaturePolicy::Require) {
            FeaturePolicy::Require => {
                select(if implied {
                    format!("{CPU_MINIMUM}{}", minimum.model)
                } else {
                    format!("{CPU_FEATURE}{}", feature.name)
                });
                needs.features.push(feature.name);
            }
            FeaturePolicy::Forbid => {
                // A node with the whole minimum has the feature; of another it cannot be told.
                let key = if implied {
                    format!("{CPU_MINIMUM}{}", minimum.model)
                } else {
                    format!("{CPU_FEATURE}{}", feature.name)
                };
                needs.expressions.push(absent(&key));
                needs.forbidden.push(feature.name);
            }
            FeaturePolicy::Force | FeaturePolicy::Optional | FeaturePolicy::Disable => {}
        }
    }
    needs
}

fn absent(key: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: key.into(),
        operator: "DoesNotExist".into(),
        values: None,
    }
}

#[cfg(test)]
mod tests;
