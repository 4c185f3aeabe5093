//! A machine's state in one or two words, by KubeVirt's names: the column `STATUS` of `kubectl get vm`.

use drydock_api::kubevirt::{Condition, Phase, VirtualMachineInstance, names::conditions as types};

use super::{Standing, conditions_of};
use crate::{
    launcher_pod::pending::NOT_SCHEDULED,
    vm_conditions::{find, holds},
};

/// KubeVirt's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Printable {
    /// It does not run and is not about to.
    Stopped,
    /// Its volumes are being made.
    Provisioning,
    /// Its guest is on the way.
    Starting,
    /// Its guest runs.
    Running,
    /// Its guest stands still.
    Paused,
    /// Its instance is ending.
    Stopping,
    /// It is deleted.
    Terminating,
    /// Its guest did not start; the next try waits.
    CrashLoopBackOff,
    /// Its guest is moving to another node.
    Migrating,
    /// Nobody can say.
    Unknown,
    /// No node can take it.
    ErrorUnschedulable,
    /// An image cannot be had.
    ErrImagePull,
    /// An image could not be had; the next try waits.
    ImagePullBackOff,
    /// A claim is missing.
    ErrorPvcNotFound,
    /// A volume cannot be made.
    DataVolumeError,
    /// A claim has no volume yet.
    WaitingForVolumeBinding,
}

impl Printable {
    /// All of them.
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

    /// As it is printed.
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

/// What the word depends on, beside the instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The machine is being deleted.
    pub(super) deleting: bool,
    /// The instance of its name.
    pub(super) standing: Standing,
    /// The instance is deleted with this plan.
    pub(super) ending: bool,
    /// The instance is made with this plan.
    pub(super) starting: bool,
    /// The next start waits.
    pub(super) backing_off: bool,
    /// The instance is being live migrated.
    pub(super) migrating: bool,
}

/// The word for a machine with this instance of its own.
pub(super) fn printable(seen: &Seen, own: Option<&VirtualMachineInstance>) -> Printable {
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
    let phase = instance
        .status
        .as_ref()
        .and_then(|status| status.phase)
        .unwrap_or_default();
    match phase {
        Phase::Running if migrating => Printable::Migrating,
        Phase::Running if holds(conditions, types::PAUSED) => Printable::Paused,
        Phase::Running => Printable::Running,
        Phase::Unknown => Printable::Unknown,
        // One that has ended is not live.
        Phase::Succeeded | Phase::Failed => Printable::Stopped,
        Phase::Pending | Phase::Scheduling | Phase::Scheduled => hindrance(conditions).unwrap_or(Printable::Starting),
    }
}

/// What keeps a guest from starting, where that has a word of its own.
fn hindrance(conditions: &[Condition]) -> Option<Printable> {
    let fails = |type_| find(conditions, type_).filter(|condition| condition.status == "False");
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    if let Some(synchronized) = fails(types::SYNCHRONIZED) {
        let word = match text(&synchronized.reason).as_str() {
            "ImagePullBackOff" => Some(Printable::ImagePullBackOff),
            // The kubelet's words for images that it does not even try to pull, or tries in vain.
            "ErrImagePull" | "ErrImageNeverPull" | "InvalidImageName" | "ImageInspectError" | "RegistryUnavailable" => {
                Some(Printable::ErrImagePull)
            }
            "FailedPvcNotFound" => Some(Printable::ErrorPvcNotFound),
            "DataVolumeError" | "FailedDataVolumeImport" => Some(Printable::DataVolumeError),
            "WaitingForVolumeBinding" => Some(Printable::WaitingForVolumeBinding),
            "Provisioning" => Some(Printable::Provisioning),
            _ => None,
        };
        if word.is_some() {
            return word;
        }
    }
    let unscheduled = fails(types::POD_SCHEDULED)?;
    match unscheduled.reason.as_deref() {
        Some("Unschedulable") => {}
        Some(NOT_SCHEDULED) => return Some(Printable::ErrorUnschedulable),
        _ => return None,
    }
    // kube-scheduler names the claim in its message only, and KubeVirt compares the same text.
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
