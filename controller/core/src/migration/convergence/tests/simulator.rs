//! A guest that is migrated second by second, like QEMU does: passes over memory until the rest fits into the downtime.

use super::*;

pub(super) const MIB: u64 = 1 << 20;
/// Steps per second: a pass takes at least one.
const STEPS: u64 = 64;

/// A guest and the path to its target.
#[derive(Clone, Debug)]
pub(super) struct SimulatedGuest {
    pub(super) memory: u64,
    pub(super) disks: u64,
    /// Bytes that it dirties per second.
    pub(super) dirty: u64,
    /// Bytes of its working set, which it dirties repeatedly.
    pub(super) working_set: u64,
    /// Bytes that can be sent per second.
    pub(super) bandwidth: u64,
    /// QEMU throttles it.
    pub(super) auto_converge: bool,
    /// Nothing is sent from this second on.
    pub(super) cut_at: Option<u64>,
}

impl SimulatedGuest {
    pub(super) fn total(&self) -> u64 {
        self.memory + self.disks
    }
}

/// The end of a simulated migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedEnd {
    Moved,
    MovedPaused,
    MovedByPostCopy,
    Aborted,
    /// The migration was still running when the simulation ended.
    Open,
}

/// The history of a simulation, with times in seconds.
#[derive(Clone, Debug)]
pub(super) struct Story {
    pub(super) end: SimulatedEnd,
    pub(super) took: u64,
    pub(super) actions: Vec<(u64, ConvergenceAction)>,
    pub(super) outlooks: Vec<Outlook>,
}

impl Story {
    pub(super) fn reasons(&self) -> Vec<(Act, &'static str)> {
        let of = |(_, action): &(u64, ConvergenceAction)| (action.act, action.reason);
        self.actions.iter().map(of).collect()
    }
}

struct Qemu<'a> {
    guest: &'a SimulatedGuest,
    second: u64,
    disk_left: u64,
    pass: u64,
    left: u64,
    changed: u64,
    processed: u64,
    downtime: Duration,
    throttle: u64,
    paused: bool,
    post_copy: bool,
}

impl Qemu<'_> {
    fn dirty(&self) -> u64 {
        if self.paused || self.post_copy {
            0
        } else {
            self.guest.dirty * (100 - self.throttle) / 100
        }
    }

    /// Simulates one second; returns whether the guest has moved in it.
    fn runs(&mut self) -> bool {
        self.second += 1;
        if self.guest.cut_at.is_some_and(|at| self.second >= at) {
            return false;
        }
        (0..STEPS).any(|_| self.step())
    }

    /// Simulates a part of a second.
    fn step(&mut self) -> bool {
        let mut pdb = self.guest.bandwidth / STEPS;
        let disk = pdb.min(self.disk_left);
        self.disk_left -= disk;
        self.processed += disk;
        pdb -= disk;
        if pdb == 0 {
            return false;
        }
        if self.pass == 0 {
            (self.pass, self.left) = (1, self.guest.memory);
        }
        let share = u128::from(self.dirty()) * u128::from(pdb) / u128::from(self.guest.bandwidth);
        let share = u64::try_from(share).unwrap();
        self.changed = (self.changed + share).min(self.guest.working_set);
        let sent = pdb.min(self.left);
        self.left -= sent;
        self.processed += sent;
        if self.left > 0 {
            return false;
        }
        self.pass += 1;
        self.left = std::mem::take(&mut self.changed);
        if self.guest.auto_converge
            && self.left > 0
            && self.dirty() > self.guest.bandwidth / 2
            && self.pass.is_multiple_of(2)
        {
            self.throttle = (self.throttle + 20).min(99);
        }
        let fits = u128::from(self.guest.bandwidth) * self.downtime.as_millis() / 1000;
        self.post_copy || u128::from(self.left) <= fits
    }

    fn sample(&self) -> Sample {
        let begun = self.pass > 0;
        let memory_remaining = if begun { self.left } else { 0 };
        Sample {
            data_total: if begun { self.guest.total() } else { self.guest.disks },
            data_processed: self.processed,
            data_remaining: memory_remaining + self.disk_left,
            memory_remaining,
            disk_remaining: self.disk_left,
            dirty_rate: (self.pass > 1).then(|| self.dirty()),
            bandwidth: begun.then_some(self.guest.bandwidth),
            iteration: self.pass,
            elapsed: Duration::from_secs(self.second),
            expected_downtime: None,
            post_copy: self.post_copy,
            paused: self.paused,
        }
    }
}

/// Migrates a guest within `limits`, carrying out the monitor's actions except those in `refuses`.
pub(super) fn moves(guest: &SimulatedGuest, limits: ConvergenceLimits, refuses: &[Act]) -> Story {
    let mut monitor = Monitor::new(limits);
    let mut qemu = Qemu {
        guest,
        second: 0,
        disk_left: guest.disks,
        pass: 0,
        left: 0,
        changed: 0,
        processed: 0,
        downtime: monitor.initial_downtime(),
        throttle: 0,
        paused: false,
        post_copy: false,
    };
    let mut story = Story {
        end: SimulatedEnd::Open,
        took: 0,
        actions: Vec::new(),
        outlooks: Vec::new(),
    };
    for _ in 0..20_000 {
        let done = qemu.runs();
        story.took = qemu.second;
        if done {
            story.end = match (qemu.post_copy, qemu.paused) {
                (true, _) => SimulatedEnd::MovedByPostCopy,
                (false, true) => SimulatedEnd::MovedPaused,
                (false, false) => SimulatedEnd::Moved,
            };
            break;
        }
        if let Some(time) = monitor.downtime_after_first_pass(&qemu.sample()) {
            qemu.downtime = time;
        }
        let actions = monitor.observe(&qemu.sample());
        story.outlooks.push(monitor.outlook());
        for action in actions {
            story.actions.push((qemu.second, action.clone()));
            if refuses.contains(&action.act) {
                monitor.refused(action.act);
                continue;
            }
            match action.act {
                Act::Report => {}
                Act::SetDowntime(time) => qemu.downtime = time,
                Act::Pause => qemu.paused = true,
                Act::StartPostCopy => qemu.post_copy = true,
                Act::Abort => {
                    story.end = SimulatedEnd::Aborted;
                    return story;
                }
            }
        }
    }
    story
}
