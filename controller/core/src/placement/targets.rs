//! Which other nodes could run a virtual machine that is already running.

use std::{collections::BTreeSet, sync::Arc};

use drydock_api::{
    facts::{NodeFacts, VirtType, VirtualizationFacts},
    kubevirt::{VirtualMachineInstance, status::GuestCpu},
    labels::{CPU_FEATURE, CPU_MINIMUM, CPU_VENDOR, TRUE},
};

use super::{
    HOSTNAME, Requirements, Rules,
    fit::{Fit, NodeView, add_by_pods, judge, misfits},
    masks::{admit_masked, lift_masks},
    misfit::Misfit,
    models::lacks_part,
    nodes_by_name,
    offer::{CpuOffer, is_known_to_have},
};
use crate::{default_cpu::has_hosts_own, minimum_cpu::Minimum};

/// Whether another node could run a running instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    /// Whether another node could run the instance.
    pub available: bool,
    /// CamelCase reason.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

/// The evaluation stops at this many fitting nodes: enough to know whether any node fits, and whether only one does.
const ENOUGH: usize = 2;

/// Returns whether another node could run a running instance: the guest's actual CPU is compared with the full sets of
/// the node, and its pod's requirements are checked. An unknown node does not qualify. libvirt decides when the guest
/// actually moves.
///
/// A guest with its host's own CPU, which libvirt never expands, could move to nodes whose processor is the same in
/// everything that the guest sees.
///
/// `rules` are the rules that other pods impose on the node of the instance's pod.
///
/// If several nodes qualify, they are neither named nor counted: otherwise each cordoned node would change the status
/// of every guest in the cluster. `nodes` are all nodes. They are evaluated only until the result is known, and once
/// more if none qualifies because of a feature that `source`, the guest's present node, does not list.
pub fn migration_targets<'a>(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    source: Option<&NodeView<'_>>,
    rules: &Rules,
    nodes: &(impl IntoIterator<Item = NodeView<'a>> + Clone),
) -> Targets {
    let status = instance.status.as_ref();
    let here = status.and_then(|status| status.node_name.as_deref());
    let Some(guest) = RunningGuest::of(instance, source) else {
        return none("GuestCPUUnknown", "the guest's CPU is not known yet".into());
    };
    let others = || {
        let nodes = nodes.clone().into_iter();
        nodes.filter(|node| Some(node.name) != here)
    };
    if others().next().is_none() {
        return none("NoOtherNode", "there is no other node".into());
    }
    let judged = |unlisted: &[String]| {
        let mut compared = Compared::default();
        judge(others(), ENOUGH, |node| {
            guest.misfits(instance, (needs, rules), unlisted, node, &mut compared)
        })
    };
    let mut fit = judged(&[]);
    let mut unlisted = Vec::new();
    if fit.fits.is_empty() {
        unlisted = guest.listed_nowhere(&fit, nodes);
        if !unlisted.is_empty() {
            fit = judged(&unlisted);
        }
    }
    let message = match fit.fits.as_slice() {
        [] => {
            let reason = fit.first().map_or("NoOtherNode", Misfit::reason);
            return none(reason, format!("no other node can run the guest: {}", fit.reasons()));
        }
        [one] => format!("node {one} could run the guest"),
        [_, _, ..] => "several nodes could run the guest".into(),
    };
    if unlisted.is_empty() {
        return Targets {
            available: true,
            reason: "TargetsFound".into(),
            message,
        };
    }
    let features = unlisted.join(", ");
    Targets {
        available: true,
        reason: "FeatureListedNowhere".into(),
        message: format!(
            "{message}, provided that libvirt there accepts the guest's CPU: no node lists these CPU features of the \
             guest: {features}"
        ),
    }
}

/// Returns for each other node everything that prevents a running instance from moving there, by the same rules as
/// [`migration_targets`]; `None` if the CPU that the guest has is not known. `nodes` are all nodes.
pub fn target_misfits<'n>(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    source: Option<&NodeView<'_>>,
    rules: &Rules,
    nodes: &[NodeView<'n>],
) -> Option<Vec<(&'n str, BTreeSet<Misfit>)>> {
    let status = instance.status.as_ref();
    let here = status.and_then(|status| status.node_name.as_deref());
    let guest = RunningGuest::of(instance, source)?;
    let judged = |unlisted: &[String]| -> Vec<(&'n str, BTreeSet<Misfit>)> {
        let mut compared = Compared::default();
        let others = nodes.iter().filter(|node| Some(node.name) != here);
        others
            .map(|node| {
                let misfits = guest.misfits(instance, (needs, rules), unlisted, node, &mut compared);
                (node.name, misfits)
            })
            .collect()
    };
    let first = judged(&[]);
    if first.iter().any(|(_, found)| found.is_empty()) {
        return Some(first);
    }
    let unlisted = unlisted_features(instance, nodes);
    Some(if unlisted.is_empty() { first } else { judged(&unlisted) })
}

/// Adds the requirements of a running guest on its node: the vendor and the features of its actual CPU, as far as
/// nodes have labels for them; or the same processor, for a guest that has its host's own CPU. Masks that the guest's
/// own node also has do not count ([`mask`](crate::mask)). This only narrows the choice; [`migration_targets`]
/// compares the full sets, and libvirt decides in the end. `source` is the guest's present node, `nodes` are all
/// nodes.
pub fn require_recorded_cpu<'a>(
    needs: &mut Requirements,
    instance: &VirtualMachineInstance,
    minimum: &Minimum,
    source: Option<&NodeView<'_>>,
    nodes: impl IntoIterator<Item = NodeView<'a>> + Clone,
) {
    let Some((guest, source)) = RunningGuest::of(instance, source).zip(source) else {
        return;
    };
    lift_masks(needs, source);
    let cpu = match &guest.cpu {
        GuestsCpu::SpelledOut(cpu) => cpu,
        GuestsCpu::OfHost(processor) => {
            let same = nodes.into_iter().filter(|node| {
                let is_masked = CpuOffer::of(node, needs).is_some_and(|offer| offer.withheld().next().is_some());
                node.processor().as_ref() == Some(processor) && !is_masked
            });
            // The list includes the source, where the pod does not go: so it is never empty, and the source alone
            // means that there is no other node.
            let names: Vec<String> = same
                .filter_map(|node| node.label(HOSTNAME).map(str::to_owned))
                .collect();
            needs.expressions.push(nodes_by_name("In", names));
            return;
        }
    };
    let Some(facts) = source.virtualization() else { return };
    if let Some(vendor) = guest.vendor.filter(|_| facts.virt_type == VirtType::Kvm) {
        needs.node_selector.insert(format!("{CPU_VENDOR}{vendor}"), TRUE.into());
    }
    let anywhere = |name: &str| {
        let mut all = nodes.clone().into_iter();
        all.any(|node| is_known_to_have(&node, name))
    };
    let (known, unlisted): (Vec<&String>, Vec<&String>) = cpu
        .required
        .iter()
        .partition(|name| is_known_to_have(source, name) || anywhere(name));
    for feature in known {
        let key = if minimum.features.contains(feature) {
            needs.minimum.clone_from(&minimum.features);
            format!("{CPU_MINIMUM}{}", minimum.model)
        } else {
            format!("{CPU_FEATURE}{feature}")
        };
        needs.node_selector.insert(key, TRUE.into());
    }
    admit_masked(needs, source, nodes.clone());
    keep_off_unlabelled(needs, cpu, &unlisted, source, nodes);
}

/// Keeps the pod off nodes that no label keeps it off: nodes that lack or mask a part of the guest's model, or mask
/// one of its features that no node lists. If the guest's own node does not list the model, other nodes' lists prove
/// nothing.
fn keep_off_unlabelled<'a>(
    needs: &mut Requirements,
    cpu: &GuestCpu,
    unlisted: &[&String],
    source: &NodeView<'_>,
    nodes: impl IntoIterator<Item = NodeView<'a>>,
) {
    let lack = |offer: &CpuOffer<'_>| lacks_part(&cpu.model, &cpu.disabled, offer);
    let is_credible = CpuOffer::of(source, needs).is_some_and(|offer| lack(&offer).is_none());
    let lacks = |offer: &CpuOffer<'_>| match lack(offer) {
        Some(Misfit::MasksModel(..)) => true,
        Some(_) if is_credible => true,
        _ => unlisted.iter().any(|name| offer.would_mask(name)),
    };
    let is_selected = |node: &NodeView<'_>| {
        let mut labels = needs.node_selector.iter();
        node.name != source.name && labels.all(|(key, value)| node.label(key) == Some(value.as_str()))
    };
    let lacking: Vec<String> = nodes
        .into_iter()
        .filter(|node| is_selected(node) && CpuOffer::of(node, needs).is_some_and(|offer| lacks(&offer)))
        .filter_map(|node| node.label(HOSTNAME).map(str::to_owned))
        .collect();
    if !lacking.is_empty() {
        needs.expressions.push(nodes_by_name("NotIn", lacking));
    }
}

/// Returns everything that prevents a running guest from running on a node, regardless of other pods, except for the
/// features `unlisted`; `None` if its CPU is unknown.
pub(super) fn unsuitable(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    source: Option<&NodeView<'_>>,
    unlisted: &[String],
    node: &NodeView<'_>,
) -> Option<BTreeSet<Misfit>> {
    let guest = RunningGuest::of(instance, source)?;
    let mut found = misfits(needs, &instance.spec, node);
    if !found.contains(&Misfit::NoAgent) {
        guest.compare(needs, node, unlisted, &mut Compared::default(), &mut found);
    }
    Some(found)
}

/// Returns the features of a running guest that no node lists, including its own node: their absence from other
/// nodes' lists proves nothing.
pub(super) fn unlisted_features<'a>(
    instance: &VirtualMachineInstance,
    nodes: impl IntoIterator<Item = &'a NodeView<'a>>,
) -> Vec<String> {
    let status = instance.status.as_ref();
    let cpu = status.and_then(|status| status.drydock.as_ref()?.guest_cpu.as_ref());
    let mut missing: Vec<&String> = cpu.iter().flat_map(|cpu| &cpu.required).collect();
    for node in nodes {
        if missing.is_empty() {
            break;
        }
        missing.retain(|name| !is_known_to_have(node, name));
    }
    missing.into_iter().cloned().collect()
}

/// The results of comparing one guest's CPU with those of nodes, by the properties that a result depends on: most nodes
/// of a cluster are alike, and a comparison with each feature takes 15 µs.
#[derive(Default)]
struct Compared<'n>(Vec<(&'n [String], &'n VirtualizationFacts, Vec<Misfit>)>);

impl<'n> Compared<'n> {
    /// Returns the result for a node with these masked features and facts. Calls `compare` unless an alike node was
    /// compared before.
    fn with_alike(
        &mut self,
        masked: &'n [String],
        facts: &'n VirtualizationFacts,
        compare: impl FnOnce() -> Vec<Misfit>,
    ) -> &[Misfit] {
        let host = |facts: &'n VirtualizationFacts| facts.host_model.as_ref().map(|host| (&host.name, &host.disabled));
        let is_alike = |(other_masked, other, _): &(&'n [String], &'n VirtualizationFacts, _)| {
            // Equal lists of different nodes are one list in memory. If they are not, the comparison is only repeated.
            Arc::ptr_eq(&other.features, &facts.features)
                && Arc::ptr_eq(&other.models, &facts.models)
                && (*other_masked, &other.withheld, host(other)) == (masked, &facts.withheld, host(facts))
        };
        let index = self.0.iter().position(is_alike).unwrap_or_else(|| {
            self.0.push((masked, facts, compare()));
            self.0.len() - 1
        });
        &self.0[index].2
    }
}

/// The CPU of a running guest.
enum GuestsCpu<'a> {
    /// A CPU that libvirt expanded when it started the guest.
    SpelledOut(&'a GuestCpu),
    /// The host's own CPU, with this identity.
    OfHost(String),
}

/// The properties of a running guest that are compared with other nodes.
struct RunningGuest<'a> {
    cpu: GuestsCpu<'a>,
    /// Virtualization type, if known.
    virt_type: Option<&'a str>,
    /// Vendor of the CPU that the guest runs on, if known.
    vendor: Option<&'a str>,
    /// The guest's present node, if known.
    source: Option<NodeView<'a>>,
}

impl<'a> RunningGuest<'a> {
    /// Returns the properties of an instance's guest; `None` if its CPU is unknown.
    fn of(instance: &'a VirtualMachineInstance, source: Option<&NodeView<'a>>) -> Option<Self> {
        let record = instance.status.as_ref()?.drydock.as_ref()?;
        let cpu = match &record.guest_cpu {
            Some(cpu) => GuestsCpu::SpelledOut(cpu),
            None if has_hosts_own(instance) => GuestsCpu::OfHost(source.and_then(NodeView::processor)?),
            None => return None,
        };
        let own_vendor = match cpu {
            GuestsCpu::SpelledOut(cpu) => cpu.vendor.as_deref(),
            GuestsCpu::OfHost(_) => None,
        };
        let facts = source.and_then(NodeView::virtualization);
        Some(Self {
            cpu,
            virt_type: record.virt_type.as_deref(),
            // libvirt writes no vendor for a named model, yet such a guest sees its host's vendor.
            vendor: own_vendor.or(facts
                .filter(|facts| facts.virt_type == VirtType::Kvm)
                .map(|facts| facts.vendor.as_str())
                .filter(|vendor| !vendor.is_empty())),
            source: source.cloned(),
        })
    }

    /// Returns everything that prevents the guest and its pod from running on a node, except for the features `unlisted`.
    fn misfits<'n>(
        &self,
        instance: &VirtualMachineInstance,
        (needs, rules): (&Requirements, &Rules),
        unlisted: &[String],
        node: &NodeView<'n>,
        compared: &mut Compared<'n>,
    ) -> BTreeSet<Misfit> {
        let mut found = misfits(needs, &instance.spec, node);
        if !found.contains(&Misfit::NoAgent) {
            self.compare(needs, node, unlisted, compared, &mut found);
        }
        add_by_pods(needs, rules, node, &mut found);
        found
    }

    /// Adds the misfits that prevent the guest from running on a node, except for the features `unlisted`.
    fn compare<'n>(
        &self,
        needs: &Requirements,
        node: &NodeView<'n>,
        unlisted: &[String],
        compared: &mut Compared<'n>,
        found: &mut BTreeSet<Misfit>,
    ) {
        let Some((offer, there)) = CpuOffer::of(node, needs).zip(node.virtualization()) else {
            found.insert(Misfit::NotInspected);
            return;
        };
        if self.virt_type.is_some_and(|how| how != there.virt_type.as_str()) {
            found.insert(Misfit::OtherVirtType(match there.virt_type {
                VirtType::Kvm => "emulation",
                VirtType::Qemu => "KVM",
                VirtType::Unknown => "a virtualization type that this version supports",
            }));
        }
        // An emulated CPU has the vendor of its model, not of the host.
        let vendor = self.vendor.filter(|_| there.virt_type == VirtType::Kvm);
        if let Some(vendor) = vendor.filter(|vendor| !there.vendor.is_empty() && *vendor != there.vendor) {
            found.insert(Misfit::OtherVendor(vendor.into()));
        }
        let cpu = match &self.cpu {
            GuestsCpu::SpelledOut(cpu) => cpu,
            GuestsCpu::OfHost(processor) => {
                if node.processor().as_ref() != Some(processor) {
                    found.insert(Misfit::OtherProcessor);
                }
                // The guest has all features that its own node does not mask.
                found.extend(offer.withheld().cloned().map(Misfit::MasksFeature));
                return;
            }
        };
        let bits = cpu.physical_address_bits.filter(|_| there.virt_type == VirtType::Kvm);
        let bits_there = node.facts.and_then(NodeFacts::guest_address_bits);
        if let Some(bits) = bits.filter(|bits| bits_there.is_some_and(|there| there < *bits)) {
            found.insert(Misfit::FewerAddressBits(bits));
        }
        let lacks = compared.with_alike(node.masked, there, || {
            let mut lacks: Vec<Misfit> = lacks_part(&cpu.model, &cpu.disabled, &offer).into_iter().collect();
            lacks.extend(cpu.required.iter().filter_map(|name| match offer.lack(name) {
                Some(Misfit::LacksFeature(_)) if unlisted.contains(name) => {
                    offer.would_mask(name).then(|| Misfit::MasksFeature(name.clone()))
                }
                lack => lack,
            }));
            lacks
        });
        found.extend(lacks.iter().cloned());
    }

    /// Returns the features because of which no node fits although no node lists them at all, including the source. A
    /// guest may have features that no inspection finds; their absence from a list then proves nothing about any
    /// node.
    fn listed_nowhere<'n>(&self, fit: &Fit, nodes: &(impl IntoIterator<Item = NodeView<'n>> + Clone)) -> Vec<String> {
        let GuestsCpu::SpelledOut(cpu) = &self.cpu else {
            return Vec::new();
        };
        let mut missing: Vec<&str> = fit
            .misfits
            .keys()
            .filter_map(|misfit| match misfit {
                Misfit::LacksFeature(name) if cpu.required.contains(name) => Some(name.as_str()),
                _ => None,
            })
            .filter(|name| self.source.as_ref().is_none_or(|here| !is_known_to_have(here, name)))
            .collect();
        for node in nodes.clone() {
            if missing.is_empty() {
                break;
            }
            missing.retain(|name| !is_known_to_have(&node, name));
        }
        missing.into_iter().map(str::to_owned).collect()
    }
}

fn none(reason: &str, message: String) -> Targets {
    Targets {
        available: false,
        reason: reason.into(),
        message,
    }
}
