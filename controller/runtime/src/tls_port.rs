//! A TLS port, whose connections are served by one router.
//!
//! ```text
//!  client ──TLS, HTTP/1.1──▶ TlsPort ──▶ Router, with the client's certificate as an extension: PeerCertificate
//!                               └ certificate and trust of each handshake: config(), ServedCertificate
//! ```
//!
//! When the process is stopped, the port continues to accept connections until no client can still be connecting to it,
//! and then finishes the requests in progress.

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::counter::Counter;
use rustls::{
    ConfigBuilder, ServerConfig, SignatureScheme, WantsVerifier,
    client::ResolvesClientCert,
    crypto::ring,
    pki_types::CertificateDer,
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use crate::{
    CancellationToken, Process, ReadyHandle, chain,
    tcp::{self, PortError},
};

/// Time limit of a handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// Maximum idle time of a connection.
///
/// API servers close their connections after 90 seconds. If this side closed a connection first, a request might
/// already have been sent over it.
const IDLE: Duration = Duration::from_secs(120);
/// Maximum number of simultaneous connections.
const CONNECTIONS: usize = 1000;
/// Delay after a connection could not be accepted, for example because no file descriptor is left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// The certificate of the client of a connection; `None` if the client has sent none. The verifier of the port has
/// accepted it.
#[derive(Clone, Debug)]
pub struct PeerCertificate(pub Option<CertificateDer<'static>>);

/// The certificate of this process in TLS handshakes, as server and as client; none at first.
///
/// The certificate can be replaced while connections continue. Clones share one certificate.
#[derive(Clone, Debug)]
pub struct ServedCertificate(Arc<PortSettings>);

#[derive(Debug)]
struct PortSettings {
    certificate: RwLock<Option<Arc<CertifiedKey>>>,
    ready: Mutex<Option<ReadyHandle>>,
}

impl ServedCertificate {
    /// Creates an instance without a certificate. `ready` is released when the first certificate is set.
    pub fn new(ready: ReadyHandle) -> Self {
        Self(Arc::new(PortSettings {
            certificate: RwLock::new(None),
            ready: Mutex::new(Some(ready)),
        }))
    }

    /// Uses `certificate` in handshakes from now on.
    pub fn replace(&self, certificate: Arc<CertifiedKey>) {
        *self.0.certificate.write() = Some(certificate);
        if let Some(ready) = self.0.ready.lock().take() {
            ready.release();
        }
    }

    /// Returns the certificate of new handshakes.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        let certificate = self.0.certificate.read();
        certificate.clone()
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

/// The controller connects to agents as a client.
impl ResolvesClientCert for ServedCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The parameters of a TLS port.
pub struct TlsPort {
    /// Name of the port in logs.
    pub name: &'static str,
    /// The function that returns the configuration of the next handshake.
    pub config: Box<dyn Fn() -> Arc<ServerConfig> + Send + Sync>,
    /// The router that serves requests.
    pub router: Router,
    /// Counter of handshakes that failed.
    pub handshake_failures: Counter,
    /// Time for which requests are still accepted after the process began to stop.
    pub leave: Duration,
}

/// Returns the beginning of a configuration for a [`TlsPort`], with TLS 1.2 and 1.3.
///
/// # Errors
/// If rustls does not know its own versions of TLS.
pub fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, rustls::Error> {
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions()
}

/// Completes the configuration.
///
/// Sessions are not resumed, so each connection uses the certificate of its own handshake.
pub fn finish(mut config: ServerConfig) -> ServerConfig {
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

impl TlsPort {
    /// Opens the port and serves it until the process has stopped.
    ///
    /// Port 0 selects a free port. Returns the address.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub async fn serve(self, process: &Process, address: SocketAddr) -> Result<SocketAddr, PortError> {
        let name = self.name;
        let (listener, taken) = tcp::listen(&format!("{name} port"), address).await?;
        let closing = CancellationToken::new();
        let (stopping, leave, close) = (process.stopping(), self.leave, closing.clone());
        process.spawn("closing a TLS port", async move {
            stopping.cancelled().await;
            tokio::time::sleep(leave).await;
            close.cancel();
        });
        let connections = Connections {
            port: self,
            closing,
            process: process.clone(),
        };
        process.spawn("TLS port", connections.accept(listener));
        info!(address = %taken, "{name} port open");
        Ok(taken)
    }
}

struct Connections {
    port: TlsPort,
    closing: CancellationToken,
    process: Process,
}

impl Connections {
    /// Accepts connections until the port is closed.
    async fn accept(self, listener: TcpListener) {
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        while let Some(accepted) = self.closing.run_until_cancelled(next(&listener, &free)).await {
            match accepted {
                Ok((stream, permit)) => self.process.spawn("TLS connection", self.converse(stream, permit)),
                Err(error) => {
                    warn!(port = self.port.name, error = %chain(&error), "could not accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    /// Serves one connection until it is closed.
    fn converse(&self, stream: TcpStream, permit: OwnedSemaphorePermit) -> impl Future<Output = ()> + use<> {
        let handshake = TlsAcceptor::from((self.port.config)()).accept(stream);
        let (name, router) = (self.port.name, self.port.router.clone());
        let (failures, closing) = (self.port.handshake_failures.clone(), self.closing.clone());
        async move {
            let _permit = permit;
            let stream = match tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await {
                Ok(Ok(stream)) => stream,
                // Port scanners and probes are frequent, so such failures are only counted.
                Ok(Err(error)) => {
                    failures.inc();
                    debug!(port = name, error = %chain(&error), "TLS handshake failed");
                    return;
                }
                Err(_) => {
                    failures.inc();
                    return;
                }
            };
            let certificates = stream.get_ref().1.peer_certificates();
            let peer = certificates
                .and_then(|all| all.first())
                .map(|first| first.clone().into_owned());
            let service = TowerToHyperService::new(router.layer(Extension(PeerCertificate(peer))));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            let mut connection = pin!(connection);
            let ended = match closing.run_until_cancelled(connection.as_mut()).await {
                Some(ended) => ended,
                None => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                debug!(port = name, error = %chain(&error), "connection ended early");
            }
        }
    }
}

/// Returns the next connection, once the number of connections permits another one.
async fn next(listener: &TcpListener, free: &Arc<Semaphore>) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(free).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Responses are small, and their clients wait for them: the kernel must not delay them.
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}
