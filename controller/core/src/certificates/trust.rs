//! What API servers trust, as far as this process has seen it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::{Authority, Id, Lifetimes, Serving, later};

/// One bundle that API servers read: of one webhook of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The authorities of ours in it.
    pub authorities: Vec<Authority>,
    /// It holds something else too.
    pub foul: bool,
}

/// What API servers trust.
///
/// It remembers since when it has seen each authority in all places. A process that has just begun
/// has seen it since it began, which is later than true: nobody is ever ahead of the API servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    places: Option<Vec<Place>>,
    since: BTreeMap<Id, Timestamp>,
}

impl Trust {
    /// Takes note of what all places hold; `None`: not known.
    pub fn observe(&mut self, now: Timestamp, places: Option<Vec<Place>>) {
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

    /// Whether it is known.
    pub fn is_known(&self) -> bool {
        self.places.is_some()
    }

    /// Since when an authority is in all places. If there is none, nobody asks, and anything will do.
    pub fn since(&self, id: &Id) -> Option<Timestamp> {
        match &self.places {
            Some(places) if places.is_empty() => Some(Timestamp::MIN),
            _ => self.since.get(id).copied(),
        }
    }

    /// Whether an authority is in all places.
    pub fn covers(&self, id: &Id) -> bool {
        self.since(id).is_some()
    }

    /// All authorities of ours that are anywhere; some more than once.
    pub fn authorities(&self) -> impl Iterator<Item = &Authority> {
        self.places.iter().flatten().flat_map(|place| &place.authorities)
    }

    /// Whether all places hold these and nothing else.
    pub(super) fn is_exactly(&self, bundle: &BTreeSet<&Id>) -> bool {
        self.places.iter().flatten().all(|place| {
            let here: BTreeSet<&Id> = place.authorities.iter().map(|authority| &authority.id).collect();
            !place.foul && here == *bundle
        })
    }
}

/// From when on a certificate of `authority` may be served instead of `current`: once API servers
/// have certainly heard of the authority, or have had half of the time that `current` leaves if that
/// is less. `None` while it is not in all places.
pub(super) fn settled(current: &Serving, authority: &Id, trust: &Trust, lifetimes: &Lifetimes) -> Option<Timestamp> {
    let since = trust.since(authority)?;
    let left = Duration::try_from(current.until.duration_since(since)).unwrap_or_default();
    Some(later(since, lifetimes.settle.min(left / 2)))
}
