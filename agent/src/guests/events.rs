//! Kubernetes events about guests.

use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_host::domain::{DomainEvent, DomainEvents, LifecycleEvent, StoppedDetail, SuspendedDetail};
use drydock_runtime::{Events, Severity};

use super::status_report::publish_event;

/// Records a Kubernetes event for a libvirt event.
///
/// `migrated_away` is whether the guest is paused in order to migrate, according to the events so far. The function
/// updates it.
pub(super) fn record_event(
    events: &Events,
    instance: &VirtualMachineInstance,
    event: &DomainEvent,
    migrated_away: &mut bool,
) {
    let publish = |severity, reason, note: String| publish_event(events, instance, severity, reason, note);
    match event {
        DomainEvent::Agent(_) => {}
        DomainEvent::Reboot => publish(Severity::Normal, "Rebooted", "The guest has restarted itself.".into()),
        DomainEvent::IoError { disk, reason, .. } => {
            publish(Severity::Warning, "IOerror", format!("disk {disk} failed: {reason}"));
        }
        // The state of a migration is queried when another event arrives.
        DomainEvent::JobCompleted(_) | DomainEvent::MigrationIteration(_) => {}
        DomainEvent::Lifecycle(event) => match event {
            // The guest has left, which its migration reports. libvirt shuts down its QEMU.
            LifecycleEvent::Stopped(StoppedDetail::Migrated) => {}
            LifecycleEvent::Shutdown(_) if *migrated_away => {}
            LifecycleEvent::Suspended(SuspendedDetail::Migrated) => *migrated_away = true,
            LifecycleEvent::Shutdown(_) => {
                let note = "The VirtualMachineInstance is shutting down.".to_owned();
                publish(Severity::Normal, "ShuttingDown", note);
            }
            LifecycleEvent::Stopped(_) => {
                let note = format!("The VirtualMachineInstance has stopped: {}.", event.detail());
                publish(Severity::Normal, "Stopped", note);
            }
            LifecycleEvent::Started(_) | LifecycleEvent::Resumed(_) => *migrated_away = false,
            _ => {}
        },
    }
}

/// Waits for `work`, and handles events that arrive in the meantime at once.
///
/// A call to a busy libvirt or an unresponsive guest agent may wait for half a minute. Also returns whether further
/// events are possible.
pub(super) async fn alongside<T, S: EventStream>(
    work: impl Future<Output = T>,
    source: &mut S,
    mut take_in: impl FnMut(S::Event),
) -> (T, bool) {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            event = source.next() => match event {
                Some(event) => take_in(event),
                None => return (work.await, false),
            },
            result = &mut work => return (result, true),
        }
    }
}

/// A source of events.
pub(super) trait EventStream {
    /// Type of an event.
    type Event;
    /// Waits for the next event; `None` if no further events are possible. Cancel safe: no event is lost if the future
    /// is dropped.
    fn next(&mut self) -> impl Future<Output = Option<Self::Event>> + Send;
}

impl EventStream for DomainEvents {
    type Event = DomainEvent;

    fn next(&mut self) -> impl Future<Output = Option<DomainEvent>> + Send {
        self.recv()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::sync::{mpsc, oneshot};

    use super::*;

    impl EventStream for mpsc::UnboundedReceiver<&'static str> {
        type Event = &'static str;

        fn next(&mut self) -> impl Future<Output = Option<&'static str>> + Send {
            self.recv()
        }
    }

    #[tokio::test]
    async fn events_are_taken_in_while_a_call_waits() {
        let (events, mut queue) = mpsc::unbounded_channel();
        let (sender, receiver) = oneshot::channel();
        let sender = RefCell::new(Some(sender));
        events.send("rebooted").unwrap();
        let mut taken = Vec::new();
        let done = alongside(receiver, &mut queue, |event| {
            taken.push(event);
            // The call completes only after the event was handled.
            sender.take().unwrap().send(7).unwrap();
        });
        assert_eq!(done.await, (Ok(7), true));
        assert_eq!(taken, ["rebooted"]);

        drop(events);
        let work = async {
            tokio::task::yield_now().await;
            8
        };
        let done = alongside(work, &mut queue, |_| ());
        assert_eq!(done.await, (8, false), "the connection is gone");
    }
}
