use std::time::Duration;

use jiff::Timestamp;

use super::{
    Authority, HeldCertificates, Id, Lifetimes, Make, PublishedBundle, PublishedTrust, RenewalCause, RenewalInput,
    RenewalPlan, RenewalStep, Serving, ServingChange,
};
use super::{choose, plan};
use crate::configuration::Configuration;

/// Returns a time this many hours after the beginning.
fn at(hours: i64) -> Timestamp {
    seconds(hours * 3600)
}

fn seconds(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000_000 + seconds).unwrap()
}

fn id(name: &str) -> Id {
    Id::new(name.as_bytes())
}

fn authority(name: &str, until: i64) -> Authority {
    Authority {
        id: id(name),
        from: at(-1),
        until: at(until),
    }
}

fn leaf(name: &str, authority: &str, until: i64) -> Serving {
    Serving {
        id: id(name),
        authority: id(authority),
        from: at(-1),
        until: at(until),
    }
}

fn held(bundle: &[Authority], serving: Serving) -> HeldCertificates {
    HeldCertificates {
        signer: bundle.first().cloned(),
        bundle: bundle.to_vec(),
        serving: Some(serving),
    }
}

/// Returns the trust of two places that have held these authorities since then.
fn trust(since: Timestamp, authorities: &[Authority]) -> PublishedTrust {
    let place = PublishedBundle {
        authorities: authorities.to_vec(),
        has_foreign: false,
    };
    let mut trust = PublishedTrust::default();
    trust.observe(since, Some(vec![place.clone(), place]));
    trust
}

fn defaults() -> Lifetimes {
    Lifetimes::from(&Configuration::default().certificates)
}

fn planned(now: Timestamp, held: &HeldCertificates, served: Option<&Serving>, trust: &PublishedTrust) -> RenewalPlan {
    let facts = RenewalInput {
        held: Some(held),
        served,
        trust,
    };
    plan(now, facts, &defaults())
}

fn write(signer: Option<Make>, bundle: &[&str], serving: ServingChange) -> Option<RenewalStep> {
    let bundle = bundle.iter().map(|name| id(name)).collect();
    Some(RenewalStep::Write {
        signer,
        bundle,
        serving,
    })
}

fn make(until: i64, cause: RenewalCause) -> Make {
    Make {
        until: at(until),
        cause,
    }
}

#[test]
fn nothing_is_done_on_a_guess() {
    let known = trust(at(0), &[]);
    let held = HeldCertificates::default();
    for (held, trust) in [
        (None, &known),
        (Some(&held), &PublishedTrust::default()),
        (None, &PublishedTrust::default()),
    ] {
        let facts = RenewalInput {
            held,
            served: None,
            trust,
        };
        assert_eq!(plan(at(0), facts, &defaults()), RenewalPlan::default());
    }
}

#[test]
fn the_first_time_everything_is_made_at_once() {
    let found = planned(at(0), &HeldCertificates::default(), None, &trust(at(0), &[]));
    let expected = write(
        Some(make(48, RenewalCause::Missing)),
        &[],
        ServingChange::Sign(make(24, RenewalCause::Missing)),
    );
    assert_eq!(found.step, expected);
}

#[test]
fn valid_certificates_are_unchanged_until_the_first_renewal() {
    let a = authority("a", 48);
    let held = held(std::slice::from_ref(&a), leaf("1", "a", 24));
    let published = trust(at(0), std::slice::from_ref(&a));
    let quiet = RenewalPlan {
        step: None,
        wake: Some(at(12)),
    };
    assert_eq!(planned(at(0), &held, held.serving.as_ref(), &published), quiet);
    let publish = Some(RenewalStep::Publish { bundle: vec![id("a")] });
    assert_eq!(planned(at(0), &held, None, &trust(at(0), &[])).step, publish);
    let mut with_foreign = PublishedTrust::default();
    with_foreign.observe(
        at(0),
        Some(vec![PublishedBundle {
            authorities: vec![a],
            has_foreign: true,
        }]),
    );
    assert_eq!(planned(at(0), &held, None, &with_foreign).step, publish);
}

#[test]
fn without_webhooks_nothing_is_published_or_awaited() {
    let a = authority("a", 48);
    let held = held(&[authority("b", 72), a], leaf("1", "a", 40));
    let mut nowhere = PublishedTrust::default();
    nowhere.observe(at(24), Some(Vec::new()));
    let sign = ServingChange::Sign(make(48, RenewalCause::AuthorityReplaced));
    assert_eq!(
        planned(at(24), &held, None, &nowhere).step,
        write(None, &["b", "a"], sign)
    );
}

#[test]
fn serving_certificate_is_renewed_at_half_of_the_lifetime() {
    let a = authority("a", 48);
    let held = held(std::slice::from_ref(&a), leaf("1", "a", 24));
    let published = trust(at(0), &[a]);
    let sign = ServingChange::Sign(make(36, RenewalCause::Due));
    assert_eq!(planned(at(12), &held, None, &published).step, write(None, &["a"], sign));
}

#[test]
fn new_authority_is_published_and_settled_before_signing() {
    let (a, b) = (authority("a", 48), authority("b", 72));
    let before = held(std::slice::from_ref(&a), leaf("1", "a", 47));
    let old = trust(at(0), std::slice::from_ref(&a));
    assert_eq!(
        planned(at(24), &before, None, &old).step,
        write(Some(make(72, RenewalCause::Due)), &["a"], ServingChange::Keep),
        "only the authority is made"
    );
    let staged = held(&[b.clone(), a.clone()], leaf("1", "a", 47));
    let bundle = vec![id("b"), id("a")];
    assert_eq!(
        planned(at(24), &staged, None, &old).step,
        Some(RenewalStep::Publish { bundle })
    );
    let both = trust(at(24), &[a.clone(), b.clone()]);
    let waiting = RenewalPlan {
        step: None,
        wake: Some(seconds(24 * 3600 + 30)),
    };
    assert_eq!(planned(at(24), &staged, None, &both), waiting);
    let promoted = planned(seconds(24 * 3600 + 30), &staged, None, &both).step;
    let Some(RenewalStep::Write {
        signer: None,
        serving: ServingChange::Sign(sign),
        ..
    }) = promoted
    else {
        panic!("{promoted:?}")
    };
    assert_eq!(sign.cause, RenewalCause::AuthorityReplaced);
}

#[test]
fn new_authority_waits_for_every_published_bundle() {
    let (a, b) = (authority("a", 48), authority("b", 72));
    let staged = held(&[b.clone(), a.clone()], leaf("1", "a", 47));
    let place = |authorities: &[Authority]| PublishedBundle {
        authorities: authorities.to_vec(),
        has_foreign: false,
    };
    let mut half = PublishedTrust::default();
    half.observe(
        at(24),
        Some(vec![place(&[a.clone(), b.clone()]), place(std::slice::from_ref(&a))]),
    );
    assert!(!half.covers(&b.id) && half.covers(&a.id));
    let found = planned(at(30), &staged, None, &half).step;
    assert!(matches!(found, Some(RenewalStep::Publish { .. })), "{found:?}");
    half.observe(
        at(30),
        Some(vec![place(&[a.clone(), b.clone()]), place(&[b.clone(), a.clone()])]),
    );
    assert_eq!(half.since(&b.id), Some(at(30)));
    half.observe(
        at(31),
        Some(vec![place(std::slice::from_ref(&a)), place(&[b.clone(), a])]),
    );
    assert_eq!(half.since(&b.id), None, "what was taken back has to settle anew");
}

#[test]
fn authority_is_removed_once_expired() {
    let (a, b) = (authority("a", 48), authority("b", 72));
    let held = held(&[b.clone(), a.clone()], leaf("2", "b", 60));
    let both = trust(at(24), &[b.clone(), a.clone()]);
    let found = planned(at(47), &held, None, &both);
    assert_eq!(found, planned(at(47), &held, None, &both));
    assert_eq!(found.step, None, "a certificate of it may still be served");
    let found = planned(seconds(48 * 3600 + 30), &held, None, &both).step;
    let Some(RenewalStep::Write { bundle, .. }) = found else {
        panic!("{found:?}")
    };
    assert_eq!(bundle, [id("b")]);
}

#[test]
fn lost_secret_keeps_trusted_and_served_certificates() {
    let a = authority("a", 48);
    let published = trust(at(0), std::slice::from_ref(&a));
    let mine = leaf("1", "a", 24);
    assert_eq!(
        planned(at(6), &HeldCertificates::default(), Some(&mine), &published).step,
        write(Some(make(54, RenewalCause::Missing)), &["a"], ServingChange::Carry)
    );
    assert_eq!(
        planned(at(6), &HeldCertificates::default(), None, &published).step,
        write(
            Some(make(54, RenewalCause::Missing)),
            &["a"],
            ServingChange::Sign(make(30, RenewalCause::Missing))
        ),
        "who has begun just now has nothing to carry"
    );
    let expired = leaf("1", "a", 6);
    let found = planned(at(6), &HeldCertificates::default(), Some(&expired), &published).step;
    assert!(
        matches!(
            found,
            Some(RenewalStep::Write {
                serving: ServingChange::Sign(_),
                ..
            })
        ),
        "{found:?}"
    );
}

#[test]
fn restored_secret_is_served_only_once_trusted() {
    let (a, copy) = (authority("a", 48), authority("copy", 47));
    let published = trust(at(0), std::slice::from_ref(&a));
    let mine = leaf("1", "a", 24);
    let restored = held(std::slice::from_ref(&copy), leaf("0", "copy", 23));
    assert_eq!(
        planned(at(6), &restored, Some(&mine), &published).step,
        write(None, &["copy", "a"], ServingChange::Carry)
    );
    let kept = choose(at(6), Some(&mine), restored.serving.as_ref(), &published, &defaults());
    assert!(!kept.take);
    let both = trust(at(6), &[a, copy]);
    let settling = choose(at(6), Some(&mine), restored.serving.as_ref(), &both, &defaults());
    assert_eq!((settling.take, settling.wake), (false, Some(seconds(6 * 3600 + 30))));
    let settled = seconds(6 * 3600 + 30);
    assert!(choose(settled, Some(&mine), restored.serving.as_ref(), &both, &defaults()).take);
}

#[test]
fn shorter_lifetimes_count_at_once() {
    let a = authority("a", 24 * 365);
    let published = trust(at(0), std::slice::from_ref(&a));
    let held = held(&[a], leaf("1", "a", 24 * 90));
    assert_eq!(
        planned(at(0), &held, None, &published).step,
        write(Some(make(48, RenewalCause::TooLong)), &["a"], ServingChange::Keep)
    );
    let b = authority("b", 48);
    let mut staged = held.clone();
    staged.signer = Some(b.clone());
    staged.bundle.insert(0, b.clone());
    let both = trust(at(0), &staged.bundle);
    let found = planned(at(1), &staged, None, &both).step;
    let sign = ServingChange::Sign(make(25, RenewalCause::AuthorityReplaced));
    assert_eq!(found, write(None, &["b", "a"], sign));
}

#[test]
fn replica_takes_only_a_needed_or_better_certificate() {
    let (a, b) = (authority("a", 48), authority("b", 72));
    let trusted = trust(at(0), std::slice::from_ref(&a));
    let (old, new, other) = (leaf("1", "a", 24), leaf("2", "a", 36), leaf("3", "b", 60));
    let takes = |now, current, offered, trust: &PublishedTrust| choose(now, current, offered, trust, &defaults()).take;
    assert!(
        takes(at(1), None, Some(&other), &trusted),
        "anything is better than nothing"
    );
    assert!(takes(at(1), None, Some(&old), &PublishedTrust::default()));
    assert!(
        !takes(at(1), Some(&old), None, &trusted),
        "a Secret that is gone takes nothing away"
    );
    assert!(!takes(at(1), Some(&old), Some(&old), &trusted));
    assert!(takes(at(1), Some(&old), Some(&new), &trusted), "the same authority");
    assert!(!takes(at(1), Some(&old), Some(&other), &trusted), "not trusted yet");
    assert!(takes(at(24), Some(&old), Some(&other), &trusted), "its own has expired");
    assert!(!takes(at(61), Some(&old), Some(&other), &trusted), "both have expired");
    let replaced = trust(at(1), &[b]);
    assert!(
        takes(at(1), Some(&old), Some(&other), &replaced),
        "its own is not trusted any more"
    );
    let mut early = new.clone();
    early.from = at(2);
    let choice = choose(at(1), None, Some(&early), &trusted, &defaults());
    assert_eq!((choice.take, choice.wake), (false, Some(at(2))));
}

#[test]
fn a_bundle_does_not_grow_without_end() {
    let many: Vec<Authority> = (0..100).map(|n| authority(&format!("{n:03}"), 40 - n % 3)).collect();
    let mut held = held(&many, leaf("1", "050", 20));
    held.signer = Some(many[7].clone());
    let published = trust(at(0), &many);
    let Some(RenewalStep::Write { bundle, .. }) = planned(at(0), &held, None, &published).step else {
        panic!("it has to shrink")
    };
    assert!(bundle.len() < super::MOST_AUTHORITIES);
    assert_eq!(bundle[..2], [id("007"), id("050")]);
}

#[test]
fn certificates_that_never_end_break_nothing() {
    let mut forever = authority("a", 1);
    forever.until = Timestamp::MAX;
    forever.from = Timestamp::MIN;
    let mut serving = leaf("1", "a", 1);
    serving.until = Timestamp::MAX;
    let published = trust(at(0), std::slice::from_ref(&forever));
    let found = planned(at(0), &held(std::slice::from_ref(&forever), serving), None, &published);
    assert_eq!(
        found.step,
        write(Some(make(48, RenewalCause::TooLong)), &["a"], ServingChange::Keep)
    );
}

#[test]
fn certificates_end_at_whole_seconds() {
    let now = at(0).checked_add(Duration::from_millis(1)).unwrap();
    let Some(RenewalStep::Write {
        signer: Some(signer), ..
    }) = planned(now, &HeldCertificates::default(), None, &trust(at(0), &[])).step
    else {
        panic!("it has to be made")
    };
    assert_eq!(signer.until, seconds(48 * 3600 + 1));
}
