//! Carries out [`drydock_core::instance::plan`]: each instance gets its pod, and its end is told.
//!
//! ```text
//!  instances, pods ──┐
//!  nodes ────────────┼─▶ which instance ─▶ look ─▶ plan ─▶ pod, finalizer, label, status, event
//!  configuration ────┘
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drydock_api::{
    CONTROLLER_FIELD_MANAGER,
    kubevirt::{
        Phase, VirtualMachineInstance, VirtualMachineInstanceSpec, VirtualMachineInstanceStatus,
        names::{APP, CREATED_BY, FINALIZER, NODE_NAME, VIRT_LAUNCHER},
        status::{ClaimInfo, VolumeStatus},
    },
};
use drydock_core::{
    admission::defaults::{Named, default_instance},
    instance::{NodeState, Observed, Step, Targets, plan},
    launcher_pod::{self, ClaimMode, PodInput},
    migratable, placement,
};
use drydock_runtime::{
    Cache, Event, Events, Key, KeyedWork, Process, Severity, Signal, Watch, Watches, clock, lease::Leadership,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use thiserror::Error;
use tracing::info;

use crate::{
    configuration_in_force::ConfigurationInForce,
    instances::{Instances, prune},
    nodes::Nodes,
    own_writes::OwnWrites,
    pods_by_owner::{PodsByOwner, controls},
};

/// Changes of nodes and configuration within this time are looked at as one.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// What the task knows beyond the caches that it shares.
pub(crate) struct InstanceTask {
    client: Client,
    instances: Instances,
    pods: Cache<Pod>,
    by_owner: PodsByOwner,
    claims: Cache<PersistentVolumeClaim>,
    nodes: Nodes,
    configuration: ConfigurationInForce,
    events: Events,
    /// Image of launcher pods.
    launcher_image: String,
    written: OwnWrites<VirtualMachineInstance>,
}

/// What the task is given.
pub(crate) struct Given {
    pub(crate) client: Client,
    pub(crate) instances: Instances,
    pub(crate) nodes: Nodes,
    pub(crate) configuration: ConfigurationInForce,
    pub(crate) events: Events,
    /// Image of launcher pods.
    pub(crate) launcher_image: String,
}

/// What went wrong with one instance.
#[derive(Debug, Error)]
pub(crate) enum LookError {
    /// The API server did not do what was asked.
    #[error("the API server refused or did not answer")]
    Api(#[from] kube::Error),
    /// The pod could not be made; the instance says so.
    #[error("its pod could not be made: {0}")]
    NoPod(String),
}

impl InstanceTask {
    /// Starts watching; `work` is told which instances to look at. It also has to hear of the
    /// changes of the instances.
    pub(crate) fn new(given: Given, watches: &Watches, work: &KeyedWork) -> Self {
        let Given {
            client,
            instances,
            nodes,
            configuration,
            events,
            launcher_image,
        } = given;
        let by_owner = PodsByOwner::default();
        let (index, queue) = (by_owner.clone(), work.clone());
        let pods = Watch::<Pod>::all(client.clone(), "launcher pods")
            .labels(format!("{APP}={VIRT_LAUNCHER}"))
            .prune(prune_pod)
            .on_change(move |change| {
                if let Some(instance) = index.observe(change) {
                    queue.add(instance);
                }
            });
        let claims = Watch::<PersistentVolumeClaim>::all(client.clone(), "claims").prune(|claim| {
            claim.metadata.managed_fields = None;
            claim.metadata.annotations = None;
            claim.metadata.labels = None;
            claim.status = None;
        });
        Self {
            instances,
            pods: watches.start(pods),
            claims: watches.start(claims),
            client,
            by_owner,
            nodes,
            configuration,
            events,
            launcher_image,
            written: OwnWrites::default(),
        }
    }

    /// Waits until the API server has said everything once.
    async fn answered(&self) {
        tokio::join!(
            self.instances.answered(),
            self.pods.answered(),
            self.claims.answered(),
            self.nodes.answered()
        );
    }

    /// Instances that have not ended: those that a change of nodes concerns.
    fn unfinished(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.instances.for_each(|key, instance| {
            let phase = instance
                .status
                .as_ref()
                .and_then(|status| status.phase)
                .unwrap_or_default();
            if !phase.is_final() {
                keys.push(key.clone());
            }
        });
        keys
    }

    /// Looks at instances while this process leads, until `process` stops.
    pub(crate) async fn run(self, process: Process, leadership: Leadership, work: KeyedWork, surroundings: Signal) {
        let stopping = process.stopping();
        let task = Arc::new(self);
        let all = || {
            let task = Arc::clone(&task);
            async move {
                task.answered().await;
                task.all()
            }
        };
        let look = |key: Key| {
            let task = Arc::clone(&task);
            async move {
                match task.look(&key).await {
                    // Somebody was faster; the watch is about to show it.
                    Err(LookError::Api(kube::Error::Api(status))) if status.is_conflict() => Ok(()),
                    result => result,
                }
            }
        };
        let sweeping = async {
            loop {
                surroundings.notified().await;
                for key in task.unfinished() {
                    work.add(key);
                }
                // Nodes change in bursts, when a configuration is followed or a zone comes back.
                clock::sleep_until_instant(Some(clock::Instant::now() + SWEEP_PAUSE)).await;
            }
        };
        tokio::join!(
            work.run(&stopping, leadership, all, look),
            stopping.run_until_cancelled(sweeping),
        );
    }

    fn all(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.instances.for_each(|key, _| keys.push(key.clone()));
        keys
    }

    /// Looks at one instance and does what is to be done.
    ///
    /// # Errors
    /// If the API server does not do it; it is safe to look again.
    async fn look(&self, key: &Key) -> Result<(), LookError> {
        let Some(instance) = self.newest(key) else {
            return Ok(());
        };
        let uid = instance.uid().unwrap_or_default();
        let here = instance.status.as_ref().and_then(|status| status.node_name.as_deref());
        let node = match here {
            Some(name) => self.nodes.state(name).await?,
            None => NodeState::Unknown,
        };
        let pods = self.by_owner.of(&uid, &self.pods);
        let claims = self.claims_of(&instance);
        let mut observed = Observed {
            now: clock::now(),
            instance: &instance,
            pods: &pods,
            confirmed: false,
            node,
            claims: &claims,
            misfit: None,
            targets: None,
            failed_create: None,
        };
        let (misfit, targets) = self.fit(&instance, &pods);
        observed.misfit = misfit.as_deref();
        observed.targets = targets.as_ref();
        let mut todo = plan(&observed);
        let listed;
        if todo.confirm {
            listed = self.list_pods(&instance, &uid).await?;
            observed.pods = &listed;
            observed.confirmed = true;
            todo = plan(&observed);
        }
        let failure = self.carry_out(key, &instance, &todo.steps).await?;
        if let Some(failure) = &failure {
            observed.failed_create = Some(failure);
            todo = plan(&observed);
        }
        if let Some(wanted) = &todo.status {
            self.write_status(key, &instance, wanted).await?;
        }
        // The instance says why by now; the queue looks again, later and later.
        failure.map_or(Ok(()), |failure| Err(LookError::NoPod(failure)))
    }

    /// The newest that is known of an instance; `None` if there is none.
    fn newest(&self, key: &Key) -> Option<VirtualMachineInstance> {
        self.written.newest(key, self.instances.watched())
    }

    /// Remembers what the API server answered to a write.
    fn remember(&self, key: &Key, mut instance: VirtualMachineInstance) {
        prune(&mut instance);
        self.written.remember(key, instance);
    }

    fn api(&self, key: &Key) -> Api<VirtualMachineInstance> {
        Api::namespaced(self.client.clone(), key.namespace.as_deref().unwrap_or_default())
    }

    fn pod_api(&self, key: &Key) -> Api<Pod> {
        Api::namespaced(self.client.clone(), key.namespace.as_deref().unwrap_or_default())
    }

    /// The pods of an instance as the API server has them now, past every cache.
    async fn list_pods(&self, instance: &VirtualMachineInstance, uid: &str) -> kube::Result<Vec<Arc<Pod>>> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &instance.namespace().unwrap_or_default());
        let parameters = ListParams::default().labels(&format!("{CREATED_BY}={uid}"));
        let pods = api.list(&parameters).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| controls(uid, pod))
            .map(Arc::new)
            .collect())
    }

    /// The volumes of an instance that are claims, with what is known of these.
    fn claims_of(&self, instance: &VirtualMachineInstance) -> Vec<VolumeStatus> {
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

    /// Why no node can take it, where its pod is on none; whether another could, where it runs.
    fn fit(&self, instance: &VirtualMachineInstance, pods: &[Arc<Pod>]) -> (Option<String>, Option<Targets>) {
        let status = instance.status.as_ref();
        let running = status.and_then(|status| status.phase) == Some(Phase::Running);
        let unplaced = pods
            .iter()
            .any(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
        if !running && !unplaced {
            return (None, None);
        }
        let configuration = self.configuration.get();
        let minimum = self.nodes.minimum(&configuration.min_cpu_model);
        let requirements = placement::requirements(&instance.spec, &configuration, &minimum);
        self.nodes.with_views(|views| {
            if running {
                let targets = placement::migration_targets(instance, &requirements, views);
                return (None, Some(targets));
            }
            let fit = placement::fit(&requirements, &instance.spec, views);
            (fit.fits.is_empty().then(|| fit.sentence()), None)
        })
    }

    /// Does the steps. Returns why the pod could not be made, if it could not.
    async fn carry_out(
        &self,
        key: &Key,
        instance: &VirtualMachineInstance,
        steps: &[Step],
    ) -> kube::Result<Option<String>> {
        for step in steps {
            match step {
                Step::AddFinalizer => self.add_finalizer(key, instance).await?,
                Step::RemoveFinalizer => self.remove_finalizer(key, instance).await?,
                Step::Label(node) => {
                    let patch = json!({"metadata": {"labels": {NODE_NAME: node}}});
                    self.merge(key, instance, patch).await?;
                }
                Step::DeletePod { name, uid } => self.delete_pod(key, instance, name, uid).await?,
                Step::CreatePod => match self.create_pod(key, instance).await {
                    Ok(()) => {}
                    // What the API server refuses is for people to read; anything else is tried again.
                    Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                        self.tell(instance, Severity::Warning, "FailedCreate", &status.message);
                        return Ok(Some(status.message));
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        Ok(None)
    }

    async fn merge(
        &self,
        key: &Key,
        instance: &VirtualMachineInstance,
        mut patch: serde_json::Value,
    ) -> kube::Result<()> {
        // Of this object and no other of its name.
        patch["metadata"]["uid"] = json!(instance.uid());
        let parameters = PatchParams {
            field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let answer = self
            .api(key)
            .patch(&instance.name_any(), &parameters, &Patch::Merge(patch))
            .await?;
        self.remember(key, answer);
        Ok(())
    }

    async fn add_finalizer(&self, key: &Key, instance: &VirtualMachineInstance) -> kube::Result<()> {
        let mut finalizers = instance.finalizers().to_vec();
        finalizers.push(FINALIZER.into());
        let version = instance.resource_version();
        let mut patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        // Admission has filled in what the manifest leaves open, unless it could not be reached.
        let whole = self.whole(instance);
        if whole != instance.spec {
            patch["spec"] = json!(whole);
        }
        self.merge(key, instance, patch).await
    }

    /// The spec of an instance with everything filled in that its manifest leaves open.
    fn whole(&self, instance: &VirtualMachineInstance) -> VirtualMachineInstanceSpec {
        let mut spec = instance.spec.clone();
        let named = Named {
            namespace: instance.metadata.namespace.as_deref().unwrap_or_default(),
            name: instance.metadata.name.as_deref(),
        };
        default_instance(&mut spec, named, &self.configuration.get(), native_architecture());
        spec
    }

    async fn remove_finalizer(&self, key: &Key, instance: &VirtualMachineInstance) -> kube::Result<()> {
        let mut finalizers = instance.finalizers().to_vec();
        finalizers.retain(|name| name != FINALIZER);
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": instance.resource_version()}});
        match self.merge(key, instance, patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            result => {
                self.written.forget(key);
                result
            }
        }
    }

    async fn delete_pod(
        &self,
        key: &Key,
        instance: &VirtualMachineInstance,
        name: &str,
        uid: &str,
    ) -> kube::Result<()> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.into()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.pod_api(key).delete(name, &parameters).await {
            Ok(_) => {
                info!(instance = %key, pod = name, "its pod is told to end");
                self.tell(
                    instance,
                    Severity::Normal,
                    "SuccessfulDelete",
                    &format!("Deleted virtual machine pod {name}"),
                );
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn create_pod(&self, key: &Key, instance: &VirtualMachineInstance) -> kube::Result<()> {
        let configuration = self.configuration.get();
        let minimum = self.nodes.minimum(&configuration.min_cpu_model);
        let mut instance = instance.clone();
        instance.spec = self.whole(&instance);
        let claims: BTreeMap<String, ClaimMode> = self
            .claims_of(&instance)
            .into_iter()
            .filter_map(|volume| {
                let info = volume.persistent_volume_claim_info?;
                let block = info.volume_mode.as_deref() == Some("Block");
                Some((
                    info.claim_name?,
                    if block { ClaimMode::Block } else { ClaimMode::Filesystem },
                ))
            })
            .collect();
        let requirements = placement::requirements(&instance.spec, &configuration, &minimum);
        let uid = instance.uid().unwrap_or_default();
        let pod = launcher_pod::pod(&PodInput {
            instance: &instance,
            image: &self.launcher_image,
            requirements: &requirements,
            claims: &claims,
            // The same pod each time, so that one that this process has forgotten is met again.
            suffix: &launcher_pod::suffix(&uid),
            host_uuid: &launcher_pod::host_uuid(&uid),
            emulation: configuration.use_emulation,
            arriving: None,
        });
        let name = pod.name_any();
        match self.pod_api(key).create(&PostParams::default(), &pod).await {
            Ok(_) => {
                info!(instance = %key, pod = name, "its pod is made");
                self.tell(
                    &instance,
                    Severity::Normal,
                    "SuccessfulCreate",
                    &format!("Created virtual machine pod {name}"),
                );
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes the controller's part of the status, if the instance is still as it was looked at.
    async fn write_status(
        &self,
        key: &Key,
        instance: &VirtualMachineInstance,
        wanted: &VirtualMachineInstanceStatus,
    ) -> kube::Result<()> {
        // Steps may have changed the object since.
        let version = self.newest(key).and_then(|newest| newest.resource_version());
        let apply = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": instance.name_any(), "uid": instance.uid(), "resourceVersion": version},
            "status": wanted,
        });
        let parameters = PatchParams::apply(CONTROLLER_FIELD_MANAGER).force();
        let answer = self
            .api(key)
            .patch_status(&instance.name_any(), &parameters, &Patch::Apply(apply))
            .await?;
        self.remember(key, answer);
        Ok(())
    }

    fn tell(&self, instance: &VirtualMachineInstance, severity: Severity, reason: &'static str, note: &str) {
        self.events.publish(Event {
            regarding: instance.object_ref(&()),
            related: None,
            severity,
            reason: reason.into(),
            action: "Reconcile".into(),
            note: note.into(),
        });
    }
}

/// The architecture of guests that name none, by Kubernetes' name: that of this process.
pub(crate) fn native_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "s390x" => "s390x",
        _ => "amd64",
    }
}

/// Keeps what decides about a launcher pod.
fn prune_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        *spec = k8s_openapi::api::core::v1::PodSpec {
            node_name: spec.node_name.take(),
            ..Default::default()
        };
    }
    if let Some(status) = &mut pod.status {
        status.container_statuses = status.container_statuses.take().map(|mut containers| {
            for container in &mut containers {
                container.last_state = None;
                container.volume_mounts = None;
                container.resources = None;
                container.allocated_resources = None;
            }
            containers
        });
    }
}
