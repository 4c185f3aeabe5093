//! The control channel of a migration: what the two tunnels say to each other of the guest.
//!
//! ```text
//!  source ── {"ping":{"version":2}} ──▶ target    at once, and as long as nothing else is said
//!         ◀── {"pong":{"version":2}} ──
//!         ── {"release":{"proof":"ReplyConsumed","keepPaused":false}} ──▶   until it is acknowledged
//!         ◀── {"takenOver":"Resumed"} ──
//!         ◀── {"closed":{}} ──▶        the session is over on the side that says so
//!         ◀── {"notUnderstood":{"word":"release"}} ──▶    nothing is done about the last such line
//! ```
//!
//! Both sides say their version of this, which lets a later one know what an earlier one understands. What is not
//! understood is answered so, and nothing is concluded from it.
//!
//! One JSON object a line. The source dials again as long as its session lives, and says again what has
//! not been acknowledged; a newer channel takes the older one's place at the target.

use std::{io, sync::Arc, time::Duration};

use drydock_core::migration::hand_over::{Release, TakenOver};
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

use super::session::Session;

/// Most bytes of a line.
const LINE: usize = 4096;
/// How often the source says something.
const PING_EVERY: Duration = Duration::from_secs(5);
/// After so long without a word the channel counts as broken.
const SILENT: Duration = Duration::from_secs(16);
/// How long the last words may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// Version of what is said here. The first had no version in its lines, and no answer to what is not understood.
const VERSION: u16 = 2;
/// Most characters of a word that is not understood, in its answer.
const WORD: usize = 40;
/// Why a session carries nothing any more: the other side has closed it.
pub(super) const PEER_CLOSED: &str = "PeerClosed";

/// What one side says to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Word {
    /// The source is there.
    Ping {
        /// What the source speaks.
        #[serde(default = "first_version")]
        version: u16,
    },
    /// So is the target.
    Pong {
        /// What the target speaks.
        #[serde(default = "first_version")]
        version: u16,
    },
    /// The guest is the target's.
    Release(Release),
    /// The target has made this of it.
    TakenOver(TakenOver),
    /// The session is over here.
    Closed {},
    /// Nothing is done about the last line with this word.
    NotUnderstood {
        /// Its first key.
        word: String,
    },
    /// Something of a later version: its first key.
    #[serde(skip)]
    Unknown(String),
}

/// Version of a side that says none.
fn first_version() -> u16 {
    1
}

impl Word {
    /// The word in a line.
    pub(super) fn of_line(line: &str) -> Self {
        serde_json::from_str(line).unwrap_or_else(|_| {
            let value: Value = serde_json::from_str(line).unwrap_or_default();
            let key = value.as_object().and_then(|object| object.keys().next());
            Self::Unknown(key.map_or_else(String::new, |key| key.chars().take(WORD).collect()))
        })
    }
}

/// Why a channel is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It broke; there may be another.
    Broken,
    /// The session is over, here or there.
    Over,
}

struct Channel<S> {
    lines: Framed<S, LinesCodec>,
    heard: Instant,
    /// The log has a line of the other side that was not understood.
    warned: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    fn new(stream: S) -> Self {
        Self {
            lines: Framed::new(stream, LinesCodec::new_with_max_length(LINE)),
            heard: Instant::now(),
            warned: false,
        }
    }

    /// The next word; `None` at the end. Nothing is lost if the wait is given up.
    async fn hear(&mut self) -> Result<Option<Word>, LinesCodecError> {
        let Some(line) = self.lines.next().await.transpose()? else {
            return Ok(None);
        };
        self.heard = Instant::now();
        Ok(Some(Word::of_line(&line)))
    }

    /// Answers that nothing is done about a line with this word. The log has the first of a channel.
    async fn not_understood(&mut self, session: &Session, word: String) -> Result<(), LinesCodecError> {
        if !std::mem::replace(&mut self.warned, true) {
            warn!(
                migration = session.spec.migration,
                word, "the other tunnel says something that is not understood: it may be of a later version"
            );
        }
        self.say(Word::NotUnderstood { word }).await
    }

    async fn say(&mut self, word: Word) -> Result<(), LinesCodecError> {
        let line = serde_json::to_string(&word).map_err(io::Error::from)?;
        let said = timeout(SILENT, self.lines.send(line)).await;
        said.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Says that the session is over here, if the other side listens.
    async fn farewell(&mut self) {
        let saying = async {
            self.say(Word::Closed {}).await?;
            SinkExt::<String>::close(&mut self.lines).await
        };
        if !matches!(timeout(FAREWELL, saying).await, Ok(Ok(()))) {
            debug!("the other tunnel could not be told that a session is over");
        }
    }
}

/// Speaks as the source over one connection.
pub(super) async fn as_source<S: AsyncRead + AsyncWrite + Unpin>(session: &Arc<Session>, stream: S) -> Left {
    let mut channel = Channel::new(stream);
    let left = speak_as_source(session, &mut channel).await;
    let was_connected = session.update(|facts| {
        if let Some(trouble) = broken(&left) {
            facts.trouble = Some(trouble);
        }
        std::mem::take(&mut facts.connected)
    });
    conclude(session, left, &mut channel, was_connected).await
}

/// How the channel broke, for people. A target that refuses this side does so only when the channel is
/// open: TLS 1.3 lets the dialling side begin before its certificate has been looked at.
fn broken(left: &Result<Left, LinesCodecError>) -> Option<String> {
    match left {
        Ok(Left::Over) => None,
        Ok(Left::Broken) => Some("the target has closed the control channel".to_owned()),
        Err(error) => Some(format!("the control channel to the target is broken: {}", chain(error))),
    }
}

async fn speak_as_source<S: AsyncRead + AsyncWrite + Unpin>(
    session: &Session,
    channel: &mut Channel<S>,
) -> Result<Left, LinesCodecError> {
    let mut facts = session.facts();
    // What the target answers says that it lets this side in.
    channel.say(Word::Ping { version: VERSION }).await?;
    let mut tick = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    let mut said = None;
    loop {
        facts.mark_unchanged();
        let release = session.update(|facts| facts.source.release());
        if let Some(release) = release.filter(|release| said != Some(*release)) {
            said = Some(release);
            debug!(
                migration = session.spec.migration,
                proof = release.proof.as_str(),
                "telling the target"
            );
            channel.say(Word::Release(release)).await?;
        }
        tokio::select! {
            () = session.closed.cancelled() => return Ok(Left::Over),
            _ = facts.changed() => {}
            () = tokio::time::sleep_until(channel.heard + SILENT) => return Err(silent()),
            _ = tick.tick() => {
                channel.say(Word::Ping { version: VERSION }).await?;
                // Again, with the same words.
                said = None;
            }
            word = channel.hear() => match word? {
                Some(Word::Closed {}) => return Ok(ended(session)),
                Some(Word::Unknown(word)) => channel.not_understood(session, word).await?,
                Some(word) => heard_from_target(session, &word),
                None => return Ok(Left::Broken),
            },
        }
    }
}

fn heard_from_target(session: &Session, word: &Word) {
    let refused = session.update(|facts| {
        facts.connected = true;
        match word {
            Word::TakenOver(taken_over) => {
                facts.trouble = None;
                facts.source.acknowledge(*taken_over).err()
            }
            Word::Pong { version } => {
                facts.peer_version = Some(*version);
                // It may go on to say that it does not understand the release.
                if facts.trouble.as_deref() != Some(NOT_UNDERSTOOD_THERE) {
                    facts.trouble = None;
                }
                None
            }
            Word::NotUnderstood { .. } => {
                facts.trouble = Some(NOT_UNDERSTOOD_THERE.to_owned());
                None
            }
            _ => None,
        }
    });
    if let Some(refusal) = refused {
        warn!(
            migration = session.spec.migration,
            reason = refusal.reason(),
            "{refusal}"
        );
    }
}

/// What hinders a source whose target is of an earlier version.
const NOT_UNDERSTOOD_THERE: &str = "the target's tunnel does not understand what it is told: it is of another version";

/// Speaks as the target over one connection, until another takes its place.
pub(super) async fn as_target<S: AsyncRead + AsyncWrite + Unpin>(session: &Arc<Session>, stream: S) {
    let mine = session.take_control();
    session.update(|facts| facts.connected = true);
    let mut channel = Channel::new(stream);
    let left = speak_as_target(session, &mut channel, &mine).await;
    if mine.is_cancelled() && !session.closed.is_cancelled() {
        // Another one is in its place.
        return;
    }
    session.update(|facts| facts.connected = false);
    conclude(session, left, &mut channel, true).await;
}

async fn speak_as_target<S: AsyncRead + AsyncWrite + Unpin>(
    session: &Session,
    channel: &mut Channel<S>,
    mine: &CancellationToken,
) -> Result<Left, LinesCodecError> {
    let mut facts = session.facts();
    let mut said = false;
    loop {
        let target = facts.borrow_and_update().target;
        if let (Some(taken_over), false) = (target.taken_over(), said) {
            said = true;
            channel.say(Word::TakenOver(taken_over)).await?;
        }
        tokio::select! {
            () = mine.cancelled() => return Ok(Left::Over),
            _ = facts.changed() => {}
            () = tokio::time::sleep_until(channel.heard + SILENT) => return Err(silent()),
            word = channel.hear() => match word? {
                Some(Word::Ping { version }) => {
                    session.update(|facts| facts.peer_version = Some(version));
                    channel.say(Word::Pong { version: VERSION }).await?;
                }
                Some(Word::Release(release)) => {
                    // What is said again is answered again.
                    said = false;
                    if session.update(|facts| facts.target.released(release)).is_err() {
                        channel.not_understood(session, "release".to_owned()).await?;
                    }
                }
                Some(Word::Closed {}) => return Ok(ended(session)),
                Some(Word::Unknown(word)) => channel.not_understood(session, word).await?,
                Some(Word::Pong { .. } | Word::TakenOver(_) | Word::NotUnderstood { .. }) => {}
                None => return Ok(Left::Broken),
            },
        }
    }
}

fn silent() -> LinesCodecError {
    io::Error::new(io::ErrorKind::TimedOut, "the other tunnel is silent").into()
}

/// The other side has closed the session.
fn ended(session: &Session) -> Left {
    info!(
        migration = session.spec.migration,
        "the other side has closed the session"
    );
    session.update(|facts| {
        facts.trouble = None;
        facts.ended = Some(PEER_CLOSED);
    });
    Left::Over
}

async fn conclude<S: AsyncRead + AsyncWrite + Unpin>(
    session: &Session,
    left: Result<Left, LinesCodecError>,
    channel: &mut Channel<S>,
    was_connected: bool,
) -> Left {
    match left {
        Ok(Left::Over) => {
            channel.farewell().await;
            Left::Over
        }
        Ok(Left::Broken) => Left::Broken,
        Err(error) => {
            let migration = &session.spec.migration;
            if was_connected {
                info!(migration, error = %chain(&error), "the control channel is broken");
            } else {
                // It is dialled again and again, and its session says what is wrong.
                debug!(migration, error = %chain(&error), "the target does not let this side in");
            }
            Left::Broken
        }
    }
}
