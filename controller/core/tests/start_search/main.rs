//! Explores every possible course of an instance's start, up to a limited number of faults: is its guest started at most
//! once, and does it run in one pod?
//!
//! The rules are those of `drydock_core`: the agent starts by [`may_start`](drydock_core::guest::start::may_start), and
//! the controller names and deletes pods and ends the instance by [`plan`](drydock_core::instance::plan). The rest is a
//! model: agents and kubelets of two nodes with one pod each, libvirtd, launchers, users. The second pod replaces the
//! first, or is the target of a migration. The migration itself is one step here, which follows once the instance names
//! the target's pod: `migration_search` explores it.
//!
//! Agents see the instance and their pod as late as they like, and are replaced at any time. A call to libvirtd ends
//! with the process that made it, or with libvirtd. Two faults or actions of users are enough for each guard that is left
//! out to be missed: 382 thousand states.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

#[path = "../migration_search/mix.rs"]
mod mix;
mod start_controller;
mod start_moves;

use std::{collections::HashMap, hash::BuildHasherDefault};

use drydock_api::kubevirt::Phase;

use mix::Mix;
use start_controller::PlannedInstances;
use start_moves::{Domain, Launcher, StartEvent, StartMutant, StartWorld, successors};

/// A violated invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokenStart {
    /// The guest was started twice.
    StartedTwice,
    /// The guest runs in both pods.
    RunsInTwoPods,
    /// The guest runs although the instance has ended, so another instance of its machine may run too.
    OutlivesInstance,
    /// No fault-free course leads to a good end.
    NeverStarts,
}

fn broken(world: &StartWorld) -> Option<BrokenStart> {
    let runs = world
        .launchers
        .map(|launcher| launcher == Launcher::Ready(Domain::Running));
    if world.starts > 1 {
        return Some(BrokenStart::StartedTwice);
    }
    if runs == [true; 2] {
        return Some(BrokenStart::RunsInTwoPods);
    }
    let over = world.vmi.gone || world.vmi.phase.is_final();
    (over && runs != [false; 2]).then_some(BrokenStart::OutlivesInstance)
}

/// Returns whether the guest runs and is reported, or the instance has ended. Without faults only the former counts.
fn is_good(world: &StartWorld, struck: bool) -> bool {
    let runs = world.launchers.contains(&Launcher::Ready(Domain::Running));
    let ended = world.vmi.gone || world.vmi.phase.is_final() || world.has_no_pod_left();
    (runs && world.vmi.phase == Phase::Running) || (struck && ended)
}

/// The number of states, or the violated invariant with the events that lead to it.
type Searched = Result<usize, (BrokenStart, Vec<StartEvent>)>;

/// Searches breadth first all states with this number of faults.
fn search(faults: u8, mutant: Option<StartMutant>) -> Searched {
    let mut controller = PlannedInstances::default();
    let first = StartWorld::new(faults);
    let mut worlds = vec![first];
    let mut known: HashMap<StartWorld, usize, BuildHasherDefault<Mix>> = HashMap::default();
    known.insert(first, 0);
    let mut parents = vec![(0, None)];
    // The predecessors of each state by events that are no faults.
    let mut fair: Vec<Vec<usize>> = vec![Vec::new()];
    let mut at = 0;
    while let Some(world) = worlds.get(at).copied() {
        for (event, to) in successors(&world, mutant, &mut controller) {
            let next = *known.entry(to).or_insert(worlds.len());
            if next == worlds.len() {
                worlds.push(to);
                parents.push((at, Some(event)));
                fair.push(Vec::new());
                if let Some(law) = broken(&to) {
                    return Err((law, trace(&parents, next)));
                }
            }
            if to.faults == world.faults {
                fair[next].push(at);
            }
        }
        at += 1;
    }
    let mut good: Vec<bool> = worlds.iter().map(|world| is_good(world, faults > 0)).collect();
    let mut todo: Vec<usize> = (0..worlds.len()).filter(|at| good[*at]).collect();
    while let Some(at) = todo.pop() {
        for before in &fair[at] {
            if !std::mem::replace(&mut good[*before], true) {
                todo.push(*before);
            }
        }
    }
    match good.iter().position(|good| !good) {
        None => Ok(worlds.len()),
        Some(stuck) => Err((BrokenStart::NeverStarts, trace(&parents, stuck))),
    }
}

/// Returns the shortest course to a state.
fn trace(parents: &[(usize, Option<StartEvent>)], mut at: usize) -> Vec<StartEvent> {
    let mut events = Vec::new();
    while let (parent, Some(event)) = parents[at] {
        events.push(event);
        at = parent;
    }
    events.reverse();
    events
}

#[test]
fn guest_is_started_if_nothing_fails() {
    let found = search(0, None);
    println!("{found:?}");
    assert!(found.is_ok(), "{found:#?}");
}

#[test]
fn guest_is_started_once_and_runs_in_one_pod() {
    let found = search(2, None);
    println!("{found:?}");
    assert!(found.is_ok(), "{found:#?}");
}

#[test]
fn guard_that_is_left_out_is_missed() {
    let mut survivors = Vec::new();
    for mutant in StartMutant::ALL {
        match search(2, Some(mutant)) {
            Err((law, events)) => println!("{mutant:?}: {law:?} after {events:?}"),
            Ok(_) => survivors.push(mutant),
        }
    }
    // A guest that is started although it is to end runs once nevertheless, and ends. `may_start` has why it is not.
    assert_eq!(
        survivors,
        [
            StartMutant::IgnoresDeletionOfInstance,
            StartMutant::IgnoresDeletionOfPod
        ]
    );
}
