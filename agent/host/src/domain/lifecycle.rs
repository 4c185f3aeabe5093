//! The lifecycle events of a domain, with libvirt's names.

use std::fmt;

use virt_sys as sys;

use super::named_enum::named_enum;

named_enum! {
    /// The origin of a domain's definition.
    DefinedDetail {
        Added = sys::VIR_DOMAIN_EVENT_DEFINED_ADDED => "Added",
        Updated = sys::VIR_DOMAIN_EVENT_DEFINED_UPDATED => "Updated",
        Renamed = sys::VIR_DOMAIN_EVENT_DEFINED_RENAMED => "Renamed",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT => "Snapshot",
    }
}

named_enum! {
    /// The reason why a domain was undefined.
    UndefinedDetail {
        Removed = sys::VIR_DOMAIN_EVENT_UNDEFINED_REMOVED => "Removed",
        Renamed = sys::VIR_DOMAIN_EVENT_UNDEFINED_RENAMED => "Renamed",
    }
}

named_enum! {
    /// The kind of a guest's start.
    StartedDetail {
        Booted = sys::VIR_DOMAIN_EVENT_STARTED_BOOTED => "Booted",
        Migrated = sys::VIR_DOMAIN_EVENT_STARTED_MIGRATED => "Migrated",
        Restored = sys::VIR_DOMAIN_EVENT_STARTED_RESTORED => "Restored",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_STARTED_FROM_SNAPSHOT => "Snapshot",
        Wakeup = sys::VIR_DOMAIN_EVENT_STARTED_WAKEUP => "Event wakeup",
        Recreated = sys::VIR_DOMAIN_EVENT_STARTED_RECREATED => "Recreated",
    }
}

named_enum! {
    /// The reason why a guest was paused.
    SuspendedDetail {
        Paused = sys::VIR_DOMAIN_EVENT_SUSPENDED_PAUSED => "Paused",
        Migrated = sys::VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED => "Migrated",
        IoError = sys::VIR_DOMAIN_EVENT_SUSPENDED_IOERROR => "I/O Error",
        Watchdog = sys::VIR_DOMAIN_EVENT_SUSPENDED_WATCHDOG => "Watchdog",
        Restored = sys::VIR_DOMAIN_EVENT_SUSPENDED_RESTORED => "Restored",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_SUSPENDED_FROM_SNAPSHOT => "Snapshot",
        ApiError = sys::VIR_DOMAIN_EVENT_SUSPENDED_API_ERROR => "API error",
        PostCopy = sys::VIR_DOMAIN_EVENT_SUSPENDED_POSTCOPY => "Post-copy",
        PostCopyFailed = sys::VIR_DOMAIN_EVENT_SUSPENDED_POSTCOPY_FAILED => "Post-copy Error",
        GuestShutdown = sys::VIR_DOMAIN_EVENT_SUSPENDED_GUEST_SHUTDOWN => "Guest shutdown",
    }
}

named_enum! {
    /// The reason why a guest was resumed.
    ResumedDetail {
        Unpaused = sys::VIR_DOMAIN_EVENT_RESUMED_UNPAUSED => "Unpaused",
        Migrated = sys::VIR_DOMAIN_EVENT_RESUMED_MIGRATED => "Migrated",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_RESUMED_FROM_SNAPSHOT => "Snapshot",
        PostCopy = sys::VIR_DOMAIN_EVENT_RESUMED_POSTCOPY => "Post-copy",
        PostCopyFailed = sys::VIR_DOMAIN_EVENT_RESUMED_POSTCOPY_FAILED => "Post-copy Error",
    }
}

named_enum! {
    /// The kind of a guest's stop.
    StoppedDetail {
        Shutdown = sys::VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN => "Shutdown",
        Destroyed = sys::VIR_DOMAIN_EVENT_STOPPED_DESTROYED => "Destroyed",
        Crashed = sys::VIR_DOMAIN_EVENT_STOPPED_CRASHED => "Crashed",
        Migrated = sys::VIR_DOMAIN_EVENT_STOPPED_MIGRATED => "Migrated",
        Saved = sys::VIR_DOMAIN_EVENT_STOPPED_SAVED => "Saved",
        Failed = sys::VIR_DOMAIN_EVENT_STOPPED_FAILED => "Failed",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_STOPPED_FROM_SNAPSHOT => "Snapshot",
        Recreated = sys::VIR_DOMAIN_EVENT_STOPPED_RECREATED => "Recreated",
    }
}

named_enum! {
    /// The initiator of a completed shutdown.
    ShutdownDetail {
        Finished = sys::VIR_DOMAIN_EVENT_SHUTDOWN_FINISHED => "Finished",
        Guest = sys::VIR_DOMAIN_EVENT_SHUTDOWN_GUEST => "Finished after guest request",
        Host = sys::VIR_DOMAIN_EVENT_SHUTDOWN_HOST => "Finished after host request",
    }
}

named_enum! {
    /// The kind of a suspension by the guest's power management.
    PmSuspendedDetail {
        Memory = sys::VIR_DOMAIN_EVENT_PMSUSPENDED_MEMORY => "Memory",
        Disk = sys::VIR_DOMAIN_EVENT_PMSUSPENDED_DISK => "Disk",
    }
}

named_enum! {
    /// The kind of a guest's crash.
    CrashedDetail {
        Panicked = sys::VIR_DOMAIN_EVENT_CRASHED_PANICKED => "Panicked",
        Crashloaded = sys::VIR_DOMAIN_EVENT_CRASHED_CRASHLOADED => "Crashloaded",
    }
}

/// A lifecycle event of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifecycleEvent {
    /// The domain was defined.
    Defined(DefinedDetail),
    /// The domain was undefined.
    Undefined(UndefinedDetail),
    /// The guest was started.
    Started(StartedDetail),
    /// The guest was paused.
    Suspended(SuspendedDetail),
    /// The guest was resumed.
    Resumed(ResumedDetail),
    /// The guest stopped.
    Stopped(StoppedDetail),
    /// The guest has shut itself down; QEMU still exists.
    Shutdown(ShutdownDetail),
    /// The guest was suspended by its power management.
    PmSuspended(PmSuspendedDetail),
    /// The guest has crashed; QEMU may still exist.
    Crashed(CrashedDetail),
    /// An event that a later libvirt added.
    Unknown {
        /// libvirt's number of the event.
        event: i32,
        /// libvirt's number of the detail.
        detail: i32,
    },
}

impl LifecycleEvent {
    /// Converts libvirt's numbers of the event and of its detail.
    pub fn from_raw(event: i32, detail: i32) -> Self {
        match u32::try_from(event) {
            Ok(sys::VIR_DOMAIN_EVENT_DEFINED) => Self::Defined(DefinedDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_UNDEFINED) => Self::Undefined(UndefinedDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_STARTED) => Self::Started(StartedDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_SUSPENDED) => Self::Suspended(SuspendedDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_RESUMED) => Self::Resumed(ResumedDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_STOPPED) => Self::Stopped(StoppedDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_SHUTDOWN) => Self::Shutdown(ShutdownDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_PMSUSPENDED) => Self::PmSuspended(PmSuspendedDetail::from_raw(detail)),
            Ok(sys::VIR_DOMAIN_EVENT_CRASHED) => Self::Crashed(CrashedDetail::from_raw(detail)),
            _ => Self::Unknown { event, detail },
        }
    }

    /// Returns libvirt's name of the event, as `virsh event` prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Defined(_) => "Defined",
            Self::Undefined(_) => "Undefined",
            Self::Started(_) => "Started",
            Self::Suspended(_) => "Suspended",
            Self::Resumed(_) => "Resumed",
            Self::Stopped(_) => "Stopped",
            Self::Shutdown(_) => "Shutdown",
            Self::PmSuspended(_) => "PMSuspended",
            Self::Crashed(_) => "Crashed",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// Returns libvirt's name of the detail.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Defined(detail) => detail.as_str(),
            Self::Undefined(detail) => detail.as_str(),
            Self::Started(detail) => detail.as_str(),
            Self::Suspended(detail) => detail.as_str(),
            Self::Resumed(detail) => detail.as_str(),
            Self::Stopped(detail) => detail.as_str(),
            Self::Shutdown(detail) => detail.as_str(),
            Self::PmSuspended(detail) => detail.as_str(),
            Self::Crashed(detail) => detail.as_str(),
            Self::Unknown { .. } => "unknown",
        }
    }
}

impl fmt::Display for LifecycleEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { event, detail } => write!(f, "unknown ({event}, {detail})"),
            known => write!(f, "{} {}", known.as_str(), known.detail()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_named_as_in_virsh() {
        for (raw, expected) in [
            ((0, 0), "Defined Added"),
            ((2, 0), "Started Booted"),
            ((3, 0), "Suspended Paused"),
            ((4, 0), "Resumed Unpaused"),
            ((5, 1), "Stopped Destroyed"),
            ((5, 3), "Stopped Migrated"),
            ((6, 1), "Shutdown Finished after guest request"),
            ((8, 0), "Crashed Panicked"),
            ((9, 3), "unknown (9, 3)"),
            ((-1, -1), "unknown (-1, -1)"),
        ] {
            assert_eq!(LifecycleEvent::from_raw(raw.0, raw.1).to_string(), expected);
        }
        assert_eq!(
            LifecycleEvent::from_raw(5, 99),
            LifecycleEvent::Stopped(StoppedDetail::Unknown(99))
        );
    }
}
