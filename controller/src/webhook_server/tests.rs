use std::{net::SocketAddr, time::Duration};

use drydock_runtime::{Process, Readiness, Registry, clock};
use futures::stream;
use k8s_openapi::ByteString;
use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionResponse},
};
use serde_json::json;

use super::{
    DEADLINE, Handlers, WebhookMetrics, WebhookServer,
    handlers::Handler,
    metrics::NO_PATH,
    test_client::{TestConnection, review},
};
use crate::certificates::{ServedCertificate, self_made};

const NAME: &str = "drydock-webhooks.drydock.svc";
const PATH: &str = "/validate/virtualmachines";
/// Path whose handler has a deadline of its own.
const HURRIED: &str = "/validate/hurried";

async fn judge(request: AdmissionRequest<DynamicObject>) -> AdmissionResponse {
    let response = AdmissionResponse::from(&request);
    match request.name.as_str() {
        "panics" => panic!("as the test wants it"),
        "denied" => response.deny("spec.runStrategy: it is denied"),
        "slow" => {
            std::future::pending::<()>().await;
            response
        }
        _ => response,
    }
}

struct Served {
    process: Process,
    address: SocketAddr,
    bundle: ByteString,
    metrics: WebhookMetrics,
    readiness: Readiness,
}

/// Starts a server with a certificate. Returns the server with everything that a client needs to connect.
async fn served(leave: Duration, deadline: Duration) -> Served {
    let readiness = Readiness::new();
    let certificate = ServedCertificate::new(readiness.handle("webhook certificate"));
    assert!(!readiness.is_ready());
    let bundle = self_made(&certificate, NAME);
    let process = Process::new();
    let metrics = WebhookMetrics::register(&mut Registry::default());
    let server = WebhookServer {
        handlers: Handlers::from_iter([
            (PATH, Handler::from(judge)),
            (HURRIED, Handler::from(judge).within(Duration::from_millis(50))),
        ]),
        certificate,
        metrics: metrics.clone(),
        leave,
        deadline,
    };
    let address = server.serve(&process, "127.0.0.1:0".parse().unwrap()).await.unwrap();
    Served {
        process,
        address,
        bundle,
        metrics,
        readiness,
    }
}

impl Served {
    async fn connect(&self) -> TestConnection {
        TestConnection::open(self.address, NAME, &self.bundle.0, clock::now())
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn reviews_get_the_verdict_of_the_handler() {
    let served = served(Duration::ZERO, DEADLINE).await;
    assert!(served.readiness.is_ready(), "it has a certificate");
    let mut connection = served.connect().await;
    let request = review("1").to_string();
    let verdict = connection
        .send("POST", PATH, request.as_bytes())
        .await
        .unwrap()
        .review()
        .unwrap();
    assert_eq!(verdict["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(verdict["kind"], "AdmissionReview");
    assert_eq!(verdict["response"]["uid"], "1");
    assert_eq!(verdict["response"]["allowed"], true);

    let mut request = review("2");
    request["request"]["name"] = json!("denied");
    let response = connection
        .send("POST", PATH, request.to_string().as_bytes())
        .await
        .unwrap();
    let verdict = response.review().unwrap();
    assert_eq!(verdict["response"]["uid"], "2");
    assert_eq!(verdict["response"]["allowed"], false);
    assert_eq!(
        verdict["response"]["status"]["message"],
        "spec.runStrategy: it is denied"
    );
    assert_eq!(served.metrics.count(PATH, "Allowed"), 1);
    assert_eq!(served.metrics.count(PATH, "Denied"), 1);
}

#[tokio::test]
async fn any_body_gets_an_error_and_the_next_request_a_response() {
    let served = served(Duration::ZERO, DEADLINE).await;
    let mut connection = served.connect().await;
    let mut old = review("1");
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let without_request = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
    let mut panics = review("1");
    panics["request"]["name"] = json!("panics");
    let deep = "[".repeat(100_000);
    let cases: Vec<(&str, &str, String, u16, &str)> = vec![
        ("POST", PATH, String::new(), 400, "Unreadable"),
        ("POST", PATH, "garbage\u{0}".into(), 400, "Unreadable"),
        ("POST", PATH, deep, 400, "Unreadable"),
        ("POST", PATH, json!({"a": 1}).to_string(), 400, "Unreadable"),
        ("POST", PATH, old.to_string(), 400, "NotARequest"),
        ("POST", PATH, without_request.to_string(), 400, "NotARequest"),
        ("GET", PATH, String::new(), 405, "WrongMethod"),
        ("POST", "/validate/nothing", review("1").to_string(), 404, "UnknownPath"),
        ("POST", PATH, panics.to_string(), 500, "Failed"),
    ];
    for (method, path, body, status, reason) in cases {
        let response = connection.send(method, path, body.as_bytes()).await.unwrap();
        assert_eq!(response.status, status, "{}", response.body);
        assert!(response.body.starts_with(&format!("{reason}: ")), "{}", response.body);
        let label = if path == PATH { PATH } else { NO_PATH };
        assert!(served.metrics.count(label, reason) > 0, "{reason}");
    }
    let response = connection
        .send("POST", PATH, review("2").to_string().as_bytes())
        .await
        .unwrap();
    assert_eq!(response.review().unwrap()["response"]["uid"], "2");
    assert!(
        !served.process.stopping().is_cancelled(),
        "no panic has reached the process"
    );
}

#[tokio::test]
async fn oversized_request_is_not_read() {
    let served = served(Duration::ZERO, DEADLINE).await;
    let announced = format!("POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n");
    let mut connection = served.connect().await;
    connection.send_raw(announced.as_bytes()).await.unwrap();
    let response = connection.response().await.unwrap();
    assert_eq!(
        (response.status, response.body.split(':').next()),
        (413, Some("TooLarge"))
    );

    let mut connection = served.connect().await;
    let head = format!("POST {PATH} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    connection.send_raw(head.as_bytes()).await.unwrap();
    let chunk = [b"100000\r\n".as_slice(), &[b'x'; 1 << 20], b"\r\n"].concat();
    for _ in 0..9 {
        // The server may reject the request before all of it is sent.
        if connection.send_raw(&chunk).await.is_err() {
            break;
        }
    }
    let response = connection.response().await.unwrap();
    assert_eq!(
        (response.status, response.body.split(':').next()),
        (413, Some("TooLarge"))
    );
}

#[tokio::test]
async fn stopping_server_finishes_requests_and_refuses_new_requests() {
    let served = served(Duration::from_millis(50), DEADLINE).await;
    let (mut idle, mut busy) = (served.connect().await, served.connect().await);
    let body = review("1").to_string();
    let response = idle.send("POST", PATH, body.as_bytes()).await.unwrap();
    assert!(!response.is_last());
    let (first, rest) = body.split_at(100);
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{first}",
        body.len()
    );
    busy.send_raw(head.as_bytes()).await.unwrap();
    // When this request has its response, the server has also started to read the other one.
    idle.send("POST", PATH, body.as_bytes()).await.unwrap();

    served.process.stop();
    let ended = served
        .process
        .run(stream::pending::<&'static str>(), Duration::from_secs(60));
    let finish = async {
        busy.send_raw(rest.as_bytes()).await.unwrap();
        busy.response().await.unwrap()
    };
    let (ended, response) = tokio::join!(ended, finish);
    ended.unwrap();
    assert_eq!(response.review().unwrap()["response"]["allowed"], true);
    assert!(response.is_last(), "{}", response.head);
    assert!(
        TestConnection::open(served.address, NAME, &served.bundle.0, clock::now())
            .await
            .is_err(),
        "the port is closed"
    );
}

#[tokio::test]
async fn a_verdict_that_does_not_come_is_not_waited_for() {
    let mut request = review("1");
    request["request"]["name"] = json!("slow");
    let hour = Duration::from_secs(3600);
    for (path, deadline) in [(PATH, Duration::from_millis(50)), (HURRIED, hour)] {
        let served = served(Duration::ZERO, deadline).await;
        let mut connection = served.connect().await;
        let response = connection
            .send("POST", path, request.to_string().as_bytes())
            .await
            .unwrap();
        assert_eq!(
            (response.status, response.body.split(':').next()),
            (504, Some("TooLate"))
        );
    }
}

#[tokio::test]
async fn handshake_without_a_certificate_fails_and_port_stays_open() {
    let readiness = Readiness::new();
    let certificate = ServedCertificate::new(readiness.handle("webhook certificate"));
    let process = Process::new();
    let server = WebhookServer {
        handlers: Handlers::default(),
        certificate: certificate.clone(),
        metrics: WebhookMetrics::register(&mut Registry::default()),
        leave: Duration::ZERO,
        deadline: DEADLINE,
    };
    let address = server.serve(&process, "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let other = ServedCertificate::new(Readiness::new().handle("another"));
    let bundle = self_made(&other, NAME);
    assert!(
        TestConnection::open(address, NAME, &bundle.0, clock::now())
            .await
            .is_err()
    );
    let bundle = self_made(&certificate, NAME);
    TestConnection::open(address, NAME, &bundle.0, clock::now())
        .await
        .unwrap();
    assert!(readiness.is_ready());
}
