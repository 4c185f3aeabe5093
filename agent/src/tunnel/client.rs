//! Client with which the agent calls one tunnel.

use std::{collections::HashMap, io, path::Path, sync::Arc, time::Duration};

use drydock_core::migration::hand_over::Proof;
use drydock_runtime::chain;
use futures::{SinkExt, StreamExt};
use serde_json::Value;
use thiserror::Error;
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::codec::{Framed, LinesCodec};
use tracing::warn;

use super::local::{
    CallResult, LINE, Prepared, ServerMessage, SessionSpec, SessionState, TunnelCall, TunnelPeer, TunnelRequest,
};

/// Timeout of a call. Calls take milliseconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of calls in the queue to be sent.
const WAITING: usize = 16;

/// Reason why a call to a tunnel failed.
#[derive(Debug, Error)]
pub(crate) enum TunnelError {
    /// The tunnel's process has ended, and all its sessions with it.
    #[error("the tunnel's process has ended")]
    Gone,
    /// The tunnel refused the call.
    #[error("{reason}: {message}")]
    Refused {
        /// Reason in CamelCase.
        reason: String,
        /// Reason as a message for users.
        message: String,
    },
    /// The tunnel did not respond in time. It is unknown whether the tunnel has executed the call.
    #[error("the tunnel did not respond within {RESPONSE_TIMEOUT:?}")]
    Unresponsive,
    /// The tunnel cannot be reached.
    #[error("the tunnel cannot be reached")]
    Unreachable(#[source] io::Error),
    /// This version cannot decode the tunnel's response.
    #[error("the tunnel's response cannot be decoded")]
    NotUnderstood,
}

/// Connection to one tunnel of this node. Clones share the connection, which ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct TunnelClient {
    calls: mpsc::Sender<(TunnelCall, oneshot::Sender<CallResult>)>,
    sessions: watch::Receiver<Vec<SessionState>>,
    /// The task of the connection, aborted when the last clone is dropped.
    _conversation: Arc<JoinSet<()>>,
}

impl TunnelClient {
    /// Connects to the tunnel that listens at `path`. The sessions of the tunnel are known when the call returns.
    ///
    /// # Errors
    /// If the tunnel does not listen, does not follow the protocol, or does not respond in time.
    pub(crate) async fn connect(path: &Path) -> Result<Self, TunnelError> {
        let connecting = async {
            let stream = UnixStream::connect(path).await.map_err(TunnelError::Unreachable)?;
            let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(LINE));
            match lines.next().await {
                Some(Ok(line)) => match serde_json::from_str(&line) {
                    Ok(ServerMessage::Sessions(sessions)) => Ok((lines, sessions)),
                    _ => Err(TunnelError::NotUnderstood),
                },
                Some(Err(_)) => Err(TunnelError::NotUnderstood),
                None => Err(TunnelError::Gone),
            }
        };
        let connected = timeout(RESPONSE_TIMEOUT, connecting).await;
        let (lines, sessions) = connected.map_err(|_| TunnelError::Unresponsive)??;
        let (publish, sessions) = watch::channel(sessions);
        let (calls, to_send) = mpsc::channel(WAITING);
        let mut conversation = JoinSet::new();
        conversation.spawn(converse(lines, to_send, publish));
        Ok(Self {
            calls,
            sessions,
            _conversation: Arc::new(conversation),
        })
    }

    /// Returns a receiver for the states of all sessions of the tunnel's process.
    ///
    /// The channel is closed when the process has ended or no longer follows the protocol. The last states are then no
    /// longer reliable.
    pub(crate) fn sessions(&self) -> watch::Receiver<Vec<SessionState>> {
        self.sessions.clone()
    }

    /// Creates a session, or returns the existing session if it has the same specification.
    ///
    /// # Errors
    /// `Draining` if the tunnel is about to end; `OtherSession` if the migration has a session for another role, pod
    /// or domain; `TooManySessions`; and failures to create the sockets in the pod.
    pub(crate) async fn prepare(&self, spec: SessionSpec) -> Result<Prepared, TunnelError> {
        match self.call(TunnelCall::Prepare(spec)).await? {
            CallResult::Prepared(prepared) => Ok(prepared),
            _ => Err(TunnelError::NotUnderstood),
        }
    }

    /// Sets the other side of a session. The session carries streams from then on.
    ///
    /// # Errors
    /// `NoSession`; `OtherPeer` if the session is paired with another peer; `BadPeer` if the fingerprint or the address
    /// is invalid.
    pub(crate) async fn pair(&self, migration: &str, peer: TunnelPeer) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(TunnelCall::Pair { migration, peer }).await
    }

    /// Sets whether the guest stays paused at the target. Only a source accepts this call.
    ///
    /// The last value before the release counts.
    ///
    /// # Errors
    /// `NoSession`; `NotSource`; `AlreadyReleased` if the opposite value has already been sent to the target.
    pub(crate) async fn keep_paused(&self, migration: &str, keep_paused: bool) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(TunnelCall::KeepPaused { migration, keep_paused }).await
    }

    /// Releases the guest with a proof that the tunnel cannot find by itself. Only a source accepts this call.
    ///
    /// # Errors
    /// `NoSession`; `NotSource`.
    pub(crate) async fn release(&self, migration: &str, proof: Proof) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(TunnelCall::Release { migration, proof }).await
    }

    /// Ends a session and its streams, and removes the session. It is no error if the session does not exist.
    ///
    /// # Errors
    /// If the call to the tunnel fails.
    pub(crate) async fn close(&self, migration: &str) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(TunnelCall::Close { migration }).await
    }

    async fn done(&self, call: TunnelCall) -> Result<(), TunnelError> {
        match self.call(call).await? {
            CallResult::Done {} => Ok(()),
            _ => Err(TunnelError::NotUnderstood),
        }
    }

    async fn call(&self, call: TunnelCall) -> Result<CallResult, TunnelError> {
        let (sender, result) = oneshot::channel();
        let calling = async {
            self.calls.send((call, sender)).await.map_err(|_| TunnelError::Gone)?;
            result.await.map_err(|_| TunnelError::Gone)
        };
        match timeout(RESPONSE_TIMEOUT, calling).await {
            Ok(Ok(CallResult::Refused { reason, message })) => Err(TunnelError::Refused { reason, message }),
            Ok(result) => result,
            Err(_) => Err(TunnelError::Unresponsive),
        }
    }
}

type ClientLines = Framed<UnixStream, LinesCodec>;

/// Sends calls, and receives responses and sessions, until the tunnel closes the connection.
async fn converse(
    mut lines: ClientLines,
    mut calls: mpsc::Receiver<(TunnelCall, oneshot::Sender<CallResult>)>,
    publish: watch::Sender<Vec<SessionState>>,
) {
    let mut waiting = HashMap::new();
    let mut id = 0;
    loop {
        tokio::select! {
            Some((call, sender)) = calls.recv() => {
                id += 1;
                waiting.insert(id, sender);
                if let Err(error) = send(&mut lines, &TunnelRequest { id, call }).await {
                    warn!(error = %chain(&error), "could not send a request to a tunnel; all pending requests fail");
                    return;
                }
            }
            line = lines.next() => match line {
                Some(Ok(line)) => match serde_json::from_str(&line) {
                    Ok(ServerMessage::Sessions(sessions)) => {
                        publish.send_replace(sessions);
                    }
                    Ok(ServerMessage::Response { id, result }) => {
                        // The caller may have stopped waiting.
                        let _ = waiting.remove(&id).map(|sender: oneshot::Sender<CallResult>| sender.send(result));
                    }
                    Err(error) => {
                        warn!(error = %chain(&error), "a tunnel sent a message that cannot be decoded");
                        // The last known states of the tunnel's sessions are outdated.
                        if lists_sessions(&line) {
                            return;
                        }
                    }
                },
                Some(Err(error)) => {
                    warn!(error = %chain(&error), "the connection to a tunnel is broken");
                    return;
                }
                None => return,
            },
        }
    }
}

/// Returns whether a line that cannot be decoded lists the tunnel's sessions, or is not JSON.
fn lists_sessions(line: &str) -> bool {
    serde_json::from_str(line).map_or(true, |line_value: Value| line_value.get("sessions").is_some())
}

async fn send(lines: &mut ClientLines, request: &TunnelRequest) -> Result<(), tokio_util::codec::LinesCodecError> {
    let line = serde_json::to_string(request).map_err(io::Error::from)?;
    lines.send(line).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_sessions_end_the_conversation() {
        for (line, expected) in [
            (r#"{"sessions":[{"migration":1}]}"#, true),
            (r#"{"sessions":null,"more":1}"#, true),
            ("{", true),
            (r#"{"answer":{"id":"one"}}"#, false),
            (r#"{"farewell":{}}"#, false),
            ("[]", false),
        ] {
            assert!(serde_json::from_str::<ServerMessage>(line).is_err(), "{line}");
            assert_eq!(lists_sessions(line), expected, "{line}");
        }
    }
}
