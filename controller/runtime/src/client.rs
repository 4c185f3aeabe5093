//! The way to the API server.
//!
//! # Guarantees
//! - The answer to a request begins within [`ANSWER_WITHIN`], or there is an error. A connection that went silent is
//!   noticed within [`SILENT_FOR`], also under a watch.
//! - **No answer is retried in silence.** kube's own retries are off: they repeat a 429 up to fifteen times, which is
//!   how a disruption budget says no to an eviction. Whoever asked knows better whether and when to ask again. Only
//!   where there was no answer, because the connection was closed under the request, is it sent once more, and only if
//!   that can do no harm ([`again`]).
//! - Each request is counted by verb, resource and answer.
//!
//! # Caveats
//! HTTP/1.1: each watch has a connection of its own (and its TLS state), all else shares one or two.

mod again;

use self::again::AskAgain;
use crate::{metrics::Label, watch::is_watch};
use http::{HeaderValue, Method, Request, Response, header::USER_AGENT};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use std::{
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use thiserror::Error;
use tower::{BoxError, Layer, Service, buffer::BufferLayer, retry::RetryLayer};

/// How long a request may take until its answer begins. (The API server begins to answer a watch when it accepts it.)
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long a connection may bring nothing. Longer than a watch lasts (290 s): a quiet watch is no broken one.
pub const SILENT_FOR: Duration = Duration::from_secs(300);
/// How many requests may wait to be sent until askers wait with theirs; kube's own buffer has the same length.
const REQUESTS_AHEAD: usize = 1024;
/// How long the API server may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Whose requests these are and where they go.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// What asks: `drydock-agent`.
    pub component: &'static str,
    /// Its version.
    pub version: &'static str,
    /// A kubeconfig; without one, the credentials of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; without one, its current.
    pub context: Option<String>,
}

/// Why there is no way to the API server.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The kubeconfig is not there, or wrong.
    #[error("could not use the kubeconfig {path}")]
    Kubeconfig {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig was named, and this is no pod.
    #[error("no kubeconfig was named and there are no credentials of a pod")]
    InCluster(#[source] Box<InClusterError>),
    /// The name of the component cannot stand in a header.
    #[error("the component's name and version cannot be sent as a user agent")]
    UserAgent(#[source] http::header::InvalidHeaderValue),
    /// The connection cannot be set up as configured.
    #[error("could not prepare the connection to the API server")]
    Connection(#[source] Box<kube::Error>),
}

/// Prepares the way to the API server. Nothing is sent yet.
pub async fn connect(options: &ClientOptions, metrics: &ClientMetrics) -> Result<Client, ClientError> {
    crate::install_crypto();
    let mut config = match &options.kubeconfig {
        Some(path) => from_kubeconfig(path, options.context.clone()).await?,
        None => Config::incluster().map_err(|error| ClientError::InCluster(Box::new(error)))?,
    };
    let agent = format!("{}/{}", options.component, options.version);
    let agent = HeaderValue::try_from(agent).map_err(ClientError::UserAgent)?;
    config.headers.push((USER_AGENT, agent));
    config.connect_timeout = Some(CONNECT_WITHIN);
    config.read_timeout = Some(SILENT_FOR);
    // Else the time that a connection lay idle would count against the next answer on it.
    config.reset_reader_on_write = true;
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config).map_err(|error| ClientError::Connection(Box::new(error)))?;
    let builder = builder
        .with_layer(&BufferLayer::new(REQUESTS_AHEAD))
        .with_layer(&RetryLayer::new(AskAgain::new(metrics.clone())))
        .with_layer(&WatchRequests(metrics.clone()));
    Ok(builder.build())
}

async fn from_kubeconfig(path: &PathBuf, context: Option<String>) -> Result<Config, ClientError> {
    let wrong = |error| ClientError::Kubeconfig {
        path: path.clone(),
        source: Box::new(error),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(wrong)
}

/// How many requests went to the API server.
#[derive(Clone, Debug, Default)]
pub struct ClientMetrics {
    requests: Family<RequestLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: Label,
    resource: String,
    code: String,
}

impl ClientMetrics {
    /// Counts in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Requests to the API server by verb, resource and status code (or timeout, failed, closed)";
        registry.register("drydock_api_requests", help, metrics.requests.clone());
        metrics
    }

    fn count(&self, asked: Asked, code: String) {
        let Asked { verb, resource } = asked;
        self.requests
            .get_or_create(&RequestLabels { verb, resource, code })
            .inc();
    }

    /// How many requests there were with this verb for this resource: for tests.
    pub fn requests(&self, verb: &'static str, resource: &str) -> u64 {
        let codes = [
            "200", "201", "404", "409", "422", "429", "500", "503", "timeout", "failed",
        ];
        let labels = |code: &str| RequestLabels {
            verb,
            resource: resource.to_owned(),
            code: code.to_owned(),
        };
        let counted = |code: &str| self.requests.get(&labels(code)).map_or(0, |counter| counter.get());
        codes.into_iter().map(counted).sum()
    }

    /// How many of those were sent again because their connection was closed instead of an answer: for tests.
    #[cfg(test)]
    fn closed(&self, verb: &'static str, resource: &str) -> u64 {
        let labels = RequestLabels {
            verb,
            resource: resource.to_owned(),
            code: "closed".to_owned(),
        };
        self.requests.get(&labels).map_or(0, |counter| counter.get())
    }
}

/// What a request asks for, in the words of RBAC.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    verb: Label,
    resource: String,
}

impl Asked {
    fn of<B>(request: &Request<B>) -> Self {
        let mut parts = request.uri().path().trim_matches('/').split('/');
        match parts.next() {
            Some("api") => _ = parts.next(),
            Some("apis") => _ = parts.nth(1),
            _ => {
                return Self {
                    verb: "get",
                    resource: "other".to_owned(),
                };
            }
        }
        let mut parts: Vec<&str> = parts.collect();
        // `namespaces/x` is an object of its own; with more behind it, it only says where the object is.
        if parts.len() > 2 && parts[0] == "namespaces" && !matches!(parts[2], "status" | "finalize") {
            parts.drain(..2);
        }
        let named = parts.len() > 1;
        let verb = match (request.method(), named) {
            (&Method::GET, _) if is_watch(request) => "watch",
            (&Method::GET, true) => "get",
            (&Method::GET, false) => "list",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, true) => "delete",
            (&Method::DELETE, false) => "deletecollection",
            _ => "other",
        };
        let resource = match parts[..] {
            [resource, _, sub, ..] => format!("{resource}/{sub}"),
            [resource, ..] => resource.to_owned(),
            [] => "other".to_owned(),
        };
        Self { verb, resource }
    }
}

/// Counts requests and bounds how long an answer may take.
#[derive(Clone)]
struct WatchRequests(ClientMetrics);

impl<S> Layer<S> for WatchRequests {
    type Service = WatchedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WatchedService {
            inner,
            metrics: self.0.clone(),
        }
    }
}

struct WatchedService<S> {
    inner: S,
    metrics: ClientMetrics,
}

/// The API server did not answer in time.
#[derive(Debug, Error)]
#[error("no answer from the API server within {ANSWER_WITHIN:?} ({verb} {resource})")]
struct NoAnswer {
    verb: Label,
    resource: String,
}

impl<S, B> Service<Request<Body>> for WatchedService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let asked = Asked::of(&request);
        let metrics = self.metrics.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            // The head of a watch's answer may wait for the first event.
            let within = if asked.verb == "watch" {
                SILENT_FOR
            } else {
                ANSWER_WITHIN
            };
            match tokio::time::timeout(within, answer).await {
                Ok(Ok(response)) => {
                    metrics.count(asked, response.status().as_str().to_owned());
                    Ok(response)
                }
                Ok(Err(error)) => {
                    metrics.count(asked, "failed".to_owned());
                    Err(error)
                }
                Err(_) => {
                    let error = NoAnswer {
                        verb: asked.verb,
                        resource: asked.resource.clone(),
                    };
                    metrics.count(asked, "timeout".to_owned());
                    Err(error.into())
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Asked, ClientMetrics, ClientOptions, WatchRequests, connect};
    use http::{Method, Request, Response};
    use kube::client::{Body, ClientBuilder};
    use std::path::PathBuf;

    fn asked(method: Method, uri: &str) -> (&'static str, String) {
        let Asked { verb, resource } = Asked::of(&Request::builder().method(method).uri(uri).body(()).unwrap());
        (verb, resource)
    }

    #[test]
    fn a_request_is_named_as_rbac_names_it() {
        for (method, uri, verb, resource) in [
            (Method::GET, "/api/v1/nodes?limit=500", "list", "nodes"),
            (
                Method::GET,
                "/api/v1/nodes?watch=true&resourceVersion=4",
                "watch",
                "nodes",
            ),
            (Method::GET, "/api/v1/nodes/n1", "get", "nodes"),
            (Method::PATCH, "/api/v1/nodes/n1/status", "patch", "nodes/status"),
            (Method::GET, "/api/v1/namespaces/default", "get", "namespaces"),
            (
                Method::PUT,
                "/api/v1/namespaces/default/finalize",
                "update",
                "namespaces/finalize",
            ),
            (Method::POST, "/api/v1/namespaces/default/pods", "create", "pods"),
            (
                Method::POST,
                "/api/v1/namespaces/default/pods/vm/eviction",
                "create",
                "pods/eviction",
            ),
            (
                Method::DELETE,
                "/apis/policy/v1/namespaces/a/poddisruptionbudgets/b",
                "delete",
                "poddisruptionbudgets",
            ),
            (
                Method::DELETE,
                "/apis/coordination.k8s.io/v1/namespaces/a/leases",
                "deletecollection",
                "leases",
            ),
            (Method::GET, "/version", "get", "other"),
        ] {
            assert_eq!(asked(method, uri), (verb, resource.to_owned()), "{uri}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_come_is_an_error_and_counted() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let metrics = ClientMetrics::default();
        let client = ClientBuilder::new(service, "default")
            .with_layer(&WatchRequests(metrics.clone()))
            .build();
        let asks = client.request_text(Request::get("/api/v1/nodes/n1").body(vec![]).unwrap());
        let silent = async {
            let request = server.next_request().await;
            std::future::pending::<()>().await;
            drop(request);
        };
        let answer = tokio::select! { answer = asks => answer, () = silent => unreachable!() };
        let error = answer.unwrap_err();
        let said = crate::chain(&error).to_string();
        assert!(
            said.contains("no answer from the API server within 30s (get nodes)"),
            "{said}"
        );
        assert_eq!(metrics.requests("get", "nodes"), 1);
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let options = ClientOptions {
            component: "drydock-agent",
            version: "1.2.3",
            kubeconfig: Some(PathBuf::from("/nowhere/kubeconfig")),
            context: None,
        };
        let error = connect(&options, &ClientMetrics::default()).await.err().unwrap();
        let said = crate::chain(&error).to_string();
        assert!(
            said.starts_with("could not use the kubeconfig /nowhere/kubeconfig: "),
            "{said}"
        );
    }
}
