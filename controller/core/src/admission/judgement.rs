//! Admission of manifests without a cluster.
//!
//! ```text
//!  documents ─▶ objects (a `List` has several) ─▶ defaults ─▶ types ─▶ review() ─▶ Judged
//! ```
//!
//! The result is that of the webhooks and of the API server's type check. Checks that only an API server performs are
//! not included: patterns, lengths and CEL rules of the schema, quotas, and the existence of referenced objects.

use drydock_api::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceReplicaSet,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    AdmittedKind,
    defaults::{Named, defaulted},
    review,
};
use crate::configuration::Configuration;

/// The API group of the admitted kinds.
const GROUP: &str = "kubevirt.io/";

/// An object of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object; empty if it has none.
    pub name: String,
    /// Verdict on the object.
    pub verdict: AdmissionVerdict,
}

/// The verdict on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionVerdict {
    /// The object is admitted.
    Admitted,
    /// The object is refused.
    Refused(Vec<RefusalCause>),
    /// The object is of none of the kinds that Drydock admits.
    NotConsidered,
}

/// Why an object is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalCause {
    /// Path of the field; empty for the whole object. Indices of lists are omitted, so that equal fields can be
    /// counted.
    pub field: String,
    /// Human-readable message.
    pub message: String,
}

/// Judges a document of a manifest. `architecture` is the default for guests that set none.
pub fn judge(document: &Value, configuration: &Configuration, architecture: &str) -> Vec<Judged> {
    let items = document["items"].as_array();
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match items.filter(|_| is_list) {
        Some(items) => items
            .iter()
            .flat_map(|item| judge(item, configuration, architecture))
            .collect(),
        None if document.is_null() => Vec::new(),
        None => vec![judge_object(document, configuration, architecture)],
    }
}

fn judge_object(object: &Value, configuration: &Configuration, architecture: &str) -> Judged {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("/kind").to_owned(), text("/metadata/name").to_owned());
    let is_kubevirts = text("/apiVersion").starts_with(GROUP);
    let known = AdmittedKind::ALL.into_iter().find(|known| known.as_str() == kind);
    let verdict = match known.filter(|_| is_kubevirts) {
        None => AdmissionVerdict::NotConsidered,
        Some(known) => {
            let named = Named {
                namespace: "default",
                name: Some(name.as_str()).filter(|name| !name.is_empty()),
            };
            let filled = match known {
                AdmittedKind::Instance => defaulted(object, named, configuration, architecture),
                AdmittedKind::Machine | AdmittedKind::ReplicaSet | AdmittedKind::Migration => None,
            };
            let why = reasons(filled.as_ref().unwrap_or(object), known);
            if why.is_empty() {
                AdmissionVerdict::Admitted
            } else {
                AdmissionVerdict::Refused(why)
            }
        }
    };
    Judged { kind, name, verdict }
}

fn reasons(object: &Value, kind: AdmittedKind) -> Vec<RefusalCause> {
    let refusals = review(object, kind);
    if !refusals.is_empty() {
        let why = refusals.into_iter().map(|refusal| RefusalCause {
            field: without_indices(&refusal.field),
            message: refusal.message,
        });
        return why.collect();
    }
    let read = match kind {
        AdmittedKind::Machine => unreadable::<VirtualMachine>(object),
        AdmittedKind::Instance => unreadable::<VirtualMachineInstance>(object),
        AdmittedKind::ReplicaSet => unreadable::<VirtualMachineInstanceReplicaSet>(object),
        AdmittedKind::Migration => unreadable::<VirtualMachineInstanceMigration>(object),
    };
    let why = read.map(|message| RefusalCause {
        field: String::new(),
        message,
    });
    why.into_iter().collect()
}

/// Returns the error if an object cannot be parsed as type `T`; `None` if it can.
fn unreadable<T: DeserializeOwned>(object: &Value) -> Option<String> {
    serde_json::from_value::<T>(object.clone())
        .err()
        .map(|error| error.to_string())
}

/// Returns a path without the indices of its lists: `spec.volumes[]` for `spec.volumes[3]`.
fn without_indices(path: &str) -> String {
    let mut short = String::new();
    let mut parts = path.split('[');
    short.push_str(parts.next().unwrap_or_default());
    for part in parts {
        match part.split_once(']') {
            Some((index, rest)) if index.bytes().all(|byte| byte.is_ascii_digit()) => {
                short.push_str("[]");
                short.push_str(rest);
            }
            _ => {
                short.push('[');
                short.push_str(part);
            }
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verdicts(document: &Value) -> Vec<(String, AdmissionVerdict)> {
        let judged = judge(document, &Configuration::default(), "amd64");
        judged.into_iter().map(|object| (object.name, object.verdict)).collect()
    }

    fn instance(name: &str, devices: &Value) -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name},
            "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": devices}}})
    }

    #[test]
    fn each_object_of_a_document_is_judged() {
        let gpu = json!({"gpus": [{"name": "g", "deviceName": "d"}]});
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [
            instance("a", &json!({})),
            instance("b", &gpu),
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c"}},
            {"apiVersion": "cluster.example/v1", "kind": "VirtualMachine", "metadata": {"name": "d"}},
        ]});
        let found = verdicts(&list);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(found[0].1, AdmissionVerdict::Admitted);
        let AdmissionVerdict::Refused(why) = &found[1].1 else {
            panic!("{found:?}");
        };
        assert_eq!(why[0].field, "spec.domain.devices.gpus");
        assert_eq!([&found[2].1, &found[3].1], [&AdmissionVerdict::NotConsidered; 2]);
        assert_eq!(verdicts(&Value::Null), []);
    }

    #[test]
    fn value_of_another_type_is_refused() {
        let found = verdicts(&instance("a", &json!({"disks": "none"})));
        assert!(
            matches!(&found[0].1, AdmissionVerdict::Refused(why) if !why.is_empty()),
            "{found:?}"
        );
    }

    #[test]
    fn indices_of_lists_are_left_out() {
        for (path, short) in [
            ("spec.volumes[3].name", "spec.volumes[].name"),
            ("spec.a[0].b[12]", "spec.a[].b[]"),
            ("metadata.annotations[a/b.c]", "metadata.annotations[a/b.c]"),
            ("spec", "spec"),
            ("", ""),
        ] {
            assert_eq!(without_indices(path), short);
        }
    }
}
