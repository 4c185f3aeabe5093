//! The guest's machine type, firmware and clock.

use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    devices::{DiskBus, Input},
    domain_spec::{Clock, TickPolicy, Timer},
};

use crate::admission::{At, RefusalList, defaults};

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let domain = at.field("domain");
    if let Some(architecture) = &spec.architecture
        && !defaults::ARCHITECTURES.contains(&architecture.as_str())
    {
        let allowed = defaults::ARCHITECTURES.join(", ");
        refusals.not_allowed(&at.field("architecture"), architecture, allowed);
    }
    machine(spec, &domain.field("machine").field("type"), refusals);
    inputs(
        &spec.domain.devices.inputs,
        &domain.field("devices").field("inputs"),
        refusals,
    );
    if let Some(clock) = &spec.domain.clock {
        self::clock(clock, &domain.field("clock"), refusals);
    }
    if let Some(firmware) = &spec.domain.firmware {
        let at = domain.field("firmware");
        if let Some(uuid) = &firmware.uuid
            && !is_uuid(uuid)
        {
            refusals.not_allowed(
                &at.field("uuid"),
                uuid,
                "a UUID such as 5d307ca9-b3ef-428c-8861-06e72d69f223",
            );
        }
        if let Some(serial) = &firmware.serial
            && (serial.chars().any(char::is_control) || serial.chars().count() > 256)
        {
            refusals.not_allowed(&at.field("serial"), serial, "up to 256 printable characters");
        }
    }
}

fn inputs(inputs: &[Input], at: &At, refusals: &mut RefusalList) {
    for (index, input) in inputs.iter().enumerate() {
        let earlier = inputs[..index].iter().position(|other| other.name == input.name);
        if let Some(first) = earlier {
            refusals.duplicate(&at.index(index).field("name"), &input.name, &at.index(first));
        }
    }
}

/// Requires a machine type with the bus that the guest's devices attach to: PCI Express, or channels on s390x.
fn machine(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let machine = spec
        .domain
        .machine
        .as_ref()
        .and_then(|machine| machine.type_.as_deref());
    let Some(machine) = machine.filter(|machine| !machine.is_empty()) else {
        return;
    };
    let of = |architecture: &str| -> &'static [&'static str] {
        match architecture {
            "amd64" => &["q35", "pc-q35-"],
            "arm64" => &["virt", "virt-"],
            "s390x" => &["s390-ccw-virtio", "s390-ccw-virtio-"],
            _ => &[],
        }
    };
    let fits = |architecture: &str| {
        of(architecture)
            .iter()
            .any(|pattern| machine == *pattern || (pattern.ends_with('-') && machine.starts_with(pattern)))
    };
    let known = spec
        .architecture
        .as_deref()
        .filter(|architecture| defaults::ARCHITECTURES.contains(architecture));
    let considered: Vec<&str> = known.map_or_else(|| defaults::ARCHITECTURES.to_vec(), |one| vec![one]);
    if !considered.iter().any(|architecture| fits(architecture)) {
        let allowed = considered.iter().map(|architecture| {
            let patterns = of(architecture).iter().map(|pattern| match pattern.ends_with('-') {
                true => format!("{pattern}VERSION"),
                false => (*pattern).to_owned(),
            });
            format!("{} on {architecture}", patterns.collect::<Vec<_>>().join(" or "))
        });
        refusals.not_allowed(at, machine, allowed.collect::<Vec<_>>().join(", "));
    }
}

fn clock(clock: &Clock, at: &At, refusals: &mut RefusalList) {
    let Some(timers) = &clock.timer else { return };
    let at = at.field("timer");
    // The policies that KubeVirt's API documents for each timer.
    let all = [
        TickPolicy::Delay,
        TickPolicy::Catchup,
        TickPolicy::Merge,
        TickPolicy::Discard,
    ];
    let timers: [(&str, &Option<Timer>, &[TickPolicy], bool); 5] = [
        ("hpet", &timers.hpet, &all, false),
        ("kvm", &timers.kvm, &[], false),
        (
            "pit",
            &timers.pit,
            &[TickPolicy::Delay, TickPolicy::Catchup, TickPolicy::Discard],
            false,
        ),
        ("rtc", &timers.rtc, &[TickPolicy::Delay, TickPolicy::Catchup], true),
        ("hyperv", &timers.hyperv, &[], false),
    ];
    for (name, timer, policies, has_track) in timers {
        let Some(timer) = timer else { continue };
        let at = at.field(name);
        if let Some(policy) = timer.tick_policy
            && !policies.contains(&policy)
        {
            let allowed: Vec<_> = policies.iter().map(|policy| policy.as_str()).collect();
            let allowed = if allowed.is_empty() {
                "none".to_owned()
            } else {
                allowed.join(", ")
            };
            refusals.not_allowed(&at.field("tickPolicy"), policy.as_str(), allowed);
        }
        if let Some(track) = timer.track.filter(|_| !has_track) {
            refusals.not_allowed(&at.field("track"), track.as_str(), "none; only rtc supports track");
        }
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

/// Returns whether machines of an architecture have a bus; without an architecture, whether machines of any have it.
pub(super) fn has_bus(architecture: Option<&str>, bus: DiskBus) -> bool {
    bus != DiskBus::Sata || !matches!(architecture, Some("arm64" | "s390x"))
}
