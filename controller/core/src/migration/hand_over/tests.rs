use proptest::{collection::vec, prelude::*};

use super::{GuestHere, GuestRelease, HandOverRefusal, HandOverStep, Proof, SourceSide, TakenOver, TargetSide};

const STATES: [GuestHere; 5] = [
    GuestHere::Unknown,
    GuestHere::Absent,
    GuestHere::Incoming,
    GuestHere::Complete,
    GuestHere::HasRun,
];

fn release(keep_paused: bool) -> GuestRelease {
    let proof = Proof::ReplyConsumed;
    GuestRelease { proof, keep_paused }
}

#[test]
fn the_target_acts_on_a_release_and_a_complete_guest_only() {
    use {GuestHere as G, HandOverStep as S, TakenOver as T};
    for guest in STATES {
        assert_eq!(TargetSide::default().step(guest), S::Wait, "{guest:?}");
    }
    for (keep_paused, guest, expected) in [
        (false, G::Unknown, S::Wait),
        (false, G::Absent, S::Wait),
        (false, G::Incoming, S::Wait),
        (false, G::Complete, S::Resume),
        (false, G::HasRun, S::TakeOver(T::Resumed)),
        (true, G::Unknown, S::Wait),
        (true, G::Absent, S::Wait),
        (true, G::Incoming, S::Wait),
        (true, G::Complete, S::TakeOver(T::LeftPaused)),
        (true, G::HasRun, S::TakeOver(T::Resumed)),
    ] {
        let mut target = TargetSide::default();
        target.released(release(keep_paused)).unwrap();
        assert_eq!(target.step(guest), expected, "{keep_paused} {guest:?}");
        // After the take-over the guest is left alone: a user may have paused it.
        target.take_over(T::Resumed);
        target.take_over(T::LeftPaused);
        assert_eq!(
            target.step(guest),
            S::Acknowledge(T::Resumed),
            "{keep_paused} {guest:?}"
        );
    }
}

#[test]
fn the_first_release_counts() {
    let mut target = TargetSide::default();
    target.released(release(true)).unwrap();
    target.released(release(false)).unwrap();
    assert_eq!(target.release(), Some(release(true)));
}

#[test]
fn last_pause_decision_counts_until_release_is_sent() {
    let mut source = SourceSide::default();
    assert_eq!(source.release(), None);
    source.keep_paused(false).unwrap();
    source.keep_paused(true).unwrap();
    source.prove(Proof::SourceStopped);
    source.prove(Proof::ReplyConsumed);
    source.keep_paused(false).unwrap();
    source.keep_paused(true).unwrap();
    let sent = Some(GuestRelease {
        proof: Proof::SourceStopped,
        keep_paused: true,
    });
    assert_eq!(source.release(), sent);
    // The same value may be set again, the opposite may not.
    assert_eq!(source.keep_paused(true), Ok(()));
    assert_eq!(source.keep_paused(false), Err(HandOverRefusal::AlreadyReleased));
    assert_eq!(source.release(), sent);
    source.acknowledge(TakenOver::LeftPaused).unwrap();
    source.acknowledge(TakenOver::Resumed).unwrap();
    assert_eq!(source.taken_over(), Some(TakenOver::LeftPaused));
    assert_eq!(source.release(), None);
}

#[test]
fn unreleased_guest_cannot_be_taken_over() {
    let mut source = SourceSide::default();
    assert_eq!(
        source.acknowledge(TakenOver::Resumed),
        Err(HandOverRefusal::NotReleased)
    );
    source.prove(Proof::SourceGone);
    assert_eq!(
        source.acknowledge(TakenOver::Resumed),
        Err(HandOverRefusal::NotReleased)
    );
    assert_eq!(source.taken_over(), None);
}

/// An event of a simulated hand-over.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Prove(Proof),
    KeepPaused(bool),
    /// The source sends a message, which arrives or is lost.
    SourceSends {
        arrives: bool,
    },
    /// libvirt on the target reports a state, on which the target acts. Its acknowledgement arrives or is lost.
    TargetObserves {
        guest: GuestHere,
        resumes: bool,
        acknowledged: bool,
    },
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        prop_oneof![
            Just(Proof::ReplyConsumed),
            Just(Proof::SourceStopped),
            Just(Proof::SourceGone)
        ]
        .prop_map(Happens::Prove),
        any::<bool>().prop_map(Happens::KeepPaused),
        any::<bool>().prop_map(|arrives| Happens::SourceSends { arrives }),
        (proptest::sample::select(&STATES[..]), any::<bool>(), any::<bool>()).prop_map(
            |(guest, resumes, acknowledged)| Happens::TargetObserves {
                guest,
                resumes,
                acknowledged
            }
        ),
    ]
}

/// The target acts once on the guest's state; returns whether it resumed its guest.
fn observe(source: &mut SourceSide, target: &mut TargetSide, guest: GuestHere, resumes: bool, arrives: bool) -> bool {
    let mut resumed = false;
    match target.step(guest) {
        HandOverStep::Wait => {}
        HandOverStep::Resume => {
            resumed = resumes;
            if resumed {
                target.take_over(TakenOver::Resumed);
            }
        }
        HandOverStep::TakeOver(taken_over) => target.take_over(taken_over),
        HandOverStep::Acknowledge(_) => {}
    }
    if let (true, Some(taken_over)) = (arrives, target.taken_over()) {
        source.acknowledge(taken_over).unwrap();
    }
    resumed
}

proptest! {
    /// Even if messages are lost, repeated and delayed, the guest is resumed at most once, never without proof, and
    /// never if it is to stay paused. As soon as messages arrive again, both sides agree.
    #[test]
    fn a_guest_is_handed_over_once_and_only_on_proof(happenings in vec(happens(), 0..40)) {
        let (mut source, mut target) = (SourceSide::default(), TargetSide::default());
        let mut resumed = 0;
        let mut sent_pause = None;
        for happening in happenings {
            match happening {
                Happens::Prove(proof) => source.prove(proof),
                Happens::KeepPaused(keep_paused) => {
                    let accepted = source.keep_paused(keep_paused).is_ok();
                    prop_assert_eq!(accepted, sent_pause.is_none_or(|first| first == keep_paused));
                }
                Happens::SourceSends { arrives } => {
                    if let Some(release) = source.release() {
                        prop_assert_eq!(*sent_pause.get_or_insert(release.keep_paused), release.keep_paused);
                        if arrives {
                            target.released(release).unwrap();
                        }
                    }
                }
                Happens::TargetObserves { guest, resumes, acknowledged } => {
                    resumed += u32::from(observe(&mut source, &mut target, guest, resumes, acknowledged));
                }
            }
            prop_assert!(resumed <= 1);
            prop_assert!(resumed == 0 || (source.proof().is_some() && sent_pause == Some(false)));
            prop_assert!(target.taken_over().is_none() || source.proof().is_some());
            prop_assert!(source.taken_over().is_none() || source.taken_over() == target.taken_over());
        }
        if source.proof().is_some() {
            if let Some(release) = source.release() {
                target.released(release).unwrap();
            }
            observe(&mut source, &mut target, GuestHere::Complete, true, true);
            prop_assert!(source.taken_over().is_some());
            prop_assert_eq!(source.taken_over(), target.taken_over());
            prop_assert_eq!(source.release(), None);
        }
    }
}

#[test]
fn values_of_a_later_version_release_and_acknowledge_nothing() {
    let mut source = SourceSide::default();
    source.prove(Proof::Unknown);
    assert_eq!((source.proof(), source.release()), (None, None));
    source.prove(Proof::SourceStopped);
    assert!(source.release().is_some());
    assert_eq!(
        source.acknowledge(TakenOver::Unknown),
        Err(HandOverRefusal::NotUnderstood)
    );
    assert_eq!(source.taken_over(), None);
    let mut target = TargetSide::default();
    let unknown = GuestRelease {
        proof: Proof::Unknown,
        keep_paused: false,
    };
    assert_eq!(target.released(unknown), Err(HandOverRefusal::NotUnderstood));
    assert_eq!(target.step(GuestHere::Complete), HandOverStep::Wait);
    // Known values are still accepted after that.
    target
        .released(GuestRelease {
            proof: Proof::SourceStopped,
            ..unknown
        })
        .unwrap();
    assert_eq!(target.step(GuestHere::Complete), HandOverStep::Resume);
}
