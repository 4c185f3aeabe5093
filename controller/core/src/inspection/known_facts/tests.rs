use std::time::Duration;

use drydock_api::facts::VirtualizationFacts;

use super::*;
use crate::{conditions::whole_seconds, inspection::retry_after};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn fingerprint(kernel: &str) -> FactsFingerprint {
    FactsFingerprint([("kernel".into(), kernel.into())].into())
}

/// Facts that an inspection of the host with this kernel finds.
fn found(kernel: &str, is_complete: bool) -> InspectedFacts {
    let facts = NodeFacts {
        kernel: kernel.into(),
        virtualization: is_complete.then(VirtualizationFacts::default),
        ..NodeFacts::default()
    };
    let record = InspectionRecord {
        at: whole_seconds(now()),
        took_milliseconds: 1,
        fingerprint: fingerprint(kernel),
        stale: false,
    };
    (facts, record)
}

fn failure() -> InspectionFailure {
    InspectionFailure {
        reason: "LibvirtdCrashed".into(),
        message: "libvirtd ended".into(),
    }
}

/// An event that concerns an agent's knowledge.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// An earlier agent reported complete facts of this kernel.
    Recovered(&'static str),
    /// An earlier agent reported facts without those of libvirt.
    RecoveredIncomplete(&'static str),
    /// The host is found to have this kernel.
    Checked(&'static str),
    Succeeded(&'static str),
    /// An inspection failed without facts.
    Failed,
    /// An inspection failed, but for the processor and the kernel.
    FailedWithFacts(&'static str),
}

use Happening::{Checked, Failed as FailedAlone, FailedWithFacts, Recovered, RecoveredIncomplete, Succeeded};

fn after(happenings: &[Happening]) -> KnownFacts {
    let mut known = KnownFacts::default();
    for happening in happenings {
        match happening {
            Recovered(kernel) => known.recover(Some(found(kernel, true))),
            RecoveredIncomplete(kernel) => known.recover(Some(found(kernel, false))),
            Checked(kernel) => drop(known.check(fingerprint(kernel), now())),
            Succeeded(kernel) => known.succeed(found(kernel, true)),
            FailedAlone => known.fail(failure(), None, now()),
            FailedWithFacts(kernel) => known.fail(failure(), Some(found(kernel, false)), now()),
        }
    }
    known
}

#[test]
fn facts_are_those_of_the_table() {
    // The kernel of the facts, and whether they are complete.
    for (happenings, expected) in [
        (&[][..], None),
        (&[Checked("1")], None),
        (&[Recovered("1"), Checked("1")], Some(("1", true))),
        (&[Recovered("1"), Checked("2")], None),
        (&[Recovered("1"), Checked("2"), FailedAlone], Some(("1", true))),
        (&[Recovered("1"), Checked("2"), FailedWithFacts("2")], Some(("1", true))),
        (&[Recovered("1"), Checked("2"), Succeeded("2")], Some(("2", true))),
        (&[Checked("1"), FailedAlone], None),
        (&[Checked("1"), FailedWithFacts("1")], Some(("1", false))),
        (
            &[Checked("1"), Succeeded("1"), Checked("2"), FailedAlone],
            Some(("1", true)),
        ),
        (
            &[Checked("1"), Succeeded("1"), Checked("2"), FailedWithFacts("2")],
            Some(("1", true)),
        ),
        (
            &[Checked("1"), FailedWithFacts("1"), Checked("2"), Succeeded("2")],
            Some(("2", true)),
        ),
        (&[RecoveredIncomplete("1"), Checked("1")], Some(("1", false))),
        (
            &[Checked("1"), FailedWithFacts("1"), Checked("2"), FailedWithFacts("2")],
            Some(("2", false)),
        ),
        (
            &[Checked("1"), FailedWithFacts("1"), Checked("2"), FailedAlone],
            Some(("1", false)),
        ),
    ] {
        let known = after(happenings);
        let facts = known.facts();
        let facts = facts.map(|(facts, _)| (facts.kernel.as_str(), facts.virtualization.is_some()));
        assert_eq!(facts, expected, "{happenings:?}");
    }
}

#[test]
fn failure_and_end_follow_the_last_inspection() {
    for (happenings, fails, has_ended) in [
        (&[Checked("1")][..], false, false),
        (&[Checked("1"), FailedAlone], true, true),
        (&[Checked("1"), FailedWithFacts("1")], true, true),
        (&[Checked("1"), FailedAlone, Succeeded("1")], false, true),
        (&[Checked("1"), Succeeded("1"), FailedAlone], true, true),
    ] {
        let known = after(happenings);
        assert_eq!(known.failure().is_some(), fails, "{happenings:?}");
        assert_eq!(known.has_ended(), has_ended, "{happenings:?}");
    }
}

#[test]
fn failures_are_counted_until_a_success() {
    let mut known = after(&[Checked("1")]);
    for times in 1..5 {
        known.fail(failure(), None, now());
        let expected = Need::At(now() + retry_after(times));
        assert_eq!(known.check(fingerprint("1"), now()), expected, "{times}");
    }
    known.succeed(found("1", true));
    assert_eq!(known.check(fingerprint("1"), now()), Need::None);
    known.fail(failure(), None, now());
    assert_eq!(known.check(fingerprint("1"), now()), Need::At(now() + retry_after(1)));
    let later = now() + Duration::from_secs(5);
    assert_eq!(known.check(fingerprint("1"), later), Need::Now(Vec::new()));
}

#[test]
fn host_that_changed_meanwhile_is_inspected_again() {
    let mut known = after(&[Checked("1"), Succeeded("1")]);
    let change = vec!["kernel".to_owned()];
    assert_eq!(known.check(fingerprint("2"), now()), Need::Now(change.clone()));
    // The change of a host whose inspection failed does not wait for the retry.
    known.fail(failure(), None, now());
    assert_eq!(known.check(fingerprint("3"), now()), Need::Now(change));
}
