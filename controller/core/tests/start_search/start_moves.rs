//! The true state of an instance with two pods, and the events that are possible in it.

use drydock_api::{kubevirt::Phase, launcher::GuestOutcome};
use drydock_core::guest::{
    node_deleted::{GuestEndState, without_domain},
    start::{FoundDomain, ObservedStart, may_start},
};

use super::start_controller::{Observed, PlannedInstances};

/// The instance in the API server. A pod and its node have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Vmi {
    pub(crate) phase: Phase,
    pub(crate) node: [bool; 2],
    pub(crate) active: [bool; 2],
    pub(crate) ended: [bool; 2],
    pub(crate) runs_in: [bool; 2],
    pub(crate) deleted: bool,
    pub(crate) gone: bool,
}

impl Vmi {
    const NEW: Self = Self {
        phase: Phase::Pending,
        node: [false; 2],
        active: [false; 2],
        ended: [false; 2],
        runs_in: [false; 2],
        deleted: false,
        gone: false,
    };
}

/// A pod in the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodObject {
    pub(crate) phase: PodPhase,
    pub(crate) deleting: bool,
    pub(crate) is_target: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PodPhase {
    Missing,
    Unbound,
    Bound,
    Ended(GuestOutcome),
}

/// The container of a pod on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Launcher {
    None,
    Starting,
    Ready(Domain),
    Ended(GuestOutcome),
}

/// The domain in the libvirtd of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Domain {
    Absent,
    Defined,
    Running,
    Off(GuestOutcome),
    /// It has ended, and another libvirtd runs since: as if it were only defined.
    Forgotten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorldMigration {
    None,
    UnderWay,
    /// The guest runs on the target, and the instance is to name it.
    Moved,
    Over,
}

/// The action that an agent has decided and not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Doing {
    Nothing,
    Define,
    Create,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StartAgent {
    /// The instance as the watch shows it.
    watched: Vmi,
    /// The instance as this process wrote or read it, until the watch shows that.
    newer: Option<Vmi>,
    pod: PodObject,
    doing: Doing,
    /// This process has read the instance from the API server.
    has_read: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StartWorld {
    pub(crate) vmi: Vmi,
    pods: [PodObject; 2],
    created: u8,
    pub(crate) launchers: [Launcher; 2],
    agents: [StartAgent; 2],
    node_deleted: [bool; 2],
    migration: WorldMigration,
    /// Number of starts of the guest.
    pub(crate) starts: u8,
    /// Number of faults that may still happen.
    pub(crate) faults: u8,
}

/// An event; the number is that of the pod and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartEvent {
    ControllerReconciles,
    AgentSeesInstance(usize),
    AgentSeesPod(usize),
    AgentReconciles(usize),
    AgentDefines(usize),
    AgentCreates(usize),
    PodIsBound(usize),
    LauncherIsReady(usize),
    LauncherEnds(usize),
    KubeletEndsPod(usize),
    KubeletReportsEnd(usize),
    KubeletRemovesPod(usize),
    GuestMoves,
    MigrationEnds,
    NodeIsBack(usize),
    // Faults, and actions of users.
    AgentCrashes(usize),
    LibvirtdCrashes(usize),
    GuestEnds(usize),
    NodeDeleted(usize),
    PodDeleted(usize),
    PodForceDeleted(usize),
    InstanceDeleted,
    MigrationBegins,
}

/// A guard that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartMutant {
    IgnoresPhase,
    IgnoresReportedEnd,
    IgnoresThatItRan,
    IgnoresDeletionOfInstance,
    IgnoresDeletionOfPod,
    /// The agent serves a pod that the controller has not named.
    ServesUnnamedPods,
    /// An agent whose Node is deleted reports a target as empty to which the guest may come.
    ReportsAwaitedGuest,
    /// The agent that follows another starts by what a cache shows.
    TrustsCache,
    /// The launcher starts another libvirtd although its guest has ended.
    RestartsLibvirtdAfterGuest,
}

impl StartMutant {
    pub(crate) const ALL: [Self; 9] = [
        Self::IgnoresPhase,
        Self::IgnoresReportedEnd,
        Self::IgnoresThatItRan,
        Self::IgnoresDeletionOfInstance,
        Self::IgnoresDeletionOfPod,
        Self::ServesUnnamedPods,
        Self::ReportsAwaitedGuest,
        Self::TrustsCache,
        Self::RestartsLibvirtdAfterGuest,
    ];

    fn decides(mutant: Option<Self>, mut observed: ObservedStart) -> bool {
        match mutant {
            Some(Self::IgnoresPhase) => observed.phase = Phase::Scheduled,
            Some(Self::IgnoresReportedEnd) => observed.end_reported = false,
            Some(Self::IgnoresThatItRan) if observed.domain == FoundDomain::HasRun => {
                observed.domain = FoundDomain::Defined;
            }
            Some(Self::IgnoresDeletionOfInstance) => observed.instance_deleted = false,
            Some(Self::IgnoresDeletionOfPod) => observed.pod_deleted = false,
            _ => {}
        }
        may_start(&observed)
    }
}

const NO_POD: PodObject = PodObject {
    phase: PodPhase::Missing,
    deleting: false,
    is_target: false,
};

impl StartWorld {
    pub(crate) fn new(faults: u8) -> Self {
        let vmi = Vmi::NEW;
        let agent = StartAgent {
            watched: vmi,
            newer: None,
            pod: NO_POD,
            doing: Doing::Nothing,
            has_read: false,
        };
        Self {
            vmi,
            pods: [NO_POD; 2],
            created: 0,
            launchers: [Launcher::None; 2],
            agents: [agent; 2],
            node_deleted: [false; 2],
            migration: WorldMigration::None,
            starts: 0,
            faults,
        }
    }

    /// Returns whether another pod would have to be created than the model has.
    pub(crate) fn has_no_pod_left(&self) -> bool {
        self.created == 2 && self.pods.iter().all(|pod| pod.phase == PodPhase::Missing) && self.vmi.active == [false; 2]
    }

    fn controller(&mut self, plans: &mut PlannedInstances) {
        if self.vmi.gone {
            return;
        }
        let planned = plans.plan(Observed {
            vmi: self.vmi,
            pods: self.pods,
            migration: self.migration,
            node_deleted: self.node_deleted,
        });
        self.vmi = planned.vmi;
        if planned.creates && self.created < 2 {
            self.pods[usize::from(self.created)].phase = PodPhase::Unbound;
            self.created += 1;
        }
        for at in 0..2 {
            if planned.deletes[at] {
                self.delete_pod(at);
            }
        }
        if self.migration == WorldMigration::Moved && self.vmi.node[1] {
            self.migration = WorldMigration::Over;
        }
    }

    fn delete_pod(&mut self, at: usize) {
        match self.pods[at].phase {
            PodPhase::Unbound => self.pods[at] = NO_POD,
            PodPhase::Bound | PodPhase::Ended(_) => self.pods[at].deleting = true,
            PodPhase::Missing => {}
        }
    }

    /// Makes states equal that differ only in what an agent sees of an instance that it does not serve.
    fn forget_what_no_agent_uses(&mut self) {
        for at in 0..2 {
            let agent = &mut self.agents[at];
            let unserved = |vmi: Vmi| vmi.gone || vmi.phase.is_final() || !vmi.active[at];
            if agent.newer.is_none_or(unserved) && unserved(agent.watched) {
                (agent.watched, agent.newer) = (Vmi::NEW, None);
            }
        }
    }

    /// The agent's task of the instance, once: as `GuestTask` of the agent.
    fn agent(&mut self, at: usize, mutant: Option<StartMutant>) {
        let agent = self.agents[at];
        let seen = agent.newer.unwrap_or(agent.watched);
        let is_named = seen.active[at] || mutant == Some(StartMutant::ServesUnnamedPods);
        let is_over = seen.gone || seen.phase.is_final() || matches!(agent.pod.phase, PodPhase::Ended(_));
        if agent.doing != Doing::Nothing || !is_named || is_over {
            return;
        }
        let launcher = self.launchers[at];
        let is_empty = matches!(launcher, Launcher::None | Launcher::Ended(_));
        if self.node_deleted[at] {
            let ended = match launcher {
                Launcher::None | Launcher::Ended(_) => true,
                Launcher::Starting => seen.phase < Phase::Running,
                Launcher::Ready(Domain::Running) => {
                    self.launchers[at] = Launcher::Ready(Domain::Off(GuestOutcome::Shutdown));
                    false
                }
                Launcher::Ready(Domain::Absent) if mutant != Some(StartMutant::ReportsAwaitedGuest) => {
                    without_domain(seen.phase, seen.runs_in[at]) == GuestEndState::Over
                }
                Launcher::Ready(domain) => domain != Domain::Off(GuestOutcome::Migrated),
            };
            if ended {
                self.report_end(at, seen);
            }
        } else if agent.pod.phase == PodPhase::Missing {
            if is_empty && self.pods[at].phase == PodPhase::Missing {
                self.report_end(at, seen);
            }
        } else if let Launcher::Ready(domain) = launcher {
            self.serve(at, seen, domain, mutant);
        }
    }

    fn serve(&mut self, at: usize, seen: Vmi, domain: Domain, mutant: Option<StartMutant>) {
        let observed = ObservedStart {
            phase: seen.phase,
            end_reported: seen.ended[at],
            instance_deleted: seen.deleted,
            pod_deleted: self.agents[at].pod.deleting,
            domain: match domain {
                Domain::Absent => FoundDomain::Absent,
                Domain::Defined | Domain::Forgotten => FoundDomain::Defined,
                Domain::Running | Domain::Off(_) => FoundDomain::HasRun,
            },
        };
        if StartMutant::decides(mutant, observed) {
            if self.agents[at].has_read || mutant == Some(StartMutant::TrustsCache) {
                self.agents[at].doing = Doing::Define;
            } else {
                self.agents[at].newer = Some(self.vmi);
                self.agents[at].has_read = true;
            }
        } else if !matches!(domain, Domain::Absent | Domain::Off(GuestOutcome::Migrated)) {
            // The report replaces all that agents have applied.
            let mut wanted = seen;
            let keeps = seen.ended[at];
            wanted.ended = [false; 2];
            wanted.ended[at] = keeps;
            wanted.runs_in = [at == 0, at == 1];
            if domain == Domain::Running && !seen.phase.is_final() {
                wanted.phase = Phase::Running;
            }
            self.write(at, seen, wanted);
        }
    }

    fn report_end(&mut self, at: usize, seen: Vmi) {
        let mut wanted = seen;
        wanted.ended[at] = true;
        self.write(at, seen, wanted);
    }

    /// Writes the status of the instance, unless it has changed since the agent saw it.
    fn write(&mut self, at: usize, seen: Vmi, wanted: Vmi) {
        if self.vmi == seen && wanted != seen {
            self.vmi = wanted;
            self.agents[at].newer = Some(wanted);
        }
    }

    fn create(&mut self, at: usize) {
        self.agents[at].doing = Doing::Nothing;
        if let Launcher::Ready(Domain::Defined | Domain::Off(_) | Domain::Forgotten) = self.launchers[at] {
            self.launchers[at] = Launcher::Ready(Domain::Running);
            self.starts += 1;
        }
    }

    fn libvirtd_crashes(&mut self, at: usize, mutant: Option<StartMutant>) {
        self.agents[at].doing = Doing::Nothing;
        if let Launcher::Ready(Domain::Off(_)) = self.launchers[at] {
            self.launchers[at] = match mutant {
                Some(StartMutant::RestartsLibvirtdAfterGuest) => Launcher::Ready(Domain::Forgotten),
                _ => Launcher::Ended(GuestOutcome::Failed),
            };
        }
    }
}

/// Returns the events that are possible in a state, with the states that follow.
pub(crate) fn successors(
    world: &StartWorld,
    mutant: Option<StartMutant>,
    plans: &mut PlannedInstances,
) -> Vec<(StartEvent, StartWorld)> {
    let mut found = Vec::new();
    let mut happens = |event, change: &mut dyn FnMut(&mut StartWorld)| {
        let mut to = *world;
        change(&mut to);
        if mutant != Some(StartMutant::ServesUnnamedPods) {
            to.forget_what_no_agent_uses();
        }
        if to != *world {
            found.push((event, to));
        }
    };
    happens(StartEvent::ControllerReconciles, &mut |to| to.controller(plans));
    for at in 0..2 {
        happens(StartEvent::AgentSeesInstance(at), &mut |to| {
            (to.agents[at].watched, to.agents[at].newer) = (to.vmi, None);
        });
        happens(StartEvent::AgentSeesPod(at), &mut |to| to.agents[at].pod = to.pods[at]);
        happens(StartEvent::AgentReconciles(at), &mut |to| to.agent(at, mutant));
        if world.agents[at].doing == Doing::Define {
            happens(StartEvent::AgentDefines(at), &mut |to| {
                to.agents[at].doing = Doing::Create;
                match to.launchers[at] {
                    Launcher::Ready(Domain::Absent) => to.launchers[at] = Launcher::Ready(Domain::Defined),
                    Launcher::Ready(_) => {}
                    _ => to.agents[at].doing = Doing::Nothing,
                }
            });
        }
        if world.agents[at].doing == Doing::Create {
            happens(StartEvent::AgentCreates(at), &mut |to| to.create(at));
        }
        node_events(world, at, &mut happens);
        if world.faults > 0 {
            faults(world, at, mutant, &mut happens);
        }
    }
    migration_events(world, &mut happens);
    found
}

type Happens<'a> = dyn FnMut(StartEvent, &mut dyn FnMut(&mut StartWorld)) + 'a;

/// The scheduler, the kubelet and the launcher of a pod.
fn node_events(world: &StartWorld, at: usize, happens: &mut Happens<'_>) {
    let (pod, launcher) = (world.pods[at], world.launchers[at]);
    if pod.phase == PodPhase::Unbound && !world.node_deleted[at] {
        happens(StartEvent::PodIsBound(at), &mut |to| {
            (to.pods[at].phase, to.launchers[at]) = (PodPhase::Bound, Launcher::Starting);
        });
    }
    let to_end = pod.deleting || pod.phase == PodPhase::Missing;
    match launcher {
        Launcher::Starting => happens(StartEvent::LauncherIsReady(at), &mut |to| {
            to.launchers[at] = Launcher::Ready(Domain::Absent);
        }),
        Launcher::Ready(Domain::Off(outcome)) => happens(StartEvent::LauncherEnds(at), &mut |to| {
            to.launchers[at] = Launcher::Ended(outcome);
        }),
        Launcher::Ready(Domain::Forgotten) => happens(StartEvent::LauncherEnds(at), &mut |to| {
            to.launchers[at] = Launcher::Ended(GuestOutcome::Failed);
        }),
        Launcher::Ended(outcome) if pod.phase == PodPhase::Bound => {
            happens(StartEvent::KubeletReportsEnd(at), &mut |to| {
                to.pods[at].phase = PodPhase::Ended(outcome);
            });
        }
        _ => {}
    }
    if to_end {
        happens(StartEvent::KubeletEndsPod(at), &mut |to| {
            to.launchers[at] = match launcher {
                Launcher::Starting | Launcher::Ready(Domain::Absent | Domain::Defined) => {
                    Launcher::Ended(GuestOutcome::NotStarted)
                }
                Launcher::Ready(Domain::Running) => Launcher::Ready(Domain::Off(GuestOutcome::Shutdown)),
                other => other,
            };
        });
    }
    if pod.deleting && matches!(pod.phase, PodPhase::Ended(_)) {
        happens(StartEvent::KubeletRemovesPod(at), &mut |to| to.pods[at] = NO_POD);
    }
    happens(StartEvent::NodeIsBack(at), &mut |to| to.node_deleted[at] = false);
}

fn faults(world: &StartWorld, at: usize, mutant: Option<StartMutant>, happens: &mut Happens<'_>) {
    let mut fault = |event, change: &mut dyn FnMut(&mut StartWorld)| {
        happens(event, &mut |to| {
            change(to);
            if *to != *world {
                to.faults -= 1;
            }
        });
    };
    // The next process begins with a list from a cache, which may not have what this one wrote.
    fault(StartEvent::AgentCrashes(at), &mut |to| {
        let agent = &mut to.agents[at];
        (agent.newer, agent.doing, agent.has_read) = (None, Doing::Nothing, false);
    });
    fault(StartEvent::LibvirtdCrashes(at), &mut |to| {
        to.libvirtd_crashes(at, mutant);
    });
    if world.launchers[at] == Launcher::Ready(Domain::Running) {
        fault(StartEvent::GuestEnds(at), &mut |to| {
            to.launchers[at] = Launcher::Ready(Domain::Off(GuestOutcome::Shutdown));
        });
    }
    fault(StartEvent::NodeDeleted(at), &mut |to| to.node_deleted[at] = true);
    fault(StartEvent::PodDeleted(at), &mut |to| to.delete_pod(at));
    fault(StartEvent::PodForceDeleted(at), &mut |to| to.pods[at] = NO_POD);
    if at == 0 {
        fault(StartEvent::InstanceDeleted, &mut |to| to.vmi.deleted = true);
        let runs = world.vmi.phase == Phase::Running && world.vmi.node[0] && !world.vmi.deleted;
        if runs && world.created == 1 && world.pods[0].phase == PodPhase::Bound {
            fault(StartEvent::MigrationBegins, &mut |to| {
                to.created = 2;
                to.migration = WorldMigration::UnderWay;
                to.launchers[1] = Launcher::Ready(Domain::Absent);
                to.pods[1] = PodObject {
                    phase: PodPhase::Bound,
                    deleting: false,
                    is_target: true,
                };
            });
        }
    }
}

fn migration_events(world: &StartWorld, happens: &mut Happens<'_>) {
    if world.migration != WorldMigration::UnderWay {
        return;
    }
    if world.vmi.active[1] && world.launchers == [Launcher::Ready(Domain::Running), Launcher::Ready(Domain::Absent)] {
        happens(StartEvent::GuestMoves, &mut |to| {
            let left = Launcher::Ready(Domain::Off(GuestOutcome::Migrated));
            to.launchers = [left, Launcher::Ready(Domain::Running)];
            to.migration = WorldMigration::Moved;
        });
    }
    happens(StartEvent::MigrationEnds, &mut |to| {
        to.migration = WorldMigration::Over;
        to.delete_pod(1);
    });
}
