//! When a host has to be inspected again.

mod known_facts;

use std::time::Duration;

use drydock_api::facts::FactsFingerprint;
use jiff::Timestamp;

pub use known_facts::{InspectedFacts, KnownFacts};

/// Delay after a first failed inspection; doubles with each further failure.
pub const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Maximum delay between failed inspections.
pub const LAST_RETRY: Duration = Duration::from_secs(300);

/// Results of earlier inspections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Fingerprint of the inspected facts; `None` before the first success of this process.
    pub inspected: Option<FactsFingerprint>,
    /// Failures since the last success.
    pub failed: Option<Failed>,
}

/// Consecutive failed inspections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Number of failures.
    pub times: u32,
    /// When the last failed inspection ended.
    pub at: Timestamp,
    /// Fingerprint of the host at the last failed inspection.
    pub fingerprint: FactsFingerprint,
}

/// Whether to inspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// No inspection is needed: the facts are those of this machine.
    None,
    /// Inspect now, because these parts of the fingerprint changed (none for the first inspection and for a retry).
    Now(Vec<String>),
    /// Inspect again at this time, unless something changes before.
    At(Timestamp),
}

/// Returns the parts in which two fingerprints differ.
pub fn changed(before: &FactsFingerprint, after: &FactsFingerprint) -> Vec<String> {
    let mut parts: Vec<String> = before
        .0
        .iter()
        .filter(|(part, value)| after.0.get(*part) != Some(value))
        .map(|(part, _)| part.clone())
        .chain(after.0.keys().filter(|part| !before.0.contains_key(*part)).cloned())
        .collect();
    parts.sort();
    parts
}

/// Returns whether to inspect, given the present fingerprint.
pub fn need(history: &History, present: &FactsFingerprint, now: Timestamp) -> Need {
    if let Some(failed) = &history.failed {
        let parts = changed(&failed.fingerprint, present);
        if !parts.is_empty() {
            return Need::Now(parts);
        }
        let retry_at = failed.at + retry_after(failed.times);
        // A failure in the future was recorded before the clock was set back.
        return if now >= retry_at || now < failed.at {
            Need::Now(Vec::new())
        } else {
            Need::At(retry_at)
        };
    }
    match &history.inspected {
        None => Need::Now(Vec::new()),
        Some(before) => {
            let parts = changed(before, present);
            if parts.is_empty() { Need::None } else { Need::Now(parts) }
        }
    }
}

/// Returns the delay after this many failures in a row.
pub fn retry_after(times: u32) -> Duration {
    FIRST_RETRY
        .saturating_mul(1 << times.saturating_sub(1).min(10))
        .min(LAST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(parts: &[(&str, &str)]) -> FactsFingerprint {
        FactsFingerprint(
            parts
                .iter()
                .map(|(part, value)| ((*part).into(), (*value).into()))
                .collect(),
        )
    }

    #[test]
    fn the_table_of_when_to_inspect() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (old, new) = (
            fingerprint(&[("kernel", "6.1")]),
            fingerprint(&[("kernel", "6.2"), ("kvm", "yes")]),
        );
        let failed = |times, fingerprint: &FactsFingerprint| {
            Some(Failed {
                times,
                at: now,
                fingerprint: fingerprint.clone(),
            })
        };
        let history = |inspected: Option<&FactsFingerprint>, failed| History {
            inspected: inspected.cloned(),
            failed,
        };
        let parts = vec!["kernel".to_owned(), "kvm".to_owned()];
        let hour = Duration::from_secs(3600);
        let after = |seconds| now + Duration::from_secs(seconds);
        for (history, present, at, expected) in [
            (History::default(), &old, now, Need::Now(vec![])),
            (history(Some(&old), None), &old, now, Need::None),
            (history(Some(&old), None), &new, now, Need::Now(parts.clone())),
            (history(None, failed(1, &old)), &old, after(4), Need::At(after(5))),
            (history(None, failed(1, &old)), &old, after(5), Need::Now(vec![])),
            (history(None, failed(3, &old)), &old, after(5), Need::At(after(20))),
            (history(None, failed(1, &old)), &old, now - hour, Need::Now(vec![])),
            (history(None, failed(1, &old)), &new, now, Need::Now(parts)),
            (
                history(Some(&old), failed(99, &new)),
                &new,
                after(299),
                Need::At(after(300)),
            ),
        ] {
            assert_eq!(need(&history, present, at), expected, "{history:?} {at}");
        }
    }
}
