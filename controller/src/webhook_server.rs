//! The port on which API servers ask about admissions.
//!
//! ```text
//!  API server ──TLS, HTTP/1.1──▶ WebhookServer ──▶ Reviews ──▶ Handlers: path ─▶ async fn(AdmissionRequest) -> AdmissionResponse
//!                                    │                 └ limits, deadline, panics, counting
//!                                    └ certificate of each handshake: ServedCertificate
//! ```
//!
//! When the process is told to stop, it says at once that it is not ready, and asks clients to come
//! back on another connection, which by then leads elsewhere. It goes on answering until nobody can
//! still be on the way to it ([`LEAVE`]), then finishes what was begun.

mod counted;
pub(crate) mod handlers;
mod reviews;

#[cfg(test)]
pub(crate) mod asking;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use drydock_runtime::{CancellationToken, Process, chain};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::{ServerConfig, crypto::ring, server::NoServerSessionStorage};
use thiserror::Error;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use crate::certificates::ServedCertificate;
use reviews::Reviews;

pub(crate) use counted::WebhookMetrics;
pub(crate) use handlers::Handlers;

/// How long after the order to stop requests are still taken: endpoints leave Services within a
/// second or two.
pub(crate) const LEAVE: Duration = Duration::from_secs(4);
/// How long an answer may take, less than webhook configurations give.
pub(crate) const DEADLINE: Duration = Duration::from_secs(9);
/// How long a handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection may be idle. API servers close theirs after 90 seconds: if this side did it
/// first, a request might be on its way already.
const IDLE: Duration = Duration::from_secs(120);
/// How many connections there may be at once.
const CONNECTIONS: usize = 1000;
/// The wait after a connection could not be accepted, as when no file descriptor is left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// The port cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum WebhookServerError {
    /// It is taken, or may not be.
    #[error("could not open the webhook port {address}")]
    Port {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("could not set up TLS")]
    Tls(#[from] rustls::Error),
}

/// The webhook port.
pub(crate) struct WebhookServer {
    /// Who answers.
    pub(crate) handlers: Handlers,
    /// What handshakes get.
    pub(crate) certificate: ServedCertificate,
    /// What is counted.
    pub(crate) metrics: WebhookMetrics,
    /// How long requests are taken after the order to stop.
    pub(crate) leave: Duration,
    /// How long an answer may take.
    pub(crate) deadline: Duration,
}

impl WebhookServer {
    /// Opens the port and serves it until the process has stopped. Port 0 takes any that is free; the
    /// one that was taken is returned. Before there is a certificate, handshakes fail.
    pub(crate) async fn serve(self, process: &Process, address: SocketAddr) -> Result<SocketAddr, WebhookServerError> {
        let failed = |source| WebhookServerError::Port { address, source };
        let tls = TlsAcceptor::from(Arc::new(tls(self.certificate)?));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let taken = listener.local_addr().map_err(failed)?;
        let closing = CancellationToken::new();
        let port = Port {
            tls,
            router: Reviews::new(self.handlers, self.deadline, self.metrics.clone(), process.stopping()).router(),
            metrics: self.metrics,
            closing: closing.clone(),
            process: process.clone(),
        };
        let (stopping, leave) = (process.stopping(), self.leave);
        process.spawn("leaving the webhook Service", async move {
            stopping.cancelled().await;
            tokio::time::sleep(leave).await;
            closing.cancel();
        });
        process.spawn("webhook port", port.accept(listener));
        info!(address = %taken, "webhook port open");
        Ok(taken)
    }
}

/// TLS as API servers speak it. Sessions are not resumed: each connection sees the certificate of
/// its time.
fn tls(certificate: ServedCertificate) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certificate));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

struct Port {
    tls: TlsAcceptor,
    router: Router,
    metrics: WebhookMetrics,
    closing: CancellationToken,
    process: Process,
}

impl Port {
    /// Takes connections until it is time to close.
    async fn accept(self, listener: TcpListener) {
        let free = Arc::new(Semaphore::new(CONNECTIONS));
        while let Some(accepted) = self.closing.run_until_cancelled(next(&listener, &free)).await {
            match accepted {
                Ok((stream, permit)) => self.process.spawn("webhook connection", self.converse(stream, permit)),
                Err(error) => {
                    warn!(error = %chain(&error), "a webhook connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    /// Answers on one connection until it is closed.
    fn converse(&self, stream: TcpStream, permit: OwnedSemaphorePermit) -> impl Future<Output = ()> + use<> {
        let handshake = self.tls.accept(stream);
        let service = TowerToHyperService::new(self.router.clone());
        let (metrics, closing) = (self.metrics.clone(), self.closing.clone());
        async move {
            let _permit = permit;
            let stream = match tokio::time::timeout(HANDSHAKE_WITHIN, handshake).await {
                Ok(Ok(stream)) => stream,
                // Port scanners and probes are many: no more than a number.
                Ok(Err(error)) => {
                    metrics.handshake_failures.inc();
                    debug!(error = %chain(&error), "a TLS handshake failed");
                    return;
                }
                Err(_) => {
                    metrics.handshake_failures.inc();
                    return;
                }
            };
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .serve_connection(TokioIo::new(stream), service);
            let mut connection = pin!(connection);
            let ended = match closing.run_until_cancelled(connection.as_mut()).await {
                Some(ended) => ended,
                None => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                debug!(error = %chain(&error), "a webhook connection ended early");
            }
        }
    }
}

/// The next connection, once there may be another.
async fn next(listener: &TcpListener, free: &Arc<Semaphore>) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(free).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Answers are small and awaited.
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}
