//! Executes a migration on the node that the guest leaves.
//!
//! ```text
//!  object ───┐
//!  libvirt ──┼─▶ read ─▶ core::migration::source::step ─▶ tunnel, libvirt, object
//!  tunnel ───┘    ▲
//!                 └── job statistics, each second while the guest moves ─▶ convergence ─▶ libvirt
//! ```

mod monitor;
mod report;
mod start_migration;

use std::time::Duration;

use drydock_api::{
    kubevirt::{
        VirtualMachineInstanceMigration,
        migration::{MigrationConfiguration, MigrationMode, MigrationState},
    },
    launcher::{LIBVIRT_SOCKET, RUN_VOLUME},
};
use drydock_core::migration::{
    convergence::{Monitor, WrittenProgress},
    record::MigrationRecord,
    source::{
        JobState, MigrateCall, SourceDomain, SourceStep, SourceTunnel, SourceView,
        stayed::{LIBVIRT_GAVE_UP, SourceFailure},
        step, target_is_late_in,
    },
    unsent,
};
use drydock_host::{
    domain::{
        CallDeadlines, CallError, DomainEvent, DomainHandle, DomainState, JobInfo, LifecycleEvent, PausedReason,
        StoppedDetail, SuspendedDetail,
    },
    pod_folder::PodFolder,
};
use drydock_runtime::{Key, chain, clock};
use kube::ResourceExt;
use tokio::{sync::watch, task::JoinSet};
use tracing::{info, warn};

use super::{
    SideState, seen,
    side::{GuestConnection, Side, SideError, next_event},
    status_patch,
};
use crate::{
    guests::TaskContext,
    metrics::LeavingGuest,
    tunnel::{local::Role, tunnels::Tunnels},
};

/// Interval at which a migrating guest is measured.
const MEASURED_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of steps before other events are handled. A migration has fewer steps.
const STEPS: usize = 16;

/// Task of the source of one migration.
pub(super) struct SourceTask {
    side: Side,
    call: MigrateCall,
    /// The pending libvirt call that migrates the guest, if any.
    moving: JoinSet<Result<(), CallError>>,
    /// Reason why this process aborted the migration, or libvirt's error if libvirt aborted it.
    failure: Option<SourceFailure>,
    hand_over_pause: HandOverPause,
    /// Whether libvirt has reported that the guest has left. The launcher may end before libvirt can be queried again.
    left: bool,
    /// Time when the guest was first observed to have left.
    left_since: Option<clock::Instant>,
    /// Whether a log line about the unreachable libvirt has already been written.
    unreachable: bool,
    keep_paused: Option<bool>,
    /// Whether this process has requested libvirt to abort the job.
    aborted: bool,
    /// Whether the guest has been switched to post-copy.
    in_post_copy: bool,
    monitor: Option<Monitor>,
    progress: Option<WrittenProgress>,
    metrics: Option<LeavingGuest>,
}

/// Pause of the guest for the hand-over, according to the events so far.
///
/// The state of the guest alone does not prove the pause: the guest may have been resumed between two queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandOverPause {
    /// The guest was not paused for the hand-over or was resumed afterwards, or events may be missing.
    Unproven,
    /// The guest was paused for the hand-over, and no event that ends the pause has been read.
    Paused,
    /// The guest was paused for the hand-over until it ended.
    UntilEnd,
}

impl HandOverPause {
    fn take_in(&mut self, event: LifecycleEvent) {
        *self = match (event, *self) {
            (LifecycleEvent::Suspended(SuspendedDetail::Migrated), _) => Self::Paused,
            (LifecycleEvent::Resumed(_) | LifecycleEvent::Started(_), _) => Self::Unproven,
            (LifecycleEvent::Stopped(_) | LifecycleEvent::Crashed(_), Self::Paused) => Self::UntilEnd,
            (_, pause) => pause,
        };
    }

    /// Returns the state of the domain, or `Unknown` if the domain has ended but its events have not been read.
    ///
    /// An unread event may show that the guest was resumed before it ended.
    fn allowed(self, domain: SourceDomain) -> SourceDomain {
        match domain {
            SourceDomain::Ended if self == Self::Paused => SourceDomain::Unknown,
            domain => domain,
        }
    }

    /// Records that later events are missing. A guest that has ended does not run again on this node.
    fn connection_ended(&mut self) {
        if *self == Self::Paused {
            *self = Self::Unproven;
        }
    }
}

impl SourceTask {
    /// Creates the task of the migration that `seen` shows.
    ///
    /// `read_status` is whether an earlier process may have served the migration.
    pub(super) fn new(
        shared: TaskContext,
        tunnels: Tunnels,
        seen: watch::Receiver<SideState>,
        read_status: bool,
    ) -> Self {
        Self {
            side: Side::new(Role::Source, shared, tunnels, seen, read_status),
            call: MigrateCall::Unknown,
            moving: JoinSet::new(),
            failure: None,
            hand_over_pause: HandOverPause::Unproven,
            left: false,
            left_since: None,
            unreachable: false,
            keep_paused: None,
            aborted: false,
            in_post_copy: false,
            monitor: None,
            progress: None,
            metrics: None,
        }
    }

    /// Serves the migration until the future is dropped.
    pub(super) async fn run(mut self) {
        let mut sessions = self.side.tunnels.sessions();
        let mut guest = None;
        loop {
            self.side.seen.borrow_and_update();
            sessions.borrow_and_update();
            let migration = self.side.migration();
            if guest.is_none() && self.by_pod().is_none() && !MigrationRecord::of(&migration).source_is_settled() {
                guest = self.connect(&migration).await;
            }
            let result = self.reconcile(guest.as_mut()).await;
            let wake = self.side.next_reconcile(result);
            tokio::select! {
                changed = self.side.seen.changed() => if changed.is_err() { return },
                _ = sessions.changed() => {}
                event = next_event(&mut guest) => match event {
                    Some(event) => self.take_in(&event),
                    None => {
                        guest = None;
                        self.hand_over_pause.connection_ended();
                    }
                },
                result = moved(&mut self.moving) => self.end_call(result),
                () = clock::sleep_until_instant(wake) => {}
            }
        }
    }

    /// Returns the state of the guest according to the end of the pod; `None` if the pod has not ended.
    fn by_pod(&self) -> Option<SourceDomain> {
        let ended = self.side.pod().and_then(|pod| seen::source_by_pod(&pod));
        let vanished = if self.left {
            SourceDomain::Left
        } else {
            SourceDomain::Ended
        };
        ended.or_else(|| self.side.gone.then_some(vanished))
    }

    /// Connects to the guest's libvirt; `None` if the connection fails.
    async fn connect(&mut self, migration: &VirtualMachineInstanceMigration) -> Option<GuestConnection> {
        let uid = seen::pod_uid(migration, Role::Source)?.to_owned();
        let domain = seen::domain_of(migration);
        let connecting = async {
            let folder = PodFolder::new(&self.side.shared.kubelet, &uid, RUN_VOLUME)?;
            DomainHandle::connect(&folder, LIBVIRT_SOCKET, &domain, CallDeadlines::default()).await
        };
        match connecting.await {
            Ok((handle, events)) => {
                self.unreachable = false;
                Some(GuestConnection { handle, events })
            }
            Err(error) => {
                if !self.unreachable {
                    warn!(
                        migration = %Key::of(migration), migration_uid = migration.metadata.uid, error = %chain(&error),
                        "could not connect to the guest's libvirt"
                    );
                }
                self.unreachable = true;
                None
            }
        }
    }

    fn take_in(&mut self, event: &DomainEvent) {
        let DomainEvent::Lifecycle(event) = event else { return };
        self.hand_over_pause.take_in(*event);
        match event {
            LifecycleEvent::Stopped(StoppedDetail::Migrated) => self.left = true,
            LifecycleEvent::Resumed(_) | LifecycleEvent::Started(_) => {
                self.left = false;
                self.left_since = None;
            }
            _ => {}
        }
    }

    fn end_call(&mut self, result: Option<Result<(), CallError>>) {
        let error = match result {
            Some(Ok(())) => {
                self.call = MigrateCall::Succeeded;
                return;
            }
            Some(Err(error)) => Some(error),
            None => None,
        };
        // Without a response, the migration may still continue. The state of the job shows whether it does.
        let replied = error.as_ref().is_some_and(CallError::is_reply);
        self.call = if replied {
            MigrateCall::Failed
        } else {
            MigrateCall::Lost
        };
        // A reason for which this process aborted the migration takes precedence.
        self.failure = self.failure.take().or(error.map(|error| SourceFailure {
            reason: LIBVIRT_GAVE_UP,
            message: chain(&error).to_string(),
        }));
    }

    /// Reconciles once. Returns the pause until the next reconcile, unless an event comes first.
    async fn reconcile(&mut self, guest: Option<&mut GuestConnection>) -> Result<Option<Duration>, SideError> {
        let handle = guest.map(|guest| guest.handle.clone());
        for _ in 0..STEPS {
            if !self.side.read_written_status().await? {
                return Ok(None);
            }
            let migration = self.side.migration();
            let uid = migration.uid().unwrap_or_default();
            let tunnel = seen::source_tunnel(&self.side.tunnels, &uid);
            if handle.is_none() && self.side.pod().is_none() {
                self.side.read_whether_gone(&migration).await?;
            }
            let (state, info) = match &handle {
                Some(handle) => (Some(handle.state().await), Some(handle.job().await)),
                None => (None, None),
            };
            let by_pod = self.by_pod();
            let domain = by_pod
                .or_else(|| self.left.then_some(SourceDomain::Left))
                .or_else(|| state.as_ref().map(seen::source_domain))
                .unwrap_or(SourceDomain::Unknown);
            let job = match (by_pod, &info) {
                (Some(_), _) => JobState::None,
                (None, Some(info)) => seen::job(info),
                (None, None) => JobState::Unknown,
            };
            // libvirt may have resumed the guest before the state of the job was read.
            let domain = match &handle {
                Some(handle) if domain == SourceDomain::Leaving && job == JobState::None => {
                    let again = seen::source_domain(&handle.state().await);
                    if again == domain { domain } else { SourceDomain::Unknown }
                }
                _ => domain,
            };
            let domain = self.hand_over_pause.allowed(domain);
            self.in_post_copy |= domain == SourceDomain::PostCopy;
            let late_in = self.target_is_late_in(domain);
            if job == JobState::None {
                self.metrics = None;
            }
            let view = SourceView {
                record: MigrationRecord::of(&migration),
                domain,
                job,
                call: self.call,
                tunnel,
                stood_still: self.hand_over_pause == HandOverPause::UntilEnd,
                target_is_late: late_in == Some(Duration::ZERO),
                is_stuck: job == JobState::Outgoing && is_stuck(info.as_ref(), self.aborted),
            };
            let moves = job == JobState::Outgoing && !view.has_not_begun() && !view.record.is_unknown();
            if let (Some(handle), Some(Ok(state)), true) = (&handle, &state, moves) {
                let info = info
                    .as_ref()
                    .and_then(|info| info.as_ref().ok())
                    .and_then(Option::as_ref);
                self.measure(handle, &migration, *state, info).await;
            }
            self.report_whether_paused(&uid, &migration, state.as_ref(), tunnel)
                .await?;
            self.side.report_broken_post_copy(state.as_ref(), &migration).await?;
            let steps = step(&view);
            let Some(first) = steps.first().copied() else {
                let late_in = late_in.filter(|left| !left.is_zero());
                return Ok(late_in.or_else(|| self.recheck_in(domain, job, by_pod.is_some(), handle.is_some())));
            };
            if view.is_stuck && first == SourceStep::Close {
                self.give_up_stuck(&migration);
            }
            for step in steps {
                self.execute(step, &migration, handle.as_ref()).await?;
            }
            // Abort, release and close wait for a result from another component, so they are not repeated at once.
            if matches!(first, SourceStep::Abort | SourceStep::Release(_) | SourceStep::Close) {
                return Ok(Some(MEASURED_EVERY));
            }
        }
        Ok(Some(MEASURED_EVERY))
    }

    /// Returns the pause until the next reconcile without an event, when no step is due.
    fn recheck_in(
        &self,
        domain: SourceDomain,
        job: JobState,
        pod_has_ended: bool,
        is_connected: bool,
    ) -> Option<Duration> {
        let moves = job == JobState::Outgoing || self.call == MigrateCall::Pending || domain == SourceDomain::Leaving;
        let is_unknown = domain == SourceDomain::Unknown && !pod_has_ended;
        // libvirt sends no event when it can return the state of the job again.
        let is_unread = job == JobState::Unknown && is_connected;
        (moves || is_unknown || is_unread).then_some(MEASURED_EVERY)
    }

    /// Returns the remaining time until the target's acknowledgement is late; `None` if the guest has not left.
    ///
    /// The time is counted from the first observation that the guest has left.
    fn target_is_late_in(&mut self, domain: SourceDomain) -> Option<Duration> {
        let since = (domain == SourceDomain::Left).then(|| *self.left_since.get_or_insert_with(clock::Instant::now));
        target_is_late_in(since.map(|since| since.elapsed()))
    }

    async fn execute(
        &mut self,
        step: SourceStep,
        migration: &VirtualMachineInstanceMigration,
        handle: Option<&DomainHandle>,
    ) -> Result<(), SideError> {
        let uid = migration.uid().unwrap_or_default();
        match step {
            SourceStep::Prepare => self.side.prepare(migration).await?,
            SourceStep::Pair => {
                let target = migration.target().cloned().unwrap_or_default();
                self.side.pair(&uid, target.fingerprint, target.address).await?;
            }
            SourceStep::Report(state) => self.report(state, migration, handle).await?,
            SourceStep::Start => {
                if let Some(handle) = handle {
                    self.start(migration, handle.clone()).await;
                }
            }
            SourceStep::Abort => {
                if let Some(handle) = handle {
                    self.aborted = true;
                    info!(
                        migration = %Key::of(migration), migration_uid = migration.metadata.uid,
                        "aborting the migration job"
                    );
                    // The job may have ended in the meantime. The next reconcile detects this.
                    if let Err(error) = handle.abort_job().await {
                        info!(
                            migration = %Key::of(migration), migration_uid = migration.metadata.uid,
                            error = %chain(&error),
                            "could not abort the migration job"
                        );
                    }
                }
            }
            SourceStep::Resume => {
                if let Some(handle) = handle {
                    warn!(
                        migration = %Key::of(migration), migration_uid = migration.metadata.uid,
                        "the migration failed; resuming the guest on this node"
                    );
                    handle.resume().await?;
                }
            }
            SourceStep::Release(proof) => {
                self.side.session(&uid)?.tunnel.release(&uid, proof).await?;
            }
            SourceStep::Destroy => {
                if let Some(handle) = handle {
                    warn!(
                        migration = %Key::of(migration), migration_uid = migration.metadata.uid,
                        "destroying the remains of a guest that has moved to another node"
                    );
                    handle.destroy().await?;
                }
            }
            SourceStep::Close => {
                if let Some(session) = self.side.tunnels.session(&uid) {
                    session.tunnel.close(&uid).await?;
                }
            }
        }
        Ok(())
    }

    /// Notifies the tunnel whether the guest must stay paused at its target.
    async fn report_whether_paused(
        &mut self,
        uid: &str,
        migration: &VirtualMachineInstanceMigration,
        state: Option<&Result<DomainState, CallError>>,
        tunnel: SourceTunnel,
    ) -> Result<(), SideError> {
        let paused = match state {
            Some(Ok(DomainState::Paused(PausedReason::User))) => !is_paused_to_move(migration),
            Some(Ok(DomainState::Running(_))) => false,
            _ => return Ok(()),
        };
        let open = matches!(tunnel, SourceTunnel::Open { reply_read: false, .. });
        if let Some(session) = self.side.tunnels.session(uid).filter(|_| open) {
            // A previous agent may have set the value, and a tunnel that was restarted has lost it.
            if session.state.keep_paused != paused {
                session.tunnel.keep_paused(uid, paused).await?;
            }
            self.keep_paused = Some(paused);
        }
        Ok(())
    }
}

/// Returns whether libvirt's job has sent no data and must be ended.
fn is_stuck(info: Option<&Result<Option<JobInfo>, CallError>>, aborted: bool) -> bool {
    let Some(Ok(Some(job))) = info else { return false };
    unsent::is_stuck(job.data.total, job.elapsed.unwrap_or_default(), aborted)
}

/// Returns whether an agent paused the guest so that it can migrate. A pause by the user does not count.
fn is_paused_to_move(migration: &VirtualMachineInstanceMigration) -> bool {
    let mode = migration.source().and_then(|source| source.mode);
    mode == Some(MigrationMode::Paused)
}

fn configuration(state: Option<&MigrationState>) -> MigrationConfiguration {
    state
        .and_then(|state| state.migration_configuration.clone())
        .unwrap_or_default()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Waits for the result of the call that migrates the guest, or forever if no call is pending. `None` if the task of
/// the call failed.
async fn moved(moving: &mut JoinSet<Result<(), CallError>>) -> Option<Result<(), CallError>> {
    match moving.join_next().await {
        Some(result) => result.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
