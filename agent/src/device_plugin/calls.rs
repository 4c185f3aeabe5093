//! What a plugin answers to the kubelet.

use std::{future::Future, path::PathBuf, pin::Pin, sync::Arc};

use drydock_api::launcher::CAPABILITIES_FOLDER;
use drydock_core::device_offer::Offer;
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
    Resource, USERFAULTFD,
    messages::{
        AllocateRequest, AllocateResponse, Allocation, Device, DeviceIds, DeviceNode, Devices, Empty, HEALTHY, Mount,
        Options, PreferredRequest, PreferredResponse, UNHEALTHY, paths,
    },
    wire::codec,
};

/// What all connections of a plugin share.
pub(super) struct Plugin {
    /// What it is a plugin for.
    pub(super) resource: &'static Resource,
    /// How many devices there are.
    pub(super) count: u32,
    /// The node that stands for a device on the host.
    pub(super) nodes: Arc<dyn Fn(&str) -> String + Send + Sync>,
    /// Folder of the host with what libvirt knows of its QEMU, if it is there.
    pub(super) capabilities: PathBuf,
    /// What is offered now.
    pub(super) offers: watch::Receiver<Offer>,
    /// The device for post-copy comes with it.
    pub(super) post_copy: watch::Receiver<bool>,
    /// The registration that counts: streams of earlier ones end.
    pub(super) registration: watch::Sender<u64>,
    /// Told when a stream of the registration that counts has ended.
    pub(super) stream_ended: Notify,
}

type Answer<A> = Pin<Box<dyn Future<Output = Result<tonic::Response<A>, Status>> + Send>>;

/// Answers one call.
pub(super) async fn answer(plugin: Arc<Plugin>, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        paths::OPTIONS => unary(request, |_: Empty| Ok(Options::default())).await,
        paths::LIST_AND_WATCH => {
            Grpc::new(codec::<Devices, Empty>())
                .server_streaming(List(plugin), request)
                .await
        }
        paths::ALLOCATE => unary(request, move |asked| plugin.allocate(&asked)).await,
        paths::PREFERRED => unary(request, preferred).await,
        paths::PRE_START => unary(request, |_: Empty| Ok(Empty {})).await,
        _ => Status::unimplemented("no such call").into_http(),
    }
}

/// Decodes a question, asks `answer` and encodes what it says.
async fn unary<Q, A, F>(request: Request<Incoming>, answer: F) -> Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
    F: FnOnce(Q) -> Result<A, Status> + Send,
{
    Grpc::new(codec::<A, Q>()).unary(Once(Some(answer)), request).await
}

/// A function that is called for the one question that there is.
struct Once<F>(Option<F>);

impl<Q, A, F> UnaryService<Q> for Once<F>
where
    A: Send + 'static,
    F: FnOnce(Q) -> Result<A, Status>,
{
    type Response = A;
    type Future = std::future::Ready<Result<tonic::Response<A>, Status>>;

    fn call(&mut self, question: tonic::Request<Q>) -> Self::Future {
        let answered = match self.0.take() {
            Some(answer) => answer(question.into_inner()).map(tonic::Response::new),
            None => Err(Status::internal("asked twice")),
        };
        std::future::ready(answered)
    }
}

/// Any devices are as good as any others.
fn preferred(asked: PreferredRequest) -> Result<PreferredResponse, Status> {
    let containers = asked.containers.into_iter().map(|mut container| {
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
    /// What containers are given with their devices.
    fn allocate(&self, asked: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let offer = *self.offers.borrow();
        let Some(devices) = (self.resource.devices)(offer) else {
            return Err(Status::failed_precondition(format!(
                "this node has no {} now",
                self.resource.name
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
        // A runtime makes what is not there: then it is better to give nothing.
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
            containers: vec![allocation; asked.containers.len()],
        })
    }

    /// All devices as they are under an offer.
    fn list(&self, offer: Offer) -> Devices {
        let healthy = (self.resource.devices)(offer).is_some();
        let health = if healthy { HEALTHY } else { UNHEALTHY };
        Devices {
            devices: (0..self.count)
                .map(|number| Device {
                    id: format!("{}{number}", self.resource.prefix),
                    health: health.into(),
                })
                .collect(),
        }
    }
}

/// The call `ListAndWatch`.
struct List(Arc<Plugin>);

impl ServerStreamingService<Empty> for List {
    type Response = Devices;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<Devices, Status>> + Send>>;
    type Future = Answer<Self::ResponseStream>;

    fn call(&mut self, _: tonic::Request<Empty>) -> Self::Future {
        let watching = Watching::new(&self.0);
        Box::pin(async move {
            let lists = stream::unfold(watching, |mut watching| async move {
                let list = watching.next().await?;
                Some((Ok(list), watching))
            });
            Ok(tonic::Response::new(Box::pin(lists) as Self::ResponseStream))
        })
    }
}

/// A kubelet that is told of the devices.
struct Watching {
    plugin: Arc<Plugin>,
    offers: watch::Receiver<Offer>,
    registration: watch::Receiver<u64>,
    began_with: u64,
    told: Option<bool>,
}

impl Watching {
    fn new(plugin: &Arc<Plugin>) -> Self {
        let registration = plugin.registration.subscribe();
        let began_with = *registration.borrow();
        Self {
            offers: plugin.offers.clone(),
            registration,
            began_with,
            told: None,
            plugin: Arc::clone(plugin),
        }
    }

    /// The list, at once or when it is another one; `None` when there is nothing more to tell.
    async fn next(&mut self) -> Option<Devices> {
        loop {
            if *self.registration.borrow_and_update() != self.began_with {
                return None;
            }
            let offer = *self.offers.borrow_and_update();
            let healthy = (self.plugin.resource.devices)(offer).is_some();
            if self.told != Some(healthy) {
                self.told = Some(healthy);
                return Some(self.plugin.list(offer));
            }
            tokio::select! {
                changed = self.offers.changed() => changed.ok()?,
                changed = self.registration.changed() => changed.ok()?,
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if *self.plugin.registration.borrow() == self.began_with {
            self.plugin.stream_ended.notify_one();
        }
    }
}
