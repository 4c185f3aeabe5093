//! Whether a running virtual machine can be live-migrated, and every reason why not.
//!
//! The rules and the names of the reasons are KubeVirt's, as far as they apply to Drydock's guests: guests with host
//! devices, confidential memory or foreign network bindings are refused at creation and need no rule here.

use crate::domain::disk_targets;
use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    status::{MigrationMethod, VolumeStatus},
    volumes::Volume,
};

/// Why a virtual machine cannot be live-migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    /// The guest has the CPU model `host-model`, and libvirt has no host model on this node.
    CpuMode,
    /// A disk exists only on this node and does not belong to the pod.
    Disks,
}

impl Obstacle {
    /// Returns KubeVirt's CamelCase reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::CpuMode => "CPUModeLiveMigratable",
            Self::Disks => "DisksNotLiveMigratable",
        }
    }
}

/// State of a running virtual machine and its node.
#[derive(Clone, Copy, Debug)]
pub struct MigratableInput<'a> {
    /// The virtual machine.
    pub spec: &'a VirtualMachineInstanceSpec,
    /// Volumes of the virtual machine as reported, with the access modes of claims.
    pub volumes: &'a [VolumeStatus],
    /// Whether libvirt has a host model on this node.
    pub host_model_known: bool,
}

/// Returns every reason why the virtual machine cannot be live-migrated, each with a sentence; empty if it can.
pub fn obstacles(facts: &MigratableInput<'_>) -> Vec<(Obstacle, String)> {
    let mut obstacles = Vec::new();
    let model = facts.spec.domain.cpu.as_ref().and_then(|cpu| cpu.model.as_deref());
    if model.unwrap_or("host-model") == "host-model" && !facts.host_model_known {
        obstacles.push((
            Obstacle::CpuMode,
            "the CPU model is host-model, and libvirt has no host model on this node".into(),
        ));
    }
    for volume in written(facts.spec) {
        let Some(claim) = claim(volume) else { continue };
        let modes = facts
            .volumes
            .iter()
            .find(|status| status.name == volume.name)
            .and_then(|status| status.persistent_volume_claim_info.as_ref())
            .map(|info| info.access_modes.as_slice());
        match modes {
            None => obstacles.push((Obstacle::Disks, format!("Unable to determine if PVC {claim} is shared"))),
            Some(modes) if !modes.iter().any(|mode| mode == "ReadWriteMany") => obstacles.push((
                Obstacle::Disks,
                format!(
                    "PVC {claim} is not shared, live migration requires that all PVCs must be shared (using ReadWriteMany access mode)"
                ),
            )),
            Some(_) => {}
        }
    }
    obstacles
}

/// Returns how a migration handles the disks: those inside the pod are copied.
pub fn method(spec: &VirtualMachineInstanceSpec) -> MigrationMethod {
    if copied_disks(spec).is_empty() {
        MigrationMethod::LiveMigration
    } else {
        MigrationMethod::BlockMigration
    }
}

/// Yields the volumes that are disks of the guest, except for those that are only read-only CD-ROMs.
fn written(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &Volume> {
    spec.volumes.iter().filter(|volume| {
        spec.domain.devices.disks.iter().any(|disk| {
            disk.name == volume.name && disk.cdrom.as_ref().is_none_or(|cdrom| cdrom.read_only == Some(false))
        })
    })
}

/// Returns whether a migration copies the content of a volume: the guest can write to it, and only its pod has it.
pub fn is_copied(spec: &VirtualMachineInstanceSpec, volume: &Volume) -> bool {
    let names: Vec<_> = disk_targets(spec);
    claim(volume).is_none() && names.iter().any(|disk| disk.volume == volume.name && !disk.read_only)
}

/// Returns libvirt's names of the disks whose content a migration copies, such as `vda`.
pub fn copied_disks(spec: &VirtualMachineInstanceSpec) -> Vec<String> {
    let volume = |name: &str| spec.volumes.iter().find(|volume| volume.name == name);
    disk_targets(spec)
        .into_iter()
        .filter(|disk| volume(&disk.volume).is_some_and(|volume| is_copied(spec, volume)))
        .map(|disk| disk.target)
        .collect()
}

/// Returns the PersistentVolumeClaim that backs a volume.
pub fn claim(volume: &Volume) -> Option<&str> {
    let claim = volume
        .persistent_volume_claim
        .as_ref()
        .map(|claim| claim.claim_name.as_str());
    claim.or_else(|| volume.data_volume.as_ref().map(|data| data.name.as_str()))
}

#[cfg(test)]
mod tests {
    use drydock_api::kubevirt::status::ClaimInfo;
    use serde_json::json;

    use super::*;

    fn spec(value: serde_json::Value) -> VirtualMachineInstanceSpec {
        serde_json::from_value(value).unwrap()
    }

    fn with_claim(target: &serde_json::Value) -> VirtualMachineInstanceSpec {
        let mut disk = json!({"name": "data"});
        disk.as_object_mut()
            .unwrap()
            .extend(target.as_object().unwrap().clone());
        spec(json!({
            "domain": {"devices": {"disks": [disk]}},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}],
        }))
    }

    fn volume(modes: &[&str]) -> Vec<VolumeStatus> {
        vec![VolumeStatus {
            name: "data".into(),
            persistent_volume_claim_info: Some(ClaimInfo {
                access_modes: modes.iter().map(|&mode| mode.into()).collect(),
                ..ClaimInfo::default()
            }),
            ..VolumeStatus::default()
        }]
    }

    #[test]
    fn claims_must_be_shared_unless_read_only_cdroms() {
        let reasons = |target: serde_json::Value, volumes: &[VolumeStatus]| -> Vec<&'static str> {
            let spec = with_claim(&target);
            let facts = MigratableInput {
                spec: &spec,
                volumes,
                host_model_known: true,
            };
            obstacles(&facts)
                .into_iter()
                .map(|(obstacle, _)| obstacle.reason())
                .collect()
        };
        assert_eq!(reasons(json!({"disk": {}}), &volume(&["ReadWriteMany"])), [""; 0]);
        assert_eq!(
            reasons(json!({"disk": {}}), &volume(&["ReadWriteOnce"])),
            ["DisksNotLiveMigratable"]
        );
        assert_eq!(reasons(json!({}), &[]), ["DisksNotLiveMigratable"]);
        assert_eq!(reasons(json!({"cdrom": {}}), &volume(&["ReadWriteOnce"])), [""; 0]);
        assert_eq!(
            reasons(json!({"cdrom": {"readonly": false}}), &volume(&["ReadWriteOnce"])),
            ["DisksNotLiveMigratable"]
        );
    }

    #[test]
    fn all_reasons_are_given() {
        let spec = with_claim(&json!({"disk": {}}));
        let facts = MigratableInput {
            spec: &spec,
            volumes: &volume(&["ReadWriteOnce"]),
            host_model_known: false,
        };
        let all = obstacles(&facts);
        assert_eq!(all.len(), 2);
        assert!(all[1].1.contains("claim"), "{all:?}");
        let mut named = spec.clone();
        named.domain.cpu = serde_json::from_value(json!({"model": "Nehalem"})).unwrap();
        let facts = MigratableInput { spec: &named, ..facts };
        assert_eq!(obstacles(&facts).len(), 1);
    }

    #[test]
    fn pod_local_disks_need_block_migration() {
        assert_eq!(
            method(&with_claim(&json!({"disk": {}}))),
            MigrationMethod::LiveMigration
        );
        let pods_own = spec(json!({
            "domain": {"devices": {"disks": [{"name": "root"}]}},
            "volumes": [{"name": "root", "containerDisk": {"image": "i"}}],
        }));
        assert_eq!(method(&pods_own), MigrationMethod::BlockMigration);
        // A token is valid as long as its pod exists.
        let token = spec(json!({"volumes": [{"name": "token", "serviceAccount": {"serviceAccountName": "guest"}}]}));
        assert_eq!(method(&token), MigrationMethod::LiveMigration);
        assert_eq!(
            method(&VirtualMachineInstanceSpec::default()),
            MigrationMethod::LiveMigration
        );
    }
}
