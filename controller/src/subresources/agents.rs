//! The client of the agents' ports. The contract is in [`drydock_api::node_api`].

use std::{error::Error, io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{
        HeaderValue, Method, Request, Response, StatusCode,
        header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE},
    },
};
use drydock_api::{
    Hypervisor,
    hypervisor::AgentEndpoint,
    node_api::{self, NodeApiRefusal, RefusalReason, STREAM_PROTOCOL},
};
use drydock_runtime::{Process, chain, pinned_tls::Pinned, tcp::KeepAlive};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use kube::{Api, Client};
use rustls::{
    ClientConfig,
    client::{ResolvesClientCert, Resumption},
    version::TLS13,
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::websocket::Duplex;

/// Time limit for connecting to an agent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a report that is read, in bytes. Agents have the same limit for data of libvirt.
const LARGEST_REPORT: usize = 8 << 20;
/// Maximum size of a refusal that is read, in bytes.
const LARGEST_REFUSAL: usize = 16 << 10;

/// The client of all agents.
pub(super) struct Agents {
    hypervisors: Api<Hypervisor>,
    certificate: Arc<dyn ResolvesClientCert>,
    process: Process,
}

impl Agents {
    /// Creates the client. Agents authenticate this controller by its `certificate`.
    pub(super) fn new(client: Client, certificate: Arc<dyn ResolvesClientCert>, process: &Process) -> Self {
        Self {
            hypervisors: Api::all(client),
            certificate,
            process: process.clone(),
        }
    }

    /// Sends a command to a guest on a node, and waits until it has been executed.
    ///
    /// # Errors
    /// Returns the reason why the command was not executed.
    pub(super) async fn command(
        &self,
        node: &str,
        request: node_api::NodeApiRequest<'_>,
    ) -> Result<(), NodeApiRefusal> {
        let response = self.send(node, Method::PUT, &request.path()).await?;
        if response.status().is_success() {
            return Ok(());
        }
        Err(refusal(node, response).await)
    }

    /// Reads a report about a guest on a node. Returns its media type and its content.
    ///
    /// # Errors
    /// Returns the reason why there is no report.
    pub(super) async fn report(
        &self,
        node: &str,
        request: node_api::NodeApiRequest<'_>,
    ) -> Result<(HeaderValue, Bytes), NodeApiRefusal> {
        let response = self.send(node, Method::GET, &request.path()).await?;
        if !response.status().is_success() {
            return Err(refusal(node, response).await);
        }
        let media_type = response.headers().get(CONTENT_TYPE).cloned();
        let media_type = media_type.unwrap_or(HeaderValue::from_static("application/octet-stream"));
        let content = to_bytes(Body::new(response.into_body()), LARGEST_REPORT).await;
        let content = content.map_err(|error| unreachable(node, &error))?;
        Ok((media_type, content))
    }

    /// Opens a stream of a guest on a node.
    ///
    /// # Errors
    /// Returns the reason why the stream cannot be opened.
    pub(super) async fn stream(
        &self,
        node: &str,
        request: node_api::NodeApiRequest<'_>,
    ) -> Result<Box<dyn Duplex>, NodeApiRefusal> {
        let response = self.send(node, Method::GET, &request.path()).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(node, response).await);
        }
        let upgraded = hyper::upgrade::on(response).await;
        let upgraded = upgraded.map_err(|error| unreachable(node, &error))?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }

    async fn send(&self, node: &str, method: Method, path: &str) -> Result<Response<Incoming>, NodeApiRefusal> {
        let endpoint = self.endpoint(node).await?;
        let connection = timeout(CONNECT_TIMEOUT, self.connect(&endpoint)).await;
        let connection = connection
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| unreachable(node, &error))?;
        let (mut sender, connection) = http1::handshake::<_, Body>(TokioIo::new(connection))
            .await
            .map_err(|error| unreachable(node, &error))?;
        self.process.spawn("connection to an agent", async move {
            // An error is ignored, because the request fails with it as well.
            let _ = connection.with_upgrades().await;
        });
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "agent")
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, STREAM_PROTOCOL)
            .body(Body::empty())
            .map_err(|error| unreachable(node, &error))?;
        sender
            .send_request(request)
            .await
            .map_err(|error| unreachable(node, &error))
    }

    /// Reads the address of a node's agent from the API server.
    async fn endpoint(&self, node: &str) -> Result<AgentEndpoint, NodeApiRefusal> {
        let found = self.hypervisors.get_opt(node).await;
        let found = found.map_err(|error| unreachable(node, &error))?;
        let endpoint = found.and_then(|hypervisor| hypervisor.status?.agent_endpoint);
        endpoint.ok_or_else(|| NodeApiRefusal {
            reason: RefusalReason::Failed,
            message: format!("the agent of node {node} has not reported its address"),
        })
    }

    async fn connect(&self, endpoint: &AgentEndpoint) -> io::Result<TlsStream<TcpStream>> {
        let fingerprint = endpoint.certificate_fingerprint.parse();
        let (provider, pinned) = Pinned::new(fingerprint.map_err(io::Error::other)?);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_cert_resolver(Arc::clone(&self.certificate));
        config.resumption = Resumption::disabled();
        let stream = KeepAlive::FOR_USERS.connect(&endpoint.address).await?;
        // The name in the agent's certificate is not checked.
        let name = "agent.drydock.dev".try_into().map_err(io::Error::other)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

fn unreachable(node: &str, error: &(dyn Error + 'static)) -> NodeApiRefusal {
    NodeApiRefusal {
        reason: RefusalReason::Failed,
        message: format!("the agent of node {node} cannot be reached: {}", chain(error)),
    }
}

/// Reads the reason why an agent has refused a request.
async fn refusal(node: &str, response: Response<Incoming>) -> NodeApiRefusal {
    let code = response.status();
    let body = to_bytes(Body::new(response.into_body()), LARGEST_REFUSAL).await;
    let read = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
    read.unwrap_or_else(|| NodeApiRefusal {
        reason: RefusalReason::Failed,
        message: format!("the agent of node {node} returned HTTP status {code}"),
    })
}
