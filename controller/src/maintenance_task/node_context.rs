//! Additional state while nodes are in maintenance: PDBs and DaemonSets. They are not watched at other times, because
//! they may be large.

use std::sync::Arc;

use drydock_core::maintenance::pod_pdbs::may_unblock;
use drydock_runtime::{Cache, CacheChange, CancellationToken, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::api::{apps::v1::DaemonSet, policy::v1::PodDisruptionBudget};
use kube::{Api, Client, api::PartialObjectMeta};
use parking_lot::Mutex;

/// PDBs and DaemonSets, which are watched while they are wanted. Clones share them.
#[derive(Clone)]
pub(super) struct NodeContext {
    client: Client,
    watches: WatchStarter,
    unblocked: Arc<dyn Fn(&str) + Send + Sync>,
    watched: Arc<Mutex<Option<PodWatches>>>,
}

#[derive(Clone)]
struct PodWatches {
    pdbs: Cache<PodDisruptionBudget>,
    daemon_sets: Cache<PartialObjectMeta<DaemonSet>>,
    wanted: CancellationToken,
}

impl NodeContext {
    /// Starts without watches. `unblocked` is called with the namespace of a PDB that may allow more evictions than
    /// before.
    pub(super) fn new(
        client: Client,
        watches: &WatchStarter,
        unblocked: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self {
            client,
            watches: watches.clone(),
            unblocked: Arc::new(unblocked),
            watched: Arc::default(),
        }
    }

    /// Starts or stops the watches.
    pub(super) fn want(&self, wanted: bool) {
        let mut watched = self.watched.lock();
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
    pub(super) fn pdbs(&self) -> Vec<Arc<PodDisruptionBudget>> {
        self.watched
            .lock()
            .as_ref()
            .map_or_else(Vec::new, |watched| watched.pdbs.all())
    }

    /// Returns whether a DaemonSet does not exist. Only the API server can confirm that.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(super) async fn daemon_set_is_gone(&self, namespace: &str, name: &str) -> kube::Result<bool> {
        let key = Key::namespaced(namespace, name);
        let is_known = self
            .watched
            .lock()
            .as_ref()
            .is_some_and(|watched| watched.daemon_sets.get(&key).is_some());
        if is_known {
            return Ok(false);
        }
        let api = Api::<DaemonSet>::namespaced(self.client.clone(), namespace);
        Ok(api.get_metadata_opt(name).await?.is_none())
    }

    fn watch(&self) -> PodWatches {
        let wanted = CancellationToken::new();
        let unblocked = Arc::clone(&self.unblocked);
        let pdbs = Watch::<PodDisruptionBudget>::all(self.client.clone(), "PDBs of all pods")
            .listing(ListMode::Streamed)
            .prune(|pdb| {
                pdb.metadata.annotations = None;
                pdb.metadata.labels = None;
                if let Some(status) = &mut pdb.status {
                    status.conditions = None;
                    status.disrupted_pods = None;
                }
            })
            .on_change(move |change| {
                if let CacheChange::Object { key, old, new } = change
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
        PodWatches {
            pdbs: self.watches.start_until(pdbs, wanted.clone()),
            daemon_sets: self.watches.start_until(daemon_sets, wanted.clone()),
            wanted,
        }
    }
}
