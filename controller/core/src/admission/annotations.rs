//! Annotations that ask for something that Drydock does not do: refused by name, as fields are.
//!
//! Only annotations by which KubeVirt makes the guest or its pod another one are here. Those that describe
//! (`vm.kubevirt.io/os`), that others act on (`sidecar.istio.io/inject`) or without which the guest gets the same
//! (`kubevirt.io/memfd`) are kept and not acted on.

use serde_json::Value;

use super::{At, Refusals};

/// Annotations of instances that are refused, unless they ask for nothing.
pub const REFUSED: [&str; 7] = [
    // Programs that change the guest's description on its way to libvirt.
    "hooks.kubevirt.io/hookSidecars",
    // Networks beside the pod's: the pod would get interfaces that its guest never sees.
    "k8s.v1.cni.cncf.io/networks",
    // PCI addresses as the guest sees them.
    "kubevirt.io/disablePCIHole64",
    "kubevirt.io/placePCIDevicesOnRootComplex",
    // What the guest is set up by.
    "kubevirt.io/ignitiondata",
    // For the search for faults in KubeVirt.
    "kubevirt.io/keep-launcher-alive-after-failure",
    "kubevirt.io/libvirt-log-filters",
];

/// Values that ask for nothing.
const NOTHING: [&str; 3] = ["", "false", "[]"];

/// Refuses what metadata of an instance, here or in a template, asks for by annotation.
pub(super) fn check(metadata: Option<&Value>, at: &At, refusals: &mut Refusals) {
    let annotations = metadata.and_then(|metadata| metadata.get("annotations"));
    for key in REFUSED {
        let value = annotations.and_then(|all| all.get(key)).and_then(Value::as_str);
        if value.is_some_and(|value| !NOTHING.contains(&value.trim())) {
            refusals.not_supported(&at.field("annotations").key(key));
        }
    }
}
