//! The task that owns all state of this node and acts on it.
//!
//! The task waits for a change, reads the whole state, calls [`drydock_core::node::plan`] to decide the actions, and
//! executes them. It is level-triggered: every round reads everything, regardless of the change that woke it. A round
//! without planned actions writes nothing.
//!
//! ```text
//!  watches ───────────┐                          ┌─▶ labels of the Node
//!  inspection ended ──┤   read ─▶ plan ─▶ act ───┼─▶ status of the Hypervisor
//!  kernel, timers ────┤    ▲                     └─▶ events
//!  host lock ─────────┘    └── wake at a known time, or on change
//! ```

use std::{
    collections::{BTreeSet, hash_map::DefaultHasher},
    fs,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drydock_api::{
    Hypervisor, HypervisorStatus, annotations::MASK_CPU_FEATURES, hypervisor::AgentEndpoint, launcher::USERFAULTFD,
};
use drydock_core::{
    configuration::{Configuration, ConfigurationSource, Resolution, gathering::sources, spread},
    device_offer::DeviceOffer,
    guest_labels::{self, LabelledPods},
    guest_network::{ObservedNetwork, Profile},
    mask::{self, MaskedModels},
    minimum_cpu::Minimum,
    node::{NodeEvent, ObservedNode, plan, recorded},
    readiness::pins_cpus,
};
use drydock_host::{guest_devices, watch::HostWatch};
use drydock_runtime::{Backoff, EventRecorder, Events, Process, ReadyHandle, Severity, chain, clock, latest_state};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, api::PartialObjectMeta};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    args::AgentRunArgs,
    caches::{AgentCaches, without_drain},
    cpu_map_queries::CpuMapQueries,
    device_plugin::DevicePlugin,
    guest_network::{self, Profiles},
    guests::{Host, LauncherPods},
    host_events::HostEvents,
    host_knowledge::HostKnowledge,
    host_lock::{self, HostLock},
    lease::NodeLease,
    metrics::AgentMetrics,
    observe,
    writes::Writes,
};

/// Minimum and maximum pause before a refused or lost write is retried.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// State of the node's task.
pub(crate) struct NodeTask {
    args: Arc<AgentRunArgs>,
    caches: AgentCaches,
    pods: LauncherPods,
    writes: Writes,
    events: EventRecorder,
    metrics: AgentMetrics,
    process: Process,
    lease: NodeLease,
    ready: Option<ReadyHandle>,
    /// Position of this node in the spread of configuration changes, from 0 to 1.
    place: f64,
    cpu_map_queries: CpuMapQueries,
    host: HostKnowledge,
    following: Option<Following>,
    /// Time to follow a changed configuration, independent of changes to the wall clock.
    follow_at: Option<clock::Instant>,
    mask: BTreeSet<String>,
    masked_models: MaskedModels,
    /// Times since which changes of the Node labels of launcher pods have been pending.
    waiting: guest_labels::PendingLabels,
    hypervisors: u64,
    /// Whether the number of nodes may have changed since the last count. The nodes are counted after a configuration
    /// change was followed, so that the count does not delay the labels.
    recount: bool,
    /// Profiles for guests' networks. Only the acting agent has them, like `plugin`.
    profiles: Option<Profiles>,
    plugin: Option<DevicePlugin>,
    /// Host for the guests' tasks, which start when it is first set.
    guest_host: watch::Sender<Option<Arc<Host>>>,
    /// Time when the deletion of the Node object was confirmed, for the guests' tasks.
    deleted_node: watch::Sender<Option<clock::Instant>>,
    /// Address and certificate fingerprint with which controllers reach this agent.
    endpoint: Option<AgentEndpoint>,
    lock: Option<HostLock>,
    written_node: Option<PartialObjectMeta<Node>>,
    written_hypervisor: Option<Hypervisor>,
    backoff: Backoff,
}

/// The configuration that this node follows.
struct Following {
    sources: Vec<ConfigurationSource>,
    resolution: Resolution,
    minimum: Minimum,
}

impl NodeTask {
    /// Creates the task of the node that `args` names.
    #[expect(
        clippy::too_many_arguments,
        reason = "these are the parts of one process, put together once"
    )]
    pub(crate) fn new(
        args: Arc<AgentRunArgs>,
        caches: AgentCaches,
        pods: LauncherPods,
        writes: Writes,
        events: &Events,
        metrics: AgentMetrics,
        process: Process,
        lease: NodeLease,
        ready: ReadyHandle,
        guest_host: watch::Sender<Option<Arc<Host>>>,
        deleted_node: watch::Sender<Option<clock::Instant>>,
        endpoint: Option<AgentEndpoint>,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        args.node_name.hash(&mut hasher);
        let place = f64::from(u32::try_from(hasher.finish() >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        Self {
            cpu_map_queries: CpuMapQueries::new(args.host.cpu_map_dir.clone()),
            host: HostKnowledge::new(Arc::clone(&args), process.clone(), metrics.clone()),
            following: None,
            follow_at: None,
            mask: BTreeSet::new(),
            masked_models: MaskedModels::new(),
            waiting: guest_labels::PendingLabels::default(),
            hypervisors: 1,
            recount: false,
            profiles: None,
            plugin: None,
            guest_host,
            deleted_node,
            endpoint,
            lock: None,
            written_node: None,
            written_hypervisor: None,
            backoff: Backoff::new(RETRY.0, RETRY.1),
            ready: Some(ready),
            place,
            args,
            caches,
            pods,
            writes,
            events: events.recorder("Inspect"),
            metrics,
            process,
            lease,
        }
    }

    /// Serves the node until the process stops.
    ///
    /// # Errors
    /// If taking the host's lock fails, or the host cannot be watched.
    pub(crate) async fn run(mut self) -> std::io::Result<()> {
        let stopping = self.process.stopping();
        let synced = self.caches.synced();
        if stopping.run_until_cancelled(synced).await.is_none() {
            return Ok(());
        }
        self.recover();
        let watch = HostWatch::new(&[self.cpu_manager_state()])?;
        let mut announcements = HostEvents::of(watch);
        let mut waiting = host_lock::wait(&self.args.folders.state_dir);
        let mut is_next = false;
        let mut check_host = true;
        loop {
            let now = clock::now();
            let due = self.host.next_check().is_some_and(|at| at <= clock::Instant::now());
            if (check_host || due) && self.host.check(now) {
                self.cpu_map_queries.forget();
            }
            if is_next
                && self.host.is_concluded()
                && let Some(ready) = self.ready.take()
            {
                ready.release();
            }
            let wake = self.round(now).await;
            let due = [self.follow_at, self.host.next_check()].into_iter().flatten().min();
            check_host = false;
            tokio::select! {
                () = stopping.cancelled() => break,
                () = self.caches.changed() => {}
                next = &mut waiting.is_next, if !is_next => {
                    is_next = true;
                    next.map_err(std::io::Error::other)??;
                }
                lock = &mut waiting.acts, if is_next && self.lock.is_none() => {
                    self.lock = Some(lock.map_err(std::io::Error::other)??);
                    info!("this agent is now the active agent of the node");
                    self.lease.take();
                    let profiles = Profiles::start(&self.process, &self.args.folders.kubelet.kubelet_dir, &self.args.apparmor_parser);
                    self.profiles = Some(profiles);
                }
                () = changed(&mut self.profiles) => {}
                ended = self.host.ended() => self.host.conclude(ended, clock::now()),
                () = announcements.next() => check_host = true,
                () = clock::sleep_until(wake) => {}
                () = clock::sleep_until_instant(due) => {}
            }
        }
        self.shut_down().await;
        Ok(())
    }

    /// Restores the state of an earlier agent of this node from its Hypervisor.
    fn recover(&mut self) {
        let Some(status) = self
            .caches
            .hypervisor()
            .and_then(|hypervisor| hypervisor.status.clone())
        else {
            return;
        };
        self.mask = status.masked_features.iter().cloned().collect();
        let mut facts = status.facts.map(Arc::unwrap_or_clone);
        if let Some(virtualization) = facts.as_mut().and_then(|facts| facts.virtualization.as_mut()) {
            mask::lift(virtualization);
        }
        self.host.recover(facts.zip(status.inspection));
    }

    /// Returns the path of the state file of the kubelet's CPU manager.
    fn cpu_manager_state(&self) -> PathBuf {
        self.args.folders.kubelet.kubelet_dir.join("cpu_manager_state")
    }

    /// Reads everything, plans and acts. Returns the time of the next round if it is known. [`Self::follow_at`] is
    /// separate.
    async fn round(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.follow();
        // Only the acting agent writes.
        self.lock.as_ref()?;
        match self.act(now, false).await {
            Ok(wake) => {
                if std::mem::take(&mut self.recount) {
                    self.count_hypervisors().await;
                }
                if !self.backoff.is_reset() {
                    info!("requests to the API server succeed again");
                    self.backoff.reset();
                }
                wake
            }
            Err(error) => {
                if self.backoff.is_reset() {
                    warn!(error = %chain(&error), "a request to the API server failed, retrying");
                }
                Some(now + self.backoff.delay())
            }
        }
    }

    /// Follows the configuration in the caches when it is this node's turn.
    fn follow(&mut self) {
        let sources = sources(
            &self.caches.config_maps(),
            &self.caches.hyperconvergeds(),
            &self.args.configuration_namespaces,
        );
        if self
            .following
            .as_ref()
            .is_some_and(|following| following.sources == sources)
        {
            self.follow_at = None;
            return;
        }
        if self.following.is_some() {
            let now = clock::Instant::now();
            let turn = || now + spread(self.hypervisors, self.args.configuration_jitter, self.place);
            if now < *self.follow_at.get_or_insert_with(turn) {
                return;
            }
        }
        self.follow_at = None;
        self.recount = true;
        let last_good = self.last_good();
        let queried = observe::query_cpu_map(&mut self.cpu_map_queries, &sources, last_good.as_ref(), &self.mask);
        let amd64 = std::env::consts::ARCH == "x86_64";
        let (resolution, minimum) = observe::follow(sources.clone(), &queried, amd64, last_good.as_ref());
        self.following = Some(Following {
            sources,
            resolution,
            minimum,
        });
    }

    /// Returns the configuration that was last in force in this process, or that an earlier process recorded.
    fn last_good(&self) -> Option<Configuration> {
        match &self.following {
            Some(following) => Some(following.resolution.configuration.clone()),
            None => self
                .caches
                .hypervisor()?
                .status
                .as_ref()?
                .configuration
                .as_ref()
                .map(recorded),
        }
    }

    /// Writes the differences from the plan. Returns the time of the next plan if it is known.
    async fn act(&mut self, now: Timestamp, stopping: bool) -> kube::Result<Option<Timestamp>> {
        let Some(node) = latest_state(self.caches.node(), self.written_node.clone()) else {
            if !stopping {
                self.without_node().await?;
            }
            return Ok(None);
        };
        if self.deleted_node.send_if_modified(|since| since.take().is_some()) {
            info!(node = self.args.node_name, "the Node exists again: guests may start");
        }
        let hypervisor = match latest_state(
            self.caches.hypervisor().map(Arc::unwrap_or_clone),
            self.written_hypervisor.clone(),
        ) {
            Some(hypervisor) => hypervisor,
            // While a deleted Hypervisor still exists, the create fails. The watch notifies when the Hypervisor is
            // removed.
            None => match self.writes.create(&node).await? {
                Some(made) => made,
                None => return Ok(None),
            },
        };
        let Some(following) = &self.following else {
            return Ok(None);
        };
        let annotation = node.annotations().get(MASK_CPU_FEATURES).map(String::as_str);
        let (mask, mask_refused) = observe::mask(&self.args.host.mask_features.0, annotation, &self.mask);
        self.mask = mask;
        let queried = observe::query_cpu_map(
            &mut self.cpu_map_queries,
            &following.sources,
            Some(&following.resolution.configuration),
            &self.mask,
        );
        let previous = hypervisor.status.clone().unwrap_or_default();
        let network = self.profiles.as_mut().map_or_else(not_checked, Profiles::seen);
        let pods = self.pods.listed();
        let plan = plan(&ObservedNode {
            now,
            labels: node.labels(),
            annotations: node.annotations(),
            inspected: self.host.facts(),
            failure: self.host.failure(),
            resolution: &following.resolution,
            minimum: &following.minimum,
            mask: &self.mask,
            mask_refused: mask_refused.as_deref(),
            masked_models: &queried.masked_models,
            label_aliases: self.args.host.label_aliases,
            pins_cpus: fs::read_to_string(self.cpu_manager_state()).is_ok_and(|text| pins_cpus(&text)),
            guest_network: &network,
            guests: LabelledPods {
                node: &self.args.node_name,
                pods: pods.as_deref(),
                waiting: self.waiting,
            },
            stopping,
            agent_version: env!("CARGO_PKG_VERSION"),
            agent_endpoint: self.endpoint.as_ref(),
            previous: &previous,
        });
        let post_copy = following.resolution.configuration.migrations.post_copy;
        self.offer(plan.offer, stopping);
        if let Some(plugin) = &self.plugin {
            plugin.offer_post_copy(post_copy && Path::new(USERFAULTFD).exists());
        }
        self.masked_models = queried.masked_models;
        self.describe_host();
        self.metrics.planned(&plan.status);
        self.waiting = plan.waiting;
        if !plan.labels.is_empty() {
            self.written_node = Some(self.writes.labels(&plan.labels).await?);
            self.metrics.wrote("labels");
        }
        self.record_events(&node, plan.events);
        if plan.status != previous {
            self.report(&plan.status).await?;
        }
        Ok(plan.wake)
    }

    /// Handles a Node that the watch does not show.
    ///
    /// Confirms with the API server that the Node is deleted, and then has the guests' tasks end their guests.
    /// Does nothing while the deletion is not confirmed: a wrong assumption must not end a guest.
    async fn without_node(&mut self) -> kube::Result<()> {
        // The guests' tasks need the host, which may have been inspected only now.
        self.describe_host();
        if self.deleted_node.borrow().is_some() || self.writes.node_exists().await? {
            return Ok(());
        }
        warn!(
            node = self.args.node_name,
            "the Node was deleted: its guests are shut down, and no guest starts until the Node exists again"
        );
        self.deleted_node.send_replace(Some(clock::Instant::now()));
        Ok(())
    }

    /// Passes the description of the host to guests' tasks, once it has been inspected.
    fn describe_host(&self) {
        let Some((facts, _)) = self.host.facts() else { return };
        let host = Host::of(facts, &self.mask, &self.masked_models).map(Arc::new);
        self.guest_host.send_if_modified(|current| {
            let changed = *current != host;
            *current = host;
            changed
        });
    }

    /// Offers shares to pods. The first call starts the plugin unless the process is stopping.
    fn offer(&mut self, offer: DeviceOffer, stopping: bool) {
        match &self.plugin {
            Some(plugin) => plugin.offer(offer),
            None if stopping => {}
            None => {
                let folder = self.args.folders.state_dir.join("devices");
                let nodes = move |device: &str| node_for_guests(&folder, device);
                let (process, kubelet) = (&self.process, &self.args.folders.kubelet.kubelet_dir);
                let plugin = DevicePlugin::start(
                    process,
                    kubelet,
                    self.args.max_devices,
                    offer,
                    nodes,
                    &self.args.capabilities(),
                );
                self.plugin = Some(plugin);
            }
        }
    }

    async fn report(&mut self, status: &HypervisorStatus) -> kube::Result<()> {
        let mut written = self.writes.status(status).await?;
        without_drain(&mut written);
        self.written_hypervisor = Some(written);
        self.metrics.wrote("status");
        Ok(())
    }

    fn record_events(&self, node: &PartialObjectMeta<Node>, events: Vec<NodeEvent>) {
        for NodeEvent {
            warning,
            reason,
            message,
        } in events
        {
            info!(reason, "{message}");
            self.events.record(node, Severity::of(warning), reason, message);
        }
    }

    /// Updates the number of nodes over which a change of configuration is spread.
    async fn count_hypervisors(&mut self) {
        match self.writes.count_hypervisors().await {
            Ok(count) => self.hypervisors = count,
            Err(error) => {
                warn!(
                    error = %chain(&error),
                    "could not count the nodes; configuration changes are spread by the previous count"
                );
            }
        }
    }

    /// Reports that the node no longer accepts virtual machines, unless another agent waits to take over.
    async fn shut_down(&mut self) {
        // The profiles and the plugin are closed before the lock is released, because the next agent registers its
        // plugin as soon as it holds the lock. The plugin is closed last, because the kubelet has no shares from then
        // on.
        if let Some(profiles) = &self.profiles {
            profiles.close().await;
        }
        if let Some(plugin) = self.plugin.take() {
            plugin.close().await;
        }
        let Some(lock) = &self.lock else { return };
        match lock.nobody_waits() {
            Ok(Some(_guard)) => {
                info!("the node accepts no new VMs until another agent starts");
                let deadline = Duration::from_secs(5);
                match tokio::time::timeout(deadline, self.act(clock::now(), true)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => {
                        warn!(
                            error = %chain(&error),
                            "could not report the agent's shutdown; the controller will detect the shutdown"
                        );
                    }
                    Err(_) => warn!("could not report the agent's shutdown in time; the controller will detect it"),
                }
            }
            Ok(None) => info!("another agent takes over the node"),
            Err(error) => warn!(error = %chain(&error), "could not determine whether another agent is waiting"),
        }
    }
}

/// Waits for a change of the profiles, or forever if this agent does not maintain them.
async fn changed(profiles: &mut Option<Profiles>) {
    match profiles {
        Some(profiles) => profiles.changed().await,
        None => std::future::pending().await,
    }
}

/// Returns the state of the guests' network while the profiles have not been checked.
fn not_checked() -> ObservedNetwork {
    ObservedNetwork {
        seccomp: Profile::Unknown,
        user_namespaces: guest_network::namespaces(),
        app_armor: Profile::Unknown,
    }
}

/// Returns the path of the device node on the host from which the device node in a pod is created.
fn node_for_guests(folder: &Path, device: &str) -> String {
    match guest_devices::open_to_all(folder, Path::new(device)) {
        Ok(node) => node.to_string_lossy().into_owned(),
        Err(error) => {
            warn!(%error, device, "could not create a device node for guests; guests get the host's device node");
            device.to_owned()
        }
    }
}

#[cfg(test)]
mod tests;
