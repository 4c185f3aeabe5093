//! Labels that only Drydock may set on objects, and its own user name.

use drydock_api::kubevirt::names::{CREATED_BY, NODE_NAME};

/// User name of the controller.
pub const CONTROLLER: &str = "system:serviceaccount:drydock:drydock-controller";

/// Labels by which Drydock's components find instances and their pods. Only Drydock sets them; a policy keeps other
/// users from changing them (`deploy/policies/instance-labels.yaml`).
pub const RESERVED_LABELS: [&str; 5] = [
    CREATED_BY,
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/migrationTargetNodeName",
    NODE_NAME,
    "kubevirt.io/outdatedLauncherImage",
];
