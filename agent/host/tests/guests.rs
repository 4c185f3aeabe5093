//! Guests under a pod's libvirtd: real QEMUs without a disk, which only run their BIOS, and libvirtds that exit, hang,
//! or are other programs.
//!
//! Tests whose requirements (programs, or root) are missing print their name as skipped and pass.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail as tests do")]

mod pod;

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    time::Duration,
};

use drydock_host::domain::{
    CallDeadlines, CallError, CloseReason, DefinedDetail, DomainEvent, DomainEvents, DomainHandle, DomainState,
    InitialState, LifecycleEvent as Event, LiveDomain, PausedReason, ResumedDetail, RunningReason, ShutOffReason,
    StartedDetail, StoppedDetail, SuspendedDetail, UndefinedDetail,
};
use nix::sys::signal::Signal;
use pod::{Pod, SOCKET, skipped};

const NAME: &str = "default_tiny";

const XML: &str = "<domain type='qemu'>
  <name>default_tiny</name>
  <memory unit='MiB'>32</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <cpu mode='custom' match='exact' check='none'><model fallback='forbid'>Westmere</model></cpu>
  <devices>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <memballoon model='none'/>
  </devices>
</domain>";

/// Deadlines that are long enough for a busy machine and short enough for a test that waits for them.
const SOON: CallDeadlines = CallDeadlines {
    open: Duration::from_secs(2),
    read: Duration::from_secs(2),
    change: Duration::from_secs(2),
    agent: Duration::from_secs(2),
};

async fn connect(pod: &Pod) -> (DomainHandle, DomainEvents) {
    DomainHandle::connect_when_open(&pod.folder(), SOCKET, NAME, CallDeadlines::default())
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", pod.log()))
}

async fn lifecycle(events: &mut DomainEvents) -> Event {
    loop {
        match events.recv().await.unwrap() {
            DomainEvent::Lifecycle(event) => return event,
            other => println!("{other:?}"),
        }
    }
}

/// Returns the detail of the guest's stop event. If QEMU shuts down cleanly, other events precede the stop event.
async fn stopped(events: &mut DomainEvents) -> StoppedDetail {
    loop {
        if let Event::Stopped(detail) = lifecycle(events).await {
            return detail;
        }
    }
}

#[tokio::test]
async fn guest_runs_and_events_arrive_in_order() {
    if skipped("guest_runs_and_events_arrive_in_order") {
        return;
    }
    let pod = Pod::with_libvirtd();
    let (guest, mut events) = connect(&pod).await;
    assert_eq!(guest.state().await, Err(CallError::NoDomain));
    assert_eq!(guest.names().await, Ok(vec![]));
    let versions = guest.versions().await.unwrap();
    assert!(
        versions.libvirt.0 >= 8_000_000 && versions.qemu.0 >= 5_000_000,
        "{versions:?}"
    );

    guest.define(XML).await.unwrap();
    assert_eq!(lifecycle(&mut events).await, Event::Defined(DefinedDetail::Added));
    assert!(matches!(
        guest.state().await,
        Ok(DomainState::ShutOff(ShutOffReason::Unknown(0)))
    ));
    let refused = guest.suspend().await.unwrap_err();
    assert_eq!(refused.reason(), "LibvirtRefused", "{refused}");

    guest.create(InitialState::Paused).await.unwrap();
    assert_eq!(guest.state().await, Ok(DomainState::Paused(PausedReason::User)));
    assert_eq!(lifecycle(&mut events).await, Event::Started(StartedDetail::Booted));
    assert_eq!(lifecycle(&mut events).await, Event::Suspended(SuspendedDetail::Paused));
    guest.resume().await.unwrap();
    assert_eq!(guest.state().await, Ok(DomainState::Running(RunningReason::Unpaused)));
    assert_eq!(lifecycle(&mut events).await, Event::Resumed(ResumedDetail::Unpaused));
    let unresponsive = guest.guest_info().await.unwrap_err();
    assert_eq!(unresponsive.reason(), "GuestAgentUnresponsive", "{unresponsive}");
    guest.suspend().await.unwrap();
    assert_eq!(lifecycle(&mut events).await, Event::Suspended(SuspendedDetail::Paused));

    let live = LiveDomain::parse(&guest.live_xml().await.unwrap()).unwrap();
    let cpu = live.cpu.unwrap();
    assert_eq!(cpu.model, "Westmere");
    assert!(cpu.is_complete(), "{cpu:?}");
    assert!(live.machine.starts_with("pc-q35-"), "{}", live.machine);
    assert!(live.id.is_some());
    assert_eq!(guest.block_info("vda").await.unwrap_err().reason(), "LibvirtRefused");
    assert_eq!(guest.names().await, Ok(vec![NAME.to_owned()]));

    guest.destroy().await.unwrap();
    assert_eq!(guest.state().await, Ok(DomainState::ShutOff(ShutOffReason::Destroyed)));
    assert_eq!(stopped(&mut events).await, StoppedDetail::Destroyed);
    guest.undefine().await.unwrap();
    assert_eq!(lifecycle(&mut events).await, Event::Undefined(UndefinedDetail::Removed));
    assert_eq!(guest.state().await, Err(CallError::NoDomain));

    let other = guest.clone();
    guest.close();
    other.ended().await;
    assert_eq!(events.recv().await, None);
    assert_eq!(events.close_reason(), Some(CloseReason::Client));
    assert!(matches!(
        other.state().await,
        Err(CallError::Lost {
            reason: CloseReason::Client,
            ..
        })
    ));
}

#[tokio::test]
async fn killed_libvirtd_is_found_again_with_the_running_guest() {
    if skipped("killed_libvirtd_is_found_again_with_the_running_guest") {
        return;
    }
    let pod = Pod::with_libvirtd();
    let (guest, mut events) = connect(&pod).await;
    guest.define(XML).await.unwrap();
    guest.create(InitialState::Running).await.unwrap();
    // libvirt sends the event for "running" before the one for "started".
    for expected in ["Defined Added", "Resumed Unpaused", "Started Booted"] {
        assert_eq!(lifecycle(&mut events).await.to_string(), expected);
    }
    pod.signal_libvirtd(Signal::SIGKILL).await;
    while events.recv().await.is_some() {}
    assert_eq!(events.close_reason(), Some(CloseReason::EndOfFile));
    guest.ended().await;
    let lost = guest.state().await.unwrap_err();
    assert!(!lost.is_reply(), "{lost}");

    let (guest, mut events) = connect(&pod).await;
    assert_eq!(guest.state().await.unwrap().as_str(), "running");
    // The call waits until libvirtd has reconnected to QEMU. During the reconnect, `destroy` would also kill the guest,
    // but libvirtd would refuse the call, because no process is left to kill.
    guest.suspend().await.unwrap();
    let ended = guest.destroy().await;
    assert_eq!(ended, Ok(()), "{}", pod.log());
    assert_eq!(stopped(&mut events).await, StoppedDetail::Destroyed);
}

#[tokio::test]
async fn guest_crash_is_reported() {
    if skipped("guest_crash_is_reported") {
        return;
    }
    let pod = Pod::with_libvirtd();
    let (guest, mut events) = connect(&pod).await;
    guest.define(XML).await.unwrap();
    guest.create(InitialState::Running).await.unwrap();
    let live = guest.live_xml().await.unwrap();
    let uuid = LiveDomain::parse(&live).unwrap().uuid;
    let qemu = processes_with(&format!("uuid\0{uuid}"));
    assert_eq!(qemu.len(), 1);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(qemu[0]), Signal::SIGKILL).unwrap();
    assert_eq!(stopped(&mut events).await, StoppedDetail::Failed);
    assert_eq!(guest.state().await, Ok(DomainState::ShutOff(ShutOffReason::Crashed)));
}

/// Returns the processes whose command line contains `argument`.
fn processes_with(argument: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            let found = String::from_utf8_lossy(&line).contains(argument);
            found
                .then(|| entry.file_name().to_string_lossy().parse().ok())
                .flatten()
        })
        .collect()
}

#[tokio::test]
async fn a_libvirtd_that_hangs_costs_a_deadline_and_no_thread() {
    if skipped("a_libvirtd_that_hangs_costs_a_deadline_and_no_thread") {
        return;
    }
    let pod = Pod::with_libvirtd();
    let (warm, _) = connect(&pod).await;
    warm.close();
    warm.ended().await;
    let (guest, mut events) = DomainHandle::connect(&pod.folder(), SOCKET, NAME, SOON).await.unwrap();
    let libvirtd = pod.libvirtd().await;
    nix::sys::signal::kill(libvirtd, Signal::SIGSTOP).unwrap();

    // A call whose caller stops waiting still ends, and the next call receives the error.
    let names = guest.names();
    tokio::select! {
        biased;
        early = names => panic!("{early:?}"),
        () = tokio::task::yield_now() => {}
    }
    let lost = guest.state().await.unwrap_err();
    assert!(
        matches!(
            lost,
            CallError::Lost {
                reason: CloseReason::Overdue {
                    call: "listing the domains"
                },
                ..
            } | CallError::TimedOut {
                call: "reading the domain's state",
                ..
            }
        ),
        "{lost:?}"
    );
    assert_eq!(events.recv().await, None);
    guest.ended().await;

    // Opening a connection hangs too, and also ends at its deadline.
    let opening = DomainHandle::connect(&pod.folder(), SOCKET, NAME, SOON).await;
    assert!(matches!(opening, Err(CallError::TimedOut { .. })), "{opening:?}");

    nix::sys::signal::kill(libvirtd, Signal::SIGCONT).unwrap();
    let (guest, _) = connect(&pod).await;
    assert_eq!(guest.names().await, Ok(vec![]));
}

/// Connects to a server that is not libvirt.
async fn connect_to(serve: impl Fn(&mut UnixStream) + Send + 'static) -> CallError {
    let pod = Pod::empty();
    let folder = pod.volume().join("libvirt");
    std::fs::create_dir(&folder).unwrap();
    // The socket is bound through a short path, because the real path is too long for a socket address.
    let short = std::fs::File::open(&folder).unwrap();
    let path = format!("/proc/self/fd/{}/libvirt-sock", std::os::fd::AsRawFd::as_raw_fd(&short));
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            serve(&mut stream);
        }
    });
    let connected = DomainHandle::connect(&pod.folder(), SOCKET, NAME, SOON).await;
    connected.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_server_that_talks_garbage_is_hung_up_on() {
    for garbage in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![0xff; 1 << 20],
        vec![0; 64],
    ] {
        let error = connect_to(move |stream| {
            let _ = stream.write_all(&garbage);
            let _ = stream.read_to_end(&mut Vec::new());
        })
        .await;
        assert!(
            matches!(
                error,
                CallError::Lost {
                    reason: CloseReason::Garbage,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    // The replies are well-formed but meaningless: replies to calls that were never made, and broken replies.
    for (program, serial, status) in [
        (0x2000_8086u32, 77u32, 0u32),
        (1, 0, 0),
        (0x2000_8086, 0, 9),
        (0x2000_8086, 1, 1),
    ] {
        let error = connect_to(move |stream| {
            let words = [60u32, program, 1, 66, 1, serial, status];
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            bytes.resize(60, 0xee);
            let _ = stream.write_all(&bytes);
            let _ = stream.read_to_end(&mut Vec::new());
        })
        .await;
        assert!(!error.is_reply() || error.reason() == "LibvirtRefused", "{error:?}");
    }
}

#[tokio::test]
async fn a_server_that_floods_is_hung_up_on() {
    let error = connect_to(|stream| {
        let words = [28u32, 0x2000_8086, 1, 107, 2, 0, 0];
        let event: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        while stream.write_all(&event).is_ok() {}
    })
    .await;
    assert!(
        matches!(
            error,
            CallError::Lost {
                reason: CloseReason::TooManyEvents | CloseReason::Error,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn connection_to_an_unresponsive_server_times_out() {
    let error = connect_to(|stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    })
    .await;
    assert!(matches!(error, CallError::TimedOut { .. }), "{error:?}");
}

/// libvirt's program for domains, and its procedure that closes a connection (`remote_protocol.x`).
const PROGRAM: u32 = 0x2000_8086;
const CLOSE: u32 = 2;

/// Returns the procedures of all complete calls in a client's data.
fn calls(mut sent: &[u8]) -> Vec<u32> {
    let word = |bytes: &[u8], index: usize| u32::from_be_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap());
    let mut calls = Vec::new();
    while sent.len() >= 28 && sent.len() >= word(sent, 0) as usize {
        if word(sent, 1) == PROGRAM {
            calls.push(word(sent, 3));
        }
        sent = &sent[word(sent, 0) as usize..];
    }
    assert!(sent.is_empty(), "a call was cut");
    calls
}

#[tokio::test]
async fn dropped_connection_sends_close_before_disconnect() {
    if skipped("dropped_connection_sends_close_before_disconnect") {
        return;
    }
    let pod = Pod::with_libvirtd();
    drop(connect(&pod).await);
    let (socket, own) = (pod.volume().join(SOCKET), pod.scratch.join("run/own-sock"));
    std::fs::rename(&socket, &own).unwrap();
    let listener = UnixListener::bind(pod.scratch.join("run").join(SOCKET)).unwrap();
    for _ in 0..20 {
        let (listening, own) = (listener.try_clone().unwrap(), own.clone());
        let between = std::thread::spawn(move || {
            let (mut client, _) = listening.accept().unwrap();
            let mut libvirtd = UnixStream::connect(own).unwrap();
            let (mut from, mut to) = (libvirtd.try_clone().unwrap(), client.try_clone().unwrap());
            let replies = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let (mut sent, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(read @ 1..) = client.read(&mut piece) {
                sent.extend_from_slice(&piece[..read]);
                if libvirtd.write_all(&piece[..read]).is_err() {
                    break;
                }
            }
            let _ = libvirtd.shutdown(Shutdown::Both);
            let _ = replies.join().unwrap();
            sent
        });
        let (guest, _events) = connect(&pod).await;
        drop(guest);
        let sent = tokio::task::spawn_blocking(|| between.join().unwrap()).await.unwrap();
        assert_eq!(calls(&sent).last(), Some(&CLOSE));
    }
}
