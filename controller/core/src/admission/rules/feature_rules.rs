//! The features of the guest's machine and its firmware.

use drydock_api::kubevirt::{
    VirtualMachineInstanceSpec,
    domain_spec::Efi,
    features::{FeatureHyperv, FeatureState},
};

use crate::{
    admission::{At, RefusalList},
    domain::HypervNeeds,
};

/// Fewest tries until a spin lock reports a long wait: libvirt's rule.
const FEWEST_TRIES: u32 = 4095;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    let domain = at.field("domain");
    let loader = spec
        .domain
        .firmware
        .as_ref()
        .and_then(|firmware| firmware.bootloader.as_ref());
    let at_loader = domain.field("firmware").field("bootloader");
    let efi = spec.domain.efi();
    if efi.is_some() && loader.is_some_and(|loader| loader.bios.is_some()) {
        refusals.conflict(&at_loader.field("efi"), at_loader.field("bios"));
    }
    let Some(features) = &spec.domain.features else {
        return;
    };
    let at_features = domain.field("features");
    if efi.is_some_and(Efi::is_secure) && features.smm.is_some_and(|smm| !smm.is_on()) {
        let allowed = format_args!("true, as {} is not false", at_loader.field("efi").field("secureBoot"));
        refusals.not_allowed(&at_features.field("smm").field("enabled"), false, allowed);
    }
    if let Some(wanted) = &features.hyperv {
        hyperv(wanted, spec, &at_features.field("hyperv"), &domain, refusals);
    }
}

fn hyperv(
    wanted: &FeatureHyperv,
    spec: &VirtualMachineInstanceSpec,
    at: &At,
    at_domain: &At,
    refusals: &mut RefusalList,
) {
    let needs = HypervNeeds::of(wanted);
    let mut must_be_on = |state: Option<FeatureState>, name: &str, need: Option<&str>| {
        if let Some(need) = need
            && state.is_some_and(|state| !state.is_on())
        {
            let allowed = format_args!("true, as {} needs it", at.field(need));
            refusals.not_allowed(&at.field(name).field("enabled"), false, allowed);
        }
    };
    must_be_on(wanted.vpindex, "vpindex", needs.vpindex);
    must_be_on(wanted.synic, "synic", needs.synic);
    let clock = spec.domain.clock.as_ref().and_then(|clock| clock.timer.as_ref());
    let clock = clock.and_then(|timers| timers.hyperv.as_ref());
    if let Some(need) = needs.clock
        && clock.is_some_and(|timer| timer.present == Some(false))
    {
        let at_timer = at_domain.field("clock").field("timer").field("hyperv");
        let allowed = format_args!("true, as {} needs it", at.field(need));
        refusals.not_allowed(&at_timer.field("present"), false, allowed);
    }
    if let Some(tries) = wanted.spinlocks.and_then(|locks| locks.spinlocks)
        && tries < FEWEST_TRIES
    {
        let at = at.field("spinlocks").field("spinlocks");
        refusals.not_allowed(&at, tries, format_args!("{FEWEST_TRIES} or more"));
    }
    if let Some(vendor) = &wanted.vendorid
        && vendor.enabled != Some(false)
    {
        let at = at.field("vendorid").field("vendorid");
        match vendor.vendorid.as_deref() {
            None => refusals.required(&at, "up to 12 printable ASCII characters"),
            Some(name) if name.len() > 12 || !name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b',') => {
                refusals.not_allowed(&at, name, "up to 12 printable ASCII characters other than commas");
            }
            Some(_) => {}
        }
    }
}
