//! Tests with live XML of real guests, and with documents of hostile libvirts.

use super::{AddressBits, LiveCpu, LiveDomain};
use crate::{document::ParseError, domain::AgentChannel};

const NAMED: &str = include_str!("../../../testdata/trixie/named.domain.xml");
const HOST_MODEL: &str = include_str!("../../../testdata/trixie/host-model.domain.xml");
const OLD_NAMED: &str = include_str!("../../../testdata/bookworm/named.domain.xml");
const OLD_HOST_MODEL: &str = include_str!("../../../testdata/bookworm/host-model.domain.xml");

fn cpu(xml: &str) -> LiveCpu {
    LiveDomain::parse(xml).unwrap().cpu.unwrap()
}

#[test]
fn named_cpu_model_has_features_added_by_qemu() {
    for (xml, machine) in [(NAMED, "pc-q35-10.0"), (OLD_NAMED, "pc-q35-7.2")] {
        let live = LiveDomain::parse(xml).unwrap();
        assert_eq!((live.id, live.machine.as_str()), (Some(1), machine));
        assert_eq!(live.uuid, "6a1f2b3c-6d1b-4c55-9a51-0f9a3c1e7d1c");
        assert_eq!(live.agent, Some(AgentChannel::Disconnected));
        let cpu = live.cpu.unwrap();
        assert!(cpu.is_complete());
        let features = [
            ("arat", "require"),
            ("hypervisor", "require"),
            ("pclmuldq", "require"),
            ("vme", "disable"),
        ];
        let expected = LiveCpu {
            model: "Westmere".into(),
            vendor: None,
            features: features.map(|(name, policy)| (name.into(), policy.into())).into(),
            mode: "custom".into(),
            check: "full".into(),
            address_bits: None,
        };
        assert_eq!(cpu, expected);
    }
}

#[test]
fn a_host_model_is_spelled_out() {
    for xml in [HOST_MODEL, OLD_HOST_MODEL] {
        let cpu = cpu(xml);
        assert!(cpu.is_complete(), "{cpu:?}");
        assert_eq!(cpu.vendor.as_deref(), Some("AMD"));
        assert_eq!(cpu.features["hypervisor"], "require");
        assert!(cpu.features.values().any(|policy| policy == "disable"));
        assert_eq!(cpu.features.len(), xml.matches("<feature ").count());
    }
}

#[test]
fn address_bits_are_the_hosts_or_a_number() {
    for (element, expected) in [
        (
            "<maxphysaddr mode='passthrough' limit='46'/>",
            Some(AddressBits::OfHost(Some(46))),
        ),
        ("<maxphysaddr mode='passthrough'/>", Some(AddressBits::OfHost(None))),
        (
            "<maxphysaddr mode='emulate' bits='42'/>",
            Some(AddressBits::Emulated(42)),
        ),
        ("<maxphysaddr mode='emulate' bits='x'/>", None),
        ("<maxphysaddr bits='42'/>", None),
        ("", None),
    ] {
        let cpu = cpu(&format!("<domain><cpu mode='custom'>{element}</cpu></domain>"));
        assert_eq!(cpu.address_bits, expected, "{element}");
    }
}

#[test]
fn a_cpu_that_is_not_spelled_out_is_not_complete() {
    for element in [
        "<cpu mode='host-passthrough' check='none'/>",
        "<cpu mode='host-model' check='partial'/>",
        "<cpu mode='custom' check='partial'><model>EPYC</model></cpu>",
        "<cpu mode='custom' check='full'/>",
    ] {
        assert!(!cpu(&format!("<domain>{element}</domain>")).is_complete(), "{element}");
    }
    assert_eq!(LiveDomain::parse("<domain/>").unwrap(), LiveDomain::default());
    // The features of an old libvirt have no policy.
    let old = cpu("<domain><cpu><feature name='vmx'/><feature/></cpu></domain>");
    assert_eq!(old.features, [("vmx".to_owned(), "require".to_owned())].into());
}

#[test]
fn guest_agent_channel_is_distinguished_from_others() {
    let parse = |target: &str| {
        let xml = format!(
            "<domain><devices><channel><target name='org.spice.0' state='connected'/></channel>\
             <channel>{target}</channel></devices></domain>"
        );
        LiveDomain::parse(&xml).unwrap().agent
    };
    let agent = |state: &str| format!("<target name='org.qemu.guest_agent.0' {state}/>");
    assert_eq!(parse(&agent("state='connected'")), Some(AgentChannel::Connected));
    assert_eq!(parse(&agent("state='disconnected'")), Some(AgentChannel::Disconnected));
    assert_eq!(parse(&agent("state='x'")), Some(AgentChannel::Unknown(0)));
    assert_eq!(parse(&agent("")), None);
    assert_eq!(parse("<target name='other' state='connected'/>"), None);
}

#[test]
fn documents_are_bounded() {
    let many: String = (0..5000).map(|number| format!("<feature name='f{number}'/>")).collect();
    let error = LiveDomain::parse(&format!("<domain><cpu>{many}</cpu></domain>")).unwrap_err();
    assert!(
        matches!(error, ParseError::TooMany { element: "feature", .. }),
        "{error}"
    );
    let long = "x".repeat(300);
    for xml in [
        format!("<domain><cpu><model>{long}</model></cpu></domain>"),
        format!("<domain><os><type machine='{long}'/></os></domain>"),
        format!("<domain><cpu><feature name='{long}'/></cpu></domain>"),
    ] {
        assert!(
            matches!(LiveDomain::parse(&xml), Err(ParseError::TooLong { .. })),
            "{xml}"
        );
    }
    assert!(matches!(
        LiveDomain::parse("<network/>"),
        Err(ParseError::WrongRoot { .. })
    ));
}
