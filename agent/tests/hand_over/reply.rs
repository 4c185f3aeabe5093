//! Gate that decides on the reply by which a migration succeeds, before the target's tunnel receives it.
//!
//! ```text
//!  source's libvirtd ── tunnel ═══ tunnel ──▶ libvirt/libvirt-sock   ┐
//!                                             │ reply to 306 or 217: passes, is held, or is lost
//!                                             ▼                      │ the target's pod
//!                                             libvirt/own-sock: its libvirtd
//! ```
//!
//! All other data passes, except for one flag: on request, the gate changes the last call so that it lets the guest
//! run, as libvirt's own call does without a tunnel. The gate cannot be between the source's libvirtd and its tunnel,
//! because reading the reply would then not prove that libvirtd has read it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{SinkExt, StreamExt};
use tokio::{
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};
use tokio_util::{
    bytes::Bytes,
    codec::{BytesCodec, FramedRead, FramedWrite, LengthDelimitedCodec},
};

use crate::pod::{Pod, SOCKET};

/// Path of the libvirtd's socket behind the gate, relative to the pod's run folder.
pub(crate) const OWN_SOCKET: &str = "libvirt/own-sock";

/// libvirt's program for domains. The next constant contains the last calls of a migration, with and without parameters
/// (`remote_protocol.x`).
const PROGRAM: u32 = 0x2000_8086;
const LAST_CALLS: [u32; 2] = [306, 217];
/// Message type of a call. The next constant is the message type of a reply (`virnetprotocol.x`).
const CALL: u32 = 0;
const REPLY: u32 = 1;
/// Flag that keeps the guest paused (`VIR_MIGRATE_PAUSED`). The next constant is the offset of the flags from the end
/// of a last call.
const PAUSED: u32 = 1 << 5;
const FLAGS_FROM_END: usize = 8;

/// Fate of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The reply passes.
    Passes,
    /// The reply waits, while all other data passes.
    Waits,
    /// The reply is dropped, and the connection is closed.
    IsLost,
}

/// The gate. It ends when the value is dropped.
pub(crate) struct ReplyGate {
    fate: watch::Sender<Fate>,
    came: watch::Sender<usize>,
    left_to_libvirt: Arc<AtomicBool>,
    _task: JoinSet<()>,
}

impl ReplyGate {
    /// Takes over the socket of the pod's libvirtd, which is already listening.
    pub(crate) fn before(pod: &Pod) -> Self {
        let run = pod.scratch.join("run");
        let (socket, own) = (run.join(SOCKET), run.join(OWN_SOCKET));
        fs::rename(&socket, &own).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
        let (fate, came) = (watch::channel(Fate::Passes).0, watch::channel(0).0);
        let mut task = JoinSet::new();
        let left_to_libvirt = Arc::new(AtomicBool::new(false));
        let (decided, counted, left) = (fate.clone(), came.clone(), Arc::clone(&left_to_libvirt));
        task.spawn(async move { accept(&listener, &own, &decided, &counted, &left).await });
        Self {
            fate,
            came,
            left_to_libvirt,
            _task: task,
        }
    }

    /// Sets the fate of replies from now on, including a waiting reply.
    pub(crate) fn decide(&self, fate: Fate) {
        self.fate.send_replace(fate);
    }

    /// Lets libvirt resume the guest as soon as it has arrived, from now on.
    pub(crate) fn leave_to_libvirt(&self) {
        self.left_to_libvirt.store(true, Ordering::SeqCst);
    }

    /// Returns the number of replies so far.
    pub(crate) fn count(&self) -> usize {
        *self.came.borrow()
    }

    /// Waits until the number of replies exceeds `count`.
    pub(crate) async fn came_after(&self, count: usize) {
        self.came.subscribe().wait_for(|came| *came > count).await.unwrap();
    }
}

async fn accept(
    listener: &UnixListener,
    own: &Path,
    fate: &watch::Sender<Fate>,
    came: &watch::Sender<usize>,
    left_to_libvirt: &Arc<AtomicBool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let Ok(libvirtd) = UnixStream::connect(own).await else {
            continue;
        };
        let (fate, came, left) = (fate.subscribe(), came.clone(), Arc::clone(left_to_libvirt));
        connections.spawn(async move {
            let (from_client, to_client) = client.into_split();
            let (from_libvirtd, to_libvirtd) = libvirtd.into_split();
            // The first direction to end closes both.
            tokio::select! {
                () = calls(from_client, to_libvirtd, &left) => {}
                () = replies(from_libvirtd, to_client, fate, &came) => {}
            }
        });
    }
}

/// Returns a codec for libvirt's messages, including their length.
fn messages() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .num_skip(0)
        .max_frame_length(64 << 20)
        .new_codec()
}

async fn calls(from: OwnedReadHalf, to: OwnedWriteHalf, left_to_libvirt: &AtomicBool) {
    let mut from = FramedRead::new(from, messages());
    let mut to = FramedWrite::new(to, BytesCodec::new());
    while let Some(Ok(mut message)) = from.next().await {
        if left_to_libvirt.load(Ordering::SeqCst) && is_last(&message, CALL) {
            let at = message.len() - FLAGS_FROM_END;
            let flags = u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
            message[at..at + 4].copy_from_slice(&(flags & !PAUSED).to_be_bytes());
        }
        if to.send(message.freeze()).await.is_err() {
            return;
        }
    }
}

async fn replies(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    mut fate: watch::Receiver<Fate>,
    came: &watch::Sender<usize>,
) {
    let mut from = FramedRead::new(from, messages());
    let mut to = FramedWrite::new(to, BytesCodec::new());
    let mut waiting: Option<Bytes> = None;
    loop {
        let mut passing = None;
        tokio::select! {
            message = from.next() => {
                let Some(Ok(message)) = message else {
                    return;
                };
                if is_last(&message, REPLY) {
                    waiting = Some(message.freeze());
                    came.send_modify(|came| *came += 1);
                } else {
                    passing = Some(message.freeze());
                }
            }
            _ = fate.changed() => {}
        }
        let fate = *fate.borrow_and_update();
        if waiting.is_some() && fate == Fate::IsLost {
            return;
        }
        if fate == Fate::Passes {
            passing = passing.or(waiting.take());
        }
        if let Some(message) = passing
            && to.send(message).await.is_err()
        {
            return;
        }
    }
}

/// Returns whether a message of this type belongs to the last call of a migration.
fn is_last(message: &[u8], kind: u32) -> bool {
    let (words, _) = message.as_chunks();
    let word = |index: usize| words.get(index).map(|bytes| u32::from_be_bytes(*bytes));
    word(1) == Some(PROGRAM) && word(3).is_some_and(|call| LAST_CALLS.contains(&call)) && word(4) == Some(kind)
}
