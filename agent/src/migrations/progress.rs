//! Converts libvirt's statistics of a migration to metrics and to the input of decisions.

use std::time::Duration;

use drydock_core::migration::convergence::Sample;
use drydock_host::domain::JobInfo;

use crate::metrics::TransferProgress;

/// Converts libvirt's statistics to metrics.
pub(super) fn measured(job: &JobInfo) -> TransferProgress {
    TransferProgress {
        processed: job.data.processed,
        remaining: job.data.remaining,
        total: job.data.total,
        dirtied: job.dirty_rate,
        memory_rate: job.memory_rate,
        disk_rate: job.disk_rate,
    }
}

/// Converts libvirt's statistics to a sample for the monitor. `paused` and `post_copy` describe the mode of the
/// migration.
pub(super) fn sample(job: &JobInfo, paused: bool, post_copy: bool) -> Sample {
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
