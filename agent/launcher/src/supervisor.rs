//! Main loop of process 1. It waits for events, passes them to [`LauncherLifecycle`], and executes the resulting
//! actions.
//!
//! ```text
//! SIGCHLD, SIGTERM ─┐                                           ┌─▶ libvirtd, virsh, signals
//! libvirt's folders ┼─▶ poll ─▶ events ─▶ LauncherLifecycle ─▶ actions ─▶ ready.json
//! times, probes     ┘    │                                      └─▶ termination message, exit code
//!                        └── console, libvirtd's errors ─▶ stdout, stderr
//! ```
//!
//! The process has one thread, which blocks only in this `poll`. (A probe of the guest blocks in its own thread.)

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{ChildStderr, Command, Stdio},
    time::{Duration, Instant},
};

use drydock_api::launcher::{Ending, GuestOutcome, GuestReadiness, PodGuest};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{prctl, signal::Signal},
    unistd::Pid,
};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

use crate::{
    console_lines::ConsoleLines,
    console_relay::ConsoleRelay,
    domain_log::DomainLog,
    domain_state::VirshDomainState,
    domain_watch::{DomainWatch, FolderEvent},
    ending::{bounded, exit_code},
    folders::Folders,
    grace::Grace,
    guest_activity::GuestActivity,
    libvirt_settings,
    lifecycle::{LauncherAction, LauncherEvent, LauncherLifecycle, LibvirtCall, Traces},
    line_sink::LineSink,
    prepare_command,
    probes::{
        Probes,
        schedule::{ProbeKind, ProbeVerdict},
    },
    processes::{self, Reaped, ShortCommand},
    readiness_file::ReadinessFile,
};

/// Time limit for virsh. libvirt responds in milliseconds unless it hangs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for preparing the disks.
const DISKS: Duration = Duration::from_secs(120);
/// Time limit for writing the last lines, in milliseconds.
const LAST_LINES: u16 = 500;
/// File with the memory events of the control group.
const MEMORY_EVENTS: &str = "/sys/fs/cgroup/memory.events";

/// State of process 1.
pub(crate) struct Supervisor {
    guest: PodGuest,
    folders: Folders,
    root: PathBuf,
    lifecycle: LauncherLifecycle,
    started: Instant,
    events: VecDeque<LauncherEvent>,
    signals: Signals,
    watch: DomainWatch,
    console: ConsoleRelay,
    out: LineSink,
    own: LineSink,
    prepare: Option<ShortCommand>,
    virsh: Option<(LibvirtCall, ShortCommand)>,
    learning: Option<Pid>,
    libvirtd: Option<Daemon>,
    qemu: Option<Pid>,
    probes: Option<Probes>,
    readiness: ReadinessFile,
    ending: Option<Ending>,
}

/// A running libvirtd process.
struct Daemon {
    pid: Pid,
    error_output: Option<ChildStderr>,
    lines: ConsoleLines,
}

/// Signals, converted to readable streams.
struct Signals {
    /// Stream that is readable when a child has ended.
    child: UnixStream,
    /// Stream that is readable when the launcher must stop.
    end: UnixStream,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let pair = |signals: &[i32]| {
            let (reader, writer) = UnixStream::pair()?;
            reader.set_nonblocking(true)?;
            for &signal in signals {
                signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            }
            Ok::<_, io::Error>(reader)
        };
        Ok(Self {
            child: pair(&[SIGCHLD])?,
            end: pair(&[SIGTERM, SIGINT])?,
        })
    }

    /// Returns whether a signal has arrived since the last call.
    fn take(mut stream: &UnixStream) -> bool {
        let mut buffer = [0; 64];
        let mut came = false;
        while matches!(stream.read(&mut buffer), Ok(length) if length > 0) {
            came = true;
        }
        came
    }
}

/// Runs the pod until its guest has ended, and returns the exit code.
pub(crate) fn run(guest: PodGuest, root: &Path, termination_log: &Path) -> u8 {
    let mut own = match standard(&io::stderr()) {
        Ok(file) => LineSink::new(file, "of the launcher"),
        // Without stderr, no error can be reported.
        Err(_) => return 1,
    };
    let (ending, end_requested) = match Supervisor::new(guest, root) {
        Ok(mut supervisor) => {
            let ending = supervisor.serve();
            let end_requested = supervisor.lifecycle.is_end_requested();
            supervisor.shut_down();
            (ending, end_requested)
        }
        Err(error) => (
            bounded(
                GuestOutcome::Failed,
                &format!("The launcher cannot start: {error}."),
                false,
            ),
            false,
        ),
    };
    report_ending(&ending, termination_log, &mut own);
    exit_code(ending.outcome, end_requested)
}

/// Writes the termination message, and logs it to the launcher's own output.
pub(crate) fn report_ending(ending: &Ending, termination_log: &Path, own: &mut LineSink) {
    let text = serde_json::to_string(ending).unwrap_or_default();
    let mut lines = ConsoleLines::new("launcher: ");
    let mut log = |text: &str| {
        lines.feed(text.as_bytes(), |line| own.line(line));
        lines.finish(|line| own.line(line));
    };
    log(&format!("{}: {}", ending.outcome.as_str(), ending.message));
    if let Err(error) = fs::write(termination_log, text) {
        log(&format!(
            "the termination message cannot be written to {}: {error}",
            termination_log.display()
        ));
    }
    own.flush_last(LAST_LINES);
}

/// Returns standard output or standard error as a file.
pub(crate) fn standard(stream: &impl AsFd) -> io::Result<File> {
    Ok(File::from(stream.as_fd().try_clone_to_owned()?))
}

impl Supervisor {
    fn new(guest: PodGuest, root: &Path) -> io::Result<Self> {
        // This is only needed outside of a pod, because process 1 adopts orphans anyway.
        prctl::set_child_subreaper(true)?;
        let folders = Folders::below(root);
        libvirt_settings::write(&guest, &folders)?;
        Ok(Self {
            lifecycle: LauncherLifecycle::new(Grace::divide(guest.grace_period_seconds)),
            started: Instant::now(),
            events: VecDeque::new(),
            signals: Signals::new()?,
            watch: DomainWatch::new(&guest.domain, &folders)?,
            console: ConsoleRelay::listen(&folders.console(), &folders.console_client())?,
            out: LineSink::new(standard(&io::stdout())?, "of the guest"),
            own: LineSink::new(standard(&io::stderr())?, "of the launcher"),
            prepare: None,
            virsh: None,
            learning: None,
            libvirtd: None,
            qemu: None,
            probes: Probes::new(&guest.probes)?,
            readiness: ReadinessFile::new(folders.readiness()),
            ending: None,
            root: root.to_owned(),
            guest,
            folders,
        })
    }

    fn serve(&mut self) -> Ending {
        self.log(&format!("guest {}", self.guest.domain));
        match prepare_command::command(&self.guest, &self.root, &self.folders)
            .and_then(|command| ShortCommand::start(command, Instant::now() + DISKS))
        {
            Ok(command) => self.prepare = Some(command),
            Err(error) => self.handle_event(LauncherEvent::Prepared(Err(format!(
                "The disks cannot be prepared: {error}."
            )))),
        }
        self.handle_event(LauncherEvent::Time);
        loop {
            self.act();
            self.flush();
            if let Some(ending) = self.ending.take() {
                return ending;
            }
            self.wait(self.wake());
            self.check_sources();
        }
    }

    /// Queues an event for the lifecycle.
    fn handle_event(&mut self, event: LauncherEvent) {
        self.events.push_back(event);
    }

    /// Passes the queued events to the lifecycle and executes its actions.
    fn act(&mut self) {
        while let Some(event) = self.events.pop_front() {
            for action in self.lifecycle.step(event, self.started.elapsed()) {
                self.carry_out(action);
            }
        }
    }

    /// Checks all sources for events.
    fn check_sources(&mut self) {
        let now = Instant::now();
        Signals::take(&self.signals.child);
        self.read_signs();
        while let Some(reaped) = processes::reap() {
            self.ended(reaped);
        }
        if Signals::take(&self.signals.end) {
            self.handle_event(LauncherEvent::TerminationRequested);
        }
        self.console.work(now, &mut self.out);
        self.probe();
        if self.readiness.retry(now) {
            self.log("the guest's readiness was written");
        }
        self.read_error_output();
        self.end_overdue(now);
        self.handle_event(LauncherEvent::Time);
    }

    fn read_signs(&mut self) {
        match self.watch.read() {
            Ok(signs) => {
                let state = |sign: &FolderEvent| matches!(sign, FolderEvent::StateWritten | FolderEvent::StateRemoved);
                if signs.iter().any(state) && self.probes.is_some() {
                    self.observe(GuestActivity::read(&self.folders.state(&self.guest.domain)));
                }
                for sign in signs {
                    self.events.push_back(match sign {
                        FolderEvent::Socket => LauncherEvent::LibvirtdListens,
                        FolderEvent::Process(pid) => {
                            self.qemu = Some(pid);
                            LauncherEvent::QemuStarted(pid)
                        }
                        FolderEvent::StateWritten => continue,
                        FolderEvent::StateRemoved => LauncherEvent::StateRemoved,
                        FolderEvent::Log => LauncherEvent::LogWritten,
                    });
                }
            }
            Err(error) => self.log(&format!("libvirt's folders cannot be watched: {error}")),
        }
    }

    fn observe(&mut self, activity: GuestActivity) {
        let now = self.started.elapsed();
        if let Some(probes) = &mut self.probes {
            probes.observe(activity, now);
        }
    }

    /// Executes the guest's probes, and handles their changed verdicts.
    fn probe(&mut self) {
        let now = self.started.elapsed();
        let verdicts = self.probes.as_mut().map(|probes| probes.work(now)).unwrap_or_default();
        for (kind, verdict) in verdicts {
            self.log(&format!("the guest's {kind} probe {verdict}"));
            match (kind, &verdict) {
                (ProbeKind::Readiness, _) => self.publish_readiness(&verdict),
                (ProbeKind::Liveness, ProbeVerdict::Fails { .. }) => {
                    self.handle_event(LauncherEvent::Unhealthy(verdict.to_string()));
                }
                (ProbeKind::Liveness, ProbeVerdict::Succeeds) => {}
            }
        }
    }

    /// Writes the result of the readiness probe for the agent.
    fn publish_readiness(&mut self, verdict: &ProbeVerdict) {
        let (ready, message) = match verdict {
            ProbeVerdict::Succeeds => (true, String::new()),
            ProbeVerdict::Fails { why, .. } => (false, why.clone()),
        };
        if let Err(error) = self
            .readiness
            .publish(GuestReadiness { ready, message }, Instant::now())
        {
            self.log(&format!("the guest's readiness cannot be written, retrying: {error}"));
        }
    }

    fn ended(&mut self, Reaped { pid, name, end }: Reaped) {
        if self.libvirtd.as_ref().is_some_and(|libvirtd| libvirtd.pid == pid) {
            self.read_error_output();
            self.libvirtd = None;
            // The last events of libvirtd precede its end.
            self.read_signs();
            self.handle_event(LauncherEvent::LibvirtdEnded(end.to_string()));
        } else if let Some((call, command)) = self.virsh.take_if(|(_, command)| command.pid == pid) {
            let (output, error_output) = command.into_output();
            self.call_ended(call, end.is_success(), &output, &error_output);
        } else if self.learning.take_if(|learning| *learning == pid).is_some() {
            // A failure will occur again when the guest starts.
            let took = self.started.elapsed().as_secs_f64();
            self.log(&format!(
                "the query of QEMU's capabilities {end}, {took:.2} s after the start"
            ));
        } else if let Some(command) = self.prepare.take_if(|command| command.pid == pid) {
            let (_, error_output) = command.into_output();
            self.handle_event(LauncherEvent::Prepared(prepare_command::result(end, &error_output)));
        } else if self.qemu == Some(pid) || name.starts_with("qemu-") {
            if self.qemu.take_if(|qemu| *qemu == pid).is_some() {
                let last = GuestActivity::read(&self.folders.state(&self.guest.domain));
                if last == GuestActivity::Leaving {
                    self.handle_event(LauncherEvent::Leaves);
                }
                self.observe(GuestActivity::Absent);
            }
            self.handle_event(LauncherEvent::QemuEnded(pid, end));
        }
    }

    fn call_ended(&mut self, call: LibvirtCall, success: bool, output: &str, error_output: &str) {
        let state = VirshDomainState::from_virsh(success, output, error_output);
        self.handle_event(match call {
            LibvirtCall::State => LauncherEvent::StateReported(state),
            LibvirtCall::PowerButton | LibvirtCall::Destroy | LibvirtCall::Settled if success => {
                LauncherEvent::Done(call, Ok(()))
            }
            LibvirtCall::PowerButton | LibvirtCall::Destroy | LibvirtCall::Settled => {
                let why = state.map_or_else(|why| why, |_| "the domain does not exist".into());
                LauncherEvent::Done(call, Err(why))
            }
        });
    }

    /// Kills commands that exceed their time limit.
    fn end_overdue(&mut self, now: Instant) {
        if let Some((call, command)) = self.virsh.take_if(|(_, command)| command.deadline <= now) {
            processes::signal(command.pid, Signal::SIGKILL);
            let why = format!("virsh took longer than {} s", RESPONSE_TIMEOUT.as_secs());
            self.handle_event(match call {
                LibvirtCall::State => LauncherEvent::StateReported(Err(why)),
                LibvirtCall::PowerButton | LibvirtCall::Destroy | LibvirtCall::Settled => {
                    LauncherEvent::Done(call, Err(why))
                }
            });
        }
        if let Some(command) = self.prepare.take_if(|command| command.deadline <= now) {
            processes::signal(command.pid, Signal::SIGKILL);
            let why = format!("The disks could not be prepared within {} s.", DISKS.as_secs());
            self.handle_event(LauncherEvent::Prepared(Err(why)));
        }
    }

    fn carry_out(&mut self, action: LauncherAction) {
        match action {
            LauncherAction::StartLibvirtd => self.start_libvirtd(),
            LauncherAction::KillLibvirtd => {
                if let Some(libvirtd) = &self.libvirtd {
                    processes::signal(libvirtd.pid, Signal::SIGKILL);
                }
            }
            LauncherAction::Learn => self.learn(),
            LauncherAction::Call(call) => self.call_libvirt(call),
            LauncherAction::Abandon => {
                if let Some((_, command)) = self.virsh.take() {
                    processes::signal(command.pid, Signal::SIGKILL);
                }
            }
            LauncherAction::SignalQemu(pid, signal) => {
                self.log(&format!("sending {signal} to QEMU"));
                // The check is needed because another process may have got the PID in the meantime.
                if self.qemu == Some(pid) {
                    processes::signal(pid, signal);
                }
            }
            LauncherAction::MarkReady => match prepare_command::write_ready(&self.folders) {
                Ok(()) => self.log("ready for the guest"),
                Err(error) => {
                    let why = format!("The pod could not be reported as ready: {error}.");
                    self.handle_event(LauncherEvent::Prepared(Err(why)));
                }
            },
            LauncherAction::ReadLog => {
                let log = DomainLog::read(&self.folders.log(&self.guest.domain));
                self.events.push_front(LauncherEvent::Log(Traces {
                    log,
                    out_of_memory: out_of_memory(),
                    migrated_away: self.folders.left().exists(),
                }));
            }
            LauncherAction::LogMessage(text) => self.log(&text),
            LauncherAction::End(ending) => self.ending = Some(ending),
        }
    }

    fn start_libvirtd(&mut self) {
        let mut command: Command = libvirt_settings::libvirtd_command(&self.folders);
        let started = processes::start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        match started {
            Ok((pid, _, error_output)) => {
                let error_output = error_output.filter(|error_output| processes::without_waiting(error_output).is_ok());
                self.libvirtd = Some(Daemon {
                    pid,
                    error_output,
                    lines: ConsoleLines::new("launcher: libvirtd: "),
                });
            }
            Err(error) => self.handle_event(LauncherEvent::LibvirtdEnded(format!("could not be started: {error}"))),
        }
    }

    fn learn(&mut self) {
        let mut command = libvirt_settings::learning_command(&self.folders);
        let started = processes::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        // If this command hangs, its libvirtd hangs too, and the command ends together with libvirtd.
        self.learning = started.ok().map(|(pid, _, _)| pid);
    }

    fn call_libvirt(&mut self, call: LibvirtCall) {
        let command = libvirt_settings::virsh_command(call, &self.guest.domain, &self.folders);
        match ShortCommand::start(command, Instant::now() + RESPONSE_TIMEOUT) {
            Ok(command) => self.virsh = Some((call, command)),
            Err(error) => self.call_ended(call, false, "", &format!("virsh cannot be started: {error}")),
        }
    }

    /// Logs libvirtd's own error messages, except irrelevant ones.
    fn read_error_output(&mut self) {
        let Some(libvirtd) = &mut self.libvirtd else { return };
        let Some(error_output) = &mut libvirtd.error_output else {
            return;
        };
        let mut buffer = [0; 4096];
        match error_output.read(&mut buffer) {
            Ok(0) => libvirtd.error_output = None,
            Ok(length) => libvirtd.lines.feed(&buffer[..length], |line| {
                if !is_irrelevant(line) {
                    self.own.line(line);
                }
            }),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => libvirtd.error_output = None,
        }
    }

    fn log(&mut self, text: &str) {
        // The text may contain untrusted output.
        let mut lines = ConsoleLines::new("launcher: ");
        lines.feed(text.as_bytes(), |line| self.own.line(line));
        lines.finish(|line| self.own.line(line));
    }

    fn flush(&mut self) {
        self.out.flush();
        self.own.flush();
    }

    fn wake(&self) -> Option<Instant> {
        let lifecycle = self.lifecycle.wake().map(|at| self.started + at);
        let virsh = self.virsh.as_ref().map(|(_, command)| command.deadline);
        let prepare = self.prepare.as_ref().map(|command| command.deadline);
        let probes = self.probes.as_ref().and_then(Probes::wake);
        let probes = probes.map(|at| self.started + at);
        let own = [self.console.wake(), self.readiness.wake()];
        [lifecycle, virsh, prepare, probes]
            .into_iter()
            .chain(own)
            .flatten()
            .min()
    }

    /// Waits for the next event.
    fn wait(&self, until: Option<Instant>) {
        let timeout = until.map_or(PollTimeout::NONE, |until| {
            // The time is rounded up to the next millisecond, so that the wait does not end too early.
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![
            readable(self.signals.child.as_fd()),
            readable(self.signals.end.as_fd()),
            readable(self.watch.as_fd()),
        ];
        fds.extend(self.probes.as_ref().map(|probes| readable(probes.as_fd())));
        fds.extend(self.console.waits());
        fds.extend(self.out.waits());
        fds.extend(self.own.waits());
        let error_output = self
            .libvirtd
            .as_ref()
            .and_then(|libvirtd| libvirtd.error_output.as_ref());
        fds.extend(error_output.map(|error_output| readable(error_output.as_fd())));
        // An interruption by a signal is expected. All sources are checked afterwards anyway.
        let _ = poll(&mut fds, timeout);
    }

    /// Kills the remaining child processes. Outside of a pod, the kernel does not do this.
    fn shut_down(&mut self) {
        self.console.drain(Instant::now(), &mut self.out);
        let commands = [self.virsh.take().map(|(_, command)| command), self.prepare.take()];
        let libvirtd = self.libvirtd.take().map(|libvirtd| libvirtd.pid);
        for pid in commands
            .into_iter()
            .flatten()
            .map(|command| command.pid)
            .chain(libvirtd)
            .chain(self.learning.take())
            .chain(self.qemu.take())
        {
            processes::signal(pid, Signal::SIGKILL);
        }
        self.out.flush_last(LAST_LINES);
        self.own.flush_last(LAST_LINES);
    }
}

/// Returns whether the OOM killer has killed a process of the pod.
fn out_of_memory() -> bool {
    let events = fs::read_to_string(MEMORY_EVENTS).unwrap_or_default();
    events
        .lines()
        .filter_map(|line| line.strip_prefix("oom_kill "))
        .any(|count| count.trim() != "0")
}

/// Returns whether an error message is irrelevant.
///
/// libvirtd queries KVM for the processor's features several times for each guest, and logs an error if there is no
/// KVM. This is irrelevant on nodes that emulate guests. On other nodes, QEMU reports the same error.
fn is_irrelevant(error_output: &str) -> bool {
    error_output.contains("Unable to open /dev/kvm")
}

#[cfg(test)]
mod tests {
    use super::is_irrelevant;

    #[test]
    fn only_expected_libvirtd_messages_are_omitted() {
        let kvm = "launcher: libvirtd: error : virHostCPUGetMSRFromKVM:1341 : Unable to open /dev/kvm: No such file or directory";
        assert!(is_irrelevant(kvm));
        assert!(!is_irrelevant(
            "launcher: libvirtd: error : internal error: process exited"
        ));
    }
}
