//! Events of `events.k8s.io/v1`: what people see under an object with `kubectl describe`.
//!
//! # Guarantees
//! - [`Events::publish`] neither waits nor fails. Events that cannot be queued or written are counted and given up.
//! - What is said again (same object, reason, action and note) becomes a series of one event, written at most once in
//!   [`SERIES_EVERY`].
//! - What is still queued when the process stops is written if that takes no longer than [`LAST_WORDS`].
//!
//! kube's `Recorder` is not used: it takes events with different notes for the same one and keeps the first note, writes
//! each repetition, and has no bound.

use crate::{Process, chain, clock, metrics::Label};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1 as api},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use serde_json::json;
use std::{borrow::Cow, collections::HashMap, convert::Infallible, time::Duration};
use tokio::{sync::mpsc, time::Instant};

/// How often the count of a repeated event is written.
pub const SERIES_EVERY: Duration = Duration::from_secs(60);
/// How long the queue may take to empty when the process stops.
pub const LAST_WORDS: Duration = Duration::from_secs(3);
/// An event that was not repeated for so long is forgotten: the next is a new one.
const SERIES_ENDS_AFTER: Duration = Duration::from_secs(360);
/// How many events may wait to be written.
const QUEUE: usize = 256;
/// How many events are remembered for series.
const REMEMBERED: usize = 1024;
/// How long one request may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// What the API server accepts.
const LONGEST_NOTE: usize = 1024;
const LONGEST_WORD: usize = 128;
/// Leaves room for the stamp that makes a name unique.
const LONGEST_NAME: usize = 230;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Worth knowing.
    Normal,
    /// Somebody may have to do something.
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something that happened to an object.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which object. Cluster-scoped objects have their events in the namespace `default`.
    pub regarding: ObjectReference,
    /// Which other object has to do with it.
    pub related: Option<ObjectReference>,
    /// How bad it is.
    pub severity: Severity,
    /// Why, as one CamelCase word for programs.
    pub reason: Cow<'static, str>,
    /// What was done, as one CamelCase word.
    pub action: Cow<'static, str>,
    /// A sentence for people.
    pub note: String,
}

/// Who reports.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// The name of the component, such as `drydock-agent`.
    pub component: &'static str,
    /// Which of its processes, such as the name of the pod.
    pub instance: String,
}

/// Takes events. Clones are the same.
#[derive(Clone, Debug)]
pub struct Events {
    queue: mpsc::Sender<Event>,
    metrics: EventMetrics,
}

impl Events {
    /// Starts the task that writes events.
    pub fn start(process: &Process, client: Client, reporter: Reporter, metrics: &EventMetrics) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE);
        let mut writer = Writer {
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
            let _ = tokio::time::timeout(LAST_WORDS, async {
                while let Some(event) = queued.recv().await {
                    writer.write(event, Instant::now()).await;
                }
                writer.write_series(None).await;
            })
            .await;
            Ok::<_, Infallible>(())
        });
        Self {
            queue,
            metrics: metrics.clone(),
        }
    }

    /// Says that something happened.
    pub fn publish(&self, event: Event) {
        if let Err(error) = self.queue.try_send(event) {
            self.metrics.count("dropped");
            tracing::debug!(error = %chain(&error), "dropped an event");
        }
    }
}

/// What became of events.
#[derive(Clone, Debug, Default)]
pub struct EventMetrics(Family<ResultLabel, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: Label,
}

impl EventMetrics {
    /// Counts in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Events by what became of them: written, counted as one of a series, failed or dropped";
        registry.register("drydock_events", help, metrics.0.clone());
        metrics
    }

    fn count(&self, result: Label) {
        self.0.get_or_create(&ResultLabel { result }).inc();
    }
}

/// What makes two events the same.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Same {
    regarding: Place,
    related: Option<Place>,
    severity: Severity,
    reason: Cow<'static, str>,
    action: Cow<'static, str>,
    note: String,
}

/// An object: its namespace, kind, name and UID.
type Place = (Option<String>, Option<String>, Option<String>, Option<String>);

/// An event that was written.
struct Known {
    namespace: String,
    name: String,
    count: i32,
    written_count: i32,
    written: Instant,
    last: Instant,
}

struct Writer {
    client: Client,
    reporter: Reporter,
    metrics: EventMetrics,
    known: HashMap<Same, Known>,
    failing: bool,
}

impl Writer {
    async fn run(&mut self, queued: &mut mpsc::Receiver<Event>) {
        loop {
            let pending = self.known.values().filter(|known| known.count > known.written_count);
            let due = pending.map(|known| known.written + SERIES_EVERY).min();
            tokio::select! {
                event = queued.recv() => match event {
                    Some(event) => self.write(event, Instant::now()).await,
                    // Everyone who could say something is gone; the process decides when to end.
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
            let known = Known {
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

    /// Writes how often events were repeated: those that are due, or all.
    async fn write_series(&mut self, due: Option<Instant>) {
        let is_due = |known: &Known| due.is_none_or(|now| now >= known.written + SERIES_EVERY);
        let pending = |known: &Known| known.count > known.written_count && is_due(known);
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
                // Perhaps it has expired: the next one is a new event.
                self.known.remove(&same);
            }
        }
    }

    async fn done<T>(&mut self, request: impl Future<Output = kube::Result<T>>) -> Option<T> {
        let reason = match tokio::time::timeout(ANSWER_WITHIN, request).await {
            Ok(Ok(done)) => {
                self.failing = false;
                self.metrics.count("written");
                return Some(done);
            }
            Ok(Err(error)) => chain(&error).to_string(),
            Err(_) => format!("no answer within {ANSWER_WITHIN:?}"),
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
            reason: Some(cut(&event.reason, LONGEST_WORD).to_owned()),
            action: Some(cut(&event.action, LONGEST_WORD).to_owned()),
            note: Some(cut(&event.note, LONGEST_NOTE).to_owned()),
            regarding: Some(event.regarding),
            related: event.related,
            reporting_controller: Some(self.reporter.component.to_owned()),
            reporting_instance: Some(cut(&self.reporter.instance, LONGEST_WORD).to_owned()),
            ..api::Event::default()
        }
    }
}

/// The name of an event: that of its object, as far as there is room, and a stamp. What is cut must not end as no part of
/// a name may.
fn name_of(object: &str, now: jiff::Timestamp) -> String {
    let base = cut(object, LONGEST_NAME).trim_end_matches(['.', '-']);
    format!("{base}.{:x}", now.as_nanosecond())
}

fn place(object: &ObjectReference) -> Place {
    (
        object.namespace.clone(),
        object.kind.clone(),
        object.name.clone(),
        object.uid.clone(),
    )
}

/// At most so many bytes of `text`.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
