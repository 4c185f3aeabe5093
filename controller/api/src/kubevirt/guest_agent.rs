//! Reports of guest agents, as KubeVirt's subresources return them.

use serde::Serialize;

use super::status::GuestOsInfo;

/// Response of `guestosinfo`: the information of a guest agent about its guest
/// (`VirtualMachineInstanceGuestAgentInfo`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestAgentInfo {
    /// Version of the guest agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub guest_agent_version: String,
    /// Commands that the guest agent knows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub supported_commands: Vec<GuestAgentCommand>,
    /// Host name of the guest, as set in the guest.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// Operating system of the guest.
    pub os: GuestOsInfo,
    /// Time zone of the guest: `NAME, OFFSET` with the offset from UTC in seconds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timezone: String,
    /// Users of the guest, at most ten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user_list: Vec<GuestUser>,
    /// File systems of the guest.
    pub fs_info: GuestDisks,
    /// State of the file systems: `frozen` or `thawed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fs_freeze_status: String,
}

/// A command of a guest agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GuestAgentCommand {
    /// Name of the command.
    pub name: String,
    /// Whether the guest's administrator allows the command.
    pub enabled: bool,
}

/// File systems in [`GuestAgentInfo`], at most ten.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GuestDisks {
    /// The file systems.
    pub disks: Vec<GuestFilesystem>,
}

/// A user of a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestUser {
    /// Name of the account.
    pub user_name: String,
    /// Domain of the account (Windows).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Time at which the user logged in, in seconds since 1970.
    pub login_time: f64,
}

/// A file system of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestFilesystem {
    /// Name of the file system's device in the guest.
    pub disk_name: String,
    /// Mount point of the file system.
    pub mount_point: String,
    /// Type of the file system, such as `ext4`.
    pub file_system_type: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Disks on which the file system is stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<GuestDisk>,
}

/// A disk of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestDisk {
    /// Serial number of the disk.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Type of the disk's bus, such as `virtio`.
    pub bus_type: String,
}

/// Response of `userlist` and `filesystemlist`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GuestAgentList<T> {
    /// Metadata of the list, which is empty.
    pub metadata: NoMetadata,
    /// The elements.
    pub items: Vec<T>,
}

/// An empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NoMetadata {}
