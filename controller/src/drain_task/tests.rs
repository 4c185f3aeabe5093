//! Tests of drains with a simulated API server: the effect of each write.

use std::time::Duration;

use drydock_api::{
    HypervisorSpec,
    kubevirt::{Phase, status::DrainRequest},
};
use drydock_runtime::{
    Process, Readiness, Registry, WatchMetrics, WatchStarter, WorkQueueMetrics,
    fake::{ApiServer, ReceivedRequest, api_server, candidate, elect},
};
use http::Method;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::*;
use crate::{reconciler::triggered::keep_reconciling, refusals::StepRefusals, reserved_nodes::PlannedNode};

/// A task in a cluster in which node `a` is tainted and has guests, and the API server for its requests.
struct Fixture {
    task: DrainTask,
    server: ApiServer,
    /// Guards of watched nodes. Their watches never get a response.
    kept: BTreeMap<String, PodsGuard>,
    refusals: StepRefusals,
    // API servers whose connections end when they are dropped.
    _servers: (ApiServer, ApiServer),
}

fn fixture(guests: &[&str]) -> Fixture {
    fixture_of(guests.iter().map(|name| instance(name)))
}

fn fixture_of(guests: impl IntoIterator<Item = VirtualMachineInstance>) -> Fixture {
    fixture_on(&["a"], guests)
}

/// Returns a task in a cluster with these tainted nodes and guests. All nodes except `a` have Hypervisors.
fn fixture_on(names: &[&str], guests: impl IntoIterator<Item = VirtualMachineInstance>) -> Fixture {
    let ((client, server), (for_pods, pods)) = (api_server(), api_server());
    let process = Process::new();
    let (context, events_server) = GuestContext::empty(client);
    let others = names.iter().filter(|name| **name != "a");
    let hypervisors = others.map(|name| Hypervisor::new(name, HypervisorSpec::default()));
    context
        .launchers
        .nodes
        .nodes
        .show(names.iter().map(|name| tainted(name)));
    context.launchers.nodes.hypervisors.show(hypervisors);
    context.instances.objects.show(guests);
    let watches = WatchStarter::new(&process, &Readiness::new(), &WatchMetrics::default());
    let refusals = context.refusals.clone();
    let task = DrainTask::new(
        context,
        NodePods::start(&for_pods, &watches, |_| ()),
        DrainMetrics::register(&mut Registry::default()),
        Trigger::new(),
    );
    Fixture {
        task,
        server,
        kept: BTreeMap::new(),
        refusals,
        _servers: (pods, events_server),
    }
}

pub(super) fn tainted(name: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"taints": [{"key": "kubevirt.io/drain", "effect": "NoSchedule"}]},
    }))
    .unwrap()
}

/// A guest that runs on node `a` and can be migrated.
pub(super) fn instance(name: &str) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"},
        "status": {
            "phase": "Running",
            "nodeName": "a",
            "conditions": [{"type": "LiveMigratable", "status": "True"}],
        },
    }))
    .unwrap()
}

/// Returns the response to a request that sets an evacuation request.
fn marked(request: &ReceivedRequest, name: &str) -> Value {
    let mut marked = json!(instance(name));
    for part in ["evacuationNodeName", "evacuation"] {
        marked["status"][part] = request.body["status"][part].clone();
    }
    marked["metadata"]["resourceVersion"] = json!("2");
    marked
}

fn mark_path(name: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/{name}/status")
}

const MIGRATIONS: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations";

impl Fixture {
    /// Makes and executes one plan; `served` responds to the requests. Returns the time of the next plan.
    async fn reconcile(&mut self, served: impl AsyncFnOnce(&mut ApiServer)) -> kube::Result<Option<Timestamp>> {
        let mut pause = Duration::ZERO;
        let (result, ()) = tokio::join!(
            self.task.plan_and_execute(&mut self.kept, false, &mut pause),
            served(&mut self.server)
        );
        result
    }

    /// Lets the drain mark the guest `name`, which is the only one without an evacuation request.
    async fn mark(&mut self, name: &str) {
        let done = self.reconcile(async |server| {
            let request = server.next_request().await;
            assert_eq!(
                (&request.method, request.path()),
                (&Method::PATCH, mark_path(name).as_str())
            );
            assert_eq!(request.body["metadata"]["resourceVersion"], "1");
            let response = marked(&request, name);
            request.with(&response);
        });
        done.await.unwrap();
    }

    fn is_refused(&self, name: &str) -> bool {
        self.refusals
            .of(&RefusedStep::Drain(Key::namespaced("shop", name)), clock::now())
            .is_some()
    }
}

#[tokio::test(start_paused = true)]
async fn guest_of_a_tainted_node_is_marked_and_then_migrated_once() {
    let mut fixture = fixture(&["web"]);
    fixture.mark("web").await;
    let created = fixture.reconcile(async |server| {
        let request = server.next_request().await;
        assert_eq!((&request.method, request.path()), (&Method::POST, MIGRATIONS));
        assert_eq!(request.body["spec"]["vmiName"], "web");
        let mut migration = request.body.clone();
        migration["metadata"]["uid"] = json!("m");
        request.with(&migration);
    });
    created.await.unwrap();
    // The watch has shown neither the evacuation request nor the migration yet.
    let nothing = fixture.reconcile(async |server| assert!(server.is_left_alone().await));
    let wake = nothing.await.unwrap();
    // The Node reports only a drain that lasts for some seconds.
    let lasts = clock::now() + Duration::from_secs(4);
    assert!(wake.is_some_and(|wake| wake <= lasts), "{wake:?}");
}

#[tokio::test(start_paused = true)]
async fn mark_of_another_writer_since_the_plan_is_kept() {
    let guests: Vec<String> = (0..=MAX_CONCURRENT_ACTIONS)
        .map(|number| format!("g{number}"))
        .collect();
    let mut fixture = fixture(&guests.iter().map(String::as_str).collect::<Vec<_>>());
    let instances = fixture.task.context.instances.clone();
    let done = fixture.reconcile(async |server| {
        let mut requests = Vec::new();
        for _ in 0..MAX_CONCURRENT_ACTIONS {
            requests.push(server.next_request().await);
        }
        let name = |request: &ReceivedRequest| request.body["metadata"]["name"].as_str().unwrap().to_owned();
        let waiting = guests
            .iter()
            .find(|guest| requests.iter().all(|request| name(request) != **guest));
        let mut marked_first = instance(waiting.unwrap());
        marked_first.metadata.resource_version = Some("9".into());
        marked_first.status.as_mut().unwrap().evacuation_node_name = Some("a".into());
        instances.objects.remember(&Key::of(&marked_first), marked_first);
        for request in requests {
            let response = marked(&request, &name(&request));
            request.with(&response);
        }
        assert!(server.is_left_alone().await);
    });
    done.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn planned_nodes_are_reserved_when_the_plan_is_executed() {
    let Fixture { task, .. } = fixture(&[]);
    let [leaving, other] = ["web", "db"].map(|name| Key::namespaced("shop", name));
    let mut observed = task.observe(&[]);
    observed.outlooks.planned = Some(vec![PlannedNode {
        guest: leaving,
        node: "b".into(),
        reserved: true,
    }]);
    assert!(task.context.launchers.reserved.for_others(&other).is_empty());
    let executed = task.execute_plan(&mut observed, NodeDrainPlan::default(), false);
    assert_eq!(executed.await.unwrap(), None);
    assert_eq!(task.context.launchers.reserved.for_others(&other), ["b"]);
}

/// The effect of each failed write: an error that requeues the drain, a recorded refusal, or nothing.
const FAILURES: [(u16, &str, bool, bool); 6] = [
    (403, "Forbidden", false, true),
    (422, "Invalid", false, true),
    (404, "NotFound", false, false),
    (409, "Conflict", true, false),
    (429, "TooManyRequests", true, false),
    (500, "InternalError", true, false),
];

#[tokio::test(start_paused = true)]
async fn failed_mark_of_one_guest_holds_up_no_other() {
    for (code, reason, fails, refused) in FAILURES {
        let mut fixture = fixture(&["db", "web"]);
        let result = fixture.reconcile(async |server| {
            for _ in 0..2 {
                let request = server.next_request().await;
                if request.path() == mark_path("db") {
                    request.refuse(code, reason);
                } else {
                    assert_eq!(request.path(), mark_path("web"));
                    let response = marked(&request, "web");
                    request.with(&response);
                }
            }
        });
        assert_eq!(result.await.is_err(), fails, "{code}");
        assert_eq!(
            (fixture.is_refused("db"), fixture.is_refused("web")),
            (refused, false),
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn failed_migration_of_one_guest_holds_up_no_other() {
    for (code, reason, fails, refused) in FAILURES {
        let mut fixture = fixture(&["db", "web"]);
        let marks = fixture.reconcile(async |server| {
            for _ in 0..2 {
                let request = server.next_request().await;
                let name = if request.path() == mark_path("db") { "db" } else { "web" };
                let response = marked(&request, name);
                request.with(&response);
            }
        });
        marks.await.unwrap();
        let result = fixture.reconcile(async |server| {
            for _ in 0..2 {
                let request = server.next_request().await;
                assert_eq!((&request.method, request.path()), (&Method::POST, MIGRATIONS));
                if request.body["spec"]["vmiName"] == "db" {
                    request.refuse(code, reason);
                } else {
                    let migration = request.body.clone();
                    request.with(&migration);
                }
            }
        });
        assert_eq!(result.await.is_err(), fails, "{code}");
        assert_eq!(
            (fixture.is_refused("db"), fixture.is_refused("web")),
            (refused, false),
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn guest_with_withdrawn_mark_gets_no_migration() {
    let evacuation = evacuation_request::new(DrainRequest::Taint, clock::now());
    let marked = |name: &str, node: &str| evacuation_request::marked(&instance(name), node, &evacuation);
    for (case, mut now) in [
        ("unmarked", instance("web")),
        ("to leave another node", marked("web", "b")),
    ] {
        let mut fixture = fixture_of(["db", "web"].map(|name| marked(name, "a")));
        let instances = fixture.task.context.instances.clone();
        let done = fixture.reconcile(async |server| {
            let first = server.next_request().await;
            assert_eq!((&first.method, first.path()), (&Method::POST, MIGRATIONS), "{case}");
            assert_eq!(first.body["spec"]["vmiName"], "db", "{case}");
            now.metadata.resource_version = Some("2".into());
            instances.objects.remember(&Key::namespaced("shop", "web"), now);
            let migration = first.body.clone();
            first.with(&migration);
            assert!(server.is_left_alone().await, "{case}");
        });
        done.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn refused_step_waits_for_the_back_off() {
    let mut fixture = fixture(&["web"]);
    let step = RefusedStep::Drain(Key::namespaced("shop", "web"));
    // The refusal is recorded often enough for a delay of some seconds, because the wall clock is not paused.
    (0..10).for_each(|_| fixture.refusals.note(step.clone(), "exceeded quota", clock::now()));
    let nothing = fixture.reconcile(async |server| assert!(server.is_left_alone().await));
    nothing.await.unwrap();
    assert!(fixture.is_refused("web"));
    fixture.refusals.forget(&step);
    fixture.mark("web").await;
}

#[tokio::test(start_paused = true)]
async fn migration_with_a_lost_response_is_found_by_name() {
    let mut fixture = fixture(&["web"]);
    fixture.mark("web").await;
    let mut created = Value::Null;
    {
        // The API server has created the migration, and this process no longer leads.
        let mut pause = Duration::ZERO;
        let interrupted = fixture.task.plan_and_execute(&mut fixture.kept, false, &mut pause);
        let served = async {
            let request = fixture.server.next_request().await;
            created = request.body.clone();
            request.lose()
        };
        tokio::select! {
            _ = interrupted => panic!("there is no response"),
            lost = async { let lost = served.await; tokio::task::yield_now().await; lost } => drop(lost),
        }
    }
    let name = created["metadata"]["name"].as_str().unwrap().to_owned();
    let repeated = fixture.reconcile(async |server| {
        let request = server.next_request().await;
        assert_eq!(
            request.body["metadata"]["name"],
            json!(name),
            "the same attempt has the same name"
        );
        request.refuse(409, "AlreadyExists");
        let read = server.next_request().await;
        assert_eq!(
            (&read.method, read.path()),
            (&Method::GET, format!("{MIGRATIONS}/{name}").as_str())
        );
        read.with(&created);
    });
    repeated.await.unwrap();
    let nothing = fixture.reconcile(async |server| assert!(server.is_left_alone().await));
    nothing.await.unwrap();
}

impl Fixture {
    /// Reconciles for this time whenever a reconcile is due, without any change. `serve` responds to the requests.
    async fn lead(&mut self, span: Duration, mut serve: impl FnMut(ReceivedRequest)) {
        let process = Process::new();
        let (mut leadership, mut elections) = candidate(&process, Trigger::new());
        let (term, ()) = tokio::join!(leadership.elected(), elect(&mut elections));
        let Self { task, server, .. } = self;
        let metrics = WorkQueueMetrics::default().of_reconciler(DrainTask::NAME);
        let reconciles = keep_reconciling(&*task, &task.changed, &term, &metrics);
        let served = async {
            loop {
                serve(server.next_request().await);
            }
        };
        tokio::select! {
            () = reconciles => {}
            () = served => {}
            () = tokio::time::sleep(span) => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stale_mark_is_repeated_with_back_off() {
    let mut fixture = fixture(&["web"]);
    let mut marks = 0;
    let serve = |request: ReceivedRequest| {
        marks += 1;
        request.refuse(409, "Conflict");
    };
    fixture.lead(Duration::from_secs(10), serve).await;
    assert!((10..40).contains(&marks), "{marks}");
}

#[tokio::test(start_paused = true)]
async fn drain_report_is_debounced_by_the_monotonic_clock() {
    let mut ended = instance("web");
    let status = ended.status.get_or_insert_default();
    (status.phase, status.evacuation_node_name) = (Some(Phase::Succeeded), Some("a".into()));
    let mut fixture = fixture_of([ended]);
    let (began, mut reported) = (Instant::now(), None);
    // The removal of the evacuation request of an ended guest also only reports.
    let serve = |request: ReceivedRequest| {
        assert_eq!(request.path(), mark_path("web"));
        reported.get_or_insert(began.elapsed());
        request.with(&json!(instance("web")));
    };
    // The wall clock does not advance in the meantime.
    fixture.lead(Duration::from_secs(600), serve).await;
    let soon = STATUS_DEBOUNCE..STATUS_DEBOUNCE * 2;
    assert!(reported.is_some_and(|after| soon.contains(&after)), "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn drain_is_reported_while_a_step_of_another_node_fails() {
    let report_path = "/apis/drydock.dev/v1alpha1/hypervisors/b/status";
    for (code, reason) in [(500, "InternalError"), (429, "TooManyRequests"), (409, "Conflict")] {
        let mut fixture = fixture_on(&["a", "b"], [instance("db")]);
        let (began, mut reported) = (Instant::now(), None);
        let serve = |request: ReceivedRequest| {
            if request.path() == mark_path("db") {
                return request.refuse(code, reason);
            }
            if request.path() == report_path {
                assert_eq!(request.body["status"]["drain"]["requestedBy"], json!(["Taint"]));
                reported.get_or_insert(began.elapsed());
            }
            let response = request.body.clone();
            request.with(&response);
        };
        fixture.lead(Duration::from_secs(60), serve).await;
        // The back-off after the error does not delay the report.
        let soon = STATUS_DEBOUNCE..=STATUS_DEBOUNCE + PAUSE * 2;
        assert!(
            reported.is_some_and(|after| soon.contains(&after)),
            "{code}: {reported:?}"
        );
    }
}
