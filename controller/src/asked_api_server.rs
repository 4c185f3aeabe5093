//! An API server of which each request is answered by the test.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower_test::mock::{Handle, SendResponse, pair};

/// The test's side of the connection.
pub(crate) struct ApiServer(Handle<Request<Body>, Response<Body>>);

/// A request that waits for its answer.
pub(crate) struct Asked {
    pub(crate) method: Method,
    uri: Uri,
    pub(crate) body: Value,
    answer: SendResponse<Response<Body>>,
}

/// A client and the server that it talks to.
pub(crate) fn api_server() -> (Client, ApiServer) {
    let (service, handle) = pair();
    (Client::new(service, "default"), ApiServer(handle))
}

impl ApiServer {
    /// The next request. Fails if none comes for an hour (of the paused clock).
    pub(crate) async fn asked(&mut self) -> Asked {
        let next = tokio::time::timeout(Duration::from_secs(3600), self.0.next_request()).await;
        let (request, answer) = next
            .expect("nothing was asked for an hour")
            .expect("the client is gone");
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        Asked {
            method: parts.method,
            uri: parts.uri,
            body: serde_json::from_slice(&body).unwrap_or_default(),
            answer,
        }
    }

    /// Whether nothing is asked for an hour (of the paused clock).
    pub(crate) async fn is_left_alone(&mut self) -> bool {
        let next = tokio::time::timeout(Duration::from_secs(3600), self.0.next_request()).await;
        !matches!(next, Ok(Some(_)))
    }
}

impl Asked {
    /// The path, without what follows a question mark.
    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    /// What follows the question mark, as it was sent.
    pub(crate) fn query(&self) -> &str {
        self.uri.query().unwrap_or_default()
    }

    pub(crate) fn with(self, value: &Value) {
        self.send(StatusCode::OK, value);
    }

    /// A list of `items` of a `kind` of `v1` as a watch begins with it, and nothing more: whoever watches asks again.
    pub(crate) fn streams(self, kind: &str, items: &[Value], version: &str) {
        let end = json!({
            "apiVersion": "v1", "kind": kind,
            "metadata": {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}},
        });
        let added = items.iter().map(|item| json!({"type": "ADDED", "object": item}));
        let events = added.chain([json!({"type": "BOOKMARK", "object": end})]);
        let lines: String = events.map(|event| format!("{event}\n")).collect();
        self.answer.send_response(Response::new(Body::from(lines.into_bytes())));
    }

    /// A refusal as the API server words it.
    pub(crate) fn refuse(self, code: u16, reason: &str) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "message": format!("refused with {code}"), "reason": reason, "code": code,
        });
        self.send(StatusCode::from_u16(code).unwrap(), &status);
    }

    fn send(self, code: StatusCode, value: &Value) {
        let body = Body::from(value.to_string().into_bytes());
        self.answer
            .send_response(Response::builder().status(code).body(body).unwrap());
    }
}
