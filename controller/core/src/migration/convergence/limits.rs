//! Limits of a migration, from the configuration in force when it began.

use std::time::Duration;

use drydock_api::kubevirt::migration::MigrationConfiguration;

use crate::{
    configuration::{InvalidValue, LONGEST_DOWNTIME_MS},
    quantity,
};

const GIB: u64 = 1 << 30;
/// Default maximum downtime (KubeVirt's `maxDowntimeMs`).
const MAX_DOWNTIME: Duration = Duration::from_millis(900);
/// Default for the completion timeout per GiB and the progress timeout, in seconds (KubeVirt's values).
const TIMEOUT_SECONDS: i64 = 150;

/// Limits and permissions of one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvergenceLimits {
    /// Completion timeout per GiB; `None`: no limit.
    pub completion_per_gib: Option<Duration>,
    /// Maximum time without progress; `None`: no limit.
    pub progress: Option<Duration>,
    /// Maximum downtime of the guest at the switchover.
    pub max_downtime: Duration,
    /// QEMU may throttle the guest if it dirties memory too fast.
    pub auto_converge: bool,
    /// The guest may run on the target before all of its memory has arrived.
    pub post_copy: bool,
    /// The guest may be paused or switched to post-copy. Without this, post-copy is not started either (KubeVirt's
    /// rule).
    pub workload_disruption: bool,
    /// Total bytes of memory and copied disks.
    pub total: u64,
    /// Maximum bandwidth in bytes per second; `None`: no limit.
    pub bandwidth: Option<u64>,
}

impl ConvergenceLimits {
    /// Builds the limits from the `configuration` recorded with the migration and its `total` bytes. Unset fields get
    /// KubeVirt's defaults; 0 means no limit.
    ///
    /// # Errors
    /// If a value is not allowed.
    pub fn new(configuration: &MigrationConfiguration, total: u64) -> Result<Self, InvalidValue> {
        let post_copy = configuration.allow_post_copy.unwrap_or(false);
        let max_downtime = match configuration.max_downtime_ms {
            None => MAX_DOWNTIME,
            Some(value) if (1..=LONGEST_DOWNTIME_MS).contains(&value) => Duration::from_millis(value),
            Some(value) => {
                return Err(InvalidValue::new(
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

    /// Returns the completion timeout for the migration's size. A partial GiB counts as a whole one.
    pub fn completion_time(&self) -> Option<Duration> {
        let gib = self.total.div_ceil(GIB).max(1);
        let times = u32::try_from(gib).unwrap_or(u32::MAX);
        self.completion_per_gib.map(|time| time.saturating_mul(times))
    }
}

fn seconds(field: &str, value: Option<i64>) -> Result<Option<Duration>, InvalidValue> {
    let value = value.unwrap_or(TIMEOUT_SECONDS);
    match u64::try_from(value) {
        Ok(0) => Ok(None),
        Ok(value) => Ok(Some(Duration::from_secs(value))),
        Err(_) => Err(InvalidValue::new(
            field,
            value.to_string(),
            "whole seconds, or 0 for no limit",
        )),
    }
}

fn bandwidth(text: Option<&str>) -> Result<Option<u64>, InvalidValue> {
    let Some(text) = text else { return Ok(None) };
    match quantity::bytes(text) {
        Some(bytes) => Ok((bytes > 0).then_some(bytes)),
        None => Err(InvalidValue::new(
            "bandwidthPerMigration",
            text,
            "bytes per second such as 64Mi, or 0 for no limit",
        )),
    }
}
