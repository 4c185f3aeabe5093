//! The control channel of a migration, over which the two tunnels hand the guest over.
//!
//! ```text
//!  source ── {"ping":{"version":2}} ──▶ target    at once, and then every 5 s
//!         ◀── {"pong":{"version":2}} ──
//!         ── {"release":{"proof":"ReplyConsumed","keepPaused":false}} ──▶   until it is acknowledged
//!         ◀── {"takenOver":"Resumed"} ──
//!         ◀── {"closed":{}} ──▶        the session is over on the sending side
//!         ◀── {"notUnderstood":{"word":"release"}} ──▶    the last line with this key was ignored
//! ```
//!
//! Both sides send their protocol version, so that a later version knows what an earlier version understands. A side
//! responds with `notUnderstood` to a line that it cannot decode, and concludes nothing from that line.
//!
//! Each line is one JSON object. The source dials again as long as its session exists, and repeats unacknowledged
//! messages. At the target, a newer channel replaces the older one.

use std::{io, sync::Arc, time::Duration};

use drydock_core::migration::hand_over::{GuestRelease, TakenOver};
use drydock_runtime::{CancellationToken, chain, clock::Instant};
use futures::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{interval_at, timeout},
};
use tokio_util::codec::{Framed, LinesCodec, LinesCodecError};
use tracing::{debug, info, warn};

use super::session::TunnelSession;

/// Maximum length of a line in bytes.
const LINE: usize = 4096;
/// Interval between the source's pings.
const PING_EVERY: Duration = Duration::from_secs(5);
/// The channel counts as broken after this time without a message.
const PEER_TIMEOUT: Duration = Duration::from_secs(16);
/// Timeout for sending the last message.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Version of this protocol. In version 1, lines had no version, and lines that were not understood had no response.
const VERSION: u16 = 2;
/// Maximum length, in characters, of an unknown key that is returned in `notUnderstood`.
const MAX_KEY_LENGTH: usize = 40;
/// Reason for the end of a session that the other side has closed.
pub(super) const PEER_CLOSED: &str = "PeerClosed";

/// A message from one tunnel to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Message {
    /// Keep-alive of the source.
    Ping {
        /// Protocol version of the source.
        #[serde(default = "first_version")]
        version: u16,
    },
    /// Response of the target to a ping.
    Pong {
        /// Protocol version of the target.
        #[serde(default = "first_version")]
        version: u16,
    },
    /// The source releases the guest to the target.
    Release(GuestRelease),
    /// The target has taken the guest over, with this result.
    TakenOver(TakenOver),
    /// The session has ended on the sending side.
    Closed {},
    /// The receiver ignored the last line with this key.
    NotUnderstood {
        /// First key of the ignored line.
        #[serde(rename = "word")]
        key: String,
    },
    /// A message of a later version, with its first key.
    #[serde(skip)]
    Unknown(String),
}

/// Returns the version of a side that sends no version.
fn first_version() -> u16 {
    1
}

impl Message {
    /// Parses a line.
    pub(super) fn of_line(line: &str) -> Self {
        serde_json::from_str(line).unwrap_or_else(|_| {
            let value: Value = serde_json::from_str(line).unwrap_or_default();
            let key = value.as_object().and_then(|object| object.keys().next());
            Self::Unknown(key.map_or_else(String::new, |key| key.chars().take(MAX_KEY_LENGTH).collect()))
        })
    }
}

/// Reason why a channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelEnd {
    /// The channel broke. Another channel may follow.
    Broken,
    /// The session has ended on this side or on the other side, or a newer channel has replaced this one.
    Over,
}

struct ControlChannel<S> {
    lines: Framed<S, LinesCodec>,
    last_received: Instant,
    /// Whether a line that was not understood has already been logged for this channel.
    warned: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ControlChannel<S> {
    fn new(stream: S) -> Self {
        Self {
            lines: Framed::new(stream, LinesCodec::new_with_max_length(LINE)),
            last_received: Instant::now(),
            warned: false,
        }
    }

    /// Receives the next message; `None` if the channel has ended. Cancel safe: no message is lost if the future is
    /// dropped.
    async fn receive(&mut self) -> Result<Option<Message>, LinesCodecError> {
        let Some(line) = self.lines.next().await.transpose()? else {
            return Ok(None);
        };
        self.last_received = Instant::now();
        Ok(Some(Message::of_line(&line)))
    }

    /// Responds that a line with this key was ignored. Logs only the first ignored line of each channel.
    async fn not_understood(&mut self, session: &TunnelSession, key: String) -> Result<(), LinesCodecError> {
        if !std::mem::replace(&mut self.warned, true) {
            warn!(
                migration_uid = session.spec.migration,
                key, "ignored a message of the other tunnel, which may have a later version"
            );
        }
        self.send(Message::NotUnderstood { key }).await
    }

    async fn send(&mut self, message: Message) -> Result<(), LinesCodecError> {
        let line = serde_json::to_string(&message).map_err(io::Error::from)?;
        let sent = timeout(PEER_TIMEOUT, self.lines.send(line)).await;
        sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Notifies the other side, if it still reads, that the session has ended on this side.
    async fn close(&mut self) {
        let closing = async {
            self.send(Message::Closed {}).await?;
            SinkExt::<String>::close(&mut self.lines).await
        };
        if !matches!(timeout(CLOSE_TIMEOUT, closing).await, Ok(Ok(()))) {
            debug!("the end of a session could not be sent to the other tunnel");
        }
    }
}

/// Runs the source's side of the protocol over one connection.
pub(super) async fn as_source<S: AsyncRead + AsyncWrite + Unpin>(
    session: &Arc<TunnelSession>,
    stream: S,
) -> ChannelEnd {
    let mut channel = ControlChannel::new(stream);
    let left = serve_source(session, &mut channel).await;
    let was_connected = session.update(|facts| {
        if let Some(trouble) = broken(&left) {
            facts.trouble = Some(trouble);
        }
        std::mem::take(&mut facts.connected)
    });
    conclude(session, left, &mut channel, was_connected).await
}

/// Describes for users how the channel broke.
///
/// A target refuses this side only after the channel is open: in TLS 1.3, the client may send before the server has
/// verified the client's certificate.
fn broken(left: &Result<ChannelEnd, LinesCodecError>) -> Option<String> {
    match left {
        Ok(ChannelEnd::Over) => None,
        Ok(ChannelEnd::Broken) => Some("the target has closed the control channel".to_owned()),
        Err(error) => Some(format!("the control channel to the target is broken: {}", chain(error))),
    }
}

async fn serve_source<S: AsyncRead + AsyncWrite + Unpin>(
    session: &TunnelSession,
    channel: &mut ControlChannel<S>,
) -> Result<ChannelEnd, LinesCodecError> {
    let mut facts = session.facts();
    // Only a response from the target shows that the target accepts this side.
    channel.send(Message::Ping { version: VERSION }).await?;
    let mut tick = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    let mut sent = None;
    loop {
        facts.mark_unchanged();
        let release = session.update(|facts| facts.source.release());
        if let Some(release) = release.filter(|release| sent != Some(*release)) {
            sent = Some(release);
            debug!(
                migration_uid = session.spec.migration,
                proof = release.proof.as_str(),
                "sending the release to the target"
            );
            channel.send(Message::Release(release)).await?;
        }
        tokio::select! {
            () = session.closed.cancelled() => return Ok(ChannelEnd::Over),
            _ = facts.changed() => {}
            () = tokio::time::sleep_until(channel.last_received + PEER_TIMEOUT) => return Err(peer_timed_out()),
            _ = tick.tick() => {
                channel.send(Message::Ping { version: VERSION }).await?;
                // Send the same release again.
                sent = None;
            }
            message = channel.receive() => match message? {
                Some(Message::Closed {}) => return Ok(ended(session)),
                Some(Message::Unknown(key)) => channel.not_understood(session, key).await?,
                Some(message) => apply_target_message(session, &message),
                None => return Ok(ChannelEnd::Broken),
            },
        }
    }
}

fn apply_target_message(session: &TunnelSession, message: &Message) {
    let refused = session.update(|facts| {
        facts.connected = true;
        match message {
            Message::TakenOver(taken_over) => {
                facts.trouble = None;
                facts.source.acknowledge(*taken_over).err()
            }
            Message::Pong { version } => {
                facts.peer_version = Some(*version);
                // The target may still be unable to understand the release.
                if facts.trouble.as_deref() != Some(NOT_UNDERSTOOD_THERE) {
                    facts.trouble = None;
                }
                None
            }
            Message::NotUnderstood { .. } => {
                facts.trouble = Some(NOT_UNDERSTOOD_THERE.to_owned());
                None
            }
            _ => None,
        }
    });
    if let Some(refusal) = refused {
        warn!(
            migration_uid = session.spec.migration,
            reason = refusal.reason(),
            "{refusal}"
        );
    }
}

/// Problem of a source whose target cannot decode a message because the target has another version.
const NOT_UNDERSTOOD_THERE: &str = "the target's tunnel has another version and cannot decode the message";

/// Runs the target's side of the protocol over one connection until another connection replaces it.
pub(super) async fn as_target<S: AsyncRead + AsyncWrite + Unpin>(session: &Arc<TunnelSession>, stream: S) {
    let mine = session.take_control();
    session.update(|facts| facts.connected = true);
    let mut channel = ControlChannel::new(stream);
    let left = serve_target(session, &mut channel, &mine).await;
    if mine.is_cancelled() && !session.closed.is_cancelled() {
        // Another channel has replaced this one.
        return;
    }
    session.update(|facts| facts.connected = false);
    conclude(session, left, &mut channel, true).await;
}

async fn serve_target<S: AsyncRead + AsyncWrite + Unpin>(
    session: &TunnelSession,
    channel: &mut ControlChannel<S>,
    mine: &CancellationToken,
) -> Result<ChannelEnd, LinesCodecError> {
    let mut facts = session.facts();
    let mut sent = false;
    loop {
        let target = facts.borrow_and_update().target;
        if let (Some(taken_over), false) = (target.taken_over(), sent) {
            sent = true;
            channel.send(Message::TakenOver(taken_over)).await?;
        }
        tokio::select! {
            () = mine.cancelled() => return Ok(ChannelEnd::Over),
            _ = facts.changed() => {}
            () = tokio::time::sleep_until(channel.last_received + PEER_TIMEOUT) => return Err(peer_timed_out()),
            message = channel.receive() => match message? {
                Some(Message::Ping { version }) => {
                    session.update(|facts| facts.peer_version = Some(version));
                    channel.send(Message::Pong { version: VERSION }).await?;
                }
                Some(Message::Release(release)) => {
                    // A repeated release gets another response.
                    sent = false;
                    if session.update(|facts| facts.target.released(release)).is_err() {
                        channel.not_understood(session, "release".to_owned()).await?;
                    }
                }
                Some(Message::Closed {}) => return Ok(ended(session)),
                Some(Message::Unknown(key)) => channel.not_understood(session, key).await?,
                Some(Message::Pong { .. } | Message::TakenOver(_) | Message::NotUnderstood { .. }) => {}
                None => return Ok(ChannelEnd::Broken),
            },
        }
    }
}

fn peer_timed_out() -> LinesCodecError {
    io::Error::new(io::ErrorKind::TimedOut, "the other tunnel is unresponsive").into()
}

/// Ends the session because the other side has closed it.
fn ended(session: &TunnelSession) -> ChannelEnd {
    info!(
        migration_uid = session.spec.migration,
        "the other side has closed the session"
    );
    session.update(|facts| {
        facts.trouble = None;
        facts.ended = Some(PEER_CLOSED);
    });
    ChannelEnd::Over
}

async fn conclude<S: AsyncRead + AsyncWrite + Unpin>(
    session: &TunnelSession,
    left: Result<ChannelEnd, LinesCodecError>,
    channel: &mut ControlChannel<S>,
    was_connected: bool,
) -> ChannelEnd {
    match left {
        Ok(ChannelEnd::Over) => {
            channel.close().await;
            ChannelEnd::Over
        }
        Ok(ChannelEnd::Broken) => ChannelEnd::Broken,
        Err(error) => {
            let migration = &session.spec.migration;
            if was_connected {
                info!(migration_uid = migration, error = %chain(&error), "the control channel is broken");
            } else {
                // The source dials again repeatedly, and the state of its session contains the reason.
                debug!(
                    migration_uid = migration, error = %chain(&error),
                    "could not open the control channel to the target"
                );
            }
            ChannelEnd::Broken
        }
    }
}

#[cfg(test)]
mod tests;
