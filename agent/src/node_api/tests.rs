//! Tests of the port over real TLS, with a guest's socket in a temporary folder.

use std::{fs, sync::Arc};

use drydock_api::{
    facts::VirtType,
    kubevirt::VirtualMachineInstance,
    launcher::{CONSOLE_CLIENT_SOCKET, RUN_VOLUME},
    node_api::{GuestCommand, GuestStream, NodeApiRefusal, NodeApiRequest, RefusalReason, STREAM_PROTOCOL},
};
use drydock_core::mask::MaskHere;
use drydock_runtime::{
    fake::api_server,
    pinned_tls::{CertificateFingerprint, Pinned},
};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, pki_types::PrivateKeyDer, version::TLS13};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixListener,
    sync::watch,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::guests::{Host, VmiState};

/// Certificate authority of controllers.
struct Authority {
    bundle: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let bundle = params.self_signed(&key).unwrap().pem().into_bytes();
        Self {
            bundle,
            issuer: Issuer::new(params, key),
        }
    }

    fn client(&self, agent: CertificateFingerprint) -> Arc<ClientConfig> {
        let mut params = CertificateParams::new(["controller".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key: PrivateKeyDer<'static> = key.serialize_der().try_into().unwrap();
        let (provider, pinned) = Pinned::new(agent);
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        Arc::new(config)
    }
}

struct Setup {
    authority: Authority,
    endpoint: AgentEndpoint,
    trust: ControllerTrust,
    console: UnixListener,
    guests: GuestDirectory,
    seen: watch::Sender<VmiState>,
    process: Process,
    _kubelet: TempDir,
}

fn seen_on(node: &str) -> VmiState {
    let instance: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "0-1"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "nodeName": node},
    }))
    .unwrap();
    let host = Host {
        virt_type: VirtType::Qemu,
        architecture: "x86_64".into(),
        mask: MaskHere::default(),
        features: std::collections::BTreeSet::new(),
        host_model_known: false,
        host_passthrough_migratable: None,
        address_bits: None,
        processor: None,
    };
    VmiState {
        instance: Arc::new(instance),
        pod_uid: Some("00-11".into()),
        pod: None,
        ending: None,
        host: Arc::new(host),
        node_deleted: None,
    }
}

async fn setup() -> Setup {
    let kubelet = TempDir::new().unwrap();
    let run = kubelet
        .path()
        .join("pods/00-11/volumes/kubernetes.io~empty-dir")
        .join(RUN_VOLUME);
    fs::create_dir_all(&run).unwrap();
    let console = UnixListener::bind(run.join(CONSOLE_CLIENT_SOCKET)).unwrap();
    let (process, guests) = (Process::new(), GuestDirectory::default());
    let (seen, receiver) = watch::channel(seen_on("here"));
    drop(guests.add_for_test("0-1", receiver));
    let authority = Authority::new();
    let trust = ControllerTrust::new().unwrap();
    trust.follow(&authority.bundle);
    let node_api = NodeApi {
        client: api_server().0,
        guests: guests.clone(),
        kubelet: kubelet.path().to_owned(),
        node: "here".into(),
        metrics: NodeApiMetrics::default(),
    };
    let endpoint = node_api
        .serve_with(&process, trust.clone(), "127.0.0.1".parse().unwrap(), 0)
        .await
        .unwrap();
    Setup {
        authority,
        endpoint,
        trust,
        console,
        guests,
        seen,
        process,
        _kubelet: kubelet,
    }
}

impl Setup {
    async fn connect(&self, config: Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(&self.endpoint.address).await?;
        TlsConnector::from(config)
            .connect("agent".try_into().unwrap(), stream)
            .await
    }

    fn fingerprint(&self) -> CertificateFingerprint {
        self.endpoint.certificate_fingerprint.parse().unwrap()
    }

    /// Sends a request. Returns the status code, the body, and the connection.
    async fn send(&self, method: &str, path: &str) -> (u16, String, TlsStream<TcpStream>) {
        let mut stream = self.connect(self.authority.client(self.fingerprint())).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: upgrade\r\nUpgrade: {STREAM_PROTOCOL}\r\n\
             Content-Length: 0\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&read).to_lowercase();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |length| length.trim().parse().unwrap()) {
                    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
                    let body = String::from_utf8_lossy(&read[read.len() - body.len()..]).into_owned();
                    return (code, body, stream);
                }
            }
            assert!(stream.read_buf(&mut read).await.unwrap() > 0, "{text}");
        }
    }

    async fn refusal(&self, method: &str, path: &str) -> (u16, RefusalReason) {
        let (code, body, _) = self.send(method, path).await;
        let refusal: NodeApiRefusal = serde_json::from_str(&body).unwrap();
        (code, refusal.reason)
    }
}

fn console() -> String {
    NodeApiRequest::Stream("0-1", GuestStream::Console, false).path()
}

async fn read(stream: &mut (impl AsyncReadExt + Unpin), length: usize) -> String {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Waits until the other side has closed the connection.
async fn ended(stream: &mut (impl AsyncReadExt + Unpin)) {
    let mut buffer = [0; 64];
    while stream.read(&mut buffer).await.unwrap_or(0) > 0 {}
}

#[tokio::test]
async fn console_carries_bytes_in_both_directions_until_a_side_ends() {
    let setup = setup().await;
    let (code, _, mut user) = setup.send("GET", &console()).await;
    assert_eq!(code, 101);
    let (mut guest, _) = setup.console.accept().await.unwrap();
    guest.write_all(b"login: ").await.unwrap();
    assert_eq!(read(&mut user, 7).await, "login: ");
    user.write_all(b"root\n").await.unwrap();
    assert_eq!(read(&mut guest, 5).await, "root\n");
    drop(guest);
    ended(&mut user).await;
    let (code, _, user) = setup.send("GET", &console()).await;
    assert_eq!(code, 101);
    let (mut guest, _) = setup.console.accept().await.unwrap();
    drop(user);
    ended(&mut guest).await;
}

#[tokio::test]
async fn next_console_replaces_the_first_unless_set_to_preserve() {
    let setup = setup().await;
    let (_, _, mut first) = setup.send("GET", &console()).await;
    let (mut guest, _) = setup.console.accept().await.unwrap();
    let preserving = NodeApiRequest::Stream("0-1", GuestStream::Console, true).path();
    assert_eq!(setup.refusal("GET", &preserving).await, (409, RefusalReason::InUse));
    guest.write_all(b"x").await.unwrap();
    assert_eq!(read(&mut first, 1).await, "x");
    let (code, _, mut second) = setup.send("GET", &console()).await;
    assert_eq!(code, 101);
    ended(&mut first).await;
    ended(&mut guest).await;
    let (mut guest, _) = setup.console.accept().await.unwrap();
    guest.write_all(b"y").await.unwrap();
    assert_eq!(read(&mut second, 1).await, "y");
}

#[tokio::test]
async fn streams_end_when_the_process_stops() {
    let setup = setup().await;
    let (_, _, mut user) = setup.send("GET", &console()).await;
    setup.process.stop();
    ended(&mut user).await;
}

#[tokio::test]
async fn requests_that_cannot_be_served_are_refused_with_a_reason() {
    let setup = setup().await;
    let vnc = NodeApiRequest::Stream("0-1", GuestStream::Vnc, false).path();
    let (code, body, _) = setup.send("GET", &vnc).await;
    let refusal: NodeApiRefusal = serde_json::from_str(&body).unwrap();
    assert_eq!((code, refusal.reason), (500, RefusalReason::Failed), "{body}");
    // The failure has released the stream.
    assert_eq!(setup.refusal("GET", &vnc).await, (500, RefusalReason::Failed));
    let other = NodeApiRequest::Stream("0-2", GuestStream::Console, false).path();
    assert_eq!(setup.refusal("GET", &other).await, (404, RefusalReason::NotHere));
    // The receiver of the directory's requests was dropped, as when the guest's task has ended.
    let pause = NodeApiRequest::Command("0-1", GuestCommand::Pause).path();
    assert_eq!(setup.refusal("PUT", &pause).await, (404, RefusalReason::NotHere));
    setup.seen.send_replace(seen_on("there"));
    assert_eq!(setup.refusal("GET", &console()).await, (404, RefusalReason::NotHere));
    for (method, path, code) in [
        ("GET", pause.as_str(), 405),
        ("PUT", &console(), 405),
        ("GET", "/metrics", 404),
    ] {
        assert_eq!(setup.send(method, path).await.0, code, "{method} {path}");
    }
    setup.guests.remove_for_test("0-1");
    assert_eq!(setup.refusal("GET", &console()).await, (404, RefusalReason::NotHere));
}

#[tokio::test]
async fn node_api_serves_controllers_of_the_bundle_only() {
    let setup = setup().await;
    let works = async |config| {
        let Ok(mut stream) = setup.connect(config).await else {
            return false;
        };
        // With TLS 1.3 a client learns from the first read whether its certificate was accepted.
        let request = b"GET /x HTTP/1.1\r\nHost: agent\r\n\r\n";
        stream.write_all(request).await.is_ok() && stream.read(&mut [0; 16]).await.is_ok_and(|length| length > 0)
    };
    let fingerprint = setup.fingerprint();
    assert!(works(setup.authority.client(fingerprint)).await);
    assert!(!works(Authority::new().client(fingerprint)).await);
    let other = CertificateFingerprint::of(&b"another"[..].into());
    assert!(!works(setup.authority.client(other)).await);
    let next = Authority::new();
    setup
        .trust
        .follow(&[next.bundle.clone(), setup.authority.bundle.clone()].concat());
    assert!(works(next.client(fingerprint)).await);
    assert!(works(setup.authority.client(fingerprint)).await);
    setup
        .trust
        .follow(b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n");
    assert!(!works(next.client(fingerprint)).await);
    setup.trust.follow(b"");
    assert!(!works(setup.authority.client(fingerprint)).await);
}

#[tokio::test]
async fn connection_of_a_controller_that_has_gone_ends() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (_controller, accepted) = tokio::try_join!(connecting, listener.accept()).unwrap();
    set_up(&accepted.0).unwrap();
    let socket = SockRef::from(&accepted.0);
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(150)));
}
