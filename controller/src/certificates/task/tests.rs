//! Tests of the task with a simulated API server: the effect of each write.

use std::pin::pin;

use drydock_runtime::{
    Events, Readiness, Registry, clock,
    fake::{ApiServer, ReceivedRequest, api_server, candidate, keep_elected},
};
use http::Method;
use k8s_openapi::ByteString;
use prometheus_client::encoding::text;
use serde_json::{Value, json};

use tokio::sync::Mutex;

use super::{super::BUNDLE, *};
use crate::fake_cluster::{
    FakeCluster,
    write_faults::{Again, Scenario, check_each_write},
};

const SECRETS: &str = "/api/v1/namespaces/drydock/secrets";

struct Fixture {
    task: CertificatesTask,
    served: ServedCertificate,
    server: ApiServer,
    lease_server: ApiServer,
}

/// Returns a replica that sees this Secret, a webhook configuration of each kind and an APIService without bundles.
fn fixture(secret: Option<Value>) -> Fixture {
    let (client, server) = api_server();
    let (task, served, lease_server) = replica(client, secret);
    Fixture {
        task,
        served,
        server,
        lease_server,
    }
}

fn replica(client: Client, secret: Option<Value>) -> (CertificatesTask, ServedCertificate, ApiServer) {
    let process = Process::new();
    let (leadership, lease_server) = candidate(&process, Trigger::new());
    let metrics = CertificateMetrics::default();
    let (lifetimes, last_good) = in_force(&[], &[], None);
    let names = vec![format!("{SERVICE}.drydock.svc")];
    let served = ServedCertificate::new(Readiness::new().handle(SECRET));
    let keeper = CertificateKeeper::new(SECRET, names, lifetimes, served.clone(), metrics.clone());
    let task = CertificatesTask {
        secrets: Api::namespaced(client.clone(), "drydock"),
        secret: Cache::filled(secret.map(|secret| serde_json::from_value(secret).unwrap())),
        mutating: Cache::filled([serde_json::from_value(webhooks()).unwrap()]),
        validating: Cache::filled([serde_json::from_value(webhooks()).unwrap()]),
        removal: Cache::filled([]),
        api_services: vec![Cache::filled([serde_json::from_value(api_service()).unwrap()])],
        hyperconvergeds: Cache::filled([]),
        client,
        keeper,
        place: TaskNamespaces {
            namespace: "drydock".into(),
            configuration_namespaces: Vec::new(),
        },
        last_good,
        changed: Trigger::new(),
        leadership,
        metrics,
        process,
    };
    (task, served, lease_server)
}

fn webhooks() -> Value {
    let client = json!({"service": {"name": SERVICE, "namespace": "drydock"}});
    json!({
        "metadata": {"name": CONFIGURATION, "resourceVersion": "3"},
        "webhooks": [{"name": "a.drydock.dev", "clientConfig": client, "admissionReviewVersions": ["v1"], "sideEffects": "None"}],
    })
}

fn api_service() -> Value {
    json!({
        "metadata": {"name": API_SERVICES[0], "resourceVersion": "3"},
        "spec": {"groupPriorityMinimum": 1000, "versionPriority": 15, "service": {"name": SERVICE, "namespace": "drydock"}},
    })
}

/// Accepts the creation of the Secret. Returns the Secret.
fn create(request: ReceivedRequest) -> Value {
    assert_eq!((&request.method, request.path()), (&Method::POST, SECRETS));
    let mut secret = request.body.clone();
    secret["metadata"]["namespace"] = json!("drydock");
    secret["metadata"]["resourceVersion"] = json!("7");
    request.with(&secret);
    secret
}

/// Returns the Secret that a leader creates.
async fn created_secret() -> Value {
    let Fixture {
        mut task, mut server, ..
    } = fixture(None);
    task.evaluate(clock::now());
    let (led, secret) = tokio::join!(task.lead(clock::now(), || true), async {
        create(server.next_request().await)
    });
    led.unwrap();
    secret
}

#[tokio::test(start_paused = true)]
async fn bundle_of_a_created_secret_is_published_everywhere() {
    let secret = created_secret().await;
    let Fixture {
        mut task, mut server, ..
    } = fixture(Some(secret.clone()));
    task.evaluate(clock::now());
    let served = async {
        let mut published = Vec::new();
        for object in [webhooks(), webhooks(), api_service()] {
            let request = server.next_request().await;
            assert_eq!(request.method, Method::PATCH);
            let body = &request.body;
            let bundle = [&body["webhooks"][0]["clientConfig"], &body["spec"]].map(|part| part["caBundle"].clone());
            published.push((request.path().to_owned(), bundle));
            request.with(&object);
        }
        published
    };
    let (led, published) = tokio::join!(task.lead(clock::now(), || true), served);
    led.unwrap();
    let bundle = &secret["data"][BUNDLE];
    let expected = [
        ("mutatingwebhookconfigurations/drydock", [bundle.clone(), Value::Null]),
        ("validatingwebhookconfigurations/drydock", [bundle.clone(), Value::Null]),
        ("apiservices/v1.subresources.kubevirt.io", [Value::Null, bundle.clone()]),
    ];
    for ((path, published), (suffix, expected)) in published.iter().zip(&expected) {
        assert!(path.ends_with(suffix), "{path}");
        assert_eq!(published, expected, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_publication_does_not_hold_up_the_others() {
    let secret = created_secret().await;
    let Fixture {
        mut task, mut server, ..
    } = fixture(Some(secret));
    task.evaluate(clock::now());
    let served = async {
        server.next_request().await.refuse(403, "Forbidden");
        server.next_request().await.with(&webhooks());
        server.next_request().await.with(&api_service());
    };
    let (led, ()) = tokio::join!(task.lead(clock::now(), || true), served);
    let failure = led.unwrap_err();
    assert_eq!(
        failure.to_string(),
        "could not write the bundle of the mutating webhooks"
    );
}

#[tokio::test(start_paused = true)]
async fn unusable_secret_is_replaced_at_the_observed_version() {
    let held = json!({
        "metadata": {"name": SECRET, "namespace": "drydock", "resourceVersion": "5"},
        "data": {"tls.crt": ByteString(b"no certificate".to_vec())},
    });
    let Fixture {
        mut task, mut server, ..
    } = fixture(Some(held));
    task.evaluate(clock::now());
    let (led, written) = tokio::join!(task.lead(clock::now(), || true), async {
        let request = server.next_request().await;
        assert_eq!(
            (&request.method, request.path()),
            (&Method::PUT, format!("{SECRETS}/{SECRET}").as_str())
        );
        let written = request.body.clone();
        request.with(&written);
        written
    });
    led.unwrap();
    assert_eq!(written["metadata"]["resourceVersion"], "5");
    assert!(written["data"][BUNDLE].is_string());
}

#[tokio::test(start_paused = true)]
async fn replica_that_does_not_lead_writes_nothing() {
    let Fixture {
        mut task, mut server, ..
    } = fixture(None);
    task.evaluate(clock::now());
    task.lead(clock::now(), || false).await.unwrap();
    assert!(server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn certificate_of_the_secret_is_served_without_leading() {
    let secret = created_secret().await;
    let Fixture { mut task, served, .. } = fixture(Some(secret));
    assert!(served.current().is_none());
    task.evaluate(clock::now());
    assert!(served.current().is_some());
}

#[tokio::test(start_paused = true)]
async fn failed_write_is_retried_and_a_conflict_is_no_failure() {
    let Fixture {
        task,
        mut server,
        lease_server,
        ..
    } = fixture(None);
    let (failures, process) = (task.metrics.failures.clone(), task.process.clone());
    let served = async {
        for (code, reason, failed) in [
            (500, "InternalError", 1),
            (409, "Conflict", 1),
            (429, "TooManyRequests", 2),
        ] {
            let request = server.next_request().await;
            assert_eq!((&request.method, request.path()), (&Method::POST, SECRETS));
            request.refuse(code, reason);
            // The next attempt comes after the back-off.
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_eq!(failures.get(), failed, "{code}");
        }
        create(server.next_request().await);
        process.stop();
    };
    let mut registry = Registry::with_prefix("drydock");
    let metrics = WorkQueueMetrics::register(&mut registry);
    let mut elected = pin!(keep_elected(lease_server));
    let running = async { tokio::join!(task.run(metrics), served) };
    tokio::select! {
        _ = running => {}
        () = &mut elected => {}
    }
    assert_eq!(failures.get(), 2);
    let mut exposed = String::new();
    text::encode(&mut exposed, &registry).unwrap();
    let retries = r#"drydock_workqueue_retries_total{name="webhookcertificates"} 2"#;
    assert!(exposed.contains(retries), "{exposed}");
    let reconciles = r#"drydock_workqueue_work_duration_seconds_count{name="webhookcertificates"} "#;
    let mut counts = exposed.lines().filter_map(|line| line.strip_prefix(reconciles));
    // One reconcile on the standby, and the reconciles with the three errors.
    assert!(
        counts.next().is_some_and(|count| count.parse::<u32>().unwrap() >= 4),
        "{exposed}"
    );
}

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// A scenario in which certificates are created and published, and published again after another writer has replaced a
/// bundle.
struct Publication(Mutex<CertificatesTask>, ServedCertificate);

impl Scenario for Publication {
    fn start(client: Client, _: Events) -> Self {
        let (task, served, _) = replica(client, None);
        Self(Mutex::new(task), served)
    }

    fn show(&self, cluster: &FakeCluster) {
        let task = self.0.try_lock().unwrap();
        task.secret.show(cluster.all("secrets"), |_| ());
        task.mutating.show(cluster.all("mutatingwebhookconfigurations"), |_| ());
        task.validating
            .show(cluster.all("validatingwebhookconfigurations"), |_| ());
        task.api_services[0].show(cluster.all("apiservices"), |_| ());
    }

    async fn reconcile(&self) -> Again {
        let mut task = self.0.lock().await;
        let now = clock::now();
        task.evaluate(now);
        match task.lead(now, || true).await {
            Ok(Some(_)) => Again::At,
            Ok(None) => Again::OnChange,
            Err(_) => Again::Failed,
        }
    }

    fn act(cluster: &mut FakeCluster) {
        let service = format!("{SERVICES}/{}", API_SERVICES[0]);
        if cluster
            .get(&service)
            .is_some_and(|service| service["metadata"]["labels"].is_null())
        {
            cluster.change(&service, |service| {
                service["metadata"]["labels"] = json!({"attempt": "1"});
                service["spec"]["caBundle"] = json!(ByteString(b"another".to_vec()));
            });
        }
    }

    /// Replaces keys and certificates, which differ between runs.
    fn normalize(object: &mut Value) {
        if let Some(data) = object["data"].as_object_mut() {
            data.values_mut()
                .for_each(|value| *value = json!("a certificate or key"));
        }
        let webhooks = object["webhooks"].as_array_mut().into_iter().flatten();
        for client in webhooks.map(|webhook| &mut webhook["clientConfig"]) {
            client["caBundle"] = json!("a bundle");
        }
        if let Some(bundle) = object["spec"].get_mut("caBundle") {
            *bundle = json!("a bundle");
        }
    }

    /// Returns the served certificates, and whether the published bundles equal the bundle of the Secret.
    fn kept(&self) -> String {
        let task = self.0.try_lock().unwrap();
        let secret = task.seen().and_then(|secret| secret.data.clone()).unwrap_or_default();
        let mut bundles = Vec::new();
        bundles.extend(task.mutating.all().iter().flat_map(|object| object.bundles("drydock")));
        bundles.extend(
            task.validating
                .all()
                .iter()
                .flat_map(|object| object.bundles("drydock")),
        );
        let services = task.all_api_services();
        bundles.extend(services.iter().filter_map(|object| bundle_of(object, "drydock")));
        let is_published = bundles
            .iter()
            .all(|bundle| Some(bundle) == secret.get(BUNDLE).map(|held| &held.0));
        format!("{} {is_published} {}", bundles.len(), self.1.current().is_some())
    }
}

#[tokio::test(start_paused = true)]
async fn certificates_survive_each_write_fault() {
    let cluster = || {
        FakeCluster::with([
            (MUTATING, webhooks()),
            (VALIDATING, webhooks()),
            (SERVICES, api_service()),
        ])
    };
    check_each_write::<Publication>(
        cluster,
        &[
            "POST secrets/drydock-webhook-certificates",
            "PATCH mutatingwebhookconfigurations/drydock",
            "PATCH validatingwebhookconfigurations/drydock",
            "PATCH apiservices/v1.subresources.kubevirt.io",
            "PATCH apiservices/v1.subresources.kubevirt.io",
        ],
    )
    .await;
}
