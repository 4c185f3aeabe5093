//! What libvirt tells of a domain without being asked, and the queue in which it waits to be read.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use tokio::sync::{Notify, mpsc};
use virt_sys as sys;

use super::{JobInfo, lifecycle::Lifecycle, words::words};

/// Events that wait to be read. A guest causes a handful in its life; whoever cannot read as many has
/// to look at the domain anew anyway.
pub(crate) const QUEUE: usize = 256;

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
    /// A job, such as a migration, has ended at the source, well or badly; what is known of it.
    JobCompleted(Option<Box<JobInfo>>),
    /// A migration from here begins to go over the guest's memory for this time. Some may be left out.
    MigrationIteration(i32),
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
    pub(crate) fn new() -> (Arc<Self>, DomainEvents) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let shared = Arc::new(Self {
            events: Mutex::new(Some(sender)),
            end: OnceLock::new(),
            thread: Notify::new(),
            relay: Notify::new(),
        });
        let events = DomainEvents {
            receiver,
            shared: Arc::clone(&shared),
        };
        (shared, events)
    }

    /// Puts an event into the queue, without ever waiting. If it is full, the connection ends: an
    /// event must not be lost in silence.
    pub(crate) fn forward(&self, event: DomainEvent) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        // The next pass says as much, and a migration may take thousands of them.
        if matches!(event, DomainEvent::MigrationIteration(_))
            && events.as_ref().is_some_and(|sender| sender.capacity() < QUEUE / 2)
        {
            return;
        }
        let full = events
            .as_ref()
            .is_some_and(|sender| matches!(sender.try_send(event), Err(mpsc::error::TrySendError::Full(_))));
        drop(events);
        if full {
            self.finish(CloseReason::TooManyEvents);
        }
    }

    /// The connection has ended, or has to, at once. The first reason counts.
    pub(crate) fn finish(&self, reason: CloseReason) {
        self.finish_in_order(reason);
        self.relay.notify_one();
    }

    /// The same, and the relay goes on until the thread has closed the connection.
    pub(crate) fn finish_in_order(&self, reason: CloseReason) {
        let _ = self.end.set(reason);
        self.events.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.thread.notify_one();
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
    shared: Arc<Shared>,
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
    fn reasons_without_a_name_are_kept() {
        assert_eq!(CloseReason::from_raw(9), CloseReason::Unknown(9));
        assert_eq!(CloseReason::from_raw(1), CloseReason::EndOfFile);
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

    #[tokio::test]
    async fn passes_of_a_migration_leave_room_for_what_must_not_be_lost() {
        let (shared, mut events) = Shared::new();
        for pass in 0..2 * i32::try_from(QUEUE).unwrap() {
            shared.forward(DomainEvent::MigrationIteration(pass));
        }
        shared.forward(DomainEvent::Reboot);
        assert_eq!(shared.end(), None);
        assert_eq!(events.recv().await, Some(DomainEvent::MigrationIteration(0)));
        let mut last = None;
        while last != Some(DomainEvent::Reboot) {
            last = events.recv().await;
            assert!(last.is_some());
        }
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
