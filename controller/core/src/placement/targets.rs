//! Which other nodes could take a virtual machine that runs.

use std::collections::BTreeSet;

use drydock_api::{
    facts::{NodeFacts, VirtType},
    kubevirt::{VirtualMachineInstance, status::GuestCpu},
    labels::{CPU_FEATURE, CPU_MINIMUM, CPU_VENDOR, TRUE},
};

use super::{
    HOSTNAME, Requirements,
    fit::{Fit, NodeView, judge, misfits},
    masks::{admit_masked, lift_masks},
    misfit::Misfit,
    models::lacks_part,
    nodes_by_name,
    offer::{Offer, is_known_to_have},
    room::add_shortages,
};
use crate::{default_cpu::has_hosts_own, instance::Targets, minimum::Minimum};

/// So many other nodes are looked for: whether there is one, and whether it is the only one.
const ENOUGH: usize = 2;

/// Whether another node could take a running instance: by the CPU that its guest really has, which
/// is compared with the full sets of what guests can have there, and by what its pod would need.
/// A node of which nothing is known could not. libvirt has the last word when it comes to it.
///
/// A guest with its host's own CPU, which libvirt never spells out, could go where the processor is the
/// same in all that it sees.
///
/// Where several could, they are neither named nor counted: each node that is cordoned would be news of
/// every guest in the cluster. `nodes` are all there are, and are looked at only until that is known, and
/// once more if none could for want of a feature that `source`, the one that it is on, does not list.
pub fn migration_targets<'a>(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    source: Option<&NodeView<'_>>,
    nodes: &(impl IntoIterator<Item = NodeView<'a>> + Clone),
) -> Targets {
    let status = instance.status.as_ref();
    let here = status.and_then(|status| status.node_name.as_deref());
    let Some(guest) = Guest::of(instance, source) else {
        return none("GuestCPUUnknown", "the CPU that the guest has is not known yet".into());
    };
    let others = || {
        let nodes = nodes.clone().into_iter();
        nodes.filter(|node| Some(node.name) != here)
    };
    if others().next().is_none() {
        return none("NoOtherNode", "there is no other node".into());
    }
    let judged = |unlisted: &[String]| {
        judge(others(), ENOUGH, |node| {
            let mut found = misfits(needs, &instance.spec, node);
            if !found.contains(&Misfit::NoAgent) {
                guest.compare(needs, node, unlisted, &mut found);
                add_shortages(needs, node, &mut found);
            }
            found
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
            return none(reason, format!("no other node can take it: {}", fit.reasons()));
        }
        [one] => format!("node {one} could take it"),
        [_, _, ..] => "several nodes could take it".into(),
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
        message: format!("{message}, if its libvirt agrees: the guest has CPU features that no node lists: {features}"),
    }
}

/// Adds what a node must have for a guest that runs: the vendor and the features of the CPU that it really
/// has, as far as nodes have labels for them; or the same processor, for a guest that has its host's own
/// CPU. Masks that the node of the guest has too are not in its way ([`mask`](crate::mask)). It narrows the choice only;
/// [`migration_targets`] compares the full sets, and libvirt has the last word. `source` is the node that it is on,
/// `nodes` are all.
pub fn require_recorded_cpu<'a>(
    needs: &mut Requirements,
    instance: &VirtualMachineInstance,
    minimum: &Minimum,
    source: Option<&NodeView<'_>>,
    nodes: impl IntoIterator<Item = NodeView<'a>> + Clone,
) {
    let Some((guest, source)) = Guest::of(instance, source).zip(source) else {
        return;
    };
    lift_masks(needs, source);
    let cpu = match &guest.cpu {
        GuestsCpu::SpelledOut(cpu) => cpu,
        GuestsCpu::OfHost(processor) => {
            let same = nodes.into_iter().filter(|node| {
                let is_masked = Offer::of(node, needs).is_some_and(|offer| offer.withheld().next().is_some());
                node.processor().as_ref() == Some(processor) && !is_masked
            });
            // The source among them, to which the pod does not go: no list is empty, and one of it alone
            // says that there is no other node.
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

/// Keeps the pod off nodes that no label keeps it off: they lack or mask a part of the model that the guest has, or mask
/// a feature of it that no node lists. Where its own node does not list the model, that of others proves nothing.
fn keep_off_unlabelled<'a>(
    needs: &mut Requirements,
    cpu: &GuestCpu,
    unlisted: &[&String],
    source: &NodeView<'_>,
    nodes: impl IntoIterator<Item = NodeView<'a>>,
) {
    let lack = |offer: &Offer<'_>| lacks_part(&cpu.model, &cpu.disabled, offer);
    let is_credible = Offer::of(source, needs).is_some_and(|offer| lack(&offer).is_none());
    let lacks = |offer: &Offer<'_>| match lack(offer) {
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
        .filter(|node| is_selected(node) && Offer::of(node, needs).is_some_and(|offer| lacks(&offer)))
        .filter_map(|node| node.label(HOSTNAME).map(str::to_owned))
        .collect();
    if !lacking.is_empty() {
        needs.expressions.push(nodes_by_name("NotIn", lacking));
    }
}

/// Everything that is in the way of a running guest on a node, whatever other pods are there, but for the features
/// `unlisted`; `None` if its CPU is not known.
pub(super) fn unsuitable(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    source: Option<&NodeView<'_>>,
    unlisted: &[String],
    node: &NodeView<'_>,
) -> Option<BTreeSet<Misfit>> {
    let guest = Guest::of(instance, source)?;
    let mut found = misfits(needs, &instance.spec, node);
    if !found.contains(&Misfit::NoAgent) {
        guest.compare(needs, node, unlisted, &mut found);
    }
    Some(found)
}

/// Features of a running guest that no node lists, the one that it is on included: of other nodes that proves nothing.
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

/// The CPU of a guest that runs.
enum GuestsCpu<'a> {
    /// libvirt spelled it out when it started the guest.
    SpelledOut(&'a GuestCpu),
    /// It is that of its host, which is this one.
    OfHost(String),
}

/// A guest that runs, as far as other nodes are compared with it.
struct Guest<'a> {
    cpu: GuestsCpu<'a>,
    /// How it runs, if that is known.
    virt_type: Option<&'a str>,
    /// Vendor of the CPU that it runs on, if that is known.
    vendor: Option<&'a str>,
    /// Where it runs, if that is known.
    source: Option<NodeView<'a>>,
}

impl<'a> Guest<'a> {
    /// `None` if its CPU is not known.
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
            // libvirt writes no vendor for a named model, and such a guest sees that of its host all the same.
            vendor: own_vendor.or(facts
                .filter(|facts| facts.virt_type == VirtType::Kvm)
                .map(|facts| facts.vendor.as_str())
                .filter(|vendor| !vendor.is_empty())),
            source: source.cloned(),
        })
    }

    /// Adds what is in the way of it on a node, but for the features `unlisted`.
    fn compare(&self, needs: &Requirements, node: &NodeView<'_>, unlisted: &[String], found: &mut BTreeSet<Misfit>) {
        let Some(offer) = Offer::of(node, needs) else {
            found.insert(Misfit::NotInspected);
            return;
        };
        let there = offer.facts;
        if self.virt_type.is_some_and(|how| how != there.virt_type.as_str()) {
            found.insert(Misfit::OtherVirtType(match there.virt_type {
                VirtType::Kvm => "emulation",
                VirtType::Qemu => "KVM",
                VirtType::Unknown => "a way that this version knows",
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
                // It has all that its own node does not mask.
                found.extend(offer.withheld().cloned().map(Misfit::MasksFeature));
                return;
            }
        };
        let bits = cpu.physical_address_bits.filter(|_| there.virt_type == VirtType::Kvm);
        let bits_there = node.facts.and_then(NodeFacts::guest_address_bits);
        if let Some(bits) = bits.filter(|bits| bits_there.is_some_and(|there| there < *bits)) {
            found.insert(Misfit::FewerAddressBits(bits));
        }
        found.extend(lacks_part(&cpu.model, &cpu.disabled, &offer));
        for name in &cpu.required {
            found.extend(match offer.lack(name) {
                Some(Misfit::LacksFeature(_)) if unlisted.contains(name) => {
                    offer.would_mask(name).then(|| Misfit::MasksFeature(name.clone()))
                }
                lack => lack,
            });
        }
    }

    /// Features for want of which no node fits, though none at all lists them, the source included. A guest
    /// may have what no inspection finds; then that it is not listed proves nothing of any node.
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
