//! Tests of a guest's task with an in-memory libvirt and a fake API server.

use std::{fs, path::PathBuf, sync::Arc};

use drydock_api::launcher::GuestOutcome;
use drydock_core::mask::MaskedModels;
use drydock_host::{
    domain::{ShutOffReason, StoppedDetail},
    fake::{
        fake_guest::{FakeLibvirt, LIVE_XML},
        tcg_node,
    },
    libvirt::LibvirtError,
};
use drydock_runtime::{
    Process,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::guests::Host;

mod failing_calls;
mod failing_writes;
mod file_systems;

const POD: &str = "0a";
const DOMAIN: &str = "shop_web";
const STATUS: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web/status";
const GATE: &str = "/api/v1/namespaces/shop/pods/virt-launcher-web/status";

/// Fakes around the task: the API server with its stored VMI, and the guest's libvirt.
struct Around {
    server: ApiServer,
    libvirt: FakeLibvirt,
    seen: watch::Sender<VmiState>,
    stored: Value,
}

struct Fixture {
    task: GuestTask,
    around: Around,
    kubelet: PathBuf,
    requests: mpsc::Sender<GuestRequest>,
    // The value ends its connections when it is dropped.
    _events: ApiServer,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.kubelet).unwrap();
    }
}

/// Returns the VMI with this status.
fn instance(status: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "1"},
        "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}},
        "status": status,
    })
}

fn scheduled() -> Value {
    json!({"phase": "Scheduled", "nodeName": "a", "activePods": {POD: "a"}, "conditions": [not_running()]})
}

/// Returns the condition that the controller reports until a guest is ready.
fn not_running() -> Value {
    json!({
        "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "GuestNotRunning", "message": "the guest is not running yet",
    })
}

fn running() -> Value {
    json!({"phase": "Running", "nodeName": "a", "activePods": {POD: "a"}})
}

fn pod() -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "virt-launcher-web", "uid": POD, "resourceVersion": "1"},
        "spec": {"containers": [], "nodeName": "a"},
        "status": {"phase": "Running"},
    })
}

/// Returns the fixture of a task: a VMI with this status, and the libvirt of its pod.
fn fixture(status: &Value, libvirt: FakeLibvirt) -> Fixture {
    let kubelet = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-guest-XXXXXX")).unwrap();
    let ((client, server), (for_events, events)) = (api_server(), api_server());
    let stored = instance(status);
    let pod: Pod = serde_json::from_value(pod()).unwrap();
    let host = Host::of(&tcg_node(), &[].into(), &MaskedModels::default()).unwrap();
    let (seen, receiver) = watch::channel(VmiState {
        instance: Arc::new(serde_json::from_value(stored.clone()).unwrap()),
        pod_uid: Some(POD.into()),
        pod: Some(Arc::new(pod.clone())),
        ending: None,
        host: Arc::new(host),
        node_deleted: None,
    });
    let shared = TaskContext::fake(client, for_events, pod, kubelet.clone(), &Process::new());
    let (requests, received) = mpsc::channel(1);
    Fixture {
        task: GuestTask::new(shared, receiver, received),
        around: Around {
            server,
            libvirt,
            seen,
            stored,
        },
        kubelet,
        requests,
        _events: events,
    }
}

impl Fixture {
    /// Serves the guest over a new connection until `test` has ended. Returns the result if serving ended first.
    async fn attend(&mut self, test: impl AsyncFnOnce(&mut Around)) -> Option<Result<AfterServing, GuestTaskError>> {
        let (handle, events) = self.around.libvirt.connect(DOMAIN).await.unwrap();
        let folder = PodFolder::new(&self.kubelet, POD, RUN_VOLUME).unwrap();
        let ready = Ready::default();
        let mut end = None;
        let attending = async {
            end = Some(self.task.attend(&handle, events, &ready, &folder, POD).await);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = attending => {}
            () = test(&mut self.around) => {}
        }
        end
    }
}

impl Around {
    /// Stores the next write, and returns its path and the written status.
    ///
    /// The task may first read the VMI, which it does before it starts a guest.
    async fn next(&mut self) -> (String, Value) {
        let mut request = self.server.next_request().await;
        if request.method == Method::GET {
            self.list(request);
            request = self.server.next_request().await;
        }
        assert_eq!(request.method, Method::PATCH);
        let (path, status) = (request.path().to_owned(), request.body["status"].clone());
        self.store(request);
        (path, status)
    }

    /// Responds to a list request with the stored VMI.
    fn list(&self, request: ReceivedRequest) {
        assert_eq!(
            (&request.method, request.path()),
            (&Method::GET, STATUS.trim_end_matches("/web/status"))
        );
        request.with(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceList", "metadata": {}, "items": [self.stored],
        }));
    }

    fn store(&mut self, request: ReceivedRequest) {
        let stored = self.execute(&request);
        request.with(&stored);
    }

    /// Executes a write and returns the changed object.
    fn execute(&mut self, request: &ReceivedRequest) -> Value {
        let mut changed = request.body["status"].as_object().unwrap().clone();
        if request.path() == GATE {
            let mut stored = pod();
            stored["metadata"]["resourceVersion"] = json!("2");
            stored["status"]["conditions"] = changed["conditions"].clone();
            return stored;
        }
        assert_eq!(request.path(), STATUS);
        assert!(!self.is_outdated(request));
        self.keep_fields_of_controller(&mut changed);
        if changed.get("fsFreezeStatus").is_none() {
            self.stored["status"].as_object_mut().unwrap().remove("fsFreezeStatus");
        }
        self.stored["status"].as_object_mut().unwrap().extend(changed);
        let version: u64 = self.stored["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        self.stored["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        self.stored.clone()
    }

    /// Returns whether a write of the status is based on an earlier version of the VMI.
    fn is_outdated(&self, request: &ReceivedRequest) -> bool {
        request.body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]
    }

    /// Keeps the fields of the controller: server-side apply removes no fields that the agent has not owned.
    fn keep_fields_of_controller(&self, changed: &mut serde_json::Map<String, Value>) {
        let ready = |conditions: &Value| conditions.as_array()?.iter().position(|one| one["type"] == "Ready");
        let stored = &self.stored["status"]["conditions"];
        let (Some(was), Some(is)) = (ready(stored), changed.get("conditions").and_then(ready)) else {
            return;
        };
        let (was, is) = (&stored[was], &mut changed["conditions"][is]);
        if was["message"] == not_running()["message"] && is.get("message").is_none() {
            is["reason"] = was["reason"].clone();
            is["message"] = was["message"].clone();
        }
    }

    /// Lets the task process the last responses. Panics if the task sends a request.
    async fn idle(&mut self) {
        assert!(self.server.is_left_alone_for(Duration::from_millis(100)).await);
    }

    /// Stores writes until the gate is set. Returns whether the gate is open.
    async fn gate(&mut self) -> bool {
        loop {
            if let (path, status) = self.next().await
                && path == GATE
            {
                return status["conditions"][0]["status"] == "True";
            }
        }
    }

    /// Stores writes until the status is reported. Returns the reported status.
    async fn report(&mut self) -> Value {
        loop {
            if let (path, status) = self.next().await
                && path == STATUS
            {
                return status;
            }
        }
    }
}

/// Returns a libvirt in which the guest was started before.
async fn started() -> FakeLibvirt {
    let libvirt = FakeLibvirt::default();
    let (handle, _events) = libvirt.connect(DOMAIN).await.unwrap();
    handle.define("<domain/>").await.unwrap();
    handle.create(InitialState::Running).await.unwrap();
    libvirt
}

const STARTED: [&str; 2] = ["define", "create"];

#[tokio::test]
async fn guest_is_started_once_and_reported_running() {
    let mut fixture = fixture(&scheduled(), FakeLibvirt::default());
    let end = fixture.attend(async |around| {
        assert!(around.gate().await);
        if around.stored["status"]["phase"] != "Running" {
            around.report().await;
        }
        assert_eq!(around.stored["status"]["phase"], "Running");
        assert!(around.libvirt.definition().unwrap().contains("<name>shop_web</name>"));
        around.idle().await;
    });
    assert!(end.await.is_none());
    // The connection is lost, and the watch still shows the VMI before it was Running.
    let end = fixture.attend(async |around| {
        around.idle().await;
    });
    assert!(end.await.is_none());
    assert_eq!(fixture.around.libvirt.calls(), STARTED);
}

#[tokio::test]
async fn running_guest_is_adopted_by_the_next_agent() {
    for status in [scheduled(), running()] {
        let mut fixture = fixture(&status, started().await);
        let end = fixture.attend(async |around| {
            assert!(around.gate().await);
            if around.stored["metadata"]["resourceVersion"] == "1" {
                around.report().await;
            }
            assert_eq!(around.stored["status"]["phase"], "Running");
        });
        assert!(end.await.is_none());
        assert_eq!(fixture.around.libvirt.calls(), STARTED, "{status}");
    }
}

#[tokio::test]
async fn guest_that_ends_is_not_started_again() {
    for (event, reason) in [
        (StoppedDetail::Crashed, ShutOffReason::Crashed),
        (StoppedDetail::Shutdown, ShutOffReason::Shutdown),
        (StoppedDetail::Failed, ShutOffReason::Failed),
    ] {
        let mut fixture = fixture(&scheduled(), FakeLibvirt::default());
        let end = fixture.attend(async |around| {
            assert!(around.gate().await);
            around.libvirt.guest_ends(event, reason);
            assert!(!around.gate().await, "no traffic goes to it");
            // The end of the pod decides the final phase.
            assert_ne!(around.stored["status"]["phase"], "Failed");
        });
        assert!(end.await.is_none());
        assert_eq!(fixture.around.libvirt.calls(), STARTED, "{reason:?}");
    }
}

#[tokio::test]
async fn instance_that_ran_before_is_not_started_in_an_empty_libvirt() {
    let mut fixture = fixture(&running(), FakeLibvirt::default());
    let end = fixture.attend(async |around| {
        around.idle().await;
    });
    assert!(end.await.is_none());
    assert_eq!(fixture.around.libvirt.calls(), [""; 0]);
}

#[tokio::test]
async fn guest_with_a_reported_end_is_not_started() {
    let ended = json!({"endedPods": [POD]});
    for (drydock, expected) in [(json!({}), &STARTED[..]), (ended, &[])] {
        let mut fixture = fixture(&scheduled(), FakeLibvirt::default());
        // The watch does not show the status yet.
        fixture.around.stored["status"]["drydock"] = drydock.clone();
        fixture.around.stored["metadata"]["resourceVersion"] = json!("2");
        let end = fixture.attend(async |around| {
            let read = around.server.next_request().await;
            around.list(read);
            if expected.is_empty() {
                around.idle().await;
            } else {
                around.report().await;
            }
        });
        assert!(end.await.is_none());
        assert_eq!(fixture.around.libvirt.calls(), expected, "{drydock}");
    }
}

#[tokio::test]
async fn guest_is_not_started_while_the_status_cannot_be_read() {
    let mut fixture = fixture(&scheduled(), FakeLibvirt::default());
    let end = fixture.attend(async |around| {
        around.server.next_request().await.refuse(500, "InternalError");
        around.idle().await;
    });
    assert!(matches!(end.await, Some(Err(GuestTaskError::Unread(_)))));
    assert_eq!(fixture.around.libvirt.calls(), [""; 0]);
}

#[tokio::test]
async fn failed_report_is_repeated_and_the_guest_runs_on() {
    for (code, reason) in [
        (403, "Forbidden"),
        (409, "Conflict"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
    ] {
        let mut fixture = fixture(&running(), started().await);
        let end = fixture.attend(async |around| {
            loop {
                let request = around.server.next_request().await;
                if request.path() == STATUS {
                    break request.refuse(code, reason);
                }
                around.store(request);
            }
            let status = around.report().await;
            assert_eq!(status["phase"], "Running", "{code}");
        });
        assert!(end.await.is_none());
        assert_eq!(fixture.around.libvirt.calls(), STARTED, "{code}");
    }
}

#[tokio::test]
async fn failed_gate_is_repeated_and_delays_no_report() {
    for (code, reason) in [(409, "Conflict"), (500, "InternalError")] {
        let mut fixture = fixture(&running(), started().await);
        let end = fixture.attend(async |around| {
            loop {
                let request = around.server.next_request().await;
                if request.path() == GATE {
                    break request.refuse(code, reason);
                }
                around.store(request);
            }
            if around.stored["metadata"]["resourceVersion"] == "1" {
                around.report().await;
            }
            assert!(around.gate().await, "{code}");
        });
        assert!(end.await.is_none());
    }
}

#[tokio::test]
async fn guest_outlives_libvirtd() {
    let mut fixture = fixture(&running(), started().await);
    let end = fixture.attend(async |around| {
        assert!(around.gate().await);
        if around.stored["metadata"]["resourceVersion"] == "1" {
            around.report().await;
        }
        around.libvirt.daemon_ends();
        around.idle().await;
    });
    assert!(matches!(end.await, Some(Ok(AfterServing::Again))));
    let end = fixture.attend(async |around| {
        around.idle().await;
    });
    assert!(end.await.is_none());
    assert_eq!(fixture.around.libvirt.calls(), STARTED);
}

#[tokio::test]
async fn another_pod_or_a_deleted_node_ends_the_connection() {
    let changes: [fn(&mut VmiState); 3] = [
        |seen| seen.pod_uid = Some("0b".into()),
        |seen| seen.pod = None,
        |seen| seen.node_deleted = Some(clock::Instant::now()),
    ];
    for change in changes {
        let mut fixture = fixture(&running(), started().await);
        let end = fixture.attend(async |around| {
            assert!(around.gate().await);
            if around.stored["metadata"]["resourceVersion"] == "1" {
                around.report().await;
            }
            around.seen.send_modify(change);
            around.idle().await;
        });
        assert!(matches!(end.await, Some(Ok(AfterServing::Again))));
        assert_eq!(fixture.around.libvirt.calls(), STARTED);
    }
}

#[tokio::test]
async fn guest_end_in_deleted_pod_comes_from_launcher_report() {
    let ended = EndedGuest {
        outcome: Some(GuestOutcome::Shutdown),
        message: "the guest shut down".into(),
        evicted: true,
        by_kubelet: false,
    };
    for ending in [Some(ended), None] {
        let mut fixture = fixture(&running(), FakeLibvirt::default());
        fs::create_dir(fixture.kubelet.join("pods")).unwrap();
        let known = ending.clone();
        fixture.around.seen.send_modify(|seen| {
            seen.pod = None;
            seen.ending = known;
        });
        let around = &mut fixture.around;
        let api_server = async {
            let request = around.server.next_request().await;
            assert_eq!(request.method, Method::GET);
            let empty = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [],
            });
            request.with(&empty);
            around.report().await
        };
        let (then, status) = tokio::join!(fixture.task.serve(), api_server);
        assert!(matches!(then, Ok(AfterServing::OnChange)));
        assert_eq!(status["drydock"]["endedPods"], json!([POD]));
        let expected = ending.map(|_| {
            json!({
                "podUID": POD, "outcome": "Shutdown", "message": "the guest shut down", "evicted": true,
                "byKubelet": false,
            })
        });
        assert_eq!(status["drydock"].get("ending"), expected.as_ref());
    }
}

/// Returns a time in the past.
async fn overdue() -> Option<clock::Instant> {
    let at = clock::Instant::now();
    tokio::time::advance(Duration::from_secs(1)).await;
    Some(at)
}

#[tokio::test(start_paused = true)]
async fn overdue_retry_of_a_pod_not_shown_lists_pods_once() {
    for (refuses, expected) in [(false, 1), (true, 2)] {
        let mut fixture = fixture(&running(), FakeLibvirt::default());
        fs::create_dir(fixture.kubelet.join("pods")).unwrap();
        fixture.around.seen.send_modify(|seen| seen.pod = None);
        let receiver = fixture.around.seen.subscribe();
        let other = GuestTask::new(fixture.task.shared.clone(), receiver, mpsc::channel(1).1);
        let mut task = std::mem::replace(&mut fixture.task, other);
        task.retry = overdue().await;
        let server = &mut fixture.around.server;
        let start = clock::Instant::now();
        let api_server = async {
            for attempt in 1..=expected {
                let request = server.next_request().await;
                if refuses && attempt == 1 {
                    request.refuse(429, "TooManyRequests");
                    continue;
                }
                let mut shown = pod();
                shown["apiVersion"] = json!("meta.k8s.io/v1");
                shown["kind"] = json!("PartialObjectMetadata");
                request.with(&json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
                    "items": [shown],
                }));
            }
            assert!(!refuses || start.elapsed() >= RETRY.0 / 2, "{:?}", start.elapsed());
            assert!(server.is_left_alone().await);
        };
        tokio::select! {
            () = task.run() => panic!("the task has ended"),
            () = api_server => {}
        }
    }
}

#[tokio::test]
async fn overdue_retry_without_a_domain_ends() {
    let mut fixture = fixture(&running(), FakeLibvirt::default());
    fixture.task.retry = Some(clock::Instant::now());
    let end = fixture.attend(async |around| around.idle().await);
    assert!(end.await.is_none());
    assert_eq!(fixture.task.retry, None);
}

#[tokio::test]
async fn credentials_are_not_retried_without_a_domain() {
    let mut fixture = fixture(&running(), FakeLibvirt::default());
    let (handle, _events) = fixture.around.libvirt.connect(DOMAIN).await.unwrap();
    let spec = serde_json::from_value(json!({
        "domain": {"devices": {}},
        "accessCredentials": [{"userPassword": {
            "source": {"secret": {"secretName": "passwords"}},
            "propagationMethod": {"qemuGuestAgent": {}},
        }}],
    }))
    .unwrap();
    let mut known = ConnectedGuest {
        agent: Some(GuestAgent::default()),
        credentials: Credentials::of(&fixture.kubelet, POD, &spec).unwrap(),
        ..ConnectedGuest::default()
    };
    // The Secret is not mounted.
    fixture.task.synchronize_credentials(&handle, &mut known).await;
    assert!(known.credentials.retry().is_some());
    let (pod, ready): (Pod, _) = (serde_json::from_value(pod()).unwrap(), Ready::default());
    let reconciled = fixture.task.reconcile(&handle, &mut known, &ready, &pod).await;
    reconciled.unwrap();
    assert_eq!(known.credentials.retry(), None);
}

#[tokio::test]
async fn refusal_by_libvirt_is_reported_until_the_guest_starts() {
    let mut fixture = fixture(&scheduled(), FakeLibvirt::default());
    let (handle, _events) = fixture.around.libvirt.connect(DOMAIN).await.unwrap();
    fixture.around.libvirt.refuse_next(LibvirtError {
        call: "define",
        // The code is VIR_ERR_XML_ERROR of libvirt, and the domain is VIR_FROM_QEMU.
        code: 27,
        domain: 10,
        message: "XML error".into(),
    });
    let instance = fixture.task.instance();
    let trouble = fixture
        .task
        .start(&handle, &instance, &Ready::default())
        .await
        .unwrap_err();
    assert!(matches!(trouble, GuestTaskError::Call(_)), "{trouble:?}");
    let ((), status) = tokio::join!(fixture.task.report_trouble(&trouble, true), fixture.around.report());
    let ready = &status["conditions"][0];
    assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("False")));
    assert!(ready["message"].as_str().unwrap().contains("XML error"), "{ready}");
    // The next attempt succeeds.
    let end = fixture.attend(async |around| {
        assert!(around.gate().await);
        if around.stored["status"]["phase"] != "Running" {
            around.report().await;
        }
        let conditions = around.stored["status"]["conditions"].as_array().unwrap();
        let ready = conditions
            .iter()
            .find(|condition| condition["type"] == "Ready")
            .unwrap();
        assert_eq!(ready["status"], "True");
    });
    assert!(end.await.is_none());
    assert_eq!(fixture.around.libvirt.calls(), ["define", "define", "create"]);
}
