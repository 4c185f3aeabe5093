//! A node's CPU labels.
//!
//! The labels are those of KubeVirt's node labeller, with fewer keys for the same scheduling: obsolete models, second
//! names of a model, the features of the minimum model and deprecated machine types are omitted, and
//! `cpu-model-migration` is written for usable models and the host model only. The Hypervisor object has the full
//! sets.

use std::collections::{BTreeMap, BTreeSet};

use drydock_api::{
    facts::{CpuModel, MachineType, NodeFacts, Usable, VirtType, VirtualizationFacts},
    labels as keys,
};

use crate::{aliases, label_keys, minimum_cpu::Minimum, obsolete::ObsoleteModels};

/// The configuration of the labels.
#[derive(Clone, Debug, Default)]
pub struct LabelPolicy {
    /// Models that get no label.
    pub obsolete: ObsoleteModels,
    /// Features without a label of their own.
    pub minimum: Minimum,
    /// Whether every name of a model gets a label, instead of one name only.
    pub aliases: bool,
    /// Whether guests may run in emulation, so that the emulator's features and models get labels.
    pub use_emulation: bool,
    /// Whether the architectures of supported guests get labels.
    pub guest_architecture: bool,
}

/// Why a node gets no labels about what guests can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// The node has not been inspected, or cannot be: existing labels stay as they are.
    NotInspected,
    /// Guests of the node's architecture are not supported: the node has no CPU labels.
    Architecture,
    /// KVM cannot be used and the configuration does not allow emulation: the node has no CPU labels.
    EmulationNotAllowed,
}

impl Withheld {
    /// Returns the reason of the condition `Labelled`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotInspected => "NotInspected",
            Self::Architecture => "ArchitectureNotSupported",
            Self::EmulationNotAllowed => "EmulationNotAllowed",
        }
    }

    /// Returns the reason as a human-readable sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotInspected => {
                "the virtualization capabilities of this node are not known, so the CPU labels stay unchanged"
            }
            Self::Architecture => "guests of this architecture are not supported, so the node has no CPU labels",
            Self::EmulationNotAllowed => {
                "KVM cannot be used and the configuration does not allow emulation, so no guest can run on this node, \
                 and the node has no CPU labels"
            }
        }
    }
}

/// A node's labels according to facts and policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredLabels {
    /// All owned labels; none if `withheld` is [`Withheld::NotInspected`].
    pub labels: BTreeMap<String, String>,
    /// Omitted keys, which Kubernetes would refuse.
    pub invalid: BTreeSet<String>,
    /// Set if labels about guests are missing on purpose.
    pub withheld: Option<Withheld>,
}

impl DesiredLabels {
    fn add(&mut self, key: String, value: impl Into<String>) {
        if label_keys::is_valid(&key) {
            self.labels.insert(key, value.into());
        } else {
            self.invalid.insert(key);
        }
    }

    fn flag(&mut self, prefix: &str, name: &str) {
        self.add(format!("{prefix}{name}"), keys::TRUE);
    }
}

/// Returns whether guests of `architecture` are supported.
pub fn is_supported(architecture: &str) -> bool {
    matches!(architecture, "amd64" | "arm64" | "s390x")
}

/// Returns the labels of a node with these facts (with the mask applied).
pub fn desired(facts: &NodeFacts, policy: &LabelPolicy) -> DesiredLabels {
    let mut desired = DesiredLabels::default();
    if facts.real_time {
        desired.flag(keys::REALTIME, "");
    }
    if !is_supported(&facts.architecture) {
        desired.withheld = Some(Withheld::Architecture);
        return desired;
    }
    let Some(virtualization) = &facts.virtualization else {
        return DesiredLabels {
            withheld: Some(Withheld::NotInspected),
            ..DesiredLabels::default()
        };
    };
    if virtualization.virt_type == VirtType::Qemu && !policy.use_emulation {
        desired.withheld = Some(Withheld::EmulationNotAllowed);
        return desired;
    }
    machine_types(&mut desired, virtualization);
    if policy.guest_architecture {
        desired.flag("kubevirt.io/vm-arch-", &facts.architecture);
    }
    // libvirt has neither named models nor a host model for arm64, and no time stamp counter outside amd64.
    if facts.architecture != "arm64" {
        models(&mut desired, virtualization, policy);
        features(&mut desired, virtualization, policy, facts.architecture == "amd64");
        if !virtualization.vendor.is_empty() {
            desired.flag(keys::CPU_VENDOR, &virtualization.vendor);
        }
        confidential(&mut desired, virtualization);
    }
    if facts.architecture == "amd64" {
        if let Some(tsc) = &virtualization.tsc {
            desired.add(keys::TSC_FREQUENCY.into(), tsc.frequency_hz.to_string());
            desired.add(
                keys::TSC_SCALABLE.into(),
                if tsc.scalable { keys::TRUE } else { keys::FALSE },
            );
        }
        if virtualization.virt_type == VirtType::Kvm {
            for capability in &facts.kvm.hyperv {
                desired.flag(keys::HYPERV, capability);
            }
        }
    }
    desired
}

fn machine_types(desired: &mut DesiredLabels, virtualization: &VirtualizationFacts) {
    // `none` is QEMU's empty machine, which no guest can boot on. Two thirds of all machine types are deprecated in
    // QEMU; they come with the image, which is the same on every node, so a label would never distinguish two nodes.
    let offered = |machine: &&MachineType| machine.name != "none" && !machine.deprecated;
    for machine in virtualization.machine_types.iter().filter(offered) {
        desired.flag(keys::MACHINE_TYPE, &machine.name);
    }
}

fn models(desired: &mut DesiredLabels, virtualization: &VirtualizationFacts, policy: &LabelPolicy) {
    let all = &virtualization.models;
    let current = |name: &str| !policy.obsolete.covers(name, all);
    let usable: Vec<&CpuModel> = all
        .iter()
        .filter(|model| model.usable != Usable::No && current(&model.name))
        .collect();
    for name in aliases::published(&usable, policy.aliases) {
        desired.flag(keys::CPU_MODEL, name);
        desired.flag(keys::CPU_MODEL_MIGRATION, name);
    }
    if let Some(host_model) = &virtualization.host_model {
        desired.flag(keys::HOST_MODEL, &host_model.name);
        if current(&host_model.name) {
            desired.flag(keys::CPU_MODEL_MIGRATION, &host_model.name);
        } else {
            desired.flag(keys::OBSOLETE_HOST_MODEL, "");
        }
    }
}

fn features(desired: &mut DesiredLabels, virtualization: &VirtualizationFacts, policy: &LabelPolicy, prune: bool) {
    let beyond = |feature: &&String| !prune || !policy.minimum.features.contains(*feature);
    for feature in virtualization.features.iter().filter(beyond) {
        desired.flag(keys::CPU_FEATURE, feature);
    }
    for feature in virtualization
        .host_model
        .iter()
        .flat_map(|host_model| &host_model.required)
        .filter(beyond)
    {
        desired.flag(keys::HOST_MODEL_REQUIRED_FEATURE, feature);
    }
    let supported: BTreeSet<&str> = virtualization.features.iter().map(String::as_str).collect();
    if prune && policy.minimum.met_by(&supported) {
        desired.flag(keys::CPU_MINIMUM, &policy.minimum.model);
    }
}

fn confidential(desired: &mut DesiredLabels, virtualization: &VirtualizationFacts) {
    let facts = &virtualization.confidential;
    if let Some(sev) = &facts.sev {
        desired.flag(keys::SEV, "");
        if sev.max_es_guests > 0 {
            desired.flag(keys::SEV_ES, "");
            if facts.sev_snp {
                desired.flag(keys::SEV_SNP, "");
            }
        }
    }
    if facts.secure_execution {
        desired.flag(keys::SECURE_EXECUTION, "");
    }
    if facts.tdx {
        desired.flag(keys::TDX, "");
    }
}

/// Returns the changes that bring the owned labels of `current` to `desired`: key to new value, or to `None` where
/// the key must be removed. Empty if no change is needed; never contains foreign keys.
pub fn changes(
    current: &BTreeMap<String, String>,
    desired: &BTreeMap<String, String>,
    owned: impl Fn(&str) -> bool,
) -> BTreeMap<String, Option<String>> {
    let gone = current
        .keys()
        .filter(|key| owned(key) && !desired.contains_key(*key))
        .map(|key| (key.clone(), None));
    let set = desired
        .iter()
        .filter(|(key, value)| owned(key) && current.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Some(value.clone())));
    gone.chain(set).collect()
}

#[cfg(test)]
mod tests;
