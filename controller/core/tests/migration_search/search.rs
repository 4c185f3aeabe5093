//! Visits all reachable states breadth first, so that a reported trace is the shortest.

use std::{collections::HashMap, hash::BuildHasherDefault, ops::Range};

use super::{
    laws::{Broken, broken, is_settled},
    mix::Mix,
    moves::{How, ModelEvent, events},
    world::SearchWorld,
};

/// The result of a search.
pub(crate) struct SearchResult {
    /// Number of states.
    pub(crate) worlds: usize,
    /// Number of events from the first state to the farthest.
    pub(crate) depth: usize,
    /// The violated invariant, and the trace that leads to it.
    pub(crate) broken: Option<(Broken, Vec<(ModelEvent, SearchWorld)>)>,
}

/// Searches all states that can be reached from `first`.
pub(crate) fn search(first: SearchWorld, how: How) -> SearchResult {
    let mut search = Search {
        how,
        ..Search::default()
    };
    search.run(first)
}

#[derive(Default)]
struct Search {
    how: How,
    worlds: Vec<SearchWorld>,
    known: HashMap<SearchWorld, u32, BuildHasherDefault<Mix>>,
    /// The state from which each state was first reached.
    parents: Vec<u32>,
    /// Transitions without faults: from, to.
    fair: Vec<(u32, u32)>,
}

impl Search {
    fn run(&mut self, first: SearchWorld) -> SearchResult {
        self.add(first, 0);
        let mut depth = 0;
        let mut level: Range<usize> = 0..1;
        while !level.is_empty() {
            for at in level.clone() {
                if let Some((event, law, world)) = self.visit(at) {
                    let mut trace = self.trace(at);
                    trace.push((event, world));
                    return self.found(depth + 1, Some((law, trace)));
                }
            }
            depth += 1;
            level = level.end..self.worlds.len();
        }
        let stuck = self.stuck().map(|at| (Broken::NeverEnds, self.trace(at)));
        self.found(depth - 1, stuck)
    }

    fn found(&self, depth: usize, broken: Option<(Broken, Vec<(ModelEvent, SearchWorld)>)>) -> SearchResult {
        SearchResult {
            worlds: self.worlds.len(),
            depth,
            broken,
        }
    }

    /// Adds the successors of a state. Returns the first violated invariant.
    fn visit(&mut self, at: usize) -> Option<(ModelEvent, Broken, SearchWorld)> {
        let world = self.worlds[at];
        let from = u32::try_from(at).unwrap();
        let mut found = None;
        let mut next = Vec::new();
        events(
            &world,
            self.how,
            &mut |event, fault, result| match result.map(|to| (to, broken(&to))) {
                Ok((to, None)) => next.push((to, fault)),
                Ok((to, Some(law))) => found = found.or(Some((event, law, to))),
                Err(law) => found = found.or(Some((event, law, world))),
            },
        );
        for (to, fault) in next {
            let to = self.add(to, from);
            if !fault {
                self.fair.push((from, to));
            }
        }
        found
    }

    fn add(&mut self, world: SearchWorld, parent: u32) -> u32 {
        let next = u32::try_from(self.worlds.len()).unwrap();
        let at = *self.known.entry(world).or_insert(next);
        if at == next {
            self.worlds.push(world);
            self.parents.push(parent);
        }
        at
    }

    /// Returns the first state from which no fault-free path leads to a good end. Assumes fairness: without further
    /// faults, an event that stays possible happens eventually.
    fn stuck(&mut self) -> Option<usize> {
        let count = self.worlds.len();
        // The predecessors of each state: one list per state, concatenated.
        let mut ends = vec![0_u32; count + 1];
        for (_, to) in &self.fair {
            ends[*to as usize] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        let mut before = vec![0_u32; self.fair.len()];
        for (from, to) in &self.fair {
            let end = &mut ends[*to as usize];
            *end -= 1;
            before[*end as usize] = *from;
        }
        let mut good = vec![false; count];
        let mut todo: Vec<u32> = Vec::new();
        for (at, world) in self.worlds.iter().enumerate() {
            if is_settled(world) {
                good[at] = true;
                todo.push(u32::try_from(at).unwrap());
            }
        }
        while let Some(at) = todo.pop() {
            let at = at as usize;
            for from in &before[ends[at] as usize..ends[at + 1] as usize] {
                if !std::mem::replace(&mut good[*from as usize], true) {
                    todo.push(*from);
                }
            }
        }
        good.iter().position(|good| !good)
    }

    /// Returns the events that lead to a state.
    fn trace(&self, at: usize) -> Vec<(ModelEvent, SearchWorld)> {
        let mut path = vec![at];
        while path[path.len() - 1] != 0 {
            path.push(self.parents[path[path.len() - 1]] as usize);
        }
        path.reverse();
        path.windows(2)
            .map(|pair| (self.between(pair[0], pair[1]), self.worlds[pair[1]]))
            .collect()
    }

    fn between(&self, from: usize, to: usize) -> ModelEvent {
        let mut between = None;
        events(&self.worlds[from], self.how, &mut |event, _, result| {
            if result == Ok(self.worlds[to]) {
                between = Some(event);
            }
        });
        between.unwrap()
    }
}
