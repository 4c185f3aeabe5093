//! The port for admission reviews by API servers.
//!
//! ```text
//!  API server ──TLS, HTTP/1.1──▶ WebhookServer ──▶ Reviews ──▶ Handlers: path ─▶ async fn(AdmissionRequest) -> AdmissionResponse
//!                                    │                 └ limits, deadline, panics, counting
//!                                    └ TlsPort, with the certificate of each handshake: ServedCertificate
//! ```
//!
//! When the process is stopped, it reports at once that it is not ready, and requests clients to reconnect. A new
//! connection reaches another replica. The process continues to respond until no new client can reach it ([`LEAVE`]).

pub(crate) mod handlers;
mod metrics;
mod reviews;

#[cfg(test)]
pub(crate) mod test_client;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use drydock_runtime::{
    Process,
    tcp::PortError,
    tls_port::{self, TlsPort},
};
use thiserror::Error;

use crate::certificates::ServedCertificate;
use reviews::Reviews;

pub(crate) use handlers::Handlers;
pub(crate) use metrics::WebhookMetrics;

/// Time for which requests are still accepted after the order to stop. Services remove endpoints within a second or
/// two.
pub(crate) const LEAVE: Duration = Duration::from_secs(4);
/// Time limit of a response unless its handler has a deadline of its own. It is shorter than the 10 s that API servers
/// wait according to the webhook configurations.
pub(crate) const DEADLINE: Duration = Duration::from_secs(9);

/// Reason why the port cannot be opened.
#[derive(Debug, Error)]
pub(crate) enum WebhookServerError {
    /// The address is in use or not allowed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// TLS cannot be set up.
    #[error("could not set up TLS")]
    Tls(#[from] rustls::Error),
}

/// The webhook port.
pub(crate) struct WebhookServer {
    /// Handlers of the reviews.
    pub(crate) handlers: Handlers,
    /// Certificate for handshakes.
    pub(crate) certificate: ServedCertificate,
    /// Metrics of the port.
    pub(crate) metrics: WebhookMetrics,
    /// Time for which requests are still accepted after the order to stop.
    pub(crate) leave: Duration,
    /// Time limit of a response, unless its handler has a deadline of its own.
    pub(crate) deadline: Duration,
}

impl WebhookServer {
    /// Opens the port and serves it until the process has stopped. Port 0 uses any free port. Returns the address.
    /// Handshakes fail until there is a certificate.
    pub(crate) async fn serve(self, process: &Process, address: SocketAddr) -> Result<SocketAddr, WebhookServerError> {
        let config = tls_port::builder()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.certificate));
        let config = Arc::new(tls_port::finish(config));
        let port = TlsPort {
            name: "webhook",
            config: Box::new(move || Arc::clone(&config)),
            router: Reviews::new(self.handlers, self.deadline, self.metrics.clone(), process.stopping()).router(),
            handshake_failures: self.metrics.handshake_failures,
            leave: self.leave,
        };
        Ok(port.serve(process, address).await?)
    }
}
