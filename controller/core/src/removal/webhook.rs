//! The webhook configuration that makes the API server call the controller before a part of Drydock is deleted.
//!
//! The configuration is in no manifest: `kubectl delete -k deploy` deletes the manifests' webhook configurations even
//! if all other deletions are refused, since webhooks are not called for webhook configurations; a second attempt would
//! then be admitted. The controller creates and restores the configuration. Its owner is the controller's ClusterRole,
//! with which it is deleted.

use drydock_api::removal::{CONFIGURATION, DRYDOCK, OWNER, PART_OF};
use serde_json::{Value, json};

/// Path of the webhook on the controller.
pub const PATH: &str = "/validate/removal";
/// Time-out of the API server's call, in seconds. The controller responds without sending requests.
const TIMEOUT_SECONDS: u32 = 5;

/// Returns the desired configuration: served by `service` in `namespace`, owned by the ClusterRole with this UID.
/// Without a CA bundle, which is written separately.
///
/// Failures are ignored: otherwise Drydock could not be removed while no controller responds.
pub fn configuration(namespace: &str, service: &str, owner: &str) -> Value {
    let rule = |group: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": resources, "scope": "*",
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {
            "name": CONFIGURATION,
            "labels": {PART_OF: DRYDOCK},
            "ownerReferences": [{
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": OWNER, "uid": owner,
            }],
        },
        "webhooks": [{
            "name": "removal.drydock.dev",
            "clientConfig": {"service": {"name": service, "namespace": namespace, "path": PATH, "port": 443}},
            "rules": [
                rule("", &["namespaces", "serviceaccounts", "services"]),
                rule("apiextensions.k8s.io", &["customresourcedefinitions"]),
                rule("apps", &["daemonsets", "deployments"]),
                rule(
                    "rbac.authorization.k8s.io",
                    &["clusterrolebindings", "clusterroles", "rolebindings", "roles"],
                ),
            ],
            "objectSelector": {"matchLabels": {PART_OF: DRYDOCK}},
            "namespaceSelector": {},
            "matchPolicy": "Equivalent",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
            "failurePolicy": "Ignore",
        }],
    })
}

/// Returns whether an existing configuration contains everything that is wanted. Additional fields do not matter, but
/// there must be no additional webhook, rule or owner.
pub fn is_as_wanted(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| found.get(key).is_some_and(|found| is_as_wanted(found, wanted))),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| is_as_wanted(found, wanted))
        }
        _ => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;

    use super::*;

    /// Returns the configuration as an API server returns it.
    fn stored(wanted: &Value) -> Value {
        let typed: ValidatingWebhookConfiguration = serde_json::from_value(wanted.clone()).unwrap();
        let mut stored = serde_json::to_value(typed).unwrap();
        stored["metadata"]["resourceVersion"] = json!("7");
        stored["webhooks"][0]["clientConfig"]["caBundle"] = json!("eA==");
        stored
    }

    #[test]
    fn webhook_configuration_is_typed_and_read_back_unchanged() {
        let wanted = configuration("drydock", "drydock-webhooks", "u1");
        assert!(is_as_wanted(&stored(&wanted), &wanted));
    }

    #[test]
    fn changes_of_the_configuration_are_noticed() {
        let wanted = configuration("drydock", "drydock-webhooks", "u1");
        for (pointer, value) in [
            ("/webhooks/0/failurePolicy", json!("Fail")),
            ("/webhooks/0/rules", json!([])),
            ("/webhooks/0/rules/0/operations", json!(["DELETE", "CREATE"])),
            ("/webhooks/0/objectSelector", json!({})),
            ("/webhooks/0/clientConfig/service/path", json!("/elsewhere")),
            ("/metadata/ownerReferences/0/uid", json!("u2")),
            ("/webhooks", Value::Null),
        ] {
            let mut found = stored(&wanted);
            *found.pointer_mut(pointer).unwrap() = value;
            assert!(!is_as_wanted(&found, &wanted), "{pointer}");
        }
    }
}
