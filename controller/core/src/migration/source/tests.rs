use std::time::Duration;

use drydock_api::kubevirt::migration::{MigrationPhase as P, SourceState as S, TargetState as T};
use proptest::{prelude::*, sample::select};

use super::{
    JobState, MigrateCall, SourceDomain as D, SourceStep as Do, SourceTunnel, SourceView, step, target_is_late_in,
};
use crate::migration::{hand_over::Proof, record::MigrationRecord};

/// An open session without any progress.
const OPEN: SourceTunnel = SourceTunnel::Open {
    paired: false,
    reply_read: false,
    acknowledged: false,
};
const PAIRED: SourceTunnel = SourceTunnel::Open {
    paired: true,
    reply_read: false,
    acknowledged: false,
};
const READ: SourceTunnel = SourceTunnel::Open {
    paired: true,
    reply_read: true,
    acknowledged: false,
};
const ACKNOWLEDGED: SourceTunnel = SourceTunnel::Open {
    paired: true,
    reply_read: false,
    acknowledged: true,
};

const TAKEN_OVER: SourceTunnel = SourceTunnel::Open {
    paired: true,
    reply_read: true,
    acknowledged: true,
};

/// The guest runs, and both sides of its migration are named.
fn named() -> SourceView {
    SourceView {
        record: MigrationRecord {
            phase: Some(P::PreparingTarget),
            ..MigrationRecord::default()
        },
        domain: D::Running,
        job: JobState::None,
        call: MigrateCall::Unknown,
        tunnel: SourceTunnel::Missing,
        stood_still: false,
        target_is_late: false,
        is_stuck: false,
    }
}

/// Both sides are ready.
fn ready() -> SourceView {
    let mut view = named();
    view.record.target = Some(T::Prepared);
    view.tunnel = PAIRED;
    view
}

/// libvirt moves the guest.
fn moving() -> SourceView {
    let mut view = ready();
    view.record.phase = Some(P::Running);
    view.record.source = Some(S::Migrating);
    view.job = JobState::Outgoing;
    view.call = MigrateCall::Pending;
    view
}

/// The guest is paused, and the target has all of it.
fn leaving() -> SourceView {
    let mut view = moving();
    view.domain = D::Leaving;
    view.record.target = Some(T::Complete);
    view
}

/// libvirtd was lost while the guest was paused.
fn halted() -> SourceView {
    let mut view = leaving();
    view.record.source = Some(S::Halted);
    view.record.target = Some(T::Prepared);
    (view.job, view.call) = (JobState::None, MigrateCall::Failed);
    view
}

/// The source has released the guest.
fn let_go() -> SourceView {
    let mut view = leaving();
    view.record.source = Some(S::Released);
    view
}

/// A test case: its name, the change to the view, and the expected steps.
type Row = (&'static str, fn(&mut SourceView), &'static [Do]);

fn check(from: fn() -> SourceView, rows: &[Row]) {
    for (what, change, expected) in rows {
        let mut view = from();
        change(&mut view);
        assert_eq!(step(&view), *expected, "{what}: {view:?}");
    }
}

#[test]
fn a_session_is_opened_once_both_sides_are_named() {
    check(
        named,
        &[
            ("sides are named", |_| {}, &[Do::Prepare]),
            ("not yet", |v| v.record.phase = Some(P::Scheduled), &[]),
            ("no phase yet", |v| v.record.phase = None, &[]),
            ("the tunnel is down", |v| v.tunnel = SourceTunnel::Unknown, &[]),
            ("open, the target is not ready", |v| v.tunnel = OPEN, &[]),
            (
                "the target is ready first",
                |v| v.record.target = Some(T::Prepared),
                &[Do::Prepare],
            ),
            (
                "refused",
                |v| (v.tunnel, v.record.target) = (OPEN, Some(T::Refused)),
                &[],
            ),
            ("paused by its user", |v| v.domain = D::Paused, &[Do::Prepare]),
            ("libvirt is down", |v| v.domain = D::Unknown, &[]),
            ("its job is not known", |v| v.job = JobState::Unknown, &[]),
            ("deleted", |v| v.record.deleted = true, &[Do::Report(S::Stayed)]),
            ("given up", |v| v.record.abort = true, &[Do::Report(S::Stayed)]),
            ("failed", |v| v.record.phase = Some(P::Failed), &[Do::Report(S::Stayed)]),
            ("the guest has ended", |v| v.domain = D::Ended, &[Do::Report(S::Ended)]),
        ],
    );
}

#[test]
fn migrating_is_reported_before_libvirt_call() {
    check(
        ready,
        &[
            ("both are ready", |_| {}, &[Do::Report(S::Migrating)]),
            ("no peer", |v| v.tunnel = OPEN, &[Do::Pair]),
            (
                "recorded as ready",
                |v| v.record.phase = Some(P::TargetReady),
                &[Do::Report(S::Migrating)],
            ),
            ("the target is not", |v| v.record.target = None, &[]),
            (
                "the key is lost, and nobody has noticed",
                |v| v.tunnel = SourceTunnel::Missing,
                &[Do::Prepare],
            ),
            ("the tunnel is down", |v| v.tunnel = SourceTunnel::Unknown, &[]),
            ("deleted", |v| v.record.deleted = true, &[Do::Report(S::Stayed)]),
            ("given up", |v| v.record.abort = true, &[Do::Report(S::Stayed)]),
            ("the guest has ended", |v| v.domain = D::Ended, &[Do::Report(S::Ended)]),
        ],
    );
}

#[test]
fn libvirt_call_is_made_once() {
    check(
        moving,
        &[
            (
                "reported",
                |v| (v.job, v.call) = (JobState::None, MigrateCall::Due),
                &[Do::Start],
            ),
            (
                "given up meanwhile",
                |v| (v.job, v.call, v.record.abort) = (JobState::None, MigrateCall::Due, true),
                &[Do::Close],
            ),
            ("it moves", |_| {}, &[]),
            ("the call is on its way", |v| v.job = JobState::None, &[]),
            ("of another process", |v| v.call = MigrateCall::Unknown, &[]),
            (
                "over, and of another process",
                |v| (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Unknown, SourceTunnel::Missing),
                &[Do::Report(S::Stayed)],
            ),
            (
                "failed",
                |v| (v.job, v.call) = (JobState::None, MigrateCall::Failed),
                &[Do::Close],
            ),
            (
                "failed, and closed",
                |v| (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Failed, SourceTunnel::Missing),
                &[Do::Report(S::Stayed)],
            ),
            // If `Stayed` were reported with an open session, the guest could still leave.
            (
                "the call of an earlier process may be on its way",
                |v| (v.job, v.call) = (JobState::None, MigrateCall::Unknown),
                &[Do::Close],
            ),
            (
                "the same, the tunnel is down",
                |v| (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Unknown, SourceTunnel::Unknown),
                &[],
            ),
            (
                "succeeded, and libvirt is about to stop it",
                |v| (v.job, v.call) = (JobState::None, MigrateCall::Succeeded),
                &[],
            ),
            ("deleted", |v| v.record.deleted = true, &[Do::Abort]),
            ("given up", |v| v.record.abort = true, &[Do::Abort]),
            ("the tunnel is down", |v| v.tunnel = SourceTunnel::Unknown, &[]),
            ("the session is lost", |v| v.tunnel = SourceTunnel::Missing, &[]),
            ("the guest has ended", |v| v.domain = D::Ended, &[Do::Report(S::Ended)]),
        ],
    );
}

#[test]
fn source_reports_stop_before_release() {
    check(
        leaving,
        &[
            ("the target has it, the reply is not read", |_| {}, &[]),
            ("the reply is read", |v| v.tunnel = READ, &[Do::Report(S::Released)]),
            (
                "it is too late to give up",
                |v| (v.tunnel, v.record.deleted) = (READ, true),
                &[Do::Report(S::Released)],
            ),
            ("given up in time", |v| v.record.deleted = true, &[Do::Abort]),
            (
                "stopped, and this tunnel did not see why",
                |v| (v.domain, v.target_is_late) = (D::Left, true),
                &[Do::Report(S::Stopped), Do::Release(Proof::SourceStopped)],
            ),
            (
                "stopped, and this tunnel is about to see why",
                |v| v.domain = D::Left,
                &[],
            ),
            (
                "stopped, and the acknowledgement is late",
                |v| (v.domain, v.tunnel, v.target_is_late) = (D::Left, READ, true),
                &[Do::Report(S::Stopped)],
            ),
            (
                "stopped, and the target is about to acknowledge",
                |v| (v.domain, v.tunnel) = (D::Left, READ),
                &[],
            ),
            (
                "stopped, and the target has taken it over",
                |v| (v.domain, v.tunnel) = (D::Left, ACKNOWLEDGED),
                &[Do::Report(S::HandedOver)],
            ),
            (
                "the target has taken it over, and it is about to stop",
                |v| v.tunnel = TAKEN_OVER,
                &[],
            ),
            (
                "it is too late to give up what the target has taken over",
                |v| (v.tunnel, v.record.abort) = (TAKEN_OVER, true),
                &[],
            ),
            (
                "the target has taken it over, and libvirtd was lost",
                |v| (v.tunnel, v.job) = (TAKEN_OVER, JobState::None),
                &[Do::Report(S::Released)],
            ),
            (
                "stopped, without a session",
                |v| (v.domain, v.tunnel) = (D::Left, SourceTunnel::Missing),
                &[Do::Report(S::Stopped)],
            ),
        ],
    );
}

#[test]
fn source_reports_how_a_leaving_guest_has_ended() {
    check(
        leaving,
        &[
            (
                "ended after it may have gone on",
                |v| v.domain = D::Ended,
                &[Do::Report(S::Ended)],
            ),
            (
                "ended while it stood still, the target may not have all of it",
                |v| (v.domain, v.stood_still) = (D::Ended, true),
                &[Do::Report(S::Halted)],
            ),
            (
                "ended after the reply was read",
                |v| (v.domain, v.tunnel) = (D::Ended, READ),
                &[Do::Report(S::Stopped)],
            ),
        ],
    );
}

#[test]
fn source_without_libvirtd_decides_by_the_target() {
    check(
        leaving,
        &[
            (
                "libvirtd was lost",
                |v| v.job = JobState::None,
                &[Do::Report(S::Released)],
            ),
            ("its job is not known", |v| v.job = JobState::Unknown, &[]),
            (
                "libvirtd was lost, the target has not reported that it has it",
                |v| (v.job, v.record.target) = (JobState::None, Some(T::Prepared)),
                &[Do::Report(S::Halted)],
            ),
            (
                "libvirtd was lost, it ended on the target",
                |v| (v.job, v.record.target) = (JobState::None, Some(T::Ended)),
                &[Do::Report(S::Released)],
            ),
            (
                "libvirtd was lost, the target has nothing",
                |v| (v.job, v.record.target) = (JobState::None, Some(T::Gone)),
                &[Do::Resume],
            ),
        ],
    );
}

#[test]
fn source_releases_a_guest_that_was_switched() {
    check(
        leaving,
        &[
            (
                "it was switched",
                |v| v.domain = D::PostCopy,
                &[Do::Report(S::Released)],
            ),
            (
                "it was switched, and given up too late",
                |v| (v.domain, v.record.abort) = (D::PostCopy, true),
                &[Do::Report(S::Released)],
            ),
            (
                "it was switched, and the target has nothing of it",
                |v| (v.domain, v.record.target, v.job) = (D::PostCopy, Some(T::Gone), JobState::None),
                &[Do::Report(S::Released)],
            ),
        ],
    );
}

/// The guest was switched to post-copy, and that has been reported.
fn switched() -> SourceView {
    let mut view = leaving();
    view.domain = D::PostCopy;
    view.record.source = Some(S::Released);
    view
}

#[test]
fn source_of_a_switched_guest_stays_until_post_copy_ends() {
    let release = &[Do::Release(Proof::SourceGone)];
    let end = &[Do::Release(Proof::SourceGone), Do::Destroy];
    let nothing = &[];
    check(
        switched,
        &[
            ("memory follows", |_| {}, release),
            ("nobody works on it any more", |v| v.job = JobState::None, release),
            ("libvirt reports no state", |v| v.job = JobState::Unknown, release),
            ("it is given up", |v| v.record.abort = true, release),
            ("the object is deleted", |v| v.record.deleted = true, release),
            ("the tunnel is lost", |v| v.tunnel = SourceTunnel::Missing, nothing),
            ("the target refused it", |v| v.record.target = Some(T::Refused), release),
            (
                "it was never complete",
                |v| v.record.target = Some(T::Complete),
                release,
            ),
            (
                "all of it is there, the reply is lost",
                |v| v.record.target = Some(T::Running),
                end,
            ),
            ("it has ended there", |v| v.record.target = Some(T::Ended), end),
            (
                "it is lost, and that is recorded",
                |v| v.record.phase = Some(P::Failed),
                end,
            ),
        ],
    );
}

#[test]
fn halted_guest_follows_target_state() {
    check(
        halted,
        &[
            ("the target has reported nothing", |_| {}, &[]),
            ("it has nothing", |v| v.record.target = Some(T::Gone), &[Do::Resume]),
            (
                "it has it",
                |v| v.record.target = Some(T::Complete),
                &[Do::Report(S::Released)],
            ),
            (
                "it ran there",
                |v| v.record.target = Some(T::Ended),
                &[Do::Report(S::Released)],
            ),
            (
                "the reply was read after all",
                |v| v.tunnel = READ,
                &[Do::Report(S::Released)],
            ),
            (
                "the target's node is gone, and received nothing",
                |v| v.record.phase = Some(P::Failed),
                &[Do::Resume],
            ),
            (
                "the target's node is gone, and may have received the release",
                |v| (v.record.phase, v.tunnel) = (Some(P::Failed), SourceTunnel::Missing),
                &[Do::Destroy],
            ),
            (
                "the target's node is gone, the tunnel is down",
                |v| (v.record.phase, v.tunnel) = (Some(P::Failed), SourceTunnel::Unknown),
                &[],
            ),
            ("it goes on again", |v| v.domain = D::Running, &[Do::Close]),
            (
                "it goes on again, closed",
                |v| (v.domain, v.tunnel) = (D::Running, SourceTunnel::Missing),
                &[Do::Report(S::Stayed)],
            ),
            ("it ended", |v| v.domain = D::Ended, &[]),
            (
                "it ended, the target has all of it",
                |v| (v.domain, v.record.target) = (D::Ended, Some(T::Complete)),
                &[Do::Report(S::Stopped), Do::Release(Proof::SourceStopped)],
            ),
            (
                "it ended, the target has nothing",
                |v| (v.domain, v.record.target) = (D::Ended, Some(T::Gone)),
                &[Do::Report(S::Ended)],
            ),
            (
                "it ended, the target's node is gone",
                |v| (v.domain, v.record.phase) = (D::Ended, Some(P::Failed)),
                &[Do::Report(S::Ended)],
            ),
        ],
    );
}

#[test]
fn release_is_repeated_until_target_has_taken_over() {
    check(
        let_go,
        &[
            ("reported on the object", |_| {}, &[Do::Release(Proof::SourceGone)]),
            ("acknowledged", |v| v.tunnel = ACKNOWLEDGED, &[]),
            ("the tunnel releases by itself", |v| v.tunnel = READ, &[]),
            ("the session is lost", |v| v.tunnel = SourceTunnel::Missing, &[]),
            (
                "given up too late",
                |v| v.record.deleted = true,
                &[Do::Release(Proof::SourceGone)],
            ),
            (
                "libvirtd was lost, and it runs there",
                |v| (v.job, v.tunnel, v.record.target) = (JobState::None, ACKNOWLEDGED, Some(T::Running)),
                &[Do::Destroy],
            ),
            (
                "libvirtd was lost, and it ended there",
                |v| (v.job, v.record.target) = (JobState::None, Some(T::Ended)),
                &[Do::Release(Proof::SourceGone), Do::Destroy],
            ),
            (
                "libvirtd was lost, and it is over",
                |v| (v.job, v.tunnel, v.record.phase) = (JobState::None, SourceTunnel::Missing, Some(P::Failed)),
                &[Do::Destroy],
            ),
            (
                "libvirt stops it by itself",
                |v| (v.tunnel, v.record.target) = (ACKNOWLEDGED, Some(T::Running)),
                &[],
            ),
            (
                "stopped",
                |v| (v.domain, v.tunnel) = (D::Left, READ),
                &[Do::Report(S::Stopped)],
            ),
            (
                "ended",
                |v| (v.domain, v.tunnel) = (D::Ended, READ),
                &[Do::Report(S::Stopped)],
            ),
            (
                "stopped, and the target has taken it over and reports that itself",
                |v| (v.domain, v.tunnel) = (D::Left, ACKNOWLEDGED),
                &[Do::Report(S::Stopped)],
            ),
            ("somebody resumed it", |v| v.domain = D::Running, &[]),
        ],
    );
}

/// libvirt moves a guest that its user has paused.
fn paused() -> SourceView {
    let mut view = moving();
    view.domain = D::Paused;
    view.record.target = Some(T::Complete);
    view
}

#[test]
fn paused_guest_is_released_once_the_reply_is_read() {
    check(
        paused,
        &[
            ("it moves", |_| {}, &[]),
            ("given up", |v| v.record.abort = true, &[Do::Abort]),
            ("the reply is read", |v| v.tunnel = READ, &[Do::Report(S::Released)]),
            (
                "it is too late to give up",
                |v| (v.tunnel, v.record.abort) = (READ, true),
                &[Do::Report(S::Released)],
            ),
            (
                "the reply was read, and libvirtd was lost",
                |v| (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Lost, READ),
                &[Do::Report(S::Released)],
            ),
            (
                "the same, and it was taken over",
                |v| (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Lost, TAKEN_OVER),
                &[Do::Report(S::Released)],
            ),
            (
                "libvirtd was lost after it was released, and so was the tunnel",
                |v| {
                    (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Lost, SourceTunnel::Missing);
                    v.record.source = Some(S::Released);
                },
                &[],
            ),
            (
                "the same, and the target has it",
                |v| {
                    (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Lost, SourceTunnel::Missing);
                    (v.record.source, v.record.target) = (Some(S::Released), Some(T::Running));
                },
                &[Do::Destroy],
            ),
        ],
    );
}

#[test]
fn paused_guest_may_have_left_if_libvirtd_was_lost() {
    check(
        paused,
        &[
            (
                "libvirtd was lost, and the target has it",
                |v| (v.job, v.call) = (JobState::None, MigrateCall::Lost),
                &[Do::Report(S::Released)],
            ),
            (
                "libvirtd was lost, and the target has not reported that it has it",
                |v| (v.job, v.call, v.record.target) = (JobState::None, MigrateCall::Lost, Some(T::Prepared)),
                &[Do::Report(S::Halted)],
            ),
            (
                "the target has nothing",
                |v| {
                    (v.job, v.call, v.record.target) = (JobState::None, MigrateCall::Lost, Some(T::Gone));
                    v.record.source = Some(S::Halted);
                },
                &[Do::Close],
            ),
            (
                "the target's node is gone",
                |v| {
                    (v.job, v.call, v.record.phase) = (JobState::None, MigrateCall::Lost, Some(P::Failed));
                    v.record.source = Some(S::Halted);
                },
                &[Do::Close],
            ),
            (
                "the target has nothing, and the session is closed",
                |v| {
                    (v.job, v.call, v.tunnel) = (JobState::None, MigrateCall::Lost, SourceTunnel::Missing);
                    (v.record.source, v.record.target) = (Some(S::Halted), Some(T::Gone));
                },
                &[Do::Report(S::Stayed)],
            ),
            (
                "the agent was lost, too",
                |v| (v.job, v.call) = (JobState::None, MigrateCall::Unknown),
                &[Do::Report(S::Released)],
            ),
            (
                "the agent was lost, and its call may be on its way",
                |v| (v.job, v.call, v.record.target) = (JobState::None, MigrateCall::Unknown, Some(T::Prepared)),
                &[Do::Close],
            ),
            (
                "the agent was lost after it had reported that the guest may have left",
                |v| {
                    (v.job, v.call, v.record.target) = (JobState::None, MigrateCall::Unknown, Some(T::Prepared));
                    v.record.source = Some(S::Halted);
                },
                &[],
            ),
            (
                "libvirt has ended its migration with an error",
                |v| (v.job, v.call) = (JobState::None, MigrateCall::Failed),
                &[Do::Close],
            ),
        ],
    );
}

#[test]
fn session_of_a_stuck_job_is_closed() {
    check(
        moving,
        &[
            ("stuck", |v| v.is_stuck = true, &[Do::Close]),
            (
                "stuck, although it was aborted",
                |v| (v.is_stuck, v.record.abort) = (true, true),
                &[Do::Close],
            ),
            (
                "stuck, and closed",
                |v| (v.is_stuck, v.tunnel) = (true, SourceTunnel::Missing),
                &[],
            ),
            (
                "stuck, and the tunnel is down",
                |v| (v.is_stuck, v.tunnel) = (true, SourceTunnel::Unknown),
                &[],
            ),
            (
                "stuck, and of another migration",
                |v| (v.is_stuck, v.record.source) = (true, None),
                &[],
            ),
        ],
    );
}

#[test]
fn finished_source_only_releases_and_closes_the_session() {
    check(
        moving,
        &[
            ("stayed", |v| v.record.source = Some(S::Stayed), &[Do::Close]),
            (
                "stayed, libvirt is down",
                |v| (v.record.source, v.domain) = (Some(S::Stayed), D::Unknown),
                &[Do::Close],
            ),
            (
                "stayed and closed",
                |v| (v.record.source, v.tunnel) = (Some(S::Stayed), SourceTunnel::Missing),
                &[],
            ),
            (
                "stopped, and the target may still need the release",
                |v| (v.record.source, v.domain) = (Some(S::Stopped), D::Left),
                &[Do::Release(Proof::SourceStopped)],
            ),
            (
                "stopped, and over",
                |v| (v.record.source, v.record.phase, v.domain) = (Some(S::Stopped), Some(P::Succeeded), D::Left),
                &[Do::Close],
            ),
        ],
    );
}

/// This agent has not learned that the migration was aborted, and another migration already moves the guest.
fn overtaken() -> SourceView {
    let mut view = named();
    view.record.phase = Some(P::Failed);
    view.tunnel = OPEN;
    view.job = JobState::Outgoing;
    view
}

#[test]
fn guest_moving_before_the_call_is_left_to_another_migration() {
    const STAYED: &[Do] = &[Do::Report(S::Stayed)];
    check(
        overtaken,
        &[
            ("it moves", |_| {}, STAYED),
            ("nothing was prepared", |v| v.tunnel = SourceTunnel::Missing, STAYED),
            ("it stands still", |v| v.domain = D::Leaving, STAYED),
            ("it was switched", |v| v.domain = D::PostCopy, STAYED),
            ("it has left", |v| (v.domain, v.job) = (D::Left, JobState::None), STAYED),
            (
                "the call to libvirt would be next",
                |v| (v.record.source, v.call) = (Some(S::Migrating), MigrateCall::Due),
                STAYED,
            ),
            (
                "not given up yet, it waits",
                |v| v.record.phase = Some(P::TargetReady),
                &[],
            ),
            (
                "its own is given up",
                |v| (v.record.source, v.call) = (Some(S::Migrating), MigrateCall::Pending),
                &[Do::Abort],
            ),
            (
                "its own, of an earlier process, is given up",
                |v| v.record.source = Some(S::Migrating),
                &[Do::Abort],
            ),
        ],
    );
}

fn tunnel() -> impl Strategy<Value = SourceTunnel> {
    let open = any::<[bool; 3]>().prop_map(|[paired, reply_read, acknowledged]| SourceTunnel::Open {
        paired,
        reply_read,
        acknowledged,
    });
    prop_oneof![Just(SourceTunnel::Unknown), Just(SourceTunnel::Missing), open]
}

prop_compose! {
    fn view()(
        record in crate::migration::record::any_record(),
        domain in select(vec![D::Unknown, D::Running, D::Paused, D::Leaving, D::PostCopy, D::Left, D::Ended]),
        job in select(vec![JobState::Unknown, JobState::None, JobState::Outgoing]),
        call in select(vec![MigrateCall::Unknown, MigrateCall::Due, MigrateCall::Pending, MigrateCall::Failed, MigrateCall::Lost, MigrateCall::Succeeded]),
        tunnel in tunnel(),
        stood_still in any::<bool>(),
        target_is_late in any::<bool>(),
        is_stuck in any::<bool>(),
    ) -> SourceView {
        SourceView { record, domain, job, call, tunnel, stood_still, target_is_late, is_stuck }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn laws_of_every_view(view in view()) {
        let steps = step(&view);
        let record = view.record;
        let does = |wanted: Do| steps.contains(&wanted);
        let open = matches!(view.tunnel, SourceTunnel::Open { .. });
        for step in &steps {
            match step {
                Do::Report(state) => prop_assert!(record.source.is_none_or(|before| state.may_follow(before)), "{steps:?}"),
                Do::Close | Do::Pair | Do::Release(_) => prop_assert!(open, "{steps:?}"),
                Do::Start => prop_assert!(view.call == MigrateCall::Due && record.source == Some(S::Migrating)),
                Do::Abort => {
                    prop_assert!(view.job == JobState::Outgoing && record.is_given_up() && !view.has_not_begun());
                }
                // A guest that is resumed or destroyed must be known to be paused without a running job.
                Do::Resume => prop_assert!(view.domain == D::Leaving && view.job == JobState::None && !record.source_has_let_go()),
                // The guest is not needed: the target has all of it, or has ended, or never gets it.
                Do::Destroy if view.domain == D::PostCopy => {
                    let needless = matches!(record.target, Some(T::Running | T::Ended)) || record.is_over();
                    prop_assert!(record.source_has_let_go() && needless, "{steps:?}");
                }
                Do::Destroy => {
                    let is_left = view.domain == D::Leaving || (view.domain == D::Paused && record.source_has_let_go());
                    prop_assert!(is_left && view.job == JobState::None, "{steps:?}");
                    prop_assert!(record.source_has_let_go() || view.tunnel == SourceTunnel::Missing, "{steps:?}");
                }
                Do::Prepare => prop_assert!(view.tunnel == SourceTunnel::Missing && record.source.is_none()),
            }
        }
        if matches!(record.source, Some(S::Stayed | S::Ended)) {
            prop_assert!(steps.iter().all(|step| *step == Do::Close), "{steps:?}");
        } else if view.domain == D::Unknown && !record.is_over() {
            prop_assert!(steps.is_empty(), "{steps:?}");
        }
        // The target receives only a release that the object contains, or will contain by then.
        if steps.iter().any(|step| matches!(step, Do::Release(_))) {
            prop_assert!(record.source_has_let_go() || does(Do::Report(S::Stopped)), "{steps:?}");
        }
        // `HandedOver` is reported only after the target's acknowledgement, and once nothing of the guest is here.
        if does(Do::Report(S::HandedOver)) {
            let is_acknowledged = matches!(view.tunnel, SourceTunnel::Open { acknowledged: true, .. });
            prop_assert!(is_acknowledged && matches!(view.domain, D::Left | D::Ended), "{steps:?}");
        }
        // Unknown is not missing: without a response from the tunnel, only the object may change.
        if view.tunnel == SourceTunnel::Unknown {
            prop_assert!(!does(Do::Prepare) && !does(Do::Report(S::Migrating)));
        }
    }
}

#[test]
fn target_is_late_a_moment_after_the_guest_has_left() {
    let ms = Duration::from_millis;
    for (left_for, expected) in [
        (None, None),
        (Some(0), Some(100)),
        (Some(99), Some(1)),
        (Some(100), Some(0)),
        (Some(900), Some(0)),
    ] {
        assert_eq!(target_is_late_in(left_for.map(ms)), expected.map(ms), "{left_for:?}");
    }
}
