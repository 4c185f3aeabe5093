//! Preconditions of an eviction: the UID and resourceVersion of the pod that the client means.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Preconditions};

/// Returns the API server's 409 (Conflict) text if the preconditions do not match `pod`; `None` if they do
/// (k8s.io/apiserver, `registry/rest/delete.go`, `BeforeDelete`).
pub fn conflict(preconditions: &Preconditions, pod: &Pod) -> Option<String> {
    let metadata = &pod.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let differs = |wanted: &Option<String>, found: &Option<String>| {
        let wanted = wanted.clone().filter(|wanted| Some(wanted) != found.as_ref())?;
        Some((wanted, found.clone().unwrap_or_default()))
    };
    if let Some((wanted, found)) = differs(&preconditions.uid, &metadata.uid) {
        return Some(format!(
            "Operation cannot be fulfilled on Pod \"{name}\": the UID in the precondition ({wanted}) does not match the \
             UID in record ({found}). The object might have been deleted and then recreated"
        ));
    }
    let (wanted, found) = differs(&preconditions.resource_version, &metadata.resource_version)?;
    Some(format!(
        "Operation cannot be fulfilled on Pod \"{name}\": the ResourceVersion in the precondition ({wanted}) does not \
         match the ResourceVersion in record ({found}). The object might have been modified"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn preconditions_hold_only_for_the_named_pod() {
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}})).unwrap();
        for (preconditions, expected) in [
            (json!({}), None),
            (json!({"uid": "u"}), None),
            (json!({"resourceVersion": "7"}), None),
            (json!({"uid": "u", "resourceVersion": "7"}), None),
            (
                json!({"uid": "v"}),
                Some("the UID in the precondition (v) does not match the UID in record (u)"),
            ),
            (
                json!({"uid": "u", "resourceVersion": "6"}),
                Some("the ResourceVersion in the precondition (6) does not match the ResourceVersion in record (7)"),
            ),
            (
                json!({"uid": ""}),
                Some("the UID in the precondition () does not match"),
            ),
        ] {
            let found = conflict(&serde_json::from_value(preconditions.clone()).unwrap(), &pod);
            assert_eq!(found.is_some(), expected.is_some(), "{preconditions}");
            if let (Some(found), Some(expected)) = (found, expected) {
                assert!(
                    found.starts_with("Operation cannot be fulfilled on Pod \"p\": "),
                    "{found}"
                );
                assert!(found.contains(expected), "{found}");
            }
        }
    }
}
