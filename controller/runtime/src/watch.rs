//! Watches. This is the only module that uses kube's watcher.
//!
//! ```text
//! API server ──▶ TolerantDecode<K> ──▶ prune ──▶ Cache<K> ──▶ on_change / signals
//!                    │ unreadable: one warning, counted, skipped
//!                    ▼ errors: back-off, one log line per state change, counted
//! ```
//!
//! # Guarantees
//! - Objects are pruned before they are stored; `managedFields` are always dropped.
//! - After an error the next attempt follows after 0.5 s to 30 s, doubling, with jitter; a success resets the delay.
//! - One line is logged when a watch breaks and one when it recovers, none per attempt.
//! - Readers are woken by changes of objects or of the [`SyncState`](crate::SyncState). Bookmarks, reconnects and
//!   lists without a difference wake no reader.
//! - A kind that the API server does not serve is a state ([`KindMissing`](crate::WatchProblem::KindMissing)); it is
//!   requested again with back-off.
//! - A watch ends when the process stops.
//!
//! # Caveats
//! A list from the API server's cache may be older than the state seen before. See also [`Cache`].

use crate::{
    Backoff, CancellationToken, Process, Readiness, ReadyHandle,
    cache::{Cache, CacheChange, StorageFormat, Trigger},
    clock::Instant,
    metrics::Label,
    tolerant_decode::TolerantDecode,
};
use futures::{Stream, StreamExt};
use kube::{
    Api, Client, Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
    runtime::watcher,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt::Debug, pin::pin, time::Duration};

mod acceptance;
mod failure;
mod observer;

use acceptance::Acceptance;
use observer::Observer;

pub(crate) use acceptance::is_watch;

/// Delay after the first error.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Maximum delay after an error.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The method of listing the objects before the watch starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListMode {
    /// The API server returns all objects in one response from its cache.
    ///
    /// This is cheap for the API server even if every node lists at once. It suits small sets, since the response is
    /// read as a whole.
    #[default]
    FromCache,
    /// The API server sends the objects one by one from its cache, as the initial events of the watch itself.
    ///
    /// This suits large sets, and saves a request. The watch falls back to [`FromCache`](Self::FromCache) if the API
    /// server's feature gate `WatchList` is off.
    Streamed,
}

type Prune<K> = Box<dyn Fn(&mut K) + Send>;
type OnChange<K> = Box<dyn FnMut(&CacheChange<K>) + Send>;

/// The definition of a watch, to be [started](WatchStarter::start).
pub struct Watch<K> {
    api: Api<TolerantDecode<K>>,
    acceptance: Acceptance,
    name: &'static str,
    fields: Option<String>,
    labels: Option<String>,
    listing: ListMode,
    optional: bool,
    prune: Prune<K>,
    format: StorageFormat<K>,
    on_change: Vec<OnChange<K>>,
}

impl<K: Resource> Watch<K> {
    /// Watches all objects of a kind, in all namespaces. `name` is for logs, metrics and readiness, such as `nodes`.
    pub fn all(client: Client, name: &'static str) -> Self
    where
        K::DynamicType: Default,
    {
        Self::of(client, name, Api::all)
    }

    /// Watches the objects of a kind in one namespace.
    pub fn namespaced(client: Client, namespace: &str, name: &'static str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Self::of(client, name, |client| Api::namespaced(client, namespace))
    }

    /// Watches one object of a cluster-scoped kind.
    pub fn one(client: Client, object: &str, name: &'static str) -> Self
    where
        K: Resource<Scope = ClusterResourceScope>,
        K::DynamicType: Default,
    {
        Self::of(client, name, Api::all).fields(format!("metadata.name={object}"))
    }

    /// Watches all objects of a kind that is known only at run time.
    pub fn dynamic(client: Client, kind: &K::DynamicType, name: &'static str) -> Self {
        Self::of(client, name, |client| Api::all_with(client, kind))
    }

    fn of(client: Client, name: &'static str, scope: impl FnOnce(Client) -> Api<TolerantDecode<K>>) -> Self {
        let acceptance = Acceptance::default();
        Self {
            api: scope(acceptance.observing(client)),
            acceptance,
            name,
            fields: None,
            labels: None,
            listing: ListMode::default(),
            optional: false,
            prune: Box::new(|_| {}),
            format: StorageFormat::Whole,
            on_change: Vec::new(),
        }
    }

    /// Restricts the watch by a field selector.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Restricts the watch by a label selector.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// Sets how the objects are listed.
    #[must_use]
    pub fn listing(mut self, listing: ListMode) -> Self {
        self.listing = listing;
        self
    }

    /// Declares that the kind need not be installed. For readiness, a missing kind counts as an empty list.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Sets a function that clears unused fields before an object is stored.
    #[must_use]
    pub fn prune(mut self, prune: impl Fn(&mut K) + Send + 'static) -> Self {
        self.prune = Box::new(prune);
        self
    }

    /// Stores objects as compressed text.
    ///
    /// Compressed text takes one twentieth of the memory and some microseconds per read. It suits kinds with very many
    /// objects that are seldom read.
    #[must_use]
    pub fn compressed(mut self) -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        self.format = StorageFormat::compressed();
        self
    }

    /// Notifies `signal` on each change.
    #[must_use]
    pub fn wakes(self, signal: &Trigger) -> Self {
        let signal = signal.clone();
        self.on_change(move |_| signal.notify())
    }

    /// Calls `callback` with each change, after the cache was updated.
    ///
    /// The call blocks the watch: `callback` should only enqueue the change.
    #[must_use]
    pub fn on_change(mut self, callback: impl FnMut(&CacheChange<K>) + Send + 'static) -> Self {
        self.on_change.push(Box::new(callback));
        self
    }

    fn config(&self, listing: ListMode) -> watcher::Config {
        let config = watcher::Config {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..watcher::Config::default()
        };
        match listing {
            // With a page size the API server would read from etcd: its cache serves only complete lists.
            ListMode::FromCache => watcher::Config {
                page_size: None,
                ..config.any_semantic()
            },
            ListMode::Streamed => config.streaming_lists(),
        }
    }
}

/// Starts watches with common settings.
#[derive(Clone, Debug)]
pub struct WatchStarter {
    process: Process,
    readiness: Readiness,
    metrics: WatchMetrics,
}

impl WatchStarter {
    /// Creates a starter of watches that end with `process`, block `readiness` until they are synced, and count in
    /// `metrics`.
    pub fn new(process: &Process, readiness: &Readiness, metrics: &WatchMetrics) -> Self {
        Self {
            process: process.clone(),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Returns the process with which the watches end.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Starts a watch. Its cache is kept up to date until every task of the process has ended, because requests that
    /// are held during the shutdown also wait for changes.
    pub fn start<K>(&self, watch: Watch<K>) -> Cache<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Clone + Debug,
    {
        let ready = self.readiness.handle(watch.name);
        let name = format!("watching {}", watch.name);
        let (cache, follows) = self.follows(watch, Some(ready));
        self.process.spawn_critical_to_the_end(name, follows);
        cache
    }

    /// Starts a temporary watch, which ends when `wanted` is cancelled, or with the process. Readiness does not depend
    /// on it.
    pub fn start_until<K>(&self, watch: Watch<K>, wanted: CancellationToken) -> Cache<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Clone + Debug,
    {
        let (name, stopping) = (watch.name, self.process.stopping());
        let (cache, follows) = self.follows(watch, None);
        self.process.spawn(format!("watching {name}"), async move {
            stopping.run_until_cancelled(wanted.run_until_cancelled(follows)).await;
        });
        cache
    }

    /// Returns the cache of a watch and the future that fills it.
    fn follows<K>(
        &self,
        mut watch: Watch<K>,
        ready: Option<ReadyHandle>,
    ) -> (Cache<K>, impl Future<Output = ()> + Send + use<K>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Clone + Debug,
    {
        let cache = Cache::keeping(std::mem::replace(&mut watch.format, StorageFormat::Whole));
        let (api, acceptance) = (watch.api.clone(), watch.acceptance.clone());
        let first = events(api.clone(), watch.config(watch.listing));
        let streamed = watch.listing == ListMode::Streamed;
        let otherwise = streamed.then(|| events(api, watch.config(ListMode::FromCache)));
        let observer = Observer::new(watch, cache.clone(), ready, self.metrics.clone());
        (cache, async move {
            follow(first, otherwise, &acceptance, observer).await;
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "only this function opens watches: follow() backs off, prunes, counts and ends them"
)]
fn events<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config)
}

/// Passes each event to the observer, and sleeps after each error.
///
/// The stream retries when it is polled again. If the API server does not support streamed lists, the function
/// continues with the stream `otherwise`, if given.
async fn follow<K: Resource, S>(first: S, otherwise: Option<S>, acceptance: &Acceptance, mut observer: Observer<K>)
where
    S: Stream<Item = watcher::Result<watcher::Event<TolerantDecode<K>>>>,
{
    let mut events = pin!(first.left_stream());
    let mut otherwise = otherwise;
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut last_error: Option<Instant> = None;
    loop {
        let event = tokio::select! {
            Some(event) = events.next() => event,
            () = acceptance.given() => {
                observer.sees_again();
                continue;
            }
            else => return,
        };
        match event {
            Ok(event) => {
                if observer.observe(event) {
                    backoff.reset();
                }
            }
            Err(error) if failure::refuses_to_stream(&error) && otherwise.is_some() => {
                tracing::info!(
                    watch = observer.name(),
                    "the API server does not support streaming lists, requesting a complete list instead"
                );
                if let Some(listed) = otherwise.take() {
                    events.set(listed.right_stream());
                }
            }
            Err(error) => {
                // An accepted watch sends nothing until something changes, so a watch that stayed open for long
                // counts as a success.
                if last_error.is_some_and(|last| last.elapsed() > 2 * LONGEST_WAIT) {
                    backoff.reset();
                }
                last_error = Some(Instant::now());
                observer.failed(&error);
                tokio::time::sleep(backoff.delay()).await;
            }
        }
    }
}

/// Metrics of watches.
#[derive(Clone, Debug, Default)]
pub struct WatchMetrics {
    lists: Family<NameLabel, Counter>,
    errors: Family<ErrorLabels, Counter>,
    unreadable: Family<NameLabel, Counter>,
    failing: Family<NameLabel, Gauge>,
    last_event: Family<NameLabel, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameLabel {
    watch: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    watch: Label,
    error: Label,
}

impl WatchMetrics {
    /// Creates the metrics and registers them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let lists = "Complete lists with which a watch began or began again";
        registry.register("drydock_watch_lists", lists, metrics.lists.clone());
        let errors = "Errors of a watch, by kind of error";
        registry.register("drydock_watch_errors", errors, metrics.errors.clone());
        let unreadable = "Objects that a watch skipped because they cannot be decoded as their kind";
        registry.register(
            "drydock_watch_unreadable_objects",
            unreadable,
            metrics.unreadable.clone(),
        );
        let failing = "1 if a watch is interrupted, so that its objects may be outdated, otherwise 0";
        registry.register("drydock_watch_failing", failing, metrics.failing.clone());
        registry.register(
            "drydock_watch_last_event_timestamp_seconds",
            "Time at which a watch last worked: its last event, or the acceptance of its request",
            metrics.last_event.clone(),
        );
        metrics
    }
}

#[cfg(test)]
mod tests;
