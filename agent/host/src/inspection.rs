//! Inspection of the machine, which collects the facts for labels and decisions.
//!
//! ```text
//!  cpuid, /proc, /sys, /dev/kvm ──► facts that are always available
//!  libvirtd, private or given   ──► facts about guests, or the problem why there are none
//! ```
//!
//! # Assumptions
//! [`inspect`] runs in its own process, which ends soon after the inspection. The function makes the process a
//! subreaper, and leaves a stuck thread behind if a libvirt call hangs.
//!
//! # Guarantees
//! [`inspect`] returns soon after the deadline, whatever libvirt does. By then, a private libvirtd and all its child
//! processes have ended. The function never panics because of the data it receives.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use drydock_api::facts::{CpuFacts, KvmFacts, KvmState, NodeFacts, VirtType};
use serde::{Deserialize, Serialize};

use crate::{
    architecture::Architecture,
    cpuinfo, kernel, kvm,
    libvirt::Libvirt,
    libvirt_probe::{self, ProbeResult},
    private_libvirtd::PrivateLibvirtd,
    problem::{HostProblem, ProblemReason},
    roots::Roots,
};

/// If libvirtd ends within this time after its connection broke, its end counts as the cause.
const CRASH: Duration = Duration::from_millis(300);

/// Source of libvirt's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibvirtSource {
    /// libvirtd is started for this inspection.
    Private {
        /// Path of libvirtd, or its name in the usual folders.
        libvirtd: PathBuf,
    },
    /// URI of a running libvirtd.
    Uri(String),
}

/// Options of an inspection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectionOptions {
    /// Source of libvirt's facts.
    pub libvirt: LibvirtSource,
    /// Time limit for the whole inspection.
    pub deadline: Duration,
    /// Time limit for a private libvirtd to open its socket.
    pub start_within: Duration,
    /// Parent of the private libvirtd's own folder. Its user must be able to enter the parent.
    pub scratch: PathBuf,
    /// Folder for the QEMU capabilities that a private libvirtd has probed, for the libvirtds of guests; `None`
    /// discards them.
    pub capabilities: Option<PathBuf>,
    /// Location of the kernel's files.
    pub roots: Roots,
    /// Architecture that replaces the machine's architecture in tests.
    pub architecture: Option<Architecture>,
}

impl Default for InspectionOptions {
    fn default() -> Self {
        Self {
            libvirt: LibvirtSource::Private {
                libvirtd: "libvirtd".into(),
            },
            deadline: Duration::from_secs(60),
            start_within: Duration::from_secs(20),
            scratch: std::env::temp_dir(),
            capabilities: None,
            roots: Roots::default(),
            architecture: None,
        }
    }
}

/// The result of an inspection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectionReport {
    /// Known facts. They are complete if there is no problem.
    pub facts: NodeFacts,
    /// Reason why libvirt's facts are missing or incomplete, if they are.
    pub problem: Option<HostProblem>,
    /// Duration of the inspection.
    pub took: Duration,
}

/// Inspects this machine.
pub fn inspect(options: &InspectionOptions) -> InspectionReport {
    let start = Instant::now();
    let architecture = options.architecture.clone().unwrap_or_else(Architecture::native);
    let mut facts = machine_facts(&options.roots, &architecture);
    let probed = match architecture.machine() {
        Some(machine) => {
            let virt_type = if facts.kvm.state == KvmState::Usable {
                VirtType::Kvm
            } else {
                VirtType::Qemu
            };
            let question = QueryParameters {
                architecture,
                machine,
                virt_type,
            };
            let until = start + options.deadline;
            match &options.libvirt {
                LibvirtSource::Private { libvirtd } => query_private_libvirtd(libvirtd, options, &question, until),
                LibvirtSource::Uri(uri) => question.probe(uri, until),
            }
            .unwrap_or_else(|TimedOut| HostProblem::timed_out(options.deadline).into())
        }
        None => {
            let message = format!("guests are not supported on {}", architecture.kubernetes());
            HostProblem::new(ProblemReason::ArchitectureNotSupported, message).into()
        }
    };
    if let Some(why) = probed.kvm_given_up {
        facts.kvm.state = KvmState::NoUsableModel;
        facts.kvm.message = why;
    }
    facts.virtualization = probed.facts;
    InspectionReport {
        facts,
        problem: probed.problem,
        took: start.elapsed(),
    }
}

/// Returns the facts from the processor and the kernel.
pub fn machine_facts(roots: &Roots, architecture: &Architecture) -> NodeFacts {
    let kvm = kvm::probe(&roots.kvm);
    NodeFacts {
        architecture: architecture.kubernetes().to_owned(),
        kernel: kernel::release(roots),
        cpu: CpuFacts {
            microcode: kernel::microcode(roots),
            online: kernel::online(roots),
            ..processor(roots, architecture)
        },
        kvm: KvmFacts {
            state: kvm.state,
            message: kvm.message,
            parameters: kernel::kvm_parameters(roots),
            hyperv: kvm.hyperv,
        },
        real_time: kernel::real_time(roots),
        virtualization: None,
    }
}

/// Returns the facts about the processor. They come from cpuid for amd64 on an x86 machine, otherwise from the kernel.
pub(crate) fn processor(roots: &Roots, architecture: &Architecture) -> CpuFacts {
    #[cfg(target_arch = "x86_64")]
    if *architecture == Architecture::Amd64 {
        return crate::cpuid::read();
    }
    cpuinfo::facts(&roots.proc_text("cpuinfo").unwrap_or_default(), architecture)
}

/// Error: the deadline has passed.
#[derive(Clone, Copy, Debug)]
struct TimedOut;

/// Parameters of the queries to libvirt.
#[derive(Clone, Debug)]
struct QueryParameters {
    architecture: Architecture,
    machine: &'static str,
    virt_type: VirtType,
}

impl QueryParameters {
    /// Queries libvirt on a separate thread. The thread is left behind if libvirt hangs.
    fn probe(&self, uri: &str, until: Instant) -> Result<ProbeResult, TimedOut> {
        let (sender, receiver) = mpsc::channel();
        let (question, uri) = (self.clone(), uri.to_owned());
        let thread = thread::Builder::new().name("libvirt client".into()).spawn(move || {
            let probed = match Libvirt::open(&uri) {
                Ok(libvirt) => {
                    let QueryParameters {
                        architecture,
                        machine,
                        virt_type,
                    } = &question;
                    libvirt_probe::probe(&libvirt, architecture, machine, *virt_type)
                }
                Err(error) => HostProblem::new(ProblemReason::LibvirtConnectFailed, error.to_string()).into(),
            };
            // The receiver was dropped if the deadline has passed.
            let _ = sender.send(probed);
        });
        if let Err(error) = thread {
            let message = format!("could not start a thread for the libvirt client: {error}");
            return Ok(HostProblem::new(ProblemReason::LibvirtConnectFailed, message).into());
        }
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(probed) => Ok(probed),
            Err(RecvTimeoutError::Timeout) => Err(TimedOut),
            Err(RecvTimeoutError::Disconnected) => {
                Ok(HostProblem::new(ProblemReason::LibvirtCallFailed, "the libvirt client thread ended").into())
            }
        }
    }
}

/// Starts a libvirtd, queries it and stops it.
fn query_private_libvirtd(
    libvirtd: &Path,
    options: &InspectionOptions,
    question: &QueryParameters,
    until: Instant,
) -> Result<ProbeResult, TimedOut> {
    let daemon = match PrivateLibvirtd::start(libvirtd, &options.scratch) {
        Ok(daemon) => daemon,
        Err(problem) => return Ok(problem.into()),
    };
    let left = until.saturating_duration_since(Instant::now());
    if let Err(problem) = daemon.wait_until_open(options.start_within.min(left)) {
        daemon.kill();
        return Ok(problem.into());
    }
    let mut probed = question
        .probe(&daemon.uri(), until)
        .inspect_err(|TimedOut| daemon.kill())?;
    if let (Some(why), Some(withheld)) = (&mut probed.kvm_given_up, daemon.devices_withheld()) {
        *why += &format!("; /dev/kvm could not be made accessible to libvirtd's user: {withheld}");
    }
    if let Some(folder) = options.capabilities.as_ref().filter(|_| probed.problem.is_none())
        && let Err(error) = daemon.keep_capabilities(folder)
    {
        // After a failure, the libvirts of guests probe QEMU themselves.
        tracing::warn!(folder = %folder.display(), %error, "libvirt's cache of QEMU capabilities cannot be stored");
    }
    Ok(match &probed.problem {
        // The connection broke because libvirtd crashed. Earlier results are dropped, because they may be incomplete
        // without an indication of this.
        Some(problem) if problem.kind() == ProblemReason::LibvirtConnectFailed => match daemon.end_within(CRASH) {
            Some(end) => {
                let message = format!("libvirtd ended during the inspection: {end}");
                HostProblem::new(ProblemReason::LibvirtdCrashed, message).into()
            }
            None => problem.clone().into(),
        },
        _ => probed,
    })
}

#[cfg(test)]
mod tests;
