//! The sources of a guest's disks, and its networks.

use k8s_openapi::api::core::v1::{LocalObjectReference, PersistentVolumeClaimVolumeSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Amount;

/// A volume of a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Volume {
    /// Name of the volume. The disk with the content of the volume has the same name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// Disk in a container image, with a writable layer that is deleted with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_disk: Option<ContainerDisk>,
    /// Data for cloud-init, on a NoCloud disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_no_cloud: Option<CloudInitNoCloud>,
    /// Data for cloud-init, on a disk in the format of OpenStack's config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init_config_drive: Option<CloudInitNoCloud>,
    /// PersistentVolumeClaim: the file disk.img in its file system, or its block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    /// PersistentVolumeClaim with the name of a data volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolume>,
    /// Empty disk that is deleted with the pod.
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
    /// Information about the guest's pod, as it is when the guest starts.
    #[serde(default, rename = "downwardAPI", skip_serializing_if = "Option::is_none")]
    pub downward_api: Option<DownwardApiVolume>,
}

/// The source of the files that a volume has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FilesSource<'a> {
    /// A ConfigMap.
    ConfigMap {
        /// Name of the ConfigMap.
        name: &'a str,
        /// Whether the volume is empty if the ConfigMap does not exist.
        optional: bool,
    },
    /// A Secret.
    Secret {
        /// Name of the Secret.
        name: &'a str,
        /// Whether the volume is empty if the Secret does not exist.
        optional: bool,
    },
    /// A token of the pod's service account.
    ServiceAccount,
    /// Information about the pod.
    DownwardApi(&'a [DownwardApiField]),
}

/// The files that a volume has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VolumeFiles<'a> {
    /// Source of the files.
    pub source: FilesSource<'a>,
    /// The label of the file system.
    pub label: &'a str,
}

/// Default label of the file system of a volume with files (KubeVirt's label).
pub const FILES_LABEL: &str = "cfgdata";
/// Label of the file system for Windows' set-up (KubeVirt's label).
pub const SYSPREP_LABEL: &str = "unattendCfg";

impl Volume {
    /// Returns the files of the volume; `None` if the volume is of another kind.
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

    /// Returns the data for cloud-init, whether the volume is a NoCloud disk or a config drive.
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
    /// Reference of the container image.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Path of the disk in the image. Defaults to the only file in the image's folder /disk.
    #[serde(
        default,
        deserialize_with = "super::unless_empty",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// Pull policy of the image: Always, Never or IfNotPresent.
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

/// Pull policy of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// The image is pulled before each start.
    Always,
    /// The image is never pulled.
    Never,
    /// The image is pulled if the node does not have it.
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

/// Data for cloud-init. cloud-init's data sources NoCloud and ConfigDrive read the same data from different disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct CloudInitNoCloud {
    /// Secret in the same namespace whose key `userdata` contains the user data.
    #[serde(rename = "secretRef", skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalObjectReference>,
    /// User data in base64.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub user_data_base64: Option<String>,
    /// User data.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Secret in the same namespace whose key `networkdata` contains the network data.
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
    /// Name of the data volume and of its PersistentVolumeClaim.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// An empty disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct EmptyDisk {
    /// Size of the disk.
    pub capacity: Amount,
}

/// The files of a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ConfigMapVolume {
    /// Name of the ConfigMap.
    pub name: String,
    /// Whether the volume is empty if the ConfigMap does not exist. Otherwise the guest does not start without the
    /// ConfigMap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Label of the file system. Defaults to cfgdata.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub volume_label: Option<String>,
}

/// The files of a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SecretVolume {
    /// Name of the Secret.
    pub secret_name: String,
    /// Whether the volume is empty if the Secret does not exist. Otherwise the guest does not start without the Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
    /// Label of the file system. Defaults to cfgdata.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub volume_label: Option<String>,
}

/// A token of a service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ServiceAccountVolume {
    /// Name of the service account.
    pub service_account_name: String,
}

/// Information about the guest's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DownwardApiVolume {
    /// Files, each with a field of the pod or a resource of its container.
    #[schemars(length(max = 64))]
    pub fields: Vec<DownwardApiField>,
    /// Label of the file system. Defaults to cfgdata.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub volume_label: Option<String>,
}

/// A file with a field of the guest's pod or a resource of its container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DownwardApiField {
    /// Name of the file.
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
    /// API version of the field path. Defaults to v1.
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
    /// Name of the container, which must be compute.
    pub container_name: String,
    /// The resource, such as limits.memory.
    pub resource: String,
    /// Unit of the number in the file, such as 1Mi. Defaults to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub divisor: Option<Amount>,
}

/// Settings of an unattended set-up of Windows: a ConfigMap or a Secret with the file Autounattend.xml or Unattend.xml.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SysprepVolume {
    /// ConfigMap with the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<LocalObjectReference>,
    /// Secret with the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<LocalObjectReference>,
}

/// A network of a virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Network {
    /// Name of the network. The interface on the network has the same name.
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
