//! Tests of the reports on HyperConvergeds with a simulated API server.

use drydock_runtime::{
    Events,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::*;
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

/// Returns a task with these HyperConvergeds and a node that follows the first one, and the API server for its
/// requests.
fn task(objects: &[Value]) -> (InForceTask, ApiServer) {
    let (client, server) = api_server();
    (task_of(client, objects), server)
}

fn task_of(client: Client, objects: &[Value]) -> InForceTask {
    let hypervisor: Hypervisor = serde_json::from_value(json!({
        "metadata": {"name": "a"},
        "spec": {},
        "status": {"configuration": {"objects": [
            {"kind": KIND, "namespace": "one", "name": "hc", "revision": "1"},
        ]}},
    }))
    .unwrap();
    let objects = objects
        .iter()
        .map(|object| serde_json::from_value(object.clone()).unwrap());
    InForceTask {
        client,
        hyperconvergeds: Cache::filled(objects),
        hypervisors: Cache::filled([hypervisor]),
        namespaces: vec!["one".into(), "two".into()],
        configuration: ConfigurationInForce::default(),
        metrics: ControllerMetrics::default(),
    }
}

fn hyperconverged(namespace: &str) -> Value {
    json!({
        "apiVersion": "hco.kubevirt.io/v1beta1", "kind": KIND,
        "metadata": {"namespace": namespace, "name": "hc", "uid": namespace, "generation": 1},
        "spec": {},
    })
}

fn path(namespace: &str) -> String {
    format!("/apis/hco.kubevirt.io/v1beta1/namespaces/{namespace}/hyperconvergeds/hc/status")
}

/// Responds with the patched object.
fn accept(request: ReceivedRequest) {
    let mut stored = request.body.clone();
    stored["spec"] = json!({});
    request.with(&stored);
}

#[tokio::test(start_paused = true)]
async fn object_of_first_namespace_is_in_force_and_others_are_not() {
    let (task, mut server) = task(&[hyperconverged("two"), hyperconverged("one")]);
    let served = async {
        let mut statuses = BTreeMap::new();
        for _ in 0..2 {
            let request = server.next_request().await;
            assert_eq!(request.method, Method::PATCH);
            statuses.insert(request.path().to_owned(), request.body["status"].clone());
            accept(request);
        }
        statuses
    };
    let (result, statuses) = tokio::join!(task.judge_all(clock::now(), || true), served);
    result.unwrap();
    let one = &statuses[&path("one")];
    assert_eq!(
        (&one["conditions"][0]["status"], &one["nodesInForce"]),
        (&json!("True"), &json!(1))
    );
    assert_eq!(statuses[&path("two")]["conditions"][0]["status"], "False");
}

#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_reported_holds_up_no_other() {
    for (code, reason, fails) in [
        (403, "Forbidden", true),
        (404, "NotFound", false),
        (409, "Conflict", true),
        (429, "TooManyRequests", true),
        (500, "InternalError", true),
    ] {
        for failing in ["one", "two"] {
            let (task, mut server) = task(&[hyperconverged("one"), hyperconverged("two")]);
            let served = async {
                for _ in 0..2 {
                    let request = server.next_request().await;
                    if request.path() == path(failing) {
                        request.refuse(code, reason);
                    } else {
                        accept(request);
                    }
                }
            };
            let (result, ()) = tokio::join!(task.judge_all(clock::now(), || true), served);
            assert_eq!(result.is_err(), fails, "{code} {failing}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn process_that_no_longer_leads_writes_nothing() {
    let (task, mut server) = task(&[hyperconverged("one"), hyperconverged("two")]);
    task.judge_all(clock::now(), || false).await.unwrap();
    assert!(server.is_left_alone().await);
}

/// A scenario with two HyperConvergeds whose statuses are reported.
struct Reports(InForceTask);

impl Scenario for Reports {
    fn start(client: Client, _: Events) -> Self {
        Self(task_of(client, &[]))
    }

    fn show(&self, cluster: &FakeCluster) {
        self.0.hyperconvergeds.show(cluster.all("hyperconvergeds"), |_| ());
    }

    async fn reconcile(&self) -> Again {
        match self.0.judge_all(clock::now(), || true).await {
            Ok(()) => Again::OnChange,
            Err(_) => Again::Failed,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reports_of_two_objects_survive_each_write_fault() {
    let cluster = || {
        let objects = ["one", "two"].map(hyperconverged);
        let paths = [
            "/apis/hco.kubevirt.io/v1beta1/namespaces/one/hyperconvergeds",
            "/apis/hco.kubevirt.io/v1beta1/namespaces/two/hyperconvergeds",
        ];
        FakeCluster::with(paths.into_iter().zip(objects))
    };
    check_each_write::<Reports>(cluster, &["PATCH hyperconvergeds/hc/status"; 2]).await;
}
