//! Condition types, and the stable CamelCase reasons of conditions and events.

/// Conditions of a Hypervisor.
pub mod hypervisor {
    /// The facts describe the current state of the machine.
    pub const INSPECTED: &str = "Inspected";
    /// The node's CPU labels match the facts and the configuration.
    pub const LABELLED: &str = "Labelled";
    /// Guests can use hardware virtualization.
    pub const KVM_AVAILABLE: &str = "KVMAvailable";
    /// Guests can use the pod network.
    pub const GUEST_NETWORK: &str = "GuestNetwork";
    /// The node accepts virtual machines.
    pub const READY: &str = "Ready";
    /// The node applies the cluster's configuration.
    pub const CONFIGURATION_ACCEPTED: &str = "ConfigurationAccepted";
}

/// Conditions of a Node, as KEP-5683 names them.
pub mod node {
    /// The node is being drained, and the drain has lasted for about four seconds or longer.
    pub const DRAIN_IN_PROGRESS: &str = "DrainInProgress";
    /// No drainable workload is left on the node: it is safe to power off.
    pub const DRAINED: &str = "Drained";
    /// The node will be in maintenance.
    pub const MAINTENANCE_PLANNED: &str = "MaintenancePlanned";
    /// The node is in maintenance.
    pub const MAINTENANCE_IN_PROGRESS: &str = "MaintenanceInProgress";
}

/// Conditions of a HyperConverged.
pub mod hyperconverged {
    /// The object is the cluster's configuration, and every node applies it.
    pub const IN_FORCE: &str = "InForce";
    /// Nodes offer the CPU model of virtual machines that specify none.
    pub const DEFAULT_CPU_MODEL_OFFERED: &str = "DefaultCPUModelOffered";
}

/// Reasons of events.
pub mod events {
    /// CPU labels of a node changed; the message has the number of changes.
    pub const LABELS_CHANGED: &str = "CPULabelsChanged";
    /// The host could not be inspected; the message has the reason.
    pub const INSPECTION_FAILED: &str = "InspectionFailed";
    /// The host's CPU model is obsolete (KubeVirt's name).
    pub const HOST_MODEL_OBSOLETE: &str = "HostModelIsObsolete";
    /// Guests on a node cannot have a network; the message has the reason.
    pub const GUEST_NETWORK_UNAVAILABLE: &str = "GuestNetworkUnavailable";
    /// A configuration object contains an invalid value.
    pub const CONFIGURATION_REFUSED: &str = "ConfigurationRefused";
    /// The agent of a node has stopped responding (KubeVirt's name).
    pub const NODE_UNRESPONSIVE: &str = "NodeUnresponsive";
}
