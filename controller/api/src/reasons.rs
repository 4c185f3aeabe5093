//! Condition types, and the stable CamelCase reasons of conditions and events.

/// Conditions of a Hypervisor.
pub mod hypervisor {
    /// The facts are those of the machine as it is now.
    pub const INSPECTED: &str = "Inspected";
    /// The node's CPU labels are what facts and configuration say.
    pub const LABELLED: &str = "Labelled";
    /// Guests can use hardware virtualization.
    pub const KVM_AVAILABLE: &str = "KVMAvailable";
    /// Guests can have the pod network.
    pub const GUEST_NETWORK: &str = "GuestNetwork";
    /// The node accepts virtual machines.
    pub const READY: &str = "Ready";
    /// The cluster's configuration is in force on this node.
    pub const CONFIGURATION_ACCEPTED: &str = "ConfigurationAccepted";
}

/// Conditions of a Node, as KEP-5683 names them.
pub mod node {
    /// It is being emptied.
    pub const DRAIN_IN_PROGRESS: &str = "DrainInProgress";
    /// Nothing is on it any more that a drain would have to move: it is safe to switch it off.
    pub const DRAINED: &str = "Drained";
    /// It is in maintenance.
    pub const MAINTENANCE_IN_PROGRESS: &str = "MaintenanceInProgress";
}

/// Conditions of a HyperConverged.
pub mod hyperconverged {
    /// This object is the cluster's configuration and every node follows it.
    pub const IN_FORCE: &str = "InForce";
    /// Nodes offer the CPU model of virtual machines that name none.
    pub const DEFAULT_CPU_MODEL_OFFERED: &str = "DefaultCPUModelOffered";
}

/// Reasons of events.
pub mod events {
    /// CPU labels of a node changed; the message counts them.
    pub const LABELS_CHANGED: &str = "CPULabelsChanged";
    /// The host could not be inspected; the message says why.
    pub const INSPECTION_FAILED: &str = "InspectionFailed";
    /// The host's CPU model is an obsolete one (KubeVirt's name for it).
    pub const HOST_MODEL_OBSOLETE: &str = "HostModelIsObsolete";
    /// Guests of a node can have no network; the message says why.
    pub const GUEST_NETWORK_UNAVAILABLE: &str = "GuestNetworkUnavailable";
    /// A configuration object holds a value that is not allowed.
    pub const CONFIGURATION_REFUSED: &str = "ConfigurationRefused";
    /// A node's agent has stopped answering (KubeVirt's name for it).
    pub const NODE_UNRESPONSIVE: &str = "NodeUnresponsive";
}
