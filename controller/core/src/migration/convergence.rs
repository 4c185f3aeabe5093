//! What to do about a guest that moves, decided on what libvirt measures.
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
//! KubeVirt acts when the acceptable time is exceeded (post-copy if allowed, else a pause that
//! doubles the time, else abort), and aborts when the bytes that remain have not fallen below the
//! lowest seen for the progress timeout. Here that holds too, and differs in this:
//!
//! - What will never end, because the guest changes more than can be sent and more than its
//!   downtime covers, is post-copied or paused, if that is allowed, once that is certain, and not
//!   only after minutes of sending in vain. It is never aborted earlier: the guest may calm down.
//! - The downtime is raised within its limit first. KubeVirt leaves it at 300 ms, but for an alpha
//!   feature.
//! - What converges, and sends, is not aborted for want of progress: late passes over a large
//!   memory end with little left, and none of the next is below that for longer than the timeout.
//! - Disks and memory have lows of their own, since the bytes that remain rise when, after the
//!   disks, memory begins.
//! - A guest that may be post-copied is not paused because its disks take long: they have the time twice, and once memory
//!   is sent, it is post-copied.
//! - The time for each GiB is counted by GiB, not GB.
//!
//! Time is libvirt's own count since the start, which no change of a clock affects and which goes
//! on when the agent is replaced.

mod forecast;
mod limits;
mod words;

use std::time::Duration;

use drydock_api::kubevirt::migration::{MigrationMode, MigrationProgress};
use jiff::Timestamp;

pub use forecast::Outlook;
use forecast::{Pass, Rate};
pub use limits::{LONGEST_DOWNTIME_MS, Limits};
pub use words::{Written, summary, worth_writing};

/// The downtime that a migration begins with, unless less is allowed (QEMU's and KubeVirt's number).
pub const INITIAL_DOWNTIME: Duration = Duration::from_millis(300);
/// Passes over memory until its rates are trusted (KubeVirt's `downtimeTuning.startAfterIteration`).
const TRUSTED_FROM_PASS: u64 = 3;
/// The time between two steps of the downtime (KubeVirt's `downtimeTuning.cooldownSeconds`).
const BETWEEN_STEPS: Duration = Duration::from_secs(10);
/// How long it must have looked as if it never ended until the guest is disturbed for it: several
/// seconds of each rate, and longer than what a busy moment of most guests takes.
const CERTAIN_AFTER: Duration = Duration::from_secs(30);
/// What was asked of libvirt and is not seen is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Rates are no measure any more when nothing has been sent for this time.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// libvirt's statistics of the job, at one time. What libvirt does not say is 0 or `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of memory and copied disks.
    pub data_total: u64,
    /// Bytes that were sent, some more than once.
    pub data_processed: u64,
    /// Bytes that are still to be sent.
    pub data_remaining: u64,
    /// Bytes of memory among them.
    pub memory_remaining: u64,
    /// Bytes of disks among them.
    pub disk_remaining: u64,
    /// Bytes of memory that the guest changes in a second.
    pub dirty_rate: Option<u64>,
    /// Bytes that are sent in a second.
    pub bandwidth: Option<u64>,
    /// Passes over memory, the present one included; 0 while disks are copied.
    pub iteration: u64,
    /// Time since the job began.
    pub elapsed: Duration,
    /// How long the guest would stand still if it moved now.
    pub expected_downtime: Option<Duration>,
    /// The guest runs on the target already.
    pub post_copy: bool,
    /// The guest is paused.
    pub paused: bool,
}

impl Sample {
    /// How the guest moves.
    pub fn mode(&self) -> MigrationMode {
        match (self.post_copy, self.paused) {
            (true, _) => MigrationMode::PostCopy,
            (false, true) => MigrationMode::Paused,
            (false, false) => MigrationMode::PreCopy,
        }
    }

    /// Bytes that are still to be sent, where the parts say more than the sum.
    fn remaining(&self) -> u64 {
        let parts = self.memory_remaining.saturating_add(self.disk_remaining);
        self.data_remaining.max(parts)
    }
}

/// What is asked of libvirt, or told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// Nothing but to tell it.
    Tell,
    /// Let the guest stand still for so long at the end.
    SetDowntime(Duration),
    /// Pause the guest until it has moved. It is to run again afterwards, wherever it is then.
    Pause,
    /// Let the guest run on the target, and send what is missing there.
    StartPostCopy,
    /// Give the migration up.
    Abort,
}

/// Something to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// What.
    pub act: Act,
    /// Why, in one CamelCase word.
    pub reason: &'static str,
    /// The same for people, with what was measured.
    pub sentence: String,
}

/// Why something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The guest changes more than can be sent.
    DoesNotConverge,
    /// It takes longer than it may.
    CompletionTimeExceeded,
    /// What remains does not get less.
    NoProgress,
}

impl Cause {
    /// Stable CamelCase reason.
    fn reason(self) -> &'static str {
        match self {
            Self::DoesNotConverge => "DoesNotConverge",
            Self::CompletionTimeExceeded => "CompletionTimeExceeded",
            Self::NoProgress => "NoProgress",
        }
    }
}

/// Whether a source that says why its guest has stayed says that it gave the migration up as asked for here, whatever
/// libvirt would have said.
pub fn is_given_up_for(reason: &str) -> bool {
    [Cause::CompletionTimeExceeded, Cause::NoProgress]
        .iter()
        .any(|cause| cause.reason() == reason)
}

/// What is known of one migration. A new one, after a restart, needs some samples to be certain
/// again, and does nothing before.
#[derive(Clone, Debug)]
pub struct Monitor {
    limits: Limits,
    bandwidth: Rate,
    dirty: Rate,
    pass: Pass,
    outlook: Outlook,
    elapsed: Duration,
    last: Option<Sample>,
    lowest_memory: Option<u64>,
    lowest_disk: Option<u64>,
    progress_at: Duration,
    sent_at: Duration,
    /// Since when it looks as if it never ended, and what the guest changed in a second then.
    hopeless_since: Option<(Duration, u64)>,
    downtime: Duration,
    downtime_at: Option<Duration>,
    asked: Option<(Action, Duration)>,
    /// The guest was paused for the migration. If somebody lets it run, it is not paused again.
    was_paused: bool,
    refused: Refused,
    told: Told,
}

/// What libvirt has refused.
#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    downtime: bool,
    pause: bool,
    post_copy: bool,
}

/// What has been told once.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    slowed_down: bool,
    hopeless: bool,
}

impl Monitor {
    /// Nothing is known yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            bandwidth: Rate::default(),
            dirty: Rate::default(),
            pass: Pass::default(),
            outlook: Outlook::Unknown,
            elapsed: Duration::ZERO,
            last: None,
            lowest_memory: None,
            lowest_disk: None,
            progress_at: Duration::ZERO,
            sent_at: Duration::ZERO,
            hopeless_since: None,
            downtime: INITIAL_DOWNTIME.min(limits.max_downtime),
            downtime_at: None,
            asked: None,
            was_paused: false,
            refused: Refused::default(),
            told: Told::default(),
        }
    }

    /// The downtime that the migration is to begin with.
    pub fn initial_downtime(&self) -> Duration {
        INITIAL_DOWNTIME.min(self.limits.max_downtime)
    }

    /// What is to be done now. What was asked for and does not show is asked for again after a
    /// while; whatever libvirt refuses for good is to be told by [`Self::refused`].
    pub fn observe(&mut self, sample: &Sample) -> Vec<Action> {
        self.learn(sample);
        // Neither side could go on alone any more.
        if sample.post_copy {
            return Vec::new();
        }
        if let Some((action, since)) = self.asked.clone()
            && self.is_awaited(action.act, sample)
        {
            // Whether post-copy has begun is not known until it is seen or refused.
            let overdue = (action.act == Act::Pause).then(|| self.overdue(sample)).flatten();
            if let Some(cause) = overdue {
                return vec![self.ask(self.action(Act::Abort, cause, sample))];
            }
            return match self.elapsed.saturating_sub(since) >= ASK_AGAIN {
                true => vec![self.ask(action)],
                false => Vec::new(),
            };
        }
        if let Some(cause) = self.overdue(sample) {
            let helps = cause == Cause::CompletionTimeExceeded;
            let act = self.disruption(sample).filter(|_| helps).unwrap_or(Act::Abort);
            return vec![self.ask(self.action(act, cause, sample))];
        }
        if self.is_hopeless() {
            if let Some(act) = self.disruption(sample) {
                return vec![self.ask(self.action(act, Cause::DoesNotConverge, sample))];
            }
            if !std::mem::replace(&mut self.told.hopeless, true) {
                return vec![self.action(Act::Tell, Cause::DoesNotConverge, sample)];
            }
        }
        self.milder_means(sample)
    }

    /// libvirt has refused this, and would again.
    pub fn refused(&mut self, act: Act) {
        match act {
            Act::SetDowntime(_) => self.refused.downtime = true,
            Act::Pause => self.refused.pause = true,
            Act::StartPostCopy => self.refused.post_copy = true,
            Act::Tell | Act::Abort => return,
        }
        self.asked.take_if(|(action, _)| action.act == act);
    }

    /// Whether it will end, and when.
    pub fn outlook(&self) -> Outlook {
        self.outlook
    }

    /// How far it is, as the migration reports it.
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

    /// Takes a sample in.
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
        let said = sample.bandwidth.filter(|rate| *rate > 0 && sample.iteration > 0);
        self.bandwidth.learn(said.or(measured));
        // QEMU knows the rate after the first pass.
        self.dirty.learn(sample.dirty_rate.filter(|_| sample.iteration > 1));
        self.pass.learn(sample.iteration, sample.memory_remaining);
        let lower = [
            is_lower(&mut self.lowest_memory, sample.memory_remaining),
            is_lower(&mut self.lowest_disk, sample.disk_remaining),
        ];
        let resumed_or_paused = before.paused != sample.paused;
        if sample.paused && self.asked.take_if(|(action, _)| action.act == Act::Pause).is_some() {
            self.was_paused = true;
        }
        if first || resumed_or_paused || lower.contains(&true) {
            self.progress_at = self.elapsed;
        }
        self.outlook = self.forecast(sample);
        self.watch_hope(sample);
    }

    /// Whether it will end, and when, with the downtime that is allowed now.
    fn forecast(&self, sample: &Sample) -> Outlook {
        let limit = self.limits.bandwidth.unwrap_or(u64::MAX);
        let silent = self.elapsed.saturating_sub(self.sent_at) >= SILENT_AFTER;
        let Some(bandwidth) = self.bandwidth.get().filter(|_| !silent) else {
            return Outlook::Unknown;
        };
        let begun = sample.iteration > 0 || sample.memory_remaining > 0;
        let to_come = if begun {
            0
        } else {
            self.limits.total.saturating_sub(sample.data_processed)
        };
        let changes = !sample.paused && !sample.post_copy;
        forecast::Facts {
            remaining: sample.remaining().max(to_come),
            bandwidth: bandwidth.min(limit),
            dirty: self.dirty.get().filter(|_| changes).unwrap_or(0),
            pass: self.pass.size(),
            downtime: self.downtime,
        }
        .outlook()
    }

    /// Keeps since when it looks as if it never ended. A guest that changes a tenth less than then,
    /// by itself or because it is slowed down, is given the whole time again.
    fn watch_hope(&mut self, sample: &Sample) {
        let dirty = self.dirty.get().unwrap_or(0);
        self.hopeless_since = match (self.outlook, self.hopeless_since) {
            (Outlook::Never, Some((since, mark))) if dirty > mark - mark / 10 => Some((since, mark)),
            (Outlook::Never, _) if sample.iteration >= TRUSTED_FROM_PASS => Some((self.elapsed, dirty)),
            _ => None,
        };
    }

    /// It certainly never ends, whatever downtime is allowed.
    fn is_hopeless(&self) -> bool {
        let highest = self.refused.downtime || self.downtime >= self.limits.max_downtime;
        let since = self.hopeless_since.map(|(since, _)| self.elapsed.saturating_sub(since));
        highest && since.is_some_and(|time| time >= CERTAIN_AFTER)
    }

    /// How long it may take, the way it goes; `None`: no limit. A guest that is paused has the time once more. So has one
    /// that may be post-copied until its memory is sent, since a pause is all that would be possible before.
    fn allowed_time(&self, sample: &Sample) -> Option<Duration> {
        let paused = sample.paused || self.was_paused || self.is_asked(Act::Pause);
        let may_be_switched = self.limits.post_copy && self.limits.workload_disruption;
        let disks = may_be_switched && (paused || sample.iteration == 0);
        let times = 1 + u32::from(paused) + u32::from(disks);
        self.limits.completion_time().map(|time| time.saturating_mul(times))
    }

    /// Which limit is exceeded.
    fn overdue(&self, sample: &Sample) -> Option<Cause> {
        let exceeded = self.allowed_time(sample).is_some_and(|time| self.elapsed > time);
        if exceeded && self.disruption(sample).is_some() {
            return Some(Cause::CompletionTimeExceeded);
        }
        let since = |at| self.elapsed.saturating_sub(at);
        let stands = self.limits.progress.is_some_and(|time| {
            let known = self.dirty.get().is_some() && sample.iteration > 1;
            let converges = known && matches!(self.outlook, Outlook::Ends(_)) && since(self.sent_at) < time;
            since(self.progress_at) >= time && !converges
        });
        if stands {
            return Some(Cause::NoProgress);
        }
        exceeded.then_some(Cause::CompletionTimeExceeded)
    }

    /// How the guest may be disturbed so that the migration ends: as KubeVirt, post-copy if that is
    /// allowed, else a pause. libvirt begins post-copy only once it sends memory: while disks are
    /// copied, a pause is what is left.
    fn disruption(&self, sample: &Sample) -> Option<Act> {
        let post_copy = self.limits.post_copy && !self.refused.post_copy && sample.iteration > 0;
        let pause = !self.refused.pause && !self.was_paused && !self.is_asked(Act::Pause);
        match (self.limits.workload_disruption, sample.paused) {
            (true, false) if post_copy => Some(Act::StartPostCopy),
            (true, false) if pause => Some(Act::Pause),
            _ => None,
        }
    }

    /// What the guest hardly notices.
    fn milder_means(&mut self, sample: &Sample) -> Vec<Action> {
        let late = match (self.outlook, self.limits.completion_time()) {
            (Outlook::Never, _) => true,
            (Outlook::Ends(left), Some(time)) => self.elapsed.saturating_add(left) > time,
            (Outlook::Ends(_) | Outlook::Unknown, _) => false,
        };
        if !late || sample.paused || sample.iteration < TRUSTED_FROM_PASS {
            return Vec::new();
        }
        let mut actions = Vec::new();
        if self.limits.auto_converge && !std::mem::replace(&mut self.told.slowed_down, true) {
            actions.push(Action {
                act: Act::Tell,
                reason: "AutoConverge",
                sentence: format!("{}: QEMU slows the guest down", self.rates()),
            });
        }
        let rested = self
            .downtime_at
            .is_none_or(|at| self.elapsed.saturating_sub(at) >= BETWEEN_STEPS);
        if rested && !self.refused.downtime && self.downtime < self.limits.max_downtime {
            self.downtime = self.next_downtime(sample);
            self.downtime_at = Some(self.elapsed);
            actions.push(Action {
                act: Act::SetDowntime(self.downtime),
                reason: "DowntimeTooShort",
                sentence: format!(
                    "{}: the guest may stand still for {} ms at the end",
                    self.rates(),
                    self.downtime.as_millis()
                ),
            });
        }
        actions
    }

    /// What QEMU expects and a tenth more, if that is allowed; else twice as much as now.
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

    fn ask(&mut self, action: Action) -> Action {
        self.asked = Some((action.clone(), self.elapsed));
        action
    }

    fn is_asked(&self, act: Act) -> bool {
        self.asked.as_ref().is_some_and(|(action, _)| action.act == act)
    }

    /// It was asked for and does not show.
    fn is_awaited(&self, act: Act, sample: &Sample) -> bool {
        match act {
            Act::Pause => !sample.paused,
            Act::StartPostCopy => !sample.post_copy,
            Act::Abort => true,
            Act::Tell | Act::SetDowntime(_) => false,
        }
    }
}

/// Whether `value` is below all before it; 0 is nothing to be sent, or nothing known.
fn is_lower(lowest: &mut Option<u64>, value: u64) -> bool {
    let lower = value > 0 && lowest.is_none_or(|lowest| value < lowest);
    if lower {
        *lowest = Some(value);
    }
    lower
}

#[cfg(test)]
mod tests;
