//! Checks of the user's rights.

use super::{Finding, Rule, RuleContext};

/// Rights that a user needs to start, stop and follow the maintenance of a node.
pub const NEEDED: [(&str, &str, &str); 4] = [
    ("create", "nodemaintenances", "nodemaintenance.medik8s.io"),
    ("delete", "nodemaintenances", "nodemaintenance.medik8s.io"),
    ("watch", "nodemaintenances", "nodemaintenance.medik8s.io"),
    ("watch", "hypervisors", "drydock.dev"),
];

pub(super) const RULES: &[Rule] = &[Rule {
    name: "you may put nodes into maintenance",
    needs: &["selfsubjectaccessreviews"],
    find: maintenance,
}];

fn maintenance(context: &RuleContext<'_>) -> Vec<Finding> {
    let missing = context.survey.rights.iter().filter(|right| !right.allowed);
    let missing: Vec<String> = missing
        .map(|right| format!("{} {}.{}", right.verb, right.resource, right.group))
        .collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let message = format!("missing rights: {}", missing.join(", "));
    vec![Finding::warning(message).helps_by(
        "have an administrator who may bind roles grant the rights that you need",
        "kubectl create clusterrolebinding NAME --clusterrole=drydock-maintenance-editor --user=YOU",
    )]
}
