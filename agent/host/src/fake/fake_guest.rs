//! In-memory libvirt with a guest, for the tests of code that runs guests.
//!
//! The fake replaces libvirt's client: calls go through the same thread, and events through the same queue. It behaves
//! like libvirt for a domain that is defined, started and stopped, and additionally does what the test requests.

use std::{collections::VecDeque, sync::Arc};

use drydock_api::facts::VirtType;
use parking_lot::{Mutex, MutexGuard};
use virt_sys as sys;

use super::fake_migrations::FakeMigrations;
use crate::{
    domain::{
        AgentChannel, BlockInfo, CallDeadlines, CallError, CloseReason, CpuComparison, DefinedDetail, DomainCalls,
        DomainEvent, DomainEvents, DomainHandle, DomainState, EventSource, InitialState, JobInfo, LifecycleEvent,
        Migration, Parameter, PausedReason, PodVersions, ResumedDetail, RunningReason, Screenshot, ShutOffReason,
        ShutdownBy, ShutdownDetail, StartedDetail, StoppedDetail, SuspendedDetail, UndefinedDetail, WhichJob,
    },
    libvirt::{LibvirtError, Version},
};

/// Recorded live XML of a running guest.
pub const LIVE_XML: &str = include_str!("../../testdata/trixie/named.domain.xml");

/// Fake libvirt with one domain. Clones share its state.
#[derive(Clone, Debug, Default)]
pub struct FakeLibvirt(Arc<Mutex<FakeState>>);

/// Fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// libvirt refuses the call.
    Refused,
    /// The connection ends before libvirt has executed the call.
    Lost,
    /// libvirt executes the call, and the connection ends before the response, as after an overdue call.
    LostResponse,
}

#[derive(Debug, Default)]
pub(super) struct FakeState {
    /// Definition of the domain, if it is defined.
    pub(super) definition: Option<String>,
    /// State of the domain. Meaningless without a definition.
    pub(super) state: Option<DomainState>,
    live_xml: Option<String>,
    /// Errors that the next calls return instead of their normal result.
    refusals: VecDeque<LibvirtError>,
    /// Faults of calls: the name of the call, the number of calls with this name that succeed first, and the fault.
    faults: Vec<(&'static str, usize, CallFault)>,
    calls: Vec<&'static str>,
    /// Commands that the guest agent has executed; `None` if there is no agent.
    agent: Option<Vec<String>>,
    /// Whether the guest agent does not respond.
    agent_hangs: bool,
    /// Whether the guest's file systems are frozen.
    is_frozen: bool,
    connections: Vec<Arc<EventSource>>,
    pub(super) migrations: FakeMigrations,
}

/// One connection to the fake libvirt.
pub(super) struct FakeLibvirtConnection {
    libvirt: FakeLibvirt,
    domain: String,
    pub(super) shared: Arc<EventSource>,
}

impl FakeLibvirt {
    /// Connects to the fake libvirt like [`DomainHandle::connect`].
    ///
    /// # Errors
    /// If the kernel cannot provide a thread.
    pub async fn connect(&self, domain: &str) -> Result<(DomainHandle, DomainEvents), CallError> {
        let libvirt = self.clone();
        let name = domain.to_owned();
        DomainHandle::start(domain, CallDeadlines::default(), move |shared| {
            libvirt.lock().connections.push(Arc::clone(shared));
            Ok(Box::new(FakeLibvirtConnection {
                libvirt: libvirt.clone(),
                domain: name.clone(),
                shared: Arc::clone(shared),
            }))
        })
        .await
    }

    /// Returns the state of the domain; `None` if it is not defined.
    pub fn state(&self) -> Option<DomainState> {
        let inner = self.lock();
        inner.definition.as_ref().and(inner.state)
    }

    /// Returns the document with which the domain was defined.
    pub fn definition(&self) -> Option<String> {
        self.lock().definition.clone()
    }

    /// Returns the names of all modifying calls so far, including refused ones.
    pub fn calls(&self) -> Vec<&'static str> {
        self.lock().calls.clone()
    }

    /// Sets the live XML of the running guest, which replaces [`LIVE_XML`].
    pub fn set_live_xml(&self, xml: &str) {
        self.lock().live_xml = Some(xml.to_owned());
    }

    /// Queues an error for the next call that has no earlier queued error.
    pub fn refuse_next(&self, error: LibvirtError) {
        self.lock().refusals.push_back(error);
    }

    /// Makes one call of this name fail, after `after` other calls of the name.
    pub fn fail_call(&self, call: &'static str, after: usize, fault: CallFault) {
        self.lock().faults.push((call, after, fault));
    }

    /// Simulates a guest agent that connects and executes each command.
    pub fn connect_agent(&self) {
        let mut inner = self.lock();
        inner.agent.get_or_insert_default();
        inner.emit(&DomainEvent::Agent(AgentChannel::Connected));
    }

    /// Sets whether the guest agent executes commands without responding in time.
    pub fn agent_hangs(&self, hangs: bool) {
        self.lock().agent_hangs = hangs;
    }

    /// Simulates that the guest has restarted.
    pub fn guest_reboots(&self) {
        self.lock().emit(&DomainEvent::Reboot);
    }

    /// Thaws the guest's file systems, as a user in the guest can.
    pub fn guest_thaws(&self) {
        self.lock().is_frozen = false;
    }

    /// Returns whether the guest's file systems are frozen.
    pub fn is_frozen(&self) -> bool {
        self.lock().is_frozen
    }

    /// Returns the commands that the guest agent has executed.
    pub fn agent_commands(&self) -> Vec<String> {
        self.lock().agent.clone().unwrap_or_default()
    }

    /// Simulates that the guest stops by itself.
    pub fn guest_ends(&self, event: StoppedDetail, reason: ShutOffReason) {
        let mut inner = self.lock();
        if event == StoppedDetail::Shutdown {
            inner.happen(LifecycleEvent::Shutdown(ShutdownDetail::Guest));
        }
        inner.state = Some(DomainState::ShutOff(reason));
        inner.happen(LifecycleEvent::Stopped(event));
    }

    /// Simulates that libvirtd exits while the guest continues. New connections are possible.
    pub fn daemon_ends(&self) {
        for connection in self.lock().connections.drain(..) {
            connection.finish(CloseReason::EndOfFile);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock()
    }
}

impl CallFault {
    /// All faults of a call.
    pub const ALL: [Self; 3] = [Self::Refused, Self::Lost, Self::LostResponse];

    /// Returns whether the connection ends with this fault.
    pub fn ends_connection(self) -> bool {
        self != Self::Refused
    }
}

impl FakeState {
    /// Returns the fault of this call, if it has one now.
    fn fault_of(&mut self, call: &'static str) -> Option<CallFault> {
        let at = self.faults.iter().position(|(name, ..)| *name == call)?;
        let (_, after, fault) = &mut self.faults[at];
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let fault = *fault;
        self.faults.remove(at);
        Some(fault)
    }

    /// Executes a call, unless a fault prevents this.
    fn carry_out<T>(
        &mut self,
        call: &'static str,
        make: impl FnOnce(&mut Self) -> Result<T, LibvirtError>,
    ) -> Result<T, LibvirtError> {
        self.refusals.pop_front().map_or(Ok(()), Err)?;
        let lost = Err(refusal(call, sys::VIR_ERR_RPC, "the connection has ended"));
        match self.fault_of(call) {
            None => make(self),
            Some(CallFault::Refused) => {
                let message = "Requested operation is not valid";
                Err(refusal(call, sys::VIR_ERR_OPERATION_INVALID, message))
            }
            Some(CallFault::Lost) => lost,
            Some(CallFault::LostResponse) => {
                drop(make(self));
                lost
            }
        }
    }

    pub(super) fn happen(&self, event: LifecycleEvent) {
        self.emit(&DomainEvent::Lifecycle(event));
    }

    pub(super) fn emit(&self, event: &DomainEvent) {
        for connection in &self.connections {
            connection.forward(event.clone());
        }
    }

    /// Returns the state of the guest. Fails if the guest is not running.
    pub(super) fn guest(&self, call: &'static str) -> Result<DomainState, LibvirtError> {
        let state = self.defined(call)?;
        if state.has_guest() == Some(true) {
            return Ok(state);
        }
        Err(refusal(
            call,
            sys::VIR_ERR_OPERATION_INVALID,
            "Requested operation is not valid: domain is not running",
        ))
    }

    pub(super) fn defined(&self, call: &'static str) -> Result<DomainState, LibvirtError> {
        if self.definition.is_none() {
            return Err(refusal(call, sys::VIR_ERR_NO_DOMAIN, "Domain not found"));
        }
        Ok(self.state.unwrap_or(DomainState::ShutOff(ShutOffReason::Unknown(0))))
    }
}

pub(super) fn refusal(call: &'static str, code: u32, message: &str) -> LibvirtError {
    LibvirtError {
        call,
        code,
        domain: sys::VIR_FROM_QEMU,
        message: message.to_owned(),
    }
}

impl FakeLibvirtConnection {
    /// Executes a call that changes the state.
    pub(super) fn change(
        &self,
        call: &'static str,
        change: impl FnOnce(&mut FakeState) -> Result<(), LibvirtError>,
    ) -> Result<(), LibvirtError> {
        self.change_with(call, change)
    }

    /// Executes a call that changes the state and has a result.
    pub(super) fn change_with<T>(
        &self,
        call: &'static str,
        change: impl FnOnce(&mut FakeState) -> Result<T, LibvirtError>,
    ) -> Result<T, LibvirtError> {
        let mut inner = self.libvirt.lock();
        inner.calls.push(call);
        inner.carry_out(call, change)
    }

    /// Executes a call that only reads.
    pub(super) fn question<T>(
        &self,
        call: &'static str,
        result: impl FnOnce(&FakeState) -> Result<T, LibvirtError>,
    ) -> Result<T, LibvirtError> {
        self.libvirt.lock().carry_out(call, |inner| result(inner))
    }
}

impl DomainCalls for FakeLibvirtConnection {
    fn define(&self, xml: &str) -> Result<(), LibvirtError> {
        self.change("define", |inner| {
            let detail = if inner.definition.is_some() {
                DefinedDetail::Updated
            } else {
                inner.state = Some(DomainState::ShutOff(ShutOffReason::Unknown(0)));
                DefinedDetail::Added
            };
            inner.definition = Some(xml.to_owned());
            inner.happen(LifecycleEvent::Defined(detail));
            Ok(())
        })
    }

    fn create(&self, start: InitialState) -> Result<(), LibvirtError> {
        const CALL: &str = "create";
        self.change(CALL, |inner| {
            if inner.defined(CALL)?.has_guest() == Some(true) {
                let message = "Requested operation is not valid: domain is already running";
                return Err(refusal(CALL, sys::VIR_ERR_OPERATION_INVALID, message));
            }
            // The events have libvirt's order.
            let started = LifecycleEvent::Started(StartedDetail::Booted);
            match start {
                InitialState::Running => {
                    inner.state = Some(DomainState::Running(RunningReason::Booted));
                    inner.happen(LifecycleEvent::Resumed(ResumedDetail::Unpaused));
                    inner.happen(started);
                }
                InitialState::Paused => {
                    inner.state = Some(DomainState::Paused(PausedReason::User));
                    inner.happen(started);
                    inner.happen(LifecycleEvent::Suspended(SuspendedDetail::Paused));
                }
            }
            Ok(())
        })
    }

    fn state(&self) -> Result<DomainState, LibvirtError> {
        self.question("state", |inner| inner.defined("state"))
    }

    fn live_xml(&self) -> Result<String, LibvirtError> {
        self.question("xml", |inner| {
            let runs = inner.defined("xml")?.has_guest() == Some(true);
            Ok(if runs {
                inner.live_xml.clone().unwrap_or_else(|| LIVE_XML.to_owned())
            } else {
                inner.definition.clone().unwrap_or_default()
            })
        })
    }

    fn destroy(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "destroy";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            inner.state = Some(DomainState::ShutOff(ShutOffReason::Destroyed));
            inner.happen(LifecycleEvent::Stopped(StoppedDetail::Destroyed));
            Ok(())
        })
    }

    fn shutdown(&self, by: ShutdownBy) -> Result<(), LibvirtError> {
        const CALL: &str = "shutdown";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            match by {
                ShutdownBy::Agent => Err(no_agent(CALL)),
                // The guest shuts down later, when the test calls `guest_ends`.
                ShutdownBy::PowerButton => Ok(()),
            }
        })
    }

    fn reboot(&self, by: ShutdownBy) -> Result<(), LibvirtError> {
        const CALL: &str = "reboot";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            match by {
                ShutdownBy::Agent => Err(no_agent(CALL)),
                ShutdownBy::PowerButton => {
                    inner.emit(&DomainEvent::Reboot);
                    Ok(())
                }
            }
        })
    }

    fn reset(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "reset";
        self.change(CALL, |inner| {
            inner.guest(CALL)?;
            inner.emit(&DomainEvent::Reboot);
            Ok(())
        })
    }

    fn suspend(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "suspend";
        self.change(CALL, |inner| {
            if !matches!(inner.guest(CALL)?, DomainState::Paused(_)) {
                let (reason, detail) = if inner.migrations.is_outgoing() {
                    (PausedReason::Migration, SuspendedDetail::Migrated)
                } else {
                    (PausedReason::User, SuspendedDetail::Paused)
                };
                inner.state = Some(DomainState::Paused(reason));
                inner.happen(LifecycleEvent::Suspended(detail));
            }
            Ok(())
        })
    }

    fn resume(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "resume";
        self.change(CALL, |inner| {
            if !matches!(inner.guest(CALL)?, DomainState::Running(_)) {
                inner.state = Some(DomainState::Running(RunningReason::Unpaused));
                inner.happen(LifecycleEvent::Resumed(ResumedDetail::Unpaused));
            }
            Ok(())
        })
    }

    fn undefine(&self) -> Result<(), LibvirtError> {
        const CALL: &str = "undefine";
        self.change(CALL, |inner| {
            inner.defined(CALL)?;
            inner.definition = None;
            inner.happen(LifecycleEvent::Undefined(UndefinedDetail::Removed));
            Ok(())
        })
    }

    fn names(&self) -> Result<Vec<String>, LibvirtError> {
        self.question("names", |inner| {
            Ok(inner.definition.iter().map(|_| self.domain.clone()).collect())
        })
    }

    fn guest_info(&self) -> Result<Vec<Parameter>, LibvirtError> {
        self.question("guest info", |inner| match inner.agent {
            Some(_) if !inner.agent_hangs => Ok(Vec::new()),
            _ => Err(no_agent("guest info")),
        })
    }

    fn agent_command(&self, command: &str) -> Result<String, LibvirtError> {
        self.question("agent command", |_| Ok(()))?;
        let mut inner = self.libvirt.lock();
        let hangs = inner.agent_hangs;
        let commands = inner.agent.as_mut().filter(|_| !hangs);
        let commands = commands.ok_or_else(|| no_agent("agent command"))?;
        commands.push(command.to_owned());
        if command.contains("guest-fsfreeze-status") {
            let status = if inner.is_frozen { "frozen" } else { "thawed" };
            return Ok(format!(r#"{{"return": "{status}"}}"#));
        }
        Ok(r#"{"return": {}}"#.to_owned())
    }

    fn freeze(&self) -> Result<(), LibvirtError> {
        self.change("freeze", |inner| {
            inner.guest("freeze")?;
            if std::mem::replace(&mut inner.is_frozen, true) {
                let message = "Command guest-fsfreeze-freeze has been disabled: the command is not allowed";
                return Err(refusal("freeze", sys::VIR_ERR_INTERNAL_ERROR, message));
            }
            if inner.agent_hangs {
                return Err(no_agent("freeze"));
            }
            Ok(())
        })
    }

    fn thaw(&self) -> Result<(), LibvirtError> {
        self.change("thaw", |inner| {
            inner.guest("thaw")?;
            if inner.agent_hangs {
                return Err(no_agent("thaw"));
            }
            inner.is_frozen = false;
            Ok(())
        })
    }

    fn screenshot(&self) -> Result<Screenshot, LibvirtError> {
        self.question("screenshot", |inner| {
            inner.guest("screenshot")?;
            Ok(Screenshot {
                media_type: "image/png".into(),
                bytes: b"picture".to_vec(),
            })
        })
    }

    fn block_info(&self, disk: &str) -> Result<BlockInfo, LibvirtError> {
        self.question("block info", |inner| {
            inner.defined("block info")?;
            let message = format!("invalid argument: invalid path {disk} not assigned to domain");
            Err(refusal("block info", sys::VIR_ERR_INVALID_ARG, &message))
        })
    }

    fn versions(&self) -> Result<PodVersions, LibvirtError> {
        self.question("versions", |_| {
            Ok(PodVersions {
                libvirt: Version(11_003_000),
                qemu: Version(10_000_013),
            })
        })
    }

    fn migrate(&self, migration: &Migration) -> Result<Result<(), LibvirtError>, LibvirtError> {
        self.fake_migrate(migration)
    }

    fn abort_job(&self) -> Result<(), LibvirtError> {
        self.fake_abort_job()
    }

    fn job(&self, which: WhichJob) -> Result<Option<JobInfo>, LibvirtError> {
        self.fake_job(which)
    }

    fn max_downtime(&self) -> Result<u64, LibvirtError> {
        self.fake_max_downtime()
    }

    fn set_max_downtime(&self, milliseconds: u64) -> Result<(), LibvirtError> {
        self.fake_set_max_downtime(milliseconds)
    }

    fn set_bandwidth(&self, mebibytes: u64) -> Result<(), LibvirtError> {
        self.fake_set_bandwidth(mebibytes)
    }

    fn start_post_copy(&self) -> Result<(), LibvirtError> {
        self.fake_start_post_copy()
    }

    fn compare_cpu(&self, _cpu: &str, _virt_type: VirtType) -> Result<CpuComparison, LibvirtError> {
        self.fake_compare_cpu()
    }
}

fn no_agent(call: &'static str) -> LibvirtError {
    refusal(
        call,
        sys::VIR_ERR_AGENT_UNRESPONSIVE,
        "Guest agent is not responding: QEMU guest agent is not connected",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lifecycle(events: &mut DomainEvents) -> String {
        match events.recv().await {
            Some(DomainEvent::Lifecycle(event)) => event.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn fake_guest_behaves_like_libvirt() {
        let libvirt = FakeLibvirt::default();
        let (guest, mut events) = libvirt.connect("vm").await.unwrap();
        assert_eq!(guest.state().await, Err(CallError::NoDomain));
        guest.define("<domain/>").await.unwrap();
        guest.create(InitialState::Running).await.unwrap();
        assert_eq!(
            guest.create(InitialState::Running).await.unwrap_err().reason(),
            "LibvirtRefused"
        );
        assert_eq!(guest.guest_info().await.unwrap_err().reason(), "GuestAgentUnresponsive");
        assert_eq!(guest.names().await, Ok(vec!["vm".to_owned()]));
        libvirt.guest_ends(StoppedDetail::Shutdown, ShutOffReason::Shutdown);
        for expected in [
            "Defined Added",
            "Resumed Unpaused",
            "Started Booted",
            "Shutdown Finished after guest request",
            "Stopped Shutdown",
        ] {
            assert_eq!(lifecycle(&mut events).await, expected);
        }
        assert_eq!(guest.destroy().await.unwrap_err().reason(), "LibvirtRefused");
        assert_eq!(libvirt.calls(), ["define", "create", "create", "destroy"]);
    }

    #[tokio::test]
    async fn fake_guest_runs_on_after_the_daemon_ends() {
        let libvirt = FakeLibvirt::default();
        let (guest, mut events) = libvirt.connect("vm").await.unwrap();
        guest.define("<domain/>").await.unwrap();
        guest.create(InitialState::Paused).await.unwrap();
        libvirt.daemon_ends();
        guest.ended().await;
        while events.recv().await.is_some() {}
        assert_eq!(events.close_reason(), Some(CloseReason::EndOfFile));
        let (guest, _events) = libvirt.connect("vm").await.unwrap();
        assert_eq!(guest.state().await, Ok(DomainState::Paused(PausedReason::User)));
        libvirt.refuse_next(no_agent("x"));
        assert_eq!(guest.resume().await.unwrap_err().reason(), "GuestAgentUnresponsive");
        guest.resume().await.unwrap();
        assert_eq!(libvirt.state(), Some(DomainState::Running(RunningReason::Unpaused)));
    }
}
