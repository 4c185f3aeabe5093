//! The relay between libvirt's client and the socket in the pod. This process can close the relayed connection.
//!
//! libvirt's client does not expose its file descriptor, and waits for a response as long as the other side keeps the
//! connection open. The client therefore connects to a socket of this process, and only this process holds the
//! connection to the pod.

use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::AsRawFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener as StdListener},
    },
    path::Path,
    sync::Arc,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{ReadHalf, WriteHalf},
    },
    sync::watch,
    time::Instant,
};

use super::{
    CallError, CloseReason, EventSource,
    deadline::{CallDeadline, overdue},
    frames::FrameTracker,
};
use crate::{
    background,
    libvirt::session_uri,
    pod_folder::{FolderError, PodSocket},
};

/// Size of the buffer of each direction in bytes.
const BUFFER: usize = 4096;

/// Length in bytes of names in the abstract namespace.
///
/// Names are padded to this length, because libvirt's client connects to the whole address.
const NAME: usize = 107;

/// The two sockets that the relay joins.
#[derive(Debug)]
pub(crate) struct RelayedLine {
    /// Listening socket to which libvirt's client will connect.
    client: StdListener,
    /// Connection to the launcher's libvirt.
    pod: UnixStream,
}

impl RelayedLine {
    /// Connects to the pod's socket and opens a socket for libvirt's client. Also returns the name of the client's
    /// socket.
    pub(crate) async fn open(socket: &PodSocket) -> Result<(Self, String), CallError> {
        let runtime = background::runtime().map_err(|error| CallError::not_started(&error))?;
        // The path under /proc avoids the length limit of socket addresses. The connect is non-blocking.
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let connecting = runtime.spawn(async move { UnixStream::connect(path).await });
        let pod = connecting
            .await
            .map_err(io::Error::other)
            .and_then(|connected| connected)
            .map_err(|error| not_connected(socket, &error))?;
        let (client, name) = listen().map_err(|error| CallError::not_started(&error))?;
        Ok((Self { client, pod }, name))
    }
}

fn not_connected(socket: &PodSocket, error: &io::Error) -> CallError {
    CallError::Folder(match error.kind() {
        // `WouldBlock`: the listener's backlog is full. `ConnectionReset`: the listener was closed before it accepted
        // this connection.
        ErrorKind::ConnectionRefused | ErrorKind::WouldBlock | ErrorKind::ConnectionReset => {
            FolderError::NotListening {
                path: socket.path().to_owned(),
            }
        }
        _ => FolderError::Unreadable {
            path: socket.path().to_owned(),
            message: error.to_string(),
        },
    })
}

/// Listens on a new name in the abstract namespace. The name needs no folder and disappears with the listener.
fn listen() -> io::Result<(StdListener, String)> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let name = format!("drydock-relay-{}", uuid.trim());
    let mut padded = [0; NAME];
    for (to, from) in padded.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(padded)?)?;
    listener.set_nonblocking(true)?;
    Ok((listener, name))
}

/// Returns the URI with which libvirt's client reaches the relay.
pub(crate) fn uri(name: &str) -> String {
    session_uri(Path::new(&format!("@{name}")))
}

/// Joins the two sockets until one of them is closed, a call is overdue, or the connection is shut down.
pub(crate) async fn run(line: RelayedLine, deadlines: watch::Receiver<Option<CallDeadline>>, shared: Arc<EventSource>) {
    let mut client = None;
    let mut pod = line.pod;
    let reason = tokio::select! {
        reason = carry(line.client, &mut client, &mut pod) => reason,
        call = overdue(deadlines) => call.map_or(CloseReason::Client, |call| CloseReason::Overdue { call }),
        () = shared.relay.notified() => CloseReason::Client,
    };
    // The reason is recorded before the sockets are closed, because only the first reason is kept, and libvirt's client
    // only notices that the connection was closed.
    shared.finish(reason);
    drop((client, pod));
}

async fn carry(listener: StdListener, client: &mut Option<UnixStream>, pod: &mut UnixStream) -> CloseReason {
    let Ok(accepted) = accept(listener).await else {
        return CloseReason::Error;
    };
    let (from_client, to_client) = client.insert(accepted).split();
    let (from_pod, to_pod) = pod.split();
    tokio::select! {
        reason = requests(from_client, to_pod) => reason,
        reason = replies(from_pod, to_client) => reason,
    }
}

/// Accepts a connection of this process and rejects all others. The name is visible to every process in the network
/// namespace.
async fn accept(listener: StdListener) -> io::Result<UnixStream> {
    let listener = UnixListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let pid = client.peer_cred()?.pid();
        if pid.and_then(|pid| u32::try_from(pid).ok()) == Some(std::process::id()) {
            return Ok(client);
        }
        tracing::warn!(pid, "refused a connection of another process to the libvirt relay");
    }
}

async fn requests(mut client: ReadHalf<'_>, mut pod: WriteHalf<'_>) -> CloseReason {
    let mut buffer = vec![0; BUFFER];
    loop {
        match client.read(&mut buffer).await {
            // libvirt's client closed the connection by itself. If the close was requested, the reason of the request
            // is already recorded and this reason is ignored.
            Ok(0) | Err(_) => return CloseReason::Error,
            Ok(read) => {
                if let Err(error) = pod.write_all(&buffer[..read]).await {
                    return ended_by(&error);
                }
            }
        }
    }
}

async fn replies(mut pod: ReadHalf<'_>, mut client: WriteHalf<'_>) -> CloseReason {
    let mut buffer = vec![0; BUFFER];
    let mut frames = FrameTracker::new(Instant::now());
    loop {
        match pod.read(&mut buffer).await {
            Ok(0) => return CloseReason::EndOfFile,
            Err(error) => return ended_by(&error),
            Ok(read) => {
                let bytes = &buffer[..read];
                if let Err(reason) = frames.take(bytes, Instant::now()) {
                    return reason;
                }
                if client.write_all(bytes).await.is_err() {
                    return CloseReason::Error;
                }
            }
        }
    }
}

/// Converts an error of the pod's side. A libvirtd that is killed during a transfer counts as end of file.
fn ended_by(error: &io::Error) -> CloseReason {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => CloseReason::EndOfFile,
        _ => CloseReason::Error,
    }
}
