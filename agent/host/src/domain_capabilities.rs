//! libvirt's domain capabilities, which describe the possible guests of a virt type and machine type.
//!
//! The format is the output of libvirt's `formatdomaincaps`. The rules follow KubeVirt's node-labeller. This module
//! also reads data that the node-labeller ignores: aliases, vendors, deprecation, blockers.

use std::collections::{BTreeMap, BTreeSet};

use drydock_api::facts::{ConfidentialFacts, CpuModel, HostModel, SevFacts, Usable};
use roxmltree::Node;

use crate::{
    architecture::Architecture,
    document::{ParseError, Reading, child, children},
};

/// Parsed domain capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainCapabilities {
    /// Path of QEMU.
    pub emulator: String,
    /// Vendor of the host model, or the architecture's default; may be empty.
    pub vendor: String,
    /// Expansion of `host-model`, if the mode exists.
    pub host_model: Option<HostModel>,
    /// Host model as a `<cpu>` element, which is the input of a baseline. Present only if libvirt marks the mode as
    /// supported.
    pub host_model_cpu: Option<String>,
    /// Maximum number of physical address bits of a guest with the host model.
    pub physical_address_bits: Option<u32>,
    /// Whether `host-passthrough` can exclude features that cannot be migrated (`migratable='on'`).
    ///
    /// `None` if the mode is not supported, or if libvirt does not report it (before 6.7).
    pub host_passthrough_migratable: Option<bool>,
    /// All models, without duplicate names.
    pub models: Vec<CpuModel>,
    /// Confidential computing facts.
    pub confidential: ConfidentialFacts,
}

impl DomainCapabilities {
    /// Returns whether a guest can have any named model.
    ///
    /// On some architectures, libvirt cannot determine whether a model is usable. Such a model counts as usable.
    pub fn has_usable_model(&self) -> bool {
        self.models.iter().any(|model| model.usable != Usable::No)
    }
}

/// Parses domain capabilities.
///
/// # Errors
/// If the text is not a domain capabilities document or exceeds the bounds.
pub fn parse(text: &str, architecture: &Architecture) -> Result<DomainCapabilities, ParseError> {
    Reading::parse(
        "the domain capabilities",
        "domainCapabilities",
        text,
        |reading, root| {
            let mut found = DomainCapabilities {
                vendor: architecture.default_vendor().into(),
                ..Default::default()
            };
            if let Some(path) = child(root, "path") {
                // The path is not limited like a name: it may be long, and an error would be out of proportion.
                found.emulator = path.text().unwrap_or("").chars().take(4096).collect();
            }
            let cpu = child(root, "cpu");
            let mut blockers = BTreeMap::new();
            for mode in cpu.iter().flat_map(|cpu| children(*cpu, "mode")) {
                match mode.attribute("name") {
                    Some("host-model") if architecture.has_host_model() => {
                        host_model(reading, mode, text, &mut found)?;
                    }
                    Some("host-passthrough") => found.host_passthrough_migratable = migratable(mode),
                    _ => {}
                }
                models(reading, mode, &mut found.models)?;
                read_blockers(reading, mode, &mut blockers)?;
            }
            for model in &mut found.models {
                model.blockers = blockers.remove(&model.name).unwrap_or_default();
            }
            if let Some(features) = child(root, "features") {
                found.confidential = confidential(reading, features)?;
            }
            Ok(found)
        },
    )
}

/// Reads the mode `host-model`. If there is more than one `<model>`, the first is used.
///
/// A mode without `<model>` is not an error: libvirt writes it if it does not support the mode, and there is no host
/// model.
fn host_model(
    reading: Reading,
    mode: Node<'_, '_>,
    text: &str,
    found: &mut DomainCapabilities,
) -> Result<(), ParseError> {
    if let Some(vendor) = child(mode, "vendor") {
        let vendor = reading.text_of("vendor", vendor)?;
        if !vendor.is_empty() {
            found.vendor = vendor;
        }
    }
    let Some(model) = child(mode, "model") else {
        return Ok(());
    };
    let name = reading.text_of("model", model)?;
    if name.is_empty() {
        return Ok(());
    }
    let fallback = reading.attribute("model", model, "fallback")?.unwrap_or_default();
    let (mut required, mut disabled) = (Vec::new(), Vec::new());
    for feature in children(mode, "feature") {
        let Some(name) = reading.attribute("feature", feature, "name")? else {
            continue;
        };
        match feature.attribute("policy") {
            Some("require") => reading.push("feature", &mut required, name)?,
            Some("disable") => reading.push("feature", &mut disabled, name)?,
            _ => {}
        }
    }
    if let Some(bits) = child(mode, "maxphysaddr") {
        // The attribute is `limit` in the mode `passthrough`, and `bits` in the mode `emulate`.
        let limit = reading.attribute("maxphysaddr", bits, "limit")?;
        let exact = reading.attribute("maxphysaddr", bits, "bits")?;
        found.physical_address_bits = limit.or(exact).and_then(|bits| bits.parse().ok());
    }
    found.host_model = Some(HostModel {
        name,
        fallback,
        required,
        disabled,
    });
    if mode.attribute("supported") == Some("yes") {
        found.host_model_cpu = Some(as_cpu(mode, text));
    }
    Ok(())
}

/// Returns whether the enum of the mode `host-passthrough` contains `on`.
///
/// On arm64 and s390x, QEMU has no switch for this, and libvirt refuses every value except `off`.
fn migratable(mode: Node<'_, '_>) -> Option<bool> {
    let mut enums = children(mode, "enum");
    let offered = enums.find(|node| node.attribute("name") == Some("hostPassthroughMigratable"))?;
    Some(children(offered, "value").any(|value| value.text().map(str::trim) == Some("on")))
}

/// Converts the mode to the `<cpu>` element that libvirt's baseline call takes.
///
/// virsh does the same with domain capabilities. libvirt writes no namespaces, so the text can be cut out.
fn as_cpu(mode: Node<'_, '_>, text: &str) -> String {
    let content: String = mode.children().filter_map(|child| text.get(child.range())).collect();
    format!("<cpu>{content}</cpu>")
}

/// Reads the models of a mode. A model without `usable` (as in `host-model`) is not part of the list.
fn models(reading: Reading, mode: Node<'_, '_>, models: &mut Vec<CpuModel>) -> Result<(), ParseError> {
    let mut seen: BTreeSet<String> = models.iter().map(|model| model.name.clone()).collect();
    for model in children(mode, "model") {
        let Some(usable) = reading.attribute("model", model, "usable")? else {
            continue;
        };
        let name = reading.text_of("model", model)?;
        if name.is_empty() || !seen.insert(name.clone()) {
            continue;
        }
        let vendor = reading
            .attribute("model", model, "vendor")?
            .filter(|vendor| vendor != "unknown");
        let item = CpuModel {
            name,
            usable: match usable.as_str() {
                "no" => Usable::No,
                "yes" => Usable::Yes,
                _ => Usable::Unknown,
            },
            canonical: reading.attribute("model", model, "canonical")?,
            deprecated: model.attribute("deprecated") == Some("yes"),
            vendor,
            blockers: Vec::new(),
        };
        reading.push("model", models, item)?;
    }
    Ok(())
}

/// Reads `<blockers model='...'>`: features that a model needs and guests cannot have on this host.
fn read_blockers(
    reading: Reading,
    mode: Node<'_, '_>,
    blockers: &mut BTreeMap<String, Vec<String>>,
) -> Result<(), ParseError> {
    for block in children(mode, "blockers") {
        let Some(model) = reading.attribute("blockers", block, "model")? else {
            continue;
        };
        let list = blockers.entry(model).or_default();
        for feature in children(block, "feature") {
            if let Some(name) = reading.attribute("feature", feature, "name")? {
                reading.push("feature", list, name)?;
            }
        }
    }
    Ok(())
}

/// Reads SEV, SEV-ES, SEV-SNP, TDX and Secure Execution. SNP counts only if ES guests can run.
fn confidential(reading: Reading, features: Node<'_, '_>) -> Result<ConfidentialFacts, ParseError> {
    let supported = |name: &str| child(features, name).filter(|node| node.attribute("supported") == Some("yes"));
    let sev = match supported("sev") {
        Some(sev) => Some(SevFacts {
            cbitpos: number(reading, sev, "cbitpos")?,
            reduced_phys_bits: number(reading, sev, "reducedPhysBits")?,
            max_guests: number(reading, sev, "maxGuests")?,
            max_es_guests: number(reading, sev, "maxESGuests")?,
        }),
        None => None,
    };
    let offers_snp = supported("launchSecurity").is_some_and(|security| {
        security
            .descendants()
            .any(|node| node.has_tag_name("value") && node.text().map(str::trim) == Some("sev-snp"))
    });
    Ok(ConfidentialFacts {
        sev_snp: offers_snp && sev.as_ref().is_some_and(|sev| sev.max_es_guests > 0),
        sev,
        tdx: supported("tdx").is_some(),
        secure_execution: supported("s390-pv").is_some(),
    })
}

/// Reads a number from a child element; 0 if the element is missing or not a number.
fn number(reading: Reading, node: Node<'_, '_>, name: &'static str) -> Result<u32, ParseError> {
    let text = child(node, name).map(|node| reading.text_of(name, node)).transpose()?;
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
