//! Explores every possible course of a migration, up to a limited number of faults.
//!
//! ```text
//!  state ── each possible event: agents and controllers reconcile and act, one step after the other;
//!    ▲      libvirt continues; messages arrive, late or never; processes and nodes are lost ──▶ states
//!    └────────────────── new ones, breadth first ◀── invariants hold? ◀────────────────────────────┘
//! ```
//!
//! The step functions are those of `drydock_core::migration`, as the binaries call them; the rest is a model. The
//! invariants of every state are in [`laws::broken`]. In addition, a good end must be reachable from every state
//! without a further fault ([`laws::is_settled`]): a party that keeps retrying gets there.
//!
//! Explored completely:
//!
//! | from | faults | in addition | states | depth |
//! |---|---|---|---|---|
//! | a new object | 1 | | 326 thousand | 52 |
//! | the target ready | 2 | | 5.6 million | 40 |
//! | the target ready | 1 | the controller has old copies of the object, and is interrupted | 2.3 million | 47 |
//! | the target ready | 1 | domain and job are read one after the other | 823 thousand | 50 |
//! | the target ready | 1 | the guest may be switched to post-copy | 477 thousand | 38 |
//! | the target ready | 1 | the guest's user has paused it | 263 thousand | 35 |
//!
//! A fault is a crash of an agent, a tunnel, libvirtd or a controller, the loss of a node, the deletion of a Node
//! object whose agent is alive, a broken connection, an end of the guest on either side, an agent that receives all
//! updates late, a deletion of the object, of the VMI or of the target pod, a user's unpause, or a deadline. The ignored test goes
//! further.
//!
//! To run it alone:
//! `cargo test -p drydock-core --test migration_search --config profile.dev.package.drydock-core.opt-level=1`

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

mod commands;
mod laws;
mod mix;
mod moves;
mod mutants;
mod search;
mod world;

use moves::How;
use mutants::Mutant;
use search::{SearchResult, search};
use world::SearchWorld;

/// Describes a result for the reader of a failed test.
fn story(found: &SearchResult) -> String {
    let Some((law, trace)) = &found.broken else {
        return format!("{} worlds, depth {}", found.worlds, found.depth);
    };
    let mut text = format!("{law:?} after {} events, among {} worlds\n", trace.len(), found.worlds);
    for (event, world) in trace {
        let (phase, source, target) = (world.api.phase, world.api.source, world.api.target);
        text += &format!(
            "  {event:?}: {:?} here, {:?} there, {:?}; {phase:?}, {source:?}, {target:?}; pods {:?}, {:?}\n",
            world.here, world.there, world.move_, world.source_pod, world.target_pod,
        );
    }
    text + &format!("{:#?}", trace.last())
}

fn holds(first: SearchWorld, how: How) {
    let found = search(first, how);
    println!("{}", story(&found));
    assert!(found.broken.is_none(), "{}", story(&found));
}

#[test]
fn from_a_new_object() {
    holds(SearchWorld::new(1, 1), How::default());
}

#[test]
fn from_a_target_that_is_ready() {
    holds(SearchWorld::ready(2, 1), How::default());
}

#[test]
fn with_a_controller_that_reads_a_stale_object() {
    let how = How {
        stale: true,
        ..How::default()
    };
    holds(SearchWorld::ready(1, 1), how);
}

#[test]
fn with_a_source_that_reads_one_thing_after_the_other() {
    let how = How {
        piecewise: true,
        ..How::default()
    };
    holds(SearchWorld::ready(1, 1), how);
}

#[test]
fn with_a_guest_that_may_be_switched_to_post_copy() {
    let how = How {
        post_copy: true,
        ..How::default()
    };
    holds(SearchWorld::ready(1, 1), how);
}

#[test]
fn with_a_guest_paused_by_the_user() {
    holds(SearchWorld::paused(1), How::default());
}

#[test]
#[ignore = "takes minutes and gigabytes: cargo test --release -p drydock-core --test migration_search -- --ignored --test-threads 1"]
fn with_more_faults() {
    let piecewise = How {
        piecewise: true,
        ..How::default()
    };
    let stale = How {
        stale: true,
        ..How::default()
    };
    let post_copy = How {
        post_copy: true,
        ..How::default()
    };
    holds(SearchWorld::ready(2, 1), post_copy);
    // The second controller takes over at any time, and the first continues what it had begun.
    holds(SearchWorld::ready(0, 2), stale);
    holds(SearchWorld::ready(1, 2), stale);
    holds(SearchWorld::ready(2, 1), piecewise);
    holds(SearchWorld::new(2, 1), How::default());
    holds(SearchWorld::ready(3, 1), How::default());
}

#[test]
fn a_guard_that_is_left_out_is_missed() {
    let mut survivors = Vec::new();
    for mutant in Mutant::ALL {
        let how = How {
            mutant: Some(mutant),
            piecewise: mutant == Mutant::ReadsTheJobFirst,
            stale: mutant == Mutant::ControllerWritesWithoutVersion,
            post_copy: mutant.needs_post_copy(),
        };
        let first = if mutant.needs_paused_guest() {
            SearchWorld::paused(mutant.faults())
        } else {
            SearchWorld::ready(mutant.faults(), 1)
        };
        let found = search(first, how);
        match &found.broken {
            Some((law, trace)) => println!("{mutant:?}: {law:?} after {} of {}", trace.len(), found.worlds),
            None => survivors.push(mutant),
        }
    }
    assert!(survivors.is_empty(), "{survivors:?}");
}
