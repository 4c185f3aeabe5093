//! The API server's response to an eviction, and when to retry.

use jiff::{SignedDuration, Timestamp};

/// Maximum delay before a refused eviction is retried; the same as kubectl drain's.
pub const RETRY: SignedDuration = SignedDuration::from_secs(5);
/// Delay before an accepted eviction is repeated if the pod shows no deletion: the watch may lag, or the deletion was
/// undone.
pub const DOUBT: SignedDuration = SignedDuration::from_secs(30);
/// Maximum length of a stored response, in characters.
const LONGEST: usize = 1000;

/// The result of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionResult {
    /// The pod is being deleted.
    Accepted,
    /// The pod no longer exists, or another one has its name.
    Gone,
    /// A PDB forbids the eviction.
    BlockedByPdb(String),
    /// An admission webhook (or the API server's own load) defers the eviction.
    Deferred(String),
    /// Several PDBs match the pod; Kubernetes does not evict such a pod.
    SeveralPdbs(String),
    /// The namespace is being deleted, and the pod with it.
    NamespaceTerminating(String),
    /// Any other error, including a missing response.
    Failed(String),
}

impl EvictionResult {
    /// Interprets a refusal by its code, message and causes (reason and message).
    pub fn of_refusal(code: u16, message: &str, causes: &[(&str, &str)]) -> Self {
        let has = |reason: &str| causes.iter().any(|(cause, _)| *cause == reason);
        let mut text = message.to_owned();
        for (_, detail) in causes {
            if !detail.is_empty() && !text.contains(detail) {
                text = format!("{text} {detail}");
            }
        }
        let text: String = text.chars().take(LONGEST).collect();
        match code {
            // A UID precondition failed: the name belongs to another pod by now.
            404 | 409 => Self::Gone,
            429 if has("DisruptionBudget") => Self::BlockedByPdb(text),
            429 => Self::Deferred(text),
            403 if has("NamespaceTerminating") => Self::NamespaceTerminating(text),
            // https://github.com/kubernetes/kubernetes/issues/75957
            500 if message.contains("more than one PodDisruptionBudget") => Self::SeveralPdbs(text),
            _ => Self::Failed(text),
        }
    }

    /// Returns the API server's message, if it refused.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Accepted | Self::Gone => None,
            Self::BlockedByPdb(text)
            | Self::Deferred(text)
            | Self::SeveralPdbs(text)
            | Self::NamespaceTerminating(text)
            | Self::Failed(text) => Some(text),
        }
    }
}

/// The evictions of one pod so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Time of the last response.
    pub at: Timestamp,
    /// The last response; `None` before the first.
    pub result: Option<EvictionResult>,
    /// Whether the next request is in flight.
    pub in_flight: bool,
    /// Whether the obstacle has changed since the last response.
    pub unblocked: bool,
}

impl Attempt {
    /// Returns when to retry; `None` while a request is in flight.
    pub fn retry(&self, now: Timestamp) -> Option<Timestamp> {
        if self.in_flight {
            return None;
        }
        let after = match &self.result {
            // The clock has been set back since.
            _ if self.at > now => return Some(now),
            None => return Some(self.at),
            Some(_) if self.unblocked => return Some(self.at),
            Some(EvictionResult::Accepted) => DOUBT,
            Some(_) => RETRY,
        };
        Some(self.at.checked_add(after).unwrap_or(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_is_understood() {
        let pdb = [(
            "DisruptionBudget",
            "The disruption budget blk needs 1 healthy pods and has 1 currently",
        )];
        for (code, message, causes, kind) in [
            (
                429,
                "Cannot evict pod as it would violate the pod's disruption budget.",
                &pdb[..],
                "BlockedByPdb",
            ),
            (
                429,
                "admission webhook \"x\" denied the request: it is moving",
                &[],
                "Deferred",
            ),
            (404, "pods \"a\" not found", &[], "Gone"),
            (
                409,
                "Precondition failed: UID in precondition: a, UID in object meta: b",
                &[],
                "Gone",
            ),
            (
                403,
                "forbidden",
                &[("NamespaceTerminating", "namespace n is being terminated")],
                "NamespaceTerminating",
            ),
            (
                403,
                "pods \"a\" is forbidden: User cannot create resource \"pods/eviction\"",
                &[],
                "Failed",
            ),
            (
                500,
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                &[],
                "SeveralPdbs",
            ),
            (500, "internal error", &[], "Failed"),
        ] {
            let result = EvictionResult::of_refusal(code, message, causes);
            assert!(format!("{result:?}").starts_with(kind), "{code} {message}: {result:?}");
        }
        let result = EvictionResult::of_refusal(429, "Cannot evict pod.", &pdb);
        assert!(result.text().unwrap().contains("needs 1 healthy pods"), "{result:?}");
        assert!(
            EvictionResult::of_refusal(500, &"x".repeat(5000), &[])
                .text()
                .unwrap()
                .chars()
                .count()
                <= LONGEST
        );
    }

    #[test]
    fn eviction_is_retried_after_five_seconds_or_when_unblocked() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut attempt = Attempt {
            at,
            result: Some(EvictionResult::BlockedByPdb("no".into())),
            in_flight: false,
            unblocked: false,
        };
        assert_eq!(attempt.retry(at), Some("2026-01-01T00:00:05Z".parse().unwrap()));
        attempt.unblocked = true;
        assert_eq!(attempt.retry(at), Some(at));
        attempt.in_flight = true;
        assert_eq!(attempt.retry(at), None);
        attempt.in_flight = false;
        (attempt.result, attempt.unblocked) = (Some(EvictionResult::Accepted), false);
        assert_eq!(attempt.retry(at), Some("2026-01-01T00:00:30Z".parse().unwrap()));
    }

    #[test]
    fn eviction_is_retried_at_once_after_the_clock_is_set_back() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for result in [EvictionResult::BlockedByPdb("no".into()), EvictionResult::Accepted] {
            let attempt = Attempt {
                at: now + SignedDuration::from_hours(1),
                result: Some(result),
                in_flight: false,
                unblocked: false,
            };
            assert_eq!(attempt.retry(now), Some(now), "{attempt:?}");
        }
    }
}
