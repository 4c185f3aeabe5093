//! Annotations that request behaviour that Drydock does not implement: refused by name, as fields are.
//!
//! Only annotations that make KubeVirt change the guest or its pod are listed here. Annotations that only describe
//! (`vm.kubevirt.io/os`), that other components act on (`sidecar.istio.io/inject`) or that make no difference to the
//! guest (`kubevirt.io/memfd`) are kept and ignored.

use serde_json::Value;

use super::{At, RefusalList};

/// Annotations of instances that are refused, unless their value is in `NOTHING`.
pub const REFUSED: [&str; 7] = [
    // Programs that change the domain XML before libvirt receives it.
    "hooks.kubevirt.io/hookSidecars",
    // Secondary networks: the pod would get interfaces that its guest never sees.
    "k8s.v1.cni.cncf.io/networks",
    // PCI addresses inside the guest.
    "kubevirt.io/disablePCIHole64",
    "kubevirt.io/placePCIDevicesOnRootComplex",
    // Provisioning data of the guest (Ignition).
    "kubevirt.io/ignitiondata",
    // Debugging of KubeVirt itself.
    "kubevirt.io/keep-launcher-alive-after-failure",
    "kubevirt.io/libvirt-log-filters",
];

/// Values that request nothing.
const NOTHING: [&str; 3] = ["", "false", "[]"];

/// Refuses the unsupported annotations in an instance's metadata, in the instance itself or in a template.
pub(super) fn check(metadata: Option<&Value>, at: &At, refusals: &mut RefusalList) {
    let annotations = metadata.and_then(|metadata| metadata.get("annotations"));
    for key in REFUSED {
        let value = annotations.and_then(|all| all.get(key)).and_then(Value::as_str);
        if value.is_some_and(|value| !NOTHING.contains(&value.trim())) {
            refusals.not_supported(&at.field("annotations").key(key));
        }
    }
}
