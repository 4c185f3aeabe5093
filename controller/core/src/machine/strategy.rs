//! The table of run strategies: whether an instance is made, ended or left.
//!
//! | | no instance | live | ended well | failed | ended by the cluster |
//! |---|---|---|---|---|---|
//! | Always | make | leave | make anew | make anew | make anew |
//! | RerunOnFailure | make if new or asked | leave | delete | make anew | make anew |
//! | Manual | make if asked | leave | leave | leave | leave |
//! | Once | make | leave | leave | leave | leave |
//! | Halted | leave | delete | delete | delete | delete |
//!
//! It is KubeVirt's, but for the last column: there a guest that shut down cleanly because its node
//! was drained, or its pod deleted, counts as one that shut down of its own will. `Manual` and `Once`
//! start nothing that nobody has asked for, whoever has ended it: that is what people choose them for.

use drydock_api::kubevirt::{
    RunStrategy,
    machine::{StateChange, StateChangeRequest},
};

/// What is true of the instance of a machine's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is none.
    Absent,
    /// It belongs to something else.
    Foreign,
    /// It is being deleted.
    Leaving,
    /// Its guest has ended.
    Final {
        /// Not by shutting down cleanly.
        failed: bool,
        /// The cluster has ended it: by an eviction, a deletion of its pod, or a shutdown of its node.
        evicted: bool,
    },
    /// Its guest runs, or will.
    Live,
}

/// What a machine was asked to do with its present instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// To end it.
    pub stop: bool,
    /// To end an instance that is not the present one.
    pub stop_of_another: bool,
    /// To run.
    pub start: bool,
    uid: Option<String>,
}

impl Asked {
    /// What these requests ask of the instance with this UID, or of none.
    pub fn of(requests: &[StateChangeRequest], uid: Option<&str>) -> Self {
        let mut asked = Self {
            uid: uid.map(Into::into),
            ..Self::default()
        };
        for request in requests {
            match request.action {
                StateChange::Start => asked.start = true,
                StateChange::Stop if asked.concerns(request) => asked.stop = true,
                StateChange::Stop => asked.stop_of_another = true,
            }
        }
        asked
    }

    /// Whether a request to stop is about the present instance.
    pub(super) fn concerns(&self, request: &StateChangeRequest) -> bool {
        self.uid.is_some() && (request.uid.is_none() || request.uid == self.uid)
    }
}

/// What becomes of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Rest,
    /// It is made.
    Start,
    /// It is deleted.
    End(Why),
}

/// Why an instance is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The machine is to be halted.
    Halted,
    /// Somebody asked for it.
    StopRequested,
    /// The guest has ended, and is not to run again.
    Finished,
    /// The guest has ended, and is to run again.
    RunAgain,
    /// The machine is deleted.
    MachineDeleted,
}

impl Why {
    /// For people, after "deleted the instance: ".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Halted => "the machine is halted",
            Self::StopRequested => "this was asked for",
            Self::Finished => "its guest has shut down",
            Self::RunAgain => "its guest has ended and is to run again",
            Self::MachineDeleted => "the machine is deleted",
        }
    }
}

/// What becomes of the instance. `is_new` says that this run strategy was not in force before.
pub fn decide(strategy: RunStrategy, standing: Standing, asked: &Asked, is_new: bool) -> Decision {
    use RunStrategy::{Always, Halted, Manual, Once, RerunOnFailure};
    match standing {
        Standing::Foreign | Standing::Leaving => Decision::Rest,
        Standing::Live | Standing::Final { .. } if strategy == Halted => Decision::End(Why::Halted),
        Standing::Live if asked.stop => Decision::End(Why::StopRequested),
        Standing::Live => Decision::Rest,
        Standing::Final { failed, evicted } => match strategy {
            Always => Decision::End(Why::RunAgain),
            RerunOnFailure if (failed || evicted) && !asked.stop => Decision::End(Why::RunAgain),
            RerunOnFailure => Decision::End(Why::Finished),
            // Without the instance of last time the next start is a new one.
            Manual if asked.stop || asked.start => Decision::End(Why::StopRequested),
            Once if asked.stop => Decision::End(Why::StopRequested),
            Manual | Once | Halted => Decision::Rest,
        },
        Standing::Absent => {
            let runs = match strategy {
                Always | Once => true,
                RerunOnFailure => asked.start || is_new,
                Manual => asked.start,
                Halted => false,
            };
            if runs { Decision::Start } else { Decision::Rest }
        }
    }
}
