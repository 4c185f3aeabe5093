//! Which nodes fit, and why the others do not.

use std::{
    borrow::Borrow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    sync::Arc,
};

use drydock_api::{
    facts::{NodeFacts, Usable, VirtualizationFacts},
    hypervisor::HypervisorStatus,
    kubevirt::{Amount, VirtualMachineInstanceSpec},
    labels::{CPU_FEATURE, CPU_MINIMUM, CPU_MODEL, GUEST_NETWORK, OBSOLETE_HOST_MODEL, SCHEDULABLE, TRUE},
    launcher::KVM_RESOURCE,
};
use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    ARCHITECTURE, NodeRoom, Requirements, Rules, affinity, machine_key, misfit::Misfit, model_key, models::lacks_part,
    offer::CpuOffer, room::add_shortages,
};
use crate::{aliases, processor, quantity};

/// Maximum number of nodes that are listed by name.
const NAMED: usize = 3;
/// Maximum number of reasons in one sentence.
const REASONS: usize = 6;
/// Maximum length of a sentence with node names, in bytes.
const LENGTH: usize = 1000;

/// The properties of a node that matter for placement.
#[derive(Clone, Debug, Default)]
pub struct NodeView<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Labels of the node.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Whether the node is cordoned.
    pub cordoned: bool,
    /// Taints of the node.
    pub taints: &'a [Taint],
    /// Full CPU sets of the node, if its agent has reported them.
    pub facts: Option<&'a NodeFacts>,
    /// CPU features that the node masks, whether or not it has them.
    pub masked: &'a [String],
    /// Version of the node's agent; empty if not reported.
    pub agent_version: &'a str,
    /// Shares of virtualization that the node offers; `None` if unknown.
    pub shares: Option<u64>,
    /// Allocatable resources of the node; `None` if unknown.
    pub allocatable: Option<&'a BTreeMap<String, Quantity>>,
    /// Requests of the pods on the node; `None` if unknown, in which case they may be zero.
    pub room: Option<Arc<NodeRoom>>,
}

impl<'a> NodeView<'a> {
    /// Returns the view of a Node and its agent's report.
    pub fn of(node: &'a Node, status: Option<&'a HypervisorStatus>) -> Self {
        let spec = node.spec.as_ref();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default(),
            labels: node.metadata.labels.as_ref(),
            cordoned: spec.and_then(|spec| spec.unschedulable) == Some(true),
            taints: spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default(),
            facts: status.and_then(|status| status.facts.as_deref()),
            masked: status
                .map(|status| status.masked_features.as_slice())
                .unwrap_or_default(),
            agent_version: status.map(|status| status.agent_version.as_str()).unwrap_or_default(),
            shares: allocatable.map(|all| {
                all.get(KVM_RESOURCE)
                    // A multiple of 1000 is written as `1k`.
                    .and_then(|count| quantity::bytes(&count.0))
                    .unwrap_or(0)
            }),
            allocatable,
            room: None,
        }
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.labels.and_then(|labels| labels.get(key)).map(String::as_str)
    }

    /// Returns the identity of the processor that guests with their host's own CPU have on the node, if known.
    pub(super) fn processor(&self) -> Option<String> {
        self.facts.and_then(processor::identity)
    }

    /// Returns the virtualization facts of the node, which show what guests can have, if known.
    pub(super) fn virtualization(&self) -> Option<&'a VirtualizationFacts> {
        self.facts.and_then(|facts| facts.virtualization.as_ref())
    }
}

/// Which nodes fit, and why the others do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// Names of the nodes that fit.
    pub fits: Vec<String>,
    /// Names of the nodes that do not fit, by each of their reasons.
    pub misfits: BTreeMap<Misfit, Vec<String>>,
}

impl Fit {
    /// Adds a reason for a node. Reasons that are alike are merged into one for all nodes.
    pub(super) fn note(&mut self, mut misfit: Misfit, node: &str) {
        let alike = self.misfits.keys().find(|known| known.is_alike(&misfit)).cloned();
        let mut nodes = Vec::new();
        if let Some(alike) = alike {
            nodes = self.misfits.remove(&alike).unwrap_or_default();
            misfit = misfit.max(alike);
        }
        nodes.push(node.into());
        self.misfits.entry(misfit).or_default().extend(nodes);
    }

    /// Returns the reasons, the most relevant kind first; within one kind, the reason of the most nodes first.
    fn ranked(&self) -> Vec<(&Misfit, &Vec<String>)> {
        let mut ranked: Vec<_> = self.misfits.iter().collect();
        // The sort is stable, so kinds keep their order.
        let mut start = 0;
        while let Some((first, _)) = ranked.get(start) {
            let kind = mem::discriminant(*first);
            let length = ranked[start..]
                .iter()
                .take_while(|(misfit, _)| mem::discriminant(*misfit) == kind)
                .count();
            ranked[start..start + length].sort_by_key(|(_, nodes)| Reverse(nodes.len()));
            start += length;
        }
        ranked
    }

    /// Returns the most relevant reason.
    pub fn first(&self) -> Option<&Misfit> {
        self.ranked().first().map(|(misfit, _)| *misfit)
    }

    /// Returns the reasons, such as `2 nodes lack the CPU feature avx2, 1 is unschedulable`; or that there are no
    /// nodes.
    pub fn reasons(&self) -> String {
        let full = self.text(true);
        if full.len() <= LENGTH { full } else { self.text(false) }
    }

    fn text(&self, names: bool) -> String {
        let ranked = self.ranked();
        if ranked.is_empty() {
            return "there are no nodes".into();
        }
        let mut parts: Vec<String> = Vec::new();
        for (misfit, nodes) in ranked.iter().take(REASONS) {
            let count = nodes.len();
            let what = match (parts.is_empty(), count) {
                (true, 1) => "1 node".to_owned(),
                (true, _) => format!("{count} nodes"),
                (false, _) => count.to_string(),
            };
            let names = if names && count <= NAMED {
                format!(" ({})", nodes.join(", "))
            } else {
                String::new()
            };
            parts.push(format!("{what} {}{names}", misfit.of_nodes(count > 1)));
        }
        match ranked.len().saturating_sub(REASONS) {
            0 => {}
            1 => parts.push("and 1 more reason".into()),
            more => parts.push(format!("and {more} more reasons")),
        }
        parts.join(", ")
    }

    /// Returns a sentence on why no node can run the virtual machine.
    pub fn sentence(&self) -> String {
        format!("no node can run the virtual machine: {}", self.reasons())
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fits.len() {
            0 => f.write_str(&self.sentence()),
            1 => f.write_str("1 node could run the virtual machine"),
            more => write!(f, "{more} nodes could run the virtual machine"),
        }
    }
}

/// Returns which of `nodes` could run a new virtual machine, beside other pods as `rules` require.
pub fn fit(needs: &Requirements, spec: &VirtualMachineInstanceSpec, rules: &Rules, nodes: &[NodeView<'_>]) -> Fit {
    judge(nodes, usize::MAX, |node| {
        let mut found = misfits(needs, spec, node);
        add_by_pods(needs, rules, node, &mut found);
        found
    })
}

/// Sorts nodes by their misfits, until `enough` nodes fit.
pub(super) fn judge<'n>(
    nodes: impl IntoIterator<Item = impl Borrow<NodeView<'n>>>,
    enough: usize,
    mut misfits: impl FnMut(&NodeView<'n>) -> BTreeSet<Misfit>,
) -> Fit {
    let mut fit = Fit::default();
    for node in nodes {
        let node = node.borrow();
        let found = misfits(node);
        if found.is_empty() {
            fit.fits.push(node.name.into());
            if fit.fits.len() >= enough {
                break;
            }
        }
        for misfit in found {
            fit.note(misfit, node.name);
        }
    }
    fit
}

/// Returns everything that prevents a pod with these requirements from running on a node, regardless of other pods.
pub(super) fn misfits(
    needs: &Requirements,
    spec: &VirtualMachineInstanceSpec,
    node: &NodeView<'_>,
) -> BTreeSet<Misfit> {
    // Further reasons of a node without an agent would add no information.
    if node.label(SCHEDULABLE).is_none() {
        return BTreeSet::from([Misfit::NoAgent]);
    }
    let mut found = BTreeSet::new();
    labels(needs, node, &mut found);
    full_sets(needs, node, &mut found);
    add_node_misfits(needs, spec, node, &mut found);
    found
}

/// Adds the misfits because of the pods on a node: too few resources are free, or other pods must not be near. Does
/// nothing for a node without an agent, which is reason enough.
pub(super) fn add_by_pods(needs: &Requirements, rules: &Rules, node: &NodeView<'_>, found: &mut BTreeSet<Misfit>) {
    if !found.contains(&Misfit::NoAgent) {
        add_shortages(needs, node, found);
        rules.add_misfits(node, found);
    }
}

/// Returns whether a node matches the node selector and the required node affinity of a pod with these requirements.
pub(super) fn is_selected(needs: &Requirements, spec: &VirtualMachineInstanceSpec, node: &NodeView<'_>) -> bool {
    let none = BTreeMap::new();
    let labels = node.labels.unwrap_or(&none);
    let mut selector = needs.node_selector.iter();
    let mut expressions = needs.expressions.iter();
    selector.all(|(key, value)| node.label(key) == Some(value))
        && expressions.all(|expression| affinity::meets(expression, node.label(&expression.key)))
        && affinity::required(spec.affinity.as_ref())
            .is_none_or(|required| affinity::admits(required, node.name, labels))
}

/// Returns whether a pod with these tolerations tolerates all taints of a node, and its cordon.
pub(super) fn is_tolerated(spec: &VirtualMachineInstanceSpec, node: &NodeView<'_>) -> bool {
    let is_cordoned = node.cordoned && !affinity::tolerated(&affinity::cordon(), &spec.tolerations);
    !is_cordoned && affinity::in_the_way(node.taints, &spec.tolerations).next().is_none()
}

/// Adds the labels that the scheduler will miss on a node, each with the underlying reason.
fn labels(needs: &Requirements, node: &NodeView<'_>, found: &mut BTreeSet<Misfit>) {
    for (key, value) in &needs.node_selector {
        if node.label(key) == Some(value) {
            continue;
        }
        let misfit = match key.as_str() {
            SCHEDULABLE => Some(Misfit::NotReady),
            ARCHITECTURE => Some(Misfit::Architecture(value.clone())),
            GUEST_NETWORK => Some(Misfit::NoGuestNetwork),
            key => unlabelled(needs, key, node),
        };
        found.extend(misfit);
    }
    for expression in &needs.expressions {
        if affinity::meets(expression, node.label(&expression.key)) {
            continue;
        }
        if expression.key == OBSOLETE_HOST_MODEL {
            found.insert(Misfit::HostModelObsolete);
        } else if let Some(feature) = expression.key.strip_prefix(CPU_FEATURE) {
            found.insert(Misfit::HasForbidden(feature.into()));
        }
    }
    found.extend(needs.forbidden_minimum.iter().cloned().map(Misfit::ForbidsMinimum));
}

/// Returns the reason why a node lacks a label about its CPU or machine types. For other labels, the reason is that the
/// node lacks a label that the manifest selects.
fn unlabelled(needs: &Requirements, key: &str, node: &NodeView<'_>) -> Option<Misfit> {
    let facts = node.virtualization();
    if let Some(model) = needs.model.as_ref().filter(|model| key == model_key(model)) {
        return no_model(needs, model, key, node);
    }
    if let Some(machine) = needs.machine.as_ref().filter(|machine| key == machine_key(machine)) {
        let known = facts.is_some_and(|facts| facts.machine_types.iter().any(|known| known.name == *machine));
        return missing(key, node, (!known).then(|| Misfit::LacksMachineType(machine.clone())));
    }
    let offer = CpuOffer::of(node, needs);
    if let Some(feature) = key.strip_prefix(CPU_FEATURE) {
        let lack = match offer {
            Some(offer) => offer.lack(feature),
            None => Some(Misfit::LacksFeature(feature.into())),
        };
        return missing(key, node, lack);
    }
    // If requested features are the reason, the full sets report them by name.
    let Some(model) = key.strip_prefix(CPU_MINIMUM) else {
        return Some(Misfit::Label(key.into()));
    };
    let lack = match offer.filter(|_| !needs.minimum.is_empty()) {
        Some(offer) => offer.lack_of_minimum(model, &needs.minimum),
        None => Some(Misfit::LacksMinimum(model.into(), Vec::new())),
    };
    missing(key, node, lack)
}

/// Returns the reason for a missing label: `lack` if the node lacks the described property, else that only the label is
/// missing. On a node that accepts no virtual machines, labels may be missing on purpose, and the refusal of virtual
/// machines is reason enough.
fn missing(key: &str, node: &NodeView<'_>, lack: Option<Misfit>) -> Option<Misfit> {
    let takes_guests = || node.label(SCHEDULABLE) == Some(TRUE);
    lack.or_else(|| takes_guests().then(|| Misfit::NotLabelled(key.into())))
}

/// Returns why a node lacks the label of a model.
fn no_model(needs: &Requirements, model: &str, key: &str, node: &NodeView<'_>) -> Option<Misfit> {
    let known = node.virtualization().map_or(&[][..], |facts| facts.models.as_slice());
    if needs.obsolete.covers(model, known) {
        return Some(Misfit::ObsoleteModel(model.into()));
    }
    let Some(offer) = CpuOffer::of(node, needs) else {
        return Some(Misfit::LacksModel(model.into(), Vec::new()));
    };
    if let Some(lack) = lacks_model(needs, model, &offer) {
        return Some(lack);
    }
    let other = aliases::names_of(model, &offer.facts.models)
        .filter(|other| *other != model)
        .find(|other| node.label(&format!("{CPU_MODEL}{other}")).is_some());
    match other {
        Some(other) => Some(Misfit::OtherName(model.into(), other.into())),
        None => missing(key, node, None),
    }
}

/// Adds the misfits according to the full sets, regardless of labels.
fn full_sets(needs: &Requirements, node: &NodeView<'_>, found: &mut BTreeSet<Misfit>) {
    let Some(offer) = CpuOffer::of(node, needs) else { return };
    let facts = offer.facts;
    if let Some(model) = &needs.model
        && let Some(lack) = lacks_model(needs, model, &offer)
        && !needs.obsolete.covers(model, &facts.models)
    {
        found.insert(lack);
    }
    let lacking: Vec<Misfit> = needs
        .features
        .iter()
        .filter_map(|feature| offer.lack(feature))
        .collect();
    // A mask hides a feature from a guest that forbids it.
    for feature in needs.forbidden.iter().filter(|feature| offer.lists(feature)) {
        found.insert(Misfit::HasForbidden(feature.clone()));
    }
    // If the requested feature itself is missing, the minimum need not be reported too.
    if !lacking.is_empty() {
        found.retain(|misfit| !matches!(misfit, Misfit::LacksMinimum(..) | Misfit::MasksMinimum(..)));
    }
    found.extend(lacking);
    if let Some(machine) = &needs.machine
        && !facts.machine_types.is_empty()
        && !facts.machine_types.iter().any(|known| known.name == *machine)
    {
        found.insert(Misfit::LacksMachineType(machine.clone()));
    }
}

/// Returns the misfit, with the missing features, if guests cannot have a model apart from the features that the
/// manifest disables.
pub(super) fn lacks_model(needs: &Requirements, name: &str, offer: &CpuOffer<'_>) -> Option<Misfit> {
    if !needs.disabled.is_empty() {
        return lacks_part(name, &needs.disabled, offer);
    }
    let Some(model) = offer.facts.models.iter().find(|model| model.name == name) else {
        return Some(Misfit::LacksModel(name.into(), Vec::new()));
    };
    if model.usable != Usable::No {
        return None;
    }
    let missing = offer.missing(&model.blockers, &[]);
    let is_admitted = missing.is_empty() && !model.blockers.is_empty();
    (!is_admitted).then(|| offer.lack_of_model(name, missing))
}

/// Adds the misfits other than those of the CPU and the computed labels.
fn add_node_misfits(
    needs: &Requirements,
    spec: &VirtualMachineInstanceSpec,
    node: &NodeView<'_>,
    found: &mut BTreeSet<Misfit>,
) {
    let none = BTreeMap::new();
    if affinity::required(spec.affinity.as_ref())
        .is_some_and(|selector| !affinity::admits(selector, node.name, node.labels.unwrap_or(&none)))
    {
        found.insert(Misfit::Affinity);
    }
    for volume in &needs.volumes {
        if !affinity::admits(&volume.nodes, node.name, node.labels.unwrap_or(&none)) {
            found.insert(Misfit::Volume(volume.claim.clone()));
        }
    }
    // A node that accepts no virtual machines offers no shares either.
    if node.shares == Some(0) && node.label(SCHEDULABLE) == Some(TRUE) {
        found.insert(Misfit::NoVirtualization);
    }
    if node.cordoned && !affinity::tolerated(&affinity::cordon(), &spec.tolerations) {
        found.insert(Misfit::Cordoned);
    }
    for taint in affinity::in_the_way(node.taints, &spec.tolerations) {
        found.insert(match taint.key.as_str() {
            affinity::CORDON => Misfit::Cordoned,
            key => Misfit::Tainted(key.into()),
        });
    }
    let Some(has) = node.allocatable else { return };
    let has = |resource: &str| has.get(resource).map(|amount| amount.0.as_str());
    if has("memory")
        .and_then(quantity::bytes)
        .is_some_and(|bytes| bytes < needs.demand.memory)
    {
        let requested = format!("{}Mi", needs.demand.memory.div_ceil(1 << 20));
        found.insert(Misfit::TooSmall("memory", Amount(requested)));
    }
    if has("cpu")
        .and_then(quantity::milli_cpus)
        .is_some_and(|milli| milli < needs.demand.milli_cpus)
    {
        let requested = format!("{}m", needs.demand.milli_cpus);
        found.insert(Misfit::TooSmall("cpu", Amount(requested)));
    }
}
