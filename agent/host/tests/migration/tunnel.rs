//! A tunnel that forwards a migration from one pod to another.
//!
//! The tunnel listens on the source's sockets, and opens a connection to the target for each accepted connection. Each
//! stream can be held and cut.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use crate::pod::{Pod, SOCKET};

/// One of the streams of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationStream {
    /// Stream from the source's libvirtd to the target's libvirtd.
    Libvirt,
    /// Stream of memory from QEMU to QEMU.
    Memory,
    /// Stream from QEMU to the target's disks.
    Disks,
}

impl MigrationStream {
    /// Returns the path of the source's socket, relative to the run folder.
    pub(crate) fn socket(self) -> &'static str {
        match self {
            Self::Libvirt => "migration/libvirt.sock",
            Self::Memory => "migration/memory.sock",
            Self::Disks => "migration/disks.sock",
        }
    }

    fn at_target(self) -> &'static str {
        match self {
            Self::Libvirt => SOCKET,
            Self::Memory | Self::Disks => self.socket(),
        }
    }
}

/// State of a stream's forwarding from source to target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    Held,
}

struct Carried {
    stream: MigrationStream,
    gate: watch::Sender<Gate>,
    /// Number of connections so far.
    connections: watch::Receiver<usize>,
    task: AbortHandle,
}

/// A tunnel between two pods. Dropping the tunnel closes it.
pub(crate) struct Tunnel {
    carried: Vec<Carried>,
    _tasks: JoinSet<()>,
}

impl Tunnel {
    /// Opens a tunnel between two pods, in one direction.
    pub(crate) fn new(source: &Pod, target: &Pod) -> Self {
        let mut tasks = JoinSet::new();
        let mut carried = Vec::new();
        for stream in [
            MigrationStream::Libvirt,
            MigrationStream::Memory,
            MigrationStream::Disks,
        ] {
            let listening = source.scratch.join("run").join(stream.socket());
            let _ = fs::remove_file(&listening);
            let _ = fs::remove_file(target.scratch.join("run").join(stream.socket()));
            let listener = UnixListener::bind(&listening).unwrap();
            fs::set_permissions(&listening, Permissions::from_mode(0o777)).unwrap();
            let (gate, held) = watch::channel(Gate::Open);
            let (count, connections) = watch::channel(0);
            let task = tasks.spawn(carry(
                listener,
                target.scratch.join("run").join(stream.at_target()),
                held,
                count,
            ));
            carried.push(Carried {
                stream,
                gate,
                connections,
                task,
            });
        }
        Self { carried, _tasks: tasks }
    }

    fn of(&self, stream: MigrationStream) -> &Carried {
        self.carried.iter().find(|carried| carried.stream == stream).unwrap()
    }

    /// Stops forwarding the stream's data to the target.
    pub(crate) fn hold(&self, stream: MigrationStream) {
        self.of(stream).gate.send_replace(Gate::Held);
    }

    /// Resumes forwarding the stream's data to the target.
    pub(crate) fn release(&self, stream: MigrationStream) {
        self.of(stream).gate.send_replace(Gate::Open);
    }

    /// Closes all connections of the stream and stops listening.
    pub(crate) fn cut(&self, stream: MigrationStream) {
        self.of(stream).task.abort();
    }

    /// Waits until the stream is connected.
    pub(crate) async fn connected(&self, stream: MigrationStream) {
        let mut connections = self.of(stream).connections.clone();
        connections.wait_for(|count| *count > 0).await.unwrap();
    }
}

async fn carry(listener: UnixListener, target: PathBuf, gate: watch::Receiver<Gate>, count: watch::Sender<usize>) {
    let mut streams = JoinSet::new();
    while let Ok((source, _)) = listener.accept().await {
        let Ok(target) = UnixStream::connect(&target).await else {
            continue;
        };
        let (from_source, to_source) = source.into_split();
        let (from_target, to_target) = target.into_split();
        streams.spawn(pass(from_source, to_target, gate.clone()));
        // The gate from the target to the source is always open.
        streams.spawn(pass(from_target, to_source, watch::channel(Gate::Open).1));
        count.send_modify(|count| *count += 1);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut gate: watch::Receiver<Gate>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read) = from.read(&mut buffer).await {
        if gate.borrow_and_update().eq(&Gate::Held) && gate.wait_for(|gate| *gate == Gate::Open).await.is_err() {
            return;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
