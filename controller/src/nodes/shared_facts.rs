//! Shares the large parts of node facts between all nodes that have them in common. The facts of one machine take 150
//! KiB, and most clusters have many machines of few kinds.
//!
//! Each list is shared separately. Whole facts are hardly ever equal: the measured frequency of the time stamp counter
//! differs between equal machines, and microcode and kernels differ while a cluster is updated.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Weak},
};

use drydock_api::facts::{CpuModel, MachineType, NodeFacts};
use parking_lot::Mutex;
use serde::Serialize;

/// Lists that at least one node has.
#[derive(Debug, Default)]
pub(super) struct SharedFacts {
    names: SharedLists<String>,
    models: SharedLists<CpuModel>,
    machine_types: SharedLists<MachineType>,
}

impl SharedFacts {
    /// Replaces each list in `facts` by an equal list that another node already has.
    pub(super) fn share(&self, facts: &mut Arc<NodeFacts>) {
        let facts = Arc::make_mut(facts);
        self.names.share(&mut facts.cpu.features);
        if let Some(virtualization) = &mut facts.virtualization {
            self.names.share(&mut virtualization.features);
            self.models.share(&mut virtualization.models);
            self.machine_types.share(&mut virtualization.machine_types);
        }
    }
}

/// Lists of one type by a hash of their content.
#[derive(Debug)]
struct SharedLists<T>(Mutex<HashMap<u64, Weak<Vec<T>>>>);

impl<T> Default for SharedLists<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: PartialEq + Serialize> SharedLists<T> {
    fn share(&self, list: &mut Arc<Vec<T>>) {
        let Ok(text) = serde_json::to_vec(list) else { return };
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        let mut known = self.0.lock();
        match known.get(&hash).and_then(Weak::upgrade).filter(|same| same == list) {
            Some(same) => *list = same,
            None => {
                // A node that has changed no longer uses its old lists.
                known.retain(|_, list| list.strong_count() > 0);
                known.insert(hash, Arc::downgrade(list));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::facts::{TscCounter, VirtualizationFacts};

    use super::*;

    fn facts(frequency: u64, features: &[&str]) -> Arc<NodeFacts> {
        let names = |names: &[&str]| Arc::new(names.iter().map(|&name| name.into()).collect::<Vec<String>>());
        let mut facts = NodeFacts {
            virtualization: Some(VirtualizationFacts {
                features: names(features),
                models: Arc::new(vec![CpuModel::default()]),
                machine_types: Arc::new(vec![MachineType::default()]),
                tsc: Some(TscCounter {
                    frequency_hz: frequency,
                    scalable: true,
                }),
                ..VirtualizationFacts::default()
            }),
            ..NodeFacts::default()
        };
        facts.cpu.features = names(&["fpu", "tsc"]);
        Arc::new(facts)
    }

    #[test]
    fn nodes_that_differ_in_frequency_share_the_large_parts() {
        let shared = SharedFacts::default();
        let [mut one, mut other, mut poorer] = [
            facts(2_100_000_000, &["aes", "avx"]),
            facts(2_100_003_000, &["aes", "avx"]),
            facts(2_100_000_000, &["aes"]),
        ];
        for facts in [&mut one, &mut other, &mut poorer] {
            shared.share(facts);
        }
        assert_ne!(one, other);
        let [one, other, poorer] = [&one, &other, &poorer].map(|facts| {
            let virtualization = facts.virtualization.clone().unwrap();
            (virtualization, Arc::clone(&facts.cpu.features))
        });
        for (same, alike) in [(&other, true), (&poorer, false)] {
            assert_eq!(Arc::ptr_eq(&one.0.features, &same.0.features), alike);
            assert!(Arc::ptr_eq(&one.0.models, &same.0.models));
            assert!(Arc::ptr_eq(&one.0.machine_types, &same.0.machine_types));
            assert!(Arc::ptr_eq(&one.1, &same.1));
        }
    }

    #[test]
    fn lists_that_no_node_has_any_more_are_forgotten() {
        let shared = SharedFacts::default();
        let held = |shared: &SharedFacts| shared.names.0.lock().len();
        let mut gone = facts(1, &["aes"]);
        shared.share(&mut gone);
        assert_eq!(held(&shared), 2);
        drop(gone);
        let mut other = facts(1, &["avx"]);
        shared.share(&mut other);
        // One list of CPU flags and one list of virtualization features.
        assert_eq!(held(&shared), 2);
    }
}
