//! The offer of a node's device plugin to the pods of guests.

use crate::readiness::NodeReadiness;

/// The virtualization that a node offers to guests; it decides which devices a pod is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOffer {
    /// KVM: a pod gets the KVM device.
    Kvm,
    /// Emulation, which needs no device. Shares are counted all the same, so that the same pod fits both kinds of
    /// nodes.
    Emulation,
    /// No virtualization: all shares are unhealthy, and the kubelet reports none.
    Nothing,
}

impl DeviceOffer {
    /// Returns the offer of a node with this readiness.
    pub fn of(readiness: NodeReadiness) -> Self {
        match readiness {
            NodeReadiness::Ready => Self::Kvm,
            NodeReadiness::ReadyByEmulation => Self::Emulation,
            NodeReadiness::NotInspected
            | NodeReadiness::ArchitectureNotSupported
            | NodeReadiness::KvmUnavailable(_) => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::facts::KvmState;

    use super::*;

    #[test]
    fn the_table_of_offers() {
        for (readiness, expected) in [
            (NodeReadiness::Ready, DeviceOffer::Kvm),
            (NodeReadiness::ReadyByEmulation, DeviceOffer::Emulation),
            (NodeReadiness::NotInspected, DeviceOffer::Nothing),
            (NodeReadiness::ArchitectureNotSupported, DeviceOffer::Nothing),
            (
                NodeReadiness::KvmUnavailable(KvmState::NotPermitted),
                DeviceOffer::Nothing,
            ),
        ] {
            assert_eq!(DeviceOffer::of(readiness), expected, "{readiness:?}");
            assert_eq!(readiness.accepts(), expected != DeviceOffer::Nothing, "{readiness:?}");
        }
    }
}
