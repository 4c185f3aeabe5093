//! Missing inputs of a guest's volumes: Secrets, keys in them, claims.
//!
//! Only the kubelet reads and mounts Secrets, and it reports a missing one only in events of the pod (`FailedMount`):
//! the pod itself waits as `ContainerCreating`, as it does while an image is pulled. The scheduler reports missing
//! claims in the pod's condition `PodScheduled`.

/// Reason of the kubelet's events about volumes that it cannot mount.
pub const FAILED_MOUNT: &str = "FailedMount";

/// Part of the message that the kubelet's cache lags behind, which resolves itself.
const LATE: &str = "failed to sync";

/// Returns a human-readable message about a volume that could not be mounted: `message` is the kubelet's, for a pod in
/// `namespace`. `None` if the message describes nothing that a user could fix.
pub fn unmounted(message: &str, namespace: &str) -> Option<String> {
    if message.contains(LATE) || message.trim().is_empty() {
        return None;
    }
    let (volume, cause) = message
        .strip_prefix("MountVolume.SetUp failed for volume \"")
        .and_then(|rest| rest.split_once("\" : "))
        .map_or((None, message), |(volume, cause)| (Some(volume), cause));
    let missing = missing(cause, namespace);
    Some(match (volume, missing) {
        (Some(volume), Some(missing)) => format!("volume {volume}: {missing}; the guest starts once this is fixed"),
        (None, Some(missing)) => format!("{missing}; the guest starts once this is fixed"),
        _ => message.to_owned(),
    })
}

/// Returns a message about the missing object, or the missing key of an object.
fn missing(cause: &str, namespace: &str) -> Option<String> {
    for (prefix, kind) in [("secret", "Secret"), ("configmap", "ConfigMap")] {
        if let Some(rest) = cause.strip_prefix(prefix) {
            let name = rest.strip_prefix(" \"")?.strip_suffix("\" not found")?;
            return Some(format!("{kind} {name} does not exist in namespace {namespace}"));
        }
        let key = cause
            .strip_prefix("references non-existent ")
            .and_then(|rest| rest.strip_prefix(prefix));
        if let Some(key) = key.and_then(|rest| rest.strip_prefix(" key: ")) {
            return Some(format!("the {kind} in namespace {namespace} has no key {key}"));
        }
    }
    None
}

/// Returns the scheduler's message about claims, extended by the namespace in which they are missing.
pub(super) fn unscheduled(message: String, namespace: &str) -> String {
    let missing = message.contains("persistentvolumeclaim \"") && message.contains("not found");
    if missing {
        let message = message.trim_end_matches(['.', ' ']);
        format!("{message} (namespace {namespace})")
    } else {
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of kubelets of 1.36, and the resulting messages.
    #[test]
    fn missing_inputs_are_named_with_the_namespace() {
        for (message, expected) in [
            (
                r#"MountVolume.SetUp failed for volume "user-init" : secret "login" not found"#,
                Some(
                    "volume user-init: Secret login does not exist in namespace shop; the guest starts once this is \
                     fixed",
                ),
            ),
            (
                r#"MountVolume.SetUp failed for volume "settings" : configmap "app" not found"#,
                Some(
                    "volume settings: ConfigMap app does not exist in namespace shop; the guest starts once this is \
                     fixed",
                ),
            ),
            (
                r#"MountVolume.SetUp failed for volume "user-init" : references non-existent secret key: userdata"#,
                Some(
                    "volume user-init: the Secret in namespace shop has no key userdata; the guest starts once this is \
                     fixed",
                ),
            ),
            (
                r#"MountVolume.SetUp failed for volume "user-init" : failed to sync secret cache: timed out waiting for the condition"#,
                None,
            ),
            ("", None),
            (
                r#"MountVolume.SetUp failed for volume "data" : rpc error: code = Internal desc = no such device"#,
                Some(
                    r#"MountVolume.SetUp failed for volume "data" : rpc error: code = Internal desc = no such device"#,
                ),
            ),
        ] {
            assert_eq!(unmounted(message, "shop").as_deref(), expected, "{message}");
        }
    }

    #[test]
    fn missing_claim_is_named_with_the_namespace() {
        for (message, expected) in [
            (
                r#"0/2 nodes are available: persistentvolumeclaim "data" not found."#,
                r#"0/2 nodes are available: persistentvolumeclaim "data" not found (namespace shop)"#,
            ),
            (
                "0/2 nodes are available: 2 Insufficient cpu.",
                "0/2 nodes are available: 2 Insufficient cpu.",
            ),
        ] {
            assert_eq!(unscheduled(message.into(), "shop"), expected);
        }
    }
}
