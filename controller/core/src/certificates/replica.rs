//! Choice of the certificate that a replica serves.

use jiff::Timestamp;

use super::{Lifetimes, PublishedTrust, Serving, published_trust::settled};

/// A replica's decision about the certificate that the Secret offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaChoice {
    /// Whether the replica serves the offered certificate from now on.
    pub take: bool,
    /// When to choose again, even if nothing changes.
    pub wake: Option<Timestamp>,
}

/// Decides whether a replica takes the certificate that the Secret offers.
///
/// Usually the replica takes the certificate immediately, since the leader offers only certificates that API servers
/// trust. But a Secret may have been lost, restored, or recreated by a leader without a better certificate; then a
/// replica keeps serving the trusted certificate until the offered one is trusted too.
pub fn choose(
    now: Timestamp,
    current: Option<&Serving>,
    offered: Option<&Serving>,
    trust: &PublishedTrust,
    lifetimes: &Lifetimes,
) -> ReplicaChoice {
    let keep = |wake: Option<Timestamp>| ReplicaChoice {
        take: false,
        wake: wake.filter(|wake| *wake > now),
    };
    let Some(offered) = offered.filter(|offered| offered.is_valid(now)) else {
        // The choice is repeated once the offered certificate becomes valid.
        return keep(offered.map(|offered| offered.from));
    };
    let take = ReplicaChoice { take: true, wake: None };
    let Some(current) = current.filter(|current| current.is_valid(now)) else {
        return take;
    };
    if current.id == offered.id {
        return keep(None);
    }
    if current.authority == offered.authority {
        return take;
    }
    match settled(current, &offered.authority, trust, lifetimes) {
        // No API server trusts the current certificate; some may trust the new one already.
        Some(_) if !trust.covers(&current.authority) => take,
        Some(at) if at <= now => take,
        Some(at) => keep(Some(at.min(current.until))),
        None => keep(Some(current.until)),
    }
}
