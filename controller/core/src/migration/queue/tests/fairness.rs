//! Which entries may overtake others, and for how long.

use proptest::prelude::*;

use super::*;

/// Entries on few nodes in any stage.
fn entries() -> impl Strategy<Value = Vec<QueuedMigration>> {
    let urgency = prop::sample::select(vec![
        Urgency::None,
        Urgency::SystemMaintenance,
        Urgency::UserTriggered,
        Urgency::SystemCritical,
    ]);
    let node = || prop::sample::select(vec!["a", "b", "c", "d"]);
    let one = (urgency, 0i64..3, node(), node(), 0u8..6);
    prop::collection::vec(one, 0..30).prop_map(|all| {
        let entry = |(number, (urgency, age, source, target, stage))| QueuedMigration {
            uid: format!("m{number}"),
            name: format!("default/m{number}"),
            urgency,
            created: NOW - SignedDuration::from_secs(age),
            order: 0,
            source: String::from(source),
            stage: match stage {
                0 => waiting(),
                1 => placing(),
                2 => stuck(),
                3 => placed(target),
                4 => ready_for_long(target),
                _ => holding(target),
            },
        };
        all.into_iter().enumerate().map(entry).collect()
    })
}

fn some_limits() -> impl Strategy<Value = MigrationSettings> {
    (0u32..8, 0u32..4, 0u32..4).prop_map(|(cluster, out, into)| limits(cluster, out, into))
}

/// Numbers of slots in use: in the cluster, leaving `source`, arriving at `target`.
fn load(entries: &[QueuedMigration], source: &str, target: &str) -> [usize; 3] {
    let mut load = [0; 3];
    for entry in entries {
        if let QueueStage::Holding { target: own } = &entry.stage {
            load[0] += 1;
            load[1] += usize::from(entry.source == source);
            load[2] += usize::from(own == target);
        }
    }
    load
}

fn has_room(limits: &MigrationSettings, entries: &[QueuedMigration], source: &str, target: &str) -> bool {
    let limits = [limits.per_cluster, limits.outbound_per_node, limits.inbound_per_node];
    load(entries, source, target)
        .iter()
        .zip(limits)
        .all(|(taken, limit)| *taken < count(limit))
}

fn give(entries: &mut [QueuedMigration], uid: &str) {
    let entry = entries.iter_mut().find(|entry| entry.uid == uid).unwrap();
    let QueueStage::Placed { target, .. } = &entry.stage else {
        panic!("{entry:?} is not ready");
    };
    entry.stage = holding(&target.clone());
}

proptest! {
    #[test]
    fn the_order_of_the_input_does_not_matter(
        limits in some_limits(),
        (entries, shuffled) in entries().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
    ) {
        prop_assert_eq!(grants(&limits, &entries, NOW), grants(&limits, &shuffled, NOW));
    }

    #[test]
    fn each_migration_is_granted_waiting_or_in_progress(limits in some_limits(), entries in entries()) {
        let grants = grants(&limits, &entries, NOW);
        for entry in &entries {
            let times = |list: &[String]| list.iter().filter(|uid| **uid == entry.uid).count();
            let waits = grants.waiting.iter().filter(|(uid, _)| *uid == entry.uid).count();
            let found = [times(&grants.place), times(&grants.slots), waits];
            let allowed: &[[usize; 3]] = match entry.stage {
                // An entry that may create its pod, or has created it, may have to wait for its slot.
                QueueStage::Waiting => &[[1, 0, 0], [1, 0, 1], [0, 0, 1]],
                QueueStage::Placing { held_up: false } => &[[0, 0, 0], [0, 0, 1]],
                QueueStage::Placed { .. } => &[[0, 1, 0], [0, 0, 1]],
                QueueStage::Placing { held_up: true } | QueueStage::Holding { .. } | QueueStage::Refused => &[[0, 0, 0]],
            };
            prop_assert!(allowed.contains(&found), "{:?}: {:?}", entry, found);
        }
    }

    #[test]
    fn slots_go_in_order_to_those_that_have_room(limits in some_limits(), mut entries in entries()) {
        let granted = grants(&limits, &entries, NOW).slots;
        for uid in &granted {
            let entry = entries.iter().find(|entry| entry.uid == *uid).unwrap().clone();
            let QueueStage::Placed { target, .. } = &entry.stage else { panic!("{entry:?} is not ready") };
            prop_assert!(has_room(&limits, &entries, &entry.source, target), "{:?}", entry);
            give(&mut entries, uid);
        }
        // No entry is left that could proceed, except those held back by the first impatient entry.
        let mut left: Vec<&QueuedMigration> = entries.iter().filter(|entry| matches!(entry.stage, QueueStage::Placed { .. })).collect();
        left.sort_by(|one, other| one.rank().cmp(&other.rank()));
        let impatient = left.iter().find(|entry| matches!(entry.stage, QueueStage::Placed { ready, .. } if ready < NOW));
        for entry in &left {
            let QueueStage::Placed { target, .. } = &entry.stage else { continue };
            let held_back = impatient.is_some_and(|first| {
                let QueueStage::Placed { target: own, .. } = &first.stage else { return false };
                first.rank() < entry.rank() && (first.source == entry.source || own == target)
            });
            prop_assert!(held_back || !has_room(&limits, &entries, &entry.source, target), "{:?} could go", entry);
        }
    }

    /// The cluster is full and no entry is impatient: a freed slot goes to the first entry that has room on its nodes,
    /// and to no other.
    #[test]
    fn a_freed_slot_wakes_exactly_the_next(limits in some_limits(), entries in entries(), which: prop::sample::Index) {
        let mut entries = entries;
        for entry in &mut entries {
            if let QueueStage::Placed { ready, .. } = &mut entry.stage {
                *ready = NOW;
            }
        }
        while let Some(uid) = grants(&limits, &entries, NOW).slots.first() {
            give(&mut entries, uid);
        }
        let holders: Vec<usize> = (0..entries.len())
            .filter(|at| matches!(entries[*at].stage, QueueStage::Holding { .. }))
            .collect();
        if holders.is_empty() {
            return Ok(());
        }
        let limits = MigrationSettings { per_cluster: u32::try_from(holders.len()).unwrap(), ..limits };
        entries.remove(*which.get(&holders));
        let mut ready: Vec<&QueuedMigration> = entries.iter().filter(|entry| matches!(entry.stage, QueueStage::Placed { .. })).collect();
        ready.sort_by(|one, other| one.rank().cmp(&other.rank()));
        let next = ready.iter().find(|entry| {
            let QueueStage::Placed { target, .. } = &entry.stage else { return false };
            has_room(&limits, &entries, &entry.source, target)
        });
        let next: Vec<String> = next.iter().map(|entry| entry.uid.clone()).collect();
        prop_assert_eq!(grants(&limits, &entries, NOW).slots, next);
    }

    #[test]
    fn placed_target_pods_stay_within_the_limits(limits in some_limits(), entries in entries()) {
        let grants = grants(&limits, &entries, NOW);
        for source in ["a", "b", "c", "d"] {
            let of = |uid: &String| entries.iter().any(|entry| entry.uid == *uid && entry.source == source);
            let new = grants.place.iter().filter(|uid| of(uid)).count();
            let before = entries.iter().filter(|entry| entry.source == source && entry.stage != QueueStage::Waiting).count();
            let most = count(limits.outbound_per_node) * 2 * TARGET_POD_OVERCOMMIT;
            prop_assert!(new == 0 || before + new <= most, "{before} and {new} of {most}");
        }
        let without_slot = |entry: &&QueuedMigration| !matches!(entry.stage, QueueStage::Waiting | QueueStage::Holding { .. });
        let before = entries.iter().filter(without_slot).count() - grants.slots.len();
        let most = count(limits.per_cluster) * TARGET_POD_OVERCOMMIT;
        prop_assert!(grants.place.is_empty() || before + grants.place.len() <= most);
    }
}

/// One migration goes from `a` to `x`. New ones of the same urgency alternately go from `a` to other nodes and from
/// other nodes to `x`, so one of its nodes is always busy.
#[test]
fn waiting_migration_is_never_starved() {
    let limits = limits(9, 1, 1);
    let mut now = NOW;
    let mut entries = queue(vec![("a", holding("y")), ("z", holding("x")), ("a", placed("x"))]);
    let mut turns = 0;
    while !matches!(entries[2].stage, QueueStage::Holding { .. }) {
        now += SignedDuration::from_secs(30);
        let (gone, source, target) = if turns % 2 == 0 { (0, "a", "y") } else { (1, "z", "x") };
        entries[gone] = QueuedMigration {
            uid: format!("n{turns}"),
            name: format!("default/n{turns}"),
            urgency: Urgency::None,
            created: now,
            order: 0,
            source: source.into(),
            stage: QueueStage::Placed {
                target: target.into(),
                ready: now,
            },
        };
        for uid in grants(&limits, &entries, now).slots {
            give(&mut entries, &uid);
        }
        turns += 1;
        assert!(turns < 20, "it waits after {turns} others: {entries:#?}");
    }
    assert!(turns > 10, "it did not let others pass: {turns}");
}
