//! The table of run strategies: whether an instance is created, deleted or left alone.
//!
//! | | no instance | live | ended well | failed | ended by the cluster |
//! |---|---|---|---|---|---|
//! | Always | create | leave | recreate | recreate | recreate |
//! | RerunOnFailure | create if new or requested | leave | delete | recreate | recreate |
//! | Manual | create if requested | leave | leave | leave | leave |
//! | Once | create | leave | leave | leave | leave |
//! | Halted | leave | delete | delete | delete | delete |
//!
//! The table is KubeVirt's, except for the last column: in KubeVirt, a guest that shut down cleanly because its node
//! was drained, or its pod deleted, counts as shut down of its own accord. `Manual` and `Once` never start a guest
//! without a request, whatever ended it: that is why users choose them.

use drydock_api::kubevirt::{
    RunStrategy,
    machine::{StateChange, StateChangeRequest},
};

/// State of the instance with a machine's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The instance does not exist.
    Absent,
    /// The instance belongs to another owner.
    Foreign,
    /// The instance is being deleted.
    Leaving,
    /// The guest of the instance has ended.
    Final {
        /// Whether the guest ended other than by shutting down cleanly.
        failed: bool,
        /// Whether the cluster has ended the guest: by an eviction, a deletion of its pod, or a shutdown of its node.
        evicted: bool,
    },
    /// The guest of the instance runs, or will run.
    Live,
}

/// The requests for a machine's present instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedChanges {
    /// Whether a stop of the present instance is requested.
    pub stop: bool,
    /// Whether a stop of an instance that is not the present one is requested.
    pub stop_of_another: bool,
    /// Whether a start is requested.
    pub start: bool,
    uid: Option<String>,
}

impl RequestedChanges {
    /// Evaluates these requests for the instance with this UID, or for none.
    pub fn of(requests: &[StateChangeRequest], uid: Option<&str>) -> Self {
        let mut requested = Self {
            uid: uid.map(Into::into),
            ..Self::default()
        };
        for request in requests {
            match request.action {
                StateChange::Start => requested.start = true,
                StateChange::Stop if requested.concerns(request) => requested.stop = true,
                StateChange::Stop => requested.stop_of_another = true,
            }
        }
        requested
    }

    /// Returns whether a request to stop concerns the present instance.
    pub(super) fn concerns(&self, request: &StateChangeRequest) -> bool {
        self.uid.is_some() && (request.uid.is_none() || request.uid == self.uid)
    }
}

/// The action for the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceDecision {
    /// Leave the instance alone.
    Rest,
    /// Create the instance.
    Start,
    /// Delete the instance.
    End(DeletionReason),
}

/// Why an instance is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeletionReason {
    /// The machine is to be halted.
    Halted,
    /// A user requested that the machine is stopped.
    StopRequested,
    /// The guest has ended, and will not run again.
    Finished,
    /// The guest has ended, and will run again.
    RunAgain,
    /// The machine is being deleted.
    MachineDeleted,
}

impl DeletionReason {
    /// Returns the text that follows "deleted the instance: ".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Halted => "the run strategy is Halted",
            Self::StopRequested => "requested by a user",
            Self::Finished => "the guest has shut down",
            Self::RunAgain => "the guest has ended and will be started again",
            Self::MachineDeleted => "the virtual machine is being deleted",
        }
    }
}

/// Decides whether the instance is created, deleted or left alone. `is_new`: this run strategy was not in force before.
pub fn decide(
    strategy: RunStrategy,
    standing: Standing,
    requested: &RequestedChanges,
    is_new: bool,
) -> InstanceDecision {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    match standing {
        Standing::Foreign | Standing::Leaving => InstanceDecision::Rest,
        Standing::Live | Standing::Final { .. } if strategy == Halted => InstanceDecision::End(DeletionReason::Halted),
        Standing::Live if requested.stop => InstanceDecision::End(DeletionReason::StopRequested),
        Standing::Live => InstanceDecision::Rest,
        Standing::Final { failed, evicted } => match strategy {
            Always => InstanceDecision::End(DeletionReason::RunAgain),
            RerunOnFailure if (failed || evicted) && !requested.stop => InstanceDecision::End(DeletionReason::RunAgain),
            RerunOnFailure => InstanceDecision::End(DeletionReason::Finished),
            // The next start creates a new instance, so the previous one is deleted.
            Manual if requested.stop || requested.start => InstanceDecision::End(DeletionReason::StopRequested),
            Once if requested.stop => InstanceDecision::End(DeletionReason::StopRequested),
            Manual | Once | Halted => InstanceDecision::Rest,
        },
        Standing::Absent => {
            let runs = match strategy {
                Always | Once => true,
                RerunOnFailure => requested.start || is_new,
                Manual => requested.start,
                Halted => false,
            };
            if runs {
                InstanceDecision::Start
            } else {
                InstanceDecision::Rest
            }
        }
    }
}
