//! All tunnels of this node, as an agent sees them.
//!
//! An agent uses the tunnel of the agent's own pod, and the tunnels of older pods that still carry guests.
//!
//! ```text
//!  /var/lib/drydock/tunnels/<pod UID>.sock ─▶ TunnelClient ─▶ sessions ─┐
//!  /var/lib/drydock/tunnels/<pod UID>.sock ─▶ TunnelClient ─▶ sessions ─┴▶ KnownSessions
//! ```

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drydock_runtime::{Backoff, Process, chain};
use tokio::{sync::watch, task::JoinSet};
use tracing::{debug, info, warn};

use super::{
    client::{TunnelClient, TunnelError},
    local::SessionState,
    server::SUFFIX,
};
use crate::folder_watch::FolderWatch;

/// First pause before connecting to a tunnel is retried. The pause doubles with each attempt.
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum pause before connecting to a tunnel is retried.
const AGAIN_AT_MOST: Duration = Duration::from_secs(10);

/// A session, and the tunnel that carries it.
#[derive(Clone, Debug)]
pub(crate) struct KnownSession {
    /// State of the session, as reported by the tunnel.
    pub(crate) state: SessionState,
    /// Client of the tunnel.
    pub(crate) tunnel: TunnelClient,
}

/// All sessions of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownSessions {
    /// Sessions by the UID of the migration.
    pub(crate) sessions: BTreeMap<String, KnownSession>,
    /// Tunnel of this agent's own pod, for new sessions; `None` while it is not connected.
    pub(crate) own: Option<TunnelClient>,
    /// Whether every existing tunnel has reported its sessions. Only then is it certain that an unlisted session does
    /// not exist.
    pub(crate) is_complete: bool,
}

/// Follows the tunnels of this node. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Tunnels {
    known: watch::Receiver<KnownSessions>,
}

impl Tunnels {
    /// Follows the tunnels whose sockets are in `folder`, until the process stops. `own_pod_uid` is the UID of this
    /// agent's pod.
    ///
    /// # Errors
    /// If the folder does not exist and cannot be created, or if the folder cannot be watched.
    pub(crate) fn follow(folder: &Path, own_pod_uid: &str, process: &Process) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let watch = FolderWatch::all(folder)?;
        let (published, known) = watch::channel(KnownSessions::default());
        let follower = TunnelFollower {
            folder: folder.to_owned(),
            own: format!("{own_pod_uid}{SUFFIX}"),
            tunnels: BTreeMap::new(),
            published,
        };
        let stopping = process.stopping();
        process.spawn("tunnels of the node", async move {
            stopping.run_until_cancelled(follower.run(watch)).await;
        });
        Ok(Self { known })
    }

    /// Returns a receiver for the states of all sessions. The channel is closed when the process stops.
    pub(crate) fn sessions(&self) -> watch::Receiver<KnownSessions> {
        self.known.clone()
    }

    /// Returns the tunnel for new sessions; `None` while it is not connected.
    pub(crate) fn own(&self) -> Option<TunnelClient> {
        self.known.borrow().own.clone()
    }

    /// Returns the session of a migration.
    pub(crate) fn session(&self, migration: &str) -> Option<KnownSession> {
        self.known.borrow().sessions.get(migration).cloned()
    }
}

/// State of the connection to a tunnel.
#[derive(Clone, Debug)]
enum Tunnel {
    /// The agent is connecting to the tunnel, or waits before it retries.
    Connecting,
    /// The tunnel reports its sessions.
    Connected(TunnelClient),
}

/// A change in the connection to a tunnel.
enum News {
    Connected(TunnelClient),
    Changed,
    /// The process of the tunnel has ended. Its socket was removed, or was already missing.
    Gone,
}

struct TunnelFollower {
    folder: PathBuf,
    /// Name of the socket of the agent's own tunnel.
    own: String,
    tunnels: BTreeMap<String, Tunnel>,
    published: watch::Sender<KnownSessions>,
}

impl TunnelFollower {
    async fn run(mut self, mut watch: FolderWatch) {
        let (news, mut received) = tokio::sync::mpsc::channel(16);
        let news = Arc::new(news);
        let mut connections = JoinSet::new();
        let mut watching = true;
        loop {
            for name in self.unknown() {
                self.tunnels.insert(name.clone(), Tunnel::Connecting);
                let path = self.folder.join(&name);
                let is_own = name == self.own;
                connections.spawn(follow_one(name, path, is_own, Arc::clone(&news)));
            }
            self.publish();
            tokio::select! {
                happened = watch.next(), if watching => {
                    if let Err(error) = happened {
                        // Without events, new tunnels are found only when a known tunnel reports a change.
                        warn!(error = %chain(&error), "the folder of tunnels can no longer be watched");
                        watching = false;
                    }
                }
                Some((name, news)) = received.recv() => self.note(name, news),
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        warn!(error = %chain(&error), "a tunnel can no longer be followed");
                    }
                }
            }
        }
    }

    fn note(&mut self, name: String, news: News) {
        match news {
            News::Connected(client) => {
                info!(tunnel = name, "connected to a tunnel");
                self.tunnels.insert(name, Tunnel::Connected(client));
            }
            News::Changed => {}
            News::Gone => {
                info!(tunnel = name, "a tunnel has ended");
                self.tunnels.remove(&name);
            }
        }
    }

    /// Returns the names of the tunnels' sockets that are not followed yet.
    fn unknown(&self) -> Vec<String> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) => {
                warn!(error = %chain(&error), "the folder of tunnels cannot be read");
                return Vec::new();
            }
        };
        let names = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.') && !self.tunnels.contains_key(name))
            .collect()
    }

    fn publish(&self) {
        let mut known = KnownSessions {
            is_complete: self.tunnels.contains_key(&self.own),
            ..KnownSessions::default()
        };
        for (name, tunnel) in &self.tunnels {
            let Tunnel::Connected(client) = tunnel else {
                known.is_complete = false;
                continue;
            };
            if *name == self.own {
                known.own = Some(client.clone());
            }
            for state in client.sessions().borrow().iter() {
                let tunnel = client.clone();
                let state = state.clone();
                known
                    .sessions
                    .insert(state.migration.clone(), KnownSession { state, tunnel });
            }
        }
        self.published.send_replace(known);
    }
}

type NewsSender = tokio::sync::mpsc::Sender<(String, News)>;

/// Connects to one tunnel and follows it until the tunnel ends.
async fn follow_one(name: String, path: PathBuf, is_own: bool, news: Arc<NewsSender>) {
    let mut pause = Backoff::new(AGAIN, AGAIN_AT_MOST);
    loop {
        let inode = inode(&path);
        match TunnelClient::connect(&path).await {
            Ok(client) => {
                let mut sessions = client.sessions();
                let mut message = News::Connected(client.clone());
                while news.send((name.clone(), message)).await.is_ok() && sessions.changed().await.is_ok() {
                    message = News::Changed;
                }
                break;
            }
            Err(TunnelError::Unreachable(error)) if error.kind() == ErrorKind::NotFound => break,
            // The process of the agent's own tunnel is restarting, and removes the socket itself.
            Err(TunnelError::Unreachable(error)) if error.kind() == ErrorKind::ConnectionRefused && !is_own => {
                remove(&path, inode);
                break;
            }
            Err(error) => {
                debug!(tunnel = name, error = %chain(&error), "a tunnel cannot be reached yet");
                tokio::time::sleep(pause.delay()).await;
            }
        }
    }
    let _ = news.send((name, News::Gone)).await;
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|metadata| metadata.ino())
}

/// Removes the socket of a dead process, unless another socket has replaced it.
fn remove(path: &Path, inode_then: Option<u64>) {
    if inode_then.is_some()
        && inode(path) == inode_then
        && let Err(error) = fs::remove_file(path)
    {
        warn!(
            path = %path.display(), error = %chain(&error),
            "could not remove the socket of a tunnel that no longer exists"
        );
    }
}
