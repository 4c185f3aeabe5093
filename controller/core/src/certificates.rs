//! How the certificates of the webhooks are renewed without refusing anybody in between.
//!
//! The controller is its own certificate authority. One Secret holds everything; API servers trust
//! the bundle that is written into the webhook configurations; all replicas serve what the Secret
//! offers. A new authority comes in by stages, each of which is seen before the next begins:
//!
//! ```text
//!              Secret                              webhook configurations     replicas serve
//!   (1) ca.crt: NEW, old   tls.crt by old          old                        by old
//!   (2)                                            NEW, old                   by old
//!        ... until API servers have certainly heard of it ([`Lifetimes::settle`])
//!   (3)                    tls.crt by NEW                                     by NEW
//!   (4) ca.crt: NEW        once old has expired ──▶ NEW
//! ```
//!
//! - [`plan`]: what the leader does next, one step at a time. It keeps nothing between two calls
//!   but what the API server holds, so it can be cut short anywhere.
//! - [`choose`]: whether a replica takes the certificate that the Secret offers.
//! - [`Trust`]: what API servers trust, and since when this process has seen them do so.
//!
//! No certificate outlives its authority, so an authority that has expired signed nothing that
//! anybody can still serve, however far behind a replica is: that alone is when it leaves the
//! bundle. For the same reason every valid authority of ours that is found in a webhook
//! configuration stays in the bundle even if the Secret was lost or replaced.

mod lifetimes;
mod replica;
mod trust;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::configuration::Lifetime;

pub use lifetimes::Lifetimes;
pub use replica::{Choice, choose};
pub use trust::{Place, Trust};

/// As many authorities as a bundle holds: beyond that, those that expire first are left out. Only
/// somebody who keeps deleting the Secret gets there.
pub const MOST_AUTHORITIES: usize = 32;

/// Certificates end at whole seconds; they are rounded up.
const ROUNDING: Duration = Duration::from_secs(1);

/// A certificate, by all its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Arc<[u8]>);

impl Id {
    /// The certificate that is encoded so.
    pub fn new(der: &[u8]) -> Self {
        Self(der.into())
    }

    /// Its encoding.
    pub fn der(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Id {
    /// The last bytes: those of the signature, which differ most.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.0.len().saturating_sub(6);
        self.0[from..].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The certificate of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Which.
    pub id: Id,
    /// Valid from.
    pub from: Timestamp,
    /// Valid until.
    pub until: Timestamp,
}

/// A certificate to serve, with its key at hand and the right names in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Which.
    pub id: Id,
    /// Who signed it.
    pub authority: Id,
    /// Valid from.
    pub from: Timestamp,
    /// Valid until.
    pub until: Timestamp,
}

impl Serving {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }
}

/// What a Secret holds that can be used. Of one that is missing or holds garbage, that is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The authority whose key is there: the newest.
    pub signer: Option<Authority>,
    /// All authorities, the signer among them.
    pub bundle: Vec<Authority>,
    /// The certificate to serve.
    pub serving: Option<Serving>,
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What the Secret holds; `None`: not known yet.
    pub held: Option<&'a Held>,
    /// What this replica serves.
    pub served: Option<&'a Serving>,
    /// What API servers trust.
    pub trust: &'a Trust,
}

/// Why a certificate is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// There is none that can be used.
    Missing,
    /// It ends soon.
    Due,
    /// It is valid for longer than is now configured.
    TooLong,
    /// Its authority has been replaced.
    AuthorityReplaced,
}

impl Cause {
    /// As logs and metrics have it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing => "Missing",
            Self::Due => "Due",
            Self::TooLong => "TooLong",
            Self::AuthorityReplaced => "AuthorityReplaced",
        }
    }

    /// The same for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Missing => "there is none that can be used",
            Self::Due => "the one before ends soon",
            Self::TooLong => "the one before is valid for longer than is configured",
            Self::AuthorityReplaced => "the authority of the one before has been replaced",
        }
    }
}

/// A certificate to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// Valid until, a whole second.
    pub until: Timestamp,
    /// Why.
    pub cause: Cause,
}

/// The certificate to serve, in a Secret to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingChange {
    /// As it is.
    Keep,
    /// The one that this replica serves: the Secret has lost it, or has one that nobody trusts.
    Carry,
    /// A new one, signed by the signer that the Secret will hold.
    Sign(Make),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the Secret, unless it has changed since it was looked at.
    Write {
        /// A new signer, if one is to be made. It comes first in the bundle.
        signer: Option<Make>,
        /// The other authorities, the signer first if it stays.
        bundle: Vec<Id>,
        /// The certificate to serve.
        serving: ServingChange,
    },
    /// Write this bundle to every place that holds another.
    Publish {
        /// All authorities, the signer first.
        bundle: Vec<Id>,
    },
}

/// What the leader does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to do now; after that, plan again.
    pub step: Option<Step>,
    /// When to plan again, even if nothing changes.
    pub wake: Option<Timestamp>,
}

/// What the leader does next. While something is not known it does nothing.
pub fn plan(now: Timestamp, facts: Facts<'_>, lifetimes: &Lifetimes) -> Plan {
    let (Some(held), true) = (facts.held, facts.trust.is_known()) else {
        return Plan::default();
    };
    let bundle = authorities(now, held, facts, lifetimes);
    let signer = held.signer.as_ref().filter(|signer| signer.from <= now);
    let make_signer = match signer {
        None => Some(Cause::Missing),
        Some(signer) if is_coming_in(now, signer, held) => None,
        Some(signer) => {
            let Lifetime { duration, renew_before } = lifetimes.authority;
            due(now, signer.until, duration, renew_before)
        }
    };
    let make_signer = make_signer.map(|cause| Make {
        until: whole_second(later(now, lifetimes.authority.duration)),
        cause,
    });
    let (serving, serving_wake) = serving(now, held, facts, &bundle, make_signer, lifetimes);

    let before: BTreeSet<&Id> = held.bundle.iter().map(|authority| &authority.id).collect();
    let after: BTreeSet<&Id> = bundle.iter().map(|authority| &authority.id).collect();
    let ids: Vec<Id> = bundle.iter().map(|authority| authority.id.clone()).collect();
    let step = if make_signer.is_some() || serving != ServingChange::Keep || before != after {
        Some(Step::Write {
            signer: make_signer,
            bundle: ids,
            serving,
        })
    } else if facts.trust.is_exactly(&after) {
        None
    } else {
        Some(Step::Publish { bundle: ids })
    };
    let renewal = signer.map(|signer| earlier(signer.until, lifetimes.authority.renew_before));
    let expiry = bundle
        .iter()
        .map(|authority| later(authority.until, lifetimes.settle))
        .min();
    let wake = [renewal, expiry, serving_wake]
        .into_iter()
        .flatten()
        .filter(|wake| *wake > now)
        .min();
    Plan { step, wake }
}

/// Whether the signer has yet to sign what is served, and will help when it does. Another in its
/// place would have to settle from the beginning, and if that went on the served certificate would
/// expire meanwhile.
fn is_coming_in(now: Timestamp, signer: &Authority, held: &Held) -> bool {
    let helps = |serving: &Serving| serving.authority != signer.id && serving.until < signer.until;
    held.serving
        .as_ref()
        .is_some_and(|serving| serving.is_valid(now) && helps(serving))
}

/// The authorities that have to be trusted, as far as they exist: signer first, then by the end of
/// their lives, so that the same ones always make the same bundle.
fn authorities(now: Timestamp, held: &Held, facts: Facts<'_>, lifetimes: &Lifetimes) -> Vec<Authority> {
    let mut all: Vec<Authority> = Vec::new();
    for authority in held.bundle.iter().chain(facts.trust.authorities()) {
        let expired = later(authority.until, lifetimes.settle) <= now;
        if !expired && all.iter().all(|other| other.id != authority.id) {
            all.push(authority.clone());
        }
    }
    let is_signer = |authority: &Authority| held.signer.as_ref().is_some_and(|signer| signer.id == authority.id);
    let in_use = |authority: &Authority| {
        let serving = [held.serving.as_ref(), facts.served];
        serving
            .into_iter()
            .flatten()
            .any(|serving| serving.authority == authority.id)
    };
    all.sort_by(|a, b| {
        let rank = |authority: &Authority| (!is_signer(authority), !in_use(authority));
        rank(a)
            .cmp(&rank(b))
            .then(b.until.cmp(&a.until))
            .then_with(|| a.id.cmp(&b.id))
    });
    all.truncate(MOST_AUTHORITIES - 1);
    all
}

/// What becomes of the certificate that is served, and when that changes by itself.
fn serving(
    now: Timestamp,
    held: &Held,
    facts: Facts<'_>,
    bundle: &[Authority],
    make_signer: Option<Make>,
    lifetimes: &Lifetimes,
) -> (ServingChange, Option<Timestamp>) {
    let usable =
        |serving: &&Serving| serving.is_valid(now) && bundle.iter().any(|authority| authority.id == serving.authority);
    let until = |signer_until: Timestamp| whole_second(later(now, lifetimes.serving.duration)).min(signer_until);
    let offered = held.serving.as_ref().filter(usable);
    let served = facts.served.filter(usable);
    let current = match (offered, served) {
        (Some(offered), Some(served))
            if !facts.trust.covers(&offered.authority) && facts.trust.covers(&served.authority) =>
        {
            return (ServingChange::Carry, None);
        }
        (None, Some(_)) => return (ServingChange::Carry, None),
        (None, None) => None,
        (Some(offered), _) => Some(offered),
    };
    let sign = |cause: Cause, signer_until: Timestamp| {
        let make = Make {
            until: until(signer_until),
            cause,
        };
        (ServingChange::Sign(make), None)
    };
    match (current, make_signer, &held.signer) {
        // Nobody can serve anything: better a certificate that is not trusted yet than none.
        (None, Some(new), _) => sign(Cause::Missing, new.until),
        (None, None, Some(signer)) => sign(Cause::Missing, signer.until),
        (None, None, None) | (Some(_), Some(_), _) | (Some(_), None, None) => (ServingChange::Keep, None),
        (Some(current), None, Some(signer)) if current.authority == signer.id => {
            let Lifetimes { serving, .. } = lifetimes;
            match due(now, current.until, serving.duration, serving.renew_before) {
                Some(cause) => sign(cause, signer.until),
                None => (ServingChange::Keep, Some(earlier(current.until, serving.renew_before))),
            }
        }
        (Some(current), None, Some(signer)) => {
            let Some(settled) = trust::settled(current, &signer.id, facts.trust, lifetimes) else {
                return (ServingChange::Keep, Some(current.until));
            };
            if settled <= now {
                return sign(Cause::AuthorityReplaced, signer.until);
            }
            (ServingChange::Keep, Some(settled))
        }
    }
}

/// Whether a certificate has to be renewed. One that lives longer than it would if it were made now
/// is from before a change of the configuration.
fn due(now: Timestamp, until: Timestamp, duration: Duration, renew_before: Duration) -> Option<Cause> {
    if earlier(until, renew_before) <= now {
        Some(Cause::Due)
    } else if until > later(now, duration + ROUNDING) {
        Some(Cause::TooLong)
    } else {
        None
    }
}

/// So much later; the end of time if that is beyond it, which only a forged certificate gets to.
fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

fn whole_second(at: Timestamp) -> Timestamp {
    let up = i64::from(at.subsec_nanosecond() > 0);
    Timestamp::from_second(at.as_second().saturating_add(up)).unwrap_or(at)
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
