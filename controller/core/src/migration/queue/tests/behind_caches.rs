//! The queue in a controller whose caches may show any earlier state of each object.

use proptest::prelude::*;

use super::*;

const SOURCES: [&str; 3] = ["a", "b", "c"];
const TARGETS: [&str; 3] = ["b", "c", "d"];

/// The next event.
#[derive(Clone, Debug)]
enum Act {
    /// A user requests a migration.
    Request { source: usize, target: usize, urgent: bool },
    /// The controller reads its caches and acts on the grants.
    Decide,
    /// The controller reads its caches and acts on the grants, and the API server rejects its writes.
    DecideAndBeRefused,
    /// A target pod becomes ready.
    PodReady(prop::sample::Index),
    /// A migration ends.
    Finish(prop::sample::Index),
    /// The cache shows the current version of an object, or an older one.
    Show(prop::sample::Index, usize),
    /// The limits change.
    Limit(u32, u32, u32),
    /// Another controller takes over.
    TakeOver,
    /// Time passes.
    Pass(i64),
}

fn act() -> impl Strategy<Value = Act> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => (0..3usize, 0..3usize, any::<bool>())
            .prop_map(|(source, target, urgent)| Act::Request { source, target, urgent }),
        4 => Just(Act::Decide),
        1 => Just(Act::DecideAndBeRefused),
        3 => index().prop_map(Act::PodReady),
        2 => index().prop_map(Act::Finish),
        5 => (index(), prop_oneof![3 => Just(0usize), 1 => 1usize..4]).prop_map(|(which, ago)| Act::Show(which, ago)),
        1 => (1u32..5, 1u32..3, 1u32..3).prop_map(|(cluster, out, into)| Act::Limit(cluster, out, into)),
        1 => Just(Act::TakeOver),
        1 => (0i64..400).prop_map(Act::Pass),
    ]
}

/// A migration with all versions of its object, the current one last; `None`: finished.
struct Object {
    entry: QueuedMigration,
    target: &'static str,
    versions: Vec<Option<QueueStage>>,
    /// The version that the cache shows; `None`: the object is not in the cache yet.
    shown: Option<usize>,
}

impl Object {
    fn stage(&self) -> Option<&QueueStage> {
        self.versions.last().and_then(Option::as_ref)
    }

    fn write(&mut self, stage: Option<QueueStage>) {
        self.versions.push(stage);
    }

    fn seen(&self) -> Option<QueuedMigration> {
        let stage = self.versions[self.shown?].clone()?;
        Some(QueuedMigration {
            stage,
            ..self.entry.clone()
        })
    }
}

struct QueueWorld {
    limits: MigrationSettings,
    now: Timestamp,
    objects: Vec<Object>,
    reservations: Reservations,
}

impl QueueWorld {
    fn new() -> Self {
        Self {
            limits: limits(3, 2, 2),
            now: NOW,
            objects: Vec::new(),
            reservations: Reservations::default(),
        }
    }

    fn happens(&mut self, act: &Act) {
        match act {
            Act::Request { source, target, urgent } => self.request(*source, *target, *urgent),
            Act::Decide => self.decide(true),
            Act::DecideAndBeRefused => self.decide(false),
            Act::PodReady(which) => {
                let all = self.that(|stage| matches!(stage, QueueStage::Placing { .. }));
                if !all.is_empty() {
                    self.pod_is_ready(*which.get(&all));
                }
            }
            Act::Finish(which) => {
                let all = self.that(|stage| matches!(stage, QueueStage::Holding { .. }));
                if !all.is_empty() {
                    self.objects[*which.get(&all)].write(None);
                }
            }
            Act::Show(which, ago) if !self.objects.is_empty() => {
                let at = which.index(self.objects.len());
                self.show(at, *ago);
            }
            Act::Show(..) => {}
            Act::Limit(cluster, out, into) => self.limits = limits(*cluster, *out, *into),
            Act::TakeOver => {
                let listed: Vec<QueuedMigration> = self
                    .objects
                    .iter()
                    .filter_map(|object| {
                        Some(QueuedMigration {
                            stage: object.stage()?.clone(),
                            ..object.entry.clone()
                        })
                    })
                    .collect();
                self.reservations = Reservations::rebuilt(&listed);
            }
            Act::Pass(seconds) => self.now += SignedDuration::from_secs(*seconds),
        }
    }

    fn request(&mut self, source: usize, target: usize, urgent: bool) {
        let number = self.objects.len();
        self.objects.push(Object {
            entry: QueuedMigration {
                uid: format!("m{number}"),
                name: format!("default/m{number}"),
                urgency: if urgent { Urgency::SystemCritical } else { Urgency::None },
                created: self.now,
                order: 0,
                source: SOURCES[source].into(),
                stage: QueueStage::Waiting,
            },
            target: TARGETS[target],
            versions: vec![Some(QueueStage::Waiting)],
            shown: None,
        });
    }

    /// The indexes of the objects in a matching stage.
    fn that(&self, wanted: impl Fn(&QueueStage) -> bool) -> Vec<usize> {
        (0..self.objects.len())
            .filter(|at| self.objects[*at].stage().is_some_and(&wanted))
            .collect()
    }

    fn pod_is_ready(&mut self, at: usize) {
        let target = self.objects[at].target.into();
        let ready = self.now;
        self.objects[at].write(Some(QueueStage::Placed { target, ready }));
    }

    fn first_pod_is_ready(&mut self) {
        let all = self.that(|stage| matches!(stage, QueueStage::Placing { .. }));
        if let Some(at) = all.first() {
            self.pod_is_ready(*at);
        }
    }

    fn first_ends(&mut self) {
        let all = self.that(|stage| matches!(stage, QueueStage::Holding { .. }));
        if let Some(at) = all.first() {
            self.objects[*at].write(None);
        }
    }

    /// Updates the cache. A migration that is observed as finished is reported to the reservations.
    fn show(&mut self, at: usize, ago: usize) {
        let object = &mut self.objects[at];
        let version = (object.versions.len() - 1).saturating_sub(ago);
        object.shown = Some(version);
        if object.versions[version].is_none() {
            self.reservations.finished(&object.entry.uid);
        }
    }

    /// Requests grants and carries them out.
    fn decide(&mut self, accepted: bool) {
        let entries: Vec<QueuedMigration> = self.objects.iter().filter_map(Object::seen).collect();
        let before = self.holders();
        let grants = self.reservations.grant(&self.limits, &entries, self.now);
        for uid in grants.place.iter().chain(&grants.slots) {
            let is_slot = grants.slots.contains(uid);
            let object = self.objects.iter_mut().find(|object| object.entry.uid == *uid).unwrap();
            // A finished migration cannot be written any more, whatever the cache shows.
            if !accepted || object.stage().is_none() {
                self.reservations.withdraw(uid);
                continue;
            }
            match object.stage() {
                Some(QueueStage::Waiting) if !is_slot => object.write(Some(placing())),
                Some(QueueStage::Placed { target, .. }) if is_slot => {
                    let stage = holding(&target.clone());
                    object.write(Some(stage));
                }
                other => panic!(
                    "{uid} is granted a {} in {other:?}",
                    if is_slot { "slot" } else { "place" }
                ),
            }
        }
        let holders = self.holders();
        for (uid, (source, target)) in &holders {
            if before.contains_key(uid) {
                continue;
            }
            let from = holders.values().filter(|(own, _)| own == source).count();
            let to = holders.values().filter(|(_, own)| own == target).count();
            assert!(holders.len() <= count(self.limits.per_cluster), "cluster: {holders:?}");
            assert!(
                from <= count(self.limits.outbound_per_node),
                "from {source}: {holders:?}"
            );
            assert!(to <= count(self.limits.inbound_per_node), "to {target}: {holders:?}");
        }
        assert!(
            before.keys().all(|uid| holders.contains_key(uid)),
            "a slot was taken away"
        );
    }

    /// Migrations that really have a slot, with their nodes.
    fn holders(&self) -> BTreeMap<String, (String, String)> {
        let holder = |object: &Object| match object.stage()? {
            QueueStage::Holding { target } => {
                Some((object.entry.uid.clone(), (object.entry.source.clone(), target.clone())))
            }
            _ => None,
        };
        self.objects.iter().filter_map(holder).collect()
    }

    /// Updates the cache completely.
    fn catches_up(&mut self) {
        for at in 0..self.objects.len() {
            self.show(at, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// `QueueWorld::decide` checks the limits at each grant.
    #[test]
    fn limits_hold_and_no_slot_is_lost_or_doubled(acts in prop::collection::vec(act(), 1..120)) {
        let mut world = QueueWorld::new();
        for act in &acts {
            world.happens(act);
        }
        world.catches_up();
        let reserved: BTreeMap<String, (String, String)> = world
            .reservations
            .slots()
            .map(|(uid, source, target)| (uid.into(), (source.into(), target.into())))
            .collect();
        prop_assert_eq!(reserved, world.holders());
    }

    /// Once caches are current and slots are freed, the queue empties in as many rounds as necessary.
    #[test]
    fn every_queued_migration_finishes_in_the_end(acts in prop::collection::vec(act(), 1..120)) {
        let mut world = QueueWorld::new();
        for act in &acts {
            world.happens(act);
        }
        let turns = world.objects.len() * 4 + 4;
        for _ in 0..turns {
            world.catches_up();
            world.decide(true);
            world.first_pod_is_ready();
            world.first_ends();
        }
        world.catches_up();
        let left: Vec<_> = world.objects.iter().filter_map(Object::stage).collect();
        prop_assert!(left.is_empty(), "{:?}", left);
        prop_assert_eq!(world.reservations.uids().count(), 0);
    }
}

#[test]
fn slot_is_charged_before_the_object_shows_the_grant() {
    let limits = limits(1, 9, 9);
    let entries = queue(vec![("a", placed("x")), ("b", placed("y"))]);
    let mut reservations = Reservations::rebuilt(&entries);
    assert_eq!(reservations.grant(&limits, &entries, NOW).slots, ["m0"]);
    assert_eq!(reservations.grant(&limits, &entries, NOW).slots, [""; 0]);
    assert_eq!(
        reservations.grant(&limits, &entries[1..], NOW).slots,
        [""; 0],
        "absence proves nothing"
    );
    reservations.withdraw("m0");
    assert_eq!(
        reservations.grant(&limits, &entries, NOW).slots,
        ["m0"],
        "it was not carried out"
    );
    reservations.finished("m0");
    assert_eq!(reservations.grant(&limits, &entries[1..], NOW).slots, ["m1"]);
    assert_eq!(reservations.slots().collect::<Vec<_>>(), [("m1", "b", "y")]);
}
