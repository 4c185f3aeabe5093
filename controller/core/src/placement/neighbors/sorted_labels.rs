//! Labels of very many pods, stored once each.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use drydock_api::kubevirt::names::CREATED_BY;

/// Number of shared strings that are added between two removals of unused ones.
const BETWEEN_SWEEPS: usize = 4096;

/// Labels in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SortedLabels(Box<[(Arc<str>, Arc<str>)]>);

impl SortedLabels {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.binary_search_by(|(other, _)| (**other).cmp(key)).ok()?;
        Some(&self.0[found].1)
    }
}

/// Strings that several pods share: keys and values of labels, namespaces and nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    shared: HashSet<Arc<str>>,
    /// Number of strings after the last removal of unused ones.
    kept: usize,
}

impl Names {
    /// Returns the shared copy of a string.
    pub(super) fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.shared.get(text) {
            return Arc::clone(known);
        }
        let new: Arc<str> = text.into();
        self.shared.insert(Arc::clone(&new));
        new
    }

    /// Returns shared copies of labels. Every launcher pod has its own [`CREATED_BY`], by which only Drydock selects
    /// pods, so that label is left out.
    pub(super) fn labels(&mut self, labels: Option<&BTreeMap<String, String>>) -> SortedLabels {
        let labels = labels.into_iter().flatten();
        let shared = labels
            .filter(|(key, _)| *key != CREATED_BY)
            .map(|(key, value)| (self.share(key), self.share(value)));
        SortedLabels(shared.collect())
    }

    /// Removes strings that nothing uses any more, once there are many new ones.
    pub(super) fn forget_unused(&mut self) {
        if self.shared.len() < self.kept.saturating_mul(2).max(BETWEEN_SWEEPS) {
            return;
        }
        self.shared.retain(|text| Arc::strong_count(text) > 1);
        self.kept = self.shared.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_key_and_shared() {
        let mut names = Names::default();
        let map = |own: &str| -> BTreeMap<String, String> {
            let all = [("app", "db"), ("zone", "x"), (CREATED_BY, own)];
            all.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
        };
        let (one, two) = (names.labels(Some(&map("u1"))), names.labels(Some(&map("u2"))));
        assert_eq!(
            (one.get("app"), one.get("zone"), one.get("b")),
            (Some("db"), Some("x"), None)
        );
        assert_eq!((one.get(CREATED_BY), &one), (None, &two));
        assert!(Arc::ptr_eq(&one.0[0].1, &two.0[0].1));
        assert_eq!(names.labels(None), SortedLabels::default());
    }

    #[test]
    fn unused_strings_are_removed_after_many_new_strings() {
        let mut names = Names::default();
        let kept = names.share("kept");
        for number in 0..2 * BETWEEN_SWEEPS {
            names.share(&number.to_string());
            names.forget_unused();
        }
        assert!(names.shared.len() <= BETWEEN_SWEEPS, "{}", names.shared.len());
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
    }
}
