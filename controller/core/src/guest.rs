//! The agent's report on a guest that runs on its node.
//!
//! ```text
//!  domain from libvirt ─────┐
//!  the pod ─────────────────┼─▶ report() ─▶ the agent's part of the instance's status
//!  the instance ────────────┘
//! ```

pub mod freeze;
pub mod node_deleted;
pub mod start;

use drydock_api::{
    kubevirt::{
        Condition, Phase, VirtualMachineInstance, VirtualMachineInstanceStatus,
        names::conditions as types,
        status::{
            CpuTopology, DrydockStatus, GuestCpu, GuestOsInfo, ImageRecord, InterfaceStatus, MachineStatus,
            MemoryStatus, PhaseTransition, PodEnding, VolumeStatus,
        },
    },
    launcher::{CONTAINER, GuestReadiness, Ready},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::{
    conditions::{ConditionStatus, whole_seconds},
    instance::ending::EndedGuest,
    launcher_pod::image_identity,
    migratable::{self, MigratableInput},
    vm_conditions::{POD_TERMINATING, condition},
};

/// A domain as reported by libvirt.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedDomain {
    /// State of the guest.
    pub state: GuestState,
    /// Complete CPU of the guest.
    pub cpu: Option<GuestCpu>,
    /// Versioned machine type of the guest.
    pub machine: Option<String>,
    /// Virtualization type: `kvm` or `qemu`.
    pub virt_type: String,
    /// Memory of the guest in bytes.
    pub memory: Option<u64>,
    /// Version of QEMU.
    pub qemu_version: Option<String>,
    /// Version of libvirt.
    pub libvirt_version: Option<String>,
    /// Data from the guest agent, if it is connected.
    pub agent: Option<GuestAgent>,
    /// Whether the guest's file systems are certainly not frozen any more: the guest was restarted, or its agent
    /// reports it.
    pub is_thawed: bool,
    /// Whether the guest's users have the credentials that the guest agent sets, and if not, why; `None` if there are
    /// none to set.
    pub credentials: Option<Result<(), String>>,
}

/// Data from a guest agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestAgent {
    /// The operating system.
    pub os: GuestOsInfo,
    /// Interfaces: name in the guest, MAC address.
    pub interfaces: Vec<(String, String)>,
    /// Whether the agent lacks commands that KubeVirt requires.
    pub is_unsupported: bool,
}

impl GuestAgent {
    /// Returns the data of an earlier report, for an agent that is connected and does not reply: while file systems are
    /// frozen, QEMU's agent refuses all commands that might need them.
    pub fn of_report(status: &VirtualMachineInstanceStatus) -> Self {
        let interfaces = status.interfaces.iter();
        let is_unsupported = |condition: &Condition| condition.type_ == types::AGENT_VERSION_NOT_SUPPORTED;
        Self {
            os: status.guest_os_info.clone(),
            interfaces: interfaces
                .filter_map(|interface| Some((interface.interface_name.clone()?, interface.mac.clone()?)))
                .collect(),
            is_unsupported: status.conditions.iter().any(is_unsupported),
        }
    }
}

/// State of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestState {
    /// The guest runs.
    Running,
    /// The guest is paused.
    Paused(PauseCause),
    /// The guest has ended, or was never started.
    Off,
}

/// Why a guest is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// The guest was paused on request, or was started paused.
    User,
    /// A disk had an I/O error.
    IoError,
    /// libvirt reported another reason.
    Other(&'static str),
}

impl PauseCause {
    /// Returns KubeVirt's reason and message.
    fn reason_and_message(self) -> (&'static str, String) {
        match self {
            Self::User => ("PausedByUser", "VMI was paused by user".into()),
            Self::IoError => ("PausedIOError", "VMI was paused, low-level IO error detected".into()),
            Self::Other(reason_name) => ("Paused", format!("VMI is paused: {reason_name}")),
        }
    }
}

/// The agent's observations.
#[derive(Clone, Copy, Debug)]
pub struct ObservedGuest<'a> {
    /// The current time.
    pub now: Timestamp,
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// The pod that the guest runs in.
    pub pod: &'a Pod,
    /// The launcher's report that libvirt responds and all disks exist.
    pub ready: &'a Ready,
    /// The domain.
    pub domain: &'a ReportedDomain,
    /// The result of the guest's readiness probe, if its launcher has written one.
    pub readiness: Option<&'a GuestReadiness>,
    /// The disks' names in the guest's hardware, by volume: (volume, name).
    pub targets: &'a [(String, String)],
    /// Whether libvirt has a host model on this node.
    pub host_model_known: bool,
}

/// Reason of the condition [`AGENT_VERSION_NOT_SUPPORTED`](types::AGENT_VERSION_NOT_SUPPORTED): the guest agent lacks
/// commands that KubeVirt requires.
const UNSUPPORTED: &str = "RequiredCommandsMissing";

/// Reason of the condition [`ACCESS_CREDENTIALS_SYNCHRONIZED`](types::ACCESS_CREDENTIALS_SYNCHRONIZED): the credentials
/// could not be set in the guest.
const NOT_SYNCHRONIZED: &str = "NotSynchronized";

/// Condition types that the agent writes; the admission policy for agents permits these.
pub const OWN_CONDITIONS: [&str; 7] = [
    types::READY,
    types::PAUSED,
    types::LIVE_MIGRATABLE,
    types::STORAGE_LIVE_MIGRATABLE,
    types::AGENT_CONNECTED,
    types::AGENT_VERSION_NOT_SUPPORTED,
    types::ACCESS_CREDENTIALS_SYNCHRONIZED,
];

/// Returns the agent's complete part of the status.
pub fn report(observed: &ObservedGuest<'_>) -> VirtualMachineInstanceStatus {
    let before = observed.instance.status.clone().unwrap_or_default();
    let spec = &observed.instance.spec;
    let domain = observed.domain;
    let mut wanted = VirtualMachineInstanceStatus {
        conditions: conditions(observed, &before),
        interfaces: interfaces(observed),
        guest_os_info: domain.agent.as_ref().map(|agent| agent.os.clone()).unwrap_or_default(),
        migration_method: Some(migratable::method(spec)),
        migration_transport: Some("Unix".into()),
        machine: domain.machine.clone().map(|type_| MachineStatus { type_ }),
        current_cpu_topology: Some(topology(observed)),
        memory: domain.memory.map(memory),
        volume_status: volumes(observed),
        drydock: Some(DrydockStatus {
            guest_cpu: domain.cpu.clone(),
            virt_type: Some(domain.virt_type.clone()),
            qemu_version: domain.qemu_version.clone(),
            libvirt_version: domain.libvirt_version.clone(),
            pod_uid: observed.pod.metadata.uid.clone(),
            ended_pods: ended_pods(observed, &before),
            ending: ending(observed, &before),
            images: images(observed, &before),
            thaw_at: None,
        }),
        ..VirtualMachineInstanceStatus::default()
    };
    if domain.state != GuestState::Off && !domain.is_thawed {
        freeze::carry(&mut wanted, &before);
    }
    // Only the controller sets a final phase, and it is never taken back. While the phase is not final, `Running` is
    // applied again and again: a server-side apply removes fields that it omits.
    let phase = before.phase.unwrap_or_default();
    if phase == Phase::Running || (domain.state != GuestState::Off && !phase.is_final()) {
        run(&mut wanted, &before, observed.now);
    }
    wanted
}

/// Keeps the report that the guest in this pod has ended.
fn ended_pods(observed: &ObservedGuest<'_>, before: &VirtualMachineInstanceStatus) -> Vec<String> {
    let reported = before.drydock.iter().flat_map(|drydock| &drydock.ended_pods);
    let is_of_this_pod = |uid: &&String| observed.pod.metadata.uid.as_ref() == Some(uid);
    reported.filter(is_of_this_pod).cloned().collect()
}

/// Keeps how the guest in this pod has ended.
fn ending(observed: &ObservedGuest<'_>, before: &VirtualMachineInstanceStatus) -> Option<PodEnding> {
    let reported = before.drydock.as_ref()?.ending.clone();
    reported.filter(|ending| observed.pod.metadata.uid.as_ref() == Some(&ending.pod_uid))
}

/// Reports that the guest runs, with the time of the first such report.
fn run(wanted: &mut VirtualMachineInstanceStatus, before: &VirtualMachineInstanceStatus, now: Timestamp) {
    wanted.phase = Some(Phase::Running);
    wanted.phase_transition_timestamps = vec![PhaseTransition {
        phase: Phase::Running,
        phase_transition_timestamp: before
            .phase_transition_timestamps
            .iter()
            .find(|transition| transition.phase == Phase::Running)
            .map_or_else(
                || whole_seconds(now).0,
                |transition| transition.phase_transition_timestamp,
            ),
    }];
}

/// Returns the previous report, extended by the fact that nothing runs any more in a pod that no longer exists or
/// whose Node was deleted; and by how the guest ended, if the launcher reported that before the pod was gone.
pub fn with_ended_pod(
    before: &VirtualMachineInstanceStatus,
    pod_uid: &str,
    ended: Option<&EndedGuest>,
    now: Timestamp,
) -> VirtualMachineInstanceStatus {
    let mut wanted = own_part(before, now);
    let drydock = wanted.drydock.get_or_insert_default();
    if !drydock.ended_pods.iter().any(|uid| uid == pod_uid) {
        drydock.ended_pods.push(pod_uid.into());
    }
    if let Some(ended) = ended
        && let Some(outcome) = ended.outcome
    {
        drydock.ending = Some(PodEnding {
            pod_uid: pod_uid.into(),
            outcome,
            message: ended.message.clone(),
            evicted: ended.evicted,
            by_kubelet: ended.by_kubelet,
        });
    }
    wanted
}

/// Returns the previous report: the agent's part of a status.
pub fn own_part(before: &VirtualMachineInstanceStatus, now: Timestamp) -> VirtualMachineInstanceStatus {
    let mut wanted = VirtualMachineInstanceStatus {
        conditions: before
            .conditions
            .iter()
            .filter(|condition| OWN_CONDITIONS.contains(&condition.type_.as_str()))
            .cloned()
            .collect(),
        interfaces: before.interfaces.clone(),
        guest_os_info: before.guest_os_info.clone(),
        migration_method: before.migration_method,
        migration_transport: before.migration_transport.clone(),
        machine: before.machine.clone(),
        current_cpu_topology: before.current_cpu_topology.clone(),
        memory: before.memory.clone(),
        volume_status: before
            .volume_status
            .iter()
            .filter(|volume| volume.target.is_some())
            .map(|volume| VolumeStatus {
                persistent_volume_claim_info: None,
                ..volume.clone()
            })
            .collect(),
        fs_freeze_status: before.fs_freeze_status.clone(),
        drydock: before.drydock.clone(),
        ..VirtualMachineInstanceStatus::default()
    };
    if before.phase == Some(Phase::Running) {
        run(&mut wanted, before, now);
    }
    wanted
}

/// Returns the report for a guest that could not be started.
pub fn failed_to_start(
    before: &VirtualMachineInstanceStatus,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> VirtualMachineInstanceStatus {
    VirtualMachineInstanceStatus {
        conditions: vec![condition(
            &before.conditions,
            types::READY,
            ConditionStatus::False,
            reason,
            message,
            now,
        )],
        ..VirtualMachineInstanceStatus::default()
    }
}

/// Returns whether writing `wanted` would change `current`.
pub fn differs(current: &VirtualMachineInstanceStatus, wanted: &VirtualMachineInstanceStatus) -> bool {
    let conditions = wanted
        .conditions
        .iter()
        .all(|condition| current.conditions.iter().any(|other| is_reported(other, condition)))
        && !current.conditions.iter().any(|condition| {
            OWN_CONDITIONS.contains(&condition.type_.as_str())
                && !wanted.conditions.iter().any(|other| other.type_ == condition.type_)
        });
    let volumes = wanted.volume_status.iter().all(|volume| {
        current
            .volume_status
            .iter()
            .any(|other| other.name == volume.name && other.target == volume.target && other.size == volume.size)
    });
    !(conditions
        && volumes
        && (wanted.phase.is_none() || wanted.phase == current.phase)
        && wanted.interfaces == current.interfaces
        && wanted.guest_os_info == current.guest_os_info
        && wanted.fs_freeze_status == current.fs_freeze_status
        && wanted.migration_method == current.migration_method
        && wanted.migration_transport == current.migration_transport
        && wanted.machine == current.machine
        && wanted.current_cpu_topology == current.current_cpu_topology
        && wanted.memory == current.memory
        && wanted.drydock == current.drydock)
}

/// Returns whether a stored condition has everything that the agent reports.
///
/// Until a guest is ready, the controller reports the reason. It removes its reason and message only after the agent has
/// reported that the guest is ready. Until then they remain, because server-side apply removes no fields of another field
/// manager, and writing again would change nothing. The controller's side of this is `leaves_a_reason` in the module
/// `instance`.
fn is_reported(stored: &Condition, wanted: &Condition) -> bool {
    let is_ready = wanted.type_ == types::READY && wanted.status == ConditionStatus::True.as_str();
    if !is_ready {
        return stored == wanted;
    }
    stored.type_ == wanted.type_
        && stored.status == wanted.status
        && stored.last_transition_time == wanted.last_transition_time
}

fn conditions(observed: &ObservedGuest<'_>, before: &VirtualMachineInstanceStatus) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let mut set_condition = |type_: &str, status: ConditionStatus, reason: &str, message: String| {
        conditions.push(condition(
            &before.conditions,
            type_,
            status,
            reason,
            message,
            observed.now,
        ));
    };
    let (ready, reason, message) = readiness(observed);
    set_condition(types::READY, ConditionStatus::from(ready), reason, message);
    if let GuestState::Paused(cause) = observed.domain.state {
        let (reason, message) = cause.reason_and_message();
        set_condition(types::PAUSED, ConditionStatus::True, reason, message);
    }
    let obstacles = migratable::obstacles(&MigratableInput {
        spec: &observed.instance.spec,
        volumes: &before.volume_status,
        host_model_known: observed.host_model_known,
    });
    let storage: Vec<_> = obstacles
        .iter()
        .filter(|(obstacle, _)| *obstacle != migratable::Obstacle::Disks)
        .collect();
    let sentence = |all: &mut dyn Iterator<Item = &String>| all.cloned().collect::<Vec<_>>().join("; ");
    match obstacles.first() {
        None => set_condition(types::LIVE_MIGRATABLE, ConditionStatus::True, "", String::new()),
        Some((first, _)) => set_condition(
            types::LIVE_MIGRATABLE,
            ConditionStatus::False,
            first.reason(),
            sentence(&mut obstacles.iter().map(|(_, text)| text)),
        ),
    }
    if storage.is_empty() {
        set_condition(types::STORAGE_LIVE_MIGRATABLE, ConditionStatus::True, "", String::new());
    } else {
        let text = sentence(&mut storage.iter().map(|(_, text)| text));
        set_condition(
            types::STORAGE_LIVE_MIGRATABLE,
            ConditionStatus::False,
            "NotMigratable",
            text,
        );
    }
    if let Some(agent) = &observed.domain.agent {
        set_condition(types::AGENT_CONNECTED, ConditionStatus::True, "", String::new());
        if agent.is_unsupported {
            let message = "the guest agent lacks required commands".to_owned();
            set_condition(
                types::AGENT_VERSION_NOT_SUPPORTED,
                ConditionStatus::True,
                UNSUPPORTED,
                message,
            );
        }
    }
    let synchronized = types::ACCESS_CREDENTIALS_SYNCHRONIZED;
    match &observed.domain.credentials {
        None => {}
        Some(Ok(())) => set_condition(synchronized, ConditionStatus::True, "", String::new()),
        Some(Err(why)) => set_condition(synchronized, ConditionStatus::False, NOT_SYNCHRONIZED, why.clone()),
    }
    conditions
}

/// Returns whether the guest is ready, and if not, why.
fn readiness(observed: &ObservedGuest<'_>) -> (bool, &'static str, String) {
    if observed.pod.metadata.deletion_timestamp.is_some() {
        return (false, POD_TERMINATING, "virt-launcher pod is terminating".into());
    }
    match observed.domain.state {
        GuestState::Off => (false, "GuestNotRunning", "Guest VM is not reported as running".into()),
        GuestState::Paused(_) => (false, "GuestNotRunning", "the guest is paused".into()),
        GuestState::Running => match probe_failure(observed) {
            Some(why) => (false, "ContainersNotReady", why),
            None => (true, "", String::new()),
        },
    }
}

/// Returns whether the pod's readiness gate is open: the guest runs in the pod and is not paused, and its readiness
/// probe succeeds if the launcher runs that probe. (With a launcher of an earlier release the kubelet runs the probe;
/// the pod is then unready by itself.)
pub fn gate_is_open(domain: &ReportedDomain, ready: &Ready, readiness: Option<&GuestReadiness>) -> bool {
    let is_ready = !ready.probes_readiness || readiness.is_some_and(|readiness| readiness.ready);
    domain.state == GuestState::Running && is_ready
}

/// Returns why the guest's readiness probe does not succeed; `None` if it succeeds, or the guest has no such probe.
fn probe_failure(observed: &ObservedGuest<'_>) -> Option<String> {
    observed.instance.spec.readiness_probe.as_ref()?;
    let not_yet = "the guest's readiness probe has not succeeded";
    if !observed.ready.probes_readiness {
        return (!container_is_ready(observed.pod)).then(|| not_yet.into());
    }
    match observed.readiness {
        Some(readiness) if readiness.ready => None,
        Some(readiness) if !readiness.message.is_empty() => Some(format!("{not_yet}: {}", readiness.message)),
        _ => Some(not_yet.into()),
    }
}

fn container_is_ready(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref())
        .is_some_and(|containers| {
            containers
                .iter()
                .any(|container| container.name == CONTAINER && container.ready)
        })
}

fn topology(observed: &ObservedGuest<'_>) -> CpuTopology {
    let cpu = observed.instance.spec.domain.cpu.clone().unwrap_or_default();
    CpuTopology {
        cores: cpu.cores.unwrap_or(1),
        sockets: cpu.sockets.unwrap_or(1),
        threads: cpu.threads.unwrap_or(1),
    }
}

fn memory(bytes: u64) -> MemoryStatus {
    let text = if bytes.is_multiple_of(1 << 20) {
        format!("{}Mi", bytes >> 20)
    } else {
        format!("{}Ki", bytes >> 10)
    };
    MemoryStatus {
        guest_at_boot: Some(text.clone()),
        guest_current: Some(text.clone()),
        guest_requested: Some(text),
    }
}

/// Returns the interfaces of the guest. A guest is reached by its pod's addresses, whatever addresses it has itself: a
/// migrated guest keeps the addresses of the pod in which it started. The guest agent reports the names of the
/// interfaces inside the guest.
fn interfaces(observed: &ObservedGuest<'_>) -> Vec<InterfaceStatus> {
    let status = observed.pod.status.as_ref();
    let addresses: Vec<String> = status
        .and_then(|status| status.pod_ips.as_ref())
        .into_iter()
        .flatten()
        .map(|address| address.ip.clone())
        .collect();
    let declared = &observed.instance.spec.domain.devices.interfaces;
    let agent_interfaces = observed.domain.agent.as_ref().map(|agent| agent.interfaces.as_slice());
    declared
        .iter()
        .map(|interface| {
            let mac = interface
                .mac_address
                .as_ref()
                .map(|mac| mac.to_lowercase().replace('-', ":"));
            let guest = agent_interfaces
                .unwrap_or_default()
                .iter()
                .find(|(_, address)| Some(address.to_lowercase()) == mac);
            InterfaceStatus {
                name: Some(interface.name.clone()),
                ip_address: addresses.first().cloned(),
                ip_addresses: addresses.clone(),
                mac,
                interface_name: guest.map(|(name, _)| name.clone()),
                info_source: Some(
                    if guest.is_some() {
                        "domain, guest-agent"
                    } else {
                        "domain"
                    }
                    .into(),
                ),
            }
        })
        .collect()
}

fn volumes(observed: &ObservedGuest<'_>) -> Vec<VolumeStatus> {
    observed
        .targets
        .iter()
        .map(|(volume, target)| VolumeStatus {
            name: volume.clone(),
            target: Some(target.clone()),
            size: observed
                .ready
                .disks
                .iter()
                .find(|disk| disk.name == *volume)
                .and_then(|disk| i64::try_from(disk.virtual_size).ok()),
            persistent_volume_claim_info: None,
        })
        .collect()
}

/// Returns the images below containerDisks, as they were at the first start.
fn images(observed: &ObservedGuest<'_>, before: &VirtualMachineInstanceStatus) -> Vec<ImageRecord> {
    let ids = image_identity::image_ids(&observed.instance.spec, observed.pod);
    if let Some(recorded) = before.drydock.as_ref().filter(|drydock| !drydock.images.is_empty()) {
        return image_identity::recorded(&recorded.images, &ids);
    }
    observed
        .ready
        .disks
        .iter()
        .filter_map(|disk| {
            let backing = disk.backing.as_ref()?;
            Some(ImageRecord {
                name: disk.name.clone(),
                image_id: ids.get(&disk.name).cloned(),
                virtual_size: backing.virtual_size,
                format: backing.format,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
