//! When a probe of the guest is carried out, and what its results mean.
//!
//! ```text
//!            guest may be probed          due                 result
//!  waiting ────────────────────▶ delay ──────▶ probing ──────────────────▶ count ──threshold──▶ verdict
//!     ▲                                          │                           │
//!     └──────── guest stands still, leaves ──────┴── its result is void ─────┴── a run begins anew
//! ```

use std::{fmt, time::Duration};

use drydock_api::launcher::GuestProbe;

use crate::guest_activity::GuestActivity;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The guest is ended when it fails.
    Liveness,
    /// Services do not send to the guest while it fails.
    Readiness,
}

impl Kind {
    /// A guest that stands still can respond to nothing. While it moves it may be slowed down as far as its migration
    /// takes, which is no reason to end it; whether it can serve is a question all the same.
    fn may_probe(self, activity: GuestActivity) -> bool {
        match activity {
            GuestActivity::Absent | GuestActivity::Still | GuestActivity::Leaving => false,
            GuestActivity::Moving => self == Self::Readiness,
            GuestActivity::Running => true,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        })
    }
}

/// A change of what a probe says of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It succeeds.
    Succeeds,
    /// It fails: how often in a row, and why the last time.
    Fails {
        /// How often in a row.
        times: u32,
        /// Why.
        why: String,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeds => f.write_str("succeeds"),
            Self::Fails { times: 1, why } => write!(f, "failed: {why}"),
            Self::Fails { times, why } => write!(f, "failed {times} times in a row, the last time with {why}"),
        }
    }
}

/// A probe, and how it has gone so far. Time is counted from the launcher's start.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    kind: Kind,
    probe: GuestProbe,
    activity: GuestActivity,
    /// When the next one is due; `None` before the guest has run here.
    next: Option<Duration>,
    probing: bool,
    /// The guest stood still since the probe that is under way was begun.
    void: bool,
    successes: u32,
    failures: u32,
    verdict: Option<bool>,
}

impl Schedule {
    /// A probe of a guest that has not been seen yet.
    pub(crate) fn new(kind: Kind, probe: GuestProbe) -> Self {
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

    /// What it is for.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The probe.
    pub(crate) fn probe(&self) -> &GuestProbe {
        &self.probe
    }

    /// Takes in what the guest does now.
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

    /// Whether a probe is to be begun now. It is under way then, until [`Self::result`].
    pub(crate) fn begins(&mut self, now: Duration) -> bool {
        let due = self.wake().is_some_and(|next| next <= now);
        if due {
            self.next = Some(now + Duration::from_secs(u64::from(self.probe.period_seconds)));
            (self.probing, self.void) = (true, false);
        }
        due
    }

    /// Takes in the result of the probe that was under way; `None` if it could not be carried out.
    pub(crate) fn result(&mut self, result: Option<Result<(), String>>) -> Option<Verdict> {
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
                    Verdict::Succeeds
                })
            }
            Err(why) => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                let changes = self.failures >= self.probe.failure_threshold && self.verdict != Some(false);
                changes.then(|| {
                    self.verdict = Some(false);
                    Verdict::Fails {
                        times: self.failures,
                        why,
                    }
                })
            }
        }
    }

    /// When [`Self::begins`] is to be called.
    pub(crate) fn wake(&self) -> Option<Duration> {
        self.next
            .filter(|_| !self.probing && self.kind.may_probe(self.activity))
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::launcher::ProbeAction;

    use super::{GuestActivity::*, *};

    fn schedule(kind: Kind) -> Schedule {
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

    fn fails(times: u32) -> Option<Verdict> {
        let why = "refused".into();
        Some(Verdict::Fails { times, why })
    }

    /// Carries out the next probe with this result.
    fn next(schedule: &mut Schedule, result: Option<Result<(), String>>) -> Option<Verdict> {
        let now = schedule.wake().expect("one is due");
        assert!(schedule.begins(now));
        assert_eq!(schedule.wake(), None, "one at a time");
        schedule.result(result)
    }

    #[test]
    fn probe_waits_for_guest_then_delay_then_period() {
        for kind in [Kind::Liveness, Kind::Readiness] {
            let mut schedule = schedule(kind);
            // The target of a migration, for as long as it takes.
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
        let mut schedule = schedule(Kind::Readiness);
        schedule.observe(Running, at(0));
        let ok = || Some(Ok(()));
        for (result, verdict) in [
            (ok(), None),
            (refused(), None),
            (ok(), None),
            (ok(), Some(Verdict::Succeeds)),
            (ok(), None),
            (refused(), None),
            (refused(), None),
            // It was not carried out.
            (None, None),
            (refused(), fails(3)),
            (refused(), None),
            (ok(), None),
            (ok(), Some(Verdict::Succeeds)),
        ] {
            assert_eq!(next(&mut schedule, result), verdict);
        }
    }

    #[test]
    fn guest_never_ready_is_told_why() {
        let mut schedule = schedule(Kind::Readiness);
        schedule.observe(Running, at(0));
        assert_eq!(next(&mut schedule, refused()), None);
        assert_eq!(next(&mut schedule, refused()), None);
        assert_eq!(next(&mut schedule, refused()), fails(3));
    }

    #[test]
    fn failure_of_paused_guest_is_void_and_ends_the_run() {
        let mut schedule = schedule(Kind::Liveness);
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
        for (kind, probed) in [(Kind::Liveness, false), (Kind::Readiness, true)] {
            let mut schedule = schedule(kind);
            schedule.observe(Running, at(0));
            assert!(schedule.begins(at(20)));
            schedule.observe(Moving, at(20));
            schedule.result(refused());
            assert_eq!(schedule.wake().is_some(), probed, "{kind:?}");
            schedule.observe(Still, at(40));
            assert_eq!(schedule.wake(), None, "{kind:?}");
            // It stayed.
            schedule.observe(Running, at(50));
            assert_eq!(schedule.wake(), Some(at(30)), "{kind:?}");
        }
    }
}
