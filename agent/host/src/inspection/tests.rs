use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

/// Options with a Python script as libvirtd, in a folder that is removed at the end of the test.
struct Fake {
    folder: PathBuf,
    options: InspectionOptions,
}

impl Fake {
    fn new(script: &str) -> Self {
        let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-inspect-XXXXXX")).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let libvirtd = folder.join("libvirtd");
        let head = "#!/usr/bin/env python3\nimport os, socket, sys, time\ns = socket.socket(socket.AF_UNIX)\n\
            s.bind(os.environ['XDG_RUNTIME_DIR'] + '/libvirt/libvirt-sock')\ns.listen()\n\
            def client():\n  while True:\n    c = s.accept()[0]\n    if c.recv(1):\n      return c\n";
        fs::write(&libvirtd, format!("{head}{script}")).unwrap();
        fs::set_permissions(&libvirtd, fs::Permissions::from_mode(0o755)).unwrap();
        let options = InspectionOptions {
            libvirt: LibvirtSource::Private { libvirtd },
            scratch: folder.clone(),
            architecture: Some(Architecture::Amd64),
            ..InspectionOptions::default()
        };
        Self { folder, options }
    }

    fn inspect(&self) -> InspectionReport {
        let report = inspect(&self.options);
        assert_eq!(report.facts.virtualization, None);
        assert!(!report.facts.kernel.is_empty(), "what the kernel reports stands");
        let left: Vec<_> = fs::read_dir(&self.folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["libvirtd"], "its folder is removed");
        report
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn kind(report: &InspectionReport) -> ProblemReason {
    report.problem.as_ref().unwrap().kind()
}

#[test]
fn inspection_times_out_if_libvirtd_hangs_after_accept() {
    let mut fake = Fake::new("c = client()\ntime.sleep(60)");
    fake.options.deadline = Duration::from_millis(700);
    let report = loop {
        let report = fake.inspect();
        // On a busy machine, the script may need longer than the deadline to start.
        if kind(&report) != ProblemReason::LibvirtdSocketNotOpened {
            break report;
        }
        fake.options.deadline *= 2;
    };
    assert_eq!(kind(&report), ProblemReason::LibvirtTimedOut);
    let most = fake.options.deadline + Duration::from_millis(2300);
    assert!(report.took < most, "{:?}", report.took);
}

#[test]
fn inspection_reports_a_libvirtd_crash_after_accept() {
    let report = Fake::new("c = client()\nprint('error: boom', flush=True)\nos.kill(os.getpid(), 11)").inspect();
    assert_eq!(kind(&report), ProblemReason::LibvirtdCrashed);
    let text = report.problem.unwrap().to_string();
    assert_eq!(
        text,
        "libvirtd ended during the inspection: killed by SIGSEGV: error: boom"
    );
}

#[test]
fn garbage_from_libvirt_is_reported() {
    let report = Fake::new("c = client()\nc.sendall(bytes([255]) * 64)\ntime.sleep(60)").inspect();
    assert_eq!(kind(&report), ProblemReason::LibvirtConnectFailed);
}

#[test]
fn inspection_fails_if_libvirtd_closes_the_connection() {
    let report = Fake::new("while True:\n  client().close()").inspect();
    assert_eq!(kind(&report), ProblemReason::LibvirtConnectFailed);
}

#[test]
fn inspection_fails_if_libvirtd_opens_no_socket() {
    let mut fake = Fake::new("");
    let LibvirtSource::Private { libvirtd } = &fake.options.libvirt else {
        panic!("a private one")
    };
    fs::write(libvirtd, "#!/bin/sh\nexec sleep 60\n").unwrap();
    fake.options.start_within = Duration::from_millis(200);
    assert_eq!(kind(&fake.inspect()), ProblemReason::LibvirtdSocketNotOpened);
}

#[test]
fn inspection_fails_if_libvirtd_is_not_installed() {
    let mut fake = Fake::new("");
    fake.options.libvirt = LibvirtSource::Private {
        libvirtd: "drydock-no-such-libvirtd".into(),
    };
    assert_eq!(kind(&fake.inspect()), ProblemReason::LibvirtdNotStarted);
}

#[test]
fn a_given_libvirt_that_is_not_there() {
    let mut fake = Fake::new("");
    fake.options.libvirt = LibvirtSource::Uri("qemu+unix:///session?socket=/nowhere".into());
    assert_eq!(kind(&fake.inspect()), ProblemReason::LibvirtConnectFailed);
    // libvirt's test driver is reachable, but does not support the query.
    fake.options.libvirt = LibvirtSource::Uri("test:///default".into());
    assert_eq!(kind(&fake.inspect()), ProblemReason::LibvirtCallFailed);
}

#[test]
fn other_architectures_have_the_kernels_facts() {
    let options = InspectionOptions {
        architecture: Some(Architecture::Other("riscv64".into())),
        ..InspectionOptions::default()
    };
    let report = inspect(&options);
    assert_eq!(report.facts.architecture, "riscv64");
    assert_eq!(kind(&report), ProblemReason::ArchitectureNotSupported);
    assert_eq!(report.problem.unwrap().reason(), "ArchitectureNotSupported");
    assert!(!report.facts.kernel.is_empty());
}
