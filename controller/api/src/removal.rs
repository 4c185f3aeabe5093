//! Names that are used to remove Drydock and to protect it against removal while it is in use.

/// Label of each object that Drydock's manifests install: its value is `drydock`.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`PART_OF`].
pub const DRYDOCK: &str = "drydock";
/// Annotation of an object that Drydock's manifests install: with the value `true`, the object may be deleted although
/// virtual machines exist.
pub const CONFIRM: &str = "drydock.dev/confirm-removal";
/// Name of the ValidatingWebhookConfiguration with which the controller protects Drydock's objects. The controller
/// creates the configuration, and no manifest contains it, so `kubectl delete -k` does not delete it.
pub const CONFIGURATION: &str = "drydock-removal";
/// Name of the controller's ClusterRole, which owns the configuration [`CONFIGURATION`].
pub const OWNER: &str = "drydock-controller";
/// Label of a node: with the value `folders`, Drydock's directories on the node are removed.
pub const UNINSTALL: &str = "drydock.dev/uninstall";
/// Value of [`UNINSTALL`].
pub const FOLDERS: &str = "folders";
/// Namespace of the workloads that remove Drydock.
pub const NAMESPACE: &str = "drydock-uninstall";
/// Label `app.kubernetes.io/name` of the pods that remove host directories, and the name of their DaemonSet.
pub const FOLDERS_APP: &str = "drydock-uninstall-folders";
