//! Schedule of the guest's probes, and evaluation of their results.
//!
//! ```text
//!            guest may be probed          due                 result
//!  waiting ────────────────────▶ delay ──────▶ probing ──────────────────▶ count ──threshold──▶ verdict
//!     ▲                                          │                           │
//!     └──────── guest is paused or leaving ──────┴── its result is void ─────┴── counting restarts
//! ```

use std::{fmt, time::Duration};

use drydock_api::launcher::GuestProbe;

use crate::guest_activity::GuestActivity;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    /// The guest is stopped when the probe has failed.
    Liveness,
    /// Services do not route traffic to the guest while the probe fails.
    Readiness,
}

impl ProbeKind {
    /// Returns whether to probe a guest with this activity.
    ///
    /// A paused guest cannot respond. During a migration, the guest may be throttled to any degree. This is no reason
    /// to stop it, but its readiness still matters.
    fn may_probe(self, activity: GuestActivity) -> bool {
        match activity {
            GuestActivity::Absent | GuestActivity::Still | GuestActivity::Leaving => false,
            GuestActivity::Moving => self == Self::Readiness,
            GuestActivity::Running => true,
        }
    }
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        })
    }
}

/// A changed result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeVerdict {
    /// The probe succeeds.
    Succeeds,
    /// The probe fails.
    Fails {
        /// Number of consecutive failures.
        times: u32,
        /// Reason of the last failure.
        why: String,
    },
}

impl fmt::Display for ProbeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeds => f.write_str("succeeds"),
            Self::Fails { times: 1, why } => write!(f, "failed: {why}"),
            Self::Fails { times, why } => write!(f, "failed {times} times in a row, the last time with {why}"),
        }
    }
}

/// A probe and its state. Times are relative to the launcher's start.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    kind: ProbeKind,
    probe: GuestProbe,
    activity: GuestActivity,
    /// Time of the next probe; `None` until the guest runs in this pod.
    next: Option<Duration>,
    probing: bool,
    /// Whether the guest was paused after the start of the current probe, which makes its result void.
    void: bool,
    successes: u32,
    failures: u32,
    verdict: Option<bool>,
}

impl Schedule {
    /// Creates the schedule for a guest that has not been observed yet.
    pub(crate) fn new(kind: ProbeKind, probe: GuestProbe) -> Self {
        Self {
            kind,
            probe,
            activity: GuestActivity::Absent,
            next: None,
            probing: false,
            void: false,
            successes: 0,
            failures: 0,
            verdict: None,
        }
    }

    /// Returns the purpose of the probe.
    pub(crate) fn kind(&self) -> ProbeKind {
        self.kind
    }

    /// Returns the probe.
    pub(crate) fn probe(&self) -> &GuestProbe {
        &self.probe
    }

    /// Records the current activity of the guest.
    pub(crate) fn observe(&mut self, activity: GuestActivity, now: Duration) {
        self.activity = activity;
        if !self.kind.may_probe(activity) {
            self.void = self.probing;
            (self.successes, self.failures) = (0, 0);
        } else if self.next.is_none() {
            let delay = Duration::from_secs(u64::from(self.probe.initial_delay_seconds));
            self.next = Some(now + delay);
        }
    }

    /// Returns whether to start a probe now. If so, the probe counts as running until [`Self::result`].
    pub(crate) fn begins(&mut self, now: Duration) -> bool {
        let due = self.wake().is_some_and(|next| next <= now);
        if due {
            self.next = Some(now + Duration::from_secs(u64::from(self.probe.period_seconds)));
            (self.probing, self.void) = (true, false);
        }
        due
    }

    /// Records the result of the running probe; `None` if the probe could not be executed. Returns the verdict if it
    /// has changed.
    pub(crate) fn result(&mut self, result: Option<Result<(), String>>) -> Option<ProbeVerdict> {
        self.probing = false;
        if std::mem::take(&mut self.void) {
            return None;
        }
        match result? {
            Ok(()) => {
                self.failures = 0;
                self.successes = self.successes.saturating_add(1);
                let changes = self.successes >= self.probe.success_threshold && self.verdict != Some(true);
                changes.then(|| {
                    self.verdict = Some(true);
                    ProbeVerdict::Succeeds
                })
            }
            Err(why) => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                let changes = self.failures >= self.probe.failure_threshold && self.verdict != Some(false);
                changes.then(|| {
                    self.verdict = Some(false);
                    ProbeVerdict::Fails {
                        times: self.failures,
                        why,
                    }
                })
            }
        }
    }

    /// Returns the time at which [`Self::begins`] will start a probe; `None` if no probe is scheduled.
    pub(crate) fn wake(&self) -> Option<Duration> {
        self.next
            .filter(|_| !self.probing && self.kind.may_probe(self.activity))
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::launcher::ProbeAction;

    use super::{GuestActivity::*, *};

    fn schedule(kind: ProbeKind) -> Schedule {
        Schedule::new(
            kind,
            GuestProbe {
                action: ProbeAction::Tcp { host: None, port: 22 },
                initial_delay_seconds: 20,
                timeout_seconds: 1,
                period_seconds: 10,
                success_threshold: 2,
                failure_threshold: 3,
            },
        )
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn refused() -> Option<Result<(), String>> {
        Some(Err("refused".into()))
    }

    fn fails(times: u32) -> Option<ProbeVerdict> {
        let why = "refused".into();
        Some(ProbeVerdict::Fails { times, why })
    }

    /// Executes the next probe with this result.
    fn next(schedule: &mut Schedule, result: Option<Result<(), String>>) -> Option<ProbeVerdict> {
        let now = schedule.wake().expect("one is due");
        assert!(schedule.begins(now));
        assert_eq!(schedule.wake(), None, "one at a time");
        schedule.result(result)
    }

    #[test]
    fn probe_waits_for_guest_then_delay_then_period() {
        for kind in [ProbeKind::Liveness, ProbeKind::Readiness] {
            let mut schedule = schedule(kind);
            // The guest arrives by migration, with these activities in sequence.
            for activity in [Absent, Still, Leaving] {
                schedule.observe(activity, at(1));
                assert_eq!(schedule.wake(), None, "{activity:?}");
                assert!(!schedule.begins(at(500)));
            }
            schedule.observe(Running, at(600));
            assert_eq!(schedule.wake(), Some(at(620)));
            assert!(!schedule.begins(at(619)));
            assert!(schedule.begins(at(621)));
            assert_eq!(schedule.result(Some(Ok(()))), None);
            assert_eq!(schedule.wake(), Some(at(631)));
        }
    }

    #[test]
    fn verdict_changes_at_threshold_in_a_row() {
        let mut schedule = schedule(ProbeKind::Readiness);
        schedule.observe(Running, at(0));
        let ok = || Some(Ok(()));
        for (result, verdict) in [
            (ok(), None),
            (refused(), None),
            (ok(), None),
            (ok(), Some(ProbeVerdict::Succeeds)),
            (ok(), None),
            (refused(), None),
            (refused(), None),
            // The probe could not be executed.
            (None, None),
            (refused(), fails(3)),
            (refused(), None),
            (ok(), None),
            (ok(), Some(ProbeVerdict::Succeeds)),
        ] {
            assert_eq!(next(&mut schedule, result), verdict);
        }
    }

    #[test]
    fn guest_never_ready_reports_the_cause() {
        let mut schedule = schedule(ProbeKind::Readiness);
        schedule.observe(Running, at(0));
        assert_eq!(next(&mut schedule, refused()), None);
        assert_eq!(next(&mut schedule, refused()), None);
        assert_eq!(next(&mut schedule, refused()), fails(3));
    }

    #[test]
    fn failure_of_paused_guest_is_void_and_ends_the_run() {
        let mut schedule = schedule(ProbeKind::Liveness);
        schedule.observe(Running, at(0));
        assert_eq!(next(&mut schedule, refused()), None);
        assert_eq!(next(&mut schedule, refused()), None);
        assert!(schedule.begins(at(100)));
        schedule.observe(Still, at(100));
        schedule.observe(Running, at(101));
        assert_eq!(schedule.result(refused()), None, "it stood still meanwhile");
        assert_eq!(next(&mut schedule, refused()), None);
        assert_eq!(next(&mut schedule, refused()), None);
        assert_eq!(next(&mut schedule, refused()), fails(3));
    }

    #[test]
    fn moving_guest_is_probed_for_readiness_only() {
        for (kind, probed) in [(ProbeKind::Liveness, false), (ProbeKind::Readiness, true)] {
            let mut schedule = schedule(kind);
            schedule.observe(Running, at(0));
            assert!(schedule.begins(at(20)));
            schedule.observe(Moving, at(20));
            schedule.result(refused());
            assert_eq!(schedule.wake().is_some(), probed, "{kind:?}");
            schedule.observe(Still, at(40));
            assert_eq!(schedule.wake(), None, "{kind:?}");
            // The guest has not migrated and continues to run.
            schedule.observe(Running, at(50));
            assert_eq!(schedule.wake(), Some(at(30)), "{kind:?}");
        }
    }
}
