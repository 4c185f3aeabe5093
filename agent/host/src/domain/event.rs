//! What libvirt tells of a domain without being asked, and the queue in which it waits to be read.

use std::{
    fmt,
    sync::{Mutex, OnceLock, PoisonError},
};

use tokio::sync::{Notify, mpsc};
use virt_sys as sys;

use super::words::words;

/// Events that wait to be read. A guest causes a handful in its life; whoever cannot read as many has
/// to look at the domain anew anyway.
pub(crate) const QUEUE: usize = 256;

words! {
    /// How a domain came to be defined.
    DefinedDetail {
        Added = sys::VIR_DOMAIN_EVENT_DEFINED_ADDED => "Added",
        Updated = sys::VIR_DOMAIN_EVENT_DEFINED_UPDATED => "Updated",
        Renamed = sys::VIR_DOMAIN_EVENT_DEFINED_RENAMED => "Renamed",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_DEFINED_FROM_SNAPSHOT => "Snapshot",
    }
}

words! {
    /// How a domain came to be undefined.
    UndefinedDetail {
        Removed = sys::VIR_DOMAIN_EVENT_UNDEFINED_REMOVED => "Removed",
        Renamed = sys::VIR_DOMAIN_EVENT_UNDEFINED_RENAMED => "Renamed",
    }
}

words! {
    /// How a guest was started.
    StartedDetail {
        Booted = sys::VIR_DOMAIN_EVENT_STARTED_BOOTED => "Booted",
        Migrated = sys::VIR_DOMAIN_EVENT_STARTED_MIGRATED => "Migrated",
        Restored = sys::VIR_DOMAIN_EVENT_STARTED_RESTORED => "Restored",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_STARTED_FROM_SNAPSHOT => "Snapshot",
        Wakeup = sys::VIR_DOMAIN_EVENT_STARTED_WAKEUP => "Event wakeup",
        Recreated = sys::VIR_DOMAIN_EVENT_STARTED_RECREATED => "Recreated",
    }
}

words! {
    /// Why a guest was paused.
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

words! {
    /// Why a guest goes on.
    ResumedDetail {
        Unpaused = sys::VIR_DOMAIN_EVENT_RESUMED_UNPAUSED => "Unpaused",
        Migrated = sys::VIR_DOMAIN_EVENT_RESUMED_MIGRATED => "Migrated",
        FromSnapshot = sys::VIR_DOMAIN_EVENT_RESUMED_FROM_SNAPSHOT => "Snapshot",
        PostCopy = sys::VIR_DOMAIN_EVENT_RESUMED_POSTCOPY => "Post-copy",
        PostCopyFailed = sys::VIR_DOMAIN_EVENT_RESUMED_POSTCOPY_FAILED => "Post-copy Error",
    }
}

words! {
    /// How a guest ended.
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

words! {
    /// Who asked for a shutdown that has come to its end.
    ShutdownDetail {
        Finished = sys::VIR_DOMAIN_EVENT_SHUTDOWN_FINISHED => "Finished",
        Guest = sys::VIR_DOMAIN_EVENT_SHUTDOWN_GUEST => "Finished after guest request",
        Host = sys::VIR_DOMAIN_EVENT_SHUTDOWN_HOST => "Finished after host request",
    }
}

words! {
    /// How a guest fell asleep.
    PmSuspendedDetail {
        Memory = sys::VIR_DOMAIN_EVENT_PMSUSPENDED_MEMORY => "Memory",
        Disk = sys::VIR_DOMAIN_EVENT_PMSUSPENDED_DISK => "Disk",
    }
}

words! {
    /// How a guest crashed.
    CrashedDetail {
        Panicked = sys::VIR_DOMAIN_EVENT_CRASHED_PANICKED => "Panicked",
        Crashloaded = sys::VIR_DOMAIN_EVENT_CRASHED_CRASHLOADED => "Crashloaded",
    }
}

words! {
    /// Whether the guest's agent is connected to its channel.
    AgentChannel {
        Connected = sys::VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED => "connected",
        Disconnected = sys::VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_DISCONNECTED => "disconnected",
    }
}

words! {
    /// What QEMU does about an error of a disk.
    IoErrorAction {
        Ignore = sys::VIR_DOMAIN_EVENT_IO_ERROR_NONE => "none",
        Pause = sys::VIR_DOMAIN_EVENT_IO_ERROR_PAUSE => "pause",
        Report = sys::VIR_DOMAIN_EVENT_IO_ERROR_REPORT => "report",
    }
}

/// A step in a domain's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lifecycle {
    /// It is defined.
    Defined(DefinedDetail),
    /// It is defined no more.
    Undefined(UndefinedDetail),
    /// There is a guest.
    Started(StartedDetail),
    /// The guest stands still.
    Suspended(SuspendedDetail),
    /// The guest goes on.
    Resumed(ResumedDetail),
    /// There is no guest any more.
    Stopped(StoppedDetail),
    /// The guest has shut itself down; QEMU is still there.
    Shutdown(ShutdownDetail),
    /// The guest has fallen asleep.
    PmSuspended(PmSuspendedDetail),
    /// The guest has crashed; QEMU may still be there.
    Crashed(CrashedDetail),
    /// An event that libvirt gained later.
    Unknown {
        /// libvirt's number of the event.
        event: i32,
        /// libvirt's number of the detail.
        detail: i32,
    },
}

impl Lifecycle {
    /// What libvirt's two numbers stand for.
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

    /// libvirt's word for the event, as `virsh event` prints it.
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

    /// libvirt's word for the detail.
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

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { event, detail } => write!(f, "unknown ({event}, {detail})"),
            known => write!(f, "{} {}", known.as_str(), known.detail()),
        }
    }
}

/// Something that happened to a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainEvent {
    /// A step in its life.
    Lifecycle(Lifecycle),
    /// The guest has begun anew, in the same QEMU.
    Reboot,
    /// The guest's agent came or went.
    Agent(AgentChannel),
    /// A disk failed.
    IoError {
        /// libvirt's alias of the disk, at most 256 bytes of it.
        disk: String,
        /// What QEMU does about it.
        action: IoErrorAction,
        /// Why: `enospc`, or nothing.
        reason: String,
    },
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// libvirt's daemon closed it: it ended, or was killed.
    EndOfFile,
    /// Reading or writing failed, or libvirt's client understood no more.
    Error,
    /// The daemon did not answer a keep-alive.
    KeepAlive,
    /// Nobody needs it any more.
    Client,
    /// A call was not answered in time.
    Overdue {
        /// The call.
        call: &'static str,
    },
    /// More events than can be read.
    TooManyEvents,
    /// What came was not libvirt's protocol, or more at once than is sane.
    Garbage,
    /// A reason that libvirt gained later.
    Unknown(i32),
}

impl CloseReason {
    pub(crate) fn from_raw(raw: i32) -> Self {
        match u32::try_from(raw) {
            Ok(sys::VIR_CONNECT_CLOSE_REASON_ERROR) => Self::Error,
            Ok(sys::VIR_CONNECT_CLOSE_REASON_EOF) => Self::EndOfFile,
            Ok(sys::VIR_CONNECT_CLOSE_REASON_KEEPALIVE) => Self::KeepAlive,
            Ok(sys::VIR_CONNECT_CLOSE_REASON_CLIENT) => Self::Client,
            _ => Self::Unknown(raw),
        }
    }

    /// A stable word, for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndOfFile => "EndOfFile",
            Self::Error => "Error",
            Self::KeepAlive => "KeepAlive",
            Self::Client => "Client",
            Self::Overdue { .. } => "Overdue",
            Self::TooManyEvents => "TooManyEvents",
            Self::Garbage => "Garbage",
            Self::Unknown(_) => "Unknown",
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndOfFile => f.write_str("libvirtd closed the connection"),
            Self::Error => f.write_str("the connection failed"),
            Self::KeepAlive => f.write_str("libvirtd did not answer a keep-alive"),
            Self::Client => f.write_str("the connection was given up"),
            Self::Overdue { call } => write!(f, "libvirtd did not answer in time when {call}"),
            Self::TooManyEvents => f.write_str("more events came than can be read"),
            Self::Garbage => f.write_str("what came was not libvirt's protocol"),
            Self::Unknown(raw) => write!(f, "reason {raw}"),
        }
    }
}

/// What all parts of one connection share: where events go, and how it ended.
#[derive(Debug)]
pub(crate) struct Shared {
    events: Mutex<Option<mpsc::Sender<DomainEvent>>>,
    end: OnceLock<CloseReason>,
    /// Ends the thread when it waits for work.
    pub(crate) thread: Notify,
    /// Ends the relay.
    pub(crate) relay: Notify,
}

impl Shared {
    /// What is shared, and the events that are going to come.
    pub(crate) fn new() -> (std::sync::Arc<Self>, DomainEvents) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let shared = std::sync::Arc::new(Self {
            events: Mutex::new(Some(sender)),
            end: OnceLock::new(),
            thread: Notify::new(),
            relay: Notify::new(),
        });
        let events = DomainEvents {
            receiver,
            shared: std::sync::Arc::clone(&shared),
        };
        (shared, events)
    }

    /// Puts an event into the queue, without ever waiting. If it is full, the connection ends: an
    /// event must not be lost in silence.
    pub(crate) fn forward(&self, event: DomainEvent) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let full = events
            .as_ref()
            .is_some_and(|sender| matches!(sender.try_send(event), Err(mpsc::error::TrySendError::Full(_))));
        drop(events);
        if full {
            self.finish(CloseReason::TooManyEvents);
        }
    }

    /// The connection has ended, or has to. The first reason counts.
    pub(crate) fn finish(&self, reason: CloseReason) {
        let _ = self.end.set(reason);
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.thread.notify_one();
        self.relay.notify_one();
    }

    /// Why it ended, once it has.
    pub(crate) fn end(&self) -> Option<CloseReason> {
        self.end.get().copied()
    }
}

/// The events of a domain, in libvirt's order, from the moment the connection was opened.
#[derive(Debug)]
pub struct DomainEvents {
    receiver: mpsc::Receiver<DomainEvent>,
    shared: std::sync::Arc<Shared>,
}

impl DomainEvents {
    /// The next event; `None` when the connection has ended and all events have been read. What
    /// happened after that is only known by looking, over a new connection.
    pub async fn recv(&mut self) -> Option<DomainEvent> {
        self.receiver.recv().await
    }

    /// Why the connection has ended; `None` as long as it has not.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.shared.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_words_of_virsh() {
        for (raw, words) in [
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
            assert_eq!(Lifecycle::from_raw(raw.0, raw.1).to_string(), words);
        }
        assert_eq!(
            Lifecycle::from_raw(5, 99),
            Lifecycle::Stopped(StoppedDetail::Unknown(99))
        );
        assert_eq!(CloseReason::from_raw(9), CloseReason::Unknown(9));
    }

    #[tokio::test]
    async fn a_full_queue_ends_the_connection_and_loses_nothing_of_what_was_taken() {
        let (shared, mut events) = Shared::new();
        for _ in 0..=QUEUE {
            shared.forward(DomainEvent::Reboot);
        }
        assert_eq!(events.close_reason(), Some(CloseReason::TooManyEvents));
        let mut read = 0;
        while events.recv().await.is_some() {
            read += 1;
        }
        assert_eq!(read, QUEUE);
        // The first reason counts, and what comes later goes nowhere.
        shared.finish(CloseReason::EndOfFile);
        shared.forward(DomainEvent::Reboot);
        assert_eq!(events.close_reason(), Some(CloseReason::TooManyEvents));
        assert_eq!(events.recv().await, None);
    }

    #[test]
    fn events_that_nobody_reads_cost_nothing() {
        let (shared, events) = Shared::new();
        drop(events);
        for _ in 0..2 * QUEUE {
            shared.forward(DomainEvent::Reboot);
        }
        assert_eq!(shared.end(), None);
    }
}
