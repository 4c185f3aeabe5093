//! Which other nodes could take a virtual machine that runs.

use std::collections::BTreeSet;

use drydock_api::{
    facts::{Usable, VirtType, VirtualizationFacts},
    kubevirt::{
        VirtualMachineInstance,
        status::{DrydockStatus, GuestCpu},
    },
    labels::{CPU_FEATURE, CPU_MINIMUM, TRUE},
};

use super::{
    Requirements,
    fit::{NodeView, judge, misfits},
    misfit::Misfit,
    room::add_shortages,
};
use crate::{aliases, instance::Targets, minimum::Minimum};

/// So many other nodes are looked for: whether there is one, and whether it is the only one.
const ENOUGH: usize = 2;

/// Whether another node could take a running instance: by the CPU that its guest really has, which
/// is compared with the full sets of what guests can have there, and by what its pod would need.
/// A node of which nothing is known could not. libvirt has the last word when it comes to it.
///
/// Where several could, they are neither named nor counted: each node that is cordoned would be news of
/// every guest in the cluster. `nodes` are all there are, and are looked at only until that is known;
/// `source` is the one that it is on.
pub fn migration_targets<'a>(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    source: Option<&NodeView<'_>>,
    nodes: impl IntoIterator<Item = NodeView<'a>>,
) -> Targets {
    let status = instance.status.as_ref();
    let here = status.and_then(|status| status.node_name.as_deref());
    let Some((record, cpu)) = status
        .and_then(|status| status.drydock.as_ref())
        .and_then(|record| record.guest_cpu.as_ref().map(|cpu| (record, cpu)))
    else {
        return none("GuestCPUUnknown", "the CPU that the guest has is not known yet".into());
    };
    let source = source.and_then(NodeView::virtualization);
    let mut others = nodes.into_iter().filter(|node| Some(node.name) != here).peekable();
    if others.peek().is_none() {
        return none("NoOtherNode", "there is no other node".into());
    }
    let fit = judge(others, ENOUGH, |node| {
        let mut found = unsuitable(instance, needs, record, cpu, source, node);
        if !found.contains(&Misfit::NoAgent) {
            add_shortages(needs, node, &mut found);
        }
        found
    });
    let message = match fit.fits.as_slice() {
        [] => {
            let reason = fit.first().map_or("NoOtherNode", Misfit::reason);
            return none(reason, format!("no other node can take it: {}", fit.reasons()));
        }
        [one] => format!("node {one} could take it"),
        [_, _, ..] => "several nodes could take it".into(),
    };
    Targets {
        available: true,
        reason: "TargetsFound".into(),
        message,
    }
}

/// Adds what a node must have for a guest that runs: the features of the CPU that it really has, as
/// far as nodes have labels for them. It narrows the choice only; [`migration_targets`] compares the full
/// sets, and libvirt has the last word. `source` is the node that it is on.
pub fn require_recorded_cpu(
    needs: &mut Requirements,
    instance: &VirtualMachineInstance,
    minimum: &Minimum,
    source: Option<&NodeView<'_>>,
) {
    let status = instance.status.as_ref();
    let recorded = status.and_then(|status| status.drydock.as_ref()?.guest_cpu.as_ref());
    let source = source.and_then(NodeView::virtualization);
    let (Some(cpu), Some(source)) = (recorded, source) else {
        return;
    };
    let listed = Features::of(source);
    for feature in cpu.required.iter().filter(|name| listed.contain(name)) {
        let key = if minimum.features.contains(feature) {
            format!("{CPU_MINIMUM}{}", minimum.model)
        } else {
            format!("{CPU_FEATURE}{feature}")
        };
        needs.node_selector.insert(key, TRUE.into());
    }
}

/// Everything that is in the way of a running guest on a node, whatever other pods are there.
pub(super) fn unsuitable(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    record: &DrydockStatus,
    cpu: &GuestCpu,
    source: Option<&VirtualizationFacts>,
    node: &NodeView<'_>,
) -> BTreeSet<Misfit> {
    let mut found = misfits(needs, &instance.spec, node);
    if found.contains(&Misfit::NoAgent) {
        return found;
    }
    match node.virtualization() {
        Some(there) => running(record, cpu, source, there, &mut found),
        None => {
            found.insert(Misfit::NotInspected);
        }
    }
    found
}

fn none(reason: &str, message: String) -> Targets {
    Targets {
        available: false,
        reason: reason.into(),
        message,
    }
}

/// What is in the way of a guest with this CPU where guests can have what `there` says.
fn running(
    record: &DrydockStatus,
    cpu: &GuestCpu,
    source: Option<&VirtualizationFacts>,
    there: &VirtualizationFacts,
    found: &mut BTreeSet<Misfit>,
) {
    if record
        .virt_type
        .as_deref()
        .is_some_and(|how| how != there.virt_type.as_str())
    {
        found.insert(Misfit::OtherVirtType(match there.virt_type {
            VirtType::Kvm => "emulation",
            VirtType::Qemu => "KVM",
            VirtType::Unknown => "a way that this version knows",
        }));
    }
    // An emulated CPU has the vendor of its model, not of the host.
    let vendor = cpu.vendor.as_ref().filter(|_| there.virt_type == VirtType::Kvm);
    if let Some(vendor) = vendor.filter(|vendor| !there.vendor.is_empty() && **vendor != there.vendor) {
        found.insert(Misfit::OtherVendor(vendor.clone()));
    }
    found.extend(lacks_base(cpu, there));
    let can = Features::of(there);
    let source = source.map(Features::of);
    // A guest may have features that no inspection lists: what is not listed where it runs either
    // proves nothing of another node.
    let listed = |name: &str| source.as_ref().is_none_or(|source| source.contain(name));
    let lacking = cpu.required.iter().filter(|name| !can.contain(name) && listed(name));
    found.extend(lacking.cloned().map(Misfit::LacksFeature));
}

/// Features that guests can have on a node, looked up quickly where they are listed in order.
struct Features<'a> {
    names: &'a [String],
    sorted: bool,
}

impl<'a> Features<'a> {
    fn of(facts: &'a VirtualizationFacts) -> Self {
        Self {
            names: &facts.features,
            sorted: facts.features.is_sorted(),
        }
    }

    fn contain(&self, wanted: &str) -> bool {
        if self.sorted {
            self.names.binary_search_by(|name| name.as_str().cmp(wanted)).is_ok()
        } else {
            self.names.iter().any(|name| name == wanted)
        }
    }
}

/// That guests cannot have the model on which the guest's CPU is based, without what it lacks
/// anyway.
fn lacks_base(cpu: &GuestCpu, there: &VirtualizationFacts) -> Option<Misfit> {
    let lack = |missing: &[String]| -> Vec<String> {
        missing
            .iter()
            .filter(|feature| !cpu.disabled.contains(feature))
            .cloned()
            .collect()
    };
    let exact = |name: &str| there.models.iter().find(|model| model.name == name);
    // A model is as usable by each of its names.
    let model = exact(&cpu.model).or_else(|| aliases::names_of(&cpu.model, &there.models).find_map(exact));
    let Some(model) = model else {
        return Some(Misfit::LacksModel(cpu.model.clone(), Vec::new()));
    };
    if model.usable != Usable::No {
        return None;
    }
    let missing = lack(&model.blockers);
    let host = there
        .host_model
        .as_ref()
        .filter(|host| aliases::names_of(&cpu.model, &there.models).any(|name| name == host.name));
    match host {
        _ if !missing.is_empty() => Some(Misfit::LacksModel(cpu.model.clone(), missing)),
        _ if !model.blockers.is_empty() => None,
        // libvirt does not say why the model is not usable; the host model is based on it without these.
        Some(host) => {
            let missing = lack(&host.disabled);
            (!missing.is_empty()).then(|| Misfit::LacksModel(cpu.model.clone(), missing))
        }
        None => Some(Misfit::LacksModel(cpu.model.clone(), Vec::new())),
    }
}
