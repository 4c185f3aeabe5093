//! Events of `events.k8s.io/v1`, which `kubectl describe` shows for an object.
//!
//! # Guarantees
//! - [`Events::publish`] neither waits nor fails. Events that cannot be queued or written are counted and dropped.
//! - A repeated event (same object, reason, action and note) becomes a series of one event, written at most once per
//!   [`SERIES_EVERY`].
//! - Events that are queued when the process stops are still written if that takes no longer than [`DRAIN_TIMEOUT`].
//!
//! kube's `Recorder` is not used: it aggregates events with different notes and keeps the first note, it writes each
//! repetition, and it has no bound.

use crate::{Process, chain, clock, metrics::Label};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1 as api},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde_json::json;
use std::{borrow::Cow, collections::HashMap, time::Duration};
use tokio::{sync::mpsc, time::Instant};

/// Interval at which the count of a repeated event is written.
pub const SERIES_EVERY: Duration = Duration::from_secs(60);
/// Time limit for draining the queue when the process stops.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// A series ends after this time without a repetition: the next occurrence is a new event.
const SERIES_ENDS_AFTER: Duration = Duration::from_secs(360);
/// Maximum number of events in the queue.
const QUEUE: usize = 256;
/// Maximum number of events that are tracked as series.
const REMEMBERED: usize = 1024;
/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a note that the API server accepts, in bytes.
const LONGEST_NOTE: usize = 1024;
const LONGEST_NAME_FIELD: usize = 128;
/// Maximum size of the object's name in the event's name, in bytes. Leaves room for the suffix that makes it unique.
const LONGEST_NAME: usize = 230;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Informational.
    Normal,
    /// A user may have to act.
    Warning,
}

impl Severity {
    /// Returns `Warning` if `is_warning`, else `Normal`.
    pub fn of(is_warning: bool) -> Self {
        if is_warning { Self::Warning } else { Self::Normal }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An event of an object.
#[derive(Clone, Debug)]
pub struct Event {
    /// The object of the event. Events of cluster-scoped objects are in the namespace `default`.
    pub regarding: ObjectReference,
    /// A second object that the event involves.
    pub related: Option<ObjectReference>,
    /// The type of the event.
    pub severity: Severity,
    /// The reason, machine-readable, in CamelCase.
    pub reason: Cow<'static, str>,
    /// The action, in CamelCase.
    pub action: Cow<'static, str>,
    /// A sentence for users.
    pub note: String,
}

impl Event {
    /// Creates an event that involves no second object.
    pub fn new(
        regarding: ObjectReference,
        action: &'static str,
        severity: Severity,
        reason: &'static str,
        note: impl Into<String>,
    ) -> Self {
        Self {
            regarding,
            related: None,
            severity,
            reason: reason.into(),
            action: action.into(),
            note: note.into(),
        }
    }
}

/// The reporting controller.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// The component's name, such as `drydock-agent`.
    pub component: &'static str,
    /// The process of the component, such as the name of its pod.
    pub instance: String,
}

/// Accepts events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Events {
    queue: mpsc::Sender<Event>,
    metrics: EventMetrics,
}

impl Events {
    /// Starts the task that writes events.
    pub fn start(process: &Process, client: Client, reporter: Reporter, metrics: &EventMetrics) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE);
        let mut writer = EventWriter {
            client,
            reporter,
            metrics: metrics.clone(),
            known: HashMap::new(),
            failing: false,
        };
        let stopping = process.stopping();
        process.spawn_critical("writing events", async move {
            let mut queued = queued;
            stopping.run_until_cancelled(writer.run(&mut queued)).await;
            queued.close();
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, async {
                while let Some(event) = queued.recv().await {
                    writer.write(event, Instant::now()).await;
                }
                writer.write_series(None).await;
            })
            .await;
        });
        Self {
            queue,
            metrics: metrics.clone(),
        }
    }

    /// Queues an event.
    pub fn publish(&self, event: Event) {
        if let Err(error) = self.queue.try_send(event) {
            self.metrics.count("dropped");
            tracing::debug!(error = %chain(&error), "dropped an event");
        }
    }

    /// Returns a recorder of events with this action, in CamelCase.
    pub fn recorder(&self, action: &'static str) -> EventRecorder {
        EventRecorder {
            events: self.clone(),
            action,
        }
    }
}

/// Queues events that have the same action.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    events: Events,
    action: &'static str,
}

impl EventRecorder {
    /// Queues an event of an object. `reason` is machine-readable, in CamelCase; `note` is a sentence for users.
    pub fn record<K>(&self, object: &K, severity: Severity, reason: &'static str, note: impl Into<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        let regarding = object.object_ref(&());
        self.events
            .publish(Event::new(regarding, self.action, severity, reason, note));
    }
}

/// Metrics of events, by result.
#[derive(Clone, Debug, Default)]
pub struct EventMetrics(Family<ResultLabel, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: Label,
}

impl EventMetrics {
    /// Creates the metrics and registers them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Events by result: written, counted as one of a series, failed or dropped";
        registry.register("drydock_events", help, metrics.0.clone());
        metrics
    }

    fn count(&self, result: Label) {
        self.0.get_or_create(&ResultLabel { result }).inc();
    }
}

/// Identifies a series: events with equal values are repetitions of each other.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Same {
    regarding: RegardedObject,
    related: Option<RegardedObject>,
    severity: Severity,
    reason: Cow<'static, str>,
    action: Cow<'static, str>,
    note: String,
}

/// An object reference: namespace, kind, name and UID.
type RegardedObject = (Option<String>, Option<String>, Option<String>, Option<String>);

/// A written event.
struct WrittenEvent {
    namespace: String,
    name: String,
    count: i32,
    written_count: i32,
    written: Instant,
    last: Instant,
}

struct EventWriter {
    client: Client,
    reporter: Reporter,
    metrics: EventMetrics,
    known: HashMap<Same, WrittenEvent>,
    failing: bool,
}

impl EventWriter {
    async fn run(&mut self, queued: &mut mpsc::Receiver<Event>) {
        loop {
            let pending = self.known.values().filter(|known| known.count > known.written_count);
            let due = pending.map(|known| known.written + SERIES_EVERY).min();
            tokio::select! {
                event = queued.recv() => match event {
                    Some(event) => self.write(event, Instant::now()).await,
                    // All senders are dropped. The task does not end by itself: the process decides when it ends.
                    None => std::future::pending().await,
                },
                () = clock::sleep_until_instant(due) => self.write_series(Some(Instant::now())).await,
            }
        }
    }

    async fn write(&mut self, event: Event, now: Instant) {
        self.known
            .retain(|_, known| now < known.last + SERIES_ENDS_AFTER || known.count > known.written_count);
        let same = Same {
            regarding: place(&event.regarding),
            related: event.related.as_ref().map(place),
            severity: event.severity,
            reason: event.reason.clone(),
            action: event.action.clone(),
            note: event.note.clone(),
        };
        if let Some(known) = self.known.get_mut(&same) {
            known.count = known.count.saturating_add(1);
            known.last = now;
            self.metrics.count("counted");
            return;
        }
        let namespace = event
            .regarding
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let written = self.new_event(&namespace, event);
        let name = written.metadata.name.clone().unwrap_or_default();
        let events: Api<api::Event> = Api::namespaced(self.client.clone(), &namespace);
        if self
            .done(events.create(&PostParams::default(), &written))
            .await
            .is_some()
            && self.known.len() < REMEMBERED
        {
            let known = WrittenEvent {
                namespace,
                name,
                count: 1,
                written_count: 1,
                written: now,
                last: now,
            };
            self.known.insert(same, known);
        }
    }

    /// Writes the counts of repeated events: of the series that are due, or of all if `due` is `None`.
    async fn write_series(&mut self, due: Option<Instant>) {
        let is_due = |known: &WrittenEvent| due.is_none_or(|now| now >= known.written + SERIES_EVERY);
        let pending = |known: &WrittenEvent| known.count > known.written_count && is_due(known);
        let same: Vec<Same> = self
            .known
            .iter()
            .filter(|(_, known)| pending(known))
            .map(|(same, _)| same.clone())
            .collect();
        for same in same {
            let Some(known) = self.known.get_mut(&same) else {
                continue;
            };
            (known.written, known.written_count) = (Instant::now(), known.count);
            let series = json!({"series": {"count": known.count, "lastObservedTime": MicroTime(clock::now())}});
            let events: Api<api::Event> = Api::namespaced(self.client.clone(), &known.namespace);
            let name = known.name.clone();
            let params = PatchParams::default();
            if self
                .done(events.patch(&name, &params, &Patch::Merge(series)))
                .await
                .is_none()
            {
                // The event may have expired: the next occurrence creates a new one.
                self.known.remove(&same);
            }
        }
    }

    async fn done<T>(&mut self, request: impl Future<Output = kube::Result<T>>) -> Option<T> {
        let reason = match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(done)) => {
                self.failing = false;
                self.metrics.count("written");
                return Some(done);
            }
            Ok(Err(error)) => chain(&error).to_string(),
            Err(_) => format!("no response within {REQUEST_TIMEOUT:?}"),
        };
        self.metrics.count("failed");
        if !self.failing {
            tracing::warn!(reason, "could not write an event");
            self.failing = true;
        }
        None
    }

    fn new_event(&self, namespace: &str, event: Event) -> api::Event {
        let now = clock::now();
        let object = event.regarding.name.as_deref().unwrap_or(self.reporter.component);
        api::Event {
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                name: Some(name_of(object, now)),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            type_: Some(event.severity.name().to_owned()),
            reason: Some(cut(&event.reason, LONGEST_NAME_FIELD).to_owned()),
            action: Some(cut(&event.action, LONGEST_NAME_FIELD).to_owned()),
            note: Some(cut(&event.note, LONGEST_NOTE).to_owned()),
            regarding: Some(event.regarding),
            related: event.related,
            reporting_controller: Some(self.reporter.component.to_owned()),
            reporting_instance: Some(cut(&self.reporter.instance, LONGEST_NAME_FIELD).to_owned()),
            ..api::Event::default()
        }
    }
}

/// Returns the name of an event: the name of its object, truncated if necessary, and a timestamp.
///
/// The truncated name does not end with `.` or `-`: no part of a Kubernetes name may end with either.
fn name_of(object: &str, now: jiff::Timestamp) -> String {
    let base = cut(object, LONGEST_NAME).trim_end_matches(['.', '-']);
    format!("{base}.{:x}", now.as_nanosecond())
}

fn place(object: &ObjectReference) -> RegardedObject {
    (
        object.namespace.clone(),
        object.kind.clone(),
        object.name.clone(),
        object.uid.clone(),
    )
}

/// Returns the longest prefix of `text` with at most this number of bytes.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
