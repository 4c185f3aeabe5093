//! Guests that migrate between the libvirtds of two pods. The guests are real QEMUs that only run their BIOS.
//!
//! Tests whose requirements (programs, or root) are missing print their name as skipped and pass.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

mod pod;
#[path = "migration/tunnel.rs"]
mod tunnel;

use std::{collections::BTreeSet, fs, process::Command};

use drydock_api::{facts::VirtType, kubevirt::status::GuestCpu};
use drydock_core::domain::full_cpu;
use drydock_host::domain::{
    CallDeadlines, CallError, CopiedContent, CpuComparison, DiskCopy, DomainEvent, DomainEvents, DomainHandle,
    DomainState as State, InitialState, JobOperation, JobType, LifecycleEvent as Event, LiveDomain, Migration,
    PausedReason, RunningReason, ShutOffReason,
};
use nix::sys::signal::Signal;
use pod::{MOUNT, Pod, SOCKET, skipped};
use tokio::task::JoinSet;
use tunnel::{MigrationStream, Tunnel};

const NAME: &str = "default_mover";

fn xml(disk: &str) -> String {
    format!(
        "<domain type='qemu'>
  <name>{NAME}</name>
  <uuid>7c2a1a52-51b6-4a13-9e0f-3f5a4d1a9b01</uuid>
  <memory unit='MiB'>64</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <cpu mode='custom' match='exact' check='none'><model fallback='forbid'>Westmere</model></cpu>
  <devices>{disk}<memballoon model='none'/></devices>
</domain>"
    )
}

/// Two pods: the source and the target of a migration.
struct Pair {
    source: Side,
    target: Side,
}

/// A pod, with a connection to its libvirt.
struct Side {
    pod: Pod,
    guest: DomainHandle,
    events: DomainEvents,
}

impl Side {
    async fn new() -> Self {
        let pod = Pod::with_libvirtd();
        pod.own(&pod.scratch.join("run").join("migration"));
        let (guest, events) = DomainHandle::connect_when_open(&pod.folder(), SOCKET, NAME, CallDeadlines::default())
            .await
            .unwrap_or_else(|error| panic!("{error}\n{}", pod.log()));
        Self { pod, guest, events }
    }

    /// Returns the events up to and including `last`, without the events for passes over the memory.
    async fn until(&mut self, last: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|event| event != last) {
            match self.events.recv().await {
                Some(DomainEvent::Lifecycle(event)) => seen.push(event.to_string()),
                Some(DomainEvent::JobCompleted(Some(_))) => seen.push("job completed".to_owned()),
                Some(DomainEvent::MigrationIteration(_)) => {}
                other => panic!("{other:?} after {seen:?}\n{}", self.pod.log()),
            }
        }
        seen
    }

    /// Defines and starts the guest, and waits for its start event.
    async fn run(&mut self, disk: &str) {
        self.guest.define(&xml(disk)).await.unwrap();
        let started = self.guest.create(InitialState::Running).await;
        started.unwrap_or_else(|error| panic!("{error}\n{}", self.pod.log()));
        self.until("Started Booted").await;
    }
}

impl Pair {
    /// Creates both pods, and starts a guest in the source.
    async fn new(disk: &str) -> Self {
        let (mut source, target) = (Side::new().await, Side::new().await);
        source.run(disk).await;
        Self { source, target }
    }
}

/// Removes shutdown events. libvirt may send a shutdown event if QEMU reports the shutdown before it exits.
fn without_shutdown(events: &[String]) -> Vec<&str> {
    let events = events.iter().map(String::as_str);
    events.filter(|event| !event.starts_with("Shutdown")).collect()
}

fn migration() -> Migration {
    let path = |stream: MigrationStream| format!("{MOUNT}/run/{}", stream.socket());
    Migration {
        destination: format!("qemu+unix:///session?socket={}", path(MigrationStream::Libvirt)),
        memory: format!("unix://{}", path(MigrationStream::Memory)),
        ..Migration::default()
    }
}

/// A migration in progress. Dropping this value drops the call.
struct Moving(JoinSet<Result<(), CallError>>);

impl Moving {
    /// Begins the migration, and waits until `stream` is connected.
    async fn begin(guest: &DomainHandle, tunnel: &Tunnel, stream: MigrationStream) -> Self {
        let guest = guest.clone();
        let mut moving = JoinSet::new();
        moving.spawn(async move { guest.migrate(migration()).await });
        tokio::select! {
            early = moving.join_next() => panic!("{early:?}"),
            () = tunnel.connected(stream) => {}
        }
        Self(moving)
    }

    /// Waits for the end of the migration and returns its result.
    async fn ended(mut self) -> Result<(), CallError> {
        self.0.join_next().await.unwrap().unwrap()
    }
}

/// A disk at the same path in both pods; each pod has its own file.
fn disk(format: &str) -> String {
    format!(
        "<disk type='file' device='disk'><driver name='qemu' type='{format}' cache='none'/>\
         <source file='{MOUNT}/disks/root'/><target dev='vda' bus='virtio'/></disk>"
    )
}

#[tokio::test]
async fn guest_waits_at_target_for_release_and_moves_back() {
    if skipped("guest_waits_at_target_for_release_and_moves_back") {
        return;
    }
    let Pair { mut source, mut target } = Pair::new("").await;
    let tunnel = Tunnel::new(&source.pod, &target.pod);
    tunnel.hold(MigrationStream::Memory);
    let moving = Moving::begin(&source.guest, &tunnel, MigrationStream::Memory).await;

    // All other calls are possible during the migration, over the other connection.
    let job = source.guest.job().await.unwrap().unwrap();
    assert!(job.is_active());
    assert_eq!(job.operation, JobOperation::OutgoingMigration);
    let incoming = target.guest.job().await.unwrap().unwrap();
    assert_eq!(
        (incoming.operation, incoming.is_active(), incoming.elapsed),
        (JobOperation::IncomingMigration, true, None)
    );
    assert!(matches!(source.guest.state().await, Ok(State::Running(_))));
    assert_eq!(target.guest.state().await, Ok(State::Paused(PausedReason::Migration)));
    source.guest.set_max_downtime(100).await.unwrap();
    assert_eq!(source.guest.max_downtime().await, Ok(100));
    source.guest.set_bandwidth(100).await.unwrap();
    source.guest.set_bandwidth(0).await.unwrap();
    assert_eq!(
        source.guest.start_post_copy().await.unwrap_err().reason(),
        "LibvirtRefused"
    );
    let second = source.guest.migrate(migration()).await.unwrap_err();
    assert!(second.to_string().contains("another migration job"), "{second}");

    tunnel.release(MigrationStream::Memory);
    assert_eq!(moving.ended().await, Ok(()), "{}", source.pod.log());
    assert_eq!(source.guest.state().await, Ok(State::ShutOff(ShutOffReason::Migrated)));
    assert_eq!(target.guest.state().await, Ok(State::Paused(PausedReason::User)));
    assert_eq!(
        (source.guest.job().await, target.guest.job().await),
        (Ok(None), Ok(None))
    );
    for (side, operation) in [
        (&source, JobOperation::OutgoingMigration),
        (&target, JobOperation::IncomingMigration),
    ] {
        let job = side.guest.completed_job().await.unwrap().unwrap();
        assert_eq!((job.job_type, job.operation), (JobType::Completed, operation));
        assert!(job.memory.total >= 64 << 20 && job.downtime.is_some(), "{job:?}");
    }
    let left = source.until("job completed").await;
    assert_eq!(
        without_shutdown(&left),
        ["Suspended Migrated", "Stopped Migrated", "job completed"]
    );
    target.guest.resume().await.unwrap();
    assert_eq!(
        target.until("Resumed Unpaused").await,
        [
            "Started Migrated",
            "Defined Added",
            "Suspended Paused",
            "Resumed Unpaused"
        ]
    );
    assert_eq!(target.guest.state().await, Ok(State::Running(RunningReason::Unpaused)));

    // The guest migrates back to the source, where the domain is still defined.
    let _tunnel = Tunnel::new(&target.pod, &source.pod);
    target
        .guest
        .migrate(migration())
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", target.pod.log()));
    assert_eq!(source.guest.state().await, Ok(State::Paused(PausedReason::User)));
    assert_eq!(
        source.until("Suspended Paused").await,
        ["Started Migrated", "Defined Updated", "Suspended Paused"]
    );
    source.guest.resume().await.unwrap();
}

#[tokio::test]
async fn aborted_migration_leaves_the_guest_at_the_source() {
    if skipped("aborted_migration_leaves_the_guest_at_the_source") {
        return;
    }
    let Pair { source, mut target } = Pair::new("").await;
    let none = source.guest.abort_job().await.unwrap_err();
    assert!(none.is_reply(), "{none}");
    let tunnel = Tunnel::new(&source.pod, &target.pod);
    tunnel.hold(MigrationStream::Memory);
    let moving = Moving::begin(&source.guest, &tunnel, MigrationStream::Memory).await;
    source.guest.abort_job().await.unwrap();
    // The message is either "canceled by client" or the error that QEMU got from its socket.
    let ended = moving.ended().await.unwrap_err();
    assert!(matches!(ended, CallError::Refused(_)), "{ended:?}");
    assert!(matches!(source.guest.state().await, Ok(State::Running(_))));
    assert_eq!(source.guest.job().await, Ok(None));
    let gone = target.until("Stopped Failed").await;
    assert_eq!(without_shutdown(&gone), ["Started Migrated", "Stopped Failed"]);
    assert_eq!(target.guest.state().await, Err(CallError::NoDomain));
}

#[tokio::test]
async fn guest_ended_during_arrival_never_counts_as_running() {
    if skipped("guest_ended_during_arrival_never_counts_as_running") {
        return;
    }
    let Pair { source, target } = Pair::new("").await;
    let tunnel = Tunnel::new(&source.pod, &target.pod);
    tunnel.hold(MigrationStream::Memory);
    let moving = Moving::begin(&source.guest, &tunnel, MigrationStream::Memory).await;
    assert_eq!(target.guest.state().await, Ok(State::Paused(PausedReason::Migration)));
    target.pod.signal_qemu(Signal::SIGTERM).await;
    let mut states = BTreeSet::new();
    let last = loop {
        match target.guest.state().await {
            Ok(state) => states.insert(state.to_string()),
            Err(error) => break error,
        };
    };
    assert_eq!(last, CallError::NoDomain, "after {states:?}");
    println!("{states:?}");
    let arriving = [State::Paused(PausedReason::Migration), State::ShuttingDown];
    let arriving: BTreeSet<String> = arriving.iter().map(ToString::to_string).collect();
    assert!(states.is_subset(&arriving), "{states:?}");
    tunnel.release(MigrationStream::Memory);
    let ended = moving.ended().await.unwrap_err();
    assert!(matches!(ended, CallError::Refused(_)), "{ended:?}");
    assert!(matches!(source.guest.state().await, Ok(State::Running(_))));
}

#[tokio::test]
async fn a_broken_way_to_the_target_is_not_a_broken_way_to_the_source() {
    if skipped("a_broken_way_to_the_target_is_not_a_broken_way_to_the_source") {
        return;
    }
    let Pair { source, mut target } = Pair::new("").await;
    // libvirt reports the same error for a closed connection of its own to the target and for a closed client
    // connection.
    let tunnel = Tunnel::new(&source.pod, &target.pod);
    tunnel.hold(MigrationStream::Memory);
    let moving = Moving::begin(&source.guest, &tunnel, MigrationStream::Memory).await;
    tunnel.cut(MigrationStream::Libvirt);
    let gone = target.until("Stopped Destroyed").await;
    assert_eq!(without_shutdown(&gone), ["Started Migrated", "Stopped Destroyed"]);
    assert_eq!(target.guest.state().await, Err(CallError::NoDomain));
    // A libvirtd that misses the end of its connection notices the end at QEMU's next message, and QEMU may block in a
    // write for as long as no process reads the data.
    tunnel.release(MigrationStream::Memory);
    let ended = moving.ended().await.unwrap_err();
    assert!(matches!(ended, CallError::Refused(_)), "{ended:?}");
    assert!(matches!(source.guest.state().await, Ok(State::Running(_))));
    drop(tunnel);

    // libvirt also refuses a migration whose connection to the target cannot be opened.
    let refused = source.guest.migrate(migration()).await.unwrap_err();
    assert!(matches!(refused, CallError::Refused(_)), "{refused:?}");
}

#[tokio::test]
async fn guest_paused_for_switchover_resumes_if_migration_fails() {
    if skipped("guest_paused_for_switchover_resumes_if_migration_fails") {
        return;
    }
    let Pair { mut source, mut target } = Pair::new("").await;
    let tunnel = Tunnel::new(&source.pod, &target.pod);
    tunnel.hold(MigrationStream::Memory);
    let moving = Moving::begin(&source.guest, &tunnel, MigrationStream::Memory).await;
    // The call that reports the end of the data does not reach the target.
    tunnel.hold(MigrationStream::Libvirt);
    tunnel.release(MigrationStream::Memory);
    assert_eq!(source.until("Suspended Migrated").await, ["Suspended Migrated"]);
    tunnel.cut(MigrationStream::Libvirt);
    let ended = moving.ended().await.unwrap_err();
    assert!(matches!(ended, CallError::Refused(_)), "{ended:?}");
    // QEMU resumes the guest if QEMU had not finished yet. Otherwise libvirt resumes the guest and reports the
    // cancelled migration.
    let resumed = loop {
        match source.events.recv().await.unwrap() {
            DomainEvent::Lifecycle(event) => break event,
            other => println!("{other:?}"),
        }
    };
    assert!(matches!(resumed, Event::Resumed(_)), "{resumed}");
    let state = source.guest.state().await.unwrap();
    assert!(
        matches!(
            state,
            State::Running(RunningReason::Unpaused | RunningReason::MigrationCanceled)
        ),
        "{state}"
    );
    target.until("Stopped Destroyed").await;
    assert_eq!(target.guest.state().await, Err(CallError::NoDomain));
}

#[tokio::test]
async fn migration_continues_without_the_starting_connection() {
    if skipped("migration_continues_without_the_starting_connection") {
        return;
    }
    let Pair { mut source, target } = Pair::new("").await;
    let tunnel = Tunnel::new(&source.pod, &target.pod);
    tunnel.hold(MigrationStream::Memory);
    let moving = Moving::begin(&source.guest, &tunnel, MigrationStream::Memory).await;
    drop(moving);
    source.guest.close();
    source.guest.ended().await;

    (source.guest, source.events) = DomainHandle::connect(&source.pod.folder(), SOCKET, NAME, CallDeadlines::default())
        .await
        .unwrap();
    let job = source.guest.job().await.unwrap();
    assert_eq!(job.map(|job| job.operation), Some(JobOperation::OutgoingMigration));
    tunnel.release(MigrationStream::Memory);
    source.until("job completed").await;
    assert_eq!(source.guest.state().await, Ok(State::ShutOff(ShutOffReason::Migrated)));
    assert_eq!(target.guest.state().await, Ok(State::Paused(PausedReason::User)));
}

#[tokio::test]
async fn killed_libvirtd_ends_call_and_migration_but_not_the_guest() {
    if skipped("killed_libvirtd_ends_call_and_migration_but_not_the_guest") {
        return;
    }
    let Pair { source, mut target } = Pair::new("").await;
    let tunnel = Tunnel::new(&source.pod, &target.pod);
    tunnel.hold(MigrationStream::Memory);
    let moving = Moving::begin(&source.guest, &tunnel, MigrationStream::Memory).await;
    source.pod.signal_libvirtd(Signal::SIGKILL).await;
    let lost = moving.ended().await.unwrap_err();
    assert!(!lost.is_reply(), "{lost:?}");
    target.until("Stopped Destroyed").await;
    // QEMU does not respond while it blocks in a write whose data no process reads.
    tunnel.release(MigrationStream::Memory);
    let (guest, _events) =
        DomainHandle::connect_when_open(&source.pod.folder(), SOCKET, NAME, CallDeadlines::default())
            .await
            .unwrap();
    // The call waits until libvirtd has reconnected to QEMU and has cancelled the migration.
    guest.suspend().await.unwrap();
    assert_eq!(guest.state().await, Ok(State::Paused(PausedReason::User)));
    assert_eq!(guest.job().await, Ok(None));
}

/// Runs `qemu-img` and returns its output.
fn qemu_img(arguments: &[&str]) -> String {
    let ran = Command::new("qemu-img").args(arguments).output().unwrap();
    assert!(
        ran.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
    String::from_utf8(ran.stdout).unwrap()
}

/// Creates the disk of a pod: a 1 MiB layer on top of an image that is identical in both pods.
///
/// If `written` is not `None`, the layer has this byte in its whole third quarter.
fn layered_disk(pod: &Pod, written: Option<u8>) {
    let disks = pod.scratch.join("disks");
    pod.own(&disks);
    fs::write(disks.join("base"), vec![b'b'; 1 << 20]).unwrap();
    let root = disks.join("root");
    let root_name = root.to_str().unwrap();
    // The path is the path that the pod's processes see, and is not opened by `qemu-img`.
    let base = format!("{MOUNT}/disks/base");
    qemu_img(&[
        "create", "-q", "-u", "-f", "qcow2", "-b", &base, "-F", "raw", root_name, "1M",
    ]);
    if let Some(byte) = written {
        let write = format!("write -P {byte} 512k 256k");
        let options = format!("driver=qcow2,file.filename={root_name},backing=");
        let ran = Command::new("qemu-io")
            .args(["--image-opts", &options, "-c", &write])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    pod.own(&root);
}

/// Returns the content of a pod's disk, with all its layers.
fn content(pod: &Pod) -> Vec<u8> {
    let disks = pod.scratch.join("disks");
    let options = format!(
        "driver=qcow2,file.filename={root},backing.driver=raw,backing.file.filename={base}",
        root = disks.join("root").display(),
        base = disks.join("base").display(),
    );
    let raw = disks.join("raw");
    qemu_img(&[
        "convert",
        "-U",
        "--image-opts",
        &options,
        "-O",
        "raw",
        raw.to_str().unwrap(),
    ]);
    fs::read(raw).unwrap()
}

async fn copied(copied: CopiedContent) {
    let (mut source, target) = (Side::new().await, Side::new().await);
    layered_disk(&source.pod, Some(b'w'));
    layered_disk(&target.pod, None);
    let expected = content(&source.pod);
    assert_eq!((expected[0], expected[600 << 10]), (b'b', b'w'));
    source.run(&disk("qcow2")).await;
    let _tunnel = Tunnel::new(&source.pod, &target.pod);
    let copying = Migration {
        disks: Some(DiskCopy {
            uri: format!("unix://{MOUNT}/run/{}", MigrationStream::Disks.socket()),
            targets: vec!["vda".into()],
            content: copied,
        }),
        ..migration()
    };
    source
        .guest
        .migrate(copying)
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", target.pod.log()));
    let job = source.guest.completed_job().await.unwrap().unwrap();
    assert_eq!(job.disk.remaining, 0);
    target.guest.resume().await.unwrap();
    target.guest.destroy().await.unwrap();
    assert!(content(&target.pod) == expected, "the disk has changed on its way");
    // The layer contains the written data. It contains the data of the layer below only if the data was copied too.
    let layer = target.pod.scratch.join("disks/root");
    let map = qemu_img(&[
        "map",
        "--output=json",
        "--image-opts",
        &format!("driver=qcow2,file.filename={},backing=", layer.display()),
    ]);
    let below_is_in_it = !map.contains("\"present\": false");
    assert_eq!(below_is_in_it, copied == CopiedContent::Whole, "{map}");
}

#[tokio::test]
async fn the_top_layer_of_a_disk_is_copied() {
    if !skipped("the_top_layer_of_a_disk_is_copied") {
        copied(CopiedContent::TopLayer).await;
    }
}

#[tokio::test]
async fn a_whole_disk_is_copied() {
    if !skipped("a_whole_disk_is_copied") {
        copied(CopiedContent::Whole).await;
    }
}

#[tokio::test]
async fn cpu_beyond_the_host_is_refused_with_the_missing_feature() {
    if skipped("cpu_beyond_the_host_is_refused_with_the_missing_feature") {
        return;
    }
    let mut side = Side::new().await;
    side.run("").await;
    let live = LiveDomain::parse(&side.guest.live_xml().await.unwrap()).unwrap();
    let live = live.cpu.unwrap();
    assert!(live.is_complete());
    let with = |policy: &str| {
        let named = live.features.iter().filter(|(_, value)| *value == policy);
        named.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let mut cpu = GuestCpu {
        model: live.model.clone(),
        vendor: live.vendor.clone(),
        required: with("require"),
        disabled: with("disable"),
        ..GuestCpu::default()
    };
    let compare = async |cpu: &GuestCpu| side.guest.compare_cpu(&full_cpu(cpu).unwrap(), VirtType::Qemu).await;
    assert_eq!(compare(&cpu).await, Ok(CpuComparison::Fits));

    // Emulation does not support AVX-512.
    cpu.required.push("avx512f".into());
    match compare(&cpu).await {
        Ok(CpuComparison::Incompatible { features, message }) => {
            assert_eq!(features, ["avx512f"]);
            assert!(message.contains("avx512f"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    cpu.model = "Nonsense".into();
    let refused = compare(&cpu).await.unwrap_err();
    assert!(matches!(refused, CallError::Refused(_)), "{refused:?}");
}
