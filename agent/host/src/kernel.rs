//! Facts from the kernel: its release, the microcode, online CPUs, and KVM's module parameters.

use std::{collections::BTreeMap, fs};

use crate::{cpuinfo, roots::Roots};

/// Maximum number of parameters. The next constant is the maximum length of a value in bytes.
const MAX_PARAMETERS: usize = 256;
const MAX_VALUE: usize = 256;

/// Returns the release of the running kernel; empty if /proc does not contain it.
pub fn release(roots: &Roots) -> String {
    roots.proc_text("sys/kernel/osrelease").unwrap_or_default()
}

/// Returns the microcode revision of the first CPU, as the kernel prints it.
pub fn microcode(roots: &Roots) -> Option<String> {
    let text = roots.proc_text("cpuinfo")?;
    cpuinfo::first_block(&text)
        .get("microcode")
        .map(|revision| (*revision).to_owned())
}

/// Returns the number of online CPUs.
pub fn online(roots: &Roots) -> Option<u32> {
    count(&roots.sys_text("devices/system/cpu/online")?)
}

/// Counts the elements of a list like `0-3,8`.
fn count(list: &str) -> Option<u32> {
    list.split(',').try_fold(0u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Returns whether real-time tasks may use the whole CPU.
pub fn real_time(roots: &Roots) -> bool {
    roots.proc_text("sys/kernel/sched_rt_runtime_us").as_deref() == Some("-1")
}

/// Returns the sorted names of the loaded modules `kvm` and `kvm_*`. A built-in module is listed if it has parameters.
pub fn kvm_modules(roots: &Roots) -> Vec<String> {
    let mut modules: Vec<String> = fs::read_dir(roots.sys.join("module"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name == "kvm" || name.starts_with("kvm_"))
        .take(MAX_PARAMETERS)
        .collect();
    modules.sort_unstable();
    modules
}

/// Returns the parameters of KVM's modules, as `module.parameter` to value. Unreadable parameters are omitted.
pub fn kvm_parameters(roots: &Roots) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::new();
    for module in kvm_modules(roots) {
        let folder = format!("module/{module}/parameters");
        for entry in fs::read_dir(roots.sys.join(&folder)).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let Some(mut value) = roots.sys_text(&format!("{folder}/{name}")) else {
                continue;
            };
            value.truncate(value.floor_char_boundary(MAX_VALUE));
            if parameters.len() < MAX_PARAMETERS {
                parameters.insert(format!("{module}.{name}"), value);
            }
        }
    }
    parameters
}

#[cfg(test)]
mod tests;
