//! Records which refusals of evictions were logged. Drainers repeat a request every few seconds while a guest moves,
//! and only a change of the response is logged.

use std::collections::HashMap;

use drydock_core::eviction::EvictionRefusal;
use drydock_runtime::Key;
use parking_lot::Mutex;

/// Maximum number of recorded pods. If it is reached, all records are dropped, which costs one log line for each pod
/// that is still being evicted. No more guests than that leave at a time.
const MAX_PODS: usize = 10_000;

/// Last logged refusal of each pod.
#[derive(Debug, Default)]
pub(super) struct LoggedRefusals(Mutex<HashMap<Key, EvictionRefusal>>);

impl LoggedRefusals {
    /// Returns whether a refusal differs from the last one of this pod, and records it. A triggered evacuation and one
    /// in progress count as the same refusal.
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
