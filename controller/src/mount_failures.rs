//! Volumes that kubelets cannot mount into launcher pods. Only the events of the pods contain their names.
//!
//! Watching events needs the least permissions: the missing object may be a Secret, which the controller has no right
//! to read.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use drydock_core::instance::inputs::FAILED_MOUNT;
use drydock_runtime::{Cache, CacheChange, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::Client;
use parking_lot::Mutex;

/// Name prefix of launcher pods.
const LAUNCHERS: &str = "virt-launcher-";

/// Time of the last occurrence of an event, and its message.
type LastFailure = (Option<Timestamp>, String);

/// The last kubelet message about the volumes of each pod. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountFailures {
    events: Cache<Event>,
    of_pods: Arc<Mutex<HashMap<String, BTreeMap<Key, LastFailure>>>>,
}

impl MountFailures {
    /// Starts watching. `on_change` is called with each pod whose last message has changed.
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        mut on_change: impl FnMut(Key) + Send + 'static,
    ) -> Self {
        let mut failures = Self::default();
        let index = failures.clone();
        let events = Watch::<Event>::all(client.clone(), "mount failures")
            .listing(ListMode::Streamed)
            .fields(format!("involvedObject.kind=Pod,reason={FAILED_MOUNT}"))
            .prune(prune)
            .on_change(move |change| {
                if let Some(pod) = index.observe(change) {
                    on_change(pod);
                }
            });
        failures.events = watches.start(events);
        failures
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        self.events.wait_until_synced().await;
    }

    /// Records an event. Returns its pod if the last message of that pod has changed.
    fn observe(&self, change: &CacheChange<Event>) -> Option<Key> {
        let CacheChange::Object { key, old, new } = change else {
            return None;
        };
        let event = new.as_ref().or(old.as_ref())?;
        let involved = &event.involved_object;
        let (namespace, name, uid) = (
            involved.namespace.as_deref()?,
            involved.name.as_deref()?,
            involved.uid.as_ref()?,
        );
        if !name.starts_with(LAUNCHERS) {
            return None;
        }
        let mut of_pods = self.of_pods.lock();
        let before = newest(of_pods.get(uid)).map(str::to_owned);
        if new.is_some() {
            let report = (last(event), event.message.clone().unwrap_or_default());
            of_pods.entry(uid.clone()).or_default().insert(key.clone(), report);
        } else if let Some(events) = of_pods.get_mut(uid) {
            events.remove(key);
            if events.is_empty() {
                of_pods.remove(uid);
            }
        }
        // A repeated event without a new message is not a change.
        (newest(of_pods.get(uid)).map(str::to_owned) != before).then(|| Key::namespaced(namespace, name))
    }

    /// Returns the last kubelet message about the volumes of the pod with this UID.
    pub(crate) fn of(&self, uid: &str) -> Option<String> {
        let of_pods = self.of_pods.lock();
        newest(of_pods.get(uid)).map(str::to_owned)
    }
}

fn newest(events: Option<&BTreeMap<Key, LastFailure>>) -> Option<&str> {
    let events = events?.values();
    events
        .max_by_key(|(time, _)| *time)
        .map(|(_, message)| message.as_str())
}

/// Returns the time of the last occurrence of an event.
fn last(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let times = [
        series.map(|time| time.0),
        event.last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
        event.first_timestamp.as_ref().map(|time| time.0),
    ];
    times.into_iter().flatten().max()
}

fn prune(event: &mut Event) {
    event.related = None;
    event.source = None;
    let is_launcher = |name: &String| name.starts_with(LAUNCHERS);
    if !event.involved_object.name.as_ref().is_some_and(is_launcher) {
        event.message = None;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(name: &str, pod: &str, seconds: &str, message: &str) -> Arc<Event> {
        let event = json!({
            "metadata": {"name": name, "namespace": "shop"},
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": pod, "uid": format!("uid-{pod}")},
            "reason": "FailedMount",
            "message": message,
            "lastTimestamp": format!("2026-01-01T00:00:{seconds}Z"),
        });
        Arc::new(serde_json::from_value(event).unwrap())
    }

    fn change(old: Option<&Arc<Event>>, new: Option<&Arc<Event>>) -> CacheChange<Event> {
        let event = new.or(old).unwrap();
        CacheChange::Object {
            key: Key::namespaced("shop", event.metadata.name.as_deref().unwrap()),
            old: old.cloned(),
            new: new.cloned(),
        }
    }

    #[test]
    fn the_newest_event_of_a_pod_counts_and_repetitions_do_not() {
        let failures = MountFailures::default();
        let pod = "virt-launcher-vm-a";
        let of = || failures.of("uid-virt-launcher-vm-a");
        let (first, later) = (event("a", pod, "01", "one"), event("b", pod, "02", "two"));
        let again = event("b", pod, "05", "two");
        let key = Some(Key::namespaced("shop", pod));
        assert_eq!(failures.observe(&change(None, Some(&first))), key);
        assert_eq!(of().as_deref(), Some("one"));
        assert_eq!(failures.observe(&change(None, Some(&later))), key);
        assert_eq!(of().as_deref(), Some("two"));
        assert_eq!(failures.observe(&change(Some(&later), Some(&again))), None);
        assert_eq!(failures.observe(&change(Some(&first), None)), None);
        assert_eq!(failures.observe(&change(Some(&again), None)), key);
        assert_eq!(of(), None);
        assert_eq!(failures.of_pods.lock().len(), 0);
    }

    #[test]
    fn events_of_other_pods_are_not_kept() {
        let failures = MountFailures::default();
        let other = event("a", "web-1", "01", "secret");
        assert_eq!(failures.observe(&change(None, Some(&other))), None);
        assert_eq!(failures.of("uid-web-1"), None);
        let mut pruned = other.as_ref().clone();
        prune(&mut pruned);
        assert_eq!(pruned.message, None);
    }
}
