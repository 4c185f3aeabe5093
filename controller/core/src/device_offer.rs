//! What a node's device plugin offers to the pods of guests.

use crate::readiness::Readiness;

/// How guests run on a node; this decides what a pod is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// With KVM: a pod gets the KVM device.
    Kvm,
    /// In emulation, which needs no device. Shares are counted all the same, so that the same pod fits both kinds of
    /// nodes.
    Emulation,
    /// Not at all: all shares are unhealthy, and the kubelet reports none.
    Nothing,
}

impl Offer {
    /// Returns what a node with this readiness offers.
    pub fn of(readiness: Readiness) -> Self {
        match readiness {
            Readiness::Ready => Self::Kvm,
            Readiness::ReadyByEmulation => Self::Emulation,
            Readiness::NotInspected | Readiness::ArchitectureNotSupported | Readiness::KvmUnavailable(_) => {
                Self::Nothing
            }
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
            (Readiness::Ready, Offer::Kvm),
            (Readiness::ReadyByEmulation, Offer::Emulation),
            (Readiness::NotInspected, Offer::Nothing),
            (Readiness::ArchitectureNotSupported, Offer::Nothing),
            (Readiness::KvmUnavailable(KvmState::NotPermitted), Offer::Nothing),
        ] {
            assert_eq!(Offer::of(readiness), expected, "{readiness:?}");
            assert_eq!(readiness.accepts(), expected != Offer::Nothing, "{readiness:?}");
        }
    }
}
