//! Predicts whether and when a migration ends, from the dirty rate and the bandwidth.
//!
//! Each pass sends the memory that was dirtied during the previous pass. So a pass over P bytes at bandwidth B leaves
//! D·P/B for the next pass, where D is the dirty rate per second. The rest shrinks if D < B, and QEMU switches over
//! once the rest can be sent within the downtime.

use std::time::Duration;

use jiff::Timestamp;

/// Estimates beyond this are not reported as a date.
const FARTHEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Whether and when a migration will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// There is not enough data.
    Unknown,
    /// The migration ends in about this time, if the rates stay the same.
    Ends(Duration),
    /// The migration does not end, unless the dirty rate drops or an action is taken.
    Never,
}

impl Outlook {
    /// Returns the estimated end, never before `now`. `None`: unknown, never, or more than a year away.
    pub fn end(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Ends(left) if left <= FARTHEST => now.checked_add(left).ok(),
            Self::Ends(_) | Self::Never | Self::Unknown => None,
        }
    }
}

/// A rate in bytes per second, as a moving average in which each sample has a weight of 2/5 (KubeVirt's `ewmaAlpha`,
/// 0.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AverageRate(Option<u64>);

impl AverageRate {
    pub(super) fn get(self) -> Option<u64> {
        self.0
    }

    pub(super) fn learn(&mut self, sample: Option<u64>) {
        let Some(sample) = sample else { return };
        let average = |before: u64| narrow((u128::from(before) * 3 + u128::from(sample) * 2) / 5);
        self.0 = Some(self.0.map_or(sample, average));
    }
}

/// Returns bytes per second; `None` if nothing was sent or no time has passed.
pub(super) fn per_second(bytes: u64, took: Duration) -> Option<u64> {
    let rate = (u128::from(bytes) * 1_000_000_000).checked_div(took.as_nanos())?;
    (rate > 0).then(|| narrow(rate))
}

/// The current pass over memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pass {
    number: u64,
    size: u64,
}

impl Pass {
    /// Updates the pass with the memory that remains in it.
    pub(super) fn learn(&mut self, number: u64, remaining: u64) {
        if number == self.number {
            self.size = self.size.max(remaining);
        } else {
            *self = Self {
                number,
                size: remaining,
            };
        }
    }

    /// Returns the bytes at the beginning of the pass, as far as observed.
    pub(super) fn size(self) -> u64 {
        self.size
    }
}

/// Inputs of the outlook: bytes, bytes per second, and the downtime currently allowed.
pub(super) struct ForecastInput {
    pub(super) remaining: u64,
    pub(super) bandwidth: u64,
    pub(super) dirty: u64,
    pub(super) pass: u64,
    pub(super) downtime: Duration,
}

impl ForecastInput {
    pub(super) fn outlook(&self) -> Outlook {
        let bandwidth = u128::from(self.bandwidth);
        if bandwidth == 0 {
            return Outlook::Unknown;
        }
        let this_pass = millis(u128::from(self.remaining), bandwidth);
        let dirty = u128::from(self.dirty);
        let next = dirty * u128::from(self.pass) / bandwidth;
        let fits = bandwidth.saturating_mul(self.downtime.as_millis()) / 1000;
        if next <= fits {
            return Outlook::Ends(this_pass.saturating_add(millis(next, bandwidth)));
        }
        match bandwidth.checked_sub(dirty) {
            None | Some(0) => Outlook::Never,
            Some(gain) => {
                let passes = millis(next - fits, gain);
                let last = millis(fits, bandwidth);
                Outlook::Ends(this_pass.saturating_add(passes).saturating_add(last))
            }
        }
    }
}

/// Returns the time for this number of bytes at a rate that is not 0.
fn millis(bytes: u128, rate: u128) -> Duration {
    let time = bytes.saturating_mul(1000) / rate.max(1);
    Duration::from_millis(narrow(time))
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
