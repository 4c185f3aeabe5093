//! The source's side of a session. It listens in the pod, and dials the target for streams and for the control channel.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use drydock_host::pod_folder::PodListener;
use drydock_runtime::{Backoff, Process, chain, clock::Instant};
use futures::future::BoxFuture;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UnixListener, UnixStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tracing::{Instrument, debug, info, warn};

use super::{
    control::{self, ChannelEnd},
    identity,
    last_call::{GuestLeft, NotUnderstood},
    local::{LIBVIRT_NOT_UNDERSTOOD, ReplyProgress},
    session::TunnelSession,
    stream_header::StreamContent,
    streams::{self, Proving},
    tunnel_refusal::{RefusalLog, StreamRefusal},
};

use drydock_core::migration::hand_over::Proof;

/// Timeout of one attempt to dial the target, including the handshake.
const DIAL_WITHIN: Duration = Duration::from_secs(10);
/// Maximum time that a connection from the pod waits for the target.
const REACH_WITHIN: Duration = Duration::from_secs(20);
/// First pause before the target is dialled again. The pause doubles with each attempt.
const AGAIN: Duration = Duration::from_millis(50);
/// Maximum pause before the target is dialled again.
const AGAIN_AT_MOST: Duration = Duration::from_secs(3);

/// Carries connections to the session's sockets to the target at `address`, until the session is closed.
///
/// # Errors
/// If listening on the sockets fails.
pub(super) fn start(
    session: &Arc<TunnelSession>,
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    process: &Process,
) -> io::Result<()> {
    let target = DialTarget {
        address,
        tls: TlsConnector::from(Arc::clone(tls)),
    };
    let sockets = std::mem::take(&mut *session.sockets.lock());
    for (stream, socket) in sockets {
        let listener = UnixListener::from_std(socket.listener()?)?;
        let (session, target, of) = (Arc::clone(session), target.clone(), process.clone());
        let span = session.span();
        let accepting = async move {
            accept(&session, stream, &listener, &target, &of).await;
            drop::<PodListener>(socket);
        };
        process.spawn("socket in a pod", accepting.instrument(span));
    }
    let (session, span) = (Arc::clone(session), session.span());
    let keeping = async move { keep_control(&session, &target).await };
    process.spawn("control channel", keeping.instrument(span));
    Ok(())
}

/// The destination of a session's streams.
#[derive(Clone)]
struct DialTarget {
    address: SocketAddr,
    tls: TlsConnector,
}

impl DialTarget {
    /// Connects, authenticates, and sends the header of the stream.
    async fn dial(&self, migration: &str, stream: StreamContent) -> io::Result<TlsStream<TcpStream>> {
        let dialling = async {
            let connection = TcpStream::connect(self.address).await?;
            streams::set_up(&connection)?;
            let name = ServerName::try_from(identity::server_name(migration)).map_err(io::Error::other)?;
            let mut connection = self.tls.connect(name, connection).await?;
            connection.write_all(&stream.header()).await?;
            connection.flush().await?;
            Ok(connection)
        };
        let dialled = timeout(DIAL_WITHIN, dialling).await;
        dialled.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Dials like [`dial`](Self::dial), but retries for a limited time. The connection in the pod waits in the
    /// meantime.
    async fn reach(&self, migration: &str, stream: StreamContent) -> io::Result<TlsStream<TcpStream>> {
        let until = Instant::now() + REACH_WITHIN;
        let mut pause = Backoff::new(AGAIN, AGAIN_AT_MOST);
        loop {
            match self.dial(migration, stream).await {
                Err(error) if Instant::now() < until => {
                    debug!(
                        migration_uid = migration, stream = stream.as_str(), error = %chain(&error),
                        "could not connect to the target, retrying"
                    );
                    tokio::time::sleep(pause.delay()).await;
                }
                dialled => return dialled,
            }
        }
    }
}

/// Accepts connections on one of the pod's sockets.
async fn accept(
    session: &Arc<TunnelSession>,
    stream: StreamContent,
    listener: &UnixListener,
    target: &DialTarget,
    process: &Process,
) {
    let mut number = 0_u16;
    let log = RefusalLog::default();
    while let Some(accepted) = session.closed.run_until_cancelled(listener.accept()).await {
        let stream = numbered(stream, number);
        match accepted {
            Ok((connection, _)) => {
                number = number.wrapping_add(1);
                let Some(place) = session.place(stream) else {
                    refuse(session, stream, &log);
                    continue;
                };
                let (session, target) = (Arc::clone(session), target.clone());
                let span = session.span();
                let carrying = async move {
                    let closed = session.closed.clone();
                    closed
                        .run_until_cancelled(carry(&session, stream, connection, &target))
                        .await;
                    drop(place);
                };
                process.spawn("stream to a target", carrying.instrument(span));
            }
            Err(error) => {
                warn!(error = %chain(&error), "a connection of a pod could not be accepted");
                tokio::time::sleep(streams::ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Logs a refused connection, but not each one of a pod that connects in a loop.
fn refuse(session: &TunnelSession, stream: StreamContent, log: &RefusalLog) {
    if let Some(more) = log.admits(StreamRefusal::StreamTaken, Instant::now()) {
        warn!(
            migration_uid = session.spec.migration,
            stream = stream.as_str(),
            more,
            "refused a connection of the pod: too many streams of this kind"
        );
    }
}

fn numbered(stream: StreamContent, number: u16) -> StreamContent {
    match stream {
        StreamContent::Memory(_) => StreamContent::Memory(number),
        StreamContent::Disks(_) => StreamContent::Disks(number),
        one => one,
    }
}

async fn carry(session: &Arc<TunnelSession>, stream: StreamContent, connection: UnixStream, target: &DialTarget) {
    let migration = session.spec.migration.as_str();
    let dialled = match target.reach(migration, stream).await {
        Ok(dialled) => dialled,
        Err(error) => {
            let error = chain(&error).to_string();
            warn!(
                migration_uid = migration,
                stream = stream.as_str(),
                error,
                "the target cannot be reached"
            );
            session.update(|facts| facts.trouble = Some(format!("the target cannot be reached: {error}")));
            return;
        }
    };
    let proof = LibvirtProof(session);
    let proving: Option<&dyn Proving> = (stream == StreamContent::Libvirt).then_some(&proof);
    debug!(migration_uid = migration, ?stream, "stream begins");
    match streams::carry(&connection, dialled, session, proving).await {
        Ok(()) => debug!(migration_uid = migration, ?stream, "stream ended"),
        Err(error) => info!(migration_uid = migration, ?stream, error = %chain(&error), "stream broken"),
    }
}

/// Records the proofs from the libvirt connection in the session.
struct LibvirtProof<'a>(&'a TunnelSession);

impl Proving for LibvirtProof<'_> {
    fn forwarded(&self) {
        self.0
            .update(|facts| facts.reply = facts.reply.max(ReplyProgress::Forwarded));
    }

    fn consumed(&self) {
        info!(
            migration_uid = self.0.spec.migration,
            "the source's libvirt has read the final reply and will never resume the guest"
        );
        self.0
            .prove(Proof::ReplyConsumed, |facts| facts.reply = ReplyProgress::Consumed);
    }

    fn guest(&self) -> BoxFuture<'_, GuestLeft> {
        self.0.guests.leaving(&self.0.folder, &self.0.spec.domain)
    }

    fn last_call(&self) {
        self.0.update(|facts| facts.last_call = true);
    }

    fn refused(&self, why: NotUnderstood) {
        self.0.metrics.not_understood.inc();
        self.0.end(LIBVIRT_NOT_UNDERSTOOD, why.to_string());
    }
}

/// Keeps a control channel to the target open while the session exists on both sides.
async fn keep_control(session: &Arc<TunnelSession>, target: &DialTarget) {
    let migration = session.spec.migration.as_str();
    let mut pause = Backoff::new(AGAIN, AGAIN_AT_MOST);
    loop {
        let dialling = target.dial(migration, StreamContent::Control);
        match session.closed.run_until_cancelled(dialling).await {
            None => return,
            Some(Ok(stream)) => {
                let begun = Instant::now();
                if control::as_source(session, stream).await == ChannelEnd::Over {
                    return;
                }
                if begun.elapsed() > AGAIN_AT_MOST {
                    pause.reset();
                }
            }
            Some(Err(error)) => {
                let error = chain(&error).to_string();
                debug!(
                    migration_uid = migration,
                    error, "the target's tunnel cannot be reached"
                );
                session.update(|facts| facts.trouble = Some(format!("the target cannot be reached: {error}")));
            }
        }
        if session
            .closed
            .run_until_cancelled(tokio::time::sleep(pause.delay()))
            .await
            .is_none()
        {
            return;
        }
    }
}
