//! State of the domain, as `virsh domstate --reason` prints it.

/// A domain's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VirshDomainState {
    /// The virtual CPUs of the domain are running.
    Running,
    /// The domain has a QEMU whose virtual CPUs are not running, so the guest does not react.
    Paused,
    /// The domain has no QEMU.
    Off(OffReason),
    /// libvirt does not know the domain.
    Absent,
}

/// Reason why a domain has no QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffReason {
    /// The reason is unknown to libvirt: the domain was never started, or ended while libvirtd was not running.
    Unknown,
    /// The guest shut itself down.
    Shutdown,
    /// The domain was destroyed.
    Destroyed,
    /// QEMU ended unexpectedly.
    Crashed,
    /// The domain was migrated away.
    Migrated,
    /// The domain was saved to a file.
    Saved,
    /// The domain could not be started, or an incoming migration failed.
    Failed,
    /// The domain was reverted to a snapshot.
    FromSnapshot,
    /// libvirt itself failed.
    Daemon,
}

impl OffReason {
    /// Returns libvirt's name of the reason.
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

    /// Converts libvirt's name of the reason. A name that a later libvirt added becomes `Unknown`.
    pub(crate) fn from_name(name: &str) -> Self {
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
        .find(|reason| reason.as_str() == name)
        .unwrap_or(Self::Unknown)
    }
}

impl VirshDomainState {
    /// Parses the output of `virsh domstate --reason`.
    ///
    /// # Errors
    /// If virsh failed for another reason than a missing domain. The error is virsh's message, or names the unknown
    /// output.
    pub(crate) fn from_virsh(success: bool, stdout: &str, error_output: &str) -> Result<Self, String> {
        if !success {
            let absent = ["failed to get domain", "Domain not found"];
            return if absent.iter().any(|text| error_output.contains(text)) {
                Ok(Self::Absent)
            } else {
                Err(one_line(error_output))
            };
        }
        let stdout = stdout.trim();
        let (state, reason) = match stdout.split_once(" (") {
            Some((state, reason)) => (state, reason.trim_end_matches(')')),
            None => (stdout, ""),
        };
        match state {
            "running" | "idle" | "no state" => Ok(Self::Running),
            // In the state "in shutdown", the guest is already stopping: its CPUs no longer run, and the power button
            // has no effect. A crashed domain that is kept for inspection still has a QEMU.
            "paused" | "in shutdown" | "pmsuspended" | "crashed" => Ok(Self::Paused),
            "shut off" => Ok(Self::Off(OffReason::from_name(reason))),
            _ => Err(format!("unexpected output of virsh: {stdout:?}")),
        }
    }
}

/// Joins error messages into one line, without virsh's prefix.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim().trim_start_matches("error: "))
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        "virsh failed without an error message".into()
    } else {
        lines.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::{OffReason, VirshDomainState};

    #[test]
    fn every_output_of_virsh_is_parsed() {
        let cases = [
            ("running (booted)", VirshDomainState::Running),
            ("running (migrated)", VirshDomainState::Running),
            ("paused (user)", VirshDomainState::Paused),
            ("paused (migrating)", VirshDomainState::Paused),
            ("in shutdown", VirshDomainState::Paused),
            ("crashed (panicked)", VirshDomainState::Paused),
            ("shut off (unknown)", VirshDomainState::Off(OffReason::Unknown)),
            ("shut off (shutdown)", VirshDomainState::Off(OffReason::Shutdown)),
            ("shut off (destroyed)", VirshDomainState::Off(OffReason::Destroyed)),
            ("shut off (crashed)", VirshDomainState::Off(OffReason::Crashed)),
            ("shut off (migrated)", VirshDomainState::Off(OffReason::Migrated)),
            ("shut off (saved)", VirshDomainState::Off(OffReason::Saved)),
            ("shut off (failed)", VirshDomainState::Off(OffReason::Failed)),
            (
                "shut off (from snapshot)",
                VirshDomainState::Off(OffReason::FromSnapshot),
            ),
            ("shut off (daemon)", VirshDomainState::Off(OffReason::Daemon)),
            (
                "shut off (of a later libvirt)",
                VirshDomainState::Off(OffReason::Unknown),
            ),
            ("shut off", VirshDomainState::Off(OffReason::Unknown)),
        ];
        for (stdout, state) in cases {
            assert_eq!(
                VirshDomainState::from_virsh(true, &format!("{stdout}\n\n"), ""),
                Ok(state),
                "{stdout}"
            );
        }
    }

    #[test]
    fn failed_libvirt_query_is_not_an_absent_domain() {
        assert_eq!(
            VirshDomainState::from_virsh(false, "", "error: failed to get domain 'a'\n"),
            Ok(VirshDomainState::Absent)
        );
        assert_eq!(
            VirshDomainState::from_virsh(
                false,
                "",
                "error: failed to connect to the hypervisor\nerror: Failed to connect socket\n"
            ),
            Err("failed to connect to the hypervisor; Failed to connect socket".into())
        );
        assert_eq!(
            VirshDomainState::from_virsh(false, "", ""),
            Err("virsh failed without an error message".into())
        );
        assert_eq!(
            VirshDomainState::from_virsh(true, "dying\n", ""),
            Err("unexpected output of virsh: \"dying\"".into())
        );
    }
}
