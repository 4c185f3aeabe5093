//! Inspection with a real libvirtd and QEMU, and with libvirtds that misbehave.
//!
//! Tests whose requirements are not installed print their name as skipped and pass.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

use std::{collections::BTreeSet, path::Path, process::Command, time::Duration};

use drydock_api::facts::{KvmState, Usable, VirtType};
use drydock_host::{
    inspection::{InspectionOptions, LibvirtSource, inspect},
    private_libvirtd::PrivateLibvirtd,
    roots::Roots,
};

/// Returns the first of `programs` that is not installed.
fn missing(programs: &[&str]) -> Option<String> {
    let found = |program: &&str| {
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"]
            .iter()
            .any(|f| Path::new(f).join(program).exists())
    };
    programs
        .iter()
        .find(|program| !found(program))
        .map(|program| (*program).to_owned())
}

/// Returns whether to skip a test, and prints that it is skipped.
fn skipped(test: &str, programs: &[&str]) -> bool {
    match missing(programs) {
        Some(program) => {
            eprintln!("skipped: {test}: {program} is not installed");
            true
        }
        None => false,
    }
}

/// Returns options for emulation, regardless of KVM on this machine.
fn emulation() -> InspectionOptions {
    InspectionOptions {
        roots: Roots {
            kvm: "/nowhere/kvm".into(),
            ..Roots::default()
        },
        ..InspectionOptions::default()
    }
}

fn virsh(uri: &str, arguments: &[&str]) -> String {
    let output = Command::new("virsh")
        .args(["-c", uri])
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "virsh {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

const NEEDED: &[&str] = &["libvirtd", "virsh", "qemu-system-x86_64"];

/// Returns the CPU models in the output of `virsh domcapabilities` that are not marked as unusable.
#[cfg(target_arch = "x86_64")]
fn usable_models(domain: &str) -> BTreeSet<&str> {
    domain
        .lines()
        .filter(|line| line.contains("<model usable='yes'") || line.contains("<model usable='unknown'"))
        .filter_map(|line| line.split(['>', '<']).nth(2))
        .collect()
}

/// Returns the CPU features in the output of `virsh hypervisor-cpu-baseline`.
#[cfg(target_arch = "x86_64")]
fn required_features(baseline: &str) -> BTreeSet<&str> {
    baseline
        .lines()
        .filter_map(|line| line.split_once("policy='require' name='")?.1.split('\'').next())
        .collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn emulation_is_described_like_in_virsh() {
    if skipped("emulation_is_described_like_in_virsh", NEEDED) {
        return;
    }
    let kept = std::env::temp_dir().join(format!("drydock-kept-{}", std::process::id()));
    let report = inspect(&InspectionOptions {
        capabilities: Some(kept.clone()),
        ..emulation()
    });
    assert_eq!(report.problem, None);
    let learned: Vec<_> = std::fs::read_dir(&kept).unwrap().map(Result::unwrap).collect();
    assert!(!learned.is_empty());
    for file in learned {
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.contains("<qemuCaps>"), "{file:?}");
    }
    std::fs::remove_dir_all(kept).unwrap();
    assert_eq!(report.facts.kvm.state, KvmState::NoDevice);
    let found = report.facts.virtualization.unwrap();
    assert_eq!(found.virt_type, VirtType::Qemu);

    // virsh sends the same queries to a freshly started libvirtd.
    let daemon = PrivateLibvirtd::start(Path::new("libvirtd"), &std::env::temp_dir()).unwrap();
    daemon.wait_until_open(Duration::from_secs(20)).unwrap();
    let uri = daemon.uri();
    let machine = ["--arch", "x86_64", "--machine", "q35", "--virttype", "qemu"];
    let domain = virsh(&uri, &[&["domcapabilities"], &machine[..]].concat());
    let usable = usable_models(&domain);
    let found_usable: BTreeSet<&str> = found
        .models
        .iter()
        .filter(|model| model.usable != Usable::No)
        .map(|model| model.name.as_str())
        .collect();
    assert_eq!(found_usable, usable);
    assert!(!usable.is_empty());

    let file = std::env::temp_dir().join(format!("drydock-test-{}.xml", daemon.pid()));
    std::fs::write(&file, &domain).unwrap();
    let baseline = ["hypervisor-cpu-baseline", "--features", file.to_str().unwrap()];
    let baseline = virsh(&uri, &[&baseline, &machine[..]].concat());
    std::fs::remove_file(&file).unwrap();
    let features = required_features(&baseline);
    assert_eq!(
        found.features.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        features
    );
    assert!(features.contains("sse2"));

    let capabilities = virsh(&uri, &["capabilities"]);
    assert!(
        found
            .machine_types
            .iter()
            .any(|machine| machine.name == "q35" && machine.canonical.is_some())
    );
    for machine in found.machine_types.iter() {
        assert!(
            capabilities.contains(&format!(">{}</machine>", machine.name)),
            "{}",
            machine.name
        );
    }
    let version = virsh(&uri, &["version", "--daemon"]);
    assert!(
        version.contains(&format!("libvirt {}", found.libvirt_version)),
        "{version}"
    );
    assert!(version.contains(&format!("QEMU {}", found.qemu_version)), "{version}");
}

/// The report of this machine is consistent, with or without KVM.
#[test]
fn inspection_of_the_test_host_is_consistent() {
    if skipped("inspection_of_the_test_host_is_consistent", NEEDED) {
        return;
    }
    let report = inspect(&InspectionOptions::default());
    println!(
        "{:?} in {:?}: {}",
        report.facts.kvm.state, report.took, report.facts.kvm.message
    );
    assert_eq!(report.problem, None);
    let found = report.facts.virtualization.unwrap();
    let expected = if report.facts.kvm.state == KvmState::Usable {
        VirtType::Kvm
    } else {
        VirtType::Qemu
    };
    assert_eq!(found.virt_type, expected);
    assert!(found.models.iter().any(|model| model.usable != Usable::No));
    assert!(!report.facts.kvm.message.is_empty());
}

/// A running libvirtd is queried and keeps running after the inspection.
#[test]
fn a_given_libvirt_is_left_running() {
    if skipped("a_given_libvirt_is_left_running", NEEDED) {
        return;
    }
    let daemon = PrivateLibvirtd::start(Path::new("libvirtd"), &std::env::temp_dir()).unwrap();
    daemon.wait_until_open(Duration::from_secs(20)).unwrap();
    let report = inspect(&InspectionOptions {
        libvirt: LibvirtSource::Uri(daemon.uri()),
        ..emulation()
    });
    assert_eq!(report.problem, None);
    assert!(report.facts.virtualization.is_some());
    assert!(daemon.end_within(Duration::ZERO).is_none());
}
