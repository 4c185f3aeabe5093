//! One side of a migration: its purpose, its state, and the number of carried bytes.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use drydock_api::launcher::MIGRATION_LEFT_FILE;
use drydock_core::migration::hand_over::{Proof, SourceSide, TargetSide};
use drydock_host::pod_folder::{PodFolder, PodListener};
use drydock_runtime::{CancellationToken, chain};
use parking_lot::Mutex;
use rustls::{ClientConfig, ServerConfig};
use tokio::sync::{Notify, watch};
use tracing::{Span, info, info_span, warn};

use super::{
    guest_access::GuestAccess,
    identity::{CertificateFingerprint, SessionIdentity},
    local::{ReplyProgress, Role, SessionSpec, SessionState},
    metrics::TunnelMetrics,
    stream_header::StreamContent,
};

/// Maximum number of simultaneous memory connections of a session, and of disk connections.
///
/// QEMU opens one connection for the memory, and libvirt opens one for each disk.
const PARALLEL: usize = 32;
/// Maximum number of characters of a session's current problem. Agents read all sessions of a tunnel in one line of
/// limited size ([`LINE`](super::local::LINE)), and a pod or the other node may have caused the text.
const MAX_TROUBLE: usize = 1000;

/// The part of a session's state that changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionFacts {
    /// Whether the control channel is open and the other side has responded.
    pub(super) connected: bool,
    /// Protocol version of the other side's control channel; `None` before its first message with a version.
    pub(super) peer_version: Option<u16>,
    /// Source: whether libvirt has sent its last call.
    pub(super) last_call: bool,
    /// Progress of the last reply.
    pub(super) reply: ReplyProgress,
    /// The source's view of the hand-over.
    pub(super) source: SourceSide,
    /// The target's view of the hand-over.
    pub(super) target: TargetSide,
    /// The current problem.
    pub(super) trouble: Option<String>,
    /// Reason why the session no longer carries streams.
    pub(super) ended: Option<&'static str>,
}

/// Notifications of changes, for the task that reports to the agents.
#[derive(Debug, Default)]
pub(super) struct SessionChanges {
    /// Notification of a change that must be reported at once.
    pub(super) facts: Notify,
    /// Notification of new byte counts, whose report can wait.
    pub(super) bytes: Notify,
    bytes_reported: AtomicBool,
    /// Whether a guest has left without a last call that this process has observed.
    last_call_missed: AtomicBool,
}

impl SessionChanges {
    fn more_bytes(&self) {
        if !self.bytes_reported.swap(true, Ordering::Relaxed) {
            self.bytes.notify_one();
        }
    }

    /// Marks the byte counts as reported. The next bytes notify again.
    pub(super) fn mark_reported(&self) {
        self.bytes_reported.store(false, Ordering::Relaxed);
    }
}

/// The other side of a session.
#[derive(Clone, Debug)]
pub(super) enum Paired {
    /// The target, which this side dials.
    Target {
        /// Address and port of the target.
        address: SocketAddr,
        /// TLS configuration for dialling the target.
        tls: Arc<ClientConfig>,
    },
    /// The source, which dials this side.
    Source {
        /// TLS configuration for accepting connections of the source.
        tls: Arc<ServerConfig>,
    },
}

/// Number of open streams of each kind that has a limit.
#[derive(Debug, Default)]
struct OpenStreams {
    libvirt: AtomicUsize,
    memory: AtomicUsize,
    disks: AtomicUsize,
}

/// Permit of an open stream, which counts against the limit of its session until dropped.
#[derive(Debug)]
pub(super) struct StreamPermit {
    session: Arc<TunnelSession>,
    stream: StreamContent,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        if let Some((open, _)) = self.session.places(self.stream) {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One side of a migration in this tunnel.
#[derive(Debug)]
pub(super) struct TunnelSession {
    /// Migration, role, pod and domain of the session.
    pub(super) spec: SessionSpec,
    /// Folder of the pod.
    pub(super) folder: PodFolder,
    /// Identity of this side.
    pub(super) identity: SessionIdentity,
    /// Access to the guest.
    pub(super) guests: Arc<dyn GuestAccess>,
    /// Metrics of the tunnel.
    pub(super) metrics: TunnelMetrics,
    /// Token that is cancelled when the session is closed or ended.
    pub(super) closed: CancellationToken,
    /// Sockets of a source in the pod, until a task takes them over.
    pub(super) sockets: Mutex<Vec<(StreamContent, PodListener)>>,
    facts: watch::Sender<SessionFacts>,
    changes: Arc<SessionChanges>,
    peer: watch::Sender<Option<(CertificateFingerprint, Paired)>>,
    open: OpenStreams,
    /// Token of the current control channel. A newer channel replaces it.
    control: Mutex<CancellationToken>,
    sent: AtomicU64,
    received: AtomicU64,
}

impl TunnelSession {
    /// Returns the span of the work for this session, so that one query finds all logs of a migration.
    pub(super) fn span(&self) -> Span {
        info_span!("session", migration_uid = self.spec.migration)
    }

    /// Creates a session without a peer.
    pub(super) fn new(
        spec: SessionSpec,
        folder: PodFolder,
        identity: SessionIdentity,
        sockets: Vec<(StreamContent, PodListener)>,
        guests: Arc<dyn GuestAccess>,
        metrics: TunnelMetrics,
        changes: Arc<SessionChanges>,
    ) -> Self {
        Self {
            spec,
            folder,
            identity,
            guests,
            metrics,
            closed: CancellationToken::new(),
            sockets: Mutex::new(sockets),
            facts: watch::channel(SessionFacts::default()).0,
            changes,
            peer: watch::channel(None).0,
            open: OpenStreams::default(),
            control: Mutex::default(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Returns a receiver of the facts and their changes.
    pub(super) fn facts(&self) -> watch::Receiver<SessionFacts> {
        self.facts.subscribe()
    }

    /// Changes the facts, and notifies all receivers if they differ afterwards.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut SessionFacts) -> T) -> T {
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
            None => unreachable!("the change is applied before the function returns"),
        }
    }

    /// Records the proof that the guest continues on the target and can never resume at this source.
    pub(super) fn prove(&self, proof: Proof, more: impl FnOnce(&mut SessionFacts)) {
        self.update(|facts| {
            more(facts);
            facts.source.prove(proof);
        });
        // The guest is not reported as crashed, whatever remains of it on this node and however that ends.
        if let Err(error) = self.folder.mark(MIGRATION_LEFT_FILE) {
            info!(
                migration_uid = self.spec.migration,
                error = %chain(&error),
                "the pod could not be notified that its guest has left"
            );
        }
    }

    /// Ends the session: no streams are carried any more, and the other side is notified.
    pub(super) fn end(&self, reason: &'static str, message: String) {
        warn!(
            migration_uid = self.spec.migration,
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

    /// Checks whether libvirt's last call was observed, given a proof from libvirt's state that the guest has left.
    ///
    /// If this process has not observed the last call of that migration, it does not understand this libvirt. From then
    /// on, the sessions of this process report that they do not hold the last call, so no migration that starts later
    /// is switched to post-copy.
    pub(super) fn check_last_call(&self, proof: Proof) {
        let facts = self.facts.borrow().clone();
        if !is_missed(proof, &facts) {
            return;
        }
        warn!(
            migration_uid = self.spec.migration,
            "a guest has left, but this tunnel has seen no last call of its libvirt: \
             from now on, guests on this node are not switched to post-copy"
        );
        self.metrics.missed.inc();
        self.changes.last_call_missed.store(true, Ordering::Relaxed);
        self.changes.facts.notify_one();
    }

    /// Returns the peer, if it is known.
    pub(super) fn peer(&self) -> Option<(CertificateFingerprint, Paired)> {
        self.peer.borrow().clone()
    }

    /// Waits for the peer and returns it; `None` if the session is closed first.
    pub(super) async fn peer_when_known(&self) -> Option<(CertificateFingerprint, Paired)> {
        let mut peer = self.peer.subscribe();
        let known = peer.wait_for(Option::is_some);
        self.closed.run_until_cancelled(known).await?.ok()?.clone()
    }

    /// Sets the peer.
    pub(super) fn paired(&self, fingerprint: CertificateFingerprint, peer: Paired) {
        self.peer.send_replace(Some((fingerprint, peer)));
        self.changes.facts.notify_one();
    }

    fn places(&self, stream: StreamContent) -> Option<(&AtomicUsize, usize)> {
        match stream {
            StreamContent::Control => None,
            StreamContent::Libvirt => Some((&self.open.libvirt, 1)),
            StreamContent::Memory(_) => Some((&self.open.memory, PARALLEL)),
            StreamContent::Disks(_) => Some((&self.open.disks, PARALLEL)),
        }
    }

    /// Reserves capacity for one more stream; `None` if the limit is reached.
    pub(super) fn place(self: &Arc<Self>, stream: StreamContent) -> Option<StreamPermit> {
        if let Some((open, most)) = self.places(stream) {
            let one_more = |count: usize| (count < most).then_some(count + 1);
            open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        }
        self.metrics.began(stream);
        Some(StreamPermit {
            session: Arc::clone(self),
            stream,
        })
    }

    /// Registers a new control channel as the current one, and ends the previous one.
    pub(super) fn take_control(&self) -> CancellationToken {
        let mine = self.closed.child_token();
        std::mem::replace(&mut *self.control.lock(), mine.clone()).cancel();
        mine
    }

    /// Counts bytes sent to the other side.
    pub(super) fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.metrics.sent.inc_by(bytes as u64);
        self.changes.more_bytes();
    }

    /// Counts bytes received from the other side.
    pub(super) fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        self.metrics.received.inc_by(bytes as u64);
        self.changes.more_bytes();
    }

    /// Returns the state of the session in the form that agents receive.
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
            keep_paused: facts.source.keeps_paused(),
            acknowledged: facts.source.taken_over().is_some(),
            resumed: facts.target.taken_over().is_some(),
            trouble: facts.trouble.map(|text| text.chars().take(MAX_TROUBLE).collect()),
            ended: facts.ended.map(str::to_owned),
            holds_last_call: role == Role::Source && !self.changes.last_call_missed.load(Ordering::Relaxed),
        }
    }
}

/// Returns whether a last call was missed: libvirt reports that the guest has left, but no last call was observed.
///
/// A guest that was released earlier with another proof does not count: it was switched to post-copy, or its libvirtd
/// was lost.
fn is_missed(proof: Proof, facts: &SessionFacts) -> bool {
    proof == Proof::SourceStopped && facts.source.proof().is_none() && !facts.last_call
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_call_is_missed_only_if_libvirt_reports_guest_left() {
        let released = || {
            let mut facts = SessionFacts::default();
            facts.source.prove(Proof::SourceGone);
            facts
        };
        let called = || SessionFacts {
            last_call: true,
            ..SessionFacts::default()
        };
        for (proof, facts, expected) in [
            (Proof::SourceStopped, SessionFacts::default(), true),
            (Proof::SourceStopped, called(), false),
            (Proof::SourceStopped, released(), false),
            (Proof::SourceGone, SessionFacts::default(), false),
            (Proof::ReplyConsumed, called(), false),
        ] {
            assert_eq!(is_missed(proof, &facts), expected, "{proof:?} {facts:?}");
        }
    }
}
