//! An API server of which each request is answered by the test.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails where it stands"
)]

use std::{convert::Infallible, time::Duration};

use axum::body::Body as AnswerBody;
use futures::channel::mpsc;
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower_test::mock::{Handle, SendResponse, pair};

/// How long a request is waited for. Nothing takes an hour of a paused clock, and no test an hour of another one.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The test's side of the connection.
pub struct ApiServer(Handle<Request<Body>, Response<AnswerBody>>);

/// A request that waits for its answer.
pub struct Asked {
    /// What is to be done.
    pub method: Method,
    /// Path and query, as they were sent.
    pub line: String,
    /// What was sent, if it is JSON, null otherwise.
    pub body: Value,
    /// How it was sent; empty if that was not said.
    pub content_type: String,
    answer: SendResponse<Response<AnswerBody>>,
}

/// A watch that stays open.
pub struct OpenWatch(mpsc::UnboundedSender<Result<String, Infallible>>);

/// A client and the server that it talks to.
pub fn api_server() -> (Client, ApiServer) {
    let (service, handle) = pair();
    (Client::new(service, "default"), ApiServer(handle))
}

impl ApiServer {
    /// The next request. Fails if none comes for an hour (of the paused clock).
    pub async fn asked(&mut self) -> Asked {
        let next = tokio::time::timeout(PATIENCE, self.0.next_request()).await;
        let (request, answer) = next
            .expect("nothing was asked for an hour")
            .expect("the client is gone");
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        Asked {
            method: parts.method,
            line: parts.uri.to_string(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            content_type: parts
                .headers
                .get("content-type")
                .map(|value| value.to_str().unwrap().to_owned())
                .unwrap_or_default(),
            answer,
        }
    }

    /// Whether nothing is asked for an hour (of the paused clock).
    pub async fn is_left_alone(&mut self) -> bool {
        self.is_left_alone_for(PATIENCE).await
    }

    /// Whether nothing is asked for `span`.
    pub async fn is_left_alone_for(&mut self, span: Duration) -> bool {
        !matches!(tokio::time::timeout(span, self.0.next_request()).await, Ok(Some(_)))
    }
}

impl Asked {
    /// The path, without what follows a question mark.
    pub fn path(&self) -> &str {
        self.line.split_once('?').map_or(&self.line, |(path, _)| path)
    }

    /// What follows the question mark, as it was sent.
    pub fn query(&self) -> &str {
        self.line.split_once('?').map_or("", |(_, query)| query)
    }

    /// Does it: the object as it is then.
    pub fn with(self, value: &Value) {
        self.send(StatusCode::OK, AnswerBody::from(value.to_string()));
    }

    /// A list of `items` at a resource version.
    pub fn list(self, version: &str, items: &[Value]) {
        self.with(
            &json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items}),
        );
    }

    /// A list of `items` of a `kind` of `v1` as a watch begins with it, and nothing more: whoever watches asks again.
    pub fn streams(self, kind: &str, items: &[Value], version: &str) {
        let added = items.iter().map(|item| line("ADDED", item));
        let end = line("BOOKMARK", &end_of_list(kind, version));
        let lines: String = added.chain([end]).collect();
        self.send(StatusCode::OK, AnswerBody::from(lines));
    }

    /// A refusal as the API server words it.
    pub fn refuse(self, code: u16, reason: &str) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "message": format!("refused with {code}"), "reason": reason, "code": code,
        });
        self.refuse_with(&status);
    }

    /// A refusal in other words.
    pub fn refuse_with(self, status: &Value) {
        let code = status["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok())
            .unwrap();
        let answer = AnswerBody::from(status.to_string());
        self.send(StatusCode::from_u16(code).unwrap(), answer);
    }

    /// Accepts a watch.
    pub fn open(self) -> OpenWatch {
        let (events, body) = mpsc::unbounded();
        self.send(StatusCode::OK, AnswerBody::from_stream(body));
        OpenWatch(events)
    }

    /// Never answers: the reply is lost. The connection stays as long as the returned value.
    pub fn lose(self) -> impl Sized {
        self.answer
    }

    fn send(self, code: StatusCode, body: AnswerBody) {
        self.answer
            .send_response(Response::builder().status(code).body(body).unwrap());
    }
}

impl OpenWatch {
    /// One event.
    pub fn send(&self, kind: &str, object: &Value) {
        self.0.unbounded_send(Ok(line(kind, object))).unwrap();
    }

    /// How far the watch is.
    pub fn bookmark(&self, version: &str) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": version}});
        self.send("BOOKMARK", &object);
    }

    /// The end of a list that the watch begins with.
    pub fn end_of_list(&self, version: &str) {
        self.send("BOOKMARK", &end_of_list("ConfigMap", version));
    }
}

/// An event of a watch.
fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// The bookmark with which a streamed list ends.
fn end_of_list(kind: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}},
    })
}
