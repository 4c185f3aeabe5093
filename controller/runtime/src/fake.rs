//! A fake API server whose responses are provided by the test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails where it stands"
)]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::body::Body as ResponseBody;
use futures::channel::mpsc;
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower_test::mock::{Handle, SendResponse, pair};

use crate::{
    Process, Trigger,
    lease::{Candidacy, Leadership},
};

/// The identity of a candidate of [`candidate`].
pub const IDENTITY: &str = "pod-1";

/// Maximum wait for a request. With a paused clock an hour passes at once; with a real clock no test runs that long.
const TEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// The server side of the connection.
pub struct ApiServer(Handle<Request<Body>, Response<ResponseBody>>);

/// A request that waits for its response.
pub struct ReceivedRequest {
    /// The HTTP method.
    pub method: Method,
    /// Path and query, as sent.
    pub line: String,
    /// The body, if it is JSON; null otherwise.
    pub body: Value,
    /// The content type; empty if there is none.
    pub content_type: String,
    respond: SendResponse<Response<ResponseBody>>,
}

/// A failure of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFault {
    /// An admission plugin refuses the write (403).
    Refused,
    /// Another client has written the object first (409).
    Conflict,
    /// The API server is overloaded (429, try again after a second).
    Throttled,
    /// The connection ends before the API server has executed the write.
    Timeout,
    /// The API server has executed the write, and the connection ends before the response: later reads have to show the
    /// write.
    LostResponse,
}

/// A watch that stays open.
pub struct OpenWatch(mpsc::UnboundedSender<Result<String, Infallible>>);

/// Returns a candidate for the controller's Lease, and the fake API server for its requests.
///
/// The candidate sends its requests only to this API server, whose responses decide whether it leads.
pub fn candidate(process: &Process, released: Trigger) -> (Leadership, ApiServer) {
    let (client, server) = api_server();
    let candidacy = Candidacy {
        namespace: "drydock".into(),
        name: "drydock-controller".into(),
        identity: IDENTITY.into(),
        field_manager: "drydock-controller",
    };
    (Leadership::stand(process, client, candidacy, released), server)
}

/// Returns the Lease of a candidate with this holder and this resourceVersion.
pub fn lease_of(holder: &str, version: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "drydock-controller", "namespace": "drydock", "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 2},
    })
}

/// Lets a candidate acquire a free Lease.
pub async fn elect(server: &mut ApiServer) {
    server.next_request().await.with(&lease_of("", "1"));
    server.next_request().await.with(&lease_of(IDENTITY, "2"));
}

/// Lets a candidate acquire a free Lease, and renew it forever.
pub async fn keep_elected(mut server: ApiServer) {
    elect(&mut server).await;
    loop {
        server.next_request().await.with(&lease_of(IDENTITY, "2"));
    }
}

/// Serves the Lease of a candidate, which leads as long as `leads` is true.
pub async fn keep_elected_while(mut server: ApiServer, leads: Arc<AtomicBool>) {
    let mut holder = "";
    loop {
        let request = server.next_request().await;
        let leads = leads.load(Ordering::Relaxed);
        let is_read = request.method == Method::GET;
        holder = match (leads, is_read) {
            (false, _) => "pod-2",
            (true, true) if holder == "pod-2" => "",
            (true, true) => holder,
            (true, false) => IDENTITY,
        };
        match (leads, is_read) {
            (false, false) => request.refuse(500, "InternalError"),
            _ => request.with(&lease_of(holder, "2")),
        }
    }
}

/// Creates a client and its server.
pub fn api_server() -> (Client, ApiServer) {
    let (service, handle) = pair();
    (Client::new(service, "default"), ApiServer(handle))
}

impl WriteFault {
    /// All write faults.
    pub const ALL: [Self; 5] = [
        Self::Refused,
        Self::Conflict,
        Self::Throttled,
        Self::Timeout,
        Self::LostResponse,
    ];

    /// Returns whether the API server has executed the write despite the fault.
    pub fn is_executed(self) -> bool {
        self == Self::LostResponse
    }
}

impl ApiServer {
    /// Returns the next request. Panics if none arrives for an hour (of the paused clock).
    pub async fn next_request(&mut self) -> ReceivedRequest {
        let next = tokio::time::timeout(TEST_TIMEOUT, self.0.next_request()).await;
        let (request, respond) = next.expect("no request for an hour").expect("the client is gone");
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        ReceivedRequest {
            method: parts.method,
            line: parts.uri.to_string(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            content_type: parts
                .headers
                .get("content-type")
                .map(|value| value.to_str().unwrap().to_owned())
                .unwrap_or_default(),
            respond,
        }
    }

    /// Returns whether no request arrives for an hour (of the paused clock).
    pub async fn is_left_alone(&mut self) -> bool {
        self.is_left_alone_for(TEST_TIMEOUT).await
    }

    /// Returns whether no request arrives for `span`.
    pub async fn is_left_alone_for(&mut self, span: Duration) -> bool {
        !matches!(tokio::time::timeout(span, self.0.next_request()).await, Ok(Some(_)))
    }
}

impl ReceivedRequest {
    /// Returns the path without the query.
    pub fn path(&self) -> &str {
        self.line.split_once('?').map_or(&self.line, |(path, _)| path)
    }

    /// Returns the query as sent, without the question mark.
    pub fn query(&self) -> &str {
        self.line.split_once('?').map_or("", |(_, query)| query)
    }

    /// Responds with success and this object.
    pub fn with(self, value: &Value) {
        self.send(StatusCode::OK, ResponseBody::from(value.to_string()));
    }

    /// Responds with a list of `items` at a resource version.
    pub fn list(self, version: &str, items: &[Value]) {
        self.with(
            &json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items}),
        );
    }

    /// Responds to a watch with its initial list, `items` of a `kind` of `v1`, and ends it; the client then
    /// reconnects.
    pub fn streams(self, kind: &str, items: &[Value], version: &str) {
        let added = items.iter().map(|item| line("ADDED", item));
        let end = line("BOOKMARK", &end_of_list(kind, version));
        let lines: String = added.chain([end]).collect();
        self.send(StatusCode::OK, ResponseBody::from(lines));
    }

    /// Responds with an error status like that of the API server.
    pub fn refuse(self, code: u16, reason: &str) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "message": format!("refused with {code}"), "reason": reason, "code": code,
        });
        self.refuse_with(&status);
    }

    /// Responds with this error status object.
    pub fn refuse_with(self, status: &Value) {
        let code = status["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok())
            .unwrap();
        let status_body = ResponseBody::from(status.to_string());
        self.send(StatusCode::from_u16(code).unwrap(), status_body);
    }

    /// Lets the request fail with this fault.
    pub fn fail(self, fault: WriteFault) {
        match fault {
            WriteFault::Refused => self.refuse(403, "Forbidden"),
            WriteFault::Conflict => self.refuse(409, "Conflict"),
            WriteFault::Throttled => self.refuse_with(&json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429,
                "message": "too many requests, please try again later", "details": {"retryAfterSeconds": 1},
            })),
            WriteFault::Timeout | WriteFault::LostResponse => self.respond.send_error("the connection has ended"),
        }
    }

    /// Accepts a watch.
    pub fn open(self) -> OpenWatch {
        let (events, body) = mpsc::unbounded();
        self.send(StatusCode::OK, ResponseBody::from_stream(body));
        OpenWatch(events)
    }

    /// Never responds: the response is lost. The connection stays open until the returned value is dropped.
    pub fn lose(self) -> impl Sized {
        self.respond
    }

    fn send(self, code: StatusCode, body: ResponseBody) {
        self.respond
            .send_response(Response::builder().status(code).body(body).unwrap());
    }
}

impl OpenWatch {
    /// Returns whether the client has ended the watch.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Sends one event.
    pub fn send(&self, kind: &str, object: &Value) {
        self.0.unbounded_send(Ok(line(kind, object))).unwrap();
    }

    /// Sends a bookmark at a resource version.
    pub fn bookmark(&self, version: &str) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": version}});
        self.send("BOOKMARK", &object);
    }

    /// Sends the bookmark that ends the initial list of the watch.
    pub fn end_of_list(&self, version: &str) {
        self.send("BOOKMARK", &end_of_list("ConfigMap", version));
    }
}

/// Returns a watch event as one line of JSON.
fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// Returns the bookmark that ends a streamed list.
fn end_of_list(kind: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}},
    })
}
