//! The guest's liveness and readiness probes, which this process executes itself.
//!
//! ```text
//!                    ┌── liveness fails ──▶ LauncherLifecycle: the guest is stopped ──▶ termination message
//!  timers ─▶ probe ──┤
//!                    └── readiness ───────▶ readiness.json ──▶ agent ──▶ the pod's gate, the instance's Ready
//! ```
//!
//! The container has no probes that the kubelet executes, for three reasons:
//!
//! - The kubelet cannot distinguish a guest that does not respond from a node that is too busy to start a process or to
//!   respond to a request in time. Load alone would thus end healthy guests, and their migrations.
//! - The kubelet does not know whether a guest is paused, has not arrived yet, or is throttled by its migration.
//! - passt accepts each connection on behalf of the guest, so a successful connection shows nothing.
//!
//! (A port of this process for the kubelet would solve only the last two problems, and would need an address that
//! others can also reach.) Therefore:
//!
//! - Probes start when the guest runs in this pod, and stop while the guest is paused: [`schedule`]. Liveness probes
//!   also stop while the guest migrates.
//! - A timeout counts only time in which this process was scheduled: [`time_limit`].
//! - Each probe runs in a short-lived thread, not in a process. Between probes, there is no thread.
//! - A guest whose liveness probe fails is stopped as on deletion of its pod: by its power button, then by force. The
//!   pod fails with the reason in its termination message.
//! - Readiness is a part of the pod's readiness gate. The VMI's condition Ready shows it with its reason.

mod measure;
pub(crate) mod schedule;
mod time_limit;
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
use schedule::{ProbeKind, ProbeVerdict, Schedule};

/// Stack size of a probe's thread in bytes. TLS has the largest need, which is below 100 KiB.
const STACK: usize = 512 * 1024;

type ProbeOutcome = Option<Result<(), String>>;

/// Probes of the pod's guest.
pub(crate) struct Probes {
    schedules: Vec<Schedule>,
    results: Receiver<(ProbeKind, ProbeOutcome)>,
    sender: Sender<(ProbeKind, ProbeOutcome)>,
    /// Stream that receives one byte per result.
    reader: UnixStream,
    writer: UnixStream,
}

impl Probes {
    /// Creates the probes; `None` if no probe is configured.
    ///
    /// # Errors
    /// If the kernel cannot provide another socket.
    pub(crate) fn new(probes: &GuestProbes) -> io::Result<Option<Self>> {
        let liveness = probes
            .liveness
            .clone()
            .map(|probe| Schedule::new(ProbeKind::Liveness, probe));
        let readiness = probes
            .readiness
            .clone()
            .map(|probe| Schedule::new(ProbeKind::Readiness, probe));
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

    /// Records the current activity of the guest.
    pub(crate) fn observe(&mut self, activity: GuestActivity, now: Duration) {
        for schedule in &mut self.schedules {
            schedule.observe(activity, now);
        }
    }

    /// Starts the probes that are due, and returns the changed verdicts.
    pub(crate) fn work(&mut self, now: Duration) -> Vec<(ProbeKind, ProbeVerdict)> {
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
                    // The receivers exist as long as the launcher, so errors are ignored.
                    let _ = sender.send((kind, Some(measure(&action, guest, timeout))));
                    let _ = writer.write_all(&[0]);
                })
        });
        if begun.is_err() {
            // A failure to start a thread is no result of the probe.
            schedule.result(None);
        }
    }

    /// Returns the time of the next call of [`Self::work`]. It must also be called when a result is available.
    pub(crate) fn wake(&self) -> Option<Duration> {
        self.schedules.iter().filter_map(Schedule::wake).min()
    }
}

impl AsFd for Probes {
    /// Returns a descriptor that is readable when a result is available.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
