//! Steps that the API server has refused, and when they are retried.
//!
//! A quota, a webhook or a policy of the cluster can refuse a step of a drain or a migration's target pod, and
//! nothing that Drydock watches shows when it no longer does. So the step is retried after [`FIRST`], then after
//! twice the last delay, up to [`LONGEST`]. In between it is not retried, even if something else changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_core::drain::Refused;
use drydock_runtime::{Backoff, Key};
use jiff::Timestamp;
use kube::core::Status;

/// First retry delay after a refusal.
const FIRST: Duration = Duration::from_secs(1);
/// Longest retry delay: how long a drain or a migration may stand still after its obstacle is gone.
const LONGEST: Duration = Duration::from_secs(30);

/// The objects with a refused step: guests of drains, or migrations.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeMap<Key, Kept>>);

#[derive(Debug)]
struct Kept {
    backoff: Backoff,
    refused: Refused,
}

impl Refusals {
    /// Returns the last refusal for this guest.
    pub(crate) fn of(&self, guest: &Key) -> Option<Refused> {
        self.kept().get(guest).map(|kept| kept.refused.clone())
    }

    /// Records the refusal of a step.
    pub(crate) fn note(&self, guest: &Key, status: &Status, now: Timestamp) {
        let mut kept = self.kept();
        let kept = kept.entry(guest.clone()).or_insert_with(|| Kept {
            backoff: Backoff::new(FIRST, LONGEST),
            refused: Refused {
                message: String::new(),
                again_at: now,
            },
        });
        kept.refused = Refused {
            message: status.message.clone(),
            again_at: now.checked_add(kept.backoff.delay()).unwrap_or(Timestamp::MAX),
        };
    }

    /// Forgets the refusal after a step succeeded.
    pub(crate) fn forget(&self, guest: &Key) {
        self.kept().remove(guest);
    }

    /// Forgets all refusals except those for these guests, given by namespace and name.
    pub(crate) fn keep_only(&self, guests: &BTreeSet<(String, String)>) {
        let is_one = |key: &Key| {
            let namespace = key.namespace.as_deref().unwrap_or_default();
            guests.contains(&(namespace.to_owned(), key.name.to_string()))
        };
        self.kept().retain(|key, _| is_one(key));
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<Key, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal_status(code: u16, reason: &str) -> Status {
        Status::failure("exceeded quota", reason).with_code(code)
    }

    #[test]
    fn step_backs_off_until_it_succeeds_or_is_unwanted() {
        let (refusals, now) = (Refusals::default(), Timestamp::UNIX_EPOCH);
        let (web, db) = (Key::namespaced("shop", "web"), Key::namespaced("shop", "db"));
        let mut waits = Vec::new();
        for _ in 0..10 {
            refusals.note(&web, &refusal_status(403, "Forbidden"), now);
            let refused = refusals.of(&web).unwrap();
            assert_eq!(refused.message, "exceeded quota");
            waits.push(refused.again_at.duration_since(now).unsigned_abs());
        }
        assert!(
            waits[0] <= FIRST && waits[9] > LONGEST / 3 && waits[9] <= LONGEST,
            "{waits:?}"
        );
        refusals.note(&db, &refusal_status(403, "Forbidden"), now);
        refusals.keep_only(&BTreeSet::from([("shop".into(), "web".into())]));
        assert!(refusals.of(&web).is_some() && refusals.of(&db).is_none());
        refusals.forget(&web);
        assert_eq!(refusals.of(&web), None);
    }
}
