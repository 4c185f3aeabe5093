//! Open streams of the guests' consoles, at most one of each kind per guest.

use std::{collections::HashMap, sync::Arc};

use drydock_api::{
    launcher::CONSOLE_CLIENT_SOCKET,
    node_api::{GuestStream, NodeApiRefusal, RefusalReason},
};
use drydock_core::domain::VNC_SOCKET;
use drydock_runtime::{CancellationToken, Process, chain};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    io::{AsyncRead, AsyncWrite, copy, split},
    net::UnixStream,
    sync::OwnedSemaphorePermit,
};
use tracing::{debug, info};

/// Maximum number of streams of the node.
const MAX_STREAMS: usize = 256;

/// Identifier of a stream: the UID of the guest's VMI and the kind of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StreamKey {
    uid: String,
    stream: GuestStream,
}

impl StreamKey {
    pub(super) fn new(uid: &str, stream: GuestStream) -> Self {
        let uid = uid.to_owned();
        Self { uid, stream }
    }
}

/// Open streams. Clones share one state.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    open: Arc<Mutex<HashMap<StreamKey, CancellationToken>>>,
    count: Gauge,
    process: Process,
}

/// Permit to carry a stream. Dropping it releases the stream.
#[derive(Debug)]
pub(super) struct StreamPlace {
    streams: Streams,
    key: StreamKey,
    /// Token that is cancelled when another client takes the stream.
    replaced: CancellationToken,
}

/// A connection to the socket of a stream.
#[derive(Debug)]
pub(super) struct StreamSocket {
    pub(super) connection: UnixStream,
    pub(super) place: StreamPlace,
}

impl Streams {
    pub(super) fn new(count: Gauge, process: &Process) -> Self {
        Self {
            open: Arc::default(),
            count,
            process: process.clone(),
        }
    }

    /// Takes a stream. The current client of the stream is disconnected, unless the new client requests to `preserve`
    /// its connection.
    ///
    /// # Errors
    /// If the stream is in use and must be preserved, or if there are too many streams.
    pub(super) fn take(&self, key: StreamKey, preserve: bool) -> Result<StreamPlace, NodeApiRefusal> {
        let replaced = CancellationToken::new();
        let mut open = self.open.lock();
        let before = open.get(&key);
        if before.is_some() && preserve {
            return Err(NodeApiRefusal {
                reason: RefusalReason::InUse,
                message: "Active VNC connection. Request denied.".to_owned(),
            });
        }
        if before.is_none() && open.len() >= MAX_STREAMS {
            return Err(NodeApiRefusal {
                reason: RefusalReason::TooMany,
                message: format!("the node already carries {MAX_STREAMS} streams of consoles and displays"),
            });
        }
        if let Some(before) = open.insert(key.clone(), replaced.clone()) {
            before.cancel();
        }
        self.count.set(i64::try_from(open.len()).unwrap_or(i64::MAX));
        Ok(StreamPlace {
            streams: self.clone(),
            key,
            replaced,
        })
    }

    /// Carries a stream after the connection was upgraded.
    ///
    /// The stream ends when either side ends, another client takes the stream, or the process stops.
    pub(super) fn carry(&self, upgrade: OnUpgrade, socket: StreamSocket, connection: Arc<OwnedSemaphorePermit>) {
        let stopping = self.process.stopping();
        self.process.spawn("stream of a guest", async move {
            let _connection = connection;
            let StreamSocket { connection, place } = socket;
            let (stream, vmi_uid) = (place.key.stream.as_str(), place.key.uid.clone());
            let client = match upgrade.await {
                Ok(client) => TokioIo::new(client),
                Err(error) => {
                    debug!(stream, vmi_uid, error = %chain(&error), "the stream could not be started");
                    return;
                }
            };
            info!(stream, vmi_uid, "stream begins");
            let outcome = tokio::select! {
                outcome = relay(client, connection) => outcome,
                () = place.replaced.cancelled() => "another client has taken over the stream",
                () = stopping.cancelled() => "the agent is stopping",
            };
            info!(stream, vmi_uid, outcome, "stream ended");
        });
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        // If another client has taken the stream in the meantime, its entry stays.
        if !self.replaced.is_cancelled() {
            open.remove(&self.key);
        }
        self.streams.count.set(i64::try_from(open.len()).unwrap_or(i64::MAX));
    }
}

/// Copies in both directions until one side ends, and returns which side has ended.
///
/// Both directions end together, because neither a terminal nor a VNC client uses half a connection.
async fn relay(client: impl AsyncRead + AsyncWrite, guest: UnixStream) -> &'static str {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_guest, mut to_guest) = guest.into_split();
    tokio::select! {
        _ = copy(&mut from_guest, &mut to_client) => "the stream from the guest has ended",
        _ = copy(&mut from_client, &mut to_guest) => "the stream from the client has ended",
    }
}

/// Returns the path of a stream's socket, relative to the run folder of a pod.
pub(super) fn socket(stream: GuestStream) -> &'static str {
    match stream {
        GuestStream::Console => CONSOLE_CLIENT_SOCKET,
        GuestStream::Vnc => VNC_SOCKET,
    }
}
