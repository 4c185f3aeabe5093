//! The admin port: liveness, readiness, metrics and log level.
//!
//! | path | response |
//! |---|---|
//! | `/livez`, `/live`, `/healthz` | 200: the runtime executes tasks |
//! | `/readyz`, `/ready` | 200, or 503 with the preconditions that are not met |
//! | `/metrics` | OpenMetrics text |
//! | `GET /log-level` | the current log level |
//! | `PUT /log-level` | sets it, to `debug` or `info,drydock_runtime=trace`; only from localhost (port-forward) |

use crate::{
    LogHandle, Process, Readiness, chain,
    tcp::{self, PortError},
};
use axum::{
    Router,
    extract::{ConnectInfo, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::{net::SocketAddr, sync::Arc};
use tokio_util::sync::CancellationToken;

/// The OpenMetrics content type that Prometheus expects.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The data that the admin port serves.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The preconditions of readiness.
    pub readiness: Readiness,
    /// The metrics.
    pub registry: Arc<Registry>,
    /// The log level.
    pub logs: LogHandle,
}

#[derive(Clone)]
struct Served {
    admin: Admin,
    stopping: CancellationToken,
}

impl Admin {
    /// Opens the port and serves it until all other tasks of the process have ended. Port 0 selects a free port.
    /// Returns the bound address.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub async fn serve(self, process: &Process, address: SocketAddr) -> Result<SocketAddr, PortError> {
        let (listener, taken) = tcp::listen("admin port", address).await?;
        let routes = self
            .routes(process.stopping())
            .into_make_service_with_connect_info::<SocketAddr>();
        process.spawn_to_the_end("admin port", async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!(error = %chain(&error), "the admin port failed");
            }
        });
        tracing::info!(address = %taken, "admin port open");
        Ok(taken)
    }

    fn routes(self, stopping: CancellationToken) -> Router {
        Router::new()
            .route("/livez", get(live))
            .route("/live", get(live))
            .route("/healthz", get(live))
            .route("/readyz", get(ready))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .route("/log-level", get(log_level).put(set_log_level))
            .with_state(Served { admin: self, stopping })
    }
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready(State(served): State<Served>) -> Response {
    if served.stopping.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    let waiting = served.admin.readiness.waiting();
    if waiting.is_empty() {
        return "ok\n".into_response();
    }
    let line = format!("waiting for: {}\n", waiting.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, line).into_response()
}

async fn metrics(State(served): State<Served>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &served.admin.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn log_level(State(served): State<Served>) -> String {
    format!("{}\n", served.admin.logs.level())
}

async fn set_log_level(
    State(served): State<Served>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    level: String,
) -> Response {
    // The port is open to the cluster network for probes and metrics; other hosts must not flood or suppress the log.
    if !peer.ip().to_canonical().is_loopback() {
        return (
            StatusCode::FORBIDDEN,
            "the log level can be changed only through a loopback address\n",
        )
            .into_response();
    }
    match served.admin.logs.set(level.trim()) {
        Ok(()) => {
            tracing::info!(level = level.trim(), "log level changed");
            log_level(State(served)).await.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{}\n", chain(&error))).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::Admin;
    use crate::{Component, LogHandle, Process, Readiness, metrics};
    use std::{net::SocketAddr, sync::Arc};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    /// Sends one request on a separate connection. Returns the status code, the headers and the body.
    async fn send(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, head.to_lowercase(), body.to_owned())
    }

    #[tokio::test]
    async fn endpoints_reflect_process_state() {
        let process = Process::new();
        let readiness = Readiness::new();
        let (logs, _layer) = LogHandle::detached("info").unwrap();
        let waits = readiness.handle("nodes");
        let admin = Admin {
            readiness: readiness.clone(),
            registry: Arc::new(metrics::registry(Component {
                name: "drydock-test",
                version: "1.2.3",
            })),
            logs: logs.clone(),
        };
        let address = admin.serve(&process, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        assert_ne!(address.port(), 0);

        for path in ["/livez", "/live", "/healthz"] {
            assert_eq!(send(address, "GET", path, "").await.0, 200);
        }
        let (code, _, body) = send(address, "GET", "/readyz", "").await;
        assert_eq!((code, body.as_str()), (503, "waiting for: nodes\n"));
        waits.release();
        assert_eq!(send(address, "GET", "/ready", "").await.0, 200);

        let (code, head, body) = send(address, "GET", "/metrics", "").await;
        assert_eq!(code, 200);
        assert!(
            head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
            "{head}"
        );
        assert!(
            body.contains("drydock_build_info") && body.ends_with("# EOF\n"),
            "{body}"
        );

        assert_eq!(send(address, "PUT", "/log-level", "debug\n").await.0, 200);
        assert_eq!(send(address, "GET", "/log-level", "").await.2, "debug\n");
        let (code, _, body) = send(address, "PUT", "/log-level", "loud=very").await;
        assert_eq!(code, 400);
        assert!(body.starts_with("\"loud=very\" is not a log level"), "{body}");

        process.stop();
        assert_eq!(send(address, "GET", "/readyz", "").await.2, "stopping\n");
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named() {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let (logs, _layer) = LogHandle::detached("info").unwrap();
        let admin = Admin {
            readiness: Readiness::new(),
            registry: Arc::default(),
            logs,
        };
        let error = admin.serve(&Process::new(), address).await.unwrap_err();
        assert_eq!(error.to_string(), format!("could not open the admin port {address}"));
    }
}
