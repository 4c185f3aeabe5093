//! Tests that the parsers terminate, do not panic and stay within their bounds for any response of a libvirt.

use drydock_api::facts::CpuModel;
use drydock_host::{
    architecture::Architecture,
    baseline, capabilities, cpuinfo,
    document::{MAX_LIST, MAX_NAME},
    domain_capabilities,
};
use proptest::prelude::*;

const RECORDED: [&str; 6] = [
    include_str!("../testdata/trixie/x86_64-kvm.domain-capabilities.xml"),
    include_str!("../testdata/trixie/s390x-qemu.domain-capabilities.xml"),
    include_str!("../testdata/bookworm/x86_64-qemu.domain-capabilities.xml"),
    include_str!("../testdata/trixie/x86_64-qemu.baseline.xml"),
    include_str!("../testdata/trixie/capabilities.xml"),
    include_str!("../testdata/bookworm/capabilities.xml"),
];

const ARCHITECTURES: [Architecture; 3] = [Architecture::Amd64, Architecture::Arm64, Architecture::S390x];

fn bounded(list: &[String]) {
    assert!(list.len() <= MAX_LIST);
    assert!(list.iter().all(|name| name.len() <= MAX_NAME && !name.is_empty()));
}

fn bounded_model(model: &CpuModel) {
    bounded(std::slice::from_ref(&model.name));
    bounded(&model.blockers);
    bounded(model.canonical.as_slice());
    bounded(model.vendor.as_slice());
}

/// Passes a document to every parser.
fn feed(text: &str) {
    for architecture in ARCHITECTURES {
        if let Ok(found) = domain_capabilities::parse(text, &architecture) {
            assert!(found.models.len() <= MAX_LIST && found.vendor.len() <= MAX_NAME);
            found.models.iter().for_each(bounded_model);
            if let Some(model) = found.host_model {
                bounded(&model.required);
                bounded(&model.disabled);
            }
        }
        if let Ok(found) = baseline::parse(text, &architecture) {
            bounded(&found.features);
            assert!(found.features.is_sorted());
        }
        if let Ok(found) = capabilities::parse(text, &architecture) {
            assert!(found.machine_types.len() <= MAX_LIST);
            assert!(found.machine_types.iter().all(|machine| machine.name.len() <= MAX_NAME));
        }
        let _ = cpuinfo::facts(text, &architecture);
    }
}

/// Generates a recording with a part that was removed, duplicated or overwritten.
fn mutated() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(String::new()),
        Just("<model usable='yes'>x</model>".to_owned()),
        Just("<blockers model='486'><feature name='f'/></blockers>".to_owned()),
        Just("</mode>".to_owned()),
        Just("'".to_owned()),
        Just("<![CDATA[".to_owned()),
        Just("&amp;&#x0;&lt;".to_owned()),
        "[ -~]{0,20}",
        "\\PC{0,20}",
        Just("y".repeat(1000)),
    ];
    (
        0..RECORDED.len(),
        any::<prop::sample::Index>(),
        0usize..400,
        piece,
        1usize..4,
    )
        .prop_map(|(document, at, length, piece, times)| {
            let text = RECORDED[document];
            let start = text.floor_char_boundary(at.index(text.len()));
            let end = text.floor_char_boundary((start + length).min(text.len()));
            format!("{}{}{}", &text[..start], piece.repeat(times), &text[end..])
        })
}

/// Generates trees of the elements and attributes that the parsers use, in any order and nesting.
fn tree() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "cpu",
        "mode",
        "model",
        "feature",
        "features",
        "blockers",
        "vendor",
        "host",
        "counter",
        "topology",
        "cells",
        "cell",
        "guest",
        "arch",
        "machine",
        "sev",
        "cbitpos",
        "launchSecurity",
        "value",
        "tdx",
        "s390-pv",
    ]);
    let attribute = (
        prop::sample::select(vec![
            "name",
            "usable",
            "canonical",
            "model",
            "policy",
            "supported",
            "fallback",
            "frequency",
            "sockets",
            "cores",
            "dies",
        ]),
        prop::sample::select(vec![
            "",
            "yes",
            "no",
            "host-model",
            "require",
            "tsc",
            "x86_64",
            "99999999999",
            "-1",
            "a b",
        ]),
    );
    let attributes = prop::collection::btree_map(
        attribute.clone().prop_map(|(name, _)| name),
        attribute.prop_map(|(_, v)| v),
        0..4,
    )
    .prop_map(|map| {
        map.iter()
            .map(|(name, value)| format!(" {name}='{value}'"))
            .collect::<String>()
    });
    let leaf = (name.clone(), attributes.clone(), "[a-z0-9 ]{0,8}")
        .prop_map(|(name, attributes, text)| format!("<{name}{attributes}>{text}</{name}>"));
    let inner = leaf.prop_recursive(6, 200, 8, move |inner| {
        (name.clone(), attributes.clone(), prop::collection::vec(inner, 0..8))
            .prop_map(|(name, attributes, children)| format!("<{name}{attributes}>{}</{name}>", children.concat()))
    });
    let root = prop::sample::select(vec!["domainCapabilities", "capabilities", "cpu"]);
    (root, prop::collection::vec(inner, 0..8)).prop_map(|(root, parts)| format!("<{root}>{}</{root}>", parts.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in "\\PC{0,2000}") {
        feed(&text);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        feed(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn recordings_that_were_tampered_with(text in mutated()) {
        feed(&text);
    }

    #[test]
    fn any_tree(text in tree()) {
        feed(&text);
    }
}

#[test]
fn recordings_cut_anywhere() {
    for text in RECORDED {
        for at in (0..text.len()).step_by(text.len() / 11 + 1) {
            feed(&text[..text.floor_char_boundary(at)]);
        }
    }
}

/// The test runs on a thread with the same stack size as the inspection's threads.
#[test]
fn deep_nesting() {
    for (root, element) in [
        ("domainCapabilities", "cpu"),
        ("capabilities", "guest"),
        ("cpu", "feature"),
    ] {
        for depth in [100, 100_000] {
            let text = format!(
                "<{root}>{}{}</{root}>",
                format!("<{element}>").repeat(depth),
                format!("</{element}>").repeat(depth)
            );
            std::thread::spawn(move || feed(&text)).join().unwrap();
        }
    }
}

#[test]
fn long_lists() {
    for (document, item) in [
        (
            "<domainCapabilities><cpu><mode>{}</mode></cpu></domainCapabilities>",
            "<model usable='yes'>{}</model>",
        ),
        (
            "<domainCapabilities><cpu><mode><model usable='no'>m</model><blockers model='m'>{}</blockers></mode></cpu></domainCapabilities>",
            "<feature name='{}'/>",
        ),
        ("<cpu>{}</cpu>", "<feature policy='require' name='{}'/>"),
        (
            "<capabilities><guest><arch name='x86_64'>{}</arch></guest></capabilities>",
            "<machine>{}</machine>",
        ),
    ] {
        for length in [MAX_LIST, MAX_LIST + 1, 30_000] {
            let list: String = (0..length).map(|n| item.replace("{}", &n.to_string())).collect();
            feed(&document.replace("{}", &list));
        }
    }
}
