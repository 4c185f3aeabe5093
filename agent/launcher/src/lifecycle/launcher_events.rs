//! Events and actions of a launcher.

use drydock_api::launcher::Ending;
use nix::{sys::signal::Signal, unistd::Pid};

use crate::{domain_log::DomainLog, domain_state::VirshDomainState, process_end::ProcessEnd};

/// An event.
#[derive(Clone, Debug)]
pub(crate) enum LauncherEvent {
    /// Time passed.
    Time,
    /// The pod received SIGTERM.
    TerminationRequested,
    /// The guest's liveness probe has failed: how often and why.
    Unhealthy(String),
    /// The disks are prepared, or the reason why they are not.
    Prepared(Result<(), String>),
    /// libvirtd accepts connections.
    LibvirtdListens,
    /// libvirtd has ended, or could not be started.
    LibvirtdEnded(String),
    /// The domain has a QEMU.
    QemuStarted(Pid),
    /// The guest was paused for the final phase of its migration. The event for the end of its QEMU follows.
    Leaves,
    /// A QEMU has ended: the guest's, or a QEMU that libvirt only ran to probe its capabilities.
    QemuEnded(Pid, ProcessEnd),
    /// libvirt has removed its state of the domain.
    StateRemoved,
    /// libvirt or QEMU has written to the domain's log.
    LogWritten,
    /// libvirt's response to [`LibvirtCall::State`], or why there is none.
    StateReported(Result<VirshDomainState, String>),
    /// libvirt has carried out another [`LibvirtCall`], or why it has not.
    Done(LibvirtCall, Result<(), String>),
    /// The traces of a guest that has ended.
    Log(Traces),
}

/// Evidence about the end of a guest, besides libvirt's state and QEMU's exit status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces {
    /// The relevant content of the domain's log.
    pub(crate) log: DomainLog,
    /// The kernel's OOM killer has killed a process of the pod.
    pub(crate) out_of_memory: bool,
    /// The node's tunnel has proof that the guest continues elsewhere.
    pub(crate) migrated_away: bool,
}

/// A call to libvirt. There is one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LibvirtCall {
    /// Query the domain's state.
    State,
    /// Press the power button.
    PowerButton,
    /// Destroy the domain.
    Destroy,
    /// A call without effect, which returns once all earlier calls for the domain, from any client, are done. Only
    /// for a domain that has ended.
    Settled,
}

/// An action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LauncherAction {
    /// Start libvirtd.
    StartLibvirtd,
    /// Kill libvirtd.
    KillLibvirtd,
    /// Make libvirt probe QEMU's capabilities, so that the first guest does not have to wait for it.
    Learn,
    /// Make a call to libvirt.
    Call(LibvirtCall),
    /// Ignore the call in progress.
    Abandon,
    /// Send QEMU a signal.
    SignalQemu(Pid, Signal),
    /// Report that the pod is ready for its guest.
    MarkReady,
    /// Read the domain's log; [`LauncherEvent::Log`] follows at once.
    ReadLog,
    /// Log a message.
    LogMessage(String),
    /// Exit with this ending.
    End(Ending),
}
