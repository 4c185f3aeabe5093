//! Removal of Drydock, and protection against removal while it is in use.
//!
//! Deleting the definition of a kind deletes its objects, and without the controller their finalizers are never
//! removed. So while there are virtual machines, the API server refuses to delete Drydock's parts:
//!
//! ```text
//!  DELETE of a part ─▶ webhook drydock-removal ─▶ verdict: in use? ─▶ refused, with the remaining objects and the order
//! ```
//!
//! - [`verdict`]: whether a part may be deleted.
//! - [`webhook`]: the webhook configuration through which the API server calls the controller.
//! - [`node_removal`], [`progress`]: the parts of a node that are removed, and the progress of that.

pub mod node_removal;
pub mod progress;
pub mod webhook;

use std::fmt::Write;

/// Maximum number of names of a kind in a refusal.
const NAMED: usize = 3;
/// The page that describes the order of the removal.
const PAGE: &str = "deploy/docs/uninstall.md";

/// Users under which Kubernetes carries out deletions that follow from an already admitted one: of the contents of a
/// namespace and of dependent objects.
const CARRIED_OUT_BY: [&str; 3] = [
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:kube-controller-manager",
];

/// Remaining objects of one kind that need Drydock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemainingObjects {
    /// The kind, such as `VirtualMachine`.
    pub kind: &'static str,
    /// Number of objects; `None` if not known yet.
    pub count: Option<usize>,
    /// Names of all or of some of the objects, as `namespace/name`.
    pub names: Vec<String>,
}

impl RemainingObjects {
    /// Returns the objects of a kind with these names.
    pub fn all(kind: &'static str, names: Vec<String>) -> Self {
        Self {
            kind,
            count: Some(names.len()),
            names,
        }
    }
}

/// A deletion for which the API server has called the webhook.
#[derive(Clone, Copy, Debug)]
pub struct ReviewedDeletion<'a> {
    /// The requesting user.
    pub user: &'a str,
    /// The object to delete, such as `Deployment drydock/drydock-controller`.
    pub part: &'a str,
    /// Whether the part has the annotation [`CONFIRM`](drydock_api::removal::CONFIRM) with the value `true`.
    pub confirmed: bool,
}

/// Whether a part of Drydock may be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalVerdict {
    /// The part may be deleted.
    Allowed,
    /// Objects need Drydock; the sentence lists them and describes the order of the removal.
    InUse(String),
    /// It is not known yet whether objects need Drydock; the sentence names the kind.
    Unknown(String),
}

/// Returns whether a part may be deleted while these objects are left.
pub fn verdict(deletion: ReviewedDeletion<'_>, left: &[RemainingObjects]) -> RemovalVerdict {
    if deletion.confirmed || CARRIED_OUT_BY.contains(&deletion.user) {
        return RemovalVerdict::Allowed;
    }
    if let Some(what) = in_use(left) {
        let part = deletion.part;
        return RemovalVerdict::InUse(format!(
            "{part} is needed by {what}. Delete these objects first and wait until they no longer exist, then remove \
             Drydock in the order described in {PAGE}. `kubectl apply -k deploy` restores the parts that have already \
             been deleted. The annotation {}=true on {part} allows this deletion anyway",
            drydock_api::removal::CONFIRM
        ));
    }
    let unknown = left.iter().find(|left| left.count.is_none());
    unknown.map_or(RemovalVerdict::Allowed, |unknown| {
        RemovalVerdict::Unknown(format!(
            "Drydock's controller cannot determine yet whether any {} exists: try again in a few seconds",
            unknown.kind
        ))
    })
}

/// Returns the remaining objects, such as `2 VirtualMachines (default/a, default/b)`; `None` if nothing is known to be left.
pub fn in_use(left: &[RemainingObjects]) -> Option<String> {
    let mut phrase = String::new();
    for RemainingObjects { kind, count, names } in left {
        let count = count.unwrap_or(names.len());
        if count == 0 {
            continue;
        }
        let mut names = names.clone();
        names.sort();
        names.truncate(NAMED);
        let separator = if phrase.is_empty() { "" } else { ", " };
        let plural = if count == 1 { "" } else { "s" };
        let rest = match count.saturating_sub(names.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        // Writing to a String cannot fail.
        let _ = write!(phrase, "{separator}{count} {kind}{plural} ({}{rest})", names.join(", "));
    }
    (!phrase.is_empty()).then_some(phrase)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: &str = "Namespace drydock";

    fn left(kind: &'static str, names: &[&str]) -> RemainingObjects {
        RemainingObjects::all(kind, names.iter().map(ToString::to_string).collect())
    }

    fn by(user: &str) -> ReviewedDeletion<'_> {
        ReviewedDeletion {
            user,
            part: PART,
            confirmed: false,
        }
    }

    #[test]
    fn part_is_deleted_only_when_unneeded() {
        let unknown = RemainingObjects {
            kind: "VirtualMachine",
            count: None,
            names: Vec::new(),
        };
        let (none, one) = (left("VirtualMachine", &[]), left("VirtualMachine", &["default/web"]));
        let instances = left("VirtualMachineInstance", &["b/2", "a/1", "d/4", "c/3", "e/5"]);
        for (name, left, expected) in [
            ("nothing is listed", vec![], None),
            ("none is left", vec![none.clone()], None),
            (
                "one is left",
                vec![one.clone()],
                Some("needed by 1 VirtualMachine (default/web). Delete"),
            ),
            (
                "two kinds are left",
                vec![one.clone(), none.clone(), instances],
                Some(
                    "needed by 1 VirtualMachine (default/web), 5 VirtualMachineInstances (a/1, b/2, c/3 and 2 more). Delete",
                ),
            ),
            (
                "one is left beside a kind that is not known",
                vec![unknown.clone(), one],
                Some("needed by 1 VirtualMachine (default/web). Delete"),
            ),
            ("a kind is not known", vec![none, unknown], Some("try again")),
        ] {
            let (message, in_use) = match verdict(by("admin"), &left) {
                RemovalVerdict::Allowed => (None, false),
                RemovalVerdict::InUse(message) => (Some(message), true),
                RemovalVerdict::Unknown(message) => (Some(message), false),
            };
            assert_eq!(message.is_some(), expected.is_some(), "{name}");
            if let (Some(message), Some(expected)) = (message, expected) {
                assert!(message.contains(expected), "{name}: {message}");
                assert_eq!(
                    in_use,
                    message.starts_with("Namespace drydock is needed"),
                    "{name}: {message}"
                );
            }
        }
    }

    #[test]
    fn confirmed_and_carried_out_deletions_are_allowed() {
        let machines = [left("VirtualMachine", &["default/web"])];
        let confirmed = ReviewedDeletion {
            confirmed: true,
            ..by("admin")
        };
        assert_eq!(verdict(confirmed, &machines), RemovalVerdict::Allowed);
        for (user, allowed) in [
            ("system:serviceaccount:kube-system:namespace-controller", true),
            ("system:serviceaccount:kube-system:generic-garbage-collector", true),
            ("system:kube-controller-manager", true),
            ("system:serviceaccount:default:namespace-controller", false),
            ("system:admin", false),
        ] {
            assert_eq!(
                verdict(by(user), &machines) == RemovalVerdict::Allowed,
                allowed,
                "{user}"
            );
        }
    }

    #[test]
    fn removal_refusal_names_the_confirming_annotation() {
        let RemovalVerdict::InUse(message) = verdict(by("admin"), &[left("VirtualMachine", &["default/web"])]) else {
            panic!("a machine is left")
        };
        assert!(
            message.contains("drydock.dev/confirm-removal=true on Namespace drydock"),
            "{message}"
        );
        assert!(message.contains(PAGE), "{message}");
    }
}
