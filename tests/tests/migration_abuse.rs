//! Attackers with access to a tunnel's port during a migration are refused, counted and logged, and do not affect the
//! guest.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use drydock_api::kubevirt::{migration::MigrationPhase, names::conditions as types};
use drydock_tests::{
    Cluster, agent,
    guests::{Collector, instance, only, without_a_gap},
    migration_summary::summary,
    migrations::node_of,
    watching::until_some,
};
use kube::ResourceExt;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    version::TLS13,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// The migration is slow enough for all attempts of the attackers.
const HELD: &str = "bandwidthPerMigration: 2Mi\ncompletionTimeoutPerGiB: 0\nprogressTimeout: 0";
/// Time limit within which the tunnel closes any invalid connection.
///
/// A tunnel waits five seconds for the peer's identity.
const HANGS_UP_WITHIN: Duration = Duration::from_secs(60);

/// Accepts any target certificate, since this test need not protect its data.
#[derive(Debug)]
struct AnyTarget;

impl ServerCertVerifier for AnyTarget {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the TLS configuration of an attacker that knows the protocol and the name of a migration.
///
/// The attacker has its own key, and a certificate with the same content as the genuine one.
fn forger(name: &str) -> Result<Arc<ClientConfig>> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new([name.to_owned()])?.self_signed(&key)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyTarget))
        .with_client_auth_cert(vec![certificate.der().clone()], key)?;
    config.alpn_protocols = vec![b"drydock-migration/1".to_vec()];
    Ok(Arc::new(config))
}

/// Performs a TLS handshake, and sends the header of a control channel to the session with this name.
///
/// Returns the number of bytes that the tunnel sent in response.
async fn handshake(port: SocketAddr, name: &str) -> Result<usize> {
    let connection = TcpStream::connect(port).await?;
    let server = ServerName::try_from(name.to_owned())?;
    let Ok(mut stream) = TlsConnector::from(forger(name)?).connect(server, connection).await else {
        return Ok(0);
    };
    // A TLS 1.3 client may send data before it learns that the server has refused it.
    let _ = stream.write_all(b"dryd\0\0\0\0{\"ping\":{}}\n").await;
    let mut received = Vec::new();
    let _ = timeout(HANGS_UP_WITHIN, stream.read_to_end(&mut received))
        .await
        .context("the tunnel does not close the connection")?;
    Ok(received.len())
}

/// Sends bytes, and waits until the connection is closed.
async fn send(port: SocketAddr, bytes: &[u8]) -> Result<()> {
    let mut connection = TcpStream::connect(port).await?;
    connection.write_all(bytes).await?;
    let mut received = Vec::new();
    let _ = timeout(HANGS_UP_WITHIN, connection.read_to_end(&mut received))
        .await
        .context("the tunnel does not close the connection")?;
    Ok(())
}

/// Returns the first bytes that a genuine client sends, for a replay.
fn client_hello(name: &str) -> Result<Vec<u8>> {
    let mut client = ClientConnection::new(forger(name)?, ServerName::try_from(name.to_owned())?)?;
    let mut hello = Vec::new();
    client.write_tls(&mut hello)?;
    Ok(hello)
}

/// Returns the number of a tunnel's refusals so far, by reason.
async fn refusals(cluster: &Cluster, pod: &str) -> Result<BTreeMap<String, u64>> {
    let metrics = cluster.tunnel_admin(pod, "metrics").await?;
    let found = metrics.lines().filter_map(|line| {
        let (reason, count) = line
            .strip_prefix("drydock_tunnel_refusals_total{reason=\"")?
            .split_once("\"} ")?;
        Some((reason.to_owned(), count.trim().parse().ok()?))
    });
    Ok(found.collect())
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn attackers_at_the_tunnel_port_do_not_reach_the_guest() -> Result<()> {
    let cluster = Cluster::without_guests().await?;
    cluster.limit_migrations(HELD).await?;
    let collector = Collector::start(&cluster).await?;
    let name = "quarry";
    let control = collector.ticking("50ms");
    cluster.apply(&instance(name, &control)).await?;
    collector.first_boot().await?;
    let from = node_of(&cluster.until_vm_condition(name, types::LIVE_MIGRATABLE, "True").await?)?;
    let migration = cluster.migrate(name).await?;
    let moving = cluster.until_migration(&migration, MigrationPhase::Running).await?;
    let uid = moving.uid().context("a UID")?;
    let target = moving.status.and_then(|status| status.target).context("a target")?;
    let port: SocketAddr = target.address.context("an address")?.parse()?;
    let tunnel = cluster.agent_pod(&target.node.context("a node")?).await?;
    let pod = tunnel.name_any();
    let before = refusals(&cluster, &pod).await?;
    let session = format!("{uid}.migration.drydock.dev");
    let other = "00000000-0000-4000-8000-000000000000.migration.drydock.dev";

    // The attacker's own key with the genuine name, twice, like a second client; then a name without a session, and an
    // invalid name.
    for (to, times) in [(session.as_str(), 2), (other, 1), ("example.com", 1)] {
        for _ in 0..times {
            assert_eq!(handshake(port, to).await?, 0, "{to} got a response");
        }
    }
    // Data that is not TLS, and the replay of a genuine handshake, which the attacker cannot complete.
    send(port, b"GET / HTTP/1.1\r\n\r\n").await?;
    send(port, &[0xff; 4096]).await?;
    let hello = client_hello(&session)?;
    send(port, &hello).await?;
    send(port, &hello[..hello.len() / 2]).await?;
    // Idle connections, more than the tunnel permits from one address.
    let unresponsive = (0..40).map(|_| send(port, b""));
    for ended in futures::future::join_all(unresponsive).await {
        // The tunnel may close excess connections immediately.
        let _ = ended;
    }
    let more = until_some("all refusals to be counted", || async {
        let now = refusals(&cluster, &pod).await?;
        let more = |reason: &str| now.get(reason).copied().unwrap_or(0) - before.get(reason).copied().unwrap_or(0);
        let all = more("WrongCertificate") == 2
            && more("UnknownSession") == 2
            && more("HandshakeFailed") >= 2
            && more("TooSlow") >= 16
            && more("TooManyConnections") >= 1;
        Ok(all.then_some(now))
    })
    .await?;
    println!("refused: {more:?}");
    let log = cluster.kubectl(&["-n", "drydock", "logs", &pod, "-c", "tunnel"])?;
    for reason in ["WrongCertificate", "UnknownSession", "HandshakeFailed", "TooSlow"] {
        let logged = log
            .lines()
            .any(|line| line.contains("a connection was refused") && line.contains(reason));
        ensure!(logged, "{reason} is not in the log of {pod}");
    }
    // The migration has been in progress all the time.
    let moving = cluster.migrations().get(&migration).await?;
    assert_eq!(moving.phase(), Some(MigrationPhase::Running), "{}", summary(&moving));
    let (_, after) = cluster.until_migrated(&migration).await?;
    ensure!(node_of(&after)? != from, "the guest is still on {from}");
    cluster.until_one_pod(name).await?;
    let same = cluster.agent_pod(&node_of(&after)?).await?;
    assert_eq!(
        (same.name_any(), agent::restarts(&same)),
        (pod, agent::restarts(&tunnel))
    );
    without_a_gap(&only(collector.stop().await)?)?;
    cluster.reset().await?;
    cluster.no_guests().await
}
