//! An API server of which each request is answered by the test.

use axum::body::Body as AnswerBody;
use futures::channel::mpsc;
use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::{convert::Infallible, time::Duration};
use tower_test::mock::{Handle, SendResponse, pair};

/// The test's side of the connection.
pub(crate) struct ApiServer(Handle<Request<Body>, Response<AnswerBody>>);

/// A request that waits for its answer.
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) line: String,
    pub(crate) body: Value,
    pub(crate) content_type: String,
    answer: SendResponse<Response<AnswerBody>>,
}

/// A watch that stays open.
pub(crate) struct OpenWatch(mpsc::UnboundedSender<Result<String, Infallible>>);

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

    /// Whether nothing is asked for `span`.
    pub(crate) async fn is_left_alone_for(&mut self, span: Duration) -> bool {
        !matches!(tokio::time::timeout(span, self.0.next_request()).await, Ok(Some(_)))
    }
}

impl Asked {
    pub(crate) fn with(self, value: &Value) {
        self.send(StatusCode::OK, AnswerBody::from(value.to_string()));
    }

    /// A list of `items` at a resource version.
    pub(crate) fn list(self, version: &str, items: &[Value]) {
        self.with(
            &json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items}),
        );
    }

    /// A refusal as the API server words it.
    pub(crate) fn refuse(self, code: u16, reason: &str) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "message": format!("refused with {code}"), "reason": reason, "code": code,
        });
        self.refuse_with(&status);
    }

    /// A refusal in other words.
    pub(crate) fn refuse_with(self, status: &Value) {
        let code = status["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok())
            .unwrap();
        let answer = AnswerBody::from(status.to_string());
        self.send(StatusCode::from_u16(code).unwrap(), answer);
    }

    /// Accepts a watch.
    pub(crate) fn open(self) -> OpenWatch {
        let (events, body) = mpsc::unbounded();
        self.send(StatusCode::OK, AnswerBody::from_stream(body));
        OpenWatch(events)
    }

    /// Never answers: the reply is lost. The connection stays as long as the returned value.
    pub(crate) fn lose(self) -> impl Sized {
        self.answer
    }

    fn send(self, code: StatusCode, body: AnswerBody) {
        self.answer
            .send_response(Response::builder().status(code).body(body).unwrap());
    }
}

impl OpenWatch {
    pub(crate) fn send(&self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.0.unbounded_send(Ok(line)).unwrap();
    }

    pub(crate) fn bookmark(&self, version: &str) {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": version}});
        self.send("BOOKMARK", &object);
    }

    /// The end of a list that the watch begins with.
    pub(crate) fn end_of_list(&self, version: &str) {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}},
        });
        self.send("BOOKMARK", &object);
    }
}
