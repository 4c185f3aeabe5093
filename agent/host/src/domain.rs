//! One guest's libvirt, for its agent: calls that end in time, and events that cost nothing to keep.
//!
//! The libvirt that is asked runs in the guest's pod and may hang, lie or be replaced by something
//! else. So each connection has a thread of its own, and goes through a relay that this process owns:
//! when a call is overdue, the relay hangs up, libvirt's client gives up, and the thread comes free.
//!
//! ```text
//!  DomainHandle ──job──▶ thread ── libvirt's client ──▶ relay ──▶ libvirt-sock in the pod
//!      ▲ answer ◀──────────┘            │                ├ hangs up when a call is overdue
//!  DomainEvents ◀── bounded queue ◀── event loop         └ checks sizes and rates of what comes back
//! ```
//!
//! A connection is made once and ends once. [`DomainEvents::recv`] then returns `None`, and every
//! call fails with [`CallError::Lost`]; whoever still needs the guest connects again and looks anew.

mod call_error;
mod connection;
mod cpu_comparison;
mod deadline;
mod event;
mod event_loop;
mod frames;
mod guest_info;
mod job;
mod lifecycle;
mod listener;
mod live_xml;
mod migration;
mod relay;
mod state;
mod thread;
mod words;

use std::{fmt, sync::Arc, time::Duration};

use drydock_api::facts::VirtType;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

pub use call_error::CallError;
pub(crate) use connection::Calls;
pub use cpu_comparison::CpuComparison;
pub(crate) use event::Shared;
pub use event::{AgentChannel, CloseReason, DomainEvent, DomainEvents, IoErrorAction};
pub use guest_info::{GuestInfo, GuestInterface, GuestOs, Parameter, ParameterValue};
pub(crate) use job::WhichJob;
pub use job::{Amount, JobInfo, JobOperation, JobType};
pub use lifecycle::{
    CrashedDetail, DefinedDetail, Lifecycle, PmSuspendedDetail, ResumedDetail, ShutdownDetail, StartedDetail,
    StoppedDetail, SuspendedDetail, UndefinedDetail,
};
pub use live_xml::{AddressBits, GuestCpu, LiveDomain};
pub use migration::{CopiedContent, DiskCopy, Migration};
pub use state::{CrashedReason, PausedReason, RunningReason, ShutOffReason, State};

use crate::{
    libvirt::{LibvirtError, Version},
    pod_folder::PodFolder,
};
use deadline::MARGIN;
use thread::Job;

/// Jobs that wait for the thread. A guest's task asks one thing at a time.
const WAITING: usize = 16;

/// First pause before a socket that is there, but does not listen, is tried again. It doubles.
const RETRY: Duration = Duration::from_millis(20);

/// Longest such pause.
const RETRY_AT_MOST: Duration = Duration::from_secs(5);

/// How long libvirt may take to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// To open the connection.
    pub open: Duration,
    /// A question.
    pub question: Duration,
    /// Something that starts, ends or changes the guest. libvirt itself gives QEMU 40 s to die.
    pub change: Duration,
    /// A question to the guest's agent, which answers if it likes to.
    pub agent: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(15),
            question: Duration::from_secs(10),
            change: Duration::from_secs(60),
            agent: Duration::from_secs(30),
        }
    }
}

/// How a guest begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It runs at once.
    Running,
    /// It is complete and stands still until it is resumed.
    Paused,
}

/// How a guest is asked to shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownBy {
    /// By its power button. libvirt cannot tell whether the guest heeds it.
    PowerButton,
    /// By its agent.
    Agent,
}

/// What runs in the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The libvirtd's.
    pub libvirt: Version,
    /// QEMU's, for the native architecture.
    pub qemu: Version,
}

/// Sizes of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// What the guest sees.
    pub capacity: u64,
    /// What the host has given so far.
    pub allocation: u64,
    /// Where the file or device ends.
    pub physical: u64,
}

/// One domain, over one connection. Copies share the connection; it ends with the last of them.
#[derive(Clone, Debug)]
pub struct DomainHandle {
    domain: Arc<str>,
    deadlines: Deadlines,
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    origin: Origin,
}

/// Makes the calls of a connection, on the thread that is to make them.
type Open = dyn Fn(&Arc<Shared>) -> Result<Box<dyn Calls>, LibvirtError> + Send + Sync;

/// How another connection to the same libvirt is made.
#[derive(Clone)]
enum Origin {
    /// Through a socket in a pod's folder.
    Pod { folder: PodFolder, socket: Arc<str> },
    /// In this process.
    Here(Arc<Open>),
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

/// Ends a connection that nobody else has, in the middle of its call if that has not ended.
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
    /// Connects to the libvirt behind `socket`, a path in the pod's folder, for the domain of that
    /// name, which need not exist yet. It is tried once.
    ///
    /// # Errors
    /// If there is no socket or it is not in the folder, if nobody listens, or if libvirt does not
    /// answer in time or refuses.
    pub async fn connect(
        folder: &PodFolder,
        socket: &str,
        domain: &str,
        deadlines: Deadlines,
    ) -> Result<(Self, DomainEvents), CallError> {
        let pod = folder.open_socket(socket)?;
        let (line, name) = relay::Line::open(&pod).await?;
        let uri = relay::uri(&name);
        let for_thread = domain.to_owned();
        let origin = Origin::Pod {
            folder: folder.clone(),
            socket: socket.into(),
        };
        Self::begin(domain, deadlines, origin, Some(line), move |shared| {
            let connection = connection::Connection::open(&uri, &for_thread, shared)?;
            Ok(Box::new(connection))
        })
        .await
    }

    /// The same, and waits as long as there is no socket or nobody listens: until the launcher's
    /// libvirtd has been started, or started again. It has no limit in time; drop it to give up.
    ///
    /// # Errors
    /// If what is there cannot be used, or libvirt does not answer in time or refuses.
    pub async fn connect_when_open(
        folder: &PodFolder,
        socket: &str,
        domain: &str,
        deadlines: Deadlines,
    ) -> Result<(Self, DomainEvents), CallError> {
        let mut pause = RETRY;
        loop {
            // The watch comes before the attempt, so that nothing is missed between the two.
            let way = folder.walk(socket)?;
            match Self::connect(folder, socket, domain, deadlines).await {
                Err(error) if error.is_not_listening() => {}
                // The old libvirtd, in its last moments.
                Err(CallError::Lost {
                    reason: CloseReason::EndOfFile,
                    ..
                }) => {}
                connected => return connected,
            }
            if way.is_complete {
                // The kernel does not tell when a socket that is there begins to listen. And a pod that
                // makes and removes sockets all the time is not followed at its own speed.
                sleep(pause / 4).await;
                let _ = timeout(pause, way.changed()).await;
                pause = (pause * 2).min(RETRY_AT_MOST);
            } else {
                way.changed().await;
            }
        }
    }

    /// A domain whose libvirt is whatever `open` makes, on a thread of its own.
    pub(crate) async fn start(
        domain: &str,
        deadlines: Deadlines,
        open: impl Fn(&Arc<Shared>) -> Result<Box<dyn Calls>, LibvirtError> + Send + Sync + 'static,
    ) -> Result<(Self, DomainEvents), CallError> {
        Self::start_here(domain, deadlines, Arc::new(open)).await
    }

    async fn start_here(
        domain: &str,
        deadlines: Deadlines,
        open: Arc<Open>,
    ) -> Result<(Self, DomainEvents), CallError> {
        let origin = Origin::Here(Arc::clone(&open));
        Self::begin(domain, deadlines, origin, None, move |shared| open(shared)).await
    }

    /// Another connection to the same libvirt, for the same domain.
    async fn another(&self) -> Result<(Self, DomainEvents), CallError> {
        match &self.origin {
            Origin::Pod { folder, socket } => Self::connect(folder, socket, &self.domain, self.deadlines).await,
            Origin::Here(open) => Self::start_here(&self.domain, self.deadlines, Arc::clone(open)).await,
        }
    }

    async fn begin(
        domain: &str,
        deadlines: Deadlines,
        origin: Origin,
        line: Option<relay::Line>,
        open: impl FnOnce(&Arc<Shared>) -> Result<Box<dyn Calls>, LibvirtError> + Send + 'static,
    ) -> Result<(Self, DomainEvents), CallError> {
        const CALL: &str = "connecting to libvirt";
        let (shared, events) = Shared::new();
        let (jobs, receiver) = mpsc::channel(WAITING);
        let (opened, answer) = oneshot::channel();
        thread::start(domain, line, receiver, &shared, deadlines.open, open, opened)
            .map_err(|error| CallError::not_started(&error))?;
        let answer = timeout(deadlines.open + MARGIN, answer).await;
        let handle = Self {
            domain: domain.into(),
            deadlines,
            jobs,
            shared,
            origin,
        };
        handle.settled(CALL, deadlines.open, answer)?;
        Ok((handle, events))
    }

    /// Name of the domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Ends when the connection has ended and its thread is gone.
    pub async fn ended(&self) {
        self.jobs.closed().await;
    }

    /// Ends the connection, whoever else has a copy of this.
    pub fn close(&self) {
        self.shared.finish(CloseReason::Client);
    }

    /// Defines the domain, or changes its definition. The document is checked against libvirt's schema.
    ///
    /// # Errors
    /// As for all calls; [`CallError::Refused`] says what is wrong with the document.
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
    /// As for all calls.
    pub async fn create(&self, start: Start) -> Result<(), CallError> {
        self.call("starting the guest", self.deadlines.change, move |calls| {
            calls.create(start)
        })
        .await
    }

    /// State of the domain.
    ///
    /// # Errors
    /// As for all calls; [`CallError::NoDomain`] if libvirt knows for certain of no such domain.
    pub async fn state(&self) -> Result<State, CallError> {
        self.call("asking for the domain's state", self.deadlines.question, |calls| {
            calls.state()
        })
        .await
    }

    /// The running guest as libvirt has made it: the CPU with every feature, aliases, addresses.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn live_xml(&self) -> Result<String, CallError> {
        self.call("asking for the domain's live XML", self.deadlines.question, |calls| {
            calls.xml(Document::Live)
        })
        .await
    }

    /// The domain as it would be started the next time.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn inactive_xml(&self) -> Result<String, CallError> {
        self.call("asking for the domain's definition", self.deadlines.question, |calls| {
            calls.xml(Document::Inactive)
        })
        .await
    }

    /// Ends the guest at once.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn destroy(&self) -> Result<(), CallError> {
        self.call("ending the guest", self.deadlines.change, |calls| calls.destroy())
            .await
    }

    /// Asks the guest to shut down. When it has, there is an event.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn shutdown(&self, by: ShutdownBy) -> Result<(), CallError> {
        let within = match by {
            ShutdownBy::PowerButton => self.deadlines.change,
            ShutdownBy::Agent => self.deadlines.agent,
        };
        self.call("asking the guest to shut down", within, move |calls| calls.shutdown(by))
            .await
    }

    /// Makes the guest stand still.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn suspend(&self) -> Result<(), CallError> {
        self.call("pausing the guest", self.deadlines.change, |calls| calls.suspend())
            .await
    }

    /// Lets the guest go on.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn resume(&self) -> Result<(), CallError> {
        self.call("resuming the guest", self.deadlines.change, |calls| calls.resume())
            .await
    }

    /// Removes the definition, and all that libvirt keeps beside it. A guest that runs goes on, and
    /// the domain is gone when it ends.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn undefine(&self) -> Result<(), CallError> {
        self.call("undefining the domain", self.deadlines.change, |calls| calls.undefine())
            .await
    }

    /// Names of all domains of this libvirt, defined or running.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn names(&self) -> Result<Vec<String>, CallError> {
        self.call("asking for the domains", self.deadlines.question, |calls| calls.names())
            .await
    }

    /// What the guest's agent says of the guest, as far as it knows.
    ///
    /// # Errors
    /// As for all calls; [`CallError::AgentSilent`] if there is no agent or it does not answer.
    pub async fn guest_info(&self) -> Result<GuestInfo, CallError> {
        let parameters = self
            .call("asking the guest's agent", self.deadlines.agent, |calls| {
                calls.guest_info()
            })
            .await?;
        Ok(GuestInfo::from_parameters(&parameters))
    }

    /// Sizes of a disk, by its target (`vda`) or the path of its source.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn block_info(&self, disk: &str) -> Result<BlockInfo, CallError> {
        let disk = disk.to_owned();
        self.call("asking for a disk's sizes", self.deadlines.question, move |calls| {
            calls.block_info(&disk)
        })
        .await
    }

    /// Versions of libvirt and QEMU.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn versions(&self) -> Result<Versions, CallError> {
        self.call("asking for versions", self.deadlines.question, |calls| calls.versions())
            .await
    }

    /// Sends the guest to another libvirt, and ends when that has ended, well or badly: after hours, if
    /// it takes hours. [`Migration`]'s module says which end means what. It has a connection of its own, so
    /// that everything else can be asked meanwhile, and no limit in time; a libvirtd that answers no
    /// keep-alives for two minutes ends it.
    ///
    /// Dropping it hangs up; a migration that has begun goes on. See [`Self::abort_job`].
    ///
    /// # Errors
    /// [`CallError::is_answer`]: libvirt has not begun or has given up, and says why. All others: nothing is
    /// known of the migration, and it may go on.
    pub async fn migrate(&self, migration: Migration) -> Result<(), CallError> {
        const CALL: &str = "migrating the guest";
        let (own, _) = self.another().await?;
        let mut own = HangUp {
            connection: own,
            has_ended: false,
        };
        let calling = own
            .connection
            .call_without_limit(CALL, move |calls| calls.migrate(&migration));
        let ended = calling.await;
        own.has_ended = true;
        ended?.map_err(CallError::from_refusal)
    }

    /// Ends the job that libvirt does to the domain: a migration from here is given up, and the guest goes
    /// on here. When that has been done [`Self::migrate`] fails and there is no [`Self::job`] any more; there
    /// is an event only if the guest stood still already.
    ///
    /// # Errors
    /// As for all calls; it is refused if there is no job, if it is an incoming migration, or in post-copy.
    pub async fn abort_job(&self) -> Result<(), CallError> {
        self.call("ending the domain's job", self.deadlines.change, |calls| {
            calls.abort_job()
        })
        .await
    }

    /// The job that libvirt does to the domain, if there is one. Of an incoming migration nothing is known but
    /// that there is one.
    ///
    /// # Errors
    /// As for all calls; [`CallError::NoDomain`] if libvirt knows for certain of no such domain.
    pub async fn job(&self) -> Result<Option<JobInfo>, CallError> {
        self.call("asking for the domain's job", self.deadlines.question, |calls| {
            calls.job(WhichJob::Current)
        })
        .await
    }

    /// The last job of the domain that has ended well; libvirtd knows it until the next one begins, or until its
    /// own end. After post-copy the target's knows none.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn completed_job(&self) -> Result<Option<JobInfo>, CallError> {
        self.call(
            "asking for the domain's completed job",
            self.deadlines.question,
            |calls| calls.job(WhichJob::Completed),
        )
        .await
    }

    /// How many milliseconds the guest may stand still when it moves. Before and during a migration.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn set_max_downtime(&self, milliseconds: u64) -> Result<(), CallError> {
        self.call("limiting a migration's downtime", self.deadlines.change, move |calls| {
            calls.set_max_downtime(milliseconds)
        })
        .await
    }

    /// How many MiB/s a migration may send; 0 for no limit. Before and during a migration.
    ///
    /// # Errors
    /// As for all calls.
    pub async fn set_bandwidth(&self, mebibytes: u64) -> Result<(), CallError> {
        self.call(
            "limiting a migration's bandwidth",
            self.deadlines.change,
            move |calls| calls.set_bandwidth(mebibytes),
        )
        .await
    }

    /// Switches the guest to its target before all of it is there. There is no way back.
    ///
    /// # Errors
    /// As for all calls; it is refused if there is no migration that allows it.
    pub async fn start_post_copy(&self) -> Result<(), CallError> {
        self.call("switching to post-copy", self.deadlines.change, |calls| {
            calls.start_post_copy()
        })
        .await
    }

    /// Whether a guest could have this CPU here: a `<cpu>` element in full.
    ///
    /// # Errors
    /// As for all calls; [`CallError::Refused`] if libvirt does not know the model, a feature or the
    /// emulator.
    pub async fn compare_cpu(&self, cpu: &str, virt_type: VirtType) -> Result<CpuComparison, CallError> {
        let cpu = cpu.to_owned();
        self.call("comparing a guest's CPU", self.deadlines.question, move |calls| {
            calls.compare_cpu(&cpu, virt_type)
        })
        .await
    }

    /// Has a call made on the thread. The deadline begins when the thread gets to it, and is kept by
    /// the relay also if nobody waits for the answer any more; the time limit here is for a client
    /// that does not even notice that the relay has hung up.
    async fn call<T: Send + 'static>(
        &self,
        call: &'static str,
        within: Duration,
        make: impl FnOnce(&dyn Calls) -> Result<T, LibvirtError> + Send + 'static,
    ) -> Result<T, CallError> {
        let answer = self.begun(call, Some(within), make).await?;
        self.settled(call, within, timeout(within + MARGIN, answer).await)
    }

    /// The same for a call that may take as long as it likes.
    async fn call_without_limit<T: Send + 'static>(
        &self,
        call: &'static str,
        make: impl FnOnce(&dyn Calls) -> Result<T, LibvirtError> + Send + 'static,
    ) -> Result<T, CallError> {
        let answer = self.begun(call, None, make).await?;
        self.settled(call, Duration::MAX, Ok(answer.await))
    }

    /// Waits until the thread begins with a call; its answer will come.
    async fn begun<T: Send + 'static>(
        &self,
        call: &'static str,
        within: Option<Duration>,
        make: impl FnOnce(&dyn Calls) -> Result<T, LibvirtError> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, LibvirtError>>, CallError> {
        let (begun, begins) = oneshot::channel();
        let (answered, answer) = oneshot::channel();
        let job = Job::new(call, within, begun, answered, make);
        if self.jobs.send(job).await.is_err() || begins.await.is_err() {
            return Err(self.lost(call, None));
        }
        Ok(answer)
    }

    /// What an answer, or none, means.
    fn settled<T>(
        &self,
        call: &'static str,
        within: Duration,
        answer: Result<Result<Result<T, LibvirtError>, oneshot::error::RecvError>, tokio::time::error::Elapsed>,
    ) -> Result<T, CallError> {
        match answer {
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

/// Which document of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// Of the running guest.
    Live,
    /// Of the next start.
    Inactive,
}

#[cfg(test)]
mod tests;
