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
    ARCHITECTURE, NodeRoom, Requirements, affinity, machine_key, misfit::Misfit, model_key, models::lacks_part,
    offer::Offer, room::add_shortages,
};
use crate::{aliases, processor, quantity};

/// How many nodes are called by their names.
const NAMED: usize = 3;
/// How many reasons are given in one sentence.
const REASONS: usize = 6;
/// Longest sentence in which nodes are called by their names, in bytes.
const LENGTH: usize = 1000;

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
    /// CPU features that it masks, whether it has them or not.
    pub masked: &'a [String],
    /// Version of its agent; empty if it has not said.
    pub agent_version: &'a str,
    /// Shares of virtualization that it offers; `None` if that is not known.
    pub shares: Option<u64>,
    /// What it has for pods, all in all; `None` if that is not known.
    pub allocatable: Option<&'a BTreeMap<String, Quantity>>,
    /// What pods on it have requested; `None` if that is not known, so that it may be nothing.
    pub room: Option<Arc<NodeRoom>>,
}

impl<'a> NodeView<'a> {
    /// The view of a Node and what its agent has said of it.
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
                    // A round thousand is written `1k`.
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

    /// Which processor guests have there that have their host's own CPU, if that is known.
    pub(super) fn processor(&self) -> Option<String> {
        self.facts.and_then(processor::identity)
    }

    /// What guests can have there, if that is known.
    pub(super) fn virtualization(&self) -> Option<&'a VirtualizationFacts> {
        self.facts.and_then(|facts| facts.virtualization.as_ref())
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
    /// Adds a reason of a node. What nodes have free of one resource is one reason of all of them.
    pub(super) fn note(&mut self, mut misfit: Misfit, node: &str) {
        let alike = self
            .misfits
            .keys()
            .find(|known| known.is_same_shortage(&misfit))
            .cloned();
        let mut nodes = Vec::new();
        if let Some(alike) = alike {
            nodes = self.misfits.remove(&alike).unwrap_or_default();
            misfit = misfit.max(alike);
        }
        nodes.push(node.into());
        self.misfits.entry(misfit).or_default().extend(nodes);
    }

    /// The reasons, the most telling first; of one kind that first which most nodes have.
    fn ranked(&self) -> Vec<(&Misfit, &Vec<String>)> {
        let mut ranked: Vec<_> = self.misfits.iter().collect();
        // The sort is stable, so kinds stay in their order.
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

    /// The most telling reason.
    pub fn first(&self) -> Option<&Misfit> {
        self.ranked().first().map(|(misfit, _)| *misfit)
    }

    /// `2 nodes lack the CPU feature avx2, 1 is unschedulable`; or that there are no nodes.
    pub fn reasons(&self) -> String {
        let full = self.told(true);
        if full.len() <= LENGTH { full } else { self.told(false) }
    }

    fn told(&self, names: bool) -> String {
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

    /// Why no node can take it.
    pub fn sentence(&self) -> String {
        format!("no node can run it: {}", self.reasons())
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fits.len() {
            0 => f.write_str(&self.sentence()),
            1 => f.write_str("1 node could run it"),
            more => write!(f, "{more} nodes could run it"),
        }
    }
}

/// Which of `nodes` could take a new virtual machine.
pub fn fit(needs: &Requirements, spec: &VirtualMachineInstanceSpec, nodes: &[NodeView<'_>]) -> Fit {
    judge(nodes, usize::MAX, |node| misfits_and_shortages(needs, spec, node))
}

/// Sorts nodes by what is found to be in the way, until so many fit that it is `enough`.
pub(super) fn judge<'n>(
    nodes: impl IntoIterator<Item = impl Borrow<NodeView<'n>>>,
    enough: usize,
    mut misfits: impl FnMut(&NodeView<'_>) -> BTreeSet<Misfit>,
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

/// Everything that is in the way of a pod with these requirements on a node, whatever other pods are there.
pub(super) fn misfits(
    needs: &Requirements,
    spec: &VirtualMachineInstanceSpec,
    node: &NodeView<'_>,
) -> BTreeSet<Misfit> {
    // The rest of what a node without an agent lacks would tell nothing more.
    if node.label(SCHEDULABLE).is_none() {
        return BTreeSet::from([Misfit::NoAgent]);
    }
    let mut found = BTreeSet::new();
    labels(needs, node, &mut found);
    full_sets(needs, node, &mut found);
    surroundings(needs, spec, node, &mut found);
    found
}

/// The same, with what other pods leave of the node.
pub(super) fn misfits_and_shortages(
    needs: &Requirements,
    spec: &VirtualMachineInstanceSpec,
    node: &NodeView<'_>,
) -> BTreeSet<Misfit> {
    let mut found = misfits(needs, spec, node);
    if !found.contains(&Misfit::NoAgent) {
        add_shortages(needs, node, &mut found);
    }
    found
}

/// What the scheduler will find missing in the labels, each by what is behind it.
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

/// What is behind it that a node does not have a label about its CPU or machine types; that it has
/// not what the manifest selects where it is about neither.
fn unlabelled(needs: &Requirements, key: &str, node: &NodeView<'_>) -> Option<Misfit> {
    let facts = node.virtualization();
    if let Some(model) = needs.model.as_ref().filter(|model| key == model_key(model)) {
        return no_model(needs, model, key, node);
    }
    if let Some(machine) = needs.machine.as_ref().filter(|machine| key == machine_key(machine)) {
        let known = facts.is_some_and(|facts| facts.machine_types.iter().any(|known| known.name == *machine));
        return missing(key, node, (!known).then(|| Misfit::LacksMachineType(machine.clone())));
    }
    let offer = Offer::of(node, needs);
    if let Some(feature) = key.strip_prefix(CPU_FEATURE) {
        let lack = match offer {
            Some(offer) => offer.lack(feature),
            None => Some(Misfit::LacksFeature(feature.into())),
        };
        return missing(key, node, lack);
    }
    // The features that are asked for come by the full sets, if it is they.
    let Some(model) = key.strip_prefix(CPU_MINIMUM) else {
        return Some(Misfit::Label(key.into()));
    };
    let lack = match offer.filter(|_| !needs.minimum.is_empty()) {
        Some(offer) => offer.lack_of_minimum(model, &needs.minimum),
        None => Some(Misfit::LacksMinimum(model.into(), Vec::new())),
    };
    missing(key, node, lack)
}

/// A label is missing: for want of what it says, or though that is there. On a node that takes no virtual machines
/// labels may be missing on purpose, and that it takes none is reason enough.
fn missing(key: &str, node: &NodeView<'_>, lack: Option<Misfit>) -> Option<Misfit> {
    let takes_guests = || node.label(SCHEDULABLE) == Some(TRUE);
    lack.or_else(|| takes_guests().then(|| Misfit::NotLabelled(key.into())))
}

/// Why the label of a model is not there.
fn no_model(needs: &Requirements, model: &str, key: &str, node: &NodeView<'_>) -> Option<Misfit> {
    let known = node.virtualization().map_or(&[][..], |facts| facts.models.as_slice());
    if needs.obsolete.covers(model, known) {
        return Some(Misfit::ObsoleteModel(model.into()));
    }
    let Some(offer) = Offer::of(node, needs) else {
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

/// What the full sets say against a node, whatever its labels say.
fn full_sets(needs: &Requirements, node: &NodeView<'_>, found: &mut BTreeSet<Misfit>) {
    let Some(offer) = Offer::of(node, needs) else { return };
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
    let offers = |name: &&String| facts.features.contains(name);
    for feature in needs.forbidden.iter().filter(offers) {
        found.insert(Misfit::HasForbidden(feature.clone()));
    }
    // Whoever lacks the very feature that is asked for need not be told about the minimum.
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

/// That guests cannot have a model, but for what the manifest disables, with what is missing for it.
pub(super) fn lacks_model(needs: &Requirements, name: &str, offer: &Offer<'_>) -> Option<Misfit> {
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

/// Everything but the CPU and the labels that are computed.
fn surroundings(
    needs: &Requirements,
    spec: &VirtualMachineInstanceSpec,
    node: &NodeView<'_>,
    found: &mut BTreeSet<Misfit>,
) {
    let none = BTreeMap::new();
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    if required.is_some_and(|selector| !affinity::admits(selector, node.name, node.labels.unwrap_or(&none))) {
        found.insert(Misfit::Affinity);
    }
    for volume in &needs.volumes {
        if !affinity::admits(&volume.nodes, node.name, node.labels.unwrap_or(&none)) {
            found.insert(Misfit::Volume(volume.claim.clone()));
        }
    }
    // A node that takes no virtual machines offers no shares either.
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
        let asked = format!("{}Mi", needs.demand.memory.div_ceil(1 << 20));
        found.insert(Misfit::TooSmall("memory", Amount(asked)));
    }
    if has("cpu")
        .and_then(quantity::milli_cpus)
        .is_some_and(|milli| milli < needs.demand.milli_cpus)
    {
        let asked = format!("{}m", needs.demand.milli_cpus);
        found.insert(Misfit::TooSmall("cpu", Amount(asked)));
    }
}
