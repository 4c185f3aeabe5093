//! Stopping a guest, because the pod is terminated or because libvirtd cannot be kept running.

use std::time::Duration;

use drydock_api::launcher::GuestOutcome;
use nix::sys::signal::Signal;

use super::{LauncherAction, LauncherLifecycle, LibvirtCall, Libvirtd, POLITE, PRESS_AGAIN, PRESS_LATER, QemuState};
use crate::ending::bounded;

impl LauncherLifecycle {
    /// Executes the next steps of a requested termination.
    pub(super) fn stopping(&mut self, now: Duration, actions: &mut Vec<LauncherAction>) {
        let Some(mut stop) = self.stop else { return };
        match self.guest {
            QemuState::Never => self.close(now, actions),
            QemuState::Ended { .. } => {}
            QemuState::Runs { .. } => {
                let passed = now.saturating_sub(stop.since);
                // The guest has started although libvirtd was being stopped to prevent this.
                let too_late = matches!(self.libvirtd, Libvirtd::Off { again: None });
                if passed >= self.grace.give_up {
                    self.forced = true;
                    self.concluding = Some(None);
                    actions.push(LauncherAction::ReadLog);
                } else if !stop.destroyed && (passed >= self.grace.destroy || too_late) {
                    stop.destroyed = true;
                    self.kill_at = Some(now + self.grace.kill.saturating_sub(self.grace.destroy));
                    self.destroy(actions);
                } else if !stop.destroyed && stop.press_at <= now {
                    let again = if passed < PRESS_LATER { PRESS_AGAIN } else { PRESS_LATER };
                    stop.press_at = now + again;
                    self.press = true;
                    self.query_at = Some(now);
                }
                self.stop = Some(stop);
                self.kill_when_due(now, actions);
            }
        }
    }

    /// Returns the time at which the pod ends in any case, if it is being terminated.
    pub(super) fn last_instant(&self) -> Option<Duration> {
        let grace = self.stop.map(|stop| stop.since + self.grace.give_up);
        let failure = self.given_up.map(|at| at + POLITE + POLITE / 2);
        [grace, failure].into_iter().flatten().min()
    }

    /// Ends the pod without a guest, but only after libvirtd has ended, so that no guest can start.
    fn close(&mut self, now: Duration, actions: &mut Vec<LauncherAction>) {
        match self.libvirtd {
            Libvirtd::Off { .. } => {
                let message = "Termination of the pod was requested before the guest ran.";
                self.end(bounded(GuestOutcome::NotStarted, message, true), actions);
            }
            Libvirtd::Starting { .. } | Libvirtd::Up { .. } => {
                self.libvirtd = Libvirtd::Closing;
                actions.push(LauncherAction::KillLibvirtd);
            }
            Libvirtd::Closing if self.last_instant().is_some_and(|last| last <= now) => {
                let message = "Termination of the pod was requested, but libvirtd cannot be stopped.";
                self.end(bounded(GuestOutcome::Failed, message, true), actions);
            }
            Libvirtd::Closing => {}
        }
    }

    fn destroy(&mut self, actions: &mut Vec<LauncherAction>) {
        if self.pending.is_some() {
            self.pending = None;
            actions.push(LauncherAction::Abandon);
        }
        self.press = false;
        if matches!(self.libvirtd, Libvirtd::Up { .. }) {
            self.call_libvirt(LibvirtCall::Destroy, actions);
        } else {
            actions.push(LauncherAction::LogMessage(
                "libvirtd is unavailable and cannot destroy the guest".into(),
            ));
            self.end_qemu(Signal::SIGTERM, actions);
        }
    }

    pub(super) fn give_up(&mut self, now: Duration, actions: &mut Vec<LauncherAction>) {
        match self.guest {
            QemuState::Runs { pid: Some(_) } => {
                if self.given_up.is_none() {
                    self.given_up = Some(now);
                    self.kill_at = Some(now + POLITE);
                    self.end_qemu(Signal::SIGTERM, actions);
                }
                self.kill_when_due(now, actions);
                if self.last_instant().is_some_and(|last| last <= now) {
                    self.concluding = Some(None);
                    actions.push(LauncherAction::ReadLog);
                }
            }
            QemuState::Runs { pid: None } | QemuState::Never | QemuState::Ended { .. } => {
                self.concluding = Some(None);
                actions.push(LauncherAction::ReadLog);
            }
        }
    }

    fn kill_when_due(&mut self, now: Duration, actions: &mut Vec<LauncherAction>) {
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            self.end_qemu(Signal::SIGKILL, actions);
        }
    }

    pub(super) fn end_qemu(&mut self, signal: Signal, actions: &mut Vec<LauncherAction>) {
        if let QemuState::Runs { pid: Some(pid) } = self.guest {
            self.forced = true;
            actions.push(LauncherAction::SignalQemu(pid, signal));
        }
    }
}
