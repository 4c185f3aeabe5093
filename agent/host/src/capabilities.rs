//! libvirt's capabilities: the host's time stamp counter, topology and machine types.
//!
//! Only machine types of the native architecture are kept. KubeVirt's node-labeller also keeps the machine types of
//! every other installed emulator, although no guest of the node can have them.

use std::collections::BTreeSet;

use drydock_api::facts::{HostTopology, MachineType, TscCounter};
use roxmltree::Node;

use crate::{
    architecture::Architecture,
    document::{ParseError, Reading, child, children},
};

/// Parsed capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The host's time stamp counter, if libvirt could measure it.
    pub tsc: Option<TscCounter>,
    /// CPU topology, if libvirt reports it.
    pub topology: Option<HostTopology>,
    /// Machine types of the native architecture, sorted by name.
    pub machine_types: Vec<MachineType>,
}

/// Parses libvirt's capabilities.
///
/// # Errors
/// If the text is not a capabilities document or exceeds the bounds.
pub fn parse(text: &str, architecture: &Architecture) -> Result<Capabilities, ParseError> {
    Reading::parse("the capabilities", "capabilities", text, |reading, root| {
        let host = child(root, "host");
        let cpu = host.and_then(|host| child(host, "cpu"));
        let cells = host
            .and_then(|host| child(host, "topology"))
            .and_then(|topology| child(topology, "cells"));
        let tsc = match cpu {
            Some(cpu) => counter(reading, cpu)?,
            None => None,
        };
        Ok(Capabilities {
            tsc,
            topology: cpu.and_then(|cpu| topology(cpu, cells)),
            machine_types: machine_types(reading, root, architecture)?,
        })
    })
}

/// Parses `<counter name='tsc' frequency='...' scaling='...'/>`.
fn counter(reading: Reading, cpu: Node<'_, '_>) -> Result<Option<TscCounter>, ParseError> {
    let Some(counter) = children(cpu, "counter").find(|counter| counter.attribute("name") == Some("tsc")) else {
        return Ok(None);
    };
    let frequency = reading
        .attribute("counter", counter, "frequency")?
        .and_then(|text| text.parse().ok());
    Ok(frequency.map(|frequency_hz| TscCounter {
        frequency_hz,
        scalable: counter.attribute("scaling") == Some("yes"),
    }))
}

/// Parses `<topology sockets dies clusters cores threads>` and counts the NUMA cells.
fn topology(cpu: Node<'_, '_>, cells: Option<Node<'_, '_>>) -> Option<HostTopology> {
    let topology = child(cpu, "topology")?;
    let number = |name: &str| topology.attribute(name).and_then(|text| text.parse::<u32>().ok());
    let numa_cells = cells.map_or(0, |cells| children(cells, "cell").count());
    Some(HostTopology {
        sockets: number("sockets")?,
        // Older versions of libvirt write neither dies nor clusters.
        cores: number("cores")?
            .saturating_mul(number("dies").unwrap_or(1).max(1))
            .saturating_mul(number("clusters").unwrap_or(1).max(1)),
        threads: number("threads")?,
        numa_cells: u32::try_from(numa_cells).unwrap_or(u32::MAX),
    })
}

/// Returns the machine types of the native architecture, including those that only one virt type has.
fn machine_types(
    reading: Reading,
    root: Node<'_, '_>,
    architecture: &Architecture,
) -> Result<Vec<MachineType>, ParseError> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for guest in children(root, "guest") {
        for arch in children(guest, "arch").filter(|arch| arch.attribute("name") == Some(architecture.libvirt())) {
            for machine in arch.descendants().filter(|node| node.has_tag_name("machine")) {
                let name = reading.text_of("machine", machine)?;
                if name.is_empty() || !seen.insert(name.clone()) {
                    continue;
                }
                let canonical = reading.attribute("machine", machine, "canonical")?;
                let deprecated = machine.attribute("deprecated") == Some("yes");
                reading.push(
                    "machine",
                    &mut found,
                    MachineType {
                        name,
                        canonical,
                        deprecated,
                    },
                )?;
            }
        }
    }
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

#[cfg(test)]
mod tests;
