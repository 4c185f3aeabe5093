//! Which other nodes could take a virtual machine that runs.

use std::collections::BTreeSet;

use drydock_api::{facts::Usable, kubevirt::VirtualMachineInstance};

use super::{
    Requirements,
    fit::{Misfit, NodeView, judge, surroundings},
};
use crate::instance::Targets;

/// How many nodes are called by their names.
const NAMED: usize = 3;

/// Whether another node could take a running instance, by the CPU that its guest really has (the
/// full sets are compared, not labels) and by what its pod would need. libvirt has the last word
/// when it comes to it.
pub fn migration_targets(instance: &VirtualMachineInstance, needs: &Requirements, nodes: &[NodeView<'_>]) -> Targets {
    let status = instance.status.as_ref();
    let here = status.and_then(|status| status.node_name.as_deref());
    let cpu = status
        .and_then(|status| status.drydock.as_ref())
        .and_then(|drydock| drydock.guest_cpu.as_ref());
    let others: Vec<NodeView<'_>> = nodes.iter().filter(|node| Some(node.name) != here).cloned().collect();
    if others.is_empty() {
        return Targets {
            available: false,
            reason: "NoOtherNode".into(),
            message: "there is no other node".into(),
        };
    }
    let fit = judge(&others, |node| {
        let mut misfits = surroundings(needs, &instance.spec, node);
        if let (Some(cpu), Some(facts)) = (cpu, node.facts.and_then(|facts| facts.virtualization.as_ref())) {
            let model = facts.models.iter().find(|model| model.name == cpu.model);
            // A host model may be based on a model that is not usable as such.
            let host = facts.host_model.as_ref().is_some_and(|host| host.name == cpu.model);
            if !host && model.is_none_or(|model| model.usable == Usable::No) {
                let missing = model.map(|model| model.blockers.clone()).unwrap_or_default();
                let withheld: BTreeSet<&String> = cpu.disabled.iter().collect();
                let missing: Vec<String> = missing.into_iter().filter(|name| !withheld.contains(name)).collect();
                if model.is_none() || !missing.is_empty() {
                    misfits.push(Misfit::LacksModel(cpu.model.clone(), missing));
                }
            }
            let features: BTreeSet<&String> = facts.features.iter().collect();
            let lacks = cpu.required.iter().filter(|feature| !features.contains(feature));
            misfits.extend(lacks.cloned().map(Misfit::LacksFeature));
        }
        misfits.sort();
        misfits.dedup();
        misfits
    });
    if fit.fits.is_empty() {
        let reason = fit.misfits.keys().next().map_or("NoOtherNode", Misfit::reason);
        return Targets {
            available: false,
            reason: reason.into(),
            message: fit.reasons(),
        };
    }
    let mut names: Vec<&str> = fit.fits.iter().map(String::as_str).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let mut message = names.join(", ");
    if more > 0 {
        message = format!("{message} and {more} others");
    }
    Targets {
        available: true,
        reason: "TargetsFound".into(),
        message,
    }
}
