//! The PersistentVolumeClaims and PersistentVolumes of instances.

use std::collections::BTreeMap;

use drydock_api::kubevirt::{
    VirtualMachineInstance,
    status::{ClaimInfo, VolumeStatus},
};
use drydock_core::{launcher_pod::ClaimMode, migratable, placement::BoundVolume};
use drydock_runtime::{Cache, Key, ListMode, Watch, WatchStarter};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec};
use kube::{Client, ResourceExt, core::ObjectMeta};

/// The claims of the cluster and their volumes. Clones share the caches.
#[derive(Clone, Default)]
pub(crate) struct InstanceClaims {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

impl InstanceClaims {
    /// Starts the watches of claims and volumes.
    pub(crate) fn start(client: &Client, watches: &WatchStarter) -> Self {
        let claims = Watch::<PersistentVolumeClaim>::all(client.clone(), "claims")
            .listing(ListMode::Streamed)
            .prune(|claim| {
                claim.metadata.annotations = None;
                claim.metadata.labels = None;
                claim.status = None;
            });
        let volumes = Watch::<PersistentVolume>::all(client.clone(), "persistent volumes")
            .listing(ListMode::Streamed)
            .prune(prune_volume)
            .compressed();
        Self {
            claims: watches.start(claims),
            volumes: watches.start(volumes),
        }
    }

    /// Waits until the caches are synced.
    pub(crate) async fn wait_until_synced(&self) {
        tokio::join!(self.claims.wait_until_synced(), self.volumes.wait_until_synced());
    }

    /// Returns the volumes of an instance that use claims, with the access and volume modes of known claims.
    pub(crate) fn of(&self, instance: &VirtualMachineInstance) -> Vec<VolumeStatus> {
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
    pub(crate) fn bound(&self, instance: &VirtualMachineInstance) -> Vec<BoundVolume> {
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

    /// Returns the volume mode of each known claim of an instance.
    pub(crate) fn modes(&self, instance: &VirtualMachineInstance) -> BTreeMap<String, ClaimMode> {
        self.of(instance)
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

/// Keeps the node affinity of a volume, which determines the nodes that can use it.
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
