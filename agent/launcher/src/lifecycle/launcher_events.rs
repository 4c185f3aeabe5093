//! Events and actions of a launcher.

use drydock_api::launcher::Ending;
use nix::{sys::signal::Signal, unistd::Pid};

use crate::{domain_log::DomainLog, domain_state::VirshDomainState, process_end::ProcessEnd};

/// An event that the lifecycle processes.
#[derive(Clone, Debug)]
pub(crate) enum LauncherEvent {
    /// Time has passed.
    Time,
    /// The pod received SIGTERM.
    TerminationRequested,
    /// The guest's liveness probe has failed. The text contains the number of failures and the reason.
    Unhealthy(String),
    /// The disks are prepared, or could not be prepared for the reason in the error.
    Prepared(Result<(), String>),
    /// libvirtd accepts connections.
    LibvirtdListens,
    /// libvirtd has ended, or could not be started.
    LibvirtdEnded(String),
    /// The domain has a QEMU with this PID.
    QemuStarted(Pid),
    /// The guest was paused for the final phase of its migration. The event for the end of its QEMU follows.
    Leaves,
    /// A QEMU has ended: the guest's QEMU, or a QEMU with which libvirt probed its capabilities.
    QemuEnded(Pid, ProcessEnd),
    /// libvirt has removed the state file of the domain.
    StateRemoved,
    /// libvirt or QEMU has written to the domain's log.
    LogWritten,
    /// libvirt has responded to [`LibvirtCall::State`], or the query has failed with this error.
    StateReported(Result<VirshDomainState, String>),
    /// libvirt has executed another [`LibvirtCall`], or the call has failed with this error.
    Done(LibvirtCall, Result<(), String>),
    /// The traces of an ended guest have been read.
    Log(Traces),
}

/// Evidence about the end of a guest, besides libvirt's state and QEMU's exit status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces {
    /// The relevant content of the domain's log.
    pub(crate) log: DomainLog,
    /// Whether the kernel's OOM killer has killed a process of the pod.
    pub(crate) out_of_memory: bool,
    /// Whether the node's tunnel has proof that the guest continues on another node.
    pub(crate) migrated_away: bool,
}

/// A call to libvirt. At most one call is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LibvirtCall {
    /// Queries the state of the domain.
    State,
    /// Presses the power button.
    PowerButton,
    /// Destroys the domain.
    Destroy,
    /// A call without effect, which returns once all earlier calls for the domain, from any client, are done.
    ///
    /// The call is only used for a domain that has ended.
    Settled,
}

/// An action that the lifecycle requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LauncherAction {
    /// Starts libvirtd.
    StartLibvirtd,
    /// Kills libvirtd.
    KillLibvirtd,
    /// Makes libvirt probe QEMU's capabilities, so that the first guest does not have to wait for the probe.
    Learn,
    /// Calls libvirt.
    Call(LibvirtCall),
    /// Abandons the call in progress.
    Abandon,
    /// Sends a signal to QEMU.
    SignalQemu(Pid, Signal),
    /// Reports that the pod is ready for its guest.
    MarkReady,
    /// Reads the traces of the guest. [`LauncherEvent::Log`] follows at once.
    ReadLog,
    /// Logs a message.
    LogMessage(String),
    /// Ends the process with this ending.
    End(Ending),
}
