//! Commands of users to a guest that is about to move: which of them make it run, as its agents decide it.
//!
//! Only an unpause makes a guest run that did not. It is sent to the node that the instance names; since that may change
//! on the way, and since the agents' copies of the instance may be old, it is tried on both.

use std::sync::LazyLock;

use drydock_api::{kubevirt::VirtualMachineInstance, node_api::GuestCommand};
use drydock_core::{
    guest_command::{self, CommandInput, GuestCall, RunState},
    migration::{
        source::{JobState, SourceDomain},
        target::TargetDomain,
    },
};
use serde_json::json;

use super::{mutants::Mutant, world::SearchWorld};

/// Names of the nodes.
const NODES: [&str; 2] = ["source", "target"];

/// The instance by the node that it names, and by whether it shows the migration under way.
static INSTANCES: LazyLock<[[VirtualMachineInstance; 2]; 2]> = LazyLock::new(|| {
    NODES.map(|node| {
        [false, true].map(|migrating| {
            let state = if migrating {
                json!({"migrationUid": "m"})
            } else {
                json!(null)
            };
            serde_json::from_value(json!({
                "metadata": {"name": "vm"},
                "spec": {"domain": {"devices": {}}},
                "status": {"phase": "Running", "nodeName": node, "migrationState": state},
            }))
            .unwrap()
        })
    })
});

/// Returns whether an unpause makes the guest run on its source.
pub(crate) fn resumes_here(world: &SearchWorld, mutant: Option<Mutant>) -> bool {
    let activity = match world.here {
        SourceDomain::Paused if world.job() == JobState::None => RunState::Paused,
        // libvirt reports its job, or that it is paused for a migration.
        SourceDomain::Paused | SourceDomain::Leaving | SourceDomain::PostCopy => RunState::Migrating,
        _ => return false,
    };
    resumes(world, 0, world.source.late, activity, mutant)
}

/// Returns whether an unpause makes the guest run on its target.
pub(crate) fn resumes_there(world: &SearchWorld, mutant: Option<Mutant>) -> bool {
    // libvirt reports a guest that has arrived as paused, and no job.
    world.there == TargetDomain::Complete && resumes(world, 1, world.target.late, RunState::Paused, mutant)
}

fn resumes(world: &SearchWorld, side: usize, late: bool, activity: RunState, mutant: Option<Mutant>) -> bool {
    if mutant == Some(Mutant::CommandsReachEitherNode) {
        return activity == RunState::Paused;
    }
    // An agent that receives updates late has a copy from before the migration, or one from before its end.
    let nodes = if late {
        0..=usize::from(world.moved)
    } else {
        usize::from(world.moved)..=usize::from(world.moved)
    };
    nodes.into_iter().any(|named| {
        let states = if late { &[false, true][..] } else { &[true][..] };
        states.iter().any(|migrating| {
            let facts = CommandInput {
                instance: &INSTANCES[named][usize::from(*migrating && !world.api.is_over())],
                node: NODES[side],
                activity,
                agent_connected: true,
            };
            guest_command::plan(&facts, GuestCommand::Unpause) == Ok(GuestCall::Resume)
        })
    })
}
