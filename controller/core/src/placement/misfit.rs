//! Reasons why a node does not fit.

use drydock_api::kubevirt::Amount;

use super::{HOSTNAME, room};
use crate::mask;

/// Maximum number of a model's missing features that are listed.
const FEATURES: usize = 4;

/// Why a node does not fit. The order is that in a sentence: the most relevant reasons come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// The CPU model is obsolete; no node offers it.
    ObsoleteModel(String),
    /// The manifest forbids a CPU feature that every node is expected to have.
    ForbidsMinimum(String),
    /// Guests on the node cannot have the CPU model, because the node lacks some of its features.
    LacksModel(String, Vec<String>),
    /// The node offers the CPU model under another name.
    OtherName(String, String),
    /// Guests on the node cannot have the CPU model, because the node masks some of its features.
    MasksModel(String, Vec<String>),
    /// Guests on the node cannot have a required CPU feature.
    LacksFeature(String),
    /// The node has a required CPU feature and masks it.
    MasksFeature(String),
    /// Guests on the node cannot have all features of the minimum CPU model.
    LacksMinimum(String, Vec<String>),
    /// The node masks features of the minimum CPU model.
    MasksMinimum(String, Vec<String>),
    /// Guests on the node have a CPU feature that the manifest forbids.
    HasForbidden(String),
    /// The vendor of the node's CPU is not that of the running guest's CPU.
    OtherVendor(String),
    /// The guest has its host's own CPU, and the node differs from that host in processor, microcode, kernel or
    /// features.
    OtherProcessor,
    /// The node's physical addresses have fewer bits than those of the running guest.
    FewerAddressBits(u32),
    /// Guests on the node use hardware virtualization and this guest emulation, or vice versa.
    OtherVirtType(&'static str),
    /// The node's host model is obsolete.
    HostModelObsolete,
    /// QEMU on the node does not have the machine type.
    LacksMachineType(String),
    /// The node has another architecture.
    Architecture(String),
    /// The node has less of a resource in total than the pod requests.
    TooSmall(&'static str, Amount),
    /// Too little of a resource is free on the node.
    ///
    /// If several nodes have this reason, `free` is the largest amount on any of them.
    NoRoom {
        /// Name of the resource; `pods` is the number of pods that a node may have.
        resource: String,
        /// Requested amount: CPU in thousandths, everything else in units.
        requested: u64,
        /// Free amount, in the same unit.
        free: u64,
    },
    /// The volume of a claim cannot be used on the node.
    Volume(String),
    /// A pod in the node's topology domain and the pod of the guest must not run near each other (pod anti-affinity).
    ///
    /// If several nodes have this reason, `pod` is an example.
    NotApart {
        /// Label of nodes whose value is the domain.
        key: String,
        /// Namespace and name of the pod.
        pod: String,
    },
    /// No pod in the node's topology domain matches a required pod affinity.
    NotNear {
        /// The affinity's label selector.
        selector: String,
        /// Label of nodes whose value is the domain.
        key: String,
    },
    /// The node's topology domain would exceed the maximum skew of a topology spread constraint.
    Skewed {
        /// Label of nodes whose value is the domain.
        key: String,
        /// Maximum difference between the numbers of matching pods in two domains.
        max_skew: u64,
    },
    /// The node meets a requirement but lacks the label for it.
    NotLabelled(String),
    /// The node's CPU has not been inspected.
    NotInspected,
    /// The node lacks a label, or its value, that the manifest selects.
    Label(String),
    /// The node does not match the manifest's node affinity.
    Affinity,
    /// The node has no network for guests.
    NoGuestNetwork,
    /// The node offers no virtualization.
    NoVirtualization,
    /// The node's agent accepts no virtual machines.
    NotReady,
    /// The node has no agent.
    NoAgent,
    /// The node has a taint that the pod does not tolerate.
    Tainted(String),
    /// The node is cordoned.
    Cordoned,
}

impl Misfit {
    /// Returns whether two reasons differ only in an amount or an example: shortages of the same resource with the same
    /// requested amount, or pods in domains of the same topology key.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::NoRoom {
                    resource, requested, ..
                },
                Self::NoRoom {
                    resource: other,
                    requested: also,
                    ..
                },
            ) => (resource, requested) == (other, also),
            (Self::NotApart { key, .. }, Self::NotApart { key: other, .. }) => key == other,
            _ => false,
        }
    }

    /// Returns the CamelCase reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ObsoleteModel(_) => "CPUModelObsolete",
            Self::ForbidsMinimum(_) => "CPUMinimumForbidden",
            Self::LacksModel(..) | Self::MasksModel(..) => "CPUModelMissing",
            Self::OtherName(..) => "CPUModelNameDiffers",
            Self::LacksFeature(_) | Self::MasksFeature(_) => "CPUFeatureMissing",
            Self::LacksMinimum(..) | Self::MasksMinimum(..) => "CPUMinimumMissing",
            Self::HasForbidden(_) => "CPUFeatureForbidden",
            Self::OtherVendor(_) => "CPUVendorDiffers",
            Self::OtherProcessor => "ProcessorDiffers",
            Self::FewerAddressBits(_) => "AddressBitsMissing",
            Self::OtherVirtType(_) => "VirtTypeDiffers",
            Self::HostModelObsolete => "HostModelObsolete",
            Self::LacksMachineType(_) => "MachineTypeMissing",
            Self::Architecture(_) => "ArchitectureDiffers",
            Self::TooSmall(..) => "NodeTooSmall",
            Self::NoRoom { .. } => "InsufficientResources",
            Self::Volume(_) => "VolumeNotAccessible",
            Self::NotApart { .. } => "PodAntiAffinityNotMet",
            Self::NotNear { .. } => "PodAffinityNotMet",
            Self::Skewed { .. } => "TopologySpreadNotMet",
            Self::NotLabelled(_) => "NodeNotLabelled",
            Self::NotInspected => "NodeNotInspected",
            Self::Label(_) => "NodeSelectorNotMet",
            Self::Affinity => "NodeAffinityNotMet",
            Self::NoGuestNetwork => "NoGuestNetwork",
            Self::NoVirtualization => "NoVirtualization",
            Self::NotReady => "NodeNotReadyForGuests",
            Self::NoAgent => "NoAgent",
            Self::Tainted(_) => "TaintNotTolerated",
            Self::Cordoned => "NodeUnschedulable",
        }
    }

    /// Returns the predicate of a sentence about one node, such as `lacks the CPU feature avx2`.
    pub fn of_node(&self) -> String {
        self.of_nodes(false)
    }

    /// Returns the predicate of a sentence about one node, or several.
    pub(super) fn of_nodes(&self, several: bool) -> String {
        let verb = |one: &'static str, many: &'static str| if several { many } else { one };
        let (has, lacks, is) = (verb("has", "have"), verb("lacks", "lack"), verb("is", "are"));
        let (does_not, offers) = (verb("does not", "do not"), verb("offers", "offer"));
        match self {
            Self::ObsoleteModel(model) => format!("{does_not} offer the CPU model {model}, which is obsolete"),
            Self::ForbidsMinimum(feature) => {
                format!("{has} the forbidden CPU feature {feature}, which belongs to the minimum CPU model")
            }
            Self::LacksModel(model, missing) => format!("{lacks} the CPU model {model}{}", for_want_of(missing)),
            Self::OtherName(model, other) => format!("{offers} the CPU model {model} only under the name {other}"),
            Self::MasksModel(model, masked) => format!("{lacks} the CPU model {model}{}", since_masked(masked)),
            Self::LacksFeature(feature) => format!("{lacks} the CPU feature {feature}"),
            Self::MasksFeature(feature) => {
                format!(
                    "{} the CPU feature {feature} by {}",
                    verb("masks", "mask"),
                    mask::means()
                )
            }
            Self::LacksMinimum(model, missing) => {
                format!(
                    "{lacks} a part of the minimum CPU model {model}{}",
                    for_want_of(missing)
                )
            }
            Self::MasksMinimum(model, masked) => {
                format!(
                    "{lacks} a part of the minimum CPU model {model}{}",
                    since_masked(masked)
                )
            }
            Self::HasForbidden(feature) => format!("{has} the forbidden CPU feature {feature}"),
            Self::OtherVendor(vendor) => format!("{has} a CPU that is not from {vendor}"),
            Self::OtherProcessor => {
                format!(
                    "{has} a different processor, microcode, kernel or set of CPU features, and the guest uses the CPU \
                     of its host"
                )
            }
            Self::FewerAddressBits(bits) => format!("{has} fewer physical address bits than the {bits} of the guest"),
            Self::OtherVirtType(how) => format!("{does_not} run guests with {how}"),
            Self::HostModelObsolete => format!("{has} an obsolete host model"),
            Self::LacksMachineType(machine) => format!("{lacks} the machine type {machine}"),
            Self::Architecture(architecture) => format!("{is} not {architecture}"),
            Self::TooSmall(resource, needed) => format!("{has} less {resource} than the requested {needed}"),
            Self::NoRoom { resource, .. } if resource == room::PODS => {
                format!("{has} reached the maximum number of pods")
            }
            Self::NoRoom {
                resource,
                requested,
                free,
            } => room_lacked(resource, *requested, *free, several),
            Self::Volume(claim) => format!("cannot use the volume of the claim {claim}"),
            Self::NotApart { key, pod } => not_apart(key, pod, several),
            Self::NotNear { selector, key } if key == HOSTNAME => {
                format!("{has} no pod that matches the required pod affinity ({selector})")
            }
            Self::NotNear { selector, key } => {
                format!("{is} in no {key} with a pod that matches the required pod affinity ({selector})")
            }
            Self::Skewed { key, max_skew } => {
                format!("would have more pods per {key} than the maximum skew of {max_skew} allows")
            }
            Self::NotLabelled(key) => format!("{lacks} the label {key} despite having the labelled property"),
            Self::NotInspected => format!("{has} not reported any virtualization capabilities"),
            Self::Label(key) => format!("{does_not} have the label {key} with the selected value"),
            Self::Affinity => format!("{does_not} match the node affinity"),
            Self::NoGuestNetwork => format!("{has} no network for guests"),
            Self::NoVirtualization => format!("{offers} no virtualization"),
            Self::NotReady => format!("{is} not ready for virtual machines"),
            Self::NoAgent => format!("{has} no agent"),
            Self::Tainted(key) => tainted(key, has, is),
            Self::Cordoned => format!("{is} unschedulable"),
        }
    }
}

/// Returns for example `has the taint gpu`, or the state of a node that the taint stands for.
fn tainted(key: &str, has: &str, is: &str) -> String {
    match key {
        "node.kubernetes.io/not-ready" => format!("{is} not ready"),
        "node.kubernetes.io/unreachable" => format!("{is} unreachable"),
        _ => format!("{has} the taint {key}"),
    }
}

/// Returns for example `has the pod n/a, which conflicts by pod anti-affinity`.
fn not_apart(key: &str, pod: &str, several: bool) -> String {
    match (key == HOSTNAME, several) {
        (true, false) => format!("has the pod {pod}, which conflicts by pod anti-affinity"),
        (true, true) => format!("have pods that conflict by pod anti-affinity, such as {pod}"),
        (false, false) => format!("is in the same {key} as the pod {pod}, which conflicts by pod anti-affinity"),
        (false, true) => format!("are in the same {key} as pods that conflict by pod anti-affinity, such as {pod}"),
    }
}

/// Returns for example `has 1.2 GiB of memory free of the requested 2.1 GiB`.
fn room_lacked(resource: &str, requested: u64, free: u64, several: bool) -> String {
    let (has, most) = if several { ("have", "at most ") } else { ("has", "") };
    let free = room::amount(resource, free, false);
    let requested = room::amount(resource, requested, true);
    let of = match resource {
        "cpu" => " CPUs".to_owned(),
        other => format!(" of {other}"),
    };
    format!("{has} {most}{free}{of} free of the requested {requested}")
}

/// Returns which features are missing, if known; at most [`FEATURES`] are listed.
fn for_want_of(missing: &[String]) -> String {
    if missing.is_empty() {
        return String::new();
    }
    let named: Vec<&str> = missing.iter().map(String::as_str).take(FEATURES).collect();
    let more = match missing.len().saturating_sub(FEATURES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(" because of missing {}{more}", named.join(", "))
}

/// Returns text with the masked features and with the settings that mask features.
fn since_masked(masked: &[String]) -> String {
    format!("{}, masked by {}", for_want_of(masked), mask::means())
}
