//! Executes a migration on the node at which the guest arrives.

use std::time::Duration;

use drydock_api::{
    kubevirt::{
        VirtualMachineInstanceMigration,
        migration::{MigrationTarget, TargetState},
    },
    launcher::{LIBVIRT_SOCKET, READY_FILE, RUN_VOLUME, Ready},
};
use drydock_core::migration::{
    record::MigrationRecord,
    target::{
        TargetDomain, TargetStep, TargetTunnel, TargetView, postponed, source_is_late_in, step,
        target_refusal::{self, ComparedCpu, TargetCheck, TargetHost, TargetRefusal, by_comparison},
    },
};
use drydock_host::{
    domain::{CallDeadlines, CallError, CpuComparison, DomainHandle},
    pod_folder::PodFolder,
};
use drydock_runtime::{Key, Severity, chain, clock};
use kube::ResourceExt;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    SideState, seen,
    side::{GuestConnection, Side, SideError, next_event},
    status_patch,
};
use crate::{
    guests::TaskContext,
    tunnel::{local::Role, tunnels::Tunnels},
};

/// Pause before the next reconcile while the guest is arriving or a step is in progress.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of a launcher's ready file in bytes.
const READY_BYTES: u64 = 64 << 10;
/// Maximum number of steps before other events are handled. A migration has fewer steps.
const STEPS: usize = 16;

/// Task of the target of one migration.
pub(super) struct TargetTask {
    side: Side,
    /// Whether the guest can run on this node, or the reason why not; `None` if not checked yet.
    fits: Option<Result<(), TargetRefusal>>,
    complete_since: Option<clock::Instant>,
    taken_over_since: Option<clock::Instant>,
    /// Whether the pod can receive a guest by post-copy.
    post_copy: bool,
    /// Whether the readiness gate of the pod depends only on the running guest. The guest's own task follows a
    /// readiness probe.
    opens_gate: bool,
}

impl TargetTask {
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
            side: Side::new(Role::Target, shared, tunnels, seen, read_status),
            fits: None,
            complete_since: None,
            taken_over_since: None,
            post_copy: false,
            opens_gate: false,
        }
    }

    /// Serves the migration until the future is dropped.
    pub(super) async fn run(mut self) {
        let mut sessions = self.side.tunnels.sessions();
        let mut guest: Option<GuestConnection> = None;
        loop {
            self.side.seen.borrow_and_update();
            sessions.borrow_and_update();
            if guest.is_none() && self.by_pod().is_none() {
                guest = self.connect().await;
            }
            let handle = guest.as_ref().map(|guest| guest.handle.clone());
            let result = self.reconcile(handle.as_ref()).await;
            let wake = self.side.next_reconcile(result);
            tokio::select! {
                changed = self.side.seen.changed() => if changed.is_err() { return },
                _ = sessions.changed() => {}
                event = next_event(&mut guest) => if event.is_none() { guest = None },
                () = clock::sleep_until_instant(wake) => {}
            }
        }
    }

    /// Returns the state of the guest according to the end of the pod; `None` if the pod has not ended.
    fn by_pod(&self) -> Option<TargetDomain> {
        if self.side.gone {
            return Some(TargetDomain::Over);
        }
        self.side.pod().and_then(|pod| seen::target_by_pod(&pod))
    }

    /// Returns whether the pod may have existed and been removed. A pod without any report may not be shown yet.
    fn may_have_gone(&self, migration: &VirtualMachineInstanceMigration) -> bool {
        let record = MigrationRecord::of(migration);
        self.side.pod().is_none() && (record.is_over() || record.target.is_some())
    }

    /// Connects to the pod's libvirt once its launcher is ready. Stops waiting when the migration's observation
    /// changes.
    async fn connect(&mut self) -> Option<GuestConnection> {
        let migration = self.side.migration();
        let uid = seen::pod_uid(&migration, Role::Target)?.to_owned();
        let domain = seen::domain_of(&migration);
        let connecting = async {
            let folder = PodFolder::new(&self.side.shared.kubelet, &uid, RUN_VOLUME)?;
            let ready = folder.read_when_there(READY_FILE, READY_BYTES).await?;
            // The other fields concern guests that start on this node. A file in another format does not contain this
            // field.
            let ready: Ready = serde_json::from_slice(&ready).unwrap_or_default();
            let connected =
                DomainHandle::connect_when_open(&folder, LIBVIRT_SOCKET, &domain, CallDeadlines::default()).await?;
            Ok::<_, CallError>((connected, ready))
        };
        let again = self
            .may_have_gone(&migration)
            .then(|| clock::Instant::now() + RECHECK_INTERVAL);
        let connected = tokio::select! {
            connected = connecting => connected,
            _ = self.side.seen.changed() => {
                self.side.seen.mark_changed();
                return None;
            }
            // A removed pod can never become ready.
            () = clock::sleep_until_instant(again) => return None,
        };
        match connected {
            Ok(((handle, events), ready)) => {
                self.post_copy = ready.post_copy;
                self.opens_gate = !ready.probes_readiness;
                Some(GuestConnection { handle, events })
            }
            Err(error) => {
                warn!(
                    migration = %Key::of(&migration), migration_uid = migration.metadata.uid, error = %chain(&error),
                    "could not connect to the target pod's libvirt"
                );
                None
            }
        }
    }

    /// Reconciles once. Returns the pause until the next reconcile, unless an event comes first.
    async fn reconcile(&mut self, handle: Option<&DomainHandle>) -> Result<Option<Duration>, SideError> {
        for _ in 0..STEPS {
            if !self.side.read_written_status().await? {
                return Ok(None);
            }
            let migration = self.side.migration();
            let uid = migration.uid().unwrap_or_default();
            // The tunnel is read before the guest: a tunnel without a session does not resume the guest from now on.
            let tunnel = seen::target_tunnel(&self.side.tunnels, &uid);
            if self.may_have_gone(&migration) {
                self.side.read_whether_gone(&migration).await?;
            }
            let by_pod = self.by_pod();
            let state = match (by_pod, handle) {
                (None, Some(handle)) => Some(handle.state().await),
                _ => None,
            };
            let may_be_incomplete = may_be_incomplete(&migration, tunnel);
            let by_libvirt = || Some(seen::target_domain(state.as_ref()?, may_be_incomplete));
            let domain = by_pod.or_else(by_libvirt).unwrap_or(TargetDomain::Unknown);
            self.side.report_broken_post_copy(state.as_ref(), &migration).await?;
            // The tunnel may have received the release and resumed the guest, which has run and ended in the meantime.
            let tunnel = match domain {
                TargetDomain::Over => seen::target_tunnel(&self.side.tunnels, &uid),
                _ => tunnel,
            };
            let steps = step(&TargetView {
                record: MigrationRecord::of(&migration),
                tunnel,
                domain,
                fits: self.fits.as_ref().map(Result::is_ok),
                source_is_late: self.source_is_late_in().is_zero(),
            });
            let Some(first) = steps.first().copied() else {
                let waits = matches!(domain, TargetDomain::Incoming | TargetDomain::Complete)
                    || (domain == TargetDomain::Unknown && by_pod.is_none());
                return Ok(waits.then_some(RECHECK_INTERVAL));
            };
            if let Some(pause) = postponed(first, self.complete_for(domain)) {
                return Ok(Some(pause));
            }
            for step in steps {
                self.execute(step, &migration, handle).await?;
            }
            match first {
                TargetStep::Close | TargetStep::TakeOver | TargetStep::Destroy => return Ok(Some(RECHECK_INTERVAL)),
                TargetStep::Show => return Ok(Some(self.source_is_late_in())),
                _ => {}
            }
        }
        Ok(Some(RECHECK_INTERVAL))
    }

    /// Returns the remaining time until the source is late, counted from the first [`TargetStep::Show`].
    fn source_is_late_in(&self) -> Duration {
        let since = self.taken_over_since.map(|since| since.elapsed());
        source_is_late_in(since)
    }

    /// Returns the time since the guest was first observed to be complete.
    fn complete_for(&mut self, domain: TargetDomain) -> Duration {
        if domain != TargetDomain::Complete {
            return Duration::ZERO;
        }
        self.complete_since.get_or_insert_with(clock::Instant::now).elapsed()
    }

    async fn execute(
        &mut self,
        step: TargetStep,
        migration: &VirtualMachineInstanceMigration,
        handle: Option<&DomainHandle>,
    ) -> Result<(), SideError> {
        let uid = migration.uid().unwrap_or_default();
        match step {
            TargetStep::Check => {
                if let Some(handle) = handle {
                    self.fits = Some(self.compare(migration, handle).await?);
                }
            }
            TargetStep::Prepare => self.side.prepare(migration).await?,
            TargetStep::Pair => {
                let source = migration.source().cloned().unwrap_or_default();
                self.side.pair(&uid, source.fingerprint, None).await?;
            }
            TargetStep::Report(state) => self.report(state, migration).await?,
            TargetStep::Show => {
                self.taken_over_since.get_or_insert_with(clock::Instant::now);
                self.open_gate().await;
            }
            TargetStep::TakeOver => {
                let source = migration.source().cloned().unwrap_or_default();
                if source.keep_paused {
                    // The guest stays paused, so only the report is needed.
                    self.report(TargetState::Running, migration).await?;
                } else if let Some(handle) = handle {
                    match handle.resume().await {
                        // The tunnel has already resumed the guest.
                        Err(CallError::Refused(_))
                            if seen::target_domain(&handle.state().await, false) == TargetDomain::Running => {}
                        result => result?,
                    }
                }
            }
            TargetStep::Close => self.side.session(&uid)?.tunnel.close(&uid).await?,
            TargetStep::Destroy => {
                if let Some(handle) = handle {
                    info!(
                        migration = %Key::of(migration), migration_uid = migration.metadata.uid,
                        "destroying the incoming guest because its migration failed"
                    );
                    handle.destroy().await?;
                }
            }
        }
        Ok(())
    }

    /// Checks with the pod's libvirt whether the guest can have its CPU on this node.
    async fn compare(
        &self,
        migration: &VirtualMachineInstanceMigration,
        handle: &DomainHandle,
    ) -> Result<Result<(), TargetRefusal>, SideError> {
        let guest = migration.guest().cloned().unwrap_or_default();
        let host = self.side.seen.borrow().host.clone();
        let checked = target_refusal::check(
            &guest,
            &TargetHost {
                node: &self.side.shared.node,
                virt_type: host.virt_type,
                mask: &host.mask,
                processor: host.processor.as_deref(),
            },
        );
        let document = match checked {
            TargetCheck::Fits => return Ok(Ok(())),
            TargetCheck::Refused(refusal) => return Ok(Err(refusal)),
            TargetCheck::Compare(document) => document,
        };
        let compared = match handle.compare_cpu(&document, host.virt_type).await {
            Ok(CpuComparison::Fits) => ComparedCpu::Fits,
            Ok(CpuComparison::Incompatible { message, .. }) => ComparedCpu::Incompatible(message),
            Err(CallError::Refused(error)) => ComparedCpu::NotCompared(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        Ok(by_comparison(compared))
    }

    /// Opens the readiness gate, so that Services reach the guest. The guest's own task retries if this fails.
    async fn open_gate(&self) {
        let pod_uid = self.side.pod().and_then(|pod| pod.metadata.uid.clone());
        if let Some(pod_uid) = pod_uid.filter(|_| self.opens_gate)
            && let Err(error) = self.side.shared.gates.set(&pod_uid, true).await
        {
            warn!(error = %chain(&error), "could not open the readiness gate of the target pod");
        }
    }

    /// Reports the state of the target.
    async fn report(
        &mut self,
        state: TargetState,
        migration: &VirtualMachineInstanceMigration,
    ) -> Result<(), SideError> {
        let before = migration.target().cloned().unwrap_or_default();
        let uid = migration.uid().unwrap_or_default();
        let mut side = MigrationTarget {
            state: Some(state),
            ..before.clone()
        };
        match state {
            TargetState::Prepared => {
                let session = self.side.session(&uid)?;
                // The session exists, so this call only returns its fingerprint and address.
                let prepared = session.tunnel.prepare(self.side.session_spec(migration)).await?;
                side.fingerprint = Some(prepared.fingerprint);
                side.address = Some(prepared.address);
                side.post_copy = self.post_copy;
            }
            TargetState::Refused => {
                if let Some(Err(refusal)) = &self.fits {
                    side.reason = Some(refusal.reason.into());
                    side.message = Some(refusal.message.clone());
                }
            }
            // Earlier problems no longer apply.
            TargetState::Running => (side.reason, side.message) = (None, None),
            TargetState::Complete | TargetState::Gone | TargetState::Ended | TargetState::Unknown => {}
        }
        let (written, ()) = tokio::join!(
            status_patch::target(&self.side.shared.client, migration, &side),
            async {
                if state == TargetState::Running {
                    self.open_gate().await;
                }
            }
        );
        self.side.written = Some(written?);
        info!(migration = %Key::of(migration), migration_uid = migration.metadata.uid, ?state, "target state reported");
        match state {
            TargetState::Prepared => {
                let note = "VirtualMachineInstance Migration Target Prepared.".to_owned();
                status_patch::record_event(
                    &self.side.shared.events,
                    migration,
                    Severity::Normal,
                    "PreparingTarget",
                    note,
                );
            }
            TargetState::Refused => {
                let note = side.message.unwrap_or_default();
                status_patch::record_event(
                    &self.side.shared.events,
                    migration,
                    Severity::Warning,
                    "TargetRefused",
                    note,
                );
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns whether a guest on the target may have been switched to post-copy, so that the rest of its memory may still
/// be at the source. A guest that the tunnel has taken over is complete.
fn may_be_incomplete(migration: &VirtualMachineInstanceMigration, tunnel: TargetTunnel) -> bool {
    let state = migration
        .status
        .as_ref()
        .and_then(|status| status.migration_state.as_ref());
    let configuration = state.and_then(|state| state.migration_configuration.as_ref());
    let allows_post_copy = configuration.is_some_and(|configuration| configuration.allow_post_copy == Some(true));
    allows_post_copy && !matches!(tunnel, TargetTunnel::Open { taken_over: true, .. })
}

#[cfg(test)]
mod tests;
