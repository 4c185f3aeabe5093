//! Creation of launcher pods, and the requirements of pods that are about to be created.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceSpec};
use drydock_core::{
    admission::defaults::{Named, default_instance},
    eviction::{descheduler, own_pdb::is_protected},
    launcher_pod::{self, Arriving, PodInput, TargetPodInput, image_identity},
    placement::{self, Newcomer, NodeView, PodMoves, Requirements, Rules, name_of},
};
use drydock_runtime::{ASSUMED_FOR, Key, chain, clock};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::PostParams};
use tracing::warn;

use super::{Launchers, running_among};
use crate::{launcher_owner::controls, nodes::NodePair};

/// Purpose of a new pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PodPurpose<'a> {
    /// The guest of the instance starts in the pod.
    Start,
    /// The guest of a migration arrives in the pod.
    Arrival(TargetPodInput<'a>),
}

/// Properties of an instance's next pod that are known before its creation.
#[derive(Debug)]
pub(crate) struct NextPod {
    pub(crate) labels: BTreeMap<String, String>,
    /// Names of the nodes that the pod excludes in addition to its requirements.
    pub(crate) excluded: Vec<String>,
}

impl Launchers {
    /// Returns the spec of an instance with defaults for all fields that its manifest omits.
    pub(crate) fn whole(&self, instance: &VirtualMachineInstance) -> VirtualMachineInstanceSpec {
        let mut spec = instance.spec.clone();
        let named = Named {
            namespace: instance.metadata.namespace.as_deref().unwrap_or_default(),
            name: instance.metadata.name.as_deref(),
        };
        default_instance(&mut spec, named, &self.configuration.get(), native_architecture());
        spec
    }

    /// Returns the requirements of an instance on its node. With `source`, which is the present node, the requirements
    /// are for a migration from that node.
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

    /// Returns the labels of an instance's next pod, and the nodes that it excludes. It excludes nodes that are being
    /// drained if it has topology spread constraints. `pods` are the present pods of the instance.
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

    /// Returns the rules that other pods impose on the node of an instance's next pod. The pod in which its guest runs
    /// counts as one of them, other pods of the instance do not. `nodes` returns all nodes.
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

    /// Returns a digest of the requirements that a new pod for starting the guest of an instance would have on its
    /// node.
    pub(crate) fn requirements_digest(&self, instance: &VirtualMachineInstance) -> String {
        let spec = self.whole(instance);
        let emulation = self.configuration.get().use_emulation;
        launcher_pod::requirements_digest(&spec, &self.requirements(&spec, None), emulation)
    }

    /// Creates a pod, unless it exists. Returns the pod, and whether it was created by this call.
    ///
    /// # Errors
    /// If the API server does not create the pod; with `AlreadyExists` if its name belongs to a pod of another
    /// instance.
    pub(crate) async fn create(
        &self,
        instance: &VirtualMachineInstance,
        purpose: PodPurpose<'_>,
    ) -> kube::Result<(Arc<Pod>, bool)> {
        let configuration = self.configuration.get();
        let mut instance = instance.clone();
        instance.spec = self.whole(&instance);
        let claims = self.claims.modes(&instance);
        let here = match purpose {
            PodPurpose::Start => None,
            PodPurpose::Arrival(_) => instance.node_name(),
        };
        let here = here.and_then(|name| self.nodes.pair(name));
        let source = here.as_ref().map(NodePair::view);
        let mut requirements = self.requirements(&instance.spec, source.as_ref());
        let instance_uid = instance.uid().unwrap_or_default();
        // The identity determines the name of the pod, so that a pod that this process does not remember is not created
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
            // An earlier attempt may have created the pod without receiving the response.
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

    /// Creates the PDB of a new pod if the pod has to be protected and no PDB of another owner selects it.
    async fn protect(&self, instance: &VirtualMachineInstance, pod: &Pod) {
        let strategy = self.eviction_strategy(instance);
        if !is_protected(instance, strategy, pod, clock::now()) || self.pdbs.conflicting(pod).is_some() {
            return;
        }
        if let Err(error) = self.pdbs.create(pod).await {
            // The PDB task retries the creation, and reports the failure.
            warn!(pod = %Key::of(pod), error = %chain(&error), "could not create the PodDisruptionBudget of a new pod");
        }
    }
}

/// Returns the disk sizes of a running guest in bytes, by volume.
fn sizes(instance: &VirtualMachineInstance) -> BTreeMap<String, u64> {
    let volumes = instance.status.iter().flat_map(|status| &status.volume_status);
    volumes
        .filter_map(|volume| Some((volume.name.clone(), u64::try_from(volume.size?).ok()?)))
        .collect()
}

/// Returns the architecture of guests that do not specify one: the architecture of this process, in the spelling of
/// Kubernetes.
pub(crate) fn native_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "s390x" => "s390x",
        _ => "amd64",
    }
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::api_server;
    use serde_json::json;

    use super::*;
    use crate::{nodes::Nodes, pdbs::Pdbs};

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
}
