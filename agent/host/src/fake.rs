//! Nodes for the tests of other crates: facts as an inspection would report them, and libvirts with guests in
//! [`fake_guest`].
//!
//! All nodes except the Skylake node are parsed from recordings by the parsers of this crate, so that decisions are
//! tested with real output of libvirt.

pub mod fake_guest;
pub mod fake_migration;
mod fake_migrations;

use std::sync::Arc;

use drydock_api::facts::{
    CpuFacts, CpuidTsc, HostTopology, KvmFacts, KvmState, NodeFacts, TscCounter, VirtType, VirtualizationFacts,
};

use crate::{architecture::Architecture, baseline, capabilities, domain_capabilities, libvirt_probe};

const CAPABILITIES: &str = include_str!("../testdata/trixie/capabilities.xml");

/// Returns an amd64 node without KVM: guests are emulated (QEMU 10.0, libvirt 11.3).
pub fn tcg_node() -> NodeFacts {
    NodeFacts {
        cpu: skylake_processor(),
        kvm: no_kvm(),
        virtualization: Some(virtualization(
            VirtType::Qemu,
            &Architecture::Amd64,
            include_str!("../testdata/trixie/x86_64-qemu.domain-capabilities.xml"),
            Some(include_str!("../testdata/trixie/x86_64-qemu.baseline.xml")),
        )),
        ..node(&Architecture::Amd64)
    }
}

/// Returns an amd64 node with a Skylake client processor and KVM.
pub fn kvm_skylake_node() -> NodeFacts {
    let virtualization = VirtualizationFacts {
        tsc: Some(TscCounter {
            frequency_hz: 4_008_000_000,
            scalable: true,
        }),
        topology: Some(HostTopology {
            sockets: 1,
            cores: 4,
            threads: 2,
            numa_cells: 1,
        }),
        ..virtualization(
            VirtType::Kvm,
            &Architecture::Amd64,
            include_str!("../testdata/made/skylake-kvm.domain-capabilities.xml"),
            Some(include_str!("../testdata/made/skylake-kvm.baseline.xml")),
        )
    };
    let hyperv = [
        "base",
        "frequencies",
        "ipi",
        "reenlightenment",
        "reset",
        "runtime",
        "synic",
        "synic2",
        "synictimer",
        "time",
        "tlbflush",
        "vpindex",
    ];
    NodeFacts {
        cpu: skylake_processor(),
        kvm: KvmFacts {
            state: KvmState::Usable,
            message: "/dev/kvm can be opened".into(),
            parameters: [("kvm_intel.nested", "Y"), ("kvm_intel.ept", "Y")]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
            hyperv: hyperv.map(Into::into).into(),
        },
        virtualization: Some(virtualization),
        ..node(&Architecture::Amd64)
    }
}

/// Returns an arm64 node with emulation: libvirt cannot determine which models are usable, and there is no
/// host-model.
pub fn arm64_node() -> NodeFacts {
    NodeFacts {
        cpu: CpuFacts {
            vendor: "0x41".into(),
            family: Some(8),
            model: Some(0xd0c),
            stepping: Some(1),
            features: Vec::from(["aes", "asimd", "fp", "sha2"].map(Into::into)).into(),
            online: Some(8),
            ..CpuFacts::default()
        },
        kvm: no_kvm(),
        virtualization: Some(VirtualizationFacts {
            tsc: None,
            ..virtualization(
                VirtType::Qemu,
                &Architecture::Arm64,
                include_str!("../testdata/trixie/aarch64-qemu.domain-capabilities.xml"),
                None,
            )
        }),
        ..node(&Architecture::Arm64)
    }
}

/// Returns an s390x node with emulation: old models are usable, and there is no host-model.
pub fn s390x_node() -> NodeFacts {
    NodeFacts {
        cpu: CpuFacts {
            vendor: "IBM/S390".into(),
            brand: "IBM 3931".into(),
            model: Some(3931),
            features: Vec::from(["esan3", "msa", "stfle", "vx", "zarch"].map(Into::into)).into(),
            online: Some(4),
            ..CpuFacts::default()
        },
        kvm: no_kvm(),
        virtualization: Some(VirtualizationFacts {
            tsc: None,
            ..virtualization(
                VirtType::Qemu,
                &Architecture::S390x,
                include_str!("../testdata/trixie/s390x-qemu.domain-capabilities.xml"),
                None,
            )
        }),
        ..node(&Architecture::S390x)
    }
}

/// Returns a node whose libvirt could not be queried: only the facts from the processor and the kernel are known.
pub fn node_without_libvirt() -> NodeFacts {
    NodeFacts {
        virtualization: None,
        ..kvm_skylake_node()
    }
}

fn node(architecture: &Architecture) -> NodeFacts {
    NodeFacts {
        architecture: architecture.kubernetes().into(),
        kernel: format!("6.12.48+deb13-{}", architecture.kubernetes()),
        ..NodeFacts::default()
    }
}

fn no_kvm() -> KvmFacts {
    KvmFacts {
        state: KvmState::NoDevice,
        message: "there is no /dev/kvm".into(),
        ..KvmFacts::default()
    }
}

fn skylake_processor() -> CpuFacts {
    let features = "3dnowprefetch abm adx aes apic arat avx avx2 bmi1 bmi2 clflush clflushopt cmov cx16 cx8 de erms f16c \
        fma fpu fsgsbase fxsr hle invpcid lahf_lm lm mca mce mmx movbe mpx msr mtrr nx pae pat pcid pclmulqdq pdpe1gb pge \
        pni popcnt pse pse36 rdrand rdseed rdtscp rtm sep smap smep ss sse sse2 sse4_1 sse4_2 ssse3 syscall tsc tsc_adjust \
        tsc_deadline_timer vme vmx x2apic xgetbv1 xsave xsavec xsaveopt xsaves";
    CpuFacts {
        vendor: "GenuineIntel".into(),
        brand: "Intel(R) Core(TM) i7-6700K CPU @ 4.00GHz".into(),
        family: Some(6),
        model: Some(94),
        stepping: Some(3),
        microcode: Some("0xf0".into()),
        features: Arc::new(features.split_whitespace().map(Into::into).collect()),
        physical_address_bits: Some(39),
        hypervisor: false,
        online: Some(8),
        tsc: Some(CpuidTsc {
            frequency_hz: Some(4_008_000_000),
            invariant: true,
        }),
    }
}

#[expect(
    clippy::expect_used,
    reason = "the documents are part of this crate, and its tests read them"
)]
fn virtualization(
    virt_type: VirtType,
    architecture: &Architecture,
    domain: &str,
    baseline: Option<&str>,
) -> VirtualizationFacts {
    let domain = domain_capabilities::parse(domain, architecture).expect("recorded domain capabilities are understood");
    let features = baseline
        .map(|text| {
            baseline::parse(text, architecture)
                .expect("a recorded baseline is understood")
                .features
        })
        .unwrap_or_default();
    let host = capabilities::parse(CAPABILITIES, architecture).expect("recorded capabilities are understood");
    VirtualizationFacts {
        libvirt_version: "11.3.0".into(),
        qemu_version: "10.0.13".into(),
        ..libvirt_probe::facts(
            virt_type,
            architecture.machine().unwrap_or_default(),
            domain,
            features,
            host,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drydock_api::facts::Usable;

    #[test]
    fn fake_nodes_match_the_function_names() {
        let parts = |facts: NodeFacts| facts.virtualization.unwrap();
        let usable =
            |facts: &VirtualizationFacts| facts.models.iter().filter(|model| model.usable != Usable::No).count();
        let skylake = parts(kvm_skylake_node());
        assert_eq!(skylake.host_model.as_ref().unwrap().name, "Skylake-Client-IBRS");
        assert!(skylake.features.contains(&"avx2".to_owned()) && usable(&skylake) > 50);
        let tcg = parts(tcg_node());
        assert_eq!((tcg.virt_type, tcg.vendor.as_str()), (VirtType::Qemu, "AMD"));
        assert!(tcg.features.len() > 50);
        let arm = parts(arm64_node());
        assert!(arm.host_model.is_none() && arm.features.is_empty() && usable(&arm) == arm.models.len());
        assert!(arm.machine_types.iter().any(|machine| machine.name == "virt"));
        let z = parts(s390x_node());
        assert_eq!((z.vendor.as_str(), usable(&z)), ("IBM", 10));
        assert!(node_without_libvirt().virtualization.is_none());
    }
}
