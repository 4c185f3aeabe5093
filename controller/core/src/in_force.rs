//! Whether all nodes apply a configuration object.

use drydock_api::hypervisor::ConfigurationRecord;

use crate::{
    conditions::ConditionStatus,
    configuration::{NotInForce, Reference, default_model::ModelVerdict},
};

/// Maximum number of node names in a message.
const NAMED: usize = 5;

/// The condition `InForce` of one object, with its node counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Whether all nodes apply the current revision of the object.
    pub status: ConditionStatus,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message: on which nodes it is not in force, and why.
    pub message: String,
    /// Number of nodes that apply the current revision of the object.
    pub following: u32,
    /// Number of nodes with an agent.
    pub nodes: u32,
}

/// Computes the condition of the object `reference` of `kind` from the records of all nodes (`nodes`: name and
/// record).
pub fn judge<'a>(
    kind: &str,
    reference: &Reference,
    not_in_force: Option<&NotInForce>,
    namespaces: &[String],
    nodes: impl IntoIterator<Item = (&'a str, Option<&'a ConfigurationRecord>)>,
) -> InForce {
    let (mut count, mut following, mut behind, mut refused) = (0, 0, Vec::new(), Vec::new());
    for (node, record) in nodes {
        count += 1;
        let seen = record.and_then(|record| {
            record.objects.iter().find(|object| {
                object.kind == kind && object.namespace == reference.namespace && object.name == reference.name
            })
        });
        match seen {
            Some(object) if object.revision == reference.revision && object.refused.is_empty() => following += 1,
            Some(object) if object.revision == reference.revision => refused.push((node, object.refused.join("; "))),
            _ => behind.push(node),
        }
    }
    let (status, reason, message) = if let Some(why) = not_in_force {
        following = 0;
        (ConditionStatus::False, why.reason(), why.sentence(namespaces))
    } else if let Some((_, problems)) = refused.first() {
        let names: Vec<&str> = refused.iter().map(|(node, _)| *node).collect();
        let message = format!(
            "{problems} (refused on {}; the previous configuration stays in force on these nodes)",
            list(&names)
        );
        (ConditionStatus::False, "Refused", message)
    } else if count == 0 {
        (ConditionStatus::Unknown, "NoNodes", "no node has an agent yet".into())
    } else if behind.is_empty() {
        (
            ConditionStatus::True,
            "InForce",
            format!("all {count} nodes apply this configuration"),
        )
    } else {
        (
            ConditionStatus::False,
            "NotOnAllNodes",
            format!(
                "{following} of {count} nodes apply this configuration; not yet applied on {}",
                list(&behind)
            ),
        )
    };
    InForce {
        status,
        reason,
        message,
        following,
        nodes: count,
    }
}

impl InForce {
    /// Returns the condition adjusted for a refused default CPU model. Nodes apply the rest of the object.
    #[must_use]
    pub fn with_default_model(mut self, verdict: Option<&ModelVerdict>) -> Self {
        if let Some(verdict) = verdict.filter(|verdict| !verdict.accepted)
            && self.status != ConditionStatus::False
        {
            self.status = ConditionStatus::False;
            self.reason = "Refused";
            self.message.clone_from(&verdict.message);
        }
        self
    }
}

fn list(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.sort_unstable();
    let shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMED).filter(|more| *more > 0) {
        Some(more) => format!("{shown} and {more} more"),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::hypervisor::ConfigurationObject;

    use super::*;

    type Row<'a> = (
        &'a str,
        Option<&'a NotInForce>,
        Vec<(&'a str, Option<&'a ConfigurationRecord>)>,
    );

    fn record(revision: &str, refused: &[&str]) -> ConfigurationRecord {
        ConfigurationRecord {
            objects: vec![ConfigurationObject {
                kind: "HyperConverged".into(),
                namespace: "drydock".into(),
                name: "hc".into(),
                revision: revision.into(),
                refused: refused.iter().map(|&text| text.into()).collect(),
            }],
            ..ConfigurationRecord::default()
        }
    }

    #[test]
    fn the_table_of_in_force() {
        let reference = Reference {
            namespace: "drydock".into(),
            name: "hc".into(),
            revision: "2".into(),
        };
        let (now, old, bad) = (
            record("2", &[]),
            record("1", &[]),
            record("2", &["spec.x: `1` is not allowed; allowed: 2"]),
        );
        let superseded = NotInForce::Superseded("drydock/other".into());
        let rows: [Row<'_>; 6] = [
            ("no nodes", None, vec![]),
            ("all", None, vec![("a", Some(&now)), ("b", Some(&now))]),
            (
                "one behind, one unresponsive",
                None,
                vec![("a", Some(&now)), ("b", Some(&old)), ("c", None)],
            ),
            ("refused", None, vec![("a", Some(&bad)), ("b", Some(&now))]),
            (
                "many behind",
                None,
                vec![
                    ("g", None),
                    ("f", None),
                    ("e", None),
                    ("d", None),
                    ("c", None),
                    ("b", None),
                    ("a", None),
                ],
            ),
            ("superseded", Some(&superseded), vec![("a", Some(&now))]),
        ];
        let verdict = |accepted| ModelVerdict {
            accepted,
            status: ConditionStatus::False,
            reason: "CPUModelUnknown",
            message: "spec.defaultCPUModel: `x`".into(),
        };
        let whole = || judge("HyperConverged", &reference, None, &[], [("a", Some(&now))]);
        let refused = whole().with_default_model(Some(&verdict(false)));
        assert_eq!(
            (
                refused.status,
                refused.reason,
                refused.message.as_str(),
                refused.following
            ),
            (ConditionStatus::False, "Refused", "spec.defaultCPUModel: `x`", 1)
        );
        assert_eq!(whole().with_default_model(Some(&verdict(true))), whole());
        assert_eq!(whole().with_default_model(None), whole());
        let text: Vec<String> = rows
            .into_iter()
            .map(|(name, why, nodes)| {
                let found = judge("HyperConverged", &reference, why, &[], nodes);
                format!(
                    "{name}: {} {} {}/{} {}",
                    found.status.as_str(),
                    found.reason,
                    found.following,
                    found.nodes,
                    found.message
                )
            })
            .collect();
        insta::assert_snapshot!(text.join("\n"), @r"
        no nodes: Unknown NoNodes 0/0 no node has an agent yet
        all: True InForce 2/2 all 2 nodes apply this configuration
        one behind, one unresponsive: False NotOnAllNodes 1/3 1 of 3 nodes apply this configuration; not yet applied on b, c
        refused: False Refused 1/2 spec.x: `1` is not allowed; allowed: 2 (refused on a; the previous configuration stays in force on these nodes)
        many behind: False NotOnAllNodes 0/7 0 of 7 nodes apply this configuration; not yet applied on a, b, c, d, e and 2 more
        superseded: False Superseded 0/1 drydock/other takes precedence and is in force
        ");
    }
}
