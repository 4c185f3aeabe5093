//! Test environment of one side of a migration: a fake API server, an in-memory libvirt, and a fake tunnel.

use std::{fs, path::PathBuf, sync::Arc};

use drydock_api::kubevirt::VirtualMachineInstanceMigration;
use drydock_core::mask::MaskedModels;
use drydock_host::fake::{fake_guest::FakeLibvirt, tcg_node};
use drydock_runtime::{
    Process,
    fake::{ApiServer, ReceivedRequest, api_server},
};
use futures::{SinkExt, StreamExt};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_util::codec::{Framed, LinesCodec};

use super::SideState;
use crate::{
    guests::{Host, TaskContext},
    tunnel::{
        local::{
            CallResult, LINE, Prepared, ReplyProgress, Role, ServerMessage, SessionState, TunnelCall, TunnelRequest,
        },
        tunnels::Tunnels,
    },
};

pub(super) const UID: &str = "m";
pub(super) const DOMAIN: &str = "shop_web";
const STATUS: &str = "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstancemigrations/move/status";

/// Fake tunnel of this node. Clones share its state.
#[derive(Clone, Default)]
pub(super) struct FakeTunnel {
    sessions: Arc<Mutex<Vec<SessionState>>>,
    calls: Arc<Mutex<Vec<TunnelCall>>>,
    refuses: Arc<Mutex<bool>>,
    changed: Arc<Notify>,
}

impl FakeTunnel {
    /// Serves the connection of one agent.
    async fn serve(self, stream: UnixStream) {
        let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(LINE));
        loop {
            let sessions = ServerMessage::Sessions(self.sessions.lock().clone());
            lines.send(serde_json::to_string(&sessions).unwrap()).await.unwrap();
            tokio::select! {
                () = self.changed.notified() => {}
                line = lines.next() => {
                    let Some(Ok(line)) = line else { return };
                    let TunnelRequest { id, call } = serde_json::from_str(&line).unwrap();
                    let result = self.carry_out(call);
                    let sessions = ServerMessage::Sessions(self.sessions.lock().clone());
                    for message in [sessions, ServerMessage::Response { id, result }] {
                        lines.send(serde_json::to_string(&message).unwrap()).await.unwrap();
                    }
                }
            }
        }
    }

    fn carry_out(&self, call: TunnelCall) -> CallResult {
        self.calls.lock().push(call.clone());
        if *self.refuses.lock() {
            return CallResult::Refused {
                reason: "Draining".into(),
                message: "the tunnel is about to end".into(),
            };
        }
        let mut sessions = self.sessions.lock();
        match call {
            TunnelCall::Prepare(spec) => {
                if sessions.is_empty() {
                    sessions.push(SessionState {
                        migration: spec.migration,
                        role: spec.role,
                        pod_uid: spec.pod_uid,
                        domain: spec.domain,
                        paired: false,
                        connected: false,
                        peer_version: None,
                        sent: 0,
                        received: 0,
                        reply: ReplyProgress::None,
                        released: None,
                        keep_paused: false,
                        acknowledged: false,
                        resumed: false,
                        trouble: None,
                        ended: None,
                        holds_last_call: true,
                    });
                }
                return CallResult::Prepared(Prepared {
                    fingerprint: "0f".repeat(32),
                    address: "10.0.0.1:8444".into(),
                });
            }
            TunnelCall::Pair { .. } => sessions.iter_mut().for_each(|session| session.paired = true),
            TunnelCall::Release { proof, .. } => sessions.iter_mut().for_each(|session| session.released = Some(proof)),
            TunnelCall::Close { .. } => sessions.clear(),
            TunnelCall::KeepPaused { keep_paused, .. } => {
                sessions
                    .iter_mut()
                    .for_each(|session| session.keep_paused = keep_paused);
            }
        }
        CallResult::Done {}
    }

    /// Changes the state of the session, like the other side or libvirt would.
    pub(super) fn change(&self, change: impl FnOnce(&mut SessionState)) {
        change(&mut self.sessions.lock()[0]);
        self.changed.notify_one();
    }

    /// Sets whether the tunnel refuses all calls from now on.
    pub(super) fn refuse(&self, refuses: bool) {
        *self.refuses.lock() = refuses;
    }

    /// Returns the values of all `KeepPaused` calls to the tunnel.
    pub(super) fn kept_paused(&self) -> Vec<bool> {
        let calls = self.calls.lock();
        let values = calls.iter().filter_map(|call| match call {
            TunnelCall::KeepPaused { keep_paused, .. } => Some(*keep_paused),
            _ => None,
        });
        values.collect()
    }

    /// Returns the names of the calls so far. Consecutive equal calls count once.
    pub(super) fn calls(&self) -> Vec<&'static str> {
        let calls = self.calls.lock();
        let mut names: Vec<_> = calls
            .iter()
            .map(|call| match call {
                TunnelCall::Prepare(_) => "prepare",
                TunnelCall::Pair { .. } => "pair",
                TunnelCall::KeepPaused { .. } => "keepPaused",
                TunnelCall::Release { .. } => "release",
                TunnelCall::Close { .. } => "close",
            })
            .collect();
        names.dedup();
        names
    }
}

/// Fakes around a task: the API server with its stored object, the guest's libvirt on this side, and the node's tunnel.
pub(super) struct Around {
    pub(super) server: ApiServer,
    pub(super) libvirt: FakeLibvirt,
    pub(super) tunnel: FakeTunnel,
    pub(super) seen: watch::Sender<SideState>,
    stored: Value,
}

/// Parameters of a task, and the fakes around it.
pub(super) struct Fixture {
    pub(super) shared: TaskContext,
    pub(super) tunnels: Tunnels,
    pub(super) receiver: watch::Receiver<SideState>,
    pub(super) around: Around,
    folder: PathBuf,
    process: Process,
    // Values that end their connections when they are dropped.
    _events: ApiServer,
    _serving: JoinSet<()>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.process.stop();
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// Returns the fixture of one side of a migration whose sides are known. `status` is merged into the migration's
/// status.
pub(super) async fn fixture(status: &Value, role: Role) -> Fixture {
    let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-side-XXXXXX")).unwrap();
    let tunnel = FakeTunnel::default();
    let listener = UnixListener::bind(folder.join("own.sock")).unwrap();
    let mut serving = JoinSet::new();
    let served = tunnel.clone();
    serving.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            served.clone().serve(stream).await;
        }
    });
    let process = Process::new();
    let tunnels = Tunnels::follow(&folder, "own", &process).unwrap();
    let mut sessions = tunnels.sessions();
    sessions
        .wait_for(|known| known.own.is_some() && known.is_complete)
        .await
        .unwrap();
    let ((client, server), (for_events, events)) = (api_server(), api_server());
    let stored = migration(status);
    let pod_uid = if role == Role::Source { "0a" } else { "0b" };
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": format!("virt-launcher-{pod_uid}"), "uid": pod_uid, "resourceVersion": "1"},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let host = Host::of(&tcg_node(), &[].into(), &MaskedModels::default()).unwrap();
    let (seen, receiver) = watch::channel(SideState {
        migration: Arc::new(serde_json::from_value(stored.clone()).unwrap()),
        pod: Some(Arc::new(pod.clone())),
        host: Arc::new(host),
    });
    let shared = TaskContext::fake(client, for_events, pod, folder.clone(), &process);
    Fixture {
        shared,
        tunnels,
        receiver,
        around: Around {
            server,
            libvirt: FakeLibvirt::default(),
            tunnel,
            seen,
            stored,
        },
        folder,
        process,
        _events: events,
        _serving: serving,
    }
}

/// Returns the migration of `web` from node `a` to node `b`. `status` is merged into its status.
fn migration(status: &Value) -> Value {
    let mut migration = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": {"namespace": "shop", "name": "move", "uid": UID, "resourceVersion": "1"},
        "spec": {"vmiName": "web"},
        "status": {
            "phase": "PreparingTarget",
            "source": {"node": "a", "pod": "virt-launcher-0a", "podUID": "0a"},
            "target": {"node": "b", "pod": "virt-launcher-0b", "podUID": "0b"},
            "guest": {"instanceUID": "u", "cpu": {"model": "Nehalem"}, "virtType": "qemu"},
        },
    });
    merge(&mut migration["status"], status);
    migration
}

/// Merges objects recursively. Any other value replaces the existing value.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

impl Around {
    /// Returns the stored migration.
    pub(super) fn stored(&self) -> VirtualMachineInstanceMigration {
        serde_json::from_value(self.stored.clone()).unwrap()
    }

    /// Changes the stored status, and lets the watch show the change.
    pub(super) fn update(&mut self, status: &Value) {
        merge(&mut self.stored["status"], status);
        self.count_up();
        let stored = Arc::new(self.stored());
        self.seen.send_modify(|seen| seen.migration = stored);
    }

    fn count_up(&mut self) {
        let version: u64 = self.stored["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        self.stored["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }

    /// Returns the next request, which must write the status of the migration.
    pub(super) async fn write(&mut self) -> ReceivedRequest {
        let request = self.server.next_request().await;
        assert_eq!((&request.method, request.path()), (&Method::PATCH, STATUS));
        request
    }

    /// Runs `reconciling` while `respond` handles each write.
    pub(super) async fn serve<R>(
        &mut self,
        reconciling: impl Future<Output = R>,
        mut respond: impl FnMut(&mut Self, ReceivedRequest),
    ) -> R {
        tokio::pin!(reconciling);
        loop {
            tokio::select! {
                biased;
                result = &mut reconciling => return result,
                request = self.write() => respond(self, request),
            }
        }
    }

    /// Returns whether the stored status of `side` has this state or this reason.
    pub(super) fn has_reported(&self, side: &str, report: &str) -> bool {
        let reported = &self.stored["status"][side];
        reported["state"] == report || reported["reason"] == report
    }

    /// Stores a write and responds to it. The watch does not show the change.
    pub(super) fn store(&mut self, request: ReceivedRequest) {
        let stored = self.execute(&request);
        request.with(&stored);
    }

    /// Stores the next write, and returns the reported part of `side`. The watch does not show the change.
    pub(super) async fn report(&mut self, side: &str) -> Value {
        let request = self.write().await;
        let reported = request.body["status"][side].clone();
        self.store(request);
        reported
    }

    /// Executes a write and returns the changed migration. The watch does not show the change.
    pub(super) fn execute(&mut self, request: &ReceivedRequest) -> Value {
        merge(&mut self.stored["status"], &request.body["status"]);
        self.count_up();
        self.stored.clone()
    }
}
