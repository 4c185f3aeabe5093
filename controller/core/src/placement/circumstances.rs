//! Digest of everything that decides whether a running guest can move.
//!
//! The digest shows whether anything has changed since a migration failed that could let the next one succeed.
//!
//! | object | included | not included |
//! |---|---|---|
//! | the guest's node | its CPU, KVM, libvirt and QEMU; its mask; the version of its agent | labels, taints |
//! | each other suitable node, however full | existence; the same; allocatable resources | other labels, taints |
//! | other nodes | that they do not suit | all else: none of it lets a migration succeed |
//! | the configuration | all of it | |
//! | the guest | its spec, its CPU, its virtualization type, its node | its other status: attempts change it |
//!
//! Labels, taints, cordon, CPU, mask and volumes decide whether a node suits the guest.
//!
//! The free resources of a node are not included either: they change with each pod, and while no node has room no
//! migration is created. Nor are measured numbers, such as the frequency of a time stamp counter, which differ each
//! time.

use std::fmt::Write as _;

use drydock_api::kubevirt::VirtualMachineInstance;
use serde_json::json;
use uuid::Uuid;

use super::{
    NodeView, Requirements,
    targets::{unlisted_features, unsuitable},
};
use crate::configuration::Configuration;

/// Namespace of the UUIDs that are used as digests.
const NAMES: Uuid = Uuid::from_u128(0x7c4f_0d52_6b1e_5a39_9e08_2f6d_b3a1_57c4);

/// Returns the digest of the circumstances that decide whether a running guest can move. Equal circumstances have equal
/// digests, whatever the order of `nodes`, which are all nodes; `source` is the node that the guest is on.
pub fn circumstances<'a>(
    instance: &VirtualMachineInstance,
    needs: &Requirements,
    source: Option<&NodeView<'a>>,
    nodes: &[NodeView<'a>],
    configuration: &Configuration,
) -> String {
    let status = instance.status.clone().unwrap_or_default();
    let record = status.drydock.unwrap_or_default();
    let guest = json!({
        "spec": instance.spec,
        "cpu": record.guest_cpu,
        "virtType": record.virt_type,
        "node": status.node_name,
    });
    let mut text = format!("{guest}\n{configuration:?}\n");
    if let Some(source) = source {
        describe(&mut text, source);
    }
    let unlisted = unlisted_features(instance, source.into_iter().chain(nodes));
    let here = source.map(|source| source.name);
    let suits = |node: &&NodeView<'_>| {
        let found = unsuitable(instance, needs, source, &unlisted, node);
        Some(node.name) != here && found.is_some_and(|found| found.is_empty())
    };
    let mut suitable: Vec<&NodeView<'_>> = nodes.iter().filter(suits).collect();
    suitable.sort_by_key(|node| node.name);
    for node in suitable {
        describe(&mut text, node);
        let _ = writeln!(text, "{:?}", node.allocatable);
    }
    Uuid::new_v5(&NAMES, text.as_bytes()).to_string()
}

/// Appends the properties of a node that may matter to libvirt and QEMU.
fn describe(text: &mut String, node: &NodeView<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{} {} {:?}", node.name, node.agent_version, node.masked);
    let Some(facts) = node.facts else { return };
    let cpu = &facts.cpu;
    let _ = writeln!(
        text,
        "{} {} {:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        facts.architecture,
        facts.kernel,
        cpu.vendor,
        cpu.family,
        cpu.model,
        cpu.stepping,
        cpu.microcode,
        facts.kvm.state,
        facts.kvm.parameters,
    );
    let Some(virtualization) = &facts.virtualization else {
        return;
    };
    let machines = virtualization.machine_types.iter().map(|machine| &machine.name);
    let _ = writeln!(
        text,
        "{:?} {} {} {} {:?} {:?} {:?} {:?} {:?}",
        virtualization.virt_type,
        virtualization.libvirt_version,
        virtualization.qemu_version,
        virtualization.vendor,
        virtualization.features,
        virtualization.withheld,
        virtualization.host_passthrough_migratable,
        facts.guest_address_bits(),
        machines.collect::<Vec<_>>(),
    );
}
