//! Why a node refuses a guest that is to arrive.
//!
//! ```text
//!  guest, node ──▶ check ──▶ Refused | Fits | Compare ──libvirt compares the CPU──▶ by_comparison ──▶ Refused | Fits
//! ```

use drydock_api::{facts::VirtType, kubevirt::migration::MigratedGuest};

use crate::{
    domain::full_cpu,
    mask::{self, MaskHere},
    processor,
};

/// Reason of a refused guest: The guest uses hardware virtualization and guests on the target node emulation, or vice
/// versa.
pub const OTHER_VIRT_TYPE: &str = "OtherVirtType";
/// Reason of a refused guest: The target node lacks a CPU feature of the guest, or masks it.
pub const CPU_FEATURE_MISSING: &str = "CPUFeatureMissing";
/// Reason of a refused guest: The guest's CPU could not be compared with that of the target node.
pub const CPU_NOT_COMPARED: &str = "CPUNotCompared";

/// The target's node, as far as it matters to a guest that is to arrive.
#[derive(Clone, Copy, Debug)]
pub struct TargetHost<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Virtualization type of guests on the node.
    pub virt_type: VirtType,
    /// The node's mask.
    pub mask: &'a MaskHere,
    /// Identity of the processor that guests with the host's own CPU get.
    pub processor: Option<&'a str>,
}

/// Why a guest cannot run on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRefusal {
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// The result of checking a guest without libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetCheck {
    /// The guest can run on the node.
    Fits,
    /// The guest cannot run on the node.
    Refused(TargetRefusal),
    /// libvirt has to compare this CPU with the node's, for guests that run as all guests of the node do. The value is
    /// the element `cpu`.
    Compare(String),
}

/// libvirt's comparison of a guest's CPU with a node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComparedCpu {
    /// The node can provide the CPU.
    Fits,
    /// The node cannot provide the CPU, for this reason of libvirt.
    Incompatible(String),
    /// libvirt has refused the comparison with this error.
    NotCompared(String),
}

/// Checks whether a guest can run on a node, as far as this is possible without libvirt.
pub fn check(guest: &MigratedGuest, host: &TargetHost<'_>) -> TargetCheck {
    let refused = |reason, message| TargetCheck::Refused(TargetRefusal { reason, message });
    let virt_type = match guest.virt_type.as_deref() {
        Some("kvm") => VirtType::Kvm,
        Some("qemu") => VirtType::Qemu,
        _ => host.virt_type,
    };
    if virt_type != host.virt_type {
        let (theirs, own) = (virt_type.as_str(), host.virt_type.as_str());
        let message = format!("the virtualization type of the guest is {theirs}, and that of this node is {own}");
        return refused(OTHER_VIRT_TYPE, message);
    }
    // libvirt has no notion of masks.
    let masked: Vec<String> = mask::refused(guest, host.mask).into_iter().collect();
    if !masked.is_empty() {
        let message = format!(
            "node {} masks CPU features of the guest that the source node does not mask: {}; the features are masked \
             by {}",
            host.node,
            masked.join(", "),
            mask::means()
        );
        return refused(CPU_FEATURE_MISSING, message);
    }
    match &guest.cpu {
        // libvirt does not describe the host's own CPU, so libvirt cannot compare that CPU either.
        None => match processor::refusal(guest.processor.as_deref(), host.processor) {
            None => TargetCheck::Fits,
            Some((reason, message)) => refused(reason, message),
        },
        Some(cpu) => match full_cpu(cpu) {
            Ok(document) => TargetCheck::Compare(document),
            Err(problem) => refused(problem.reason(), problem.to_string()),
        },
    }
}

/// Returns whether a guest whose CPU libvirt has compared can run on the node, and if not, why.
///
/// # Errors
/// The refusal, if the guest cannot run on the node.
pub fn by_comparison(compared: ComparedCpu) -> Result<(), TargetRefusal> {
    match compared {
        ComparedCpu::Fits => Ok(()),
        ComparedCpu::Incompatible(message) => Err(TargetRefusal {
            reason: CPU_FEATURE_MISSING,
            message,
        }),
        ComparedCpu::NotCompared(message) => Err(TargetRefusal {
            reason: CPU_NOT_COMPARED,
            message,
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checked(guest: Value, host: &TargetHost<'_>) -> Result<TargetCheck, (&'static str, String)> {
        match check(&serde_json::from_value(guest).unwrap(), host) {
            TargetCheck::Refused(refusal) => Err((refusal.reason, refusal.message)),
            found => Ok(found),
        }
    }

    #[test]
    fn guest_is_refused_with_reason_and_message() {
        let mask = MaskHere {
            features: ["avx".to_owned(), "hle".to_owned()].into(),
            withheld: ["avx".to_owned()].into(),
            ..MaskHere::default()
        };
        let host = TargetHost {
            node: "b",
            virt_type: VirtType::Kvm,
            mask: &mask,
            processor: Some("x"),
        };
        let masks = |features: &str| {
            let by = mask::means();
            format!(
                "node b masks CPU features of the guest that the source node does not mask: {features}; the features \
                 are masked by {by}"
            )
        };
        let masked = ["avx", "hle"];
        for (guest, expected) in [
            (
                json!({"virtType": "qemu", "processor": "x"}),
                Err((
                    "OtherVirtType",
                    "the virtualization type of the guest is qemu, and that of this node is kvm".into(),
                )),
            ),
            (
                json!({"cpu": {"model": "m", "required": masked}}),
                Err(("CPUFeatureMissing", masks("avx, hle"))),
            ),
            (
                json!({"cpu": {"model": "m", "required": masked}, "maskedFeatures": ["avx"]}),
                Err(("CPUFeatureMissing", masks("hle"))),
            ),
            (json!({"processor": "x"}), Err(("CPUFeatureMissing", masks("avx")))),
            (
                json!({"processor": "y", "maskedFeatures": masked}),
                Err((
                    "ProcessorDiffers",
                    "the guest has the CPU of its host, y; this node has x".into(),
                )),
            ),
            (
                json!({"maskedFeatures": masked}),
                Err(("GuestCPUUnknown", "the guest's CPU is not known".into())),
            ),
            (
                json!({"virtType": "kvm", "processor": "x", "maskedFeatures": masked}),
                Ok(TargetCheck::Fits),
            ),
            // A virt type of a later version does not count.
            (
                json!({"virtType": "new", "processor": "x", "maskedFeatures": masked}),
                Ok(TargetCheck::Fits),
            ),
        ] {
            assert_eq!(checked(guest.clone(), &host), expected, "{guest}");
        }
    }

    #[test]
    fn libvirt_compares_a_cpu_that_nothing_else_refuses() {
        let mask = MaskHere::default();
        let host = TargetHost {
            node: "b",
            virt_type: VirtType::Qemu,
            mask: &mask,
            processor: None,
        };
        let found = checked(json!({"cpu": {"model": "EPYC"}, "virtType": "qemu"}), &host);
        assert!(
            matches!(&found, Ok(TargetCheck::Compare(cpu)) if cpu.contains("EPYC")),
            "{found:?}"
        );
        let found = checked(json!({"cpu": {"model": "\u{1}"}}), &host);
        assert!(matches!(found, Err(("ControlCharacters", _))), "{found:?}");
        for (compared, expected) in [
            (ComparedCpu::Fits, None),
            (
                ComparedCpu::Incompatible("avx".into()),
                Some(("CPUFeatureMissing", "avx")),
            ),
            (ComparedCpu::NotCompared("no".into()), Some(("CPUNotCompared", "no"))),
        ] {
            let found = by_comparison(compared.clone()).err();
            let found = found.as_ref().map(|refusal| (refusal.reason, refusal.message.as_str()));
            assert_eq!(found, expected, "{compared:?}");
        }
    }
}
