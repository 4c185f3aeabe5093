//! Detects stale Leases of other holders.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// Detects stale Leases by observation.
///
/// A Lease is stale if its state has not changed for `after` since this process first observed that state. `Stamp` is a
/// value that changes with each renewal, such as the renew time.
///
/// # Caveats
/// Without observation there is no basis for a decision: when the watch breaks, call [`blind`](Self::blind), and call
/// [`restart`](Self::restart) when it recovers. Otherwise all Leases that were renewed unobserved count as stale. If a
/// connection dies without being closed, the watch does not report that it is broken: call [`confirm`](Self::confirm)
/// before acting on a stale Lease.
#[derive(Clone, Debug)]
pub struct Staleness<Stamp> {
    after: Duration,
    seen: HashMap<Arc<str>, LastChange<Stamp>>,
    /// All Leases of `seen`, in the order in which they become stale.
    order: BTreeSet<(Instant, Arc<str>)>,
    blind: bool,
    /// Time since which all Leases have been observed without a gap.
    complete_since: Option<Instant>,
    /// Deletion times of Leases, kept for `after`: within this time, a live holder creates its Lease again.
    deleted: HashMap<Arc<str>, Instant>,
}

#[derive(Clone, Debug)]
struct LastChange<Stamp> {
    stamp: Stamp,
    since: Instant,
}

impl<Stamp: PartialEq> Staleness<Stamp> {
    /// Creates an instance that treats a Lease as stale if it has not changed for `after`.
    pub fn new(after: Duration) -> Self {
        Self {
            after,
            seen: HashMap::new(),
            order: BTreeSet::new(),
            blind: false,
            complete_since: None,
            deleted: HashMap::new(),
        }
    }

    /// Records an observation of a Lease. Returns whether the Lease has changed: an equal stamp is no change.
    pub fn observe(&mut self, name: &str, stamp: Stamp, now: Instant) -> bool {
        if self.seen.get(name).is_some_and(|seen| seen.stamp == stamp) {
            return false;
        }
        self.remove(name);
        let name: Arc<str> = name.into();
        self.deleted.remove(&name);
        self.order.insert((now, name.clone()));
        self.seen.insert(name, LastChange { stamp, since: now });
        true
    }

    /// Records the deletion of a Lease.
    pub fn forget(&mut self, name: &str, now: Instant) {
        self.remove(name);
        let after = self.after;
        self.deleted.retain(|_, since| now < *since + after);
        self.deleted.insert(name.into(), now);
    }

    fn remove(&mut self, name: &str) {
        if let Some((name, seen)) = self.seen.remove_entry(name) {
            self.order.remove(&(seen.since, name));
        }
    }

    /// Records that observation is lost: no Lease is stale until it is restored.
    pub fn blind(&mut self) {
        self.blind = true;
        self.complete_since = None;
    }

    /// Records that observation is restored at `now`: the full time starts again for every Lease.
    pub fn restart(&mut self, now: Instant) {
        self.blind = false;
        self.complete_since = Some(now);
        self.order = self.seen.keys().map(|name| (now, name.clone())).collect();
        for seen in self.seen.values_mut() {
            seen.since = now;
        }
    }

    /// Returns whether this Lease is stale; a Lease that was never observed is not.
    pub fn is_stale(&self, name: &str, now: Instant) -> bool {
        !self.blind && self.seen.get(name).is_some_and(|seen| now >= seen.since + self.after)
    }

    /// Returns whether the Lease has been absent for long enough to count as missing.
    ///
    /// All Leases have then been observed for as long as a holder may leave its Lease unrenewed, so a live holder has
    /// had the time to create a deleted Lease again.
    pub fn is_absent(&self, name: &str, now: Instant) -> bool {
        let passed = |since: Instant| now >= since + self.after;
        self.complete_since.is_some_and(passed)
            && !self.seen.contains_key(name)
            && self.deleted.get(name).copied().is_none_or(passed)
    }

    /// Records a stamp that the API server has returned; `None` if the Lease does not exist.
    ///
    /// Returns whether the Lease is nevertheless stale or absent: the time of a renewal or deletion that the watch has
    /// not shown starts now.
    pub fn confirm(&mut self, name: &str, read: Option<Stamp>, now: Instant) -> bool {
        match read {
            Some(stamp) => _ = self.observe(name, stamp, now),
            None if self.seen.contains_key(name) => self.forget(name, now),
            None => {}
        }
        self.is_stale(name, now) || self.is_absent(name, now)
    }

    /// Returns the next time at which more Leases count as absent, if nothing changes until then.
    pub fn next_absence(&self, now: Instant) -> Option<Instant> {
        let complete = self.complete_since?;
        let due = self.deleted.values().map(|since| (*since).max(complete) + self.after);
        due.chain([complete + self.after]).filter(|due| *due > now).min()
    }

    /// Returns the stale Leases, starting with the longest stale one.
    pub fn stale(&self, now: Instant) -> impl Iterator<Item = &str> {
        let until = move |(since, _): &&(Instant, Arc<str>)| now >= *since + self.after;
        let judged = (!self.blind).then_some(&self.order);
        judged
            .into_iter()
            .flatten()
            .take_while(until)
            .map(|(_, name)| name.as_ref())
    }

    /// Returns the time at which the next Lease becomes stale, if nothing changes until then.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let judged = (!self.blind).then_some(&self.order);
        let mut due = judged.into_iter().flatten().map(|(since, _)| *since + self.after);
        due.find(|due| *due > now)
    }
}

#[cfg(test)]
mod tests {
    use super::Staleness;
    use proptest::prelude::*;
    use std::{collections::BTreeMap, time::Duration};
    use tokio::time::Instant;

    const AFTER: Duration = Duration::from_secs(40);

    fn names(staleness: &Staleness<u8>, now: Instant) -> Vec<String> {
        staleness.stale(now).map(str::to_owned).collect()
    }

    #[test]
    fn object_is_stale_if_unchanged_in_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut staleness = Staleness::new(AFTER);
        assert_eq!(staleness.next(at(0)), None);
        assert!(staleness.observe("n1", 1, at(0)));
        assert!(staleness.observe("n2", 1, at(5)));
        assert!(!staleness.observe("n1", 1, at(30)), "the same again is no renewal");
        assert_eq!(staleness.next(at(30)), Some(at(40)));
        assert_eq!(names(&staleness, at(39)), Vec::<String>::new());
        assert_eq!(names(&staleness, at(40)), ["n1"]);
        assert_eq!(staleness.next(at(40)), Some(at(45)));
        assert!(staleness.observe("n1", 2, at(41)));
        assert_eq!(names(&staleness, at(45)), ["n2"]);
        staleness.forget("n2", at(45));
        assert!(names(&staleness, at(80)).is_empty());
        assert!(staleness.is_stale("n1", at(81)) && !staleness.is_stale("n2", at(81)));
    }

    #[test]
    fn a_time_without_sight_does_not_count() {
        let start = Instant::now();
        let mut staleness = Staleness::new(AFTER);
        staleness.observe("n1", 1, start);
        let back = start + Duration::from_secs(3600);
        assert_eq!(names(&staleness, back), ["n1"]);
        staleness.blind();
        assert!(names(&staleness, back).is_empty() && !staleness.is_stale("n1", back));
        // Before the end of the new list, the watch has reported only some of the Leases again.
        staleness.observe("n2", 1, back);
        assert_eq!(staleness.next(back), None);
        staleness.restart(back);
        assert!(names(&staleness, back).is_empty());
        assert_eq!(staleness.next(back), Some(back + AFTER));
    }

    #[test]
    fn a_lease_is_absent_only_after_a_whole_time_of_sight() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut staleness = Staleness::new(AFTER);
        staleness.observe("n1", 1, at(0));
        assert!(!staleness.is_absent("n2", at(1000)), "nothing was listed yet");
        staleness.restart(at(1000));
        assert!(!staleness.is_absent("n2", at(1039)) && staleness.is_absent("n2", at(1040)));
        assert!(
            !staleness.is_absent("n1", at(1040)),
            "it is stale, which is not the same"
        );
        assert_eq!(staleness.next_absence(at(1000)), Some(at(1040)));
        staleness.forget("n1", at(1050));
        assert_eq!(staleness.next_absence(at(1050)), Some(at(1090)));
        assert!(!staleness.is_absent("n1", at(1089)), "its holder may make it again");
        assert!(staleness.is_absent("n1", at(1090)));
        staleness.blind();
        assert!(!staleness.is_absent("n2", at(1090)));
        assert_eq!(staleness.next_absence(at(1090)), None);
        staleness.restart(at(1100));
        assert_eq!(staleness.next_absence(at(1100)), Some(at(1140)));
    }

    #[test]
    fn stale_or_absent_lease_is_confirmed_by_an_equal_read() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        // The stamp that the watch has shown, the stamp that the API server returns at 40 s, and whether the holder is
        // unresponsive.
        for (shown, read, unresponsive) in [
            (Some(1), Some(1), true),
            (Some(1), Some(2), false),
            (Some(1), None, false),
            (None, None, true),
            (None, Some(1), false),
        ] {
            let mut staleness = Staleness::new(AFTER);
            staleness.restart(at(0));
            if let Some(stamp) = shown {
                staleness.observe("n1", stamp, at(0));
            }
            assert_eq!(
                staleness.confirm("n1", read, at(40)),
                unresponsive,
                "{shown:?} {read:?}"
            );
            // Without another change, the holder counts as unresponsive only once the whole time has passed again.
            assert_eq!(
                staleness.confirm("n1", read, at(79)),
                unresponsive,
                "{shown:?} {read:?}"
            );
            assert!(staleness.confirm("n1", read, at(80)), "{shown:?} {read:?}");
        }
        // While the watch is broken, or if it was broken in the meantime, an equal stamp proves nothing.
        let mut staleness = Staleness::new(AFTER);
        staleness.observe("n1", 1, at(0));
        staleness.blind();
        assert!(!staleness.confirm("n1", Some(1), at(40)));
        staleness.restart(at(41));
        assert!(!staleness.confirm("n1", Some(1), at(42)));
    }

    proptest! {
        /// Compares with a model that checks every Lease each time.
        #[test]
        fn staleness_agrees_with_per_entry_check(steps in prop::collection::vec((0u8..5, 0u8..3, 0u64..30, 0u8..20), 1..100)) {
            let mut now = Instant::now();
            let mut staleness = Staleness::new(AFTER);
            let mut model: BTreeMap<String, (u8, Instant)> = BTreeMap::new();
            let mut blind = false;
            for (name, stamp, wait, action) in steps {
                now += Duration::from_secs(wait);
                let name = format!("n{name}");
                match action {
                    0 => {
                        staleness.forget(&name, now);
                        model.remove(&name);
                    }
                    1 => {
                        staleness.blind();
                        blind = true;
                    }
                    2 | 3 => {
                        blind = false;
                        staleness.restart(now);
                        model.values_mut().for_each(|seen| seen.1 = now);
                    }
                    _ => {
                        let known = model.get(&name).is_some_and(|seen| seen.0 == stamp);
                        prop_assert_eq!(staleness.observe(&name, stamp, now), !known);
                        if !known {
                            model.insert(name, (stamp, now));
                        }
                    }
                }
                let mut stale = names(&staleness, now);
                stale.sort();
                let due = |seen: &(u8, Instant)| seen.1 + AFTER;
                let late = model.iter().filter(|(_, seen)| !blind && now >= due(seen));
                let expected: Vec<_> = late.map(|(name, _)| name.clone()).collect();
                prop_assert_eq!(stale, expected);
                let next = model.values().map(due).filter(|due| !blind && *due > now).min();
                prop_assert_eq!(staleness.next(now), next);
            }
        }
    }
}
