//! The description of the guest for its launcher.

use drydock_api::{
    kubevirt::{VirtualMachineInstance, VirtualMachineInstanceSpec, volumes::Volume},
    launcher::{CloudInit, CloudInitText, DiskSource, LauncherDisk, PodGuest},
};
use k8s_openapi::api::core::v1::LocalObjectReference;

use super::{ClaimMode, PodInput, names::hostname, probes};
use crate::{
    domain::{domain_name, firmware_uuid},
    migratable::{claim, is_copied},
    quantity,
};

/// Returns [`PodGuest`] as JSON.
pub(super) fn json(input: &PodInput<'_>, grace: i64) -> String {
    let instance = input.instance;
    let (namespace, name) = (
        instance.metadata.namespace.as_deref().unwrap_or_default(),
        instance.metadata.name.as_deref().unwrap_or_default(),
    );
    let guest = PodGuest {
        domain: domain_name(namespace, name),
        host_uuid: input.host_uuid.into(),
        grace_period_seconds: u64::try_from(grace).unwrap_or(0),
        disks: instance
            .spec
            .volumes
            .iter()
            .filter_map(|volume| {
                Some(LauncherDisk {
                    name: volume.name.clone(),
                    source: source(volume, input, namespace, name)?,
                })
            })
            .collect(),
        probes: probes::of(&instance.spec, input.arriving.is_some()),
    };
    // A structure of strings and numbers always serializes. The kubelet replaces `$(NAME)` and `$$` in the value of a
    // variable, and scripts for the guest may contain either; in JSON, `$` can be escaped.
    serde_json::to_string(&guest)
        .unwrap_or_default()
        .replace('$', "\\u0024")
}

fn source(volume: &Volume, input: &PodInput<'_>, namespace: &str, name: &str) -> Option<DiskSource> {
    let arrives = arriving_size(volume, input);
    if let Some(disk) = &volume.container_disk {
        return Some(DiskSource::ContainerDisk {
            path: disk.path.clone(),
            size: arrives,
        });
    }
    if let Some(size) = arrives.filter(|_| volume.cloud_init().is_some() || volume.files().is_some()) {
        return Some(DiskSource::Blank { size });
    }
    if let Some(data) = volume.cloud_init() {
        return Some(DiskSource::CloudInitNoCloud(CloudInit {
            // The instance ID is the same in each run of a virtual machine, and the same as KubeVirt's: cloud-init
            // provisions a guest again if a disk contains another instance ID.
            instance_id: format!("{name}.{namespace}"),
            hostname: hostname(input.instance),
            user_data: text(&data.user_data, &data.user_data_base64, data.secret_ref.as_ref()),
            network_data: text(
                &data.network_data,
                &data.network_data_base64,
                data.network_data_secret_ref.as_ref(),
            ),
            config_drive_uuid: volume
                .cloud_init_config_drive
                .as_ref()
                .map(|_| system_uuid(input.instance, namespace, name)),
            key_secrets: key_secrets(&input.instance.spec, volume).count(),
        }));
    }
    if let Some(files) = volume.files() {
        return Some(DiskSource::Files {
            label: files.label.into(),
        });
    }
    if let Some(disk) = &volume.empty_disk {
        let capacity = quantity::bytes(&disk.capacity.0)?;
        return Some(DiskSource::EmptyDisk { capacity });
    }
    let claim = claim(volume)?;
    Some(match input.claims.get(claim) {
        Some(ClaimMode::Block) => DiskSource::Block {},
        _ => DiskSource::Filesystem {},
    })
}

/// Returns the names of the Secrets with public keys of SSH that a volume for cloud-init contains.
pub(super) fn key_secrets<'a>(spec: &'a VirtualMachineInstanceSpec, volume: &Volume) -> impl Iterator<Item = &'a str> {
    let (no_cloud, config_drive) = (
        volume.cloud_init_no_cloud.is_some(),
        volume.cloud_init_config_drive.is_some(),
    );
    let keys = spec
        .access_credentials
        .iter()
        .filter_map(|credential| credential.ssh_public_key.as_ref());
    let carried = keys.filter(move |keys| {
        let by = &keys.propagation_method;
        no_cloud && by.no_cloud.is_some() || config_drive && by.config_drive.is_some()
    });
    carried.filter_map(|keys| Some(keys.source.secret.as_ref()?.secret_name.as_str()))
}

/// Returns the UUID of a guest's system, by which cloud-init recognises a guest with a config drive (KubeVirt's choice).
fn system_uuid(instance: &VirtualMachineInstance, namespace: &str, name: &str) -> String {
    let firmware = instance.spec.domain.firmware.as_ref();
    let uuid = firmware.and_then(|firmware| firmware.uuid.clone());
    uuid.unwrap_or_else(|| firmware_uuid(namespace, name))
}

/// Returns the size in bytes of a disk whose content arrives with the guest.
pub(super) fn arriving_size(volume: &Volume, input: &PodInput<'_>) -> Option<u64> {
    let copied = is_copied(&input.instance.spec, volume);
    input.arriving?.sizes.get(&volume.name).copied().filter(|_| copied)
}

fn text(
    plain: &Option<String>,
    base64: &Option<String>,
    secret: Option<&LocalObjectReference>,
) -> Option<CloudInitText> {
    if let Some(secret) = secret {
        return Some(CloudInitText::Secret {
            name: Some(secret.name.clone()),
        });
    }
    let plain = plain.clone().map(CloudInitText::Plain);
    plain.or_else(|| base64.clone().map(CloudInitText::Base64))
}
