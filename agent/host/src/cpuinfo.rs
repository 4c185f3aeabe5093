//! Facts about the processor from the kernel's `/proc/cpuinfo`.
//!
//! On amd64, only the microcode is read from this file. On other architectures, all facts are. The file has one block
//! per CPU. On s390x, a common block precedes them.

use std::{collections::BTreeMap, sync::Arc};

use drydock_api::facts::CpuFacts;

use crate::architecture::Architecture;

/// Returns the keys of the first block, each with its first value.
///
/// On s390x, the first block contains lines like `processor 0: version = ...`. They are stored under the key before the
/// colon.
/// colon.
pub fn first_block(text: &str) -> BTreeMap<&str, &str> {
    let mut keys = BTreeMap::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            if line.trim().is_empty() && !keys.is_empty() {
                break;
            }
            continue;
        };
        keys.entry(key.trim()).or_insert(value.trim());
    }
    keys
}

/// Returns the facts about a processor without cpuid.
pub fn facts(text: &str, architecture: &Architecture) -> CpuFacts {
    let keys = first_block(text);
    let value = |key: &str| keys.get(key).map(|value| (*value).to_owned());
    let number = |key: &str| keys.get(key).and_then(|value| parse_number(value));
    let listed = |key: &str| {
        let mut features: Vec<String> = keys
            .get(key)
            .map(|value| value.split_whitespace().map(Into::into).collect())
            .unwrap_or_default();
        features.sort_unstable();
        features.dedup();
        Arc::new(features)
    };
    match architecture {
        Architecture::Arm64 => CpuFacts {
            vendor: value("CPU implementer").unwrap_or_default(),
            family: number("CPU architecture"),
            model: number("CPU part"),
            stepping: number("CPU revision"),
            features: listed("Features"),
            ..CpuFacts::default()
        },
        Architecture::S390x => {
            let machine = keys
                .iter()
                .find_map(|(key, line)| key.starts_with("processor").then(|| field(line, "machine")));
            CpuFacts {
                vendor: value("vendor_id").unwrap_or_default(),
                brand: machine
                    .clone()
                    .flatten()
                    .map(|machine| format!("IBM {machine}"))
                    .unwrap_or_default(),
                model: machine.flatten().and_then(|machine| machine.parse().ok()),
                features: listed("features"),
                ..CpuFacts::default()
            }
        }
        _ => CpuFacts {
            vendor: value("vendor_id").or_else(|| value("mvendorid")).unwrap_or_default(),
            brand: value("model name").or_else(|| value("cpu")).unwrap_or_default(),
            features: listed("flags"),
            ..CpuFacts::default()
        },
    }
}

/// Extracts a field such as `machine = 3931` from a line of comma-separated fields, as s390x writes them.
fn field(line: &str, name: &str) -> Option<String> {
    line.split(',').find_map(|part| {
        let (key, value) = part.split_once('=')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Parses a number as the kernel writes it, decimal or hexadecimal.
fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arm64() {
        let text = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes\nCPU implementer\t: 0x41\n\
            CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\nprocessor\t: 1\nCPU part\t: 0xd0d\n";
        let facts = facts(text, &Architecture::Arm64);
        assert_eq!(facts.vendor, "0x41");
        assert_eq!(
            (facts.family, facts.model, facts.stepping),
            (Some(8), Some(0xd0c), Some(1))
        );
        assert_eq!(*facts.features, ["aes", "asimd", "evtstrm", "fp"]);
    }

    #[test]
    fn s390x() {
        let text = "vendor_id       : IBM/S390\n# processors    : 2\nbogomips per cpu: 3033.00\n\
            features\t: esan3 zarch stfle msa\nprocessor 0: version = FF,  identification = 0133E8,  machine = 3931\n\
            processor 1: version = FF,  identification = 0133E8,  machine = 3931\n\ncpu number      : 0\n";
        let facts = facts(text, &Architecture::S390x);
        assert_eq!(facts.vendor, "IBM/S390");
        assert_eq!((facts.brand.as_str(), facts.model), ("IBM 3931", Some(3931)));
        assert_eq!(*facts.features, ["esan3", "msa", "stfle", "zarch"]);
    }

    #[test]
    fn garbage_leaves_fields_empty() {
        for text in ["", "\n\n", "no colon", ":::", "CPU part : 0xzz\n"] {
            let facts = facts(text, &Architecture::Arm64);
            assert_eq!(facts, CpuFacts::default(), "{text:?}");
        }
    }
}
