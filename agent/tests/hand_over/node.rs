//! One of two nodes: a pod with libvirt, a tunnel, and calls to both.

use std::{
    process::{Output, Stdio},
    time::Duration,
};

use drydock_host::domain::{
    CallDeadlines, CallError, DomainEvent, DomainEvents, DomainHandle, DomainState, InitialState, Migration,
};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::{net::UnixStream, process::Command, task::JoinSet};

use crate::{
    guest::{self, GuestOutput, NAME},
    pod::{MOUNT, Pod, SOCKET},
    tunnel::Tunnel,
};

/// Interval for polling the output of the guest, which prints 100 numbers a second.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A node.
pub(crate) struct Node {
    pub(crate) pod: Pod,
    pub(crate) tunnel: Tunnel,
    pub(crate) guest: DomainHandle,
    events: DomainEvents,
    /// Path of libvirtd's socket, relative to the pod's run folder.
    pub(crate) socket: &'static str,
}

impl Node {
    /// Creates a node without a guest and without a session.
    pub(crate) async fn new() -> Self {
        let pod = Pod::with_libvirtd();
        pod.own(&pod.scratch.join("run/migration"));
        guest::furnish(&pod);
        let tunnel = Tunnel::start(&pod).await;
        let (guest, events) = connect(&pod, SOCKET).await;
        Self {
            pod,
            tunnel,
            guest,
            events,
            socket: SOCKET,
        }
    }

    /// Returns the PID of the pod's libvirtd.
    pub(crate) async fn libvirtd(&self) -> Pid {
        let stream = UnixStream::connect(self.pod.scratch.join("run").join(self.socket)).await;
        Pid::from_raw(stream.unwrap().peer_cred().unwrap().pid().unwrap())
    }

    /// Connects to libvirt again, once it listens.
    pub(crate) async fn connect_again(&mut self) {
        (self.guest, self.events) = connect(&self.pod, self.socket).await;
    }

    /// Defines a guest, starts it, and waits until it is running.
    pub(crate) async fn run(&mut self) {
        self.run_as(&guest::xml()).await;
    }

    /// Defines a guest with this XML, starts it, and waits until it is running.
    pub(crate) async fn run_as(&mut self, xml: &str) {
        GuestOutput::forget(&self.pod);
        self.guest.define(xml).await.unwrap();
        let started = self.guest.create(InitialState::Running).await;
        started.unwrap_or_else(|error| panic!("{error}\n{}", self.pod.log()));
        self.until("Started Booted").await;
        self.runs().await;
    }

    /// Waits for this lifecycle event. Returns the lifecycle events up to it.
    pub(crate) async fn until(&mut self, last: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|event| event != last) {
            match self.events.recv().await {
                Some(DomainEvent::Lifecycle(event)) => seen.push(event.to_string()),
                Some(_) => {}
                None => panic!("the connection ended after {seen:?}\n{}", self.pod.log()),
            }
        }
        seen
    }

    /// Returns the output of the guest on this node.
    pub(crate) fn guest_output(&self) -> GuestOutput {
        GuestOutput::in_pod(&self.pod)
    }

    /// Waits until the guest prints more on this node.
    pub(crate) async fn runs(&self) {
        let before = self.guest_output().length();
        while self.guest_output().length() <= before {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns libvirt's state of the guest.
    pub(crate) async fn state(&self) -> DomainState {
        let state = self.guest.state().await;
        state.unwrap_or_else(|error| panic!("{error:?}\n{}", self.pod.log()))
    }

    /// Returns QEMU's state of the guest: `running`, `paused`, `postmigrate` and others.
    pub(crate) async fn status_in_qemu(&self) -> String {
        let status = self.try_status_in_qemu().await;
        status.unwrap_or_else(|error| panic!("{error}\n{}", self.pod.log()))
    }

    /// Returns QEMU's state of the guest, or libvirt's error.
    pub(crate) async fn try_status_in_qemu(&self) -> Result<String, String> {
        let question = r#"{"execute":"query-status"}"#;
        let printed_reply = self.virsh(&["qemu-monitor-command", NAME, question]).output().await;
        let reply: Value = serde_json::from_str(&printed(&printed_reply.unwrap())?).unwrap();
        Ok(reply["return"]["status"].as_str().unwrap().to_owned())
    }

    /// Sends a command to QEMU's monitor.
    pub(crate) async fn qemu(&self, command: &Value) {
        let did = self
            .virsh(&["qemu-monitor-command", NAME, &command.to_string()])
            .output()
            .await;
        let reply: Value = serde_json::from_str(&printed(&did.unwrap()).unwrap()).unwrap();
        assert!(reply["error"].is_null(), "{command}: {reply}");
    }

    /// Migrates the guest in the mode in which libvirt decides when the guest continues.
    pub(crate) fn migrating_unpaused(&self) -> Unpaused {
        let (destination, memory) = (destination(), memory());
        let mut virsh = self.virsh(&[
            "migrate",
            "--live",
            "--p2p",
            "--persistent",
            "--migrateuri",
            &memory,
            NAME,
        ]);
        virsh.arg(destination);
        let mut migrating = JoinSet::new();
        migrating.spawn(async move { printed(&virsh.output().await.unwrap()) });
        Unpaused(migrating)
    }

    fn virsh(&self, arguments: &[&str]) -> Command {
        let socket = self.pod.scratch.join("run").join(self.socket);
        let uri = format!("qemu+unix:///session?socket={}", socket.display());
        let mut virsh = Command::new("virsh");
        virsh.args(["--connect", &uri]).args(arguments);
        virsh.stdin(Stdio::null()).kill_on_drop(true);
        virsh
    }

    /// Destroys and undefines the guest. Returns its unread lifecycle events.
    pub(crate) async fn clear(&mut self) -> Vec<String> {
        match self.guest.state().await {
            Ok(state) if state.has_guest() != Some(false) => self.guest.destroy().await.unwrap(),
            // The event of this call comes after all earlier events.
            Err(CallError::NoDomain) => self.guest.define(&guest::xml()).await.unwrap(),
            state => drop(state.unwrap()),
        }
        self.guest.undefine().await.unwrap();
        self.until("Undefined Removed").await
    }
}

async fn connect(pod: &Pod, socket: &str) -> (DomainHandle, DomainEvents) {
    let connected = DomainHandle::connect_when_open(&pod.folder(), socket, NAME, CallDeadlines::default()).await;
    connected.unwrap_or_else(|error| panic!("{error}\n{}", pod.log()))
}

/// Returns the standard output of `virsh`, or its standard error if it failed.
fn printed(ran: &Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if ran.status.success() {
        Ok(text(&ran.stdout))
    } else {
        Err(text(&ran.stderr))
    }
}

/// A running migration in which libvirt decides when the guest continues.
pub(crate) struct Unpaused(JoinSet<Result<String, String>>);

impl Unpaused {
    /// Waits for the end of the migration and returns its result.
    pub(crate) async fn ended(mut self) -> Result<String, String> {
        self.0.join_next().await.unwrap().unwrap()
    }
}

/// A running migration.
pub(crate) struct Moving(JoinSet<Result<(), CallError>>);

impl Moving {
    /// Starts the migration with libvirt's call.
    pub(crate) fn begin(guest: &DomainHandle) -> Self {
        Self::begin_as(guest, Migration::default())
    }

    /// Starts the migration with these parameters, except for destination and memory.
    pub(crate) fn begin_as(guest: &DomainHandle, how: Migration) -> Self {
        let guest = guest.clone();
        let mut moving = JoinSet::new();
        moving.spawn(async move {
            let migration = Migration {
                destination: destination(),
                memory: memory(),
                ..how
            };
            guest.migrate(migration).await
        });
        Self(moving)
    }

    /// Waits for the end of the migration and returns its result.
    pub(crate) async fn ended(mut self) -> Result<(), CallError> {
        self.0.join_next().await.unwrap().unwrap()
    }
}

/// Returns the URI of the target's libvirtd as the source's libvirtd uses it.
pub(crate) fn destination() -> String {
    format!("qemu+unix:///session?socket={MOUNT}/run/migration/libvirt.sock")
}

/// Returns the URI of the target's QEMU as the source's QEMU uses it.
pub(crate) fn memory() -> String {
    format!("unix://{MOUNT}/run/migration/memory.sock")
}

/// Returns the number of events that show that the guest was resumed.
pub(crate) fn resumed(events: &[String]) -> usize {
    events.iter().filter(|event| event.starts_with("Resumed")).count()
}
