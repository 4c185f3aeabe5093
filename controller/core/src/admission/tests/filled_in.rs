//! Defaults, and that filling them in is idempotent.

use std::collections::BTreeSet;

use drydock_api::{
    facts::VirtType,
    hyperconverged::EvictionStrategy,
    kubevirt::VirtualMachineInstanceSpec,
    launcher::{DiskFormat, PreparedDisk},
};
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};
use proptest::{option, sample::select};
use serde_json::{Value, json};

use super::{
    super::{
        AdmittedKind,
        defaults::{Named, default_instance, defaulted},
    },
    instance, machine, manifest, put, refusal_text,
};
use crate::{
    configuration::Configuration,
    domain::{DomainInput, domain_xml, firmware_uuid, mac_address},
};

const NAMED: Named<'static> = Named {
    namespace: "shop",
    name: Some("vm"),
};

fn filled(object: &Value) -> Value {
    defaulted(object, NAMED, &Configuration::default(), "amd64").unwrap_or_else(|| object.clone())
}

#[test]
fn a_sparse_manifest_is_complete_afterwards() {
    let sparse = manifest(
        "
        metadata: {name: vm, namespace: shop}
        spec:
          domain:
            resources: {requests: {memory: 64Mi}}
            ioThreadsPolicy: auto
            devices:
              disks: [{name: root, io: native}, {name: seed, cdrom: {}}]
          volumes:
          - {name: root, containerDisk: {image: example.org/disk}}
          - {name: seed, cloudInitNoCloud: {userData: x}}
          - {name: scratch, emptyDisk: {capacity: 1Gi}}
        ",
    );
    assert_eq!(refusal_text(&sparse, AdmittedKind::Instance), "");
    let whole = filled(&sparse);
    insta::assert_snapshot!(serde_json::to_string_pretty(&whole["spec"]).unwrap());
    assert_eq!(refusal_text(&whole, AdmittedKind::Instance), "");
    // Identities are derived from the name alone.
    assert_eq!(whole["spec"]["domain"]["firmware"]["uuid"], firmware_uuid("shop", "vm"));
    assert_eq!(
        whole["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"],
        mac_address("shop", "vm", "default")
    );
    assert_eq!(defaulted(&whole, NAMED, &Configuration::default(), "arm64"), None);
}

#[test]
fn manifest_values_are_kept() {
    let manifest_given = manifest(
        "
        spec:
          architecture: arm64
          terminationGracePeriodSeconds: 0
          evictionStrategy: LiveMigrate
          domain:
            cpu: {threads: 2, model: Haswell}
            machine: {type: virt-9.0}
            memory: {guest: 64Mi}
            resources: {requests: {memory: 32Mi, cpu: 100m}, limits: {memory: 1Gi, cpu: 4}}
            firmware: {uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223, serial: mine}
            devices:
              disks: [{name: root, disk: {bus: scsi}}, {name: seed, cdrom: {bus: scsi}}]
              interfaces: [{name: net, passt: {}, macAddress: '02:00:00:00:00:01'}]
          networks: [{name: net, pod: {}}]
          volumes: [{name: root, emptyDisk: {capacity: 1Gi}}, {name: seed, emptyDisk: {capacity: 1Gi}}]
        ",
    );
    let mut expected = manifest_given.clone();
    put(&mut expected, "/spec/domain/cpu/cores", json!(1));
    put(&mut expected, "/spec/domain/cpu/sockets", json!(1));
    assert_eq!(filled(&manifest_given), expected);
}

#[test]
fn interface_without_binding_gets_the_default_binding() {
    for (binding, expected) in [
        (json!({}), "masquerade"),
        (json!({"masquerade": {}}), "masquerade"),
        (json!({"passt": {}}), "passt"),
        (json!({"bridge": {}}), "bridge"),
    ] {
        let mut manifest_given = instance();
        let mut interface = binding.clone();
        interface["name"] = json!("default");
        put(
            &mut manifest_given,
            "/spec/domain/devices/interfaces",
            json!([interface]),
        );
        put(
            &mut manifest_given,
            "/spec/networks",
            json!([{"name": "default", "pod": {}}]),
        );
        let interface = &filled(&manifest_given)["spec"]["domain"]["devices"]["interfaces"][0];
        let bindings = ["masquerade", "passt", "bridge"];
        let set: Vec<&str> = bindings
            .into_iter()
            .filter(|name| interface.get(name).is_some())
            .collect();
        assert_eq!(set, [expected], "{binding}");
    }
}

#[test]
fn an_empty_text_is_the_same_as_none() {
    let mut plain = instance();
    put(&mut plain, "/spec/domain/cpu", json!({"features": [{"name": "aes"}]}));
    let timers = json!({"timer": {"hpet": {}, "rtc": {}}});
    put(&mut plain, "/spec/domain/clock", timers);
    put(
        &mut plain,
        "/spec/domain/devices/interfaces/0/ports",
        json!([{"port": 80}]),
    );
    let cloud_init = json!({"name": "seed", "cloudInitNoCloud": {"secretRef": {"name": "user"}}});
    put(&mut plain, "/spec/volumes/-", cloud_init);
    let mut object = plain.clone();
    for pointer in [
        "/domain/cpu/model",
        "/domain/cpu/features/0/policy",
        "/domain/clock/timer/hpet/tickPolicy",
        "/domain/clock/timer/rtc/track",
        "/domain/devices/disks/0/disk/bus",
        "/domain/devices/disks/0/serial",
        "/domain/devices/disks/0/cache",
        "/domain/devices/interfaces/0/model",
        "/domain/devices/interfaces/0/macAddress",
        "/domain/devices/interfaces/0/ports/0/name",
        "/domain/devices/interfaces/0/ports/0/protocol",
        "/volumes/0/containerDisk/path",
        "/volumes/0/containerDisk/imagePullPolicy",
        "/volumes/0/containerDisk/imagePullSecret",
        "/volumes/1/cloudInitNoCloud/userData",
        "/volumes/1/cloudInitNoCloud/userDataBase64",
        "/volumes/1/cloudInitNoCloud/networkData",
        "/volumes/1/cloudInitNoCloud/networkDataBase64",
        "/priorityClassName",
        "/schedulerName",
        "/hostname",
        "/subdomain",
        "/dnsPolicy",
        "/architecture",
    ] {
        put(&mut object, &format!("/spec{pointer}"), json!(""));
    }
    put(&mut object, "/spec/domain/machine", json!({"type": ""}));
    put(&mut object, "/spec/domain/firmware", json!({"uuid": "", "serial": ""}));
    assert_eq!(refusal_text(&object, AdmittedKind::Instance), "");
    assert_eq!(refusal_text(&machine(object.clone()), AdmittedKind::Machine), "");
    let spec =
        |object: Value| -> VirtualMachineInstanceSpec { serde_json::from_value(object["spec"].clone()).unwrap() };
    assert_eq!(spec(filled(&object)), spec(filled(&plain)));
}

#[test]
fn the_configuration_decides_where_the_manifest_does_not() {
    let configuration = Configuration {
        default_cpu_model: Some("Skylake-Server".into()),
        eviction_strategy: EvictionStrategy::LiveMigrate,
        ..Configuration::default()
    };
    let whole = defaulted(&instance(), NAMED, &configuration, "s390x").unwrap();
    assert_eq!(whole["spec"]["domain"]["cpu"]["model"], "Skylake-Server");
    assert_eq!(
        whole["spec"].get("evictionStrategy"),
        None,
        "the default in force at an eviction counts"
    );
    assert_eq!(whole["spec"]["architecture"], "s390x");
    assert_eq!(whole["spec"]["domain"]["machine"]["type"], "s390-ccw-virtio");
}

#[test]
fn the_cpu_model_exists_on_the_architecture() {
    for (architecture, use_emulation, expected) in [
        ("amd64", false, "host-model"),
        ("amd64", true, "host-model"),
        ("arm64", false, "host-passthrough"),
        ("arm64", true, "max"),
        ("s390x", false, "host-model"),
        ("s390x", true, "max"),
    ] {
        let configuration = Configuration {
            use_emulation,
            ..Configuration::default()
        };
        let whole = defaulted(&instance(), NAMED, &configuration, architecture).unwrap();
        let model = &whole["spec"]["domain"]["cpu"]["model"];
        assert_eq!(model, expected, "{architecture} {use_emulation}");
    }
}

#[test]
fn memory_and_cpus_follow_pod_requests() {
    for (given, guest, request, sockets) in [
        (json!({"memory": {"guest": "1Gi"}}), "1Gi", "1Gi", 1),
        (
            json!({"resources": {"requests": {"memory": "1Gi", "cpu": "1500m"}}}),
            "1Gi",
            "1Gi",
            2,
        ),
        (
            json!({"resources": {"limits": {"memory": "2Gi", "cpu": "3"}}}),
            "2Gi",
            "2Gi",
            3,
        ),
        (
            json!({"memory": {"guest": "1Gi"}, "resources": {"limits": {"memory": "2Gi"}}}),
            "1Gi",
            "2Gi",
            1,
        ),
        (
            json!({"memory": {"guest": "2Gi"}, "resources": {"requests": {"memory": "1Gi"}}, "cpu": {"cores": 2}}),
            "2Gi",
            "1Gi",
            1,
        ),
    ] {
        let whole = filled(&json!({"spec": {"domain": given}}));
        let domain = &whole["spec"]["domain"];
        assert_eq!(domain["memory"]["guest"], guest, "{given}");
        assert_eq!(domain["resources"]["requests"]["memory"], request, "{given}");
        assert_eq!(domain["cpu"]["sockets"], sockets, "{given}");
    }
}

#[test]
fn a_guest_may_have_no_network() {
    let without = json!({"spec": {"domain": {"devices": {"autoattachPodInterface": false}}}});
    let whole = filled(&without);
    assert_eq!(whole["spec"].get("networks"), None);
    assert_eq!(whole["spec"]["domain"]["devices"].get("interfaces"), None);
}

#[test]
fn before_there_is_a_name_there_are_no_identities() {
    let unnamed = Named {
        namespace: "shop",
        name: None,
    };
    let half = defaulted(&instance(), unnamed, &Configuration::default(), "amd64").unwrap();
    assert_eq!(half["spec"]["domain"].get("firmware"), None);
    let whole = filled(&half);
    assert_eq!(whole, filled(&instance()));
}

#[test]
fn invalid_instance_is_left_to_validation() {
    for object in [
        json!({}),
        json!({"spec": 1}),
        json!({"spec": {"domain": {"cpu": {"cores": "many"}}}}),
    ] {
        assert_eq!(defaulted(&object, NAMED, &Configuration::default(), "amd64"), None);
    }
}

/// Specs as users write them, valid or not.
fn specs() -> impl Strategy<Value = Value> {
    let amounts = || select(vec!["64Mi", "1Gi", "1024M", "100m", "2", "x"]);
    let amount_maps = || {
        option::of(prop::collection::btree_map(
            select(vec!["memory", "cpu"]),
            amounts(),
            0..3,
        ))
    };
    let cpu = option::of((
        option::of(1..5_u32),
        option::of(1..5_u32),
        option::of(select(vec!["", "Haswell", "host-passthrough"])),
    ));
    let disks = prop::collection::vec(
        (
            select(vec!["a", "b", "c"]),
            option::of(select(vec!["virtio", "sata", "scsi"])),
            any::<bool>(),
        ),
        0..3,
    );
    let volumes = prop::collection::btree_set(select(vec!["a", "b", "c"]), 0..3);
    let network = (any::<bool>(), option::of(any::<bool>()), any::<bool>());
    let architecture = option::of(select(vec!["amd64", "arm64", "s390x", "vax"]));
    (
        cpu,
        option::of(amounts()),
        amount_maps(),
        amount_maps(),
        disks,
        volumes,
        network,
        architecture,
    )
        .prop_map(
            |(cpu, guest, requests, limits, disks, volumes, (network, autoattach, passt), architecture)| {
                let disks: Vec<Value> = disks
                    .into_iter()
                    .map(|(name, bus, cdrom)| match (bus, cdrom) {
                        (None, false) => json!({"name": name, "io": "native"}),
                        (bus, true) => json!({"name": name, "cdrom": {"bus": bus}}),
                        (bus, false) => json!({"name": name, "disk": {"bus": bus}}),
                    })
                    .collect();
                let mut domain = json!({"devices": {"disks": disks, "autoattachPodInterface": autoattach}});
                if let Some((cores, threads, model)) = cpu {
                    domain["cpu"] = json!({"cores": cores, "threads": threads, "model": model, "maxSockets": 8});
                }
                if let Some(guest) = guest {
                    domain["memory"] = json!({"guest": guest});
                }
                domain["resources"] =
                    json!({"requests": requests.unwrap_or_default(), "limits": limits.unwrap_or_default()});
                let volumes: Vec<Value> = volumes
                    .into_iter()
                    .map(|name| json!({"name": name, "emptyDisk": {"capacity": "1Gi"}}))
                    .collect();
                let mut spec = json!({"domain": domain, "volumes": volumes, "architecture": architecture});
                if network {
                    let binding = if passt {
                        json!({"name": "n", "passt": {}})
                    } else {
                        json!({"name": "n"})
                    };
                    spec["domain"]["devices"]["interfaces"] = json!([binding]);
                    spec["networks"] = json!([{"name": "n", "pod": {}}]);
                }
                json!({"metadata": {"name": "vm", "namespace": "shop"}, "spec": spec})
            },
        )
}

proptest! {
    #[test]
    fn filling_in_twice_changes_nothing_more(object in specs()) {
        let once = filled(&object);
        prop_assert_eq!(&filled(&once), &once);
        // The typed value and the object agree.
        let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(object["spec"].clone()).unwrap();
        default_instance(&mut spec, NAMED, &Configuration::default(), "amd64");
        let read: VirtualMachineInstanceSpec = serde_json::from_value(once["spec"].clone()).unwrap();
        prop_assert_eq!(read, spec);
    }

    #[test]
    fn admitted_instance_stays_admitted_and_has_domain_xml(object in specs()) {
        let before = refusal_text(&object, AdmittedKind::Instance);
        let once = filled(&object);
        let after = refusal_text(&once, AdmittedKind::Instance);
        prop_assert!(!before.is_empty() || after.is_empty(), "{} though nothing was wrong before", after);
        let spec: VirtualMachineInstanceSpec = serde_json::from_value(once["spec"].clone()).unwrap();
        if after.is_empty() && spec.architecture.as_deref() == Some("amd64") {
            let disks: Vec<PreparedDisk> = spec
                .volumes
                .iter()
                .map(|volume| PreparedDisk {
                    name: volume.name.clone(),
                    path: format!("/disks/{}", volume.name),
                    format: DiskFormat::Raw,
                    virtual_size: 1 << 30,
                    backing: None,
                })
                .collect();
            let input = DomainInput {
                namespace: "shop",
                name: "vm",
                uid: "uid",
                spec: &spec,
                virt_type: VirtType::Kvm,
                architecture: "x86_64",
                masked_features: &BTreeSet::new(),
                host_features: None,
                host_passthrough_migratable: None,
                disks: &disks,
                addresses: &[],
            };
            let xml = domain_xml(&input);
            prop_assert!(xml.is_ok(), "{:?}", xml);
        }
    }
}
