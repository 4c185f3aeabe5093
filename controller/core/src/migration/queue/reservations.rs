//! What this process has granted, whatever its caches show.
//!
//! The objects that are seen are a moment behind those that were written, so a limit that is
//! checked against them alone is exceeded as soon as two migrations follow each other quickly.
//! A grant therefore stands from the moment it is given until the migration has finished, or
//! until it is certain that it was not carried out. It does not end when the objects show it:
//! a watch that starts again may for a moment show an older state than before.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Entry, Grants, Stage, Urgency, grants};
use crate::configuration::Migrations;

/// What a migration has been granted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Granted {
    source: String,
    /// Node that a slot was granted for; `None`: only its target pod may be made.
    target: Option<String>,
}

/// What this process has granted to migrations that have not finished.
///
/// # Assumptions
/// There is one at a time: that of the leading controller. Whoever takes over makes it anew by
/// [`Self::rebuilt`] from a list that the API server served for this, not from a cache, after its
/// predecessor has stopped writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    granted: BTreeMap<String, Granted>,
}

impl Reservations {
    /// What the objects say has been granted.
    pub fn rebuilt(entries: &[Entry]) -> Self {
        let mut reservations = Self::default();
        reservations.learn(entries);
        reservations
    }

    /// Who may go next, reserved for them in the same step.
    ///
    /// `entries` are all unfinished migrations as they are seen, in any order. A migration that is
    /// no longer among them keeps what it has until [`Self::finished`]: absence proves nothing.
    pub fn grant(&mut self, limits: &Migrations, entries: &[Entry], now: Timestamp) -> Grants {
        self.learn(entries);
        let known = self.with_what_was_granted(entries);
        let grants = grants(limits, &known, now);
        for entry in &known {
            let target = match &entry.stage {
                Stage::Placed { target, .. } if grants.slots.contains(&entry.uid) => target,
                Stage::Waiting if grants.place.contains(&entry.uid) => {
                    self.reserve(&entry.uid, &entry.source, None);
                    continue;
                }
                _ => continue,
            };
            self.reserve(&entry.uid, &entry.source, Some(target));
        }
        grants
    }

    /// Reserves a slot on `source` and `target`; without `target` a place for its target pod.
    /// A slot once reserved stays on its nodes.
    pub fn reserve(&mut self, uid: &str, source: &str, target: Option<&str>) {
        let granted = self.granted.entry(uid.into()).or_insert_with(|| Granted {
            source: source.into(),
            target: None,
        });
        if granted.target.is_none() {
            granted.target = target.map(Into::into);
        }
    }

    /// The migration has reached a final phase, or the API server said that it does not exist. Returns
    /// whether it had been granted anything.
    pub fn finished(&mut self, uid: &str) -> bool {
        self.granted.remove(uid).is_some()
    }

    /// What was last granted to it was certainly not carried out: the API server refused it.
    /// A request without an answer is none of that.
    pub fn withdraw(&mut self, uid: &str) {
        let slot = self.granted.get_mut(uid).and_then(|granted| granted.target.take());
        if slot.is_none() {
            self.granted.remove(uid);
        }
    }

    /// UIDs of those that have a slot, and the nodes that it is on, source first.
    pub fn slots(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.granted.iter().filter_map(|(uid, granted)| {
            let target = granted.target.as_deref()?;
            Some((uid.as_str(), granted.source.as_str(), target))
        })
    }

    /// Whether it may make its target pod, or has a slot already.
    pub fn may_place(&self, uid: &str) -> bool {
        self.granted.contains_key(uid)
    }

    /// Whether it has a slot.
    pub fn has_slot(&self, uid: &str) -> bool {
        self.granted.get(uid).is_some_and(|granted| granted.target.is_some())
    }

    /// UIDs of all that have been granted anything.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        self.granted.keys().map(String::as_str)
    }

    /// Takes over what the objects show and this process has not granted itself.
    fn learn(&mut self, entries: &[Entry]) {
        for entry in entries {
            match &entry.stage {
                Stage::Waiting | Stage::Refused => {}
                Stage::Placing { .. } | Stage::Placed { .. } => self.reserve(&entry.uid, &entry.source, None),
                Stage::Holding { target } => self.reserve(&entry.uid, &entry.source, Some(target)),
            }
        }
    }

    /// The entries as far as they are by what was granted, and those that are not seen.
    fn with_what_was_granted(&self, entries: &[Entry]) -> Vec<Entry> {
        let mut known: Vec<Entry> = entries.to_vec();
        for entry in &mut known {
            let Some(granted) = self.granted.get(&entry.uid) else {
                continue;
            };
            if let Some(target) = &granted.target {
                entry.source.clone_from(&granted.source);
                entry.stage = Stage::Holding { target: target.clone() };
            } else if entry.stage == Stage::Waiting {
                entry.stage = Stage::Placing { held_up: false };
            }
        }
        let seen: std::collections::BTreeSet<&str> = entries.iter().map(|entry| entry.uid.as_str()).collect();
        let unseen = self.granted.iter().filter(|(uid, _)| !seen.contains(uid.as_str()));
        known.extend(unseen.map(|(uid, granted)| Entry {
            uid: uid.clone(),
            name: String::new(),
            urgency: Urgency::None,
            created: Timestamp::MAX,
            order: 0,
            source: granted.source.clone(),
            stage: match &granted.target {
                Some(target) => Stage::Holding { target: target.clone() },
                None => Stage::Placing { held_up: false },
            },
        }));
        known
    }
}
