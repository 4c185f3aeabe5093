//! Names and labels, as Kubernetes accepts them.

use std::collections::BTreeMap;

use drydock_api::labels::GUEST;
use serde_json::Value;

use crate::{
    admission::{At, Refusals, change::RESERVED_LABELS},
    label_keys,
};

/// What a DNS label is, for people.
pub(super) const DNS_LABEL: &str =
    "up to 63 lower case letters, digits and `-`, beginning and ending with a letter or digit";
/// What a DNS subdomain is, for people.
pub(super) const DNS_SUBDOMAIN: &str =
    "up to 253 lower case letters, digits, `-` and `.`, beginning and ending with a letter or digit";
const LABEL_KEY: &str = "an optional DNS subdomain and a slash, then up to 63 letters, digits, `-`, `_` and `.`";
const LABEL_VALUE: &str =
    "up to 63 letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit, or nothing";

/// Whether it is a DNS label (RFC 1123).
pub(in crate::admission) fn is_dns_label(text: &str) -> bool {
    text.len() <= 63
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Whether it is a DNS subdomain, as names of objects are. Kubernetes limits the whole, not the parts.
pub(in crate::admission) fn is_dns_subdomain(text: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(part)
}

/// Whether it is a name of a port (IANA service name): up to 15 lower case letters, digits and
/// single `-` inside, with a letter.
pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= 15 && is_dns_label(text) && !text.contains("--") && text.bytes().any(|b| b.is_ascii_lowercase())
}

/// Whether it is a value of a label.
pub(in crate::admission) fn is_label_value(text: &str) -> bool {
    // Values are names of keys, or nothing.
    text.is_empty() || (!text.contains('/') && label_keys::is_valid(text))
}

/// The object's own name: its pods have it as a label, which holds 63 characters.
pub(super) fn of_object(raw: &Value, refusals: &mut Refusals) {
    let Some(name) = raw.pointer("/metadata/name").and_then(Value::as_str) else {
        return;
    };
    if !is_label_value(name) {
        let allowed = "a name of at most 63 characters, as it is also a label of the virtual machine's pod";
        refusals.not_allowed(&At::root("metadata.name"), name, allowed);
    }
}

/// Labels in metadata that people write.
pub(super) fn labels(metadata: Option<&Value>, at: &At, refusals: &mut Refusals) {
    let at = at.field("labels");
    let labels = metadata
        .and_then(|metadata| metadata.get("labels"))
        .and_then(Value::as_object);
    for (key, value) in labels.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if RESERVED_LABELS.contains(&key.as_str()) {
            refusals.immutable(
                &at,
                &format!("{at}: creation of the reserved label {key} is prohibited; the system sets it"),
            );
        }
        pair(key, value, &at, refusals);
    }
}

/// A map of labels.
pub(super) fn selector(labels: &BTreeMap<String, String>, at: &At, refusals: &mut Refusals) {
    for (key, value) in labels {
        pair(key, value, at, refusals);
    }
}

/// Labels of nodes that are selected.
pub(in crate::admission) fn node_selector(labels: &BTreeMap<String, String>, at: &At, refusals: &mut Refusals) {
    for key in labels.keys() {
        not_of_a_guest(key, at, refusals);
    }
    selector(labels, at, refusals);
}

/// The key of a label of nodes in an expression.
pub(super) fn node_label_key(key: &str, at: &At, refusals: &mut Refusals) {
    not_of_a_guest(key, at, refusals);
    label_key(key, at, refusals);
}

/// Refuses labels by which a pod stays where it is bound: a guest would follow another one, or hide from it, and the
/// labels come and go with pods.
fn not_of_a_guest(key: &str, at: &At, refusals: &mut Refusals) {
    if key.starts_with(GUEST) {
        refusals.not_allowed(at, key, format_args!("a label of nodes that is not below {GUEST}"));
    }
}

fn pair(key: &str, value: &str, at: &At, refusals: &mut Refusals) {
    if !label_keys::is_valid(key) {
        refusals.not_allowed(at, key, LABEL_KEY);
    }
    if !is_label_value(value) {
        refusals.not_allowed(&at.field(key), value, LABEL_VALUE);
    }
}

/// A label key.
pub(super) fn label_key(key: &str, at: &At, refusals: &mut Refusals) {
    if !label_keys::is_valid(key) {
        refusals.not_allowed(at, key, LABEL_KEY);
    }
}

/// A label value.
pub(super) fn label_value(value: &str, at: &At, refusals: &mut Refusals) {
    if !is_label_value(value) {
        refusals.not_allowed(at, value, LABEL_VALUE);
    }
}

/// The name of another object, of a kind that has names like DNS subdomains.
pub(in crate::admission) fn reference(name: &str, at: &At, refusals: &mut Refusals) {
    if !is_dns_subdomain(name) {
        refusals.not_allowed(at, name, DNS_SUBDOMAIN);
    }
}
