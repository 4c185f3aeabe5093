//! Volumes of a launcher pod and their mounts.

use drydock_api::{
    kubevirt::{
        VirtualMachineInstanceSpec,
        volumes::{DownwardApiField, FilesSource, PullPolicy, Volume as GuestVolume},
    },
    launcher::{
        CREDENTIALS_FOLDER, DEVICES_FOLDER, DISKS_FOLDER, DISKS_VOLUME, IMAGES_FOLDER, RUN_FOLDER, RUN_VOLUME,
        SECRET_FILES, SECRET_KEYS, SECRET_NETWORK, SECRET_USER, SECRETS_FOLDER, VOLUMES_FOLDER,
    },
};
use k8s_openapi::{
    api::core::v1::{
        ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection, DownwardAPIVolumeFile,
        DownwardAPIVolumeSource, EmptyDirVolumeSource, ImageVolumeSource, KeyToPath, LocalObjectReference,
        ObjectFieldSelector, PersistentVolumeClaimVolumeSource, ProjectedVolumeSource, ResourceFieldSelector,
        SecretVolumeSource, ServiceAccountTokenProjection, Volume, VolumeDevice, VolumeMount, VolumeProjection,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    ClaimMode, PodInput,
    guest_description::{arriving_size, key_secrets},
    names::VolumeNames,
    pull_policy::volume_policy,
};
use crate::{access_credentials, migratable::claim};

/// Lifetime of a service account's token, in seconds. By default kube-apiserver extends tokens of exactly this lifetime to a
/// year (`--service-account-extend-token-expiration`), which a guest needs, since its disk does not change.
const TOKEN_SECONDS: i64 = 3607;

type VolumeParts = (Vec<Volume>, Vec<VolumeMount>, Vec<VolumeDevice>);

/// Returns the volumes, mounts and devices of the pod.
pub(super) fn of(input: &PodInput<'_>) -> VolumeParts {
    let mut parts: VolumeParts = Default::default();
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
    let probes = input.arriving.is_none() && spec.volumes.iter().any(|volume| volume.container_disk.is_some());
    for (index, (secret, name)) in credential_volumes(spec).into_iter().enumerate() {
        // The name is reserved, so that no other volume gets it.
        names.take(&name);
        parts
            .1
            .push(mount(&name, format!("{CREDENTIALS_FOLDER}/{index}"), true));
        parts.0.push(files_volume(
            name,
            FilesSource::Secret {
                name: &secret,
                optional: false,
            },
        ));
    }
    for volume in &spec.volumes {
        add(&mut parts, &mut names, volume, input);
    }
    if probes {
        // The launcher's image is for containers that run from a disk's image.
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

/// Returns the Secrets with credentials that the guest's agent sets, each with the name of its volume in the pod.
pub fn credential_volumes(spec: &VirtualMachineInstanceSpec) -> Vec<(String, String)> {
    let (mut names, _) = names(spec);
    access_credentials::secrets(spec)
        .into_iter()
        .enumerate()
        .map(|(index, secret)| (secret.to_owned(), names.beside_them("credentials", &index.to_string())))
        .collect()
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

fn add(
    (volumes, mounts, devices): &mut VolumeParts,
    names: &mut VolumeNames,
    volume: &GuestVolume,
    input: &PodInput<'_>,
) {
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
        volumes.push(files_volume(name.clone(), files.source));
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

/// Returns the pod's volume with the files of a guest's volume, which the launcher's group can read.
fn files_volume(name: String, source: FilesSource<'_>) -> Volume {
    let default_mode = Some(0o440);
    let mut volume = Volume {
        name,
        ..Volume::default()
    };
    match source {
        FilesSource::Secret { name, optional } => {
            volume.secret = Some(SecretVolumeSource {
                secret_name: Some(name.into()),
                default_mode,
                optional: Some(optional),
                ..SecretVolumeSource::default()
            });
        }
        FilesSource::ConfigMap { name, optional } => {
            volume.config_map = Some(ConfigMapVolumeSource {
                name: name.into(),
                default_mode,
                optional: Some(optional),
                ..ConfigMapVolumeSource::default()
            });
        }
        FilesSource::ServiceAccount => {
            volume.projected = Some(ProjectedVolumeSource {
                default_mode,
                sources: Some(service_account_files()),
            });
        }
        FilesSource::DownwardApi(fields) => {
            volume.downward_api = Some(DownwardAPIVolumeSource {
                default_mode,
                items: Some(fields.iter().map(downward_file).collect()),
            });
        }
    }
    volume
}

/// Returns the files that a pod gets for its service account by default: `token`, `ca.crt` and `namespace` (the admission
/// controller ServiceAccount of kube-apiserver).
fn service_account_files() -> Vec<VolumeProjection> {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            path: "token".into(),
            expiration_seconds: Some(TOKEN_SECONDS),
            audience: None,
        }),
        ..VolumeProjection::default()
    };
    let authority = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".into(),
            items: Some(vec![KeyToPath {
                key: "ca.crt".into(),
                path: "ca.crt".into(),
                mode: None,
            }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let namespace = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: "namespace".into(),
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".into()),
                    field_path: "metadata.namespace".into(),
                }),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    vec![token, authority, namespace]
}

fn downward_file(field: &DownwardApiField) -> DownwardAPIVolumeFile {
    DownwardAPIVolumeFile {
        path: field.path.clone(),
        field_ref: field.field_ref.as_ref().map(|field| ObjectFieldSelector {
            api_version: field.api_version.clone(),
            field_path: field.field_path.clone(),
        }),
        resource_field_ref: field.resource_field_ref.as_ref().map(|field| ResourceFieldSelector {
            container_name: Some(field.container_name.clone()),
            resource: field.resource.clone(),
            divisor: field.divisor.as_ref().map(|divisor| Quantity(divisor.0.clone())),
        }),
        mode: None,
    }
}

/// Returns the service account whose token a volume of the guest has.
pub(super) fn service_account(spec: &VirtualMachineInstanceSpec) -> Option<String> {
    let accounts = spec.volumes.iter().filter_map(|volume| volume.service_account.as_ref());
    accounts.map(|account| account.service_account_name.clone()).next()
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
