//! Features of the guest's machine: the elements `features` and, for Hyper-V's clock, `clock`.
//!
//! QEMU defines which of Hyper-V's features depend on each other (docs/system/i386/hyperv.rst); as in KubeVirt, a
//! feature turns on the features that it needs, and admission refuses a spec that turns one of those off. QEMU offers
//! Hyper-V's features, like the other features that concern KVM, only to guests that run with KVM: in emulation they
//! are left out, since libvirt would not start the guest.

use std::borrow::Cow;

use drydock_api::{
    facts::VirtType,
    kubevirt::{
        domain_spec::{Clock, Domain, Timer},
        features::{FeatureHyperv, FeatureState, Features},
    },
};

use super::{element::Element, firmware};

/// Size in MiB of the cache of translated code of a guest in emulation. QEMU would fill up to 1 GiB if the domain set
/// no size.
pub(crate) const TRANSLATION_CACHE: u64 = 128;
/// Tries until a spin lock reports a long wait, unless the spec sets a number: KubeVirt's default.
const SPINLOCK_TRIES: u32 = 4096;

/// Returns the element `features`. In emulation, the cache of translated code is limited to the room for it in the
/// pod's memory: QEMU would let it grow to 1 GiB.
pub(super) fn element(domain: &Domain, virt_type: VirtType) -> Element {
    let default = Features::default();
    let wanted = domain.features.as_ref().unwrap_or(&default);
    let cache = || {
        let kib = (TRANSLATION_CACHE << 10).to_string();
        Element::new("tcg").child(Element::text("tb-cache", kib).with("unit", "KiB"))
    };
    let emulated = virt_type == VirtType::Qemu;
    let smm = wanted.smm.map(FeatureState::is_on);
    let smm = if firmware::is_secure(domain) { Some(true) } else { smm };
    let of_kvm = (!emulated).then(|| of_kvm(wanted));
    Element::new("features")
        .child(Element::new("acpi"))
        .child(Element::new("apic"))
        .children(smm.map(|on| state("smm", on)))
        .children(of_kvm.into_iter().flatten())
        .children(emulated.then(cache))
}

/// Returns the features that only guests with KVM can have.
fn of_kvm(wanted: &Features) -> Vec<Element> {
    let hidden = wanted.kvm.and_then(|kvm| kvm.hidden) == Some(true);
    let hidden = hidden.then(|| Element::new("kvm").child(state("hidden", true)));
    let pvspinlock = wanted.pvspinlock.map(|lock| state("pvspinlock", lock.is_on()));
    let hyperv = wanted.hyperv.as_ref().map(hyperv).filter(|list| !list.is_empty());
    let hyperv = hyperv.map(|list| Element::new("hyperv").with("mode", "custom").children(list));
    [hidden, pvspinlock, hyperv].into_iter().flatten().collect()
}

/// Hyper-V features that other features need, each with the field of an enabled feature that needs it, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HypervNeeds {
    /// `vpindex`.
    pub(crate) vpindex: Option<&'static str>,
    /// `synic`.
    pub(crate) synic: Option<&'static str>,
    /// The timer `hyperv`.
    pub(crate) clock: Option<&'static str>,
}

impl HypervNeeds {
    /// Returns the features that the enabled features need.
    pub(crate) fn of(wanted: &FeatureHyperv) -> Self {
        let is_on = |state: Option<FeatureState>| state.is_some_and(FeatureState::is_on);
        let timers = wanted.synictimer.is_some_and(|timers| timers.enabled != Some(false));
        let timers = timers.then_some("synictimer");
        let of = |state: Option<FeatureState>, name| is_on(state).then_some(name);
        Self {
            vpindex: timers
                .or(of(wanted.synic, "synic"))
                .or(of(wanted.tlbflush, "tlbflush"))
                .or(of(wanted.ipi, "ipi")),
            synic: timers,
            clock: timers,
        }
    }
}

fn hyperv(wanted: &FeatureHyperv) -> Vec<Element> {
    let needs = HypervNeeds::of(wanted);
    let on = Some(FeatureState::default());
    let or_needed = |wanted: Option<FeatureState>, need: Option<&str>| if need.is_some() { on } else { wanted };
    let simple = [
        ("relaxed", wanted.relaxed),
        ("vapic", wanted.vapic),
        ("vpindex", or_needed(wanted.vpindex, needs.vpindex)),
        ("runtime", wanted.runtime),
        ("synic", or_needed(wanted.synic, needs.synic)),
        ("reset", wanted.reset),
        ("frequencies", wanted.frequencies),
        ("tlbflush", wanted.tlbflush),
        ("ipi", wanted.ipi),
    ];
    let simple = simple
        .into_iter()
        .filter_map(|(name, wanted)| Some(state(name, wanted?.is_on())));
    let spinlocks = wanted.spinlocks.map(|locks| {
        let on = locks.enabled != Some(false);
        let tries = locks.spinlocks.unwrap_or(SPINLOCK_TRIES).to_string();
        state("spinlocks", on).with_some("retries", on.then_some(tries))
    });
    let timers = wanted.synictimer.map(|timers| {
        let on = timers.enabled != Some(false);
        let direct = on && timers.direct.is_some_and(FeatureState::is_on);
        state("stimer", on).children(direct.then(|| state("direct", true)))
    });
    let vendor = wanted.vendorid.as_ref().map(|vendor| {
        let on = vendor.enabled != Some(false);
        state("vendor_id", on).with_some("value", vendor.vendorid.clone().filter(|_| on))
    });
    simple.chain(spinlocks).chain(timers).chain(vendor).collect()
}

fn state(name: &'static str, on: bool) -> Element {
    Element::new(name).with("state", if on { "on" } else { "off" })
}

/// Returns the spec's clock, with the timer that Hyper-V's synthetic timers need.
pub(super) fn clock(domain: &Domain, virt_type: VirtType) -> Option<Cow<'_, Clock>> {
    let given = domain.clock.as_ref().map(Cow::Borrowed);
    let hyperv = domain.features.as_ref().and_then(|features| features.hyperv.as_ref());
    let needed = hyperv.is_some_and(|wanted| HypervNeeds::of(wanted).clock.is_some());
    if !needed || virt_type == VirtType::Qemu {
        return given;
    }
    let mut clock = given.unwrap_or_default();
    let timers = clock.to_mut().timer.get_or_insert_default();
    timers.hyperv.get_or_insert_with(|| Timer {
        present: Some(true),
        ..Timer::default()
    });
    Some(clock)
}
