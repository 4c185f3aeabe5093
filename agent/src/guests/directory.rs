//! Directory of this node's guests, for sending them commands and opening their streams.

use std::{collections::HashMap, sync::Arc, time::Duration};

use drydock_api::node_api::{GuestCommand, NodeApiRefusal, RefusalReason};
use drydock_host::domain::DomainHandle;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::VmiState;

/// Maximum time that a command waits for the guest's task and for libvirt. Controllers wait for 45 s.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum number of commands that wait for the task of a guest.
const WAITING: usize = 8;

/// A command for a guest's task.
#[derive(Debug)]
pub(super) struct CommandRequest {
    pub(super) command: GuestCommand,
    /// Sender of the result. It is closed if the caller no longer waits.
    pub(super) result: oneshot::Sender<Result<(), NodeApiRefusal>>,
}

/// A request to a guest's task.
#[derive(Debug)]
pub(super) enum GuestRequest {
    /// A command to execute.
    Command(CommandRequest),
    /// A request for the connection to the guest's libvirt.
    Connection(oneshot::Sender<DomainHandle>),
}

/// State of a guest's VMI, and the channel to the guest's task.
#[derive(Clone, Debug)]
struct GuestEntry {
    seen: watch::Receiver<VmiState>,
    requests: mpsc::Sender<GuestRequest>,
}

/// Guests of this node by the UIDs of their VMIs. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestDirectory(Arc<Mutex<HashMap<String, GuestEntry>>>);

impl GuestDirectory {
    /// Adds a guest. The returned receiver is for the guest's task.
    pub(super) fn add(&self, uid: &str, seen: watch::Receiver<VmiState>) -> mpsc::Receiver<GuestRequest> {
        let (requests, receiver) = mpsc::channel(WAITING);
        self.0.lock().insert(uid.to_owned(), GuestEntry { seen, requests });
        receiver
    }

    /// Removes a guest.
    pub(super) fn remove(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// Returns the latest observed state of a guest.
    ///
    /// # Errors
    /// If this node does not have the guest.
    pub(crate) fn seen(&self, uid: &str) -> Result<VmiState, NodeApiRefusal> {
        Ok(self.entry(uid)?.seen.borrow().clone())
    }

    /// Sends a command to a guest, and waits until the command has been executed.
    ///
    /// # Errors
    /// If the command was not executed, with the reason.
    pub(crate) async fn command(&self, uid: &str, command: GuestCommand) -> Result<(), NodeApiRefusal> {
        let (result, carried_out) = oneshot::channel();
        let request = GuestRequest::Command(CommandRequest { command, result });
        self.send(uid, request, carried_out).await?
    }

    /// Returns the connection to a guest's libvirt.
    ///
    /// # Errors
    /// If the guest has no connection.
    pub(crate) async fn connection(&self, uid: &str) -> Result<DomainHandle, NodeApiRefusal> {
        let (sender, connection) = oneshot::channel();
        self.send(uid, GuestRequest::Connection(sender), connection).await
    }

    async fn send<T>(
        &self,
        uid: &str,
        request: GuestRequest,
        response: oneshot::Receiver<T>,
    ) -> Result<T, NodeApiRefusal> {
        if let Err(error) = self.entry(uid)?.requests.try_send(request) {
            return Err(match error {
                mpsc::error::TrySendError::Full(_) => {
                    NodeApiRefusal::new(RefusalReason::TooMany, "too many commands are pending for the guest")
                }
                mpsc::error::TrySendError::Closed(_) => not_here(),
            });
        }
        match timeout(COMMAND_TIMEOUT, response).await {
            Ok(Ok(response)) => Ok(response),
            // The task has ended together with its guest.
            Ok(Err(_)) => Err(not_here()),
            Err(_) => Err(NodeApiRefusal::new(
                RefusalReason::Failed,
                "the guest's libvirt cannot be reached",
            )),
        }
    }

    fn entry(&self, uid: &str) -> Result<GuestEntry, NodeApiRefusal> {
        self.0.lock().get(uid).cloned().ok_or_else(not_here)
    }
}

fn not_here() -> NodeApiRefusal {
    NodeApiRefusal::new(RefusalReason::NotHere, "the node has no guest with this UID")
}

#[cfg(test)]
impl GuestDirectory {
    /// Adds a guest whose requests no task serves.
    pub(crate) fn add_for_test(&self, uid: &str, seen: watch::Receiver<VmiState>) -> impl Sized + use<> {
        self.add(uid, seen)
    }

    /// Removes a guest.
    pub(crate) fn remove_for_test(&self, uid: &str) {
        self.remove(uid);
    }
}
