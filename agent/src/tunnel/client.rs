//! The agent's end of the conversation with one tunnel.

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

use super::local::{Answer, Call, LINE, Peer, Prepared, Request, Said, SessionSpec, SessionState};

/// How long a tunnel may take to answer. What it is asked for takes milliseconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Calls that wait to be sent.
const WAITING: usize = 16;

/// Why a tunnel did not do what it was asked to.
#[derive(Debug, Error)]
pub(crate) enum TunnelError {
    /// Its process is gone, and all its sessions with it.
    #[error("the tunnel's process is gone")]
    Gone,
    /// It says no.
    #[error("{message}")]
    Refused {
        /// Why, in one CamelCase word.
        reason: String,
        /// The same for people.
        message: String,
    },
    /// It did not answer in time. Whether it has done it is not known.
    #[error("the tunnel has not answered within {ANSWER_WITHIN:?}")]
    Silent,
    /// It cannot be reached.
    #[error("the tunnel cannot be reached")]
    Unreachable(#[source] io::Error),
    /// It said something that this version does not understand.
    #[error("the tunnel's answer is not understood")]
    NotUnderstood,
}

impl TunnelError {
    /// A stable word for it, for conditions.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Gone => "TunnelGone",
            Self::Refused { reason, .. } => reason,
            Self::Silent => "TunnelSilent",
            Self::Unreachable(_) => "TunnelUnreachable",
            Self::NotUnderstood => "TunnelNotUnderstood",
        }
    }
}

/// A connection to one tunnel of this node; clones share it. It ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct TunnelClient {
    calls: mpsc::Sender<(Call, oneshot::Sender<Answer>)>,
    sessions: watch::Receiver<Vec<SessionState>>,
    /// Ends the conversation when the last clone is dropped.
    _conversation: Arc<JoinSet<()>>,
}

impl TunnelClient {
    /// Connects to the tunnel that listens at `path`, and knows its sessions when it returns.
    ///
    /// # Errors
    /// If nobody listens there, or what listens does not speak as a tunnel does, or not in time.
    pub(crate) async fn connect(path: &Path) -> Result<Self, TunnelError> {
        let connecting = async {
            let stream = UnixStream::connect(path).await.map_err(TunnelError::Unreachable)?;
            let mut lines = Framed::new(stream, LinesCodec::new_with_max_length(LINE));
            match lines.next().await {
                Some(Ok(line)) => match serde_json::from_str(&line) {
                    Ok(Said::Sessions(sessions)) => Ok((lines, sessions)),
                    _ => Err(TunnelError::NotUnderstood),
                },
                Some(Err(_)) => Err(TunnelError::NotUnderstood),
                None => Err(TunnelError::Gone),
            }
        };
        let connected = timeout(ANSWER_WITHIN, connecting).await;
        let (lines, sessions) = connected.map_err(|_| TunnelError::Silent)??;
        let (told, sessions) = watch::channel(sessions);
        let (calls, to_send) = mpsc::channel(WAITING);
        let mut conversation = JoinSet::new();
        conversation.spawn(converse(lines, to_send, told));
        Ok(Self {
            calls,
            sessions,
            _conversation: Arc::new(conversation),
        })
    }

    /// All sessions of the tunnel's process, as it tells them. The channel is closed when the process
    /// is gone, or has stopped speaking as a tunnel does: then none of its sessions can be relied on.
    pub(crate) fn sessions(&self) -> watch::Receiver<Vec<SessionState>> {
        self.sessions.clone()
    }

    /// Makes a session, or finds the one that was made before for the same.
    ///
    /// # Errors
    /// `Draining` if the tunnel is about to end; `OtherSession` if there is one of the migration for
    /// another role, pod or domain; `TooManySessions`; and what hinders the sockets in the pod.
    pub(crate) async fn prepare(&self, spec: SessionSpec) -> Result<Prepared, TunnelError> {
        match self.ask(Call::Prepare(spec)).await? {
            Answer::Prepared(prepared) => Ok(prepared),
            _ => Err(TunnelError::NotUnderstood),
        }
    }

    /// Tells a session who the other side is. From then on it carries streams.
    ///
    /// # Errors
    /// `NoSession`; `OtherPeer` if it was paired with another; `BadPeer` if fingerprint or address is
    /// not one.
    pub(crate) async fn pair(&self, migration: &str, peer: Peer) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(Call::Pair { migration, peer }).await
    }

    /// Says whether the guest stays paused at the target. The last word counts until the guest is
    /// released. For a source only.
    ///
    /// # Errors
    /// `NoSession`; `NotSource`; `AlreadyReleased` if the target has been told the contrary.
    pub(crate) async fn keep_paused(&self, migration: &str, keep_paused: bool) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(Call::KeepPaused { migration, keep_paused }).await
    }

    /// Releases the guest, with a proof that the tunnel cannot see. For a source only.
    ///
    /// # Errors
    /// `NoSession`; `NotSource`.
    pub(crate) async fn release(&self, migration: &str, proof: Proof) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(Call::Release { migration, proof }).await
    }

    /// Ends a session and its streams, and forgets it. It is no error if there is none.
    ///
    /// # Errors
    /// If the tunnel cannot be asked.
    pub(crate) async fn close(&self, migration: &str) -> Result<(), TunnelError> {
        let migration = migration.to_owned();
        self.done(Call::Close { migration }).await
    }

    async fn done(&self, call: Call) -> Result<(), TunnelError> {
        match self.ask(call).await? {
            Answer::Done {} => Ok(()),
            _ => Err(TunnelError::NotUnderstood),
        }
    }

    async fn ask(&self, call: Call) -> Result<Answer, TunnelError> {
        let (answered, answer) = oneshot::channel();
        let asking = async {
            self.calls.send((call, answered)).await.map_err(|_| TunnelError::Gone)?;
            answer.await.map_err(|_| TunnelError::Gone)
        };
        match timeout(ANSWER_WITHIN, asking).await {
            Ok(Ok(Answer::Refused { reason, message })) => Err(TunnelError::Refused { reason, message }),
            Ok(answer) => answer,
            Err(_) => Err(TunnelError::Silent),
        }
    }
}

type Lines = Framed<UnixStream, LinesCodec>;

/// Sends calls and hears answers and sessions until the tunnel is gone.
async fn converse(
    mut lines: Lines,
    mut calls: mpsc::Receiver<(Call, oneshot::Sender<Answer>)>,
    told: watch::Sender<Vec<SessionState>>,
) {
    let mut waiting = HashMap::new();
    let mut id = 0;
    loop {
        tokio::select! {
            Some((call, answered)) = calls.recv() => {
                id += 1;
                waiting.insert(id, answered);
                if let Err(error) = send(&mut lines, &Request { id, call }).await {
                    warn!(error = %chain(&error), "a tunnel cannot be asked any more");
                    return;
                }
            }
            line = lines.next() => match line {
                Some(Ok(line)) => match serde_json::from_str(&line) {
                    Ok(Said::Sessions(sessions)) => {
                        told.send_replace(sessions);
                    }
                    Ok(Said::Answer { id, result }) => {
                        // Whoever asked may wait no more.
                        let _ = waiting.remove(&id).map(|answered: oneshot::Sender<Answer>| answered.send(result));
                    }
                    Err(error) => {
                        warn!(error = %chain(&error), "a tunnel said something that is not understood");
                        // Its sessions are not as they are known any more.
                        if tells_of_sessions(&line) {
                            return;
                        }
                    }
                },
                Some(Err(error)) => {
                    warn!(error = %chain(&error), "a tunnel cannot be heard any more");
                    return;
                }
                None => return,
            },
        }
    }
}

/// A line that is not understood is about the tunnel's sessions, or no JSON at all.
fn tells_of_sessions(line: &str) -> bool {
    serde_json::from_str(line).map_or(true, |said: Value| said.get("sessions").is_some())
}

async fn send(lines: &mut Lines, request: &Request) -> Result<(), tokio_util::codec::LinesCodecError> {
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
            assert!(serde_json::from_str::<Said>(line).is_err(), "{line}");
            assert_eq!(tells_of_sessions(line), expected, "{line}");
        }
    }
}
