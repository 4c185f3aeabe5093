//! PodDisruptionBudgets (PDBs): Drydock's own, which protect launcher pods, and PDBs of other owners, which may select
//! launcher pods.
//!
//! ```text
//!  watch ──▶ cache ──────────────────────────────┬─▶ of: the PDB of a pod
//!    └─ PDBs of others, by namespace ────────────┴─▶ conflicting: another PDB that selects a pod
//! ```

use std::{collections::HashSet, sync::Arc};

use drydock_api::kubevirt::names::INSTANCE;
use drydock_core::eviction::own_pdb::{goes_with, is_holding, is_ours, of, selects};
use drydock_runtime::{ASSUMED_FOR, AssumeCache, CacheChange, Index, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::api::{
    core::v1::Pod,
    policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use parking_lot::Mutex;

use crate::requests::{deleting, unless_changed};

/// PDBs of the cluster. Clones share the cache.
#[derive(Clone)]
pub(crate) struct Pdbs {
    client: Client,
    cache: AssumeCache<PodDisruptionBudget>,
    /// PDBs of other owners by namespace. There are few of them, but as many own PDBs as pods.
    foreign: Index<PodDisruptionBudget>,
    /// UIDs of pods whose PDB is being created.
    creating: Arc<Mutex<HashSet<String>>>,
}

/// Guard: the PDB of this pod is being created as long as it exists.
struct Creating<'a> {
    pods: &'a Mutex<HashSet<String>>,
    uid: String,
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.pods.lock().remove(&self.uid);
    }
}

impl Pdbs {
    /// Starts watching; `on_change` is called with each change.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        on_change: impl FnMut(&CacheChange<PodDisruptionBudget>) + Send + 'static,
    ) -> Self {
        let foreign = Index::by(foreign_in);
        let watch = Watch::<PodDisruptionBudget>::all(client.clone(), "PDBs")
            .listing(ListMode::Streamed)
            .compressed();
        Self {
            client: client.clone(),
            cache: AssumeCache::start(watches, watch, prune, std::slice::from_ref(&foreign), on_change),
            foreign,
            creating: Arc::default(),
        }
    }

    /// Creates a cache with the given PDBs.
    #[cfg(test)]
    pub(crate) fn filled(client: &Client, pdbs: impl IntoIterator<Item = PodDisruptionBudget>) -> Self {
        let foreign = Index::by(foreign_in);
        let cache = drydock_runtime::Cache::filled(pdbs);
        Self {
            client: client.clone(),
            cache: AssumeCache::of_cache(cache, std::slice::from_ref(&foreign)),
            foreign,
            creating: Arc::default(),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.cache.shown().wait_until_synced().await;
    }

    /// Replaces the PDBs that the watch shows.
    #[cfg(test)]
    pub(crate) fn show(&self, pdbs: impl IntoIterator<Item = PodDisruptionBudget>) {
        self.cache.show(pdbs);
    }

    /// Returns Drydock's PDB that protects a pod.
    pub(crate) fn of(&self, pod: &Pod) -> Option<Arc<PodDisruptionBudget>> {
        self.cache.get(&Key::of(pod)).filter(|pdb| is_ours(pdb))
    }

    /// Returns a PDB of another owner that selects a pod.
    pub(crate) fn conflicting(&self, pod: &Pod) -> Option<Arc<PodDisruptionBudget>> {
        let pdbs = self.foreign_beside(pod);
        pdbs.into_iter().find(|pdb| selects(pdb, pod))
    }

    /// Returns the name of a PDB of another owner that currently allows no eviction of a pod.
    pub(crate) fn holding(&self, pod: &Pod) -> Option<String> {
        let pdbs = self.foreign_beside(pod);
        let holding = pdbs.iter().find(|pdb| is_holding(pdb, pod));
        holding.map(|pdb| pdb.name_any())
    }

    /// Returns the PDBs of other owners in the namespace of a pod.
    fn foreign_beside(&self, pod: &Pod) -> Vec<Arc<PodDisruptionBudget>> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        self.cache.by(&self.foreign, namespace)
    }

    /// Creates the PDB of a pod, unless it exists.
    ///
    /// # Errors
    /// If the API server does not create the PDB.
    pub(crate) async fn create(&self, pod: &Pod) -> kube::Result<()> {
        let Some(pdb) = of(pod) else { return Ok(()) };
        let uid = pod.uid().unwrap_or_default();
        let exists = self.of(pod).is_some_and(|pdb| goes_with(&pdb, pod));
        if exists || !self.creating.lock().insert(uid.clone()) {
            return Ok(());
        }
        let _creating = Creating {
            pods: &self.creating,
            uid,
        };
        match self.api(pod).create(&PostParams::default(), &pdb).await {
            Ok(created) => {
                self.cache.created(created, ASSUMED_FOR);
                Ok(())
            }
            // A PDB of an earlier pod with this name is deleted with that pod, and the watch shows the deletion.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a PDB. Does nothing if this process has already deleted it.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn delete(&self, pdb: &PodDisruptionBudget) -> kube::Result<()> {
        let uid = pdb.uid().unwrap_or_default();
        if self.cache.is_deleted(&uid) || pdb.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let parameters = deleting(Some(uid.clone()));
        unless_changed(self.api(pdb).delete(&pdb.name_any(), &parameters).await)?;
        self.cache.deleted(&Key::of(pdb), &uid);
        Ok(())
    }

    fn api(&self, of: &impl ResourceExt) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.client.clone(), &of.namespace().unwrap_or_default())
    }
}

/// Returns the namespace of a PDB if it belongs to another owner.
fn foreign_in(pdb: &PodDisruptionBudget) -> Option<String> {
    (!is_ours(pdb)).then(|| pdb.namespace().unwrap_or_default())
}

/// Keeps the fields that determine which pods a PDB selects.
fn prune(pdb: &mut PodDisruptionBudget) {
    pdb.metadata.managed_fields = None;
    if let Some(annotations) = &mut pdb.metadata.annotations {
        annotations.retain(|key, _| key == INSTANCE);
    }
    // Whether a PDB allows an eviction matters only for PDBs of other owners.
    let allowed = pdb.status.take().map(|status| status.disruptions_allowed);
    pdb.status = allowed
        .filter(|_| !is_ours(pdb))
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

    #[tokio::test]
    async fn only_foreign_pdbs_are_found_by_namespace() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": "p"}})).unwrap();
        let pdb = |name: &str, is_ours: bool| {
            let labels = is_ours.then(|| json!({drydock_api::kubevirt::names::LAUNCHER: "x"}));
            let metadata = json!({"namespace": "shop", "name": name, "labels": labels});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"selector": {}}})).unwrap()
        };
        let (client, _server) = api_server();
        let found = |pdbs: &Pdbs| pdbs.conflicting(&pod).map(|pdb| pdb.name_any());
        let pdbs = Pdbs::filled(&client, [pdb("a", true), pdb("b", false)]);
        assert_eq!(found(&pdbs), Some("b".into()));
        // The name now belongs to a PDB of Drydock.
        let change = CacheChange::Object {
            key: Key::namespaced("shop", "b"),
            old: Some(Arc::new(pdb("b", false))),
            new: Some(Arc::new(pdb("b", true))),
        };
        pdbs.cache.observe(&change);
        assert_eq!(found(&pdbs), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pdb_is_created_once_for_each_pod() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "p", "uid": "1", "labels": {drydock_api::kubevirt::names::LAUNCHER: "x"}},
        }))
        .unwrap();
        let (client, mut server) = api_server();
        let pdbs = Pdbs::filled(&client, []);
        // A PDB with this name is about to be deleted with an earlier pod, and is created again after that.
        let (there, ()) = tokio::join!(pdbs.create(&pod), async {
            server.next_request().await.refuse(409, "AlreadyExists");
        });
        there.unwrap();
        let (made, ()) = tokio::join!(pdbs.create(&pod), async {
            let request = server.next_request().await;
            let body = request.body.clone();
            assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "1");
            request.with(&body);
        });
        made.unwrap();
        // A PDB that the watch does not show yet is not created again before `ASSUMED_FOR` has passed.
        pdbs.create(&pod).await.unwrap();
        assert!(server.is_left_alone().await);
        tokio::time::sleep(ASSUMED_FOR + std::time::Duration::from_millis(1)).await;
        let (again, ()) = tokio::join!(pdbs.create(&pod), async {
            server.next_request().await.refuse(500, "InternalError");
        });
        assert!(again.is_err());
    }
}
