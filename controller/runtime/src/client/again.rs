//! Retries a request once if the API server closed the connection without a response.
//!
//! The API server closes a connection after 90 s of idle time, and so does this client. A request that is sent at that
//! moment finds its connection closed and would fail without need. RFC 9110 section 9.2.2 allows an idempotent request
//! to be sent again. Reads are idempotent; server-side apply is, too, since it declares the state of an object instead
//! of a change. All other requests fail, and the caller decides.

use super::{ApiOperation, ClientMetrics};
use http::{Method, Request, Response, header::CONTENT_TYPE};
use kube::client::Body;
use std::{
    error::Error,
    future::{Ready, ready},
    io::{self, ErrorKind},
};
use tower::{BoxError, retry::Policy};

/// Prefix of the content type of a server-side apply (`Patch::Apply` of kube).
const APPLY: &[u8] = b"application/apply-patch+";

/// Retries an idempotent request once if the connection was closed before the response.
#[derive(Clone)]
pub(super) struct RetryOnce {
    metrics: ClientMetrics,
    retried: bool,
}

impl RetryOnce {
    pub(super) fn new(metrics: ClientMetrics) -> Self {
        Self {
            metrics,
            retried: false,
        }
    }
}

/// Returns whether sending the request twice has the same effect as sending it once.
fn is_idempotent<B>(request: &Request<B>) -> bool {
    let applies = || {
        let content = request.headers().get(CONTENT_TYPE);
        content.is_some_and(|content| content.as_bytes().starts_with(APPLY))
    };
    request.method() == Method::GET || request.method() == Method::PATCH && applies()
}

/// Returns whether the connection was open when the request was sent, and was closed without a response.
fn was_closed(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let by_hyper = error
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_incomplete_message);
        let by_system = error.downcast_ref::<io::Error>().is_some_and(|error| {
            let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
            kinds.contains(&error.kind())
        });
        if by_hyper || by_system {
            return true;
        }
        cause = error.source();
    }
    false
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for RetryOnce {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let Err(error) = result else { return None };
        if self.retried || !was_closed(error.as_ref()) {
            return None;
        }
        self.retried = true;
        let operation = ApiOperation::of(request);
        tracing::debug!(
            verb = operation.verb,
            resource = operation.resource,
            "the API server closed the connection without a response: repeating the request"
        );
        self.metrics.count(operation, "closed".to_owned());
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        if !is_idempotent(request) {
            return None;
        }
        let mut again = Request::new(request.body().try_clone()?);
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        *again.headers_mut() = request.headers().clone();
        *again.extensions_mut() = request.extensions().clone();
        Some(again)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClientMetrics, ClientOptions, connect};
    use crate::Component;
    use http::{Method, Request, header::CONTENT_TYPE};
    use std::{
        io::{BufRead as _, BufReader, Read as _, Write as _},
        net::{TcpListener, TcpStream},
        path::PathBuf,
    };

    /// Reads one request and returns its first line; `None` at the end of the connection.
    fn read_request(connection: &mut BufReader<TcpStream>) -> Option<String> {
        let mut first = String::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if first.is_empty() {
                line.clone_into(&mut first);
            }
            if let Some(length_text) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = length_text.parse().unwrap();
            }
        }
        connection.read_exact(&mut vec![0; length]).ok()?;
        Some(first)
    }

    /// Starts an API server that closes each of its first `closes` connections after it has read a request, and
    /// responds to all requests on later connections. Returns the path of its kubeconfig.
    fn closing_server(name: &str, closes: usize) -> PathBuf {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (number, connection) in listener.incoming().enumerate() {
                let mut connection = BufReader::new(connection.unwrap());
                while read_request(&mut connection).is_some() && number >= closes {
                    let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                    connection.get_mut().write_all(reply).unwrap();
                }
            }
        });
        let path = std::env::temp_dir().join(format!("drydock-again-{}-{name}", std::process::id()));
        let kubeconfig = serde_json::json!({
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
            "users": [{"name": "u", "user": {}}],
        });
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }

    /// Sends a request to a server that closes the first `closes` connections. Returns its result and the number of
    /// retries.
    async fn send_over(name: &str, closes: usize, method: Method, content: &str) -> (Result<String, kube::Error>, u64) {
        let path = closing_server(name, closes);
        let options = ClientOptions::new(
            Component {
                name: "drydock-test",
                version: "0",
            },
            Some(path.clone()),
        );
        let metrics = ClientMetrics::default();
        let client = connect(&options, &metrics).await.unwrap();
        std::fs::remove_file(path).unwrap();
        let request = Request::builder()
            .method(method)
            .uri("/api/v1/nodes/n1")
            .header(CONTENT_TYPE, content)
            .body(b"{}".to_vec())
            .unwrap();
        let outcome = client.request_text(request).await;
        let closed = ["get", "patch", "create"].map(|verb| metrics.closed(verb, "nodes"));
        (outcome, closed.into_iter().sum())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn idempotent_request_is_repeated_once_on_a_closed_connection() {
        for (name, method, content) in [
            ("get", Method::GET, "application/json"),
            ("apply", Method::PATCH, "application/apply-patch+yaml"),
        ] {
            let (outcome, again) = send_over(name, 1, method.clone(), content).await;
            assert_eq!(outcome.unwrap(), "{}", "{name}");
            assert_eq!(again, 1, "{name}");
            let (outcome, again) = send_over(name, 2, method, content).await;
            assert!(outcome.is_err(), "{name}: once more, and no more");
            assert_eq!(again, 1, "{name}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn non_idempotent_request_is_not_retried() {
        for (name, method, content) in [
            ("create", Method::POST, "application/json"),
            ("delete", Method::DELETE, "application/json"),
            ("merge", Method::PATCH, "application/merge-patch+json"),
        ] {
            let (outcome, again) = send_over(name, 1, method, content).await;
            assert!(outcome.is_err(), "{name}");
            assert_eq!(again, 0, "{name}");
        }
    }
}
