//! The state of a fake libvirt's migrations, which [`fake_migration`](super::fake_migration) changes.

use tokio::sync::watch;

use crate::{
    domain::{CpuComparison, JobInfo, JobOperation, Migration},
    libvirt::LibvirtError,
};

/// State of a fake libvirt's migrations.
#[derive(Debug, Default)]
pub(super) struct FakeMigrations {
    /// All migrations requested so far.
    pub(super) requested: Vec<Migration>,
    /// Result of the last migration; `None` while it is running.
    pub(super) end: watch::Sender<Option<Result<(), LibvirtError>>>,
    /// Number of migrations requested so far.
    pub(super) count: watch::Sender<usize>,
    pub(super) job: Option<JobInfo>,
    pub(super) completed: Option<JobInfo>,
    pub(super) max_downtime: Option<u64>,
    pub(super) bandwidth: Option<u64>,
    pub(super) comparison: Option<CpuComparison>,
}

impl FakeMigrations {
    /// Returns whether an outgoing migration is running.
    pub(super) fn is_outgoing(&self) -> bool {
        let job = self.job.as_ref();
        job.is_some_and(|job| job.operation == JobOperation::OutgoingMigration)
    }
}
