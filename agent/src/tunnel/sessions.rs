//! All sessions of the process. Agents' calls create, pair and close them, and their states are reported to agents.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use drydock_api::launcher::{
    MIGRATION_DISKS_SOCKET, MIGRATION_LIBVIRT_SOCKET, MIGRATION_MEMORY_SOCKET, RUN_VOLUME, UID,
};
use drydock_core::migration::hand_over::{HandOverRefusal, Proof};
use drydock_host::pod_folder::{FolderError, PodFolder, PodListener};
use drydock_runtime::{CancellationToken, Process, clock::Instant};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::info;

use super::{
    dialer,
    guest_access::GuestAccess,
    identity::{CertificateFingerprint, SessionIdentity},
    local::{CallResult, Prepared, Role, SessionSpec, SessionState, TunnelCall, TunnelPeer},
    metrics::TunnelMetrics,
    session::{Paired, SessionChanges, TunnelSession},
    stream_header::StreamContent,
    take_over,
    tunnel_refusal::CallRefusal,
};

/// Maximum number of sessions at a time.
const MOST: usize = 64;

/// Minimum interval between two reports of changed byte counts to agents.
const BYTES_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The settings and resources that all sessions of a process share.
#[derive(Debug)]
pub(super) struct Setting {
    /// Root folder of the kubelet.
    pub(super) kubelet: PathBuf,
    /// Address at which this tunnel listens.
    pub(super) address: SocketAddr,
    /// UID of the processes in launcher pods.
    pub(super) owner: u32,
    /// Access to guests.
    pub(super) guests: Arc<dyn GuestAccess>,
    /// Metrics of the tunnel.
    pub(super) metrics: TunnelMetrics,
}

impl Setting {
    /// Returns the UID of the processes in all launcher pods.
    pub(super) fn launcher_user() -> u32 {
        u32::try_from(UID).unwrap_or_default()
    }
}

/// Table of sessions. Clones share the table.
#[derive(Clone, Debug)]
pub(super) struct TunnelSessions(Arc<SessionTable>);

#[derive(Debug)]
struct SessionTable {
    setting: Setting,
    process: Process,
    table: Mutex<BTreeMap<String, Arc<TunnelSession>>>,
    changes: Arc<SessionChanges>,
    published: watch::Sender<Vec<SessionState>>,
    /// Token that is cancelled when the process is stopping and its last session has ended.
    drained: CancellationToken,
}

impl TunnelSessions {
    /// Creates an empty table. Changes are reported until the process has drained.
    pub(super) fn new(setting: Setting, process: &Process) -> Self {
        let sessions = Self(Arc::new(SessionTable {
            setting,
            process: process.clone(),
            table: Mutex::default(),
            changes: Arc::default(),
            published: watch::channel(Vec::new()).0,
            drained: CancellationToken::new(),
        }));
        process.spawn("reporting sessions", sessions.clone().report_changes());
        sessions
    }

    /// Returns a receiver for the states of the sessions, in the form that agents receive.
    pub(super) fn published(&self) -> watch::Receiver<Vec<SessionState>> {
        self.0.published.subscribe()
    }

    /// Returns a token that is cancelled when the process is stopping and its last session has ended.
    pub(super) fn drained(&self) -> CancellationToken {
        self.0.drained.clone()
    }

    /// Returns the session of a migration.
    pub(super) fn get(&self, migration: &str) -> Option<Arc<TunnelSession>> {
        self.0.table.lock().get(migration).cloned()
    }

    /// Returns the metrics.
    pub(super) fn metrics(&self) -> &TunnelMetrics {
        &self.0.setting.metrics
    }

    /// Executes an agent's call.
    ///
    /// # Errors
    /// If the call is refused.
    pub(super) fn call(&self, call: TunnelCall) -> Result<CallResult, CallRefusal> {
        match call {
            TunnelCall::Prepare(spec) => return self.prepare(spec).map(CallResult::Prepared),
            TunnelCall::Pair { migration, peer } => self.pair(&migration, &peer)?,
            TunnelCall::KeepPaused { migration, keep_paused } => {
                self.source(&migration)?
                    .update(|facts| facts.source.keep_paused(keep_paused))?;
            }
            TunnelCall::Release { migration, proof } => self.release(&migration, proof)?,
            TunnelCall::Close { migration } => self.close(&migration),
        }
        Ok(CallResult::Done {})
    }

    fn prepare(&self, spec: SessionSpec) -> Result<Prepared, CallRefusal> {
        if let Some(session) = self.get(&spec.migration) {
            if session.spec == spec {
                return Ok(self.prepared(&session));
            }
            return Err(CallRefusal::OtherSession(spec.migration));
        }
        if self.0.process.stopping().is_cancelled() {
            return Err(CallRefusal::Draining);
        }
        // The UID becomes a label of a DNS name.
        let is_uid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        if !(1..=63).contains(&spec.migration.len()) || !spec.migration.bytes().all(is_uid) {
            return Err(CallRefusal::BadMigration(spec.migration.chars().take(100).collect()));
        }
        if self.0.table.lock().len() >= MOST {
            return Err(CallRefusal::TooManySessions(MOST));
        }
        let folder = PodFolder::new(&self.0.setting.kubelet, &spec.pod_uid, RUN_VOLUME)?;
        let sockets = match spec.role {
            Role::Source => self.sockets(&folder)?,
            Role::Target => Vec::new(),
            Role::Unknown => return Err(CallRefusal::UnknownRole),
        };
        let identity = SessionIdentity::new(&spec.migration)?;
        info!(
            migration_uid = spec.migration,
            role = spec.role.as_str(),
            pod = spec.pod_uid,
            domain = spec.domain,
            fingerprint = %identity.fingerprint(),
            "session prepared"
        );
        let migration = spec.migration.clone();
        let changes = Arc::clone(&self.0.changes);
        let guests = Arc::clone(&self.0.setting.guests);
        let session = TunnelSession::new(spec, folder, identity, sockets, guests, self.metrics().clone(), changes);
        let session = Arc::new(session);
        let prepared = self.prepared(&session);
        self.0.table.lock().insert(migration, session);
        self.changed();
        Ok(prepared)
    }

    /// Creates the sockets of a source in its pod, for libvirt and QEMU.
    fn sockets(&self, folder: &PodFolder) -> Result<Vec<(StreamContent, PodListener)>, FolderError> {
        [
            (StreamContent::Libvirt, MIGRATION_LIBVIRT_SOCKET),
            (StreamContent::Memory(0), MIGRATION_MEMORY_SOCKET),
            (StreamContent::Disks(0), MIGRATION_DISKS_SOCKET),
        ]
        .into_iter()
        .map(|(stream, path)| Ok((stream, folder.listen(path, self.0.setting.owner)?)))
        .collect()
    }

    fn prepared(&self, session: &TunnelSession) -> Prepared {
        Prepared {
            fingerprint: session.identity.fingerprint().to_string(),
            address: self.0.setting.address.to_string(),
        }
    }

    fn pair(&self, migration: &str, peer: &TunnelPeer) -> Result<(), CallRefusal> {
        let session = self.session(migration)?;
        let bad = |message: String| CallRefusal::BadPeer(message);
        let fingerprint: CertificateFingerprint = peer.fingerprint.parse().map_err(|error| {
            let shown: String = peer.fingerprint.chars().take(100).collect();
            bad(format!("the peer's fingerprint {shown:?} is invalid: {error}"))
        })?;
        let paired = match session.spec.role {
            Role::Unknown => return Err(CallRefusal::UnknownRole),
            Role::Target => {
                let tls = session.identity.server(fingerprint)?;
                Paired::Source { tls }
            }
            Role::Source => {
                let text = peer.address.as_deref().unwrap_or_default();
                let address = text.parse().map_err(|_| {
                    let shown: String = text.chars().take(100).collect();
                    bad(format!(
                        "the peer's address is {shown:?}, which is not an IP address with a port"
                    ))
                })?;
                let tls = session.identity.client(fingerprint)?;
                Paired::Target { address, tls }
            }
        };
        if let Some((known, before)) = session.peer() {
            let same_address = match (&before, &paired) {
                (Paired::Target { address: before, .. }, Paired::Target { address: now, .. }) => before == now,
                _ => true,
            };
            return if known == fingerprint && same_address {
                Ok(())
            } else {
                Err(CallRefusal::OtherPeer(migration.to_owned()))
            };
        }
        match paired.clone() {
            Paired::Target { address, tls } => dialer::start(&session, address, &tls, &self.0.process)?,
            Paired::Source { .. } => take_over::start(&session, &self.0.process),
        }
        info!(migration_uid = migration, peer = %fingerprint, "session paired");
        session.paired(fingerprint, paired);
        Ok(())
    }

    fn release(&self, migration: &str, proof: Proof) -> Result<(), CallRefusal> {
        let session = self.source(migration)?;
        if proof == Proof::Unknown {
            return Err(HandOverRefusal::NotUnderstood.into());
        }
        info!(
            migration_uid = migration,
            proof = proof.as_str(),
            "guest released by the agent"
        );
        session.check_last_call(proof);
        session.prove(proof, |_| ());
        Ok(())
    }

    fn close(&self, migration: &str) {
        let session = self.0.table.lock().remove(migration);
        if let Some(session) = session {
            info!(migration_uid = migration, "session closed");
            session.closed.cancel();
            // Removes the sockets that no task has taken over at once.
            session.sockets.lock().clear();
            self.changed();
        }
    }

    fn session(&self, migration: &str) -> Result<Arc<TunnelSession>, CallRefusal> {
        let no_session = || CallRefusal::NoSession(migration.chars().take(100).collect());
        self.get(migration).ok_or_else(no_session)
    }

    fn source(&self, migration: &str) -> Result<Arc<TunnelSession>, CallRefusal> {
        let session = self.session(migration)?;
        match session.spec.role {
            Role::Source => Ok(session),
            Role::Target | Role::Unknown => Err(CallRefusal::NotSource(migration.to_owned())),
        }
    }

    fn changed(&self) {
        self.metrics()
            .sessions
            .set(i64::try_from(self.0.table.lock().len()).unwrap_or(i64::MAX));
        self.0.changes.facts.notify_one();
    }

    /// Updates the reported states. Returns whether any state has changed.
    pub(super) fn publish_states(&self) -> bool {
        self.0.changes.mark_reported();
        let states: Vec<SessionState> = self.0.table.lock().values().map(|session| session.state()).collect();
        self.0.published.send_if_modified(|published| {
            let changed = *published != states;
            *published = states;
            changed
        })
    }

    /// Reports changes until the process has drained.
    async fn report_changes(self) {
        let (changes, stopping) = (&self.0.changes, self.0.process.stopping());
        let mut bytes_at = Instant::now();
        let mut more_bytes = false;
        loop {
            tokio::select! {
                () = changes.facts.notified() => {}
                () = changes.bytes.notified(), if !more_bytes => {
                    more_bytes = true;
                    continue;
                }
                () = tokio::time::sleep_until(bytes_at), if more_bytes => {}
                () = stopping.cancelled(), if !self.0.drained.is_cancelled() && self.is_empty() => {
                    self.publish_states();
                    self.0.drained.cancel();
                    // The tasks of sessions that have already ended, but were not closed by an agent, end too.
                    self.0.table.lock().values().for_each(|session| session.closed.cancel());
                    return;
                }
            }
            more_bytes = false;
            bytes_at = Instant::now() + BYTES_REPORT_INTERVAL;
            self.publish_states();
            // Returns to the operating system the memory that the last session needed.
            if self.0.table.lock().is_empty() {
                drydock_host::memory::trim();
            }
        }
    }

    /// Returns whether no session carries streams any more.
    fn is_empty(&self) -> bool {
        let table = self.0.table.lock();
        table.values().all(|session| session.facts().borrow().ended.is_some())
    }
}
