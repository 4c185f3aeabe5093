//! Migrations from and to a [`FakeLibvirt`]: the test says how far they get.
//!
//! What happens, and in which order, is what libvirt 9.0 and 11.3 do.

use std::time::Duration;

use tokio::sync::watch;
use virt_sys as sys;

use super::guest::{Connection, FakeLibvirt, Inner, refusal};
use crate::{
    background,
    domain::{
        Amount, CpuComparison, DomainEvent, JobInfo, JobOperation, JobType, Lifecycle, Migration, PausedReason,
        ResumedDetail, RunningReason, ShutOffReason, StartedDetail, State, StoppedDetail, SuspendedDetail, WhichJob,
    },
    libvirt::LibvirtError,
};

/// What a fake libvirt knows of migrations.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    /// All that were asked for.
    asked: Vec<Migration>,
    /// How the last one ended; `None` as long as it goes on.
    end: watch::Sender<Option<Result<(), LibvirtError>>>,
    /// How many were asked for.
    count: watch::Sender<usize>,
    job: Option<JobInfo>,
    completed: Option<JobInfo>,
    max_downtime: Option<u64>,
    bandwidth: Option<u64>,
    comparison: Option<CpuComparison>,
}

/// The job of a migration that has just begun.
pub fn migration_job(operation: JobOperation) -> JobInfo {
    JobInfo {
        job_type: JobType::Unbounded,
        operation,
        elapsed: Some(Duration::ZERO),
        remaining: None,
        downtime: None,
        setup: None,
        data: Amount::default(),
        memory: Amount::default(),
        disk: Amount::default(),
        memory_rate: None,
        disk_rate: None,
        dirty_rate: None,
        iteration: None,
        throttle: None,
        post_copy_requests: None,
        success: None,
        error: None,
    }
}

/// The side that a guest comes from.
impl FakeLibvirt {
    /// All migrations that were begun.
    pub fn migrations(&self) -> Vec<Migration> {
        self.lock().migrations.asked.clone()
    }

    /// Waits until that many migrations were begun.
    pub async fn migrations_begun(&self, count: usize) {
        let mut begun = self.lock().migrations.count.subscribe();
        // The sender lives as long as this does.
        let _ = begun.wait_for(|begun| *begun >= count).await;
    }

    /// The migration gets this far.
    pub fn set_job(&self, job: JobInfo) {
        self.lock().migrations.job = Some(job);
    }

    /// The migration begins to go over the memory once more.
    pub fn migration_iterates(&self, iteration: i32) {
        self.lock().tell(&DomainEvent::MigrationIteration(iteration));
    }

    /// What the last calls set: milliseconds of downtime, and MiB/s.
    pub fn migration_limits(&self) -> (Option<u64>, Option<u64>) {
        let inner = self.lock();
        (inner.migrations.max_downtime, inner.migrations.bandwidth)
    }

    /// The guest stands still and what is left of it is sent.
    pub fn guest_leaves(&self) {
        let mut inner = self.lock();
        inner.state = Some(State::Paused(PausedReason::Migration));
        inner.happen(Lifecycle::Suspended(SuspendedDetail::Migrated));
    }

    /// It is on the other side, and nothing is left of it here.
    pub fn guest_has_left(&self) {
        let mut inner = self.lock();
        inner.job_ends(JobType::Completed, None);
        inner.state = Some(State::ShutOff(ShutOffReason::Migrated));
        inner.happen(Lifecycle::Stopped(StoppedDetail::Migrated));
        inner.migrations.end.send_replace(Some(Ok(())));
    }

    /// The migration is given up, for that reason. The guest goes on here.
    pub fn migration_fails(&self, message: &str) {
        let error = refusal("migrate", sys::VIR_ERR_OPERATION_FAILED, message);
        self.lock().migration_fails(JobType::Failed, error);
    }
}

/// The side that a guest goes to.
impl FakeLibvirt {
    /// What is answered to comparisons of CPUs from now on, in place of "it fits".
    pub fn set_cpu_comparison(&self, comparison: CpuComparison) {
        self.lock().migrations.comparison = Some(comparison);
    }

    /// A guest begins to arrive.
    pub fn guest_arrives(&self, definition: &str) {
        let mut inner = self.lock();
        inner.definition = Some(definition.to_owned());
        inner.state = Some(State::Paused(PausedReason::Migration));
        inner.migrations.job = Some(migration_job(JobOperation::IncomingMigration));
        inner.happen(Lifecycle::Started(StartedDetail::Migrated));
    }

    /// All of it is here and stands still.
    pub fn guest_is_complete(&self) {
        let mut inner = self.lock();
        inner.migrations.job = None;
        inner.state = Some(State::Paused(PausedReason::User));
        inner.happen(Lifecycle::Suspended(SuspendedDetail::Paused));
    }

    /// It does not come, and nothing of it is here.
    pub fn guest_does_not_arrive(&self) {
        let mut inner = self.lock();
        inner.migrations.job = None;
        inner.definition = None;
        inner.happen(Lifecycle::Stopped(StoppedDetail::Failed));
    }
}

impl Inner {
    fn job_ends(&mut self, job_type: JobType, error: Option<String>) {
        let job = self.migrations.job.take();
        let job = job.unwrap_or_else(|| migration_job(JobOperation::OutgoingMigration));
        let job = JobInfo {
            job_type,
            success: Some(job_type == JobType::Completed),
            error,
            ..job
        };
        self.migrations.completed = Some(job.clone());
        let told = JobInfo {
            job_type: JobType::Completed,
            ..job
        };
        self.tell(&DomainEvent::JobCompleted(Some(Box::new(told))));
    }

    fn migration_fails(&mut self, job_type: JobType, error: LibvirtError) {
        self.job_ends(job_type, Some(error.message.clone()));
        if self.state == Some(State::Paused(PausedReason::Migration)) {
            self.state = Some(State::Running(RunningReason::MigrationCanceled));
            self.happen(Lifecycle::Resumed(ResumedDetail::Migrated));
        }
        self.migrations.end.send_replace(Some(Err(error)));
    }
}

/// The calls.
impl Connection {
    pub(super) fn fake_migrate(&self, migration: &Migration) -> Result<Result<(), LibvirtError>, LibvirtError> {
        const CALL: &str = "migrate";
        let begun = self.change_with(CALL, |inner| {
            inner.guest(CALL)?;
            if inner.migrations.job.is_some() {
                return Err(refusal(
                    CALL,
                    sys::VIR_ERR_OPERATION_INVALID,
                    "another migration job is already running for domain",
                ));
            }
            inner.migrations.asked.push(migration.clone());
            inner.migrations.job = Some(migration_job(JobOperation::OutgoingMigration));
            inner.migrations.end.send_replace(None);
            let asked = inner.migrations.asked.len();
            inner.migrations.count.send_replace(asked);
            Ok(inner.migrations.end.subscribe())
        });
        let mut end = match begun {
            Ok(end) => end,
            Err(error) => return Ok(Err(error)),
        };
        let lost = || refusal(CALL, sys::VIR_ERR_RPC, "the connection has ended");
        let runtime = background::runtime().map_err(|_| lost())?;
        runtime.block_on(async {
            tokio::select! {
                biased;
                ended = end.wait_for(Option::is_some) => match ended {
                    Ok(end) => end.clone().ok_or_else(lost),
                    Err(_) => Err(lost()),
                },
                // No relay waits for it here.
                () = self.shared.relay.notified() => Err(lost()),
            }
        })
    }

    pub(super) fn fake_abort_job(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "abort job";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            if inner.migrations.job.is_none() {
                let message = "Requested operation is not valid: no job is active on the domain";
                return Err(refusal(CALL, sys::VIR_ERR_OPERATION_INVALID, message));
            }
            let message = "operation aborted: migration out job: canceled by client";
            let error = refusal("migrate", sys::VIR_ERR_OPERATION_ABORTED, message);
            inner.migration_fails(JobType::Cancelled, error);
            Ok(())
        })
    }

    pub(super) fn fake_job(&self, which: WhichJob) -> Result<Option<JobInfo>, LibvirtError> {
        self.question(|inner| {
            inner.defined("job")?;
            Ok(match which {
                WhichJob::Current => inner.migrations.job.clone(),
                WhichJob::Completed => inner.migrations.completed.clone(),
            })
        })
    }

    pub(super) fn fake_set_max_downtime(&self, milliseconds: u64) -> Result<(), LibvirtError> {
        const CALL: &str = "set max downtime";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            inner.migrations.max_downtime = Some(milliseconds);
            Ok(())
        })
    }

    pub(super) fn fake_set_bandwidth(&self, mebibytes: u64) -> Result<(), LibvirtError> {
        const CALL: &str = "set bandwidth";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            inner.migrations.bandwidth = Some(mebibytes);
            Ok(())
        })
    }

    pub(super) fn fake_start_post_copy(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "start post-copy";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            let allowed = inner
                .migrations
                .asked
                .last()
                .is_some_and(|migration| migration.post_copy);
            if inner.migrations.job.is_none() || !allowed {
                let message = "Requested operation is not valid: switching to post-copy requires migration to be \
                               started with VIR_MIGRATE_POSTCOPY flag";
                return Err(refusal(CALL, sys::VIR_ERR_OPERATION_INVALID, message));
            }
            inner.state = Some(State::Paused(PausedReason::PostCopy));
            inner.happen(Lifecycle::Suspended(SuspendedDetail::PostCopy));
            Ok(())
        })
    }

    pub(super) fn fake_compare_cpu(&self) -> Result<CpuComparison, LibvirtError> {
        self.question(|inner| Ok(inner.migrations.comparison.clone().unwrap_or(CpuComparison::Fits)))
    }
}
