//! Names by which Drydock is protected from being removed while it is in use, and by which it is removed.

/// Label of each part of Drydock that is installed by its manifests; its value is [`DRYDOCK`].
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`PART_OF`].
pub const DRYDOCK: &str = "drydock";
/// Annotation of a part: by the value `true` it may be deleted although virtual machines exist.
pub const CONFIRM: &str = "drydock.dev/confirm-removal";
/// Name of the ValidatingWebhookConfiguration that the controller creates for its own protection. It is in no manifest,
/// so that `kubectl delete -k` does not delete it.
pub const CONFIGURATION: &str = "drydock-removal";
/// Owner of that configuration: the controller's ClusterRole.
pub const OWNER: &str = "drydock-controller";
/// Label of a node whose folders on the host are to be removed; its value is [`FOLDERS`].
pub const UNINSTALL: &str = "drydock.dev/uninstall";
/// Value of [`UNINSTALL`].
pub const FOLDERS: &str = "folders";
/// Namespace of what removes Drydock.
pub const NAMESPACE: &str = "drydock-uninstall";
/// Label `app.kubernetes.io/name` of the pods that remove folders, and the name of their DaemonSet.
pub const FOLDERS_APP: &str = "drydock-uninstall-folders";
