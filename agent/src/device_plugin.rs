//! The kubelet's device plugin of this node, by which guests' pods get their share of virtualization.
//!
//! A plugin listens on a socket of its own and registers with the kubelet. The kubelet then requests the list of
//! devices as a stream that never ends. When that stream breaks, for whatever reason, the kubelet drops the plugin
//! without notifying it:
//!
//! ```text
//!   listen ─▶ register ─▶ the kubelet watches the devices ──┐
//!     ▲          ▲  └─ refused: retried with back-off       │
//!     │          └────────────── stream ended ◀─────────────┤
//!     └───────── kubelet.sock came (the kubelet restarted: ─┘
//!                 it has removed all plugins' sockets)
//! ```
//!
//! During a rollout, two agents share a node, and only the acting agent runs a plugin. When the stream of the old
//! plugin ends, the kubelet drops the plugin that is registered under that name, which may already be the new plugin.
//! Therefore the new plugin registers again as soon as its stream ends.

mod calls;
mod messages;
mod wire;

use std::{
    convert::Infallible,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use drydock_api::launcher::KVM_RESOURCE;
use drydock_core::device_offer::DeviceOffer;
use drydock_runtime::{Backoff, CancellationToken, Process, chain};
use futures::FutureExt;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::task::TaskTracker;
use tonic::Status;
use tracing::{info, warn};

use crate::folder_watch::{FolderEventKind, FolderWatch};
use calls::Plugin;
use messages::{DevicePluginOptions, Empty, KUBELET_SOCKET, RegisterRequest, VERSION, paths};

/// The kubelet's folder of plugins' sockets, relative to the kubelet's root.
pub(crate) const FOLDER: &str = "device-plugins";
/// Minimum and maximum pause before the plugin registers again. It pauses if the kubelet refused or did not respond.
/// The minimum is short because the kubelet creates its socket a moment before it listens.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(30));
/// Timeout of a registration. The kubelet connects back to the plugin before it responds.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(15);

/// Name of the plugin's socket.
const SOCKET: &str = "drydock-kvm.sock";

/// The device plugin of this agent, which offers [`KVM_RESOURCE`].
pub(crate) struct DevicePlugin {
    offers: watch::Sender<DeviceOffer>,
    post_copy: watch::Sender<bool>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl DevicePlugin {
    /// Registers with the kubelet whose folder is `kubelet`, and stays registered until [`close`](Self::close).
    ///
    /// Offers `count` shares of the resource. `nodes` maps a device of the host to the device node from which the
    /// device node in a pod is created. Each share includes the host folder `capabilities` if that folder exists.
    pub(crate) fn start(
        process: &Process,
        kubelet: &Path,
        count: u32,
        offer: DeviceOffer,
        nodes: impl Fn(&str) -> String + Send + Sync + 'static,
        capabilities: &Path,
    ) -> Self {
        let (offers, offered) = watch::channel(offer);
        let post_copy = watch::channel(false).0;
        let (closing, tasks) = (CancellationToken::new(), TaskTracker::new());
        let plugin = Arc::new(Plugin {
            count,
            nodes: Box::new(nodes),
            capabilities: capabilities.to_owned(),
            offers: offered,
            post_copy: post_copy.subscribe(),
            registration: watch::Sender::new(0),
            stream_ended: Notify::new(),
        });
        let keeper = PluginRegistration {
            process: process.clone(),
            folder: kubelet.join(FOLDER),
            plugin,
            closing: closing.clone(),
            tasks: tasks.clone(),
            backoff: Backoff::new(RETRY.0, RETRY.1),
        };
        process.spawn("device plugin", tasks.track_future(keeper.keep()));
        tasks.close();
        Self {
            offers,
            post_copy,
            closing,
            tasks,
        }
    }

    /// Sets whether pods that start from now on get the device for post-copy with their share.
    pub(crate) fn offer_post_copy(&self, post_copy: bool) {
        self.post_copy.send_replace(post_copy);
    }

    /// Changes the offer and notifies the kubelet at once.
    pub(crate) fn offer(&self, offer: DeviceOffer) {
        self.offers.send_if_modified(|before| {
            let differs = *before != offer;
            *before = offer;
            differs
        });
    }

    /// Disconnects from the kubelet and waits until the socket is closed. Another agent can then register.
    pub(crate) async fn close(self) {
        self.closing.cancel();
        self.tasks.wait().await;
    }
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Keeps the plugin registered.
struct PluginRegistration {
    process: Process,
    folder: PathBuf,
    plugin: Arc<Plugin>,
    closing: CancellationToken,
    tasks: TaskTracker,
    backoff: Backoff,
}

/// Distinguishes a file from another one created later under the same path.
type FileIdentity = Option<(u64, i64, i64)>;

fn identity(path: &Path) -> FileIdentity {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

impl PluginRegistration {
    async fn keep(mut self) {
        let closing = self.closing.clone();
        while let Some(Err(error)) = closing.run_until_cancelled(self.serve()).await {
            warn!(
                error = %chain(&error), resource = KVM_RESOURCE,
                "could not serve the device plugin, retrying"
            );
            closing
                .run_until_cancelled(tokio::time::sleep(self.backoff.delay()))
                .await;
        }
        self.end_streams();
        // The socket may have been removed already.
        let _ = fs::remove_file(self.own_socket());
    }

    /// Serves the plugin and keeps it registered until an error that is unrelated to the kubelet.
    async fn serve(&mut self) -> io::Result<Infallible> {
        let mut folder = FolderWatch::new(&self.folder, [KUBELET_SOCKET, SOCKET])?;
        let (mut listener, mut own) = self.listen()?;
        let mut kubelet = None;
        let mut registering: Option<Registering> = None;
        let mut registered_at = None;
        let mut register_at = Some(Instant::now());
        let plugin = Arc::clone(&self.plugin);
        loop {
            tokio::select! {
                accepted = listener.accept() => self.connected(accepted?.0),
                happened = folder.next() => {
                    if happened? == FolderEventKind::ToFolder {
                        return Err(io::Error::new(
                            io::ErrorKind::NotFound,
                            format!("{} no longer exists", self.folder.display()),
                        ));
                    }
                    let own_is_gone = identity(&self.own_socket()) != own;
                    if own_is_gone {
                        (listener, own) = self.listen()?;
                    }
                    let kubelet_now = identity(&self.kubelet_socket());
                    if own_is_gone || kubelet_now != kubelet {
                        self.backoff.reset();
                        registering = None;
                        register_at = kubelet_now.map(|_| Instant::now());
                    }
                    kubelet = kubelet_now;
                }
                () = plugin.stream_ended.notified() => {
                    // The kubelet has dropped this plugin or has ended. The pause prevents a tight loop with a kubelet
                    // that drops the plugin repeatedly.
                    let lasted = registered_at.is_some_and(|at: Instant| at.elapsed() > RETRY.1);
                    let delay = if lasted { self.backoff.reset(); Duration::ZERO } else { self.backoff.delay() };
                    register_at = Some(Instant::now() + delay);
                }
                () = at(register_at) => {
                    register_at = None;
                    kubelet = identity(&self.kubelet_socket());
                    self.end_streams();
                    registering = Some(Box::pin(register(self.process.clone(), self.kubelet_socket())));
                }
                result = finished(&mut registering) => {
                    registering = None;
                    match result {
                        Ok(()) => {
                            registered_at = Some(Instant::now());
                            info!(resource = KVM_RESOURCE, "device plugin registered with the kubelet");
                        }
                        // The watch of the folder reports when the socket is created.
                        Err(_) if identity(&self.kubelet_socket()).is_none() => {}
                        Err(error) => {
                            if self.backoff.is_reset() {
                                info!(
                                    error = error.message(),
                                    "could not register the device plugin with the kubelet, retrying"
                                );
                            }
                            register_at = Some(Instant::now() + self.backoff.delay());
                        }
                    }
                }
            }
        }
    }

    fn kubelet_socket(&self) -> PathBuf {
        self.folder.join(KUBELET_SOCKET)
    }

    fn own_socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// Creates the listener, replacing any socket that an earlier agent left.
    fn listen(&self) -> io::Result<(UnixListener, FileIdentity)> {
        let path = self.own_socket();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok((listener, identity(&path)))
    }

    fn connected(&self, stream: UnixStream) {
        let (process, closing, plugin) = (self.process.clone(), self.closing.clone(), Arc::clone(&self.plugin));
        let served = async move {
            let handler = move |request| calls::serve(Arc::clone(&plugin), request);
            wire::serve(&process, stream, &closing, handler).await;
        };
        self.process
            .spawn("device plugin connection", self.tasks.track_future(served));
    }

    /// Ends the streams of earlier registrations, and suppresses the registration that their end would trigger.
    fn end_streams(&self) {
        self.plugin.registration.send_modify(|number| *number += 1);
        let _ = self.plugin.stream_ended.notified().now_or_never();
    }
}

/// A registration in progress.
type Registering = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Registers the plugin with the kubelet, which connects to the plugin before it responds.
async fn register(process: Process, kubelet: PathBuf) -> Result<(), Status> {
    let attempt = async {
        let mut kubelet = wire::connect(&process, &kubelet)
            .await
            .map_err(|error| Status::unavailable(format!("{}: {error}", kubelet.display())))?;
        let request = RegisterRequest {
            version: VERSION.into(),
            endpoint: SOCKET.into(),
            resource_name: KVM_RESOURCE.into(),
            options: Some(DevicePluginOptions::default()),
        };
        wire::call::<_, Empty>(&mut kubelet, paths::REGISTER, request).await
    };
    let registered = tokio::time::timeout(REGISTRATION_TIMEOUT, attempt).await;
    registered
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the kubelet did not respond in time")))
        .map(|Empty {}| ())
}

/// Waits until an instant, or forever if `instant` is `None`.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Waits for the registration in progress to end, or forever if none is in progress.
async fn finished(registering: &mut Option<Registering>) -> Result<(), Status> {
    match registering {
        Some(registering) => registering.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
