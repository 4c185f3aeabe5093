//! Refused guests, and escaping of hostile names.

use std::collections::BTreeSet;

use drydock_api::{
    facts::VirtType,
    launcher::{BackingImage, DISKS_FOLDER, DiskFormat},
};
use roxmltree::Document;
use serde_json::{Value, json};

use super::{disks, interface, masked_xml, names, prepared, spec, xml};
use crate::domain::{DomainInput, DomainProblem, disk_alias, domain_name, domain_xml};

/// Checks that domains are refused, each with its reason and a part of the message.
fn refuses(cases: &[(Value, &str, &str)]) {
    for (value, reason, part) in cases {
        let problem = xml(&spec(value)).expect_err(reason);
        assert_eq!(problem.reason(), *reason, "{value}");
        assert!(problem.to_string().contains(part), "{problem}");
    }
}

#[test]
fn impossible_machine_memory_or_cpus_are_refused_by_name() {
    refuses(&[
        (json!({"machine": {"type": "pc"}}), "UnsupportedMachine", "`pc`"),
        (json!({"machine": {"type": "virt"}}), "UnsupportedMachine", "`virt`"),
        (json!({"resources": {}}), "NoMemory", "memory.guest"),
        (json!({"memory": {"guest": "much"}}), "BadMemory", "`much`"),
        (json!({"memory": {"guest": "1023Ki"}}), "BadMemory", "`1023Ki`"),
        (json!({"memory": {"guest": "8Pi"}}), "BadMemory", "`8Pi`"),
        (json!({"firmware": {"uuid": "x"}}), "BadUUID", "`x`"),
        (json!({"cpu": {"cores": 0}}), "BadCPUCount", "0 CPUs"),
        (json!({"cpu": {"cores": 256}}), "BadCPUCount", "256"),
        (
            json!({"cpu": {"cores": 4_294_967_295_u32, "sockets": 4_294_967_295_u32, "threads": 4_294_967_295_u32}}),
            "BadCPUCount",
            "255",
        ),
    ]);
    assert!(xml(&spec(&json!({"cpu": {"cores": 255}}))).is_ok());
}

#[test]
fn impossible_timers_are_refused_by_name() {
    let timer = |name: &str, settings: Value| json!({"clock": {"timer": {name: settings}}});
    refuses(&[
        (
            timer("rtc", json!({"tickPolicy": "merge"})),
            "BadTimer",
            "timer `rtc` does not support tick policy `merge`",
        ),
        (timer("rtc", json!({"tickPolicy": "discard"})), "BadTimer", "`discard`"),
        (timer("pit", json!({"tickPolicy": "merge"})), "BadTimer", "`pit`"),
        (
            timer("pit", json!({"track": "wall"})),
            "BadTimer",
            "timer `pit` does not support track `wall`",
        ),
        (timer("kvm", json!({"tickPolicy": "delay"})), "BadTimer", "`kvm`"),
        (timer("hyperv", json!({"track": "guest"})), "BadTimer", "`hyperv`"),
    ]);
}

#[test]
fn impossible_disks_are_refused_by_name() {
    let disk = |disk: Value| disks(&json!([disk]), &json!([]));
    refuses(&[
        (
            disks(&json!([{"name": "a"}, {"name": "a"}]), &json!([])),
            "DuplicateDisk",
            "`a`",
        ),
        (
            disk(json!({"name": "a", "disk": {}, "cdrom": {}})),
            "AmbiguousDisk",
            "`a`",
        ),
        (
            disk(json!({"name": "a", "cdrom": {"bus": "virtio"}})),
            "BadCDRomBus",
            "`a`",
        ),
        (
            disk(json!({"name": "a", "disk": {"bus": "sata", "readonly": true}})),
            "ReadOnlySATADisk",
            "`a`",
        ),
        (disk(json!({"name": "a", "serial": "a,b"})), "BadDiskSerial", "`a`"),
        (
            disk(json!({"name": "a", "bootOrder": 0})),
            "BadBootOrder",
            "boot order 0",
        ),
        (
            disks(
                &json!([{"name": "a", "bootOrder": 2}, {"name": "b", "bootOrder": 2}]),
                &json!([]),
            ),
            "BadBootOrder",
            "boot order 2",
        ),
    ]);
}

#[test]
fn impossible_addresses_and_ports_are_refused_by_name() {
    refuses(&[
        (
            interface(&json!({"macAddress": "01:00:5e:00:00:01"})),
            "BadMACAddress",
            "`01:00:5e:00:00:01`",
        ),
        (interface(&json!({"ports": [{"port": 0}]})), "BadPort", "port 0"),
        (interface(&json!({"ports": [{"port": 65536}]})), "BadPort", "65536"),
    ]);
}

#[test]
fn too_many_devices_are_refused_per_bus() {
    let many = |count: usize, bus: &str| {
        let all = (0..count).map(|i| json!({"name": format!("d{i}"), "disk": {"bus": bus}}));
        json!({"devices": {"disks": all.collect::<Vec<_>>()}})
    };
    refuses(&[
        (many(102, "virtio"), "TooManyDevices", "virtio"),
        (many(55, "sata"), "TooManyDevices", "sata"),
        (many(257, "scsi"), "TooManyDevices", "scsi"),
    ]);
    assert!(xml(&spec(&many(101, "virtio"))).is_ok());
    assert!(xml(&spec(&many(54, "sata"))).is_ok());
    assert!(xml(&spec(&many(256, "scsi"))).is_ok());
}

#[test]
fn control_characters_are_refused_by_element() {
    let disk = |disk: Value| disks(&json!([disk]), &json!([]));
    refuses(&[
        (json!({"firmware": {"serial": "a\nb"}}), "ControlCharacters", "`entry`"),
        (
            json!({"firmware": {"serial": "a\u{0}"}}),
            "ControlCharacters",
            "`entry`",
        ),
        (json!({"cpu": {"model": "a\u{ffff}"}}), "ControlCharacters", "`model`"),
        (disk(json!({"name": "a\tb"})), "ControlCharacters", "source/@file"),
    ]);
}

#[test]
fn a_masked_feature_that_is_demanded_is_refused() {
    for policy in [Value::Null, json!("require"), json!("force")] {
        let spec = spec(&json!({"cpu": {"features": [{"name": "avx2", "policy": policy}]}}));
        let problem = masked_xml(&spec, VirtType::Kvm, &["avx2"], None).unwrap_err();
        assert_eq!(problem, DomainProblem::FeatureMasked("avx2".into()));
        assert_eq!(problem.reason(), "CPUFeatureMasked");
    }
}

#[test]
fn disk_not_prepared_by_the_launcher_is_refused() {
    let spec = spec(&disks(&json!([{"name": "a"}]), &json!([])));
    let none = BTreeSet::new();
    let input = DomainInput {
        namespace: "shop",
        name: "db",
        uid: "",
        spec: &spec,
        virt_type: VirtType::Kvm,
        architecture: "x86_64",
        masked_features: &none,
        host_features: None,
        host_passthrough_migratable: None,
        disks: &[],
        addresses: &[],
    };
    assert_eq!(domain_xml(&input), Err(DomainProblem::DiskNotPrepared("a".into())));
    let elsewhere = DomainInput {
        architecture: "s390x",
        ..input
    };
    assert_eq!(
        domain_xml(&elsewhere),
        Err(DomainProblem::UnsupportedArchitecture("s390x".into()))
    );
    let mut disks = prepared(&spec);
    disks[0].path = "a.img".into();
    let problem = domain_xml(&DomainInput { disks: &disks, ..input }).unwrap_err();
    assert_eq!(problem.reason(), "BadDiskPath");
    let mut disks = prepared(&spec);
    disks[0].backing = Some(BackingImage {
        path: "../a".into(),
        format: DiskFormat::Raw,
        virtual_size: 1,
    });
    let problem = domain_xml(&DomainInput { disks: &disks, ..input }).unwrap_err();
    assert!(problem.to_string().contains("`../a`"), "{problem}");
}

/// Names that would end an attribute, an element or the document if they were not escaped.
const HOSTILE: [&str; 5] = [
    "'/><disk/>",
    "\"/><disk/>",
    "</name><disk/><name>",
    "&lt;disk/&gt;",
    "]]><!-- --><disk/>",
];

#[test]
fn hostile_names_stay_names() {
    for text in HOSTILE {
        let mut spec = spec(&json!({
            "cpu": {"model": text, "features": [{"name": text}]},
            "firmware": {"serial": text},
            "clock": {"timezone": text},
            "devices": {"disks": [{"name": text}], "interfaces": [{"name": text}]},
        }));
        spec.domain.machine = None;
        let (masked, host, disks) = (names(&[]), None, prepared(&spec));
        let xml = domain_xml(&DomainInput {
            namespace: text,
            name: text,
            uid: text,
            spec: &spec,
            virt_type: VirtType::Kvm,
            architecture: "x86_64",
            masked_features: &masked,
            host_features: host,
            host_passthrough_migratable: None,
            disks: &disks,
            addresses: &[],
        })
        .unwrap();
        let document = Document::parse(&xml).unwrap();
        let named = |name: &str| {
            document
                .descendants()
                .filter(|node| node.has_tag_name(name))
                .collect::<Vec<_>>()
        };
        assert_eq!(named("disk").len(), 1);
        assert_eq!(named("name")[0].text(), Some(domain_name(text, text).as_str()));
        assert_eq!(named("model")[0].text(), Some(text));
        assert_eq!(named("feature")[0].attribute("name"), Some(text));
        assert_eq!(named("entry")[0].text(), Some(text));
        assert_eq!(named("clock")[0].attribute("timezone"), Some(text));
        assert_eq!(named("alias")[0].attribute("name"), Some(disk_alias(text).as_str()));
        let path = format!("{DISKS_FOLDER}/{text}.img");
        assert_eq!(named("source")[0].attribute("file"), Some(path.as_str()));
    }
}
