//! The part of a node's CPU that a guest can have, according to the full sets and the part of the node's mask that
//! applies to it.

use std::collections::BTreeSet;

use drydock_api::facts::VirtualizationFacts;

use super::{NodeView, Requirements, misfit::Misfit};

/// The part of a node's CPU that a guest can have.
#[derive(Clone, Copy)]
pub(super) struct CpuOffer<'a> {
    /// The full sets, without the features that the node masks.
    pub(super) facts: &'a VirtualizationFacts,
    /// All features that the node masks.
    masked: &'a [String],
    /// Masked features that do not count for this guest.
    lifted: &'a BTreeSet<String>,
}

impl<'a> CpuOffer<'a> {
    /// Returns the offer of a node to a guest with these needs; `None` if nothing is known about the node's CPU.
    pub(super) fn of(node: &NodeView<'a>, needs: &'a Requirements) -> Option<Self> {
        Some(Self {
            lifted: &needs.lifted,
            ..Self::of_hardware(node)?
        })
    }

    /// Returns the offer of a node to guests that its whole mask applies to.
    fn of_hardware(node: &NodeView<'a>) -> Option<Self> {
        const NONE: &BTreeSet<String> = &BTreeSet::new();
        let facts = node.virtualization()?;
        debug_assert!(facts.features.is_sorted(), "features are not in order");
        Some(Self {
            facts,
            masked: node.masked,
            lifted: NONE,
        })
    }

    /// Returns whether the guest can have a feature.
    pub(super) fn has(&self, feature: &str) -> bool {
        self.lists(feature) || (self.lifted.contains(feature) && self.withholds(feature))
    }

    /// Returns whether the feature is withheld from the guest only by the mask.
    pub(super) fn is_masked(&self, feature: &str) -> bool {
        self.withholds(feature) && !self.lifted.contains(feature)
    }

    /// Returns whether a feature that the node is not known to have is masked for the guest.
    pub(super) fn would_mask(&self, feature: &str) -> bool {
        self.masked.iter().any(|masked| masked == feature) && !self.lifted.contains(feature)
    }

    /// Returns the misfit if the guest cannot have a feature.
    pub(super) fn lack(&self, feature: &str) -> Option<Misfit> {
        match (self.has(feature), self.is_masked(feature)) {
            (true, _) => None,
            (false, true) => Some(Misfit::MasksFeature(feature.into())),
            (false, false) => Some(Misfit::LacksFeature(feature.into())),
        }
    }

    /// Yields the features that the node's mask withholds from the guest.
    pub(super) fn withheld(&self) -> impl Iterator<Item = &'a String> {
        let lifted = self.lifted;
        let withheld = self.facts.withheld.iter();
        withheld.filter(move |feature| !lifted.contains(*feature))
    }

    /// Yields the features that the guest can have although the node masks them.
    pub(super) fn admitted(&self) -> impl Iterator<Item = &'a String> {
        let lifted = self.lifted;
        let withheld = self.facts.withheld.iter();
        withheld.filter(move |feature| lifted.contains(*feature))
    }

    /// Returns those `blockers` of a model that the guest would actually lack.
    pub(super) fn missing(&self, blockers: &[String], disabled: &[String]) -> Vec<String> {
        let admitted = |feature: &String| self.lifted.contains(feature) && self.withholds(feature);
        let missing = blockers
            .iter()
            .filter(|feature| !disabled.contains(feature) && !admitted(feature));
        missing.cloned().collect()
    }

    /// Returns the misfit that the guest cannot have a model because these features are missing.
    pub(super) fn lack_of_model(&self, model: &str, missing: Vec<String>) -> Misfit {
        if !missing.is_empty() && missing.iter().all(|feature| self.is_masked(feature)) {
            Misfit::MasksModel(model.into(), missing)
        } else {
            Misfit::LacksModel(model.into(), missing)
        }
    }

    /// Returns the misfit if the guest cannot have all of the minimum CPU model.
    pub(super) fn lack_of_minimum(&self, model: &str, minimum: &BTreeSet<String>) -> Option<Misfit> {
        let missing: Vec<String> = minimum.iter().filter(|feature| !self.has(feature)).cloned().collect();
        if missing.is_empty() {
            None
        } else if missing.iter().all(|feature| self.is_masked(feature)) {
            Some(Misfit::MasksMinimum(model.into(), missing))
        } else {
            Some(Misfit::LacksMinimum(model.into(), missing))
        }
    }

    /// Returns whether the node offers a feature to guests that its whole mask applies to.
    pub(super) fn lists(&self, feature: &str) -> bool {
        let names = &self.facts.features;
        names.binary_search_by(|name| name.as_str().cmp(feature)).is_ok()
    }

    fn withholds(&self, feature: &str) -> bool {
        self.facts.withheld.iter().any(|withheld| withheld == feature)
    }
}

/// Returns whether a node has a feature, masked or not.
pub(super) fn is_known_to_have(node: &NodeView<'_>, feature: &str) -> bool {
    CpuOffer::of_hardware(node).is_some_and(|offer| offer.lists(feature) || offer.withholds(feature))
}
