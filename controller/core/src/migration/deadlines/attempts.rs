//! When a migration that Drydock makes itself is tried again after it has failed, and when no more.
//!
//! As KubeVirt, which counts only migrations to empty a node or to update a workload: 20 s, and
//! twice as long after each further failure. KubeVirt counts what history it keeps, five
//! migrations, so its wait ends at 320 s and it never stops trying. Here that is the longest wait,
//! and there is a last attempt, after which people are told instead.
//!
//! A wait makes sense as long as nothing else would let an attempt succeed. Once something changes that decides about it
//! ([`circumstances`](crate::placement::circumstances)), the next attempt is made at once; one for each change, as the
//! next failure is that of the changed circumstances.
//!
//! | failures | nothing has changed since the last | something has |
//! |---|---|---|
//! | none | goes | goes |
//! | fewer than 10 | waits for 20 s, 40 s ... 320 s | goes at once |
//! | 10 or more | goes no more | waits for 320 s: whatever changes again and again is no busy loop |

use std::time::Duration;

use jiff::Timestamp;

use super::after;
use crate::migration::purpose::Purpose;

/// The wait after the first failure (KubeVirt's number).
const FIRST: Duration = Duration::from_secs(20);
/// The longest wait: where KubeVirt's ends.
const LONGEST: Duration = Duration::from_secs(320);
/// As many attempts as are made: half an hour of waiting in all, so that a fault that passes, such
/// as a node that restarts, does not end them.
const MOST: u32 = 10;

/// How failed migrations of one guest are followed by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// The wait after the first failure.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// As many attempts as are made in all.
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

/// What is known of the migrations of a guest that have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// How many since the last success, or since it was asked for.
    pub count: u32,
    /// When the last one has failed.
    pub last: Option<Timestamp>,
    /// Something that decides has changed since then.
    pub outdated: bool,
}

/// Whether a guest's next migration may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Now.
    Go,
    /// Not before this time.
    WaitUntil(Timestamp),
    /// No more, until somebody changes something.
    GiveUp {
        /// Why, in one CamelCase word.
        reason: &'static str,
        /// The same for people.
        sentence: String,
    },
}

impl Attempts {
    /// What follows after these failures. What somebody asked for always goes: it is tried once.
    pub fn next(&self, purpose: Purpose, failures: Failures, now: Timestamp) -> Retry {
        let reason = match purpose {
            Purpose::Asked => return Retry::Go,
            Purpose::Evacuation => "CannotEvacuate",
            Purpose::WorkloadUpdate => "CannotUpdateWorkload",
        };
        if failures.count >= self.most && !failures.outdated {
            return Retry::GiveUp {
                reason,
                sentence: format!(
                    "all of {} attempts to migrate the guest have failed, and no more are made until it is asked for again \
                     or something changes that decides about it",
                    self.most
                ),
            };
        }
        let wait = match failures.outdated {
            true if failures.count < self.most => return Retry::Go,
            true => self.longest,
            false => self.wait(failures.count),
        };
        match failures.last.map(|last| after(last, wait)) {
            Some(until) if failures.count > 0 && now < until => Retry::WaitUntil(until),
            _ => Retry::Go,
        }
    }

    /// How long the attempt after so many failures waits.
    pub(super) fn wait(&self, failures: u32) -> Duration {
        let times = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(times).min(self.longest)
    }
}
