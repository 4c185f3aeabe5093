//! Carries one unix connection over one TLS connection, both ways, until both sides have ended.
//!
//! ```text
//!  libvirt or QEMU ◀──unix──▶ │ 64 KiB each way │ ◀──TLS──▶ the other tunnel
//! ```
//!
//! What one side has not taken is not read from the other. The end of one direction is passed on, and
//! the other goes on. An end without TLS's own farewell is an error, not an end: it may have been cut.

use std::{
    io::{self, ErrorKind},
    net::Shutdown,
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use drydock_host::unread::{Unread, unread};
use drydock_runtime::Backoff;
use futures::future::BoxFuture;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadHalf, WriteHalf, split},
    net::{TcpStream, UnixStream},
    sync::Notify,
};

use super::{
    final_reply::FinalReply,
    last_call::{GuestLeft, LastCalls, NotUnderstood, Piece},
    session::Session,
};

/// Size of the buffer of each direction. rustls holds as much again until TCP has taken it.
const BUFFER: usize = 64 * 1024;

/// How long a connection may be quiet until the kernel asks whether the other side is there.
const QUIET: Duration = Duration::from_secs(60);
/// How long between such questions.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// How many of them may be unanswered: cutting a stream may cost a guest, so there are many.
const UNANSWERED: u32 = 12;

/// First wait until it is looked again whether a reply has been read. It doubles. The kernel wakes who
/// waits for that as well; this is for one that does not.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Longest such wait.
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_millis(256);

/// First pause before a source's libvirt that did not answer is asked again how its guest is. It doubles.
const ASK_GUEST_AGAIN: Duration = Duration::from_millis(50);
/// Longest such pause.
const ASK_GUEST_AGAIN_AT_MOST: Duration = Duration::from_secs(2);

/// Sets up a connection between tunnels: answers are awaited, and who is gone is noticed.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new()
        .with_time(QUIET)
        .with_interval(ASK_AGAIN)
        .with_retries(UNANSWERED);
    SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

/// Reads along on a source's libvirt connection, for the reply that proves.
#[derive(Debug, Default)]
pub(super) struct Follower {
    reply: Mutex<FinalReply>,
    forwarded: Notify,
}

impl Follower {
    fn called(&self, bytes: &[u8]) {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).called(bytes);
    }

    fn replied(&self, bytes: &[u8]) -> bool {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).replied(bytes)
    }
}

/// What a source's libvirt connection tells of the reply that proves.
pub(super) trait Proving: Sync {
    /// libvirtd has been given all of it.
    fn forwarded(&self);
    /// libvirtd has read all of it.
    fn consumed(&self);
    /// How the guest is here: libvirtd is about to have the target let it go on.
    fn guest(&self) -> BoxFuture<'_, GuestLeft>;
    /// libvirtd has made its last call.
    fn last_call(&self);
    /// libvirtd has sent something that might let the guest go on at the target, though it may go on here.
    fn refused(&self, why: NotUnderstood);
}

/// Carries a stream. With `proving`, the unix side is a source's libvirtd, and it is told when that
/// has the reply that proves, and asked before the target lets the guest go on.
///
/// # Errors
/// If either side fails, or is cut.
pub(super) async fn carry<S>(
    unix: &UnixStream,
    tls: S,
    session: &Session,
    proving: Option<&dyn Proving>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite,
{
    let (from_peer, to_peer) = split(tls);
    let follower = proving.map(|proving| (Follower::default(), proving));
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
        // What carries decides when it ends.
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
    session: &Session,
    follower: Option<(&Follower, &dyn Proving)>,
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
                            if !is_switched(proving).await {
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

/// Whether the guest has been switched to post-copy, asked until its libvirt answers: a guest that has needs its
/// session, and what it sends waits meanwhile.
async fn is_switched(proving: &dyn Proving) -> bool {
    let mut pause = Backoff::new(ASK_GUEST_AGAIN, ASK_GUEST_AGAIN_AT_MOST);
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
    session: &Session,
    follower: Option<(&Follower, &dyn Proving)>,
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
        // The other side has closed already.
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

/// Waits until all that was written has been read; `false` if the other side closed before that could
/// be seen.
async fn until_read(unix: &UnixStream) -> io::Result<bool> {
    let mut wait = LOOK_AGAIN;
    loop {
        // Each piece that is read makes the socket writable anew.
        let look = unix.async_io(Interest::WRITABLE, || match unread(unix.as_fd())? {
            Unread::Some => Err(ErrorKind::WouldBlock.into()),
            Unread::Nothing => Ok(true),
            Unread::HungUp => Ok(false),
        });
        match tokio::time::timeout(wait, look).await {
            Ok(seen) => return seen,
            Err(_) => wait = (wait * 2).min(LOOK_AGAIN_AT_MOST),
        }
        if let Unread::Nothing = unread(unix.as_fd())? {
            return Ok(true);
        }
    }
}
