//! Computes drain previews: the effects of draining a node.

use std::{collections::HashMap, sync::Arc};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use drydock_core::{
    drain::{DrainInput, DrainedGuest, DrainingNode, NodeMarks, preview},
    migration::deadlines::Attempts,
    placement::DepartureOutlook,
    pod_state::created_at,
};
use drydock_runtime::{Key, clock};
use k8s_openapi::api::core::v1::Pod;

use super::outlooks::{self, Competitor};
use crate::{guest_context::GuestContext, launchers::Launchers};

/// Returns one line for all guests of a node, and one for each guest. Reads only the caches, so any replica can call it.
pub(crate) fn preview_lines(context: &GuestContext, name: &str) -> Vec<String> {
    let keys = context.instances.on_node(name);
    let there: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((key, context.instances.get(key)?)))
        .collect();
    let mut guests: Vec<DrainedGuest<'_>> = there
        .iter()
        .map(|(key, instance)| guest(&context.launchers, instance, context.migrations.of_instance(key)))
        .collect();
    let competing: Vec<_> = guests
        .iter()
        .filter_map(|guest| Competitor::of(&context.launchers, guest))
        .collect();
    let packing = outlooks::evaluate(&context.launchers, &competing);
    let keys = competing.iter().map(Competitor::key);
    let mut outlooks: HashMap<_, _> = keys.zip(packing.outlooks).collect();
    for guest in &mut guests {
        guest.outlook = outlooks.remove(&Key::of(guest.instance)).unwrap_or_default();
    }
    let node = DrainingNode {
        name,
        marks: NodeMarks::default(),
        guests,
        arriving: 0,
        evictable: None,
        before: None,
    };
    preview::preview(
        &node,
        &DrainInput {
            now: clock::now(),
            nodes: &[],
            limits: &context.launchers.configuration.get().migrations,
            attempts: Attempts::default(),
            rate: context.rate.rate(),
        },
    )
}

/// Returns a guest as an input of a plan or a preview.
pub(super) fn guest<'a>(
    launchers: &Launchers,
    instance: &'a VirtualMachineInstance,
    migrations: Vec<Arc<VirtualMachineInstanceMigration>>,
) -> DrainedGuest<'a> {
    let pods = launchers.of(instance);
    let here = instance.node_name();
    let is_here = |pod: &&Arc<Pod>| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == here);
    DrainedGuest {
        instance,
        strategy: launchers.eviction_strategy(instance),
        made: pods.iter().filter_map(|pod| created_at(pod)).min(),
        migrations,
        refused: None,
        outlook: DepartureOutlook::Unknown,
        circumstances: None,
        held_by: pods.iter().filter(is_here).find_map(|pod| launchers.pdbs.holding(pod)),
    }
}
