//! Volumes of a launcher pod and their mounts.

use drydock_api::{
    kubevirt::{
        VirtualMachineInstanceSpec,
        volumes::{FilesKind, PullPolicy, Volume as GuestVolume},
    },
    launcher::{
        DEVICES_FOLDER, DISKS_FOLDER, DISKS_VOLUME, IMAGES_FOLDER, RUN_FOLDER, RUN_VOLUME, SECRET_FILES, SECRET_KEYS,
        SECRET_NETWORK, SECRET_USER, SECRETS_FOLDER, VOLUMES_FOLDER,
    },
};
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, ImageVolumeSource, LocalObjectReference,
    PersistentVolumeClaimVolumeSource, SecretVolumeSource, Volume, VolumeDevice, VolumeMount,
};

use super::{
    ClaimMode, PodInput,
    guest::{arriving_size, key_secrets},
    names::VolumeNames,
    newest_images::volume_policy,
};
use crate::migratable::claim;

type Parts = (Vec<Volume>, Vec<VolumeMount>, Vec<VolumeDevice>);

/// Returns the volumes, mounts and devices of the pod.
pub(super) fn of(input: &PodInput<'_>) -> Parts {
    let mut parts: Parts = Default::default();
    for (name, folder) in [(RUN_VOLUME, RUN_FOLDER), (DISKS_VOLUME, DISKS_FOLDER)] {
        parts.0.push(Volume {
            name: name.into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Volume::default()
        });
        parts.1.push(mount(name, folder.into(), false));
    }
    let spec = &input.instance.spec;
    let (mut names, launcher) = names(spec);
    let witnesses = input.arriving.is_none() && spec.volumes.iter().any(|volume| volume.container_disk.is_some());
    for volume in &spec.volumes {
        add(&mut parts, &mut names, volume, input);
    }
    if witnesses {
        // For containers that run from a disk's image.
        parts
            .0
            .push(image(launcher, input.image.into(), PullPolicy::IfNotPresent));
    }
    parts
}

/// Returns the allocator of the pod's volume names, and the name of the volume with the launcher's image.
fn names(spec: &VirtualMachineInstanceSpec) -> (VolumeNames, String) {
    let mut names = VolumeNames::beside(spec.volumes.iter().map(|volume| volume.name.as_str()));
    let launcher = names.beside_them("launcher", "image");
    (names, launcher)
}

/// Returns the name of the volume with the launcher's image, in pods whose guests have containerDisks.
pub(super) fn launcher_volume(spec: &VirtualMachineInstanceSpec) -> String {
    names(spec).1
}

/// Returns the guest's containerDisks with their volumes' names in the pod.
pub(super) fn image_volumes(spec: &VirtualMachineInstanceSpec) -> Vec<(String, String)> {
    let (mut names, _) = names(spec);
    spec.volumes
        .iter()
        .map(|volume| (volume, names.of(&volume.name)))
        .filter(|(volume, _)| volume.container_disk.is_some())
        .map(|(volume, name)| (volume.name.clone(), name))
        .collect()
}

fn image(name: String, reference: String, pull_policy: PullPolicy) -> Volume {
    Volume {
        name,
        image: Some(ImageVolumeSource {
            reference: Some(reference),
            pull_policy: Some(pull_policy.as_str().into()),
        }),
        ..Volume::default()
    }
}

pub(super) fn mount(name: &str, path: String, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path,
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn add((volumes, mounts, devices): &mut Parts, names: &mut VolumeNames, volume: &GuestVolume, input: &PodInput<'_>) {
    let name = names.of(&volume.name);
    if let Some(disk) = &volume.container_disk {
        let pinned = input.arriving.and_then(|arriving| arriving.images.get(&volume.name));
        let reference = pinned.unwrap_or(&disk.image);
        volumes.push(image(name.clone(), reference.clone(), volume_policy(input, disk)));
        mounts.push(mount(&name, format!("{IMAGES_FOLDER}/{}", volume.name), true));
    } else if let Some(data) = volume.cloud_init() {
        if arriving_size(volume, input).is_some() {
            return;
        }
        let data = [
            (SECRET_USER, &data.secret_ref),
            (SECRET_NETWORK, &data.network_data_secret_ref),
        ];
        let data = data
            .into_iter()
            .filter_map(|(part, secret)| Some((part.to_owned(), secret.as_ref()?.name.as_str())));
        let keys = key_secrets(&input.instance.spec, volume)
            .enumerate()
            .map(|(index, secret)| (format!("{SECRET_KEYS}{index}"), secret));
        for (part, secret) in data.chain(keys) {
            let name = names.beside_them(&part, &volume.name);
            volumes.push(Volume {
                name: name.clone(),
                secret: Some(SecretVolumeSource {
                    secret_name: Some(secret.to_owned()),
                    default_mode: Some(0o440),
                    ..SecretVolumeSource::default()
                }),
                ..Volume::default()
            });
            mounts.push(mount(&name, format!("{SECRETS_FOLDER}/{}/{part}", volume.name), true));
        }
    } else if let Some(files) = volume.files() {
        if arriving_size(volume, input).is_some() {
            return;
        }
        let (mut secret, mut config_map) = (None, None);
        match files.kind {
            FilesKind::Secret => {
                secret = Some(SecretVolumeSource {
                    secret_name: Some(files.name.into()),
                    default_mode: Some(0o440),
                    optional: Some(files.optional),
                    ..SecretVolumeSource::default()
                });
            }
            FilesKind::ConfigMap => {
                config_map = Some(ConfigMapVolumeSource {
                    name: files.name.into(),
                    default_mode: Some(0o440),
                    optional: Some(files.optional),
                    ..ConfigMapVolumeSource::default()
                });
            }
        }
        volumes.push(Volume {
            name: name.clone(),
            secret,
            config_map,
            ..Volume::default()
        });
        let path = format!("{SECRETS_FOLDER}/{}/{SECRET_FILES}", volume.name);
        mounts.push(mount(&name, path, true));
    } else if let Some(claim) = claim(volume) {
        let read_only = volume
            .persistent_volume_claim
            .as_ref()
            .and_then(|claim| claim.read_only);
        volumes.push(Volume {
            name: name.clone(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.into(),
                read_only,
            }),
            ..Volume::default()
        });
        match input.claims.get(claim) {
            Some(ClaimMode::Block) => devices.push(VolumeDevice {
                name,
                device_path: format!("{DEVICES_FOLDER}/{}", volume.name),
            }),
            _ => mounts.push(mount(
                &name,
                format!("{VOLUMES_FOLDER}/{}", volume.name),
                read_only == Some(true),
            )),
        }
    }
}

/// Returns the pull secrets for the registries of containerDisks.
pub(super) fn pull_secrets(spec: &VirtualMachineInstanceSpec) -> Vec<LocalObjectReference> {
    let mut names: Vec<&String> = spec
        .volumes
        .iter()
        .filter_map(|volume| volume.container_disk.as_ref()?.image_pull_secret.as_ref())
        .collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| LocalObjectReference { name: name.clone() })
        .collect()
}
