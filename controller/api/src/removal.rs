//! Names for the protection of Drydock against removal while it is in use, and for its removal.

/// Label of each object that Drydock's manifests install: its value is `drydock`.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`PART_OF`].
pub const DRYDOCK: &str = "drydock";
/// Annotation of such an object: with the value `true`, it may be deleted although virtual machines exist.
pub const CONFIRM: &str = "drydock.dev/confirm-removal";
/// Name of the ValidatingWebhookConfiguration that the controller creates for its own protection. It is in no
/// manifest, so `kubectl delete -k` does not delete it.
pub const CONFIGURATION: &str = "drydock-removal";
/// Owner of that configuration: the controller's ClusterRole.
pub const OWNER: &str = "drydock-controller";
/// Label of a node: with the value `folders`, Drydock's directories on the node are removed.
pub const UNINSTALL: &str = "drydock.dev/uninstall";
/// Value of [`UNINSTALL`].
pub const FOLDERS: &str = "folders";
/// Namespace of the workloads that remove Drydock.
pub const NAMESPACE: &str = "drydock-uninstall";
/// Label `app.kubernetes.io/name` of the pods that remove host directories, and the name of their DaemonSet.
pub const FOLDERS_APP: &str = "drydock-uninstall-folders";
