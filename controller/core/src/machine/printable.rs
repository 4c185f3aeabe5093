//! A machine's printable status, with KubeVirt's values: the column `STATUS` of `kubectl get vm`.

use drydock_api::kubevirt::{Condition, Phase, VirtualMachineInstance, names::conditions as types};

use super::{Standing, conditions_of};
use crate::{
    launcher_pod::pending::NOT_SCHEDULED,
    vm_conditions::{find, holds},
};

/// KubeVirt's printable statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Printable {
    /// The machine does not run and is not about to start.
    Stopped,
    /// The volumes of the machine are being created.
    Provisioning,
    /// The guest of the machine is starting.
    Starting,
    /// The guest of the machine runs.
    Running,
    /// The guest of the machine is paused.
    Paused,
    /// The instance of the machine is being deleted.
    Stopping,
    /// The machine is being deleted.
    Terminating,
    /// The guest of the machine did not start; the next attempt is delayed.
    CrashLoopBackOff,
    /// The guest of the machine is being migrated to another node.
    Migrating,
    /// The state of the machine is unknown.
    Unknown,
    /// No node can run the machine.
    ErrorUnschedulable,
    /// An image cannot be pulled.
    ErrImagePull,
    /// An image could not be pulled; the next attempt is delayed.
    ImagePullBackOff,
    /// A claim is missing.
    ErrorPvcNotFound,
    /// A volume cannot be created.
    DataVolumeError,
    /// A claim is not bound to a volume yet.
    WaitingForVolumeBinding,
}

impl Printable {
    /// All statuses.
    pub const ALL: [Self; 16] = [
        Self::Stopped,
        Self::Provisioning,
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Terminating,
        Self::CrashLoopBackOff,
        Self::Migrating,
        Self::Unknown,
        Self::ErrorUnschedulable,
        Self::ErrImagePull,
        Self::ImagePullBackOff,
        Self::ErrorPvcNotFound,
        Self::DataVolumeError,
        Self::WaitingForVolumeBinding,
    ];

    /// Returns the status as printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "Stopped",
            Self::Provisioning => "Provisioning",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Paused => "Paused",
            Self::Stopping => "Stopping",
            Self::Terminating => "Terminating",
            Self::CrashLoopBackOff => "CrashLoopBackOff",
            Self::Migrating => "Migrating",
            Self::Unknown => "Unknown",
            Self::ErrorUnschedulable => "ErrorUnschedulable",
            Self::ErrImagePull => "ErrImagePull",
            Self::ImagePullBackOff => "ImagePullBackOff",
            Self::ErrorPvcNotFound => "ErrorPvcNotFound",
            Self::DataVolumeError => "DataVolumeError",
            Self::WaitingForVolumeBinding => "WaitingForVolumeBinding",
        }
    }
}

/// Input for the printable status, besides the instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrintableInput {
    /// Whether the machine is being deleted.
    pub(super) deleting: bool,
    /// State of the instance with the machine's name.
    pub(super) standing: Standing,
    /// Whether this plan deletes the instance.
    pub(super) ending: bool,
    /// Whether this plan creates the instance.
    pub(super) starting: bool,
    /// Whether the next start is delayed by back-off.
    pub(super) backing_off: bool,
    /// Whether the instance is being live-migrated.
    pub(super) migrating: bool,
}

/// Returns the status of a machine, given its own instance.
pub(super) fn printable(seen: &PrintableInput, own: Option<&VirtualMachineInstance>) -> Printable {
    match (seen.standing, own) {
        _ if seen.deleting => Printable::Terminating,
        _ if seen.backing_off => Printable::CrashLoopBackOff,
        (Standing::Leaving, _) => Printable::Stopping,
        _ if seen.ending => Printable::Stopping,
        _ if seen.starting => Printable::Starting,
        (Standing::Live, Some(instance)) => of_live(instance, seen.migrating),
        _ => Printable::Stopped,
    }
}

fn of_live(instance: &VirtualMachineInstance, migrating: bool) -> Printable {
    let conditions = conditions_of(instance);
    let phase = instance.phase().unwrap_or_default();
    match phase {
        Phase::Running if migrating => Printable::Migrating,
        Phase::Running if holds(conditions, types::PAUSED) => Printable::Paused,
        Phase::Running => Printable::Running,
        Phase::Unknown => Printable::Unknown,
        // An instance that has ended is not live.
        Phase::Succeeded | Phase::Failed => Printable::Stopped,
        Phase::Pending | Phase::Scheduling | Phase::Scheduled => hindrance(conditions).unwrap_or(Printable::Starting),
    }
}

/// Returns the status for the obstacle that prevents a guest from starting, if KubeVirt has a specific status for it.
fn hindrance(conditions: &[Condition]) -> Option<Printable> {
    let fails = |type_| find(conditions, type_).filter(|condition| condition.status == "False");
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    if let Some(synchronized) = fails(types::SYNCHRONIZED) {
        let printable = match text(&synchronized.reason).as_str() {
            "ImagePullBackOff" => Some(Printable::ImagePullBackOff),
            // The kubelet's reasons for images that it does not even try to pull, or cannot pull.
            "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName" | "ImageInspectError" | "RegistryUnavailable" => {
                Some(Printable::ErrImagePull)
            }
            "FailedPvcNotFound" => Some(Printable::ErrorPvcNotFound),
            "DataVolumeError" | "FailedDataVolumeImport" => Some(Printable::DataVolumeError),
            "WaitingForVolumeBinding" => Some(Printable::WaitingForVolumeBinding),
            "Provisioning" => Some(Printable::Provisioning),
            _ => None,
        };
        if printable.is_some() {
            return printable;
        }
    }
    let unscheduled = fails(types::POD_SCHEDULED)?;
    match unscheduled.reason.as_deref() {
        Some("Unschedulable") => {}
        Some(NOT_SCHEDULED) => return Some(Printable::ErrorUnschedulable),
        _ => return None,
    }
    // kube-scheduler names the claim in its message only; KubeVirt also compares that message.
    let message = text(&unscheduled.message);
    Some(
        if message.contains("persistentvolumeclaim \"") && message.contains("not found") {
            Printable::ErrorPvcNotFound
        } else if message.contains("unbound immediate PersistentVolumeClaims") {
            Printable::WaitingForVolumeBinding
        } else {
            Printable::ErrorUnschedulable
        },
    )
}
