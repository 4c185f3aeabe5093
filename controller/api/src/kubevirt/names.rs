//! Label and annotation keys, condition types and reasons of virtual machines and their pods.

/// Value of the label [`APP`] on launcher pods.
pub const VIRT_LAUNCHER: &str = "virt-launcher";
/// Label that says what a pod is.
pub const APP: &str = "kubevirt.io";
/// Label of a pod: UID of its instance.
pub const CREATED_BY: &str = "kubevirt.io/created-by";
/// Label of an instance and its pods: name of the instance's VirtualMachine or of itself.
pub const VM_NAME: &str = "vm.kubevirt.io/name";
/// Label of a launcher pod by which `virtctl expose` selects it: the name of its instance, shortened if it is too long.
pub const INSTANCE_ID: &str = "vmi.kubevirt.io/id";
/// Label of an instance: the node whose agent looks after it.
pub const NODE_NAME: &str = "kubevirt.io/nodeName";
/// Annotation of a pod: name of its instance.
pub const DOMAIN: &str = "kubevirt.io/domain";
/// Readiness gate of a launcher pod: the guest runs in it, and its readiness probe succeeds if it has one.
pub const GUEST_RUNNING: &str = "drydock.dev/guest-running";
/// Annotation of an instance: the generation of its VirtualMachine that it was made of.
pub const VM_GENERATION: &str = "kubevirt.io/vm-generation";
/// Annotation of an instance: tells the template that it was made of from others.
pub const TEMPLATE: &str = "drydock.dev/template";
/// Annotation of a pod whose instance is stopped by an eviction or a drain, so that it is started elsewhere.
pub const EVICTED: &str = "drydock.dev/evicted";
/// Label of a launcher pod and of the budget that protects it: what makes the pod unlike all others.
pub const LAUNCHER: &str = "drydock.dev/launcher";
/// Annotation of such a budget: the name of the pod's instance.
pub const INSTANCE: &str = "drydock.dev/instance";
/// Annotation of an instance: who has evicted it, if that has to be known (KubeVirt's name).
pub const EVICTION_SOURCE: &str = "kubevirt.io/eviction-source";
/// Value of [`EVICTION_SOURCE`].
pub const DESCHEDULER: &str = "descheduler";
/// Annotation of an Eviction: who asks (the descheduler's name).
pub const REQUESTED_BY: &str = "requested-by";
/// Value of [`REQUESTED_BY`].
pub const BY_DESCHEDULER: &str = "sigs.k8s.io/descheduler";
/// Annotation of a pod: whoever refuses its eviction moves it in the background (the descheduler's name).
pub const REQUEST_EVICT_ONLY: &str = "descheduler.alpha.kubernetes.io/request-evict-only";
/// Annotation of a pod: its eviction goes on in the background (the descheduler's name).
pub const EVICTION_IN_PROGRESS: &str = "descheduler.alpha.kubernetes.io/eviction-in-progress";
/// Value of [`EVICTION_IN_PROGRESS`] where Drydock sets it.
pub const BY_DRYDOCK: &str = "drydock";
/// Annotation of an instance that cannot be migrated: what an eviction does instead of waiting for ever.
pub const EVACUATION_FALLBACK: &str = "drydock.dev/evacuation-fallback";
/// Value of [`EVACUATION_FALLBACK`]: it is shut down, and started elsewhere if its machine says so.
pub const RESTART: &str = "restart";
/// How names of migrations begin that empty a node (KubeVirt's).
pub const EVACUATION_PREFIX: &str = "kubevirt-evacuation-";
/// Finalizer of an instance: its guest has ended and its pods are gone.
pub const FINALIZER: &str = "foregroundDeleteVirtualMachine";
/// Finalizer of a VirtualMachine: its instance is gone.
pub const VM_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";

/// Finalizer of a migration: both of its sides have settled. KubeVirt's name.
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
    /// The guest's agent answers.
    pub const AGENT_CONNECTED: &str = "AgentConnected";
    /// Its pod was put on a node, or why not.
    pub const POD_SCHEDULED: &str = "PodScheduled";
    /// Its pod could not be made or its images not be had.
    pub const SYNCHRONIZED: &str = "Synchronized";
    /// Another node could take it.
    pub const MIGRATION_TARGET_AVAILABLE: &str = "MigrationTargetAvailable";
    /// Its node is lost and nobody can say whether it still runs there.
    pub const FENCING_REQUIRED: &str = "FencingRequired";
    /// It is to leave its node.
    pub const EVICTION_REQUESTED: &str = "EvictionRequested";
    /// A budget of somebody else selects its pod, so that no eviction of it can be judged.
    pub const EVICTION_BUDGET_CONFLICT: &str = "EvictionBudgetConflict";
    /// Of a VirtualMachine: its template has changed since its instance was made.
    pub const RESTART_REQUIRED: &str = "RestartRequired";
    /// Of a VirtualMachine: its instance could not be made.
    pub const FAILURE: &str = "Failure";
    /// Of a replica set: its instances could not be made or deleted.
    pub const REPLICA_FAILURE: &str = "ReplicaFailure";
    /// Of a replica set: it is paused.
    pub const REPLICA_PAUSED: &str = "ReplicaPaused";
}

/// Reasons of final phases, which others decide by.
pub mod reasons {
    /// The cluster has ended the guest: its pod was evicted, preempted or deleted, or its node was emptied or shut down.
    pub const EVICTED: &str = "Evicted";
    /// The guest was stopped because its kubelet evicted its pod: it used more than it may, or its node ran out of something.
    pub const EVICTED_BY_KUBELET: &str = "EvictedByKubelet";
}
