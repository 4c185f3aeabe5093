use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Client, core::PartialObjectMeta};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{ErrorLabels, ListMode, NameLabel, Watch, WatchMetrics, WatchStarter};
use crate::{
    CancellationToken, Process, Readiness,
    cache::{Cache, CacheChange, Key, Trigger, WatchProblem},
    clock::Instant,
    fake::{ApiServer, api_server},
};

struct Setup {
    process: Process,
    readiness: Readiness,
    metrics: WatchMetrics,
    watches: WatchStarter,
    server: ApiServer,
    client: Client,
    signal: Trigger,
}

fn setup() -> Setup {
    let (client, server) = api_server();
    let (process, readiness, metrics) = (Process::new(), Readiness::new(), WatchMetrics::default());
    let watches = WatchStarter::new(&process, &readiness, &metrics);
    Setup {
        process,
        readiness,
        metrics,
        watches,
        server,
        client,
        signal: Trigger::new(),
    }
}

impl Setup {
    fn watch(&self) -> Watch<ConfigMap> {
        Watch::namespaced(self.client.clone(), "drydock", "config").wakes(&self.signal)
    }

    fn errors(&self, error: &'static str) -> u64 {
        self.metrics
            .errors
            .get_or_create(&ErrorLabels { watch: "config", error })
            .get()
    }
}

fn config_map(name: &str, version: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": name, "namespace": "drydock", "uid": name, "resourceVersion": version,
            "managedFields": [{"manager": "kubectl"}],
        },
        "data": {"key": value, "unread": "much"},
    })
}

/// Makes the watch store objects as text if `compressed`.
fn kept(watch: Watch<ConfigMap>, compressed: bool) -> Watch<ConfigMap> {
    if compressed { watch.compressed() } else { watch }
}

fn key(name: &str) -> Key {
    Key::namespaced("drydock", name)
}

fn value(cache: &Cache<ConfigMap>, name: &str) -> Option<String> {
    cache
        .get(&key(name))
        .and_then(|object| object.data.as_ref()?.get("key").cloned())
}

/// Waits until the reader is woken, like a reconcile loop.
async fn woken(signal: &Trigger) {
    let woken = tokio::time::timeout(Duration::from_secs(3600), signal.notified()).await;
    woken.expect("nobody woke the reader");
}

/// Waits until the reader was woken and no further change follows.
async fn settled(signal: &Trigger) {
    woken(signal).await;
    while !is_asleep(signal).await {}
}

async fn is_asleep(signal: &Trigger) -> bool {
    tokio::time::timeout(Duration::from_secs(20), signal.notified())
        .await
        .is_err()
}

#[tokio::test(start_paused = true)]
async fn a_small_set_is_listed_from_the_cache_of_the_api_server() {
    let mut setup = setup();
    setup
        .watches
        .start(setup.watch().fields("metadata.name=a").labels("tier=x"));
    let list = setup.server.next_request().await;
    let path = "/api/v1/namespaces/drydock/configmaps";
    let selected = "labelSelector=tier%3Dx&fieldSelector=metadata.name%3Da";
    let (query, cached) = (
        list.line.split_once('?').unwrap().1,
        "resourceVersion=0&resourceVersionMatch=NotOlderThan",
    );
    assert!(list.line.starts_with(path), "{}", list.line);
    let mut parts: Vec<_> = query.split('&').filter(|part| !part.is_empty()).collect();
    let mut expected: Vec<_> = selected.split('&').chain(cached.split('&')).collect();
    parts.sort_unstable();
    expected.sort_unstable();
    assert_eq!(
        parts, expected,
        "no limit: with one the API server reads from its store"
    );
    list.list("7", &[]);
    let watch = setup.server.next_request().await;
    for part in [
        "watch=true",
        "resourceVersion=7",
        "allowWatchBookmarks=true",
        "timeoutSeconds=290",
    ] {
        assert!(watch.line.contains(part), "{part} is missing in {}", watch.line);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_set_is_streamed() {
    let mut setup = setup();
    let cache = setup.watches.start(setup.watch().listing(ListMode::Streamed));
    let watch = setup.server.next_request().await;
    assert!(watch.line.contains("sendInitialEvents=true"), "{}", watch.line);
    let open = watch.open();
    open.send("ADDED", &config_map("a", "3", "one"));
    open.end_of_list("3");
    assert!(cache.wait_until_synced().await.is_clear());
    assert_eq!(value(&cache, "a").as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_not_streamed_is_read_whole() {
    let mut setup = setup();
    let cache = setup.watches.start(setup.watch().listing(ListMode::Streamed));
    let watch = setup.server.next_request().await;
    assert!(watch.line.contains("sendInitialEvents=true"), "{}", watch.line);
    // The response of Kubernetes 1.36 with `--feature-gates=WatchList=false`.
    let refusal = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Invalid", "code": 422,
        "message": "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden \
                    for watch unless the WatchList feature gate is enabled",
    });
    watch.refuse_with(&refusal);
    let list = setup.server.next_request().await;
    assert!(list.line.contains("resourceVersion=0"), "{}", list.line);
    list.list("5", &[config_map("a", "4", "one")]);
    assert!(cache.wait_until_synced().await.is_clear());
    assert_eq!(value(&cache, "a").as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn repeated_streamed_list_is_not_clear_before_the_end() {
    let mut setup = setup();
    let cache = setup.watches.start(setup.watch().listing(ListMode::Streamed));
    let open = setup.server.next_request().await.open();
    open.send("ADDED", &config_map("a", "3", "one"));
    open.end_of_list("3");
    assert!(cache.wait_until_synced().await.is_clear());
    open.send(
        "ERROR",
        &json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "old"}),
    );
    setup.server.next_request().await.refuse(500, "InternalError");
    settled(&setup.signal).await;
    assert!(!cache.sync_state().is_clear());
    let again = setup.server.next_request().await;
    assert!(again.line.contains("sendInitialEvents=true"), "{}", again.line);
    let open = again.open();
    let lists = setup
        .metrics
        .lists
        .get_or_create(&NameLabel { watch: "config" })
        .clone();
    open.send("ADDED", &config_map("b", "8", "two"));
    assert!(is_asleep(&setup.signal).await);
    assert!(
        !cache.sync_state().is_clear(),
        "the response has begun, and not all of it is here"
    );
    assert_eq!((lists.get(), value(&cache, "a").as_deref()), (1, Some("one")));
    open.end_of_list("3");
    woken(&setup.signal).await;
    assert!(cache.sync_state().is_clear());
    assert_eq!(lists.get(), 2);
    assert_eq!((value(&cache, "a"), value(&cache, "b").as_deref()), (None, Some("two")));
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_is_fetched_where_that_is_wanted() {
    let mut setup = setup();
    let cache = setup
        .watches
        .start(Watch::<PartialObjectMeta<Pod>>::all(setup.client.clone(), "pods"));
    let list = setup.server.next_request().await;
    assert!(list.line.starts_with("/api/v1/pods?"), "{}", list.line);
    let pod = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "p"}});
    list.list("1", &[pod]);
    cache.wait_until_synced().await;
    assert!(cache.get(&Key::cluster("p")).is_some());
}

#[tokio::test(start_paused = true)]
async fn changed_objects_are_pruned_stored_and_notified() {
    for compressed in [false, true] {
        changes_are_notified(compressed).await;
    }
}

async fn changes_are_notified(compressed: bool) {
    let mut setup = setup();
    let changes = Arc::new(Mutex::new(Vec::new()));
    let sink = changes.clone();
    let prune = |object: &mut ConfigMap| {
        object.data.as_mut().map(|data| data.remove("unread"));
    };
    let watch = kept(setup.watch(), compressed).prune(prune).on_change(move |change| {
        let line = match change {
            CacheChange::Object { key, old, new } => format!("{key} {} {}", old.is_some(), new.is_some()),
            CacheChange::Unreadable { key } => format!("{key} unreadable"),
            CacheChange::SyncState(state) => format!("clear: {}", state.is_clear()),
        };
        sink.lock().push(line);
    });
    let cache = setup.watches.start(watch);
    assert_eq!(setup.readiness.waiting(), ["config"]);
    setup
        .server
        .next_request()
        .await
        .list("5", &[config_map("a", "4", "one")]);
    cache.wait_until_synced().await;
    assert!(setup.readiness.is_ready());
    let stored = cache.get(&key("a")).unwrap();
    assert_eq!(stored.metadata.managed_fields, None);
    assert_eq!(stored.data.as_ref().unwrap().len(), 1);

    let open = setup.server.next_request().await.open();
    open.send("MODIFIED", &config_map("a", "6", "two"));
    open.send("ADDED", &config_map("b", "7", "new"));
    open.send("DELETED", &config_map("a", "8", "two"));
    settled(&setup.signal).await;
    assert_eq!((value(&cache, "a"), value(&cache, "b").as_deref()), (None, Some("new")));
    let changes = changes.lock();
    let expected = [
        "drydock/a false true",
        "clear: true",
        "drydock/a true true",
        "drydock/b false true",
        "drydock/a true false",
    ];
    assert_eq!(*changes, expected);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_and_reconnects_wake_no_task() {
    for compressed in [false, true] {
        reconnects_are_quiet(compressed, |_| ()).await;
        // Fields that a reader does not need may be pruned, including the UID.
        reconnects_are_quiet(compressed, |map| map.metadata.uid = None).await;
    }
}

async fn reconnects_are_quiet(compressed: bool, prune: fn(&mut ConfigMap)) {
    let mut setup = setup();
    let cache = setup.watches.start(kept(setup.watch().prune(prune), compressed));
    setup
        .server
        .next_request()
        .await
        .list("5", &[config_map("a", "4", "one")]);
    let open = setup.server.next_request().await.open();
    woken(&setup.signal).await;
    open.bookmark("90");
    assert!(is_asleep(&setup.signal).await);
    drop(open);
    let again = setup.server.next_request().await;
    assert!(again.line.contains("resourceVersion=90"), "{}", again.line);
    let open = again.open();
    assert!(is_asleep(&setup.signal).await);

    // The history has expired; the new list contains the known objects except one.
    open.send(
        "ERROR",
        &json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "old"}),
    );
    setup
        .server
        .next_request()
        .await
        .list("95", &[config_map("a", "4", "one")]);
    let open = setup.server.next_request().await.open();
    assert!(is_asleep(&setup.signal).await);
    assert_eq!(setup.errors("expired"), 1);
    assert_eq!(
        setup.metrics.lists.get_or_create(&NameLabel { watch: "config" }).get(),
        2
    );

    open.send(
        "ERROR",
        &json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "old"}),
    );
    setup.server.next_request().await.list("99", &[]);
    woken(&setup.signal).await;
    assert!(cache.is_empty());
}

#[tokio::test(start_paused = true)]
async fn watch_errors_back_off_exponentially_until_success() {
    let mut setup = setup();
    let cache = setup.watches.start(setup.watch());
    let start = Instant::now();
    let mut waits = Vec::new();
    for _ in 0..10 {
        let before = Instant::now();
        setup.server.next_request().await.refuse(500, "InternalError");
        waits.push(before.elapsed());
    }
    for (wait, whole) in waits[1..]
        .iter()
        .zip([500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000])
    {
        let whole = Duration::from_millis(whole);
        assert!(
            *wait >= whole / 2 && *wait <= whole + Duration::from_millis(2),
            "{wait:?} of {whole:?}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(130));
    assert_eq!(setup.errors("server"), 9);
    let problem = cache.sync_state().problem.unwrap();
    assert!(
        problem.to_string().contains("refused with 500: InternalError"),
        "{problem}"
    );
    assert!(!setup.readiness.is_ready());

    setup
        .server
        .next_request()
        .await
        .list("5", &[config_map("a", "4", "one")]);
    assert!(cache.wait_until_synced().await.is_clear());
    assert!(setup.readiness.is_ready());
    // The next retry follows quickly: the success has reset the back-off.
    setup.server.next_request().await.refuse(500, "InternalError");
    let before = Instant::now();
    let again = setup.server.next_request().await;
    assert!(
        before.elapsed() <= Duration::from_millis(1001),
        "{:?}",
        before.elapsed()
    );
    assert!(!cache.sync_state().is_clear() && cache.sync_state().synced);
    // An accepted watch counts as recovered even if nothing changes for days.
    let _open = again.open();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(cache.sync_state().is_clear());
}

#[tokio::test(start_paused = true)]
async fn one_object_that_does_not_fit_stops_nothing() {
    for compressed in [false, true] {
        others_are_read(compressed).await;
    }
}

async fn others_are_read(compressed: bool) {
    let mut setup = setup();
    let cache = setup.watches.start(kept(setup.watch(), compressed));
    let mut bad = config_map("bad", "4", "");
    bad["data"] = json!(7);
    setup
        .server
        .next_request()
        .await
        .list("5", &[bad.clone(), config_map("a", "4", "one")]);
    assert!(cache.wait_until_synced().await.is_clear());
    assert_eq!(value(&cache, "a").as_deref(), Some("one"));
    assert!(cache.unreadable()[&key("bad")].contains("invalid type"));

    let open = setup.server.next_request().await.open();
    woken(&setup.signal).await;
    let mut worse = config_map("a", "6", "");
    worse["data"] = json!("nothing");
    open.send("MODIFIED", &worse);
    open.send("ADDED", &config_map("b", "7", "two"));
    settled(&setup.signal).await;
    assert_eq!(value(&cache, "a").as_deref(), Some("one"), "what was known of it stays");
    assert_eq!(value(&cache, "b").as_deref(), Some("two"));
    assert_eq!(
        setup
            .metrics
            .unreadable
            .get_or_create(&NameLabel { watch: "config" })
            .get(),
        2
    );

    open.send("MODIFIED", &config_map("bad", "8", "good"));
    open.send("MODIFIED", &config_map("a", "9", "good"));
    settled(&setup.signal).await;
    assert!(cache.unreadable().is_empty());
}

#[tokio::test(start_paused = true)]
async fn missing_kind_is_a_state_that_ends_with_the_installation() {
    let mut setup = setup();
    let cache = setup.watches.start(setup.watch().optional());
    setup.server.next_request().await.refuse(404, "NotFound");
    let state = cache.wait_until_synced().await;
    assert_eq!((state.synced, state.problem), (false, Some(WatchProblem::KindMissing)));
    woken(&setup.signal).await;
    assert!(setup.readiness.is_ready(), "an optional kind is not waited for");
    setup.server.next_request().await.refuse(404, "NotFound");
    assert!(is_asleep(&setup.signal).await, "the same state is no news");
    setup
        .server
        .next_request()
        .await
        .list("5", &[config_map("a", "4", "one")]);
    woken(&setup.signal).await;
    assert!(cache.sync_state().is_clear());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_needed_is_waited_for() {
    let mut setup = setup();
    let cache = setup.watches.start(setup.watch());
    setup.server.next_request().await.refuse(404, "NotFound");
    cache.wait_until_synced().await;
    assert_eq!(setup.readiness.waiting(), ["config"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_at_once_does_not_become_a_flood() {
    let mut setup = setup();
    setup.watches.start(setup.watch());
    setup.server.next_request().await.list("5", &[]);
    let start = Instant::now();
    for _ in 0..60 {
        drop(setup.server.next_request().await.open());
    }
    assert!(start.elapsed() >= Duration::from_secs(59), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn watch_ends_after_the_tasks_of_a_stopped_process() {
    let mut setup = setup();
    setup.watches.start(setup.watch());
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    setup.process.spawn("held request", async move {
        let _ = finished.await;
    });
    let list = setup.server.next_request().await;
    setup.process.stop();
    list.list("5", &[]);
    let open = setup.server.next_request().await.open();
    finish.send(()).unwrap();
    let run = setup
        .process
        .run(futures::stream::pending(), Duration::from_secs(1))
        .await;
    assert!(run.is_ok());
    drop(open);
    assert!(setup.server.is_left_alone().await, "the watch goes on");
}

#[tokio::test(start_paused = true)]
async fn temporary_watch_delays_nothing_and_ends_alone() {
    let mut setup = setup();
    let wanted = CancellationToken::new();
    let cache = setup.watches.start_until(setup.watch(), wanted.clone());
    assert!(setup.readiness.is_ready());
    setup
        .server
        .next_request()
        .await
        .list("5", &[config_map("a", "4", "one")]);
    woken(&setup.signal).await;
    let _open = setup.server.next_request().await.open();
    assert_eq!(setup.process.running_tasks(), ["watching config"]);
    wanted.cancel();
    while !setup.process.running_tasks().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(!setup.process.stopping().is_cancelled(), "the process goes on");
    assert_eq!(value(&cache, "a").as_deref(), Some("one"), "what was known can be read");
}
