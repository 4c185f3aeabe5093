//! The guest's CPU and memory, and its pod's resources.

use std::collections::BTreeMap;

use drydock_api::{
    kubevirt::{
        Amount,
        domain_spec::{Cpu, Domain, Resources},
    },
    launcher::KVM_RESOURCE,
};

use crate::{
    admission::{At, RefusalList},
    quantity,
};

/// Maximum number of CPUs of a guest.
const CPUS: u64 = 512;
/// Minimum guest memory in bytes: no guest boots with less.
const LEAST_MEMORY: u64 = 1 << 20;
/// Maximum guest memory in bytes that current machine types support.
const MOST_MEMORY: u64 = 1 << 44;

/// Upper bound of a pod's memory in bytes: with the overhead added, a larger amount would not fit into 63 bits.
const TOO_MUCH: u64 = 1 << 53;

const BYTES: &str = "an amount of bytes such as 64Mi or 1.5Gi, below 8Pi and not negative";
const CPU_AMOUNT: &str = "an amount of CPU such as 2 or 500m, not negative";

pub(super) fn check(domain: &Domain, at: &At, refusals: &mut RefusalList) {
    if let Some(cpu) = &domain.cpu {
        topology(cpu, &at.field("cpu"), refusals);
    }
    let resources = domain.resources.clone().unwrap_or_default();
    requests_and_limits(&resources, &at.field("resources"), refusals);
    memory(domain, &resources, at, refusals);
}

fn topology(cpu: &Cpu, at: &At, refusals: &mut RefusalList) {
    let mut product = 1;
    for (name, count) in [("cores", cpu.cores), ("sockets", cpu.sockets), ("threads", cpu.threads)] {
        let Some(count) = count else { continue };
        if count == 0 || u64::from(count) > CPUS {
            refusals.not_allowed(&at.field(name), count, format_args!("1 to {CPUS}"));
        }
        product *= u64::from(count).clamp(1, CPUS);
    }
    if product > CPUS {
        refusals.not_allowed(
            at,
            format_args!("{product} CPUs"),
            format_args!("at most {CPUS} as the product of cores, sockets and threads"),
        );
    }
    for (index, feature) in cpu.features.iter().enumerate() {
        let at_name = at.field("features").index(index).field("name");
        let first = cpu.features[..index]
            .iter()
            .position(|other| other.name == feature.name);
        if let Some(first) = first {
            refusals.duplicate(&at_name, &feature.name, &at.field("features").index(first));
        }
    }
}

fn requests_and_limits(resources: &Resources, at: &At, refusals: &mut RefusalList) {
    for (part, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, amount) in amounts {
            let at = at.field(part).field(name);
            match name.as_str() {
                "memory" | "ephemeral-storage" if quantity::bytes(&amount.0).is_none_or(|bytes| bytes >= TOO_MUCH) => {
                    refusals.not_allowed(&at, amount, BYTES);
                }
                "cpu" => match quantity::milli_cpus(&amount.0) {
                    None => refusals.not_allowed(&at, amount, CPU_AMOUNT),
                    // A guest without a topology gets as many CPUs as its pod.
                    Some(milli) if milli > 1000 * CPUS => {
                        refusals.not_allowed(&at, amount, format_args!("at most {CPUS}"));
                    }
                    Some(_) => {}
                },
                "memory" | "ephemeral-storage" => {}
                // Each guest has exactly one share of KVM.
                KVM_RESOURCE => {
                    if quantity::bytes(&amount.0) != Some(1) {
                        refusals.not_allowed(&at, amount, "1, which is requested for each guest");
                    }
                }
                _ => refusals.not_supported(&at),
            }
        }
    }
    for (name, read) in [
        ("memory", quantity::bytes as fn(&str) -> Option<u64>),
        ("cpu", quantity::milli_cpus),
        ("ephemeral-storage", quantity::bytes),
    ] {
        let amount = |amounts: &BTreeMap<String, Amount>| {
            amounts
                .get(name)
                .and_then(|amount| Some((read(&amount.0)?, amount.clone())))
        };
        if let (Some((request, text)), Some((limit, most))) = (amount(&resources.requests), amount(&resources.limits))
            && request > limit
        {
            let allowed = format_args!("at most the limit, {most}");
            refusals.not_allowed(&at.field("requests").field(name), text, allowed);
        }
    }
}

fn memory(domain: &Domain, resources: &Resources, at: &At, refusals: &mut RefusalList) {
    let at_guest = at.field("memory").field("guest");
    let guest = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let (limit, request) = (resources.limits.get("memory"), resources.requests.get("memory"));
    let from = [
        (guest, at_guest.clone()),
        (request, at.field("resources").field("requests").field("memory")),
        (limit, at.field("resources").field("limits").field("memory")),
    ];
    let Some((amount, at_amount)) = from.into_iter().find_map(|(amount, at)| Some((amount?, at))) else {
        let why = format_args!("alternatively, set {at}.resources.requests.memory or {at}.resources.limits.memory");
        return refusals.required(&at_guest, why);
    };
    let Some(bytes) = quantity::bytes(&amount.0) else {
        // Invalid requests and limits have already been refused.
        if guest.is_some() {
            refusals.not_allowed(&at_guest, amount, BYTES);
        }
        return;
    };
    if !(LEAST_MEMORY..=MOST_MEMORY).contains(&bytes) {
        refusals.not_allowed(&at_amount, amount, "1Mi to 16Ti");
    }
    if guest.is_some()
        && let Some(most) = limit
        && quantity::bytes(&most.0).is_some_and(|limit| bytes > limit)
    {
        refusals.not_allowed(
            &at_guest,
            amount,
            format_args!("at most the limit of the pod's memory, {most}"),
        );
    }
}
