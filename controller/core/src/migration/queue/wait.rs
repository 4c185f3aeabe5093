//! The limit that holds a queued migration back, as text that changes rarely.

use std::fmt;

/// The limit that holds a migration back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    /// The cluster already runs the maximum number of migrations.
    ClusterLimit(u32),
    /// The maximum number of migrations already leaves the source node.
    SourceNodeLimit(u32),
    /// The maximum number of migrations already arrives at the target node.
    TargetNodeLimit(u32),
    /// The maximum number of target pods is already being started.
    PlacementLimit(u32),
}

impl WaitReason {
    /// Returns the CamelCase reason for conditions, events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterLimit(_) => "ClusterLimit",
            Self::SourceNodeLimit(_) => "SourceNodeLimit",
            Self::TargetNodeLimit(_) => "TargetNodeLimit",
            Self::PlacementLimit(_) => "PlacementLimit",
        }
    }

    /// Returns whether the reason of a wait is one of these limits.
    pub fn is_one(name: &str) -> bool {
        let all = [
            Self::ClusterLimit,
            Self::SourceNodeLimit,
            Self::TargetNodeLimit,
            Self::PlacementLimit,
        ];
        all.iter().any(|reason| reason(0).as_str() == name)
    }
}

/// The limit that holds a migration back, and its position in the queue.
///
/// Two values are equal exactly if their texts are equal, so a written value need not be written again until it
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait {
    /// The limit.
    pub reason: WaitReason,
    /// Position among all waiting migrations, from 1; above 10 rounded up to tens, above 100 to hundreds and so on.
    /// Each departure changes the exact position of every waiting migration: with a thousand of them, that would be a
    /// thousand writes each time.
    pub place: usize,
}

impl Wait {
    /// Creates a wait for the exact position `place`, from 1.
    pub(super) fn new(reason: WaitReason, place: usize) -> Self {
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
    /// Writes a human-readable sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            WaitReason::ClusterLimit(limit) => {
                write!(f, "the cluster has reached its limit of parallel migrations ({limit})")?;
            }
            WaitReason::SourceNodeLimit(limit) => {
                write!(
                    f,
                    "the source node has reached its limit of outbound migrations ({limit})"
                )?;
            }
            WaitReason::TargetNodeLimit(limit) => {
                write!(
                    f,
                    "the target node has reached its limit of inbound migrations ({limit})"
                )?;
            }
            WaitReason::PlacementLimit(limit) => write!(
                f,
                "the target pods that are starting fill the cluster's limit of parallel migrations ({limit})"
            )?,
        }
        let about = if self.place > 10 { "about " } else { "" };
        write!(f, "; queue position {about}{}", self.place)
    }
}
