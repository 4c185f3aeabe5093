//! Facts about the processor from the cpuid instruction. This module is used only on x86.
//!
//! Every access uses a reader, so that the same code parses recorded dumps.

use std::{collections::BTreeSet, sync::Arc};

use drydock_api::facts::{CpuFacts, CpuidTsc};
use raw_cpuid::{CpuId, CpuIdReader, CpuIdReaderNative, CpuIdResult};

use crate::cpu_flags::{FLAG_REGISTERS, Register};

/// Leaf with features, including the bit that reports a hypervisor.
const FEATURES: u32 = 1;

/// First leaf of the hypervisor's range. Its EAX is the last leaf.
const HYPERVISOR: u32 = 0x4000_0000;

/// Leaf with the frequency of the time stamp counter in kHz, defined by VMware and adopted by other hypervisors.
const HYPERVISOR_TSC: u32 = 0x4000_0010;

/// Reads the facts of this machine's processor.
pub fn read() -> CpuFacts {
    facts(&CpuIdReaderNative)
}

/// Returns the facts of the processor behind `reader`. Microcode and the number of CPUs come from the kernel instead.
pub fn facts<R: CpuIdReader>(reader: &R) -> CpuFacts {
    let cpuid = CpuId::with_cpuid_reader(reader.clone());
    let signature = cpuid.get_feature_info();
    CpuFacts {
        vendor: cpuid
            .get_vendor_info()
            .map(|vendor| vendor.as_str().trim().to_owned())
            .unwrap_or_default(),
        brand: cpuid
            .get_processor_brand_string()
            .map(|brand| brand.as_str().trim().to_owned())
            .unwrap_or_default(),
        family: signature.as_ref().map(|info| info.family_id().into()),
        model: signature.as_ref().map(|info| info.model_id().into()),
        stepping: signature.as_ref().map(|info| info.stepping_id().into()),
        microcode: None,
        features: Arc::new(features(reader).into_iter().map(Into::into).collect()),
        physical_address_bits: cpuid
            .get_processor_capacity_feature_info()
            .map(|info| info.physical_address_bits().into()),
        hypervisor: under_hypervisor(reader),
        online: None,
        tsc: Some(CpuidTsc {
            frequency_hz: tsc_frequency(reader, &cpuid),
            invariant: cpuid
                .get_advanced_power_mgmt_info()
                .is_some_and(|info| info.has_invariant_tsc()),
        }),
    }
}

/// Returns a leaf, or zeros if the processor does not have the leaf.
///
/// Without this check, Intel processors return the last leaf for any leaf beyond it.
fn leaf<R: CpuIdReader>(reader: &R, leaf: u32, subleaf: u32) -> CpuIdResult {
    let nothing = CpuIdResult {
        eax: 0,
        ebx: 0,
        ecx: 0,
        edx: 0,
    };
    let range = leaf & 0xf000_0000;
    if range == HYPERVISOR && !under_hypervisor(reader) {
        return nothing;
    }
    let last = reader.cpuid1(range).eax;
    if leaf > last || last & 0xf000_0000 != range {
        return nothing;
    }
    if leaf == 7 && subleaf > reader.cpuid2(7, 0).eax {
        return nothing;
    }
    reader.cpuid2(leaf, subleaf)
}

fn under_hypervisor<R: CpuIdReader>(reader: &R) -> bool {
    reader.cpuid1(FEATURES).ecx & (1 << 31) != 0
}

/// Returns the features under the kernel's names, sorted.
fn features<R: CpuIdReader>(reader: &R) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    for flags in FLAG_REGISTERS {
        let result = leaf(reader, flags.leaf, flags.subleaf);
        let bits = match flags.register {
            Register::Eax => result.eax,
            Register::Ebx => result.ebx,
            Register::Ecx => result.ecx,
            Register::Edx => result.edx,
        };
        found.extend(
            flags
                .flags
                .iter()
                .filter(|(bit, _)| bits >> bit & 1 == 1)
                .map(|(_, name)| *name),
        );
    }
    found
}

/// Returns the frequency of the time stamp counter in Hz, if cpuid reports it.
///
/// The sources are, in this order, the crystal (leaf 0x15), the hypervisor, and the base frequency (leaf 0x16). The
/// base frequency comes last because it is rounded to MHz. The kernel trusts the base frequency only if leaf 0x15 has a
/// ratio.
fn tsc_frequency<R: CpuIdReader>(reader: &R, cpuid: &CpuId<R>) -> Option<u64> {
    let tsc = cpuid.get_tsc_info();
    let from_crystal = tsc.as_ref().and_then(raw_cpuid::TscInfo::tsc_frequency);
    let from_hypervisor = || {
        let kilohertz = leaf(reader, HYPERVISOR_TSC, 0).eax;
        (kilohertz != 0).then(|| u64::from(kilohertz) * 1000)
    };
    let from_base = || {
        let has_ratio = tsc
            .as_ref()
            .is_some_and(|tsc| tsc.numerator() != 0 && tsc.denominator() != 0);
        let megahertz = cpuid.get_processor_frequency_info()?.processor_base_frequency();
        (has_ratio && megahertz != 0).then(|| u64::from(megahertz) * 1_000_000)
    };
    from_crystal.or_else(from_hypervisor).or_else(from_base)
}

#[cfg(test)]
mod tests;
