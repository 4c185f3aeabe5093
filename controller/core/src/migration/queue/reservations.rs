//! Grants made by this process, independent of its caches.
//!
//! The cached objects lag slightly behind the written ones. A limit that is checked against the cache alone is exceeded
//! as soon as two migrations follow each other quickly. A grant therefore stays in force until the migration has
//! finished, or until it is certain that the grant was not carried out. The grant does not end when the objects show
//! it: a watch that restarts may briefly show an older state than before.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Grants, QueueStage, QueuedMigration, Urgency, grants};
use crate::configuration::MigrationSettings;

/// Grants of one migration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Granted {
    source: String,
    /// Node for which a slot was granted; `None`: only the target pod may be created.
    target: Option<String>,
}

/// Grants to migrations that have not finished.
///
/// # Assumptions
/// Only one instance is active at a time: that of the leading controller. A new leader creates it with
/// [`Self::rebuilt`] from a list that the API server served for this purpose, not from a cache, after its predecessor
/// has stopped writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    granted: BTreeMap<String, Granted>,
}

impl Reservations {
    /// Restores the grants that the objects show.
    pub fn rebuilt(entries: &[QueuedMigration]) -> Self {
        let mut reservations = Self::default();
        reservations.learn(entries);
        reservations
    }

    /// Returns which migrations may proceed next, and reserves for them in the same step.
    ///
    /// `entries` are all unfinished migrations in the cache, in any order. A migration that is no longer among them
    /// keeps its grants until [`Self::finished`]: absence proves nothing.
    pub fn grant(&mut self, limits: &MigrationSettings, entries: &[QueuedMigration], now: Timestamp) -> Grants {
        self.learn(entries);
        let known = self.with_what_was_granted(entries);
        let grants = grants(limits, &known, now);
        for entry in &known {
            let target = match &entry.stage {
                QueueStage::Placed { target, .. } if grants.slots.contains(&entry.uid) => target,
                QueueStage::Waiting if grants.place.contains(&entry.uid) => {
                    self.reserve(&entry.uid, &entry.source, None);
                    continue;
                }
                _ => continue,
            };
            self.reserve(&entry.uid, &entry.source, Some(target));
        }
        grants
    }

    /// Reserves a slot on `source` and `target`; without `target`, placement budget for its target pod. A reserved slot
    /// never changes its nodes.
    pub fn reserve(&mut self, uid: &str, source: &str, target: Option<&str>) {
        let granted = self.granted.entry(uid.into()).or_insert_with(|| Granted {
            source: source.into(),
            target: None,
        });
        if granted.target.is_none() {
            granted.target = target.map(Into::into);
        }
    }

    /// Releases the grants of a migration that has reached a final phase, or that the API server confirmed as missing.
    /// Returns whether the migration had any grants.
    pub fn finished(&mut self, uid: &str) -> bool {
        self.granted.remove(uid).is_some()
    }

    /// Withdraws a migration's latest grant, which was certainly not carried out because the API server refused it. A
    /// request without a response does not qualify.
    pub fn withdraw(&mut self, uid: &str) {
        let slot = self.granted.get_mut(uid).and_then(|granted| granted.target.take());
        if slot.is_none() {
            self.granted.remove(uid);
        }
    }

    /// Returns the UIDs of migrations with a slot, and the slot's source and target node.
    pub fn slots(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.granted.iter().filter_map(|(uid, granted)| {
            let target = granted.target.as_deref()?;
            Some((uid.as_str(), granted.source.as_str(), target))
        })
    }

    /// Returns whether a migration may create its target pod, or already has a slot.
    pub fn may_place(&self, uid: &str) -> bool {
        self.granted.contains_key(uid)
    }

    /// Returns whether a migration has a slot.
    pub fn has_slot(&self, uid: &str) -> bool {
        self.granted.get(uid).is_some_and(|granted| granted.target.is_some())
    }

    /// Returns the UIDs of all migrations with grants.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.granted.keys().map(String::as_str)
    }

    /// Adopts grants that the objects show and this process has not made itself.
    fn learn(&mut self, entries: &[QueuedMigration]) {
        for entry in entries {
            match &entry.stage {
                QueueStage::Waiting | QueueStage::Refused => {}
                QueueStage::Placing { .. } | QueueStage::Placed { .. } => self.reserve(&entry.uid, &entry.source, None),
                QueueStage::Holding { target } => self.reserve(&entry.uid, &entry.source, Some(target)),
            }
        }
    }

    /// Returns `entries` updated with grants that the watch has not shown yet, plus granted migrations missing from the
    /// cache.
    fn with_what_was_granted(&self, entries: &[QueuedMigration]) -> Vec<QueuedMigration> {
        let mut known: Vec<QueuedMigration> = entries.to_vec();
        for entry in &mut known {
            let Some(granted) = self.granted.get(&entry.uid) else {
                continue;
            };
            if let Some(target) = &granted.target {
                entry.source.clone_from(&granted.source);
                entry.stage = QueueStage::Holding { target: target.clone() };
            } else if entry.stage == QueueStage::Waiting {
                entry.stage = QueueStage::Placing { held_up: false };
            }
        }
        let seen: std::collections::BTreeSet<&str> = entries.iter().map(|entry| entry.uid.as_str()).collect();
        let unseen = self.granted.iter().filter(|(uid, _)| !seen.contains(uid.as_str()));
        known.extend(unseen.map(|(uid, granted)| QueuedMigration {
            uid: uid.clone(),
            name: String::new(),
            urgency: Urgency::None,
            created: Timestamp::MAX,
            order: 0,
            source: granted.source.clone(),
            stage: match &granted.target {
                Some(target) => QueueStage::Holding { target: target.clone() },
                None => QueueStage::Placing { held_up: false },
            },
        }));
        known
    }
}
