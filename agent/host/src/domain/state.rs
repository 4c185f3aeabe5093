//! The state of a domain and its reason, with libvirt's names.

use std::fmt;

use virt_sys as sys;

use super::named_enum::named_enum;

named_enum! {
    /// Reason why a domain is running.
    RunningReason {
        Booted = sys::VIR_DOMAIN_RUNNING_BOOTED => "booted",
        Migrated = sys::VIR_DOMAIN_RUNNING_MIGRATED => "migrated",
        Restored = sys::VIR_DOMAIN_RUNNING_RESTORED => "restored",
        FromSnapshot = sys::VIR_DOMAIN_RUNNING_FROM_SNAPSHOT => "from snapshot",
        Unpaused = sys::VIR_DOMAIN_RUNNING_UNPAUSED => "unpaused",
        MigrationCanceled = sys::VIR_DOMAIN_RUNNING_MIGRATION_CANCELED => "migration canceled",
        SaveCanceled = sys::VIR_DOMAIN_RUNNING_SAVE_CANCELED => "save canceled",
        Wakeup = sys::VIR_DOMAIN_RUNNING_WAKEUP => "event wakeup",
        Crashed = sys::VIR_DOMAIN_RUNNING_CRASHED => "crashed",
        PostCopy = sys::VIR_DOMAIN_RUNNING_POSTCOPY => "post-copy",
        PostCopyFailed = sys::VIR_DOMAIN_RUNNING_POSTCOPY_FAILED => "post-copy failed",
    }
}

named_enum! {
    /// Reason why a domain is paused.
    PausedReason {
        User = sys::VIR_DOMAIN_PAUSED_USER => "user",
        Migration = sys::VIR_DOMAIN_PAUSED_MIGRATION => "migrating",
        Save = sys::VIR_DOMAIN_PAUSED_SAVE => "saving",
        Dump = sys::VIR_DOMAIN_PAUSED_DUMP => "dumping",
        IoError = sys::VIR_DOMAIN_PAUSED_IOERROR => "I/O error",
        Watchdog = sys::VIR_DOMAIN_PAUSED_WATCHDOG => "watchdog",
        FromSnapshot = sys::VIR_DOMAIN_PAUSED_FROM_SNAPSHOT => "from snapshot",
        ShuttingDown = sys::VIR_DOMAIN_PAUSED_SHUTTING_DOWN => "shutting down",
        Snapshot = sys::VIR_DOMAIN_PAUSED_SNAPSHOT => "creating snapshot",
        Crashed = sys::VIR_DOMAIN_PAUSED_CRASHED => "crashed",
        StartingUp = sys::VIR_DOMAIN_PAUSED_STARTING_UP => "starting up",
        PostCopy = sys::VIR_DOMAIN_PAUSED_POSTCOPY => "post-copy",
        PostCopyFailed = sys::VIR_DOMAIN_PAUSED_POSTCOPY_FAILED => "post-copy failed",
        ApiError = sys::VIR_DOMAIN_PAUSED_API_ERROR => "api error",
    }
}

impl PausedReason {
    /// Returns whether libvirt pauses a domain for this reason only after its guest has run, and not while a guest
    /// arrives by a migration.
    pub fn follows_a_run(self) -> bool {
        matches!(
            self,
            Self::IoError
                | Self::Watchdog
                | Self::Save
                | Self::Dump
                | Self::Snapshot
                | Self::ShuttingDown
                | Self::Crashed
        )
    }
}

named_enum! {
    /// Reason why a domain is shut off.
    ShutOffReason {
        Shutdown = sys::VIR_DOMAIN_SHUTOFF_SHUTDOWN => "shutdown",
        Destroyed = sys::VIR_DOMAIN_SHUTOFF_DESTROYED => "destroyed",
        Crashed = sys::VIR_DOMAIN_SHUTOFF_CRASHED => "crashed",
        Migrated = sys::VIR_DOMAIN_SHUTOFF_MIGRATED => "migrated",
        Saved = sys::VIR_DOMAIN_SHUTOFF_SAVED => "saved",
        Failed = sys::VIR_DOMAIN_SHUTOFF_FAILED => "failed",
        FromSnapshot = sys::VIR_DOMAIN_SHUTOFF_FROM_SNAPSHOT => "from snapshot",
        Daemon = sys::VIR_DOMAIN_SHUTOFF_DAEMON => "daemon",
    }
}

named_enum! {
    /// Reason why a domain is considered crashed.
    CrashedReason {
        Panicked = sys::VIR_DOMAIN_CRASHED_PANICKED => "panicked",
    }
}

/// The state of a domain, with libvirt's reason for states that can have several reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DomainState {
    /// libvirt's "no state".
    NoState,
    /// The guest runs.
    Running(RunningReason),
    /// The guest is blocked on a resource. QEMU's guests are never in this state.
    Blocked,
    /// The guest exists and is paused.
    Paused(PausedReason),
    /// The guest is shutting down.
    ShuttingDown,
    /// The domain has no guest.
    ShutOff(ShutOffReason),
    /// The guest has crashed; QEMU may still exist.
    Crashed(CrashedReason),
    /// The guest is suspended by its power management.
    PmSuspended,
    /// A state that a later libvirt added.
    Unknown {
        /// libvirt's number of the state.
        state: i32,
        /// libvirt's number of the reason.
        reason: i32,
    },
}

impl DomainState {
    /// Converts libvirt's numbers of the state and of its reason.
    pub fn from_raw(state: i32, reason: i32) -> Self {
        match u32::try_from(state) {
            Ok(sys::VIR_DOMAIN_NOSTATE) => Self::NoState,
            Ok(sys::VIR_DOMAIN_RUNNING) => Self::Running(RunningReason::from_raw(reason)),
            Ok(sys::VIR_DOMAIN_BLOCKED) => Self::Blocked,
            Ok(sys::VIR_DOMAIN_PAUSED) => Self::Paused(PausedReason::from_raw(reason)),
            Ok(sys::VIR_DOMAIN_SHUTDOWN) => Self::ShuttingDown,
            Ok(sys::VIR_DOMAIN_SHUTOFF) => Self::ShutOff(ShutOffReason::from_raw(reason)),
            Ok(sys::VIR_DOMAIN_CRASHED) => Self::Crashed(CrashedReason::from_raw(reason)),
            Ok(sys::VIR_DOMAIN_PMSUSPENDED) => Self::PmSuspended,
            _ => Self::Unknown { state, reason },
        }
    }

    /// Returns libvirt's name of the state, as `virsh domstate` prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoState => "no state",
            Self::Running(_) => "running",
            Self::Blocked => "idle",
            Self::Paused(_) => "paused",
            Self::ShuttingDown => "in shutdown",
            Self::ShutOff(_) => "shut off",
            Self::Crashed(_) => "crashed",
            Self::PmSuspended => "pmsuspended",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Returns libvirt's name of the reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Running(reason) => reason.as_str(),
            Self::Paused(reason) => reason.as_str(),
            Self::ShutOff(reason) => reason.as_str(),
            Self::Crashed(reason) => reason.as_str(),
            Self::NoState | Self::Blocked | Self::ShuttingDown | Self::PmSuspended | Self::Unknown { .. } => "unknown",
        }
    }

    /// Returns whether a guest exists, running or not; `None` if the state does not show it.
    pub fn has_guest(self) -> Option<bool> {
        match self {
            Self::Running(_) | Self::Blocked | Self::Paused(_) | Self::ShuttingDown | Self::PmSuspended => Some(true),
            Self::ShutOff(_) => Some(false),
            Self::Crashed(_) | Self::NoState | Self::Unknown { .. } => None,
        }
    }
}

impl fmt::Display for DomainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { state, reason } => write!(f, "unknown ({state}, {reason})"),
            known => write!(f, "{} ({})", known.as_str(), known.reason()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_named_as_in_virsh() {
        for (raw, expected) in [
            ((1, 1), "running (booted)"),
            ((1, 2), "running (migrated)"),
            ((1, 6), "running (migration canceled)"),
            ((3, 1), "paused (user)"),
            ((3, 5), "paused (I/O error)"),
            ((5, 4), "shut off (migrated)"),
            ((5, 2), "shut off (destroyed)"),
            ((6, 1), "crashed (panicked)"),
            ((0, 0), "no state (unknown)"),
        ] {
            assert_eq!(DomainState::from_raw(raw.0, raw.1).to_string(), expected);
        }
    }

    #[test]
    fn numbers_without_a_name_are_kept() {
        for raw in [-1, 0, 99, i32::MIN, i32::MAX] {
            assert_eq!(PausedReason::from_raw(raw), PausedReason::Unknown(raw));
            let state = DomainState::from_raw(99, raw);
            assert_eq!(state, DomainState::Unknown { state: 99, reason: raw });
            assert_eq!((state.as_str(), state.has_guest()), ("unknown", None));
        }
        assert_eq!(
            DomainState::from_raw(-1, 0),
            DomainState::Unknown { state: -1, reason: 0 }
        );
        assert_eq!(RunningReason::from_raw(77).to_string(), "unknown (77)");
        assert_eq!(DomainState::from_raw(1, 0).to_string(), "running (unknown)");
    }

    #[test]
    fn each_name_stands_for_one_reason() {
        let mut names: Vec<&str> = PausedReason::ALL.iter().map(|reason| reason.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PausedReason::ALL.len());
    }
}
