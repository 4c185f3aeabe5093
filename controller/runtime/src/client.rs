//! The client of the API server.
//!
//! # Guarantees
//! - The response to a request begins within [`RESPONSE_TIMEOUT`], or the request fails. A dead connection is detected
//!   by [`KeepAlive::FOR_WATCHES`], also under a watch; a connection that is dead only behind a proxy, within
//!   [`READ_TIMEOUT`].
//! - **No response is retried silently.** kube's own retries are off: they repeat a 429 up to fifteen times, which is
//!   the response to an eviction that a PDB blocks. The caller knows better whether and when to retry. Only if the
//!   connection was closed without a response is a request sent once more, provided that it is idempotent ([`again`]).
//! - Each request is counted by verb, resource and status code.
//!
//! # Caveats
//! HTTP/1.1: each watch uses a connection (and TLS state) of its own; all other requests share one or two.

mod again;

use self::again::RetryOnce;
use crate::{Component, metrics::Label, tcp::KeepAlive, watch::is_watch};
use http::{HeaderValue, Method, Request, Response, header::USER_AGENT};
use hyper::body::Incoming;
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Builder, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
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
use tower::{BoxError, Layer, Service, ServiceBuilder, buffer::BufferLayer, retry::RetryLayer, util::BoxService};

/// Time limit of a request until its response begins. (For a watch, the response begins when the API server accepts
/// it.)
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for which a connection may receive nothing. Longer than a watch lasts (290 s), so a quiet watch does
/// not count as broken.
pub const READ_TIMEOUT: Duration = Duration::from_secs(300);
/// Number of requests that may be queued before callers have to wait; kube's own buffer has the same size.
const REQUESTS_AHEAD: usize = 1024;
/// Time limit for connecting to the API server.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// The identity of the client, and the API server to which it connects.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The component that the client names in its requests.
    pub component: Component,
    /// Path of a kubeconfig; without it, the service account of the pod is used.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; without it, the current context is used.
    pub context: Option<String>,
}

impl ClientOptions {
    /// Returns the options of a client with the current context of `kubeconfig`.
    ///
    /// Without a kubeconfig, the client uses the service account of the pod.
    pub const fn new(component: Component, kubeconfig: Option<PathBuf>) -> Self {
        Self {
            component,
            kubeconfig,
            context: None,
        }
    }
}

/// The reason why no client could be created.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The kubeconfig does not exist or is invalid.
    #[error("could not use the kubeconfig {path}")]
    Kubeconfig {
        /// The path of the kubeconfig.
        path: PathBuf,
        /// The cause.
        source: Box<KubeconfigError>,
    },
    /// No kubeconfig was given, and the process does not run in a pod.
    #[error("no kubeconfig is specified, and the process has no credentials of a pod")]
    InCluster(#[source] Box<InClusterError>),
    /// The component's name or version is not valid in a header.
    #[error("the component's name and version are not a valid user agent")]
    UserAgent(#[source] http::header::InvalidHeaderValue),
    /// The client cannot be built from this configuration.
    #[error("could not prepare the connection to the API server")]
    Connection(#[source] Box<kube::Error>),
}

/// Creates a client of the API server. Sends nothing yet.
pub async fn connect(options: &ClientOptions, metrics: &ClientMetrics) -> Result<Client, ClientError> {
    crate::install_crypto();
    let mut config = match &options.kubeconfig {
        Some(path) => from_kubeconfig(path, options.context.clone()).await?,
        None => Config::incluster().map_err(|error| ClientError::InCluster(Box::new(error)))?,
    };
    let Component { name, version } = options.component;
    let agent = format!("{name}/{version}");
    let agent = HeaderValue::try_from(agent).map_err(ClientError::UserAgent)?;
    config.headers.push((USER_AGENT, agent));
    config.connect_timeout = Some(CONNECT_WITHIN);
    config.read_timeout = Some(READ_TIMEOUT);
    // Without this setting, the idle time of a connection would count towards the timeout of its next response.
    config.reset_reader_on_write = true;
    config.default_retry = false;
    let service = probed_service(&config).map_err(|error| ClientError::Connection(Box::new(error)))?;
    let builder = ClientBuilder::new(service, config.default_namespace)
        .with_layer(&BufferLayer::new(REQUESTS_AHEAD))
        .with_layer(&RetryLayer::new(RetryOnce::new(metrics.clone())))
        .with_layer(&WatchRequests(metrics.clone()));
    Ok(builder.build())
}

/// Returns the service of [`ClientBuilder::try_from`] for a configuration, with two differences: the kernel probes its
/// connections, and it does not log each request.
fn probed_service(config: &Config) -> kube::Result<BoxService<Request<Body>, Response<Incoming>, BoxError>> {
    if config.proxy_url.is_some() {
        // This call returns the error for a proxy, since kube is built without proxies.
        ClientBuilder::try_from(config.clone())?;
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    let probes = KeepAlive::FOR_WATCHES;
    connector.set_keepalive(Some(probes.idle));
    connector.set_keepalive_interval(Some(probes.interval));
    connector.set_keepalive_retries(Some(probes.probes));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Builder::new(TokioExecutor::new()).build(connector));
    Ok(BoxService::new(service))
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

/// Metrics of requests to the API server.
#[derive(Clone, Debug, Default)]
pub struct ClientMetrics {
    requests: Family<ApiRequestLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiRequestLabels {
    verb: Label,
    resource: String,
    code: String,
}

impl ClientMetrics {
    /// Creates the metrics and registers them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Requests to the API server by verb, resource and status code (or timeout, failed, closed)";
        registry.register("drydock_api_requests", help, metrics.requests.clone());
        metrics
    }

    fn count(&self, operation: ApiOperation, code: String) {
        let ApiOperation { verb, resource } = operation;
        self.requests
            .get_or_create(&ApiRequestLabels { verb, resource, code })
            .inc();
    }

    /// Returns the number of requests with this verb for this resource; for tests.
    #[cfg(test)]
    fn requests(&self, verb: &'static str, resource: &str) -> u64 {
        let codes = [
            "200", "201", "404", "409", "422", "429", "500", "503", "timeout", "failed",
        ];
        let labels = |code: &str| ApiRequestLabels {
            verb,
            resource: resource.to_owned(),
            code: code.to_owned(),
        };
        let counted = |code: &str| self.requests.get(&labels(code)).map_or(0, |counter| counter.get());
        codes.into_iter().map(counted).sum()
    }

    /// Returns the number of requests of this kind that were retried because their connection was closed without a
    /// response; for tests.
    #[cfg(test)]
    fn closed(&self, verb: &'static str, resource: &str) -> u64 {
        let labels = ApiRequestLabels {
            verb,
            resource: resource.to_owned(),
            code: "closed".to_owned(),
        };
        self.requests.get(&labels).map_or(0, |counter| counter.get())
    }
}

/// The verb and resource of a request, in RBAC terms.
#[derive(Debug, PartialEq, Eq)]
struct ApiOperation {
    verb: Label,
    resource: String,
}

impl ApiOperation {
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
        // `namespaces/x` is an object itself; with a longer path it is only the namespace of the object.
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

/// Counts requests and limits the time until a response begins.
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

/// The API server did not respond in time.
#[derive(Debug, Error)]
#[error("no response from the API server within {RESPONSE_TIMEOUT:?} ({verb} {resource})")]
struct NoResponse {
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
        let operation = ApiOperation::of(&request);
        let metrics = self.metrics.clone();
        let response_future = self.inner.call(request);
        Box::pin(async move {
            // The API server may delay the response headers of a watch until its first event.
            let within = if operation.verb == "watch" {
                READ_TIMEOUT
            } else {
                RESPONSE_TIMEOUT
            };
            match tokio::time::timeout(within, response_future).await {
                Ok(Ok(response)) => {
                    metrics.count(operation, response.status().as_str().to_owned());
                    Ok(response)
                }
                Ok(Err(error)) => {
                    metrics.count(operation, "failed".to_owned());
                    Err(error)
                }
                Err(_) => {
                    let error = NoResponse {
                        verb: operation.verb,
                        resource: operation.resource.clone(),
                    };
                    metrics.count(operation, "timeout".to_owned());
                    Err(error.into())
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{ApiOperation, ClientMetrics, ClientOptions, WatchRequests, connect};
    use crate::Component;
    use http::{Method, Request, Response};
    use kube::client::{Body, ClientBuilder};
    use std::path::PathBuf;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    fn operation_of(method: Method, uri: &str) -> (&'static str, String) {
        let ApiOperation { verb, resource } =
            ApiOperation::of(&Request::builder().method(method).uri(uri).body(()).unwrap());
        (verb, resource)
    }

    #[test]
    fn request_is_named_by_rbac_verb_and_resource() {
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
            assert_eq!(operation_of(method, uri), (verb, resource.to_owned()), "{uri}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn missing_response_is_an_error_and_counted() {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let metrics = ClientMetrics::default();
        let client = ClientBuilder::new(service, "default")
            .with_layer(&WatchRequests(metrics.clone()))
            .build();
        let requesting = client.request_text(Request::get("/api/v1/nodes/n1").body(vec![]).unwrap());
        let unresponsive = async {
            let request = server.next_request().await;
            std::future::pending::<()>().await;
            drop(request);
        };
        let result = tokio::select! { result = requesting => result, () = unresponsive => unreachable!() };
        let error = result.unwrap_err();
        let message = crate::chain(&error).to_string();
        assert!(
            message.contains("no response from the API server within 30s (get nodes)"),
            "{message}"
        );
        assert_eq!(metrics.requests("get", "nodes"), 1);
    }

    /// Returns whether the kernel probes the connection to this port of this machine.
    fn is_probed(port: u16) -> bool {
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        connections.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // Remote address, state (established), and the pending timer (keepalive).
            fields[2] == format!("0100007F:{port:04X}") && fields[3] == "01" && fields[5].starts_with("02:")
        })
    }

    #[tokio::test]
    async fn connection_to_the_api_server_is_probed() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let path = std::env::temp_dir().join(format!("drydock-kubeconfig-{port}"));
        let kubeconfig = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        );
        std::fs::write(&path, kubeconfig).unwrap();
        let options = ClientOptions::new(
            Component {
                name: "drydock-agent",
                version: "1.2.3",
            },
            Some(path.clone()),
        );
        let client = connect(&options, &ClientMetrics::default()).await.unwrap();
        std::fs::remove_file(path).unwrap();
        let served = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).to_lowercase();
            assert!(request.starts_with("get /version http/1.1\r\n"), "{request}");
            assert!(request.contains("user-agent: drydock-agent/1.2.3\r\n"), "{request}");
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                .await
                .unwrap();
            stream
        };
        let request = Request::get("/version").body(vec![]).unwrap();
        let (response, _open) = tokio::join!(client.request_text(request), served);
        assert_eq!(response.unwrap(), "{}");
        assert!(is_probed(port));
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_not_there_is_named() {
        let options = ClientOptions::new(
            Component {
                name: "drydock-agent",
                version: "1.2.3",
            },
            Some(PathBuf::from("/nowhere/kubeconfig")),
        );
        let error = connect(&options, &ClientMetrics::default()).await.err().unwrap();
        let message = crate::chain(&error).to_string();
        assert!(
            message.starts_with("could not use the kubeconfig /nowhere/kubeconfig: "),
            "{message}"
        );
    }
}
