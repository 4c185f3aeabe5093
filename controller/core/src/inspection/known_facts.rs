//! Which facts about a host an agent uses: those of its own inspections, or those that an earlier agent reported.

use drydock_api::{
    facts::{FactsFingerprint, NodeFacts},
    hypervisor::InspectionRecord,
};
use jiff::Timestamp;

use super::{Failed, History, Need, changed, need};
use crate::node::InspectionFailure;

/// Facts, and the record of the inspection that found them.
pub type InspectedFacts = (NodeFacts, InspectionRecord);

/// An agent's knowledge about its host.
///
/// # Guarantees
/// - Facts of a complete inspection are kept while later inspections fail.
/// - Facts of an incomplete inspection, those of the processor and the kernel, are used only while there are no others,
///   and are replaced by those of each later inspection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownFacts {
    /// Facts found by this process.
    found: Option<InspectedFacts>,
    /// Whether `found` may lack the facts that libvirt reports.
    is_incomplete: bool,
    /// Facts found by an earlier process.
    recovered: Option<InspectedFacts>,
    history: History,
    failure: Option<InspectionFailure>,
    /// Fingerprint of the host at the last check.
    present: FactsFingerprint,
    has_ended: bool,
}

impl KnownFacts {
    /// Adopts the facts of an earlier process.
    pub fn recover(&mut self, found: Option<InspectedFacts>) {
        self.recovered = found;
    }

    /// Returns the facts to use. Facts of an earlier process are used while nothing that they depend on has changed,
    /// or if this process's own inspection has failed.
    pub fn facts(&self) -> Option<(&NodeFacts, &InspectionRecord)> {
        let recovered = || {
            self.recovered
                .as_ref()
                .filter(|(_, record)| self.failure.is_some() || changed(&record.fingerprint, &self.present).is_empty())
        };
        self.found
            .as_ref()
            .or_else(recovered)
            .map(|(facts, record)| (facts, record))
    }

    /// Returns why the last inspection failed, if it did.
    pub fn failure(&self) -> Option<&InspectionFailure> {
        self.failure.as_ref()
    }

    /// Returns whether an inspection by this process has ended, successfully or not.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the fingerprint of the host at the last check.
    pub fn present(&self) -> &FactsFingerprint {
        &self.present
    }

    /// Takes in the fingerprint of the host while no inspection runs. Returns whether to inspect.
    pub fn check(&mut self, present: FactsFingerprint, now: Timestamp) -> Need {
        self.present = present;
        need(&self.history, &self.present, now)
    }

    /// Takes in the facts of a complete inspection.
    pub fn succeed(&mut self, found: InspectedFacts) {
        *self = Self {
            history: History {
                inspected: Some(found.1.fingerprint.clone()),
                failed: None,
            },
            found: Some(found),
            present: std::mem::take(&mut self.present),
            has_ended: true,
            ..Self::default()
        };
    }

    /// Takes in the failure of an inspection at `now`, and the facts that it found nevertheless, if any.
    pub fn fail(&mut self, failure: InspectionFailure, incomplete: Option<InspectedFacts>, now: Timestamp) {
        self.has_ended = true;
        let has_complete = self.found.is_some() && !self.is_incomplete || self.recovered.is_some();
        if !has_complete && incomplete.is_some() {
            self.found = incomplete;
            self.is_incomplete = true;
        }
        let times = self.history.failed.as_ref().map_or(0, |failed| failed.times);
        self.history.failed = Some(Failed {
            times: times.saturating_add(1),
            at: now,
            fingerprint: self.present.clone(),
        });
        self.failure = Some(failure);
    }
}

#[cfg(test)]
mod tests;
