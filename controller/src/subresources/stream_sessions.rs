//! The open websockets of this replica.

use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_core::subresources::{
    SubresourceError, SubresourceOperation, SubresourceTarget,
    guest_commands::{self, Close},
};
use drydock_runtime::{CountGuard, Counts, Process, chain};
use kube::{Api, Client, ResourceExt};
use tracing::{debug, info};

use super::{
    active_streams::ActiveStreams,
    guest_endpoints::Connected,
    stream_end::EndedSide,
    timeouts::StreamTimeouts,
    websocket::{Closing, Handshake},
};

/// Maximum number of websockets of a user on one replica. A browser that uses a forwarded port opens dozens of them.
const MAX_PER_USER: usize = 128;
/// Close code for a connection that ends because of a rule of the server (RFC 6455, 7.4.1).
const POLICY: u16 = 1008;

/// Open websockets. Clones share one state.
#[derive(Clone)]
pub(super) struct StreamSessions {
    client: Client,
    by_user: Counts<String>,
    active: ActiveStreams,
    timeouts: StreamTimeouts,
    process: Process,
}

impl StreamSessions {
    pub(super) fn new(client: Client, active: ActiveStreams, timeouts: StreamTimeouts, process: &Process) -> Self {
        Self {
            client,
            by_user: Counts::default(),
            active,
            timeouts,
            process: process.clone(),
        }
    }

    /// Reserves a websocket for a user, until the guard is dropped.
    ///
    /// # Errors
    /// 429 if the user has the maximum number of websockets.
    pub(super) fn place(&self, user: &str) -> Result<CountGuard<String>, SubresourceError> {
        self.by_user.add_below(MAX_PER_USER, user.to_owned()).ok_or_else(|| {
            SubresourceError::too_many(format!(
                "user {user:?} already has {MAX_PER_USER} streams open; close some"
            ))
        })
    }

    /// Connects a client to a guest once the client has the response to its handshake. The connection lasts until a
    /// side ends it or the process stops.
    pub(super) fn begin(
        &self,
        handshake: Handshake,
        connected: Connected,
        operation: SubresourceOperation,
        target: &SubresourceTarget,
        place: CountGuard<String>,
    ) {
        let active = self.active.begin(operation, &target.namespace, &target.name);
        let sessions = self.clone();
        self.process.spawn("websocket of a client", async move {
            let (_active, place) = (active, place);
            let Connected { instance, peer } = connected;
            let vmi = format!("{}/{}", instance.namespace().unwrap_or_default(), instance.name_any());
            let (stream, user) = (operation.as_str(), place.key());
            let socket = match handshake.complete().await {
                Ok(socket) => socket,
                Err(error) => {
                    debug!(
                        vmi,
                        stream,
                        user,
                        error = %chain(&error),
                        "the client disconnected before its stream began"
                    );
                    return;
                }
            };
            info!(vmi, stream, user, "stream begins");
            let stopping = sessions.process.stopping();
            let (end, closing) = socket.relay(peer, &stopping, sessions.timeouts).await;
            info!(vmi, stream, user, end = end.as_str(), "stream ended");
            sessions.close(operation, &instance, end, closing).await;
        });
    }

    /// Closes a websocket. If the reason for which the guest's side ended is unknown, the connection is dropped without
    /// a reason, and `virtctl` lists the possible causes.
    async fn close(
        &self,
        operation: SubresourceOperation,
        instance: &VirtualMachineInstance,
        end: EndedSide,
        closing: Closing,
    ) {
        let close = match (end, operation) {
            (EndedSide::Client, _) => None,
            (EndedSide::Stopping, _) => Some(Close {
                code: 1012,
                reason: "the controller is stopping: connect again".to_owned(),
            }),
            (EndedSide::Idle(after), _) => Some(Close {
                code: POLICY,
                reason: format!("no data for {} s (the cluster's limit): connect again", after.as_secs()),
            }),
            (EndedSide::Expired(after), _) => Some(Close {
                code: POLICY,
                reason: format!(
                    "connection open for {} s (the cluster's limit): connect again",
                    after.as_secs()
                ),
            }),
            // A service in the guest has closed its connection.
            (EndedSide::Guest, SubresourceOperation::PortForward) => Some(Close {
                code: 1000,
                reason: String::new(),
            }),
            (EndedSide::Guest, _) => {
                let namespace = instance.namespace().unwrap_or_default();
                let api = Api::<VirtualMachineInstance>::namespaced(self.client.clone(), &namespace);
                match api.get_opt(&instance.name_any()).await {
                    Ok(now) => guest_commands::close(instance, now.as_ref()),
                    Err(_) => None,
                }
            }
        };
        if let Some(close) = close {
            closing.close(&close).await;
        }
    }
}
