//! The control channel of a migration: what the two tunnels say to each other of the guest.
//!
//! ```text
//!  source ── {"ping":{}} ──▶ target    at once, and as long as nothing else is said
//!         ◀── {"pong":{}} ──
//!         ── {"release":{"proof":"ReplyConsumed","keepPaused":false}} ──▶   until it is acknowledged
//!         ◀── {"takenOver":"Resumed"} ──
//!         ◀── {"closed":{}} ──▶        the session is over on the side that says so
//! ```
//!
//! One JSON object a line. The source dials again as long as its session lives, and says again what has
//! not been acknowledged; a newer channel takes the older one's place at the target.

use std::{io, sync::Arc, time::Duration};

use drydock_core::migration::hand_over::{Release, TakenOver};
use drydock_runtime::{CancellationToken, chain, clock::Instant};
use futures::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
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
/// Why a session carries nothing any more: the other side has closed it.
pub(super) const PEER_CLOSED: &str = "PeerClosed";

/// What one side says to the other. What is not known is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Word {
    Ping {},
    Pong {},
    Release(Release),
    TakenOver(TakenOver),
    Closed {},
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
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    fn new(stream: S) -> Self {
        Self {
            lines: Framed::new(stream, LinesCodec::new_with_max_length(LINE)),
            heard: Instant::now(),
        }
    }

    /// The next word; `None` at the end. Nothing is lost if the wait is given up.
    async fn hear(&mut self) -> Result<Option<Word>, LinesCodecError> {
        loop {
            let Some(line) = self.lines.next().await.transpose()? else {
                return Ok(None);
            };
            self.heard = Instant::now();
            match serde_json::from_str(&line) {
                Ok(word) => return Ok(Some(word)),
                Err(error) => debug!(error = %chain(&error), "a word of the other tunnel is not understood"),
            }
        }
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
    channel.say(Word::Ping {}).await?;
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
                channel.say(Word::Ping {}).await?;
                // Again, with the same words.
                said = None;
            }
            word = channel.hear() => match word? {
                Some(Word::Closed {}) => return Ok(ended(session)),
                Some(word) => heard_from_target(session, word),
                None => return Ok(Left::Broken),
            },
        }
    }
}

fn heard_from_target(session: &Session, word: Word) {
    let refused = session.update(|facts| {
        facts.connected = true;
        facts.trouble = None;
        match word {
            Word::TakenOver(taken_over) => facts.source.acknowledge(taken_over).err(),
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
                Some(Word::Ping {}) => channel.say(Word::Pong {}).await?,
                Some(Word::Release(release)) => {
                    // What is said again is answered again.
                    said = false;
                    session.update(|facts| facts.target.released(release));
                }
                Some(Word::Closed {}) => return Ok(ended(session)),
                Some(_) => {}
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
