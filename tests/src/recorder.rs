//! Records every state of some objects, so that a test can check all of them afterwards.
//!
//! A recorder starts from the resource version of a *list*: the version of a single object may be older than the API
//! server's watch window (a restarted server has no versions from before its start). Bookmarks advance the version
//! while nothing changes. If the API server has dropped the version nevertheless (410 Gone), the recorder lists again
//! and continues. If an object has changed in the meantime, [`Recorder::stop`] fails, since the record may lack a
//! state.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use anyhow::{Result, bail};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, ObjectList, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{Cluster, watching::PATIENCE};

/// Pause before a watch that could not be opened or has broken is opened again.
const REOPEN_AFTER: Duration = Duration::from_millis(250);
/// HTTP status for a resource version that the API server no longer has.
const GONE: u16 = 410;

/// All recorded objects at one time, by name.
pub type Snapshot<K> = BTreeMap<String, K>;

/// Records every state of the objects of an API from [`Recorder::start`] to [`Recorder::stop`].
pub struct Recorder<K> {
    task: JoinHandle<Result<Record<K>>>,
    stop: CancellationToken,
}

impl<K> Recorder<K>
where
    K: Resource + Clone + Debug + Send + DeserializeOwned + 'static,
{
    /// Starts to record the objects that match a field selector, or all if it is empty.
    ///
    /// # Errors
    /// If the objects cannot be listed.
    #[expect(clippy::disallowed_methods, reason = "a test waits for its own task")]
    pub async fn start(api: Api<K>, fields: &str) -> Result<Self> {
        let record = Record::new(list(&api, fields).await?)?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(follow(api, fields.to_owned(), record, stop.clone()));
        Ok(Self { task, stop })
    }

    /// Stops, and returns all states in order. The first is the state at the start.
    ///
    /// # Errors
    /// If the recording failed, or if it may lack a state.
    pub async fn stop(self) -> Result<Vec<Snapshot<K>>> {
        self.stop.cancel();
        self.task.await??.complete()
    }
}

impl Cluster {
    /// Records every state of a Node.
    ///
    /// # Errors
    /// If Nodes cannot be listed.
    pub async fn record_node(&self, node: &str) -> Result<Recorder<Node>> {
        Recorder::start(Api::all(self.client.clone()), &format!("metadata.name={node}")).await
    }
}

/// Returns the states of the object with this name, in order, without snapshots in which it does not exist.
pub fn states_of<K>(states: Vec<Snapshot<K>>, name: &str) -> Vec<K> {
    states.into_iter().filter_map(|mut state| state.remove(name)).collect()
}

async fn list<K>(api: &Api<K>, fields: &str) -> kube::Result<ObjectList<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    api.list(&ListParams::default().fields(fields)).await
}

/// Watches the objects until `stop`. Watches that end or break are reopened from the last version.
async fn follow<K>(api: Api<K>, fields: String, mut record: Record<K>, stop: CancellationToken) -> Result<Record<K>>
where
    K: Resource + Clone + Debug + Send + DeserializeOwned + 'static,
{
    let parameters = WatchParams::default().fields(&fields);
    loop {
        let round = async {
            let mut events = Box::pin(api.watch(&parameters, &record.version).await?);
            while let Some(event) = events.try_next().await? {
                record.apply(event)?;
            }
            Ok::<(), kube::Error>(())
        };
        let result = tokio::select! {
            () = stop.cancelled() => return Ok(record),
            result = round => result,
        };
        if matches!(&result, Err(kube::Error::Api(status)) if status.code == GONE) {
            record.resume(relist(&api, &fields).await?)?;
        } else if result.is_err() {
            sleep(REOPEN_AFTER).await;
        }
    }
}

/// Lists the objects again. Retries for as long as the API server may be unavailable in a test.
async fn relist<K>(api: &Api<K>, fields: &str) -> Result<ObjectList<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match timeout_at(deadline, list(api, fields)).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) if Instant::now() > deadline => return Err(error.into()),
            Ok(Err(_)) => sleep(REOPEN_AFTER).await,
            Err(_) => bail!("the API server did not list the recorded objects again"),
        }
    }
}

/// The states recorded so far.
#[derive(Debug)]
struct Record<K> {
    version: String,
    states: Vec<Snapshot<K>>,
    gaps: Vec<String>,
}

impl<K> Record<K>
where
    K: Resource + Clone,
{
    fn new(list: ObjectList<K>) -> Result<Self> {
        let (version, first) = parts(list)?;
        Ok(Self {
            version,
            states: vec![first],
            gaps: Vec::new(),
        })
    }

    fn current(&self) -> Snapshot<K> {
        self.states.last().cloned().unwrap_or_default()
    }

    /// Applies a watch event. If the event is an error, returns that error.
    fn apply(&mut self, event: WatchEvent<K>) -> kube::Result<()> {
        let mut next = self.current();
        match event {
            WatchEvent::Bookmark(bookmark) => {
                self.version = bookmark.metadata.resource_version;
                return Ok(());
            }
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.version = object.resource_version().unwrap_or_default();
                next.insert(object.name_any(), object);
            }
            WatchEvent::Deleted(object) => {
                self.version = object.resource_version().unwrap_or_default();
                next.remove(&object.name_any());
            }
        }
        self.states.push(next);
        Ok(())
    }

    /// Continues from a new list, after the API server has dropped the last version.
    fn resume(&mut self, list: ObjectList<K>) -> Result<()> {
        let (version, next) = parts(list)?;
        let current = self.current();
        let versions = |snapshot: &Snapshot<K>| -> Vec<_> {
            snapshot
                .values()
                .map(|object| (object.uid(), object.resource_version()))
                .collect()
        };
        if versions(&current) != versions(&next) {
            self.gaps.push(format!("{} and {version}", self.version));
            self.states.push(next);
        }
        self.version = version;
        Ok(())
    }

    fn complete(self) -> Result<Vec<Snapshot<K>>> {
        if !self.gaps.is_empty() {
            let gaps = self.gaps.join("; ");
            bail!("states may be missing from the record, between the resource versions {gaps}");
        }
        Ok(self.states)
    }
}

/// Returns the version of a list and its objects by name.
fn parts<K: Resource + Clone>(list: ObjectList<K>) -> Result<(String, Snapshot<K>)> {
    let Some(version) = list.metadata.resource_version.filter(|version| !version.is_empty()) else {
        bail!("the API server returned a list without a resourceVersion");
    };
    let objects = list
        .items
        .into_iter()
        .map(|object| (object.name_any(), object))
        .collect();
    Ok((version, objects))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;

    fn map(name: &str, version: &str) -> Value {
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": version}})
    }

    fn listed(version: &str, items: &[Value]) -> ObjectList<ConfigMap> {
        serde_json::from_value(json!({"metadata": {"resourceVersion": version}, "items": items})).unwrap()
    }

    fn event(kind: &str, object: &Value) -> WatchEvent<ConfigMap> {
        serde_json::from_value(json!({"type": kind, "object": object})).unwrap()
    }

    fn versions(states: &[Snapshot<ConfigMap>]) -> Vec<Vec<String>> {
        let version = |object: &ConfigMap| object.resource_version().unwrap_or_default();
        states
            .iter()
            .map(|state| state.values().map(version).collect())
            .collect()
    }

    #[test]
    fn record_starts_from_the_version_of_the_list() {
        let record = Record::new(listed("90", &[map("a", "3")])).unwrap();
        assert_eq!(record.version, "90");
        assert!(Record::<ConfigMap>::new(listed("", &[])).is_err());
    }

    #[test]
    fn events_and_bookmarks_move_the_version_on() {
        let mut record = Record::new(listed("90", &[map("a", "3")])).unwrap();
        let bookmark = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "95"}});
        record.apply(event("BOOKMARK", &bookmark)).unwrap();
        assert_eq!(record.version, "95");
        record.apply(event("MODIFIED", &map("a", "97"))).unwrap();
        record.apply(event("ADDED", &map("b", "98"))).unwrap();
        record.apply(event("DELETED", &map("a", "99"))).unwrap();
        assert_eq!(record.version, "99");
        let states = record.complete().unwrap();
        assert_eq!(versions(&states), [vec!["3"], vec!["97"], vec!["97", "98"], vec!["98"]]);
    }

    #[test]
    fn expired_version_without_a_change_leaves_no_gap() {
        let mut record = Record::new(listed("90", &[map("a", "3")])).unwrap();
        let gone =
            json!({"status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410});
        let error = record.apply(event("ERROR", &gone)).unwrap_err();
        assert!(matches!(error, kube::Error::Api(status) if status.code == GONE));
        record.resume(listed("200", &[map("a", "3")])).unwrap();
        assert_eq!(record.version, "200");
        assert_eq!(versions(&record.complete().unwrap()), [["3"]]);
    }

    #[test]
    fn expired_version_with_a_change_is_reported() {
        let changes: [&[Value]; 3] = [&[map("a", "150")], &[], &[map("a", "3"), map("b", "150")]];
        for items in changes {
            let mut record = Record::new(listed("90", &[map("a", "3")])).unwrap();
            record.resume(listed("200", items)).unwrap();
            let error = record.complete().unwrap_err().to_string();
            assert!(error.contains("90 and 200"), "{error}");
        }
    }
}
