//! The agreement about a virtual machine's pod: the controller makes it, the launcher is process 1
//! in it, and the agent of its node runs the guest through it.
//!
//! ```text
//! controller ── DRYDOCK_GUEST: Guest ─▶ launcher ── ready.json: Ready ─▶ agent ── libvirt ─▶ guest
//!                                          ├── readiness.json: Readiness ─▶ agent ─▶ the pod's gate
//!                                          └── termination message: Ending ─▶ kubelet ─▶ controller
//! ```
//!
//! What comes out of a pod is the pod's word only: whoever reads it checks it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The container in which the guest runs, by KubeVirt's name.
pub const CONTAINER: &str = "compute";
/// The launcher in its image.
pub const PROGRAM: &str = "/usr/bin/drydock-launcher";
/// Its argument that compares the disk in its container's own image with the one in the image whose root follows; the
/// disk's path in both may follow that.
pub const SAME_DISK: &str = "same-disk";
/// Where the launcher's image is mounted in containers of other images, and what of it runs there: images of disks
/// have no libraries. Paths are those of Debian on amd64, of which the launcher's image is made.
pub const LAUNCHER_FOLDER: &str = "/launcher";
/// The launcher in its image.
pub const LAUNCHER_PROGRAM: &str = "/usr/bin/drydock-launcher";
/// What runs it with libraries that are somewhere else (`ld.so(8)`), in that image.
pub const LOADER: &str = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
/// Where these libraries are.
pub const LOADER_LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// User and group of everything in the pod, which the image names `qemu`.
pub const UID: i64 = 107;
/// Environment variable with the [`Guest`] as JSON.
pub const GUEST_VARIABLE: &str = "DRYDOCK_GUEST";
/// The pod's volume that launcher and agent share.
pub const RUN_VOLUME: &str = "run";
/// Where that volume is mounted; also `XDG_RUNTIME_DIR`.
pub const RUN_FOLDER: &str = "/run/drydock";
/// The pod's volume for disks that live as long as it.
pub const DISKS_VOLUME: &str = "disks";
/// Where that volume is mounted.
pub const DISKS_FOLDER: &str = "/var/lib/drydock/disks";
/// Where the node's agent has what libvirt knows of its QEMU mounted into the pod, if it can: libvirt need not find it
/// out again. A file for each QEMU, named by libvirt.
pub const CAPABILITIES_FOLDER: &str = "/var/lib/drydock/capabilities";
/// Where a session's libvirt keeps the same, below its `XDG_CACHE_HOME`.
pub const CAPABILITIES_IN_CACHE: &str = "libvirt/qemu/cache/capabilities";
/// Images of containerDisks are mounted below this folder, by the names of their volumes.
pub const IMAGES_FOLDER: &str = "/images";
/// Volumes with a file system are mounted below this folder, by their names.
pub const VOLUMES_FOLDER: &str = "/volumes";
/// The file in such a volume that is the disk.
pub const DISK_FILE: &str = "disk.img";
/// Block volumes are devices below this folder, by their names.
pub const DEVICES_FOLDER: &str = "/devices";
/// Secrets are mounted below this folder, by the names of their volumes.
pub const SECRETS_FOLDER: &str = "/secrets";
/// The folder of a Secret that holds user data.
pub const SECRET_USER: &str = "user";
/// The folder of a Secret that holds network data.
pub const SECRET_NETWORK: &str = "network";
/// libvirt's socket, below the run folder.
pub const LIBVIRT_SOCKET: &str = "libvirt/libvirt-sock";
/// The folder, below the run folder, of the sockets through which a guest moves. Its launcher makes it.
pub const MIGRATION_FOLDER: &str = "migration";
/// Socket in that folder: a tunnel carries it to the libvirt of the target.
pub const MIGRATION_LIBVIRT_SOCKET: &str = "migration/libvirt.sock";
/// Socket in that folder: the guest's memory.
pub const MIGRATION_MEMORY_SOCKET: &str = "migration/memory.sock";
/// Socket in that folder: the guest's disks.
pub const MIGRATION_DISKS_SOCKET: &str = "migration/disks.sock";
/// File in that folder: the guest has left for good. The node's tunnel makes it once it has proof.
pub const MIGRATION_LEFT_FILE: &str = "migration/left";
/// The device by which QEMU waits for memory that comes after the guest, by post-copy (`userfaultfd(2)`).
pub const USERFAULTFD: &str = "/dev/userfaultfd";
/// The file, below the run folder, that says that the pod is ready for its guest.
pub const READY_FILE: &str = "ready.json";
/// The file, below the run folder, with the result of the guest's readiness probe: a [`Readiness`].
pub const READINESS_FILE: &str = "readiness.json";
/// The socket, below the run folder, that the guest's first serial port is connected to.
pub const CONSOLE_SOCKET: &str = "console.sock";
/// The seccomp profile, below the kubelet's folder of them.
pub const SECCOMP_PROFILE: &str = "drydock/launcher.json";
/// The extended resource by which a pod gets its share of hardware virtualization.
pub const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";

/// The guest that a pod is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Guest {
    /// Name of the libvirt domain.
    pub domain: String,
    /// Identity of this pod's libvirt: two that are alike refuse to migrate to each other.
    pub host_uuid: String,
    /// How long the guest may take to shut down, in seconds, the launcher's margin included.
    pub grace_period_seconds: u64,
    /// What becomes a disk, in the order of the manifest.
    pub disks: Vec<GuestDisk>,
    /// How the launcher finds out whether the guest is well; never, where there is none.
    #[serde(default, skip_serializing_if = "GuestProbes::is_empty")]
    pub probes: GuestProbes,
}

/// The probes of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestProbes {
    /// The guest is ended when this fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub liveness: Option<GuestProbe>,
    /// Services do not send to the guest while this fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness: Option<GuestProbe>,
}

impl GuestProbes {
    /// The guest has no probe.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A probe of a guest: Kubernetes' fields, their defaults applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestProbe {
    /// What is done.
    pub action: ProbeAction,
    /// Time between the guest's start in this pod and the first probe, in seconds.
    pub initial_delay_seconds: u32,
    /// How long the guest may take to respond, in seconds.
    pub timeout_seconds: u32,
    /// Time from one probe to the next, in seconds.
    pub period_seconds: u32,
    /// How many probes must succeed in a row.
    pub success_threshold: u32,
    /// How many probes must fail in a row.
    pub failure_threshold: u32,
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeAction {
    /// A TCP connection.
    Tcp {
        /// The host that is connected to; the guest if not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// The port.
        port: u16,
    },
    /// An HTTP request.
    Http {
        /// By TLS, whose certificate is not checked.
        tls: bool,
        /// The host that is connected to; the guest if not given.
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
pub struct Readiness {
    /// The guest is ready.
    pub ready: bool,
    /// For people: why it is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Something that becomes a disk of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestDisk {
    /// Name of the volume.
    pub name: String,
    /// What it is.
    #[serde(flatten)]
    pub source: DiskSource,
}

/// Where a disk comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DiskSource {
    /// A read-only image with a layer above it that the guest writes to.
    #[serde(rename_all = "camelCase")]
    ContainerDisk {
        /// The disk in the image; the only file in its folder `/disk` if not given.
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        /// Size in bytes of the layer above the image, where it is not the image's: that of the
        /// disk whose content comes from elsewhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
    },
    /// NoCloud data.
    CloudInitNoCloud(CloudInit),
    /// An empty disk that lives as long as the pod.
    EmptyDisk {
        /// Size in bytes.
        capacity: u64,
    },
    /// A raw disk whose content comes with the guest, from where it ran before.
    Blank {
        /// Size in bytes.
        size: u64,
    },
    /// The file `disk.img` of a volume with a file system.
    Filesystem {},
    /// A block device.
    Block {},
}

/// NoCloud data, from the manifest or from Secrets that are mounted into the pod.
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
}

/// A file of NoCloud data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CloudInitText {
    /// As it is.
    Plain(String),
    /// Encoded in base64.
    Base64(String),
    /// From the Secret that is mounted for it.
    Secret {
        /// Its name, for people; controllers of earlier versions do not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

/// What a launcher says when libvirt answers and all disks are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// The disks, in the order of [`Guest::disks`].
    pub disks: Vec<PreparedDisk>,
    /// The pod's addresses: the guest that starts here has them, and keeps them wherever it goes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<PodAddress>,
    /// A guest may come here by post-copy: [`USERFAULTFD`] can be opened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub post_copy: bool,
    /// The guest has a readiness probe that the launcher carries out: [`READINESS_FILE`] has its result. (A launcher of
    /// an earlier release leaves it to the kubelet.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probes_readiness: bool,
}

impl Ready {
    /// The first disk whose content is in a format that this version does not know. A guest is not started on it.
    pub fn unknown_disk(&self) -> Option<&PreparedDisk> {
        self.disks.iter().find(|disk| {
            let below = disk.backing.as_ref().map(|backing| backing.format);
            disk.format == DiskFormat::Unknown || below == Some(DiskFormat::Unknown)
        })
    }
}

/// An address of a pod, with the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of its network's prefix, in bits.
    pub prefix: u8,
}

/// A disk as QEMU opens it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedDisk {
    /// Name of the volume.
    pub name: String,
    /// File or device in the pod.
    pub path: String,
    /// How its content is read.
    pub format: DiskFormat,
    /// Size that the guest sees, in bytes.
    pub virtual_size: u64,
    /// The read-only image below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<BackingImage>,
}

/// A read-only image below a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackingImage {
    /// File in the pod.
    pub path: String,
    /// How its content is read.
    pub format: DiskFormat,
    /// Size in bytes.
    pub virtual_size: u64,
}

/// Format of a disk's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// QEMU's own format.
    Qcow2,
    /// The bytes themselves.
    Raw,
    /// A value of a later version, of which nothing is concluded. It is never written.
    #[serde(other)]
    Unknown,
}

impl DiskFormat {
    /// QEMU's and libvirt's name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
            Self::Unknown => "unknown",
        }
    }
}

/// How a pod's guest ended: the launcher's termination message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// What happened.
    pub outcome: Outcome,
    /// The same for people, with libvirt's detail.
    pub message: String,
    /// The launcher was told to end its pod, and had pressed the guest's power button or begun to destroy it before
    /// the guest ended: the end is not the guest's own decision. `None` of a launcher that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<bool>,
}

/// How a guest ended in this pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The guest shut itself down, by itself or asked by its power button.
    Shutdown,
    /// QEMU ended by itself, or the guest crashed.
    Crashed,
    /// It was ended from outside.
    Destroyed,
    /// It went on elsewhere.
    Migrated,
    /// It could not be started, libvirt could not be kept alive, or its liveness probe failed.
    Failed,
    /// The pod was told to end before a guest ran in it.
    NotStarted,
    /// A value of a later version, of which nothing is concluded. It is never written.
    #[serde(other)]
    Unknown,
}

impl Outcome {
    /// libvirt's or Drydock's word for it, as it is written in the message.
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
