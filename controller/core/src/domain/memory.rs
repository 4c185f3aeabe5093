//! The guest's memory.

use drydock_api::kubevirt::VirtualMachineInstanceSpec;

use super::problem::DomainProblem;
use crate::quantity;

/// Minimum memory, in bytes.
const LEAST: u64 = 1 << 20;
/// Exclusive upper bound of the memory, in bytes: more than x86 can address.
const TOO_MUCH: u64 = 1 << 53;

/// Returns the guest's memory in bytes: `memory.guest`, else its memory request, else its memory limit.
///
/// # Errors
/// If none of them is set, or the value is not an amount of memory.
pub fn guest_memory(spec: &VirtualMachineInstanceSpec) -> Result<u64, DomainProblem> {
    let guest = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let resources = spec.domain.resources.as_ref();
    let amount = guest
        .or_else(|| resources.and_then(|resources| resources.requests.get("memory")))
        .or_else(|| resources.and_then(|resources| resources.limits.get("memory")))
        .ok_or(DomainProblem::NoMemory)?;
    quantity::bytes(&amount.0)
        .filter(|bytes| (LEAST..TOO_MUCH).contains(bytes))
        .ok_or_else(|| DomainProblem::BadMemory(amount.0.clone()))
}
