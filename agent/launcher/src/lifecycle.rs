//! The launcher's decisions, without their execution.
//!
//! ```text
//!  libvirtd   Off ──start──▶ Starting ──socket──▶ Listening ──reply───▶ Up
//!              ▲                 │                    │                 │
//!              └───── back-off ──┴────────────────────┴──── ended ──────┘   too often: Failed
//!
//!  guest      Never ──its QEMU is seen──▶ Runs ──QEMU or its state file is gone──▶ Ended ──▶ Ending
//!               │                          │
//!  SIGTERM      └─ stop libvirtd, and only └─ power button, repeatedly; then destroy; then kill
//!                  then report NotStarted     (the same if its liveness probe has failed)
//! ```
//!
//! **The end of QEMU** is reported by the kernel: once libvirtd has started QEMU, QEMU is a child of this process,
//! which reaps it. During a migration, libvirt may report the end much later. Therefore the launcher waits longer for
//! libvirt only if libvirt alone knows the reason: QEMU ended regularly (the guest shut down, migrated away, or was
//! destroyed), or the guest was paused for the final phase of its migration. If QEMU was killed or has failed
//! otherwise, the kernel's report is sufficient. This process then ends, and the pod with it. The end of the pod proves
//! to all other components that no part of the guest runs in it.
//!
//! Only libvirt reports a restart or shutdown of the guest to the launcher. QEMU reports it only over its monitor
//! (QMP), and libvirt holds the only monitor. A second monitor would need a QEMU command line in the domain, which
//! libvirt marks as tainted, and would be accessible to every process in the pod. libvirt writes the domain's state
//! file together with its event, and the domain's log after it. QEMU itself logs nothing, and keeps running when the
//! guest has shut down (`-no-shutdown`).
//!
//! [`LauncherLifecycle::step`] processes an event and returns the actions to execute. The next call must not be later
//! than [`LauncherLifecycle::wake`]. Times are relative to the launcher's start.

mod launcher_events;
mod stopping;
#[cfg(test)]
mod tests;

use std::time::Duration;

use drydock_api::launcher::{Ending, GuestOutcome};
use nix::{sys::signal::Signal, unistd::Pid};

pub(crate) use launcher_events::{LauncherAction, LauncherEvent, LibvirtCall, Traces};

use crate::{
    domain_state::{OffReason, VirshDomainState},
    ending::{EndEvidence, bounded, ending},
    grace::Grace,
    process_end::ProcessEnd,
};

/// Time limit for libvirtd's first response after its start.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of consecutive failures of libvirtd before the launcher ends the pod.
const FAILURES: u32 = 8;
/// Uptime after which libvirtd counts as healthy, and its failure count is reset.
const WELL: Duration = Duration::from_secs(120);
/// Delay before libvirtd is restarted. The delay doubles with each consecutive failure.
const BACK_OFF: Duration = Duration::from_millis(200);
/// Maximum restart delay.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(10);
/// Delay before a failed query to libvirt is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two presses of the power button. They are repeated because a booting guest misses presses.
const PRESS_AGAIN: Duration = Duration::from_secs(5);
/// Interval between later presses of the power button, when a guest has had enough time to boot.
const PRESS_LATER: Duration = Duration::from_secs(30);
/// Time limit for libvirt to notice that a guest's QEMU has ended.
const NOTICE: Duration = Duration::from_secs(30);
/// Time limit for libvirt to notice the end of QEMU if the kernel reports that QEMU was killed or has failed.
///
/// libvirt has no important information to add to the report of the kernel.
const NOTICE_OF_FAILURE: Duration = Duration::from_secs(3);
/// Time limit for libvirt to finish other clients' calls for a guest that has ended.
const SETTLE: Duration = Duration::from_secs(5);
/// Time limit for libvirt to finish other clients' calls if QEMU was killed or has failed.
///
/// A guest that was killed or has failed is not being migrated, and the end of the pod conveys the same information.
const SETTLE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Time limit for QEMU to end after the launcher has sent it a SIGTERM directly, without libvirt.
const POLITE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Libvirtd {
    /// libvirtd is not running. It is restarted at `again`, if set.
    Off { again: Option<Duration> },
    /// libvirtd is running. It is killed if it has not responded by `by`.
    Starting {
        listens: bool,
        by: Duration,
        since: Duration,
    },
    /// libvirtd has responded.
    Up { since: Duration },
    /// libvirtd was killed, and is not restarted.
    Closing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QemuState {
    /// No QEMU of the domain has been seen yet.
    Never,
    /// QEMU runs, as far as known. Without a PID, libvirt's report came before the PID.
    Runs { pid: Option<Pid> },
    /// QEMU has ended.
    Ended { at: Duration, how: Option<ProcessEnd> },
}

/// Whether other clients of libvirt have received their responses.
///
/// The client that migrates the guest to another pod waits for libvirt's result, which comes some time after the guest
/// has ended in this pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    NotYet,
    /// libvirt was queried. The launcher waits at most until this time.
    Queried(Duration),
    Done,
}

#[derive(Clone, Copy, Debug)]
struct StopProgress {
    since: Duration,
    press_at: Duration,
    destroyed: bool,
}

/// State of the launcher.
#[derive(Clone, Debug)]
pub(crate) struct LauncherLifecycle {
    grace: Grace,
    prepared: bool,
    ready: bool,
    libvirtd: Libvirtd,
    failures: u32,
    guest: QemuState,
    stop: Option<StopProgress>,
    /// libvirt call in progress.
    pending: Option<LibvirtCall>,
    /// Earliest time to query libvirt's state of the domain; `None` if no query is needed.
    query_at: Option<Duration>,
    /// Whether to press the power button if the guest is running.
    press: bool,
    /// Set if libvirt reports that the domain is off. The inner value is libvirt's reason, if any.
    off: Option<Option<OffReason>>,
    /// Time to kill QEMU, if QEMU was stopped without libvirt or destroying it may fail.
    kill_at: Option<Duration>,
    forced: bool,
    /// Whether the launcher has started to stop the guest by the power button or by destroying it.
    ending_begun: bool,
    failed: Option<String>,
    /// Failure of the guest's liveness probe, if the guest is being stopped because of it.
    unhealthy: Option<String>,
    /// Time at which the launcher started to end the pod because libvirtd failed.
    given_up: Option<Duration>,
    /// Whether the guest was paused for the final phase of its migration when its QEMU ended.
    leaves: bool,
    settling: Settling,
    concluding: Option<Option<OffReason>>,
    over: bool,
}

impl LauncherLifecycle {
    /// Returns the initial state, in which no process runs.
    pub(crate) fn new(grace: Grace) -> Self {
        Self {
            grace,
            prepared: false,
            ready: false,
            libvirtd: Libvirtd::Off {
                again: Some(Duration::ZERO),
            },
            failures: 0,
            guest: QemuState::Never,
            stop: None,
            pending: None,
            query_at: None,
            press: false,
            off: None,
            kill_at: None,
            forced: false,
            ending_begun: false,
            failed: None,
            unhealthy: None,
            given_up: None,
            leaves: false,
            settling: Settling::NotYet,
            concluding: None,
            over: false,
        }
    }

    /// Processes an event and returns the actions to execute, in order.
    pub(crate) fn step(&mut self, event: LauncherEvent, now: Duration) -> Vec<LauncherAction> {
        let mut actions = Vec::new();
        if !self.over {
            self.take_in(event, now, &mut actions);
        }
        if !self.over {
            self.decide(now, &mut actions);
        }
        actions
    }

    /// Returns the latest time of the next call of [`Self::step`]; `None` if no call is needed without an event.
    pub(crate) fn wake(&self) -> Option<Duration> {
        if self.over {
            return None;
        }
        let query_at = self
            .query_at
            .filter(|_| self.pending.is_none() && self.settling == Settling::NotYet);
        let (libvirtd, query_at) = match self.libvirtd {
            Libvirtd::Off { again } => (again, None),
            Libvirtd::Starting { by, listens, .. } => (Some(by), query_at.filter(|_| listens)),
            Libvirtd::Up { .. } => (None, query_at),
            Libvirtd::Closing => (None, None),
        };
        let end = self.last_instant();
        let (stop, ended, kill) = match self.guest {
            QemuState::Never => (end, None, None),
            QemuState::Ended { at, .. } => match self.settling {
                Settling::Queried(until) => (end, Some(until), None),
                Settling::NotYet | Settling::Done => (end, Some(at + self.notice()), None),
            },
            QemuState::Runs { .. } => {
                let next = self
                    .stop
                    .filter(|stop| !stop.destroyed && self.failed.is_none())
                    .map(|stop| stop.press_at.min(stop.since + self.grace.destroy));
                (next.or(end), None, self.kill_at)
            }
        };
        [libvirtd, query_at, stop, ended, kill].into_iter().flatten().min()
    }

    /// Returns whether termination was requested, by SIGTERM or by a failed liveness probe.
    pub(crate) fn is_end_requested(&self) -> bool {
        self.stop.is_some()
    }

    fn take_in(&mut self, event: LauncherEvent, now: Duration, actions: &mut Vec<LauncherAction>) {
        match event {
            LauncherEvent::Time => {}
            LauncherEvent::TerminationRequested => {
                if self.begin_stop(now) {
                    actions.push(LauncherAction::LogMessage("termination of the pod requested".into()));
                }
            }
            LauncherEvent::Unhealthy(why) => {
                if matches!(self.guest, QemuState::Runs { .. }) && self.begin_stop(now) {
                    self.unhealthy = Some(why);
                }
            }
            LauncherEvent::Prepared(Ok(())) => self.prepared = true,
            LauncherEvent::Prepared(Err(why)) => {
                if self.stop.is_none() {
                    self.end(bounded(GuestOutcome::Failed, &why, false), actions);
                }
            }
            LauncherEvent::LibvirtdListens => {
                if let Libvirtd::Starting { listens, .. } = &mut self.libvirtd {
                    *listens = true;
                    self.query_at = Some(now);
                    // libvirt probes QEMU at the first use, which takes half a second or more. A running guest does not
                    // need this.
                    if self.guest == QemuState::Never && self.stop.is_none() {
                        actions.push(LauncherAction::Learn);
                    }
                }
            }
            LauncherEvent::LibvirtdEnded(how) => self.libvirtd_ended(&how, now, actions),
            LauncherEvent::QemuStarted(pid) => {
                self.guest = QemuState::Runs { pid: Some(pid) };
                self.off = None;
                self.leaves = false;
                self.settling = Settling::NotYet;
            }
            LauncherEvent::Leaves => self.leaves = true,
            LauncherEvent::QemuEnded(pid, how) => self.qemu_ended(pid, how, now),
            LauncherEvent::StateRemoved => {
                if self.guest == QemuState::Never {
                    self.guest = QemuState::Ended { at: now, how: None };
                }
                self.query_at = Some(now);
            }
            // A start may fail without any other sign. Later, the log adds no information, and the guest can make QEMU
            // write to it at any rate.
            LauncherEvent::LogWritten => {
                if self.guest == QemuState::Never {
                    self.query_at = Some(now);
                }
            }
            LauncherEvent::StateReported(response) => self.responded(response, now, actions),
            LauncherEvent::Done(call, result) => self.done(call, result, actions),
            LauncherEvent::Log(traces) => self.conclude(traces, actions),
        }
    }

    /// Starts to stop the guest. Returns `false` if this was already started before.
    fn begin_stop(&mut self, now: Duration) -> bool {
        let begins = self.stop.is_none();
        if begins {
            self.stop = Some(StopProgress {
                since: now,
                press_at: now,
                destroyed: false,
            });
        }
        begins
    }

    fn libvirtd_ended(&mut self, how: &str, now: Duration, actions: &mut Vec<LauncherAction>) {
        let since = match self.libvirtd {
            Libvirtd::Up { since } | Libvirtd::Starting { since, .. } => since,
            Libvirtd::Off { .. } => now,
            Libvirtd::Closing => {
                self.libvirtd = Libvirtd::Off { again: None };
                return;
            }
        };
        if now.saturating_sub(since) >= WELL {
            self.failures = 0;
        }
        self.failures += 1;
        // A pending query must be repeated with the next libvirtd.
        self.query_at = None;
        if let Some(call) = self.pending.take() {
            actions.push(LauncherAction::Abandon);
            if call == LibvirtCall::Destroy {
                self.end_qemu(Signal::SIGTERM, actions);
            }
        }
        if self.failures >= FAILURES {
            let why = format!("libvirtd failed {} times in a row; last failure: {how}", self.failures);
            actions.push(LauncherAction::LogMessage(why.clone()));
            self.libvirtd = Libvirtd::Off { again: None };
            self.failed = Some(why);
        } else {
            let pause = (BACK_OFF * 2_u32.saturating_pow(self.failures - 1)).min(LONGEST_BACK_OFF);
            actions.push(LauncherAction::LogMessage(format!(
                "libvirtd {how}; restarting libvirtd in {:.1} s",
                pause.as_secs_f64()
            )));
            self.libvirtd = Libvirtd::Off {
                again: Some(now + pause),
            };
        }
    }

    fn qemu_ended(&mut self, pid: Pid, how: ProcessEnd, now: Duration) {
        match self.guest {
            QemuState::Runs { pid: Some(own) } if own != pid => {}
            QemuState::Runs { .. } => {
                self.guest = QemuState::Ended {
                    at: now,
                    how: Some(how),
                };
                self.query_at = Some(now);
            }
            // Either libvirt stopped the guest's QEMU before its PID was read, or the process was not the guest's QEMU.
            QemuState::Never => self.query_at = Some(now),
            QemuState::Ended { at, how: None } => self.guest = QemuState::Ended { at, how: Some(how) },
            QemuState::Ended { .. } => {}
        }
    }

    fn responded(
        &mut self,
        response: Result<VirshDomainState, String>,
        now: Duration,
        actions: &mut Vec<LauncherAction>,
    ) {
        self.pending = None;
        let state = match response {
            Ok(state) => state,
            Err(why) => {
                if matches!(self.libvirtd, Libvirtd::Up { .. } | Libvirtd::Starting { .. }) {
                    actions.push(LauncherAction::LogMessage(format!("libvirt did not respond: {why}")));
                    self.query_at = Some(now + RETRY_INTERVAL);
                }
                return;
            }
        };
        if let Libvirtd::Starting { since, .. } = self.libvirtd {
            self.libvirtd = Libvirtd::Up { since };
            let took = now.saturating_sub(since).as_secs_f64();
            actions.push(LauncherAction::LogMessage(format!(
                "libvirtd responds after {took:.2} s"
            )));
        }
        match state {
            VirshDomainState::Running | VirshDomainState::Paused => {
                if self.guest == QemuState::Never {
                    self.guest = QemuState::Runs { pid: None };
                }
                if self.press && state == VirshDomainState::Running {
                    self.call_libvirt(LibvirtCall::PowerButton, actions);
                } else if self.press {
                    actions.push(LauncherAction::LogMessage(
                        "the guest is paused and cannot react to its power button".into(),
                    ));
                }
                self.press = false;
            }
            VirshDomainState::Off(OffReason::Unknown) | VirshDomainState::Absent if self.guest == QemuState::Never => {}
            // The response refers to the time before the current QEMU, or the kernel is about to end QEMU. Only the
            // kernel's report of the process's end counts.
            VirshDomainState::Off(_) | VirshDomainState::Absent
                if matches!(self.guest, QemuState::Runs { pid: Some(_) }) =>
            {
                self.query_at = Some(now + RETRY_INTERVAL);
            }
            VirshDomainState::Absent => self.ended_by_report(None, now),
            VirshDomainState::Off(reason) => self.ended_by_report(Some(reason), now),
        }
    }

    fn ended_by_report(&mut self, reason: Option<OffReason>, now: Duration) {
        if !matches!(self.guest, QemuState::Ended { .. }) {
            self.guest = QemuState::Ended { at: now, how: None };
        }
        self.off = Some(reason);
    }

    fn done(&mut self, call: LibvirtCall, result: Result<(), String>, actions: &mut Vec<LauncherAction>) {
        self.pending = None;
        match (call, result) {
            (LibvirtCall::PowerButton, Ok(())) => {
                actions.push(LauncherAction::LogMessage("pressed the guest's power button".into()));
            }
            (LibvirtCall::PowerButton, Err(why)) => {
                actions.push(LauncherAction::LogMessage(format!(
                    "the guest's power button cannot be pressed: {why}"
                )));
            }
            (LibvirtCall::Destroy, Ok(())) => actions.push(LauncherAction::LogMessage("destroyed the guest".into())),
            (LibvirtCall::Destroy, Err(why)) => {
                actions.push(LauncherAction::LogMessage(format!(
                    "libvirt could not destroy the guest: {why}"
                )));
                self.end_qemu(Signal::SIGTERM, actions);
            }
            (LibvirtCall::Settled, _) => self.settling = Settling::Done,
            (LibvirtCall::State, _) => {}
        }
    }

    fn decide(&mut self, now: Duration, actions: &mut Vec<LauncherAction>) {
        if self.concluding.is_some() {
            return;
        }
        if let Some(verdict) = self.verdict(now) {
            if self.is_settled(now, actions) {
                self.concluding = Some(verdict);
                actions.push(LauncherAction::ReadLog);
            }
            return;
        }
        if self.failed.is_some() {
            self.give_up(now, actions);
            return;
        }
        if self.stop.is_some() {
            self.stopping(now, actions);
            if self.over || self.concluding.is_some() {
                return;
            }
        }
        self.keep_libvirtd(now, actions);
        if self.prepared && !self.ready && self.stop.is_none() && matches!(self.libvirtd, Libvirtd::Up { .. }) {
            self.ready = true;
            actions.push(LauncherAction::MarkReady);
        }
        let responsive = match self.libvirtd {
            Libvirtd::Up { .. } => true,
            Libvirtd::Starting { listens, .. } => listens,
            Libvirtd::Off { .. } | Libvirtd::Closing => false,
        };
        if responsive && self.pending.is_none() && self.query_at.is_some_and(|at| at <= now) {
            self.query_at = None;
            self.call_libvirt(LibvirtCall::State, actions);
        }
    }

    fn keep_libvirtd(&mut self, now: Duration, actions: &mut Vec<LauncherAction>) {
        match self.libvirtd {
            Libvirtd::Off { again: Some(at) } if at <= now => {
                self.libvirtd = Libvirtd::Starting {
                    listens: false,
                    by: now + FIRST_RESPONSE_TIMEOUT,
                    since: now,
                };
                actions.push(LauncherAction::StartLibvirtd);
            }
            Libvirtd::Starting { listens, by, since } if by <= now => {
                // libvirtd is killed only once. Its end is an event.
                self.libvirtd = Libvirtd::Starting {
                    listens,
                    by: now + FIRST_RESPONSE_TIMEOUT,
                    since,
                };
                actions.push(LauncherAction::LogMessage(format!(
                    "libvirtd has not responded for {} s and is killed",
                    FIRST_RESPONSE_TIMEOUT.as_secs()
                )));
                actions.push(LauncherAction::KillLibvirtd);
            }
            _ => {}
        }
    }

    /// Returns the time limit for libvirt to notice the end of QEMU.
    ///
    /// libvirt may take long during a migration, because it delays its events and responses. For a guest that was
    /// paused for the final phase, the result of the migration must come from libvirt.
    fn notice(&self) -> Duration {
        if self.has_failed() && !self.leaves {
            NOTICE_OF_FAILURE
        } else {
            NOTICE
        }
    }

    /// Returns whether the kernel reports that QEMU was killed or has failed, and libvirt does not report a completed
    /// migration.
    fn has_failed(&self) -> bool {
        let QemuState::Ended { how: Some(how), .. } = self.guest else {
            return false;
        };
        let moved = self.off == Some(Some(OffReason::Migrated));
        !matches!(how, ProcessEnd::Exited(0) | ProcessEnd::Unknown) && !moved
    }

    /// Returns libvirt's reason, if any, once the guest counts as ended; `None` before that.
    fn verdict(&self, now: Duration) -> Option<Option<OffReason>> {
        let reason = self.off.flatten();
        match self.guest {
            QemuState::Never | QemuState::Runs { .. } => None,
            QemuState::Ended { at, .. } => {
                // A new libvirtd would not know that the guest has run, and an agent would start the guest again.
                let libvirt_stays_off = matches!(self.libvirtd, Libvirtd::Off { .. } | Libvirtd::Closing);
                let given_up = self
                    .stop
                    .is_some_and(|stop| stop.since + self.grace.give_up <= now || self.forced);
                (self.off.is_some() || libvirt_stays_off || given_up || at + self.notice() <= now).then_some(reason)
            }
        }
    }

    /// Returns whether libvirtd may be stopped after the guest's end. Queries libvirt if this is not known yet.
    fn is_settled(&mut self, now: Duration, actions: &mut Vec<LauncherAction>) -> bool {
        let waits = matches!(self.libvirtd, Libvirtd::Up { .. }) && self.off.is_some() && !self.forced;
        match self.settling {
            _ if !waits || self.last_instant().is_some_and(|last| last <= now) => true,
            Settling::Done => true,
            Settling::Queried(until) => until <= now,
            Settling::NotYet => {
                if self.pending.is_some() {
                    actions.push(LauncherAction::Abandon);
                }
                let within = if self.has_failed() {
                    SETTLE_AFTER_FAILURE
                } else {
                    SETTLE
                };
                self.settling = Settling::Queried(now + within);
                self.call_libvirt(LibvirtCall::Settled, actions);
                false
            }
        }
    }

    fn conclude(&mut self, traces: Traces, actions: &mut Vec<LauncherAction>) {
        let Some(reason) = self.concluding else { return };
        let qemu = match self.guest {
            QemuState::Ended { how, .. } => how,
            QemuState::Never | QemuState::Runs { .. } => None,
        };
        let seen = EndEvidence {
            reason,
            log: traces.log,
            qemu,
            end_requested: self.stop.is_some(),
            requested: self.stop.is_some() && (self.ending_begun || self.forced),
            forced: self.forced,
            libvirt: self.failed.clone(),
            unhealthy: self.unhealthy.clone(),
            out_of_memory: traces.out_of_memory,
            migrated_away: traces.migrated_away,
        };
        self.end(ending(&seen), actions);
    }

    fn call_libvirt(&mut self, call: LibvirtCall, actions: &mut Vec<LauncherAction>) {
        self.ending_begun |= matches!(call, LibvirtCall::PowerButton | LibvirtCall::Destroy);
        self.pending = Some(call);
        actions.push(LauncherAction::Call(call));
    }

    fn end(&mut self, ending: Ending, actions: &mut Vec<LauncherAction>) {
        self.over = true;
        actions.push(LauncherAction::End(ending));
    }
}
