//! One side of one migration: what it is, what is known of it, and how much it has carried.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use drydock_api::launcher::MIGRATION_LEFT_FILE;
use drydock_core::migration::hand_over::{Proof, SourceSide, TargetSide};
use drydock_host::pod_folder::{PodFolder, PodListener};
use drydock_runtime::{CancellationToken, chain};
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use super::{
    guest::Guests,
    identity::{Fingerprint, Identity},
    local::{Reply, Role, SessionSpec, SessionState},
    metrics::TunnelMetrics,
    stream_header::Stream,
};

/// Connections for memory and disks that a session may have at once, of each. QEMU opens one for the
/// memory, libvirt one for each disk.
const PARALLEL: usize = 32;

/// What changes in a session's life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The control channel is open, and the other side has answered.
    pub(super) connected: bool,
    /// Version of the control channel that the other side speaks, once it has said something.
    pub(super) peer_version: Option<u16>,
    /// Source: libvirt has made its last call.
    pub(super) last_call: bool,
    /// How far the last reply is.
    pub(super) reply: Reply,
    /// The hand-over, as a source sees it.
    pub(super) source: SourceSide,
    /// The hand-over, as a target sees it.
    pub(super) target: TargetSide,
    /// What hinders it just now.
    pub(super) trouble: Option<String>,
    /// Why it carries nothing any more.
    pub(super) ended: Option<&'static str>,
}

/// That something has changed, for whoever tells the agents.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Something to tell at once.
    pub(super) facts: Notify,
    /// Bytes, which can wait.
    pub(super) bytes: Notify,
    bytes_told: AtomicBool,
    /// A guest has left whose last call this process has not seen.
    last_call_missed: AtomicBool,
}

impl Changes {
    fn more_bytes(&self) {
        if !self.bytes_told.swap(true, Ordering::Relaxed) {
            self.bytes.notify_one();
        }
    }

    /// Bytes are told now: the next ones are new.
    pub(super) fn telling(&self) {
        self.bytes_told.store(false, Ordering::Relaxed);
    }
}

/// The other side of a session.
#[derive(Clone, Debug)]
pub(super) enum Paired {
    /// The target, which is dialled.
    Target {
        /// Where.
        address: SocketAddr,
        /// How.
        tls: Arc<ClientConfig>,
    },
    /// The source, which dials.
    Source {
        /// How it is let in.
        tls: Arc<ServerConfig>,
    },
}

/// How many streams there are, which have to be as few as said.
#[derive(Debug, Default)]
struct Open {
    libvirt: AtomicUsize,
    memory: AtomicUsize,
    disks: AtomicUsize,
}

/// A stream that counts as one of its session's, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    session: Arc<Session>,
    stream: Stream,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((open, _)) = self.session.places(self.stream) {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    /// What it is for.
    pub(super) spec: SessionSpec,
    /// The pod's folder.
    pub(super) folder: PodFolder,
    /// Who this side is.
    pub(super) identity: Identity,
    /// How its guest is asked.
    pub(super) guests: Arc<dyn Guests>,
    /// What is counted.
    pub(super) metrics: TunnelMetrics,
    /// Cancelled when it is closed.
    pub(super) closed: CancellationToken,
    /// A source's sockets in the pod, until somebody listens.
    pub(super) sockets: Mutex<Vec<(Stream, PodListener)>>,
    facts: watch::Sender<Facts>,
    changes: Arc<Changes>,
    peer: watch::Sender<Option<(Fingerprint, Paired)>>,
    open: Open,
    /// The control channel that is in use: a newer one takes its place.
    control: Mutex<CancellationToken>,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Session {
    /// A session without a peer.
    pub(super) fn new(
        spec: SessionSpec,
        folder: PodFolder,
        identity: Identity,
        sockets: Vec<(Stream, PodListener)>,
        guests: Arc<dyn Guests>,
        metrics: TunnelMetrics,
        changes: Arc<Changes>,
    ) -> Self {
        Self {
            spec,
            folder,
            identity,
            guests,
            metrics,
            closed: CancellationToken::new(),
            sockets: Mutex::new(sockets),
            facts: watch::channel(Facts::default()).0,
            changes,
            peer: watch::channel(None).0,
            open: Open::default(),
            control: Mutex::default(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// What is known, and what will be.
    pub(super) fn facts(&self) -> watch::Receiver<Facts> {
        self.facts.subscribe()
    }

    /// Changes what is known, and tells everybody if that is news.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut Facts) -> T) -> T {
        let mut result = None;
        let changed = self.facts.send_if_modified(|facts| {
            let before = facts.clone();
            result = Some(change(facts));
            *facts != before
        });
        if changed {
            self.changes.facts.notify_one();
        }
        match result {
            Some(result) => result,
            None => unreachable!("a change is made at once"),
        }
    }

    /// The guest goes on elsewhere by this proof, and never here again.
    pub(super) fn prove(&self, proof: Proof, more: impl FnOnce(&mut Facts)) {
        self.update(|facts| {
            more(facts);
            facts.source.prove(proof);
        });
        // However what is left of it ends, it has not crashed.
        if let Err(error) = self.folder.mark(MIGRATION_LEFT_FILE) {
            info!(
                migration = self.spec.migration,
                error = %chain(&error),
                "the pod cannot be told that its guest has left"
            );
        }
    }

    /// Ends the session here: nothing is carried any more, and the other side is told so.
    pub(super) fn end(&self, reason: &'static str, message: String) {
        warn!(
            migration = self.spec.migration,
            reason,
            why = message,
            "the session ends"
        );
        self.update(|facts| {
            facts.ended = Some(reason);
            facts.trouble = Some(message);
        });
        self.closed.cancel();
    }

    /// The agent has proven by libvirt's word that the guest has left. If this process has not seen the last call by
    /// which it did, it does not understand this libvirt, and no more guests begin to move in a way that depends
    /// on that call.
    pub(super) fn check_last_call(&self, proof: Proof) {
        let facts = self.facts.borrow().clone();
        if !is_missed(proof, &facts) {
            return;
        }
        warn!(
            migration = self.spec.migration,
            "a guest has left without a last call that this tunnel has seen: \
             from now on guests on this node are not switched to post-copy"
        );
        self.metrics.missed.inc();
        self.changes.last_call_missed.store(true, Ordering::Relaxed);
        self.changes.facts.notify_one();
    }

    /// The peer, if it is known.
    pub(super) fn peer(&self) -> Option<(Fingerprint, Paired)> {
        self.peer.borrow().clone()
    }

    /// The peer, once it is known; none if the session is closed before that.
    pub(super) async fn peer_when_known(&self) -> Option<(Fingerprint, Paired)> {
        let mut peer = self.peer.subscribe();
        let known = peer.wait_for(Option::is_some);
        self.closed.run_until_cancelled(known).await?.ok()?.clone()
    }

    /// Notes the peer.
    pub(super) fn paired(&self, fingerprint: Fingerprint, peer: Paired) {
        self.peer.send_replace(Some((fingerprint, peer)));
        self.changes.facts.notify_one();
    }

    fn places(&self, stream: Stream) -> Option<(&AtomicUsize, usize)> {
        match stream {
            Stream::Control => None,
            Stream::Libvirt => Some((&self.open.libvirt, 1)),
            Stream::Memory(_) => Some((&self.open.memory, PARALLEL)),
            Stream::Disks(_) => Some((&self.open.disks, PARALLEL)),
        }
    }

    /// A place for one more stream, if there may be one.
    pub(super) fn place(self: &Arc<Self>, stream: Stream) -> Option<Place> {
        if let Some((open, most)) = self.places(stream) {
            let one_more = |count: usize| (count < most).then_some(count + 1);
            open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        }
        self.metrics.began(stream);
        Some(Place {
            session: Arc::clone(self),
            stream,
        })
    }

    /// Makes a new control channel the one that counts: the one before it ends.
    pub(super) fn take_control(&self) -> CancellationToken {
        let mine = self.closed.child_token();
        std::mem::replace(&mut *lock(&self.control), mine.clone()).cancel();
        mine
    }

    /// Bytes went to the other side.
    pub(super) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.metrics.sent.inc_by(bytes as u64);
        self.changes.more_bytes();
    }

    /// Bytes came from the other side.
    pub(super) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.metrics.received.inc_by(bytes as u64);
        self.changes.more_bytes();
    }

    /// The session as agents are told of it.
    pub(super) fn state(&self) -> SessionState {
        let facts = self.facts.borrow().clone();
        let SessionSpec {
            migration,
            role,
            pod_uid,
            domain,
        } = self.spec.clone();
        SessionState {
            migration,
            role,
            pod_uid,
            domain,
            paired: self.peer.borrow().is_some(),
            connected: facts.connected,
            peer_version: facts.peer_version,
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            reply: facts.reply,
            released: match role {
                Role::Source => facts.source.proof(),
                Role::Target => facts.target.release().map(|release| release.proof),
                Role::Unknown => None,
            },
            acknowledged: facts.source.taken_over().is_some(),
            resumed: facts.target.taken_over().is_some(),
            trouble: facts.trouble,
            ended: facts.ended.map(str::to_owned),
            holds_last_call: role == Role::Source && !self.changes.last_call_missed.load(Ordering::Relaxed),
        }
    }
}

/// libvirt says that the guest has left, and has made no last call. A guest that was released before, by another proof,
/// was switched to post-copy, or its libvirtd was lost.
fn is_missed(proof: Proof, facts: &Facts) -> bool {
    proof == Proof::SourceStopped && facts.source.proof().is_none() && !facts.last_call
}

/// Takes a lock that a panic elsewhere may have poisoned: what these guard is whole at any time.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_call_is_missed_only_if_libvirt_says_the_guest_left() {
        let released = || {
            let mut facts = Facts::default();
            facts.source.prove(Proof::SourceGone);
            facts
        };
        let called = || Facts {
            last_call: true,
            ..Facts::default()
        };
        for (proof, facts, expected) in [
            (Proof::SourceStopped, Facts::default(), true),
            (Proof::SourceStopped, called(), false),
            (Proof::SourceStopped, released(), false),
            (Proof::SourceGone, Facts::default(), false),
            (Proof::ReplyConsumed, called(), false),
        ] {
            assert_eq!(is_missed(proof, &facts), expected, "{proof:?} {facts:?}");
        }
    }
}
