//! What nodes can do, held once for all nodes that are alike: of a machine it is a hundred and fifty KiB, and most
//! clusters have many machines of few kinds.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use drydock_api::facts::NodeFacts;

/// Facts that some node has.
#[derive(Debug, Default)]
pub(super) struct SharedFacts(Mutex<HashMap<u64, Weak<NodeFacts>>>);

impl SharedFacts {
    /// Replaces facts by the same ones that another node has, if one does.
    pub(super) fn share(&self, facts: &mut Arc<NodeFacts>) {
        let Ok(text) = serde_json::to_vec(facts) else { return };
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&hash).and_then(Weak::upgrade).filter(|same| same == facts) {
            Some(same) => *facts = same,
            None => {
                // A node that has changed leaves its old ones behind.
                known.retain(|_, facts| facts.strong_count() > 0);
                known.insert(hash, Arc::downgrade(facts));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_is_held_once_and_what_nobody_has_not_at_all() {
        let facts = |kernel: &str| {
            Arc::new(NodeFacts {
                kernel: kernel.into(),
                ..NodeFacts::default()
            })
        };
        let shared = SharedFacts::default();
        let [mut one, mut same, mut other] = [facts("6.1"), facts("6.1"), facts("6.12")];
        for facts in [&mut one, &mut same, &mut other] {
            shared.share(facts);
        }
        assert!(Arc::ptr_eq(&one, &same));
        assert_eq!((&*one.kernel, &*other.kernel), ("6.1", "6.12"));
        drop((one, same));
        shared.share(&mut facts("6.6"));
        assert_eq!(shared.0.lock().unwrap().len(), 2);
    }
}
