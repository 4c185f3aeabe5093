//! The domain XML for each field of a spec.
//!
//! The expected outputs are in `snapshots`, each with the part of the spec that it comes from.

mod places;
mod refusals;

use drydock_api::launcher::{
    BackingImage, DEVICES_FOLDER, DISKS_FOLDER, DiskFormat, IMAGES_FOLDER, PodAddress, VOLUMES_FOLDER,
};
use roxmltree::Document;
use serde_json::{Value, json};

use super::*;

/// Parses the spec from JSON; sets 64 MiB of memory if it sets none.
fn spec(domain: &Value) -> VirtualMachineInstanceSpec {
    let mut domain = domain.clone();
    let volumes = domain.as_object_mut().and_then(|domain| domain.remove("volumes"));
    if domain.get("resources").is_none() && domain.get("memory").is_none() {
        domain["memory"] = json!({"guest": "64Mi"});
    }
    serde_json::from_value(json!({"domain": domain, "volumes": volumes.unwrap_or_else(|| json!([]))})).unwrap()
}

#[test]
fn translated_code_is_bounded_where_guests_run_by_emulation() {
    let spec = spec(&json!({"devices": {}}));
    let cache = |virt_type| {
        let xml = masked_xml(&spec, virt_type, &[], None).unwrap();
        let document = Document::parse(&xml).unwrap();
        let found = document.descendants().find(|node| node.has_tag_name("tb-cache"));
        found.map(|node| {
            (
                node.attribute("unit").unwrap().to_owned(),
                node.text().unwrap().to_owned(),
            )
        })
    };
    assert_eq!(cache(VirtType::Qemu), Some(("KiB".into(), "131072".into())));
    assert_eq!(cache(VirtType::Kvm), None);
}

/// Returns every disk of the spec, prepared as by a launcher.
fn prepared(spec: &VirtualMachineInstanceSpec) -> Vec<PreparedDisk> {
    let one = |name: &str| {
        let volume = spec.volumes.iter().find(|volume| volume.name == name);
        let image = volume.is_some_and(|volume| volume.container_disk.is_some());
        let claim = volume.is_some_and(|volume| volume.persistent_volume_claim.is_some());
        let path = match (image, claim) {
            (true, _) => format!("{DISKS_FOLDER}/{name}.qcow2"),
            (_, true) if name.starts_with("block") => format!("{DEVICES_FOLDER}/{name}"),
            (_, true) => format!("{VOLUMES_FOLDER}/{name}/disk.img"),
            _ => format!("{DISKS_FOLDER}/{name}.img"),
        };
        PreparedDisk {
            name: name.into(),
            path,
            format: if image { DiskFormat::Qcow2 } else { DiskFormat::Raw },
            virtual_size: 1 << 30,
            backing: image.then(|| BackingImage {
                path: format!("{IMAGES_FOLDER}/{name}/disk/system.qcow2"),
                format: DiskFormat::Qcow2,
                virtual_size: 1 << 30,
            }),
        }
    };
    let disks = spec.domain.devices.disks.iter().map(|disk| disk.name.as_str());
    let volumes = spec.volumes.iter().map(|volume| volume.name.as_str());
    let names: BTreeSet<_> = disks.chain(volumes).collect();
    names.into_iter().map(one).collect()
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|&name| name.into()).collect()
}

/// Returns the domain of shop/db with that spec on a node with KVM and without a mask.
fn xml(spec: &VirtualMachineInstanceSpec) -> Result<String, DomainProblem> {
    masked_xml(spec, VirtType::Kvm, &[], None)
}

fn masked_xml(
    spec: &VirtualMachineInstanceSpec,
    virt_type: VirtType,
    masked: &[&str],
    host: Option<&[&str]>,
) -> Result<String, DomainProblem> {
    described(spec, virt_type, masked, host, None)
}

fn described(
    spec: &VirtualMachineInstanceSpec,
    virt_type: VirtType,
    masked: &[&str],
    host: Option<&[&str]>,
    migratable: Option<bool>,
) -> Result<String, DomainProblem> {
    let (masked, host, disks) = (names(masked), host.map(names), prepared(spec));
    domain_xml(&DomainInput {
        virt_type,
        masked_features: &masked,
        host_features: host.as_ref(),
        host_passthrough_migratable: migratable,
        ..input(spec, &disks)
    })
}

/// Returns shop/db with these disks on a node with KVM and without a mask.
fn input<'a>(spec: &'a VirtualMachineInstanceSpec, disks: &'a [PreparedDisk]) -> DomainInput<'a> {
    const NONE: &BTreeSet<String> = &BTreeSet::new();
    DomainInput {
        namespace: "shop",
        name: "db",
        uid: "7d5a3f80-0000-4000-8000-000000000001",
        spec,
        virt_type: VirtType::Kvm,
        architecture: "x86_64",
        masked_features: NONE,
        host_features: None,
        host_passthrough_migratable: None,
        disks,
        addresses: &[],
    }
}

/// Returns the elements of those names in a domain, as serialized.
fn parts(xml: &str, elements: &[&str]) -> String {
    let document = Document::parse(xml).unwrap();
    let mut text = String::new();
    for node in document
        .descendants()
        .filter(|node| elements.contains(&node.tag_name().name()))
    {
        let from = xml[..node.range().start].rfind('\n').map_or(0, |at| at + 1);
        let part = &xml[from..node.range().end];
        let indent = part.len() - part.trim_start().len();
        for line in part.lines() {
            text.push_str(line.get(indent..).unwrap_or(line));
            text.push('\n');
        }
    }
    text
}

/// Returns each spec with those elements of its domain.
fn shown(specs: &[Value], elements: &[&str]) -> String {
    let one = |value: &Value| format!("# {value}\n{}", parts(&xml(&spec(value)).unwrap(), elements));
    specs.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn disks(disks: &Value, volumes: &Value) -> Value {
    json!({"devices": {"disks": disks}, "volumes": volumes})
}

fn interface(more: &Value) -> Value {
    let mut interface = json!({"name": "default", "masquerade": {}});
    interface
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({"devices": {"interfaces": [interface]}})
}

#[test]
fn spec_without_optional_fields() {
    insta::assert_snapshot!(xml(&spec(&json!({}))).unwrap());
}

#[test]
fn spec_with_all_fields() {
    let spec = spec(&json!({
        "cpu": {
            "cores": 2, "sockets": 2, "threads": 2, "model": "Haswell-noTSX",
            "features": [{"name": "pcid", "policy": "require"}, {"name": "x2apic"}],
        },
        "memory": {"guest": "1Gi"},
        "machine": {"type": "pc-q35-10.0"},
        "firmware": {"uuid": "5D307CA9-B3EF-428C-8861-06E72D69F223", "serial": "e4686d2c-6e8d-4335-b8fd-81bee22f4815"},
        "clock": {"utc": {}, "timer": {
            "hpet": {"present": false}, "pit": {"tickPolicy": "delay"},
            "rtc": {"tickPolicy": "catchup", "track": "guest"}, "kvm": {}, "hyperv": {},
        }},
        "devices": {
            "disks": [
                {"name": "system", "disk": {"bus": "virtio"}, "bootOrder": 1},
                {"name": "data", "disk": {"bus": "scsi"}, "serial": "D-1", "cache": "writeback"},
                {"name": "cloud", "cdrom": {"bus": "sata"}},
            ],
            "interfaces": [{
                "name": "default", "masquerade": {}, "model": "e1000e", "macAddress": "de:ad:00:00:be:af",
                "ports": [{"name": "web", "port": 80}, {"port": 53, "protocol": "UDP"}], "bootOrder": 2,
            }],
            "rng": {},
        },
        "volumes": [
            {"name": "system", "containerDisk": {"image": "example/system"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "cloud", "cloudInitNoCloud": {"userData": "#cloud-config"}},
        ],
    }));
    insta::assert_snapshot!(xml(&spec).unwrap());
}

#[test]
fn memory_is_the_guests_else_the_request_else_the_limit() {
    insta::assert_snapshot!(shown(
        &[
            json!({"memory": {"guest": "96Mi"}, "resources": {"requests": {"memory": "1Gi"}}}),
            json!({"resources": {"requests": {"memory": "80M"}, "limits": {"memory": "1Gi"}}}),
            json!({"resources": {"limits": {"memory": "1.5Gi"}}}),
            json!({"memory": {"guest": "1048577"}}),
        ],
        &["memory", "currentMemory"],
    ));
}

#[test]
fn cpus_are_counted_by_topology_else_by_resources() {
    insta::assert_snapshot!(shown(
        &[
            json!({"cpu": {"cores": 4}}),
            json!({"cpu": {"sockets": 2, "cores": 3, "threads": 2}}),
            json!({"cpu": {"cores": 2}, "memory": {"guest": "64Mi"}, "resources": {"requests": {"cpu": "8"}}}),
            json!({"memory": {"guest": "64Mi"}, "resources": {"requests": {"cpu": "3"}}}),
            json!({"memory": {"guest": "64Mi"}, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2500m"}}}),
            json!({"memory": {"guest": "64Mi"}, "resources": {"requests": {"cpu": "1.5"}}}),
            json!({"memory": {"guest": "64Mi"}, "resources": {"requests": {"cpu": "100m"}}}),
            json!({"memory": {"guest": "64Mi"}, "resources": {"requests": {"cpu": 0}}}),
        ],
        &["vcpu", "topology"],
    ));
}

#[test]
fn cpu_model_is_the_host_model_or_exactly_the_named_model() {
    insta::assert_snapshot!(shown(
        &[
            json!({"cpu": {}}),
            json!({"cpu": {"model": "host-model"}}),
            json!({"cpu": {"model": "host-passthrough"}}),
            json!({"cpu": {"model": "Penryn"}}),
        ],
        &["cpu"],
    ));
}

#[test]
fn host_passthrough_is_migratable_if_offered_by_libvirt() {
    let spec = spec(&json!({"cpu": {"model": "host-passthrough"}}));
    for (offered, written) in [(Some(true), true), (Some(false), false), (None, true)] {
        let xml = described(&spec, VirtType::Kvm, &[], None, offered).unwrap();
        assert_eq!(xml.contains("migratable="), written, "{offered:?}");
        assert!(xml.contains("<cpu mode=\"host-passthrough\""), "{xml}");
    }
}

#[test]
fn cpu_model_max_is_written_as_mode_maximum() {
    let spec = spec(&json!({"cpu": {"model": "max"}}));
    for virt_type in [VirtType::Kvm, VirtType::Qemu] {
        let xml = masked_xml(&spec, virt_type, &[], None).unwrap();
        assert!(xml.contains("<cpu mode=\"maximum\">"), "{xml}");
    }
}

#[test]
fn by_emulation_the_emulator_is_the_host() {
    let spec = spec(&json!({"cpu": {"model": "host-passthrough"}}));
    let xml = masked_xml(&spec, VirtType::Qemu, &[], None).unwrap();
    assert!(xml.starts_with("<domain type=\"qemu\">"));
    insta::assert_snapshot!(parts(&xml, &["cpu"]));
}

#[test]
fn cpu_features_have_all_five_policies() {
    let policies = ["force", "require", "optional", "disable", "forbid"];
    let features: Vec<_> = policies
        .map(|policy| json!({"name": format!("f-{policy}"), "policy": policy}))
        .into();
    insta::assert_snapshot!(shown(
        &[
            json!({"cpu": {"features": features}}),
            json!({"cpu": {"model": "Penryn", "features": [{"name": "aes"}]}}),
        ],
        &["cpu"],
    ));
}

#[test]
fn masked_features_are_withheld_from_all_models() {
    let features = json!([
        {"name": "avx", "policy": "optional"},
        {"name": "hle", "policy": "disable"},
        {"name": "rtm", "policy": "forbid"},
        {"name": "aes", "policy": "forbid"},
    ]);
    let mut text = String::new();
    for model in ["host-model", "host-passthrough", "Haswell"] {
        let spec = spec(&json!({"cpu": {"model": model, "features": features}}));
        let masked = ["avx", "avx2", "avx512f", "hle", "rtm"];
        let host = ["avx", "avx2", "rtm", "sse2"];
        let xml = masked_xml(&spec, VirtType::Kvm, &masked, Some(&host)).unwrap();
        text.push_str(&parts(&xml, &["cpu"]));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn all_masked_features_are_withheld_if_the_hosts_are_unknown() {
    let spec = spec(&json!({"cpu": {"model": "Haswell"}}));
    let xml = masked_xml(&spec, VirtType::Kvm, &["avx2", "avx512f"], None).unwrap();
    insta::assert_snapshot!(parts(&xml, &["cpu"]));
}

#[test]
fn machine_and_firmware_follow_the_spec() {
    insta::assert_snapshot!(shown(
        &[
            json!({}),
            json!({"machine": {"type": ""}, "firmware": {"serial": ""}}),
            json!({"machine": {"type": "pc-q35-10.0"}}),
            json!({"firmware": {"uuid": "5D307CA9-B3EF-428C-8861-06E72D69F223"}}),
            json!({"firmware": {"serial": "a, \"b\" <c> & 'd'"}}),
        ],
        &["uuid", "sysinfo", "os"],
    ));
}

#[test]
fn clocks_follow_utc_an_offset_or_a_zone() {
    insta::assert_snapshot!(shown(
        &[
            json!({}),
            json!({"clock": {}}),
            json!({"clock": {"utc": {}}}),
            json!({"clock": {"utc": {"offsetSeconds": -3600}}}),
            json!({"clock": {"timezone": "Europe/Rome"}}),
            json!({"clock": {"utc": {}, "timezone": "Europe/Rome"}}),
        ],
        &["clock"],
    ));
}

#[test]
fn timers_are_as_named() {
    insta::assert_snapshot!(shown(
        &[
            json!({"clock": {"timer": {"hpet": {}, "kvm": {}, "pit": {}, "rtc": {}, "hyperv": {}}}}),
            json!({"clock": {"timer": {"hpet": {"present": false}, "kvm": {"present": false}}}}),
            json!({"clock": {"timer": {"rtc": {"tickPolicy": "catchup", "track": "wall"}}}}),
            json!({"clock": {"timer": {"pit": {"tickPolicy": "discard"}, "hpet": {"tickPolicy": "merge"}}}}),
        ],
        &["clock"],
    ));
}

#[test]
fn disks_are_on_requested_buses_and_named_in_order() {
    insta::assert_snapshot!(shown(
        &[disks(
            &json!([
                {"name": "a"},
                {"name": "b", "disk": {"bus": "sata"}},
                {"name": "c", "disk": {"bus": "scsi", "readonly": true}},
                {"name": "d", "disk": {"readonly": true}},
                {"name": "e", "cdrom": {}},
                {"name": "f", "cdrom": {"bus": "scsi", "readonly": false}},
            ]),
            &json!([]),
        )],
        &["disk"],
    ));
}

#[test]
fn disks_are_opened_as_prepared() {
    insta::assert_snapshot!(shown(
        &[
            disks(
                &json!([{"name": "image"}]),
                &json!([{"name": "image", "containerDisk": {"image": "i"}}])
            ),
            disks(
                &json!([{"name": "file"}, {"name": "block"}]),
                &json!([
                    {"name": "file", "persistentVolumeClaim": {"claimName": "f"}},
                    {"name": "block", "persistentVolumeClaim": {"claimName": "b"}},
                ]),
            ),
            disks(
                &json!([{"name": "empty"}]),
                &json!([{"name": "empty", "emptyDisk": {"capacity": "1Gi"}}])
            ),
        ],
        &["disk"],
    ));
}

#[test]
fn disks_have_requested_serial_number_and_cache() {
    let claim = json!([{"name": "a", "dataVolume": {"name": "x"}}]);
    insta::assert_snapshot!(shown(
        &[
            disks(
                &json!([{"name": "a", "serial": "A 1.b+c_d-e", "cache": "none"}]),
                &json!([])
            ),
            disks(
                &json!([{"name": "a", "serial": "", "cache": "writethrough"}]),
                &json!([])
            ),
            disks(&json!([{"name": "a", "cache": "writeback"}]), &claim),
            disks(&json!([{"name": "a"}]), &claim),
        ],
        &["driver", "serial"],
    ));
}

#[test]
fn volume_without_a_disk_gets_a_disk() {
    let spec = spec(&disks(
        &json!([{"name": "b", "disk": {"bus": "scsi"}}]),
        &json!([{"name": "a", "containerDisk": {"image": "i"}}, {"name": "b", "containerDisk": {"image": "i"}}]),
    ));
    let targets: Vec<_> = disk_targets(&spec).into_iter().map(|t| (t.volume, t.target)).collect();
    assert_eq!(targets, [("b".into(), "sda".into()), ("a".into(), "vda".to_owned())]);
    assert_eq!(parts(&xml(&spec).unwrap(), &["disk"]).matches("<disk ").count(), 2);
}

#[test]
fn disks_boot_by_number_else_in_the_manifests_order() {
    let volumes = json!([
        {"name": "cloud", "cloudInitNoCloud": {"userData": "#"}},
        {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
        {"name": "b", "containerDisk": {"image": "i"}},
        {"name": "a", "containerDisk": {"image": "i"}},
    ]);
    let mut numbered = disks(&json!([{"name": "b"}, {"name": "a", "bootOrder": 7}]), &volumes);
    numbered["devices"]["interfaces"] = json!([{"name": "default", "masquerade": {}, "bootOrder": 3}]);
    let order = |value: &Value| {
        let xml = xml(&spec(value)).unwrap();
        let document = Document::parse(&xml).unwrap();
        let mut places: Vec<(u32, String)> = document
            .descendants()
            .filter(|node| node.has_tag_name("boot"))
            .map(|node| {
                let device = node.parent().unwrap();
                let alias = device.children().find(|child| child.has_tag_name("alias")).unwrap();
                let place = node.attribute("order").unwrap().parse().unwrap();
                (place, alias.attribute("name").unwrap().into())
            })
            .collect();
        places.sort();
        places
    };
    let expected = |list: &[(u32, &str)]| -> Vec<(u32, String)> {
        list.iter().map(|&(place, alias)| (place, alias.into())).collect()
    };
    assert_eq!(order(&numbered), expected(&[(3, "ua-nic0"), (7, "ua-a")]));
    let unnumbered = disks(
        &json!([{"name": "cloud"}, {"name": "scratch"}, {"name": "b"}, {"name": "a"}]),
        &volumes,
    );
    assert_eq!(order(&unnumbered), expected(&[(1, "ua-b"), (2, "ua-a")]));
    assert_eq!(order(&disks(&json!([{"name": "cloud"}]), &volumes)).len(), 2);
}

#[test]
fn interfaces_have_requested_type_and_model() {
    insta::assert_snapshot!(shown(
        &[
            json!({}),
            json!({"devices": {"autoattachPodInterface": false}}),
            interface(&json!({"model": "e1000", "macAddress": "DE-AD-00-00-BE-AF"})),
            interface(&json!({"model": "e1000e", "bootOrder": 1})),
            interface(&json!({"ports": [{"port": 443}, {"port": 80, "protocol": "TCP"}, {"port": 443}]})),
            interface(&json!({"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]})),
            json!({"devices": {"interfaces": [{"name": "default", "passt": {}, "model": "virtio"}]}}),
        ],
        &["interface"],
    ));
}

#[test]
fn probed_ports_are_open_beside_those_that_are_anyway() {
    let open = |interfaces: Value, probes: Value| -> Vec<String> {
        let mut given = probes;
        given["domain"] = json!({"memory": {"guest": "64Mi"}, "devices": {"interfaces": interfaces}});
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(given).unwrap();
        let xml = masked_xml(&spec, VirtType::Qemu, &[], None).unwrap();
        let document = Document::parse(&xml).unwrap();
        let tcp = |node: &roxmltree::Node<'_, '_>| {
            node.has_tag_name("range") && node.parent().unwrap().attribute("proto") == Some("tcp")
        };
        let ranges = document.descendants().filter(tcp);
        ranges
            .map(|node| match (node.attribute("start").unwrap(), node.attribute("end")) {
                (start, None) => start.to_owned(),
                (start, Some(end)) => format!("{start}-{end}"),
            })
            .collect()
    };
    let usual = ["1-1023", "3000-3999", "5000-5999", "8000-9999"];
    let named = json!([{"name": "default", "ports": [{"name": "web", "port": 80}]}]);
    let tcp = |port: Value| json!({"livenessProbe": {"tcpSocket": {"port": port}}});
    let http = |get: Value| json!({"readinessProbe": {"httpGet": get}});
    for (interfaces, probes, expected) in [
        (json!([]), json!({}), usual.to_vec()),
        (json!([]), tcp(json!(22)), usual.to_vec()),
        (
            json!([]),
            tcp(json!(2379)),
            vec!["1-1023", "2379", "3000-3999", "5000-5999", "8000-9999"],
        ),
        (
            json!([]),
            http(json!({"port": 10250})),
            vec!["1-1023", "3000-3999", "5000-5999", "8000-9999", "10250"],
        ),
        // The probe connects to another host.
        (
            json!([]),
            http(json!({"port": 10250, "host": "192.0.2.1"})),
            usual.to_vec(),
        ),
        (named.clone(), json!({}), vec!["80"]),
        (named.clone(), http(json!({"port": "web"})), vec!["80"]),
        (named, tcp(json!(22)), vec!["22", "80"]),
    ] {
        assert_eq!(
            open(interfaces.clone(), probes.clone()),
            expected,
            "{interfaces} {probes}"
        );
    }
}

#[test]
fn guest_has_the_addresses_of_the_pod() {
    let address = |text: &str, prefix| PodAddress {
        address: text.parse().unwrap(),
        prefix,
    };
    let ip = |addresses: &[PodAddress]| {
        let spec = spec(&json!({}));
        let (masked, disks) = (BTreeSet::new(), prepared(&spec));
        let xml = domain_xml(&DomainInput {
            namespace: "shop",
            name: "db",
            uid: "7d5a3f80-0000-4000-8000-000000000001",
            spec: &spec,
            virt_type: VirtType::Kvm,
            architecture: "x86_64",
            masked_features: &masked,
            host_features: None,
            host_passthrough_migratable: None,
            disks: &disks,
            addresses,
        });
        parts(&xml.unwrap(), &["ip"])
    };
    let ipv4 = "<ip family=\"ipv4\" address=\"10.1.2.3\" prefix=\"24\"/>\n";
    let ipv6 = "<ip family=\"ipv6\" address=\"fd00::7\"/>\n";
    assert_eq!(ip(&[]), "");
    assert_eq!(ip(&[address("10.1.2.3", 24)]), ipv4);
    let both = [address("fd00::7", 64), address("10.1.2.3", 24), address("10.9.9.9", 24)];
    assert_eq!(ip(&both), format!("{ipv4}{ipv6}"), "one of each family");
    assert_eq!(ip(&[address("10.1.2.3", 33)]), "", "a pod may report anything");
}

#[test]
fn serial_port_and_screen_are_there_unless_refused() {
    insta::assert_snapshot!(shown(
        &[
            json!({}),
            json!({"devices": {"autoattachSerialConsole": false}}),
            json!({"devices": {"autoattachGraphicsDevice": false}}),
        ],
        &["serial", "console", "channel", "graphics", "video"],
    ));
}

#[test]
fn rng_device_is_present_if_requested() {
    insta::assert_snapshot!(shown(&[json!({}), json!({"devices": {"rng": {}}})], &["rng"]));
}

#[test]
fn inputs_are_on_requested_buses_with_a_usb_controller() {
    let input = |name: &str, bus: &str| json!({"name": name, "type": "tablet", "bus": bus});
    let devices = |devices: Value| json!({"devices": devices});
    insta::assert_snapshot!(shown(
        &[
            devices(json!({})),
            devices(json!({"autoattachInputDevice": true})),
            devices(
                json!({"inputs": [input("a", "usb"), input("b", "virtio"), input("c", "virtio"), input("d", "usb")]})
            ),
            devices(json!({"inputs": [{"name": "a", "type": "tablet"}], "autoattachInputDevice": true})),
        ],
        &["input"],
    ));
    let controller = |devices: Value| xml(&spec(&json!({"devices": devices}))).unwrap().contains("qemu-xhci");
    assert!(controller(json!({"autoattachInputDevice": true})));
    assert!(!controller(json!({"inputs": [input("b", "virtio")]})));
    assert!(!controller(json!({})));
}

#[test]
fn cards_leave_room_for_watchdog_and_sound() {
    let cards = |count: usize, more: &Value| {
        let interface = |index: usize| json!({"name": format!("n{index}"), "masquerade": {}, "model": "e1000"});
        let interfaces: Vec<Value> = (0..count).map(interface).collect();
        let mut devices = more.clone();
        devices["interfaces"] = json!(interfaces);
        xml(&spec(&json!({"devices": devices}))).is_ok()
    };
    let (watchdog, sound) = (json!({"watchdog": {"name": "w"}}), json!({"sound": {"name": "s"}}));
    for (more, most) in [(json!({}), 7), (watchdog, 6), (sound, 5)] {
        assert!(cards(most, &more) && !cards(most + 1, &more), "{more}");
    }
}

#[test]
fn watchdog_sound_and_balloon_follow_the_spec() {
    let devices = |devices: Value| json!({"devices": devices});
    insta::assert_snapshot!(shown(
        &[
            devices(json!({"autoattachMemBalloon": false})),
            devices(json!({"watchdog": {"name": "w"}, "sound": {"name": "s"}})),
            devices(
                json!({"watchdog": {"name": "w", "i6300esb": {"action": "poweroff"}}, "sound": {"name": "s", "model": "ac97"}})
            ),
        ],
        &["watchdog", "sound", "audio", "memballoon"],
    ));
}

#[test]
fn drive_without_a_volume_is_empty_and_not_booted() {
    let spec = spec(&json!({
        "devices": {"disks": [{"name": "drive", "cdrom": {}}, {"name": "root", "disk": {}}]},
        "volumes": [{"name": "root", "containerDisk": {"image": "i"}}, {"name": "files", "secret": {"secretName": "s"}}],
    }));
    let mut disks = prepared(&spec);
    disks.retain(|disk| disk.name != "drive");
    let xml = domain_xml(&input(&spec, &disks)).unwrap();
    let document = Document::parse(&xml).unwrap();
    let found: Vec<_> = document
        .descendants()
        .filter(|node| node.has_tag_name("disk"))
        .map(|disk| {
            let has = |name: &str| disk.children().any(|child| child.has_tag_name(name));
            (disk.attribute("device").unwrap(), has("source"), has("boot"))
        })
        .collect();
    assert_eq!(
        found,
        [("cdrom", false, false), ("disk", true, true), ("disk", true, false)]
    );
    // The disk of a volume must have been prepared.
    let missing = domain_xml(&input(&spec, &[]));
    assert!(matches!(missing, Err(DomainProblem::DiskNotPrepared(name)) if name == "root"));
}

#[test]
fn firmware_is_bios_or_efi_with_or_without_secure_boot() {
    let efi = |efi: Value| json!({"firmware": {"bootloader": {"efi": efi}}});
    insta::assert_snapshot!(shown(
        &[
            json!({"firmware": {"bootloader": {"bios": {}}}}),
            efi(json!({"secureBoot": false})),
            efi(json!({})),
        ],
        &["loader", "nvram", "smm"],
    ));
}

#[test]
fn hyperv_features_enable_required_features() {
    let hyperv = |hyperv: Value| json!({"features": {"hyperv": hyperv}});
    insta::assert_snapshot!(shown(
        &[
            json!({"features": {"smm": {}, "kvm": {"hidden": true}, "pvspinlock": {"enabled": false}}}),
            hyperv(json!({})),
            hyperv(json!({"relaxed": {}, "vapic": {"enabled": false}, "spinlocks": {"spinlocks": 8191}})),
            hyperv(json!({"ipi": {}})),
            hyperv(json!({"synictimer": {"direct": {}}, "vendorid": {"vendorid": "Drydock"}})),
        ],
        &["features", "timer"],
    ));
}

#[test]
fn guests_in_emulation_have_no_features_of_kvm() {
    let spec = spec(&json!({
        "features": {"smm": {}, "kvm": {"hidden": true}, "pvspinlock": {}, "hyperv": {"synictimer": {}}},
    }));
    let xml = masked_xml(&spec, VirtType::Qemu, &[], None).unwrap();
    assert!(xml.contains("<smm state=\"on\"/>"), "{xml}");
    for other in ["<kvm>", "<pvspinlock", "<hyperv", "hypervclock"] {
        assert!(!xml.contains(other), "{xml}");
    }
}
