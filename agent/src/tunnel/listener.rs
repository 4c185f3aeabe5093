//! Port of a tunnel. It accepts only connections from the peers of the tunnel's sessions.
//!
//! ```text
//!  TCP ─▶ limits ─▶ name of the session ─▶ handshake with its peer's certificate ─▶ header ─▶ control, or
//!                                                                                             a socket in the pod
//! ```

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use drydock_api::launcher::{LIBVIRT_SOCKET, MIGRATION_DISKS_SOCKET, MIGRATION_MEMORY_SOCKET};
use drydock_runtime::{CountGuard, Counts, Process, chain, clock::Instant};
use rustls::{CertificateError, server::Acceptor};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tracing::{Instrument, debug, info, warn};

use super::{
    control, identity,
    local::Role,
    session::{Paired, TunnelSession},
    sessions::TunnelSessions,
    stream_header::{self, StreamContent},
    streams,
    tunnel_refusal::{RefusalLog, StreamRefusal},
};

/// Timeout for the handshake and the header of a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections that are not identified yet.
const UNKNOWN: usize = 64;
/// Maximum number of unidentified connections from one address, so that a flooding client cannot block other clients.
const UNKNOWN_FROM_ONE: usize = 16;

/// State of the port.
#[derive(Debug)]
pub(super) struct PortState {
    sessions: TunnelSessions,
    process: Process,
    unknown: Arc<Semaphore>,
    /// Number of unidentified connections by address.
    by_address: Counts<IpAddr>,
    from_one: usize,
    log: RefusalLog,
    handshake_timeout: Duration,
}

impl PortState {
    /// Creates a port for the peers of these sessions.
    pub(super) fn new(sessions: &TunnelSessions, process: &Process) -> Self {
        Self {
            sessions: sessions.clone(),
            process: process.clone(),
            unknown: Arc::new(Semaphore::new(UNKNOWN)),
            by_address: Counts::default(),
            from_one: UNKNOWN_FROM_ONE,
            log: RefusalLog::default(),
            handshake_timeout: HANDSHAKE_TIMEOUT,
        }
    }

    /// Replaces the limits of the port.
    #[cfg(test)]
    pub(super) fn with_limits(mut self, unknown: usize, from_one: usize, handshake_timeout: Duration) -> Self {
        self.unknown = Arc::new(Semaphore::new(unknown));
        self.from_one = from_one;
        self.handshake_timeout = handshake_timeout;
        self
    }

    /// Accepts connections until the process has drained.
    pub(super) async fn accept(self, listener: TcpListener) {
        let port = Arc::new(self);
        let drained = port.sessions.drained();
        while let Some(accepted) = drained.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((connection, from)) => port.take(connection, from),
                Err(error) => {
                    warn!(error = %chain(&error), "a connection of another node could not be accepted");
                    tokio::time::sleep(streams::ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn take(self: &Arc<Self>, connection: TcpStream, from: SocketAddr) {
        let Some(unknown) = self.place(from.ip()) else {
            self.refuse(from, StreamRefusal::TooManyConnections, None);
            return;
        };
        let port = Arc::clone(self);
        self.process.spawn("connection of another node", async move {
            let let_in = timeout(port.handshake_timeout, port.let_in(connection)).await;
            drop(unknown);
            match let_in.unwrap_or(Err((StreamRefusal::TooSlow, None))) {
                Ok((session, stream, connection)) => {
                    let serving = port.serve(from, &session, stream, connection);
                    serving.instrument(session.span()).await;
                }
                Err((refusal, detail)) => port.refuse(from, refusal, detail.as_deref()),
            }
        });
    }

    /// Reserves capacity for a connection that is not identified yet; `None` if a limit is reached.
    fn place(&self, from: IpAddr) -> Option<(OwnedSemaphorePermit, CountGuard<IpAddr>)> {
        let permit = Arc::clone(&self.unknown).try_acquire_owned().ok()?;
        Some((permit, self.by_address.add_below(self.from_one, from)?))
    }

    /// Identifies the peer of a connection and the content of its stream.
    async fn let_in(
        &self,
        connection: TcpStream,
    ) -> Result<(Arc<TunnelSession>, StreamContent, TlsStream<TcpStream>), (StreamRefusal, Option<String>)> {
        let failed = |error: &io::Error| (refused_handshake(error), Some(chain(error).to_string()));
        streams::set_up(&connection).map_err(|error| failed(&error))?;
        let handshake = LazyConfigAcceptor::new(Acceptor::default(), connection);
        let handshake = handshake.await.map_err(|error| failed(&error))?;
        let unknown = || (StreamRefusal::UnknownSession, None);
        let session = {
            let hello = handshake.client_hello();
            let migration = hello.server_name().and_then(identity::migration_of);
            migration.and_then(|migration| self.sessions.get(migration))
        };
        let session = session
            .filter(|session| session.spec.role == Role::Target)
            .ok_or_else(unknown)?;
        // A source dials as soon as its fingerprint is published, which may reach this side's agent later.
        let Some((_, Paired::Source { tls })) = session.peer_when_known().await else {
            return Err(unknown());
        };
        let mut connection = handshake.into_stream(tls).await.map_err(|error| failed(&error))?;
        let mut header = [0; stream_header::BYTES];
        let read = connection.read_exact(&mut header).await;
        read.map_err(|error| (StreamRefusal::ClosedEarly, Some(chain(&error).to_string())))?;
        let stream = StreamContent::of_header(header).map_err(|_| (StreamRefusal::BadHeader, None))?;
        if session.closed.is_cancelled() {
            return Err((StreamRefusal::UnknownSession, None));
        }
        Ok((session, stream, connection))
    }

    async fn serve(
        &self,
        from: SocketAddr,
        session: &Arc<TunnelSession>,
        stream: StreamContent,
        connection: TlsStream<TcpStream>,
    ) {
        let Some(_place) = session.place(stream) else {
            self.refuse(from, StreamRefusal::StreamTaken, Some(stream.as_str()));
            return;
        };
        let socket = match stream {
            StreamContent::Control => {
                control::as_target(session, connection).await;
                return;
            }
            StreamContent::Libvirt => LIBVIRT_SOCKET,
            StreamContent::Memory(_) => MIGRATION_MEMORY_SOCKET,
            StreamContent::Disks(_) => MIGRATION_DISKS_SOCKET,
        };
        let in_pod = match session.folder.connect(socket).await {
            Ok(in_pod) => in_pod,
            Err(error) => {
                self.refuse(from, StreamRefusal::NoProcessInPod, Some(&chain(&error).to_string()));
                return;
            }
        };
        let migration = session.spec.migration.as_str();
        debug!(migration_uid = migration, ?stream, "stream begins");
        let carrying = streams::carry(&in_pod, connection, session, None);
        match session.closed.run_until_cancelled(carrying).await {
            Some(Ok(())) => debug!(migration_uid = migration, ?stream, "stream ended"),
            Some(Err(error)) => info!(migration_uid = migration, ?stream, error = %chain(&error), "stream broken"),
            None => debug!(migration_uid = migration, ?stream, "stream ends with its session"),
        }
    }

    fn refuse(&self, from: SocketAddr, refusal: StreamRefusal, detail: Option<&str>) {
        self.sessions.metrics().refused(refusal);
        if let Some(more) = self.log.admits(refusal, Instant::now()) {
            let reason = refusal.reason();
            warn!(%from, reason, detail, more, "a connection was refused: {refusal}");
        }
    }
}

/// Returns the refusal for an error of the handshake.
fn refused_handshake(error: &io::Error) -> StreamRefusal {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
            StreamRefusal::WrongCertificate
        }
        _ => StreamRefusal::HandshakeFailed,
    }
}
