//! Tests of the node's task with a fake API server: the handling of each write's result.

use std::{cell::RefCell, rc::Rc};

use clap::Parser;
use drydock_runtime::{
    EventMetrics, Readiness, Reporter,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::args::{AgentArgs, AgentCommand};

mod failing_writes;

const NODE: &str = "/api/v1/nodes/n";
const HYPERVISORS: &str = "/apis/drydock.dev/v1alpha1/hypervisors";

/// A task that acts for node `n`, and the API server that receives its requests.
struct Fixture {
    task: NodeTask,
    server: ApiServer,
    deleted_node: watch::Receiver<Option<clock::Instant>>,
    /// Folders of the host.
    _folders: TempDir,
    // Values that end their connections when they are dropped.
    _others: [ApiServer; 2],
}

fn node() -> PartialObjectMeta<Node> {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
    }))
    .unwrap()
}

/// Returns the Hypervisor after its creation.
fn hypervisor() -> Hypervisor {
    serde_json::from_value(json!({"metadata": {"name": "n", "uid": "h", "resourceVersion": "1"}, "spec": {}})).unwrap()
}

/// Returns the command line of an agent whose host folders are in `folder`.
fn settings(folder: &Path) -> Arc<AgentRunArgs> {
    let (state, kubelet) = (folder.join("state"), folder.join("kubelet"));
    let flags = [
        "drydock-agent".into(),
        "run".into(),
        "--node-name=n".into(),
        "--pod-uid=p".into(),
        format!("--state-dir={}", state.display()),
        format!("--kubelet-dir={}", kubelet.display()),
    ];
    let AgentCommand::Run(args) = AgentArgs::parse_from(flags).command else {
        unreachable!("the flags are those of `run`");
    };
    Arc::new(*args)
}

async fn fixture(node: Option<PartialObjectMeta<Node>>) -> Fixture {
    let folders = tempfile::tempdir().unwrap();
    let args = settings(folders.path());
    let ((client, server), (for_events, events), (for_lease, lease)) = (api_server(), api_server(), api_server());
    let process = Process::new();
    let reporter = Reporter {
        component: "drydock-agent",
        instance: "test".into(),
    };
    let (deleted_node, deleted) = watch::channel(None);
    let mut task = NodeTask::new(
        Arc::clone(&args),
        AgentCaches::filled("n", node, None),
        LauncherPods::filled([]),
        Writes::new(client, "n".into()),
        &Events::start(&process, for_events, reporter, &EventMetrics::default()),
        AgentMetrics::default(),
        process.clone(),
        NodeLease::start(for_lease, "n", "p", &process),
        Readiness::new().handle("node"),
        watch::channel(None).0,
        deleted_node,
        None,
    );
    let acts = host_lock::wait(&args.folders.state_dir).acts.await.unwrap();
    task.lock = Some(acts.unwrap());
    Fixture {
        task,
        server,
        deleted_node: deleted,
        _folders: folders,
        _others: [events, lease],
    }
}

/// Function that serves a request.
type Service = Box<dyn FnOnce(ReceivedRequest)>;

fn refuse(code: u16, reason: &'static str) -> Service {
    Box::new(move |request| request.refuse(code, reason))
}

/// Responds with the requested object, which gets this version.
fn accept(version: &'static str) -> Service {
    Box::new(move |request| {
        let mut stored = request.body.clone();
        stored["apiVersion"] = json!("drydock.dev/v1alpha1");
        stored["kind"] = json!("Hypervisor");
        stored["spec"] = json!({});
        stored["metadata"]["name"] = json!("n");
        stored["metadata"]["uid"] = json!("h");
        stored["metadata"]["resourceVersion"] = json!(version);
        request.with(&stored);
    })
}

/// Responds with the Node and the patched labels.
fn label() -> Service {
    Box::new(|request| {
        let mut stored = serde_json::to_value(node()).unwrap();
        stored["metadata"]["labels"] = request.body["metadata"]["labels"].clone();
        stored["metadata"]["resourceVersion"] = json!("2");
        request.with(&stored);
    })
}

/// Responds like [`label`], and stores the labels of the patch in the returned cell.
fn captured() -> (Rc<RefCell<Value>>, Service) {
    let labels = Rc::new(RefCell::new(Value::Null));
    let patched = Rc::clone(&labels);
    let serve = move |request: ReceivedRequest| {
        patched.replace(request.body["metadata"]["labels"].clone());
        label()(request);
    };
    (labels, Box::new(serve))
}

/// Responds with a list of `count` Nodes.
fn list(count: usize) -> Service {
    Box::new(move |request| {
        let items = vec![serde_json::to_value(node()).unwrap(); count];
        request.with(&json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items,
        }));
    })
}

/// Responds to the request that counts the Hypervisors.
fn count() -> Service {
    list(1)
}

/// Responds that an object with the name exists.
fn refuse_existing() -> Service {
    refuse(409, "AlreadyExists")
}

impl Fixture {
    /// Runs one round, and serves its requests in this order. Returns the time of the next round, and the requests.
    async fn round(&mut self, services: Vec<Service>) -> (Option<Timestamp>, Vec<String>) {
        let Self { task, server, .. } = self;
        served(server, services, task.round(clock::now())).await
    }
}

/// Runs `work`, and serves its requests in this order. Returns the result and the requests.
async fn served<T>(server: &mut ApiServer, services: Vec<Service>, work: impl Future<Output = T>) -> (T, Vec<String>) {
    let mut services = services.into_iter();
    let mut requested = Vec::new();
    tokio::pin!(work);
    loop {
        tokio::select! {
            result = &mut work => return (result, requested),
            request = server.next_request() => {
                requested.push(format!("{} {}", request.method, request.path()));
                let serve = services.next().unwrap_or_else(|| panic!("not expected: {requested:?}"));
                serve(request);
            }
        }
    }
}

#[tokio::test]
async fn new_node_gets_a_hypervisor_labels_and_status_once() {
    let mut fixture = fixture(Some(node())).await;
    let (_, requested) = fixture.round(vec![accept("1"), label(), accept("2"), count()]).await;
    let expected = [
        format!("POST {HYPERVISORS}"),
        format!("PATCH {NODE}"),
        format!("PATCH {HYPERVISORS}/n/status"),
        format!("GET {HYPERVISORS}"),
    ];
    assert_eq!(requested, expected);
    // The watch of the Hypervisor shows the creation. No watch shows later changes yet.
    fixture.task.caches = AgentCaches::filled("n", Some(node()), Some(hypervisor()));
    fixture.round(vec![]).await;
    assert!(fixture.server.is_left_alone_for(Duration::ZERO).await);
}

#[tokio::test]
async fn failed_write_is_repeated_after_a_back_off() {
    for (code, reason) in [
        (403, "Forbidden"),
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
    ] {
        let mut fixture = fixture(Some(node())).await;
        fixture.task.caches = AgentCaches::filled("n", Some(node()), Some(hypervisor()));
        let now = clock::now();
        let (retry, requested) = fixture.round(vec![refuse(code, reason)]).await;
        assert_eq!(requested, [format!("PATCH {NODE}")], "{code}");
        assert!(retry.is_some_and(|retry| retry > now), "{code}");
        assert!(!fixture.task.backoff.is_reset(), "{code}");

        let (retry, requested) = fixture.round(vec![label(), refuse(code, reason)]).await;
        let expected = [format!("PATCH {NODE}"), format!("PATCH {HYPERVISORS}/n/status")];
        assert_eq!(requested, expected, "{code}");
        assert!(retry.is_some(), "{code}");

        let (_, requested) = fixture.round(vec![accept("2"), count()]).await;
        assert_eq!(requested[0], format!("PATCH {HYPERVISORS}/n/status"), "{code}");
        assert!(fixture.task.backoff.is_reset(), "{code}");
    }
}

#[tokio::test]
async fn hypervisor_of_a_deleted_node_is_awaited_and_not_adopted() {
    let mut fixture = fixture(Some(node())).await;
    let (retry, requested) = fixture.round(vec![refuse_existing(), count()]).await;
    assert_eq!(requested[0], format!("POST {HYPERVISORS}"));
    assert_eq!(retry, None, "the watch shows when it is gone");
    assert!(fixture.server.is_left_alone_for(Duration::ZERO).await);
}

#[tokio::test]
async fn deletion_of_the_node_needs_the_api_servers_confirmation() {
    for (service, deleted) in [
        (refuse(401, "Unauthorized"), false),
        (refuse(429, "TooManyRequests"), false),
        (refuse(500, "InternalError"), false),
        (list(1), false),
        (list(0), true),
    ] {
        let mut fixture = fixture(None).await;
        let (_, requested) = fixture.round(vec![service, count()]).await;
        assert_eq!(requested[0], "GET /api/v1/nodes");
        assert_eq!(fixture.deleted_node.borrow().is_some(), deleted);
        assert!(fixture.server.is_left_alone_for(Duration::ZERO).await);
    }
}

#[tokio::test]
async fn node_that_exists_again_accepts_guests() {
    let mut fixture = fixture(None).await;
    fixture.round(vec![list(0), count()]).await;
    assert!(fixture.deleted_node.borrow().is_some());
    fixture.task.caches = AgentCaches::filled("n", Some(node()), None);
    fixture.round(vec![refuse(500, "InternalError")]).await;
    assert!(fixture.deleted_node.borrow().is_none());
}

#[tokio::test]
async fn agent_without_the_hosts_lock_writes_nothing() {
    let mut fixture = fixture(Some(node())).await;
    fixture.task.lock = None;
    fixture.round(vec![]).await;
    assert!(fixture.server.is_left_alone_for(Duration::ZERO).await);
}

#[tokio::test]
async fn departing_agent_reports_that_the_node_takes_no_guests() {
    let mut fixture = fixture(Some(node())).await;
    fixture.round(vec![accept("1"), label(), accept("2"), count()]).await;
    let written = fixture.task.written_node.clone().unwrap();
    fixture.task.caches = AgentCaches::filled("n", Some(node()), Some(hypervisor()));
    let mut schedulable = written;
    schedulable
        .labels_mut()
        .insert("kubevirt.io/schedulable".into(), "true".into());
    fixture.task.written_node = Some(schedulable);
    let (labels, observe) = captured();
    let Fixture { task, server, .. } = &mut fixture;
    let (acted, requested) = served(server, vec![observe, accept("3")], task.act(clock::now(), true)).await;
    acted.unwrap();
    assert_eq!(requested[0], format!("PATCH {NODE}"));
    assert_eq!(labels.borrow()["kubevirt.io/schedulable"], "false");
}

#[tokio::test]
async fn configuration_change_waits_for_turn_on_monotonic_clock() {
    let mut fixture = fixture(None).await;
    let task = &mut fixture.task;
    task.follow();
    let config_map = serde_json::from_value(json!({
        "metadata": {"name": "kubevirt-config", "namespace": task.args.configuration_namespaces[0]},
        "data": {"migrations": "{}"},
    }))
    .unwrap();
    let before = sources(&[Arc::new(config_map)], &[], &task.args.configuration_namespaces);
    assert!(!before.is_empty());
    task.following.as_mut().unwrap().sources = before.clone();
    (task.hypervisors, task.place) = (200, 1.0);
    // From now on, the clock advances only by `advance`.
    tokio::time::pause();
    for (passed, followed) in [(0, false), (999, false), (1, true)] {
        tokio::time::advance(Duration::from_millis(passed)).await;
        task.follow();
        assert_eq!(task.following.as_ref().unwrap().sources != before, followed);
        assert_eq!(task.follow_at.is_none(), followed);
    }
}
