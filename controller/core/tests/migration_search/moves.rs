//! The events that are possible in a state.

use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};
use drydock_core::migration::{
    cluster::{self, ClusterStep, ClusterView, GuestLocation, Instance, SourcePod, TargetPodState, guest_location},
    hand_over::{self, GuestHere, GuestRelease, Proof, SourceSide, TakenOver, TargetSide},
    record::MigrationRecord,
    source::{self, JobState, MigrateCall, SourceDomain, SourceStep, SourceView},
    target::{self, TargetDomain, TargetStep, TargetView},
};

use super::{
    commands,
    laws::Broken,
    mutants::Mutant,
    world::{Move, Node, Order, SearchWorld, SourceAgent, TargetAgent},
};

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelEvent {
    // The three parties, and their observations.
    SourceSeesObject,
    SourceSeesTunnel,
    SourceReadsDomain,
    SourceReadsJob,
    SourceReconciles,
    SourceDoes(SourceStep),
    TargetSeesObject,
    TargetSeesTunnel,
    TargetReconciles,
    TargetDoes(TargetStep),
    TargetDoesNotFit,
    ControllerSeesObject(u8),
    ControllerReconciles(u8),
    ControllerDoes(u8, Order),
    // libvirt.
    Begins,
    StandsStill,
    IsComplete,
    ReplyIsRead,
    Stops,
    GoesOn,
    IncomingVanishes,
    IsSwitched,
    GoesOnThere,
    MemoryIsThere,
    // Tunnels.
    TunnelSeesReplyRead,
    ReleaseIsSent,
    ReleaseArrives,
    TunnelActs,
    AcknowledgeArrives,
    // The cluster.
    PodIsReady,
    SourcePodEnds,
    TargetPodEnds,
    NodeIsGone(Side),
    AgentIsUnresponsive(Side),
    GuestIsEnded(Side),
    // Faults, and actions of users.
    Deleted,
    Unpaused,
    DeadlinePasses,
    InstanceEnds,
    TargetPodDeleted,
    GuestKilled(Side),
    NodeDies(Side),
    NodeDeleted(Side),
    AgentIsLate(Side),
    AgentCrashes(Side),
    TunnelCrashes(Side),
    LibvirtdCrashes,
    LibvirtdCrashesBeforeItReads,
    ConnectionCut,
    ControllerCrashes(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Target,
}

/// Options of a search.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// The removed guard.
    pub(crate) mutant: Option<Mutant>,
    /// The source reads domain, job and domain one after the other, instead of at once.
    pub(crate) piecewise: bool,
    /// Controllers act on their last observed version of the object, instead of the current one.
    pub(crate) stale: bool,
    /// The guest may be switched to post-copy.
    pub(crate) post_copy: bool,
}

/// Callback for possible events: the event, whether it is a fault, and the resulting state or the violated invariant.
pub(crate) type Visit<'a> = dyn FnMut(ModelEvent, bool, Result<SearchWorld, Broken>) + 'a;

/// Reports every event that is possible next.
pub(crate) fn events(world: &SearchWorld, how: How, visit: &mut Visit<'_>) {
    let mut out = Out { world, how, visit };
    out.source();
    out.target();
    out.controller(0);
    out.controller(1);
    out.libvirt();
    out.tunnels();
    out.cluster();
    out.deadline();
    out.faults();
}

struct Out<'a, 'v> {
    world: &'a SearchWorld,
    how: How,
    visit: &'a mut Visit<'v>,
}

impl Out<'_, '_> {
    /// An event that, under fairness, happens again and again.
    fn happens(&mut self, event: ModelEvent, change: impl FnOnce(&mut SearchWorld)) {
        self.tries(event, |world| {
            change(world);
            Ok(())
        });
    }

    fn tries(&mut self, event: ModelEvent, change: impl FnOnce(&mut SearchWorld) -> Result<(), Broken>) {
        let mut next = *self.world;
        let result = change(&mut next);
        self.settle(&mut next);
        if result.is_err() || next != *self.world {
            (self.visit)(event, false, result.map(|()| next));
        }
    }

    /// A fault, which need not happen.
    fn strikes(&mut self, event: ModelEvent, change: impl FnOnce(&mut SearchWorld)) {
        self.strikes_or_breaks(event, |world| {
            change(world);
            Ok(())
        });
    }

    /// A fault or an action of a user that may violate an invariant by itself.
    fn strikes_or_breaks(&mut self, event: ModelEvent, change: impl FnOnce(&mut SearchWorld) -> Result<(), Broken>) {
        let mut next = *self.world;
        let result = change(&mut next);
        self.settle(&mut next);
        if result.is_err() || next != *self.world {
            next.faults -= 1;
            (self.visit)(event, true, result.map(|()| next));
        }
    }

    fn settle(&self, next: &mut SearchWorld) {
        for controller in &mut next.controllers {
            if controller.todo[0].is_none() {
                controller.fresh = false;
            }
            if !self.how.stale {
                controller.seen = MigrationRecord::default();
            }
        }
        next.settle();
    }

    fn source(&mut self) {
        let world = self.world;
        if world.source_node != Node::Up {
            return;
        }
        if let Some(step) = world.source.todo[0] {
            self.tries(ModelEvent::SourceDoes(step), |w| {
                w.source.todo = [w.source.todo[1], None];
                let done = source_does(w, step);
                if matches!(
                    step,
                    SourceStep::Prepare | SourceStep::Pair | SourceStep::Release(_) | SourceStep::Close
                ) {
                    w.source.tunnel = w.source_tunnel();
                }
                done
            });
            return;
        }
        if !world.exists() {
            self.happens(ModelEvent::SourceDoes(SourceStep::Close), |w| w.source_session = None);
            return;
        }
        self.happens(ModelEvent::SourceSeesObject, |w| {
            w.source.seen = w.api;
            w.source.tunnel = w.source_tunnel();
        });
        self.happens(ModelEvent::SourceSeesTunnel, |w| w.source.tunnel = w.source_tunnel());
        let job_first = self.how.mutant == Some(Mutant::ReadsTheJobFirst);
        match world.source.read {
            None if self.how.piecewise => {
                self.happens(ModelEvent::SourceReadsDomain, |w| w.source.read = Some((w.here, None)));
            }
            Some((domain, None)) => {
                self.happens(ModelEvent::SourceReadsJob, |w| {
                    w.source.read = Some((domain, Some(w.job())))
                });
            }
            // The guest resumed meanwhile, so the readings are inconsistent.
            Some((SourceDomain::Leaving, Some(JobState::None)))
                if world.here != SourceDomain::Leaving && !job_first =>
            {
                self.happens(ModelEvent::SourceReconciles, |w| w.source.read = None);
            }
            read => {
                let job = read.and_then(|(_, job)| job).unwrap_or_else(|| world.job());
                let mut record = world.source.seen;
                record.source = world.api.source;
                // The end of a pod contains the outcome of its guest.
                let here = match (world.source_pod, world.here) {
                    (SourcePod::Left, SourceDomain::Ended) => SourceDomain::Left,
                    (_, here) => here,
                };
                let view = SourceView {
                    record,
                    domain: read.map_or(here, |(domain, _)| if job_first { here } else { domain }),
                    job,
                    call: world.source.call,
                    tunnel: world.source.tunnel,
                    stood_still: world.source.stood_still,
                    target_is_late: false,
                    // It would only close the session, with the effect of a tunnel that crashes.
                    is_stuck: false,
                };
                // Both cases are possible at any time: it is unknown how long the source has waited for the
                // acknowledgement.
                for target_is_late in [false, true] {
                    let view = SourceView { target_is_late, ..view };
                    for record in unknown_records(view.record) {
                        assert_eq!(source::step(&SourceView { record, ..view }), []);
                    }
                    let steps = Mutant::source(self.how.mutant, &view, source::step);
                    self.happens(ModelEvent::SourceReconciles, |w| {
                        w.source.read = None;
                        fill(&mut w.source.todo, &steps);
                    });
                }
            }
        }
    }

    fn target(&mut self) {
        let world = self.world;
        if world.target_node != Node::Up {
            return;
        }
        if !world.exists() {
            self.happens(ModelEvent::TargetDoes(TargetStep::Close), |w| w.target_session = None);
            return;
        }
        if world.target.todo[0].is_none() {
            self.happens(ModelEvent::TargetSeesObject, |w| {
                w.target.seen = w.api;
                w.target.tunnel = w.target_tunnel();
            });
            self.happens(ModelEvent::TargetSeesTunnel, |w| w.target.tunnel = w.target_tunnel());
        }
        if let Some(step) = world.target.todo[0] {
            if step == TargetStep::Check {
                self.happens(ModelEvent::TargetDoesNotFit, |w| {
                    w.target.todo = [w.target.todo[1], None];
                    w.target.fits = Some(false);
                });
            }
            self.tries(ModelEvent::TargetDoes(step), |w| {
                w.target.todo = [w.target.todo[1], None];
                let done = target_does(w, step);
                if matches!(step, TargetStep::Prepare | TargetStep::Pair | TargetStep::Close) {
                    w.target.tunnel = w.target_tunnel();
                }
                done
            });
        } else {
            let mut record = world.target.seen;
            record.target = world.api.target;
            let over = world.there == TargetDomain::Over;
            let view = TargetView {
                record,
                tunnel: if over {
                    world.target_tunnel()
                } else {
                    world.target.tunnel
                },
                domain: world.reported_there(),
                fits: world.target.fits,
                source_is_late: false,
            };
            // Both cases are possible at any time: it is unknown how long the target has waited for its source's
            // report.
            for source_is_late in [false, true] {
                let view = TargetView { source_is_late, ..view };
                for record in unknown_records(view.record) {
                    assert_eq!(target::step(&TargetView { record, ..view }), []);
                }
                let mut steps = Mutant::target(self.how.mutant, &view, target::step);
                steps.retain(|step| *step != TargetStep::Show);
                self.happens(ModelEvent::TargetReconciles, |w| fill(&mut w.target.todo, &steps));
            }
        }
    }

    fn controller(&mut self, index: u8) {
        let world = self.world;
        let at = usize::from(index);
        let controller = world.controllers[at];
        if !controller.alive {
            return;
        }
        if let Some(order) = controller.todo[0] {
            let mutant = self.how.mutant;
            self.tries(ModelEvent::ControllerDoes(index, order), |w| {
                let todo = &mut w.controllers[at].todo;
                *todo = [todo[1], todo[2], None];
                controller_does(w, at, order, mutant)
            });
            return;
        }
        if self.how.stale {
            self.happens(ModelEvent::ControllerSeesObject(index), |w| {
                w.controllers[at].seen = w.api
            });
        }
        if !world.exists() {
            return;
        }
        let seen = if self.how.stale { controller.seen } else { world.api };
        let view = cluster_view(world, seen, self.how.mutant);
        for record in unknown_records(view.record) {
            let view = ClusterView { record, ..view };
            assert_eq!(
                (cluster::step(&view), guest_location(&view)),
                (Vec::new(), GuestLocation::Source)
            );
        }
        let mut orders = Vec::new();
        let guest_location = Mutant::guest_location(self.how.mutant, &view, guest_location);
        if guest_location == GuestLocation::Target && !world.moved && !seen.is_over() {
            orders.push(Order::MoveInstance);
        }
        orders.extend(
            Mutant::cluster(self.how.mutant, &view, cluster::step)
                .into_iter()
                .map(Order::Step),
        );
        if !self.how.stale {
            let mutant = self.how.mutant;
            self.tries(ModelEvent::ControllerReconciles(index), |w| {
                w.controllers[at].fresh = true;
                orders
                    .iter()
                    .try_for_each(|order| controller_does(w, at, *order, mutant))
            });
            return;
        }
        self.happens(ModelEvent::ControllerReconciles(index), |w| {
            let controller = &mut w.controllers[at];
            controller.fresh = !orders.is_empty() && seen == w.api;
            fill(&mut controller.todo, &orders);
        });
    }

    fn libvirt(&mut self) {
        let world = self.world;
        let early = self.how.mutant == Some(Mutant::RecordsTheLeavingWithoutProof);
        if world.source_node == Node::Up {
            match world.move_ {
                Move::None => {}
                Move::Requested => self.happens(ModelEvent::Begins, |w| {
                    let can = w.linked()
                        && matches!(w.here, SourceDomain::Running | SourceDomain::Paused)
                        && w.there == TargetDomain::Absent
                        && w.target_pod == TargetPodState::Ready;
                    if can {
                        w.move_ = Move::Perform;
                        w.there = TargetDomain::Incoming;
                    } else {
                        w.complete_call(MigrateCall::Failed);
                    }
                }),
                Move::Perform => self.happens(ModelEvent::StandsStill, |w| {
                    w.move_ = Move::Still;
                    // libvirt neither changes the state of a paused guest nor emits an event.
                    if w.here == SourceDomain::Running {
                        w.here = SourceDomain::Leaving;
                        w.source.stood_still = true;
                    }
                    w.left |= early;
                }),
                Move::Still => self.happens(ModelEvent::IsComplete, |w| {
                    w.move_ = Move::Reply;
                    w.there = TargetDomain::Complete;
                }),
                Move::Reply => self.happens(ModelEvent::ReplyIsRead, |w| {
                    w.move_ = Move::Read;
                    w.source_session.iter_mut().for_each(|session| session.drained = true);
                }),
                Move::Read => self.happens(ModelEvent::Stops, |w| {
                    w.here = SourceDomain::Left;
                    w.complete_call(MigrateCall::Succeeded);
                }),
                Move::Failing => self.tries(ModelEvent::GoesOn, |w| {
                    w.complete_call(MigrateCall::Failed);
                    w.source.stood_still = false;
                    resume_here(w)
                }),
                // The tunnel leaves the last call unchanged.
                Move::Switched => self.happens(ModelEvent::GoesOnThere, |w| {
                    w.move_ = Move::Follows;
                    w.there = TargetDomain::PostCopy;
                }),
                Move::Follows => self.happens(ModelEvent::MemoryIsThere, |w| {
                    w.move_ = Move::AllThere;
                    w.there = TargetDomain::Running;
                }),
                // Also if the reply is never read: QEMU has reported that everything was sent.
                Move::AllThere => self.happens(ModelEvent::Stops, |w| {
                    w.here = SourceDomain::Left;
                    w.complete_call(MigrateCall::Succeeded);
                }),
            }
            if self.how.post_copy && world.move_ == Move::Perform && world.here == SourceDomain::Running {
                self.happens(ModelEvent::IsSwitched, |w| {
                    w.move_ = Move::Switched;
                    w.here = SourceDomain::PostCopy;
                });
            }
        }
        let feeds = matches!(world.move_, Move::Perform | Move::Still | Move::Switched);
        let fed = feeds && world.source_node == Node::Up;
        if world.there == TargetDomain::Incoming && !fed {
            self.happens(ModelEvent::IncomingVanishes, |w| w.there = TargetDomain::Absent);
        }
    }

    fn tunnels(&mut self) {
        let world = self.world;
        if let Some(session) = world.source_session {
            if session.drained {
                self.happens(ModelEvent::TunnelSeesReplyRead, |w| {
                    w.source_session.iter_mut().for_each(|session| {
                        session.reply_read = true;
                        session.proven = true;
                    });
                    w.left = true;
                });
            }
            let mut side = SourceSide::default();
            if session.proven {
                side.prove(Proof::ReplyConsumed);
            }
            let is_released = side.release().is_some() && !session.acknowledged;
            if is_released && world.linked() {
                self.happens(ModelEvent::ReleaseIsSent, |w| w.release = true);
            }
        }
        let Some(session) = world.target_session else { return };
        if world.release {
            self.happens(ModelEvent::ReleaseArrives, |w| {
                w.target_session.iter_mut().for_each(|session| session.released = true);
            });
        }
        let mut side = TargetSide::default();
        if session.released || self.how.mutant == Some(Mutant::TunnelResumesWhatIsComplete) {
            side.released(GuestRelease {
                proof: Proof::ReplyConsumed,
                keep_paused: world.paused,
            })
            .unwrap();
        }
        if session.taken_over {
            side.take_over(TakenOver::Resumed);
        }
        let guest = match world.reported_there() {
            TargetDomain::Unknown => GuestHere::Unknown,
            TargetDomain::Absent | TargetDomain::Over => GuestHere::Absent,
            TargetDomain::Incoming => GuestHere::Incoming,
            TargetDomain::Complete => GuestHere::Complete,
            TargetDomain::PostCopy | TargetDomain::Running => GuestHere::HasRun,
        };
        match side.step(guest) {
            hand_over::HandOverStep::Wait => {}
            hand_over::HandOverStep::Resume => self.tries(ModelEvent::TunnelActs, resume_there),
            hand_over::HandOverStep::TakeOver(_) => self.tries(ModelEvent::TunnelActs, |w| {
                w.target_session
                    .iter_mut()
                    .for_each(|session| session.taken_over = true);
                resume_there(w)
            }),
            hand_over::HandOverStep::Acknowledge(_) if world.linked() => {
                self.happens(ModelEvent::AcknowledgeArrives, |w| {
                    w.source_session
                        .iter_mut()
                        .filter(|session| session.proven)
                        .for_each(|session| session.acknowledged = true);
                })
            }
            hand_over::HandOverStep::Acknowledge(_) => {}
        }
    }

    fn cluster(&mut self) {
        let world = self.world;
        if world.target_pod == TargetPodState::Coming && world.target_node == Node::Up {
            self.happens(ModelEvent::PodIsReady, |w| w.target_pod = TargetPodState::Ready);
        }
        if world.source_node == Node::Up {
            match world.here {
                SourceDomain::Left => self.happens(ModelEvent::SourcePodEnds, |w| w.source_pod = SourcePod::Left),
                // The launcher trusts the tunnel's record, which may be lost.
                SourceDomain::Ended => {
                    self.happens(ModelEvent::SourcePodEnds, |w| w.source_pod = SourcePod::Over);
                    if world.left {
                        self.happens(ModelEvent::SourcePodEnds, |w| w.source_pod = SourcePod::Left);
                    }
                }
                _ => {}
            }
        }
        if world.target_node == Node::Up {
            match (world.target_pod, world.there) {
                (TargetPodState::Ready, TargetDomain::Over) => {
                    self.happens(ModelEvent::TargetPodEnds, |w| w.target_pod = TargetPodState::Over);
                }
                // The deletion of a pod ends its guest.
                (TargetPodState::Leaving, TargetDomain::Absent | TargetDomain::Over) => {
                    self.happens(ModelEvent::TargetPodEnds, |w| w.target_pod = TargetPodState::Missing);
                }
                (TargetPodState::Leaving, _) => self.happens(ModelEvent::GuestIsEnded(Side::Target), end_there),
                _ => {}
            }
        }
        self.deleted_nodes();
        if world.source_node == Node::Down {
            self.happens(ModelEvent::NodeIsGone(Side::Source), |w| w.source_node = Node::Gone);
        }
        if world.target_node == Node::Down {
            self.happens(ModelEvent::NodeIsGone(Side::Target), |w| w.target_node = Node::Gone);
        }
        if world.ended {
            self.happens(ModelEvent::GuestIsEnded(Side::Source), end_here);
            self.happens(ModelEvent::GuestIsEnded(Side::Target), end_there);
        }
    }

    /// Consequences of the deletion of a Node object: its agent ends the guests there, and stops reporting when none is
    /// left, because its pod is deleted with the Node.
    fn deleted_nodes(&mut self) {
        let world = self.world;
        if world.source_deleted {
            if world.lives_here() || world.here == SourceDomain::PostCopy {
                self.happens(ModelEvent::GuestIsEnded(Side::Source), |w| {
                    w.struck = true;
                    end_here(w);
                });
            } else {
                self.happens(ModelEvent::AgentIsUnresponsive(Side::Source), |w| {
                    // As when a node dies: the target may not know that it has the last state.
                    w.struck |= !w.arrival_is_known();
                    w.source_node = Node::Down;
                    w.source_session = None;
                    w.move_ = Move::None;
                });
            }
        }
        if world.target_deleted {
            if matches!(world.there, TargetDomain::Absent | TargetDomain::Over) {
                self.happens(ModelEvent::AgentIsUnresponsive(Side::Target), |w| {
                    w.target_node = Node::Down;
                    w.target_session = None;
                    w.cut();
                });
            } else {
                self.happens(ModelEvent::GuestIsEnded(Side::Target), |w| {
                    w.struck = true;
                    end_there(w);
                });
            }
        }
    }

    /// Each phase has a deadline. It always passes where nothing else happens, and may pass anywhere.
    fn deadline(&mut self) {
        let world = self.world;
        let down = world.source_node != Node::Up || world.target_node != Node::Up;
        if world.api.is_over() {
        } else if down || !world.api.has_sides() {
            self.happens(ModelEvent::DeadlinePasses, |w| w.overdue = true);
        } else if world.faults > 0 {
            self.strikes(ModelEvent::DeadlinePasses, |w| w.overdue = true);
        }
    }

    fn faults(&mut self) {
        let world = self.world;
        if world.faults == 0 {
            return;
        }
        if world.exists() {
            self.strikes(ModelEvent::Deleted, |w| w.write(|api| api.deleted = true));
        }
        self.strikes(ModelEvent::InstanceEnds, |w| (w.ended, w.struck) = (true, true));
        if matches!(world.target_pod, TargetPodState::Coming | TargetPodState::Ready) {
            self.strikes(ModelEvent::TargetPodDeleted, |w| {
                w.target_pod = TargetPodState::Leaving;
                // A user who deletes a pod in which a guest runs, or is about to, ends the guest.
                w.struck = true;
            });
        }
        if world.lives_here() {
            self.strikes(ModelEvent::GuestKilled(Side::Source), |w| {
                w.struck = true;
                end_here(w);
            });
        }
        if world.target_node == Node::Up {
            self.target_faults();
        }
        if world.source_node == Node::Up {
            self.source_faults();
        }
        self.strikes(ModelEvent::ConnectionCut, SearchWorld::cut);
        for index in 0..2 {
            let at = usize::from(index);
            self.strikes(ModelEvent::ControllerCrashes(index), |w| {
                // The first controller is the old leader. The second follows it, if there is one.
                w.controllers[at].todo = [None; 3];
                if w.controllers[1].alive && at == 0 {
                    w.controllers[0].alive = false;
                }
            });
        }
    }

    /// Faults of the target and of its guest, whose node runs.
    fn target_faults(&mut self) {
        let world = self.world;
        self.strikes(ModelEvent::GuestKilled(Side::Target), |w| {
            if matches!(
                w.there,
                TargetDomain::Complete | TargetDomain::PostCopy | TargetDomain::Running
            ) {
                w.struck = true;
            }
            end_there(w);
        });
        if commands::resumes_there(world, self.how.mutant) {
            self.strikes_or_breaks(ModelEvent::Unpaused, resume_there);
        }
        self.strikes(ModelEvent::AgentIsLate(Side::Target), |w| w.target.late = true);
        self.strikes(ModelEvent::AgentCrashes(Side::Target), |w| {
            w.target = TargetAgent {
                fits: None,
                todo: [None; 2],
                ..w.target
            };
        });
        self.strikes(ModelEvent::TunnelCrashes(Side::Target), |w| {
            w.target_session = None;
            w.cut();
        });
        self.strikes(ModelEvent::NodeDeleted(Side::Target), |w| w.target_deleted = true);
        self.strikes(ModelEvent::NodeDies(Side::Target), |w| {
            if matches!(
                w.there,
                TargetDomain::Complete | TargetDomain::PostCopy | TargetDomain::Running
            ) {
                w.struck = true;
            }
            w.target_node = Node::Down;
            w.target_session = None;
            w.cut();
        });
    }

    /// Faults of the source and of its guest, whose node runs.
    fn source_faults(&mut self) {
        let world = self.world;
        if commands::resumes_here(world, self.how.mutant) {
            self.strikes(ModelEvent::Unpaused, |w| {
                (w.here, w.paused) = (SourceDomain::Running, false)
            });
        }
        self.strikes(ModelEvent::AgentIsLate(Side::Source), |w| w.source.late = true);
        self.strikes(ModelEvent::AgentCrashes(Side::Source), |w| {
            w.source = SourceAgent {
                read: None,
                call: MigrateCall::Unknown,
                stood_still: false,
                todo: [None; 2],
                ..w.source
            };
        });
        self.strikes(ModelEvent::TunnelCrashes(Side::Source), |w| {
            w.source_session = None;
            w.cut();
        });
        self.strikes(ModelEvent::NodeDeleted(Side::Source), |w| w.source_deleted = true);
        self.strikes(ModelEvent::NodeDies(Side::Source), |w| {
            // Until the object reports it, the target's last state need not be known: a tunnel that has the release
            // resumes the guest if it can before the node is confirmed as gone.
            w.struck |= !w.arrival_is_known();
            w.struck |= matches!(w.move_, Move::Switched | Move::Follows);
            w.source_node = Node::Down;
            w.source_session = None;
            w.move_ = Move::None;
        });
        self.strikes(ModelEvent::LibvirtdCrashes, |w| crash_libvirtd(w, false));
        if world.move_ == Move::Reply {
            self.strikes(ModelEvent::LibvirtdCrashesBeforeItReads, |w| crash_libvirtd(w, true));
        }
    }
}

fn fill<T: Copy, const N: usize>(todo: &mut [Option<T>; N], steps: &[T]) {
    assert!(steps.len() <= N, "more steps than the model has room for");
    for (place, step) in todo.iter_mut().zip(steps) {
        *place = Some(*step);
    }
}

/// Returns the view of a controller: current pods, nodes and VMI, and the object in the given version.
fn cluster_view(world: &SearchWorld, record: MigrationRecord, mutant: Option<Mutant>) -> ClusterView {
    let believes = mutant == Some(Mutant::TakesADeletedNodeForGone);
    ClusterView {
        record,
        another: false,
        instance: match (world.ended, world.moved) {
            (true, _) => Instance::Ended,
            (false, true) => Instance::Moved,
            (false, false) => Instance::Running,
        },
        target_pod: world.target_pod,
        source_pod: world.source_pod,
        source_node_gone: world.source_node == Node::Gone || (believes && world.source_deleted),
        target_node_gone: world.target_node == Node::Gone || (believes && world.target_deleted),
        may_place: true,
        has_slot: true,
        overdue: world.overdue,
        has_finalizer: world.finalizer,
    }
}

/// Ends libvirtd and starts a new one: a running migration is canceled, a paused guest stays paused. With `drains`,
/// unread data vanishes from the socket as if it had been read.
fn crash_libvirtd(world: &mut SearchWorld, drains: bool) {
    if drains {
        world
            .source_session
            .iter_mut()
            .for_each(|session| session.drained = true);
    }
    match world.move_ {
        // The last call has not reached the target, which destroys its part of the guest.
        Move::Switched => world.lose_memory(),
        // QEMU continues, and the new libvirtd takes it over.
        Move::None | Move::Follows | Move::AllThere => {}
        _ => world.complete_call(MigrateCall::Lost),
    }
    world.source.stood_still = false;
}

fn end_here(world: &mut SearchWorld) {
    if world.here == SourceDomain::PostCopy && world.source_node == Node::Up {
        world.here = SourceDomain::Ended;
        match world.move_ {
            Move::Switched | Move::Follows => world.lose_memory(),
            _ => world.complete_call(MigrateCall::Failed),
        }
    }
    if world.lives_here() {
        world.here = SourceDomain::Ended;
        if world.move_ != Move::None {
            world.complete_call(MigrateCall::Failed);
        }
    }
}

fn end_there(world: &mut SearchWorld) {
    match world.there {
        TargetDomain::Incoming => {
            world.there = TargetDomain::Absent;
            world.cut();
        }
        TargetDomain::PostCopy => {
            world.there = TargetDomain::Over;
            world.cut();
        }
        TargetDomain::Complete | TargetDomain::Running => world.there = TargetDomain::Over,
        _ => {}
    }
}

fn resume_here(world: &mut SearchWorld) -> Result<(), Broken> {
    if world.here == SourceDomain::Leaving {
        world.here = SourceDomain::Running;
        if world.ran_there || world.there == TargetDomain::Running {
            return Err(Broken::ResumedOldState);
        }
    }
    Ok(())
}

fn resume_there(world: &mut SearchWorld) -> Result<(), Broken> {
    if world.there == TargetDomain::Complete {
        world.there = TargetDomain::Running;
        if world.ran_on || world.runs_here() {
            return Err(Broken::ResumedOldState);
        }
    }
    Ok(())
}

fn source_does(world: &mut SearchWorld, step: SourceStep) -> Result<(), Broken> {
    match step {
        SourceStep::Prepare => {
            world.source_session.get_or_insert_default();
        }
        SourceStep::Pair => world
            .source_session
            .iter_mut()
            .for_each(|session| session.paired = true),
        SourceStep::Report(state) => {
            if world.exists() && world.api.source.is_none_or(|before| state.may_follow(before)) {
                world.write(|api| api.apply_source_state(state));
                if state == SourceState::Migrating && world.source.call == MigrateCall::Unknown {
                    world.source.call = MigrateCall::Due;
                }
            }
        }
        SourceStep::Start => {
            if world.move_ == Move::None {
                world.move_ = Move::Requested;
                world.source.call = MigrateCall::Pending;
            } else {
                world.source.call = MigrateCall::Failed;
            }
        }
        SourceStep::Abort => {
            if matches!(world.move_, Move::Perform | Move::Still) {
                world.move_ = Move::Failing;
            }
        }
        SourceStep::Resume if world.move_ == Move::None => {
            world.source.stood_still = false;
            return resume_here(world);
        }
        SourceStep::Resume => {}
        SourceStep::Release(_) => {
            world.left |= world.source_session.is_some();
            world
                .source_session
                .iter_mut()
                .for_each(|session| session.proven = true);
        }
        SourceStep::Destroy => {
            // The part that a guest on the target still needs.
            let needed = world.there == TargetDomain::PostCopy && world.target_node == Node::Up;
            if world.here == SourceDomain::PostCopy && needed && !world.struck && !world.ended {
                return Err(Broken::DestroyedOnlyCopy);
            }
            // A lost tunnel may have released the guest to a lost target. The outcome is unknown.
            let unknown = world.source_session.is_none() && world.target_node == Node::Gone;
            if world.lives_here() && !world.ran_there && !world.struck && !unknown {
                return Err(Broken::DestroyedOnlyCopy);
            }
            end_here(world);
        }
        SourceStep::Close => {
            world.source_session = None;
            world.cut();
        }
    }
    Ok(())
}

fn target_does(world: &mut SearchWorld, step: TargetStep) -> Result<(), Broken> {
    match step {
        TargetStep::Check => world.target.fits = Some(true),
        TargetStep::Prepare => {
            world.target_session.get_or_insert_default();
        }
        TargetStep::Pair => world
            .target_session
            .iter_mut()
            .for_each(|session| session.paired = true),
        TargetStep::Show => {}
        TargetStep::Report(state) => {
            if world.exists() && world.api.target.is_none_or(|before| state.may_follow(before)) {
                world.write(|api| api.target = Some(state));
            }
        }
        TargetStep::TakeOver => {
            // The agent reports that it leaves the guest paused, which may have ended meanwhile.
            if world.paused && world.exists() {
                world.write(|api| api.target = Some(TargetState::Running));
                world.ran_there = true;
            }
            return resume_there(world);
        }
        TargetStep::Close => {
            world.target_session = None;
            world.cut();
        }
        TargetStep::Destroy => {
            is_only_copy_there(world)?;
            end_there(world);
        }
    }
    Ok(())
}

/// Returns an error if the copy that is about to be destroyed on the target is needed.
fn is_only_copy_there(world: &SearchWorld) -> Result<(), Broken> {
    if world.ended || world.target_node != Node::Up {
        return Ok(());
    }
    let needed = match world.there {
        TargetDomain::PostCopy => !world.struck,
        // Only the session showed that a paused guest was taken over.
        TargetDomain::Running => !(world.paused && world.struck),
        // A source that was struck may have run on, unless it has reported that it released the guest.
        TargetDomain::Complete => {
            !world.ran_on && !world.lives_here() && (!world.struck || world.api.source_has_let_go())
        }
        _ => false,
    };
    if needed { Err(Broken::DestroyedOnlyCopy) } else { Ok(()) }
}

fn controller_does(world: &mut SearchWorld, at: usize, order: Order, mutant: Option<Mutant>) -> Result<(), Broken> {
    let fresh = world.controllers[at].fresh || mutant == Some(Mutant::ControllerWritesWithoutVersion);
    let step = match order {
        Order::MoveInstance => {
            if world.runs_here() || (world.lives_here() && !world.api.source_has_let_go()) {
                return Err(Broken::MovedTooEarly);
            }
            world.moved = true;
            return Ok(());
        }
        Order::Step(step) => step,
    };
    match step {
        ClusterStep::Confirm => return Ok(()),
        ClusterStep::CreatePod => {
            if world.target_pod == TargetPodState::Missing {
                world.target_pod = TargetPodState::Coming;
            }
            return Ok(());
        }
        ClusterStep::DeletePod => {
            is_only_copy_there(world)?;
            if matches!(world.target_pod, TargetPodState::Coming | TargetPodState::Ready) {
                world.target_pod = TargetPodState::Leaving;
            }
            return Ok(());
        }
        _ => {}
    }
    if !fresh || !world.exists() {
        world.controllers[at].todo = [None; 3];
        return Ok(());
    }
    let was_over = world.api.is_over();
    match step {
        ClusterStep::Enter(MigrationPhase::Succeeded) if !was_over => {
            if !world.ran_there || world.lives_here() {
                return Err(Broken::SucceededWithoutGuest);
            }
            world.api.phase = Some(MigrationPhase::Succeeded);
        }
        ClusterStep::Enter(phase) if !was_over => {
            if world.api.phase > Some(phase) {
                return Err(Broken::WentBack);
            }
            world.api.phase = Some(phase);
        }
        ClusterStep::Fail(_) if !was_over => world.api.phase = Some(MigrationPhase::Failed),
        ClusterStep::Abort(_) => world.api.abort = true,
        ClusterStep::RecordSourceGone => world.api.source_gone = true,
        ClusterStep::RemoveFinalizer => world.finalizer = false,
        _ => {}
    }
    // Its own write gives it the new version; every other controller's version is outdated then.
    for (other, controller) in world.controllers.iter_mut().enumerate() {
        controller.fresh = other == at;
        if other == at {
            controller.seen = world.api;
        }
    }
    Ok(())
}

/// Returns a record as a process of an earlier version reads it if a later version has written one of its fields. Such
/// a process waits, whatever else it observes, so it adds no states to the search.
fn unknown_records(record: MigrationRecord) -> [MigrationRecord; 3] {
    [
        MigrationRecord {
            phase: Some(MigrationPhase::Unknown),
            ..record
        },
        MigrationRecord {
            source: Some(SourceState::Unknown),
            ..record
        },
        MigrationRecord {
            target: Some(TargetState::Unknown),
            ..record
        },
    ]
}
