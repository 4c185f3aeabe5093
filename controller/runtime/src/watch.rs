//! Watches: the one caller of kube's watcher.
//!
//! ```text
//! API server ──▶ TolerantDecode<K> ──▶ prune ──▶ Cache<K> ──▶ on_change / signals
//!                    │ unreadable: warned of once, counted, skipped
//!                    ▼ errors: back-off, one log line at the change, counted
//! ```
//!
//! # Guarantees
//! - Nothing is stored before it was pruned; `managedFields` are always dropped.
//! - After an error the next try waits 0.5 s to 30 s, doubling, with jitter; at once less after a success.
//! - One line is logged when a watch breaks and one when it is back, not one at each try.
//! - Readers are woken by changes of objects or of what can be seen; bookmarks, reconnects and lists that show nothing
//!   new wake nobody.
//! - A kind that the API server does not know is a state ([`KindMissing`](crate::Problem::KindMissing)), asked for again with back-off.
//! - It ends when the process stops.
//!
//! # Caveats
//! A list from the API server's cache may be older than what was seen before it. See also [`Cache`].

use crate::{
    Backoff, CancellationToken, Process, Readiness, ReadyHandle,
    cache::{Cache, Change, Packing, Trigger},
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
    metrics::{counter::Counter, family::Family},
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

/// The first wait after an error.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How the objects are listed before they are watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// In one answer from the API server's cache: cheap for it even if every node asks at once. For small sets, since
    /// the answer is read as a whole.
    #[default]
    FromCache,
    /// As the first events of the watch itself, from the API server's cache and one by one: for large sets, and for one
    /// request less. Where the API server has its feature gate `WatchList` off, [`FromCache`](Self::FromCache).
    Streamed,
}

type Prune<K> = Box<dyn Fn(&mut K) + Send>;
type OnChange<K> = Box<dyn FnMut(&Change<K>) + Send>;

/// What to watch, to be [started](Watches::start).
pub struct Watch<K> {
    api: Api<TolerantDecode<K>>,
    acceptance: Acceptance,
    name: &'static str,
    fields: Option<String>,
    labels: Option<String>,
    listing: Listing,
    optional: bool,
    prune: Prune<K>,
    packing: Packing<K>,
    on_change: Vec<OnChange<K>>,
}

impl<K: Resource> Watch<K> {
    /// All objects of a kind, in all namespaces. `name` is for logs, metrics and readiness, such as `nodes`.
    pub fn all(client: Client, name: &'static str) -> Self
    where
        K::DynamicType: Default,
    {
        Self::of(client, name, Api::all)
    }

    /// The objects of a kind in one namespace.
    pub fn namespaced(client: Client, namespace: &str, name: &'static str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Self::of(client, name, |client| Api::namespaced(client, namespace))
    }

    /// One object of a kind that is of the whole cluster.
    pub fn one(client: Client, object: &str, name: &'static str) -> Self
    where
        K: Resource<Scope = ClusterResourceScope>,
        K::DynamicType: Default,
    {
        Self::of(client, name, Api::all).fields(format!("metadata.name={object}"))
    }

    /// All objects of a kind that is known only at run time.
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
            listing: Listing::default(),
            optional: false,
            prune: Box::new(|_| {}),
            packing: Packing::Whole,
            on_change: Vec::new(),
        }
    }

    /// Only objects whose fields match.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.fields = Some(selector.into());
        self
    }

    /// Only objects whose labels match.
    #[must_use]
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.labels = Some(selector.into());
        self
    }

    /// How they are listed.
    #[must_use]
    pub fn listing(mut self, listing: Listing) -> Self {
        self.listing = listing;
        self
    }

    /// The kind need not be installed: that it is missing is as good as an empty list, for being ready.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Clears what nobody reads, before the object is stored.
    #[must_use]
    pub fn prune(mut self, prune: impl Fn(&mut K) + Send + 'static) -> Self {
        self.prune = Box::new(prune);
        self
    }

    /// Keeps objects as compressed text, which takes a twentieth of the memory and some microseconds for each look at
    /// one: for kinds of which there are very many, and few are looked at.
    #[must_use]
    pub fn packed(mut self) -> Self
    where
        K: Serialize + DeserializeOwned,
    {
        self.packing = Packing::packed();
        self
    }

    /// Wakes whoever waits for `signal` at each change.
    #[must_use]
    pub fn wakes(self, signal: &Trigger) -> Self {
        let signal = signal.clone();
        self.on_change(move |_| signal.notify())
    }

    /// Calls `told` with each change, after it is in the cache. It holds up the watch: only put it in a queue.
    #[must_use]
    pub fn on_change(mut self, told: impl FnMut(&Change<K>) + Send + 'static) -> Self {
        self.on_change.push(Box::new(told));
        self
    }

    fn config(&self, listing: Listing) -> watcher::Config {
        let config = watcher::Config {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..watcher::Config::default()
        };
        match listing {
            // A page size would make the API server read from its store: the cache serves only whole lists.
            Listing::FromCache => watcher::Config {
                page_size: None,
                ..config.any_semantic()
            },
            Listing::Streamed => config.streaming_lists(),
        }
    }
}

/// Starts watches: what they share.
#[derive(Clone, Debug)]
pub struct Watches {
    process: Process,
    readiness: Readiness,
    metrics: WatchMetrics,
}

impl Watches {
    /// Watches that end with `process`, hold back `readiness` until they are synced, and count in `metrics`.
    pub fn new(process: &Process, readiness: &Readiness, metrics: &WatchMetrics) -> Self {
        Self {
            process: process.clone(),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Starts a watch; the cache fills and stays up to date until every task of the process has ended: requests that
    /// are held while the process stops wait for changes too.
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

    /// Starts a watch that is only wanted for a while: it ends with `wanted`, or with the process. Being ready does not
    /// wait for it.
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

    /// The cache of a watch, and what fills it.
    fn follows<K>(
        &self,
        mut watch: Watch<K>,
        ready: Option<ReadyHandle>,
    ) -> (Cache<K>, impl Future<Output = ()> + Send + use<K>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Clone + Debug,
    {
        let cache = Cache::keeping(std::mem::replace(&mut watch.packing, Packing::Whole));
        let (api, acceptance) = (watch.api.clone(), watch.acceptance.clone());
        let first = events(api.clone(), watch.config(watch.listing));
        let streamed = watch.listing == Listing::Streamed;
        let otherwise = streamed.then(|| events(api, watch.config(Listing::FromCache)));
        let observer = Observer::new(watch, cache.clone(), ready, self.metrics.clone());
        (cache, async move {
            follow(first, otherwise, &acceptance, observer).await;
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that opens watches: follow() backs off, prunes, counts and ends them"
)]
fn events<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config)
}

/// Hands each event to the observer; waits after each error, as the stream tries again when it is polled. Goes on with
/// the events of `otherwise`, if there are any, where the API server does not stream lists.
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
                    "the API server does not stream lists, so this one is read whole"
                );
                if let Some(listed) = otherwise.take() {
                    events.set(listed.right_stream());
                }
            }
            Err(error) => {
                // An accepted watch shows nothing until something changes. That it held for long is a success too.
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

/// How watches fare.
#[derive(Clone, Debug, Default)]
pub struct WatchMetrics {
    lists: Family<NameLabel, Counter>,
    errors: Family<ErrorLabels, Counter>,
    unreadable: Family<NameLabel, Counter>,
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
    /// Counts in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let lists = "Complete lists that a watch began with, the first one included";
        registry.register("drydock_watch_lists", lists, metrics.lists.clone());
        let errors = "Errors of a watch, by what went wrong";
        registry.register("drydock_watch_errors", errors, metrics.errors.clone());
        let unreadable = "Objects that a watch skipped because they do not fit their kind";
        registry.register(
            "drydock_watch_unreadable_objects",
            unreadable,
            metrics.unreadable.clone(),
        );
        metrics
    }
}

#[cfg(test)]
mod tests;
