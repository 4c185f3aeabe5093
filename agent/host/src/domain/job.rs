//! libvirt's statistics of a domain job, such as a migration, during and after the job.

use std::{collections::BTreeMap, ffi::CStr, time::Duration};

use virt_sys as sys;

use super::{Parameter, ParameterValue, named_enum::named_enum};

named_enum! {
    /// State of a job: running, or the way in which it ended.
    JobType {
        None = sys::VIR_DOMAIN_JOB_NONE => "None",
        Bounded = sys::VIR_DOMAIN_JOB_BOUNDED => "Bounded",
        Unbounded = sys::VIR_DOMAIN_JOB_UNBOUNDED => "Unbounded",
        Completed = sys::VIR_DOMAIN_JOB_COMPLETED => "Completed",
        Failed = sys::VIR_DOMAIN_JOB_FAILED => "Failed",
        Cancelled = sys::VIR_DOMAIN_JOB_CANCELLED => "Cancelled",
    }
}

named_enum! {
    /// Kind of a job.
    JobOperation {
        Start = sys::VIR_DOMAIN_JOB_OPERATION_START => "Start",
        Save = sys::VIR_DOMAIN_JOB_OPERATION_SAVE => "Save",
        Restore = sys::VIR_DOMAIN_JOB_OPERATION_RESTORE => "Restore",
        IncomingMigration = sys::VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN => "Incoming migration",
        OutgoingMigration = sys::VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT => "Outgoing migration",
        Snapshot = sys::VIR_DOMAIN_JOB_OPERATION_SNAPSHOT => "Snapshot",
        SnapshotRevert = sys::VIR_DOMAIN_JOB_OPERATION_SNAPSHOT_REVERT => "Snapshot revert",
        Dump = sys::VIR_DOMAIN_JOB_OPERATION_DUMP => "Dump",
        Backup = sys::VIR_DOMAIN_JOB_OPERATION_BACKUP => "Backup",
        SnapshotDelete = sys::VIR_DOMAIN_JOB_OPERATION_SNAPSHOT_DELETE => "Snapshot delete",
    }
}

/// Progress of a job in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobAmount {
    /// Total number of bytes.
    pub total: u64,
    /// Number of bytes sent so far. Some bytes are sent more than once.
    pub processed: u64,
    /// Number of bytes left to send, as far as known: the guest keeps changing its memory.
    pub remaining: u64,
}

/// Selects one of a domain's jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhichJob {
    /// The running job.
    Current,
    /// The last completed job.
    Completed,
}

/// A job of a domain. Values that libvirt does not report, or does not report yet, are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// State of the job: running, or the way in which it ended.
    pub job_type: JobType,
    /// Kind of the job.
    pub operation: JobOperation,
    /// Time for which the job has been running, or total time of a job that has ended.
    pub elapsed: Option<Duration>,
    /// libvirt's estimate of the remaining time. QEMU does not report an estimate.
    pub remaining: Option<Duration>,
    /// Time for which the guest was paused. While the job runs: the expected pause if the guest switched over now.
    pub downtime: Option<Duration>,
    /// Time that QEMU needed to set up the job.
    pub setup: Option<Duration>,
    /// Progress of memory and copied disks together.
    pub data: JobAmount,
    /// Progress of the memory.
    pub memory: JobAmount,
    /// Progress of the copied disks.
    pub disk: JobAmount,
    /// Transfer rate of memory in bytes per second.
    pub memory_rate: Option<u64>,
    /// Transfer rate of disks in bytes per second.
    pub disk_rate: Option<u64>,
    /// Number of bytes of memory that the guest changes per second, as measured in the last pass.
    pub dirty_rate: Option<u64>,
    /// Number of the current pass over the memory.
    pub iteration: Option<u64>,
    /// CPU throttling of the guest in percent; 0 or `None` if it is not throttled.
    pub throttle: Option<u32>,
    /// Number of pages that the guest requested in post-copy.
    pub post_copy_requests: Option<u64>,
    /// Whether the job succeeded; `None` if the job has not ended or libvirt does not report the result.
    pub success: Option<bool>,
    /// Error message of a failed job.
    pub error: Option<String>,
}

impl JobInfo {
    /// Converts libvirt's job type and parameters; `None` if the domain has no job.
    ///
    /// Unknown parameters and implausible values are ignored.
    pub fn from_parameters(job_type: JobType, parameters: &[Parameter]) -> Option<Self> {
        if job_type == JobType::None {
            return None;
        }
        let named = ByName(
            parameters
                .iter()
                .map(|parameter| (parameter.name.as_str(), &parameter.value))
                .collect(),
        );
        let page = named.number(sys::VIR_DOMAIN_JOB_MEMORY_PAGE_SIZE);
        let dirty_pages = named.number(sys::VIR_DOMAIN_JOB_MEMORY_DIRTY_RATE);
        let operation = named
            .number(sys::VIR_DOMAIN_JOB_OPERATION)
            .and_then(|raw| i32::try_from(raw).ok());
        Some(Self {
            job_type,
            operation: JobOperation::from_raw(operation.unwrap_or(0)),
            elapsed: named.milliseconds(sys::VIR_DOMAIN_JOB_TIME_ELAPSED),
            remaining: named.milliseconds(sys::VIR_DOMAIN_JOB_TIME_REMAINING),
            downtime: named.milliseconds(sys::VIR_DOMAIN_JOB_DOWNTIME),
            setup: named.milliseconds(sys::VIR_DOMAIN_JOB_SETUP_TIME),
            data: named.amount(
                sys::VIR_DOMAIN_JOB_DATA_TOTAL,
                sys::VIR_DOMAIN_JOB_DATA_PROCESSED,
                sys::VIR_DOMAIN_JOB_DATA_REMAINING,
            ),
            memory: named.amount(
                sys::VIR_DOMAIN_JOB_MEMORY_TOTAL,
                sys::VIR_DOMAIN_JOB_MEMORY_PROCESSED,
                sys::VIR_DOMAIN_JOB_MEMORY_REMAINING,
            ),
            disk: named.amount(
                sys::VIR_DOMAIN_JOB_DISK_TOTAL,
                sys::VIR_DOMAIN_JOB_DISK_PROCESSED,
                sys::VIR_DOMAIN_JOB_DISK_REMAINING,
            ),
            memory_rate: named.number(sys::VIR_DOMAIN_JOB_MEMORY_BPS),
            disk_rate: named.number(sys::VIR_DOMAIN_JOB_DISK_BPS),
            dirty_rate: dirty_pages.zip(page).map(|(pages, size)| pages.saturating_mul(size)),
            iteration: named.number(sys::VIR_DOMAIN_JOB_MEMORY_ITERATION),
            throttle: named
                .number(sys::VIR_DOMAIN_JOB_AUTO_CONVERGE_THROTTLE)
                .and_then(|percent| u32::try_from(percent).ok()),
            post_copy_requests: named.number(sys::VIR_DOMAIN_JOB_MEMORY_POSTCOPY_REQS),
            success: named.number(sys::VIR_DOMAIN_JOB_SUCCESS).map(|success| success != 0),
            error: named.text(sys::VIR_DOMAIN_JOB_ERRMSG),
        })
    }

    /// Returns an incoming migration in progress. Only the source's libvirt has details of the migration.
    pub(crate) fn incoming() -> Self {
        Self {
            operation: JobOperation::IncomingMigration,
            ..Self::begun()
        }
    }

    /// Returns a job that has just started and has no details yet.
    pub(crate) fn begun() -> Self {
        Self {
            job_type: JobType::Unbounded,
            operation: JobOperation::Unknown(0),
            elapsed: None,
            remaining: None,
            downtime: None,
            setup: None,
            data: JobAmount::default(),
            memory: JobAmount::default(),
            disk: JobAmount::default(),
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

    /// Returns whether the job is running.
    pub fn is_active(&self) -> bool {
        matches!(self.job_type, JobType::Bounded | JobType::Unbounded)
    }
}

/// Parameters, indexed by name.
struct ByName<'a>(BTreeMap<&'a str, &'a ParameterValue>);

impl ByName<'_> {
    fn value(&self, name: &CStr) -> Option<&ParameterValue> {
        self.0.get(name.to_str().ok()?).copied()
    }

    fn number(&self, name: &CStr) -> Option<u64> {
        match self.value(name)? {
            ParameterValue::Number(number) => u64::try_from(*number).ok(),
            ParameterValue::Text(_) | ParameterValue::Other => None,
        }
    }

    fn milliseconds(&self, name: &CStr) -> Option<Duration> {
        self.number(name).map(Duration::from_millis)
    }

    fn text(&self, name: &CStr) -> Option<String> {
        match self.value(name)? {
            ParameterValue::Text(text) => Some(text.clone()),
            ParameterValue::Number(_) | ParameterValue::Other => None,
        }
    }

    fn amount(&self, total: &CStr, processed: &CStr, remaining: &CStr) -> JobAmount {
        JobAmount {
            total: self.number(total).unwrap_or(0),
            processed: self.number(processed).unwrap_or(0),
            remaining: self.number(remaining).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests;
