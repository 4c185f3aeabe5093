//! Migrations from and to a [`FakeLibvirt`]. The test controls their progress.
//!
//! The events and their order are those of libvirt 9.0 and 11.3. The module of [`crate::domain::Migration`] documents
//! them.

use virt_sys as sys;

use super::fake_guest::{FakeLibvirt, FakeLibvirtConnection, FakeState, refusal};
use crate::{
    background,
    domain::{
        CpuComparison, DefinedDetail, DomainEvent, DomainState, JobInfo, JobOperation, JobType, LifecycleEvent,
        Migration, PausedReason, ResumedDetail, RunningReason, ShutOffReason, StartedDetail, StoppedDetail,
        SuspendedDetail, WhichJob,
    },
    libvirt::LibvirtError,
};

/// QEMU's default downtime limit in milliseconds.
const QEMU_DOWNTIME: u64 = 300;

/// Returns the job of a migration that has just started, for which libvirt does not report other values yet.
pub fn migration_job(operation: JobOperation) -> JobInfo {
    JobInfo {
        operation,
        ..JobInfo::begun()
    }
}

/// Functions for the source side.
impl FakeLibvirt {
    /// Returns all migrations that were started.
    pub fn migrations(&self) -> Vec<Migration> {
        self.lock().migrations.requested.clone()
    }

    /// Waits until this number of migrations were started.
    pub async fn migrations_begun(&self, count: usize) {
        let mut begun = self.lock().migrations.count.subscribe();
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = begun.wait_for(|begun| *begun >= count).await;
    }

    /// Sets the progress of the migration.
    pub fn set_job(&self, job: JobInfo) {
        self.lock().migrations.job = Some(job);
    }

    /// Emits the event for the next pass over the memory.
    pub fn migration_iterates(&self, iteration: i32) {
        self.lock().emit(&DomainEvent::MigrationIteration(iteration));
    }

    /// Returns the limits set by the last calls: downtime in milliseconds, and bandwidth in MiB/s.
    pub fn migration_limits(&self) -> (Option<u64>, Option<u64>) {
        let inner = self.lock();
        (inner.migrations.max_downtime, inner.migrations.bandwidth)
    }

    /// Pauses the guest for the final part of the transfer.
    pub fn guest_leaves(&self) {
        let mut inner = self.lock();
        inner.state = Some(DomainState::Paused(PausedReason::Migration));
        inner.happen(LifecycleEvent::Suspended(SuspendedDetail::Migrated));
    }

    /// Resumes the guest on this side because the migration has failed.
    pub fn guest_resumes(&self) {
        let mut inner = self.lock();
        inner.state = Some(DomainState::Running(RunningReason::MigrationCanceled));
        inner.happen(LifecycleEvent::Resumed(ResumedDetail::Migrated));
    }

    /// Completes the migration: the guest is on the target, and shut off on this side.
    pub fn guest_migrated_away(&self) {
        let mut inner = self.lock();
        inner.state = Some(DomainState::ShutOff(ShutOffReason::Migrated));
        inner.happen(LifecycleEvent::Stopped(StoppedDetail::Migrated));
        let job = inner.job_completes(JobOperation::OutgoingMigration);
        inner.emit(&DomainEvent::JobCompleted(Some(Box::new(job))));
        inner.migrations.end.send_replace(Some(Ok(())));
    }

    /// Breaks the post-copy connection for the rest of a switched guest, on either side.
    pub fn post_copy_breaks(&self) {
        let mut inner = self.lock();
        inner.state = Some(DomainState::Paused(PausedReason::PostCopyFailed));
        inner.happen(LifecycleEvent::Suspended(SuspendedDetail::PostCopyFailed));
    }

    /// Fails the migration with this message. The guest continues on this side.
    pub fn migration_fails(&self, message: &str) {
        let error = refusal("migrate", sys::VIR_ERR_OPERATION_FAILED, message);
        self.lock().migration_fails(error);
    }
}

/// Functions for the target side.
impl FakeLibvirt {
    /// Sets the result of CPU comparisons, which is `Fits` by default.
    pub fn set_cpu_comparison(&self, comparison: CpuComparison) {
        self.lock().migrations.comparison = Some(comparison);
    }

    /// Starts the arrival of a guest.
    pub fn guest_arrives(&self, definition: &str) {
        let mut inner = self.lock();
        inner.definition = Some(definition.to_owned());
        inner.state = Some(DomainState::Paused(PausedReason::Migration));
        inner.migrations.job = Some(JobInfo::incoming());
        inner.migrations.completed = None;
        inner.happen(LifecycleEvent::Started(StartedDetail::Migrated));
    }

    /// Completes the arrival of the guest, which is paused on this side.
    pub fn guest_is_complete(&self) {
        let mut inner = self.lock();
        inner.happen(LifecycleEvent::Defined(DefinedDetail::Added));
        inner.state = Some(DomainState::Paused(PausedReason::User));
        inner.happen(LifecycleEvent::Suspended(SuspendedDetail::Paused));
        inner.job_completes(JobOperation::IncomingMigration);
    }

    /// Lets the guest run on this side while the missing memory follows.
    pub fn guest_arrives_by_post_copy(&self) {
        let mut inner = self.lock();
        inner.happen(LifecycleEvent::Defined(DefinedDetail::Added));
        inner.state = Some(DomainState::Running(RunningReason::PostCopy));
        inner.happen(LifecycleEvent::Resumed(ResumedDetail::PostCopy));
    }

    /// Completes the post-copy transfer. libvirt keeps no completed job of it.
    pub fn post_copy_is_complete(&self) {
        let mut inner = self.lock();
        inner.migrations.job = None;
        inner.state = Some(DomainState::Running(RunningReason::Migrated));
        inner.happen(LifecycleEvent::Resumed(ResumedDetail::Migrated));
    }

    /// Ends an arrival and removes the domain.
    ///
    /// The source has aborted the migration (`Failed`), or the connection to its libvirt is lost (`Destroyed`).
    pub fn guest_does_not_arrive(&self, why: StoppedDetail) {
        let mut inner = self.lock();
        inner.migrations.job = None;
        inner.definition = None;
        inner.happen(LifecycleEvent::Stopped(why));
    }
}

impl FakeState {
    /// Completes the job successfully and returns its final statistics.
    fn job_completes(&mut self, operation: JobOperation) -> JobInfo {
        let job = self.migrations.job.take();
        let completed = JobInfo {
            job_type: JobType::Completed,
            ..job.unwrap_or_else(|| migration_job(operation))
        };
        self.migrations.completed = Some(completed.clone());
        completed
    }

    /// Fails an outgoing migration. Only the caller gets the error. An event is emitted only if the guest was paused.
    fn migration_fails(&mut self, error: LibvirtError) {
        self.migrations.job = None;
        if self.state == Some(DomainState::Paused(PausedReason::Migration)) {
            self.state = Some(DomainState::Running(RunningReason::MigrationCanceled));
            self.happen(LifecycleEvent::Resumed(ResumedDetail::Migrated));
        }
        self.migrations.end.send_replace(Some(Err(error)));
    }
}

/// Implementation of the libvirt calls.
impl FakeLibvirtConnection {
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
            if migration.post_copy && matches!(inner.state, Some(DomainState::Paused(_))) {
                return Err(refusal(
                    CALL,
                    sys::VIR_ERR_ARGUMENT_UNSUPPORTED,
                    "argument unsupported: post-copy migration is not supported with non-live or paused migration",
                ));
            }
            inner.migrations.requested.push(migration.clone());
            inner.migrations.completed = None;
            inner.migrations.job = Some(migration_job(JobOperation::OutgoingMigration));
            inner.migrations.end.send_replace(None);
            let requested = inner.migrations.requested.len();
            inner.migrations.count.send_replace(requested);
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
                // No relay waits for this notification, because the fake has no relay.
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
            if inner.state == Some(DomainState::Paused(PausedReason::PostCopy)) {
                let message = "Requested operation is not valid: cannot abort migration in post-copy mode";
                return Err(refusal(CALL, sys::VIR_ERR_OPERATION_INVALID, message));
            }
            let message = "operation aborted: job 'migration out' canceled by client";
            let error = refusal("migrate", sys::VIR_ERR_OPERATION_ABORTED, message);
            inner.migration_fails(error);
            Ok(())
        })
    }

    pub(super) fn fake_job(&self, which: WhichJob) -> Result<Option<JobInfo>, LibvirtError> {
        self.question("job", |inner| {
            // Unlike a missing domain, a domain that is not running has no job, as in libvirt.
            inner.defined("job")?;
            Ok(match which {
                WhichJob::Current => inner.migrations.job.clone(),
                WhichJob::Completed => inner.migrations.completed.clone(),
            })
        })
    }

    pub(super) fn fake_max_downtime(&self) -> Result<u64, LibvirtError> {
        self.question("max downtime", |inner| {
            inner.guest("max downtime")?;
            Ok(inner.migrations.max_downtime.unwrap_or(QEMU_DOWNTIME))
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
                .requested
                .last()
                .is_some_and(|migration| migration.post_copy);
            if inner.migrations.job.is_none() || !allowed {
                let message = "Requested operation is not valid: switching to post-copy requires migration to be \
                               started with VIR_MIGRATE_POSTCOPY flag";
                return Err(refusal(CALL, sys::VIR_ERR_OPERATION_INVALID, message));
            }
            inner.happen(LifecycleEvent::Suspended(SuspendedDetail::Migrated));
            inner.state = Some(DomainState::Paused(PausedReason::PostCopy));
            inner.happen(LifecycleEvent::Suspended(SuspendedDetail::PostCopy));
            Ok(())
        })
    }

    pub(super) fn fake_compare_cpu(&self) -> Result<CpuComparison, LibvirtError> {
        self.question("compare CPU", |inner| {
            Ok(inner.migrations.comparison.clone().unwrap_or(CpuComparison::Fits))
        })
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::facts::VirtType;
    use tokio::task::JoinSet;

    use super::*;
    use crate::domain::{CallError, DomainEvents, DomainHandle, InitialState};

    async fn running(libvirt: &FakeLibvirt) -> (DomainHandle, DomainEvents) {
        let (guest, events) = libvirt.connect("vm").await.unwrap();
        guest.define("<domain/>").await.unwrap();
        guest.create(InitialState::Running).await.unwrap();
        (guest, events)
    }

    /// Starts a migration that ends when the test requests it.
    async fn begin(libvirt: &FakeLibvirt, guest: &DomainHandle, post_copy: bool) -> JoinSet<Result<(), CallError>> {
        let before = libvirt.migrations().len();
        let guest = guest.clone();
        let migration = Migration {
            post_copy,
            ..Migration::default()
        };
        let mut moving = JoinSet::new();
        moving.spawn(async move { guest.migrate(migration).await });
        libvirt.migrations_begun(before + 1).await;
        moving
    }

    async fn ended(mut moving: JoinSet<Result<(), CallError>>) -> Result<(), CallError> {
        moving.join_next().await.unwrap().unwrap()
    }

    /// Returns the remaining events up to and including this event.
    async fn until(events: &mut DomainEvents, last: &str) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        while seen.last().is_none_or(|event| event != last) {
            seen.push(match events.recv().await.unwrap() {
                DomainEvent::Lifecycle(event) => event.to_string(),
                DomainEvent::JobCompleted(job) => format!("job {}", job.unwrap().operation),
                other => format!("{other:?}"),
            });
        }
        seen
    }

    #[tokio::test]
    async fn a_guest_leaves() {
        let libvirt = FakeLibvirt::default();
        let (guest, mut events) = running(&libvirt).await;
        until(&mut events, "Started Booted").await;
        assert_eq!(guest.job().await, Ok(None));
        let moving = begin(&libvirt, &guest, false).await;
        let mut job = guest.job().await.unwrap().unwrap();
        assert!(job.is_active());
        job.iteration = Some(3);
        libvirt.set_job(job.clone());
        assert_eq!(guest.job().await, Ok(Some(job)));
        assert_eq!(
            guest.migrate(Migration::default()).await.unwrap_err().reason(),
            "LibvirtRefused"
        );
        guest.set_max_downtime(200).await.unwrap();
        assert_eq!(guest.max_downtime().await, Ok(200));
        guest.set_bandwidth(0).await.unwrap();
        assert_eq!(libvirt.migration_limits(), (Some(200), Some(0)));
        libvirt.migration_iterates(4);
        libvirt.guest_leaves();
        libvirt.guest_migrated_away();
        assert_eq!(ended(moving).await, Ok(()));
        assert_eq!(guest.state().await, Ok(DomainState::ShutOff(ShutOffReason::Migrated)));
        let completed = guest.completed_job().await.unwrap().unwrap();
        assert_eq!((completed.job_type, completed.iteration), (JobType::Completed, Some(3)));
        let seen = until(&mut events, "job Outgoing migration").await;
        assert_eq!(
            seen,
            [
                "MigrationIteration(4)",
                "Suspended Migrated",
                "Stopped Migrated",
                "job Outgoing migration"
            ]
        );
    }

    #[tokio::test]
    async fn a_guest_stays() {
        let libvirt = FakeLibvirt::default();
        let (guest, mut events) = running(&libvirt).await;
        assert_eq!(guest.abort_job().await.unwrap_err().reason(), "LibvirtRefused");
        let moving = begin(&libvirt, &guest, false).await;
        guest.abort_job().await.unwrap();
        let aborted = ended(moving).await.unwrap_err();
        assert!(
            aborted.is_reply() && aborted.to_string().contains("canceled"),
            "{aborted}"
        );
        assert_eq!(guest.state().await, Ok(DomainState::Running(RunningReason::Booted)));
        let moving = begin(&libvirt, &guest, false).await;
        libvirt.guest_leaves();
        libvirt.migration_fails("the target is gone");
        assert!(ended(moving).await.is_err());
        assert_eq!(
            guest.state().await,
            Ok(DomainState::Running(RunningReason::MigrationCanceled))
        );
        assert_eq!((guest.job().await, guest.completed_job().await), (Ok(None), Ok(None)));
        let seen = until(&mut events, "Resumed Migrated").await;
        assert_eq!(&seen[3..], ["Suspended Migrated", "Resumed Migrated"]);
    }

    #[tokio::test]
    async fn fake_migration_continues_without_a_waiting_caller() {
        let libvirt = FakeLibvirt::default();
        let (guest, _events) = running(&libvirt).await;
        let moving = begin(&libvirt, &guest, false).await;
        libvirt.daemon_ends();
        let lost = ended(moving).await.unwrap_err();
        assert!(!lost.is_reply(), "{lost}");
        let (guest, _events) = libvirt.connect("vm").await.unwrap();
        assert!(guest.job().await.unwrap().is_some());
        libvirt.guest_migrated_away();
        assert_eq!(libvirt.state(), Some(DomainState::ShutOff(ShutOffReason::Migrated)));
    }

    #[tokio::test]
    async fn a_guest_arrives_or_does_not() {
        let libvirt = FakeLibvirt::default();
        let (guest, mut events) = libvirt.connect("vm").await.unwrap();
        libvirt.guest_arrives("<domain/>");
        assert_eq!(guest.state().await, Ok(DomainState::Paused(PausedReason::Migration)));
        assert_eq!(
            guest.job().await.unwrap().unwrap().operation,
            JobOperation::IncomingMigration
        );
        libvirt.guest_does_not_arrive(StoppedDetail::Failed);
        assert_eq!(guest.state().await, Err(CallError::NoDomain));
        libvirt.guest_arrives("<domain/>");
        libvirt.guest_is_complete();
        assert_eq!(guest.state().await, Ok(DomainState::Paused(PausedReason::User)));
        let completed = guest.completed_job().await.unwrap().unwrap();
        assert_eq!(completed.operation, JobOperation::IncomingMigration);
        guest.resume().await.unwrap();
        let seen = until(&mut events, "Resumed Unpaused").await;
        let whole = [
            "Started Migrated",
            "Defined Added",
            "Suspended Paused",
            "Resumed Unpaused",
        ];
        assert_eq!(
            (&seen[..2], &seen[2..]),
            (
                &["Started Migrated".into(), "Stopped Failed".into()][..],
                &whole.map(String::from)[..]
            )
        );
    }

    #[tokio::test]
    async fn post_copy_has_no_way_back() {
        let libvirt = FakeLibvirt::default();
        let (guest, _events) = running(&libvirt).await;
        let moving = begin(&libvirt, &guest, true).await;
        guest.start_post_copy().await.unwrap();
        assert_eq!(guest.state().await, Ok(DomainState::Paused(PausedReason::PostCopy)));
        assert_eq!(guest.abort_job().await.unwrap_err().reason(), "LibvirtRefused");
        libvirt.guest_migrated_away();
        assert_eq!(ended(moving).await, Ok(()));

        let target = FakeLibvirt::default();
        target.guest_arrives("<domain/>");
        target.guest_arrives_by_post_copy();
        assert_eq!(target.state(), Some(DomainState::Running(RunningReason::PostCopy)));
        target.post_copy_is_complete();
        assert_eq!(target.state(), Some(DomainState::Running(RunningReason::Migrated)));
        let (guest, _events) = target.connect("vm").await.unwrap();
        assert_eq!((guest.job().await, guest.completed_job().await), (Ok(None), Ok(None)));
        let no = CpuComparison::Incompatible {
            message: "no".into(),
            features: vec!["avx2".into()],
        };
        assert_eq!(
            guest.compare_cpu("<cpu/>", VirtType::Kvm).await,
            Ok(CpuComparison::Fits)
        );
        target.set_cpu_comparison(no.clone());
        assert_eq!(guest.compare_cpu("<cpu/>", VirtType::Kvm).await, Ok(no));
    }
}
