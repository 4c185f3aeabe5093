//! Checks the invariants after any fault: one guest, no data missing, and objects with the correct node.
//!
//! ```text
//!  migration  Succeeded ──▶ the guest is on the target      the instance names that node, one pod is
//!             Failed    ──▶ on the source, with a reason    left on it, one QEMU runs on it and none
//!                       └─▶ or has ended, if the fault hit  elsewhere, and the guest's numbers continue
//!                           the guest itself: so reported
//! ```

use std::collections::BTreeMap;

use drydock_api::kubevirt::{Phase, migration::MigrationPhase};

use crate::guests::{Tick, without_a_gap};

/// The guest's fate after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The guest is on the source node.
    Stayed,
    /// The guest is on the target node.
    Moved,
    /// The guest has ended, and its instance reports that.
    Ended,
}

/// The observed state after a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundState {
    /// The source node.
    pub source: String,
    /// The target node.
    pub target: String,
    /// Whether the fault may have hit the guest itself.
    pub may_have_ended: bool,
    /// The migration's phase.
    pub migration: Option<MigrationPhase>,
    /// The reason why the migration failed.
    pub reason: Option<String>,
    /// Whether the migration state in the instance's status is completed, and whether it has failed.
    pub state: Option<(bool, bool)>,
    /// The instance's phase.
    pub phase: Option<Phase>,
    /// The instance's node.
    pub node: Option<String>,
    /// The number of QEMU processes with the guest, by node.
    pub running: BTreeMap<String, usize>,
    /// The nodes of the guest's pods that have not ended.
    pub pods: Vec<String>,
    /// The ticks on the guest's consoles, starting with the oldest pod.
    pub printed: Vec<Tick>,
    /// The ticks in the guest's datagrams, in order of arrival.
    pub sent: Vec<Tick>,
}

/// Returns the guest's fate.
///
/// # Errors
/// The invariant that does not hold (yet).
pub fn judge(found: &FoundState) -> Result<Fate, String> {
    let migration = found.migration.filter(|phase| phase.is_final());
    let Some(migration) = migration else {
        return Err(format!("the migration has not ended: {:?}", found.migration));
    };
    if migration == MigrationPhase::Failed && found.reason.as_deref().unwrap_or_default().is_empty() {
        return Err("the migration has failed without a reason".to_owned());
    }
    if let Some(state) = found
        .state
        .filter(|state| *state != (true, migration == MigrationPhase::Failed))
    {
        return Err(format!(
            "the migration is {}, but the instance reports {state:?}",
            migration.as_str()
        ));
    }
    numbers(found)?;
    let nodes: Vec<(&str, usize)> = found
        .running
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(node, count)| (node.as_str(), *count))
        .collect();
    let on = match nodes[..] {
        [] => return ended(found),
        [(node, 1)] => node,
        _ => return Err(format!("the guest runs on {nodes:?}")),
    };
    if found.phase != Some(Phase::Running) {
        return Err(format!("the guest runs on {on}, but the instance is {:?}", found.phase));
    }
    if found.node.as_deref() != Some(on) {
        return Err(format!(
            "the guest runs on {on}, but the node of the instance is {:?}",
            found.node
        ));
    }
    if found.pods != [on] {
        return Err(format!("the guest runs on {on}, but has pods on {:?}", found.pods));
    }
    match migration {
        MigrationPhase::Succeeded if on == found.target => Ok(Fate::Moved),
        MigrationPhase::Failed if on == found.source => Ok(Fate::Stayed),
        other => Err(format!("the guest runs on {on}, the migration is {}", other.as_str())),
    }
}

/// Checks a guest that runs on no node.
fn ended(found: &FoundState) -> Result<Fate, String> {
    if !found.may_have_ended {
        return Err("the guest ended without a fault that may end it".to_owned());
    }
    match found.phase {
        Some(Phase::Failed) if found.pods.is_empty() => Ok(Fate::Ended),
        phase => Err(format!(
            "the guest runs on no node, the instance is {phase:?} with pods on {:?}",
            found.pods
        )),
    }
}

/// Checks the ticks.
///
/// No tick is missing or duplicated on the consoles. Datagrams may be lost, but none arrives twice.
fn numbers(found: &FoundState) -> Result<(), String> {
    without_a_gap(&found.printed).map_err(|error| format!("consoles of the guest: {error:#}"))?;
    let mut highest = BTreeMap::new();
    for tick in &found.sent {
        let before = highest.insert(&tick.boot, tick.number);
        if before.is_some_and(|before| before >= tick.number) {
            return Err(format!("the guest sent tick {} after {before:?}", tick.number));
        }
    }
    match highest.len() {
        0 | 1 => Ok(()),
        boots => Err(format!("the guest has booted {boots} times")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(numbers: &[u64]) -> Vec<Tick> {
        let tick = |number: &u64| Tick {
            number: *number,
            boot: "a".to_owned(),
        };
        numbers.iter().map(tick).collect()
    }

    fn at(nodes: &[(&str, usize)]) -> BTreeMap<String, usize> {
        nodes.iter().map(|(node, count)| ((*node).to_owned(), *count)).collect()
    }

    fn stayed() -> FoundState {
        FoundState {
            source: "one".to_owned(),
            target: "two".to_owned(),
            may_have_ended: false,
            migration: Some(MigrationPhase::Failed),
            reason: Some("GuestStayed".to_owned()),
            state: Some((true, true)),
            phase: Some(Phase::Running),
            node: Some("one".to_owned()),
            running: at(&[("one", 1), ("two", 0)]),
            pods: vec!["one".to_owned()],
            printed: ticks(&[4, 5, 6, 7]),
            sent: ticks(&[3, 5, 6]),
        }
    }

    fn moved() -> FoundState {
        FoundState {
            migration: Some(MigrationPhase::Succeeded),
            reason: None,
            state: Some((true, false)),
            node: Some("two".to_owned()),
            running: at(&[("two", 1)]),
            pods: vec!["two".to_owned()],
            ..stayed()
        }
    }

    fn gone() -> FoundState {
        FoundState {
            may_have_ended: true,
            phase: Some(Phase::Failed),
            running: at(&[("one", 0), ("two", 0)]),
            pods: Vec::new(),
            ..stayed()
        }
    }

    #[test]
    fn allowed_outcomes_are_distinguished() {
        assert_eq!(judge(&stayed()), Ok(Fate::Stayed));
        assert_eq!(judge(&moved()), Ok(Fate::Moved));
        assert_eq!(judge(&gone()), Ok(Fate::Ended));
        // Until the nodes are assigned, the instance has no migration state.
        assert_eq!(
            judge(&FoundState {
                state: None,
                ..stayed()
            }),
            Ok(Fate::Stayed)
        );
    }

    fn wrong(what: &str, found: &FoundState) {
        let verdict = judge(found);
        assert!(verdict.is_err(), "{what}: {verdict:?}");
    }

    fn one() -> Vec<String> {
        vec!["one".to_owned()]
    }

    #[test]
    fn wrong_number_of_guests_is_found() {
        for found in [stayed(), moved()] {
            wrong(
                "two guests",
                &FoundState {
                    running: at(&[("one", 1), ("two", 1)]),
                    ..found.clone()
                },
            );
            wrong(
                "two on a node",
                &FoundState {
                    running: at(&[("one", 2)]),
                    ..found.clone()
                },
            );
        }
    }

    #[test]
    fn lost_repeated_or_restarted_numbers_are_found() {
        for found in [stayed(), moved()] {
            wrong(
                "a number missing",
                &FoundState {
                    printed: ticks(&[4, 5, 7]),
                    ..found.clone()
                },
            );
            wrong(
                "a number twice",
                &FoundState {
                    printed: ticks(&[4, 5, 5, 6]),
                    ..found.clone()
                },
            );
            wrong(
                "a number from two places",
                &FoundState {
                    sent: ticks(&[3, 4, 4]),
                    ..found.clone()
                },
            );
            wrong(
                "older numbers later",
                &FoundState {
                    sent: ticks(&[3, 4, 2]),
                    ..found.clone()
                },
            );
            wrong(
                "no sign of life",
                &FoundState {
                    printed: Vec::new(),
                    ..found.clone()
                },
            );
            let mut rebooted = found.clone();
            rebooted.sent.push(Tick {
                number: 1,
                boot: "b".to_owned(),
            });
            wrong("another boot", &rebooted);
        }
    }

    #[test]
    fn objects_that_contradict_the_guest_are_found() {
        for found in [stayed(), moved()] {
            wrong(
                "a pod too many",
                &FoundState {
                    pods: vec!["one".to_owned(), "two".to_owned()],
                    ..found.clone()
                },
            );
            wrong(
                "an instance without a node",
                &FoundState {
                    node: None,
                    ..found.clone()
                },
            );
            wrong(
                "an instance that has ended",
                &FoundState {
                    phase: Some(Phase::Failed),
                    ..found.clone()
                },
            );
            wrong(
                "a guest lost",
                &FoundState {
                    running: BTreeMap::new(),
                    ..found.clone()
                },
            );
            wrong(
                "not over",
                &FoundState {
                    migration: Some(MigrationPhase::Running),
                    ..found.clone()
                },
            );
            wrong(
                "no migration",
                &FoundState {
                    migration: None,
                    ..found.clone()
                },
            );
            wrong(
                "an instance without its state",
                &FoundState {
                    state: Some((false, false)),
                    ..found.clone()
                },
            );
        }
    }

    #[test]
    fn outcome_that_contradicts_the_migration_is_found() {
        wrong(
            "the wrong node",
            &FoundState {
                node: Some("two".to_owned()),
                ..stayed()
            },
        );
        wrong("a pod elsewhere", &FoundState { pods: one(), ..moved() });
        wrong(
            "succeeded, and still there",
            &FoundState {
                running: at(&[("one", 1)]),
                node: Some("one".to_owned()),
                pods: one(),
                ..moved()
            },
        );
        wrong(
            "failed, and moved",
            &FoundState {
                migration: Some(MigrationPhase::Failed),
                reason: Some("x".to_owned()),
                state: None,
                ..moved()
            },
        );
        wrong(
            "failed without a reason",
            &FoundState {
                reason: None,
                ..stayed()
            },
        );
        wrong(
            "the states differ",
            &FoundState {
                state: Some((true, false)),
                ..stayed()
            },
        );
        wrong(
            "lost without a reason to be",
            &FoundState {
                may_have_ended: false,
                ..gone()
            },
        );
        wrong(
            "ended and not reported",
            &FoundState {
                phase: Some(Phase::Running),
                ..gone()
            },
        );
        wrong("ended with a pod left", &FoundState { pods: one(), ..gone() });
    }
}
