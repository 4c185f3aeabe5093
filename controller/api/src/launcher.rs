//! The contract about the pod of a virtual machine: the controller creates it, the launcher is its process 1, and the
//! agent of its node runs the guest through it.
//!
//! ```text
//! controller ── DRYDOCK_GUEST: PodGuest ─▶ launcher ── ready.json: Ready ─▶ agent ── libvirt ─▶ guest
//!                                             ├── readiness.json: GuestReadiness ─▶ agent ─▶ the pod's gate
//!                                             └── termination message: Ending ─▶ kubelet ─▶ controller
//! ```
//!
//! Data from a pod is untrusted: every reader validates it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The container in which the guest runs (KubeVirt's name).
pub const CONTAINER: &str = "compute";
/// Path of the launcher in its image.
pub const PROGRAM: &str = "/usr/bin/drydock-launcher";
/// Subcommand of the launcher that compares the disk in the image of its own container with the disk in another image.
/// The first argument is the root directory of the other image; the optional second argument is the path of the disk in
/// both images.
pub const SAME_DISK: &str = "same-disk";
/// Mount point of the launcher's image in containers of other images. Disk images contain no libraries, so in their
/// containers the launcher runs from this mount point with its own libraries. Paths are those of Debian on amd64, the
/// base of the launcher's image.
pub const LAUNCHER_FOLDER: &str = "/launcher";
/// Path of the launcher in its image.
pub const LAUNCHER_PROGRAM: &str = "/usr/bin/drydock-launcher";
/// Path of the dynamic loader (`ld.so(8)`) in the launcher's image. The loader runs the launcher with libraries in
/// another directory.
pub const LOADER: &str = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
/// Directory of the launcher's libraries in its image.
pub const LOADER_LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// User and group of all processes in the pod, called `qemu` in the image.
pub const UID: i64 = 107;
/// Environment variable with the [`PodGuest`] as JSON.
pub const GUEST_VARIABLE: &str = "DRYDOCK_GUEST";
/// Name of the pod's volume that the launcher and the agent share.
pub const RUN_VOLUME: &str = "run";
/// Mount point of [`RUN_VOLUME`]; also the value of `XDG_RUNTIME_DIR` for libvirt.
pub const RUN_FOLDER: &str = "/run/drydock";
/// Name of the pod's volume for disks with the lifetime of the pod.
pub const DISKS_VOLUME: &str = "disks";
/// Mount point of [`DISKS_VOLUME`].
pub const DISKS_FOLDER: &str = "/var/lib/drydock/disks";
/// Mount point of libvirt's cached QEMU capabilities in the pod. The node's agent provides them if it can, so that
/// libvirt need not probe QEMU again. There is one file per QEMU, named by libvirt.
pub const CAPABILITIES_FOLDER: &str = "/var/lib/drydock/capabilities";
/// Path of the cache of QEMU capabilities below the `XDG_CACHE_HOME` of a session libvirt.
pub const CAPABILITIES_IN_CACHE: &str = "libvirt/qemu/cache/capabilities";
/// Folder below which the images of containerDisks are mounted, by volume name.
pub const IMAGES_FOLDER: &str = "/images";
/// Folder below which filesystem volumes are mounted, by volume name.
pub const VOLUMES_FOLDER: &str = "/volumes";
/// Name of the disk's file in a filesystem volume.
pub const DISK_FILE: &str = "disk.img";
/// Folder below which block volumes appear as devices, by volume name.
pub const DEVICES_FOLDER: &str = "/devices";
/// Folder below which Secrets are mounted, by volume name.
pub const SECRETS_FOLDER: &str = "/secrets";
/// Folder of the files of a Secret, ConfigMap or similar source, below the volume's folder in [`SECRETS_FOLDER`].
pub const SECRET_FILES: &str = "files";
/// Folder of a Secret with user data, below the volume's folder in [`SECRETS_FOLDER`].
pub const SECRET_USER: &str = "user";
/// Folder of a Secret with network data, below the volume's folder in [`SECRETS_FOLDER`].
pub const SECRET_NETWORK: &str = "network";
/// Name prefix of the folder of a Secret with public SSH keys, below the volume's folder in [`SECRETS_FOLDER`]; a
/// number from 0 follows.
pub const SECRET_KEYS: &str = "keys";
/// Folder below which the Secrets with the credentials that the guest agent sets are mounted, by number from 0. The
/// node's agent reads the Secrets from the kubelet's folder. They are mounted because the kubelet only provides volumes
/// that a container uses.
pub const CREDENTIALS_FOLDER: &str = "/credentials";
/// Path of libvirt's socket, below the run folder.
pub const LIBVIRT_SOCKET: &str = "libvirt/libvirt-sock";
/// The folder, below the run folder, of the sockets for migrations. The launcher creates it.
pub const MIGRATION_FOLDER: &str = "migration";
/// Path of the socket for libvirt's connection of a migration, below the run folder. A tunnel connects it to the
/// target's libvirt.
pub const MIGRATION_LIBVIRT_SOCKET: &str = "migration/libvirt.sock";
/// Path of the socket for the memory of a migrating guest, below the run folder.
pub const MIGRATION_MEMORY_SOCKET: &str = "migration/memory.sock";
/// Path of the socket for the disks of a migrating guest, below the run folder.
pub const MIGRATION_DISKS_SOCKET: &str = "migration/disks.sock";
/// Path of the file that marks the guest as migrated away for good, below the run folder. The node's tunnel creates the
/// file once it has proof.
pub const MIGRATION_LEFT_FILE: &str = "migration/left";
/// The device with which QEMU waits for memory that arrives later, in post-copy (`userfaultfd(2)`).
pub const USERFAULTFD: &str = "/dev/userfaultfd";
/// The file, below the run folder, that marks the pod as ready for its guest.
pub const READY_FILE: &str = "ready.json";
/// The file, below the run folder, with the result of the guest's readiness probe: a [`GuestReadiness`].
pub const READINESS_FILE: &str = "readiness.json";
/// The socket, below the run folder, to which the guest's first serial port is connected.
pub const CONSOLE_SOCKET: &str = "console.sock";
/// The socket, below the run folder, on which the launcher serves the first serial port to a single client.
pub const CONSOLE_CLIENT_SOCKET: &str = "console-client.sock";
/// The seccomp profile, relative to the kubelet's profile directory.
pub const SECCOMP_PROFILE: &str = "drydock/launcher.json";
/// The extended resource with which a pod requests KVM.
pub const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";

/// The guest of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGuest {
    /// Name of the libvirt domain.
    pub domain: String,
    /// Host UUID of this pod's libvirt: two instances with equal UUIDs refuse to migrate to each other.
    pub host_uuid: String,
    /// Time limit for the guest's shutdown, in seconds, including the launcher's margin.
    pub grace_period_seconds: u64,
    /// The sources of the disks, in the order of the manifest.
    pub disks: Vec<LauncherDisk>,
    /// The probes with which the launcher checks the guest, if any.
    #[serde(default, skip_serializing_if = "GuestProbes::is_empty")]
    pub probes: GuestProbes,
}

/// The probes of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestProbes {
    /// A failure of this probe ends the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness: Option<GuestProbe>,
    /// Services do not route to the guest while this probe fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness: Option<GuestProbe>,
}

impl GuestProbes {
    /// Returns whether the guest has no probe.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A probe of a guest: Kubernetes' fields, with defaults applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestProbe {
    /// The check.
    pub action: ProbeAction,
    /// Time between the guest's start in this pod and the first probe, in seconds.
    pub initial_delay_seconds: u32,
    /// Time limit for the guest's response, in seconds.
    pub timeout_seconds: u32,
    /// Interval of the probe, in seconds.
    pub period_seconds: u32,
    /// Number of consecutive successes after which the probe succeeds.
    pub success_threshold: u32,
    /// Number of consecutive failures after which the probe fails.
    pub failure_threshold: u32,
}

/// The check of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeAction {
    /// A TCP connection.
    Tcp {
        /// The host to connect to; the guest if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// The port.
        port: u16,
    },
    /// An HTTP request.
    Http {
        /// Whether to use TLS; the certificate is not verified.
        tls: bool,
        /// The host to connect to; the guest if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// The port.
        port: u16,
        /// The path with the query.
        path: String,
        /// Headers of the request: names and values.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<(String, String)>,
    },
}

/// The result of a guest's readiness probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestReadiness {
    /// The guest is ready.
    pub ready: bool,
    /// Human-readable reason why the guest is not ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A disk of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LauncherDisk {
    /// Name of the volume.
    pub name: String,
    /// The source of the disk.
    #[serde(flatten)]
    pub source: DiskSource,
}

/// The source of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DiskSource {
    /// A read-only image with a writable overlay.
    #[serde(rename_all = "camelCase")]
    ContainerDisk {
        /// Path of the disk in the image; the only file in its folder `/disk` if absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// Size of the overlay in bytes, if it differs from the size of the image. Set if the content of the disk is
        /// migrated from another pod: the overlay then has the size of that disk.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    /// Data for cloud-init.
    CloudInitNoCloud(CloudInit),
    /// A read-only file system with the files of a Secret or ConfigMap, mounted in the folder [`SECRET_FILES`].
    Files {
        /// The file system's label.
        label: String,
    },
    /// An empty disk with the lifetime of the pod.
    EmptyDisk {
        /// Size in bytes.
        capacity: u64,
    },
    /// A raw disk whose content is migrated with the guest from its source.
    Blank {
        /// Size in bytes.
        size: u64,
    },
    /// The file `disk.img` of a filesystem volume.
    Filesystem {},
    /// A block device.
    Block {},
}

/// Data for cloud-init, from the manifest or from Secrets mounted into the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudInit {
    /// `instance-id` of the meta-data.
    pub instance_id: String,
    /// `local-hostname` of the meta-data.
    pub hostname: String,
    /// The file `user-data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<CloudInitText>,
    /// The file `network-config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_data: Option<CloudInitText>,
    /// `uuid` of the meta-data of a config drive. Without it, the disk is a NoCloud disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_drive_uuid: Option<String>,
    /// Number of Secrets with public SSH keys for the meta-data. Their folders are named [`SECRET_KEYS`] with a number
    /// from 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub key_secrets: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A file of data for cloud-init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CloudInitText {
    /// Plain text.
    Plain(String),
    /// Text encoded in base64.
    Base64(String),
    /// Data from a Secret that is mounted into the pod.
    Secret {
        /// Name of the Secret, for messages; absent from controllers of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

/// The launcher's report that libvirt responds and all disks exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// The disks, in the order of [`PodGuest::disks`].
    pub disks: Vec<PreparedDisk>,
    /// Addresses of the pod. A guest that starts in the pod has these addresses, and keeps them on other nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<PodAddress>,
    /// Whether a guest may migrate to this pod by post-copy: [`USERFAULTFD`] can be opened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub post_copy: bool,
    /// Whether the guest has a readiness probe that the launcher runs: [`READINESS_FILE`] contains its result.
    /// Launchers of earlier releases leave the probe to the kubelet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probes_readiness: bool,
}

impl Ready {
    /// Returns the first disk with a format that this version does not know. A guest must not be started with such a
    /// disk.
    pub fn unknown_disk(&self) -> Option<&PreparedDisk> {
        self.disks.iter().find(|disk| {
            let below = disk.backing.as_ref().map(|backing| backing.format);
            disk.format == DiskFormat::Unknown || below == Some(DiskFormat::Unknown)
        })
    }
}

/// An address of a pod, with its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAddress {
    /// The address.
    pub address: IpAddr,
    /// Prefix length of the address's network, in bits.
    pub prefix: u8,
}

/// A disk as QEMU opens it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedDisk {
    /// Name of the volume.
    pub name: String,
    /// Path of the file or device in the pod.
    pub path: String,
    /// Format of the disk's content.
    pub format: DiskFormat,
    /// Size of the disk that the guest sees, in bytes.
    pub virtual_size: u64,
    /// The read-only image below the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<BackingImage>,
}

/// A read-only image below a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackingImage {
    /// Path of the file in the pod.
    pub path: String,
    /// Format of the image's content.
    pub format: DiskFormat,
    /// Size in bytes.
    pub virtual_size: u64,
}

/// Format of a disk's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// QEMU's qcow2 format.
    Qcow2,
    /// Raw bytes.
    Raw,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    Unknown,
}

impl DiskFormat {
    /// Returns QEMU's and libvirt's name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
            Self::Unknown => "unknown",
        }
    }
}

/// The end of a pod's guest: the launcher's termination message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// The outcome.
    pub outcome: GuestOutcome,
    /// Human-readable message about the outcome, with details from libvirt.
    pub message: String,
    /// Whether the end was not the guest's own decision: the launcher was requested to end its pod, and had pressed the
    /// guest's power button or begun to destroy the guest before the guest ended. `None` if the launcher does not
    /// report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<bool>,
}

/// The outcome of a guest in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GuestOutcome {
    /// The guest shut down, by itself or after its power button was pressed.
    Shutdown,
    /// QEMU ended by itself, or the guest crashed.
    Crashed,
    /// The guest was destroyed from outside.
    Destroyed,
    /// The guest continued on another node.
    Migrated,
    /// The guest could not be started, libvirt could not be kept running, or the liveness probe failed.
    Failed,
    /// The pod was requested to end before a guest ran in it.
    NotStarted,
    /// A value of a later version; nothing may be inferred from it. Never written.
    #[serde(other)]
    Unknown,
}

impl GuestOutcome {
    /// Returns libvirt's or Drydock's name of the outcome, as in the termination message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shutdown => "Shutdown",
            Self::Crashed => "Crashed",
            Self::Destroyed => "Destroyed",
            Self::Migrated => "Migrated",
            Self::Failed => "Failed",
            Self::NotStarted => "NotStarted",
            Self::Unknown => "Unknown",
        }
    }
}
