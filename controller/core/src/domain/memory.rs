//! How much memory a guest has.

use drydock_api::kubevirt::VirtualMachineInstanceSpec;

use super::problem::DomainProblem;
use crate::quantity;

/// Least memory, in bytes.
const LEAST: u64 = 1 << 20;
/// More than any guest has, in bytes: more than x86 can address.
const TOO_MUCH: u64 = 1 << 53;

/// Memory of the guest in bytes: `memory.guest`, else the request, else the limit of its resources.
///
/// # Errors
/// If there is none of them, or it is no amount of memory.
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
