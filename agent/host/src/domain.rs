//! Access of the agent to the libvirt of one guest: calls with a deadline, and events that cost nothing while idle.
//!
//! The libvirt runs in the guest's pod and may hang, return wrong data or be replaced by another program. Therefore
//! each connection has its own thread and goes through a relay that this process owns. When a call is overdue, the
//! relay closes the connection, libvirt's client aborts the call, and the thread becomes free.
//!
//! ```text
//!  DomainHandle ──job──▶ thread ── libvirt's client ──▶ relay ──▶ libvirt-sock in the pod
//!      ▲ result ◀──────────┘            │                ├ hangs up when a call is overdue
//!  DomainEvents ◀── bounded queue ◀── event loop         └ checks sizes and rates of what comes back
//! ```
//!
//! A connection is opened once and ends once. After its end, [`DomainEvents::recv`] returns `None` and every call fails
//! with [`CallError::Lost`]. A caller that still needs the guest connects again and reads its state again.

mod c_values;
mod call_error;
mod connection;
mod cpu_comparison;
mod deadline;
mod domain_migration;
mod event;
mod event_loop;
mod frames;
mod guest_info;
mod job;
mod lifecycle;
mod listener;
mod live_xml;
mod named_enum;
mod relay;
mod state;
mod thread;

use std::{fmt, sync::Arc, time::Duration};

use drydock_api::facts::VirtType;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

pub use call_error::CallError;
pub(crate) use connection::DomainCalls;
pub use cpu_comparison::CpuComparison;
pub use domain_migration::{CopiedContent, DiskCopy, Migration};
pub(crate) use event::EventSource;
pub use event::{AgentChannel, CloseReason, DomainEvent, DomainEvents, IoErrorAction};
pub use guest_info::{GuestInfo, GuestInterface, GuestOs, Parameter, ParameterValue};
pub(crate) use job::WhichJob;
pub use job::{JobAmount, JobInfo, JobOperation, JobType};
pub use lifecycle::{
    CrashedDetail, DefinedDetail, LifecycleEvent, PmSuspendedDetail, ResumedDetail, ShutdownDetail, StartedDetail,
    StoppedDetail, SuspendedDetail, UndefinedDetail,
};
pub use live_xml::{AddressBits, LiveCpu, LiveDomain};
pub use state::{CrashedReason, DomainState, PausedReason, RunningReason, ShutOffReason};

use crate::{
    libvirt::{LibvirtError, Version},
    pod_folder::PodFolder,
};
use deadline::MARGIN;
use thread::QueuedCall;

/// Maximum number of jobs queued for the thread. A guest's task makes one call at a time.
const WAITING: usize = 16;

/// First delay before a socket that exists but is not listening is tried again. The delay doubles with each attempt.
const RETRY: Duration = Duration::from_millis(20);

/// Maximum retry delay.
const RETRY_AT_MOST: Duration = Duration::from_secs(5);

/// Time limits of calls to libvirt, by kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDeadlines {
    /// Time limit for opening the connection.
    pub open: Duration,
    /// Time limit of a call that only reads.
    pub read: Duration,
    /// Time limit of a call that starts, stops or changes the guest. libvirt itself gives QEMU 40 s to exit.
    pub change: Duration,
    /// Time limit of a call to the guest agent, which may not respond at all.
    pub agent: Duration,
}

impl Default for CallDeadlines {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(15),
            read: Duration::from_secs(10),
            change: Duration::from_secs(60),
            agent: Duration::from_secs(30),
        }
    }
}

/// The state in which a guest starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// The guest runs at once.
    Running,
    /// The guest is fully created, but paused until it is resumed.
    Paused,
}

/// Method of requesting a shutdown or restart of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownBy {
    /// The ACPI power button. libvirt does not know whether the guest reacts to it.
    PowerButton,
    /// The guest agent.
    Agent,
}

/// Versions of the programs that run in the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodVersions {
    /// Version of libvirtd.
    pub libvirt: Version,
    /// Version of QEMU for the native architecture.
    pub qemu: Version,
}

/// Sizes of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Size that the guest sees.
    pub capacity: u64,
    /// Space that the host has allocated so far.
    pub allocation: u64,
    /// End of the file or device.
    pub physical: u64,
}

/// A picture of a guest's display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screenshot {
    /// Media type of the picture, which depends on QEMU: `image/png`, or `image/x-portable-pixmap`.
    pub media_type: String,
    /// The picture.
    pub bytes: Vec<u8>,
}

/// One domain over one connection. Clones share the connection, which is closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct DomainHandle {
    domain: Arc<str>,
    deadlines: CallDeadlines,
    jobs: mpsc::Sender<QueuedCall>,
    shared: Arc<EventSource>,
    origin: Origin,
}

/// Creates the calls of a connection. It runs on the thread that will execute the calls.
type OpenCalls = dyn Fn(&Arc<EventSource>) -> Result<Box<dyn DomainCalls>, LibvirtError> + Send + Sync;

/// Method of opening another connection to the same libvirt.
#[derive(Clone)]
enum Origin {
    /// The libvirt is reached through a socket in a pod's folder.
    Pod { folder: PodFolder, socket: Arc<str> },
    /// The libvirt is in this process.
    Here(Arc<OpenCalls>),
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { folder, socket } => f
                .debug_struct("Pod")
                .field("folder", folder)
                .field("socket", socket)
                .finish(),
            Self::Here(_) => f.write_str("Here"),
        }
    }
}

/// Closes a connection without other owners on drop, unless its call has returned. Closing aborts a call in progress.
struct HangUp {
    connection: DomainHandle,
    has_ended: bool,
}

impl Drop for HangUp {
    fn drop(&mut self) {
        if !self.has_ended {
            self.connection.close();
        }
    }
}

impl DomainHandle {
    /// Connects to the libvirt behind `socket`, a path in the pod's folder. Makes a single attempt.
    ///
    /// The domain with this name does not have to exist yet.
    ///
    /// # Errors
    /// If the socket does not exist or is not in the folder, if no process is listening, or if libvirt refuses or does
    /// not respond in time.
    pub async fn connect(
        folder: &PodFolder,
        socket: &str,
        domain: &str,
        deadlines: CallDeadlines,
    ) -> Result<(Self, DomainEvents), CallError> {
        let pod = folder.open_socket(socket)?;
        let (line, name) = relay::RelayedLine::open(&pod).await?;
        let uri = relay::uri(&name);
        let for_thread = domain.to_owned();
        let origin = Origin::Pod {
            folder: folder.clone(),
            socket: socket.into(),
        };
        Self::begin(domain, deadlines, origin, Some(line), move |shared| {
            let connection = connection::LibvirtConnection::open(&uri, &for_thread, shared)?;
            Ok(Box::new(connection))
        })
        .await
    }

    /// Connects like [`Self::connect`], but waits while the socket does not exist or no process is listening.
    ///
    /// The wait ends when the launcher's libvirtd has started or restarted. There is no time limit: drop the future to
    /// stop waiting.
    ///
    /// # Errors
    /// If the socket cannot be used, or libvirt refuses or does not respond in time.
    pub async fn connect_when_open(
        folder: &PodFolder,
        socket: &str,
        domain: &str,
        deadlines: CallDeadlines,
    ) -> Result<(Self, DomainEvents), CallError> {
        let mut pause = RETRY;
        loop {
            // The watch is set up before the attempt, so that no change between the two is missed.
            let way = folder.walk(socket)?;
            match Self::connect(folder, socket, domain, deadlines).await {
                Err(error) if error.is_not_listening() => {}
                // The old libvirtd has accepted the connection while it was exiting.
                Err(CallError::Lost {
                    reason: CloseReason::EndOfFile,
                    ..
                }) => {}
                connected => return connected,
            }
            if way.is_complete {
                // The kernel does not report when an existing socket starts to listen. The sleep also limits the retry
                // rate if a pod creates and removes sockets continuously.
                sleep(pause / 4).await;
                let _ = timeout(pause, way.changed()).await;
                pause = (pause * 2).min(RETRY_AT_MOST);
            } else {
                way.changed().await;
            }
        }
    }

    /// Opens a connection whose calls are created by `open`, on its own thread.
    pub(crate) async fn start(
        domain: &str,
        deadlines: CallDeadlines,
        open: impl Fn(&Arc<EventSource>) -> Result<Box<dyn DomainCalls>, LibvirtError> + Send + Sync + 'static,
    ) -> Result<(Self, DomainEvents), CallError> {
        Self::start_here(domain, deadlines, Arc::new(open)).await
    }

    async fn start_here(
        domain: &str,
        deadlines: CallDeadlines,
        open: Arc<OpenCalls>,
    ) -> Result<(Self, DomainEvents), CallError> {
        let origin = Origin::Here(Arc::clone(&open));
        Self::begin(domain, deadlines, origin, None, move |shared| open(shared)).await
    }

    /// Opens another connection to the same libvirt, for the same domain.
    async fn another(&self) -> Result<(Self, DomainEvents), CallError> {
        match &self.origin {
            Origin::Pod { folder, socket } => Self::connect(folder, socket, &self.domain, self.deadlines).await,
            Origin::Here(open) => Self::start_here(&self.domain, self.deadlines, Arc::clone(open)).await,
        }
    }

    /// Opens another connection for a single call. The connection is closed with the call.
    async fn own_connection(&self) -> Result<HangUp, CallError> {
        let (connection, _) = self.another().await?;
        Ok(HangUp {
            connection,
            has_ended: false,
        })
    }

    async fn begin(
        domain: &str,
        deadlines: CallDeadlines,
        origin: Origin,
        line: Option<relay::RelayedLine>,
        open: impl FnOnce(&Arc<EventSource>) -> Result<Box<dyn DomainCalls>, LibvirtError> + Send + 'static,
    ) -> Result<(Self, DomainEvents), CallError> {
        const CALL: &str = "connecting to libvirt";
        let (shared, events) = EventSource::new();
        let (jobs, receiver) = mpsc::channel(WAITING);
        let (opened, result) = oneshot::channel();
        thread::start(domain, line, receiver, &shared, deadlines.open, open, opened)
            .map_err(|error| CallError::not_started(&error))?;
        let result = timeout(deadlines.open + MARGIN, result).await;
        let handle = Self {
            domain: domain.into(),
            deadlines,
            jobs,
            shared,
            origin,
        };
        handle.settled(CALL, deadlines.open, result)?;
        Ok((handle, events))
    }

    /// Returns the name of the domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Waits until the connection has ended and its thread has exited.
    pub async fn ended(&self) {
        self.jobs.closed().await;
    }

    /// Closes the connection, even if clones of this handle still exist.
    pub fn close(&self) {
        self.shared.finish(CloseReason::Client);
    }

    /// Defines the domain or changes its definition. libvirt validates the document against its schema.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::Refused`] describes the error in the document.
    pub async fn define(&self, xml: &str) -> Result<(), CallError> {
        let xml = xml.to_owned();
        self.call("defining the domain", self.deadlines.change, move |calls| {
            calls.define(&xml)
        })
        .await
    }

    /// Starts the guest of the defined domain.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn create(&self, start: InitialState) -> Result<(), CallError> {
        self.call("starting the guest", self.deadlines.change, move |calls| {
            calls.create(start)
        })
        .await
    }

    /// Returns the state of the domain.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::NoDomain`] if libvirt reports that the domain does not exist.
    pub async fn state(&self) -> Result<DomainState, CallError> {
        self.call("reading the domain's state", self.deadlines.read, |calls| calls.state())
            .await
    }

    /// Returns the XML of the running guest as libvirt expanded it: the CPU with every feature, aliases, addresses.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn live_xml(&self) -> Result<String, CallError> {
        self.call("reading the domain's live XML", self.deadlines.read, |calls| {
            calls.live_xml()
        })
        .await
    }

    /// Kills the guest at once.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn destroy(&self) -> Result<(), CallError> {
        self.call("destroying the guest", self.deadlines.change, |calls| calls.destroy())
            .await
    }

    /// Requests a shutdown of the guest. An event follows once it has shut down.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn shutdown(&self, by: ShutdownBy) -> Result<(), CallError> {
        let within = match by {
            ShutdownBy::PowerButton => self.deadlines.change,
            ShutdownBy::Agent => self.deadlines.agent,
        };
        self.call("requesting the guest's shutdown", within, move |calls| {
            calls.shutdown(by)
        })
        .await
    }

    /// Requests that the guest's operating system restarts, without a new QEMU.
    ///
    /// If the power button is used and the guest does not react to it, nothing happens.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::AgentUnresponsive`] if the agent is used and does not respond.
    pub async fn reboot(&self, by: ShutdownBy) -> Result<(), CallError> {
        let within = match by {
            ShutdownBy::PowerButton => self.deadlines.change,
            ShutdownBy::Agent => self.deadlines.agent,
        };
        self.call("requesting a reboot of the guest", within, move |calls| {
            calls.reboot(by)
        })
        .await
    }

    /// Restarts the guest's virtual machine at once, without a new QEMU.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn reset(&self) -> Result<(), CallError> {
        self.call("resetting the guest", self.deadlines.change, |calls| calls.reset())
            .await
    }

    /// Pauses the guest.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn suspend(&self) -> Result<(), CallError> {
        self.call("pausing the guest", self.deadlines.change, |calls| calls.suspend())
            .await
    }

    /// Resumes the guest.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn resume(&self) -> Result<(), CallError> {
        self.call("resuming the guest", self.deadlines.change, |calls| calls.resume())
            .await
    }

    /// Removes the definition of the domain and all data that libvirt stores with it.
    ///
    /// A running guest continues, and the domain disappears when the guest stops.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn undefine(&self) -> Result<(), CallError> {
        self.call("undefining the domain", self.deadlines.change, |calls| calls.undefine())
            .await
    }

    /// Returns the names of all domains of this libvirt, defined or running.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn names(&self) -> Result<Vec<String>, CallError> {
        self.call("listing the domains", self.deadlines.read, |calls| calls.names())
            .await
    }

    /// Returns the guest agent's information about the guest, as far as the agent provides it.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::AgentUnresponsive`] if the guest has no agent or the agent does not respond.
    pub async fn guest_info(&self) -> Result<GuestInfo, CallError> {
        let parameters = self
            .call("calling the guest agent", self.deadlines.agent, |calls| {
                calls.guest_info()
            })
            .await?;
        Ok(GuestInfo::from_parameters(&parameters))
    }

    /// Sends commands to the guest agent, one after the other. Returns the reply to each command.
    ///
    /// The commands use their own connection, so that an agent that does not respond delays no other call. If the agent
    /// does not respond to a command at all, the following commands are not sent.
    ///
    /// # Errors
    /// Any [`CallError`] if the connection cannot be opened or breaks; [`CallError::AgentUnresponsive`] if the guest
    /// has no agent or the agent does not respond to the first command.
    pub async fn agent_commands(&self, commands: &[String]) -> Result<Vec<Result<String, CallError>>, CallError> {
        let own = self.own_connection().await?;
        let mut replies = Vec::new();
        for command in commands {
            match own.connection.agent_command(command).await {
                Err(error @ CallError::AgentUnresponsive(_)) if replies.is_empty() => return Err(error),
                Err(error @ CallError::AgentUnresponsive(_)) => {
                    replies.push(Err(error));
                    break;
                }
                Err(error) if !error.is_reply() => return Err(error),
                reply => replies.push(reply),
            }
        }
        Ok(replies)
    }

    /// Sends a command to the guest agent as JSON, and returns its reply.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::AgentUnresponsive`] if the guest has no agent or the agent does not respond.
    pub async fn agent_command(&self, command: &str) -> Result<String, CallError> {
        let command = command.to_owned();
        self.call(
            "sending a command to the guest agent",
            self.deadlines.agent,
            move |calls| calls.agent_command(&command),
        )
        .await
    }

    /// Requests the guest agent to freeze the guest's file systems.
    ///
    /// # Errors
    /// Any [`CallError`]. The file systems may be frozen despite the error.
    pub async fn freeze(&self) -> Result<(), CallError> {
        self.call("freezing the guest's file systems", self.deadlines.agent, |calls| {
            calls.freeze()
        })
        .await
    }

    /// Requests the guest agent to thaw the guest's file systems.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn thaw(&self) -> Result<(), CallError> {
        self.call("thawing the guest's file systems", self.deadlines.agent, |calls| {
            calls.thaw()
        })
        .await
    }

    /// Returns a picture of the guest's first display. The call uses its own connection.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn screenshot(&self) -> Result<Screenshot, CallError> {
        let own = self.own_connection().await?;
        let call = "taking a screenshot of the guest's display";
        own.connection
            .call(call, own.connection.deadlines.read, |calls| calls.screenshot())
            .await
    }

    /// Returns the sizes of a disk, identified by its target (`vda`) or the path of its source.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn block_info(&self, disk: &str) -> Result<BlockInfo, CallError> {
        let disk = disk.to_owned();
        self.call("reading a disk's sizes", self.deadlines.read, move |calls| {
            calls.block_info(&disk)
        })
        .await
    }

    /// Returns the versions of libvirt and QEMU.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn versions(&self) -> Result<PodVersions, CallError> {
        self.call(
            "reading the versions of libvirt and QEMU",
            self.deadlines.read,
            |calls| calls.versions(),
        )
        .await
    }

    /// Migrates the guest to another libvirt, and returns when the migration has ended, successfully or not.
    ///
    /// The module of [`Migration`] documents the meaning of each result. The call may take hours. It uses its own
    /// connection, so other calls are possible in the meantime. The call has no time limit, but ends if libvirtd does
    /// not respond to keep-alives for two minutes.
    ///
    /// Dropping the future closes that connection. A migration that has started continues. See [`Self::abort_job`].
    ///
    /// # Errors
    /// If [`CallError::is_reply`] is true, libvirt has not started the migration or has aborted it, and the error
    /// contains the reason. For all other errors, the state of the migration is unknown, and it may still be running.
    pub async fn migrate(&self, migration: Migration) -> Result<(), CallError> {
        const CALL: &str = "migrating the guest";
        let mut own = self.own_connection().await?;
        let calling = own
            .connection
            .call_without_limit(CALL, move |calls| calls.migrate(&migration));
        let ended = calling.await;
        own.has_ended = true;
        ended?.map_err(CallError::from_refusal)
    }

    /// Aborts the job that libvirt runs on the domain.
    ///
    /// An outgoing migration is cancelled, and the guest continues on this host. Afterwards, [`Self::migrate`] fails
    /// and [`Self::job`] returns `None`. libvirt emits an event only if the guest was already paused.
    ///
    /// # Errors
    /// Any [`CallError`]. libvirt refuses the call if there is no job, for an incoming migration, and in post-copy.
    pub async fn abort_job(&self) -> Result<(), CallError> {
        self.call("aborting the domain's job", self.deadlines.change, |calls| {
            calls.abort_job()
        })
        .await
    }

    /// Returns the job that libvirt runs on the domain, if there is one.
    ///
    /// For an incoming migration, libvirt reports only that the job exists.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::NoDomain`] if libvirt reports that the domain does not exist.
    pub async fn job(&self) -> Result<Option<JobInfo>, CallError> {
        self.call("reading the domain's job", self.deadlines.read, |calls| {
            calls.job(WhichJob::Current)
        })
        .await
    }

    /// Returns the last job of the domain that completed successfully.
    ///
    /// libvirtd keeps it until the next job begins or until libvirtd exits. After post-copy, the target's libvirtd has
    /// no completed job.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn completed_job(&self) -> Result<Option<JobInfo>, CallError> {
        self.call("reading the domain's completed job", self.deadlines.read, |calls| {
            calls.job(WhichJob::Completed)
        })
        .await
    }

    /// Returns QEMU's current maximum downtime of a migration, in milliseconds.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn max_downtime(&self) -> Result<u64, CallError> {
        self.call(
            "reading the limit of a migration's downtime",
            self.deadlines.read,
            |calls| calls.max_downtime(),
        )
        .await
    }

    /// Sets the maximum downtime of a migration in milliseconds. The call is possible before and during a migration.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn set_max_downtime(&self, milliseconds: u64) -> Result<(), CallError> {
        self.call("limiting a migration's downtime", self.deadlines.change, move |calls| {
            calls.set_max_downtime(milliseconds)
        })
        .await
    }

    /// Sets the maximum bandwidth of a migration in MiB/s; 0 means no limit. The call is possible before and during a
    /// migration.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn set_bandwidth(&self, mebibytes: u64) -> Result<(), CallError> {
        self.call(
            "limiting a migration's bandwidth",
            self.deadlines.change,
            move |calls| calls.set_bandwidth(mebibytes),
        )
        .await
    }

    /// Switches the guest to its target before all of its memory has arrived. The switch cannot be undone.
    ///
    /// # Errors
    /// Any [`CallError`]. libvirt refuses the call if no migration that allows post-copy is running.
    pub async fn start_post_copy(&self) -> Result<(), CallError> {
        self.call("switching to post-copy", self.deadlines.change, |calls| {
            calls.start_post_copy()
        })
        .await
    }

    /// Compares a CPU, given as a complete `<cpu>` element, with the CPU that a guest can have on this host.
    ///
    /// # Errors
    /// Any [`CallError`]; [`CallError::Refused`] if libvirt does not know the model, a feature or the
    /// emulator.
    pub async fn compare_cpu(&self, cpu: &str, virt_type: VirtType) -> Result<CpuComparison, CallError> {
        let cpu = cpu.to_owned();
        self.call("comparing a guest's CPU", self.deadlines.read, move |calls| {
            calls.compare_cpu(&cpu, virt_type)
        })
        .await
    }

    /// Runs a call on the thread. The deadline starts when the thread begins the call.
    ///
    /// The relay enforces the deadline even if the caller no longer waits for the result. The additional time limit of
    /// this function covers a client that does not notice that the relay has closed the connection.
    async fn call<T: Send + 'static>(
        &self,
        call: &'static str,
        within: Duration,
        make: impl FnOnce(&dyn DomainCalls) -> Result<T, LibvirtError> + Send + 'static,
    ) -> Result<T, CallError> {
        let response = self.begun(call, Some(within), make).await?;
        self.settled(call, within, timeout(within + MARGIN, response).await)
    }

    /// Runs a call like [`Self::call`], but without a time limit.
    async fn call_without_limit<T: Send + 'static>(
        &self,
        call: &'static str,
        make: impl FnOnce(&dyn DomainCalls) -> Result<T, LibvirtError> + Send + 'static,
    ) -> Result<T, CallError> {
        let response = self.begun(call, None, make).await?;
        self.settled(call, Duration::MAX, Ok(response.await))
    }

    /// Waits until the thread begins the call. Returns the receiver for its result.
    async fn begun<T: Send + 'static>(
        &self,
        call: &'static str,
        within: Option<Duration>,
        make: impl FnOnce(&dyn DomainCalls) -> Result<T, LibvirtError> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, LibvirtError>>, CallError> {
        let (begun, begins) = oneshot::channel();
        let (sender, response) = oneshot::channel();
        let job = QueuedCall::new(call, within, begun, sender, make);
        if self.jobs.send(job).await.is_err() || begins.await.is_err() {
            return Err(self.lost(call, None));
        }
        Ok(response)
    }

    /// Converts the result of a call, or its absence, to the value or a [`CallError`].
    fn settled<T>(
        &self,
        call: &'static str,
        within: Duration,
        result: Result<Result<Result<T, LibvirtError>, oneshot::error::RecvError>, tokio::time::error::Elapsed>,
    ) -> Result<T, CallError> {
        match result {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) if self.shared.end() == Some(CloseReason::Overdue { call }) => {
                Err(CallError::timed_out(call, within, Some(&error)))
            }
            Ok(Ok(Err(error))) if error.is_broken_connection() => Err(self.lost(call, Some(error))),
            Ok(Ok(Err(error))) => Err(CallError::from_refusal(error)),
            Ok(Err(_)) => Err(self.lost(call, None)),
            Err(_) => {
                self.shared.finish(CloseReason::Overdue { call });
                Err(CallError::timed_out(call, within, None))
            }
        }
    }

    fn lost(&self, call: &'static str, error: Option<LibvirtError>) -> CallError {
        CallError::Lost {
            call,
            reason: self.shared.end().unwrap_or(CloseReason::Error),
            error,
        }
    }
}

#[cfg(test)]
mod tests;
