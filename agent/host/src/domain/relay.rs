//! The piece between libvirt's client and the socket in the pod, which this process can cut.
//!
//! libvirt's client keeps its descriptor to itself, and waits for an answer as long as the other side
//! keeps the connection. So it is given a socket of this process, of which only this process can be
//! the other end.

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
    CallError, CloseReason, Shared,
    deadline::{Deadline, overdue},
    frames::Frames,
};
use crate::{
    background,
    libvirt::session_uri,
    pod_folder::{FolderError, PodSocket},
};

/// Size of the buffer of each direction.
const BUFFER: usize = 4096;

/// What a name in the abstract namespace must fill: libvirt's client connects to the whole of it.
const NAME: usize = 107;

/// Two ends that are to be joined.
#[derive(Debug)]
pub(crate) struct Line {
    /// Where libvirt's client is going to connect to.
    client: StdListener,
    /// The launcher's libvirt.
    pod: UnixStream,
}

impl Line {
    /// Connects to the pod's socket, and opens one for libvirt's client; also gives its name.
    pub(crate) async fn open(socket: &PodSocket) -> Result<(Self, String), CallError> {
        let runtime = background::runtime().map_err(|error| CallError::not_started(&error))?;
        // A path of any length; and connecting never waits, as it is done without blocking.
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
        // The second when more wait to be accepted than the listener allows, the third when it ends before it has
        // accepted this one.
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

/// Listens at a new name in the abstract namespace: it needs no folder, and goes with the listener.
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

/// The URI by which libvirt's client reaches the relay.
pub(crate) fn uri(name: &str) -> String {
    session_uri(Path::new(&format!("@{name}")))
}

/// Joins the two ends until one of them ends, a call is overdue, or the connection is given up.
pub(crate) async fn run(line: Line, deadlines: watch::Receiver<Option<Deadline>>, shared: Arc<Shared>) {
    let mut client = None;
    let mut pod = line.pod;
    let reason = tokio::select! {
        reason = carry(line.client, &mut client, &mut pod) => reason,
        call = overdue(deadlines) => call.map_or(CloseReason::Client, |call| CloseReason::Overdue { call }),
        () = shared.relay.notified() => CloseReason::Client,
    };
    // Before the sockets are closed, so that this is the reason that counts: libvirt's client only sees
    // that it was hung up on.
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
        reason = answers(from_pod, to_client) => reason,
    }
}

/// The connection of this process. The name is known to all in its network namespace.
async fn accept(listener: StdListener) -> io::Result<UnixStream> {
    let listener = UnixListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let pid = client.peer_cred()?.pid();
        if pid.and_then(|pid| u32::try_from(pid).ok()) == Some(std::process::id()) {
            return Ok(client);
        }
        tracing::warn!(pid, "a stranger connected to the relay to a libvirt");
    }
}

async fn requests(mut client: ReadHalf<'_>, mut pod: WriteHalf<'_>) -> CloseReason {
    let mut buffer = vec![0; BUFFER];
    loop {
        match client.read(&mut buffer).await {
            // libvirt's client gave up by itself. When it is told to close, that is known before.
            Ok(0) | Err(_) => return CloseReason::Error,
            Ok(read) => {
                if let Err(error) = pod.write_all(&buffer[..read]).await {
                    return ended_by(&error);
                }
            }
        }
    }
}

async fn answers(mut pod: ReadHalf<'_>, mut client: WriteHalf<'_>) -> CloseReason {
    let mut buffer = vec![0; BUFFER];
    let mut frames = Frames::new(Instant::now());
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

/// The pod's side is gone: it was killed while something was under way.
fn ended_by(error: &io::Error) -> CloseReason {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => CloseReason::EndOfFile,
        _ => CloseReason::Error,
    }
}
