//! What a guest can have of a node's CPU: by the full sets, and by what of the node's mask counts for it.

use std::collections::BTreeSet;

use drydock_api::facts::VirtualizationFacts;

use super::{NodeView, Requirements, misfit::Misfit};

/// What a guest can have of a node's CPU.
#[derive(Clone, Copy)]
pub(super) struct Offer<'a> {
    /// The full sets, without what the node masks.
    pub(super) facts: &'a VirtualizationFacts,
    /// All that the node masks.
    masked: &'a [String],
    /// Of that, what does not count for this guest.
    lifted: &'a BTreeSet<String>,
}

impl<'a> Offer<'a> {
    /// What a node offers to a guest that needs that; `None` if nothing is known of the node's CPU.
    pub(super) fn of(node: &NodeView<'a>, needs: &'a Requirements) -> Option<Self> {
        Some(Self {
            lifted: &needs.lifted,
            ..Self::of_hardware(node)?
        })
    }

    /// What a node offers to whoever its whole mask counts for.
    fn of_hardware(node: &NodeView<'a>) -> Option<Self> {
        const NONE: &BTreeSet<String> = &BTreeSet::new();
        let facts = node.virtualization()?;
        Some(Self {
            facts,
            masked: node.masked,
            lifted: NONE,
        })
    }

    /// Whether the guest can have a feature.
    pub(super) fn has(&self, feature: &str) -> bool {
        self.lists(feature) || (self.lifted.contains(feature) && self.withholds(feature))
    }

    /// Whether the mask is all that keeps a feature from the guest.
    pub(super) fn is_masked(&self, feature: &str) -> bool {
        self.withholds(feature) && !self.lifted.contains(feature)
    }

    /// Whether a feature of which it is not known that the node has it is masked for the guest.
    pub(super) fn would_mask(&self, feature: &str) -> bool {
        self.masked.iter().any(|masked| masked == feature) && !self.lifted.contains(feature)
    }

    /// That the guest cannot have a feature.
    pub(super) fn lack(&self, feature: &str) -> Option<Misfit> {
        match (self.has(feature), self.is_masked(feature)) {
            (true, _) => None,
            (false, true) => Some(Misfit::MasksFeature(feature.into())),
            (false, false) => Some(Misfit::LacksFeature(feature.into())),
        }
    }

    /// Features that the node's mask keeps from the guest.
    pub(super) fn withheld(&self) -> impl Iterator<Item = &'a String> {
        let lifted = self.lifted;
        let withheld = self.facts.withheld.iter();
        withheld.filter(move |feature| !lifted.contains(*feature))
    }

    /// Features that the guest can have though the node masks them.
    pub(super) fn admitted(&self) -> impl Iterator<Item = &'a String> {
        let lifted = self.lifted;
        let withheld = self.facts.withheld.iter();
        withheld.filter(move |feature| lifted.contains(*feature))
    }

    /// Of features that a model needs and that cannot be had here, those that the guest has to do without.
    pub(super) fn missing(&self, blockers: &[String], disabled: &[String]) -> Vec<String> {
        let admitted = |feature: &String| self.lifted.contains(feature) && self.withholds(feature);
        let missing = blockers
            .iter()
            .filter(|feature| !disabled.contains(feature) && !admitted(feature));
        missing.cloned().collect()
    }

    /// That the guest cannot have a model for want of these features.
    pub(super) fn lack_of_model(&self, model: &str, missing: Vec<String>) -> Misfit {
        if !missing.is_empty() && missing.iter().all(|feature| self.is_masked(feature)) {
            Misfit::MasksModel(model.into(), missing)
        } else {
            Misfit::LacksModel(model.into(), missing)
        }
    }

    /// That the guest cannot have all of the minimum CPU model.
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

    fn lists(&self, feature: &str) -> bool {
        let names = &self.facts.features;
        // Agents list them in order, and most of those that are looked up are there.
        let found = names.binary_search_by(|name| name.as_str().cmp(feature)).is_ok();
        found || names.iter().any(|name| name == feature)
    }

    fn withholds(&self, feature: &str) -> bool {
        self.facts.withheld.iter().any(|withheld| withheld == feature)
    }
}

/// Whether a node has a feature, masked or not.
pub(super) fn is_known_to_have(node: &NodeView<'_>, feature: &str) -> bool {
    Offer::of_hardware(node).is_some_and(|offer| offer.lists(feature) || offer.withholds(feature))
}
