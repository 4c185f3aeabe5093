//! Decides when the guest may run on its target.
//!
//! A guest arrives paused, and libvirt resumes the source's guest if anything fails up to the very last reply. So the
//! target resumes its guest only when the source can never resume its own:
//!
//! ```text
//!  Source: proof ──▶ release, again and again ─────────▶ Target: complete? ──▶ resume, or leave paused
//!                    until it is acknowledged ◀────────────────── taken over ◀──┘
//! ```
//!
//! Both sides are plain values without clock or connection. Messages may be lost, duplicated or delayed: no decision
//! depends on elapsed time or on the end of a connection.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why the source can never resume its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Proof {
    /// The source's libvirtd has read the reply that confirms that the target has the whole guest. After that, libvirtd
    /// never resumes the source's guest, not even after a crash and restart.
    ReplyConsumed,
    /// The source's libvirt has reported that its guest stopped because it was migrated.
    SourceStopped,
    /// The guest no longer exists at the source.
    SourceGone,
    /// A proof of a later version, from which this version concludes nothing. It is never sent.
    #[serde(other)]
    Unknown,
}

impl Proof {
    /// Returns the stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReplyConsumed => "ReplyConsumed",
            Self::SourceStopped => "SourceStopped",
            Self::SourceGone => "SourceGone",
            Self::Unknown => "Unknown",
        }
    }
}

/// The source's message that the guest belongs to the target from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestRelease {
    /// The proof for the release.
    pub proof: Proof,
    /// Whether a user had paused the guest. Such a guest is taken over and stays paused.
    pub keep_paused: bool,
}

/// The target's result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TakenOver {
    /// The guest runs, or has run, at the target.
    Resumed,
    /// The guest is complete at the target and paused, as it was at the source.
    LeftPaused,
    /// A result of a later version, unknown to this version, which never produces it.
    #[serde(other)]
    Unknown,
}

/// Why a message of the hand-over is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum HandOverRefusal {
    /// The target already knows whether the guest stays paused.
    #[error("the target has already been notified whether the guest stays paused")]
    AlreadyReleased,
    /// The target reports that it took over a guest that was not released.
    #[error("the target reports that it took over the guest, which was not released")]
    NotReleased,
    /// The other side's tunnel has a later version, and this version does not understand its message.
    #[error("the other tunnel has a later version, and its message about the guest cannot be decoded")]
    NotUnderstood,
}

impl HandOverRefusal {
    /// Returns the stable reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::AlreadyReleased => "AlreadyReleased",
            Self::NotReleased => "NotReleased",
            Self::NotUnderstood => "NotUnderstood",
        }
    }
}

/// State of the source's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSide {
    keep_paused: bool,
    proof: Option<Proof>,
    /// The release that the target may have received. Repetitions are identical.
    sent: Option<GuestRelease>,
    taken_over: Option<TakenOver>,
}

impl SourceSide {
    /// Sets whether the guest is to stay paused. The last value before the first release counts.
    ///
    /// # Errors
    /// If the opposite value was sent to the target.
    pub fn keep_paused(&mut self, keep_paused: bool) -> Result<(), HandOverRefusal> {
        if self.sent.is_some_and(|sent| sent.keep_paused != keep_paused) {
            return Err(HandOverRefusal::AlreadyReleased);
        }
        self.keep_paused = keep_paused;
        Ok(())
    }

    /// Records that the guest can never resume at the source. The first proof is kept and sent. An unknown proof
    /// is ignored.
    pub fn prove(&mut self, proof: Proof) {
        if proof != Proof::Unknown {
            self.proof.get_or_insert(proof);
        }
    }

    /// Returns the release to send now, on every connection and until the target has acknowledged. The release counts
    /// as sent from here on.
    pub fn release(&mut self) -> Option<GuestRelease> {
        if self.taken_over.is_some() {
            return None;
        }
        let keep_paused = self.keep_paused;
        let release = self.proof.map(|proof| GuestRelease { proof, keep_paused })?;
        Some(*self.sent.get_or_insert(release))
    }

    /// Records that the target has taken over. The first acknowledgement counts.
    ///
    /// # Errors
    /// If nothing was released to the target, or its result is unknown.
    pub fn acknowledge(&mut self, taken_over: TakenOver) -> Result<(), HandOverRefusal> {
        if taken_over == TakenOver::Unknown {
            return Err(HandOverRefusal::NotUnderstood);
        }
        if self.sent.is_none() {
            return Err(HandOverRefusal::NotReleased);
        }
        self.taken_over.get_or_insert(taken_over);
        Ok(())
    }

    /// Returns whether the guest is to stay paused.
    pub fn keeps_paused(&self) -> bool {
        self.keep_paused
    }

    /// Returns the proof, if there is one.
    pub fn proof(&self) -> Option<Proof> {
        self.proof
    }

    /// Returns the target's acknowledgement.
    pub fn taken_over(&self) -> Option<TakenOver> {
        self.taken_over
    }
}

/// State of the guest at the target, as libvirt reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuestHere {
    /// The state is unknown.
    Unknown,
    /// The guest does not exist.
    Absent,
    /// A part of the guest has arrived.
    Incoming,
    /// The whole guest has arrived, and it has not run on the target.
    Complete,
    /// The guest runs, or has run, on the target.
    HasRun,
}

/// The target's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandOverStep {
    /// Waits until the guest's state changes or a message from the source arrives.
    Wait,
    /// Resumes the guest.
    Resume,
    /// Records that the guest has been taken over, and notifies the source.
    TakeOver(TakenOver),
    /// Repeats the acknowledgement.
    Acknowledge(TakenOver),
}

/// State of the target's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetSide {
    release: Option<GuestRelease>,
    taken_over: Option<TakenOver>,
}

impl TargetSide {
    /// Records the source's release. The first one counts, because the source repeats it.
    ///
    /// # Errors
    /// If its proof is unknown. The guest then stays paused, and the target's agent takes over based on the object.
    pub fn released(&mut self, release: GuestRelease) -> Result<(), HandOverRefusal> {
        if release.proof == Proof::Unknown {
            return Err(HandOverRefusal::NotUnderstood);
        }
        self.release.get_or_insert(release);
        Ok(())
    }

    /// Returns the next step for a guest in this state.
    pub fn step(&self, guest: GuestHere) -> HandOverStep {
        let Some(release) = self.release else {
            return HandOverStep::Wait;
        };
        if let Some(taken_over) = self.taken_over {
            return HandOverStep::Acknowledge(taken_over);
        }
        match guest {
            GuestHere::Unknown | GuestHere::Absent | GuestHere::Incoming => HandOverStep::Wait,
            GuestHere::Complete if release.keep_paused => HandOverStep::TakeOver(TakenOver::LeftPaused),
            GuestHere::Complete => HandOverStep::Resume,
            GuestHere::HasRun => HandOverStep::TakeOver(TakenOver::Resumed),
        }
    }

    /// Records that the guest has been taken over: libvirt has resumed it, or it stays paused as requested.
    pub fn take_over(&mut self, taken_over: TakenOver) {
        self.taken_over.get_or_insert(taken_over);
    }

    /// Returns the source's release.
    pub fn release(&self) -> Option<GuestRelease> {
        self.release
    }

    /// Returns how the guest was taken over.
    pub fn taken_over(&self) -> Option<TakenOver> {
        self.taken_over
    }
}

#[cfg(test)]
mod tests;
