//! Terms of pod affinity and anti-affinity.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use k8s_openapi::{
    api::core::v1::PodAffinityTerm,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};

use super::Newcomer;
use crate::label_selector::Selector;

/// Label of a namespace: its own name, set by the API server.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// A term of pod affinity or anti-affinity.
#[derive(Clone, Debug)]
pub(super) struct AffinityTerm<'t>(Cow<'t, PodAffinityTerm>);

impl<'t> AffinityTerm<'t> {
    pub(super) fn new(term: &'t PodAffinityTerm) -> Self {
        Self(Cow::Borrowed(term))
    }

    /// Returns the label of nodes whose value is the domain.
    pub(super) fn key(&self) -> &str {
        &self.0.topology_key
    }

    /// Returns whether the term can be evaluated. Of namespaces, only the names are known.
    pub(super) fn is_known(&self) -> bool {
        let namespaces = self.0.namespace_selector.as_ref();
        namespaces.is_none_or(|selector| {
            Selector::new(selector).is_ok_and(|selector| selector.keys().all(|key| key == NAMESPACE_NAME))
        })
    }

    /// Returns the only namespace whose pods can match; `None` if there may be several. `own` is the namespace of the
    /// pod with this term.
    pub(super) fn only_namespace<'a>(&'a self, own: &'a str) -> Option<&'a str> {
        match (
            self.0.namespaces.as_deref().unwrap_or_default(),
            &self.0.namespace_selector,
        ) {
            ([], None) => Some(own),
            ([one], None) => Some(one),
            _ => None,
        }
    }

    /// Returns whether a pod with these labels in a namespace matches. `own` is the namespace of the pod with this
    /// term. A term that is not [known](Self::is_known) matches nothing.
    pub(super) fn matches<'v>(&self, own: &str, namespace: &str, value: impl Fn(&str) -> Option<&'v str>) -> bool {
        let Some(selector) = self
            .0
            .label_selector
            .as_ref()
            .and_then(|selector| Selector::new(selector).ok())
        else {
            return false;
        };
        selector.matches_values(value) && self.covers(own, namespace) && self.is_known()
    }

    /// Returns whether a pod that is to be placed matches.
    pub(super) fn matches_newcomer(&self, own: &str, newcomer: &Newcomer<'_>) -> bool {
        let value = |key: &str| newcomer.labels.get(key).map(String::as_str);
        self.matches(own, newcomer.namespace, value)
    }

    fn covers(&self, own: &str, namespace: &str) -> bool {
        let named = self.0.namespaces.as_deref().unwrap_or_default();
        let Some(selector) = &self.0.namespace_selector else {
            return if named.is_empty() {
                namespace == own
            } else {
                named.iter().any(|name| name == namespace)
            };
        };
        let selected = Selector::new(selector)
            .is_ok_and(|selector| selector.matches_values(|key| (key == NAMESPACE_NAME).then_some(namespace)));
        selected || named.iter().any(|name| name == namespace)
    }
}

impl fmt::Display for AffinityTerm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selector = self.0.label_selector.as_ref().map(Selector::new);
        match selector {
            Some(Ok(selector)) => selector.fmt(f),
            _ => Ok(()),
        }
    }
}

/// Returns the terms of a pod that is to be placed. As the API server does when it creates the pod, the values of its
/// own labels in `matchLabelKeys` and `mismatchLabelKeys` are added to the selectors.
pub(super) fn own_terms(terms: &[PodAffinityTerm], newcomer: &Newcomer<'_>) -> Vec<AffinityTerm<'static>> {
    let merged = terms.iter().map(|term| {
        let mut term = term.clone();
        let keys = [
            (term.match_label_keys.take(), "In"),
            (term.mismatch_label_keys.take(), "NotIn"),
        ];
        if let Some(selector) = &mut term.label_selector {
            for (keys, operator) in keys {
                add_own_labels(selector, &keys.unwrap_or_default(), operator, newcomer.labels);
            }
        }
        AffinityTerm(Cow::Owned(term))
    });
    merged.collect()
}

/// Adds to a selector that these labels have (`In`) or do not have (`NotIn`) the values of the new pod's labels.
pub(super) fn add_own_labels(
    selector: &mut LabelSelector,
    keys: &[String],
    operator: &str,
    labels: &BTreeMap<String, String>,
) {
    let own = keys.iter().filter_map(|key| Some((key, labels.get(key)?)));
    let added: Vec<_> = own
        .map(|(key, value)| LabelSelectorRequirement {
            key: key.clone(),
            operator: operator.into(),
            values: Some(vec![value.clone()]),
        })
        .collect();
    if !added.is_empty() {
        selector.match_expressions.get_or_insert_default().extend(added);
    }
}
