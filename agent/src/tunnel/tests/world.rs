//! Fixtures of the tests: nodes with tunnels, pods, guests, and a network that can be cut.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileExt, MetadataExt},
            net::UnixListener as StdListener,
        },
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use drydock_core::migration::hand_over::{GuestHere, Proof};
use drydock_host::{
    pod_folder::{PodFolder, PodListener},
    rpc::{CALL, HEADER, Header, REMOTE_PROGRAM, REMOTE_VERSION},
};
use drydock_runtime::Process;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
};

use crate::tunnel::{
    client::TunnelClient,
    guest_access::{GuestAccess, IncomingGuest},
    last_call::GuestLeft,
    listener::PortState,
    local::{Role, SessionSpec, SessionState, TunnelPeer},
    metrics::TunnelMetrics,
    server,
    sessions::{Setting, TunnelSessions},
};

pub(super) const DOMAIN: &str = "default_guest";
const POD: &str = "0a0a0a0a-0000-4000-8000-000000000000";

/// A folder that is removed when dropped.
#[derive(Debug)]
pub(super) struct TestFolder(pub(super) PathBuf);

impl TestFolder {
    pub(super) fn new() -> Self {
        Self(nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-tunnel-XXXXXX")).unwrap())
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A guest whose state is set by the test.
#[derive(Clone, Debug)]
pub(super) struct FakeGuest {
    state: watch::Sender<GuestHere>,
    resumed: Arc<AtomicUsize>,
    left: Arc<Mutex<GuestLeft>>,
    /// Number of state queries to the libvirt of the guest's source.
    queries: watch::Sender<usize>,
    /// Number of attempts to resume the guest that fail.
    pub(super) failures: Arc<AtomicUsize>,
    /// Whether the node's agent resumes the guest just before the tunnel does.
    pub(super) agent_is_faster: Arc<AtomicBool>,
}

impl FakeGuest {
    fn new() -> Self {
        Self {
            state: watch::channel(GuestHere::Absent).0,
            resumed: Arc::default(),
            left: Arc::new(Mutex::new(GuestLeft::MayReturn)),
            queries: watch::channel(0).0,
            failures: Arc::default(),
            agent_is_faster: Arc::default(),
        }
    }

    pub(super) fn becomes(&self, state: GuestHere) {
        self.state.send_replace(state);
    }

    /// Sets the state that the libvirt of the guest's source reports.
    pub(super) fn leaves(&self, left: GuestLeft) {
        *self.left.lock() = left;
    }

    /// Waits until the libvirt of the guest's source has been queried.
    pub(super) async fn until_queried(&self) {
        self.queries.subscribe().wait_for(|queries| *queries > 0).await.unwrap();
    }

    /// Returns the number of times that the guest was resumed.
    pub(super) fn resumed(&self) -> usize {
        self.resumed.load(Ordering::SeqCst)
    }
}

struct FakeConnection {
    guest: FakeGuest,
    state: watch::Receiver<GuestHere>,
}

impl IncomingGuest for FakeConnection {
    fn state(&mut self) -> BoxFuture<'_, GuestHere> {
        Box::pin(async { *self.state.borrow_and_update() })
    }

    fn changed(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.state.changed().await.unwrap();
        })
    }

    fn resume(&mut self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            let fails = |count: usize| count.checked_sub(1);
            if self
                .guest
                .failures
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails)
                .is_ok()
            {
                // A pod's libvirtd may respond with an error of megabytes, which is longer than a line to the agent.
                return Err("not now ".repeat(1 << 18));
            }
            if self.guest.agent_is_faster.load(Ordering::SeqCst) {
                self.guest.state.send_replace(GuestHere::HasRun);
                return Err("domain is already running".to_owned());
            }
            assert_eq!(
                *self.state.borrow(),
                GuestHere::Complete,
                "only a complete guest is resumed"
            );
            self.guest.resumed.fetch_add(1, Ordering::SeqCst);
            self.guest.state.send_replace(GuestHere::HasRun);
            Ok(())
        })
    }
}

/// Guests by domain, created on first use.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeGuests(Arc<Mutex<BTreeMap<String, FakeGuest>>>);

impl FakeGuests {
    pub(super) fn of(&self, domain: &str) -> FakeGuest {
        let mut guests = self.0.lock();
        guests.entry(domain.to_owned()).or_insert_with(FakeGuest::new).clone()
    }
}

impl GuestAccess for FakeGuests {
    fn incoming(&self, _: &PodFolder, domain: &str) -> Box<dyn IncomingGuest> {
        let guest = self.of(domain);
        let state = guest.state.subscribe();
        Box::new(FakeConnection { guest, state })
    }

    fn leaving<'a>(&'a self, _: &'a PodFolder, domain: &'a str) -> BoxFuture<'a, GuestLeft> {
        Box::pin(async {
            let guest = self.of(domain);
            let left = *guest.left.lock();
            guest.queries.send_modify(|queries| *queries += 1);
            left
        })
    }
}

/// A node with one tunnel.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) process: Process,
    pub(super) client: TunnelClient,
    pub(super) guests: FakeGuests,
    pub(super) metrics: TunnelMetrics,
    pub(super) address: SocketAddr,
    pub(super) folder: Arc<TestFolder>,
    pub(super) owner: u32,
}

impl Node {
    pub(super) async fn new() -> Self {
        Self::with(|port| port).await
    }

    /// Creates a node whose port is modified by `limit`.
    pub(super) async fn with(limit: impl FnOnce(PortState) -> PortState) -> Self {
        drydock_runtime::install_crypto();
        let folder = Arc::new(TestFolder::new());
        fs::create_dir(folder.0.join("pods")).unwrap();
        Self::on(folder, "own", limit).await
    }

    /// Creates another tunnel on the same node.
    pub(super) async fn on(folder: Arc<TestFolder>, name: &str, limit: impl FnOnce(PortState) -> PortState) -> Self {
        let owner = fs::metadata(&folder.0).unwrap().uid();
        let process = Process::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (guests, metrics) = (FakeGuests::default(), TunnelMetrics::default());
        let setting = Setting {
            kubelet: folder.0.clone(),
            address,
            owner,
            guests: Arc::new(guests.clone()),
            metrics: metrics.clone(),
        };
        let sessions = TunnelSessions::new(setting, &process);
        let port = limit(PortState::new(&sessions, &process));
        process.spawn("port", port.accept(listener));
        let sockets = folder.0.join("tunnels");
        server::serve(&sessions, &sockets, name, &process).unwrap();
        let client = TunnelClient::connect(&sockets.join(format!("{name}.sock")))
            .await
            .unwrap();
        Self {
            process,
            client,
            guests,
            metrics,
            address,
            folder,
            owner,
        }
    }

    pub(super) fn spec(&self, migration: &str, role: Role) -> SessionSpec {
        let pod = Pod::new(self, POD);
        SessionSpec {
            migration: migration.to_owned(),
            role,
            pod_uid: pod.uid,
            domain: DOMAIN.to_owned(),
        }
    }

    pub(super) fn pod(&self) -> Pod {
        Pod::new(self, POD)
    }

    /// Waits until the state of a migration's session satisfies `wanted`.
    pub(super) async fn until(&self, migration: &str, wanted: impl Fn(&SessionState) -> bool) -> SessionState {
        let mut sessions = self.client.sessions();
        let found = |states: &Vec<SessionState>| states.iter().find(|state| state.migration == migration).cloned();
        let found_state = sessions
            .wait_for(|states| found(states).is_some_and(|state| wanted(&state)))
            .await;
        found(&found_state.unwrap()).unwrap()
    }

    pub(super) fn state(&self, migration: &str) -> Option<SessionState> {
        let sessions = self.client.sessions();
        let states = sessions.borrow();
        states.iter().find(|state| state.migration == migration).cloned()
    }
}

/// A launcher pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) uid: String,
    pub(super) folder: PodFolder,
    owner: u32,
}

impl Pod {
    pub(super) fn new(node: &Node, uid: &str) -> Self {
        let volume = node
            .folder
            .0
            .join("pods")
            .join(uid)
            .join("volumes/kubernetes.io~empty-dir/run");
        fs::create_dir_all(volume).unwrap();
        Self {
            uid: uid.to_owned(),
            folder: PodFolder::new(&node.folder.0, uid, "run").unwrap(),
            owner: node.owner,
        }
    }

    /// Listens on a socket like the libvirt or QEMU of a target.
    pub(super) fn listen(&self, path: &str) -> (UnixListener, PodListener) {
        let socket = self.folder.listen(path, self.owner).unwrap();
        let listener: StdListener = socket.listener().unwrap();
        (UnixListener::from_std(listener).unwrap(), socket)
    }

    /// Connects to a socket like the libvirt or QEMU of a source.
    pub(super) async fn connect(&self, path: &str) -> UnixStream {
        let socket = self.folder.open_socket(path).unwrap();
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))
            .await
            .unwrap()
    }
}

/// Two nodes between which a guest can migrate.
#[derive(Debug)]
pub(super) struct TunnelWorld {
    pub(super) source: Node,
    pub(super) target: Node,
}

impl TunnelWorld {
    pub(super) async fn new() -> Self {
        Self {
            source: Node::new().await,
            target: Node::new().await,
        }
    }

    /// Prepares and pairs both sides. The source dials the target at `address`, or at the target's own address if it is
    /// `None`.
    pub(super) async fn pair(&self, migration: &str, address: Option<SocketAddr>) {
        let target = self
            .target
            .client
            .prepare(self.target.spec(migration, Role::Target))
            .await
            .unwrap();
        let source = self
            .source
            .client
            .prepare(self.source.spec(migration, Role::Source))
            .await
            .unwrap();
        let peer = TunnelPeer {
            fingerprint: source.fingerprint,
            address: None,
        };
        self.target.client.pair(migration, peer).await.unwrap();
        let peer = TunnelPeer {
            fingerprint: target.fingerprint,
            address: Some(address.map_or(target.address, |address| address.to_string())),
        };
        self.source.client.pair(migration, peer).await.unwrap();
    }

    /// Releases the guest at the source.
    pub(super) async fn release(&self, migration: &str, proof: Proof) {
        self.source.client.release(migration, proof).await.unwrap();
    }

    /// Returns the guest that arrives at the target.
    pub(super) fn guest(&self) -> FakeGuest {
        self.target.guests.of(DOMAIN)
    }
}

/// A network link. It cuts only its first connection, after a number of bytes in both directions together.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) address: SocketAddr,
    /// Number of connections so far.
    pub(super) connections: Arc<AtomicU64>,
    _task: JoinSet<()>,
}

impl Network {
    pub(super) async fn new(to: SocketAddr, cut_after: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU64::new(0));
        let mut task = JoinSet::new();
        let count = Arc::clone(&connections);
        task.spawn(async move {
            let mut carried = JoinSet::new();
            loop {
                let (from, _) = listener.accept().await.unwrap();
                let most = if count.fetch_add(1, Ordering::SeqCst) == 0 {
                    cut_after
                } else {
                    u64::MAX
                };
                carried.spawn(pass(from, to, most));
            }
        });
        Self {
            address,
            connections,
            _task: task,
        }
    }
}

async fn pass(mut from: TcpStream, to: SocketAddr, most: u64) {
    let mut to = TcpStream::connect(to).await.unwrap();
    let mut left = most;
    let (mut there, mut back) = ([0; 4096], [0; 4096]);
    while left > 0 {
        let (read, out) = tokio::select! {
            read = from.read(&mut there) => (read.map(|length| &there[..length]), &mut to),
            read = to.read(&mut back) => (read.map(|length| &back[..length]), &mut from),
        };
        let Ok(bytes) = read else { return };
        let allowed = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= allowed as u64;
        if bytes.is_empty() || out.write_all(&bytes[..allowed]).await.is_err() {
            return;
        }
    }
}

/// Returns pseudo-random bytes. The same seed gives the same bytes.
pub(super) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Wraps the bytes as arguments of calls with which a libvirt prepares migrations.
///
/// The calls are `REMOTE_PROC_DOMAIN_MIGRATE_PREPARE3_PARAMS`, with at most one MiB each.
pub(super) fn frames(bytes: &[u8]) -> Vec<u8> {
    let one = |body: &[u8]| {
        let header = Header {
            length: u32::try_from(HEADER + body.len()).unwrap(),
            program: REMOTE_PROGRAM,
            version: REMOTE_VERSION,
            procedure: 303,
            kind: CALL,
            serial: 1,
            status: 0,
        };
        [&header.to_bytes()[..], body].concat()
    };
    if bytes.is_empty() {
        return one(bytes);
    }
    bytes.chunks(1 << 20).flat_map(one).collect()
}

/// Creates a file with this content, for tests in which a file has the path of a socket.
pub(super) fn write(path: &PathBuf, content: &[u8]) {
    fs::File::create(path).unwrap().write_all_at(content, 0).unwrap();
}
