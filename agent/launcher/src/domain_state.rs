//! What libvirt says about the domain, as `virsh domstate --reason` prints it.

/// A domain's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DomainState {
    /// Its virtual CPUs run.
    Running,
    /// There is a QEMU whose virtual CPUs stand still, so that nothing in the guest hears anything.
    Paused,
    /// There is no QEMU.
    Off(OffReason),
    /// libvirt knows no such domain.
    Absent,
}

/// Why a domain has no QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffReason {
    /// libvirt does not know: it was never started, or ended while no libvirt looked.
    Unknown,
    /// The guest shut itself down.
    Shutdown,
    /// Somebody destroyed it.
    Destroyed,
    /// QEMU ended by itself.
    Crashed,
    /// It went on elsewhere.
    Migrated,
    /// Somebody saved it to a file.
    Saved,
    /// It could not be started, or an incoming migration failed.
    Failed,
    /// It was reverted to a snapshot.
    FromSnapshot,
    /// libvirt itself failed.
    Daemon,
}

impl OffReason {
    /// libvirt's word for it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Shutdown => "shutdown",
            Self::Destroyed => "destroyed",
            Self::Crashed => "crashed",
            Self::Migrated => "migrated",
            Self::Saved => "saved",
            Self::Failed => "failed",
            Self::FromSnapshot => "from snapshot",
            Self::Daemon => "daemon",
        }
    }

    /// The reason by libvirt's word; a word of a later libvirt says nothing.
    pub(crate) fn from_word(word: &str) -> Self {
        [
            Self::Shutdown,
            Self::Destroyed,
            Self::Crashed,
            Self::Migrated,
            Self::Saved,
            Self::Failed,
            Self::FromSnapshot,
            Self::Daemon,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == word)
        .unwrap_or(Self::Unknown)
    }
}

impl DomainState {
    /// Reads the answer of `virsh domstate --reason`.
    ///
    /// # Errors
    /// What virsh said, if that is not about the domain: libvirt could not be asked.
    pub(crate) fn from_virsh(success: bool, said: &str, complaint: &str) -> Result<Self, String> {
        if !success {
            let absent = ["failed to get domain", "Domain not found"];
            return if absent.iter().any(|text| complaint.contains(text)) {
                Ok(Self::Absent)
            } else {
                Err(one_line(complaint))
            };
        }
        let said = said.trim();
        let (state, reason) = match said.split_once(" (") {
            Some((state, reason)) => (state, reason.trim_end_matches(')')),
            None => (said, ""),
        };
        match state {
            "running" | "idle" | "no state" => Ok(Self::Running),
            // In shutdown the guest is on its way; its CPUs no longer run, and no button helps.
            // A crashed domain that is kept for inspection has a QEMU still.
            "paused" | "in shutdown" | "pmsuspended" | "crashed" => Ok(Self::Paused),
            "shut off" => Ok(Self::Off(OffReason::from_word(reason))),
            _ => Err(format!("virsh said {said:?}")),
        }
    }
}

/// Complaints of several lines as one, without virsh's own prefix.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim().trim_start_matches("error: "))
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        "virsh failed and did not say why".into()
    } else {
        lines.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::{DomainState, OffReason};

    #[test]
    fn every_answer_of_virsh_is_understood() {
        let cases = [
            ("running (booted)", DomainState::Running),
            ("running (migrated)", DomainState::Running),
            ("paused (user)", DomainState::Paused),
            ("paused (migrating)", DomainState::Paused),
            ("in shutdown", DomainState::Paused),
            ("crashed (panicked)", DomainState::Paused),
            ("shut off (unknown)", DomainState::Off(OffReason::Unknown)),
            ("shut off (shutdown)", DomainState::Off(OffReason::Shutdown)),
            ("shut off (destroyed)", DomainState::Off(OffReason::Destroyed)),
            ("shut off (crashed)", DomainState::Off(OffReason::Crashed)),
            ("shut off (migrated)", DomainState::Off(OffReason::Migrated)),
            ("shut off (saved)", DomainState::Off(OffReason::Saved)),
            ("shut off (failed)", DomainState::Off(OffReason::Failed)),
            ("shut off (from snapshot)", DomainState::Off(OffReason::FromSnapshot)),
            ("shut off (daemon)", DomainState::Off(OffReason::Daemon)),
            ("shut off (of a later libvirt)", DomainState::Off(OffReason::Unknown)),
            ("shut off", DomainState::Off(OffReason::Unknown)),
        ];
        for (said, state) in cases {
            assert_eq!(
                DomainState::from_virsh(true, &format!("{said}\n\n"), ""),
                Ok(state),
                "{said}"
            );
        }
    }

    #[test]
    fn a_libvirt_that_cannot_be_asked_is_not_a_domain_that_is_gone() {
        assert_eq!(
            DomainState::from_virsh(false, "", "error: failed to get domain 'a'\n"),
            Ok(DomainState::Absent)
        );
        assert_eq!(
            DomainState::from_virsh(
                false,
                "",
                "error: failed to connect to the hypervisor\nerror: Failed to connect socket\n"
            ),
            Err("failed to connect to the hypervisor; Failed to connect socket".into())
        );
        assert_eq!(
            DomainState::from_virsh(false, "", ""),
            Err("virsh failed and did not say why".into())
        );
        assert_eq!(
            DomainState::from_virsh(true, "dying\n", ""),
            Err("virsh said \"dying\"".into())
        );
    }
}
