//! Requirements of a virtual machine on its node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};

use super::room::ResourceAmounts;
use crate::{launcher_pod::resources::Demand, obsolete::ObsoleteModels};

/// A virtual machine's requirements on its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requirements {
    /// Labels with their values, for the pod's node selector.
    pub node_selector: BTreeMap<String, String>,
    /// Expressions for each term of the pod's node affinity.
    pub expressions: Vec<NodeSelectorRequirement>,
    /// The named CPU model, if any.
    pub model: Option<String>,
    /// Models that no node offers.
    pub obsolete: ObsoleteModels,
    /// Features for which nodes' masks do not count: the guest is running, and its own node masks them too.
    pub lifted: BTreeSet<String>,
    /// Features that the node must have, including those of the minimum model.
    pub features: Vec<String>,
    /// Features of the model that are disabled for the guest, so that its node need not have them.
    pub disabled: Vec<String>,
    /// Features of the minimum CPU model, if the node must have all of them.
    pub minimum: BTreeSet<String>,
    /// Features that the node must not have.
    pub forbidden: Vec<String>,
    /// Features of the minimum CPU model that the manifest forbids: labels cannot show that a node lacks them, so the
    /// virtual machine fits no node.
    pub forbidden_minimum: Vec<String>,
    /// The machine type, if set.
    pub machine: Option<String>,
    /// Whether the node's host model must not be obsolete.
    pub host_model: bool,
    /// Whether the guest uses the pod network.
    pub network: bool,
    /// CPU and memory requests of the virtual machine's pod.
    pub demand: Demand,
    /// All requests of the virtual machine's pod.
    pub requests: ResourceAmounts,
    /// The virtual machine's volumes that only certain nodes can use.
    pub volumes: Vec<BoundVolume>,
    /// Priority of the virtual machine's pod; pods of a lower priority can be preempted for it. `None` if unknown; then
    /// all pods can be preempted.
    pub priority: Option<i32>,
}

/// A claim whose volume only certain nodes can use.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundVolume {
    /// Name of the claim.
    pub claim: String,
    /// The nodes that can use the volume (`spec.nodeAffinity` of the PersistentVolume).
    pub nodes: NodeSelector,
}

impl Requirements {
    pub(super) fn select(&mut self, key: &str, value: &str) {
        self.node_selector.insert(key.into(), value.into());
    }
}
