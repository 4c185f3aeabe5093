//! Additional state while a node is in maintenance: PDBs and DaemonSets. At other times it is not needed, and it may
//! be large.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drydock_core::maintenance::budgets::may_unblock;
use drydock_runtime::{Cache, CancellationToken, Change, Key, Listing, Watch, Watches};
use k8s_openapi::api::{apps::v1::DaemonSet, policy::v1::PodDisruptionBudget};
use kube::{Api, Client, api::PartialObjectMeta};

/// PDBs and DaemonSets, watched while they are wanted. Clones share them.
#[derive(Clone)]
pub(super) struct NodeContext {
    client: Client,
    watches: Watches,
    unblocked: Arc<dyn Fn(&str) + Send + Sync>,
    watched: Arc<Mutex<Option<Watched>>>,
}

#[derive(Clone)]
struct Watched {
    budgets: Cache<PodDisruptionBudget>,
    daemon_sets: Cache<PartialObjectMeta<DaemonSet>>,
    wanted: CancellationToken,
}

impl NodeContext {
    /// Starts without watches. `unblocked` is called with the namespace of a PDB that may allow more evictions than
    /// before.
    pub(super) fn new(client: Client, watches: &Watches, unblocked: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            client,
            watches: watches.clone(),
            unblocked: Arc::new(unblocked),
            watched: Arc::default(),
        }
    }

    /// Starts or stops the watches.
    pub(super) fn want(&self, wanted: bool) {
        let mut watched = self.lock();
        match (&*watched, wanted) {
            (None, true) => *watched = Some(self.watch()),
            (Some(known), false) => {
                known.wanted.cancel();
                *watched = None;
            }
            _ => {}
        }
    }

    /// Returns all known PDBs.
    pub(super) fn budgets(&self) -> Vec<Arc<PodDisruptionBudget>> {
        self.lock()
            .as_ref()
            .map_or_else(Vec::new, |watched| watched.budgets.all())
    }

    /// Returns whether a DaemonSet does not exist, which only the API server can confirm.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn daemon_set_is_gone(&self, namespace: &str, name: &str) -> kube::Result<bool> {
        let key = Key::namespaced(namespace, name);
        let is_known = self
            .lock()
            .as_ref()
            .is_some_and(|watched| watched.daemon_sets.get(&key).is_some());
        if is_known {
            return Ok(false);
        }
        let api = Api::<DaemonSet>::namespaced(self.client.clone(), namespace);
        Ok(api.get_metadata_opt(name).await?.is_none())
    }

    fn watch(&self) -> Watched {
        let wanted = CancellationToken::new();
        let unblocked = Arc::clone(&self.unblocked);
        let budgets = Watch::<PodDisruptionBudget>::all(self.client.clone(), "budgets of all pods")
            .listing(Listing::Streamed)
            .prune(|budget| {
                budget.metadata.annotations = None;
                budget.metadata.labels = None;
                if let Some(status) = &mut budget.status {
                    status.conditions = None;
                    status.disrupted_pods = None;
                }
            })
            .on_change(move |change| {
                if let Change::Object { key, old, new } = change
                    && may_unblock(old.as_deref(), new.as_deref())
                {
                    unblocked(key.namespace.as_deref().unwrap_or_default());
                }
            });
        let daemon_sets =
            Watch::<PartialObjectMeta<DaemonSet>>::all(self.client.clone(), "daemon sets").prune(|daemon_set| {
                daemon_set.metadata.annotations = None;
                daemon_set.metadata.labels = None;
            });
        Watched {
            budgets: self.watches.start_until(budgets, wanted.clone()),
            daemon_sets: self.watches.start_until(daemon_sets, wanted.clone()),
            wanted,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
