//! Serves one VMI on this node: starts its guest once, follows the guest by libvirt's events, and reports its state.
//!
//! ```text
//!  pod named ─▶ launcher is ready ─▶ connected ─▶ started (or found) ─▶ reported
//!      ▲              ▲                  ▲                               │
//!      └── changed ───┴── connection ────┘◀────── events, changes ───────┘
//! ```
//!
//! The task starts a guest only if the controller has named this node and pod, and only while the VMI has never been
//! Running. If a connection or a response is lost, the task starts over and continues from the state that it finds.

mod agent_query;
mod credentials;
mod file_systems;
mod node_deleted;

use std::time::Duration;

use drydock_api::{
    kubevirt::{Phase, VirtualMachineInstance, VirtualMachineInstanceStatus, instance::StartStrategy},
    launcher::{GuestReadiness, LIBVIRT_SOCKET, READINESS_FILE, READY_FILE, RUN_VOLUME, Ready},
};
use drydock_core::{
    domain::{DomainInput, DomainProblem, disk_targets, domain_name, domain_xml, guest_memory},
    guest::{
        self, GuestAgent, GuestState, ObservedGuest, ReportedDomain,
        start::{ObservedStart, may_start},
    },
    instance::ending::{EndedGuest, ended},
};
use drydock_host::{
    document::ParseError,
    domain::{
        AgentChannel, CallDeadlines, CallError, DomainEvent, DomainEvents, DomainHandle, InitialState, LifecycleEvent,
        LiveDomain, PodVersions,
    },
    pod_folder::{FolderError, PodFolder},
};
use drydock_runtime::{Backoff, Key, Severity, chain, clock, latest_state};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use self::{agent_query::AgentQuery, credentials::Credentials};
use super::{
    Host, TaskContext, VmiState,
    commands::{self, CommandContext},
    directory::GuestRequest,
    events::{alongside, record_event},
    facts, readiness,
    status_report::{self, publish_event},
};

/// Minimum and maximum pause after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Maximum pause while a guest must be ended, because there is less time than for other tasks.
const RETRY_END: Duration = Duration::from_secs(2);
/// Maximum size of a launcher's ready file in bytes.
const READY_BYTES: u64 = 64 << 10;

/// Task of one VMI.
pub(super) struct GuestTask {
    shared: TaskContext,
    seen: watch::Receiver<VmiState>,
    requests: mpsc::Receiver<GuestRequest>,
    /// Latest state that the API server returned for the writes of this task.
    written: Option<VirtualMachineInstance>,
    /// Whether this task has read its VMI from the API server.
    ///
    /// The watch of a new process may start with an outdated list, which lacks the reports of the previous process.
    has_read: bool,
    /// Back-off for writes that the API server refused.
    backoff: Backoff,
    /// Time at which a refused write is due again.
    retry: Option<clock::Instant>,
    /// Back-off while the guest cannot be served.
    trouble_backoff: Backoff,
}

/// Reason why a guest cannot currently be served.
#[derive(Debug, Error)]
enum GuestTaskError {
    /// The pod's folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A call to libvirt failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The VMI's manifest does not result in a valid domain.
    #[error(transparent)]
    Domain(#[from] DomainProblem),
    /// libvirt's description of the running guest could not be parsed.
    #[error("libvirt's XML of the running guest cannot be parsed")]
    Live(#[from] ParseError),
    /// The folder of pods cannot be watched.
    #[error("the folder of the guest's pod cannot be watched")]
    Watch(#[source] FolderError),
    /// The launcher's ready file could not be parsed.
    #[error("the ready file of the guest's launcher cannot be parsed: {0}")]
    Ready(#[from] serde_json::Error),
    /// The launcher has prepared a disk in a format that this version does not support.
    #[error("the guest's launcher has prepared the disk {0} in a format that this version does not support")]
    DiskFormat(String),
    /// The API server did not confirm whether the pod still exists.
    #[error("the request to the API server failed, so it is unknown whether the guest's pod exists")]
    Api(#[from] kube::Error),
    /// The API server did not confirm the reported status of the guest.
    #[error("the request to the API server failed, so it is unknown whether the guest may start")]
    Unread(#[source] kube::Error),
}

impl GuestTaskError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Folder(error) => error.reason(),
            Self::Call(error) => error.reason(),
            Self::Domain(problem) => problem.reason(),
            Self::Live(_) => "LibvirtResponseInvalid",
            Self::Watch(_) => "PodFolderNotWatched",
            Self::Ready(_) | Self::DiskFormat(_) => "LauncherResponseInvalid",
            Self::Api(_) | Self::Unread(_) => "ApiServerRequestFailed",
        }
    }
}

/// Next step after the guest is no longer served.
enum AfterServing {
    /// Starts over at once.
    Again,
    /// Starts over when the observation of the VMI has changed.
    OnChange,
}

/// State of a guest that was read over one connection.
#[derive(Default)]
struct ConnectedGuest {
    versions: Option<PodVersions>,
    live: Option<LiveDomain>,
    agent: Option<GuestAgent>,
    /// Schedule of queries to the guest agent.
    agent_query: AgentQuery,
    /// Result of the guest's readiness probe, if its launcher executes one.
    readiness: Option<GuestReadiness>,
    /// Whether the guest's file systems are certainly not frozen any more. The status may still show them as frozen.
    is_thawed: bool,
    /// Time at which the file systems are thawed: as recorded, and by the monotonic clock, which setting the clock does
    /// not affect.
    thaw: Option<(Timestamp, clock::Instant)>,
    /// Earliest time at which a failed thaw is retried.
    thaw_again: Option<clock::Instant>,
    /// Credentials that the guest agent sets.
    credentials: Credentials,
}

impl GuestTask {
    /// Creates the task of the VMI that `seen` shows. The task serves the `requests` of users.
    pub(super) fn new(
        shared: TaskContext,
        seen: watch::Receiver<VmiState>,
        requests: mpsc::Receiver<GuestRequest>,
    ) -> Self {
        Self {
            shared,
            seen,
            requests,
            written: None,
            has_read: false,
            backoff: Backoff::new(RETRY.0, RETRY.1),
            retry: None,
            trouble_backoff: Backoff::new(RETRY.0, RETRY.1),
        }
    }

    /// Serves the guest until the future is dropped.
    pub(super) async fn run(mut self) {
        loop {
            self.end_due_retry();
            let wake = match self.serve().await {
                Ok(AfterServing::Again) => continue,
                Ok(AfterServing::OnChange) => {
                    self.trouble_backoff.reset();
                    None
                }
                Err(trouble) => {
                    self.report_trouble(&trouble, self.trouble_backoff.is_reset()).await;
                    let mut pause = self.trouble_backoff.delay();
                    if self.seen.borrow().node_deleted.is_some() {
                        pause = pause.min(RETRY_END);
                    }
                    Some(clock::Instant::now() + pause)
                }
            };
            let wake = [wake, self.retry].into_iter().flatten().min();
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return },
                () = clock::sleep_until_instant(wake) => {}
            }
        }
    }

    /// Clears the time of a retry that is due, because the retry follows now. Otherwise, a retry without a remaining
    /// write would stay due forever.
    fn end_due_retry(&mut self) {
        self.retry.take_if(|at| *at <= clock::Instant::now());
    }

    /// Returns the latest known VMI, from the watch or from the response to a write.
    fn instance(&self) -> VirtualMachineInstance {
        let seen = self.seen.borrow().instance.as_ref().clone();
        latest_state(Some(seen.clone()), self.written.clone()).unwrap_or(seen)
    }

    async fn serve(&mut self) -> Result<AfterServing, GuestTaskError> {
        let seen = self.seen.borrow_and_update().clone();
        let Some(pod_uid) = seen.pod_uid else {
            return Ok(AfterServing::OnChange);
        };
        let phase = seen.instance.phase();
        if phase.is_some_and(Phase::is_final) || seen.pod.as_ref().is_some_and(|pod| ended(pod).is_some()) {
            return Ok(AfterServing::OnChange);
        }
        if let Some(since) = seen.node_deleted {
            return self.end_with_node(&pod_uid, since).await;
        }
        let folder = PodFolder::new(&self.shared.kubelet, &pod_uid, RUN_VOLUME)?;
        if seen.pod.is_none() {
            return self.confirm_end(&folder, &pod_uid, seen.ending.as_ref()).await;
        }
        let text = tokio::select! {
            text = folder.read_when_there(READY_FILE, READY_BYTES) => text?,
            _ = self.seen.changed() => return Ok(AfterServing::Again),
        };
        let ready: Ready = serde_json::from_slice(&text)?;
        if let Some(disk) = ready.unknown_disk() {
            return Err(GuestTaskError::DiskFormat(disk.name.clone()));
        }
        let name = domain_name(
            &seen.instance.namespace().unwrap_or_default(),
            &seen.instance.name_any(),
        );
        let connected = tokio::select! {
            connected = DomainHandle::connect_when_open(&folder, LIBVIRT_SOCKET, &name, CallDeadlines::default()) => connected,
            _ = self.seen.changed() => return Ok(AfterServing::Again),
        };
        let (handle, events) = connected?;
        self.attend(&handle, events, &ready, &folder, &pod_uid).await
    }

    /// Serves a guest over a connection until the connection ends or the observation requires another step.
    ///
    /// The observation requires another step if another pod is named, the watch no longer shows the pod, or the Node is
    /// deleted.
    async fn attend(
        &mut self,
        handle: &DomainHandle,
        mut events: DomainEvents,
        ready: &Ready,
        folder: &PodFolder,
        pod_uid: &str,
    ) -> Result<AfterServing, GuestTaskError> {
        let mut known = ConnectedGuest {
            versions: Some(handle.versions().await?),
            credentials: Credentials::of(&self.shared.kubelet, pod_uid, &self.seen.borrow().instance.spec)?,
            ..ConnectedGuest::default()
        };
        // Whether the guest is paused in order to migrate, and was not resumed on this node.
        let mut migrated_away = false;
        loop {
            self.end_due_retry();
            let seen = self.seen.borrow_and_update().clone();
            let (Some(pod), true, None) = (seen.pod, seen.pod_uid.as_deref() == Some(pod_uid), seen.node_deleted)
            else {
                return Ok(AfterServing::Again);
            };
            // The watch starts before the read, so that no change is missed.
            let watched = ready
                .probes_readiness
                .then(|| folder.watch(READINESS_FILE))
                .transpose()?;
            let secrets = known.credentials.watch()?;
            known.readiness = watched.as_ref().and_then(|_| readiness::read(folder));
            let (sink, instance) = (self.shared.events.clone(), self.instance());
            let mut outdated = Outdated::default();
            let reconciling = self.reconcile(handle, &mut known, ready, &pod);
            let (reconciled, connected) = alongside(reconciling, &mut events, |event| {
                record_event(&sink, &instance, &event, &mut migrated_away);
                outdated.take_in(&event);
            })
            .await;
            reconciled?;
            self.trouble_backoff.reset();
            if !connected {
                return Ok(AfterServing::Again);
            }
            if outdated.any {
                known.forget(&outdated);
                continue;
            }
            let thaw_due = self.thaw_due(&mut known);
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => {
                        record_event(&self.shared.events, &self.instance(), &event, &mut migrated_away);
                        outdated.take_in(&event);
                        known.forget(&outdated);
                    }
                    // libvirtd has ended. The launcher starts it again, or ends together with its guest.
                    None => return Ok(AfterServing::Again),
                },
                changed = self.seen.changed() => if changed.is_err() { return Ok(AfterServing::OnChange) },
                () = clock::sleep_until_instant(self.retry) => {}
                () = readiness::changed(watched.as_ref()) => {}
                () = credentials::changed(&secrets) => {}
                () = clock::sleep_until_instant(known.credentials.retry()) => {}
                () = clock::sleep_until_instant(known.agent_query.retry()) => {}
                () = clock::sleep_until_instant(thaw_due) => self.thaw_at_last(handle, &mut known).await,
                Some(request) = self.requests.recv() => self.serve_request(handle, &mut known, request).await,
            }
        }
    }

    async fn serve_request(&mut self, handle: &DomainHandle, known: &mut ConnectedGuest, request: GuestRequest) {
        let request = match request {
            GuestRequest::Command(request) => request,
            GuestRequest::Connection(sender) => {
                // The sender may have stopped waiting.
                let _ = sender.send(handle.clone());
                return;
            }
        };
        let (instance, node, events) = (self.instance(), self.shared.node.clone(), self.shared.events.clone());
        let target = CommandContext {
            instance: &instance,
            node: &node,
            agent_connected: known.agent.is_some(),
            events: &events,
        };
        commands::carry_out(handle, &target, request, async |file_systems| {
            self.change_file_systems(handle, known, file_systems).await
        })
        .await;
    }

    /// Starts the guest if it may be started, and reports its state.
    async fn reconcile(
        &mut self,
        handle: &DomainHandle,
        known: &mut ConnectedGuest,
        ready: &Ready,
        pod: &Pod,
    ) -> Result<(), GuestTaskError> {
        let mut state = match handle.state().await {
            Ok(state) => Some(state),
            Err(CallError::NoDomain) => None,
            Err(error) => return Err(error.into()),
        };
        let found = facts::found_domain(state);
        if !self.has_read && may_start(&ObservedStart::of(&self.instance(), pod, found)) {
            let now = status_report::now(&self.shared.client, &self.instance()).await;
            let Some(now) = now.map_err(GuestTaskError::Unread)? else {
                return Ok(());
            };
            self.written = latest_state(Some(now), self.written.take());
            self.has_read = true;
        }
        let instance = self.instance();
        if may_start(&ObservedStart::of(&instance, pod, found)) {
            self.start(handle, &instance, ready).await?;
            state = Some(handle.state().await?);
        }
        let Some(running) = state.and_then(facts::guest_state) else {
            known.credentials.cancel_retry();
            return Ok(());
        };
        if running != GuestState::Off && known.live.is_none() {
            let live = LiveDomain::parse(&handle.live_xml().await?)?;
            known
                .agent_query
                .channel_is(live.agent == Some(AgentChannel::Connected));
            known.live = Some(live);
        }
        if running == GuestState::Running {
            self.query_agent(handle, known).await;
            self.synchronize_credentials(handle, known).await;
        } else {
            known.credentials.cancel_retry();
        }
        let domain = described(running, known, &self.seen.borrow().host, &instance);
        self.report(&instance, pod, ready, &domain, known.readiness.as_ref())
            .await;
        // A thaw that was not written is reported again.
        known.is_thawed &= self.retry.is_some();
        Ok(())
    }

    /// Defines the domain and starts its guest.
    async fn start(
        &self,
        handle: &DomainHandle,
        instance: &VirtualMachineInstance,
        ready: &Ready,
    ) -> Result<(), GuestTaskError> {
        let host = self.seen.borrow().host.clone();
        let (namespace, name) = (instance.namespace().unwrap_or_default(), instance.name_any());
        let xml = domain_xml(&DomainInput {
            namespace: &namespace,
            name: &name,
            uid: &instance.uid().unwrap_or_default(),
            spec: &instance.spec,
            virt_type: host.virt_type,
            architecture: &host.architecture,
            masked_features: &host.mask.features,
            host_features: Some(&host.features),
            host_passthrough_migratable: host.host_passthrough_migratable,
            disks: &ready.disks,
            addresses: &ready.addresses,
        })?;
        handle.define(&xml).await?;
        let start = match instance.spec.start_strategy {
            Some(StartStrategy::Paused) => InitialState::Paused,
            None => InitialState::Running,
        };
        handle.create(start).await?;
        info!(vmi = %format!("{namespace}/{name}"), "guest started");
        let events = &self.shared.events;
        publish_event(
            events,
            instance,
            Severity::Normal,
            "Created",
            "VirtualMachineInstance defined.".into(),
        );
        publish_event(
            events,
            instance,
            Severity::Normal,
            "Started",
            "VirtualMachineInstance started.".into(),
        );
        Ok(())
    }

    /// Writes the differences from the last report: the readiness gate and the status.
    ///
    /// Writes that the API server refuses are retried, and do not affect the guest.
    async fn report(
        &mut self,
        instance: &VirtualMachineInstance,
        pod: &Pod,
        ready: &Ready,
        domain: &ReportedDomain,
        readiness: Option<&GuestReadiness>,
    ) {
        let now = clock::now();
        let targets: Vec<(String, String)> = disk_targets(&instance.spec)
            .into_iter()
            .map(|disk| (disk.volume, disk.target))
            .collect();
        let wanted = guest::report(&ObservedGuest {
            now,
            instance,
            pod,
            ready,
            domain,
            readiness,
            targets: &targets,
            host_model_known: self.seen.borrow().host.host_model_known,
        });
        let open = guest::gate_is_open(domain, ready, readiness);
        let pod_uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let (gated, written) = tokio::join!(self.shared.gates.set(pod_uid, open), self.write(instance, &wanted));
        let outcome = match (gated, written) {
            (Ok(()), written) => written,
            (Err(error), Some(Ok(instance))) => {
                self.written = Some(instance);
                Some(Err(error))
            }
            (Err(error), _) => Some(Err(error)),
        };
        self.remember(outcome);
    }

    /// Writes a status if it differs from the current status; returns `None` if it does not differ.
    async fn write(
        &self,
        instance: &VirtualMachineInstance,
        wanted: &VirtualMachineInstanceStatus,
    ) -> Option<kube::Result<VirtualMachineInstance>> {
        let current = instance.status.clone().unwrap_or_default();
        if !guest::differs(&current, wanted) {
            return None;
        }
        self.shared.metrics.wrote("instance");
        Some(status_report::status(&self.shared.client, instance, wanted).await)
    }

    /// Keeps the object that the API server returned, or schedules a retry of a refused write.
    fn remember(&mut self, written: Option<kube::Result<VirtualMachineInstance>>) {
        self.retry = None;
        match written {
            None => self.backoff.reset(),
            Some(Ok(instance)) => {
                self.written = Some(instance);
                self.backoff.reset();
            }
            // Another client has written first, and the watch will show its write.
            Some(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => {
                self.retry = Some(clock::Instant::now() + self.backoff.delay());
            }
            Some(Err(error)) => {
                if self.backoff.is_reset() {
                    warn!(error = %chain(&error), "could not report the status of a guest, retrying");
                }
                self.retry = Some(clock::Instant::now() + self.backoff.delay());
            }
        }
    }

    /// Reports on the VMI the reason why its guest cannot be served.
    async fn report_trouble(&mut self, trouble: &GuestTaskError, first: bool) {
        let instance = self.instance();
        let message = chain(trouble).to_string();
        if first {
            warn!(vmi = %Key::of(&instance), reason = trouble.reason(), "{message}");
        }
        let before = instance.status.clone().unwrap_or_default();
        // An unresponsive launcher reveals nothing about a running guest.
        if before.phase.unwrap_or_default() >= Phase::Running {
            return;
        }
        if first {
            let events = &self.shared.events;
            publish_event(events, &instance, Severity::Warning, "SyncFailed", message.clone());
        }
        let wanted = guest::failed_to_start(&before, trouble.reason(), &message, clock::now());
        let written = self.write(&instance, &wanted).await;
        self.remember(written);
    }

    /// Handles a named pod that the watch does not show.
    ///
    /// Two conditions together prove that nothing runs in the pod any more. The kubelet has removed the pod's folder,
    /// which it does after the pod's containers have ended. The API server itself does not have the pod. The folder
    /// alone is not enough: a pod that was just created has no folder yet, and the watch may not show it yet.
    async fn confirm_end(
        &mut self,
        folder: &PodFolder,
        pod_uid: &str,
        ending: Option<&EndedGuest>,
    ) -> Result<AfterServing, GuestTaskError> {
        tokio::select! {
            gone = folder.disappeared() => gone.map_err(GuestTaskError::Watch)?,
            _ = self.seen.changed() => return Ok(AfterServing::Again),
        }
        let instance = self.instance();
        if status_report::launcher_exists(&self.shared.client, &instance, pod_uid).await? {
            return Ok(AfterServing::OnChange);
        }
        self.report_end(pod_uid, ending).await;
        Ok(AfterServing::OnChange)
    }
}

/// Kinds of state that events have made outdated. The size does not depend on the number of events.
#[derive(Debug, Default)]
struct Outdated {
    /// Whether any event arrived.
    any: bool,
    /// Whether the guest agent is connected, if it connected or disconnected or may have new information.
    agent: Option<bool>,
    /// Whether the guest has another QEMU, or its QEMU continues on another host.
    live: bool,
    /// Whether the guest has restarted.
    rebooted: bool,
}

impl Outdated {
    fn take_in(&mut self, event: &DomainEvent) {
        self.any = true;
        match event {
            DomainEvent::Agent(AgentChannel::Connected) => self.agent = Some(true),
            DomainEvent::Reboot => {
                self.agent = Some(true);
                self.rebooted = true;
            }
            DomainEvent::Agent(_) => self.agent = Some(false),
            DomainEvent::Lifecycle(LifecycleEvent::Started(_) | LifecycleEvent::Resumed(_)) => self.live = true,
            _ => {}
        }
    }
}

impl ConnectedGuest {
    /// Drops outdated values. The next reconcile reads all other values anyway.
    fn forget(&mut self, outdated: &Outdated) {
        if let Some(is_there) = outdated.agent {
            self.agent_query.channel_is(is_there);
            self.credentials.forget();
            if !is_there {
                self.agent = None;
            }
        }
        if outdated.live {
            self.live = None;
        }
        self.is_thawed |= outdated.rebooted;
    }
}

/// Converts the known state of a domain to the input of decisions.
fn described(
    state: GuestState,
    known: &ConnectedGuest,
    host: &Host,
    instance: &VirtualMachineInstance,
) -> ReportedDomain {
    let live = known.live.as_ref();
    ReportedDomain {
        state,
        cpu: live
            .and_then(|live| live.cpu.as_ref())
            .filter(|cpu| cpu.is_complete())
            .map(|cpu| facts::guest_cpu(cpu, host.address_bits)),
        machine: live.map(|live| live.machine.clone()),
        virt_type: host.virt_type.as_str().into(),
        memory: guest_memory(&instance.spec).ok(),
        qemu_version: known.versions.map(|versions| versions.qemu.to_string()),
        libvirt_version: known.versions.map(|versions| versions.libvirt.to_string()),
        agent: known.agent.clone(),
        is_thawed: known.is_thawed,
        credentials: known.credentials.result(),
    }
}

#[cfg(test)]
mod tests;
