//! Responses of a plugin to the kubelet's calls.

use std::{future::Future, path::PathBuf, pin::Pin, sync::Arc};

use drydock_api::launcher::{CAPABILITIES_FOLDER, KVM_RESOURCE, USERFAULTFD};
use drydock_core::device_offer::DeviceOffer;
use futures::{Stream, stream};
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::{Notify, watch};
use tonic::{
    Status,
    body::Body,
    server::{Grpc, ServerStreamingService, UnaryService},
};

use super::{
    messages::{
        AllocateRequest, AllocateResponse, Allocation, DeviceIds, DeviceNode, DevicePluginOptions, Empty, HEALTHY,
        Mount, PluginDevice, PluginDevices, PreferredRequest, PreferredResponse, UNHEALTHY, paths,
    },
    wire::codec,
};

/// State that all connections of a plugin share.
pub(super) struct Plugin {
    /// Number of devices.
    pub(super) count: u32,
    /// Maps a device to the device node on the host from which the pod's device node is created.
    pub(super) nodes: Box<dyn Fn(&str) -> String + Send + Sync>,
    /// Host folder with libvirt's cache of QEMU capabilities, if it exists.
    pub(super) capabilities: PathBuf,
    /// Current offer.
    pub(super) offers: watch::Receiver<DeviceOffer>,
    /// Whether each allocation includes the device for post-copy.
    pub(super) post_copy: watch::Receiver<bool>,
    /// Number of the current registration. Streams of earlier registrations end.
    pub(super) registration: watch::Sender<u64>,
    /// Notified when a stream of the current registration has ended.
    pub(super) stream_ended: Notify,
}

/// Returns the devices of the host that each share includes under an offer; `None` if the offer has no shares.
fn devices(offer: DeviceOffer) -> Option<&'static [&'static str]> {
    match offer {
        DeviceOffer::Kvm => Some(&["/dev/kvm"]),
        DeviceOffer::Emulation => Some(&[]),
        DeviceOffer::Nothing => None,
    }
}

type ResponseFuture<A> = Pin<Box<dyn Future<Output = Result<tonic::Response<A>, Status>> + Send>>;

/// Handles one call.
pub(super) async fn serve(plugin: Arc<Plugin>, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        paths::OPTIONS => unary(request, |_: Empty| Ok(DevicePluginOptions::default())).await,
        paths::LIST_AND_WATCH => {
            Grpc::new(codec::<PluginDevices, Empty>())
                .server_streaming(List(plugin), request)
                .await
        }
        paths::ALLOCATE => unary(request, move |request| plugin.allocate(&request)).await,
        paths::PREFERRED => unary(request, preferred).await,
        paths::PRE_START => unary(request, |_: Empty| Ok(Empty {})).await,
        _ => Status::unimplemented("unknown method").into_http(),
    }
}

/// Decodes the request, calls `handler`, and encodes the result.
async fn unary<Q, A, F>(request: Request<Incoming>, handler: F) -> Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
    F: FnOnce(Q) -> Result<A, Status> + Send,
{
    Grpc::new(codec::<A, Q>()).unary(Once(Some(handler)), request).await
}

/// A handler for exactly one request.
struct Once<F>(Option<F>);

impl<Q, A, F> UnaryService<Q> for Once<F>
where
    A: Send + 'static,
    F: FnOnce(Q) -> Result<A, Status>,
{
    type Response = A;
    type Future = std::future::Ready<Result<tonic::Response<A>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let response = match self.0.take() {
            Some(handler) => handler(request.into_inner()).map(tonic::Response::new),
            None => Err(Status::internal("the handler was called twice")),
        };
        std::future::ready(response)
    }
}

/// Returns the preferred devices. All devices are equivalent, so any choice is correct.
fn preferred(request: PreferredRequest) -> Result<PreferredResponse, Status> {
    let containers = request.containers.into_iter().map(|mut container| {
        let size = usize::try_from(container.size).unwrap_or(0);
        let mut ids = container.must_include;
        container.available.retain(|id| !ids.contains(id));
        ids.extend(container.available);
        ids.truncate(size);
        DeviceIds { ids }
    });
    Ok(PreferredResponse {
        containers: containers.collect(),
    })
}

impl Plugin {
    /// Returns the mounts and device nodes for containers with devices.
    fn allocate(&self, request: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let offer = *self.offers.borrow();
        let Some(devices) = devices(offer) else {
            return Err(Status::failed_precondition(format!(
                "this node currently does not offer {KVM_RESOURCE}"
            )));
        };
        let post_copy = self.post_copy.borrow().then_some(USERFAULTFD);
        let nodes: Vec<DeviceNode> = devices
            .iter()
            .copied()
            .chain(post_copy)
            .map(|device| DeviceNode {
                container_path: device.to_owned(),
                host_path: (self.nodes)(device),
                permissions: "rw".into(),
            })
            .collect();
        // The container runtime creates a missing mount source, so a folder that does not exist is left out.
        let mounts = self.capabilities.is_dir().then(|| Mount {
            container_path: CAPABILITIES_FOLDER.into(),
            host_path: self.capabilities.to_string_lossy().into_owned(),
            read_only: true,
        });
        let allocation = Allocation {
            mounts: mounts.into_iter().collect(),
            nodes,
        };
        Ok(AllocateResponse {
            containers: vec![allocation; request.containers.len()],
        })
    }

    /// Returns all devices, with their health under an offer.
    fn list(&self, offer: DeviceOffer) -> PluginDevices {
        let healthy = devices(offer).is_some();
        let health = if healthy { HEALTHY } else { UNHEALTHY };
        PluginDevices {
            devices: (0..self.count)
                .map(|number| PluginDevice {
                    id: format!("kvm{number}"),
                    health: health.into(),
                })
                .collect(),
        }
    }
}

/// Handler of the call `ListAndWatch`.
struct List(Arc<Plugin>);

impl ServerStreamingService<Empty> for List {
    type Response = PluginDevices;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<PluginDevices, Status>> + Send>>;
    type Future = ResponseFuture<Self::ResponseStream>;

    fn call(&mut self, _: tonic::Request<Empty>) -> Self::Future {
        let watching = KubeletWatch::new(&self.0);
        Box::pin(async move {
            let lists = stream::unfold(watching, |mut watching| async move {
                let list = watching.next().await?;
                Some((Ok(list), watching))
            });
            Ok(tonic::Response::new(Box::pin(lists) as Self::ResponseStream))
        })
    }
}

/// State of one kubelet stream that watches the devices.
struct KubeletWatch {
    plugin: Arc<Plugin>,
    offers: watch::Receiver<DeviceOffer>,
    registration: watch::Receiver<u64>,
    began_with: u64,
    reported: Option<bool>,
}

impl KubeletWatch {
    fn new(plugin: &Arc<Plugin>) -> Self {
        let registration = plugin.registration.subscribe();
        let began_with = *registration.borrow();
        Self {
            offers: plugin.offers.clone(),
            registration,
            began_with,
            reported: None,
            plugin: Arc::clone(plugin),
        }
    }

    /// Returns the list of devices, at once or when their health has changed; `None` when the stream must end.
    async fn next(&mut self) -> Option<PluginDevices> {
        loop {
            if *self.registration.borrow_and_update() != self.began_with {
                return None;
            }
            let offer = *self.offers.borrow_and_update();
            let healthy = devices(offer).is_some();
            if self.reported != Some(healthy) {
                self.reported = Some(healthy);
                return Some(self.plugin.list(offer));
            }
            tokio::select! {
                changed = self.offers.changed() => changed.ok()?,
                changed = self.registration.changed() => changed.ok()?,
            }
        }
    }
}

impl Drop for KubeletWatch {
    fn drop(&mut self) {
        if *self.plugin.registration.borrow() == self.began_with {
            self.plugin.stream_ended.notify_one();
        }
    }
}
