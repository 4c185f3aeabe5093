//! Launcher pods: the existing ones, and how new ones are created. Shared by the tasks for instances and for
//! migrations.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use drydock_api::hyperconverged::EvictionStrategy;
use drydock_api::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec,
    names::{APP, CREATED_BY, EVICTION_IN_PROGRESS, VIRT_LAUNCHER},
    status::{ClaimInfo, VolumeStatus},
};
use drydock_core::{
    admission::defaults::{Named, default_instance},
    eviction::{descheduler, own_pdb::is_protected, strategy},
    launcher_pod::{
        self, Arriving, ClaimMode, PodInput, REQUIREMENTS_DIGEST, TargetPodInput, image_identity,
        pending::{StartingPod, newest_warning, pending},
    },
    migratable,
    placement::{self, BoundVolume, Newcomer, NodeView, PodMoves, Requirements, Rules, name_of},
};
use drydock_runtime::{
    ASSUMED_FOR, AssumeCache, Cache, CacheChange, Index, Key, ListMode, Watch, WatchStarter, chain, clock,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    EphemeralContainer, Event, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, PodSpec,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::ObjectMeta,
};
use parking_lot::Mutex;
use serde_json::json;
use tracing::{debug, warn};

use crate::{
    configuration_in_force::ConfigurationInForce,
    launcher_owner::{controls, owner, owner_uid},
    mount_failures::MountFailures,
    nodes::{NodePair, Nodes},
    pdbs::Pdbs,
    requests::patching,
    reserved_nodes::ReservedNodes,
    rooms::Rooms,
};

/// Launcher pods, and the inputs of new ones. Clones share the caches.
#[derive(Clone)]
pub(crate) struct Launchers {
    client: Client,
    pods: AssumeCache<Pod>,
    by_owner: Index<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    mount_failures: MountFailures,
    machines: AssumeCache<VirtualMachine>,
    pub(crate) pdbs: Pdbs,
    pub(crate) nodes: Nodes,
    pub(crate) rooms: Rooms,
    pub(crate) reserved: ReservedNodes,
    pub(crate) configuration: ConfigurationInForce,
    image: String,
}

/// The purpose of a new pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PodPurpose<'a> {
    /// The instance's guest starts in it.
    Start,
    /// A migration's guest arrives in it.
    Arrival(TargetPodInput<'a>),
}

/// The properties of an instance's next pod that are known before it is created.
#[derive(Debug)]
pub(crate) struct NextPod {
    pub(crate) labels: BTreeMap<String, String>,
    /// Names of the nodes that it excludes in addition to its requirements.
    pub(crate) excluded: Vec<String>,
}

/// Options of a pod deletion, besides the UID.
#[derive(Clone, Copy, Debug, Default)]
struct PodDeletion<'a> {
    /// Resource version that the pod must still have.
    version: Option<&'a str>,
    /// Grace period in seconds; `None`: the pod's own.
    grace: Option<i64>,
}

impl Launchers {
    /// Starts watching; `on_change` is called with the instance of each pod that has changed, and with the UID of the
    /// migration for which the pod was created. `image` is the image of launcher pods.
    #[expect(
        clippy::too_many_arguments,
        reason = "these are the caches that it shares, put together once"
    )]
    pub(crate) fn start(
        client: &Client,
        watches: &WatchStarter,
        machines: AssumeCache<VirtualMachine>,
        (nodes, rooms): (Nodes, Rooms),
        pdbs: Pdbs,
        configuration: ConfigurationInForce,
        image: String,
        on_change: impl FnMut(Key, Option<&str>) + Send + 'static,
    ) -> Self {
        let on_change = Arc::new(Mutex::new(on_change));
        let enqueue = move |pod: &Pod| {
            if let Some((instance, _)) = owner(pod) {
                (*on_change.lock())(instance, launcher_pod::made_for(pod));
            }
        };
        let of_mounts = enqueue.clone();
        let by_owner = Index::by(owner_uid);
        let pods = Watch::<Pod>::all(client.clone(), "launcher pods")
            .listing(ListMode::Streamed)
            .labels(format!("{APP}={VIRT_LAUNCHER}"))
            .compressed();
        let pods = AssumeCache::start(
            watches,
            pods,
            prune_pod,
            std::slice::from_ref(&by_owner),
            move |change| {
                if let CacheChange::Object { old, new, .. } = change
                    && let Some(pod) = new.as_deref().or(old.as_deref())
                {
                    enqueue(pod);
                }
            },
        );
        let of_pods = pods.clone();
        let mount_failures = MountFailures::start(client, watches, move |pod| {
            // If the cache does not have the pod yet, its instance is reconciled once it does.
            if let Some(pod) = of_pods.get(&pod) {
                of_mounts(&pod);
            }
        });
        let claims = Watch::<PersistentVolumeClaim>::all(client.clone(), "claims")
            .listing(ListMode::Streamed)
            .prune(|claim| {
                claim.metadata.managed_fields = None;
                claim.metadata.annotations = None;
                claim.metadata.labels = None;
                claim.status = None;
            });
        let volumes = Watch::<PersistentVolume>::all(client.clone(), "persistent volumes")
            .listing(ListMode::Streamed)
            .prune(prune_volume)
            .compressed();
        Self {
            pods,
            claims: watches.start(claims),
            volumes: watches.start(volumes),
            mount_failures,
            machines,
            client: client.clone(),
            by_owner,
            pdbs,
            nodes,
            rooms,
            reserved: ReservedNodes::default(),
            configuration,
            image,
        }
    }

    /// Creates the caches with the given objects.
    #[cfg(test)]
    pub(crate) fn filled(client: &Client, pods: impl IntoIterator<Item = Pod>, nodes: Nodes, pdbs: Pdbs) -> Self {
        let by_owner = Index::by(owner_uid);
        Self {
            client: client.clone(),
            pods: AssumeCache::of_cache(Cache::filled(pods), std::slice::from_ref(&by_owner)),
            by_owner,
            claims: Cache::default(),
            volumes: Cache::default(),
            mount_failures: MountFailures::default(),
            machines: AssumeCache::filled([]),
            pdbs,
            nodes,
            rooms: Rooms::default(),
            reserved: ReservedNodes::default(),
            configuration: ConfigurationInForce::default(),
            image: "image".into(),
        }
    }

    /// Replaces the pods that the watch shows.
    #[cfg(test)]
    pub(crate) fn show(&self, pods: impl IntoIterator<Item = Pod>) {
        self.pods.show(pods);
    }

    /// Sets an annotation of a pod, or removes it. Does nothing if the pod was deleted, or replaced by another of its
    /// name.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn annotate(
        &self,
        instance: &VirtualMachineInstance,
        (name, uid): (&str, &str),
        key: &str,
        value: Option<&str>,
    ) -> kube::Result<()> {
        let patch = json!({"metadata": {"uid": uid, "annotations": {key: value}}});
        let parameters = PatchParams::default();
        match self
            .api(instance)
            .patch_metadata(name, &parameters, &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Returns the pod of this name as the watch shows it.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Pod>> {
        self.pods.shown().get(key)
    }

    /// Returns what an eviction of an instance's pod does: the instance's own strategy, else the cluster's current
    /// one.
    pub(crate) fn eviction_strategy(&self, instance: &VirtualMachineInstance) -> EvictionStrategy {
        let names_one = instance.spec.eviction_strategy.is_some();
        let machine = names_one
            .then(|| self.machines.shown().get(&Key::of(instance)))
            .flatten();
        strategy::in_force(instance, machine.as_deref(), self.configuration.get().eviction_strategy)
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(
            self.pods.shown().wait_until_synced(),
            self.claims.wait_until_synced(),
            self.volumes.wait_until_synced(),
            self.rooms.wait_until_synced(),
            self.mount_failures.wait_until_synced(),
            self.machines.shown().wait_until_synced(),
            self.configuration.resolved(),
            self.pdbs.wait_until_synced(),
            self.nodes.wait_until_synced(),
        );
    }

    /// Returns the pods of an instance from the cache, with those that this process has just created.
    pub(crate) fn of(&self, instance: &VirtualMachineInstance) -> Vec<Arc<Pod>> {
        self.pods.by(&self.by_owner, &instance.uid().unwrap_or_default())
    }

    /// Returns the last kubelet messages about volumes that cannot be mounted into these pods, by the pod's UID.
    pub(crate) fn unmounted(&self, pods: &[Arc<Pod>]) -> Vec<(String, String)> {
        let uids = pods.iter().filter_map(|pod| pod.uid());
        uids.filter_map(|uid| Some((uid.clone(), self.mount_failures.of(&uid)?)))
            .collect()
    }

    /// Returns the pod in which an instance's guest runs, as reported by its agent.
    fn running_pod(&self, instance: &VirtualMachineInstance) -> Option<Arc<Pod>> {
        running_among(&self.of(instance), instance).cloned()
    }

    /// Reads the pods of an instance from the API server, bypassing all caches.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn list(&self, instance: &VirtualMachineInstance) -> kube::Result<Vec<Arc<Pod>>> {
        let uid = instance.uid().unwrap_or_default();
        let parameters = ListParams::default().labels(&format!("{CREATED_BY}={uid}"));
        let pods = self.api(instance).list(&parameters).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| controls(&uid, pod))
            .map(Arc::new)
            .collect())
    }

    /// Returns what keeps a pod from running. Lists its events only if nothing else shows the reason.
    pub(crate) async fn pending(&self, pod: &Pod, now: Timestamp) -> StartingPod {
        let pending = pending(pod, now);
        if !pending.wants_events {
            return pending;
        }
        let uid = pod.uid().unwrap_or_default();
        let fields = format!("involvedObject.uid={uid},type=Warning");
        let api = Api::<Event>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        match api.list(&ListParams::default().fields(&fields)).await {
            Ok(events) => pending.explained(newest_warning(&events.items)),
            Err(error) => {
                debug!(pod = %Key::of(pod), error = %chain(&error), "events of a pod that does not start not listed");
                pending
            }
        }
    }

    /// Returns the volumes of an instance that are claims, with the known access and volume modes of the claims.
    pub(crate) fn claims_of(&self, instance: &VirtualMachineInstance) -> Vec<VolumeStatus> {
        let namespace = instance.namespace().unwrap_or_default();
        let volumes = instance.spec.volumes.iter();
        volumes
            .filter_map(|volume| {
                let name = migratable::claim(volume)?;
                let claim = self.claims.get(&Key::namespaced(&namespace, name))?;
                let spec = claim.spec.clone().unwrap_or_default();
                Some(VolumeStatus {
                    name: volume.name.clone(),
                    persistent_volume_claim_info: Some(ClaimInfo {
                        claim_name: Some(name.into()),
                        access_modes: spec.access_modes.unwrap_or_default(),
                        volume_mode: spec.volume_mode,
                    }),
                    ..VolumeStatus::default()
                })
            })
            .collect()
    }

    /// Returns the volumes of an instance that only certain nodes can use, as far as they are known.
    pub(crate) fn bound_volumes(&self, instance: &VirtualMachineInstance) -> Vec<BoundVolume> {
        let namespace = instance.namespace().unwrap_or_default();
        let claims = instance.spec.volumes.iter().filter_map(migratable::claim);
        claims
            .filter_map(|name| {
                let claim = self.claims.get(&Key::namespaced(&namespace, name))?;
                let volume = claim.spec.as_ref()?.volume_name.as_deref()?;
                let volume = self.volumes.get(&Key::cluster(volume))?;
                let nodes = volume.spec.as_ref()?.node_affinity.as_ref()?.required.clone()?;
                Some(BoundVolume {
                    claim: name.to_owned(),
                    nodes,
                })
            })
            .collect()
    }

    /// Returns the spec of an instance with defaults for everything that its manifest leaves open.
    pub(crate) fn whole(&self, instance: &VirtualMachineInstance) -> VirtualMachineInstanceSpec {
        let mut spec = instance.spec.clone();
        let named = Named {
            namespace: instance.metadata.namespace.as_deref().unwrap_or_default(),
            name: instance.metadata.name.as_deref(),
        };
        default_instance(&mut spec, named, &self.configuration.get(), native_architecture());
        spec
    }

    /// Returns what a node must have for an instance: to start its guest or, with `source`, the node on which it
    /// runs, to receive the guest from there.
    pub(crate) fn requirements(
        &self,
        spec: &VirtualMachineInstanceSpec,
        source: Option<&NodeView<'_>>,
    ) -> Requirements {
        let configuration = self.configuration.get();
        let minimum = self.nodes.minimum(&configuration.min_cpu_model);
        let mut needs = placement::requirements(spec, &configuration, &minimum);
        let pairs = self.nodes.pairs();
        let views = || pairs.iter().map(NodePair::view);
        if let Some(source) = source {
            placement::lift_masks(&mut needs, source);
        }
        placement::admit_partial_models(&mut needs, views());
        if let Some(source) = source {
            placement::admit_masked(&mut needs, source, views());
        }
        needs
    }

    /// Returns labels of the next pod of an instance, and the nodes that it excludes: those being drained, as far as
    /// that matters to it. `pods` are its present pods.
    pub(crate) fn next_pod(&self, instance: &VirtualMachineInstance, pods: &[Arc<Pod>]) -> NextPod {
        let like = running_among(pods, instance).or_else(|| pods.first());
        let mut labels = like.and_then(|pod| pod.metadata.labels.clone()).unwrap_or_default();
        labels.remove(launcher_pod::MIGRATION_UID);
        let spec = &instance.spec;
        let excluded = if spec.topology_spread_constraints.is_empty() {
            Vec::new()
        } else {
            let key = &self.configuration.get().migrations.drain_taint_key;
            self.nodes.leaving(key, &spec.tolerations)
        };
        NextPod { labels, excluded }
    }

    /// Returns what other pods require of the node of an instance's next pod. The pod in which its guest runs is one of
    /// them, but not other pods of the instance. `nodes` returns all nodes.
    pub(crate) fn rules<'n>(
        &self,
        instance: &VirtualMachineInstance,
        pods: &[Arc<Pod>],
        needs: &Requirements,
        nodes: impl FnOnce() -> Cow<'n, [NodeView<'n>]>,
    ) -> Rules {
        let next = self.next_pod(instance, pods);
        let running = running_among(pods, instance);
        let mut moves = PodMoves::default();
        for pod in pods
            .iter()
            .filter(|pod| running.is_none_or(|running| !Arc::ptr_eq(pod, running)))
        {
            moves.leave(name_of(&pod.metadata));
        }
        let newcomer = Newcomer {
            namespace: instance.metadata.namespace.as_deref().unwrap_or_default(),
            labels: &next.labels,
            spec: &instance.spec,
            needs,
            excluded: &next.excluded,
        };
        self.rooms.rules(&newcomer, &moves, nodes)
    }

    /// Returns a digest of what a pod that starts an instance's guest would require of a node if it were created now.
    pub(crate) fn requirements_digest(&self, instance: &VirtualMachineInstance) -> String {
        let spec = self.whole(instance);
        let emulation = self.configuration.get().use_emulation;
        launcher_pod::requirements_digest(&spec, &self.requirements(&spec, None), emulation)
    }

    /// Creates a pod, unless it exists. Returns it, and whether it was created now.
    ///
    /// # Errors
    /// If the API server does not create it; with `AlreadyExists` if its name belongs to a pod that is not the
    /// instance's.
    pub(crate) async fn create(
        &self,
        instance: &VirtualMachineInstance,
        purpose: PodPurpose<'_>,
    ) -> kube::Result<(Arc<Pod>, bool)> {
        let configuration = self.configuration.get();
        let mut instance = instance.clone();
        instance.spec = self.whole(&instance);
        let claims = self.claim_modes(&instance);
        let here = match purpose {
            PodPurpose::Start => None,
            PodPurpose::Arrival(_) => instance.node_name(),
        };
        let here = here.and_then(|name| self.nodes.pair(name));
        let source = here.as_ref().map(NodePair::view);
        let mut requirements = self.requirements(&instance.spec, source.as_ref());
        let instance_uid = instance.uid().unwrap_or_default();
        // The identity always leads to the same pod, so that a pod that this process does not remember is not created
        // twice.
        let (identity, found) = match purpose {
            PodPurpose::Start => (instance_uid, None),
            PodPurpose::Arrival(migration) => {
                let minimum = self.nodes.minimum(&configuration.min_cpu_model);
                let pairs = self.nodes.pairs();
                let views = pairs.iter().map(NodePair::view);
                placement::require_recorded_cpu(&mut requirements, &instance, &minimum, source.as_ref(), views);
                let images = if migration.by_manifest {
                    BTreeMap::new()
                } else {
                    image_identity::pinned_images(&instance)
                };
                (migration.identity(), Some((sizes(&instance), images)))
            }
        };
        let input = PodInput {
            instance: &instance,
            image: &self.image,
            requirements: &requirements,
            claims: &claims,
            suffix: &launcher_pod::suffix(&identity),
            host_uuid: &launcher_pod::host_uuid(&identity),
            emulation: configuration.use_emulation,
            arriving: found.as_ref().map(|(sizes, images)| Arriving { sizes, images }),
        };
        let mut pod = match purpose {
            PodPurpose::Start => launcher_pod::pod(&input),
            PodPurpose::Arrival(migration) => {
                let mut target = launcher_pod::target_pod(&input, migration);
                if let Some(source) = self.running_pod(&instance) {
                    launcher_pod::carry_labels(&mut target, &source);
                }
                target
            }
        };
        descheduler::annotate(&mut pod, self.eviction_strategy(&instance));
        let api = self.api(&instance);
        match api.create(&PostParams::default(), &pod).await {
            Ok(created) => {
                let assumed = self.pods.created(created.clone(), ASSUMED_FOR);
                self.protect(&instance, &created).await;
                Ok((assumed, true))
            }
            // An earlier attempt may have created it without a response.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let existing = api.get_opt(&pod.name_any()).await?;
                let uid = instance.uid().unwrap_or_default();
                match existing.filter(|existing| controls(&uid, existing)) {
                    Some(existing) => Ok((self.pods.created(existing, ASSUMED_FOR), false)),
                    None => Err(kube::Error::Api(status)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the PDB of a new pod, if the pod is to be protected and no PDB of another owner selects it.
    async fn protect(&self, instance: &VirtualMachineInstance, pod: &Pod) {
        let strategy = self.eviction_strategy(instance);
        if !is_protected(instance, strategy, pod, clock::now()) || self.pdbs.conflicting(pod).is_some() {
            return;
        }
        if let Err(error) = self.pdbs.create(pod).await {
            // The PDB task retries it, and reports why there is none.
            warn!(pod = %Key::of(pod), error = %chain(&error), "the budget of a new pod could not be made");
        }
    }

    /// Adds ephemeral containers to a pod.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn run_beside(
        &self,
        instance: &VirtualMachineInstance,
        name: &str,
        uid: &str,
        containers: &[EphemeralContainer],
    ) -> kube::Result<()> {
        let patch = json!({"metadata": {"uid": uid}, "spec": {"ephemeralContainers": containers}});
        let parameters = patching();
        let api = self.api(instance);
        api.patch_ephemeral_containers(name, &parameters, &Patch::Strategic(patch))
            .await?;
        Ok(())
    }

    /// Deletes a pod, with a grace period of `grace` seconds if that is less than the pod's own. Returns whether it
    /// existed.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn delete(
        &self,
        instance: &VirtualMachineInstance,
        name: &str,
        uid: &str,
        grace: Option<i64>,
    ) -> kube::Result<bool> {
        let namespace = instance.namespace().unwrap_or_default();
        let deletion = PodDeletion {
            grace,
            ..PodDeletion::default()
        };
        self.delete_with(&namespace, name, uid, deletion).await
    }

    /// Deletes a pod if it still has this version, if one is given.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn delete_version(
        &self,
        instance: &VirtualMachineInstance,
        name: &str,
        uid: &str,
        version: Option<&str>,
    ) -> kube::Result<bool> {
        let deletion = PodDeletion {
            version,
            ..PodDeletion::default()
        };
        self.delete_with(&instance.namespace().unwrap_or_default(), name, uid, deletion)
            .await
    }

    /// Deletes a pod of any instance in a namespace.
    ///
    /// # Errors
    /// If the request to the API server fails.
    pub(crate) async fn delete_in(&self, namespace: &str, name: &str, uid: &str) -> kube::Result<bool> {
        self.delete_with(namespace, name, uid, PodDeletion::default()).await
    }

    async fn delete_with(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        deletion: PodDeletion<'_>,
    ) -> kube::Result<bool> {
        let parameters = DeleteParams {
            grace_period_seconds: deletion.grace.and_then(|seconds| u32::try_from(seconds).ok()),
            preconditions: Some(Preconditions {
                uid: Some(uid.into()),
                resource_version: deletion.version.map(Into::into),
            }),
            ..DeleteParams::default()
        };
        let api = Api::<Pod>::namespaced(self.client.clone(), namespace);
        match api.delete(name, &parameters).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn api(&self, instance: &VirtualMachineInstance) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &instance.namespace().unwrap_or_default())
    }

    fn claim_modes(&self, instance: &VirtualMachineInstance) -> BTreeMap<String, ClaimMode> {
        self.claims_of(instance)
            .into_iter()
            .filter_map(|volume| {
                let info = volume.persistent_volume_claim_info?;
                let block = info.volume_mode.as_deref() == Some("Block");
                Some((
                    info.claim_name?,
                    if block { ClaimMode::Block } else { ClaimMode::Filesystem },
                ))
            })
            .collect()
    }
}

/// Returns the disk sizes of a running guest in bytes, by volume.
fn sizes(instance: &VirtualMachineInstance) -> BTreeMap<String, u64> {
    let volumes = instance.status.iter().flat_map(|status| &status.volume_status);
    volumes
        .filter_map(|volume| Some((volume.name.clone(), u64::try_from(volume.size?).ok()?)))
        .collect()
}

/// Returns Kubernetes' name of the architecture of guests that name none: that of this process.
pub(crate) fn native_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "s390x" => "s390x",
        _ => "amd64",
    }
}

/// Keeps what determines which nodes can use a volume.
fn prune_volume(volume: &mut PersistentVolume) {
    volume.metadata = ObjectMeta {
        name: volume.metadata.name.take(),
        resource_version: volume.metadata.resource_version.take(),
        ..ObjectMeta::default()
    };
    volume.status = None;
    if let Some(spec) = &mut volume.spec {
        *spec = PersistentVolumeSpec {
            node_affinity: spec.node_affinity.take(),
            ..PersistentVolumeSpec::default()
        };
    }
}

/// Returns the one of an instance's pods in which its guest runs, as reported by its agent.
fn running_among<'p>(pods: &'p [Arc<Pod>], instance: &VirtualMachineInstance) -> Option<&'p Arc<Pod>> {
    let uid = instance.status.as_ref()?.drydock.as_ref()?.pod_uid.as_deref()?;
    pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid))
}

/// Keeps what matters for decisions about a launcher pod.
fn prune_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| [REQUIREMENTS_DIGEST, EVICTION_IN_PROGRESS].contains(&key.as_str()));
    }
    let arrives = launcher_pod::made_for(pod).is_some();
    if let Some(spec) = &mut pod.spec {
        // A target pod needs its image volumes. For other pods it only matters whether containers for the images were
        // requested.
        let images = spec.volumes.take().filter(|_| arrives).map(|mut volumes| {
            volumes.retain(|volume| volume.image.is_some());
            volumes
        });
        let probes = spec.ephemeral_containers.take().map(|containers| {
            let name = |container: EphemeralContainer| EphemeralContainer {
                name: container.name,
                ..EphemeralContainer::default()
            };
            containers.into_iter().map(name).collect()
        });
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            scheduler_name: spec.scheduler_name.take(),
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            volumes: images,
            ephemeral_containers: probes,
            ..PodSpec::default()
        };
    }
    if let Some(status) = &mut pod.status {
        status.ephemeral_container_statuses = None;
        let (own, before) = (&mut status.container_statuses, &mut status.init_container_statuses);
        for container in own.iter_mut().chain(before).flatten() {
            container.last_state = None;
            container.volume_mounts = None;
            container.resources = None;
            container.allocated_resources = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::api_server;

    use super::*;

    #[tokio::test]
    async fn existing_pod_is_assumed_only_if_owned_by_the_instance() {
        let instance: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm1", "namespace": "default", "uid": "u"},
            "spec": {"domain": {"devices": {}}},
        }))
        .unwrap();
        for (owner, is_own) in [("u", true), ("another", false)] {
            let (client, mut server) = api_server();
            let launchers = Launchers::filled(&client, [], Nodes::filled(&client, []), Pdbs::filled(&client, []));
            let api = async {
                let request = server.next_request().await;
                let mut existing = request.body.clone();
                existing["metadata"]["uid"] = json!("p");
                existing["metadata"]["ownerReferences"][0]["uid"] = json!(owner);
                request.refuse(409, "AlreadyExists");
                server.next_request().await.with(&existing);
            };
            let (created, ()) = tokio::join!(launchers.create(&instance, PodPurpose::Start), api);
            match created {
                Ok((pod, false)) => assert!(is_own && pod.uid().as_deref() == Some("p"), "{owner}: {pod:?}"),
                Err(kube::Error::Api(status)) => assert!(!is_own && status.is_already_exists(), "{owner}: {status:?}"),
                other => panic!("{owner}: {other:?}"),
            }
            assert_eq!(launchers.of(&instance).len(), usize::from(is_own), "{owner}");
        }
    }

    #[test]
    fn requirements_digest_of_a_pod_survives_pruning() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "resourceVersion": "7", "annotations": {"note": "n", REQUIREMENTS_DIGEST: "d"}},
            "spec": {"containers": []},
        }))
        .unwrap();
        prune_pod(&mut pod);
        assert_eq!(
            pod.metadata.annotations,
            Some([(REQUIREMENTS_DIGEST.to_owned(), "d".to_owned())].into())
        );
        assert_eq!(pod.metadata.resource_version.as_deref(), Some("7"));
    }
}
