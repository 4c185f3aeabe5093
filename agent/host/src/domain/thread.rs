//! The thread of a connection, which makes one call after another.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use super::{
    CloseReason, DomainCalls, EventSource,
    deadline::CallDeadline,
    event_loop,
    relay::{self, RelayedLine},
};
use crate::{background, libvirt::LibvirtError};

/// Stack size of the thread in bytes. Calls need a few dozen KiB; untouched pages cost nothing.
const STACK: usize = 256 * 1024;

/// Makes a call and sends its result to the caller. Returns whether the connection has broken.
type Work = Box<dyn FnOnce(&dyn DomainCalls) -> bool + Send>;

/// A call queued for the thread.
pub(crate) struct QueuedCall {
    call: &'static str,
    /// Time limit of the call; `None` for no limit.
    within: Option<Duration>,
    begun: oneshot::Sender<()>,
    work: Work,
}

impl QueuedCall {
    /// Creates a queued call. `begun` is notified when the thread starts the call, and `reply_to` receives the result.
    pub(crate) fn new<T: Send + 'static>(
        call: &'static str,
        within: Option<Duration>,
        begun: oneshot::Sender<()>,
        reply_to: oneshot::Sender<Result<T, LibvirtError>>,
        make: impl FnOnce(&dyn DomainCalls) -> Result<T, LibvirtError> + Send + 'static,
    ) -> Self {
        let work = move |calls: &dyn DomainCalls| {
            let result = make(calls);
            let broken = result.as_ref().is_err_and(LibvirtError::is_broken_connection);
            // The caller may have stopped waiting.
            let _ = reply_to.send(result);
            broken
        };
        Self {
            call,
            within,
            begun,
            work: Box::new(work),
        }
    }
}

/// Starts the thread, and the relay if `line` is not `None`.
///
/// The thread opens the connection within `opening` and sends the result to `opened`.
pub(crate) fn start(
    domain: &str,
    line: Option<RelayedLine>,
    mut jobs: mpsc::Receiver<QueuedCall>,
    shared: &Arc<EventSource>,
    opening: Duration,
    open: impl FnOnce(&Arc<EventSource>) -> Result<Box<dyn DomainCalls>, LibvirtError> + Send + 'static,
    opened: oneshot::Sender<Result<(), LibvirtError>>,
) -> io::Result<()> {
    event_loop::start()?;
    let runtime = background::runtime()?;
    let (deadline, deadlines) = watch::channel(Some(CallDeadline {
        call: "connecting to libvirt",
        at: Instant::now() + opening,
    }));
    let thread_shared = Arc::clone(shared);
    let work = move || {
        let shared = thread_shared;
        match open(&shared) {
            Err(error) => {
                shared.finish(CloseReason::Error);
                let _ = opened.send(Err(error));
            }
            Ok(calls) => {
                deadline.send_replace(None);
                let _ = opened.send(Ok(()));
                while let Some(job) = runtime.block_on(next(&mut jobs, &shared)) {
                    let _ = job.begun.send(());
                    deadline.send_replace(job.within.map(|within| CallDeadline {
                        call: job.call,
                        at: Instant::now() + within,
                    }));
                    let broken = (job.work)(calls.as_ref());
                    deadline.send_replace(None);
                    if broken {
                        shared.finish(CloseReason::Error);
                    }
                }
                // A libvirtd whose connection is closed while it deregisters events may crash (seen: libvirt 9.0 frees
                // its data for a client twice), so the relay ends only after the connection is closed.
                shared.finish_in_order(CloseReason::Client);
                deadline.send_replace(Some(CallDeadline {
                    call: "closing the connection",
                    at: Instant::now() + opening,
                }));
                drop(calls);
            }
        }
        // Dropping the sender also ends the relay and completes `DomainHandle::ended`.
        drop(deadline);
        // A call may still be entering the queue. If the receiver were merely dropped, the call would remain in the
        // queue and its caller would wait forever, so the closed queue is drained.
        jobs.close();
        while runtime.block_on(jobs.recv()).is_some() {}
    };
    // The kernel keeps only fifteen bytes of a thread's name.
    let name: String = domain.chars().take(15).collect();
    let name = if name.contains('\0') { "guest".into() } else { name };
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(work)?;
    match line {
        Some(line) => {
            runtime.spawn(relay::run(line, deadlines, Arc::clone(shared)));
        }
        None => drop(deadlines),
    }
    Ok(())
}

/// Returns the next call, or `None` when all callers have ended or the connection has ended.
async fn next(jobs: &mut mpsc::Receiver<QueuedCall>, shared: &EventSource) -> Option<QueuedCall> {
    tokio::select! {
        biased;
        () = shared.thread.notified() => None,
        job = jobs.recv() => job,
    }
}
