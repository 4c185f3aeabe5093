//! PodDisruptionBudgets: those that protect launcher pods, and those of others that select them.
//!
//! ```text
//!  watch ──▶ cache ──────────────────────────────┬─▶ of: the budget of a pod
//!    ├─ ours, by the instance that owns them ─────┼─▶ owned_by
//!    └─ those of others, by namespace ────────────┴─▶ conflicting: what else selects a pod
//! ```

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use drydock_core::eviction::budget::{is_ours, of, selects};
use drydock_runtime::{Cache, Change, Key, Listing, Watch, Watches};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};

/// Budgets of the cluster. Clones share the cache.
#[derive(Clone)]
pub(crate) struct Budgets {
    client: Client,
    cache: Cache<PodDisruptionBudget>,
    index: Arc<Mutex<Index>>,
    /// UIDs of those that were deleted here, and that the watch has not shown to be gone.
    deleted: Arc<Mutex<HashSet<String>>>,
}

/// Which budgets there are. There are as many of ours as pods, and few of others.
#[derive(Debug, Default)]
struct Index {
    /// Ours by the UID of each owner.
    owned: HashMap<String, BTreeSet<Key>>,
    /// Those of others by namespace.
    foreign: HashMap<String, BTreeSet<Key>>,
}

impl Budgets {
    /// Starts watching; `told` hears of each change.
    pub(crate) fn start(
        client: &Client,
        watches: &Watches,
        told: impl FnMut(&Change<PodDisruptionBudget>) + Send + 'static,
    ) -> Self {
        let index = Arc::new(Mutex::new(Index::default()));
        let observing = Arc::clone(&index);
        let deleted = Arc::new(Mutex::new(HashSet::new()));
        let gone = Arc::clone(&deleted);
        let watch = Watch::<PodDisruptionBudget>::all(client.clone(), "budgets")
            .listing(Listing::Streamed)
            .prune(prune)
            .packed()
            .on_change(move |change| lock(&observing).observe(change))
            .on_change(move |change| {
                if let Change::Object {
                    old: Some(old),
                    new: None,
                    ..
                } = change
                {
                    lock(&gone).remove(&old.uid().unwrap_or_default());
                }
            })
            .on_change(told);
        Self {
            client: client.clone(),
            cache: watches.start(watch),
            index,
            deleted,
        }
    }

    /// Those that a test says there are.
    #[cfg(test)]
    pub(crate) fn filled(client: &Client, budgets: impl IntoIterator<Item = PodDisruptionBudget>) -> Self {
        let cache = Cache::filled(budgets);
        let mut index = Index::default();
        cache.for_each(|key, budget| index.insert(key, budget));
        Self {
            client: client.clone(),
            cache,
            index: Arc::new(Mutex::new(index)),
            deleted: Arc::default(),
        }
    }

    /// Waits until the API server has said everything once.
    pub(crate) async fn answered(&self) {
        self.cache.answered().await;
    }

    /// The budget that protects a pod, if it is one of ours.
    pub(crate) fn of(&self, pod: &Pod) -> Option<Arc<PodDisruptionBudget>> {
        self.cache.get(&Key::of(pod)).filter(|budget| is_ours(budget))
    }

    /// The budgets of ours that belong to the instance with this UID.
    pub(crate) fn owned_by(&self, uid: &str) -> Vec<Arc<PodDisruptionBudget>> {
        let index = lock(&self.index);
        let keys = index.owned.get(uid).into_iter().flatten();
        keys.filter_map(|key| self.cache.get(key))
            // A name can change hands.
            .filter(|budget| is_ours(budget) && budget.owner_references().iter().any(|owner| owner.uid == uid))
            .collect()
    }

    /// A budget of somebody else that selects a pod.
    pub(crate) fn conflicting(&self, pod: &Pod) -> Option<Arc<PodDisruptionBudget>> {
        let index = lock(&self.index);
        let keys = index.foreign.get(pod.metadata.namespace.as_deref().unwrap_or_default());
        let mut budgets = keys.into_iter().flatten().filter_map(|key| self.cache.get(key));
        budgets.find(|budget| !is_ours(budget) && selects(budget, pod))
    }

    /// Makes the budget of a pod, unless there is one.
    ///
    /// # Errors
    /// If the API server does not make it.
    pub(crate) async fn create(&self, pod: &Pod) -> kube::Result<()> {
        let Some(budget) = of(pod) else { return Ok(()) };
        match self.api(pod).create(&PostParams::default(), &budget).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Deletes a budget, once.
    ///
    /// # Errors
    /// If the API server does not do it.
    pub(crate) async fn delete(&self, budget: &PodDisruptionBudget) -> kube::Result<()> {
        let uid = budget.uid().unwrap_or_default();
        if lock(&self.deleted).contains(&uid) {
            return Ok(());
        }
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.api(budget).delete(&budget.name_any(), &parameters).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            result => result.map(drop)?,
        }
        lock(&self.deleted).insert(uid.clone());
        // The watch may have shown it already.
        let shown = self.cache.get(&Key::of(budget));
        if shown.is_none_or(|shown| shown.uid().as_ref() != Some(&uid)) {
            lock(&self.deleted).remove(&uid);
        }
        Ok(())
    }

    fn api(&self, of: &impl ResourceExt) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.client.clone(), &of.namespace().unwrap_or_default())
    }
}

impl Index {
    /// Keeps account of a change that the watch has shown.
    fn observe(&mut self, change: &Change<PodDisruptionBudget>) {
        let Change::Object { key, old, new } = change else {
            return;
        };
        if let Some(old) = old {
            self.remove(key, old);
        }
        if let Some(new) = new {
            self.insert(key, new);
        }
    }

    fn insert(&mut self, key: &Key, budget: &PodDisruptionBudget) {
        let (places, names) = self.places(key, budget);
        for name in names {
            places.entry(name).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Key, budget: &PodDisruptionBudget) {
        let (places, names) = self.places(key, budget);
        for name in names {
            if let Some(keys) = places.get_mut(&name) {
                keys.remove(key);
                if keys.is_empty() {
                    places.remove(&name);
                }
            }
        }
    }

    /// Where a budget is kept, and by which names.
    fn places(
        &mut self,
        key: &Key,
        budget: &PodDisruptionBudget,
    ) -> (&mut HashMap<String, BTreeSet<Key>>, Vec<String>) {
        if is_ours(budget) {
            let owners = budget.owner_references().iter();
            (&mut self.owned, owners.map(|owner| owner.uid.clone()).collect())
        } else {
            let namespace = key.namespace.as_deref().unwrap_or_default();
            (&mut self.foreign, vec![namespace.to_owned()])
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what says which pods a budget selects.
fn prune(budget: &mut PodDisruptionBudget) {
    budget.metadata.managed_fields = None;
    budget.metadata.annotations = None;
    budget.status = None;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(uid: Option<&str>) -> Arc<PodDisruptionBudget> {
        let budget = match uid {
            Some(uid) => json!({"metadata": {
                "labels": {drydock_api::kubevirt::names::LAUNCHER: "x"},
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "db", "uid": uid}],
            }}),
            None => json!({"metadata": {}}),
        };
        Arc::new(serde_json::from_value(budget).unwrap())
    }

    #[test]
    fn a_name_that_changes_hands_is_found_where_it_belongs() {
        let mut index = Index::default();
        let mut change = |old: Option<Option<&str>>, new: Option<Option<&str>>| {
            index.observe(&Change::Object {
                key: Key::namespaced("shop", "b"),
                old: old.map(budget),
                new: new.map(budget),
            });
            let mut owned: Vec<_> = index.owned.keys().cloned().collect();
            owned.sort();
            (owned.join(" "), index.foreign.contains_key("shop"))
        };
        assert_eq!(change(None, Some(Some("u1"))), ("u1".into(), false));
        assert_eq!(change(Some(Some("u1")), Some(Some("u2"))), ("u2".into(), false));
        assert_eq!(change(Some(Some("u2")), Some(None)), (String::new(), true));
        assert_eq!(change(Some(None), None), (String::new(), false));
    }
}
