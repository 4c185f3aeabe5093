//! A libvirtd that is started for an inspection and stopped after it.
//!
//! The libvirtd runs like the libvirtds of guests: in session mode, as an unprivileged user, with all its files in its
//! own folder. Its results are therefore those that guests will get, and a libvirt of the machine is neither queried
//! nor changed.
//!
//! ```text
//!  this process (reaper of orphaned descendants)
//!   └─ keeper thread (own mount namespace: device nodes for all)
//!       └─ libvirtd (own session, dies with the keeper)
//!           └─ qemu, started and ended by libvirtd
//! ```
//!
//! The keeper lives as long as libvirtd, because the kernel ties the parent death signal to the parent thread.

use std::{
    fs::{self, File},
    io::{self, PipeReader, PipeWriter},
    os::{
        fd::AsFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use drydock_api::launcher::CAPABILITIES_IN_CACHE;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify},
        prctl,
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{Pid, setsid},
};
use parking_lot::{Condvar, Mutex};

use crate::{
    account::Account,
    descendants, device_nodes,
    libvirt::session_uri,
    libvirtd_folder::{LibvirtdFolder, last_errors},
    problem::{HostProblem, ProblemReason},
    qemu_capabilities,
};

/// Search path for libvirtd and the programs it starts.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Maximum length of a Unix socket's path in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// Time limit for libvirtd to end after SIGTERM. libvirtd has no state that justifies a longer wait.
const POLITE: Duration = Duration::from_millis(500);

/// Time limit for libvirtd and its processes to end after SIGKILL.
const KILLED: Duration = Duration::from_secs(2);

/// Delay between two attempts to connect to a socket that exists but does not listen yet.
const RETRY: Duration = Duration::from_millis(1);

/// Lock that allows only one libvirtd per process at a time, because its remaining processes are recognised only by
/// their session.
static TURN: Mutex<()> = Mutex::new(());

/// A running libvirtd. Dropping the value stops libvirtd and all its child processes, and removes its folder.
#[derive(Debug)]
pub struct PrivateLibvirtd {
    folder: LibvirtdFolder,
    socket: PathBuf,
    pid: Pid,
    state: Arc<LibvirtdState>,
    ended: PipeReader,
    devices: Option<String>,
}

/// A started libvirtd, and the reason if its device nodes could not be opened to all users.
#[derive(Debug)]
struct Started {
    pid: Pid,
    devices: Option<String>,
}

/// End of libvirtd. The end is set once libvirtd and all its processes have ended.
#[derive(Debug, Default)]
struct LibvirtdState {
    end: Mutex<Option<LibvirtdEnd>>,
    changed: Condvar,
}

#[derive(Clone, Debug)]
struct LibvirtdEnd(String);

impl PrivateLibvirtd {
    /// Starts libvirtd. `program` is its path, or its name in the usual folders.
    ///
    /// The files of libvirtd are in a new folder in `scratch`.
    ///
    /// # Errors
    /// If libvirtd cannot be started.
    pub fn start(program: &Path, scratch: &Path) -> Result<Self, HostProblem> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            HostProblem::new(ProblemReason::LibvirtdNotStarted, format!("{what}: {error}"))
        };
        prctl::set_child_subreaper(true)
            .map_err(|error| cannot("cannot become the reaper of libvirtd's processes", &error))?;
        let account = Account::find();
        let folder = LibvirtdFolder::make(scratch, account.as_ref())
            .map_err(|error| cannot(&format!("cannot create a folder in {}", scratch.display()), &error))?;
        let socket = folder.join("run/libvirt/libvirt-sock");
        if socket.as_os_str().len() > MAX_SOCKET_PATH {
            return Err(cannot("the path of libvirtd's socket is too long", &socket.display()));
        }
        let command = command(program, &folder, account.as_ref())
            .map_err(|error| cannot("cannot write libvirtd's settings", &error))?;
        let (ended, alive) = io::pipe().map_err(|error| cannot("cannot create a pipe", &error))?;
        let state = Arc::new(LibvirtdState::default());
        let (started, start) = mpsc::channel();
        let (keeper_state, devices) = (Arc::clone(&state), folder.join("devices"));
        let unlock = account.is_some();
        thread::Builder::new()
            .name("libvirtd keeper".into())
            .spawn(move || {
                let devices = unlock.then_some(devices);
                keep(command, devices.as_deref(), &started, &keeper_state, alive);
            })
            .map_err(|error| cannot("cannot start a thread for libvirtd", &error))?;
        let Started { pid, devices } = start
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread of libvirtd ended")))
            .map_err(|error| cannot(&format!("cannot start {}", program.display()), &error))?;
        Ok(Self {
            folder,
            socket,
            pid,
            state,
            ended,
            devices,
        })
    }

    /// Returns the URI of this libvirtd.
    pub fn uri(&self) -> String {
        session_uri(&self.socket)
    }

    /// Returns the reason if libvirtd was not given /dev/kvm. libvirtd may still be able to open the device.
    pub fn devices_withheld(&self) -> Option<&str> {
        self.devices.as_deref()
    }

    /// Stores the QEMU capabilities that libvirtd has probed, for libvirts that are started later.
    ///
    /// # Errors
    /// If there are no capabilities, or they cannot be read or written.
    pub fn keep_capabilities(&self, into: &Path) -> io::Result<()> {
        qemu_capabilities::keep(&self.folder.join("cache").join(CAPABILITIES_IN_CACHE), into)
    }

    /// Returns libvirtd's process ID.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Waits until libvirtd's socket accepts connections.
    ///
    /// # Errors
    /// If libvirtd ends first, or does not open the socket in time.
    pub fn wait_until_open(&self, within: Duration) -> Result<(), HostProblem> {
        let until = Instant::now() + within;
        let not_opened = |error: &dyn std::fmt::Display| {
            let message = format!("libvirtd did not open its socket within {within:?}: {error}");
            HostProblem::new(ProblemReason::LibvirtdSocketNotOpened, message)
        };
        // The watch is set up before the first attempt, so that no change between the two is missed.
        let watch =
            Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(|error| not_opened(&error))?;
        let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ATTRIB;
        watch
            .add_watch(&self.folder.join("run/libvirt"), events)
            .map_err(|error| not_opened(&error))?;
        loop {
            let failure = match UnixStream::connect(&self.socket) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(not_opened(&failure));
            }
            let wait = if failure.kind() == io::ErrorKind::NotFound {
                left
            } else {
                left.min(RETRY)
            };
            let mut sources = [
                PollFd::new(watch.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.ended.as_fd(), PollFlags::POLLIN),
            ];
            // The time is rounded up, because a poll with 0 ms would spin.
            let milliseconds = wait.as_millis() + 1;
            match poll(
                &mut sources,
                PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX),
            ) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(not_opened(&error)),
            }
            // Nothing is ever written to this pipe. Its other end is closed when libvirtd has ended.
            if sources[1].any() == Some(true) {
                return Err(self.exited());
            }
            while watch.read_events().is_ok() {}
        }
    }

    /// Returns the problem if libvirtd ended before its socket was open.
    fn exited(&self) -> HostProblem {
        let end = self.end_within(KILLED).unwrap_or_else(|| "unknown exit status".into());
        HostProblem::new(
            ProblemReason::LibvirtdExited,
            format!("libvirtd ended before its socket was open: {end}"),
        )
    }

    /// Waits up to `within` for libvirtd to end.
    ///
    /// Returns how libvirtd ended and the last lines of its log, or `None` if it is still running.
    pub fn end_within(&self, within: Duration) -> Option<String> {
        let mut end = self.state.end.lock();
        self.state.changed.wait_while_for(&mut end, |end| end.is_none(), within);
        let LibvirtdEnd(how) = end.as_ref()?;
        let errors = last_errors(&self.folder.join("log"));
        Some(if errors.is_empty() {
            how.clone()
        } else {
            format!("{how}: {errors}")
        })
    }

    /// Kills libvirtd and all its child processes, and waits for their end up to a limit.
    pub fn kill(&self) {
        self.signal(Signal::SIGKILL);
        if self.end_within(KILLED).is_none() {
            tracing::warn!(pid = self.pid.as_raw(), "libvirtd cannot be killed");
        }
    }

    /// Sends a signal unless libvirtd has ended. After its end, its PID may belong to another process.
    fn signal(&self, signal: Signal) {
        // The lock is held during the call: the keeper reaps the process, and thus frees its PID, under this lock.
        let end = self.state.end.lock();
        if end.is_none() {
            let _ = kill(self.pid, signal);
        }
    }
}

impl Drop for PrivateLibvirtd {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        if self.end_within(POLITE).is_none() {
            self.kill();
        }
        // The folder is dropped and removed after this function.
    }
}

/// Runs the keeper thread, which starts libvirtd and lives as long as libvirtd does.
///
/// The thread reaps orphaned processes in the meantime. libvirtd waits for the complete end of a QEMU that it has
/// ended, including the zombie.
fn keep(
    mut command: Command,
    devices: Option<&Path>,
    started: &mpsc::Sender<io::Result<Started>>,
    state: &LibvirtdState,
    alive: PipeWriter,
) {
    let _turn = TURN.lock();
    let unlocked = devices.map_or(Ok(()), device_nodes::unlock_for_this_thread);
    let child = command
        .spawn()
        .and_then(|child| i32::try_from(child.id()).map(Pid::from_raw).map_err(io::Error::other));
    // The descriptors that the command duplicated are no longer needed.
    drop(command);
    let pid = match child {
        Ok(pid) => pid,
        Err(error) => {
            // Sending fails only if `start` has dropped the receiver, which it does not do.
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(Started {
        pid,
        devices: unlocked.err().map(|error| error.to_string()),
    }));
    wait_for_end(pid);
    // The process keeps its PID until it is reaped. The lock ensures that no signal is sent to the PID after that.
    let mut end = state.end.lock();
    let how = match waitpid(pid, None) {
        Ok(WaitStatus::Exited(_, code)) => format!("exit code {code}"),
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("killed by {signal}"),
        Ok(_) | Err(_) => "unknown exit status".into(),
    };
    let left = descendants::end_all(KILLED);
    if left > 0 {
        tracing::warn!(left, "processes of libvirtd cannot be killed");
    }
    *end = Some(LibvirtdEnd(how));
    drop(end);
    state.changed.notify_all();
    drop(alive);
}

/// Waits until libvirtd has ended, without reaping it. Reaps orphaned processes in the meantime.
fn wait_for_end(libvirtd: Pid) {
    let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    loop {
        match waitid(Id::All, options).map(|status| status.pid()) {
            Ok(Some(pid)) if pid == libvirtd => return,
            Ok(Some(pid)) if descendants::is_adopted(pid) && descendants::reap(pid) => {}
            // Another part of this process will soon reap this child. Until then, the child hides later children.
            Ok(_) => {
                descendants::reap_adopted(libvirtd);
                let ended = waitid(Id::Pid(libvirtd), options | WaitPidFlag::WNOHANG);
                if !matches!(ended, Ok(WaitStatus::StillAlive)) {
                    return;
                }
                thread::sleep(RETRY);
            }
            Err(Errno::EINTR) => {}
            // There are no children: another part of this process has reaped libvirtd.
            Err(_) => return,
        }
    }
}

/// Builds the command line of libvirtd. libvirtd inherits nothing from the environment of this process.
#[expect(
    unsafe_code,
    reason = "CommandExt::pre_exec is unsafe; there is no other way to tie the child to its parent"
)]
fn command(program: &Path, folder: &LibvirtdFolder, account: Option<&Account>) -> io::Result<Command> {
    let settings = folder.join("libvirtd.conf");
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    // libvirtd gets its own UUID, so that it does not look for the machine's UUID, which it must not read.
    fs::write(&settings, format!("host_uuid = \"{}\"\n", uuid.trim()))?;
    let log = File::create(folder.join("log"))?;
    let mut command = Command::new(program);
    command
        // With 0, libvirtd never exits when it is idle. By default, a session daemon exits after two idle minutes.
        .args(["--timeout", "0", "--config"])
        .arg(settings)
        .current_dir("/")
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .env("HOME", folder.join("home"))
        .env("XDG_RUNTIME_DIR", folder.join("run"))
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("XDG_DATA_HOME", folder.join("data"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    if let Some(account) = account {
        // This call also drops all other groups.
        command.uid(account.uid.as_raw()).gid(account.gid.as_raw());
    }
    // SAFETY: the closure runs in the forked child before exec, where only async-signal-safe calls are sound: it
    // makes two system calls, allocates nothing and takes no lock. It runs after the change of user, which would
    // reset the parent death signal.
    unsafe {
        command.pre_exec(|| {
            setsid()?;
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            Ok(())
        });
    }
    Ok(command)
}

#[cfg(test)]
mod tests;
