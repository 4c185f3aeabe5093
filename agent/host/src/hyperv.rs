//! Hyper-V enlightenments that KVM can provide to guests.
//!
//! The table is the table of KubeVirt's node-labeller. An enlightenment is available if KVM has its extension or, if it
//! has no extension, if KVM lists its model specific register. If both exist, only the extension counts.

use std::collections::BTreeSet;

/// Indication by which an enlightenment is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnlightenmentSign {
    /// `KVM_CHECK_EXTENSION` with this number returns a positive value.
    Extension(u32),
    /// This register is in the list of KVM's registers.
    Register(u32),
}

/// Enlightenments by KubeVirt's names.
///
/// The numbers are defined in the kernel's `kvm.h` and in Microsoft's hypervisor specification.
pub const ENLIGHTENMENTS: [(&str, EnlightenmentSign); 12] = [
    ("base", EnlightenmentSign::Extension(44)),
    ("time", EnlightenmentSign::Extension(96)),
    ("synic", EnlightenmentSign::Extension(123)),
    ("synic2", EnlightenmentSign::Extension(148)),
    ("vpindex", EnlightenmentSign::Extension(149)),
    ("tlbflush", EnlightenmentSign::Extension(155)),
    ("ipi", EnlightenmentSign::Extension(161)),
    ("reset", EnlightenmentSign::Register(0x4000_0003)),
    ("runtime", EnlightenmentSign::Register(0x4000_0010)),
    ("frequencies", EnlightenmentSign::Register(0x4000_0022)),
    ("synictimer", EnlightenmentSign::Register(0x4000_00b0)),
    ("reenlightenment", EnlightenmentSign::Register(0x4000_0106)),
];

/// Returns the extensions to query.
pub fn extensions() -> impl Iterator<Item = u32> {
    ENLIGHTENMENTS.iter().filter_map(|(_, sign)| match sign {
        EnlightenmentSign::Extension(number) => Some(*number),
        EnlightenmentSign::Register(_) => None,
    })
}

/// Returns the sorted names of the enlightenments, given KVM's extensions and its listed registers.
pub fn enlightenments(extensions: &BTreeSet<u32>, registers: &BTreeSet<u32>) -> Vec<String> {
    let mut names: Vec<String> = ENLIGHTENMENTS
        .iter()
        .filter(|(_, sign)| match sign {
            EnlightenmentSign::Extension(number) => extensions.contains(number),
            EnlightenmentSign::Register(number) => registers.contains(number),
        })
        .map(|(name, _)| (*name).to_owned())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sign_decides_alone() {
        for (name, sign) in ENLIGHTENMENTS {
            let (mut extensions, mut registers) = (BTreeSet::new(), BTreeSet::new());
            match sign {
                EnlightenmentSign::Extension(number) => extensions.insert(number),
                EnlightenmentSign::Register(number) => registers.insert(number),
            };
            assert_eq!(enlightenments(&extensions, &registers), [name]);
        }
    }

    #[test]
    fn registers_do_not_stand_in_for_extensions() {
        // The registers belong to vpindex, synic and the reference time.
        let registers = BTreeSet::from([0x4000_0002, 0x4000_0080, 0x4000_0020]);
        assert!(enlightenments(&BTreeSet::new(), &registers).is_empty());
    }
}
