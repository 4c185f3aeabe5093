//! Which nodes fit, and why the others do not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use drydock_api::{
    facts::{CpuModel, NodeFacts, Usable},
    kubevirt::VirtualMachineInstanceSpec,
    labels::{GUEST_NETWORK, OBSOLETE_HOST_MODEL, SCHEDULABLE, TRUE},
    launcher::KVM_RESOURCE,
};
use k8s_openapi::api::core::v1::{Node, Taint};

use super::{ARCHITECTURE, Requirements, affinity};

/// Taint of a node that was cordoned, which [`NodeView::cordoned`] says already.
const CORDON: &str = "node.kubernetes.io/unschedulable";
/// How many nodes are called by their names.
const NAMED: usize = 3;
/// How many reasons are given in one sentence.
const REASONS: usize = 6;

/// A node, as far as it matters here.
#[derive(Clone, Debug, Default)]
pub struct NodeView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// It was cordoned.
    pub cordoned: bool,
    /// Its taints.
    pub taints: &'a [Taint],
    /// What it can do in full, if its agent has said.
    pub facts: Option<&'a NodeFacts>,
    /// Shares of virtualization that it offers; `None` if that is not known.
    pub shares: Option<u64>,
}

impl<'a> NodeView<'a> {
    /// The view of a Node and what its agent has said of it.
    pub fn of(node: &'a Node, facts: Option<&'a NodeFacts>) -> Self {
        let spec = node.spec.as_ref();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default(),
            labels: node.metadata.labels.as_ref(),
            cordoned: spec.and_then(|spec| spec.unschedulable) == Some(true),
            taints: spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default(),
            facts,
            shares: allocatable.map(|all| {
                all.get(KVM_RESOURCE)
                    .and_then(|count| count.0.parse().ok())
                    .unwrap_or(0)
            }),
        }
    }
}

/// Why a node does not fit. The order is that of a sentence: what is most telling comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// The CPU model is an obsolete one, which no node offers.
    ObsoleteModel(String),
    /// Guests there cannot have the CPU model, for want of these features.
    LacksModel(String, Vec<String>),
    /// Guests there cannot have a CPU feature.
    LacksFeature(String),
    /// Guests there have a CPU feature that is forbidden.
    HasForbidden(String),
    /// Its host model is an obsolete one.
    HostModelObsolete,
    /// Another architecture.
    Architecture(String),
    /// Not a label, or not with this value, that the manifest selects.
    Label(String),
    /// The manifest's node affinity.
    Affinity,
    /// No network for guests.
    NoGuestNetwork,
    /// Virtualization is not offered there.
    NoVirtualization,
    /// Its agent does not take virtual machines.
    NotReady,
    /// A taint that is not tolerated.
    Tainted(String),
    /// It was cordoned.
    Cordoned,
}

impl Misfit {
    /// CamelCase reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ObsoleteModel(_) => "CPUModelObsolete",
            Self::LacksModel(..) => "CPUModelMissing",
            Self::LacksFeature(_) => "CPUFeatureMissing",
            Self::HasForbidden(_) => "CPUFeatureForbidden",
            Self::HostModelObsolete => "HostModelObsolete",
            Self::Architecture(_) => "ArchitectureDiffers",
            Self::Label(_) => "NodeSelectorNotMet",
            Self::Affinity => "NodeAffinityNotMet",
            Self::NoGuestNetwork => "NoGuestNetwork",
            Self::NoVirtualization => "NoVirtualization",
            Self::NotReady => "NodeNotReadyForGuests",
            Self::Tainted(_) => "TaintNotTolerated",
            Self::Cordoned => "NodeUnschedulable",
        }
    }

    /// What one node, or several, do or are.
    fn of_nodes(&self, several: bool) -> String {
        let verb = |one: &str, many: &str| if several { many.to_owned() } else { one.to_owned() };
        match self {
            Self::ObsoleteModel(model) => {
                format!(
                    "{} the CPU model {model}, which is obsolete",
                    verb("does not offer", "do not offer")
                )
            }
            Self::LacksModel(model, missing) if missing.is_empty() => {
                format!("{} the CPU model {model}", verb("lacks", "lack"))
            }
            Self::LacksModel(model, missing) => {
                let missing: Vec<&str> = missing.iter().map(String::as_str).take(4).collect();
                let (verb, missing) = (verb("lacks", "lack"), missing.join(", "));
                format!("{verb} the CPU model {model} (for want of {missing})")
            }
            Self::LacksFeature(feature) => format!("{} the CPU feature {feature}", verb("lacks", "lack")),
            Self::HasForbidden(feature) => format!("{} the forbidden CPU feature {feature}", verb("has", "have")),
            Self::HostModelObsolete => format!("{} an obsolete host model", verb("has", "have")),
            Self::Architecture(architecture) => format!("{} not {architecture}", verb("is", "are")),
            Self::Label(key) => format!("{} not have the label {key} as it is selected", verb("does", "do")),
            Self::Affinity => format!("{} not match the node affinity", verb("does", "do")),
            Self::NoGuestNetwork => format!("{} no network for guests", verb("has", "have")),
            Self::NoVirtualization => format!("{} no virtualization", verb("offers", "offer")),
            Self::NotReady => format!("{} not take virtual machines", verb("does", "do")),
            Self::Tainted(key) => format!("{} the taint {key}", verb("has", "have")),
            Self::Cordoned => format!("{} unschedulable", verb("is", "are")),
        }
    }
}

/// Which nodes fit, and why the others do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Names of those that fit.
    pub fits: Vec<String>,
    /// Names of those that do not, by each of their reasons.
    pub misfits: BTreeMap<Misfit, Vec<String>>,
}

impl Fit {
    /// `2 nodes lack the CPU feature avx2, 1 is unschedulable`; or that there are no nodes.
    pub fn reasons(&self) -> String {
        if self.misfits.is_empty() {
            return "there are no nodes".into();
        }
        let mut parts: Vec<String> = Vec::new();
        for (misfit, nodes) in self.misfits.iter().take(REASONS) {
            let count = nodes.len();
            let what = match (parts.is_empty(), count) {
                (true, 1) => "1 node".to_owned(),
                (true, _) => format!("{count} nodes"),
                (false, _) => count.to_string(),
            };
            let names = if count <= NAMED {
                format!(" ({})", nodes.join(", "))
            } else {
                String::new()
            };
            parts.push(format!("{what} {}{names}", misfit.of_nodes(count > 1)));
        }
        let more = self.misfits.len().saturating_sub(REASONS);
        if more > 0 {
            parts.push(format!("and {more} more reasons"));
        }
        parts.join(", ")
    }

    /// Why no node can take it.
    pub fn sentence(&self) -> String {
        format!("no node can run it: {}", self.reasons())
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fits.is_empty() {
            f.write_str(&self.sentence())
        } else {
            write!(f, "{} nodes could run it", self.fits.len())
        }
    }
}

/// Which of `nodes` could take a new virtual machine.
pub fn fit(needs: &Requirements, spec: &VirtualMachineInstanceSpec, nodes: &[NodeView<'_>]) -> Fit {
    judge(nodes, |node| {
        let mut misfits = cpu(needs, node);
        misfits.extend(surroundings(needs, spec, node));
        misfits
    })
}

/// Sorts nodes by what is found to be in the way.
pub(super) fn judge(nodes: &[NodeView<'_>], mut misfits: impl FnMut(&NodeView<'_>) -> Vec<Misfit>) -> Fit {
    let mut fit = Fit::default();
    for node in nodes {
        let found = misfits(node);
        if found.is_empty() {
            fit.fits.push(node.name.into());
        }
        for misfit in found {
            fit.misfits.entry(misfit).or_default().push(node.name.into());
        }
    }
    fit
}

/// What of the CPU that the manifest asks for a node does not have.
fn cpu(needs: &Requirements, node: &NodeView<'_>) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    let Some(virtualization) = node.facts.and_then(|facts| facts.virtualization.as_ref()) else {
        return misfits;
    };
    if let Some(model) = &needs.model {
        if needs.obsolete_model {
            misfits.push(Misfit::ObsoleteModel(model.clone()));
        } else if let Some(lack) = lacks_model(model, &virtualization.models) {
            misfits.push(lack);
        }
    }
    let features: BTreeSet<&str> = virtualization.features.iter().map(String::as_str).collect();
    let lacks = needs
        .features
        .iter()
        .filter(|feature| !features.contains(feature.as_str()));
    misfits.extend(lacks.cloned().map(Misfit::LacksFeature));
    let has = needs
        .forbidden
        .iter()
        .filter(|feature| features.contains(feature.as_str()));
    misfits.extend(has.cloned().map(Misfit::HasForbidden));
    let obsolete = node
        .labels
        .is_some_and(|labels| labels.contains_key(OBSOLETE_HOST_MODEL));
    if needs.host_model && obsolete {
        misfits.push(Misfit::HostModelObsolete);
    }
    misfits
}

fn lacks_model(name: &str, models: &[CpuModel]) -> Option<Misfit> {
    match models.iter().find(|model| model.name == name) {
        Some(model) if model.usable != Usable::No => None,
        Some(model) => Some(Misfit::LacksModel(name.into(), model.blockers.clone())),
        None => Some(Misfit::LacksModel(name.into(), Vec::new())),
    }
}

/// Everything but the CPU.
pub(super) fn surroundings(
    needs: &Requirements,
    spec: &VirtualMachineInstanceSpec,
    node: &NodeView<'_>,
) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    let none = BTreeMap::new();
    let labels = node.labels.unwrap_or(&none);
    let is_true = |key: &str| labels.get(key).is_some_and(|value| value == TRUE);
    let wanted = needs.node_selector.get(ARCHITECTURE);
    if let Some(wanted) = wanted.filter(|wanted| labels.get(ARCHITECTURE) != Some(*wanted)) {
        misfits.push(Misfit::Architecture(wanted.clone()));
    }
    let unmet = spec
        .node_selector
        .iter()
        .filter(|(key, value)| needs.node_selector.get(*key) == Some(*value) && labels.get(*key) != Some(*value));
    misfits.extend(unmet.map(|(key, _)| Misfit::Label(key.clone())));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    if required.is_some_and(|selector| !affinity::admits(selector, node.name, labels)) {
        misfits.push(Misfit::Affinity);
    }
    if !is_true(SCHEDULABLE) {
        misfits.push(Misfit::NotReady);
    } else if node.shares == Some(0) {
        misfits.push(Misfit::NoVirtualization);
    } else if needs.network && !is_true(GUEST_NETWORK) {
        misfits.push(Misfit::NoGuestNetwork);
    }
    if node.cordoned {
        misfits.push(Misfit::Cordoned);
    }
    let taints: Vec<Taint> = node
        .taints
        .iter()
        .filter(|taint| taint.key != CORDON)
        .cloned()
        .collect();
    if let Some(taint) = affinity::in_the_way(&taints, &spec.tolerations) {
        misfits.push(Misfit::Tainted(taint.key.clone()));
    }
    misfits
}
