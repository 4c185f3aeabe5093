//! Label and annotation keys, condition types and reasons of virtual machines and their pods.

/// Value of the label [`APP`] on launcher pods.
pub const VIRT_LAUNCHER: &str = "virt-launcher";
/// Label of a pod: its role, which is `virt-launcher` for launcher pods.
pub const APP: &str = "kubevirt.io";
/// Label of a pod: UID of the pod's instance.
pub const CREATED_BY: &str = "kubevirt.io/created-by";
/// Label of an instance and its pods: name of the instance's VirtualMachine, or of the instance itself.
pub const VM_NAME: &str = "vm.kubevirt.io/name";
/// Label of a launcher pod: name of the pod's instance, shortened if it is too long. `virtctl expose` selects the pod
/// by this label.
pub const INSTANCE_ID: &str = "vmi.kubevirt.io/id";
/// Label of an instance: the node whose agent manages it.
pub const NODE_NAME: &str = "kubevirt.io/nodeName";
/// Annotation of a pod: name of the pod's instance.
pub const DOMAIN: &str = "kubevirt.io/domain";
/// Readiness gate of a launcher pod: the guest runs in the pod, and the guest's readiness probe succeeds if there is
/// one.
pub const GUEST_RUNNING: &str = "drydock.dev/guest-running";
/// Annotation of an instance: the generation of its VirtualMachine from which it was created.
pub const VM_GENERATION: &str = "kubevirt.io/vm-generation";
/// Annotation of an instance: digest of the VirtualMachine's template from which it was created.
pub const TEMPLATE: &str = "drydock.dev/template";
/// Label of a launcher pod and of the PDB that protects it: a value that is unique to the pod.
pub const LAUNCHER: &str = "drydock.dev/launcher";
/// Annotation of the PDB that protects a launcher pod: name of the pod's instance.
pub const INSTANCE: &str = "drydock.dev/instance";
/// Annotation of an instance: requester of its eviction, if that is the descheduler (KubeVirt's name).
pub const EVICTION_SOURCE: &str = "kubevirt.io/eviction-source";
/// Value of [`EVICTION_SOURCE`].
pub const DESCHEDULER: &str = "descheduler";
/// Annotation of an Eviction: requester; the descheduler sets `sigs.k8s.io/descheduler`.
pub const REQUESTED_BY: &str = "requested-by";
/// Value of [`REQUESTED_BY`].
pub const BY_DESCHEDULER: &str = "sigs.k8s.io/descheduler";
/// Annotation of a pod: a refused eviction moves the guest in the background (the descheduler's name).
pub const REQUEST_EVICT_ONLY: &str = "descheduler.alpha.kubernetes.io/request-evict-only";
/// Annotation of a pod: its eviction is in progress in the background (the descheduler's name).
pub const EVICTION_IN_PROGRESS: &str = "descheduler.alpha.kubernetes.io/eviction-in-progress";
/// Value of [`EVICTION_IN_PROGRESS`] if Drydock sets it.
pub const BY_DRYDOCK: &str = "drydock";
/// Annotation of an instance: with the value `restart`, an eviction shuts down an instance that cannot be migrated, and
/// the instance is started on another node if its VirtualMachine specifies so.
pub const EVACUATION_FALLBACK: &str = "drydock.dev/evacuation-fallback";
/// Value of [`EVACUATION_FALLBACK`]: the instance is shut down, and started on another node if its VirtualMachine
/// specifies so.
pub const RESTART: &str = "restart";
/// Name prefix of migrations that drain a node (KubeVirt's).
pub const EVACUATION_PREFIX: &str = "kubevirt-evacuation-";
/// Finalizer of an instance: the object is kept until the guest has ended and the pods are deleted.
pub const FINALIZER: &str = "foregroundDeleteVirtualMachine";
/// Finalizer of a VirtualMachine: the object is kept until the instance is deleted.
pub const VM_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";

/// Finalizer of a migration: the object is kept until source and target have settled (KubeVirt's name).
pub const MIGRATION_FINALIZER: &str = "kubevirt.io/migrationJobFinalize";

/// Types of conditions of an instance.
pub mod conditions {
    /// The guest runs and can be reached.
    pub const READY: &str = "Ready";
    /// The guest is paused.
    pub const PAUSED: &str = "Paused";
    /// The guest can be live migrated.
    pub const LIVE_MIGRATABLE: &str = "LiveMigratable";
    /// The disks of the guest can be live migrated.
    pub const STORAGE_LIVE_MIGRATABLE: &str = "StorageLiveMigratable";
    /// The guest agent responds.
    pub const AGENT_CONNECTED: &str = "AgentConnected";
    /// The guest agent lacks commands that KubeVirt requires.
    pub const AGENT_VERSION_NOT_SUPPORTED: &str = "AgentVersionNotSupported";
    /// The guest's users have the credentials that the guest agent sets.
    pub const ACCESS_CREDENTIALS_SYNCHRONIZED: &str = "AccessCredentialsSynchronized";
    /// The instance's pod has been scheduled.
    pub const POD_SCHEDULED: &str = "PodScheduled";
    /// The instance's pod could be created, and its volumes and images are available.
    pub const SYNCHRONIZED: &str = "Synchronized";
    /// Another node could run the guest.
    pub const MIGRATION_TARGET_AVAILABLE: &str = "MigrationTargetAvailable";
    /// The instance's node is lost, and it is unknown whether the guest still runs there.
    pub const FENCING_REQUIRED: &str = "FencingRequired";
    /// The instance has to leave its node.
    pub const EVICTION_REQUESTED: &str = "EvictionRequested";
    /// The instance's pod has no PodDisruptionBudget of Drydock: only the webhook protects it from evictions.
    pub const EVICTION_BUDGET_CONFLICT: &str = "EvictionBudgetConflict";
    /// The template of the VirtualMachine has changed since its instance was created.
    pub const RESTART_REQUIRED: &str = "RestartRequired";
    /// The VirtualMachine's instance could not be created.
    pub const FAILURE: &str = "Failure";
    /// Instances of the replica set could not be created or deleted.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// The replica set is paused.
    pub const REPLICA_PAUSED: &str = "ReplicaPaused";
}

/// Reasons of final phases on which other components base decisions.
pub mod reasons {
    /// The cluster has ended the guest: its pod was evicted, preempted or deleted, or its node was drained or shut
    /// down.
    pub const EVICTED: &str = "Evicted";
    /// The guest was stopped because the kubelet evicted its pod: the pod exceeded its limits, or a resource of the
    /// node was exhausted.
    pub const EVICTED_BY_KUBELET: &str = "EvictedByKubelet";
}
