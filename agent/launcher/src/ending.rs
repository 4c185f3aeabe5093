//! Determines one result for the end of the guest, from libvirt, the domain's log and the kernel.

use drydock_api::launcher::{Ending, GuestOutcome};

use crate::{domain_log::DomainLog, domain_state::OffReason, process_end::ProcessEnd};

/// Maximum length of the termination message in bytes. The kubelet keeps 4096.
const MESSAGE: usize = 2000;

/// Evidence about the end of a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndEvidence {
    /// libvirt's reason, if libvirt could be queried and knows the reason.
    pub(crate) reason: Option<OffReason>,
    /// Data from the log of the domain.
    pub(crate) log: DomainLog,
    /// End of the QEMU process, if it was observed.
    pub(crate) qemu: Option<ProcessEnd>,
    /// Whether termination was requested before the guest ended, by SIGTERM or by a failed liveness probe.
    pub(crate) end_requested: bool,
    /// Whether this launcher had started to stop the guest, because of that request, before the guest ended.
    pub(crate) requested: bool,
    /// Whether this launcher has signalled QEMU directly, without libvirt, or has ended the pod with QEMU.
    pub(crate) forced: bool,
    /// Reason why libvirtd could not be kept running, if it could not.
    pub(crate) libvirt: Option<String>,
    /// Failure of the guest's liveness probe, if the guest was stopped because of it.
    pub(crate) unhealthy: Option<String>,
    /// Whether the node's tunnel has proof that the guest continues on another node.
    ///
    /// The remains of the guest in this pod may then end in any way: a libvirtd that was lost in the meantime has no
    /// record of the migration.
    pub(crate) migrated_away: bool,
    /// Whether the kernel's OOM killer has killed a process of this pod.
    pub(crate) out_of_memory: bool,
}

/// Returns the ending for the termination message.
pub(crate) fn ending(seen: &EndEvidence) -> Ending {
    if seen.migrated_away {
        let message = format!(
            "The guest continues on another node{}.",
            detail(seen, GuestOutcome::Migrated)
        );
        return bounded(GuestOutcome::Migrated, &message, seen.requested);
    }
    if let Some(why) = &seen.libvirt {
        let message = format!("libvirt could not be kept running, so the guest was stopped: {why}");
        return bounded(GuestOutcome::Failed, &message, seen.requested);
    }
    let reason = seen
        .reason
        .or(seen.log.reason)
        .filter(|&reason| reason != OffReason::Unknown);
    let (outcome, sentence) = match reason {
        // The guest is complete on another node, regardless of how its remains in this pod were stopped.
        Some(OffReason::Migrated) => (GuestOutcome::Migrated, "The guest continues on another node"),
        _ if let Some(how) = &seen.unhealthy => {
            let message = format!("The guest was stopped because its liveness probe {how}.");
            return bounded(GuestOutcome::Failed, &message, false);
        }
        _ if seen.forced => (
            GuestOutcome::Destroyed,
            "The guest did not shut down in time, libvirt did not destroy it, and its QEMU was killed",
        ),
        Some(OffReason::Shutdown) if seen.requested => (GuestOutcome::Shutdown, "The guest shut down as requested"),
        Some(OffReason::Shutdown) => (GuestOutcome::Shutdown, "The guest shut itself down"),
        Some(OffReason::Destroyed) if seen.end_requested => (
            GuestOutcome::Destroyed,
            "The guest was destroyed after termination of the pod was requested",
        ),
        Some(OffReason::Destroyed) => (GuestOutcome::Destroyed, "The guest was destroyed from outside"),
        Some(OffReason::Saved | OffReason::FromSnapshot) => (
            GuestOutcome::Destroyed,
            "The guest was saved or reverted to a snapshot from outside",
        ),
        Some(OffReason::Crashed) => (GuestOutcome::Crashed, "The guest's QEMU ended by itself"),
        Some(OffReason::Failed) => (GuestOutcome::Failed, "The guest could not be started or taken over"),
        Some(OffReason::Daemon) => (GuestOutcome::Failed, "libvirt failed and stopped the guest"),
        Some(OffReason::Unknown) | None => match seen.qemu {
            Some(ProcessEnd::Exited(0)) => (
                GuestOutcome::Destroyed,
                "The guest's QEMU was stopped from outside while libvirt was not running",
            ),
            Some(_) => (
                GuestOutcome::Crashed,
                "The guest's QEMU ended while libvirt was not running",
            ),
            None => (GuestOutcome::Failed, "The guest has ended for an unknown reason"),
        },
    };
    bounded(
        outcome,
        &format!("{sentence}{}.", detail(seen, outcome)),
        seen.requested,
    )
}

/// Formats the data from libvirt, the kernel and QEMU for the message.
fn detail(seen: &EndEvidence, outcome: GuestOutcome) -> String {
    let mut parts = Vec::new();
    if let Some(reason) = seen.reason.or(seen.log.reason) {
        parts.push(format!("libvirt reports: shut off ({})", reason.as_str()));
    }
    let interesting = !matches!(outcome, GuestOutcome::Shutdown | GuestOutcome::Migrated);
    if let Some(end) = seen.qemu.filter(|end| interesting && !end.is_success()) {
        parts.push(format!("QEMU {end}"));
    }
    if seen.out_of_memory && interesting {
        parts.push("the kernel has killed a process of this pod because the pod's memory limit was reached".into());
    }
    if interesting && !seen.log.last_messages.is_empty() && outcome != GuestOutcome::Destroyed {
        parts.push(format!("last output of QEMU: {}", seen.log.last_messages.join(" | ")));
    }
    if parts.is_empty() {
        String::new()
    } else {
        format!(" ({})", parts.join("; "))
    }
}

/// Returns an ending with a message of limited length. `requested` has the meaning of [`Ending::requested`].
pub(crate) fn bounded(outcome: GuestOutcome, message: &str, requested: bool) -> Ending {
    let mut end = message.len().min(MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    Ending {
        outcome,
        message: message[..end].to_owned(),
        requested: Some(requested),
    }
}

/// Returns the launcher's exit code, which is 0 if the guest ended as intended.
pub(crate) fn exit_code(outcome: GuestOutcome, end_requested: bool) -> u8 {
    match outcome {
        GuestOutcome::Shutdown | GuestOutcome::Migrated => 0,
        GuestOutcome::Destroyed if end_requested => 0,
        GuestOutcome::Destroyed
        | GuestOutcome::Crashed
        | GuestOutcome::Failed
        | GuestOutcome::NotStarted
        | GuestOutcome::Unknown => 1,
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::launcher::GuestOutcome;
    use nix::sys::signal::Signal;

    use super::{EndEvidence, bounded, ending, exit_code};
    use crate::{domain_log::DomainLog, domain_state::OffReason, process_end::ProcessEnd};

    fn outcome(change: impl FnOnce(&mut EndEvidence)) -> GuestOutcome {
        let mut seen = EndEvidence::default();
        change(&mut seen);
        ending(&seen).outcome
    }

    #[test]
    fn guest_end_comes_from_libvirt_then_log_then_kernel() {
        let log = |reason| DomainLog {
            reason: Some(reason),
            last_messages: Vec::new(),
        };
        let killed = Some(ProcessEnd::Killed(Signal::SIGKILL));
        assert_eq!(
            outcome(|seen| (seen.reason, seen.log) = (Some(OffReason::Shutdown), log(OffReason::Crashed))),
            GuestOutcome::Shutdown
        );
        assert_eq!(
            outcome(|seen| (seen.log, seen.qemu) = (log(OffReason::Migrated), killed)),
            GuestOutcome::Migrated
        );
        assert_eq!(outcome(|seen| seen.qemu = killed), GuestOutcome::Crashed);
        assert_eq!(
            outcome(|seen| seen.qemu = Some(ProcessEnd::Exited(1))),
            GuestOutcome::Crashed
        );
        assert_eq!(
            outcome(|seen| seen.qemu = Some(ProcessEnd::Exited(0))),
            GuestOutcome::Destroyed
        );
        assert_eq!(outcome(|_| ()), GuestOutcome::Failed);
        assert_eq!(
            outcome(|seen| (seen.reason, seen.qemu) = (Some(OffReason::Unknown), killed)),
            GuestOutcome::Crashed
        );
    }

    #[test]
    fn every_off_reason_has_an_outcome() {
        for (reason, expected) in [
            (OffReason::Shutdown, GuestOutcome::Shutdown),
            (OffReason::Destroyed, GuestOutcome::Destroyed),
            (OffReason::Saved, GuestOutcome::Destroyed),
            (OffReason::FromSnapshot, GuestOutcome::Destroyed),
            (OffReason::Crashed, GuestOutcome::Crashed),
            (OffReason::Migrated, GuestOutcome::Migrated),
            (OffReason::Failed, GuestOutcome::Failed),
            (OffReason::Daemon, GuestOutcome::Failed),
        ] {
            assert_eq!(outcome(|seen| seen.reason = Some(reason)), expected, "{reason:?}");
        }
    }

    #[test]
    fn launcher_that_kills_qemu_reports_no_crash() {
        let forced = |reason| {
            outcome(|seen| {
                seen.forced = true;
                seen.reason = reason;
                seen.qemu = Some(ProcessEnd::Killed(Signal::SIGKILL));
            })
        };
        assert_eq!(forced(None), GuestOutcome::Destroyed);
        assert_eq!(forced(Some(OffReason::Crashed)), GuestOutcome::Destroyed);
        assert_eq!(forced(Some(OffReason::Migrated)), GuestOutcome::Migrated);
    }

    #[test]
    fn failed_liveness_is_the_reason_unless_guest_moved() {
        for (reason, migrated_away, expected) in [
            (Some(OffReason::Shutdown), false, GuestOutcome::Failed),
            (Some(OffReason::Destroyed), false, GuestOutcome::Failed),
            (None, false, GuestOutcome::Failed),
            (Some(OffReason::Migrated), false, GuestOutcome::Migrated),
            (Some(OffReason::Destroyed), true, GuestOutcome::Migrated),
        ] {
            let ending = ending(&EndEvidence {
                reason,
                end_requested: true,
                unhealthy: Some("failed 3 times in a row".into()),
                migrated_away,
                ..EndEvidence::default()
            });
            assert_eq!(ending.outcome, expected, "{reason:?}");
            let description = "The guest was stopped because its liveness probe failed 3 times in a row.";
            assert_eq!(
                ending.message == description,
                expected == GuestOutcome::Failed,
                "{}",
                ending.message
            );
        }
    }

    #[test]
    fn repeatedly_failing_libvirtd_is_the_reason_of_the_end() {
        let ending = ending(&EndEvidence {
            libvirt: Some("it ended 6 times, last with exit code 1".into()),
            forced: true,
            ..EndEvidence::default()
        });
        assert_eq!(ending.outcome, GuestOutcome::Failed);
        assert!(ending.message.contains("exit code 1"), "{}", ending.message);
    }

    #[test]
    fn guest_that_migrated_away_has_not_ended_in_this_pod() {
        let killed = Some(ProcessEnd::Killed(Signal::SIGKILL));
        for reason in [
            None,
            Some(OffReason::Destroyed),
            Some(OffReason::Crashed),
            Some(OffReason::Unknown),
        ] {
            for (libvirt, forced) in [(None, false), (Some("it ended 8 times".to_owned()), true)] {
                let ending = ending(&EndEvidence {
                    reason,
                    qemu: killed,
                    migrated_away: true,
                    forced,
                    libvirt,
                    ..EndEvidence::default()
                });
                assert_eq!(ending.outcome, GuestOutcome::Migrated, "{reason:?}: {}", ending.message);
                assert_eq!(exit_code(ending.outcome, false), 0);
            }
        }
    }

    #[test]
    fn message_contains_known_facts() {
        let ending = ending(&EndEvidence {
            reason: Some(OffReason::Crashed),
            qemu: Some(ProcessEnd::Killed(Signal::SIGKILL)),
            out_of_memory: true,
            log: DomainLog {
                reason: Some(OffReason::Crashed),
                last_messages: vec!["qemu-system-x86_64: oh".into()],
            },
            ..EndEvidence::default()
        });
        assert_eq!(
            ending.message,
            "The guest's QEMU ended by itself (libvirt reports: shut off (crashed); QEMU was killed by SIGKILL; the \
             kernel has killed a process of this pod because the pod's memory limit was reached; last output of QEMU: \
             qemu-system-x86_64: oh)."
        );
    }

    #[test]
    fn shutdown_counts_as_requested_only_if_begun_by_launcher() {
        // SIGTERM may arrive just after the guest has powered off.
        for (end_requested, requested, prefix) in [
            (false, false, "The guest shut itself down"),
            (true, false, "The guest shut itself down"),
            (true, true, "The guest shut down as requested"),
        ] {
            let ending = ending(&EndEvidence {
                reason: Some(OffReason::Shutdown),
                end_requested,
                requested,
                ..EndEvidence::default()
            });
            assert_eq!(
                (ending.outcome, ending.requested),
                (GuestOutcome::Shutdown, Some(requested))
            );
            assert!(ending.message.starts_with(prefix), "{}", ending.message);
        }
    }

    #[test]
    fn a_message_is_cut_between_characters() {
        let ending = bounded(GuestOutcome::Failed, &"é".repeat(1500), false);
        assert_eq!(ending.message, "é".repeat(1000));
    }

    #[test]
    fn exit_code_is_success_only_for_an_intended_end() {
        let codes = |end_requested| {
            [
                GuestOutcome::Shutdown,
                GuestOutcome::Migrated,
                GuestOutcome::Destroyed,
                GuestOutcome::Crashed,
                GuestOutcome::Failed,
                GuestOutcome::NotStarted,
            ]
            .map(|outcome| exit_code(outcome, end_requested))
        };
        assert_eq!(codes(true), [0, 0, 0, 1, 1, 1]);
        assert_eq!(codes(false), [0, 0, 1, 1, 1, 1]);
    }
}
