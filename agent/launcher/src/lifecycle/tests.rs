//! Tests of the launcher's lifecycle: events, their times, and the resulting actions.

use std::time::Duration;

use drydock_api::launcher::GuestOutcome;
use nix::{sys::signal::Signal, unistd::Pid};
use proptest::{collection::vec, prelude::*};

use super::{FAILURES, LauncherAction, LauncherEvent, LauncherLifecycle, LibvirtCall, Traces};
use crate::{
    domain_log::DomainLog,
    domain_state::{OffReason, VirshDomainState},
    grace::Grace,
    process_end::ProcessEnd,
};

const QEMU: Pid = Pid::from_raw(40);
const PROBE: Pid = Pid::from_raw(41);

/// A launcher that receives events and records the result.
struct Story {
    lifecycle: LauncherLifecycle,
    now: Duration,
    log: DomainLog,
    ending: Option<(GuestOutcome, String)>,
    /// Value of the `requested` field of the ending.
    requested: Option<bool>,
    /// Whether no other client waits for libvirt's responses.
    settles: bool,
}

impl Story {
    fn new(grace_seconds: u64) -> Self {
        Self {
            lifecycle: LauncherLifecycle::new(Grace::divide(grace_seconds)),
            now: Duration::ZERO,
            log: DomainLog::default(),
            ending: None,
            requested: None,
            settles: true,
        }
    }

    /// Returns a launcher whose pod is ready and whose guest is running.
    fn running(grace_seconds: u64) -> Self {
        let mut story = Self::ready(grace_seconds);
        assert_eq!(story.handle(LauncherEvent::QemuStarted(QEMU)), []);
        story
    }

    /// Returns a launcher whose pod is ready.
    fn ready(grace_seconds: u64) -> Self {
        let mut story = Self::new(grace_seconds);
        assert_eq!(story.handle(LauncherEvent::Time), [LauncherAction::StartLibvirtd]);
        assert_eq!(story.handle(LauncherEvent::Prepared(Ok(()))), []);
        assert_eq!(
            story.handle(LauncherEvent::LibvirtdListens),
            [LauncherAction::Learn, LauncherAction::Call(LibvirtCall::State)]
        );
        assert_eq!(story.reports(VirshDomainState::Absent), [LauncherAction::MarkReady]);
        story
    }

    /// Processes an event and returns the actions, without log messages.
    ///
    /// If `settles`, responds at once that no other client of libvirt waits.
    fn handle(&mut self, event: LauncherEvent) -> Vec<LauncherAction> {
        let mut done = Vec::new();
        for action in self.lifecycle.step(event, self.now) {
            match action {
                LauncherAction::LogMessage(_) => {}
                LauncherAction::ReadLog => {
                    let log = LauncherEvent::Log(Traces {
                        log: self.log.clone(),
                        ..Traces::default()
                    });
                    done.extend(self.handle(log));
                }
                LauncherAction::Call(LibvirtCall::Settled) if self.settles => {
                    done.extend(self.handle(LauncherEvent::Done(LibvirtCall::Settled, Err("it is off".into()))));
                }
                LauncherAction::End(ending) => {
                    self.requested = ending.requested;
                    self.ending = Some((ending.outcome, ending.message));
                }
                action => done.push(action),
            }
        }
        done
    }

    fn reports(&mut self, state: VirshDomainState) -> Vec<LauncherAction> {
        self.handle(LauncherEvent::StateReported(Ok(state)))
    }

    /// Advances the time to the launcher's wake-up.
    fn wakes(&mut self) -> Vec<LauncherAction> {
        self.now = self.lifecycle.wake().expect("it waits for an instant");
        self.handle(LauncherEvent::Time)
    }

    fn outcome(&self) -> Option<GuestOutcome> {
        self.ending.as_ref().map(|(outcome, _)| *outcome)
    }
}

const STATE: LauncherAction = LauncherAction::Call(LibvirtCall::State);
const BUTTON: LauncherAction = LauncherAction::Call(LibvirtCall::PowerButton);
const DESTROY: LauncherAction = LauncherAction::Call(LibvirtCall::Destroy);

fn off(reason: OffReason) -> VirshDomainState {
    VirshDomainState::Off(reason)
}

fn signal(signal: Signal) -> LauncherAction {
    LauncherAction::SignalQemu(QEMU, signal)
}

#[test]
fn failed_liveness_ends_guest_and_fails_pod() {
    let unhealthy = || LauncherEvent::Unhealthy("failed 3 times in a row".into());
    let mut story = Story::running(30);
    assert_eq!(story.handle(unhealthy()), [STATE]);
    assert_eq!(story.reports(VirshDomainState::Running), [BUTTON]);
    story.handle(LauncherEvent::Done(LibvirtCall::PowerButton, Ok(())));
    // A repeated failure or a SIGTERM in the meantime changes nothing.
    assert_eq!(story.handle(unhealthy()), []);
    assert_eq!(story.handle(LauncherEvent::TerminationRequested), []);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    story.reports(off(OffReason::Shutdown));
    let (outcome, message) = story.ending.clone().unwrap();
    assert_eq!(outcome, GuestOutcome::Failed);
    assert!(message.contains("liveness probe failed 3 times in a row"), "{message}");
    assert!(
        story.lifecycle.is_end_requested(),
        "its exit code agrees with the message"
    );

    // A pod that receives SIGTERM first ends for that reason.
    let mut story = Story::running(30);
    story.handle(LauncherEvent::TerminationRequested);
    story.handle(unhealthy());
    story.reports(VirshDomainState::Running);
    story.handle(LauncherEvent::Done(LibvirtCall::PowerButton, Ok(())));
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    story.reports(off(OffReason::Shutdown));
    assert_eq!(story.outcome(), Some(GuestOutcome::Shutdown));

    // The failure is ignored without a guest.
    let mut story = Story::ready(30);
    assert_eq!(story.handle(unhealthy()), []);
    assert!(!story.lifecycle.is_end_requested());
}

#[test]
fn pod_is_ready_once_disks_are_prepared_and_libvirt_responds() {
    for disks_first in [true, false] {
        let mut story = Story::new(30);
        assert_eq!(story.handle(LauncherEvent::Time), [LauncherAction::StartLibvirtd]);
        if disks_first {
            assert_eq!(story.handle(LauncherEvent::Prepared(Ok(()))), []);
        }
        assert_eq!(
            story.handle(LauncherEvent::LibvirtdListens),
            [LauncherAction::Learn, STATE]
        );
        let now_ready = story.reports(VirshDomainState::Absent);
        if disks_first {
            assert_eq!(now_ready, [LauncherAction::MarkReady]);
        } else {
            assert_eq!(now_ready, []);
            assert_eq!(
                story.handle(LauncherEvent::Prepared(Ok(()))),
                [LauncherAction::MarkReady]
            );
        }
        assert_eq!(story.lifecycle.wake(), None, "an idle pod waits for no time");
    }
}

#[test]
fn failed_disk_preparation_ends_the_pod_with_a_reason() {
    let mut story = Story::new(30);
    story.handle(LauncherEvent::Time);
    story.handle(LauncherEvent::Prepared(Err("NoDiskInImage: volume root: ...".into())));
    assert_eq!(
        story.ending,
        Some((GuestOutcome::Failed, "NoDiskInImage: volume root: ...".into()))
    );
}

#[test]
fn every_guest_end_is_reported() {
    for (reason, outcome) in [
        (OffReason::Shutdown, GuestOutcome::Shutdown),
        (OffReason::Destroyed, GuestOutcome::Destroyed),
        (OffReason::Crashed, GuestOutcome::Crashed),
        (OffReason::Migrated, GuestOutcome::Migrated),
        (OffReason::Failed, GuestOutcome::Failed),
    ] {
        let mut story = Story::running(30);
        assert_eq!(
            story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0))),
            [STATE]
        );
        assert_eq!(story.reports(off(reason)), []);
        assert_eq!(story.outcome(), Some(outcome), "{reason:?}");
    }
}

#[test]
fn libvirt_may_notice_the_end_after_the_kernel() {
    let mut story = Story::running(30);
    assert_eq!(
        story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0))),
        [STATE]
    );
    assert_eq!(story.reports(VirshDomainState::Running), []);
    assert_eq!(story.handle(LauncherEvent::StateRemoved), [STATE]);
    story.reports(off(OffReason::Shutdown));
    assert_eq!(story.outcome(), Some(GuestOutcome::Shutdown));
}

#[test]
fn libvirt_may_report_the_end_before_the_kernel() {
    let mut story = Story::running(30);
    assert_eq!(story.handle(LauncherEvent::StateRemoved), [STATE]);
    assert_eq!(story.reports(off(OffReason::Destroyed)), []);
    assert_eq!(story.outcome(), None, "its QEMU still lives");
    assert_eq!(
        story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Killed(Signal::SIGKILL))),
        [STATE]
    );
    story.reports(off(OffReason::Destroyed));
    assert_eq!(story.outcome(), Some(GuestOutcome::Destroyed));
}

#[test]
fn guest_end_unnoticed_by_libvirt_is_reported() {
    let mut story = Story::running(30);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Killed(Signal::SIGKILL)));
    story.reports(VirshDomainState::Running);
    story.wakes();
    let (outcome, message) = story.ending.expect("it has ended");
    assert_eq!(outcome, GuestOutcome::Crashed);
    assert!(message.contains("QEMU was killed by SIGKILL"), "{message}");
}

#[test]
fn killed_qemu_needs_libvirt_state_only_if_guest_leaves() {
    let killed = ProcessEnd::Killed(Signal::SIGKILL);
    for (how, leaves, seconds) in [
        (killed, false, 3),
        (ProcessEnd::Exited(1), false, 3),
        (killed, true, 30),
        (ProcessEnd::Exited(0), false, 30),
        (ProcessEnd::Unknown, false, 30),
    ] {
        let mut story = Story::running(30);
        if leaves {
            story.handle(LauncherEvent::Leaves);
        }
        // libvirt hangs and does not respond at all.
        assert_eq!(story.handle(LauncherEvent::QemuEnded(QEMU, how)), [STATE]);
        assert_eq!(story.outcome(), None);
        story.wakes();
        assert!(story.outcome().is_some(), "{how}");
        assert_eq!(story.now.as_secs(), seconds, "{how}, leaves: {leaves}");
    }
    // The launcher waits only briefly for other calls to libvirt.
    let mut story = Story::running(30);
    story.settles = false;
    story.handle(LauncherEvent::QemuEnded(QEMU, killed));
    assert_eq!(
        story.reports(off(OffReason::Crashed)),
        [LauncherAction::Call(LibvirtCall::Settled)]
    );
    story.wakes();
    assert_eq!((story.outcome(), story.now.as_secs()), (Some(GuestOutcome::Crashed), 1));
    // libvirt's report counts if it arrives in time.
    let mut story = Story::running(30);
    story.handle(LauncherEvent::QemuEnded(QEMU, killed));
    story.reports(off(OffReason::Migrated));
    assert_eq!(
        (story.outcome(), story.now.as_secs()),
        (Some(GuestOutcome::Migrated), 0)
    );
}

#[test]
fn migration_client_gets_result_before_libvirtd_stops() {
    let moved = || {
        let mut story = Story::running(30);
        story.settles = false;
        story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
        assert_eq!(
            story.reports(off(OffReason::Migrated)),
            [LauncherAction::Call(LibvirtCall::Settled)]
        );
        assert_eq!(story.outcome(), None);
        story
    };
    let mut story = moved();
    story.handle(LauncherEvent::Done(
        LibvirtCall::Settled,
        Err("domain is not running".into()),
    ));
    assert_eq!(story.outcome(), Some(GuestOutcome::Migrated));
    // A client that gets no response does not keep the pod alive.
    let mut story = moved();
    story.wakes();
    assert_eq!(
        (story.outcome(), story.now.as_secs()),
        (Some(GuestOutcome::Migrated), 5)
    );
    // Clients get no responses after the end of libvirtd.
    let mut story = moved();
    assert_eq!(
        story.handle(LauncherEvent::LibvirtdEnded("ended".into())),
        [LauncherAction::Abandon]
    );
    assert_eq!(story.outcome(), Some(GuestOutcome::Migrated));
}

#[test]
fn end_of_an_undefined_guest_is_read_from_the_log() {
    let mut story = Story::running(30);
    story.log.reason = Some(OffReason::Migrated);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    story.reports(VirshDomainState::Absent);
    assert_eq!(story.outcome(), Some(GuestOutcome::Migrated));
}

#[test]
fn guest_ended_before_qemu_was_seen_is_reported_as_ended() {
    let mut story = Story::ready(30);
    assert_eq!(story.handle(LauncherEvent::StateRemoved), [STATE]);
    story.reports(off(OffReason::Failed));
    assert_eq!(story.outcome(), Some(GuestOutcome::Failed));
    // Only the end of a QEMU was seen, and not even libvirt's state file.
    let mut story = Story::ready(30);
    assert_eq!(
        story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(1))),
        [STATE]
    );
    story.reports(off(OffReason::Destroyed));
    assert_eq!(story.outcome(), Some(GuestOutcome::Destroyed));
}

#[test]
fn a_start_that_failed_early_is_seen_by_the_log_alone() {
    let mut story = Story::ready(30);
    assert_eq!(story.handle(LauncherEvent::LogWritten), [STATE]);
    story.reports(off(OffReason::Failed));
    assert_eq!(story.outcome(), Some(GuestOutcome::Failed));
    // A running guest may write to its log at any rate.
    let mut story = Story::running(30);
    assert_eq!(story.handle(LauncherEvent::LogWritten), []);
}

#[test]
fn qemu_probed_by_libvirt_is_not_the_guest() {
    for state in [VirshDomainState::Absent, off(OffReason::Unknown)] {
        let mut story = Story::ready(30);
        assert_eq!(
            story.handle(LauncherEvent::QemuEnded(PROBE, ProcessEnd::Exited(0))),
            [STATE]
        );
        assert_eq!(story.reports(state), []);
        assert_eq!(story.outcome(), None);
    }
    let mut story = Story::running(30);
    assert_eq!(story.handle(LauncherEvent::QemuEnded(PROBE, ProcessEnd::Exited(0))), []);
    assert_eq!(story.outcome(), None);
}

#[test]
fn stale_report_does_not_end_guest_with_live_qemu() {
    let mut story = Story::ready(30);
    assert_eq!(
        story.handle(LauncherEvent::QemuEnded(PROBE, ProcessEnd::Exited(0))),
        [STATE]
    );
    story.handle(LauncherEvent::QemuStarted(QEMU));
    // The response describes the time before the start.
    assert_eq!(story.reports(off(OffReason::Unknown)), []);
    assert_eq!(story.wakes(), [STATE]);
    assert_eq!(story.reports(VirshDomainState::Running), []);
    assert_eq!((story.outcome(), story.lifecycle.wake()), (None, None));
}

#[test]
fn power_button_is_repeated_before_the_guest_is_destroyed() {
    let mut story = Story::running(30);
    let mut pressed = Vec::new();
    let mut steps = story.handle(LauncherEvent::TerminationRequested);
    while steps != [DESTROY] {
        assert_eq!(steps, [STATE]);
        assert_eq!(story.reports(VirshDomainState::Running), [BUTTON]);
        assert_eq!(story.handle(LauncherEvent::Done(LibvirtCall::PowerButton, Ok(()))), []);
        pressed.push(story.now.as_secs());
        steps = story.wakes();
    }
    assert_eq!(pressed, [0, 5, 10, 15, 20, 25]);
    assert_eq!(story.now.as_secs(), 27);
    assert_eq!(story.handle(LauncherEvent::Done(LibvirtCall::Destroy, Ok(()))), []);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    story.reports(off(OffReason::Destroyed));
    assert_eq!(story.outcome(), Some(GuestOutcome::Destroyed));
}

#[test]
fn requested_shutdown_ends_as_shutdown() {
    let mut story = Story::running(30);
    story.handle(LauncherEvent::TerminationRequested);
    story.reports(VirshDomainState::Running);
    story.handle(LauncherEvent::Done(LibvirtCall::PowerButton, Ok(())));
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    story.reports(off(OffReason::Shutdown));
    assert_eq!(story.outcome(), Some(GuestOutcome::Shutdown));
    assert_eq!(story.requested, Some(true));
    assert!(story.lifecycle.is_end_requested());
}

#[test]
fn power_off_before_acpi_shutdown_is_a_guest_shutdown() {
    // The guest ends before SIGTERM, or before libvirt has confirmed that a running guest could react to the button.
    for terminated_first in [false, true] {
        let mut story = Story::running(30);
        if terminated_first {
            assert_eq!(story.handle(LauncherEvent::TerminationRequested), [STATE]);
            story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
        } else {
            assert_eq!(
                story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0))),
                [STATE]
            );
            story.handle(LauncherEvent::TerminationRequested);
        }
        story.reports(off(OffReason::Shutdown));
        assert_eq!(
            (story.outcome(), story.requested),
            (Some(GuestOutcome::Shutdown), Some(false))
        );
    }
}

#[test]
fn power_button_of_paused_guest_is_pressed_after_resume() {
    let mut story = Story::running(12);
    story.handle(LauncherEvent::TerminationRequested);
    assert_eq!(story.reports(VirshDomainState::Paused), []);
    assert_eq!(story.wakes(), [STATE]);
    assert_eq!(story.reports(VirshDomainState::Running), [BUTTON]);
    story.handle(LauncherEvent::Done(LibvirtCall::PowerButton, Err("no".into())));
    assert_eq!(story.wakes(), [DESTROY]);
    assert_eq!(story.now.as_secs(), 10);
}

#[test]
fn without_a_grace_period_the_guest_is_destroyed_at_once() {
    let mut story = Story::running(0);
    assert_eq!(story.handle(LauncherEvent::TerminationRequested), [DESTROY]);
}

#[test]
fn a_destroy_that_does_not_succeed_is_done_by_hand() {
    // libvirt refuses to destroy the guest.
    let mut story = Story::running(0);
    story.handle(LauncherEvent::TerminationRequested);
    let refused = LauncherEvent::Done(LibvirtCall::Destroy, Err("no".into()));
    assert_eq!(story.handle(refused), [signal(Signal::SIGTERM)]);
    assert_eq!(story.wakes(), [signal(Signal::SIGKILL)]);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Killed(Signal::SIGKILL)));
    assert_eq!(story.outcome(), Some(GuestOutcome::Destroyed));
    // libvirt hangs.
    let mut story = Story::running(0);
    story.handle(LauncherEvent::TerminationRequested);
    assert_eq!(story.wakes(), [signal(Signal::SIGKILL)]);
    // Killing QEMU has no effect either.
    story.wakes();
    assert_eq!(story.outcome(), Some(GuestOutcome::Destroyed));
}

#[test]
fn a_question_in_flight_does_not_delay_destroying() {
    let mut story = Story::running(10);
    assert_eq!(story.handle(LauncherEvent::TerminationRequested), [STATE]);
    // virsh hangs. The second press is due, but no call is possible.
    assert_eq!(story.wakes(), []);
    assert_eq!(story.wakes(), [LauncherAction::Abandon, DESTROY]);
    assert_eq!(story.now.as_secs(), 8);
}

#[test]
fn pod_terminated_before_guest_start_kills_libvirtd_first() {
    let mut story = Story::ready(30);
    assert_eq!(
        story.handle(LauncherEvent::TerminationRequested),
        [LauncherAction::KillLibvirtd]
    );
    assert_eq!(story.outcome(), None, "libvirtd could still start the guest");
    story.handle(LauncherEvent::LibvirtdEnded("was killed by SIGKILL".into()));
    assert_eq!(story.outcome(), Some(GuestOutcome::NotStarted));
}

#[test]
fn guest_that_starts_during_the_stop_is_ended() {
    let mut story = Story::ready(30);
    assert_eq!(
        story.handle(LauncherEvent::TerminationRequested),
        [LauncherAction::KillLibvirtd]
    );
    story.handle(LauncherEvent::QemuStarted(QEMU));
    let ended = LauncherEvent::LibvirtdEnded("was killed by SIGKILL".into());
    assert_eq!(story.handle(ended), [signal(Signal::SIGTERM)]);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    assert_eq!(story.outcome(), Some(GuestOutcome::Destroyed));
}

#[test]
fn pod_terminated_at_once_starts_nothing() {
    let mut story = Story::new(30);
    assert_eq!(story.handle(LauncherEvent::TerminationRequested), []);
    assert_eq!(story.outcome(), Some(GuestOutcome::NotStarted));
}

#[test]
fn libvirtd_is_started_again_and_the_guest_goes_on() {
    let mut story = Story::running(30);
    assert_eq!(
        story.handle(LauncherEvent::LibvirtdEnded("was killed by SIGSEGV".into())),
        []
    );
    assert_eq!(story.wakes(), [LauncherAction::StartLibvirtd]);
    assert_eq!(story.now.as_millis(), 200);
    assert_eq!(story.handle(LauncherEvent::LibvirtdListens), [STATE]);
    assert_eq!(story.reports(VirshDomainState::Running), []);
    assert_eq!((story.outcome(), story.lifecycle.wake()), (None, None));
}

#[test]
fn libvirtd_is_not_started_again_after_the_guest() {
    let ended = LauncherEvent::LibvirtdEnded("was killed by SIGSEGV".into());
    let killed = LauncherEvent::QemuEnded(QEMU, ProcessEnd::Killed(Signal::SIGKILL));
    for events in [[ended.clone(), killed.clone()], [killed, ended]] {
        let mut story = Story::running(30);
        for event in events.clone() {
            story.handle(event);
        }
        assert_eq!(story.outcome(), Some(GuestOutcome::Crashed), "{events:?}");
        assert_eq!(story.lifecycle.wake(), None, "{events:?}");
    }
}

#[test]
fn a_libvirtd_that_cannot_be_kept_alive_ends_pod_and_guest() {
    let mut story = Story::running(30);
    let mut pauses = Vec::new();
    let mut steps = Vec::new();
    for failure in 1..=FAILURES {
        steps = story.handle(LauncherEvent::LibvirtdEnded("ended with exit code 1".into()));
        if failure < FAILURES {
            let before = story.now;
            assert_eq!(story.wakes(), [LauncherAction::StartLibvirtd]);
            pauses.push((story.now - before).as_millis());
        }
    }
    assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000]);
    // SIGTERM is sent first, so that QEMU can flush its buffers.
    assert_eq!(steps, [signal(Signal::SIGTERM)]);
    assert_eq!(story.wakes(), [signal(Signal::SIGKILL)]);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Killed(Signal::SIGKILL)));
    let (outcome, message) = story.ending.expect("it has ended");
    assert_eq!(outcome, GuestOutcome::Failed);
    assert!(
        message.contains("8 times in a row; last failure: ended with exit code 1"),
        "{message}"
    );
}

#[test]
fn a_libvirtd_that_never_lived_fails_the_pod() {
    let mut story = Story::new(30);
    story.handle(LauncherEvent::Time);
    for _ in 1..FAILURES {
        story.handle(LauncherEvent::LibvirtdEnded(
            "could not be started: no such file".into(),
        ));
        story.wakes();
    }
    assert_eq!(story.outcome(), None);
    story.handle(LauncherEvent::LibvirtdEnded(
        "could not be started: no such file".into(),
    ));
    assert_eq!(story.outcome(), Some(GuestOutcome::Failed));
}

#[test]
fn failures_long_apart_are_not_counted_together() {
    let mut story = Story::running(30);
    for _ in 0..3 * FAILURES {
        story.now += Duration::from_secs(300);
        story.handle(LauncherEvent::LibvirtdEnded("was killed by SIGSEGV".into()));
        assert_eq!(story.wakes(), [LauncherAction::StartLibvirtd]);
        story.handle(LauncherEvent::LibvirtdListens);
        story.reports(VirshDomainState::Running);
    }
    assert_eq!(story.outcome(), None);
}

#[test]
fn unresponsive_libvirtd_is_killed() {
    let mut story = Story::new(30);
    story.handle(LauncherEvent::Time);
    assert_eq!(
        story.handle(LauncherEvent::LibvirtdListens),
        [LauncherAction::Learn, STATE]
    );
    assert_eq!(story.handle(LauncherEvent::StateReported(Err("refused".into()))), []);
    assert_eq!(story.wakes(), [STATE], "it may only have been too early");
    assert_eq!(story.wakes(), [LauncherAction::KillLibvirtd]);
    assert_eq!(story.now.as_secs(), 60);
}

#[test]
fn guest_is_destroyed_even_if_libvirtd_dies_during_destroy() {
    let mut story = Story::running(0);
    assert_eq!(story.handle(LauncherEvent::TerminationRequested), [DESTROY]);
    let ended = LauncherEvent::LibvirtdEnded("was killed by SIGSEGV".into());
    assert_eq!(story.handle(ended), [LauncherAction::Abandon, signal(Signal::SIGTERM)]);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    assert_eq!(story.outcome(), Some(GuestOutcome::Destroyed));
}

#[test]
fn nothing_is_done_after_the_end() {
    let mut story = Story::running(30);
    story.handle(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0)));
    story.reports(off(OffReason::Shutdown));
    for event in [
        LauncherEvent::Time,
        LauncherEvent::TerminationRequested,
        LauncherEvent::LibvirtdEnded("ended".into()),
        LauncherEvent::StateRemoved,
    ] {
        assert_eq!(story.handle(event), []);
    }
    assert_eq!(story.lifecycle.wake(), None);
}

fn any_event() -> impl Strategy<Value = LauncherEvent> {
    let reason = prop_oneof![
        Just(OffReason::Unknown),
        Just(OffReason::Shutdown),
        Just(OffReason::Destroyed),
        Just(OffReason::Migrated)
    ];
    let state = prop_oneof![
        Just(VirshDomainState::Running),
        Just(VirshDomainState::Paused),
        Just(VirshDomainState::Absent),
        reason.prop_map(VirshDomainState::Off)
    ];
    let result = prop_oneof![Just(Ok(())), Just(Err("no".to_owned()))];
    prop_oneof![
        Just(LauncherEvent::Time),
        result.clone().prop_map(LauncherEvent::Prepared),
        Just(LauncherEvent::LibvirtdListens),
        Just(LauncherEvent::LibvirtdEnded("ended".into())),
        Just(LauncherEvent::QemuStarted(QEMU)),
        Just(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Exited(0))),
        Just(LauncherEvent::Unhealthy("failed".into())),
        Just(LauncherEvent::Leaves),
        Just(LauncherEvent::QemuEnded(QEMU, ProcessEnd::Killed(Signal::SIGKILL))),
        Just(LauncherEvent::QemuEnded(PROBE, ProcessEnd::Exited(0))),
        Just(LauncherEvent::StateRemoved),
        Just(LauncherEvent::LogWritten),
        state.prop_map(|state| LauncherEvent::StateReported(Ok(state))),
        Just(LauncherEvent::StateReported(Err("no".into()))),
        result
            .clone()
            .prop_map(|result| LauncherEvent::Done(LibvirtCall::Destroy, result)),
        result.prop_map(|result| LauncherEvent::Done(LibvirtCall::Settled, result)),
    ]
}

proptest! {
    #[test]
    fn terminated_pod_ends_within_the_grace_period(
        before in vec((any_event(), 0_u64..40_000), 0..25),
        after in vec((any_event(), 0_u64..4000), 0..25),
        grace in 0_u64..60,
    ) {
        let mut story = Story::new(grace);
        story.settles = false;
        story.handle(LauncherEvent::Time);
        for (event, pause) in before {
            story.now += Duration::from_millis(pause);
            story.handle(event);
        }
        let requested_at = story.now;
        let given_up = requested_at + Grace::divide(grace).give_up;
        story.handle(LauncherEvent::TerminationRequested);
        let mut after = after.into_iter();
        // No further events follow, except that the kernel ends a killed libvirtd.
        for _ in 0..500 {
            if story.ending.is_some() {
                break;
            }
            let wake = story.lifecycle.wake();
            if let Some((event, pause)) = after.next() {
                let next = story.now + Duration::from_millis(pause);
                story.now = wake.map_or(next, |wake| wake.min(next)).max(story.now);
                story.handle(event);
            } else if let Some(wake) = wake {
                prop_assert!(wake >= story.now, "it wants to be called in the past");
                story.now = wake;
                let done = story.handle(LauncherEvent::Time);
                prop_assert!(!done.is_empty() || story.lifecycle.wake() != Some(wake), "it spins");
            } else {
                story.handle(LauncherEvent::LibvirtdEnded("was killed by SIGKILL".into()));
            }
        }
        prop_assert!(story.ending.is_some(), "it never ends: {:?}", story.lifecycle);
        prop_assert!(story.now <= given_up, "{:?}", story.now - requested_at);
    }

    #[test]
    fn one_libvirt_call_at_a_time(events in vec((any_event(), 0_u64..20_000), 0..60), stop in 0_usize..60) {
        let mut story = Story::new(30);
        story.settles = false;
        let mut in_progress = false;
        let mut check = |done: &[LauncherAction], call_ended: bool| {
            if call_ended {
                in_progress = false;
            }
            for action in done {
                match action {
                    LauncherAction::Abandon => in_progress = false,
                    LauncherAction::Call(_) => {
                        if in_progress {
                            return false;
                        }
                        in_progress = true;
                    }
                    _ => {}
                }
            }
            true
        };
        for (at, (event, pause)) in events.into_iter().enumerate() {
            story.now += Duration::from_millis(pause);
            if at == stop {
                let done = story.handle(LauncherEvent::TerminationRequested);
                prop_assert!(check(&done, false));
            }
            // Only responses to the call in progress are generated.
            let ends_call = match (&event, story.lifecycle.pending) {
                (LauncherEvent::StateReported(_), pending) if pending != Some(LibvirtCall::State) => continue,
                (LauncherEvent::Done(call, _), pending) if pending != Some(*call) => continue,
                (LauncherEvent::StateReported(_) | LauncherEvent::Done(..), _) => true,
                _ => false,
            };
            let done = story.handle(event);
            prop_assert!(check(&done, ends_call));
        }
    }
}
