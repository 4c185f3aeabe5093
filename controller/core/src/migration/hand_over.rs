//! When the guest may go on at its target.
//!
//! A guest arrives paused, and libvirt resumes the one at the source if anything fails up to the very
//! last reply. So the target lets its guest go on only when the source can never resume its own:
//!
//! ```text
//!  Source: proof ──▶ release, again and again ─────────▶ Target: complete? ──▶ resume, or leave paused
//!                    until it is acknowledged ◀────────────────── taken over ◀──┘
//! ```
//!
//! Both sides are values without clock and connection. Messages may be lost, repeated and come late:
//! nothing here follows from the time that passes, or from a connection that ends.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How it is known that the source will never let its guest go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Proof {
    /// The source's libvirtd has read the reply that says that the target has the whole guest. After
    /// that it never resumes its own, not even when it is killed and started again.
    ReplyConsumed,
    /// The source's libvirt has said that its guest stopped since it has migrated.
    SourceStopped,
    /// There is no guest at the source any more.
    SourceGone,
    /// A proof of a later version, by which nothing is known here. It is never given.
    #[serde(other)]
    Unknown,
}

impl Proof {
    /// A stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReplyConsumed => "ReplyConsumed",
            Self::SourceStopped => "SourceStopped",
            Self::SourceGone => "SourceGone",
            Self::Unknown => "Unknown",
        }
    }
}

/// The source's word that the guest is the target's from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// What it rests on.
    pub proof: Proof,
    /// A user had paused the guest: it is taken over, and stays paused.
    pub keep_paused: bool,
}

/// What the target has made of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TakenOver {
    /// The guest runs, or has run, at the target.
    Resumed,
    /// The guest is complete at the target and paused, as it was at the source.
    LeftPaused,
    /// Something of a later version, of which nothing is known here. It is never made of one.
    #[serde(other)]
    Unknown,
}

/// Why something of a hand-over is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum HandOverRefusal {
    /// Whether the guest stays paused was said to the target already.
    #[error("the target has been told already whether the guest stays paused")]
    AlreadyReleased,
    /// The target says that it took over what nobody gave it.
    #[error("the target says that it took the guest over, which was not released")]
    NotReleased,
    /// The other side's tunnel is of a later version, and says something that is not understood here.
    #[error("the other tunnel is of a later version, and what it says of the guest is not understood")]
    NotUnderstood,
}

impl HandOverRefusal {
    /// A stable word for it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::AlreadyReleased => "AlreadyReleased",
            Self::NotReleased => "NotReleased",
            Self::NotUnderstood => "NotUnderstood",
        }
    }
}

/// The source's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSide {
    keep_paused: bool,
    proof: Option<Proof>,
    /// What the target may have heard: the same is said each time.
    sent: Option<Release>,
    taken_over: Option<TakenOver>,
}

impl SourceSide {
    /// Whether the guest is to stay paused. The last word counts until the first release is sent.
    ///
    /// # Errors
    /// If the target has been told the contrary.
    pub fn keep_paused(&mut self, keep_paused: bool) -> Result<(), HandOverRefusal> {
        if self.sent.is_some_and(|sent| sent.keep_paused != keep_paused) {
            return Err(HandOverRefusal::AlreadyReleased);
        }
        self.keep_paused = keep_paused;
        Ok(())
    }

    /// The guest can never go on at the source. The first proof is the one that is told; one that is not known
    /// proves nothing.
    pub fn prove(&mut self, proof: Proof) {
        if proof != Proof::Unknown {
            self.proof.get_or_insert(proof);
        }
    }

    /// What the target is to be told now, on every connection and until it has acknowledged. From
    /// here on it counts as told.
    pub fn release(&mut self) -> Option<Release> {
        if self.taken_over.is_some() {
            return None;
        }
        let keep_paused = self.keep_paused;
        let release = self.proof.map(|proof| Release { proof, keep_paused })?;
        Some(*self.sent.get_or_insert(release))
    }

    /// The target has taken over; the first such word counts.
    ///
    /// # Errors
    /// If nothing was released to it, or it is not known how it has taken over.
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

    /// The proof, if there is one.
    pub fn proof(&self) -> Option<Proof> {
        self.proof
    }

    /// What the target has said.
    pub fn taken_over(&self) -> Option<TakenOver> {
        self.taken_over
    }
}

/// The guest at the target, as its libvirt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuestHere {
    /// It cannot be told.
    Unknown,
    /// There is none.
    Absent,
    /// A part of it is here.
    Incoming,
    /// The whole of it is here, and it has not run here.
    Complete,
    /// It runs here, or has run here.
    HasRun,
}

/// What the target does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetStep {
    /// Nothing, until the guest's state changes or the source says something.
    Wait,
    /// Resume the guest.
    Resume,
    /// Note that the guest has been taken over, and say so to the source.
    TakeOver(TakenOver),
    /// Say again that the guest has been taken over.
    Acknowledge(TakenOver),
}

/// The target's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetSide {
    release: Option<Release>,
    taken_over: Option<TakenOver>,
}

impl TargetSide {
    /// The source has released the guest. The first such word counts, as the source repeats itself.
    ///
    /// # Errors
    /// If its proof is not known: the guest waits, and its agent takes over by what the object says.
    pub fn released(&mut self, release: Release) -> Result<(), HandOverRefusal> {
        if release.proof == Proof::Unknown {
            return Err(HandOverRefusal::NotUnderstood);
        }
        self.release.get_or_insert(release);
        Ok(())
    }

    /// What to do with a guest that is in this state.
    pub fn step(&self, guest: GuestHere) -> TargetStep {
        let Some(release) = self.release else {
            return TargetStep::Wait;
        };
        if let Some(taken_over) = self.taken_over {
            return TargetStep::Acknowledge(taken_over);
        }
        match guest {
            GuestHere::Unknown | GuestHere::Absent | GuestHere::Incoming => TargetStep::Wait,
            GuestHere::Complete if release.keep_paused => TargetStep::TakeOver(TakenOver::LeftPaused),
            GuestHere::Complete => TargetStep::Resume,
            GuestHere::HasRun => TargetStep::TakeOver(TakenOver::Resumed),
        }
    }

    /// The guest has been taken over: libvirt has resumed it, or it stays paused as told.
    pub fn take_over(&mut self, taken_over: TakenOver) {
        self.taken_over.get_or_insert(taken_over);
    }

    /// What the source has said.
    pub fn release(&self) -> Option<Release> {
        self.release
    }

    /// What became of it.
    pub fn taken_over(&self) -> Option<TakenOver> {
        self.taken_over
    }
}

#[cfg(test)]
mod tests;
