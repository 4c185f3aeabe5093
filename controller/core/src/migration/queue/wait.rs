//! What a migration waits for in the queue, in words that change only when there is news.

use std::fmt;

/// Why a migration does not go on, with the limit that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// As many as may run in the cluster at once do.
    ClusterLimit(u32),
    /// As many as may leave its source node at once do.
    SourceNodeLimit(u32),
    /// As many as may arrive at its target node at once do.
    TargetNodeLimit(u32),
    /// As many target pods as may be on their way at once are.
    PlacementLimit(u32),
}

impl Reason {
    /// The reason in one word, for conditions, events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterLimit(_) => "ClusterLimit",
            Self::SourceNodeLimit(_) => "SourceNodeLimit",
            Self::TargetNodeLimit(_) => "TargetNodeLimit",
            Self::PlacementLimit(_) => "PlacementLimit",
        }
    }

    /// Whether a word that something waits for is one of these.
    pub fn is_one(word: &str) -> bool {
        let all = [
            Self::ClusterLimit,
            Self::SourceNodeLimit,
            Self::TargetNodeLimit,
            Self::PlacementLimit,
        ];
        all.iter().any(|reason| reason(0).as_str() == word)
    }
}

/// What a migration waits for, and where in the queue it stands.
///
/// Two that are equal have the same text, and only those: what was written once need not be
/// written again until this changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait {
    /// What it waits for.
    pub reason: Reason,
    /// Its place among all that wait, from 1; beyond 10 rounded up to tens, beyond 100 to
    /// hundreds and so on. The exact place of each of a thousand changes whenever one goes, which
    /// would be a thousand writes each time.
    pub place: usize,
}

impl Wait {
    /// A wait of the one at the exact `place`, from 1.
    pub(super) fn new(reason: Reason, place: usize) -> Self {
        let mut step = 1_usize;
        while place > step.saturating_mul(10) {
            step = step.saturating_mul(10);
        }
        Self {
            reason,
            place: place.div_ceil(step).saturating_mul(step),
        }
    }
}

impl fmt::Display for Wait {
    /// A sentence for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::ClusterLimit(limit) => write!(f, "as many guests move in the cluster as may at once ({limit})")?,
            Reason::SourceNodeLimit(limit) => write!(f, "as many guests leave its node as may at once ({limit})")?,
            Reason::TargetNodeLimit(limit) => {
                write!(f, "as many guests arrive at its target node as may at once ({limit})")?;
            }
            Reason::PlacementLimit(limit) => write!(
                f,
                "enough target pods are on their way to run as many migrations as may at once ({limit})"
            )?,
        }
        let about = if self.place > 10 { "about " } else { "" };
        write!(f, "; its place in the queue is {about}{}", self.place)
    }
}
