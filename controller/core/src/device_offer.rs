//! What a node's device plugin offers to the pods of guests.

use crate::readiness::NodeReadiness;

/// How guests run on a node; this decides what a pod is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOffer {
    /// With KVM: a pod gets the KVM device.
    Kvm,
    /// In emulation, which needs no device. Shares are counted all the same, so that the same pod fits both kinds of
    /// nodes.
    Emulation,
    /// Not at all: all shares are unhealthy, and the kubelet reports none.
    Nothing,
}

impl DeviceOffer {
    /// Returns what a node with this readiness offers.
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
