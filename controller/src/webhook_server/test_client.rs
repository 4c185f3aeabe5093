//! A test client that sends reviews like an API server, with its own clock and CA bundle.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    time_provider::TimeProvider,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

#[derive(Debug)]
struct Fixed(Timestamp);

impl TimeProvider for Fixed {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// A connection that is kept open between requests.
#[derive(Debug)]
pub(crate) struct TestConnection {
    stream: TlsStream<TcpStream>,
    /// Certificate that the server presented.
    pub(crate) certificate: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    /// Status line and headers in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl TestResponse {
    /// Returns whether the server requests a new connection for the next request.
    pub(crate) fn is_last(&self) -> bool {
        self.head.contains("connection: close")
    }

    /// Returns the review in the body.
    pub(crate) fn review(&self) -> Result<Value> {
        ensure!(self.status == 200, "{} {}", self.status, self.body);
        Ok(serde_json::from_str(&self.body)?)
    }
}

impl TestConnection {
    /// Connects, trusting the certificates in `bundle` at the time `now`.
    pub(crate) async fn open(address: SocketAddr, name: &str, bundle: &[u8], now: Timestamp) -> Result<Self> {
        Self::open_as(None, address, name, bundle, now).await
    }

    /// Connects like [`Self::open`], with a client certificate.
    pub(crate) async fn open_as(
        identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
        address: SocketAddr,
        name: &str,
        bundle: &[u8],
        now: Timestamp,
    ) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle) {
            roots.add(certificate?)?;
        }
        let config = ClientConfig::builder_with_details(Arc::new(ring::default_provider()), Arc::new(Fixed(now)))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match identity {
            Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key)?,
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name.to_owned().try_into()?, stream).await?;
        let certificates = stream.get_ref().1.peer_certificates().context("no certificate")?;
        let certificate = certificates.first().context("no certificate")?.to_vec();
        Ok(Self { stream, certificate })
    }

    /// Sends a request and reads the response.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<TestResponse> {
        let length = body.len();
        let head = format!(
            "{method} {path}?timeout=10s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        self.send_raw(&[head.as_bytes(), body].concat()).await?;
        self.response().await
    }

    /// Sends these bytes.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// Reads a response.
    pub(crate) async fn response(&mut self) -> Result<TestResponse> {
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_lowercase();
                let field = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= field.unwrap_or("0").trim().parse()? {
                    let status = head.split(' ').nth(1).context("no status")?.parse()?;
                    let body = body.to_owned();
                    return Ok(TestResponse { status, head, body });
                }
            }
            let more = self.stream.read_buf(&mut read).await?;
            ensure!(more > 0, "the connection ended after {text:?}");
        }
    }
}

/// Returns a review of a VirtualMachine that is being created.
pub(crate) fn review(uid: &str) -> Value {
    let version = json!({"group": "kubevirt.io", "version": "v1"});
    let (mut kind, mut resource) = (version.clone(), version);
    kind["kind"] = json!("VirtualMachine");
    resource["resource"] = json!("virtualmachines");
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": "vm",
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "somebody", "groups": ["system:authenticated"]},
            "object": {
                "apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachine",
                "metadata": {"name": "vm", "namespace": "default"},
                "spec": {"runStrategy": "Always"},
            },
            "oldObject": null,
            "dryRun": true,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    })
}
