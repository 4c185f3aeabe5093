//! PodDisruptionBudgets: those that protect launcher pods, and those of others that select them.
//!
//! ```text
//!  watch ──▶ cache ───────────────┬─▶ of: the budget of a pod
//!    └─ by namespace ─▶ index ────┴─▶ conflicting: what else selects it
//! ```

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use drydock_core::eviction::budget::{is_ours, of, selects};
use drydock_runtime::{Cache, Change, Key, Watch, Watches};
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
    by_namespace: Arc<Mutex<HashMap<String, BTreeSet<Key>>>>,
    /// UIDs of those that were deleted here, and that the watch has not shown to be gone.
    deleted: Arc<Mutex<HashSet<String>>>,
}

impl Budgets {
    /// Starts watching; `told` hears of each change.
    pub(crate) fn start(
        client: &Client,
        watches: &Watches,
        told: impl FnMut(&Change<PodDisruptionBudget>) + Send + 'static,
    ) -> Self {
        let by_namespace = Arc::new(Mutex::new(HashMap::new()));
        let index = Arc::clone(&by_namespace);
        let deleted = Arc::new(Mutex::new(HashSet::new()));
        let gone = Arc::clone(&deleted);
        let watch = Watch::<PodDisruptionBudget>::all(client.clone(), "budgets")
            .prune(prune)
            .on_change(move |change| observe(&mut lock(&index), change))
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
            by_namespace,
            deleted,
        }
    }

    /// Those that a test says there are.
    #[cfg(test)]
    pub(crate) fn filled(client: &Client, budgets: impl IntoIterator<Item = PodDisruptionBudget>) -> Self {
        let cache = Cache::filled(budgets);
        let mut by_namespace: HashMap<String, BTreeSet<Key>> = HashMap::new();
        cache.for_each(|key, _| {
            let namespace = key.namespace.as_deref().unwrap_or_default();
            by_namespace.entry(namespace.into()).or_default().insert(key.clone());
        });
        Self {
            client: client.clone(),
            cache,
            by_namespace: Arc::new(Mutex::new(by_namespace)),
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

    /// The budgets of ours in a namespace, by the UID of the instance that they belong to.
    pub(crate) fn owned_by(&self, namespace: &str, uid: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.in_namespace(namespace)
            .into_iter()
            .filter(|budget| is_ours(budget) && budget.owner_references().iter().any(|owner| owner.uid == uid))
            .collect()
    }

    /// A budget of somebody else that selects a pod.
    pub(crate) fn conflicting(&self, pod: &Pod) -> Option<Arc<PodDisruptionBudget>> {
        let budgets = self.in_namespace(&pod.namespace().unwrap_or_default());
        budgets
            .into_iter()
            .find(|budget| !is_ours(budget) && selects(budget, pod))
    }

    fn in_namespace(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        let index = lock(&self.by_namespace);
        let keys = index.get(namespace).into_iter().flatten();
        keys.filter_map(|key| self.cache.get(key)).collect()
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

/// Keeps account of a change that the watch has shown.
fn observe(index: &mut HashMap<String, BTreeSet<Key>>, change: &Change<PodDisruptionBudget>) {
    let Change::Object { key, new, .. } = change else {
        return;
    };
    let namespace = key.namespace.as_deref().unwrap_or_default();
    if new.is_some() {
        index.entry(namespace.into()).or_default().insert(key.clone());
    } else if let Some(keys) = index.get_mut(namespace) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(namespace);
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
