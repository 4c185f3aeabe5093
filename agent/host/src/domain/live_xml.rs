//! The relevant part of a running guest's live XML: the full CPU, the machine type and the guest agent.

use std::collections::BTreeMap;

use roxmltree::Node;

use super::AgentChannel;
use crate::document::{MAX_LIST, ParseError, Reading, child, children};

/// Name of the guest agent's channel.
const AGENT: &str = "org.qemu.guest_agent.0";

/// The full CPU of a running guest. A host that provides the full CPU can run the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveCpu {
    /// libvirt's name of the CPU model; empty if the guest has the host's own CPU.
    pub model: String,
    /// libvirt's name of the CPU vendor.
    pub vendor: Option<String>,
    /// CPU features beyond the model, each with libvirt's policy (`require`, `disable`).
    pub features: BTreeMap<String, String>,
    /// Mode of the CPU: `custom` if the model and the features describe the CPU completely.
    pub mode: String,
    /// Number of physical address bits, if specified.
    pub address_bits: Option<AddressBits>,
    /// libvirt's check of the CPU against the features that QEMU provided: `full` if the features are the features that
    /// QEMU reported.
    pub check: String,
}

/// Number of physical address bits (`maxphysaddr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressBits {
    /// A fixed number, regardless of the host.
    Emulated(u32),
    /// The host's number, limited to this value.
    OfHost(Option<u32>),
}

/// The relevant parts of a running domain's XML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveDomain {
    /// libvirt's ID of the running guest; `None` if the guest does not run.
    pub id: Option<u32>,
    /// UUID of the domain.
    pub uuid: String,
    /// Canonical name of the machine type (`pc-q35-10.0`).
    pub machine: String,
    /// The CPU, if the document has an element for it.
    pub cpu: Option<LiveCpu>,
    /// State of the guest agent's channel; `None` if the domain has no channel for the agent or the guest does not run.
    pub agent: Option<AgentChannel>,
}

impl LiveCpu {
    /// Returns whether this value describes the guest's CPU completely.
    ///
    /// libvirt expands a model when it starts the guest; only `host-passthrough` is not expanded.
    pub fn is_complete(&self) -> bool {
        self.mode == "custom" && self.check == "full" && !self.model.is_empty()
    }
}

impl LiveDomain {
    /// Parses a running domain's XML from libvirt.
    ///
    /// # Errors
    /// If the document cannot be parsed or exceeds the bounds.
    pub fn parse(xml: &str) -> Result<Self, ParseError> {
        Reading::parse("the domain's XML", "domain", xml, |reading, domain| {
            let id = reading.attribute("domain", domain, "id")?;
            let machine = child(domain, "os").and_then(|os| child(os, "type"));
            Ok(Self {
                id: id.and_then(|id| id.parse().ok()),
                uuid: child(domain, "uuid").map_or(Ok(String::new()), |uuid| reading.text_of("uuid", uuid))?,
                machine: match machine {
                    Some(kind) => reading.attribute("type", kind, "machine")?.unwrap_or_default(),
                    None => String::new(),
                },
                cpu: child(domain, "cpu").map(|cpu| read_cpu(reading, cpu)).transpose()?,
                agent: child(domain, "devices").and_then(agent),
            })
        })
    }
}

fn read_cpu(reading: Reading, cpu: Node<'_, '_>) -> Result<LiveCpu, ParseError> {
    let text = |name| child(cpu, name).map(|node| reading.text_of("cpu", node)).transpose();
    let attribute = |name| Ok::<_, ParseError>(reading.attribute("cpu", cpu, name)?.unwrap_or_default());
    let mut features = BTreeMap::new();
    for feature in children(cpu, "feature") {
        let Some(name) = reading.attribute("feature", feature, "name")? else {
            continue;
        };
        // libvirt omits the policy if only one is possible.
        let policy = reading.attribute("feature", feature, "policy")?;
        features.insert(name, policy.unwrap_or_else(|| "require".into()));
        if features.len() > MAX_LIST {
            return Err(reading.too_many("feature"));
        }
    }
    let address_bits = match child(cpu, "maxphysaddr") {
        Some(node) => {
            let number = |name| {
                let text = reading.attribute("maxphysaddr", node, name)?;
                Ok::<_, ParseError>(text.and_then(|text| text.parse().ok()))
            };
            match node.attribute("mode") {
                Some("emulate") => number("bits")?.map(AddressBits::Emulated),
                Some("passthrough") => Some(AddressBits::OfHost(number("limit")?)),
                _ => None,
            }
        }
        None => None,
    };
    Ok(LiveCpu {
        address_bits,
        model: text("model")?.unwrap_or_default(),
        vendor: text("vendor")?.filter(|vendor| !vendor.is_empty()),
        features,
        mode: attribute("mode")?,
        check: attribute("check")?,
    })
}

/// Returns the state of the guest agent's channel. Only a running domain has a state of the channel.
fn agent(devices: Node<'_, '_>) -> Option<AgentChannel> {
    let mut targets = children(devices, "channel").filter_map(|channel| child(channel, "target"));
    let target = targets.find(|target| target.attribute("name") == Some(AGENT))?;
    match target.attribute("state")? {
        "connected" => Some(AgentChannel::Connected),
        "disconnected" => Some(AgentChannel::Disconnected),
        _ => Some(AgentChannel::Unknown(0)),
    }
}

#[cfg(test)]
mod tests;
