//! Remembers which refusals of evictions were logged: drainers repeat a request every few seconds while a guest
//! moves, and only a change of the response is logged.

use std::collections::HashMap;

use drydock_core::eviction::EvictionRefusal;
use drydock_runtime::Key;
use parking_lot::Mutex;

/// At most this many pods are remembered; then all are forgotten, which costs a log line for each that is still being
/// evicted. No more guests than that leave at a time.
const MAX_PODS: usize = 10_000;

/// The last logged refusal, by pod.
#[derive(Debug, Default)]
pub(super) struct LoggedRefusals(Mutex<HashMap<Key, EvictionRefusal>>);

impl LoggedRefusals {
    /// Returns whether a refusal differs from the last one of this pod, and remembers it. An evacuation in progress
    /// is no change after it was triggered.
    pub(super) fn is_transition(&self, pod: &Key, refusal: EvictionRefusal) -> bool {
        let refusal = if refusal.may_pass() {
            EvictionRefusal::InProgress
        } else {
            refusal
        };
        let mut logged = self.0.lock();
        if logged.get(pod) == Some(&refusal) {
            return false;
        }
        if logged.len() >= MAX_PODS {
            logged.clear();
        }
        logged.insert(pod.clone(), refusal);
        true
    }

    /// Forgets a pod whose eviction was allowed.
    pub(super) fn forget(&self, pod: &Key) {
        self.0.lock().remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_refusal_is_logged_only_on_change() {
        let logged = LoggedRefusals::default();
        let (one, other) = (Key::namespaced("shop", "one"), Key::namespaced("shop", "other"));
        for (pod, refusal, news) in [
            (&one, EvictionRefusal::Triggered, true),
            (&one, EvictionRefusal::InProgress, false),
            (&one, EvictionRefusal::InProgress, false),
            (&other, EvictionRefusal::InProgress, true),
            (&one, EvictionRefusal::NotMigratable, true),
            (&one, EvictionRefusal::NotMigratable, false),
            (&one, EvictionRefusal::Triggered, true),
        ] {
            assert_eq!(logged.is_transition(pod, refusal), news, "{pod} {refusal:?}");
        }
        logged.forget(&one);
        assert!(logged.is_transition(&one, EvictionRefusal::InProgress));
        for number in 0..2 * MAX_PODS {
            logged.is_transition(
                &Key::namespaced("shop", &number.to_string()),
                EvictionRefusal::TargetPod,
            );
        }
        assert!(logged.0.lock().len() <= MAX_PODS);
    }
}
