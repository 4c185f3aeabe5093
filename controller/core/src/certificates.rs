//! Renewal of the webhooks' certificates without refusing requests in between.
//!
//! The controller is its own certificate authority. One Secret holds all certificates and keys; API servers trust the
//! bundle that is written into the webhook configurations; all replicas serve the certificate in the Secret. A new
//! authority is introduced in stages; each stage must be observed before the next begins:
//!
//! ```text
//!              Secret                              webhook configurations     replicas serve
//!   (1) ca.crt: NEW, old   tls.crt by old          old                        by old
//!   (2)                                            NEW, old                   by old
//!        ... until every API server has certainly seen it ([`Lifetimes::settle`])
//!   (3)                    tls.crt by NEW                                     by NEW
//!   (4) ca.crt: NEW        once old has expired ──▶ NEW
//! ```
//!
//! - [`plan`]: the leader's next action, one step at a time. The function is stateless: all state is in the API server,
//!   so a renewal can be interrupted at any point.
//! - [`choose`]: whether a replica takes the certificate that the Secret offers.
//! - [`PublishedTrust`]: the authorities that API servers trust, and since when this process has observed them.
//!
//! No certificate outlives its authority. So once an authority has expired, no replica can still serve a certificate
//! signed by it, however far behind the replica is; an authority leaves the bundle only then. For the same reason
//! every valid authority of ours that is found in a webhook configuration stays in the bundle even if the Secret was
//! lost or replaced.

mod lifetimes;
mod published_trust;
mod replica;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::configuration::Lifetime;

pub use lifetimes::Lifetimes;
pub use published_trust::{PublishedBundle, PublishedTrust};
pub use replica::{ReplicaChoice, choose};

/// Maximum number of authorities in a bundle; beyond that, those that expire first are left out. Reached only if the
/// Secret is deleted again and again.
pub const MOST_AUTHORITIES: usize = 32;

/// Certificate end times are rounded up to whole seconds.
const ROUNDING: Duration = Duration::from_secs(1);

/// A certificate, identified by all its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Arc<[u8]>);

impl Id {
    /// Returns the ID of the certificate with this DER encoding.
    pub fn new(der: &[u8]) -> Self {
        Self(der.into())
    }

    /// Returns the DER encoding.
    pub fn der(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Id {
    /// Formats the last bytes: those of the signature, which differ most.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.0.len().saturating_sub(6);
        self.0[from..].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The certificate of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// ID of the certificate.
    pub id: Id,
    /// Start of the validity.
    pub from: Timestamp,
    /// End of the validity.
    pub until: Timestamp,
}

/// A certificate to serve; its key is available, and it contains the required names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// ID of the certificate.
    pub id: Id,
    /// ID of the authority that signed the certificate.
    pub authority: Id,
    /// Start of the validity.
    pub from: Timestamp,
    /// End of the validity.
    pub until: Timestamp,
}

impl Serving {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }
}

/// The usable content of a Secret; empty if the Secret is missing or has no valid content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldCertificates {
    /// The newest authority, whose key is in the Secret.
    pub signer: Option<Authority>,
    /// All authorities, including the signer.
    pub bundle: Vec<Authority>,
    /// The certificate to serve.
    pub serving: Option<Serving>,
}

/// Input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct RenewalInput<'a> {
    /// Content of the Secret; `None`: not known yet.
    pub held: Option<&'a HeldCertificates>,
    /// The certificate that this replica serves.
    pub served: Option<&'a Serving>,
    /// The authorities that API servers trust.
    pub trust: &'a PublishedTrust,
}

/// Why a certificate is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RenewalCause {
    /// No usable certificate exists.
    Missing,
    /// The previous certificate expires soon.
    Due,
    /// The previous certificate is valid for longer than is now configured.
    TooLong,
    /// The authority of the previous certificate has been replaced.
    AuthorityReplaced,
}

impl RenewalCause {
    /// Returns the reason for logs and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing => "Missing",
            Self::Due => "Due",
            Self::TooLong => "TooLong",
            Self::AuthorityReplaced => "AuthorityReplaced",
        }
    }

    /// Returns the reason as a human-readable sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Missing => "no usable certificate exists",
            Self::Due => "the previous certificate expires soon",
            Self::TooLong => "the previous certificate is valid for longer than configured",
            Self::AuthorityReplaced => "the authority of the previous certificate has been replaced",
        }
    }
}

/// A certificate to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    /// End of the validity, a whole second.
    pub until: Timestamp,
    /// Why the certificate is created.
    pub cause: RenewalCause,
}

/// The action for the serving certificate in a Secret to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingChange {
    /// Keep the certificate in the Secret.
    Keep,
    /// Write this replica's certificate: the Secret has lost it, or holds a certificate that API servers do not trust.
    Carry,
    /// Create a certificate, signed by the signer that the Secret will hold.
    Sign(Make),
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewalStep {
    /// Write the Secret, unless it has changed since it was read.
    Write {
        /// The new signer, if one is to be created. The new signer comes first in the bundle.
        signer: Option<Make>,
        /// The other authorities, the signer first if it stays.
        bundle: Vec<Id>,
        /// The certificate to serve.
        serving: ServingChange,
    },
    /// Write this bundle to every webhook configuration that contains a different bundle.
    Publish {
        /// All authorities, the signer first.
        bundle: Vec<Id>,
    },
}

/// The leader's next action and wake-up time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenewalPlan {
    /// The action to do now; after that, plan again.
    pub step: Option<RenewalStep>,
    /// When to plan again, even if nothing changes.
    pub wake: Option<Timestamp>,
}

/// Returns the leader's next action. Does nothing while the Secret or the trust is unknown.
pub fn plan(now: Timestamp, facts: RenewalInput<'_>, lifetimes: &Lifetimes) -> RenewalPlan {
    let (Some(held), true) = (facts.held, facts.trust.is_known()) else {
        return RenewalPlan::default();
    };
    let bundle = authorities(now, held, facts, lifetimes);
    let signer = held.signer.as_ref().filter(|signer| signer.from <= now);
    let make_signer = match signer {
        None => Some(RenewalCause::Missing),
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
        Some(RenewalStep::Write {
            signer: make_signer,
            bundle: ids,
            serving,
        })
    } else if facts.trust.is_exactly(&after) {
        None
    } else {
        Some(RenewalStep::Publish { bundle: ids })
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
    RenewalPlan { step, wake }
}

/// Returns whether the signer has not signed the served certificate yet and outlives it. Replacing such a signer
/// would restart settling; repeated, that could last until the served certificate expires.
fn is_coming_in(now: Timestamp, signer: &Authority, held: &HeldCertificates) -> bool {
    let helps = |serving: &Serving| serving.authority != signer.id && serving.until < signer.until;
    held.serving
        .as_ref()
        .is_some_and(|serving| serving.is_valid(now) && helps(serving))
}

/// Returns the authorities that must be trusted, among those that exist: the signer first, then those in use, then by
/// end of validity, latest first. The order is fixed, so that the same authorities always produce the same bundle.
fn authorities(
    now: Timestamp,
    held: &HeldCertificates,
    facts: RenewalInput<'_>,
    lifetimes: &Lifetimes,
) -> Vec<Authority> {
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

/// Returns the action for the serving certificate, and when that action changes with time alone.
fn serving(
    now: Timestamp,
    held: &HeldCertificates,
    facts: RenewalInput<'_>,
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
    let sign = |cause: RenewalCause, signer_until: Timestamp| {
        let make = Make {
            until: until(signer_until),
            cause,
        };
        (ServingChange::Sign(make), None)
    };
    match (current, make_signer, &held.signer) {
        // No replica can serve anything: a certificate that is not trusted yet is better than none.
        (None, Some(new), _) => sign(RenewalCause::Missing, new.until),
        (None, None, Some(signer)) => sign(RenewalCause::Missing, signer.until),
        (None, None, None) | (Some(_), Some(_), _) | (Some(_), None, None) => (ServingChange::Keep, None),
        (Some(current), None, Some(signer)) if current.authority == signer.id => {
            let Lifetimes { serving, .. } = lifetimes;
            match due(now, current.until, serving.duration, serving.renew_before) {
                Some(cause) => sign(cause, signer.until),
                None => (ServingChange::Keep, Some(earlier(current.until, serving.renew_before))),
            }
        }
        (Some(current), None, Some(signer)) => {
            let Some(settled) = published_trust::settled(current, &signer.id, facts.trust, lifetimes) else {
                return (ServingChange::Keep, Some(current.until));
            };
            if settled <= now {
                return sign(RenewalCause::AuthorityReplaced, signer.until);
            }
            (ServingChange::Keep, Some(settled))
        }
    }
}

/// Returns why a certificate has to be renewed, if so. A certificate that outlasts a new one was
/// created under an earlier configuration.
fn due(now: Timestamp, until: Timestamp, duration: Duration, renew_before: Duration) -> Option<RenewalCause> {
    if earlier(until, renew_before) <= now {
        Some(RenewalCause::Due)
    } else if until > later(now, duration + ROUNDING) {
        Some(RenewalCause::TooLong)
    } else {
        None
    }
}

/// Returns `at + by`; the maximum timestamp if that overflows, which only a forged certificate causes.
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
