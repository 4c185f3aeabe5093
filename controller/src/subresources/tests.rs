//! Tests of all layers from TLS to the API server, which the tests simulate.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::{Request, State},
};
use drydock_core::configuration::Configuration;
use drydock_runtime::{
    CancellationToken, Process, Readiness, Registry, clock,
    fake::{ApiServer, ReceivedRequest, WriteFault, api_server},
    tls_port::PeerCertificate,
};
use http::Method;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

use super::{
    calls::ApiCalls,
    subresource_handler::{self, SubresourceHandler},
    *,
};
use crate::{certificates::self_made, webhook_server::test_client::TestConnection};

const BASE: &str = "/apis/subresources.kubevirt.io/v1";
const NAME: &str = "drydock-webhooks.drydock.svc";

/// An authority of client certificates.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    fn client(&self, name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), key.serialize_der().try_into().unwrap())
    }

    fn config_map(&self) -> BTreeMap<String, String> {
        [
            ("requestheader-client-ca-file", self.pem.as_str()),
            ("requestheader-allowed-names", "[\"front-proxy\"]"),
            ("requestheader-username-headers", "[\"X-Remote-User\"]"),
            ("requestheader-group-headers", "[\"X-Remote-Group\"]"),
            ("requestheader-extra-headers-prefix", "[\"X-Remote-Extra-\"]"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }
}

struct Setup {
    requests: Arc<SubresourceHandler>,
    server: ApiServer,
    peer: CertificateDer<'static>,
}

fn requests_of(client: Client, trust: ClientTrust) -> SubresourceHandler {
    let (configuration, resolved) = ConfigurationInForce::pending(Configuration::default());
    resolved.send_replace(true);
    let process = Process::new();
    let agents = Agents::new(client.clone(), Arc::new(served().0), &process);
    SubresourceHandler {
        sessions: StreamSessions::new(
            client.clone(),
            ActiveStreams::default(),
            StreamTimeouts::default(),
            &process,
        ),
        calls: ApiCalls::new(client, configuration, agents),
        trust,
        metrics: SubresourceMetrics::register(&mut Registry::default()),
        version: "0.1.0",
        deadline: Duration::from_secs(3600),
        stopping: CancellationToken::new(),
    }
}

fn served() -> (ServedCertificate, Vec<u8>) {
    let certificate = ServedCertificate::new(Readiness::new().handle("certificate"));
    let bundle = self_made(&certificate, NAME);
    (certificate, bundle.0)
}

fn setup() -> Setup {
    let (client, server) = api_server();
    let authority = Authority::new();
    let trust = ClientTrust::new(Arc::new(served().0));
    trust.follow(&authority.config_map());
    Setup {
        requests: Arc::new(requests_of(client, trust)),
        server,
        peer: authority.client("front-proxy").0,
    }
}

impl Setup {
    /// Sends a request of the user `ann`. Returns the status code and the body.
    fn send(&self, method: Method, path: &str, body: &str) -> impl Future<Output = (u16, Value)> + use<> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{BASE}/namespaces/ns/{path}"))
            .header("X-Remote-User", "ann")
            .header("X-Remote-Group", "dev")
            .header("X-Remote-Extra-Scopes", "all")
            // Only streams use the following headers.
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
            .body(Body::from(body.to_owned()))
            .unwrap();
        let (requests, peer) = (Arc::clone(&self.requests), PeerCertificate(Some(self.peer.clone())));
        async move {
            let response = subresource_handler::serve(State(requests), Extension(peer), request).await;
            let code = response.status().as_u16();
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            (code, serde_json::from_slice(&body).unwrap_or_default())
        }
    }
}

/// Responds to the access review of the user. Returns the spec of the review.
async fn review(server: &mut ApiServer, allowed: bool) -> Value {
    let received = server.next_request().await;
    assert_eq!(received.path(), "/apis/authorization.k8s.io/v1/subjectaccessreviews");
    let spec = received.body["spec"].clone();
    let status = json!({"allowed": allowed, "reason": "no role"});
    received.with(&json!({"metadata": {}, "spec": spec, "status": status}));
    spec
}

fn machine(strategy: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "ns", "uid": "m"},
        "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {"devices": {}}}}},
        "status": {"created": true, "ready": true},
    })
}

fn instance() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "ns", "uid": "i", "ownerReferences": [{"apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine", "name": "vm", "uid": "m", "controller": true}]},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": "node", "evacuationNodeName": "node"},
    })
}

async fn read(server: &mut ApiServer, plural: &str, object: Option<&Value>) {
    let received = server.next_request().await;
    assert_eq!(
        (&received.method, received.path()),
        (
            &Method::GET,
            format!("/apis/kubevirt.io/v1/namespaces/ns/{plural}/vm").as_str()
        )
    );
    match object {
        Some(object) => received.with(object),
        None => received.refuse(404, "NotFound"),
    }
}

/// Responds to the requests that precede each change of the machine.
async fn found(server: &mut ApiServer, machine: &Value, instance: Option<&Value>) {
    review(server, true).await;
    read(server, "virtualmachines", Some(machine)).await;
    read(server, "virtualmachineinstances", instance).await;
}

async fn written(server: &mut ApiServer, method: Method, path: &str) -> ReceivedRequest {
    let received = server.next_request().await;
    assert_eq!(
        (&received.method, received.path()),
        (&method, format!("/apis/kubevirt.io/v1/namespaces/ns/{path}").as_str())
    );
    received
}

#[tokio::test(start_paused = true)]
async fn start_is_authorized_by_path_and_patches_the_machine() {
    let mut setup = setup();
    let send = setup.send(Method::PUT, "virtualmachines/vm/start", "");
    let api = async {
        let spec = review(&mut setup.server, true).await;
        assert_eq!(spec["user"], "ann");
        assert_eq!(spec["groups"], json!(["dev"]));
        assert_eq!(spec["extra"], json!({"scopes": ["all"]}));
        let expected = json!({"namespace": "ns", "verb": "update", "group": "subresources.kubevirt.io", "version": "v1",
            "resource": "virtualmachines", "subresource": "start", "name": "vm"});
        assert_eq!(spec["resourceAttributes"], expected);
        read(&mut setup.server, "virtualmachines", Some(&machine("Halted"))).await;
        read(&mut setup.server, "virtualmachineinstances", None).await;
        let received = written(&mut setup.server, Method::PATCH, "virtualmachines/vm").await;
        assert_eq!(received.content_type, "application/json-patch+json");
        assert_eq!(
            received.body[1],
            json!({"op": "replace", "path": "/spec/runStrategy", "value": "Always"})
        );
        assert!(!received.query().contains("dryRun"), "{}", received.query());
        received.with(&machine("Always"));
    };
    assert_eq!(tokio::join!(send, api).0, (202, Value::Null));
}

#[tokio::test(start_paused = true)]
async fn dry_run_reaches_the_api_server() {
    let mut setup = setup();
    let send = setup.send(
        Method::PUT,
        "virtualmachines/vm/stop",
        r#"{"dryRun":["All"],"gracePeriod":0}"#,
    );
    let api = async {
        found(&mut setup.server, &machine("Manual"), Some(&instance())).await;
        for path in ["virtualmachineinstances/vm", "virtualmachines/vm/status"] {
            let received = written(&mut setup.server, Method::PATCH, path).await;
            assert!(received.query().contains("dryRun=All"), "{}", received.query());
            let object = if path.ends_with("status") {
                machine("Manual")
            } else {
                instance()
            };
            received.with(&object);
        }
    };
    assert_eq!(tokio::join!(send, api).0, (202, Value::Null));
}

#[tokio::test(start_paused = true)]
async fn user_without_right_is_refused_and_nothing_is_read() {
    let mut setup = setup();
    let send = setup.send(Method::PUT, "virtualmachineinstances/vm/evacuate/cancel", "{}");
    let api = async { review(&mut setup.server, false).await };
    let ((code, body), spec) = tokio::join!(send, api);
    assert_eq!(spec["resourceAttributes"]["subresource"], "evacuate/cancel");
    assert_eq!((code, &body["reason"]), (403, &json!("Forbidden")));
    let message = "virtualmachineinstances.subresources.kubevirt.io \"vm\" is forbidden: User \"ann\" cannot update \
                   resource \"virtualmachineinstances/evacuate/cancel\" in API group \"subresources.kubevirt.io\" in the \
                   namespace \"ns\": no role";
    assert_eq!(body["message"], message);
    assert!(setup.server.is_left_alone().await);
}

#[tokio::test(start_paused = true)]
async fn refused_patch_is_a_conflict_if_the_machine_changed() {
    for (now, code, message) in [
        (
            machine("Manual"),
            409,
            "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"vm\": the object has been modified; please apply \
             your changes to the latest version and try again",
        ),
        (machine("Halted"), 500, "Internal error occurred: refused with 422"),
    ] {
        let mut setup = setup();
        let send = setup.send(Method::PUT, "virtualmachines/vm/start", "");
        let api = async {
            found(&mut setup.server, &machine("Halted"), None).await;
            let received = written(&mut setup.server, Method::PATCH, "virtualmachines/vm").await;
            received.refuse(422, "Invalid");
            read(&mut setup.server, "virtualmachines", Some(&now)).await;
        };
        let ((got, body), ()) = tokio::join!(send, api);
        assert_eq!((got, body["message"].as_str().unwrap()), (code, message));
    }
}

#[tokio::test(start_paused = true)]
async fn forced_restart_that_fails_gives_the_grace_period_back() {
    let mut setup = setup();
    let send = setup.send(Method::PUT, "virtualmachines/vm/restart", r#"{"gracePeriodSeconds":0}"#);
    let api = async {
        found(&mut setup.server, &machine("Always"), Some(&instance())).await;
        let path = "/spec/terminationGracePeriodSeconds";
        let received = written(&mut setup.server, Method::PATCH, "virtualmachineinstances/vm").await;
        assert_eq!(received.body[1], json!({"op": "add", "path": path, "value": 1}));
        received.with(&instance());
        let received = written(&mut setup.server, Method::PATCH, "virtualmachines/vm/status").await;
        received.refuse(500, "InternalError");
        let received = written(&mut setup.server, Method::PATCH, "virtualmachineinstances/vm").await;
        let undo = json!([{"op": "test", "path": path, "value": 1}, {"op": "remove", "path": path}]);
        assert_eq!(received.body, undo);
        received.with(&instance());
    };
    let ((code, _), ()) = tokio::join!(send, api);
    assert_eq!(code, 500);
}

#[tokio::test(start_paused = true)]
async fn grace_period_is_given_back_after_each_write_fault() {
    const GRACE: &str = "virtualmachineinstances/vm";
    const REQUEST: &str = "virtualmachines/vm/status";
    for fault in WriteFault::ALL {
        for failing in [GRACE, REQUEST] {
            let mut setup = setup();
            let body = r#"{"gracePeriodSeconds":0}"#;
            let send = setup.send(Method::PUT, "virtualmachines/vm/restart", body);
            let is_undone = failing == REQUEST || matches!(fault, WriteFault::Timeout | WriteFault::LostResponse);
            let api = async {
                found(&mut setup.server, &machine("Always"), Some(&instance())).await;
                let mut received = written(&mut setup.server, Method::PATCH, GRACE).await;
                if failing == REQUEST {
                    received.with(&instance());
                    received = written(&mut setup.server, Method::PATCH, REQUEST).await;
                }
                received.fail(fault);
                if is_undone {
                    let received = written(&mut setup.server, Method::PATCH, GRACE).await;
                    assert_eq!(received.body[0]["op"], "test", "{fault:?} of {failing}");
                    assert_eq!(received.body[1]["op"], "remove", "{fault:?} of {failing}");
                    // If the change was not applied, the test in the patch fails.
                    match fault.is_executed() || failing == REQUEST {
                        true => received.with(&instance()),
                        false => received.refuse(422, "Invalid"),
                    }
                }
                assert!(setup.server.is_left_alone().await, "{fault:?} of {failing}");
            };
            let ((code, _), ()) = tokio::join!(send, api);
            assert_eq!(code, 500, "{fault:?} of {failing}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failed_write_is_passed_on_and_not_repeated() {
    for (request, method, write) in [
        ("start", Method::PATCH, "virtualmachines/vm"),
        ("stop", Method::PATCH, "virtualmachines/vm"),
        ("restart", Method::PATCH, "virtualmachines/vm/status"),
        ("migrate", Method::POST, "virtualmachineinstancemigrations"),
        ("evacuate/cancel", Method::PATCH, "virtualmachineinstances/vm/status"),
    ] {
        for fault in WriteFault::ALL {
            let mut setup = setup();
            let send = setup.send(Method::PUT, &format!("virtualmachines/vm/{request}"), "{}");
            let api = async {
                if request == "start" {
                    found(&mut setup.server, &machine("Halted"), None).await;
                } else {
                    found(&mut setup.server, &machine("Always"), Some(&instance())).await;
                }
                if request == "evacuate/cancel" {
                    let node = setup.server.next_request().await;
                    node.with(&json!({"metadata": {"name": "node"}}));
                }
                written(&mut setup.server, method.clone(), write).await.fail(fault);
                assert!(setup.server.is_left_alone().await, "{fault:?} of {request}");
            };
            let ((code, body), ()) = tokio::join!(send, api);
            let message = body["message"].as_str().unwrap_or_default();
            let is_passed_on = message.starts_with("Internal error occurred: ");
            assert!(code == 500 && is_passed_on, "{fault:?} of {request}: {code} {body}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn migration_is_created_and_a_refusal_is_passed_on() {
    for refused in [false, true] {
        let mut setup = setup();
        let body = r#"{"addedNodeSelector":{"zone":"b"}}"#;
        let send = setup.send(Method::PUT, "virtualmachines/vm/migrate", body);
        let api = async {
            found(&mut setup.server, &machine("Always"), Some(&instance())).await;
            let received = written(&mut setup.server, Method::POST, "virtualmachineinstancemigrations").await;
            assert_eq!(
                received.body["metadata"],
                json!({"generateName": "kubevirt-migrate-vm-"})
            );
            assert_eq!(
                received.body["spec"],
                json!({"vmiName": "vm", "addedNodeSelector": {"zone": "b"}})
            );
            if refused {
                received.refuse(403, "Forbidden");
            } else {
                let created = received.body.clone();
                received.with(&created);
            }
        };
        let ((code, body), ()) = tokio::join!(send, api);
        match refused {
            false => assert_eq!((code, body), (202, Value::Null)),
            true => assert_eq!(
                (code, &body["message"]),
                (500, &json!("Internal error occurred: refused with 403"))
            ),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_evacuation_takes_the_mark_away() {
    let mut setup = setup();
    let send = setup.send(
        Method::PUT,
        "virtualmachines/vm/evacuate/cancel",
        r#"{"evacuationNodeName":""}"#,
    );
    let api = async {
        found(&mut setup.server, &machine("Always"), Some(&instance())).await;
        let received = setup.server.next_request().await;
        assert_eq!(received.path(), "/api/v1/nodes/node");
        received.with(&json!({"metadata": {"name": "node"}, "spec": {"unschedulable": true}}));
        let received = written(&mut setup.server, Method::PATCH, "virtualmachineinstances/vm/status").await;
        let removed = json!({"op": "remove", "path": "/status/evacuationNodeName"});
        assert!(
            received.body.as_array().unwrap().contains(&removed),
            "{}",
            received.body
        );
        received.with(&instance());
    };
    assert_eq!(tokio::join!(send, api).0, (200, Value::Null));
}

#[tokio::test(start_paused = true)]
async fn port_forward_requires_an_instance_of_the_machine() {
    let mut setup = setup();
    let send = setup.send(Method::GET, "virtualmachineinstances/vm/portforward/22/tcp", "");
    let api = async {
        review(&mut setup.server, true).await;
        read(&mut setup.server, "virtualmachineinstances", None).await;
    };
    let ((code, body), ()) = tokio::join!(send, api);
    let message = json!("virtualmachineinstance.kubevirt.io \"vm\" not found");
    assert_eq!((code, &body["message"]), (404, &message));

    let send = setup.send(Method::GET, "virtualmachines/vm/portforward/22/tcp", "");
    let mut foreign = instance();
    foreign["metadata"]["ownerReferences"] = json!([]);
    let machine = machine("Always");
    let api = found(&mut setup.server, &machine, Some(&foreign));
    let ((code, body), ()) = tokio::join!(send, api);
    let message = "Internal error occurred: the instance \"vm\" does not belong to the virtual machine";
    assert_eq!((code, body["message"].as_str().unwrap()), (500, message));
}

#[tokio::test(start_paused = true)]
async fn absent_machine_and_unsupported_subresource_are_named() {
    let mut setup = setup();
    let send = setup.send(Method::PUT, "virtualmachines/vm/start", "");
    let api = async {
        review(&mut setup.server, true).await;
        read(&mut setup.server, "virtualmachines", None).await;
    };
    let ((code, body), ()) = tokio::join!(send, api);
    let message = json!("virtualmachine.kubevirt.io \"vm\" not found");
    assert_eq!((code, &body["message"]), (404, &message));
    let send = setup.send(Method::PUT, "virtualmachines/vm/addvolume", "{}");
    let ((code, body), _) = tokio::join!(send, review(&mut setup.server, true));
    let message = "Drydock does not support volume hotplug.";
    assert_eq!((code, body["message"].as_str().unwrap()), (400, message));
    let send = setup.send(Method::PUT, "virtualmachines/vm/start", "paused: perhaps");
    let ((code, _), _) = tokio::join!(send, review(&mut setup.server, true));
    assert_eq!(code, 400);
    assert!(setup.server.is_left_alone().await);
}

async fn port(process: &Process, trust: ClientTrust, client: Client) -> SocketAddr {
    let metrics = SubresourceMetrics::register(&mut Registry::default());
    let requests = Arc::new(requests_of(client, trust.clone()));
    let port = TlsPort {
        name: "subresources",
        config: Box::new(move || trust.config()),
        router: Router::new().fallback(subresource_handler::serve).with_state(requests),
        handshake_failures: metrics.handshake_failures,
        leave: Duration::ZERO,
    };
    port.serve(process, "127.0.0.1:0".parse().unwrap()).await.unwrap()
}

#[tokio::test]
async fn discovery_is_open_and_all_else_needs_the_front_proxy() {
    let process = Process::new();
    let (client, mut server) = api_server();
    let (certificate, bundle) = served();
    let (authority, other) = (Authority::new(), Authority::new());
    let trust = ClientTrust::new(Arc::new(certificate));
    let address = port(&process, trust.clone(), client).await;
    let status = async |identity, path: &str| {
        let mut connection = TestConnection::open_as(identity, address, NAME, &bundle, clock::now())
            .await
            .ok()?;
        let request = format!("PUT {BASE}/namespaces/ns/{path} HTTP/1.1\r\nHost: x\r\nX-Remote-User: ann\r\n\r\n");
        let request = match path {
            "" => format!("GET {BASE} HTTP/1.1\r\nHost: x\r\n\r\n"),
            _ => request,
        };
        connection.send_raw(request.as_bytes()).await.ok()?;
        Some(connection.response().await.ok()?.status)
    };
    let start = "virtualmachines/vm/start";
    assert_eq!(status(None, "").await, Some(200));
    assert_eq!(status(None, start).await, Some(401));
    assert_eq!(
        status(Some(authority.client("front-proxy")), start).await,
        Some(401),
        "nobody is trusted yet"
    );

    trust.follow(&authority.config_map());
    assert_eq!(status(None, "").await, Some(200));
    assert_eq!(status(None, start).await, Some(401));
    assert_eq!(
        status(Some(authority.client("somebody")), start).await,
        Some(401),
        "another name"
    );
    assert_eq!(
        status(Some(other.client("front-proxy")), start).await,
        None,
        "another authority"
    );
    let (allowed, _) = tokio::join!(
        status(Some(authority.client("front-proxy")), start),
        review(&mut server, false)
    );
    assert_eq!(allowed, Some(403), "its user has no right");

    // After a change of the authority, the next handshake accepts only the new one.
    trust.follow(&other.config_map());
    assert_eq!(status(Some(authority.client("front-proxy")), start).await, None);
    let (allowed, _) = tokio::join!(
        status(Some(other.client("front-proxy")), start),
        review(&mut server, false)
    );
    assert_eq!(allowed, Some(403));
    trust.follow(&BTreeMap::from([(
        "requestheader-client-ca-file".to_owned(),
        "no PEM".to_owned(),
    )]));
    assert_eq!(
        status(Some(other.client("front-proxy")), start).await,
        Some(401),
        "nobody is trusted"
    );
    process.stop();
}
