//! The guest's liveness and readiness probes, which this process carries out itself.
//!
//! ```text
//!                    ┌── liveness fails ──▶ Lifecycle: the guest is ended ──▶ termination message
//!  timers ─▶ probe ──┤
//!                    └── readiness ───────▶ readiness.json ──▶ agent ──▶ the pod's gate, the instance's Ready
//! ```
//!
//! The container has no probes for its kubelet, for three reasons. The kubelet cannot tell a guest that does not respond
//! from a node that is too busy to start a process or to answer a request in time, so that load alone would end guests
//! that are well, and their migrations with them. It does not know that a guest is paused, has not arrived yet, or is
//! slowed down by its migration. And passt accepts each connection for the guest, so that a connection alone shows
//! nothing. (A port of this process for the kubelet would cure the last two only, at the cost of an address that others
//! can reach as well.) So:
//!
//! - Probes begin when the guest runs in this pod, and pause while it stands still: [`schedule`]. Liveness pauses while
//!   it moves, too.
//! - A time-out counts time in which this process was scheduled: [`patience`].
//! - Each probe has a short thread of its own, and no process; between two there is none.
//! - A guest whose liveness probe fails is ended as its pod's deletion would: by its power button, then by force. The
//!   pod fails with the reason in its termination message.
//! - Readiness is a part of the pod's readiness gate, and shows in the instance's condition Ready with its reason.

mod measure;
mod patience;
pub(crate) mod schedule;
mod tls;

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use drydock_api::launcher::GuestProbes;

use crate::{addresses, guest_activity::GuestActivity};

use measure::measure;
use schedule::{Kind, Schedule, Verdict};

/// Stack of a probe's thread, in bytes. TLS has the deepest, below 100 KiB.
const STACK: usize = 512 * 1024;

type Outcome = Option<Result<(), String>>;

/// The probes of the pod's guest.
pub(crate) struct Probes {
    schedules: Vec<Schedule>,
    results: Receiver<(Kind, Outcome)>,
    sender: Sender<(Kind, Outcome)>,
    /// A byte for each result.
    reader: UnixStream,
    writer: UnixStream,
}

impl Probes {
    /// The probes; `None` if there are none.
    ///
    /// # Errors
    /// If the kernel has no sockets left.
    pub(crate) fn new(probes: &GuestProbes) -> io::Result<Option<Self>> {
        let liveness = probes
            .liveness
            .clone()
            .map(|probe| Schedule::new(Kind::Liveness, probe));
        let readiness = probes
            .readiness
            .clone()
            .map(|probe| Schedule::new(Kind::Readiness, probe));
        let schedules: Vec<Schedule> = [liveness, readiness].into_iter().flatten().collect();
        if schedules.is_empty() {
            return Ok(None);
        }
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        let (sender, results) = channel();
        Ok(Some(Self {
            schedules,
            results,
            sender,
            reader,
            writer,
        }))
    }

    /// Takes in what the guest does now.
    pub(crate) fn observe(&mut self, activity: GuestActivity, now: Duration) {
        for schedule in &mut self.schedules {
            schedule.observe(activity, now);
        }
    }

    /// Begins the probes that are due, and returns what has changed.
    pub(crate) fn work(&mut self, now: Duration) -> Vec<(Kind, Verdict)> {
        let mut buffer = [0; 16];
        while matches!((&self.reader).read(&mut buffer), Ok(length) if length > 0) {}
        let mut verdicts = Vec::new();
        while let Ok((kind, outcome)) = self.results.try_recv() {
            let mut schedules = self.schedules.iter_mut();
            let verdict = schedules
                .find(|schedule| schedule.kind() == kind)
                .and_then(|schedule| schedule.result(outcome));
            verdicts.extend(verdict.map(|verdict| (kind, verdict)));
        }
        for index in 0..self.schedules.len() {
            if self.schedules[index].begins(now) {
                self.begin(index);
            }
        }
        verdicts
    }

    fn begin(&mut self, index: usize) {
        let schedule = &mut self.schedules[index];
        let (kind, action) = (schedule.kind(), schedule.probe().action.clone());
        let timeout = Duration::from_secs(u64::from(schedule.probe().timeout_seconds));
        let sender = self.sender.clone();
        let begun = self.writer.try_clone().and_then(|mut writer| {
            thread::Builder::new()
                .name("probe".into())
                .stack_size(STACK)
                .spawn(move || {
                    let guest = addresses::of_pod().first().map(|pod| pod.address);
                    // Both ends go with the launcher only.
                    let _ = sender.send((kind, Some(measure(&action, guest, timeout))));
                    let _ = writer.write_all(&[0]);
                })
        });
        if begun.is_err() {
            // That this process gets no thread says nothing of the guest.
            schedule.result(None);
        }
    }

    /// When [`Self::work`] is to be called, beside when there is a result.
    pub(crate) fn wake(&self) -> Option<Duration> {
        self.schedules.iter().filter_map(Schedule::wake).min()
    }
}

impl AsFd for Probes {
    /// Readable when there is a result.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
