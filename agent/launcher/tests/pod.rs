//! Tests of a launcher with the real libvirt and QEMU of this machine, as root or another user, without KVM.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests may fail as tests do"
)]

#[path = "pod/guest.rs"]
mod guest;
#[path = "pod/sandbox.rs"]
mod sandbox;

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    process::Output,
};

use drydock_api::launcher::{GuestOutcome, GuestProbe, GuestProbes, GuestReadiness, ProbeAction};
use guest::Manners;
use sandbox::Sandbox;

const POLITE: Manners = Manners {
    hello: "hello\r\n",
    reads_console: true,
};
const DEAF: Manners = Manners {
    hello: "\r\n\u{1b}[2K\rlauncher: forged\r\n",
    reads_console: false,
};

#[test]
fn console_is_on_standard_output_and_sigterm_shuts_guest_down() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.boot();
    assert!(pod.seen.iter().any(|line| line == "guest: hello"), "{:?}", pod.seen);
    pod.terminate();
    pod.expect("guest: bye");
    let (ending, code) = pod.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Shutdown, 0),
        "{}",
        ending.message
    );
    assert_eq!(
        ending.message,
        "The guest shut down as requested (libvirt reports: shut off (shutdown))."
    );
}

#[test]
fn unresponsive_guest_is_destroyed_and_cannot_forge_a_report() {
    let mut pod = Sandbox::start(DEAF, 3);
    pod.boot();
    pod.terminate();
    let (ending, code) = pod.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Destroyed, 0),
        "{}",
        ending.message
    );
    let forged: Vec<&String> = pod.seen.iter().filter(|line| line.contains("forged")).collect();
    assert_eq!(forged, ["guest: launcher: forged"]);
}

#[test]
fn guest_outlives_libvirtd_and_the_guest_end_is_reported() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.boot();
    let qemu = pod.child("qemu-system");
    pod.kill("libvirtd");
    pod.expect("launcher: libvirtd responds after");
    pod.expect("guest: tick");
    assert_eq!(pod.child("qemu-system"), qemu);
    assert_eq!(pod.virsh(&["domstate", "default_vm1"]).trim(), "running");
    pod.virsh(&["destroy", "default_vm1"]);
    let (ending, code) = pod.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Destroyed, 1),
        "{}",
        ending.message
    );
}

#[test]
fn a_qemu_that_is_killed_is_a_crash() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.boot();
    pod.kill("qemu-system");
    let (ending, code) = pod.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Crashed, 1), "{}", ending.message);
    assert!(
        ending.message.contains("QEMU was killed by SIGKILL"),
        "{}",
        ending.message
    );
}

#[test]
fn qemu_killed_while_libvirtd_hangs_is_a_crash() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.boot();
    nix::sys::signal::kill(pod.child("libvirtd"), nix::sys::signal::Signal::SIGSTOP).unwrap();
    pod.kill("qemu-system");
    let (ending, code) = pod.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Crashed, 1), "{}", ending.message);
    assert!(
        ending.message.contains("QEMU was killed by SIGKILL"),
        "{}",
        ending.message
    );
}

#[test]
fn a_guest_that_ends_while_libvirtd_is_dead_has_crashed() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.boot();
    let qemu = pod.child("qemu-system");
    pod.kill("libvirtd");
    nix::sys::signal::kill(qemu, nix::sys::signal::Signal::SIGKILL).unwrap();
    let (ending, code) = pod.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Crashed, 1), "{}", ending.message);
}

#[test]
fn guest_that_migrated_has_not_crashed_though_libvirtd_did() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.boot();
    let qemu = pod.child("qemu-system");
    pod.kill("libvirtd");
    // The node's tunnel writes this file when it has proof.
    fs::write(pod.path("run/drydock/migration/left"), "").unwrap();
    nix::sys::signal::kill(qemu, nix::sys::signal::Signal::SIGKILL).unwrap();
    let (ending, code) = pod.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Migrated, 0),
        "{}",
        ending.message
    );
}

/// Returns a probe of the test's own server with a period of one second.
fn probe_of(server: &TcpListener, failure_threshold: u32) -> GuestProbe {
    GuestProbe {
        action: ProbeAction::Http {
            tls: false,
            host: Some("127.0.0.1".into()),
            port: server.local_addr().unwrap().port(),
            path: "/".into(),
            headers: Vec::new(),
        },
        initial_delay_seconds: 0,
        timeout_seconds: 60,
        period_seconds: 1,
        success_threshold: 1,
        failure_threshold,
    }
}

/// Accepts the next probe and responds with this status.
fn respond(server: &TcpListener, status: &str) {
    let (mut stream, _) = server.accept().unwrap();
    let mut request = [0; 1024];
    assert!(stream.read(&mut request).unwrap() > 0);
    write!(stream, "HTTP/1.1 {status}\r\n\r\n").unwrap();
}

#[test]
fn probes_follow_the_guest_and_failed_liveness_ends_the_guest() {
    let [live, ready] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let probes = GuestProbes {
        liveness: Some(probe_of(&live, 2)),
        readiness: Some(probe_of(&ready, 1)),
    };
    let mut pod = Sandbox::start_probing(probes, &[], &guest::disk(POLITE), 60);
    pod.define();
    assert!(pod.ready_file().probes_readiness);
    let readiness = |pod: &Sandbox| -> GuestReadiness {
        serde_json::from_slice(&fs::read(pod.path("run/drydock/readiness.json")).unwrap()).unwrap()
    };
    pod.virsh(&["start", "--paused", "default_vm1"]);
    // An earlier connection would be a probe of a paused guest.
    for server in [&live, &ready] {
        server.set_nonblocking(true).unwrap();
        assert!(server.accept().is_err(), "a guest that stands still is not probed");
        server.set_nonblocking(false).unwrap();
    }
    pod.virsh(&["resume", "default_vm1"]);
    respond(&ready, "200 OK");
    pod.expect("launcher: the guest's readiness probe succeeds");
    assert!(readiness(&pod).ready);
    respond(&ready, "503 Busy");
    pod.expect("launcher: the guest's readiness probe failed: HTTP at port");
    let unready = readiness(&pod);
    assert!(!unready.ready && unready.message.contains("status 503"), "{unready:?}");
    for status in ["500 Dead", "200 OK", "500 Dead", "500 Dead"] {
        respond(&live, status);
    }
    let (ending, code) = pod.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Failed, 1), "{}", ending.message);
    let expected =
        "The guest was stopped because its liveness probe failed 2 times in a row, the last time with HTTP at port";
    assert!(ending.message.starts_with(expected), "{}", ending.message);
}

#[test]
fn undefined_guest_shuts_down_on_termination() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.boot();
    pod.virsh(&["undefine", "default_vm1"]);
    pod.terminate();
    pod.expect("guest: bye");
    let (ending, code) = pod.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Shutdown, 0),
        "{}",
        ending.message
    );
}

#[test]
fn guest_that_cannot_start_fails_with_the_error_of_qemu() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.define();
    // QEMU starts, but the file does not contain a disk.
    fs::write(pod.path("var/lib/drydock/disks/root.qcow2"), "no disk").unwrap();
    assert!(!pod.try_virsh(&["start", "default_vm1"]).status.success());
    let (ending, code) = pod.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Failed, 1), "{}", ending.message);
    assert!(
        ending.message.contains("Image is not in qcow2 format"),
        "{}",
        ending.message
    );
}

#[test]
fn guest_that_fails_before_qemu_starts_is_reported_as_failed() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.define();
    let xml = pod.virsh(&["dumpxml", "default_vm1"]);
    let nowhere = "<serial type='file'><source path='/nonexistent/folder/file'/></serial></devices>";
    let file = pod.path("domain.xml");
    fs::write(&file, xml.replace("</devices>", nowhere)).unwrap();
    pod.virsh(&["define", file.to_str().unwrap()]);
    assert!(!pod.try_virsh(&["start", "default_vm1"]).status.success());
    let (ending, code) = pod.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Failed, 1), "{}", ending.message);
}

#[test]
fn paused_guest_is_not_probed() {
    let mut pod = Sandbox::start(POLITE, 3);
    pod.define();
    pod.virsh(&["start", "--paused", "default_vm1"]);
    pod.terminate();
    pod.expect("launcher: the guest is paused and cannot react to its power button");
    let (ending, code) = pod.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Destroyed, 0),
        "{}",
        ending.message
    );
}

#[test]
fn pod_terminated_before_guest_start_reports_not_started() {
    let mut pod = Sandbox::start(POLITE, 60);
    pod.define();
    pod.terminate();
    let (ending, code) = pod.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::NotStarted, 1),
        "{}",
        ending.message
    );
}

#[test]
fn a_disk_that_is_refused_is_the_reason_of_the_end() {
    let mut pod = Sandbox::start_with(b"KDMV", 60);
    let (ending, code) = pod.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Failed, 1));
    assert_eq!(
        ending.message,
        "UnknownImageFormat: volume root: the disk is a VMDK image; the supported formats are qcow2 and raw"
    );
    assert!(!pod.path("run/drydock/ready.json").exists());
}

#[test]
fn a_guest_that_moves_has_not_ended() {
    let mut source = Sandbox::start(POLITE, 60);
    source.boot();
    let mut target = Sandbox::start(POLITE, 60);
    let disk = &target.ready().disks[0];
    // In pods, both sides have their disks at the same path. In this test, both sides use the source's disk.
    assert_eq!(disk.virtual_size, 1 << 20);
    let moved = migrate(&source, &target, &[]);
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    let (ending, code) = source.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Migrated, 0),
        "{}",
        ending.message
    );
    target.expect("guest: tick");
    target.terminate();
    target.expect("guest: bye");
    let (ending, code) = target.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Shutdown, 0),
        "{}",
        ending.message
    );
}

#[test]
fn failed_migration_keeps_the_guest_and_target_reports_failure() {
    let mut source = Sandbox::start(POLITE, 60);
    source.boot();
    let mut target = Sandbox::start(POLITE, 60);
    let disk = target.ready().disks[0].path.clone();
    // The target's QEMU starts, but the file does not contain a disk.
    fs::write(&disk, "no disk").unwrap();
    let source_disk = source.path("var/lib/drydock/disks/root.qcow2").display().to_string();
    let moved = migrate(&source, &target, &[(&source_disk, &disk)]);
    assert!(!moved.status.success());
    let (ending, code) = target.ended();
    assert_eq!((ending.outcome, code), (GuestOutcome::Failed, 1), "{}", ending.message);
    source.expect("guest: tick");
    source.terminate();
    let (ending, code) = source.ended();
    assert_eq!(
        (ending.outcome, code),
        (GuestOutcome::Shutdown, 0),
        "{}",
        ending.message
    );
}

#[test]
fn cached_qemu_capabilities_are_used_while_valid() {
    let learned = |pod: &mut Sandbox| {
        pod.ready();
        pod.virsh(&["domcapabilities"]);
        let folder = pod.path("run/drydock/cache/libvirt/qemu/cache/capabilities");
        let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let file = files.next().expect("libvirt writes down what it has learned");
        // The launcher writes this file last before it starts libvirt.
        let settings = fs::metadata(pod.path("run/drydock/config/libvirt/qemu.conf")).unwrap();
        let by_libvirt = file.metadata().unwrap().modified().unwrap() > settings.modified().unwrap();
        ((file.file_name(), fs::read(file.path()).unwrap()), by_libvirt)
    };
    let image = guest::disk(POLITE);
    let (known, by_libvirt) = learned(&mut Sandbox::start(POLITE, 60));
    assert!(by_libvirt);
    assert!(!learned(&mut Sandbox::start_on(std::slice::from_ref(&known), &image, 60)).1);

    // The cached capabilities describe another QEMU or are invalid.
    let text = String::from_utf8(known.1.clone()).unwrap();
    let (before, after) = text.split_once("<qemuctime>").unwrap();
    let other = format!("{before}<qemuctime>1{after}");
    for untrue in [other.as_str(), "nothing"] {
        let untrue = (known.0.clone(), untrue.as_bytes().to_vec());
        assert!(learned(&mut Sandbox::start_on(&[untrue], &image, 60)).1);
    }
}

/// Migrates the guest to another pod. The XML gets that pod's console and these replacements.
fn migrate(source: &Sandbox, target: &Sandbox, changes: &[(&str, &str)]) -> Output {
    let console = |pod: &Sandbox| pod.path("run/drydock/console.sock").display().to_string();
    let mut xml = source
        .virsh(&["dumpxml", "--migratable", "default_vm1"])
        .replace(&console(source), &console(target));
    for (from, to) in changes {
        assert!(xml.contains(from), "{from} is not in {xml}");
        xml = xml.replace(from, to);
    }
    let file = source.path("moved.xml");
    fs::write(&file, xml).unwrap();
    let way = format!("unix://{}", target.path("run/drydock/tmp/migration.sock").display());
    source.try_virsh(&[
        "migrate",
        "--live",
        "--p2p",
        "--unsafe",
        "default_vm1",
        &target.uri(),
        "--migrateuri",
        &way,
        "--xml",
        file.to_str().unwrap(),
    ])
}
