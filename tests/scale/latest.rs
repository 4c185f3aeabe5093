//! The newest state of the objects that all nodes watch, and the subscribers to their changes.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    pin::pin,
    sync::Arc,
};

use drydock_api::kubevirt::{
    Phase, VirtualMachineInstance, VirtualMachineInstanceMigration,
    names::{APP, VIRT_LAUNCHER},
};
use drydock_core::instance::ending::ended;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch};

use crate::requests::Requests;

/// Maximum number of unread changes of a reader. A reader that loses a change ends the process.
const CHANGES_BUFFERED: usize = 1 << 17;

/// Objects of one kind by UID.
pub(crate) struct LatestObjects<K> {
    client: Client,
    labels: Option<String>,
    objects: Mutex<HashMap<String, Arc<K>>>,
    /// Sends the UIDs of changed objects.
    changes: broadcast::Sender<String>,
}

impl<K> LatestObjects<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn new(client: &Client, labels: Option<String>) -> Self {
        Self {
            client: client.clone(),
            labels,
            objects: Mutex::default(),
            changes: broadcast::Sender::new(CHANGES_BUFFERED),
        }
    }

    /// Subscribes to each change from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<String> {
        self.changes.subscribe()
    }

    /// Returns the newest known state of an object.
    pub(crate) fn get(&self, uid: &str) -> Option<Arc<K>> {
        self.objects.lock().get(uid).cloned()
    }

    /// Stores the API server's response to a write before the watch shows the new state.
    pub(crate) fn store_response(&self, object: K) {
        let uid = object.uid().unwrap_or_default();
        if let Some(known) = self.objects.lock().get_mut(&uid)
            && version(known.as_ref()) < version(&object)
        {
            *known = Arc::new(object);
        }
    }

    async fn run(&self, on_change: impl Fn(&K)) {
        let config = watcher::Config {
            label_selector: self.labels.clone(),
            ..watcher::Config::default()
        };
        let mut events = pin!(watcher(Api::<K>::all(self.client.clone()), config).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(mut object) | Event::InitApply(mut object)) => {
                    object.managed_fields_mut().clear();
                    on_change(&object);
                    let uid = object.uid().unwrap_or_default();
                    {
                        let mut objects = self.objects.lock();
                        let newer = objects
                            .get(&uid)
                            .is_none_or(|known| version(known.as_ref()) <= version(&object));
                        if newer {
                            objects.insert(uid.clone(), Arc::new(object));
                        }
                    }
                    // Sending fails if there is no receiver yet, which is no error.
                    let _ = self.changes.send(uid);
                }
                Ok(Event::Delete(object)) => {
                    let uid = object.uid().unwrap_or_default();
                    self.objects.lock().remove(&uid);
                    let _ = self.changes.send(uid);
                }
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => eprintln!("a watch is interrupted: {error}"),
            }
        }
    }
}

fn version<K: Resource>(object: &K) -> u64 {
    let text = object.meta().resource_version.as_deref().unwrap_or_default();
    text.parse().unwrap_or(0)
}

/// UIDs of the pods of each instance, and the reverse. Deleted pods stay in the maps; [`LatestObjects::get`] does not
/// find them.
#[derive(Default)]
struct ByInstance {
    pods: HashMap<String, BTreeSet<String>>,
    instances: HashMap<String, String>,
}

/// All watched objects.
pub(crate) struct Latest {
    pub(crate) pods: LatestObjects<Pod>,
    pub(crate) instances: LatestObjects<VirtualMachineInstance>,
    pub(crate) migrations: LatestObjects<VirtualMachineInstanceMigration>,
    by_instance: Mutex<ByInstance>,
    running: watch::Sender<BTreeSet<String>>,
}

impl Latest {
    /// Creates empty collections; nothing is watched before [`Self::run`].
    pub(crate) fn start(requests: &Requests) -> Arc<Self> {
        let client = &requests.client;
        Arc::new(Self {
            pods: LatestObjects::new(client, Some(format!("{APP}={VIRT_LAUNCHER}"))),
            instances: LatestObjects::new(client, None),
            migrations: LatestObjects::new(client, None),
            by_instance: Mutex::default(),
            running: watch::Sender::new(BTreeSet::new()),
        })
    }

    /// Watches the objects forever.
    pub(crate) async fn run(&self) {
        tokio::join!(
            self.pods.run(|pod| self.index(pod)),
            self.instances.run(|instance| {
                let phase = instance.phase();
                if phase == Some(Phase::Running) {
                    let uid = instance.uid().unwrap_or_default();
                    self.running.send_if_modified(|running| running.insert(uid));
                }
            }),
            self.migrations.run(|_| {}),
        );
    }

    /// Waits until this number of instances are running.
    pub(crate) async fn until_running(&self, count: usize) {
        let mut running = self.running.subscribe();
        // Waiting cannot fail: `self` owns the sender.
        let _ = running.wait_for(|running| running.len() >= count).await;
    }

    fn index(&self, pod: &Pod) {
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let (Some(owner), Some(uid)) = (owners.first(), pod.uid()) else {
            return;
        };
        let mut index = self.by_instance.lock();
        index.pods.entry(owner.uid.clone()).or_default().insert(uid.clone());
        index.instances.insert(uid, owner.uid.clone());
    }

    /// Returns the UID of the instance to which a pod belongs.
    pub(crate) fn instance_of(&self, pod: &str) -> Option<String> {
        let index = self.by_instance.lock();
        index.instances.get(pod).cloned()
    }

    /// Returns the pod of an instance on a node, if the pod's container runs.
    pub(crate) fn pod_on(&self, instance: &str, node: &str) -> Option<Arc<Pod>> {
        let index = self.by_instance.lock();
        let uids: Vec<String> = index.pods.get(instance).into_iter().flatten().cloned().collect();
        drop(index);
        let mut pods = uids.iter().filter_map(|uid| self.pods.get(uid));
        pods.find(|pod| {
            let here = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
            let status = pod.status.as_ref();
            let started = status.is_some_and(|status| status.container_statuses.is_some());
            here && started && ended(pod).is_none()
        })
    }
}
