use super::*;
use crate::document::MAX_LIST;

const TRIXIE_QEMU: &str = include_str!("../../testdata/trixie/x86_64-qemu.domain-capabilities.xml");
const TRIXIE_KVM: &str = include_str!("../../testdata/trixie/x86_64-kvm.domain-capabilities.xml");
const TRIXIE_ARM: &str = include_str!("../../testdata/trixie/aarch64-qemu.domain-capabilities.xml");
const TRIXIE_S390X: &str = include_str!("../../testdata/trixie/s390x-qemu.domain-capabilities.xml");
const BOOKWORM_QEMU: &str = include_str!("../../testdata/bookworm/x86_64-qemu.domain-capabilities.xml");

fn amd64(text: &str) -> DomainCapabilities {
    parse(text, &Architecture::Amd64).unwrap()
}

/// Builds a document with these modes and features.
fn document(modes: &str, features: &str) -> String {
    format!("<domainCapabilities><cpu>{modes}</cpu><features>{features}</features></domainCapabilities>")
}

/// Formats a recording for a snapshot, without the long lists of blockers.
fn outline(found: &DomainCapabilities) -> String {
    use std::fmt::Write;
    let mut text = format!("vendor {:?}, emulator {}\n", found.vendor, found.emulator);
    if let Some(model) = &found.host_model {
        writeln!(text, "host model {} (fallback {})", model.name, model.fallback).unwrap();
        writeln!(text, "  required {}", model.required.join(" ")).unwrap();
        writeln!(text, "  disabled {}", model.disabled.join(" ")).unwrap();
    }
    writeln!(text, "{:?}", found.confidential).unwrap();
    for model in &found.models {
        let canonical = model
            .canonical
            .as_ref()
            .map(|name| format!(" = {name}"))
            .unwrap_or_default();
        let deprecated = if model.deprecated { " deprecated" } else { "" };
        let vendor = model.vendor.as_deref().unwrap_or("-");
        let blockers = model.blockers.len();
        writeln!(
            text,
            "{}{canonical} {:?} {vendor}{deprecated} {blockers} blockers",
            model.name, model.usable
        )
        .unwrap();
    }
    text
}

#[test]
fn recorded() {
    insta::assert_snapshot!("trixie_qemu", outline(&amd64(TRIXIE_QEMU)));
    insta::assert_snapshot!("trixie_kvm", outline(&amd64(TRIXIE_KVM)));
    insta::assert_snapshot!("bookworm_qemu", outline(&amd64(BOOKWORM_QEMU)));
    insta::assert_snapshot!(
        "trixie_aarch64",
        outline(&parse(TRIXIE_ARM, &Architecture::Arm64).unwrap())
    );
    insta::assert_snapshot!(
        "trixie_s390x",
        outline(&parse(TRIXIE_S390X, &Architecture::S390x).unwrap())
    );
}

#[test]
fn usable_unless_exactly_no() {
    let found = amd64(&document(
        "<mode name='custom'><model usable='yes'>a</model><model usable='no'>b</model><model usable='unknown'>c</model>
        <model usable='No'>d</model><model>e</model><model usable=''>f</model><model usable='yes'>  </model>
        <model usable='yes'/><model usable='no'> a </model></mode><mode name='other'><model usable='yes'>g</model>
        <model usable='no'>c</model></mode>",
        "",
    ));
    let models: Vec<_> = found
        .models
        .iter()
        .map(|model| (model.name.as_str(), model.usable))
        .collect();
    let expected = [
        ("a", Usable::Yes),
        ("b", Usable::No),
        ("c", Usable::Unknown),
        ("d", Usable::Unknown),
        ("g", Usable::Yes),
    ];
    assert_eq!(models, expected);
    assert!(found.has_usable_model());
    assert!(!amd64(&document("<mode name='custom'><model usable='no'>b</model></mode>", "")).has_usable_model());
    assert!(!amd64(&document("", "")).has_usable_model());
}

#[test]
fn aliases_vendors_deprecation_and_blockers() {
    let found = amd64(&document(
        "<mode name='custom' supported='yes'><model usable='no' vendor='AMD' canonical='X-v1' deprecated='yes'>X</model>
        <blockers model='X'><feature name='npt'/><feature/><feature name='svm'/></blockers>
        <blockers model='absent'><feature name='q'/></blockers><blockers><feature name='q'/></blockers>
        <model usable='yes' vendor='unknown' deprecated='no'>X-v1</model></mode>",
        "",
    ));
    let expected = CpuModel {
        name: "X".into(),
        usable: Usable::No,
        canonical: Some("X-v1".into()),
        deprecated: true,
        vendor: Some("AMD".into()),
        blockers: vec!["npt".into(), "svm".into()],
    };
    assert_eq!(found.models[0], expected);
    let plain = CpuModel {
        name: "X-v1".into(),
        usable: Usable::Yes,
        ..CpuModel::default()
    };
    assert_eq!(found.models[1], plain);
}

#[test]
fn host_models() {
    let mode = "<mode name='host-model' supported='yes'><model fallback='allow'>Skylake</model><model>Second</model>
        <vendor>Intel</vendor><feature policy='require' name='ds'/><feature policy='require' name='acpi'/>
        <feature policy='disable' name='hle'/><feature policy='optional' name='o'/><feature name='n'/></mode>";
    let found = amd64(&document(mode, ""));
    let model = found.host_model.unwrap();
    assert_eq!((model.name.as_str(), model.fallback.as_str()), ("Skylake", "allow"));
    assert_eq!(model.required, ["ds", "acpi"]);
    assert_eq!(model.disabled, ["hle"]);
    assert_eq!(found.vendor, "Intel");
    let cpu = found.host_model_cpu.unwrap();
    assert!(
        cpu.starts_with("<cpu><model fallback='allow'>Skylake</model>") && cpu.ends_with("</cpu>"),
        "{cpu}"
    );
    assert!(cpu.contains("<feature policy='disable' name='hle'/>"));

    // The attribute of the mode does not determine whether there is a model.
    let found = amd64(&document(&mode.replace("supported='yes'", "supported='no'"), ""));
    assert!(found.host_model.is_some() && found.host_model_cpu.is_none());

    let found = parse(&document(mode, ""), &Architecture::Arm64).unwrap();
    assert_eq!((found.host_model, found.vendor.as_str()), (None, ""));
}

#[test]
fn host_passthrough_is_migratable_where_the_enum_has_on() {
    let mode = |content: &str| format!("<mode name='host-passthrough' supported='yes'>{content}</mode>");
    let values = |values: &str| mode(&format!("<enum name='hostPassthroughMigratable'>{values}</enum>"));
    for (modes, expected) in [
        (values("<value>on</value><value>off</value>"), Some(true)),
        (values("<value>off</value>"), Some(false)),
        (values(""), Some(false)),
        (mode(""), None),
        (mode("<enum name='other'><value>on</value></enum>"), None),
        ("<mode name='host-passthrough' supported='no'/>".into(), None),
        (
            "<mode name='maximum'><enum name='hostPassthroughMigratable'><value>on</value></enum></mode>".into(),
            None,
        ),
    ] {
        let found = parse(&document(&modes, ""), &Architecture::Arm64).unwrap();
        assert_eq!(found.host_passthrough_migratable, expected, "{modes}");
    }
    assert_eq!(amd64(TRIXIE_KVM).host_passthrough_migratable, Some(true));
    assert_eq!(amd64(TRIXIE_QEMU).host_passthrough_migratable, None);
}

#[test]
fn address_bits_of_guests_are_those_of_the_host_model() {
    for (element, expected) in [
        ("<maxphysaddr mode='passthrough' limit='46'/>", Some(46)),
        ("<maxphysaddr mode='emulate' bits='48'/>", Some(48)),
        ("<maxphysaddr mode='passthrough'/>", None),
        ("<maxphysaddr mode='passthrough' limit='many'/>", None),
        ("", None),
    ] {
        let mode = format!("<mode name='host-model' supported='yes'><model>X</model>{element}</mode>");
        let found = amd64(&document(&mode, ""));
        assert_eq!(found.physical_address_bits, expected, "{element}");
    }
    assert_eq!(amd64(TRIXIE_KVM).physical_address_bits, Some(48));
}

#[test]
fn no_host_model_is_no_error() {
    for mode in [
        "",
        "<mode name='host-model' supported='no'/>",
        "<mode name='host-model' supported='yes'/>",
        "<mode name='host-model' supported='yes'><model/><vendor/></mode>",
    ] {
        for (architecture, vendor) in [(Architecture::Amd64, ""), (Architecture::S390x, "IBM")] {
            let found = parse(&document(mode, ""), &architecture).unwrap();
            assert_eq!((found.host_model, found.host_model_cpu), (None, None), "{mode}");
            assert_eq!(found.vendor, vendor, "{mode}");
        }
    }
}

#[test]
fn sev() {
    let numbers = "<cbitpos>47</cbitpos><reducedPhysBits>1</reducedPhysBits><maxGuests>15</maxGuests>";
    let es = |guests: u32| format!("<sev supported='yes'>{numbers}<maxESGuests>{guests}</maxESGuests></sev>");
    let snp = "<launchSecurity supported='yes'><enum name='sectype'><value>sev</value><value>sev-snp</value></enum>
        </launchSecurity>";
    for (features, expected) in [
        (String::new(), (None, false)),
        ("<sev supported='no'/>".to_owned(), (None, false)),
        (format!("<sev supported='no'>{numbers}</sev>"), (None, false)),
        (format!("<sev supported='yes'>{numbers}</sev>"), (Some(0), false)),
        (es(0), (Some(0), false)),
        (es(7), (Some(7), false)),
        (es(7) + snp, (Some(7), true)),
        (es(0) + snp, (Some(0), false)),
        (snp.to_owned(), (None, false)),
        (es(7) + &snp.replace("'yes'", "'no'"), (Some(7), false)),
        (es(7) + &snp.replace("sev-snp", "tdx"), (Some(7), false)),
    ] {
        let found = amd64(&document("", &features)).confidential;
        assert_eq!(
            (found.sev.as_ref().map(|sev| sev.max_es_guests), found.sev_snp),
            expected,
            "{features}"
        );
        if let Some(sev) = found.sev {
            assert_eq!((sev.cbitpos, sev.reduced_phys_bits, sev.max_guests), (47, 1, 15));
        }
    }
}

#[test]
fn tdx_and_secure_execution() {
    for (features, tdx, secure_execution) in [
        ("<tdx supported='yes'/>", true, false),
        ("<tdx supported='no'/>", false, false),
        ("<s390-pv supported='yes'/>", false, true),
        ("<s390-pv supported='no'/>", false, false),
        ("<tdx/><s390-pv/>", false, false),
    ] {
        let found = amd64(&document("", features)).confidential;
        assert_eq!(
            (found.tdx, found.secure_execution),
            (tdx, secure_execution),
            "{features}"
        );
    }
}

#[test]
fn bounds() {
    let many = "<model usable='yes'>x</model>".repeat(MAX_LIST + 1);
    // A repeated name does not count as another model.
    assert_eq!(amd64(&document(&format!("<mode>{many}</mode>"), "")).models.len(), 1);
    let many: String = (0..=MAX_LIST)
        .map(|n| format!("<model usable='yes'>{n}</model>"))
        .collect();
    let error = parse(&document(&format!("<mode>{many}</mode>"), ""), &Architecture::Amd64).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("more than {MAX_LIST} <model> elements in the domain capabilities")
    );
    let long = format!(
        "<mode><model usable='yes' canonical='{}'>x</model></mode>",
        "y".repeat(300)
    );
    assert!(matches!(
        parse(&document(&long, ""), &Architecture::Amd64),
        Err(ParseError::TooLong { .. })
    ));
}
