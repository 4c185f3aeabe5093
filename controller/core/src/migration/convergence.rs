//! Decides how to intervene in a running migration, based on libvirt's job statistics.
//!
//! ```text
//!  sample ──▶ rates, passes, progress ──▶ outlook: ends in 7 s | never | unknown
//!                                            │
//!   ends in time ── nothing                  ├─ never, or late: raise the downtime, step by step
//!   post-copy ───── nothing, ever            ├─ never, for 30 s: post-copy, else pause, if allowed
//!                                            ├─ time exceeded:    post-copy, else pause, else abort
//!                                            └─ no progress:      abort
//! ```
//!
//! KubeVirt acts when the acceptable time is exceeded (post-copy if allowed, else a pause that doubles the time, else
//! abort). It aborts when the remaining bytes have not fallen below their previous minimum for the progress timeout.
//! Drydock does the same, with these differences:
//!
//! - A migration that will never end, because the guest dirties more than can be sent and more than its downtime
//!   covers, is switched to post-copy or paused, if allowed, as soon as that is certain, not only after minutes of
//!   useless sending. It is never aborted earlier, because the dirty rate may drop.
//! - A guest that dirties little stands still for 100 ms, not for 300 ms: the limit is low until the first pass has ended.
//! - The downtime is raised first, within its limit. KubeVirt leaves it at 300 ms, except for an alpha feature.
//! - A migration that converges and still sends is not aborted for lack of progress: late passes over a large memory
//!   end with little left, and none of the following passes falls below that for longer than the timeout.
//! - Disks and memory have separate minimums, because the remaining bytes rise when memory begins after the disks.
//! - A guest that allows post-copy is not paused because its disks take long: they get twice the time, and once memory
//!   is sent, the guest is switched to post-copy.
//! - The completion timeout is counted per GiB, not per GB.
//!
//! Time is libvirt's own count since the start of the job. Clock changes do not affect it, and it continues when the
//! agent is replaced.

mod forecast;
mod limits;
mod text;

use std::time::Duration;

use drydock_api::kubevirt::migration::{MigrationMode, MigrationProgress};
use jiff::Timestamp;

pub use forecast::Outlook;
use forecast::{AverageRate, Pass};
pub use limits::ConvergenceLimits;
pub use text::{WrittenProgress, summary, worth_writing};

use super::unsent::NOTHING_SENT;

/// The downtime limit of the first pass over the memory, unless a lower maximum is configured. QEMU stops the guest as soon
/// as it expects to send the rest within the limit, so even an idle guest stands still for about this long.
///
/// A lower limit costs time in which the guest runs. `hack/bench migration` on two processors without KVM, once with
/// 200 ms and twice with 100 ms:
///
/// | measured | 200 ms | 100 ms |
/// |---|---|---|
/// | time for which a guest of 256 MiB stood still | 0.29 s | 0.21 s, 0.24 s |
/// | duration of that guest's job, relative to virsh's | 1.03 | 1.08, 1.04 |
/// | duration of the job of a guest that writes, relative to virsh's | 1.02 | 1.14, 1.31 |
pub const FIRST_DOWNTIME: Duration = Duration::from_millis(100);
/// The downtime limit from the second pass on, unless a lower maximum is configured (QEMU's and KubeVirt's value).
pub const USUAL_DOWNTIME: Duration = Duration::from_millis(300);
/// Number of the memory pass from which the rates are trusted (KubeVirt's `downtimeTuning.startAfterIteration`).
const TRUSTED_FROM_PASS: u64 = 3;
/// Minimum time between two increases of the downtime (KubeVirt's `downtimeTuning.cooldownSeconds`).
const BETWEEN_STEPS: Duration = Duration::from_secs(10);
/// Time for which a migration must have looked endless before the guest is disrupted. Covers several seconds of each
/// rate, and is longer than a load peak of most guests.
const CERTAIN_AFTER: Duration = Duration::from_secs(30);
/// A request to libvirt that has no visible effect is repeated after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Rates are considered stale when nothing has been sent for this time.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// libvirt's job statistics at one point in time. Values that libvirt does not report are 0 or `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Total bytes of memory and copied disks.
    pub data_total: u64,
    /// Bytes sent so far, including repeated ones.
    pub data_processed: u64,
    /// Bytes still to be sent.
    pub data_remaining: u64,
    /// Bytes of memory still to be sent.
    pub memory_remaining: u64,
    /// Bytes of disks still to be sent.
    pub disk_remaining: u64,
    /// Bytes of memory that the guest dirties per second.
    pub dirty_rate: Option<u64>,
    /// Bytes sent per second.
    pub bandwidth: Option<u64>,
    /// Number of the current memory pass, from 1; 0 while disks are copied.
    pub iteration: u64,
    /// Time since the start of the job.
    pub elapsed: Duration,
    /// Expected downtime if the guest were switched over now.
    pub expected_downtime: Option<Duration>,
    /// The guest already runs on the target.
    pub post_copy: bool,
    /// The guest is paused.
    pub paused: bool,
}

impl Sample {
    /// Returns the current migration mode.
    pub fn mode(&self) -> MigrationMode {
        match (self.post_copy, self.paused) {
            (true, _) => MigrationMode::PostCopy,
            (false, true) => MigrationMode::Paused,
            (false, false) => MigrationMode::PreCopy,
        }
    }

    /// Returns the bytes still to be sent. Uses the sum of the parts where it exceeds the reported total.
    fn remaining(&self) -> u64 {
        let parts = self.memory_remaining.saturating_add(self.disk_remaining);
        self.data_remaining.max(parts)
    }
}

/// A request to libvirt, or a report only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// Only reports.
    Report,
    /// Sets the maximum downtime.
    SetDowntime(Duration),
    /// Pauses the guest until it has moved. It must run again afterwards, on whichever node it is then.
    Pause,
    /// Switches to post-copy: the guest runs on the target, and its remaining memory is sent there.
    StartPostCopy,
    /// Aborts the migration.
    Abort,
}

/// An action and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvergenceAction {
    /// The action.
    pub act: Act,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable reason, with the measurements.
    pub sentence: String,
}

/// Why an action is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActionCause {
    /// The guest dirties memory faster than it can be sent.
    DoesNotConverge,
    /// The migration exceeds its completion time.
    CompletionTimeExceeded,
    /// The remaining bytes do not decrease.
    NoProgress,
}

impl ActionCause {
    /// Returns the stable CamelCase reason.
    fn reason(self) -> &'static str {
        match self {
            Self::DoesNotConverge => "DoesNotConverge",
            Self::CompletionTimeExceeded => "CompletionTimeExceeded",
            Self::NoProgress => "NoProgress",
        }
    }
}

/// Returns whether a source's reason for `Stayed` shows that it ended the migration on request of this module or of
/// [`unsent`](super::unsent), regardless of libvirt's error.
pub fn is_given_up_for(reason: &str) -> bool {
    let [time, progress] = [ActionCause::CompletionTimeExceeded, ActionCause::NoProgress].map(ActionCause::reason);
    [time, progress, NOTHING_SENT].contains(&reason)
}

/// The state observed for one migration. After a restart, a new monitor needs several samples to become certain again
/// and does nothing before.
#[derive(Clone, Debug)]
pub struct Monitor {
    limits: ConvergenceLimits,
    bandwidth: AverageRate,
    dirty: AverageRate,
    pass: Pass,
    outlook: Outlook,
    elapsed: Duration,
    last: Option<Sample>,
    lowest_memory: Option<u64>,
    lowest_disk: Option<u64>,
    progress_at: Duration,
    sent_at: Duration,
    /// Since when the migration has looked endless, and the guest's dirty rate at that time, in bytes per second.
    hopeless_since: Option<(Duration, u64)>,
    downtime: Duration,
    downtime_at: Option<Duration>,
    requested: Option<(ConvergenceAction, Duration)>,
    /// The guest was paused for the migration. If a user resumes it, it is not paused again.
    was_paused: bool,
    refused: RefusedRequests,
    reported: Reported,
}

/// Requests that libvirt has refused.
#[derive(Clone, Copy, Debug, Default)]
struct RefusedRequests {
    downtime: bool,
    pause: bool,
    post_copy: bool,
}

/// Reports that have already been made once.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    slowed_down: bool,
    hopeless: bool,
}

impl Monitor {
    /// Creates a monitor without any samples.
    pub fn new(limits: ConvergenceLimits) -> Self {
        Self {
            limits,
            bandwidth: AverageRate::default(),
            dirty: AverageRate::default(),
            pass: Pass::default(),
            outlook: Outlook::Unknown,
            elapsed: Duration::ZERO,
            last: None,
            lowest_memory: None,
            lowest_disk: None,
            progress_at: Duration::ZERO,
            sent_at: Duration::ZERO,
            hopeless_since: None,
            downtime: FIRST_DOWNTIME.min(limits.max_downtime),
            downtime_at: None,
            requested: None,
            was_paused: false,
            refused: RefusedRequests::default(),
            reported: Reported::default(),
        }
    }

    /// Sets the downtime limit that is in force. An agent that takes over a running migration reads the limit from
    /// libvirt: the previous agent may have raised it.
    #[must_use]
    pub fn with_downtime(self, downtime: Duration) -> Self {
        Self { downtime, ..self }
    }

    /// Returns the downtime to start the migration with.
    pub fn initial_downtime(&self) -> Duration {
        FIRST_DOWNTIME.min(self.limits.max_downtime)
    }

    /// Returns the downtime limit to set now because the guest was not switched over in the first pass; `None` if that
    /// pass has not ended, or the limit is that high already. A refusal by libvirt needs no report.
    pub fn downtime_after_first_pass(&mut self, sample: &Sample) -> Option<Duration> {
        let usual = USUAL_DOWNTIME.min(self.limits.max_downtime);
        if sample.iteration < 2 || self.downtime >= usual {
            return None;
        }
        self.downtime = usual;
        Some(usual)
    }

    /// Takes in a sample and returns the actions to take now. An action without visible effect is returned again after
    /// a while. Requests that libvirt refuses permanently must be reported through [`Self::refused`].
    pub fn observe(&mut self, sample: &Sample) -> Vec<ConvergenceAction> {
        self.learn(sample);
        // After the switch, neither side could continue alone.
        if sample.post_copy {
            return Vec::new();
        }
        if let Some((action, since)) = self.requested.clone()
            && self.is_awaited(action.act, sample)
        {
            // It is unknown whether post-copy has begun until it is seen or refused.
            let overdue = (action.act == Act::Pause).then(|| self.overdue(sample)).flatten();
            if let Some(cause) = overdue {
                return vec![self.request(self.action(Act::Abort, cause, sample))];
            }
            return match self.elapsed.saturating_sub(since) >= RETRY_INTERVAL {
                true => vec![self.request(action)],
                false => Vec::new(),
            };
        }
        if let Some(cause) = self.overdue(sample) {
            let helps = cause == ActionCause::CompletionTimeExceeded;
            let act = self.disruption(sample).filter(|_| helps).unwrap_or(Act::Abort);
            return vec![self.request(self.action(act, cause, sample))];
        }
        if self.is_hopeless() {
            if let Some(act) = self.disruption(sample) {
                return vec![self.request(self.action(act, ActionCause::DoesNotConverge, sample))];
            }
            if !std::mem::replace(&mut self.reported.hopeless, true) {
                return vec![self.action(Act::Report, ActionCause::DoesNotConverge, sample)];
            }
        }
        self.milder_means(sample)
    }

    /// Records that libvirt has refused this action, and would refuse it again.
    pub fn refused(&mut self, act: Act) {
        match act {
            Act::SetDowntime(_) => self.refused.downtime = true,
            Act::Pause => self.refused.pause = true,
            Act::StartPostCopy => self.refused.post_copy = true,
            Act::Report | Act::Abort => return,
        }
        self.requested.take_if(|(action, _)| action.act == act);
    }

    /// Returns whether and when the migration is expected to end.
    pub fn outlook(&self) -> Outlook {
        self.outlook
    }

    /// Returns the progress to report in the migration's status.
    pub fn progress(&self, sample: &Sample, now: Timestamp) -> MigrationProgress {
        MigrationProgress {
            summary: summary(sample, self.outlook),
            data_total: sample.data_total,
            data_processed: sample.data_processed,
            data_remaining: sample.remaining(),
            dirty_rate: self.dirty.get(),
            bandwidth: self.bandwidth.get(),
            iteration: (sample.iteration > 0).then_some(sample.iteration),
            expected_downtime: sample
                .expected_downtime
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            estimated_end: self.outlook.end(now),
        }
    }

    /// Updates the monitor with a sample.
    fn learn(&mut self, sample: &Sample) {
        let first = self.last.is_none();
        let before = self.last.replace(*sample).unwrap_or(*sample);
        let took = sample.elapsed.saturating_sub(self.elapsed);
        self.elapsed = self.elapsed.max(sample.elapsed);
        let sent = sample.data_processed.saturating_sub(before.data_processed);
        if first || sent > 0 {
            self.sent_at = self.elapsed;
        }
        let measured = forecast::per_second(sent, took).filter(|_| !first);
        let reported_rate = sample.bandwidth.filter(|rate| *rate > 0 && sample.iteration > 0);
        self.bandwidth.learn(reported_rate.or(measured));
        // QEMU reports the dirty rate from the second pass on.
        self.dirty.learn(sample.dirty_rate.filter(|_| sample.iteration > 1));
        self.pass.learn(sample.iteration, sample.memory_remaining);
        let lower = [
            is_lower(&mut self.lowest_memory, sample.memory_remaining),
            is_lower(&mut self.lowest_disk, sample.disk_remaining),
        ];
        let resumed_or_paused = before.paused != sample.paused;
        if sample.paused && self.requested.take_if(|(action, _)| action.act == Act::Pause).is_some() {
            self.was_paused = true;
        }
        if first || resumed_or_paused || lower.contains(&true) {
            self.progress_at = self.elapsed;
        }
        self.outlook = self.forecast(sample);
        self.watch_hope(sample);
    }

    /// Returns whether and when the migration will end with the downtime currently allowed.
    fn forecast(&self, sample: &Sample) -> Outlook {
        let limit = self.limits.bandwidth.unwrap_or(u64::MAX);
        let stalled = self.elapsed.saturating_sub(self.sent_at) >= STALLED_AFTER;
        let Some(bandwidth) = self.bandwidth.get().filter(|_| !stalled) else {
            return Outlook::Unknown;
        };
        let begun = sample.iteration > 0 || sample.memory_remaining > 0;
        let to_come = if begun {
            0
        } else {
            self.limits.total.saturating_sub(sample.data_processed)
        };
        let changes = !sample.paused && !sample.post_copy;
        forecast::ForecastInput {
            remaining: sample.remaining().max(to_come),
            bandwidth: bandwidth.min(limit),
            dirty: self.dirty.get().filter(|_| changes).unwrap_or(0),
            pass: self.pass.size(),
            downtime: self.downtime,
        }
        .outlook()
    }

    /// Records since when the migration has looked endless. If the dirty rate falls by a tenth, by itself or by
    /// throttling, the wait starts again.
    fn watch_hope(&mut self, sample: &Sample) {
        let dirty = self.dirty.get().unwrap_or(0);
        self.hopeless_since = match (self.outlook, self.hopeless_since) {
            (Outlook::Never, Some((since, mark))) if dirty > mark - mark / 10 => Some((since, mark)),
            (Outlook::Never, _) if sample.iteration >= TRUSTED_FROM_PASS => Some((self.elapsed, dirty)),
            _ => None,
        };
    }

    /// Returns whether the migration will certainly never end, even with the highest allowed downtime.
    fn is_hopeless(&self) -> bool {
        let highest = self.refused.downtime || self.downtime >= self.limits.max_downtime;
        let since = self.hopeless_since.map(|(since, _)| self.elapsed.saturating_sub(since));
        highest && since.is_some_and(|time| time >= CERTAIN_AFTER)
    }

    /// Returns the time the migration may take in its current mode; `None`: no limit. A pause extends it by the base
    /// time once more. So does allowed post-copy until memory is sent, because only a pause would be possible until
    /// then.
    fn allowed_time(&self, sample: &Sample) -> Option<Duration> {
        let paused = sample.paused || self.was_paused || self.is_requested(Act::Pause);
        let may_be_switched = self.limits.post_copy && self.limits.workload_disruption;
        let disks = may_be_switched && (paused || sample.iteration == 0);
        let times = 1 + u32::from(paused) + u32::from(disks);
        self.limits.completion_time().map(|time| time.saturating_mul(times))
    }

    /// Returns the limit that is exceeded, if any.
    fn overdue(&self, sample: &Sample) -> Option<ActionCause> {
        let exceeded = self.allowed_time(sample).is_some_and(|time| self.elapsed > time);
        if exceeded && self.disruption(sample).is_some() {
            return Some(ActionCause::CompletionTimeExceeded);
        }
        let since = |at| self.elapsed.saturating_sub(at);
        let stands = self.limits.progress.is_some_and(|time| {
            let known = self.dirty.get().is_some() && sample.iteration > 1;
            let converges = known && matches!(self.outlook, Outlook::Ends(_)) && since(self.sent_at) < time;
            since(self.progress_at) >= time && !converges
        });
        if stands {
            return Some(ActionCause::NoProgress);
        }
        exceeded.then_some(ActionCause::CompletionTimeExceeded)
    }

    /// Returns how the guest may be disrupted so that the migration ends: as in KubeVirt, post-copy if allowed, else a
    /// pause. libvirt starts post-copy only once it sends memory, so only a pause is possible while disks are copied.
    fn disruption(&self, sample: &Sample) -> Option<Act> {
        let post_copy = self.limits.post_copy && !self.refused.post_copy && sample.iteration > 0;
        let pause = !self.refused.pause && !self.was_paused && !self.is_requested(Act::Pause);
        match (self.limits.workload_disruption, sample.paused) {
            (true, false) if post_copy => Some(Act::StartPostCopy),
            (true, false) if pause => Some(Act::Pause),
            _ => None,
        }
    }

    /// Returns the actions that the guest hardly notices.
    fn milder_means(&mut self, sample: &Sample) -> Vec<ConvergenceAction> {
        let late = match (self.outlook, self.limits.completion_time()) {
            (Outlook::Never, _) => true,
            (Outlook::Ends(left), Some(time)) => self.elapsed.saturating_add(left) > time,
            (Outlook::Ends(_) | Outlook::Unknown, _) => false,
        };
        if !late || sample.paused || sample.iteration < TRUSTED_FROM_PASS {
            return Vec::new();
        }
        let mut actions = Vec::new();
        if self.limits.auto_converge && !std::mem::replace(&mut self.reported.slowed_down, true) {
            actions.push(ConvergenceAction {
                act: Act::Report,
                reason: "AutoConverge",
                sentence: format!("{}: QEMU throttles the guest", self.rates()),
            });
        }
        let rested = self
            .downtime_at
            .is_none_or(|at| self.elapsed.saturating_sub(at) >= BETWEEN_STEPS);
        if rested && !self.refused.downtime && self.downtime < self.limits.max_downtime {
            self.downtime = self.next_downtime(sample);
            self.downtime_at = Some(self.elapsed);
            actions.push(ConvergenceAction {
                act: Act::SetDowntime(self.downtime),
                reason: "DowntimeTooShort",
                sentence: format!(
                    "{}: the maximum downtime of the guest is raised to {} ms",
                    self.rates(),
                    self.downtime.as_millis()
                ),
            });
        }
        actions
    }

    /// Returns QEMU's expected downtime plus a tenth if that is allowed, else twice the current downtime.
    fn next_downtime(&self, sample: &Sample) -> Duration {
        let most = self.limits.max_downtime;
        let expected = sample
            .expected_downtime
            .filter(|time| *time > self.downtime && *time <= most);
        let next = match expected {
            Some(time) => time.saturating_add(time / 10),
            None => self.downtime.saturating_mul(2),
        };
        next.max(Duration::from_millis(1)).min(most)
    }

    fn request(&mut self, action: ConvergenceAction) -> ConvergenceAction {
        self.requested = Some((action.clone(), self.elapsed));
        action
    }

    fn is_requested(&self, act: Act) -> bool {
        self.requested.as_ref().is_some_and(|(action, _)| action.act == act)
    }

    /// Returns whether the requested action has no visible effect yet.
    fn is_awaited(&self, act: Act, sample: &Sample) -> bool {
        match act {
            Act::Pause => !sample.paused,
            Act::StartPostCopy => !sample.post_copy,
            Act::Abort => true,
            Act::Report | Act::SetDowntime(_) => false,
        }
    }
}

/// Returns whether `value` is below all previous values. 0 means that nothing is left to send, or nothing is known.
fn is_lower(lowest: &mut Option<u64>, value: u64) -> bool {
    let lower = value > 0 && lowest.is_none_or(|lowest| value < lowest);
    if lower {
        *lowest = Some(value);
    }
    lower
}

#[cfg(test)]
mod tests;
