//! The sources of a guest's disks, and its networks.

use k8s_openapi::api::core::v1::{LocalObjectReference, PersistentVolumeClaimVolumeSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Amount;

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Volume {
    /// Its name, which the disk has too.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// A disk in a container image, with a layer above it that is gone with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<ContainerDisk>,
    /// Data for cloud-init.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_no_cloud: Option<CloudInitNoCloud>,
    /// The same data, on a disk as OpenStack's config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_config_drive: Option<CloudInitNoCloud>,
    /// A PersistentVolumeClaim: the file disk.img in it, or the block device that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    /// The PersistentVolumeClaim of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolume>,
    /// An empty disk that is gone with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_disk: Option<EmptyDisk>,
    /// The files of a ConfigMap, as they are when the guest starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolume>,
    /// The files of a Secret, as they are when the guest starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolume>,
    /// Settings of an unattended set-up of Windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sysprep: Option<SysprepVolume>,
    /// A token of a service account, as it is when the guest starts or arrives in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountVolume>,
    /// Facts about the guest's pod, as they are when the guest starts.
    #[serde(default, rename = "downwardAPI", skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<DownwardApiVolume>,
}

/// The source of the files that a volume has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FilesSource<'a> {
    /// A ConfigMap.
    ConfigMap {
        /// Its name.
        name: &'a str,
        /// Whether the volume is empty if there is no such ConfigMap.
        optional: bool,
    },
    /// A Secret.
    Secret {
        /// Its name.
        name: &'a str,
        /// Whether the volume is empty if there is no such Secret.
        optional: bool,
    },
    /// A token of the pod's service account.
    ServiceAccount,
    /// Facts about the pod.
    DownwardApi(&'a [DownwardApiField]),
}

/// The files that a volume has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VolumeFiles<'a> {
    /// Their source.
    pub source: FilesSource<'a>,
    /// The label of the file system.
    pub label: &'a str,
}

/// Label of a file system unless the volume sets one (KubeVirt's).
pub const FILES_LABEL: &str = "cfgdata";
/// Label of the file system for Windows' set-up (KubeVirt's).
pub const SYSPREP_LABEL: &str = "unattendCfg";

impl Volume {
    /// Returns the files that it has.
    pub fn files(&self) -> Option<VolumeFiles<'_>> {
        let source = self.files_source()?;
        let label = [
            self.config_map.as_ref().and_then(|map| map.volume_label.as_deref()),
            self.secret.as_ref().and_then(|secret| secret.volume_label.as_deref()),
            self.downward_api
                .as_ref()
                .and_then(|facts| facts.volume_label.as_deref()),
            self.sysprep.as_ref().map(|_| SYSPREP_LABEL),
        ];
        Some(VolumeFiles {
            source,
            label: label.into_iter().flatten().next().unwrap_or(FILES_LABEL),
        })
    }

    fn files_source(&self) -> Option<FilesSource<'_>> {
        if let Some(map) = &self.config_map {
            return Some(FilesSource::ConfigMap {
                name: &map.name,
                optional: map.optional.unwrap_or(false),
            });
        }
        if let Some(secret) = &self.secret {
            return Some(FilesSource::Secret {
                name: &secret.secret_name,
                optional: secret.optional.unwrap_or(false),
            });
        }
        if self.service_account.is_some() {
            return Some(FilesSource::ServiceAccount);
        }
        if let Some(facts) = &self.downward_api {
            return Some(FilesSource::DownwardApi(&facts.fields));
        }
        let optional = false;
        let sysprep = self.sysprep.as_ref()?;
        if let Some(map) = &sysprep.config_map {
            return Some(FilesSource::ConfigMap {
                name: &map.name,
                optional,
            });
        }
        let secret = sysprep.secret.as_ref()?;
        Some(FilesSource::Secret {
            name: &secret.name,
            optional,
        })
    }

    /// Returns its data for cloud-init, in whichever form.
    pub fn cloud_init(&self) -> Option<&CloudInitNoCloud> {
        self.cloud_init_no_cloud
            .as_ref()
            .or(self.cloud_init_config_drive.as_ref())
    }
}

/// A disk in a container image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ContainerDisk {
    /// The image.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// The disk in it; the only file in its folder /disk if not set.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// Always, Never or IfNotPresent.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(schema_with = "super::or_empty::<PullPolicy>")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Secret with the credentials of the image's registry.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    pub image_pull_secret: Option<String>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Before each start.
    Always,
    /// Not at all.
    Never,
    /// If the node does not have it.
    IfNotPresent,
}

impl PullPolicy {
    /// Returns Kubernetes' name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Never => "Never",
            Self::IfNotPresent => "IfNotPresent",
        }
    }
}

/// Data for cloud-init. Its sources NoCloud and ConfigDrive read the same data from different disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CloudInitNoCloud {
    /// Secret in the same namespace whose key `userdata` is the user data.
    #[serde(rename = "secretRef", skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalObjectReference>,
    /// User data in base64.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub user_data_base64: Option<String>,
    /// User data.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Secret in the same namespace whose key `networkdata` is the network data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_data_secret_ref: Option<LocalObjectReference>,
    /// Network data in base64.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub network_data_base64: Option<String>,
    /// Network data.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub network_data: Option<String>,
}

/// The PersistentVolumeClaim of a data volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DataVolume {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// An empty disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct EmptyDisk {
    /// Its size.
    pub capacity: Amount,
}

/// The files of a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ConfigMapVolume {
    /// Its name.
    pub name: String,
    /// Whether the volume is empty if there is no such ConfigMap; otherwise the guest does not start without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Label of the file system. cfgdata if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub volume_label: Option<String>,
}

/// The files of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SecretVolume {
    /// Its name.
    pub secret_name: String,
    /// Whether the volume is empty if there is no such Secret; otherwise the guest does not start without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Label of the file system. cfgdata if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub volume_label: Option<String>,
}

/// A token of a service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ServiceAccountVolume {
    /// Its name.
    pub service_account_name: String,
}

/// Facts about the guest's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DownwardApiVolume {
    /// The facts, a file each.
    #[schemars(length(max = 64))]
    pub fields: Vec<DownwardApiField>,
    /// Label of the file system. cfgdata if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub volume_label: Option<String>,
}

/// A file with a fact about the guest's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DownwardApiField {
    /// The name of the file.
    pub path: String,
    /// A field of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<FieldRef>,
    /// A resource of the pod's container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_field_ref: Option<ResourceFieldRef>,
}

/// A field of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct FieldRef {
    /// Version of the API. v1 if not set.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Path of the field, such as metadata.labels.
    pub field_path: String,
}

/// A resource of a pod's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ResourceFieldRef {
    /// Name of the container, which is compute.
    pub container_name: String,
    /// The resource, such as limits.memory.
    pub resource: String,
    /// The unit of the file's number, such as 1Mi. 1 if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divisor: Option<Amount>,
}

/// Settings of an unattended set-up of Windows: a ConfigMap or a Secret with the file Autounattend.xml or Unattend.xml.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SysprepVolume {
    /// A ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<LocalObjectReference>,
    /// A Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<LocalObjectReference>,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Network {
    /// Its name, which the interface has too.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The pod's own network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodNetwork>,
}

/// The pod's own network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct PodNetwork {}
