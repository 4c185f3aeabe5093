//! Names and labels, as Kubernetes accepts them.

use std::collections::BTreeMap;

use drydock_api::labels::GUEST;
use serde_json::Value;

use crate::{
    admission::{At, RefusalList, reserved::RESERVED_LABELS},
    label_keys,
};

/// Human-readable description of a DNS label.
pub(super) const DNS_LABEL: &str =
    "up to 63 lower case letters, digits and `-`, beginning and ending with a letter or digit";
/// Human-readable description of a DNS subdomain.
pub(super) const DNS_SUBDOMAIN: &str =
    "up to 253 lower case letters, digits, `-` and `.`, beginning and ending with a letter or digit";
const LABEL_KEY: &str = "an optional DNS subdomain and a slash, then up to 63 letters, digits, `-`, `_` and `.`";
const LABEL_VALUE: &str =
    "up to 63 letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit, or an empty value";

/// Returns whether the text is a DNS label (RFC 1123).
pub(in crate::admission) fn is_dns_label(text: &str) -> bool {
    text.len() <= 63
        && !text.starts_with('-')
        && !text.ends_with('-')
        && !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Returns whether the text is a DNS subdomain, as object names are. Kubernetes limits the whole length, not the
/// parts.
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

/// Returns whether the text is a port name (IANA service name): up to 15 lower case letters, digits and single `-`
/// inside, with at least one letter.
pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= 15 && is_dns_label(text) && !text.contains("--") && text.bytes().any(|b| b.is_ascii_lowercase())
}

/// Returns whether the text is a label value.
pub(in crate::admission) fn is_label_value(text: &str) -> bool {
    // A label value is the name part of a label key, or empty.
    text.is_empty() || (!text.contains('/') && label_keys::is_valid(text))
}

/// Checks the object's own name. The object's pods have the name as a label value, which is limited to 63 characters.
pub(super) fn of_object(raw: &Value, refusals: &mut RefusalList) {
    let Some(name) = raw.pointer("/metadata/name").and_then(Value::as_str) else {
        return;
    };
    if !is_label_value(name) {
        let allowed =
            "a name of at most 63 characters, because the name is also a label value of the virtual machine's pod";
        refusals.not_allowed(&At::root("metadata.name"), name, allowed);
    }
}

/// Checks the labels in user-written metadata.
pub(super) fn labels(metadata: Option<&Value>, at: &At, refusals: &mut RefusalList) {
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

/// Checks a map of labels.
pub(super) fn selector(labels: &BTreeMap<String, String>, at: &At, refusals: &mut RefusalList) {
    for (key, value) in labels {
        pair(key, value, at, refusals);
    }
}

/// Checks a node selector.
pub(in crate::admission) fn node_selector(labels: &BTreeMap<String, String>, at: &At, refusals: &mut RefusalList) {
    for key in labels.keys() {
        not_of_a_guest(key, at, refusals);
    }
    selector(labels, at, refusals);
}

/// Checks the key of a node label in an expression.
pub(super) fn node_label_key(key: &str, at: &At, refusals: &mut RefusalList) {
    not_of_a_guest(key, at, refusals);
    label_key(key, at, refusals);
}

/// Refuses Drydock's node labels that mark where a guest's pod is bound. A guest could use them to follow or avoid
/// another guest, and the labels change whenever a pod is bound or ends.
fn not_of_a_guest(key: &str, at: &At, refusals: &mut RefusalList) {
    if key.starts_with(GUEST) {
        refusals.not_allowed(at, key, format_args!("a node label that does not start with {GUEST}"));
    }
}

fn pair(key: &str, value: &str, at: &At, refusals: &mut RefusalList) {
    if !label_keys::is_valid(key) {
        refusals.not_allowed(at, key, LABEL_KEY);
    }
    if !is_label_value(value) {
        refusals.not_allowed(&at.field(key), value, LABEL_VALUE);
    }
}

/// Checks a label key.
pub(super) fn label_key(key: &str, at: &At, refusals: &mut RefusalList) {
    if !label_keys::is_valid(key) {
        refusals.not_allowed(at, key, LABEL_KEY);
    }
}

/// Checks a label value.
pub(super) fn label_value(value: &str, at: &At, refusals: &mut RefusalList) {
    if !is_label_value(value) {
        refusals.not_allowed(at, value, LABEL_VALUE);
    }
}

/// Checks the name of another object whose kind has DNS subdomains as names.
pub(in crate::admission) fn reference(name: &str, at: &At, refusals: &mut RefusalList) {
    if !is_dns_subdomain(name) {
        refusals.not_allowed(at, name, DNS_SUBDOMAIN);
    }
}
