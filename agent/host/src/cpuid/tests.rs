use std::collections::HashMap;

use super::*;

/// A recorded processor, which maps leaf and sub-leaf to registers.
#[derive(Clone)]
struct Dump(HashMap<(u32, u32), CpuIdResult>);

impl CpuIdReader for Dump {
    fn cpuid2(&self, eax: u32, ecx: u32) -> CpuIdResult {
        // Leaves that ignore the sub-leaf were recorded with sub-leaf 0.
        let found = self.0.get(&(eax, ecx)).or_else(|| self.0.get(&(eax, 0)));
        found.copied().unwrap_or(CpuIdResult {
            eax: 0,
            ebx: 0,
            ecx: 0,
            edx: 0,
        })
    }
}

fn dump(text: &str) -> Dump {
    let line = |line: &str| {
        let n: Vec<u32> = line
            .split_whitespace()
            .map(|word| u32::from_str_radix(word, 16).unwrap())
            .collect();
        (
            (n[0], n[1]),
            CpuIdResult {
                eax: n[2],
                ebx: n[3],
                ecx: n[4],
                edx: n[5],
            },
        )
    };
    Dump(text.lines().map(line).collect())
}

const KVM_GUEST: &str = include_str!("../../testdata/cpuid/kvm-guest.cpuid");
const SKYLAKE: &str = include_str!("../../testdata/cpuid/skylake.cpuid");
const ROME: &str = include_str!("../../testdata/cpuid/epyc-rome.cpuid");

#[test]
fn recorded_processors() {
    insta::assert_json_snapshot!("kvm_guest", facts(&dump(KVM_GUEST)));
    insta::assert_json_snapshot!("skylake", facts(&dump(SKYLAKE)));
    insta::assert_json_snapshot!("epyc_rome", facts(&dump(ROME)));
}

#[test]
fn tsc_frequency_by_source() {
    let frequency = |text: &str| facts(&dump(text)).tsc.unwrap().frequency_hz;
    let hypervisor =
        |text: &str| text.replace("7ffafbbf", "fffafbbf") + "40000000 0 40000010 0 0 0\n40000010 0 2625a0 0 0 0\n";
    // The frequency of the crystal is missing, so the base frequency is used.
    assert_eq!(frequency(SKYLAKE), Some(4_000_000_000));
    // The frequency is 24 MHz × 334 / 2.
    let crystal = SKYLAKE.replace("0000014e 00000000", "0000014e 016e3600");
    assert_eq!(frequency(&crystal), Some(4_008_000_000));
    assert_eq!(frequency(&hypervisor(&crystal)), Some(4_008_000_000));
    // The hypervisor's frequency is exact, the base frequency is rounded.
    assert_eq!(frequency(&hypervisor(SKYLAKE)), Some(2_500_000_000));
    // The hypervisor's leaves have no meaning without a hypervisor.
    assert_eq!(
        frequency(&hypervisor(SKYLAKE).replace("fffafbbf", "7ffafbbf")),
        Some(4_000_000_000)
    );
    // Only a ratio shows that the base frequency is the frequency of the counter.
    assert_eq!(frequency(&SKYLAKE.replace("0000014e", "00000000")), None);
    assert_eq!(frequency(ROME), None);
}

#[test]
fn leaves_beyond_the_last_are_not_believed() {
    // For a leaf beyond the last leaf, Intel processors return the last leaf.
    let mut processor = dump("0 0 1 756e6547 6c65746e 49656e69\n1 0 506e3 0 0 bfebfbff\n");
    processor.0.insert(
        (7, 0),
        CpuIdResult {
            eax: 0,
            ebx: !0,
            ecx: !0,
            edx: !0,
        },
    );
    processor.0.insert(
        (0x8000_0001, 0),
        CpuIdResult {
            eax: 0,
            ebx: !0,
            ecx: !0,
            edx: !0,
        },
    );
    let found = facts(&processor).features;
    assert!(found.contains(&"sse2".to_owned()));
    assert!(
        !found.contains(&"avx2".to_owned()) && !found.contains(&"lm".to_owned()),
        "{found:?}"
    );
}

/// Checks that every known feature that the kernel lists is also read from this machine's cpuid.
#[test]
fn the_kernel_agrees() {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let keys = crate::cpuinfo::first_block(&text);
    let found = read();
    let known: BTreeSet<&str> = FLAG_REGISTERS
        .iter()
        .flat_map(|register| register.flags)
        .map(|(_, name)| *name)
        .collect();
    for flag in keys["flags"].split_whitespace().filter(|flag| known.contains(flag)) {
        assert!(found.features.iter().any(|feature| feature == flag), "{flag}");
    }
    assert_eq!(found.vendor, keys["vendor_id"]);
    assert_eq!(found.brand, keys["model name"]);
    assert_eq!(found.family.unwrap().to_string(), keys["cpu family"]);
    assert_eq!(found.model.unwrap().to_string(), keys["model"]);
    assert_eq!(found.stepping.unwrap().to_string(), keys["stepping"]);
    let bits = found.physical_address_bits.unwrap();
    assert!(
        keys["address sizes"].starts_with(&format!("{bits} bits physical")),
        "{}",
        keys["address sizes"]
    );
}

#[test]
fn names_are_unique() {
    let mut seen = BTreeSet::new();
    for (_, name) in FLAG_REGISTERS.iter().flat_map(|register| register.flags) {
        assert!(seen.insert(name), "{name} twice");
    }
}
