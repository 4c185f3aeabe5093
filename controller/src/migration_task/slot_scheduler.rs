//! Decides which migration is next: the queue of [`drydock_core::migration::queue`], on the leading controller.

use std::{collections::BTreeMap, sync::Arc};

use drydock_core::{
    configuration::MigrationSettings,
    migration::queue::{QueuedMigration, Reservations, Wait},
};
use jiff::Timestamp;
use parking_lot::Mutex;

/// Granted places (permissions to have a target pod) and slots, and the waiting migrations. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotScheduler(Arc<Mutex<SchedulerState>>);

/// Numbers of slots that migrations use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UsedSlots {
    pub(super) cluster: u32,
    /// Used slots by the node that a guest leaves.
    pub(super) sources: BTreeMap<String, u32>,
    /// Used slots by the node at which a guest arrives.
    pub(super) targets: BTreeMap<String, u32>,
}

/// Grants of the queue to one migration, and the reason why it waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotState {
    /// Whether the migration may have a target pod.
    pub(super) may_place: bool,
    pub(super) has_slot: bool,
    /// Reason why the migration waits.
    pub(super) wait: Option<Wait>,
}

#[derive(Debug, Default)]
struct SchedulerState {
    reservations: Reservations,
    waiting: BTreeMap<String, Wait>,
    /// Unfinished migrations by UID, as of their last reconcile. Every change of a migration leads to a reconcile.
    known: BTreeMap<String, QueuedMigration>,
}

impl SlotScheduler {
    /// Starts over with the state that the objects record, and grants places and slots like [`Self::grant`]. Migrations
    /// that waited under the previous leader have not changed when they are reconciled, so their reconcile would not
    /// trigger grants.
    pub(super) fn begin(
        &self,
        entries: Vec<QueuedMigration>,
        limits: &MigrationSettings,
        now: Timestamp,
    ) -> Vec<String> {
        let mut state = self.0.lock();
        state.reservations = Reservations::rebuilt(&entries);
        state.waiting.clear();
        state.known = entries.into_iter().map(|entry| (entry.uid.clone(), entry)).collect();
        drop(state);
        self.grant(limits, now)
    }

    /// Records the state of a migration that is being reconciled; `None` if it is not in the queue. Returns whether the
    /// state has changed, so that another migration may be next.
    pub(super) fn observe(&self, uid: &str, entry: Option<QueuedMigration>) -> bool {
        let mut state = self.0.lock();
        if state.known.get(uid) == entry.as_ref() {
            return false;
        }
        match entry {
            Some(entry) => state.known.insert(uid.to_owned(), entry),
            None => state.known.remove(uid),
        };
        true
    }

    /// Grants places and slots. Returns the names of the migrations to reconcile, which have got a place or slot, or
    /// wait for another reason.
    pub(super) fn grant(&self, limits: &MigrationSettings, now: Timestamp) -> Vec<String> {
        let mut state = self.0.lock();
        let entries: Vec<QueuedMigration> = state.known.values().cloned().collect();
        let grants = state.reservations.grant(limits, &entries, now);
        let waiting: BTreeMap<String, Wait> = grants.waiting.into_iter().collect();
        let changed = waiting
            .iter()
            .filter(|(uid, wait)| state.waiting.get(*uid).map(|before| before.reason) != Some(wait.reason))
            .map(|(uid, _)| uid);
        let woken = grants.place.iter().chain(&grants.slots).chain(changed);
        let woken = woken
            .filter_map(|uid| state.known.get(uid).map(|entry| entry.name.clone()))
            .collect();
        // A different position in the queue alone is not a change. The reported wait stays until its reason changes.
        let before = std::mem::take(&mut state.waiting);
        state.waiting = waiting
            .into_iter()
            .map(|(uid, wait)| {
                let same = before.get(&uid).filter(|before| before.reason == wait.reason).copied();
                let wait = same.unwrap_or(wait);
                (uid, wait)
            })
            .collect();
        woken
    }

    /// Returns the grants of a migration and the reason why it waits.
    pub(super) fn state_of(&self, uid: &str) -> SlotState {
        let state = self.0.lock();
        SlotState {
            may_place: state.reservations.may_place(uid),
            has_slot: state.reservations.has_slot(uid),
            wait: state.waiting.get(uid).copied(),
        }
    }

    /// Removes a migration that has ended. Returns whether anything has changed.
    pub(super) fn finished(&self, uid: &str) -> bool {
        let mut state = self.0.lock();
        state.waiting.remove(uid);
        let was_known = state.known.remove(uid).is_some();
        state.reservations.finished(uid) || was_known
    }

    /// Returns the nodes at which the maximum number of guests is arriving.
    pub(super) fn full_targets(&self, limits: &MigrationSettings) -> Vec<String> {
        let full = self.used().targets.into_iter();
        full.filter(|(_, count)| *count >= limits.inbound_per_node)
            .map(|(node, _)| node)
            .collect()
    }

    /// Returns the numbers of used slots.
    pub(super) fn used(&self) -> UsedSlots {
        let mut used = UsedSlots::default();
        for (_, source, target) in self.0.lock().reservations.slots() {
            used.cluster += 1;
            *used.sources.entry(source.to_owned()).or_default() += 1;
            *used.targets.entry(target.to_owned()).or_default() += 1;
        }
        used
    }

    /// Removes the migration with this name, which no longer exists according to the watch.
    pub(super) fn missing(&self, name: &str) {
        let mut state = self.0.lock();
        let gone: Vec<String> = state
            .known
            .iter()
            .filter(|(_, known)| known.name == name)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            state.reservations.finished(&uid);
            state.waiting.remove(&uid);
            state.known.remove(&uid);
        }
    }

    /// Withdraws the grants of a migration, because the API server has refused its target pod.
    pub(super) fn withdraw(&self, uid: &str) {
        self.0.lock().reservations.withdraw(uid);
    }
}

#[cfg(test)]
mod tests {
    use drydock_core::migration::queue::{QueueStage, Urgency};

    use super::*;

    fn waiting(name: &str) -> QueuedMigration {
        QueuedMigration {
            uid: format!("uid-{name}"),
            name: format!("default/{name}"),
            urgency: Urgency::default(),
            created: Timestamp::UNIX_EPOCH,
            order: 0,
            source: "a".into(),
            stage: QueueStage::Waiting,
        }
    }

    #[test]
    fn migration_waiting_under_an_earlier_leader_gets_a_turn() {
        let turns = SlotScheduler::default();
        let entries = vec![waiting("one"), waiting("two")];
        let limits = drydock_core::configuration::Configuration::default().migrations;
        let evaluated = turns.begin(entries.clone(), &limits, Timestamp::UNIX_EPOCH);
        assert_eq!(evaluated, ["default/one", "default/two"]);
        for entry in entries {
            assert!(turns.state_of(&entry.uid).may_place, "{}", entry.name);
            let uid = entry.uid.clone();
            assert!(!turns.observe(&uid, Some(entry)));
        }
    }
}
