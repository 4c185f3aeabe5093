//! Tests of the plugin with a fake kubelet that treats plugins like the real kubelet, including its quirks.

use std::collections::{BTreeMap, VecDeque};

use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::{Streaming, body::Body, server::UnaryService};

use super::{
    messages::{
        AllocateRequest, AllocateResponse, DeviceIds, HEALTHY, PluginDevices, PreferredForContainer, PreferredRequest,
        PreferredResponse,
    },
    *,
};

mod failing_registrations;

const NAME: &str = "devices.kubevirt.io/kvm";

/// Number of healthy devices by resource, as the kubelet shows them.
type Allocatable = watch::Sender<BTreeMap<String, usize>>;

/// A fake kubelet that lists the devices of a registered plugin.
///
/// When the list stream ends, the kubelet drops the plugin that is registered under the same name at that time.
struct Kubelet {
    process: Process,
    folder: PathBuf,
    ending: CancellationToken,
    state: Arc<KubeletState>,
    registrations: mpsc::UnboundedReceiver<RegisterRequest>,
}

impl Kubelet {
    /// Starts the kubelet in a folder, after removing all sockets from the folder.
    fn start(folder: &Path, allocatable: &Allocatable) -> Self {
        let sockets = folder.join(FOLDER);
        fs::create_dir_all(&sockets).unwrap();
        for entry in fs::read_dir(&sockets).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let listener = UnixListener::bind(sockets.join(KUBELET_SOCKET)).unwrap();
        let (process, ending) = (Process::new(), CancellationToken::new());
        let (sender, registrations) = mpsc::unbounded_channel();
        let state = Arc::new(KubeletState {
            process: process.clone(),
            sockets,
            ending: ending.clone(),
            allocatable: allocatable.clone(),
            clients: watch::Sender::new(BTreeMap::new()),
            registrations: sender,
            faults: Mutex::default(),
        });
        let (tasks, until, served) = (process.clone(), ending.clone(), Arc::clone(&state));
        process.spawn("kubelet", async move {
            while let Some(Ok((stream, _))) = until.run_until_cancelled(listener.accept()).await {
                let (state, process, until) = (Arc::clone(&served), tasks.clone(), until.clone());
                tasks.spawn("registrations", async move {
                    wire::serve(&process, stream, &until, move |request| {
                        register_call(Arc::clone(&state), request)
                    })
                    .await;
                });
            }
        });
        Self {
            process,
            folder: folder.to_owned(),
            ending,
            state,
            registrations,
        }
    }

    /// Ends the kubelet at once and leaves its socket behind, as a kill does.
    fn kill(self) {
        self.ending.cancel();
        self.process.stop();
    }

    async fn registered(&mut self) -> RegisterRequest {
        self.registrations.recv().await.unwrap()
    }

    async fn until(&self, devices: usize) {
        let mut seen = self.state.allocatable.subscribe();
        seen.wait_for(|all| all.get(NAME) == Some(&devices)).await.unwrap();
    }

    /// Drops the plugin without notifying it.
    fn drop_plugin(&self) {
        self.state.allocatable.send_modify(BTreeMap::clear);
        self.state.clients.borrow()[NAME].cancel();
    }

    /// Calls the plugin.
    async fn call<Q, A>(&self, call: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let socket = self.folder.join(FOLDER).join("drydock-kvm.sock");
        let mut plugin = wire::connect(&self.process, &socket).await.unwrap();
        wire::call(&mut plugin, call, request).await
    }

    async fn allocate(&self) -> Result<AllocateResponse, Status> {
        let containers = vec![DeviceIds {
            ids: vec!["kvm7".into()],
        }];
        self.call(paths::ALLOCATE, AllocateRequest { containers }).await
    }
}

struct KubeletState {
    process: Process,
    sockets: PathBuf,
    ending: CancellationToken,
    allocatable: Allocatable,
    /// Token of the plugin of each name. The plugin is dropped by cancelling its token.
    clients: watch::Sender<BTreeMap<String, CancellationToken>>,
    registrations: mpsc::UnboundedSender<RegisterRequest>,
    /// Faults of the next registrations.
    faults: Mutex<VecDeque<RegistrationFault>>,
}

/// Fault of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegistrationFault {
    /// The kubelet refuses the registration.
    Refused,
    /// The kubelet never responds to the registration.
    Hung,
    /// The kubelet lists the devices, and responds with an error.
    LostResponse,
}

async fn register_call(state: Arc<KubeletState>, request: Request<Incoming>) -> Response<Body> {
    tonic::server::Grpc::new(wire::codec::<Empty, RegisterRequest>())
        .unary(Register(state), request)
        .await
}

struct Register(Arc<KubeletState>);

impl UnaryService<RegisterRequest> for Register {
    type Response = Empty;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Empty>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<RegisterRequest>) -> Self::Future {
        let (state, request) = (Arc::clone(&self.0), request.into_inner());
        Box::pin(async move {
            let name = request.resource_name.clone();
            let fault = state.faults.lock().pop_front();
            match fault {
                Some(RegistrationFault::Refused) => return Err(Status::unavailable("refused")),
                Some(RegistrationFault::Hung) => std::future::pending::<()>().await,
                Some(RegistrationFault::LostResponse) | None => {}
            }
            let mut plugin = wire::connect(&state.process, &state.sockets.join(&request.endpoint)).await?;
            let _: DevicePluginOptions = wire::call(&mut plugin, paths::OPTIONS, Empty {}).await?;
            let dropped = state.ending.child_token();
            state
                .clients
                .send_modify(|all| drop(all.insert(name.clone(), dropped.clone())));
            let process = state.process.clone();
            let kept = Arc::clone(&state);
            process.spawn("list", async move {
                dropped.run_until_cancelled(kept.list(&mut plugin, &name)).await;
                drop(plugin);
                // Like the real kubelet, this drops the plugin that has the name now.
                kept.clients.send_modify(|all| {
                    if let Some(client) = all.remove(&name) {
                        client.cancel();
                    }
                });
                kept.show(&name, 0);
            });
            state.registrations.send(request).unwrap();
            if fault.is_some() {
                return Err(Status::unavailable("the response is lost"));
            }
            Ok(tonic::Response::new(Empty {}))
        })
    }
}

impl KubeletState {
    async fn list(&self, plugin: &mut tonic::client::Grpc<wire::GrpcChannel>, name: &str) {
        let mut lists = watch_devices(plugin).await.unwrap();
        while let Ok(Some(list)) = lists.message().await {
            self.show(
                name,
                list.devices.iter().filter(|device| device.health == HEALTHY).count(),
            );
        }
    }

    fn show(&self, name: &str, count: usize) {
        self.allocatable.send_modify(|all| {
            all.insert(name.to_owned(), count);
        });
    }
}

async fn watch_devices(
    plugin: &mut tonic::client::Grpc<wire::GrpcChannel>,
) -> Result<Streaming<PluginDevices>, Status> {
    plugin
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let request = tonic::Request::new(Empty {});
    let response = plugin
        .server_streaming(
            request,
            wire::path(paths::LIST_AND_WATCH),
            wire::codec::<Empty, PluginDevices>(),
        )
        .await?;
    Ok(response.into_inner())
}

/// Creates a folder for a kubelet, and the state that the kubelet shows.
fn scene(name: &str) -> (PathBuf, Allocatable) {
    // The path is short, because the path of a Unix socket is limited to 108 bytes.
    let folder = PathBuf::from(format!("/tmp/drydock-plugin-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join(FOLDER)).unwrap();
    (folder, watch::Sender::new(BTreeMap::new()))
}

fn plugin(process: &Process, folder: &Path, offer: DeviceOffer) -> DevicePlugin {
    DevicePlugin::start(
        process,
        folder,
        1000,
        offer,
        |device| format!("/nodes{device}"),
        &folder.join("capabilities"),
    )
}

#[tokio::test]
async fn device_plugin_registers_offers_and_allocates() {
    let (folder, allocatable) = scene("offers");
    let process = Process::new();
    let mut kubelet = Kubelet::start(&folder, &allocatable);
    let plugin = plugin(&process, &folder, DeviceOffer::Nothing);
    let request = kubelet.registered().await;
    assert_eq!(
        (
            request.version.as_str(),
            request.endpoint.as_str(),
            request.resource_name.as_str()
        ),
        ("v1beta1", "drydock-kvm.sock", NAME)
    );
    kubelet.until(0).await;
    let refused = kubelet.allocate().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);

    plugin.offer(DeviceOffer::Kvm);
    kubelet.until(1000).await;
    let given = kubelet.allocate().await.unwrap();
    let nodes = &given.containers[0].nodes;
    assert_eq!(nodes.len(), 1);
    assert_eq!(
        [&nodes[0].container_path, &nodes[0].host_path, &nodes[0].permissions],
        ["/dev/kvm", "/nodes/dev/kvm", "rw"]
    );

    assert_eq!(given.containers[0].mounts, []);

    fs::create_dir(folder.join("capabilities")).unwrap();
    plugin.offer(DeviceOffer::Emulation);
    let given = kubelet.allocate().await.unwrap();
    assert_eq!(given.containers[0].nodes, []);
    let mounts = &given.containers[0].mounts;
    assert_eq!(mounts.len(), 1);
    assert_eq!(mounts[0].container_path, "/var/lib/drydock/capabilities");
    assert_eq!(Path::new(&mounts[0].host_path), folder.join("capabilities"));
    assert!(mounts[0].read_only);
    kubelet.until(1000).await;
    plugin.offer(DeviceOffer::Nothing);
    kubelet.until(0).await;

    let preference = PreferredForContainer {
        available: vec!["kvm1".into(), "kvm2".into(), "kvm3".into()],
        must_include: vec!["kvm2".into()],
        size: 2,
    };
    let containers = vec![preference];
    let preferred: PreferredResponse = kubelet
        .call(paths::PREFERRED, PreferredRequest { containers })
        .await
        .unwrap();
    assert_eq!(preferred.containers[0].ids, ["kvm2", "kvm1"]);
    let _: Empty = kubelet.call(paths::PRE_START, Empty {}).await.unwrap();
    let unknown = kubelet.call::<_, Empty>("/v1beta1.DevicePlugin/Other", Empty {}).await;
    assert_eq!(unknown.unwrap_err().code(), tonic::Code::Unimplemented);

    plugin.close().await;
    assert!(!folder.join(FOLDER).join("drydock-kvm.sock").exists());
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_kubelet_that_comes_later_or_again_is_registered_with() {
    let (folder, allocatable) = scene("restart");
    let process = Process::new();
    let plugin = plugin(&process, &folder, DeviceOffer::Emulation);
    for _ in 0..3 {
        // Each kubelet removes the plugin's socket, and leaves a socket of its own that refuses connections.
        let mut kubelet = Kubelet::start(&folder, &allocatable);
        kubelet.registered().await;
        kubelet.until(1000).await;
        kubelet.kill();
        allocatable.subscribe().wait_for(|all| all[NAME] == 0).await.unwrap();
    }
    plugin.close().await;
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_plugin_that_the_kubelet_drops_registers_again() {
    let (folder, allocatable) = scene("dropped");
    let process = Process::new();
    let mut kubelet = Kubelet::start(&folder, &allocatable);
    let plugin = plugin(&process, &folder, DeviceOffer::Kvm);
    kubelet.registered().await;
    kubelet.until(1000).await;
    for _ in 0..3 {
        kubelet.drop_plugin();
        kubelet.registered().await;
        kubelet.until(1000).await;
    }
    // Another process removes the plugin's socket.
    fs::remove_file(folder.join(FOLDER).join("drydock-kvm.sock")).unwrap();
    kubelet.registered().await;
    kubelet.until(1000).await;
    assert_eq!(kubelet.allocate().await.unwrap().containers[0].nodes.len(), 1);
    plugin.close().await;
    kubelet.until(0).await;
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn an_agent_hands_over_to_the_next() {
    let (folder, allocatable) = scene("rollout");
    let mut kubelet = Kubelet::start(&folder, &allocatable);
    let mut agent = (Process::new(), None);
    for _ in 0..5 {
        let process = Process::new();
        if let Some(old) = Option::take(&mut agent.1) {
            DevicePlugin::close(old).await;
        }
        // The kubelet may attribute the end of the old plugin's stream to the new plugin.
        let new = plugin(&process, &folder, DeviceOffer::Emulation);
        kubelet.registered().await;
        kubelet.until(1000).await;
        agent = (process, Some(new));
    }
    let (_process, Some(last)) = agent else {
        panic!("no agent")
    };
    // The kubelet's calls reach the plugin of the last agent.
    last.offer(DeviceOffer::Kvm);
    assert_eq!(kubelet.allocate().await.unwrap().containers[0].nodes.len(), 1);
    last.close().await;
    fs::remove_dir_all(folder).unwrap();
}
