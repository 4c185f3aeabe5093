//! The objects that the console shows. Watches keep them up to date.
//!
//! ```text
//!  API server ──watch──▶ one cache for each kind, pruned ──▶ Snapshot ──▶ pages
//!                                └─▶ counter of changes, for waiting pages
//! ```
//!
//! Kinds of objects that the user may not watch are listed on every page and not considered.

use std::{fmt::Debug, sync::Arc};

use drydock_api::{
    HyperConverged, Hypervisor,
    kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration},
    legacy::CONFIG_MAP,
    maintenance::{Group, NodeMaintenance},
};
use drydock_runtime::{
    Cache, CacheChange, ListMode, Process, Readiness, Registry, Watch, WatchMetrics, WatchProblem, WatchStarter, clock,
};
use drydock_view::{
    prune,
    snapshot::{Snapshot, UnreadKind},
};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Caches of all kinds of objects. Clones share them.
#[derive(Clone)]
pub(super) struct Store {
    nodes: Cache<Node>,
    hypervisors: Cache<Hypervisor>,
    pods: Cache<Pod>,
    instances: Cache<VirtualMachineInstance>,
    machines: Cache<VirtualMachine>,
    migrations: Cache<VirtualMachineInstanceMigration>,
    budgets: Cache<PodDisruptionBudget>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    config_maps: Cache<ConfigMap>,
    hyperconvergeds: Cache<HyperConverged>,
    maintenances: Vec<(Group, Cache<NodeMaintenance>)>,
    changes: ChangeCounter,
}

/// Counts changes, and records the time since which a watch is broken.
#[derive(Clone)]
struct ChangeCounter {
    count: watch::Sender<u64>,
    /// Time at which the first of the currently broken watches broke.
    broken_since: Arc<Mutex<Option<Timestamp>>>,
}

impl ChangeCounter {
    fn count(&self) {
        self.count.send_modify(|count| *count += 1);
    }

    fn of<K>(&self, change: &CacheChange<K>) {
        if let CacheChange::SyncState(state) = change
            && matches!(state.problem, Some(WatchProblem::Failing(_)))
        {
            let mut since = self.broken_since.lock();
            since.get_or_insert_with(clock::now);
        }
        self.count();
    }
}

impl Store {
    /// Starts the watches of all kinds.
    pub(super) fn start(client: &Client, process: &Process) -> Self {
        let metrics = WatchMetrics::register(&mut Registry::default());
        let watches = WatchStarter::new(process, &Readiness::new(), &metrics);
        let changes = ChangeCounter {
            count: watch::Sender::new(0),
            broken_since: Arc::default(),
        };
        let starter = Starter {
            client,
            watches: &watches,
            changes: &changes,
        };
        Self {
            nodes: starter.all("nodes", |watch| watch.prune(prune::node)),
            hypervisors: starter.all("hypervisors", |watch| watch.prune(strip)),
            pods: starter.all("pods", |watch| {
                watch
                    .listing(ListMode::Streamed)
                    .fields("status.phase!=Succeeded,status.phase!=Failed")
                    .prune(prune::pod)
            }),
            instances: starter.all("virtualmachineinstances", |watch| {
                watch.listing(ListMode::Streamed).prune(strip)
            }),
            machines: starter.all("virtualmachines", |watch| {
                watch.listing(ListMode::Streamed).prune(strip)
            }),
            migrations: starter.all("virtualmachineinstancemigrations", |watch| watch.prune(strip)),
            budgets: starter.all("poddisruptionbudgets", |watch| watch.prune(strip)),
            claims: starter.all("persistentvolumeclaims", |watch| watch.prune(prune::claim)),
            volumes: starter.all("persistentvolumes", |watch| watch.prune(prune::volume)),
            config_maps: starter.all("configmaps", |watch| {
                watch.fields(format!("metadata.name={CONFIG_MAP}"))
            }),
            hyperconvergeds: starter.all("hyperconvergeds", |watch| watch),
            maintenances: Group::ALL
                .into_iter()
                .map(|group| {
                    let watch = Watch::dynamic(client.clone(), &group, "nodemaintenances");
                    (group, starter.start(watch.prune(strip)))
                })
                .collect(),
            changes,
        }
    }

    /// Returns a receiver of the counter of changes.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.count.subscribe()
    }

    /// Waits until every kind was listed or cannot be listed.
    pub(super) async fn wait_until_synced(&self) {
        let mut changes = self.changes();
        while self.is_listing() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn is_listing(&self) -> bool {
        self.sync_states()
            .iter()
            .any(|(_, state)| !state.synced && state.problem.is_none())
    }

    /// Returns the time since which the shown state may be outdated because a synced watch broke.
    pub(super) fn stale_since(&self) -> Option<Timestamp> {
        let failing = self
            .sync_states()
            .iter()
            .any(|(_, state)| matches!(state.problem, Some(WatchProblem::Failing(_))));
        let mut since = self.changes.broken_since.lock();
        if !failing {
            *since = None;
        }
        *since
    }

    /// Returns the current objects.
    pub(super) fn snapshot(&self, at: Timestamp) -> Snapshot {
        let unread = self.sync_states().into_iter().filter_map(|(resource, state)| {
            let why = match state.problem? {
                // The cluster does not have this kind, so no object is missing.
                WatchProblem::KindMissing => return None,
                WatchProblem::Forbidden => "forbidden".to_owned(),
                // The objects that were read before are shown, and marked as outdated.
                WatchProblem::Failing(_) if state.synced => return None,
                WatchProblem::Failing(why) => why,
            };
            let resource = resource.to_owned();
            Some(UnreadKind { resource, why })
        });
        let maintenances = self
            .maintenances
            .iter()
            .flat_map(|(group, cache)| cache.all().into_iter().map(|object| (*group, object)));
        Snapshot {
            at,
            unread: unread.collect(),
            nodes: self.nodes.all(),
            hypervisors: self.hypervisors.all(),
            pods: self.pods.all(),
            instances: self.instances.all(),
            machines: self.machines.all(),
            migrations: self.migrations.all(),
            budgets: self.budgets.all(),
            claims: self.claims.all(),
            volumes: self.volumes.all(),
            config_maps: self.config_maps.all(),
            hyperconvergeds: self.hyperconvergeds.all(),
            maintenances: maintenances.collect(),
        }
    }

    fn sync_states(&self) -> Vec<(&'static str, drydock_runtime::SyncState)> {
        let mut states = vec![
            ("nodes", self.nodes.sync_state()),
            ("hypervisors", self.hypervisors.sync_state()),
            ("pods", self.pods.sync_state()),
            ("virtualmachineinstances", self.instances.sync_state()),
            ("virtualmachines", self.machines.sync_state()),
            ("virtualmachineinstancemigrations", self.migrations.sync_state()),
            ("poddisruptionbudgets", self.budgets.sync_state()),
            ("persistentvolumeclaims", self.claims.sync_state()),
            ("persistentvolumes", self.volumes.sync_state()),
            ("configmaps", self.config_maps.sync_state()),
            ("hyperconvergeds", self.hyperconvergeds.sync_state()),
        ];
        let maintenances = self.maintenances.iter();
        states.extend(maintenances.map(|(_, cache)| ("nodemaintenances", cache.sync_state())));
        states
    }
}

/// Starts watches that count their changes.
struct Starter<'a> {
    client: &'a Client,
    watches: &'a WatchStarter,
    changes: &'a ChangeCounter,
}

impl Starter<'_> {
    fn all<K>(&self, name: &'static str, options: impl FnOnce(Watch<K>) -> Watch<K>) -> Cache<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        self.start(options(Watch::all(self.client.clone(), name)))
    }

    fn start<K>(&self, watch: Watch<K>) -> Cache<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Clone + Debug,
    {
        let changes = self.changes.clone();
        self.watches
            .start(watch.optional().on_change(move |change| changes.of(change)))
    }
}

/// Removes fields of an object that only its writers use.
fn strip<K: Resource>(object: &mut K) {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}
