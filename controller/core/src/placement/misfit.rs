//! Why a node does not fit.

use drydock_api::kubevirt::Amount;

use super::room;
use crate::mask;

/// How many missing features of a model are named.
const FEATURES: usize = 4;

/// Why a node does not fit. The order is that of a sentence: what is most telling comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Misfit {
    /// The CPU model is an obsolete one, which no node offers.
    ObsoleteModel(String),
    /// A feature is forbidden that each node is expected to have.
    ForbidsMinimum(String),
    /// Guests there cannot have the CPU model, for want of these features.
    LacksModel(String, Vec<String>),
    /// The model is offered there by another name.
    OtherName(String, String),
    /// Guests there cannot have the CPU model, since its node masks these features.
    MasksModel(String, Vec<String>),
    /// Guests there cannot have a CPU feature.
    LacksFeature(String),
    /// The node has a CPU feature and masks it.
    MasksFeature(String),
    /// Guests there cannot have all of the minimum CPU model, for want of these features.
    LacksMinimum(String, Vec<String>),
    /// Guests there cannot have all of the minimum CPU model, since its node masks these features.
    MasksMinimum(String, Vec<String>),
    /// Guests there have a CPU feature that is forbidden.
    HasForbidden(String),
    /// CPUs of another vendor than that of the running guest.
    OtherVendor(String),
    /// Another processor, microcode, kernel or set of features than that of a guest that has its host's own
    /// CPU.
    OtherProcessor,
    /// Fewer bits of a physical address than these, which the running guest has.
    FewerAddressBits(u32),
    /// Guests run there by hardware virtualization and this one by emulation, or the other way round.
    OtherVirtType(&'static str),
    /// Its host model is an obsolete one.
    HostModelObsolete,
    /// QEMU there has no such machine type.
    LacksMachineType(String),
    /// Another architecture.
    Architecture(String),
    /// It has less of a resource, all in all, than the pod asks for.
    TooSmall(&'static str, Amount),
    /// Too little of a resource is free there; where several nodes have this reason, `free` is the most that one has.
    NoRoom {
        /// Name of the resource; `pods` is for how many pods a node may have.
        resource: String,
        /// How much the pod requests: CPU in thousandths, all else in units.
        requested: u64,
        /// How much is free, in the same unit.
        free: u64,
    },
    /// The volume of this claim cannot be used there.
    Volume(String),
    /// Its labels do not say that it has what it has.
    NotLabelled(String),
    /// Nothing is known of its CPU.
    NotInspected,
    /// Not a label, or not with this value, that the manifest selects.
    Label(String),
    /// The manifest's node affinity.
    Affinity,
    /// No network for guests.
    NoGuestNetwork,
    /// Virtualization is not offered there.
    NoVirtualization,
    /// Its agent does not take virtual machines.
    NotReady,
    /// It has no agent.
    NoAgent,
    /// A taint that is not tolerated.
    Tainted(String),
    /// It was cordoned.
    Cordoned,
}

impl Misfit {
    /// Both are for want of the same resource, of which the same amount is requested.
    pub(super) fn is_same_shortage(&self, other: &Self) -> bool {
        let key = |misfit: &Self| match misfit {
            Self::NoRoom {
                resource, requested, ..
            } => Some((resource.clone(), *requested)),
            _ => None,
        };
        matches!(self, Self::NoRoom { .. }) && key(self) == key(other)
    }

    /// CamelCase reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ObsoleteModel(_) => "CPUModelObsolete",
            Self::ForbidsMinimum(_) => "CPUMinimumForbidden",
            Self::LacksModel(..) | Self::MasksModel(..) => "CPUModelMissing",
            Self::OtherName(..) => "CPUModelNamedOtherwise",
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
            Self::NoRoom { .. } => "InsufficientRoom",
            Self::Volume(_) => "VolumeElsewhere",
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

    /// What one node, or several, do or are.
    pub(super) fn of_nodes(&self, several: bool) -> String {
        let verb = |one: &'static str, many: &'static str| if several { many } else { one };
        let (has, lacks, is) = (verb("has", "have"), verb("lacks", "lack"), verb("is", "are"));
        let does_not = verb("does not", "do not");
        match self {
            Self::ObsoleteModel(model) => format!("{does_not} offer the CPU model {model}, which is obsolete"),
            Self::ForbidsMinimum(feature) => {
                format!("{has} the forbidden CPU feature {feature}, which is of the minimum CPU model")
            }
            Self::LacksModel(model, missing) => format!("{lacks} the CPU model {model}{}", for_want_of(missing)),
            Self::OtherName(model, other) => {
                format!(
                    "{} the CPU model {model} by its name {other} only",
                    verb("offers", "offer")
                )
            }
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
            Self::OtherVendor(vendor) => format!("{has} a CPU that is not of {vendor}"),
            Self::OtherProcessor => {
                format!(
                    "{has} another processor, microcode, kernel or set of CPU features, and the guest has its host's own CPU"
                )
            }
            Self::FewerAddressBits(bits) => format!("{has} fewer physical address bits than the {bits} of the guest"),
            Self::OtherVirtType(how) => format!("{does_not} run guests by {how}"),
            Self::HostModelObsolete => format!("{has} an obsolete host model"),
            Self::LacksMachineType(machine) => format!("{lacks} the machine type {machine}"),
            Self::Architecture(architecture) => format!("{is} not {architecture}"),
            Self::TooSmall(resource, asked) => format!("{has} less {resource} than the {asked} that are asked for"),
            Self::NoRoom { resource, .. } if resource == room::PODS => {
                format!("{has} as many pods as {} may have", verb("it", "they"))
            }
            Self::NoRoom {
                resource,
                requested,
                free,
            } => room_lacked(resource, *requested, *free, several),
            Self::Volume(claim) => format!("cannot use the volume of the claim {claim}"),
            Self::NotLabelled(key) => format!("{lacks} the label {key} though it would be right"),
            Self::NotInspected => format!("{has} not said what guests can have"),
            Self::Label(key) => format!("{does_not} have the label {key} as it is selected"),
            Self::Affinity => format!("{does_not} match the node affinity"),
            Self::NoGuestNetwork => format!("{has} no network for guests"),
            Self::NoVirtualization => format!("{} no virtualization", verb("offers", "offer")),
            Self::NotReady => format!("{is} not ready for virtual machines"),
            Self::NoAgent => format!("{has} no agent"),
            Self::Tainted(key) => match key.as_str() {
                "node.kubernetes.io/not-ready" => format!("{is} not ready"),
                "node.kubernetes.io/unreachable" => format!("{is} unreachable"),
                _ => format!("{has} the taint {key}"),
            },
            Self::Cordoned => format!("{is} unschedulable"),
        }
    }
}

/// `has 1.2 GiB of memory free of the 2.1 GiB that are requested`.
fn room_lacked(resource: &str, requested: u64, free: u64, several: bool) -> String {
    let (has, most) = if several { ("have", "at most ") } else { ("has", "") };
    let free = room::amount(resource, free, false);
    let requested = room::amount(resource, requested, true);
    let of = match resource {
        "cpu" => " CPUs".to_owned(),
        other => format!(" of {other}"),
    };
    format!("{has} {most}{free}{of} free of the {requested} that are requested")
}

/// Which features are missing, if that is known; at most [`FEATURES`] are named.
fn for_want_of(missing: &[String]) -> String {
    if missing.is_empty() {
        return String::new();
    }
    let named: Vec<&str> = missing.iter().map(String::as_str).take(FEATURES).collect();
    let more = match missing.len().saturating_sub(FEATURES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(" for want of {}{more}", named.join(", "))
}

/// Which features are masked, and by what.
fn since_masked(masked: &[String]) -> String {
    format!("{}, masked by {}", for_want_of(masked), mask::means())
}
