//! Features of the guest's machine besides its devices: system management mode, and QEMU's services for guests that
//! know that they run on Hyper-V or KVM.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Features of the guest's machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Features {
    /// System management mode, which secure boot needs and turns on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smm: Option<FeatureState>,
    /// Visibility of KVM to the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kvm: Option<FeatureKvm>,
    /// Paravirtualized spin locks for guests with KVM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvspinlock: Option<FeatureState>,
    /// Hyper-V enlightenments for Windows. Emulated guests have none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<FeatureHyperv>,
}

/// Whether the guest has a feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct FeatureState {
    /// Whether the guest has the feature. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

impl FeatureState {
    /// Returns whether the guest has the feature.
    pub fn is_on(self) -> bool {
        self.enabled != Some(false)
    }
}

/// Visibility of KVM to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct FeatureKvm {
    /// Whether KVM is hidden from the guest. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
}

/// Hyper-V enlightenments for Windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct FeatureHyperv {
    /// Relaxed timing: the guest's own watchdogs tolerate long pauses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relaxed: Option<FeatureState>,
    /// Access to registers of the interrupt controller through MSRs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vapic: Option<FeatureState>,
    /// Spin locks that report long waits to the hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<FeatureSpinlocks>,
    /// Indexes of the virtual CPUs, readable through an MSR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vpindex: Option<FeatureState>,
    /// The time that each virtual CPU has run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<FeatureState>,
    /// The synthetic interrupt controller. Needs vpindex, and turns it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synic: Option<FeatureState>,
    /// Synthetic timers. Need synic, vpindex and the timer `hyperv`, and turn them on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub synictimer: Option<SyNicTimer>,
    /// Reset of the guest through an MSR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<FeatureState>,
    /// Name of the hypervisor's vendor that the guest reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendorid: Option<FeatureVendorId>,
    /// Frequencies of the clocks, readable through MSRs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<FeatureState>,
    /// Calls that flush cached address translations (TLBs) of other virtual CPUs. Need vpindex, and turn it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tlbflush: Option<FeatureState>,
    /// Calls that send interrupts to other virtual CPUs (IPIs). Need vpindex, and turn it on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipi: Option<FeatureState>,
}

/// Spin locks that report long waits to the hypervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct FeatureSpinlocks {
    /// Whether the guest has the feature. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Number of attempts to take a lock until the wait is reported. Defaults to 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<u32>,
}

/// Synthetic timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct SyNicTimer {
    /// Whether the guest has the feature. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Timers that raise interrupts without messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<FeatureState>,
}

/// Name of the hypervisor's vendor that the guest reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct FeatureVendorId {
    /// Whether the guest has the feature. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Name of the vendor.
    #[serde(deserialize_with = "super::unless_empty", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 12))]
    pub vendorid: Option<String>,
}
