//! Measures a migrating guest, and acts so that its migration ends.

use std::time::Duration;

use drydock_api::kubevirt::{
    VirtualMachineInstanceMigration,
    migration::{MigrationMode, MigrationSource},
};
use drydock_core::migration::{
    convergence::{Act, ConvergenceAction, ConvergenceLimits, Monitor, Sample, WrittenProgress, worth_writing},
    record::MigrationRecord,
    source::{SourceDomain, stayed::SourceFailure},
};
use drydock_host::domain::{CallError, DomainHandle, DomainState, JobInfo, PausedReason};
use drydock_runtime::{Key, Severity, chain, clock};
use kube::ResourceExt;
use tracing::info;

use super::{SourceTask, configuration, is_paused_to_move, milliseconds, status_patch};
use crate::migrations::seen;

/// Limits the downtime. If libvirt refuses, the migration continues with the previous limit.
pub(super) async fn limit_downtime(handle: &DomainHandle, downtime: Duration) {
    if let Err(error) = handle.set_max_downtime(milliseconds(downtime)).await {
        info!(error = %chain(&error), "could not set the downtime limit");
    }
}

/// Returns a monitor that knows the current downtime limit.
async fn monitor_of(handle: &DomainHandle, limits: ConvergenceLimits) -> Monitor {
    let monitor = Monitor::new(limits);
    match handle.max_downtime().await {
        Ok(limit) => monitor.with_downtime(Duration::from_millis(limit)),
        Err(error) => {
            info!(error = %chain(&error), "could not read the downtime limit");
            monitor
        }
    }
}

/// Returns whether the state can be that of a guest that an agent paused so that it can migrate.
///
/// While an outgoing migration runs, libvirt reports any pause as a pause for the migration.
fn is_paused_by_agent(state: DomainState) -> bool {
    matches!(state, DomainState::Paused(PausedReason::User | PausedReason::Migration))
}

/// Converts libvirt's statistics to a sample for the monitor. `paused` and `post_copy` describe the mode of the
/// migration.
fn sample(job: &JobInfo, paused: bool, post_copy: bool) -> Sample {
    let rates = [job.memory_rate, job.disk_rate];
    Sample {
        data_total: job.data.total,
        data_processed: job.data.processed,
        data_remaining: job.data.remaining,
        memory_remaining: job.memory.remaining,
        disk_remaining: job.disk.remaining,
        dirty_rate: job.dirty_rate,
        bandwidth: rates.into_iter().flatten().reduce(u64::saturating_add),
        iteration: job.iteration.unwrap_or(0),
        elapsed: job.elapsed.unwrap_or(Duration::ZERO),
        expected_downtime: job.downtime,
        post_copy,
        paused,
    }
}

impl SourceTask {
    /// Measures a migrating guest, and executes the actions of the monitor that let the migration end.
    pub(super) async fn measure(
        &mut self,
        handle: &DomainHandle,
        migration: &VirtualMachineInstanceMigration,
        state: DomainState,
        info: Option<&JobInfo>,
    ) {
        let Some(info) = info.filter(|info| info.data.total > 0) else {
            return;
        };
        let metrics = self.metrics.get_or_insert_with(|| {
            let namespace = migration.namespace().unwrap_or_default();
            let leaving = &self.side.shared.metrics.leaving;
            leaving.guest(&self.side.shared.node, &namespace, &migration.spec.vmi_name)
        });
        metrics.measured(info);
        let status = migration.status.clone().unwrap_or_default();
        let configuration = configuration(status.migration_state.as_ref());
        let to_move = is_paused_to_move(migration);
        let stood_before = seen::source_domain(&Ok(state)) == SourceDomain::Paused && !to_move;
        let sample = sample(info, to_move && is_paused_by_agent(state), self.in_post_copy);
        if self.monitor.is_none()
            && let Ok(limits) = ConvergenceLimits::new(&configuration, sample.data_total)
        {
            // A guest that was paused before, for example by its user, dirties no memory. A pause or a switch for the
            // migration would resume it.
            let limits = ConvergenceLimits {
                post_copy: self.may_be_switched(migration) && !stood_before,
                workload_disruption: limits.workload_disruption && !stood_before,
                ..limits
            };
            self.monitor = Some(monitor_of(handle, limits).await);
        }
        let Some(monitor) = &mut self.monitor else { return };
        if let Some(downtime) = monitor.downtime_after_first_pass(&sample) {
            limit_downtime(handle, downtime).await;
        }
        for action in monitor.observe(&sample) {
            self.execute_action(handle, migration, &action).await;
        }
        self.report_progress(&sample).await;
    }

    /// Announces an action and executes it. If libvirt refuses the action, the monitor no longer plans it.
    async fn execute_action(
        &mut self,
        handle: &DomainHandle,
        migration: &VirtualMachineInstanceMigration,
        action: &ConvergenceAction,
    ) {
        info!(
            migration = %Key::of(migration), migration_uid = migration.metadata.uid,
            reason = action.reason,
            "{}",
            action.sentence
        );
        status_patch::record_event(
            &self.side.shared.events,
            migration,
            Severity::Normal,
            action.reason,
            action.sentence.clone(),
        );
        let result = match action.act {
            Act::Report => Ok(()),
            Act::SetDowntime(downtime) => handle.set_max_downtime(milliseconds(downtime)).await,
            Act::Pause => match self.write_mode(migration, MigrationMode::Paused).await {
                Ok(()) => handle.suspend().await,
                Err(_) => Ok(()),
            },
            // The migration can no longer be aborted after the switch.
            Act::StartPostCopy if MigrationRecord::of(migration).is_given_up() => Ok(()),
            Act::StartPostCopy => handle.start_post_copy().await,
            Act::Abort => {
                self.failure = Some(SourceFailure {
                    reason: action.reason,
                    message: action.sentence.clone(),
                });
                handle.abort_job().await
            }
        };
        if let Err(error) = result {
            info!(error = %chain(&error), "could not execute the action on the migration");
            if let (CallError::Refused(_), Some(monitor)) = (&error, &mut self.monitor) {
                monitor.refused(action.act);
            }
        }
    }

    /// Writes the progress to the object, unless it has hardly changed.
    async fn report_progress(&mut self, sample: &Sample) {
        let Some(monitor) = &self.monitor else { return };
        let written = WrittenProgress {
            at: clock::now(),
            mode: sample.mode(),
            progress: monitor.progress(sample, clock::now()),
        };
        if !worth_writing(self.progress.as_ref(), &written) {
            return;
        }
        // The first progress is not written: a migration that ends within seconds needs no progress report.
        let first = self.progress.is_none();
        self.progress = Some(written.clone());
        if first {
            return;
        }
        let migration = self.side.migration();
        let before = migration.source().cloned().unwrap_or_default();
        let side = MigrationSource {
            progress: Some(written.progress),
            ..before
        };
        match status_patch::source(&self.side.shared.client, &migration, &side).await {
            Ok(stored) => self.side.written = Some(stored),
            Err(error) => info!(error = %chain(&error), "could not report the progress of the migration"),
        }
    }

    /// Writes the mode of the migration before the mode changes, because a new agent must know whether an agent has
    /// paused the guest.
    async fn write_mode(
        &mut self,
        migration: &VirtualMachineInstanceMigration,
        mode: MigrationMode,
    ) -> Result<(), kube::Error> {
        let before = migration.source().cloned().unwrap_or_default();
        let side = MigrationSource {
            mode: Some(mode),
            ..before
        };
        self.side.written = Some(status_patch::source(&self.side.shared.client, migration, &side).await?);
        Ok(())
    }
}
