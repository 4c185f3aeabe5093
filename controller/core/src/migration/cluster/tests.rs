use drydock_api::kubevirt::migration::{MigrationPhase as P, SourceState as S, TargetState as T};
use proptest::{prelude::*, sample::select};

use super::{
    ClusterStep as Do, ClusterView, GuestLocation, Instance as I, MigrationFailure as F, SourcePod,
    TargetPodState as Pod, guest_location, step,
};
use crate::migration::record::MigrationRecord;

/// A migration before its first reconcile, of a running VMI.
fn fresh() -> ClusterView {
    ClusterView {
        record: MigrationRecord::default(),
        another: false,
        instance: I::Running,
        target_pod: Pod::Missing,
        source_pod: SourcePod::Alive,
        source_node_gone: false,
        target_node_gone: false,
        may_place: false,
        has_slot: false,
        overdue: false,
        has_finalizer: true,
    }
}

fn pending() -> ClusterView {
    let mut view = fresh();
    view.record.phase = Some(P::Pending);
    view
}

fn scheduled() -> ClusterView {
    let mut view = pending();
    view.record.phase = Some(P::Scheduled);
    view.target_pod = Pod::Ready;
    view
}

fn preparing() -> ClusterView {
    let mut view = scheduled();
    view.record.phase = Some(P::PreparingTarget);
    view.has_slot = true;
    view
}

/// The guest is moving.
fn running() -> ClusterView {
    let mut view = preparing();
    view.record.phase = Some(P::Running);
    view.record.source = Some(S::Migrating);
    view.record.target = Some(T::Prepared);
    view
}

/// The guest has arrived, and has left its source.
fn arrived() -> ClusterView {
    let mut view = running();
    view.record.source = Some(S::Stopped);
    view.record.target = Some(T::Running);
    view
}

fn failed() -> ClusterView {
    let mut view = running();
    view.record.phase = Some(P::Failed);
    view.record.source = Some(S::Stayed);
    view
}

/// A test case: its name, the change to the view, and the expected steps.
type Row = (&'static str, fn(&mut ClusterView), &'static [Do]);

fn check(from: fn() -> ClusterView, rows: &[Row]) {
    for (what, change, expected) in rows {
        let mut view = from();
        change(&mut view);
        assert_eq!(step(&view), *expected, "{what}: {view:?}");
    }
}

#[test]
fn migration_is_queued_unless_an_older_migration_is_active() {
    check(
        fresh,
        &[
            ("alone", |_| {}, &[Do::Enter(P::Pending)]),
            ("another", |v| v.another = true, &[Do::Fail(F::AnotherMigration)]),
        ],
    );
}

#[test]
fn target_pod_is_created_when_permitted() {
    check(
        pending,
        &[
            ("not yet", |_| {}, &[]),
            ("now", |v| v.may_place = true, &[Do::CreatePod]),
            (
                "the caches do not show one",
                |v| (v.may_place, v.target_pod) = (true, Pod::Unknown),
                &[Do::CreatePod],
            ),
            (
                "an old one is going",
                |v| (v.may_place, v.target_pod) = (true, Pod::Leaving),
                &[],
            ),
            ("not known", |v| (v.may_place, v.instance) = (true, I::Unknown), &[]),
            (
                "the guest does not run",
                |v| (v.may_place, v.instance) = (true, I::NotRunning),
                &[],
            ),
            ("it comes", |v| v.target_pod = Pod::Coming, &[Do::Enter(P::Scheduling)]),
            (
                "it is there",
                |v| v.target_pod = Pod::Ready,
                &[Do::Enter(P::Scheduling)],
            ),
            (
                "no phase is left out",
                |v| (v.target_pod, v.has_slot) = (Pod::Ready, true),
                &[Do::Enter(P::Scheduling)],
            ),
            ("it has ended", |v| v.target_pod = Pod::Over, &[Do::Fail(F::PodEnded)]),
            ("rejected, not yet", |v| v.target_pod = Pod::Rejected, &[]),
            (
                "rejected, now",
                |v| (v.may_place, v.target_pod) = (true, Pod::Rejected),
                &[Do::CreatePod],
            ),
            ("deleted", |v| v.record.deleted = true, &[Do::Fail(F::Canceled)]),
            (
                "another precedes it",
                |v| (v.another, v.may_place) = (true, true),
                &[Do::Fail(F::AnotherMigration)],
            ),
            ("too late", |v| v.overdue = true, &[Do::Fail(F::Overdue)]),
            (
                "no instance",
                |v| v.instance = I::Missing,
                &[Do::Fail(F::InstanceMissing)],
            ),
            ("it has ended", |v| v.instance = I::Ended, &[Do::Fail(F::InstanceEnded)]),
            (
                "it cannot",
                |v| v.instance = I::NotMigratable,
                &[Do::Fail(F::NotMigratable)],
            ),
        ],
    );
}

#[test]
fn sides_are_named_with_a_slot() {
    check(
        scheduled,
        &[
            ("no slot", |_| {}, &[]),
            ("a slot", |v| v.has_slot = true, &[Do::Enter(P::PreparingTarget)]),
            (
                "a slot, and another precedes it",
                |v| (v.has_slot, v.another) = (true, true),
                &[Do::Fail(F::AnotherMigration)],
            ),
            (
                "the guest has stopped",
                |v| (v.has_slot, v.instance) = (true, I::NotRunning),
                &[],
            ),
            ("not seen", |v| v.target_pod = Pod::Unknown, &[Do::Confirm]),
            ("no pod", |v| v.target_pod = Pod::Missing, &[Do::Fail(F::PodRemoved)]),
            ("it leaves", |v| v.target_pod = Pod::Leaving, &[Do::Fail(F::PodRemoved)]),
            ("it has ended", |v| v.target_pod = Pod::Over, &[Do::Fail(F::PodEnded)]),
            (
                "rejected",
                |v| (v.record.phase, v.may_place, v.target_pod) = (Some(P::Scheduling), true, Pod::Rejected),
                &[Do::CreatePod],
            ),
            (
                "rejected, and the guest does not run",
                |v| (v.may_place, v.target_pod, v.instance) = (true, Pod::Rejected, I::NotRunning),
                &[],
            ),
            (
                "rejected, and deleted",
                |v| (v.target_pod, v.record.deleted) = (Pod::Rejected, true),
                &[Do::Fail(F::Canceled)],
            ),
            ("deleted", |v| v.record.deleted = true, &[Do::Fail(F::Canceled)]),
        ],
    );
}

#[test]
fn controller_ends_a_migration_until_the_source_has_begun() {
    check(
        preparing,
        &[
            (
                "ended",
                |v| v.record.source = Some(S::Ended),
                &[Do::Fail(F::GuestEnded)],
            ),
            ("nobody is ready", |_| {}, &[]),
            (
                "the target is",
                |v| v.record.target = Some(T::Prepared),
                &[Do::Enter(P::TargetReady)],
            ),
            (
                "the target is, too late",
                |v| (v.record.target, v.overdue) = (Some(T::Prepared), true),
                &[Do::Fail(F::Overdue)],
            ),
            (
                "recorded as ready, and deleted",
                |v| {
                    (v.record.phase, v.record.deleted) = (Some(P::TargetReady), true);
                    v.record.target = Some(T::Prepared);
                },
                &[Do::Fail(F::Canceled)],
            ),
            (
                "the source has begun",
                |v| (v.record.source, v.record.target) = (Some(S::Migrating), Some(T::Prepared)),
                &[Do::Enter(P::TargetReady)],
            ),
            (
                "the source has begun, and it is deleted",
                |v| {
                    (v.record.source, v.record.target) = (Some(S::Migrating), Some(T::Prepared));
                    v.record.deleted = true;
                },
                &[Do::Abort(F::Canceled), Do::Enter(P::TargetReady)],
            ),
            (
                "refused",
                |v| v.record.target = Some(T::Refused),
                &[Do::Fail(F::TargetRefused)],
            ),
            ("lost", |v| v.record.target = Some(T::Gone), &[Do::Fail(F::TargetLost)]),
            (
                "stayed",
                |v| v.record.source = Some(S::Stayed),
                &[Do::Fail(F::GuestStayed)],
            ),
            ("deleted", |v| v.record.deleted = true, &[Do::Fail(F::Canceled)]),
            ("too late", |v| v.overdue = true, &[Do::Fail(F::Overdue)]),
            (
                "the target's node",
                |v| v.target_node_gone = true,
                &[Do::Fail(F::TargetLost)],
            ),
            (
                "the source's node",
                |v| v.source_node_gone = true,
                &[Do::Fail(F::SourceNodeGone)],
            ),
            (
                "the source's pod",
                |v| v.source_pod = SourcePod::Over,
                &[Do::Fail(F::GuestEnded)],
            ),
            (
                "the target's pod",
                |v| v.target_pod = Pod::Over,
                &[Do::Fail(F::PodEnded)],
            ),
        ],
    );
}

#[test]
fn ready_migration_enters_running_and_waits_for_source() {
    check(
        running,
        &[
            ("it moves", |_| {}, &[]),
            ("another one exists", |v| v.another = true, &[]),
            (
                "recorded as ready",
                |v| v.record.phase = Some(P::TargetReady),
                &[Do::Enter(P::Running)],
            ),
            (
                "ready, not begun",
                |v| (v.record.phase, v.record.source) = (Some(P::TargetReady), None),
                &[],
            ),
            ("it waits for the target", |v| v.record.source = Some(S::Halted), &[]),
            ("complete", |v| v.record.target = Some(T::Complete), &[]),
        ],
    );
}

#[test]
fn running_migration_is_aborted_while_the_source_may_give_up() {
    check(
        running,
        &[
            ("deleted", |v| v.record.deleted = true, &[Do::Abort(F::Canceled)]),
            ("too late", |v| v.overdue = true, &[Do::Abort(F::Overdue)]),
            ("aborted already", |v| (v.overdue, v.record.abort) = (true, true), &[]),
            (
                "too late to give up",
                |v| (v.overdue, v.record.source) = (true, Some(S::Released)),
                &[],
            ),
            (
                "the instance ended",
                |v| v.instance = I::Ended,
                &[Do::Abort(F::InstanceEnded)],
            ),
            (
                "the target's pod leaves",
                |v| v.target_pod = Pod::Leaving,
                &[Do::Abort(F::PodRemoved)],
            ),
            ("no word of the pod", |v| v.target_pod = Pod::Unknown, &[]),
            // The source may have released the guest anyway.
            (
                "nothing arrives",
                |v| v.record.target = Some(T::Gone),
                &[Do::Abort(F::TargetLost)],
            ),
            (
                "nothing arrives, as the source knows",
                |v| (v.record.target, v.record.abort) = (Some(T::Gone), true),
                &[],
            ),
        ],
    );
}

#[test]
fn migration_without_source_node_fails_unless_guest_arrived() {
    check(
        running,
        &[
            (
                "the source's node is gone",
                |v| v.source_node_gone = true,
                &[Do::RecordSourceGone, Do::Abort(F::SourceNodeGone)],
            ),
            (
                "the source's node is gone, as recorded",
                |v| (v.source_node_gone, v.record.source_gone, v.record.abort) = (true, true, true),
                &[],
            ),
            (
                "nothing arrived from it",
                |v| (v.source_node_gone, v.record.target) = (true, Some(T::Gone)),
                &[Do::Fail(F::SourceNodeGone)],
            ),
            (
                "both nodes are gone",
                |v| (v.source_node_gone, v.target_node_gone) = (true, true),
                &[Do::Fail(F::SourceNodeGone)],
            ),
            (
                "the source's node is gone, and it ended on the target",
                |v| (v.source_node_gone, v.record.target) = (true, Some(T::Ended)),
                &[Do::Fail(F::SourceNodeGone)],
            ),
        ],
    );
}

#[test]
fn migration_fails_if_the_guest_stayed_ended_or_halted() {
    check(
        running,
        &[
            (
                "stayed",
                |v| v.record.source = Some(S::Stayed),
                &[Do::Fail(F::GuestStayed)],
            ),
            (
                "stayed since deleted",
                |v| (v.record.source, v.record.deleted) = (Some(S::Stayed), true),
                &[Do::Fail(F::Canceled)],
            ),
            // The source's tunnel may have released the guest before it ended.
            ("ended", |v| v.record.source = Some(S::Ended), &[]),
            (
                "ended, and no pod of the target is known",
                |v| (v.record.source, v.target_pod) = (Some(S::Ended), Pod::Unknown),
                &[Do::Confirm],
            ),
            (
                "ended, and the instance is gone with all its pods",
                |v| (v.record.source, v.target_pod, v.instance) = (Some(S::Ended), Pod::Unknown, I::Missing),
                &[Do::Fail(F::GuestEnded)],
            ),
            (
                "ended, and nothing arrived",
                |v| (v.record.source, v.record.target) = (Some(S::Ended), Some(T::Gone)),
                &[Do::Fail(F::GuestEnded)],
            ),
            (
                "ended, and the target is lost",
                |v| (v.record.source, v.target_pod) = (Some(S::Ended), Pod::Over),
                &[Do::Fail(F::GuestEnded)],
            ),
            (
                "ended, and the target's node is gone",
                |v| (v.record.source, v.target_node_gone) = (Some(S::Ended), true),
                &[Do::Fail(F::GuestEnded)],
            ),
            (
                "nothing arrived, stayed",
                |v| (v.record.target, v.record.source) = (Some(T::Gone), Some(S::Stayed)),
                &[Do::Fail(F::TargetLost)],
            ),
            (
                "given up by the source, for which nothing arrived",
                |v| {
                    (v.record.target, v.record.source) = (Some(T::Gone), Some(S::Stayed));
                    v.record.gave_up = true;
                },
                &[Do::Fail(F::GuestStayed)],
            ),
            (
                "it waits for a target whose node is gone",
                |v| (v.target_node_gone, v.record.source) = (true, Some(S::Halted)),
                &[Do::Fail(F::TargetLost)],
            ),
        ],
    );
}

#[test]
fn migration_succeeds_once_the_instance_is_on_the_target() {
    check(
        arrived,
        &[
            ("the instance is updated first", |_| {}, &[]),
            ("moved", |v| v.instance = I::Moved, &[Do::Enter(P::Succeeded)]),
            ("and ended", |v| v.instance = I::Ended, &[Do::Enter(P::Succeeded)]),
            ("not known", |v| v.instance = I::Unknown, &[]),
            (
                "the source is about to stop",
                |v| v.record.source = Some(S::Released),
                &[],
            ),
            (
                "the source is about to stop, and it is deleted",
                |v| (v.record.source, v.record.deleted) = (Some(S::Released), true),
                &[],
            ),
            (
                "the source's pod ended as its guest left",
                |v| (v.record.source, v.source_pod, v.instance) = (Some(S::Migrating), SourcePod::Left, I::Moved),
                &[Do::Enter(P::Succeeded)],
            ),
            (
                "lost there",
                |v| (v.record.target, v.instance) = (Some(T::Ended), I::Moved),
                &[Do::Fail(F::LostOnTarget)],
            ),
            (
                "its node is gone",
                |v| (v.target_node_gone, v.record.target, v.instance) = (true, Some(T::Complete), I::Moved),
                &[Do::Fail(F::LostOnTarget)],
            ),
            (
                "its node is gone, and the source has not stopped",
                |v| {
                    (v.target_node_gone, v.instance) = (true, I::Moved);
                    v.record.source = Some(S::Released);
                },
                &[Do::Fail(F::LostOnTarget)],
            ),
            (
                "it ended there before it ran",
                |v| (v.record.target, v.instance) = (Some(T::Gone), I::Moved),
                &[Do::Fail(F::LostOnTarget)],
            ),
        ],
    );
}

#[test]
fn finished_migration_leaves_nothing_behind() {
    check(
        failed,
        &[
            ("an empty pod", |_| {}, &[Do::DeletePod]),
            ("it leaves", |v| v.target_pod = Pod::Leaving, &[]),
            ("it has ended", |v| v.target_pod = Pod::Over, &[]),
            (
                "deleted",
                |v| (v.record.deleted, v.target_pod) = (true, Pod::Over),
                &[Do::RemoveFinalizer],
            ),
            (
                "deleted, and the caches show no pod",
                |v| (v.record.deleted, v.target_pod) = (true, Pod::Unknown),
                &[Do::Confirm],
            ),
            (
                "deleted, and the pod exists",
                |v| v.record.deleted = true,
                &[Do::DeletePod, Do::RemoveFinalizer],
            ),
            (
                "deleted with its instance, whose pods go with it",
                |v| (v.record.deleted, v.target_pod, v.instance) = (true, Pod::Unknown, I::Missing),
                &[Do::RemoveFinalizer],
            ),
            ("the caches show no pod", |v| v.target_pod = Pod::Unknown, &[]),
            (
                "deleted, its finalizer is off, and the caches show no pod",
                |v| (v.record.deleted, v.target_pod, v.has_finalizer) = (true, Pod::Unknown, false),
                &[],
            ),
            (
                "deleted after a success, and the caches show no pod",
                |v| {
                    (v.record.deleted, v.record.phase, v.target_pod) = (true, Some(P::Succeeded), Pod::Unknown);
                    (v.record.source, v.record.target) = (Some(S::Stopped), Some(T::Running));
                },
                &[Do::RemoveFinalizer],
            ),
            (
                "deleted, the source has to let its guest go on",
                |v| (v.record.deleted, v.target_pod, v.record.source) = (true, Pod::Over, Some(S::Migrating)),
                &[],
            ),
            (
                "deleted after a success, the source has never reported its end",
                |v| {
                    (v.record.deleted, v.record.phase) = (true, Some(P::Succeeded));
                    (v.record.source, v.record.target) = (Some(S::Migrating), Some(T::Running));
                },
                &[Do::RemoveFinalizer],
            ),
            (
                "deleted, the source's node is gone",
                |v| {
                    (v.record.deleted, v.target_pod) = (true, Pod::Over);
                    (v.record.source, v.source_node_gone) = (Some(S::Migrating), true);
                },
                &[Do::RemoveFinalizer],
            ),
            (
                "its finalizer is off",
                |v| (v.record.deleted, v.target_pod, v.has_finalizer) = (true, Pod::Over, false),
                &[],
            ),
        ],
    );
    check(
        arrived,
        &[(
            "a guest runs in the pod",
            |v| (v.record.phase, v.instance) = (Some(P::Succeeded), I::Moved),
            &[],
        )],
    );
}

fn instance() -> impl Strategy<Value = I> {
    let all = [
        I::Unknown,
        I::Missing,
        I::Ended,
        I::NotRunning,
        I::NotMigratable,
        I::Running,
        I::Moved,
    ];
    select(all.to_vec())
}

prop_compose! {
    fn view()(
        record in crate::migration::record::any_record(),
        instance in instance(),
        target_pod in select(vec![Pod::Unknown, Pod::Missing, Pod::Coming, Pod::Ready, Pod::Rejected, Pod::Leaving, Pod::Over]),
        source_pod in select(vec![SourcePod::Alive, SourcePod::Left, SourcePod::Over]),
        [another, source_node_gone, target_node_gone, may_place, has_slot, overdue, has_finalizer] in any::<[bool; 7]>(),
    ) -> ClusterView {
        ClusterView {
            record, another, instance, target_pod, source_pod, source_node_gone, target_node_gone, may_place,
            has_slot, overdue, has_finalizer,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn laws_of_every_view(view in view()) {
        let steps = step(&view);
        let record = view.record;
        for step in &steps {
            match step {
                Do::Enter(P::Failed) => prop_assert!(false, "a failure has a reason"),
                Do::Enter(phase) => prop_assert!(record.phase < Some(*phase), "{steps:?}"),
                Do::Fail(_) => prop_assert!(!record.is_over(), "{steps:?}"),
                Do::Abort(_) => prop_assert!(!record.abort, "{steps:?}"),
                Do::RecordSourceGone => prop_assert!(view.source_node_gone && !record.source_gone, "{steps:?}"),
                Do::RemoveFinalizer => prop_assert!(record.deleted && record.is_over(), "{steps:?}"),
                Do::CreatePod => prop_assert!(view.may_place && !record.deleted, "{steps:?}"),
                Do::DeletePod => prop_assert!(record.has_failed() && record.target != Some(T::Running), "{steps:?}"),
                Do::Confirm => prop_assert!(view.target_pod == Pod::Unknown, "{steps:?}"),
            }
        }
        // The VMI is updated first.
        if guest_location(&view) == GuestLocation::Target && view.instance == I::Running {
            prop_assert!(steps.iter().all(|step| !matches!(step, Do::Enter(P::Succeeded) | Do::Fail(_)))
                || !record.has_sides(), "{steps:?}");
        }
        // At most one phase is written, as the last step.
        let phases = steps.iter().filter(|step| matches!(step, Do::Enter(_) | Do::Fail(_))).count();
        prop_assert!(phases <= 1, "{steps:?}");
    }
}
