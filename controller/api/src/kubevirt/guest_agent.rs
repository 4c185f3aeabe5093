//! Reports of guest agents, as KubeVirt's subresources return them.

use serde::Serialize;

use super::status::GuestOsInfo;

/// `guestosinfo`: what a guest agent knows about its guest (`VirtualMachineInstanceGuestAgentInfo`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestAgentInfo {
    /// Version of the guest agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub guest_agent_version: String,
    /// The commands that it knows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub supported_commands: Vec<GuestAgentCommand>,
    /// The guest's name for itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// Its operating system.
    pub os: GuestOsInfo,
    /// Its time zone: `NAME, OFFSET` with the offset from UTC in seconds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timezone: String,
    /// Its users, at most ten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user_list: Vec<GuestUser>,
    /// Its file systems.
    pub fs_info: GuestDisks,
    /// `frozen` or `thawed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fs_freeze_status: String,
}

/// A command of a guest agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GuestAgentCommand {
    /// Its name.
    pub name: String,
    /// Whether the guest's administrator allows it.
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
    /// When the user logged in, in seconds since 1970.
    pub login_time: f64,
}

/// A file system of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestFilesystem {
    /// Name of its device in the guest.
    pub disk_name: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Type, such as `ext4`.
    pub file_system_type: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Size in bytes.
    pub total_bytes: u64,
    /// The disks that it is on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<GuestDisk>,
}

/// A disk of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestDisk {
    /// Serial number.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Type of its bus, such as `virtio`.
    pub bus_type: String,
}

/// `userlist` and `filesystemlist`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GuestAgentList<T> {
    /// Metadata of a list, which has none.
    pub metadata: NoMetadata,
    /// The elements.
    pub items: Vec<T>,
}

/// An empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NoMetadata {}
