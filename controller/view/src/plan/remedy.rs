//! Remedies for a guest that blocks a drain, with their commands.

use std::fmt::Write as _;

use drydock_api::{
    controlling_owner,
    kubevirt::{
        VirtualMachineInstance,
        names::{EVACUATION_FALLBACK, RESTART},
    },
};
use serde::Serialize;

use crate::text::beside;

/// An action against an obstacle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remedy {
    /// Human-readable instruction.
    pub text: String,
    /// Command that carries out the instruction, if there is one.
    pub command: Option<String>,
}

impl Remedy {
    /// Appends the remedy to a text, indented to a column.
    pub(crate) fn append(&self, text: &mut String, column: usize, width: usize) {
        beside(text, "", &format!("remedy: {}", self.text), column, width);
        if let Some(command) = &self.command {
            // The command is not wrapped, so that it can be copied. Writing to a string cannot fail.
            let _ = writeln!(text, "{:column$}{command}", "");
        }
    }

    /// Returns the remedy for a reason of a [`RemainingGuest`](drydock_api::hypervisor::RemainingGuest).
    ///
    /// | reason | remedy |
    /// |---|---|
    /// | `NotMigratable`, `CannotEvacuate` | restart the guest elsewhere if a VirtualMachine owns it, else delete it |
    /// | `NoTargetAvailable` | make room, or apply the remedy of `NotMigratable` |
    /// | `DisruptionBudget` | change the budget of another owner that selects the pod |
    /// | `External` | wait for the component that moves the guest, which is not Drydock |
    /// | `NotRequested`, `Refused` | none in general: the message has the cause |
    pub(crate) fn of(reason: &str, instance: &VirtualMachineInstance, namespace: &str, name: &str) -> Option<Self> {
        let restarts = controlling_owner(&instance.metadata).is_some_and(|owner| owner.kind == "VirtualMachine");
        let shut_down = if restarts {
            Self {
                text: "allow the guest to be restarted on another node".into(),
                command: Some(format!(
                    "kubectl annotate vmi -n {namespace} {name} {EVACUATION_FALLBACK}={RESTART}"
                )),
            }
        } else {
            Self {
                text: "delete the guest (it is not started again)".into(),
                command: Some(format!("kubectl delete vmi -n {namespace} {name}")),
            }
        };
        match reason {
            "NotMigratable" | "CannotEvacuate" => Some(shut_down),
            "NoTargetAvailable" => Some(Self {
                text: format!("free resources on another node, or {}", shut_down.text),
                command: shut_down.command,
            }),
            "DisruptionBudget" => Some(Self {
                text: "change the PodDisruptionBudget that selects the guest's pod".into(),
                command: Some(format!("kubectl get pdb -n {namespace}")),
            }),
            "External" => Some(Self {
                text: "the eviction strategy of the guest is External: another component must migrate the guest".into(),
                command: None,
            }),
            _ => None,
        }
    }
}
