//! Steps that the API server has refused, and when they are retried.
//!
//! A quota, a webhook or a policy of the cluster can refuse a step. The step is retried after [`FIRST`], then after
//! twice the last delay, up to [`LONGEST`]. It is not retried earlier, even if something else changes. When a rule of
//! the cluster changes that may have refused the step ([`core::refusal_end`](drydock_core::refusal_end)), the step is
//! retried, but not earlier than [`FIRST`] after the last attempt.
//!
//! [`RefusalTask`](crate::refusal_task) watches the rules while there are refusals.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drydock_core::{drain::DrainRefusal, refusal_end::Prospect};
use drydock_runtime::{Backoff, Key, Trigger};
use jiff::Timestamp;
use parking_lot::Mutex;

/// First retry delay after a refusal.
const FIRST: Duration = Duration::from_secs(1);
/// Longest retry delay. It limits the delay of a step after the end of an obstacle that no watch shows, such as a
/// webhook's own decision.
const LONGEST: Duration = Duration::from_secs(30);

/// A step that can be refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefusedStep {
    /// The mark or the migration of this guest by a drain.
    Drain(Key),
    /// The creation of the target pod of this migration.
    TargetPod(Key),
    /// The creation of the pod of this instance.
    Pod(Key),
    /// The creation of the PDB of this instance.
    Pdb(Key),
    /// The creation of the instance of this machine.
    Instance(Key),
    /// The creation of instances of this replica set.
    Replicas(Key),
}

impl RefusedStep {
    fn namespace(&self) -> Option<&str> {
        let (Self::Drain(key)
        | Self::TargetPod(key)
        | Self::Pod(key)
        | Self::Pdb(key)
        | Self::Instance(key)
        | Self::Replicas(key)) = self;
        key.namespace.as_deref()
    }
}

/// The refused steps. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepRefusals {
    kept: Arc<Mutex<BTreeMap<RefusedStep, RefusalEntry>>>,
    changed: Trigger,
}

#[derive(Debug)]
struct RefusalEntry {
    backoff: Backoff,
    refused: DrainRefusal,
    refused_at: Timestamp,
}

impl StepRefusals {
    /// Returns the last refusal of this step. If the clock has been set back since the refusal, the step is due now.
    pub(crate) fn of(&self, step: &RefusedStep, now: Timestamp) -> Option<DrainRefusal> {
        let kept = self.kept.lock();
        let kept = kept.get(step)?;
        let mut refused = kept.refused.clone();
        if now < kept.refused_at {
            refused.again_at = now;
        }
        Some(refused)
    }

    /// Records the refusal of a step.
    pub(crate) fn note(&self, step: RefusedStep, message: &str, now: Timestamp) {
        let mut kept = self.kept.lock();
        let is_first = kept.is_empty();
        let kept = kept.entry(step).or_insert_with(|| RefusalEntry {
            backoff: Backoff::new(FIRST, LONGEST),
            refused: DrainRefusal {
                message: String::new(),
                again_at: now,
            },
            refused_at: now,
        });
        kept.refused_at = now;
        kept.refused = DrainRefusal {
            message: message.into(),
            again_at: now.checked_add(kept.backoff.delay()).unwrap_or(Timestamp::MAX),
        };
        if is_first {
            self.changed.notify();
        }
    }

    /// Drops the refusal of a step that has succeeded or is no longer planned.
    pub(crate) fn forget(&self, step: &RefusedStep) {
        let mut kept = self.kept.lock();
        if kept.remove(step).is_some() && kept.is_empty() {
            self.changed.notify();
        }
    }

    /// Drops all refusals of drains except those for these guests, which are given by namespace and name.
    pub(crate) fn keep_drains(&self, guests: &BTreeSet<(String, String)>) {
        self.retain(|step| match step {
            RefusedStep::Drain(key) => {
                let namespace = key.namespace.as_deref().unwrap_or_default();
                guests.contains(&(namespace.to_owned(), key.name.to_string()))
            }
            _ => true,
        });
    }

    /// Drops all refusals, because another process leads.
    pub(crate) fn clear(&self) {
        self.retain(|_| false);
    }

    /// Returns whether no step is refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.lock().is_empty()
    }

    /// Waits until the first refusal is recorded or the last one is dropped. Only one task may wait.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Makes steps due after a change of a rule in a namespace, or in the whole cluster if `namespace` is `None`.
    /// Returns these steps.
    pub(crate) fn retry(&self, namespace: Option<&str>, prospect: Prospect, now: Timestamp) -> Vec<RefusedStep> {
        if prospect == Prospect::None {
            return Vec::new();
        }
        let mut kept = self.kept.lock();
        let concerned = kept
            .iter_mut()
            .filter(|(step, _)| namespace.is_none_or(|namespace| step.namespace() == Some(namespace)));
        concerned
            .map(|(step, kept)| {
                // The API server may apply a changed rule some time after the watch shows it, so the following retries
                // are frequent again.
                if prospect == Prospect::OtherRules {
                    kept.backoff.reset();
                }
                let soonest = kept.refused_at.checked_add(FIRST).unwrap_or(Timestamp::MAX);
                kept.refused.again_at = kept.refused.again_at.min(soonest.max(now));
                step.clone()
            })
            .collect()
    }

    fn retain(&self, keep: impl Fn(&RefusedStep) -> bool) {
        let mut kept = self.kept.lock();
        let was_empty = kept.is_empty();
        kept.retain(|step, _| keep(step));
        if kept.is_empty() && !was_empty {
            self.changed.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const MESSAGE: &str = "exceeded quota";

    fn drain_of(name: &str) -> RefusedStep {
        RefusedStep::Drain(Key::namespaced("shop", name))
    }

    #[test]
    fn refused_step_backs_off_until_success_or_unwanted() {
        let (refusals, now) = (StepRefusals::default(), Timestamp::UNIX_EPOCH);
        let (web, db) = (drain_of("web"), drain_of("db"));
        let mut waits = Vec::new();
        for _ in 0..10 {
            refusals.note(web.clone(), MESSAGE, now);
            let refused = refusals.of(&web, now).unwrap();
            assert_eq!(refused.message, MESSAGE);
            waits.push(refused.again_at.duration_since(now).unsigned_abs());
        }
        assert!(
            waits[0] <= FIRST && waits[9] > LONGEST / 3 && waits[9] <= LONGEST,
            "{waits:?}"
        );
        let migration = RefusedStep::TargetPod(Key::namespaced("shop", "db"));
        refusals.note(db.clone(), MESSAGE, now);
        refusals.note(migration.clone(), MESSAGE, now);
        refusals.keep_drains(&BTreeSet::from([("shop".into(), "web".into())]));
        assert!(
            refusals.of(&web, now).is_some()
                && refusals.of(&db, now).is_none()
                && refusals.of(&migration, now).is_some()
        );
        refusals.forget(&web);
        assert_eq!(refusals.of(&web, now), None);
    }

    #[test]
    fn step_is_due_after_the_clock_is_set_back() {
        let (refusals, now) = (StepRefusals::default(), Timestamp::UNIX_EPOCH);
        let hour = jiff::SignedDuration::from_hours(1);
        refusals.note(drain_of("web"), MESSAGE, now + hour);
        let again_at = |now| refusals.of(&drain_of("web"), now).unwrap().again_at;
        assert_eq!(again_at(now), now);
        assert!(again_at(now + hour) > now + hour);
    }

    #[test]
    fn first_and_last_refusal_wake_the_task() {
        let (refusals, now) = (StepRefusals::default(), Timestamp::UNIX_EPOCH);
        let wakes = || refusals.changed().now_or_never().is_some();
        refusals.forget(&drain_of("web"));
        assert!(!wakes());
        refusals.note(drain_of("web"), MESSAGE, now);
        assert!(wakes() && !refusals.is_empty());
        refusals.note(drain_of("db"), MESSAGE, now);
        refusals.forget(&drain_of("web"));
        assert!(!wakes());
        refusals.clear();
        assert!(wakes() && refusals.is_empty());
    }

    #[test]
    fn changed_rule_retries_steps_of_the_namespace() {
        let now = Timestamp::UNIX_EPOCH;
        let second = |seconds: i64| now + jiff::SignedDuration::from_secs(seconds);
        let pod = |namespace: &str| RefusedStep::Pod(Key::namespaced(namespace, "web"));
        let both = [pod("bank"), pod("shop")];
        for (what, namespace, prospect, at, steps, again_at) in [
            ("nothing better", Some("shop"), Prospect::None, 5, &[][..], None),
            (
                "another namespace",
                Some("bank"),
                Prospect::OtherRules,
                5,
                &both[..1],
                None,
            ),
            ("more room", Some("shop"), Prospect::MoreRoom, 5, &both[1..], Some(5)),
            ("a rule of the cluster", None, Prospect::OtherRules, 5, &both, Some(5)),
            ("soon after the attempt", None, Prospect::OtherRules, 0, &both, Some(1)),
        ] {
            let refusals = StepRefusals::default();
            for _ in 0..10 {
                refusals.note(pod("shop"), MESSAGE, now);
                refusals.note(pod("bank"), MESSAGE, now);
            }
            let before = refusals.of(&pod("shop"), now).unwrap().again_at;
            assert!(before > second(5));
            let retried = refusals.retry(namespace, prospect, second(at));
            assert_eq!(retried, steps, "{what}");
            let after = refusals.of(&pod("shop"), now).unwrap().again_at;
            assert_eq!(after, again_at.map_or(before, second), "{what}");
            // Only a change of rules makes the following attempts frequent again.
            refusals.note(pod("shop"), MESSAGE, now);
            let is_frequent = refusals.of(&pod("shop"), now).unwrap().again_at <= second(1);
            let is_concerned = again_at.is_some() && prospect == Prospect::OtherRules;
            assert_eq!(is_frequent, is_concerned, "{what}");
        }
    }
}
