//! The authorities that API servers trust, as observed by this process.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{Authority, Id, Lifetimes, Serving, later};

/// The CA bundle of one webhook in a webhook configuration, as API servers read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedBundle {
    /// Drydock's authorities in the bundle.
    pub authorities: Vec<Authority>,
    /// Whether the bundle contains anything else.
    pub has_foreign: bool,
}

/// The authorities that API servers trust.
///
/// Records since when each authority has been observed in the bundles of all webhooks. After a restart, that time is
/// the start of the process or later, so it is never earlier than the true time: no replica serves a certificate before
/// API servers trust it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedTrust {
    places: Option<Vec<PublishedBundle>>,
    since: BTreeMap<Id, Timestamp>,
}

impl PublishedTrust {
    /// Records the bundles of all webhooks; `None` if they are not known.
    pub fn observe(&mut self, now: Timestamp, places: Option<Vec<PublishedBundle>>) {
        let mut everywhere: Option<BTreeSet<Id>> = None;
        for place in places.iter().flatten() {
            let here: BTreeSet<Id> = place.authorities.iter().map(|authority| authority.id.clone()).collect();
            everywhere = Some(match everywhere {
                None => here,
                Some(before) => &before & &here,
            });
        }
        let everywhere = everywhere.unwrap_or_default();
        self.since.retain(|id, _| everywhere.contains(id));
        for id in everywhere {
            self.since.entry(id).or_insert(now);
        }
        self.places = places;
    }

    /// Returns whether the bundles of the webhooks are known.
    pub fn is_known(&self) -> bool {
        self.places.is_some()
    }

    /// Returns since when an authority has been in all bundles. Without any bundle, no API server connects, and the
    /// minimum timestamp is returned.
    pub fn since(&self, id: &Id) -> Option<Timestamp> {
        match &self.places {
            Some(places) if places.is_empty() => Some(Timestamp::MIN),
            _ => self.since.get(id).copied(),
        }
    }

    /// Returns whether an authority is in all bundles.
    pub fn covers(&self, id: &Id) -> bool {
        self.since(id).is_some()
    }

    /// Yields Drydock's authorities in all bundles; an authority in several bundles is yielded more than once.
    pub fn authorities(&self) -> impl Iterator<Item = &Authority> {
        self.places.iter().flatten().flat_map(|place| &place.authorities)
    }

    /// Returns whether each bundle contains exactly these authorities and nothing else.
    pub(super) fn is_exactly(&self, bundle: &BTreeSet<&Id>) -> bool {
        self.places.iter().flatten().all(|place| {
            let here: BTreeSet<&Id> = place.authorities.iter().map(|authority| &authority.id).collect();
            !place.has_foreign && here == *bundle
        })
    }
}

/// Returns when a certificate of `authority` may be served instead of `current`: once all API servers have certainly
/// seen the authority, or after half of `current`'s remaining lifetime if that is shorter. `None` while the authority
/// is not in all bundles.
pub(super) fn settled(
    current: &Serving,
    authority: &Id,
    trust: &PublishedTrust,
    lifetimes: &Lifetimes,
) -> Option<Timestamp> {
    let since = trust.since(authority)?;
    let left = Duration::try_from(current.until.duration_since(since)).unwrap_or_default();
    Some(later(since, lifetimes.settle.min(left / 2)))
}
