//! Whether a change of an object may end a refusal by the API server, which can come from any rule of the cluster.
//!
//! | change | prospect |
//! |---|---|
//! | a quota is deleted, or its limits change | another rule |
//! | less of a quota is used, or it is seen for the first time | more room |
//! | more of a quota is used | none |
//! | the labels of a namespace change | another rule |
//! | a namespace is seen for the first time | more room |
//! | a limit range, a priority class, a policy or a webhook is changed or deleted | another rule |
//! | a limit range, a priority class, a policy or a webhook is seen for the first time | more room |
//!
//! An object that is seen for the first time may have changed between the refusal and the start of its watch.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Namespace, ResourceQuota, ResourceQuotaSpec},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::quantity;

/// The prospect that a change ends a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prospect {
    /// The change ends no refusal.
    None,
    /// The same rules may admit more than before. Such changes are frequent.
    MoreRoom,
    /// The rules themselves have changed.
    OtherRules,
}

/// Returns the prospect of a change of a quota. The API server enforces the limits in the quota's status.
pub fn of_quota(old: Option<&ResourceQuota>, new: Option<&ResourceQuota>) -> Prospect {
    let (old, new) = match (old, new) {
        (_, None) => return Prospect::OtherRules,
        (None, Some(_)) => return Prospect::MoreRoom,
        (Some(old), Some(new)) => (old, new),
    };
    let enforced = |quota: &ResourceQuota| quota.status.as_ref().and_then(|status| status.hard.clone());
    let scope = |quota: &ResourceQuota| {
        let ResourceQuotaSpec {
            hard,
            scopes,
            scope_selector,
        } = quota.spec.clone().unwrap_or_default();
        (hard, scopes, scope_selector)
    };
    if enforced(old) != enforced(new) || scope(old) != scope(new) {
        return Prospect::OtherRules;
    }
    let none = BTreeMap::new();
    let used = |quota: &ResourceQuota| {
        let used = quota.status.as_ref().and_then(|status| status.used.clone());
        used.unwrap_or_else(|| none.clone())
    };
    let (before, after) = (used(old), used(new));
    let has_sunk = before.iter().any(|(resource, before)| {
        let after = after.get(resource).map(amount);
        after.is_none_or(|after| after < amount(before))
    });
    if has_sunk { Prospect::MoreRoom } else { Prospect::None }
}

/// Returns the prospect of a change of a namespace: its labels select the Pod Security level, policies and webhooks.
pub fn of_namespace(old: Option<&Namespace>, new: Option<&Namespace>) -> Prospect {
    match (old, new) {
        (_, None) => Prospect::None,
        (None, Some(_)) => Prospect::MoreRoom,
        (Some(old), Some(new)) if old.metadata.labels == new.metadata.labels => Prospect::None,
        (Some(_), Some(_)) => Prospect::OtherRules,
    }
}

/// Returns the prospect of a change of another object that decides about admission.
pub fn of_rule<K>(old: Option<&K>, _new: Option<&K>) -> Prospect {
    // An object that is seen for the first time may have changed just before.
    if old.is_some() {
        Prospect::OtherRules
    } else {
        Prospect::MoreRoom
    }
}

/// Returns an amount in thousandths; 0 if it cannot be parsed.
fn amount(quantity: &Quantity) -> u64 {
    quantity::milli_cpus(&quantity.0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn quota(limits: &Value, enforced: &Value, used: &Value) -> ResourceQuota {
        serde_json::from_value(json!({
            "metadata": {"name": "q", "namespace": "shop"},
            "spec": {"hard": limits}, "status": {"hard": enforced, "used": used},
        }))
        .unwrap()
    }

    #[test]
    fn quota_change_ends_refusals_only_if_more_is_admitted() {
        let (four, five) = (
            json!({"pods": "4", "memory": "1Gi"}),
            json!({"pods": "5", "memory": "1Gi"}),
        );
        let used = json!({"pods": "4", "memory": "900Mi"});
        let full = quota(&four, &four, &used);
        for (what, old, new, expected) in [
            ("first seen", None, Some(full.clone()), Prospect::MoreRoom),
            ("deleted", Some(full.clone()), None, Prospect::OtherRules),
            ("unchanged", Some(full.clone()), Some(full.clone()), Prospect::None),
            (
                "another limit, not yet enforced",
                Some(full.clone()),
                Some(quota(&five, &four, &used)),
                Prospect::OtherRules,
            ),
            (
                "another limit, now enforced",
                Some(quota(&five, &four, &used)),
                Some(quota(&five, &five, &used)),
                Prospect::OtherRules,
            ),
            (
                "less used",
                Some(full.clone()),
                Some(quota(&four, &four, &json!({"pods": "3", "memory": "900Mi"}))),
                Prospect::MoreRoom,
            ),
            (
                "less used of one, more of another, in other units",
                Some(full.clone()),
                Some(quota(&four, &four, &json!({"pods": "5", "memory": "921599Ki"}))),
                Prospect::MoreRoom,
            ),
            (
                "more used",
                Some(full.clone()),
                Some(quota(&four, &four, &json!({"pods": "4", "memory": "0.9Gi"}))),
                Prospect::None,
            ),
        ] {
            assert_eq!(of_quota(old.as_ref(), new.as_ref()), expected, "{what}");
        }
    }

    #[test]
    fn change_of_namespace_ends_refusals_if_labels_change() {
        let namespace = |level: &str, note: &str| -> Namespace {
            let labels = json!({"pod-security.kubernetes.io/enforce": level});
            serde_json::from_value(
                json!({"metadata": {"name": "shop", "labels": labels, "annotations": {"note": note}}}),
            )
            .unwrap()
        };
        let restricted = namespace("restricted", "");
        for (old, new, expected) in [
            (None, Some(restricted.clone()), Prospect::MoreRoom),
            (
                Some(restricted.clone()),
                Some(namespace("restricted", "x")),
                Prospect::None,
            ),
            (
                Some(restricted.clone()),
                Some(namespace("privileged", "")),
                Prospect::OtherRules,
            ),
            (Some(restricted), None, Prospect::None),
        ] {
            assert_eq!(of_namespace(old.as_ref(), new.as_ref()), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn change_of_another_rule_ends_refusals() {
        assert_eq!(of_rule(Some(&1), Some(&2)), Prospect::OtherRules);
        assert_eq!(of_rule(Some(&1), None), Prospect::OtherRules);
        assert_eq!(of_rule(None, Some(&1)), Prospect::MoreRoom);
    }
}
