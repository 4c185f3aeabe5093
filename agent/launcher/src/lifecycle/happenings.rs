//! What can happen to a launcher, and what it can do.

use drydock_api::launcher::Ending;
use nix::{sys::signal::Signal, unistd::Pid};

use crate::{domain_log::DomainLog, domain_state::DomainState, process_end::ProcessEnd};

/// Something happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Time passed.
    Time,
    /// The pod is told to end.
    ToldToEnd,
    /// The guest's liveness probe has failed: how often and why.
    Unhealthy(String),
    /// The disks are there, or why not.
    Prepared(Result<(), String>),
    /// libvirtd accepts connections.
    LibvirtdListens,
    /// libvirtd has ended, or could not be started.
    LibvirtdEnded(String),
    /// The domain has a QEMU.
    QemuStarted(Pid),
    /// The guest stands still so that the rest of it can be moved, and its QEMU is about to be told to have ended.
    Leaves,
    /// A QEMU has ended: the guest's, or one that libvirt only asked about itself.
    QemuEnded(Pid, ProcessEnd),
    /// libvirt keeps no state of the domain any more.
    StateRemoved,
    /// libvirt or QEMU has written to the domain's log.
    LogWritten,
    /// libvirt answered [`Question::State`], or why it did not.
    Answered(Result<DomainState, String>),
    /// libvirt did another [`Question`], or why it did not.
    Done(Question, Result<(), String>),
    /// What the guest has left behind.
    Log(Traces),
}

/// What tells of a guest that has ended, beside libvirt and the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces {
    /// What the domain's log says.
    pub(crate) log: DomainLog,
    /// The kernel has killed a process of the pod for memory.
    pub(crate) out_of_memory: bool,
    /// The node's tunnel has proof that the guest went on elsewhere.
    pub(crate) has_left: bool,
}

/// Something to ask of libvirt; one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The domain's state.
    State,
    /// To press its power button.
    PowerButton,
    /// To destroy it.
    Destroy,
    /// Nothing but to answer once all that was asked before about the domain is done, whoever asked.
    /// Only for a domain that has ended.
    Settled,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start libvirtd.
    StartLibvirtd,
    /// Kill libvirtd.
    KillLibvirtd,
    /// Have libvirt find out what its QEMU can do, which its first guest would wait for.
    Learn,
    /// Ask libvirt.
    Ask(Question),
    /// Forget the question that is being asked.
    Abandon,
    /// Send QEMU a signal.
    SignalQemu(Pid, Signal),
    /// Say that the pod is ready for its guest.
    SayReady,
    /// Read the domain's log; [`Event::Log`] follows at once.
    ReadLog,
    /// Tell people.
    Say(String),
    /// End, with this message.
    End(Ending),
}
