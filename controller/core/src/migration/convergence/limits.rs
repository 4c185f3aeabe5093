//! What a migration may take and do, from what was in force when it began.

use std::time::Duration;

use drydock_api::kubevirt::migration::MigrationConfiguration;

use crate::{configuration::Problem, quantity};

const GIB: u64 = 1 << 30;
/// How long the guest may stand still, unless something else is said (KubeVirt's `maxDowntimeMs`).
const MAX_DOWNTIME: Duration = Duration::from_millis(900);
/// The longest downtime that libvirt takes: 2,000,000 ms.
pub const LONGEST_DOWNTIME_MS: u64 = 2_000_000;
/// Time for each GiB, and without progress, unless something else is said (KubeVirt's numbers).
const TIMEOUT_SECONDS: i64 = 150;

/// What a migration may take and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time for each GiB; `None`: no limit.
    pub completion_per_gib: Option<Duration>,
    /// Time without progress; `None`: no limit.
    pub progress: Option<Duration>,
    /// How long the guest may stand still at the end.
    pub max_downtime: Duration,
    /// QEMU slows the guest down by itself when it changes too much.
    pub auto_converge: bool,
    /// The guest may run on the target before all of it is there.
    pub post_copy: bool,
    /// The guest may be paused or post-copied. Without this, post-copy is not begun either (KubeVirt's rule).
    pub workload_disruption: bool,
    /// Bytes of memory and copied disks.
    pub total: u64,
    /// Bytes a second that it may send; `None`: no limit.
    pub bandwidth: Option<u64>,
}

impl Limits {
    /// What `configuration` says, as it is recorded with the migration, for so many bytes. What it
    /// leaves out is as KubeVirt has it; 0 is no limit.
    ///
    /// # Errors
    /// A value that is not allowed.
    pub fn new(configuration: &MigrationConfiguration, total: u64) -> Result<Self, Problem> {
        let post_copy = configuration.allow_post_copy.unwrap_or(false);
        let max_downtime = match configuration.max_downtime_ms {
            None => MAX_DOWNTIME,
            Some(value) if (1..=LONGEST_DOWNTIME_MS).contains(&value) => Duration::from_millis(value),
            Some(value) => {
                return Err(Problem::new(
                    "maxDowntimeMs",
                    value.to_string(),
                    format!("milliseconds from 1 to {LONGEST_DOWNTIME_MS}"),
                ));
            }
        };
        Ok(Self {
            completion_per_gib: seconds("completionTimeoutPerGiB", configuration.completion_timeout_per_gib)?,
            progress: seconds("progressTimeout", configuration.progress_timeout)?,
            max_downtime,
            auto_converge: configuration.allow_auto_converge.unwrap_or(false),
            post_copy,
            workload_disruption: configuration.allow_workload_disruption.unwrap_or(post_copy),
            total,
            bandwidth: bandwidth(configuration.bandwidth_per_migration.as_deref())?,
        })
    }

    /// How long it may take, by its size, of which a part of a GiB counts as a whole one.
    pub fn completion_time(&self) -> Option<Duration> {
        let gib = self.total.div_ceil(GIB).max(1);
        let times = u32::try_from(gib).unwrap_or(u32::MAX);
        self.completion_per_gib.map(|time| time.saturating_mul(times))
    }
}

fn seconds(field: &str, value: Option<i64>) -> Result<Option<Duration>, Problem> {
    let value = value.unwrap_or(TIMEOUT_SECONDS);
    match u64::try_from(value) {
        Ok(0) => Ok(None),
        Ok(value) => Ok(Some(Duration::from_secs(value))),
        Err(_) => Err(Problem::new(
            field,
            value.to_string(),
            "whole seconds, or 0 for no limit",
        )),
    }
}

fn bandwidth(text: Option<&str>) -> Result<Option<u64>, Problem> {
    let Some(text) = text else { return Ok(None) };
    match quantity::bytes(text) {
        Some(bytes) => Ok((bytes > 0).then_some(bytes)),
        None => Err(Problem::new(
            "bandwidthPerMigration",
            text,
            "bytes a second such as 64Mi, or 0 for no limit",
        )),
    }
}
