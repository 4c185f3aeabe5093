//! What the device plugin of a node offers to the pods of guests.

use crate::readiness::Readiness;

/// How guests run on a node, which decides what a pod is given for its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// By KVM: a pod is given its device.
    Kvm,
    /// By emulation, which needs no device; a share is counted all the same, so that the same pod
    /// fits both kinds of nodes.
    Emulation,
    /// Not at all: all shares are unhealthy, and the kubelet says that there are none.
    Nothing,
}

impl Offer {
    /// What a node that is ready in this way offers.
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
