//! Watches that continue when the API server ends them or cannot be reached for a while.

use std::{fmt::Debug, pin::pin, time::Duration};

use drydock_runtime::clock;
use futures::StreamExt;
use jiff::Timestamp;
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};

use crate::failure::CommandError;

/// Pause before a watch that has ended is opened again.
const AGAIN: Duration = Duration::from_secs(1);
/// Time without a response of the API server after which this is reported.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);

/// An event of a watch.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// All objects. Sent at first and whenever the watch is opened again.
    Listed(Vec<K>),
    /// An object is new or has changed.
    Changed(K),
    /// An object has been deleted.
    Gone(K),
    /// The API server cannot be reached since this time, with this error.
    Unreachable(Timestamp, String),
    /// The API server has refused the watch. This is the last event.
    Failed(CommandError),
}

impl<K> Change<K> {
    /// Returns the time since which the API server cannot be reached, and the reason. Returns `None` for all other
    /// events.
    pub(crate) fn unreachable_since(&self) -> Option<(Timestamp, String)> {
        match self {
            Self::Unreachable(since, cause) => Some((*since, cause.clone())),
            _ => None,
        }
    }
}

/// Watches all objects of a kind, or those that `fields` select, and sends each change to `send`. Ends if the API
/// server refuses the watch, or if `send` returns `false`.
pub(crate) async fn watch<K>(api: Api<K>, fields: Option<String>, send: impl Fn(Change<K>) -> bool)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let list = ListParams {
        field_selector: fields.clone(),
        ..ListParams::default()
    };
    let watch = WatchParams {
        field_selector: fields,
        ..WatchParams::default()
    };
    let mut is_first = true;
    loop {
        let Some((found, version)) = listed(&api, &list, is_first, &send).await else {
            return;
        };
        is_first = false;
        if !send(Change::Listed(found)) {
            return;
        }
        // After an error of the connection or an outdated resource version, the watch is opened again with a new list.
        if let Ok(events) = api.watch(&watch, &version).await {
            let mut events = pin!(events);
            while let Some(event) = events.next().await {
                let goes_on = match event {
                    Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => send(Change::Changed(object)),
                    Ok(WatchEvent::Deleted(object)) => send(Change::Gone(object)),
                    Ok(WatchEvent::Bookmark(_)) => true,
                    Ok(WatchEvent::Error(_)) | Err(_) => break,
                };
                if !goes_on {
                    return;
                }
            }
        }
        sleep(AGAIN).await;
    }
}

/// Lists the objects, and repeats that until the API server responds. Returns `None` if the API server refuses the
/// list.
async fn listed<K>(
    api: &Api<K>,
    parameters: &ListParams,
    is_first: bool,
    send: &impl Fn(Change<K>) -> bool,
) -> Option<(Vec<K>, String)>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let (since, report_at) = (clock::now(), Instant::now() + UNREACHABLE_AFTER);
    let (mut reported, mut cause) = (is_first, "the API server does not respond".to_owned());
    loop {
        let mut attempt = pin!(api.list(parameters));
        let result = loop {
            tokio::select! {
                result = &mut attempt => break result,
                () = sleep_until(report_at), if !reported => {
                    reported = true;
                    send(Change::Unreachable(since, cause.clone()));
                }
            }
        };
        match result {
            Ok(list) => return Some((list.items, list.metadata.resource_version.unwrap_or_default())),
            // The cluster does not have this kind, so there will be no events.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                send(Change::Listed(Vec::new()));
                return None;
            }
            Err(error) if is_first || is_refusal(&error) => {
                send(Change::Failed(CommandError::Request(error)));
                return None;
            }
            // The API server may be restarting. The drain continues in the meantime.
            Err(error) => cause = error.to_string(),
        }
        sleep(AGAIN).await;
    }
}

/// Returns whether the API server has refused a request for good, so that a repetition would fail as well.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

#[cfg(test)]
mod tests {
    use drydock_api::Hypervisor;
    use drydock_runtime::fake::{ApiServer, api_server};
    use serde_json::json;
    use tokio::{
        sync::mpsc::{UnboundedReceiver, unbounded_channel},
        task::JoinSet,
    };

    use super::*;

    /// Returns a watch of Hypervisors, its API server, and the receiver of its changes.
    fn watched() -> (JoinSet<()>, ApiServer, UnboundedReceiver<Change<Hypervisor>>) {
        let (client, server) = api_server();
        let (sender, changes) = unbounded_channel();
        let mut watches = JoinSet::new();
        watches.spawn(watch(Api::all(client), None, move |change| sender.send(change).is_ok()));
        (watches, server, changes)
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_api_server_is_reported_once_until_a_list() {
        let (_watches, mut server, mut changes) = watched();
        let object =
            json!({"apiVersion": "drydock.dev/v1alpha1", "kind": "Hypervisor", "metadata": {"name": "a"}, "spec": {}});
        server.next_request().await.list("1", std::slice::from_ref(&object));
        assert!(matches!(changes.recv().await, Some(Change::Listed(all)) if all.len() == 1));
        let request = server.next_request().await;
        assert!(request.query().contains("resourceVersion=1"), "{}", request.line);
        // The watch sends one object and ends.
        request.streams("Hypervisor", &[object], "2");
        assert!(matches!(changes.recv().await, Some(Change::Changed(_))));
        let (hanging, began) = (server.next_request().await, Instant::now());
        assert!(matches!(changes.recv().await, Some(Change::Unreachable(..))));
        assert_eq!(began.elapsed().as_secs(), UNREACHABLE_AFTER.as_secs());
        drop(hanging);
        server.next_request().await.list("3", &[]);
        assert!(matches!(changes.recv().await, Some(Change::Listed(all)) if all.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn kind_that_does_not_exist_has_no_objects() {
        let (mut watches, mut server, mut changes) = watched();
        server.next_request().await.refuse(404, "NotFound");
        assert!(matches!(changes.recv().await, Some(Change::Listed(all)) if all.is_empty()));
        assert!(watches.join_next().await.is_some_and(|ended| ended.is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_is_refused_has_failed() {
        let (mut watches, mut server, mut changes) = watched();
        server.next_request().await.refuse(403, "Forbidden");
        let Some(Change::Failed(failure)) = changes.recv().await else {
            panic!("it was not refused");
        };
        assert_eq!(failure.exit(), crate::Exit::NotAllowed);
        assert!(watches.join_next().await.is_some_and(|ended| ended.is_ok()));
    }
}
