//! The guest's clock and timers.

use drydock_api::kubevirt::domain_spec::{Clock, TickPolicy, Timer};

use super::{element::Element, problem::DomainProblem};

/// libvirt's properties of a timer.
struct TimerProperties {
    /// Name in manifests.
    name: &'static str,
    /// Name in libvirt.
    libvirt: &'static str,
    /// Allowed policies for missed ticks. libvirt refuses all others; for the hpet it accepts all and QEMU supports
    /// none.
    policies: &'static [TickPolicy],
    /// Whether the timer can track the guest's or the host's time.
    tracks: bool,
}

const RTC: TimerProperties = TimerProperties {
    name: "rtc",
    libvirt: "rtc",
    policies: &[TickPolicy::Delay, TickPolicy::Catchup],
    tracks: true,
};
const PIT: TimerProperties = TimerProperties {
    name: "pit",
    libvirt: "pit",
    policies: &[TickPolicy::Delay, TickPolicy::Catchup, TickPolicy::Discard],
    tracks: false,
};
const HPET: TimerProperties = TimerProperties {
    name: "hpet",
    libvirt: "hpet",
    policies: &[
        TickPolicy::Delay,
        TickPolicy::Catchup,
        TickPolicy::Merge,
        TickPolicy::Discard,
    ],
    tracks: false,
};
const KVM: TimerProperties = TimerProperties {
    name: "kvm",
    libvirt: "kvmclock",
    policies: &[],
    tracks: false,
};
const HYPERV: TimerProperties = TimerProperties {
    name: "hyperv",
    libvirt: "hypervclock",
    policies: &[],
    tracks: false,
};

/// Returns the element `clock`: UTC unless the spec sets something else, with the timers in the spec. QEMU's defaults
/// apply to other timers, as in KubeVirt.
pub(super) fn element(clock: Option<&Clock>) -> Result<Element, DomainProblem> {
    let element = Element::new("clock");
    let Some(clock) = clock else {
        return Ok(element.with("offset", "utc"));
    };
    let offset = clock.utc.as_ref().and_then(|utc| utc.offset_seconds);
    // With `utc` set, KubeVirt ignores the time zone.
    let zone = clock.timezone.as_ref().filter(|_| clock.utc.is_none());
    let element = match (zone, offset) {
        (Some(zone), _) => element.with("offset", "timezone").with("timezone", zone),
        (None, Some(seconds)) => element
            .with("offset", "variable")
            .with("adjustment", seconds.to_string())
            .with("basis", "utc"),
        (None, None) => element.with("offset", "utc"),
    };
    let Some(timers) = &clock.timer else {
        return Ok(element);
    };
    let timers = [
        (RTC, &timers.rtc),
        (PIT, &timers.pit),
        (HPET, &timers.hpet),
        (KVM, &timers.kvm),
        (HYPERV, &timers.hyperv),
    ];
    let timers = timers
        .into_iter()
        .filter_map(|(kind, timer)| timer.as_ref().map(|timer| timer_element(&kind, timer)));
    Ok(element.children(timers.collect::<Result<Vec<_>, _>>()?))
}

fn timer_element(kind: &TimerProperties, timer: &Timer) -> Result<Element, DomainProblem> {
    let refuse = |setting: String| {
        Err(DomainProblem::BadTimer {
            timer: kind.name,
            setting,
        })
    };
    let present = timer.present.unwrap_or(true);
    let element = Element::new("timer")
        .with("name", kind.libvirt)
        .with("present", if present { "yes" } else { "no" });
    if let Some(policy) = timer.tick_policy
        && !kind.policies.contains(&policy)
    {
        return refuse(format!("tick policy `{}`", policy.as_str()));
    }
    if let Some(track) = timer.track
        && !kind.tracks
    {
        return refuse(format!("track `{}`", track.as_str()));
    }
    Ok(element
        .with_some("tickpolicy", timer.tick_policy.map(TickPolicy::as_str))
        .with_some(
            "track",
            timer.track.map(drydock_api::kubevirt::domain_spec::Track::as_str),
        ))
}
