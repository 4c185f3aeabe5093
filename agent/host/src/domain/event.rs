//! Events that libvirt sends about a domain, and the queue that holds them until they are read.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use virt_sys as sys;

use super::{JobInfo, lifecycle::LifecycleEvent, named_enum::named_enum};

/// Maximum number of unread events.
///
/// A guest causes only a few events in its lifetime. A reader with this number of unread events has to read the
/// domain's state again anyway.
pub(crate) const QUEUE: usize = 256;

named_enum! {
    /// Whether the guest agent is connected to its channel.
    AgentChannel {
        Connected = sys::VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED => "connected",
        Disconnected = sys::VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_DISCONNECTED => "disconnected",
    }
}

named_enum! {
    /// QEMU's reaction to an I/O error of a disk.
    IoErrorAction {
        Ignore = sys::VIR_DOMAIN_EVENT_IO_ERROR_NONE => "none",
        Pause = sys::VIR_DOMAIN_EVENT_IO_ERROR_PAUSE => "pause",
        Report = sys::VIR_DOMAIN_EVENT_IO_ERROR_REPORT => "report",
    }
}

/// An event of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DomainEvent {
    /// A lifecycle event.
    Lifecycle(LifecycleEvent),
    /// The guest has rebooted in the same QEMU.
    Reboot,
    /// The guest agent connected or disconnected.
    Agent(AgentChannel),
    /// A disk had an I/O error.
    IoError {
        /// libvirt's alias of the disk, at most 256 characters of it.
        disk: String,
        /// QEMU's reaction.
        action: IoErrorAction,
        /// The reason: `enospc`, or empty.
        reason: String,
    },
    /// A job, such as a migration, has ended at the source, successfully or not. Contains the job's statistics, if
    /// known.
    JobCompleted(Option<Box<JobInfo>>),
    /// An outgoing migration starts the pass over the guest's memory with this number. Some of these events may be
    /// dropped.
    MigrationIteration(i32),
}

/// Reason why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// libvirtd closed the connection: libvirtd exited or was killed.
    EndOfFile,
    /// Reading or writing failed, or libvirt's client could not parse the data.
    Error,
    /// libvirtd did not respond to keep-alives.
    KeepAlive,
    /// This process closed the connection.
    Client,
    /// A call was overdue.
    Overdue {
        /// Name of the overdue call.
        call: &'static str,
    },
    /// Events arrived faster than they were read or than the limit allows.
    TooManyEvents,
    /// The data was not libvirt's protocol, or a message was too long.
    Garbage,
    /// A reason that a later libvirt added.
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

    /// Returns a stable identifier for logs and metrics.
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
            Self::KeepAlive => f.write_str("libvirtd did not respond to a keep-alive"),
            Self::Client => f.write_str("this process closed the connection"),
            Self::Overdue { call } => write!(f, "libvirtd did not respond in time while {call}"),
            Self::TooManyEvents => f.write_str("events arrived faster than they were read"),
            Self::Garbage => f.write_str("the received data does not follow libvirt's protocol"),
            Self::Unknown(raw) => write!(f, "unknown reason {raw}"),
        }
    }
}

/// State shared by all parts of a connection: the event queue and the reason for its end.
#[derive(Debug)]
pub(crate) struct EventSource {
    events: Mutex<Option<mpsc::Sender<DomainEvent>>>,
    end: OnceLock<CloseReason>,
    /// Wakes the thread while it waits for work, so that it exits.
    pub(crate) thread: Notify,
    /// Notification that ends the relay.
    pub(crate) relay: Notify,
}

impl EventSource {
    /// Returns the shared state and the receiver of the events.
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

    /// Enqueues an event without blocking.
    ///
    /// If the queue is full, the connection is closed, because no event may be lost silently.
    pub(crate) fn forward(&self, event: DomainEvent) {
        let events = self.events.lock();
        // Events for passes can be dropped, because the next pass supersedes them. A migration may have thousands of
        // passes.
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

    /// Marks the connection as ended and closes the connection at once. Only the first reason is kept.
    pub(crate) fn finish(&self, reason: CloseReason) {
        self.finish_in_order(reason);
        self.relay.notify_one();
    }

    /// Marks the connection as ended like [`Self::finish`], but the relay continues until the thread has closed the
    /// connection.
    pub(crate) fn finish_in_order(&self, reason: CloseReason) {
        let _ = self.end.set(reason);
        self.events.lock().take();
        self.thread.notify_one();
    }

    /// Returns the reason why the connection ended, or `None` while it is open.
    pub(crate) fn end(&self) -> Option<CloseReason> {
        self.end.get().copied()
    }
}

/// The events of a domain, in libvirt's order, from the moment the connection was opened.
#[derive(Debug)]
pub struct DomainEvents {
    receiver: mpsc::Receiver<DomainEvent>,
    shared: Arc<EventSource>,
}

impl DomainEvents {
    /// Returns the next event, or `None` when the connection has ended and all events have been read.
    ///
    /// Changes after the end of the connection can only be found by reading the domain's state over a new connection.
    pub async fn recv(&mut self) -> Option<DomainEvent> {
        self.receiver.recv().await
    }

    /// Returns the reason why the connection has ended, or `None` while it is open.
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
    async fn full_queue_ends_the_connection_and_keeps_taken_events() {
        let (shared, mut events) = EventSource::new();
        for _ in 0..=QUEUE {
            shared.forward(DomainEvent::Reboot);
        }
        assert_eq!(events.close_reason(), Some(CloseReason::TooManyEvents));
        let mut read = 0;
        while events.recv().await.is_some() {
            read += 1;
        }
        assert_eq!(read, QUEUE);
        // Only the first reason is kept, and later events are dropped.
        shared.finish(CloseReason::EndOfFile);
        shared.forward(DomainEvent::Reboot);
        assert_eq!(events.close_reason(), Some(CloseReason::TooManyEvents));
        assert_eq!(events.recv().await, None);
    }

    #[tokio::test]
    async fn migration_iterations_leave_queue_room_for_other_events() {
        let (shared, mut events) = EventSource::new();
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
    fn events_without_receiver_cause_no_overflow() {
        let (shared, events) = EventSource::new();
        drop(events);
        for _ in 0..2 * QUEUE {
            shared.forward(DomainEvent::Reboot);
        }
        assert_eq!(shared.end(), None);
    }
}
