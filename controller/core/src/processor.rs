//! Identity of a node's processor, for guests that have the host's own CPU.
//!
//! libvirt does not expand such a CPU, so it cannot be compared with another host feature by feature. The guest sees
//! family, model and stepping, and the features that microcode and kernel expose: the guest can continue only where all
//! of these are the same.

use drydock_api::facts::{NodeFacts, VirtType};
use uuid::Uuid;

/// Namespace of the UUIDs that serve as short forms of feature lists.
const FEATURES: Uuid = Uuid::from_u128(0x5b1e_7b0c_0a52_5d0e_8f57_31c7_94d2_6e13);

/// Returns the identity of the processor that guests with the host's own CPU see on a node, human-readable and
/// comparable: `GenuineIntel 6/85/7, microcode 0x5003604, Linux 6.12.48, 46 bits, features 1f0a…`. In emulation the
/// emulator is the processor. `None` if too little is known.
pub fn identity(facts: &NodeFacts) -> Option<String> {
    let virtualization = facts.virtualization.as_ref()?;
    // A mask does not change the processor.
    let all = virtualization.features.iter().chain(&virtualization.withheld);
    let mut features: Vec<&str> = all.map(String::as_str).collect();
    features.sort_unstable();
    let features = Uuid::new_v5(&FEATURES, features.join(" ").as_bytes()).simple();
    let version = &virtualization.qemu_version;
    if virtualization.virt_type == VirtType::Qemu {
        let known = !version.is_empty();
        return known.then(|| format!("{} by QEMU {version}, features {features}", facts.architecture));
    }
    let cpu = &facts.cpu;
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    if cpu.vendor.is_empty() || cpu.model.is_none() || facts.kernel.is_empty() {
        return None;
    }
    Some(format!(
        "{} {}/{}/{}, microcode {}, Linux {}, {} bits, features {features}",
        cpu.vendor,
        number(cpu.family),
        number(cpu.model),
        number(cpu.stepping),
        cpu.microcode.as_deref().unwrap_or("-"),
        facts.kernel,
        number(facts.guest_address_bits()),
    ))
}

/// Returns why a guest from the processor `there` cannot continue on the processor `here`: reason and sentence. `None`
/// if the guest can continue.
pub fn refusal(there: Option<&str>, here: Option<&str>) -> Option<(&'static str, String)> {
    let Some(there) = there else {
        return Some(("GuestCPUUnknown", "the guest's CPU is not known".into()));
    };
    match here {
        Some(here) if here == there => None,
        Some(here) => Some((
            "ProcessorDiffers",
            format!("the guest has the CPU of its host, {there}; this node has {here}"),
        )),
        None => Some((
            "NodeNotInspected",
            "the guest has the CPU of its host, and the CPU of this node is not known".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drydock_api::facts::{CpuFacts, CpuidTsc, VirtualizationFacts};

    use super::*;

    fn xeon() -> NodeFacts {
        NodeFacts {
            architecture: "amd64".into(),
            kernel: "6.12.48".into(),
            cpu: CpuFacts {
                vendor: "GenuineIntel".into(),
                family: Some(6),
                model: Some(85),
                stepping: Some(7),
                microcode: Some("0x5003604".into()),
                physical_address_bits: Some(46),
                ..CpuFacts::default()
            },
            virtualization: Some(VirtualizationFacts {
                virt_type: VirtType::Kvm,
                qemu_version: "10.0.0".into(),
                features: Arc::new(vec!["avx".into(), "aes".into()]),
                ..VirtualizationFacts::default()
            }),
            ..NodeFacts::default()
        }
    }

    fn changed(change: impl FnOnce(&mut NodeFacts, &mut VirtualizationFacts)) -> Option<String> {
        let mut facts = xeon();
        let mut virtualization = facts.virtualization.take().unwrap();
        change(&mut facts, &mut virtualization);
        facts.virtualization = Some(virtualization);
        identity(&facts)
    }

    #[test]
    fn processor_identity_names_facts_visible_to_a_guest() {
        let found = identity(&xeon()).unwrap();
        let begin = "GenuineIntel 6/85/7, microcode 0x5003604, Linux 6.12.48, 46 bits, features ";
        assert!(found.starts_with(begin), "{found}");
        let same = [
            changed(|_, all| all.features = Arc::new(vec!["aes".into(), "avx".into()])),
            changed(|_, all| all.qemu_version = "9.2.0".into()),
            changed(|_, all| {
                all.features = Arc::new(vec!["aes".into()]);
                all.withheld = vec!["avx".into()];
            }),
            changed(|facts, _| {
                facts.cpu.online = Some(3);
                facts.cpu.tsc = Some(CpuidTsc::default());
            }),
        ];
        let other = [
            changed(|facts, _| facts.cpu.vendor = "AuthenticAMD".into()),
            changed(|facts, _| facts.cpu.family = Some(7)),
            changed(|facts, _| facts.cpu.model = Some(86)),
            changed(|facts, _| facts.cpu.stepping = Some(4)),
            changed(|facts, _| facts.cpu.microcode = None),
            changed(|facts, _| facts.kernel = "6.1".into()),
            changed(|facts, _| facts.cpu.physical_address_bits = Some(52)),
            changed(|_, all| all.features = Arc::new(vec!["avx".into()])),
            changed(|_, all| all.virt_type = VirtType::Qemu),
        ];
        assert!(
            same.iter().all(|text| text.as_deref() == Some(found.as_str())),
            "{same:?}"
        );
        for text in other {
            assert!(text.is_some() && text.as_deref() != Some(found.as_str()), "{text:?}");
        }
        assert_eq!(changed(|facts, _| facts.cpu.model = None), None);
        assert_eq!(identity(&NodeFacts::default()), None);
    }

    #[test]
    fn refusal_unless_processors_are_equal() {
        for (there, here, reason) in [
            (Some("a"), Some("a"), None),
            (Some("a"), Some("b"), Some("ProcessorDiffers")),
            (Some("a"), None, Some("NodeNotInspected")),
            (None, Some("a"), Some("GuestCPUUnknown")),
        ] {
            assert_eq!(
                refusal(there, here).map(|(reason, _)| reason),
                reason,
                "{there:?} {here:?}"
            );
        }
    }
}
