//! The used part of the kubelet's device plugin API, version v1beta1: messages with their field numbers, and paths of
//! calls.
//!
//! Undeclared fields (topologies, annotations) are neither sent nor read. A test compares the other fields with the
//! kubelet's `api.proto`. Generating the messages from this file (prost-build 0.14 and protox 0.9) took 46 processor
//! seconds more for each built profile. This is two minutes of a first build, for messages that have not changed in
//! years.

/// The API version that a registration declares.
pub(crate) const VERSION: &str = "v1beta1";
/// The kubelet's socket, in the folder of the plugins' sockets.
pub(crate) const KUBELET_SOCKET: &str = "kubelet.sock";
/// Health of a device that can be allocated to a pod.
pub(crate) const HEALTHY: &str = "Healthy";
/// Health of a device that cannot be allocated to a pod.
pub(crate) const UNHEALTHY: &str = "Unhealthy";

/// Paths of the calls.
pub(crate) mod paths {
    /// Kubelet: registers a plugin.
    pub(crate) const REGISTER: &str = "/v1beta1.Registration/Register";
    /// Plugin: returns the options of the plugin.
    pub(crate) const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    /// Plugin: streams the devices of the plugin, now and at each change.
    pub(crate) const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    /// Plugin: returns the devices that the plugin prefers.
    pub(crate) const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    /// Plugin: returns the mounts and device nodes for containers with devices.
    pub(crate) const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    /// Plugin: prepares for the start of a container.
    pub(crate) const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";
}

/// An empty message.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Empty {}

/// The optional calls that a plugin requests.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct DevicePluginOptions {
    /// Whether the kubelet calls `PreStartContainer` before a container starts.
    #[prost(bool, tag = "1")]
    pub(crate) pre_start_required: bool,
    /// Whether the kubelet calls `GetPreferredAllocation` before an allocation.
    #[prost(bool, tag = "2")]
    pub(crate) preferred_allocation_available: bool,
}

/// Registers a plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct RegisterRequest {
    /// Version of the API.
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    /// Name of the plugin's socket, in the same folder as the kubelet's.
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    /// Name of the extended resource.
    #[prost(string, tag = "3")]
    pub(crate) resource_name: String,
    /// Optional calls that the plugin requests.
    #[prost(message, optional, tag = "4")]
    pub(crate) options: Option<DevicePluginOptions>,
}

/// All devices of a plugin.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PluginDevices {
    /// Devices of the plugin.
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<PluginDevice>,
}

/// One device.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PluginDevice {
    /// ID of the device, with at most 63 characters.
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// Health of the device: [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub(crate) health: String,
}

/// Requests the preferred devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreferredRequest {
    /// One request for each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<PreferredForContainer>,
}

/// Requests the preferred devices for one container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreferredForContainer {
    /// IDs of the available devices.
    #[prost(string, repeated, tag = "1")]
    pub(crate) available: Vec<String>,
    /// IDs of devices that must be part of the result.
    #[prost(string, repeated, tag = "2")]
    pub(crate) must_include: Vec<String>,
    /// Number of devices to choose.
    #[prost(int32, tag = "3")]
    pub(crate) size: i32,
}

/// The preferred devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct PreferredResponse {
    /// Preferred devices of each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<DeviceIds>,
}

/// IDs of devices for one container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct DeviceIds {
    /// IDs of the devices.
    #[prost(string, repeated, tag = "1")]
    pub(crate) ids: Vec<String>,
}

/// Allocates devices to containers.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AllocateRequest {
    /// Allocated devices of each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<DeviceIds>,
}

/// Mounts and device nodes for containers with allocated devices.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AllocateResponse {
    /// Mounts and device nodes of each container.
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Allocation>,
}

/// Mounts and device nodes for one container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Allocation {
    /// Folders of the host to mount.
    #[prost(message, repeated, tag = "2")]
    pub(crate) mounts: Vec<Mount>,
    /// Device nodes that the container gets.
    #[prost(message, repeated, tag = "3")]
    pub(crate) nodes: Vec<DeviceNode>,
}

/// Mount of a host folder in a container.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Mount {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    /// Path on the host.
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    /// Whether the container can only read the folder.
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
    /// The container's permissions: any of `r`, `w` and `m` (mknod).
    #[prost(string, tag = "3")]
    pub(crate) permissions: String,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn messages_have_the_bytes_that_the_kubelet_reads() {
        // The expected bytes were written by hand, from the field numbers and types of the published API.
        let register = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "a.sock".into(),
            resource_name: "b/c".into(),
            options: Some(DevicePluginOptions::default()),
        };
        assert_eq!(
            register.encode_to_vec(),
            b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03b/c\x22\x00"
        );
        let devices = PluginDevices {
            devices: vec![PluginDevice {
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
        let request = AllocateRequest::decode(&b"\x0a\x06\x0a\x01x\x0a\x01y"[..]).unwrap();
        assert_eq!(request.containers[0].ids, ["x", "y"]);
    }
}
