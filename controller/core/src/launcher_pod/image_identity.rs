//! Records the image behind a containerDisk's tag when the guest starts, so that the target of its migration gets the
//! same image.
//!
//! Kubernetes reports the image of a *container*, but not of an image volume. So a container of the containerDisk's
//! own image runs once, for a moment, beside a guest that has started: an ephemeral container (an image digest probe) that
//! nothing waits for. It proves that its image's disk is the very file that the guest has, and the kubelet reports
//! that container's image.
//!
//! ```text
//! containerDisk tag ─▶ image volume ─▶ guest's disk ◀── same file? ── probe ◀─ container image ◀─ tag
//!                                                                      │              │
//!                                    status.images[].imageId ◀── yes ──┴── imageID ◀──┘ kubelet
//!                                              │
//!                target's image volume: repository@digest, and only the layers above it are copied
//! ```

use std::{collections::BTreeMap, sync::Arc};

use drydock_api::{
    kubevirt::{
        VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceSpec,
        migration::MigrationPhase,
        status::ImageRecord,
        volumes::{ContainerDisk, Volume},
    },
    launcher::{IMAGES_FOLDER, LAUNCHER_FOLDER, LAUNCHER_PROGRAM, LOADER, LOADER_LIBRARIES, SAME_DISK},
};
use k8s_openapi::api::core::v1::{ContainerStatus, EphemeralContainer, Pod};

use super::{
    made_for,
    pod_volumes::{image_volumes, launcher_volume, mount},
    security,
};
use crate::migration::deadlines::TARGET_POD_NOT_READY;

/// Name prefix of image digest probes.
const PROBE_PREFIX: &str = "image-digest-probe-";
/// The default registry, and the default folder there: containerd's and Docker's rule
/// (`github.com/distribution/reference`).
const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_FOLDER: &str = "library";

/// Returns whether a reference names its image by digest, so that it never changes.
fn has_digest(reference: &str) -> bool {
    reference.contains('@')
}

/// Returns a reference as written, without tag and digest.
fn without_tag(reference: &str) -> &str {
    let (name, _) = reference.split_once('@').unwrap_or((reference, ""));
    // A colon before the last slash belongs to a port.
    let folder = name.rfind('/').map_or(0, |slash| slash + 1);
    match name.get(folder..).and_then(|last| last.find(':')) {
        Some(colon) => name.get(..folder + colon).unwrap_or(name),
        None => name,
    }
}

/// Returns the full name of the repository in a reference.
fn repository(reference: &str) -> String {
    let name = without_tag(reference);
    match name.split_once('/') {
        Some((registry, _)) if registry.contains(['.', ':']) || registry == "localhost" => name.into(),
        Some(_) => format!("{DEFAULT_REGISTRY}/{name}"),
        None => format!("{DEFAULT_REGISTRY}/{DEFAULT_FOLDER}/{name}"),
    }
}

/// Returns the reference by which any node gets the image that `disk` had when its guest started, if that is known:
/// the manifest's own reference if it has a digest, else its repository with the digest of `image_id`, which is the
/// kubelet's ID of the image. An ID from another repository is of no use: that digest need not exist in this
/// repository.
pub fn pinned(disk: &ContainerDisk, image_id: Option<&str>) -> Option<String> {
    if has_digest(&disk.image) {
        return Some(disk.image.clone());
    }
    let image_id = image_id?;
    let (_, digest) = image_id.split_once('@')?;
    (repository(image_id) == repository(&disk.image)).then(|| format!("{}@{digest}", without_tag(&disk.image)))
}

/// Returns references to those images of an instance's containerDisks that are known, by volume.
pub fn pinned_images(instance: &VirtualMachineInstance) -> BTreeMap<String, String> {
    let status = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    let records = status.map_or(&[][..], |drydock| &drydock.images);
    container_disks(&instance.spec)
        .filter_map(|(volume, disk)| {
            let record = records.iter().find(|record| record.name == volume.name);
            let image_id = record.and_then(|record| record.image_id.as_deref());
            Some((volume.name.clone(), pinned(disk, image_id)?))
        })
        .collect()
}

/// Returns whether a migration has failed because its target pod did not become ready: perhaps the registry has the
/// tag's new image but no longer the old one. The next target pod then uses the manifest's references, and the
/// migration copies the whole disks.
pub fn may_be_unobtainable(earlier: &[Arc<VirtualMachineInstanceMigration>]) -> bool {
    earlier.iter().any(|migration| {
        let status = migration.status.as_ref();
        let failed = status.filter(|status| status.phase == Some(MigrationPhase::Failed));
        failed.and_then(|status| status.reason.as_deref()) == Some(TARGET_POD_NOT_READY)
    })
}

fn container_disks(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = (&Volume, &ContainerDisk)> {
    let volumes = spec.volumes.iter();
    volumes.filter_map(|volume| Some((volume, volume.container_disk.as_ref()?)))
}

/// Returns whether a migration copies only the layers above the images: `target`, the pod that the guest moves to,
/// has the very images that the guest has.
pub fn layers_only(instance: &VirtualMachineInstance, target: &Pod) -> bool {
    let pinned = pinned_images(instance);
    references(&instance.spec, target)
        .iter()
        .all(|(volume, reference)| reference.is_some() && *reference == pinned.get(volume).map(String::as_str))
}

/// Returns the guest's containerDisks with the image references in a pod's volumes.
fn references<'a>(spec: &VirtualMachineInstanceSpec, pod: &'a Pod) -> Vec<(String, Option<&'a str>)> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
    let named = |name: &str| {
        let mut volumes = volumes.unwrap_or_default().iter();
        let image = volumes.find(|volume| volume.name == name)?.image.as_ref()?;
        image.reference.as_deref()
    };
    let images = image_volumes(spec).into_iter();
    images.map(|(volume, name)| (volume, named(&name))).collect()
}

/// Returns the image digest probes that a pod lacks: one for each containerDisk of its guest with an unknown image. None if the
/// pod already has any, and none for a pod that the guest has migrated to, since its disk may contain more than the
/// image.
pub fn wanted_image_probes(instance: &VirtualMachineInstance, pod: &Pod) -> Vec<EphemeralContainer> {
    let present = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.ephemeral_containers.as_deref())
        .unwrap_or_default();
    let status = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    let runs_here = status.is_some_and(|drydock| {
        !drydock.images.is_empty() && drydock.pod_uid.is_some() && drydock.pod_uid == pod.metadata.uid
    });
    if made_for(pod).is_some() || !runs_here || present.iter().any(|container| container.name.starts_with(PROBE_PREFIX))
    {
        return Vec::new();
    }
    let images = status.map_or(&[][..], |drydock| &drydock.images);
    let (names, launcher) = (image_volumes(&instance.spec), launcher_volume(&instance.spec));
    container_disks(&instance.spec)
        .enumerate()
        .filter(|(_, (volume, disk))| {
            let record = images.iter().find(|record| record.name == volume.name);
            !has_digest(&disk.image) && record.is_some_and(|record| record.image_id.is_none())
        })
        .filter_map(|(number, (volume, disk))| {
            let (_, name) = names.iter().find(|(of, _)| *of == volume.name)?;
            Some(digest_probe(number, &launcher, name, volume, disk))
        })
        .collect()
}

fn digest_probe(
    number: usize,
    launcher: &str,
    name: &str,
    volume: &Volume,
    disk: &ContainerDisk,
) -> EphemeralContainer {
    let root = format!("{IMAGES_FOLDER}/{}", volume.name);
    // The image of a disk has no programs or libraries of its own.
    let mut command = vec![
        format!("{LAUNCHER_FOLDER}{LOADER}"),
        "--library-path".to_owned(),
        format!("{LAUNCHER_FOLDER}{LOADER_LIBRARIES}"),
        format!("{LAUNCHER_FOLDER}{LAUNCHER_PROGRAM}"),
        SAME_DISK.to_owned(),
        root.clone(),
    ];
    command.extend(disk.path.clone());
    EphemeralContainer {
        name: format!("{PROBE_PREFIX}{number}"),
        image: Some(disk.image.clone()),
        // The tag may have been moved since; the probe is about the image that this node has.
        image_pull_policy: Some("IfNotPresent".into()),
        command: Some(command),
        security_context: Some(security::container()),
        volume_mounts: Some(vec![
            mount(name, root, true),
            mount(launcher, LAUNCHER_FOLDER.into(), true),
        ]),
        ..EphemeralContainer::default()
    }
}

/// Returns the known image IDs of a pod's volumes, by the guest's volume names: references with a digest, and the IDs
/// that the pod's probes have proved.
pub fn image_ids(spec: &VirtualMachineInstanceSpec, pod: &Pod) -> BTreeMap<String, String> {
    let named = references(spec, pod).into_iter();
    let mut ids: BTreeMap<_, _> = named
        .filter_map(|(volume, reference)| Some((volume, reference.filter(|text| has_digest(text))?.to_owned())))
        .collect();
    let containers = pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_deref());
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.ephemeral_container_statuses.as_deref());
    for container in containers.unwrap_or_default() {
        let mut all = statuses.unwrap_or_default().iter();
        let status = all.find(|status| status.name == container.name && status.name.starts_with(PROBE_PREFIX));
        let mut mounts = container.volume_mounts.iter().flatten();
        let volume = mounts.find_map(|mount| mount.mount_path.strip_prefix(IMAGES_FOLDER)?.strip_prefix('/'));
        if let (Some(volume), Some(id)) = (volume, status.and_then(proved)) {
            ids.entry(volume.to_owned()).or_insert(id);
        }
    }
    ids
}

/// Returns the image ID of a probe that has found the guest's own disk in its image.
fn proved(status: &ContainerStatus) -> Option<String> {
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    (ended.exit_code == 0 && !status.image_id.is_empty()).then(|| status.image_id.clone())
}

/// Returns the record of a guest's images: the previous record, since a migration's target must have the same images
/// whatever a tag means by then, extended by `ids`.
pub fn recorded(before: &[ImageRecord], ids: &BTreeMap<String, String>) -> Vec<ImageRecord> {
    let with_id = |record: &ImageRecord| ImageRecord {
        image_id: record.image_id.clone().or_else(|| ids.get(&record.name).cloned()),
        ..record.clone()
    };
    before.iter().map(with_id).collect()
}

#[cfg(test)]
mod tests;
