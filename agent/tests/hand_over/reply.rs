//! The gate that decides over the reply by which a migration succeeds, before the target's tunnel gets it.
//!
//! ```text
//!  source's libvirtd ── tunnel ═══ tunnel ──▶ libvirt/libvirt-sock   ┐
//!                                             │ reply to 306 or 217: passes, is held, or is lost
//!                                             ▼                      │ the target's pod
//!                                             libvirt/own-sock: its libvirtd
//! ```
//!
//! All other data passes, except for one flag: on demand the last call lets the guest run, as libvirt's own call does
//! without a tunnel. The gate cannot be between the source's libvirtd and its tunnel: there, it would prove nothing
//! that the reply was read.

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

/// Where the pod's libvirtd is found past the gate.
pub(crate) const OWN_SOCKET: &str = "libvirt/own-sock";

/// libvirt's program for domains, and the last call of a migration with parameters and without
/// (`remote_protocol.x`).
const PROGRAM: u32 = 0x2000_8086;
const LAST_CALLS: [u32; 2] = [306, 217];
/// A message is a call, or the reply to one (`virnetprotocol.x`).
const CALL: u32 = 0;
const REPLY: u32 = 1;
/// The guest stays paused (`VIR_MIGRATE_PAUSED`), and where the flags are in a last call, from its end.
const PAUSED: u32 = 1 << 5;
const FLAGS_FROM_END: usize = 8;

/// The fate of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes its way.
    Passes,
    /// It waits, while everything else passes.
    Waits,
    /// It is dropped, and the connection closed.
    IsLost,
}

/// The gate. It ends with the value.
pub(crate) struct ReplyGate {
    fate: watch::Sender<Fate>,
    came: watch::Sender<usize>,
    left_to_libvirt: Arc<AtomicBool>,
    _task: JoinSet<()>,
}

impl ReplyGate {
    /// Takes the place of the pod's libvirtd, which listens already.
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

    /// Sets what happens to replies from now on, including a waiting reply.
    pub(crate) fn decide(&self, fate: Fate) {
        self.fate.send_replace(fate);
    }

    /// From now on the guest goes on as soon as it has arrived.
    pub(crate) fn leave_to_libvirt(&self) {
        self.left_to_libvirt.store(true, Ordering::SeqCst);
    }

    /// Replies that came so far.
    pub(crate) fn count(&self) -> usize {
        *self.came.borrow()
    }

    /// Waits for a reply beyond that many.
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
            // The first side to end ends both.
            tokio::select! {
                () = calls(from_client, to_libvirtd, &left) => {}
                () = replies(from_libvirtd, to_client, fate, &came) => {}
            }
        });
    }
}

/// libvirt's messages, with their length.
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

/// A message is the last call of a migration, or the reply to it.
fn is_last(message: &[u8], kind: u32) -> bool {
    let (words, _) = message.as_chunks();
    let word = |index: usize| words.get(index).map(|bytes| u32::from_be_bytes(*bytes));
    word(1) == Some(PROGRAM) && word(3).is_some_and(|call| LAST_CALLS.contains(&call)) && word(4) == Some(kind)
}
