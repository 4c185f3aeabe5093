use std::cell::RefCell;

use super::*;
use crate::problem::ProblemReason;

const KVM: &str = include_str!("../../testdata/trixie/x86_64-kvm.domain-capabilities.xml");
const QEMU: &str = include_str!("../../testdata/trixie/x86_64-qemu.domain-capabilities.xml");
const BASELINE: &str = include_str!("../../testdata/trixie/x86_64-qemu.baseline.xml");
const CAPABILITIES: &str = include_str!("../../testdata/trixie/capabilities.xml");

type ProbeReply = Result<String, LibvirtError>;

/// A libvirt with recorded responses. It also records the queries.
struct Recorded {
    kvm: ProbeReply,
    qemu: ProbeReply,
    baseline: ProbeReply,
    capabilities: ProbeReply,
    version: u32,
    queries: RefCell<Vec<String>>,
}

impl Default for Recorded {
    fn default() -> Self {
        Self {
            kvm: Ok(KVM.into()),
            qemu: Ok(QEMU.into()),
            baseline: Ok(BASELINE.into()),
            capabilities: Ok(CAPABILITIES.into()),
            version: 11_003_000,
            queries: RefCell::default(),
        }
    }
}

impl Recorded {
    fn probe(&self, virt_type: VirtType) -> ProbeResult {
        probe(self, &Architecture::Amd64, "q35", virt_type)
    }

    fn note(&self, what: impl Into<String>) {
        self.queries.borrow_mut().push(what.into());
    }
}

impl LibvirtQueries for Recorded {
    fn domain_capabilities(&self, machine: &QueriedMachine<'_>, detail: Detail) -> ProbeReply {
        self.note(format!(
            "{} {} {} {detail:?}",
            machine.architecture,
            machine.machine,
            machine.virt_type.as_str()
        ));
        if machine.virt_type == VirtType::Kvm {
            self.kvm.clone()
        } else {
            self.qemu.clone()
        }
    }

    fn baseline(&self, machine: &QueriedMachine<'_>, cpu: &str) -> ProbeReply {
        assert!(
            cpu.starts_with("<cpu>") && cpu.contains("<model fallback='forbid'>"),
            "{cpu}"
        );
        self.note(format!("baseline {}", machine.virt_type.as_str()));
        self.baseline.clone()
    }

    fn capabilities(&self) -> ProbeReply {
        self.note("capabilities");
        self.capabilities.clone()
    }

    fn version(&self) -> Result<Version, LibvirtError> {
        Ok(Version(self.version))
    }

    fn qemu_version(&self) -> Result<Version, LibvirtError> {
        Ok(Version(10_000_013))
    }
}

fn refusal(code: u32, domain: u32) -> ProbeReply {
    Err(LibvirtError {
        call: "virConnectGetVersion",
        code,
        domain,
        message: "no".into(),
    })
}

/// Returns an error of libvirt's QEMU driver. The next function returns an error of its connection.
fn refused() -> ProbeReply {
    refusal(virt_sys::VIR_ERR_INVALID_ARG, virt_sys::VIR_FROM_QEMU)
}

fn broken() -> ProbeReply {
    refusal(virt_sys::VIR_ERR_INTERNAL_ERROR, virt_sys::VIR_FROM_RPC)
}

#[test]
fn each_query_is_made_once() {
    let libvirt = Recorded::default();
    let probed = libvirt.probe(VirtType::Kvm);
    assert_eq!((&probed.problem, &probed.kvm_given_up), (&None, &None));
    let facts = probed.facts.unwrap();
    assert_eq!((facts.virt_type, facts.vendor.as_str()), (VirtType::Kvm, "Intel"));
    assert_eq!(
        (facts.libvirt_version.as_str(), facts.qemu_version.as_str()),
        ("11.3.0", "10.0.13")
    );
    assert_eq!(
        *libvirt.queries.borrow(),
        ["x86_64 q35 kvm HostModel", "baseline kvm", "capabilities"]
    );
}

#[test]
fn kvm_without_a_usable_model_is_given_up() {
    for (kvm, why) in [
        (
            Ok(KVM.replace("usable='yes'", "usable='no'")),
            "libvirt reports no CPU model that guests can have with KVM",
        ),
        (refused(), "libvirt refuses KVM: no"),
    ] {
        let libvirt = Recorded {
            kvm,
            ..Recorded::default()
        };
        let probed = libvirt.probe(VirtType::Kvm);
        assert_eq!(probed.kvm_given_up.as_deref(), Some(why));
        assert_eq!(probed.problem, None);
        assert_eq!(probed.facts.unwrap().virt_type, VirtType::Qemu);
        let queries = [
            "x86_64 q35 kvm HostModel",
            "x86_64 q35 qemu HostModel",
            "baseline qemu",
            "capabilities",
        ];
        assert_eq!(*libvirt.queries.borrow(), queries);
    }
}

#[test]
fn broken_libvirt_connection_does_not_rule_out_kvm() {
    let libvirt = Recorded {
        kvm: broken(),
        ..Recorded::default()
    };
    let probed = libvirt.probe(VirtType::Kvm);
    assert_eq!((probed.facts, probed.kvm_given_up), (None, None));
    assert_eq!(probed.problem.unwrap().kind(), ProblemReason::LibvirtConnectFailed);
    assert_eq!(libvirt.queries.borrow().len(), 1);
}

#[test]
fn neither_kvm_nor_emulation() {
    let libvirt = Recorded {
        kvm: refused(),
        qemu: refused(),
        ..Recorded::default()
    };
    let probed = libvirt.probe(VirtType::Kvm);
    assert_eq!(probed.facts, None);
    assert!(probed.kvm_given_up.is_some());
    assert_eq!(probed.problem.unwrap().kind(), ProblemReason::LibvirtCallFailed);
}

#[test]
fn gaps_are_reported_and_other_facts_kept() {
    let garbage = || Ok("<html/>".to_owned());
    for (libvirt, reason) in [
        (
            Recorded {
                baseline: refused(),
                ..Recorded::default()
            },
            ProblemReason::LibvirtCallFailed,
        ),
        (
            Recorded {
                baseline: garbage(),
                ..Recorded::default()
            },
            ProblemReason::LibvirtResponseInvalid,
        ),
    ] {
        let probed = libvirt.probe(VirtType::Qemu);
        assert_eq!(probed.problem.unwrap().kind(), reason);
        let facts = probed.facts.unwrap();
        assert!(facts.features.is_empty() && !facts.models.is_empty() && !facts.machine_types.is_empty());
    }
    let probed = Recorded {
        capabilities: garbage(),
        ..Recorded::default()
    }
    .probe(VirtType::Qemu);
    assert_eq!(
        probed.problem.unwrap().to_string(),
        "the root element of the capabilities is <html> instead of <capabilities>"
    );
    assert!(probed.facts.unwrap().machine_types.is_empty());
    let probed = Recorded {
        qemu: garbage(),
        ..Recorded::default()
    }
    .probe(VirtType::Qemu);
    assert_eq!(probed.problem.unwrap().kind(), ProblemReason::LibvirtResponseInvalid);
    assert_eq!(probed.facts, None);
}

#[test]
fn newer_libvirt_is_queried_for_all_host_features() {
    let libvirt = Recorded {
        version: 12_005_000,
        ..Recorded::default()
    };
    assert_eq!(libvirt.probe(VirtType::Qemu).problem, None);
    let queries = [
        "x86_64 q35 qemu HostModel",
        "x86_64 q35 qemu Everything",
        "baseline qemu",
        "capabilities",
    ];
    assert_eq!(*libvirt.queries.borrow(), queries);
}

#[test]
fn without_a_host_model_there_is_no_baseline() {
    let arm = include_str!("../../testdata/trixie/aarch64-qemu.domain-capabilities.xml");
    let libvirt = Recorded {
        qemu: Ok(arm.into()),
        ..Recorded::default()
    };
    let probed = probe(&libvirt, &Architecture::Arm64, "virt", VirtType::Qemu);
    assert_eq!(probed.problem, None);
    assert!(probed.facts.unwrap().features.is_empty());
    assert_eq!(
        *libvirt.queries.borrow(),
        ["aarch64 virt qemu HostModel", "capabilities"]
    );
}
