//! Port through which controllers reach the guests of this node, for commands of users and console streams.
//!
//! ```text
//!  controller ──TLS, by the bundle of the APIService──▶ NodeApi ──▶ requests ──▶ GuestDirectory ──▶ a GuestTask
//!      └ knows this process by the fingerprint in the Hypervisor             └─▶ streams ──▶ a socket in the pod
//! ```
//!
//! The contract is in [`drydock_api::node_api`]. A stream ends with this process; the guest's console is unaffected.

mod controller_trust;
mod request_handler;
mod streams;

#[cfg(test)]
mod tests;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use drydock_api::hypervisor::AgentEndpoint;
use drydock_runtime::{
    Process, WatchStarter, chain,
    tcp::{self, KeepAlive, PortError},
};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Client;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use socket2::SockRef;
use thiserror::Error;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use crate::guests::GuestDirectory;
use controller_trust::{ControllerTrust, OwnCertificateError};
use request_handler::RequestHandler;
use streams::Streams;

/// Time limit for a handshake, and for the head of a request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections, of which each carries a single command or stream.
const CONNECTIONS: usize = 512;
/// Pause after the port failed to accept a connection, for example because no file descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Counters of the port.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeApiMetrics {
    /// Connections that were not accepted, or whose handshake failed.
    pub(crate) refused: Counter,
    /// Streams that are open.
    pub(crate) streams: Gauge,
}

impl NodeApiMetrics {
    /// Creates the counters and registers them in `registry`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "drydock_node_api_refused_connections",
            "Connections of controllers that were refused, or whose TLS handshake failed",
            metrics.refused.clone(),
        );
        registry.register(
            "drydock_guest_streams",
            "Open streams of consoles and displays",
            metrics.streams.clone(),
        );
        metrics
    }
}

/// Reason why the port cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum NodeApiError {
    /// The address is in use, or the process is not allowed to use it.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The certificate of the process cannot be created.
    #[error(transparent)]
    Identity(#[from] OwnCertificateError),
}

/// The API of the agent for controllers, before its port is opened.
pub(crate) struct NodeApi {
    /// Client of the API server.
    pub(crate) client: Client,
    /// Directory of the guests.
    pub(crate) guests: GuestDirectory,
    /// Folder of the kubelet.
    pub(crate) kubelet: PathBuf,
    /// Name of the agent's own node.
    pub(crate) node: String,
    /// Counters of the port.
    pub(crate) metrics: NodeApiMetrics,
}

impl NodeApi {
    /// Opens the port and serves it until the process stops.
    ///
    /// Controllers reach the port at `address`. Port 0 selects a free port. Returns the resulting address, and the
    /// fingerprint by which controllers recognize the certificate.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub(crate) async fn serve(
        self,
        process: &Process,
        watches: &WatchStarter,
        address: IpAddr,
        port: u16,
    ) -> Result<AgentEndpoint, NodeApiError> {
        let trust = ControllerTrust::start(&self.client, watches)?;
        self.serve_with(process, trust, address, port).await
    }

    async fn serve_with(
        self,
        process: &Process,
        trust: ControllerTrust,
        address: IpAddr,
        port: u16,
    ) -> Result<AgentEndpoint, NodeApiError> {
        let (listener, address) = tcp::listen("port for controllers", SocketAddr::new(address, port)).await?;
        let endpoint = AgentEndpoint {
            address: address.to_string(),
            certificate_fingerprint: trust.fingerprint().to_string(),
        };
        let streams = Streams::new(self.metrics.streams.clone(), process);
        let accepting = Accepting {
            requests: Arc::new(RequestHandler::new(self.guests, streams, self.kubelet, self.node)),
            trust,
            refused: self.metrics.refused,
            process: process.clone(),
        };
        process.spawn("port for controllers", accepting.run(listener));
        info!(%address, "listening for controllers");
        Ok(endpoint)
    }
}

struct Accepting {
    requests: Arc<RequestHandler>,
    trust: ControllerTrust,
    refused: Counter,
    process: Process,
}

impl Accepting {
    async fn run(self, listener: TcpListener) {
        let stopping = self.process.stopping();
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        while let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((connection, from)) => match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => self
                        .process
                        .spawn("controller's connection", self.serve(connection, place)),
                    Err(_) => {
                        self.refused.inc();
                        debug!(%from, "refused the connection of a controller: too many connections");
                    }
                },
                Err(error) => {
                    warn!(error = %chain(&error), "could not accept the connection of a controller");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Serves a connection until it is closed or has become a stream.
    fn serve(&self, connection: TcpStream, place: OwnedSemaphorePermit) -> impl Future<Output = ()> + Send + use<> {
        let config = self.trust.config();
        let (requests, refused) = (Arc::clone(&self.requests), self.refused.clone());
        let stopping = self.process.stopping();
        async move {
            let place = Arc::new(place);
            let Some(config) = config else {
                refused.inc();
                debug!("refused the connection of a controller: no CA certificate of the controllers is known");
                return;
            };
            if let Err(error) = set_up(&connection) {
                refused.inc();
                debug!(
                    error = %chain(&error),
                    "refused the connection of a controller: could not set the socket options"
                );
                return;
            }
            let handshake = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(config).accept(connection)).await;
            let Ok(Ok(connection)) = handshake else {
                refused.inc();
                return;
            };
            let service = service_fn(move |request| {
                // A stream keeps the permit of its connection.
                let (requests, place) = (Arc::clone(&requests), Arc::clone(&place));
                async move { Ok::<_, std::convert::Infallible>(requests.serve(request, place).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HANDSHAKE_TIMEOUT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(connection), service)
                .with_upgrades();
            if let Some(Err(error)) = stopping.run_until_cancelled(connection).await {
                debug!(error = %chain(&error), "connection of a controller ended early");
            }
        }
    }
}

/// Configures a controller's connection.
///
/// The keep-alive ensures that a stream does not keep its permit forever when the controller's node has died, whether
/// the guest has output or not. The user timeout also ends a connection if the controller receives no data for that
/// long. The controller closes the connection of a client that receives no data earlier
/// (`controller/src/subresources/websocket.rs`).
///
/// # Errors
/// If the kernel refuses an option.
fn set_up(connection: &TcpStream) -> io::Result<()> {
    let keep_alive = KeepAlive::FOR_USERS;
    keep_alive.set_up(connection)?;
    SockRef::from(connection).set_tcp_user_timeout(Some(keep_alive.total()))
}
