//! The caches of all NodeMaintenances of both API groups. The task and the admission share one watch for each group.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use drydock_api::maintenance::{Group, NodeMaintenance};
use drydock_runtime::{AssumeCache, CacheChange, Key, Watch, WatchStarter};
use kube::Client;
use parking_lot::Mutex;

use crate::pruning::prune_metadata;

/// NodeMaintenances, indexed by the node that each names. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Maintenances {
    objects: [AssumeCache<NodeMaintenance>; 2],
    by_node: Arc<Mutex<ByNode>>,
}

/// Maintenances by the node that they name. The node of a maintenance does not change.
type ByNode = HashMap<String, BTreeSet<(Group, Key)>>;

impl Maintenances {
    /// Starts watching; `on_change` is called with the node of each maintenance that changes.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        on_change: impl Fn(&str) + Clone + Send + 'static,
    ) -> Self {
        let by_node = Arc::new(Mutex::new(ByNode::new()));
        let objects = Group::ALL.map(|group| {
            let (index, on_change) = (Arc::clone(&by_node), on_change.clone());
            let name = match group {
                Group::Medik8s => "maintenances",
                Group::KubeVirt => "maintenances of KubeVirt's group",
            };
            let watch = Watch::<NodeMaintenance>::dynamic(client.clone(), &group, name).optional();
            AssumeCache::start(watches, watch, prune, &[], move |change| {
                if let Some(node) = observe(&mut index.lock(), group, change) {
                    on_change(&node);
                }
            })
        });
        Self { objects, by_node }
    }

    /// Creates caches with the given objects.
    #[cfg(test)]
    pub(crate) fn filled(all: impl IntoIterator<Item = (Group, NodeMaintenance)>) -> Self {
        let mut objects = HashMap::<Group, Vec<NodeMaintenance>>::new();
        let mut by_node = ByNode::new();
        for (group, object) in all {
            let of_node = by_node.entry(object.spec.node_name.clone()).or_default();
            of_node.insert((group, Key::of(&object)));
            objects.entry(group).or_default().push(object);
        }
        Self {
            objects: Group::ALL.map(|group| AssumeCache::filled(objects.remove(&group).unwrap_or_default())),
            by_node: Arc::new(Mutex::new(by_node)),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(
            self.objects[0].shown().wait_until_synced(),
            self.objects[1].shown().wait_until_synced()
        );
    }

    /// Returns the maintenances of a group.
    pub(crate) fn of_group(&self, group: Group) -> &AssumeCache<NodeMaintenance> {
        &self.objects[index_of(group)]
    }

    /// Returns the maintenances that name a node.
    pub(crate) fn of_node(&self, node: &str) -> Vec<(Group, Arc<NodeMaintenance>)> {
        let index = self.by_node.lock();
        let keys = index.get(node).into_iter().flatten();
        keys.filter_map(|(group, key)| Some((*group, self.of_group(*group).shown().get(key)?)))
            .filter(|(_, object)| object.spec.node_name == node)
            .collect()
    }

    /// Returns maintenances of a node including writes that the watches do not show yet. Maintenances that these writes
    /// have deleted are omitted.
    pub(crate) fn newest(&self, shown: &[(Group, Arc<NodeMaintenance>)]) -> Vec<(Group, Key, NodeMaintenance)> {
        let newest = shown.iter().filter_map(|(group, object)| {
            let key = Key::of(object.as_ref());
            let newest = self.of_group(*group).newest(&key)?;
            Some((*group, key, newest))
        });
        newest.collect()
    }

    /// Returns whether a maintenance names this node.
    pub(crate) fn concerns(&self, node: &str) -> bool {
        self.by_node.lock().contains_key(node)
    }

    /// Returns the nodes that maintenances name.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.by_node.lock().keys().cloned().collect()
    }
}

/// Updates the index with a change. Returns the node that it concerns.
fn observe(index: &mut ByNode, group: Group, change: &CacheChange<NodeMaintenance>) -> Option<String> {
    let CacheChange::Object { key, old, new } = change else {
        return None;
    };
    // A maintenance that was deleted and recreated between two lists may name another node.
    if let Some(old) = old
        && new.as_ref().is_none_or(|new| new.spec.node_name != old.spec.node_name)
        && let Some(keys) = index.get_mut(&old.spec.node_name)
    {
        keys.remove(&(group, key.clone()));
        if keys.is_empty() {
            index.remove(&old.spec.node_name);
        }
    }
    if let Some(new) = new {
        let of_node = index.entry(new.spec.node_name.clone()).or_default();
        of_node.insert((group, key.clone()));
    }
    let object = new.as_ref().or(old.as_ref())?;
    Some(object.spec.node_name.clone())
}

/// Returns the index of a group's cache.
fn index_of(group: Group) -> usize {
    match group {
        Group::Medik8s => 0,
        Group::KubeVirt => 1,
    }
}

/// Removes metadata that only its writers use.
fn prune(object: &mut NodeMaintenance) {
    prune_metadata(&mut object.metadata);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, node: &str) -> Arc<NodeMaintenance> {
        let object = json!({"metadata": {"name": name}, "spec": {"nodeName": node}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn node_index_keeps_maintenances_until_deleted() {
        let mut index = ByNode::new();
        let change = |old: Option<&str>, new: Option<&str>| CacheChange::Object {
            key: Key::cluster("m"),
            old: old.map(|node| object("m", node)),
            new: new.map(|node| object("m", node)),
        };
        assert_eq!(
            observe(&mut index, Group::Medik8s, &change(None, Some("a"))).as_deref(),
            Some("a")
        );
        observe(&mut index, Group::KubeVirt, &change(None, Some("a")));
        assert_eq!(index["a"].len(), 2);
        observe(&mut index, Group::KubeVirt, &change(Some("a"), Some("b")));
        observe(&mut index, Group::Medik8s, &change(Some("a"), None));
        assert_eq!(index.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn both_groups_are_found_by_node() {
        let of = |name: &str, node: &str| Arc::unwrap_or_clone(object(name, node));
        let all = Maintenances::filled([
            (Group::Medik8s, of("m", "a")),
            (Group::KubeVirt, of("m", "a")),
            (Group::KubeVirt, of("k", "b")),
        ]);
        assert_eq!(all.of_node("a").len(), 2);
        assert_eq!(all.of_node("b")[0].0, Group::KubeVirt);
        assert!(all.of_node("c").is_empty() && !all.concerns("c"));
        assert_eq!(all.nodes().len(), 2);
    }
}
