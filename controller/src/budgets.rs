//! PodDisruptionBudgets (PDBs): those that protect launcher pods, and PDBs of other owners that select launcher pods.
//!
//! ```text
//!  watch ──▶ cache ──────────────────────────────┬─▶ of: the PDB of a pod
//!    └─ PDBs of others, by namespace ────────────┴─▶ conflicting: another PDB that selects a pod
//! ```

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use drydock_api::kubevirt::names::INSTANCE;
use drydock_core::eviction::budget::{is_holding, is_ours, of, selects};
use drydock_runtime::{Cache, Change, Key, Listing, Watch, Watches, clock};
use k8s_openapi::api::{
    core::v1::Pod,
    policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use kube::{Api, Client, ResourceExt, api::PostParams};

use crate::requests::deleting;

/// How long a PDB created here counts as existing although the watch does not show it: longer than a watch lags
/// behind.
pub(crate) const MADE_COUNTS_FOR: Duration = Duration::from_secs(10);

/// PDBs of the cluster. Clones share the cache.
#[derive(Clone)]
pub(crate) struct Budgets {
    client: Client,
    cache: Cache<PodDisruptionBudget>,
    foreign: Arc<Mutex<Foreign>>,
    /// UIDs of pods whose PDB was, or is being, created here and is not yet shown by the watch; and since when.
    made: Arc<Mutex<HashMap<String, clock::Instant>>>,
    /// UIDs of PDBs that were deleted here and whose deletion the watch has not shown yet.
    deleted: Arc<Mutex<HashSet<String>>>,
}

/// PDBs of other owners, by namespace. They are few, while there are as many of ours as pods.
#[derive(Debug, Default)]
struct Foreign(HashMap<String, BTreeSet<Key>>);

impl Budgets {
    /// Starts watching; `on_change` is called with each change.
    pub(crate) fn start(
        client: &Client,
        watches: &Watches,
        on_change: impl FnMut(&Change<PodDisruptionBudget>) + Send + 'static,
    ) -> Self {
        let foreign = Arc::new(Mutex::new(Foreign::default()));
        let observing = Arc::clone(&foreign);
        let (deleted, made) = (
            Arc::new(Mutex::new(HashSet::new())),
            Arc::new(Mutex::new(HashMap::new())),
        );
        let (gone, shown) = (Arc::clone(&deleted), Arc::clone(&made));
        let watch = Watch::<PodDisruptionBudget>::all(client.clone(), "budgets")
            .listing(Listing::Streamed)
            .prune(prune)
            .packed()
            .on_change(move |change| lock(&observing).observe(change))
            .on_change(move |change| {
                let Change::Object { old, new, .. } = change else {
                    return;
                };
                let owners = new.iter().flat_map(|new| new.owner_references());
                for owner in owners {
                    lock(&shown).remove(&owner.uid);
                }
                if let (Some(old), None) = (old, new) {
                    lock(&gone).remove(&old.uid().unwrap_or_default());
                }
            })
            .on_change(on_change);
        Self {
            client: client.clone(),
            cache: watches.start(watch),
            foreign,
            made,
            deleted,
        }
    }

    /// Creates a cache with the given PDBs.
    #[cfg(test)]
    pub(crate) fn filled(client: &Client, budgets: impl IntoIterator<Item = PodDisruptionBudget>) -> Self {
        let cache = Cache::filled(budgets);
        let mut foreign = Foreign::default();
        cache.for_each(|key, budget| foreign.insert(key, budget));
        Self {
            client: client.clone(),
            cache,
            foreign: Arc::new(Mutex::new(foreign)),
            made: Arc::default(),
            deleted: Arc::default(),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.cache.wait_until_synced().await;
    }

    /// Returns the PDB that protects a pod, if it is one of ours.
    pub(crate) fn of(&self, pod: &Pod) -> Option<Arc<PodDisruptionBudget>> {
        self.cache.get(&Key::of(pod)).filter(|budget| is_ours(budget))
    }

    /// Returns a PDB of another owner that selects a pod.
    pub(crate) fn conflicting(&self, pod: &Pod) -> Option<Arc<PodDisruptionBudget>> {
        let foreign = lock(&self.foreign);
        let keys = foreign.0.get(pod.metadata.namespace.as_deref().unwrap_or_default());
        let mut budgets = keys.into_iter().flatten().filter_map(|key| self.cache.get(key));
        budgets.find(|budget| !is_ours(budget) && selects(budget, pod))
    }

    /// Returns the name of a PDB of another owner that currently allows no eviction of a pod.
    pub(crate) fn holding(&self, pod: &Pod) -> Option<String> {
        let foreign = lock(&self.foreign);
        let keys = foreign.0.get(pod.metadata.namespace.as_deref().unwrap_or_default());
        let budgets = keys.into_iter().flatten().filter_map(|key| self.cache.get(key));
        let mut holding = budgets.filter(|budget| is_holding(budget, pod));
        holding.next().map(|budget| budget.name_any())
    }

    /// Creates the PDB of a pod, unless it exists.
    ///
    /// # Errors
    /// If the API server does not create it.
    pub(crate) async fn create(&self, pod: &Pod) -> kube::Result<()> {
        let Some(budget) = of(pod) else { return Ok(()) };
        let uid = pod.uid().unwrap_or_default();
        let now = clock::Instant::now();
        {
            let mut made = lock(&self.made);
            made.retain(|_, since| now.duration_since(*since) < MADE_COUNTS_FOR);
            if made.contains_key(&uid) {
                return Ok(());
            }
            made.insert(uid.clone(), now);
        }
        let result = self.api(pod).create(&PostParams::default(), &budget).await;
        // The watch may have shown it already.
        if result.is_err() || self.of(pod).is_some() {
            lock(&self.made).remove(&uid);
        }
        match result {
            // If it belongs to an earlier pod of this name, it is deleted with that pod, and the watch reports that.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Deletes a PDB, once.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn delete(&self, budget: &PodDisruptionBudget) -> kube::Result<()> {
        let uid = budget.uid().unwrap_or_default();
        if lock(&self.deleted).contains(&uid) {
            return Ok(());
        }
        let parameters = deleting(Some(uid.clone()));
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

impl Foreign {
    /// Updates the index with a change from the watch.
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
        if !is_ours(budget) {
            self.0.entry(namespace(key)).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Key, budget: &PodDisruptionBudget) {
        let namespace = namespace(key);
        if let Some(keys) = self.0.get_mut(&namespace).filter(|_| !is_ours(budget)) {
            keys.remove(key);
            if keys.is_empty() {
                self.0.remove(&namespace);
            }
        }
    }
}

fn namespace(key: &Key) -> String {
    key.namespace.as_deref().unwrap_or_default().to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what determines which pods a PDB selects.
fn prune(budget: &mut PodDisruptionBudget) {
    budget.metadata.managed_fields = None;
    if let Some(annotations) = &mut budget.metadata.annotations {
        annotations.retain(|key, _| key == INSTANCE);
    }
    // Whether a PDB allows an eviction matters only for PDBs of other owners.
    let allowed = budget.status.take().map(|status| status.disruptions_allowed);
    budget.status = allowed
        .filter(|_| !is_ours(budget))
        .map(|disruptions_allowed| PodDisruptionBudgetStatus {
            disruptions_allowed,
            ..PodDisruptionBudgetStatus::default()
        });
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::api_server;
    use serde_json::json;

    use super::*;

    fn budget(is_ours: bool) -> Arc<PodDisruptionBudget> {
        let labels = is_ours.then(|| json!({drydock_api::kubevirt::names::LAUNCHER: "x"}));
        Arc::new(serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap())
    }

    #[test]
    fn a_name_that_changes_hands_is_found_where_it_belongs() {
        let mut foreign = Foreign::default();
        let mut change = |old: Option<bool>, new: Option<bool>| {
            foreign.observe(&Change::Object {
                key: Key::namespaced("shop", "b"),
                old: old.map(budget),
                new: new.map(budget),
            });
            foreign.0.contains_key("shop")
        };
        assert!(!change(None, Some(true)));
        assert!(change(Some(true), Some(false)));
        assert!(!change(Some(false), Some(true)));
        assert!(change(Some(true), Some(false)));
        assert!(!change(Some(false), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_is_made_once_unless_it_is_that_of_an_earlier_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "p", "uid": "1", "labels": {drydock_api::kubevirt::names::LAUNCHER: "x"}},
        }))
        .unwrap();
        let (client, mut server) = api_server();
        let budgets = Budgets::filled(&client, []);
        // A PDB of this name is about to be deleted with its pod, and is created again after that.
        let (there, ()) = tokio::join!(budgets.create(&pod), async {
            server.next_request().await.refuse(409, "AlreadyExists");
        });
        there.unwrap();
        let (made, ()) = tokio::join!(budgets.create(&pod), async {
            let request = server.next_request().await;
            let body = request.body.clone();
            assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "1");
            request.with(&body);
        });
        made.unwrap();
        // A PDB that the watch does not show yet is not created again before `MADE_COUNTS_FOR` has passed.
        budgets.create(&pod).await.unwrap();
        assert!(server.is_left_alone().await);
        tokio::time::advance(MADE_COUNTS_FOR).await;
        let (again, ()) = tokio::join!(budgets.create(&pod), async {
            server.next_request().await.refuse(500, "InternalError");
        });
        assert!(again.is_err());
    }
}
