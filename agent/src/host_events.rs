//! Awaitable notifications of the kernel about changes on the host.

use std::{io, os::fd::AsFd, thread};

use drydock_host::watch::HostWatch;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tokio::sync::mpsc;
use tracing::warn;

/// Notifies that something on the host may have changed. Several changes may be merged into one notification.
pub(crate) struct HostEvents(mpsc::Receiver<()>);

impl HostEvents {
    /// Reads `watch` on a thread that blocks in the kernel. The thread ends with the process.
    pub(crate) fn of(mut watch: HostWatch) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        thread::spawn(move || {
            loop {
                match wait(&mut watch) {
                    Ok(false) => {}
                    // The channel is full: the notification that is still pending covers this change too.
                    Ok(true) => match sender.try_send(()) {
                        Ok(()) | Err(mpsc::error::TrySendError::Full(())) => {}
                        Err(mpsc::error::TrySendError::Closed(())) => return,
                    },
                    Err(error) => {
                        warn!(%error, "the host can no longer be watched; only the periodic check detects changes");
                        return;
                    }
                }
            }
        });
        Self(receiver)
    }

    /// Waits for the next notification, or forever if the sender has ended.
    pub(crate) async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

fn wait(watch: &mut HostWatch) -> io::Result<bool> {
    match poll(&mut [PollFd::new(watch.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
        Ok(_) => watch.drain(),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
