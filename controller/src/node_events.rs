//! Events on Nodes, published beside the work that they are about: nothing waits for one.

use drydock_runtime::{Process, chain};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Client, ResourceExt,
    api::PartialObjectMeta,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::sync::mpsc;
use tracing::warn;

/// Most events that wait to be published; more than that are dropped, with a line in the log.
const QUEUE: usize = 1024;

/// Where events are put.
#[derive(Clone)]
pub(crate) struct NodeEvents {
    queue: mpsc::Sender<(Event, ObjectReference)>,
}

impl NodeEvents {
    /// Publishes in the name of the pod `instance`.
    pub(crate) fn start(client: Client, instance: String, process: &Process) -> Self {
        let reporter = Reporter {
            controller: "drydock-controller".into(),
            instance: Some(instance),
        };
        let recorder = Recorder::new(client, reporter);
        let (queue, mut events) = mpsc::channel::<(Event, ObjectReference)>(QUEUE);
        let stopping = process.stopping();
        process.spawn("events", async move {
            while let Some(Some((event, about))) = stopping.run_until_cancelled(events.recv()).await {
                if let Err(error) = recorder.publish(&event, &about).await {
                    warn!(reason = event.reason, error = %chain(&error), "an event was not published");
                }
            }
        });
        Self { queue }
    }

    /// Puts a warning on a Node.
    pub(crate) fn publish(&self, node: &PartialObjectMeta<Node>, reason: &str, message: String) {
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: node.metadata.name.clone(),
            uid: node.uid(),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: reason.into(),
            note: Some(message),
            action: "Watch".into(),
            secondary: None,
        };
        if self.queue.try_send((event, about)).is_err() {
            warn!(reason, "an event was dropped: too many wait to be published");
        }
    }
}
