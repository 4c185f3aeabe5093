//! Decides when an automatic migration is retried after a failure, and when no more.
//!
//! Follows KubeVirt, which counts only migrations that evacuate a node or update a workload: 20 s, doubled after each
//! further failure. KubeVirt counts the migrations that it keeps as history, which are five. So its wait ends at 320 s,
//! and it retries without end. Here, 320 s is the longest wait, and the number of attempts is limited, after which
//! users are notified instead.
//!
//! A wait makes sense only as long as nothing changes that could let an attempt succeed. When a change affects the
//! outcome ([`circumstances`](crate::placement::circumstances)), the next attempt follows at once. That is one attempt
//! per change, since the next failure belongs to the changed circumstances.
//!
//! | failures | nothing has changed since the last | something has changed |
//! |---|---|---|
//! | none | starts | starts |
//! | fewer than 10 | waits for 20 s, 40 s ... 320 s | starts at once |
//! | 10 or more | no more attempts | waits for 320 s, so that constant changes cause no busy loop |

use std::time::Duration;

use jiff::Timestamp;

use super::after;
use crate::migration::purpose::MigrationPurpose;

/// Wait after the first failure (KubeVirt's value).
const FIRST: Duration = Duration::from_secs(20);
/// Longest wait: KubeVirt's last one.
const LONGEST: Duration = Duration::from_secs(320);
/// Maximum number of attempts: half an hour of waiting in total, so that a temporary fault, such as a node restart,
/// does not use them up.
const MOST: u32 = 10;

/// Retry policy for the migrations of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// Wait after the first failure.
    pub first: Duration,
    /// Longest wait.
    pub longest: Duration,
    /// Maximum number of attempts.
    pub most: u32,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            first: FIRST,
            longest: LONGEST,
            most: MOST,
        }
    }
}

/// Failed migrations of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Number of failures since the last success, or since the migration was requested.
    pub count: u32,
    /// Time of the last failure.
    pub last: Option<Timestamp>,
    /// Whether circumstances that affect the outcome have changed since the last failure.
    pub outdated: bool,
}

/// Whether a guest's next migration may be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The migration may be created now.
    Go,
    /// The migration may not be created before this time.
    WaitUntil(Timestamp),
    /// No migration is created until something changes.
    GiveUp {
        /// CamelCase reason.
        reason: &'static str,
        /// Human-readable message.
        sentence: String,
    },
}

impl Attempts {
    /// Returns whether the next migration may be created after these failures. A migration requested by a user always
    /// starts: it is tried once.
    pub fn next(&self, purpose: MigrationPurpose, failures: Failures, now: Timestamp) -> Retry {
        let reason = match purpose {
            MigrationPurpose::UserRequest => return Retry::Go,
            MigrationPurpose::Evacuation => "CannotEvacuate",
            MigrationPurpose::WorkloadUpdate => "CannotUpdateWorkload",
        };
        if failures.count >= self.most && !failures.outdated {
            return Retry::GiveUp {
                reason,
                sentence: format!(
                    "all {} attempts to migrate the guest have failed; no more attempts are made until the migration \
                     is requested again, or until a relevant change of nodes, guest or configuration",
                    self.most
                ),
            };
        }
        let wait = match failures.outdated {
            true if failures.count < self.most => return Retry::Go,
            true => self.longest,
            false => self.wait(failures.count),
        };
        // A failure with a later time was recorded before the clock was set back.
        let last = failures.last.filter(|last| *last <= after(now, wait));
        match last.map(|last| after(last, wait)) {
            Some(until) if failures.count > 0 && now < until => Retry::WaitUntil(until),
            _ => Retry::Go,
        }
    }

    /// Returns the wait of the attempt after this number of failures.
    pub(super) fn wait(&self, failures: u32) -> Duration {
        let times = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(times).min(self.longest)
    }
}
