//! The port to which kube-apiserver forwards requests for KubeVirt's subresources API, which `virtctl` uses.
//!
//! ```text
//!  virtctl ──▶ kube-apiserver ──TLS, as front proxy──▶ SubresourcesServer ──▶ requests: path, user, right ──▶ calls
//!                                   └ APIService v1.subresources.kubevirt.io         │ SubjectAccessReview     │
//!                                                                                    └─▶ API server ◀──────────┤
//!                                                         commands, consoles ─▶ agent of the guest's node ◀─────┤
//!                                                         ports ─▶ the guest's pod ◀────────────────────────────┘
//! ```
//!
//! Every replica serves the port, and reads all objects from the API server, so the port depends on no leader and no
//! cache. The checks are in [`drydock_core::subresources`].

mod active_streams;
mod agents;
mod calls;
mod client_trust;
mod datagrams;
mod guest_endpoints;
mod metrics;
mod reply;
mod stream_end;
mod stream_sessions;
mod subresource_handler;
mod timeouts;
mod websocket;

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use drydock_runtime::{Process, WatchStarter, tcp::PortError, tls_port::TlsPort};
use kube::Client;

use crate::{certificates::ServedCertificate, configuration_in_force::ConfigurationInForce};
use agents::Agents;
use calls::ApiCalls;
use client_trust::ClientTrust;
use stream_sessions::StreamSessions;
use subresource_handler::SubresourceHandler;

pub(crate) use active_streams::ActiveStreams;
pub(crate) use metrics::SubresourceMetrics;
pub(crate) use timeouts::StreamTimeouts;

/// Time limit of a request. kube-apiserver aborts a request after 60 s.
const DEADLINE: Duration = Duration::from_secs(45);

/// The subresources port.
pub(crate) struct SubresourcesServer {
    /// Client of the API server.
    pub(crate) client: Client,
    /// The configuration in force.
    pub(crate) configuration: ConfigurationInForce,
    /// Certificate of the next handshake.
    pub(crate) certificate: ServedCertificate,
    /// Metrics of the port.
    pub(crate) metrics: SubresourceMetrics,
    /// Open streams and their metrics.
    pub(crate) streams: ActiveStreams,
    /// Time limits of streams.
    pub(crate) timeouts: StreamTimeouts,
    /// Version of Drydock.
    pub(crate) version: &'static str,
    /// Time for which requests are still accepted after the order to stop.
    pub(crate) leave: Duration,
}

impl SubresourcesServer {
    /// Opens the port and serves it until the process has stopped.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub(crate) async fn serve(
        self,
        process: &Process,
        watches: &WatchStarter,
        address: SocketAddr,
    ) -> Result<SocketAddr, PortError> {
        let agents = Agents::new(self.client.clone(), Arc::new(self.certificate.clone()), process);
        let trust = ClientTrust::start(&self.client, watches, self.certificate);
        let requests = SubresourceHandler {
            sessions: StreamSessions::new(self.client.clone(), self.streams, self.timeouts, process),
            calls: ApiCalls::new(self.client, self.configuration, agents),
            trust: trust.clone(),
            metrics: self.metrics.clone(),
            version: self.version,
            deadline: DEADLINE,
            stopping: process.stopping(),
        };
        let port = TlsPort {
            name: "subresources",
            config: Box::new(move || trust.config()),
            router: Router::new()
                .fallback(subresource_handler::serve)
                .with_state(requests.into()),
            handshake_failures: self.metrics.handshake_failures,
            leave: self.leave,
        };
        port.serve(process, address).await
    }
}
