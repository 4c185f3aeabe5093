//! Carries one unix connection over one TLS connection, in both directions, until both sides have ended.
//!
//! ```text
//!  libvirt or QEMU ◀──unix──▶ │ 64 KiB each way │ ◀──TLS──▶ the other tunnel
//! ```
//!
//! Data is read from one side only after the other side has taken all earlier data. The end of one direction is passed
//! on, while the other direction continues. An end without a TLS `close_notify` is an error, because the connection may
//! have been cut.

use std::{
    io::{self, ErrorKind},
    net::Shutdown,
    os::fd::AsFd,
    time::Duration,
};

use drydock_host::unread::{UnreadData, unread};
use drydock_runtime::{Backoff, tcp::KeepAlive};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadHalf, WriteHalf, split},
    net::{TcpStream, UnixStream},
    sync::Notify,
};

use super::{
    final_reply::FinalReply,
    last_call::{GuestLeft, LastCalls, NotUnderstood, Piece},
    session::TunnelSession,
};

/// Buffer size of each direction in bytes. rustls holds up to the same amount until TCP has taken it.
const BUFFER: usize = 64 * 1024;
/// Pause after the tunnel failed to accept a connection, for example because no file descriptor is left.
pub(super) const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Keep-alive of a connection between tunnels. The number of probes is high because cutting a stream can destroy a
/// guest.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(15),
    probes: 12,
};

/// First interval for polling whether a reply has been read. The interval doubles.
///
/// The kernel also wakes the waiting task. The polling covers kernels that do not.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum interval for polling whether a reply has been read.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(256);

/// First pause before an unresponsive source's libvirt is queried again for the guest's state. The pause doubles.
const QUERY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum pause before an unresponsive source's libvirt is queried again.
const MAX_QUERY_INTERVAL: Duration = Duration::from_secs(2);

/// Configures a connection between tunnels.
///
/// Sends without delay (`TCP_NODELAY`), because each side waits for responses. Enables keep-alive, which detects a dead
/// peer.
///
/// # Errors
/// If the kernel refuses the options.
pub(super) fn set_up(stream: &TcpStream) -> io::Result<()> {
    KEEP_ALIVE.set_up(stream)
}

/// Observes the libvirt connection of a source to find the reply that is the proof.
#[derive(Debug, Default)]
pub(super) struct ReplyFollower {
    reply: Mutex<FinalReply>,
    forwarded: Notify,
}

impl ReplyFollower {
    fn called(&self, bytes: &[u8]) {
        self.reply.lock().called(bytes);
    }

    fn replied(&self, bytes: &[u8]) -> bool {
        self.reply.lock().replied(bytes)
    }
}

/// Handler for events on the libvirt connection of a source.
pub(super) trait Proving: Sync {
    /// Called when the complete reply has been written to libvirtd.
    fn forwarded(&self);
    /// Called when libvirtd has read the complete reply.
    fn consumed(&self);
    /// Returns the state of the guest at the source. Called when libvirtd is about to make the target resume the guest.
    fn guest(&self) -> BoxFuture<'_, GuestLeft>;
    /// Called when libvirtd has sent its last call.
    fn last_call(&self);
    /// Called when libvirtd has sent data that might resume the guest at the target while the source may resume it too.
    fn refused(&self, why: NotUnderstood);
}

/// Carries a stream between the Unix connection and the TLS connection.
///
/// With `proving`, the Unix side is a source's libvirtd. `proving` is notified when libvirtd has read the reply that is
/// the proof, and is queried before the target may resume the guest.
///
/// # Errors
/// If either side fails or is cut.
pub(super) async fn carry<S>(
    unix: &UnixStream,
    tls: S,
    session: &TunnelSession,
    proving: Option<&dyn Proving>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite,
{
    let (from_peer, to_peer) = split(tls);
    let follower = proving.map(|proving| (ReplyFollower::default(), proving));
    let follow = follower.as_ref().map(|(follower, proving)| (follower, *proving));
    let carried = async {
        tokio::try_join!(
            outward(unix, to_peer, session, follow),
            inward(from_peer, unix, session, follow),
        )
        .map(drop)
    };
    let proven = async {
        if let Some((follower, proving)) = &follower {
            follower.forwarded.notified().await;
            if until_read(unix).await? {
                proving.consumed();
            }
        }
        // `carried` decides when the stream ends.
        std::future::pending::<io::Result<()>>().await
    };
    tokio::select! {
        carried = carried => carried,
        proven = proven => proven,
    }
}

async fn outward<S: AsyncWrite>(
    unix: &UnixStream,
    mut to_peer: WriteHalf<S>,
    session: &TunnelSession,
    follower: Option<(&ReplyFollower, &dyn Proving)>,
) -> io::Result<()> {
    unix.readable().await?;
    let mut buffer = vec![0; BUFFER];
    let mut calls = LastCalls::default();
    loop {
        let length = match unix.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                unix.readable().await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let bytes = &buffer[..length];
        match follower {
            None => to_peer.write_all(bytes).await?,
            Some((follower, proving)) => {
                for piece in calls.feed(bytes) {
                    let bytes = match piece {
                        Piece::Other(bytes) => bytes,
                        Piece::LetsGoOn(call) => call.decided(proving.guest().await),
                        Piece::NotUnderstood(why, bytes) => {
                            if !is_in_post_copy(proving).await {
                                proving.refused(why);
                                return Err(io::Error::new(ErrorKind::InvalidData, why));
                            }
                            calls.pass_all();
                            bytes
                        }
                    };
                    follower.called(&bytes);
                    to_peer.write_all(&bytes).await?;
                }
                if calls.has_seen_last_call() {
                    proving.last_call();
                }
            }
        }
        to_peer.flush().await?;
        session.sent(length);
    }
    drop(buffer);
    to_peer.shutdown().await
}

/// Returns whether the guest has been switched to post-copy.
///
/// Retries until the guest's libvirt responds, because a switched guest needs its session. The data from libvirtd waits
/// in the meantime.
async fn is_in_post_copy(proving: &dyn Proving) -> bool {
    let mut pause = Backoff::new(QUERY_INTERVAL, MAX_QUERY_INTERVAL);
    loop {
        match proving.guest().await {
            GuestLeft::Switched => return true,
            GuestLeft::MayReturn => return false,
            GuestLeft::Unknown => tokio::time::sleep(pause.delay()).await,
        }
    }
}

async fn inward<S: AsyncRead>(
    mut from_peer: ReadHalf<S>,
    unix: &UnixStream,
    session: &TunnelSession,
    follower: Option<(&ReplyFollower, &dyn Proving)>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut is_forwarded = false;
    loop {
        let length = from_peer.read(&mut buffer).await?;
        if length == 0 {
            break;
        }
        let bytes = &buffer[..length];
        session.received(length);
        let came = follower.is_some_and(|(follower, _)| follower.replied(bytes));
        write(unix, bytes).await?;
        if let (true, false, Some((follower, proving))) = (came, is_forwarded, follower) {
            is_forwarded = true;
            proving.forwarded();
            follower.forwarded.notify_one();
        }
    }
    match SockRef::from(unix).shutdown(Shutdown::Write) {
        // The other side has already closed the connection.
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(()),
        ended => ended,
    }
}

async fn write(unix: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match unix.try_write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => unix.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until all written data has been read. Returns `false` if the other side closed before this could be confirmed.
async fn until_read(unix: &UnixStream) -> io::Result<bool> {
    let mut wait = POLL_INTERVAL;
    loop {
        // The socket becomes writable again each time a piece is read.
        let reading = unix.async_io(Interest::WRITABLE, || match unread(unix.as_fd())? {
            UnreadData::Some => Err(ErrorKind::WouldBlock.into()),
            UnreadData::Nothing => Ok(true),
            UnreadData::HungUp => Ok(false),
        });
        match tokio::time::timeout(wait, reading).await {
            Ok(seen) => return seen,
            Err(_) => wait = (wait * 2).min(MAX_POLL_INTERVAL),
        }
        if let UnreadData::Nothing = unread(unix.as_fd())? {
            return Ok(true);
        }
    }
}
