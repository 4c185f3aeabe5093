//! Topology spread constraints that prevent scheduling.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use super::{Neighbor, Newcomer, terms::add_own_labels};
use crate::{
    label_selector::Selector,
    placement::{NodeView, fit::is_tolerated, misfit::Misfit},
};

/// A constraint, and the number of matching pods in each domain.
#[derive(Clone, Debug)]
pub(super) struct SpreadConstraint {
    key: String,
    max_skew: u64,
    matches_newcomer: bool,
    /// Number of matching pods by domain.
    domains: BTreeMap<String, u64>,
    /// The least number of matching pods in a domain.
    least: u64,
}

/// Returns whether the scheduler enforces a constraint instead of preferring it. `DoNotSchedule` is the default.
pub(super) fn is_required(constraint: &TopologySpreadConstraint) -> bool {
    constraint.when_unsatisfiable != "ScheduleAnyway"
}

impl SpreadConstraint {
    /// Counts the pods that match a constraint of a pod that is to be placed. `for_each` calls its argument with each
    /// pod of the new pod's namespace.
    pub(super) fn count(
        constraint: &TopologySpreadConstraint,
        newcomer: &Newcomer<'_>,
        nodes: &[NodeView<'_>],
        for_each: impl FnOnce(&mut dyn FnMut(&Neighbor)),
    ) -> Self {
        let selector = constraint.label_selector.clone().map(|mut selector| {
            let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
            add_own_labels(&mut selector, keys, "In", newcomer.labels);
            selector
        });
        // Without a selector no pod matches.
        let selector = selector.as_ref().and_then(|selector| Selector::new(selector).ok());
        let counted = counted(constraint, newcomer, nodes);
        let mut domains: BTreeMap<&str, u64> = counted.values().map(|domain| (*domain, 0)).collect();
        for_each(&mut |pod| {
            let selects = || {
                let matches = |selector: &Selector<'_>| selector.matches_values(|key| pod.labels.get(key));
                !pod.is_deleted && selector.as_ref().is_some_and(matches)
            };
            let domain = counted.get(&*pod.node).filter(|_| selects());
            if let Some(count) = domain.and_then(|domain| domains.get_mut(domain)) {
                *count = count.saturating_add(1);
            }
        });
        let min_domains = constraint.min_domains.and_then(|count| usize::try_from(count).ok());
        let least = domains.values().min().copied().unwrap_or(0);
        Self {
            key: constraint.topology_key.clone(),
            max_skew: u64::try_from(constraint.max_skew).unwrap_or(0),
            matches_newcomer: selector.is_some_and(|selector| selector.matches(Some(newcomer.labels))),
            least: if domains.len() < min_domains.unwrap_or(1) {
                0
            } else {
                least
            },
            domains: domains
                .into_iter()
                .map(|(domain, count)| (domain.to_owned(), count))
                .collect(),
        }
    }

    /// Returns the misfit of a node that would make the difference between domains too large.
    pub(super) fn misfit(&self, node: &NodeView<'_>) -> Option<Misfit> {
        let Some(domain) = node.label(&self.key) else {
            return Some(Misfit::Label(self.key.clone()));
        };
        let here = self.domains.get(domain).copied().unwrap_or(0);
        let after = here.saturating_add(u64::from(self.matches_newcomer));
        (after.saturating_sub(self.least) > self.max_skew).then(|| Misfit::Skewed {
            key: self.key.clone(),
            max_skew: self.max_skew,
        })
    }
}

/// Returns the domain of each node that a constraint counts: those that have all of the pod's topology keys and obey
/// the constraint's policies.
fn counted<'n>(
    constraint: &TopologySpreadConstraint,
    newcomer: &Newcomer<'_>,
    nodes: &'n [NodeView<'_>],
) -> HashMap<&'n str, &'n str> {
    let ignores_affinity = constraint.node_affinity_policy.as_deref() == Some("Ignore");
    let honors_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
    let required = || {
        newcomer
            .spec
            .topology_spread_constraints
            .iter()
            .filter(|other| is_required(other))
    };
    let counts = |node: &&NodeView<'_>| {
        required().all(|other| node.label(&other.topology_key).is_some())
            && (ignores_affinity || newcomer.selects(node))
            && (!honors_taints || is_tolerated(newcomer.spec, node))
    };
    let counted = nodes.iter().filter(counts);
    counted
        .filter_map(|node| Some((node.name, node.label(&constraint.topology_key)?)))
        .collect()
}
