//! Requirements on a pod's node that depend on other pods: required pod affinity and anti-affinity, and topology
//! spread.
//!
//! ```text
//!  all unfinished pods ─▶ Neighbors.set ────┐
//!  pods that are about to move ─▶ PodMoves ─┼▶ Neighbors::rules() ─▶ Rules ─▶ misfits of each node
//!  a pod to be placed, all nodes ───────────┘
//! ```
//!
//! The rules are those of the scheduler (kube-scheduler 1.35, plugins `InterPodAffinity` and `PodTopologySpread`). The
//! domain of a node is its value of the label `topologyKey`.
//!
//! | rule | a node does not fit if |
//! |---|---|
//! | affinity | it has no domain, or its domain has no pod that matches all terms; unless no pod anywhere matches them, and the pod itself does |
//! | anti-affinity | its domain has a pod that matches a term |
//! | anti-affinity of another pod | the domain is that of the other pod, and a term of the other pod matches |
//! | spread (`DoNotSchedule`) | it has no domain, or the domain would have more than `maxSkew` pods more than the least domain |
//!
//! - A guest's own source pod counts like any other: its target pod is scheduled beside it.
//! - Pods that are being deleted count for affinity, but not for spread.
//! - A term that selects namespaces by labels other than their name is not evaluated: no node fails it.
//! - Preferences only order nodes and prevent nothing.

mod sorted_labels;
mod spread;
mod terms;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    sync::Arc,
};

use drydock_api::kubevirt::{VirtualMachineInstanceSpec, names::CREATED_BY};
use k8s_openapi::{
    api::core::v1::{Affinity, Pod, PodAffinityTerm, PodAntiAffinity},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

use super::{NodeView, Requirements, fit::is_selected, misfit::Misfit};
use crate::pod_state::node_of;
use sorted_labels::{Names, SortedLabels};
use spread::SpreadConstraint;
use terms::{AffinityTerm, own_terms};

/// Namespace and name of a pod.
pub type PodName = (String, String);

/// A pod that another pod may have to be near to, or apart from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Neighbor {
    node: Arc<str>,
    labels: SortedLabels,
    is_deleted: bool,
}

/// The pods that are bound to nodes.
#[derive(Clone, Debug, Default)]
pub struct Neighbors {
    /// The pods, by namespace and name.
    pods: HashMap<Arc<str>, HashMap<Box<str>, Neighbor>>,
    /// Required anti-affinity terms of the pods that have any, by namespace and name.
    apart: HashMap<Arc<str>, HashMap<Box<str>, Vec<PodAffinityTerm>>>,
    names: Names,
}

/// A launcher pod that is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Labels of the pod.
    pub labels: &'a BTreeMap<String, String>,
    /// The instance's spec, with the affinity, the spread constraints and the tolerations of the pod.
    pub spec: &'a VirtualMachineInstanceSpec,
    /// The pod's requirements on a node.
    pub needs: &'a Requirements,
    /// Nodes that the pod excludes in addition.
    pub excluded: &'a [String],
}

/// Differences between the pods that are bound now and the pods that are expected to be.
#[derive(Clone, Debug, Default)]
pub struct PodMoves {
    /// Pods that will have left their nodes.
    left: HashSet<PodName>,
    /// Pods that will have been bound.
    arrived: Vec<Arrived>,
}

#[derive(Clone, Debug)]
struct Arrived {
    name: PodName,
    pod: Neighbor,
    apart: Vec<PodAffinityTerm>,
}

/// The requirements on the node of one pod that depend on other pods.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    near: Vec<Near>,
    /// By topology key and domain, a pod that must not have the new pod in its domain.
    apart: BTreeMap<(String, String), PodName>,
    spread: Vec<SpreadConstraint>,
}

/// A term of affinity.
#[derive(Clone, Debug)]
struct Near {
    key: String,
    /// The term's selector as text.
    selector: String,
    /// The domains with a matching pod; `None` if any domain is suitable.
    domains: Option<BTreeSet<String>>,
}

impl Neighbors {
    /// Records the present state of a pod. Returns whether anything has changed. A pod that is unbound or finished does
    /// not count.
    pub fn set(&mut self, pod: &Pod) -> bool {
        let (namespace, name) = name_of(&pod.metadata);
        let Some(node) = node_of(pod) else {
            return self.remove(&namespace, &name);
        };
        let neighbor = Neighbor {
            node: self.names.share(node),
            labels: self.names.labels(pod.metadata.labels.as_ref()),
            is_deleted: pod.metadata.deletion_timestamp.is_some(),
        };
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        let terms = required_apart(affinity).to_vec();
        let shared: Arc<str> = self.names.share(&namespace);
        let apart = self.apart.entry(Arc::clone(&shared)).or_default();
        let old_terms = if terms.is_empty() {
            apart.remove(name.as_str())
        } else {
            apart.insert(name.as_str().into(), terms.clone())
        };
        if apart.is_empty() {
            self.apart.remove(namespace.as_str());
        }
        let old = self
            .pods
            .entry(shared)
            .or_default()
            .insert(name.into(), neighbor.clone());
        let is_new = old.as_ref() != Some(&neighbor) || old_terms.unwrap_or_default() != terms;
        drop((old, neighbor));
        self.names.forget_unused();
        is_new
    }

    /// Removes a pod. Returns whether the pod was recorded.
    pub fn remove(&mut self, namespace: &str, name: &str) -> bool {
        fn take<T>(all: &mut HashMap<Arc<str>, HashMap<Box<str>, T>>, namespace: &str, name: &str) -> bool {
            let Some(inside) = all.get_mut(namespace) else {
                return false;
            };
            let was_there = inside.remove(name).is_some();
            if inside.is_empty() {
                all.remove(namespace);
            }
            was_there
        }
        take(&mut self.apart, namespace, name);
        let was_there = take(&mut self.pods, namespace, name);
        self.names.forget_unused();
        was_there
    }

    /// Returns the rules that the pods, after these moves, impose on the node of a new pod. `nodes` returns all nodes;
    /// it is called only if there is such a rule.
    pub fn rules<'n>(
        &self,
        newcomer: &Newcomer<'_>,
        moves: &PodMoves,
        nodes: impl FnOnce() -> Cow<'n, [NodeView<'n>]>,
    ) -> Rules {
        let affinity = newcomer.spec.affinity.as_ref();
        let near = affinity
            .and_then(|affinity| affinity.pod_affinity.as_ref())
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_deref());
        let near = own_terms(near.unwrap_or_default(), newcomer);
        let apart = own_terms(required_apart(affinity), newcomer);
        let spread = newcomer.spec.topology_spread_constraints.iter();
        let spread: Vec<_> = spread.filter(|constraint| spread::is_required(constraint)).collect();
        let guards = self.guards(newcomer, moves);
        if near.is_empty() && apart.is_empty() && spread.is_empty() && guards.is_empty() {
            return Rules::default();
        }
        let nodes = nodes();
        let domains = Domains::new(&nodes);
        let mut rules = Rules::default();
        for (key, node, pod) in guards {
            if let Some(domain) = domains.of(&node, &key) {
                rules.apart.entry((key.clone(), domain.to_owned())).or_insert(pod);
            }
        }
        self.add_apart(&mut rules, &apart, newcomer.namespace, moves, &domains);
        rules.near = self.near(&near, newcomer, moves, &domains);
        rules.spread = spread
            .into_iter()
            .map(|constraint| {
                SpreadConstraint::count(constraint, newcomer, &nodes, |count| {
                    self.for_each(Some(newcomer.namespace), moves, |_, pod| count(pod));
                })
            })
            .collect();
        rules
    }

    /// Calls `visit` with each pod that will be in a namespace, or in any namespace.
    fn for_each(&self, namespace: Option<&str>, moves: &PodMoves, mut visit: impl FnMut((&str, &str), &Neighbor)) {
        let all = self
            .pods
            .iter()
            .filter(|(in_namespace, _)| namespace.is_none_or(|one| ***in_namespace == *one));
        for (in_namespace, pods) in all {
            for (name, pod) in pods {
                if !moves.migrated_away(in_namespace, name) {
                    visit((in_namespace, name), pod);
                }
            }
        }
        for arrived in &moves.arrived {
            let (in_namespace, name) = &arrived.name;
            if namespace.is_none_or(|one| in_namespace == one) {
                visit((in_namespace, name), &arrived.pod);
            }
        }
    }

    /// Returns the pods that keep the new pod out of their domains: topology key, node, name.
    fn guards(&self, newcomer: &Newcomer<'_>, moves: &PodMoves) -> Vec<(String, String, PodName)> {
        let mut guards = Vec::new();
        let mut add = |(namespace, name): (&str, &str), terms: &[PodAffinityTerm], node: &str| {
            for found in terms {
                if AffinityTerm::new(found).matches_newcomer(namespace, newcomer) {
                    let pod = (namespace.to_owned(), name.to_owned());
                    guards.push((found.topology_key.clone(), node.to_owned(), pod));
                }
            }
        };
        for (namespace, pods) in &self.apart {
            for (name, terms) in pods {
                let pod = self.pods.get(namespace).and_then(|pods| pods.get(name));
                if let Some(pod) = pod.filter(|_| !moves.migrated_away(namespace, name)) {
                    add((namespace, name), terms, &pod.node);
                }
            }
        }
        for arrived in &moves.arrived {
            let (namespace, name) = &arrived.name;
            add((namespace, name), &arrived.apart, &arrived.pod.node);
        }
        guards.sort_unstable();
        guards
    }

    /// Adds the domains with a pod that matches one of the new pod's terms of anti-affinity.
    fn add_apart(
        &self,
        rules: &mut Rules,
        terms: &[AffinityTerm<'_>],
        own: &str,
        moves: &PodMoves,
        domains: &Domains<'_>,
    ) {
        for term in terms {
            self.for_each(term.only_namespace(own), moves, |(namespace, name), pod| {
                if !term.matches(own, namespace, |key| pod.labels.get(key)) {
                    return;
                }
                let Some(domain) = domains.of(&pod.node, term.key()) else {
                    return;
                };
                let name = (namespace.to_owned(), name.to_owned());
                let known = rules.apart.entry((term.key().to_owned(), domain.to_owned()));
                // The least name is used, so that the message does not depend on the order of a hash map.
                known
                    .and_modify(|other| *other = name.clone().min(mem::take(other)))
                    .or_insert(name);
            });
        }
    }

    /// Returns the domains of each term of affinity.
    fn near(
        &self,
        terms: &[AffinityTerm<'_>],
        newcomer: &Newcomer<'_>,
        moves: &PodMoves,
        domains: &Domains<'_>,
    ) -> Vec<Near> {
        let own = newcomer.namespace;
        let Some(first) = terms.first() else {
            return Vec::new();
        };
        // A term that cannot be evaluated might match any pod.
        if terms.iter().any(|term| !term.is_known()) {
            return Vec::new();
        }
        let mut found = vec![BTreeSet::new(); terms.len()];
        self.for_each(first.only_namespace(own), moves, |(namespace, _), pod| {
            if !terms
                .iter()
                .all(|term| term.matches(own, namespace, |key| pod.labels.get(key)))
            {
                return;
            }
            for (term, found) in terms.iter().zip(&mut found) {
                found.extend(domains.of(&pod.node, term.key()).map(str::to_owned));
            }
        });
        let is_first =
            found.iter().all(BTreeSet::is_empty) && terms.iter().all(|term| term.matches_newcomer(own, newcomer));
        let near = terms.iter().zip(found).map(|(term, found)| Near {
            key: term.key().to_owned(),
            selector: term.to_string(),
            domains: (!is_first).then_some(found),
        });
        near.collect()
    }
}

impl PodMoves {
    /// Records that a pod will have left its node.
    pub fn leave(&mut self, pod: PodName) {
        self.left.insert(pod);
    }

    /// Records that a pod will have been bound to a node.
    pub fn arrive(&mut self, name: PodName, newcomer: &Newcomer<'_>, node: &str) {
        self.arrived.push(Arrived {
            pod: Neighbor {
                node: node.into(),
                labels: Names::default().labels(Some(newcomer.labels)),
                is_deleted: false,
            },
            apart: required_apart(newcomer.spec.affinity.as_ref()).to_vec(),
            name,
        });
    }

    fn migrated_away(&self, namespace: &str, name: &str) -> bool {
        // Most evaluations have no moves: then no key is built.
        !self.left.is_empty() && self.left.contains(&(namespace.to_owned(), name.to_owned()))
    }
}

impl Newcomer<'_> {
    /// Returns whether a node matches the pod's node selector and required node affinity.
    fn selects(&self, node: &NodeView<'_>) -> bool {
        let is_excluded = self.excluded.iter().any(|name| name == node.name);
        !is_excluded && is_selected(self.needs, self.spec, node)
    }
}

impl Rules {
    /// Adds the misfits of a node because of other pods.
    pub(super) fn add_misfits(&self, node: &NodeView<'_>, found: &mut BTreeSet<Misfit>) {
        for near in &self.near {
            let domain = node.label(&near.key);
            let is_near = match &near.domains {
                Some(domains) => domain.is_some_and(|domain| domains.contains(domain)),
                None => domain.is_some(),
            };
            if !is_near {
                found.insert(Misfit::NotNear {
                    selector: near.selector.clone(),
                    key: near.key.clone(),
                });
            }
        }
        for ((key, domain), (namespace, name)) in &self.apart {
            if node.label(key) == Some(domain) {
                found.insert(Misfit::NotApart {
                    key: key.clone(),
                    pod: format!("{namespace}/{name}"),
                });
            }
        }
        found.extend(self.spread.iter().filter_map(|spread| spread.misfit(node)));
    }

    /// Returns whether no other pod rules out a node.
    pub fn admit(&self, node: &NodeView<'_>) -> bool {
        let mut found = BTreeSet::new();
        self.add_misfits(node, &mut found);
        found.is_empty()
    }
}

/// The domains of nodes.
struct Domains<'a>(HashMap<&'a str, &'a NodeView<'a>>);

impl<'a> Domains<'a> {
    fn new(nodes: &'a [NodeView<'a>]) -> Self {
        Self(nodes.iter().map(|node| (node.name, node)).collect())
    }

    fn of(&self, node: &str, key: &str) -> Option<&str> {
        self.0.get(node)?.label(key)
    }
}

/// Returns namespace and name of an object.
pub fn name_of(metadata: &ObjectMeta) -> PodName {
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Returns the required terms of a pod's anti-affinity.
fn required_apart(affinity: Option<&Affinity>) -> &[PodAffinityTerm] {
    affinity
        .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or_default()
}

/// Keeps of a pod's affinity only its required anti-affinity, without the term that keeps a target pod off the node of
/// its own source: no other pod matches it.
pub fn prune_affinity(affinity: Option<Affinity>) -> Option<Affinity> {
    let terms = affinity?
        .pod_anti_affinity?
        .required_during_scheduling_ignored_during_execution;
    let mut terms = terms.unwrap_or_default();
    terms.retain(|term| !term.label_selector.as_ref().is_some_and(is_own));
    (!terms.is_empty()).then(|| Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(terms),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    })
}

fn is_own(selector: &LabelSelector) -> bool {
    let mut keys = selector.match_labels.iter().flat_map(BTreeMap::keys);
    keys.next().is_some_and(|key| key == CREATED_BY) && keys.next().is_none() && selector.match_expressions.is_none()
}
