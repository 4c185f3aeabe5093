//! A machine in a world where events happen in any order.

use super::*;

/// External events for the machine or its instance.
#[derive(Clone, Copy, Debug)]
enum Act {
    Strategy(RunStrategy),
    Start,
    Stop,
    Advance,
    End { failed: bool, evicted: bool },
    UserDeletes,
    Gone,
    Passes(i64),
    TemplateChanges,
    MachineDeleted,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        prop::sample::select(&RunStrategy::ALL[..]).prop_map(Act::Strategy),
        prop::sample::select(
            &[
                Act::Start,
                Act::Stop,
                Act::Advance,
                Act::UserDeletes,
                Act::Gone,
                Act::TemplateChanges
            ][..]
        ),
        (any::<bool>(), any::<bool>()).prop_map(|(failed, evicted)| Act::End { failed, evicted }),
        (1i64..400).prop_map(Act::Passes),
    ]
}

struct MachineWorld {
    now: Timestamp,
    machine: Option<VirtualMachine>,
    instance: Option<VirtualMachineInstance>,
    made: u32,
}

impl MachineWorld {
    fn happens(&mut self, act: Act) {
        let Some(machine) = &mut self.machine else { return };
        let requests = &mut machine.status.get_or_insert_default().state_change_requests;
        match act {
            Act::Strategy(strategy) => {
                machine.spec.run_strategy = Some(strategy);
                machine.metadata.generation = machine.metadata.generation.map(|generation| generation + 1);
            }
            Act::Start => requests.push(request(StateChange::Start, None)),
            Act::Stop => {
                if let Some(instance) = &self.instance {
                    requests.push(request(StateChange::Stop, instance.metadata.uid.as_deref()));
                }
            }
            Act::TemplateChanges => machine.spec.template.spec.hostname = Some(format!("h{}", self.made)),
            Act::MachineDeleted => {
                machine.metadata.deletion_timestamp = leaving(instance_of(machine)).metadata.deletion_timestamp;
            }
            Act::Passes(seconds) => self.now += SignedDuration::from_secs(seconds),
            Act::Advance | Act::End { .. } | Act::UserDeletes | Act::Gone => self.instance_does(act),
        }
    }

    fn instance_does(&mut self, act: Act) {
        let Some(instance) = &mut self.instance else { return };
        let deleted = instance.metadata.deletion_timestamp.is_some();
        let status = instance.status.get_or_insert_default();
        let phase = status.phase.unwrap_or_default();
        match act {
            Act::Advance if !phase.is_final() && !deleted && phase == Phase::Pending => {
                status.phase = Some(Phase::Scheduled);
            }
            Act::Advance if !phase.is_final() && !deleted => {
                status.phase = Some(Phase::Running);
                *instance = ran(instance.clone());
            }
            Act::End { failed, evicted } if !phase.is_final() => {
                status.phase = Some(if failed { Phase::Failed } else { Phase::Succeeded });
                status.reason = evicted.then(|| "Evicted".into());
            }
            Act::UserDeletes => *instance = leaving(instance.clone()),
            Act::Gone if deleted => self.instance = None,
            _ => {}
        }
    }

    /// Executes plans until nothing is left to do. Returns how many it took.
    fn settles(&mut self) -> u32 {
        for step in 0..10 {
            let Some(machine) = &mut self.machine else { return step };
            let mut observed = ObservedMachine {
                now: self.now,
                ..observed(machine, self.instance.as_ref())
            };
            let mut todo = plan(&observed);
            if todo.confirm {
                observed.confirmed = true;
                todo = plan(&observed);
                assert!(!todo.confirm, "confirmed twice");
            }
            let waits = todo.wake;
            if (MachinePlan {
                wake: None,
                ..todo.clone()
            }) == MachinePlan::default()
            {
                assert!(waits.is_none_or(|at| at > self.now), "nothing would wake it");
                return step;
            }
            if todo.add_finalizer {
                machine
                    .metadata
                    .finalizers
                    .get_or_insert_default()
                    .push(VM_FINALIZER.into());
            }
            if let Some(status) = todo.status {
                machine.status = Some(status);
            }
            if let Some(delete) = todo.delete {
                let instance = self.instance.as_mut().unwrap();
                assert_eq!(instance.metadata.uid.as_ref(), Some(&delete.uid));
                assert!(instance.metadata.deletion_timestamp.is_none(), "deleted twice");
                assert!(todo.create.is_none());
                *instance = leaving(instance.clone());
            }
            if let Some(mut made) = todo.create {
                assert!(self.instance.is_none(), "two instances");
                assert!(machine.metadata.deletion_timestamp.is_none());
                self.made += 1;
                made.metadata.uid = Some(format!("i{}", self.made));
                self.instance = Some(*made);
            }
            if todo.remove_finalizer {
                assert!(self.instance.is_none(), "the machine goes before its instance");
                self.machine = None;
            }
        }
        panic!("it never settles: {:#?} {:#?}", self.machine, self.instance);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn machine_settles_by_run_strategy_with_at_most_one_instance(acts in prop::collection::vec(act(), 0..40), last in prop::sample::select(&RunStrategy::ALL[..])) {
        let mut world = MachineWorld { now: now(), machine: Some(machine(RunStrategy::Always)), instance: None, made: 0 };
        world.machine.as_mut().unwrap().status = None;
        world.machine.as_mut().unwrap().metadata.finalizers = None;
        for act in acts {
            world.happens(act);
            prop_assert!(world.settles() <= 4);
        }
        // In the end the machine obeys its run strategy, whatever happened before.
        world.happens(Act::Strategy(last));
        for _ in 0..4 {
            world.settles();
            world.happens(Act::Gone);
            world.happens(Act::Passes(400));
        }
        world.settles();
        let live = world.instance.as_ref().is_some_and(|instance| {
            !instance.phase().is_some_and(Phase::is_final)
        });
        match last {
            RunStrategy::Always => prop_assert!(live),
            RunStrategy::Halted => prop_assert!(world.instance.is_none()),
            RunStrategy::Once => prop_assert!(world.instance.is_some()),
            RunStrategy::RerunOnFailure | RunStrategy::Manual => {}
        }
        // Its deletion leaves nothing behind.
        world.happens(Act::MachineDeleted);
        world.settles();
        world.happens(Act::Gone);
        world.settles();
        prop_assert!(world.machine.is_none() && world.instance.is_none());
    }
}
