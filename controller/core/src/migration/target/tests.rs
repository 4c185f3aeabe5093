use std::time::Duration;

use drydock_api::kubevirt::migration::{MigrationPhase as P, SourceState as S, TargetState as T};
use proptest::{prelude::*, sample::select};

use super::{TargetDomain as D, TargetStep as Do, TargetTunnel, TargetView, postponed, source_is_late_in, step};
use crate::migration::record::MigrationRecord;

/// An open session without any progress.
const OPEN: TargetTunnel = TargetTunnel::Open {
    paired: false,
    released: false,
    taken_over: false,
};
const PAIRED: TargetTunnel = TargetTunnel::Open {
    paired: true,
    released: false,
    taken_over: false,
};
const RELEASED: TargetTunnel = TargetTunnel::Open {
    paired: true,
    released: true,
    taken_over: false,
};
const TAKEN_OVER: TargetTunnel = TargetTunnel::Open {
    paired: true,
    released: true,
    taken_over: true,
};

/// Both sides are named, and the target has not checked whether the guest fits.
fn named() -> TargetView {
    TargetView {
        record: MigrationRecord {
            phase: Some(P::PreparingTarget),
            ..MigrationRecord::default()
        },
        tunnel: TargetTunnel::Missing,
        domain: D::Absent,
        fits: None,
        source_is_late: false,
    }
}

/// The target waits for the guest.
fn prepared() -> TargetView {
    let mut view = named();
    view.record.phase = Some(P::TargetReady);
    view.record.source = Some(S::Migrating);
    view.record.target = Some(T::Prepared);
    view.tunnel = PAIRED;
    view
}

/// All of the guest is here, and the source has not released it.
fn complete() -> TargetView {
    let mut view = prepared();
    view.record.phase = Some(P::Running);
    view.record.source = Some(S::Migrating);
    view.record.target = Some(T::Complete);
    view.domain = D::Complete;
    view
}

/// The guest runs here.
fn running() -> TargetView {
    let mut view = complete();
    view.record.source = Some(S::Released);
    view.tunnel = TAKEN_OVER;
    view.domain = D::Running;
    view
}

/// A test case: its name, the change to the view, and the expected steps.
type Row = (&'static str, fn(&mut TargetView), &'static [Do]);

fn check(from: fn() -> TargetView, rows: &[Row]) {
    for (what, change, expected) in rows {
        let mut view = from();
        change(&mut view);
        assert_eq!(step(&view), *expected, "{what}: {view:?}");
    }
}

/// The guest was switched to post-copy, and runs here without all of its memory.
fn switched() -> TargetView {
    let mut view = prepared();
    view.record.phase = Some(P::Running);
    view.record.source = Some(S::Released);
    view.domain = D::PostCopy;
    view
}

#[test]
fn guest_in_post_copy_has_no_steps() {
    check(
        switched,
        &[
            ("it runs", |_| {}, &[]),
            (
                "the source has not reported it",
                |v| v.record.source = Some(S::Migrating),
                &[],
            ),
            ("it is released", |v| v.tunnel = RELEASED, &[]),
            ("it is given up", |v| v.record.abort = true, &[]),
            ("the object is deleted", |v| v.record.deleted = true, &[]),
            ("the source is gone for good", |v| v.record.source_gone = true, &[]),
            ("the source has ended", |v| v.record.source = Some(S::Ended), &[]),
            ("it has failed", |v| v.record.phase = Some(P::Failed), &[]),
            (
                "all of it is here",
                |v| v.domain = D::Running,
                &[Do::Report(T::Running)],
            ),
            (
                "it ended here",
                |v| (v.domain, v.tunnel) = (D::Over, TAKEN_OVER),
                &[Do::Report(T::Ended)],
            ),
            ("it was lost on its way", |v| v.domain = D::Absent, &[Do::Close]),
            (
                "it was lost on its way, and nothing can come",
                |v| (v.domain, v.tunnel) = (D::Absent, TargetTunnel::Missing),
                &[Do::Report(T::Gone)],
            ),
        ],
    );
}

#[test]
fn a_guest_that_fits_is_waited_for() {
    check(
        named,
        &[
            ("not checked", |_| {}, &[Do::Check]),
            ("it fits", |v| v.fits = Some(true), &[Do::Prepare]),
            ("it does not", |v| v.fits = Some(false), &[Do::Report(T::Refused)]),
            (
                "the tunnel is down",
                |v| (v.fits, v.tunnel) = (Some(true), TargetTunnel::Unknown),
                &[],
            ),
            (
                "it listens",
                |v| (v.fits, v.tunnel) = (Some(true), OPEN),
                &[Do::Report(T::Prepared)],
            ),
            ("libvirt is down", |v| v.domain = D::Unknown, &[]),
            ("not named yet", |v| v.record.phase = Some(P::Scheduled), &[]),
            ("given up", |v| v.record.abort = true, &[Do::Report(T::Gone)]),
            ("deleted", |v| v.record.deleted = true, &[Do::Report(T::Gone)]),
            ("failed", |v| v.record.phase = Some(P::Failed), &[Do::Report(T::Gone)]),
            (
                "the source is gone for good",
                |v| v.record.source_gone = true,
                &[Do::Report(T::Gone)],
            ),
            (
                "the guest stays",
                |v| v.record.source = Some(S::Stayed),
                &[Do::Report(T::Gone)],
            ),
        ],
    );
}

#[test]
fn nothing_arrives_without_a_session() {
    check(
        prepared,
        &[
            ("it waits", |_| {}, &[]),
            ("no peer", |v| v.tunnel = OPEN, &[Do::Pair]),
            ("no peer yet", |v| (v.tunnel, v.record.source) = (OPEN, None), &[]),
            (
                "the session is lost",
                |v| v.tunnel = TargetTunnel::Missing,
                &[Do::Report(T::Gone)],
            ),
            ("the tunnel is down", |v| v.tunnel = TargetTunnel::Unknown, &[]),
            ("given up", |v| v.record.abort = true, &[Do::Close]),
            (
                "given up and closed",
                |v| (v.record.abort, v.tunnel) = (true, TargetTunnel::Missing),
                &[Do::Report(T::Gone)],
            ),
            ("the guest stays", |v| v.record.source = Some(S::Stayed), &[Do::Close]),
            (
                "the guest has ended there",
                |v| v.record.source = Some(S::Ended),
                &[Do::Close],
            ),
            // The source's libvirtd was lost while the guest was paused. The source waits for the target's report.
            (
                "nothing moves it any more",
                |v| v.record.source = Some(S::Halted),
                &[Do::Close],
            ),
            (
                "it came, and nothing moves it any more",
                |v| (v.record.source, v.domain) = (Some(S::Halted), D::Incoming),
                &[Do::Close],
            ),
            (
                "nothing moves it any more, closed",
                |v| (v.record.source, v.tunnel) = (Some(S::Halted), TargetTunnel::Missing),
                &[Do::Report(T::Gone)],
            ),
            ("it comes", |v| v.domain = D::Incoming, &[]),
            (
                "it comes, no peer",
                |v| (v.domain, v.tunnel) = (D::Incoming, OPEN),
                &[Do::Pair],
            ),
            (
                "it comes, and its source reports that it stays",
                |v| (v.domain, v.record.source) = (D::Incoming, Some(S::Stayed)),
                &[Do::Close],
            ),
            (
                "it comes, and can come no further",
                |v| (v.domain, v.record.source, v.tunnel) = (D::Incoming, Some(S::Stayed), TargetTunnel::Missing),
                &[Do::Destroy],
            ),
            ("reported as gone", |v| v.record.target = Some(T::Gone), &[Do::Close]),
            ("refused", |v| v.record.target = Some(T::Refused), &[Do::Close]),
            (
                "reported as gone, and closed",
                |v| (v.record.target, v.tunnel) = (Some(T::Gone), TargetTunnel::Missing),
                &[],
            ),
        ],
    );
}

#[test]
fn complete_guest_waits_for_source_release() {
    check(
        complete,
        &[
            ("reported", |_| {}, &[]),
            (
                "not reported",
                |v| v.record.target = Some(T::Prepared),
                &[Do::Report(T::Complete)],
            ),
            ("the tunnel is down", |v| v.tunnel = TargetTunnel::Unknown, &[]),
            ("the session is lost", |v| v.tunnel = TargetTunnel::Missing, &[]),
            (
                "nothing moves it any more",
                |v| (v.record.source, v.record.target) = (Some(S::Halted), Some(T::Prepared)),
                &[Do::Report(T::Complete)],
            ),
            ("reported as gone", |v| v.record.target = Some(T::Gone), &[Do::Close]),
            ("given up", |v| v.record.abort = true, &[]),
            ("deleted", |v| v.record.deleted = true, &[]),
            (
                "the tunnel received the release",
                |v| v.tunnel = RELEASED,
                &[Do::TakeOver],
            ),
            (
                "the tunnel left it paused",
                |v| v.tunnel = TAKEN_OVER,
                &[Do::Report(T::Running)],
            ),
            (
                "the object has the release",
                |v| v.record.source = Some(S::Released),
                &[Do::TakeOver],
            ),
            (
                "the object has the release, the session is lost",
                |v| (v.record.source, v.tunnel) = (Some(S::Stopped), TargetTunnel::Missing),
                &[Do::TakeOver],
            ),
            (
                "its user keeps it paused",
                |v| (v.record.source, v.record.target) = (Some(S::Stopped), Some(T::Running)),
                &[],
            ),
            (
                "the source keeps it",
                |v| v.record.source = Some(S::Stayed),
                &[Do::Close],
            ),
            ("it ended there", |v| v.record.source = Some(S::Ended), &[Do::Close]),
            (
                "the source keeps it, closed",
                |v| (v.record.source, v.tunnel) = (Some(S::Stayed), TargetTunnel::Missing),
                &[Do::Destroy],
            ),
            (
                "the source keeps it, the tunnel is down",
                |v| (v.record.source, v.tunnel) = (Some(S::Stayed), TargetTunnel::Unknown),
                &[],
            ),
            (
                "the source's node is gone",
                |v| v.record.source_gone = true,
                &[Do::Close],
            ),
            (
                "the source's node is gone, and had let go",
                |v| (v.record.source_gone, v.tunnel) = (true, RELEASED),
                &[Do::TakeOver],
            ),
            ("libvirt is down", |v| v.domain = D::Unknown, &[]),
        ],
    );
}

/// The guest runs here, and its source has not reported that it has left.
fn just_arrived() -> TargetView {
    let mut view = running();
    view.record.source = Some(S::Migrating);
    view.record.target = Some(T::Prepared);
    view
}

#[test]
fn target_leaves_hand_over_report_to_source() {
    let report: &[Do] = &[Do::Report(T::Running)];
    check(
        just_arrived,
        &[
            ("the source is about to report it", |_| {}, &[Do::Show]),
            ("given up too late", |v| v.record.abort = true, &[Do::Show]),
            (
                "it has reported it",
                |v| (v.record.source, v.record.target) = (Some(S::Stopped), Some(T::Running)),
                &[],
            ),
            ("it is late", |v| v.source_is_late = true, report),
            (
                "it has left, without the acknowledgement",
                |v| v.record.source = Some(S::Stopped),
                report,
            ),
            ("it has let go", |v| v.record.source = Some(S::Released), report),
            (
                "nothing moved it any more",
                |v| v.record.source = Some(S::Halted),
                report,
            ),
            ("its node is gone", |v| v.record.source_gone = true, report),
            (
                "the tunnel has not recorded it yet",
                |v| v.tunnel = RELEASED,
                &[Do::Show],
            ),
            ("released after the tunnel was read", |v| v.tunnel = PAIRED, &[Do::Show]),
            ("the tunnel is lost", |v| v.tunnel = TargetTunnel::Missing, report),
            ("the tunnel is down", |v| v.tunnel = TargetTunnel::Unknown, report),
            ("it has failed", |v| v.record.phase = Some(P::Failed), &[]),
        ],
    );
}

#[test]
fn reported_end_depends_on_whether_guest_ran() {
    check(
        running,
        &[
            ("not reported", |_| {}, &[Do::Report(T::Running)]),
            ("reported", |v| v.record.target = Some(T::Running), &[]),
            (
                "reported, and over",
                |v| (v.record.target, v.record.phase) = (Some(T::Running), Some(P::Succeeded)),
                &[Do::Close],
            ),
            ("reported as gone", |v| v.record.target = Some(T::Gone), &[]),
            (
                "ended after it ran",
                |v| (v.domain, v.record.target) = (D::Over, Some(T::Running)),
                &[Do::Report(T::Ended)],
            ),
            (
                "ended after it was let go",
                |v| v.domain = D::Over,
                &[Do::Report(T::Ended)],
            ),
            (
                "ended before it was let go",
                |v| (v.domain, v.record.source, v.tunnel) = (D::Over, Some(S::Migrating), PAIRED),
                &[Do::Close, Do::Report(T::Gone)],
            ),
            (
                "ended, nobody knows whether it was let go",
                |v| (v.domain, v.record.source, v.tunnel) = (D::Over, Some(S::Migrating), TargetTunnel::Missing),
                &[Do::Report(T::Ended)],
            ),
            (
                "ended, and the tunnel is down",
                |v| (v.domain, v.record.source, v.tunnel) = (D::Over, Some(S::Migrating), TargetTunnel::Unknown),
                &[],
            ),
            (
                "discarded, as the source keeps it",
                |v| (v.domain, v.record.source, v.tunnel) = (D::Over, Some(S::Stayed), TargetTunnel::Missing),
                &[Do::Report(T::Gone)],
            ),
            (
                "reported as ended",
                |v| (v.domain, v.record.target) = (D::Over, Some(T::Ended)),
                &[Do::Close],
            ),
        ],
    );
}

fn tunnel() -> impl Strategy<Value = TargetTunnel> {
    let open = any::<[bool; 3]>().prop_map(|[paired, released, taken_over]| TargetTunnel::Open {
        paired,
        released,
        taken_over,
    });
    prop_oneof![Just(TargetTunnel::Unknown), Just(TargetTunnel::Missing), open]
}

prop_compose! {
    fn view()(
        record in crate::migration::record::any_record(),
        tunnel in tunnel(),
        domain in select(vec![D::Unknown, D::Absent, D::Incoming, D::Complete, D::PostCopy, D::Running, D::Over]),
        fits in any::<Option<bool>>(),
        source_is_late in any::<bool>(),
    ) -> TargetView {
        TargetView { record, tunnel, domain, fits, source_is_late }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn laws_of_every_view(view in view()) {
        let steps = step(&view);
        let record = view.record;
        let open = matches!(view.tunnel, TargetTunnel::Open { .. });
        let released = matches!(view.tunnel, TargetTunnel::Open { released: true, .. });
        for step in &steps {
            match step {
                Do::Report(state) => prop_assert!(record.target.is_none_or(|before| state.may_follow(before)), "{steps:?}"),
                Do::Close | Do::Pair => prop_assert!(open, "{steps:?}"),
                // No release is in flight, and the source has not released the guest.
                Do::Destroy => {
                    prop_assert!(view.tunnel == TargetTunnel::Missing, "{steps:?}");
                    prop_assert!(matches!(view.domain, D::Incoming | D::Complete), "{steps:?}");
                    prop_assert!(view.domain == D::Incoming || record.target != Some(T::Running), "{steps:?}");
                }
                Do::TakeOver => prop_assert!(view.domain == D::Complete && (released || record.source_has_let_go())),
                // The target only waits for a source that knows that the guest runs here, and whose node is not gone.
                Do::Show => {
                    prop_assert!(view.domain == D::Running && record.source == Some(S::Migrating));
                    prop_assert!(steps.len() == 1 && !view.source_is_late && !record.source_gone);
                }
                Do::Check => prop_assert!(view.fits.is_none() && record.target.is_none()),
                Do::Prepare => prop_assert!(view.tunnel == TargetTunnel::Missing && record.target.is_none()),
            }
        }
        if view.domain == D::Unknown {
            prop_assert!(steps.is_empty(), "{steps:?}");
        }
        if view.tunnel == TargetTunnel::Unknown {
            prop_assert!(!steps.contains(&Do::Prepare) && !steps.contains(&Do::Destroy), "{steps:?}");
        }
    }
}

#[test]
fn complete_guest_is_reported_only_while_waiting() {
    let (complete, gone) = (Do::Report(T::Complete), Do::Report(T::Gone));
    let ms = Duration::from_millis;
    for (first, complete_for, expected) in [
        (complete, ms(0), Some(ms(1000))),
        (complete, ms(999), Some(ms(1))),
        (complete, ms(1000), None),
        (complete, ms(5000), None),
        (gone, ms(0), None),
        (Do::TakeOver, ms(0), None),
    ] {
        assert_eq!(postponed(first, complete_for), expected, "{first:?} {complete_for:?}");
    }
}

#[test]
fn source_is_late_two_seconds_after_the_guest_was_shown() {
    let ms = Duration::from_millis;
    for (shown_for, expected) in [
        (None, 2000),
        (Some(0), 2000),
        (Some(1999), 1),
        (Some(2000), 0),
        (Some(9000), 0),
    ] {
        assert_eq!(source_is_late_in(shown_for.map(ms)), ms(expected), "{shown_for:?}");
    }
}
