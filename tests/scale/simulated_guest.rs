//! A guest during a migration, as libvirt and the tunnels of both nodes would report it.
//!
//! ```text
//!  source:  Running ── job: Outgoing ──────────▶ Left
//!  target:  Absent ─── Incoming ───────────────▶ Running (released by its tunnel)
//! ```

use drydock_core::migration::{
    record::MigrationRecord,
    source::{JobState, MigrateCall, SourceDomain, SourceStep, SourceTunnel, SourceView},
    target::{TargetDomain, TargetStep, TargetTunnel, TargetView},
};

/// The state of a guest on both nodes of a migration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleGuest {
    source: SourceDomain,
    job: JobState,
    call: MigrateCall,
    source_tunnel: SourceTunnel,
    target: TargetDomain,
    target_tunnel: TargetTunnel,
    fits: Option<bool>,
}

impl ScaleGuest {
    /// Returns a guest that runs on its source.
    pub(crate) fn here() -> Self {
        Self {
            source: SourceDomain::Running,
            job: JobState::None,
            call: MigrateCall::Unknown,
            source_tunnel: SourceTunnel::Missing,
            target: TargetDomain::Absent,
            target_tunnel: TargetTunnel::Missing,
            fits: None,
        }
    }

    /// Returns the view of the source's agent.
    pub(crate) fn source_view(&self, record: MigrationRecord) -> SourceView {
        SourceView {
            record,
            domain: self.source,
            job: self.job,
            call: self.call,
            tunnel: self.source_tunnel,
            stood_still: false,
            // The simulated source does not wait for acknowledgements.
            target_is_late: true,
            is_stuck: false,
        }
    }

    /// Returns the view of the target's agent.
    pub(crate) fn target_view(&self, record: MigrationRecord) -> TargetView {
        TargetView {
            record,
            tunnel: self.target_tunnel,
            domain: self.target,
            fits: self.fits,
            // The simulated source repeats a report that the API server refused, and never ends.
            source_is_late: false,
        }
    }

    /// Returns whether the guest is being migrated.
    pub(crate) fn moves(&self) -> bool {
        self.job == JobState::Outgoing
    }

    /// Carries out a step of the source's agent.
    pub(crate) fn source_does(&mut self, step: SourceStep) {
        match step {
            SourceStep::Prepare => {
                self.source_tunnel = SourceTunnel::Open {
                    paired: false,
                    reply_read: false,
                    acknowledged: false,
                };
            }
            SourceStep::Pair => {
                if let SourceTunnel::Open { paired, .. } = &mut self.source_tunnel {
                    *paired = true;
                }
            }
            SourceStep::Release(_) => {
                if let SourceTunnel::Open { acknowledged, .. } = &mut self.source_tunnel {
                    *acknowledged = true;
                }
            }
            SourceStep::Start => {
                (self.call, self.job) = (MigrateCall::Pending, JobState::Outgoing);
                self.target = TargetDomain::Incoming;
            }
            SourceStep::Abort => {
                (self.call, self.job) = (MigrateCall::Failed, JobState::None);
                self.target = TargetDomain::Absent;
            }
            SourceStep::Close => self.source_tunnel = SourceTunnel::Missing,
            SourceStep::Report(_) | SourceStep::Resume | SourceStep::Destroy => {}
        }
    }

    /// Records that the source's agent has reported the imminent migration of the guest.
    pub(crate) fn is_due(&mut self) {
        self.call = MigrateCall::Due;
    }

    /// Carries out a step of the target's agent.
    pub(crate) fn target_does(&mut self, step: TargetStep) {
        match step {
            TargetStep::Check => self.fits = Some(true),
            TargetStep::Prepare => {
                self.target_tunnel = TargetTunnel::Open {
                    paired: false,
                    released: false,
                    taken_over: false,
                };
            }
            TargetStep::Pair => {
                if let TargetTunnel::Open { paired, .. } = &mut self.target_tunnel {
                    *paired = true;
                }
            }
            TargetStep::TakeOver => self.target = TargetDomain::Running,
            TargetStep::Close => self.target_tunnel = TargetTunnel::Missing,
            TargetStep::Destroy => self.target = TargetDomain::Absent,
            TargetStep::Report(_) | TargetStep::Show => {}
        }
    }

    /// Completes the transfer: the tunnel has released the guest on the target, and libvirt has stopped it on the
    /// source.
    pub(crate) fn arrives(&mut self) {
        self.source = SourceDomain::Left;
        (self.call, self.job) = (MigrateCall::Succeeded, JobState::None);
        if let SourceTunnel::Open {
            reply_read,
            acknowledged,
            ..
        } = &mut self.source_tunnel
        {
            (*reply_read, *acknowledged) = (true, true);
        }
        self.target = TargetDomain::Running;
        if let TargetTunnel::Open {
            released, taken_over, ..
        } = &mut self.target_tunnel
        {
            (*released, *taken_over) = (true, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::kubevirt::migration::{MigrationPhase, SourceState, TargetState};
    use drydock_core::migration::{source, target};

    use super::*;

    /// Carries out the decisions of both agents until both wait, and returns their reports.
    fn sides(guest: &mut ScaleGuest, record: &mut MigrationRecord) -> Vec<String> {
        let mut reported = Vec::new();
        loop {
            let steps = source::step(&guest.source_view(*record));
            for step in &steps {
                guest.source_does(*step);
                if let SourceStep::Report(state) = step {
                    reported.push(format!("source {state:?}"));
                    record.apply_source_state(*state);
                    if *state == SourceState::Migrating {
                        guest.is_due();
                    }
                }
            }
            let others = target::step(&guest.target_view(*record));
            for step in &others {
                guest.target_does(*step);
                if let TargetStep::Report(state) = step {
                    reported.push(format!("target {state:?}"));
                    record.target = Some(*state);
                }
            }
            if steps.is_empty() && others.iter().all(|step| *step == TargetStep::Show) {
                return reported;
            }
        }
    }

    #[test]
    fn agents_move_a_simulated_guest_like_a_real_guest() {
        let mut guest = ScaleGuest::here();
        let mut record = MigrationRecord {
            phase: Some(MigrationPhase::PreparingTarget),
            ..MigrationRecord::default()
        };
        assert_eq!(sides(&mut guest, &mut record), ["target Prepared", "source Migrating"]);
        assert!(guest.moves());
        record.phase = Some(MigrationPhase::Running);
        guest.arrives();
        assert_eq!(sides(&mut guest, &mut record), ["source HandedOver"]);
        assert_eq!(record.target, Some(TargetState::Running));
        record.phase = Some(MigrationPhase::Succeeded);
        assert!(sides(&mut guest, &mut record).is_empty());
        assert_eq!(guest.target_tunnel, TargetTunnel::Missing, "the sessions are closed");
    }

    #[test]
    fn guest_of_an_aborted_migration_stays() {
        let mut guest = ScaleGuest::here();
        let mut record = MigrationRecord {
            phase: Some(MigrationPhase::PreparingTarget),
            ..MigrationRecord::default()
        };
        sides(&mut guest, &mut record);
        record.phase = Some(MigrationPhase::TargetReady);
        record.abort = true;
        assert_eq!(sides(&mut guest, &mut record), ["target Gone", "source Stayed"]);
        assert!(!guest.moves());
    }
}
