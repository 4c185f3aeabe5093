//! The kubelet's device plugin API, version v1beta1, in as far as it is used: the messages, by the
//! numbers of their fields, and the paths of the calls.
//!
//! What is not declared here (topologies, mounts, annotations) is neither sent nor looked at.

/// The API's version, which a registration names.
pub(crate) const VERSION: &str = "v1beta1";
/// The kubelet's socket, in the folder of the plugins' sockets.
pub(crate) const KUBELET_SOCKET: &str = "kubelet.sock";
/// A device that can be given to a pod.
pub(crate) const HEALTHY: &str = "Healthy";
/// A device that cannot.
pub(crate) const UNHEALTHY: &str = "Unhealthy";

/// Paths of the calls.
pub(crate) mod paths {
    /// Of the kubelet: a plugin is there.
    pub(crate) const REGISTER: &str = "/v1beta1.Registration/Register";
    /// Of a plugin: what it wants to be asked.
    pub(crate) const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    /// Of a plugin: its devices, now and whenever they change.
    pub(crate) const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    /// Of a plugin: which devices it would take.
    pub(crate) const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    /// Of a plugin: what a container is given with its devices.
    pub(crate) const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    /// Of a plugin: a container is about to start.
    pub(crate) const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";
}

/// Nothing to say.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Empty {}

/// What a plugin wants to be asked.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Options {
    /// `PreStartContainer` before a container starts.
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    /// `GetPreferredAllocation` before an allocation.
    #[prost(bool, tag = "2")]
    pub(crate) preferred_allocation_available: bool,
}

/// A plugin is there.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct RegisterRequest {
    /// The API's version.
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    /// Name of the plugin's socket, in the folder of the kubelet's.
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    /// The extended resource.
    #[prost(string, tag = "3")]
    pub(crate) resource_name: String,
    /// What it wants to be asked.
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<Options>,
}

/// All devices of a plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Devices {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<Device>,
}

/// One device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Device {
    /// At most 63 characters.
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

/// Which devices would be taken?
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreferredRequest {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<PreferredForContainer>,
}

/// The same for one container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreferredForContainer {
    /// What there is to choose from.
    #[prost(string, repeated, tag = "1")]
    pub(crate) available: Vec<String>,
    /// What has to be among them.
    #[prost(string, repeated, tag = "2")]
    pub(crate) must_include: Vec<String>,
    /// How many are wanted.
    #[prost(int32, tag = "3")]
    pub(crate) size: i32,
}

/// Which devices would be taken.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreferredResponse {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<DeviceIds>,
}

/// Devices of one container, by their IDs.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct DeviceIds {
    /// The IDs.
    #[prost(string, repeated, tag = "1")]
    pub(crate) ids: Vec<String>,
}

/// Containers get these devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AllocateRequest {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<DeviceIds>,
}

/// What comes with the devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AllocateResponse {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Allocation>,
}

/// What one container is given.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Allocation {
    /// Folders of the host.
    #[prost(message, repeated, tag = "2")]
    pub(crate) mounts: Vec<Mount>,
    /// Device nodes.
    #[prost(message, repeated, tag = "3")]
    pub(crate) nodes: Vec<DeviceNode>,
}

/// A folder of the host in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Mount {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    /// Path on the host.
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    /// The container cannot change it.
    #[prost(bool, tag = "3")]
    pub(crate) read_only: bool,
}

/// A device node in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct DeviceNode {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    /// Path on the host.
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    /// Of `r`, `w` and `m` (make a node) those that the container may.
    #[prost(string, tag = "3")]
    pub(crate) permissions: String,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn messages_have_the_bytes_that_the_kubelet_reads() {
        // Written down by hand, from the numbers and types of the published API.
        let register = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "a.sock".into(),
            resource_name: "b/c".into(),
            options: Some(Options::default()),
        };
        assert_eq!(
            register.encode_to_vec(),
            b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03b/c\x22\x00"
        );
        let devices = Devices {
            devices: vec![Device {
                id: "x".into(),
                health: HEALTHY.into(),
            }],
        };
        assert_eq!(devices.encode_to_vec(), b"\x0a\x0c\x0a\x01x\x12\x07Healthy");
        let allocated = AllocateResponse {
            containers: vec![Allocation {
                mounts: vec![Mount {
                    container_path: "/a".into(),
                    host_path: "/b".into(),
                    read_only: true,
                }],
                nodes: vec![DeviceNode {
                    container_path: "/c".into(),
                    host_path: "/h".into(),
                    permissions: "rw".into(),
                }],
            }],
        };
        assert_eq!(
            allocated.encode_to_vec(),
            b"\x0a\x1a\x12\x0a\x0a\x02/a\x12\x02/b\x18\x01\x1a\x0c\x0a\x02/c\x12\x02/h\x1a\x02rw"
        );
        let asked = AllocateRequest::decode(&b"\x0a\x06\x0a\x01x\x0a\x01y"[..]).unwrap();
        assert_eq!(asked.containers[0].ids, ["x", "y"]);
    }
}
