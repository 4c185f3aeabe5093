//! Values that could never work; each is reported with its field, itself and the allowed values.

use serde_json::{Value, json};

use super::{super::AdmittedKind, instance, machine, put, refusal_text};

/// Changes to a valid instance (JSON pointer below `/spec`, value), and the beginning of the expected message; empty
/// if the change is admitted.
type Case = (&'static [(&'static str, &'static str)], &'static str);

fn check(cases: &[Case]) {
    for (changes, expected) in cases {
        let mut object = instance();
        for (pointer, value) in *changes {
            let value: Value = serde_json::from_str(value).unwrap_or_else(|error| panic!("{value}: {error}"));
            put(&mut object, &format!("/spec{pointer}"), value);
        }
        let refusal_text = refusal_text(&object, AdmittedKind::Instance);
        if expected.is_empty() {
            assert_eq!(refusal_text, "", "{changes:?}");
        } else {
            assert!(refusal_text.starts_with(expected), "{changes:?}: {refusal_text}");
            // In a template, the only difference is a longer path.
            let inner = super::refusal_text(&machine(object), AdmittedKind::Machine);
            let longer = expected
                .replace("spec.", "spec.template.spec.")
                .replace("spec cannot", "spec.template.spec cannot");
            assert!(inner.starts_with(&longer), "{inner}");
        }
    }
}

#[test]
fn cpus() {
    check(&[
        (
            &[
                ("/architecture", r#""arm64""#),
                ("/domain/cpu", r#"{"cores": 8, "sockets": 8, "threads": 8}"#),
            ],
            "",
        ),
        (
            &[("/domain/cpu", r#"{"cores": 8, "sockets": 8, "threads": 8}"#)],
            "spec.domain is invalid: the guest would have 512 CPUs; 1 to 255 are supported",
        ),
        (
            &[("/domain/cpu", r#"{"cores": 8, "sockets": 8, "threads": 9}"#)],
            "spec.domain.cpu: `576 CPUs` is not allowed; allowed: at most 512 as the product of cores",
        ),
        (
            &[(
                "/domain/cpu",
                r#"{"cores": 4294967295, "sockets": 4294967295, "threads": 4294967295}"#,
            )],
            "spec.domain.cpu.cores: `4294967295` is not allowed; allowed: 1 to 512",
        ),
        (
            &[("/domain/cpu", r#"{"cores": 0}"#)],
            "spec.domain.cpu.cores: `0` is not allowed; allowed: 1 to 512",
        ),
        (
            &[(
                "/domain/cpu",
                r#"{"features": [{"name": "aes"}, {"name": "avx"}, {"name": "aes", "policy": "forbid"}]}"#,
            )],
            "spec.domain.cpu.features[2].name: `aes` is already used by spec.domain.cpu.features[0]",
        ),
        (&[("/domain/cpu", r#"{"cores": "many"}"#)], "spec cannot be parsed: "),
    ]);
}

#[test]
fn memory_and_requests() {
    check(&[
        (
            &[("/domain/memory", "{}")],
            "spec.domain.memory.guest must be set: alternatively, set spec.domain.resources.requests.memory",
        ),
        (
            &[
                ("/domain/memory", "{}"),
                ("/domain/resources", r#"{"limits": {"memory": "1Gi"}}"#),
            ],
            "",
        ),
        (
            &[("/domain/memory/guest", r#""1 GB""#)],
            "spec.domain.memory.guest: `1 GB` is not allowed; allowed: an amount of bytes such as 64Mi",
        ),
        (
            &[("/domain/memory/guest", "1000")],
            "spec.domain.memory.guest: `1000` is not allowed; allowed: 1Mi to 16Ti",
        ),
        (
            &[("/domain/memory/guest", r#""17Ti""#)],
            "spec.domain.memory.guest: `17Ti` is not allowed; allowed: 1Mi to 16Ti",
        ),
        (
            &[
                ("/domain/memory", "{}"),
                ("/domain/resources", r#"{"requests": {"memory": "1Ki"}}"#),
            ],
            "spec.domain.resources.requests.memory: `1Ki` is not allowed; allowed: 1Mi to 16Ti",
        ),
        (
            &[("/domain/resources", r#"{"limits": {"memory": "32Mi"}}"#)],
            "spec.domain.memory.guest: `64Mi` is not allowed; allowed: at most the limit of the pod's memory, 32Mi",
        ),
        (
            &[(
                "/domain/resources",
                r#"{"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}"#,
            )],
            "spec.domain.resources.requests.memory: `2Gi` is not allowed; allowed: at most the limit, 1Gi",
        ),
        (
            &[(
                "/domain/resources",
                r#"{"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}"#,
            )],
            "spec.domain.resources.requests.cpu: `2` is not allowed; allowed: at most the limit, 1500m",
        ),
        // A guest may see more memory than its pod requests.
        (&[("/domain/resources", r#"{"requests": {"memory": "32Mi"}}"#)], ""),
    ]);
}

#[test]
fn requests_and_limits_are_checked_by_resource() {
    check(&[
        (
            &[("/domain/resources", r#"{"requests": {"cpu": "two"}}"#)],
            "spec.domain.resources.requests.cpu: `two` is not allowed; allowed: an amount of CPU",
        ),
        (
            &[("/domain/resources", r#"{"limits": {"hugepages-2Mi": "1Gi"}}"#)],
            "spec.domain.resources.limits.hugepages-2Mi is not supported by Drydock",
        ),
        (
            &[(
                "/domain/resources",
                r#"{"requests": {"memory": "1Gi", "devices.kubevirt.io/kvm": "1"}}"#,
            )],
            "",
        ),
        (
            &[(
                "/domain/resources",
                r#"{"limits": {"memory": "1Gi", "devices.kubevirt.io/kvm": "2"}}"#,
            )],
            "spec.domain.resources.limits.devices.kubevirt.io/kvm: `2` is not allowed; allowed: 1",
        ),
        (
            &[("/domain/resources", r#"{"limits": {"cpu": "513"}}"#)],
            "spec.domain.resources.limits.cpu: `513` is not allowed; allowed: at most 512",
        ),
    ]);
}

#[test]
fn quantities_of_requests_are_those_of_kubernetes() {
    check(&[
        (
            &[("/domain/resources", r#"{"requests": {"memory": "16Ei"}}"#)],
            "spec.domain.resources.requests.memory: `16Ei` is not allowed; allowed: an amount of bytes",
        ),
        (
            &[("/domain/resources", r#"{"requests": {"memory": "-64Mi"}}"#)],
            "spec.domain.resources.requests.memory: `-64Mi` is not allowed; allowed: an amount of bytes such as 64Mi or \
             1.5Gi, below 8Pi and not negative",
        ),
        (&[("/domain/memory/guest", r#""1e9""#)], ""),
        (&[("/domain/memory/guest", r#""+.5Gi""#)], ""),
        (
            &[("/domain/resources", r#"{"requests": {"memory": "1.G", "cpu": "1e-1"}}"#)],
            "",
        ),
    ]);
}

#[test]
fn machines_firmware_and_clocks() {
    check(&[
        (
            &[
                ("/architecture", r#""amd64""#),
                ("/domain/machine", r#"{"type": "pc-q35-9.2"}"#),
            ],
            "",
        ),
        (
            &[
                ("/architecture", r#""arm64""#),
                ("/domain/machine", r#"{"type": "virt"}"#),
            ],
            "",
        ),
        (&[("/domain/machine", r#"{"type": "s390-ccw-virtio-9.0"}"#)], ""),
        (&[("/domain/machine", r#"{"type": ""}"#)], ""),
        (
            &[("/architecture", r#""x86_64""#)],
            "spec.architecture: `x86_64` is not allowed; allowed: amd64, arm64, s390x",
        ),
        (
            &[
                ("/architecture", r#""arm64""#),
                ("/domain/machine", r#"{"type": "q35"}"#),
            ],
            "spec.domain.machine.type: `q35` is not allowed; allowed: virt or virt-VERSION on arm64",
        ),
        (
            &[("/domain/machine", r#"{"type": "pc"}"#)],
            "spec.domain.machine.type: `pc` is not allowed; allowed: q35 or pc-q35-VERSION on amd64, virt",
        ),
        (
            &[("/domain/firmware", r#"{"uuid": "not-one"}"#)],
            "spec.domain.firmware.uuid: `not-one` is not allowed; allowed: a UUID such as",
        ),
        (
            &[("/domain/firmware", r#"{"serial": "a\u0000b"}"#)],
            "spec.domain.firmware.serial: `a\u{fffd}b` is not allowed; allowed: up to 256 printable",
        ),
        (
            &[(
                "/domain/clock",
                r#"{"utc": {}, "timer": {"rtc": {"tickPolicy": "catchup", "track": "guest"}}}"#,
            )],
            "",
        ),
        (&[("/domain/clock", r#"{"utc": {}, "timezone": "Europe/Rome"}"#)], ""),
        (
            &[("/domain/clock", r#"{"timer": {"kvm": {"tickPolicy": "delay"}}}"#)],
            "spec.domain.clock.timer.kvm.tickPolicy: `delay` is not allowed; allowed: none",
        ),
        (
            &[("/domain/clock", r#"{"timer": {"rtc": {"tickPolicy": "merge"}}}"#)],
            "spec.domain.clock.timer.rtc.tickPolicy: `merge` is not allowed; allowed: delay, catchup",
        ),
        (
            &[("/domain/clock", r#"{"timer": {"pit": {"track": "guest"}}}"#)],
            "spec.domain.clock.timer.pit.track: `guest` is not allowed",
        ),
    ]);
}

#[test]
fn disks() {
    check(&[
        (&[("/domain/devices/disks", "[]")], ""),
        (
            &[("/domain/devices/disks/0/name", r#""other""#)],
            "spec.domain.devices.disks[0].name: `other` is not allowed; allowed: the name of one of spec.volumes",
        ),
        (
            &[("/domain/devices/disks/-", r#"{"name": "root"}"#)],
            "spec.domain.devices.disks[1].name: `root` is already used by spec.domain.devices.disks[0]",
        ),
        (
            &[("/domain/devices/disks/0/cdrom", "{}")],
            "spec.domain.devices.disks[0].cdrom cannot be set together with spec.domain.devices.disks[0].disk",
        ),
        (
            &[(
                "/domain/devices/disks/0",
                r#"{"name": "root", "cdrom": {"bus": "scsi", "readonly": true}}"#,
            )],
            "",
        ),
        (
            &[(
                "/domain/devices/disks/0",
                r#"{"name": "root", "cdrom": {"bus": "virtio"}}"#,
            )],
            "spec.domain.devices.disks[0].cdrom.bus: `virtio` is not allowed; allowed: sata, scsi",
        ),
        (
            &[
                ("/architecture", r#""arm64""#),
                (
                    "/domain/devices/disks/0",
                    r#"{"name": "root", "cdrom": {"bus": "sata"}}"#,
                ),
            ],
            "spec.domain.devices.disks[0].cdrom.bus: `sata` is not allowed; allowed: scsi",
        ),
        (
            &[
                ("/architecture", r#""s390x""#),
                ("/domain/devices/disks/0/disk/bus", r#""sata""#),
            ],
            "spec.domain.devices.disks[0].disk.bus: `sata` is not allowed; allowed: virtio, scsi",
        ),
        (
            &[(
                "/domain/devices/disks/0",
                r#"{"name": "root", "cdrom": {"readonly": false}}"#,
            )],
            "spec.domain.devices.disks[0].cdrom.readonly: `false` is not allowed",
        ),
        (
            &[("/domain/devices/disks/0/serial", r#""a,b""#)],
            "spec.domain.devices.disks[0].serial: `a,b` is not allowed; allowed: up to 256 letters",
        ),
        (
            &[
                ("/domain/devices/disks/0/bootOrder", "1"),
                ("/domain/devices/interfaces/0/bootOrder", "1"),
            ],
            "spec.domain.devices.interfaces[0].bootOrder: `1` is already used by spec.domain.devices.disks[0]",
        ),
        (
            &[("/domain/devices/disks/0/bootOrder", "0")],
            "spec.domain.devices.disks[0].bootOrder: `0` is not allowed; allowed: 1 or more",
        ),
    ]);
}

#[test]
fn domain_not_describable_to_libvirt_is_refused_at_creation() {
    check(&[(
        &[("/domain/devices/disks/0/disk", r#"{"bus": "sata", "readonly": true}"#)],
        "spec.domain is invalid: disk `root` cannot be read-only on bus sata; supported: virtio, scsi",
    )]);
    let mut object = instance();
    for number in 0..200 {
        let name = format!("disk-{number}");
        put(&mut object, "/spec/domain/devices/disks/-", json!({"name": name}));
        let volume = json!({"name": name, "emptyDisk": {"capacity": "1Gi"}});
        put(&mut object, "/spec/volumes/-", volume);
    }
    let refusal_text = refusal_text(&object, AdmittedKind::Instance);
    assert!(
        refusal_text.contains("spec.domain is invalid: there are too many devices"),
        "{refusal_text}"
    );
}

#[test]
fn volumes() {
    check(&[
        (
            &[("/volumes/0", r#"{"name": "root"}"#)],
            "spec.volumes[0] must be set: one of containerDisk",
        ),
        (
            &[("/volumes/0/emptyDisk", r#"{"capacity": "1Gi"}"#)],
            "spec.volumes[0].emptyDisk cannot be set together with spec.volumes[0].containerDisk",
        ),
        (
            &[("/volumes/-", r#"{"name": "root", "emptyDisk": {"capacity": "1Gi"}}"#)],
            "spec.volumes[1].name: `root` is already used by spec.volumes[0]",
        ),
        (
            &[("/volumes/-", r#"{"name": "Other", "emptyDisk": {"capacity": "1Gi"}}"#)],
            "spec.volumes[1].name: `Other` is not allowed; allowed: up to 63 lower case letters",
        ),
        // Reported once, by name.
        (
            &[("/volumes/0", r#"{"name": "root", "hostDisk": {"path": "/x"}}"#)],
            "spec.volumes[0].hostDisk is not supported by Drydock",
        ),
        (
            &[
                ("/volumes/0/emptyDisk", "null"),
                ("/volumes/-", r#"{"name": "x", "emptyDisk": {"capacity": "0"}}"#),
            ],
            "spec.volumes[1].emptyDisk.capacity: `0` is not allowed; allowed: an amount of bytes",
        ),
        (
            &[("/volumes/0/containerDisk", r#"{"image": "has space"}"#)],
            "spec.volumes[0].containerDisk.image: `has space` is not allowed",
        ),
        (
            &[(
                "/volumes/0/containerDisk",
                r#"{"image": "x", "path": "/custom/disk.img"}"#,
            )],
            "",
        ),
        (
            &[(
                "/volumes/0/containerDisk",
                r#"{"image": "x", "path": "/disk/../../etc/passwd"}"#,
            )],
            "spec.volumes[0].containerDisk.path: `/disk/../../etc/passwd` is not allowed; allowed: an absolute path",
        ),
    ]);
}

#[test]
fn claims_are_used_once_and_not_hot_plugged() {
    check(&[
        (
            &[(
                "/volumes/0",
                r#"{"name": "root", "persistentVolumeClaim": {"claimName": "No_Name"}}"#,
            )],
            "spec.volumes[0].persistentVolumeClaim.claimName: `No_Name` is not allowed",
        ),
        (
            &[
                (
                    "/volumes/0",
                    r#"{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}"#,
                ),
                ("/volumes/-", r#"{"name": "again", "dataVolume": {"name": "data"}}"#),
            ],
            "spec.volumes[1].dataVolume: `data` is already used by spec.volumes[0]",
        ),
        (
            &[(
                "/volumes/0",
                r#"{"name": "root", "persistentVolumeClaim": {"claimName": "a", "hotpluggable": true}}"#,
            )],
            "spec.volumes[0].persistentVolumeClaim.hotpluggable is not supported by Drydock",
        ),
        (
            &[(
                "/volumes/0",
                r#"{"name": "root", "persistentVolumeClaim": {"claimName": "a", "hotpluggable": false}}"#,
            )],
            "",
        ),
    ]);
}

#[test]
fn cloud_init() {
    check(&[
        (
            &[(
                "/volumes/-",
                r#"{"name": "c", "cloudInitNoCloud": {"userDataBase64": "QUJD", "networkData": "x"}}"#,
            )],
            "",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "c", "cloudInitNoCloud": {"secretRef": {"name": "s"}}}"#,
            )],
            "",
        ),
        (
            &[("/volumes/-", r#"{"name": "c", "cloudInitNoCloud": {}}"#)],
            "spec.volumes[1].cloudInitNoCloud must be set: at least one of userData",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "c", "cloudInitNoCloud": {"userData": "x", "secretRef": {"name": "s"}}}"#,
            )],
            "spec.volumes[1].cloudInitNoCloud.secretRef cannot be set together with spec.volumes[1].cloudInitNoCloud.userData",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "c", "cloudInitNoCloud": {"userDataBase64": "not base64"}}"#,
            )],
            "spec.volumes[1].cloudInitNoCloud.userDataBase64: `not base64` is not allowed; allowed: base64",
        ),
        (
            &[
                ("/volumes/-", r#"{"name": "c", "cloudInitNoCloud": {"userData": "x"}}"#),
                ("/volumes/-", r#"{"name": "d", "cloudInitNoCloud": {"userData": "x"}}"#),
            ],
            "spec.volumes[2].cloudInitNoCloud cannot be set together with spec.volumes[1].cloudInitNoCloud",
        ),
    ]);
}

#[test]
fn cloud_init_data_is_limited_by_decoded_length() {
    // The decoded length of base64 counts: 2048 bytes are 2732 characters.
    for (field, text, instead) in [
        ("userData", "x".repeat(2048), "secretRef"),
        ("networkData", "x".repeat(2048), "networkDataSecretRef"),
        ("userDataBase64", format!("{}QUI=", "QUJD".repeat(682)), "secretRef"),
        (
            "networkDataBase64",
            format!("{}QUI=", "QUJD".repeat(682)),
            "networkDataSecretRef",
        ),
    ] {
        let with = |text: String| {
            let mut object = instance();
            put(
                &mut object,
                "/spec/volumes/-",
                json!({"name": "c", "cloudInitNoCloud": {(field): text}}),
            );
            refusal_text(&object, AdmittedKind::Instance)
        };
        assert_eq!(with(text.clone()), "", "{field}");
        let longer = with(format!("xxxx{text}"));
        assert!(longer.contains("at most 2048 bytes"), "{longer}");
        assert!(
            longer.ends_with(&format!("a Secret, named by {instead}, can hold more")),
            "{longer}"
        );
    }
    let mut object = instance();
    let text = "x".repeat(2049);
    put(
        &mut object,
        "/spec/volumes/-",
        json!({"name": "c", "cloudInitNoCloud": {"userData": text}}),
    );
    let refusal_text = refusal_text(&object, AdmittedKind::Instance);
    assert!(
        refusal_text.contains("userData: `xxx")
            && refusal_text.contains("at most 2048 bytes")
            && refusal_text.len() < 300,
        "{refusal_text}"
    );
}

#[test]
fn networks() {
    check(&[
        (
            &[("/networks", "[]")],
            "spec.domain.devices.interfaces[0].name: `default` is not allowed; allowed: the name of one of spec.networks",
        ),
        (
            &[("/domain/devices/interfaces", "[]")],
            "spec.networks[0].name: `default` is not allowed; allowed: the name of one of spec.domain.devices.interfaces",
        ),
        (
            &[("/networks/0", r#"{"name": "default"}"#)],
            "spec.networks[0].pod must be set: only the pod network is supported",
        ),
        (
            &[("/networks/0", r#"{"name": "default", "multus": {"networkName": "x"}}"#)],
            "spec.networks[0].multus is not supported by Drydock",
        ),
        (
            &[
                ("/networks/-", r#"{"name": "second", "pod": {}}"#),
                ("/domain/devices/interfaces/-", r#"{"name": "second"}"#),
            ],
            "spec.networks[1].pod cannot be set together with spec.networks[0].pod",
        ),
        (
            &[("/domain/devices/interfaces/0/passt", "{}")],
            "spec.domain.devices.interfaces[0].passt cannot be set together with spec.domain.devices.interfaces[0].masquerade",
        ),
        (
            &[("/domain/devices/interfaces/0", r#"{"name": "default", "slirp": {}}"#)],
            "spec.domain.devices.interfaces[0].slirp is not supported by Drydock",
        ),
        (
            &[("/domain/devices/interfaces/0", r#"{"name": "default", "bridge": {}}"#)],
            "",
        ),
        (
            &[(
                "/domain/devices/interfaces/0",
                r#"{"name": "default", "passt": {}, "bridge": {}}"#,
            )],
            "spec.domain.devices.interfaces[0].bridge cannot be set together with spec.domain.devices.interfaces[0].passt",
        ),
        (&[("/domain/devices/interfaces/0", r#"{"name": "default"}"#)], ""),
    ]);
}

#[test]
fn mac_addresses_and_ports_are_checked() {
    check(&[
        (
            &[("/domain/devices/interfaces/0/macAddress", r#""DE-AD-00-00-BE-AF""#)],
            "",
        ),
        (
            &[("/domain/devices/interfaces/0/macAddress", r#""01:00:00:00:00:01""#)],
            "spec.domain.devices.interfaces[0].macAddress: `01:00:00:00:00:01` is not allowed; allowed: a unicast address",
        ),
        (
            &[("/domain/devices/interfaces/0/macAddress", r#""00:00:00:00:00:00""#)],
            "spec.domain.devices.interfaces[0].macAddress: `00:00:00:00:00:00` is not allowed; allowed: an address that is not all zeros",
        ),
        (
            &[("/domain/devices/interfaces/0/macAddress", r#""02:00:00:00:00:+1""#)],
            "spec.domain.devices.interfaces[0].macAddress: `02:00:00:00:00:+1` is not allowed; allowed: six pairs",
        ),
        (
            &[(
                "/domain/devices/interfaces/0/ports",
                r#"[{"port": 80}, {"port": 80, "protocol": "UDP"}, {"port": 80, "protocol": "TCP"}]"#,
            )],
            "spec.domain.devices.interfaces[0].ports[2].port: `80` is already used by spec.domain.devices.interfaces[0].ports[0]",
        ),
        (
            &[(
                "/domain/devices/interfaces/0/ports",
                r#"[{"port": 80, "name": "web"}, {"port": 81, "name": "web"}]"#,
            )],
            "spec.domain.devices.interfaces[0].ports[1].name: `web` is already used",
        ),
        (
            &[("/domain/devices/interfaces/0/ports", r#"[{"port": 80, "name": "80"}]"#)],
            "spec.domain.devices.interfaces[0].ports[0].name: `80` is not allowed; allowed: up to 15",
        ),
        (
            &[("/domain/devices/interfaces/0/ports", r#"[{"port": 0}]"#)],
            "spec.domain.devices.interfaces[0].ports[0].port: `0` is not allowed; allowed: 1 to 65535",
        ),
    ]);
}

#[test]
fn probes() {
    check(&[
        (
            &[("/readinessProbe", r#"{"tcpSocket": {"port": 22}, "periodSeconds": 5}"#)],
            "",
        ),
        (
            &[
                ("/domain/devices/interfaces/0/ports", r#"[{"port": 80, "name": "web"}]"#),
                ("/livenessProbe", r#"{"httpGet": {"port": "web"}}"#),
            ],
            "",
        ),
        (
            &[("/readinessProbe", "{}")],
            "spec.readinessProbe must be set: one of httpGet and tcpSocket",
        ),
        (
            &[(
                "/readinessProbe",
                r#"{"tcpSocket": {"port": 22}, "httpGet": {"port": 22}}"#,
            )],
            "spec.readinessProbe.tcpSocket cannot be set together with spec.readinessProbe.httpGet",
        ),
        (
            &[("/readinessProbe", r#"{"guestAgentPing": {}}"#)],
            "spec.readinessProbe.guestAgentPing is not supported by Drydock",
        ),
        (
            &[("/livenessProbe", r#"{"exec": {"command": ["true"]}}"#)],
            "spec.livenessProbe.exec is not supported by Drydock",
        ),
        (
            &[(
                "/livenessProbe",
                r#"{"tcpSocket": {"port": 22}, "successThreshold": 2}"#,
            )],
            "spec.livenessProbe.successThreshold: `2` is not allowed; allowed: 1",
        ),
        (
            &[("/livenessProbe", r#"{"tcpSocket": {"port": 70000}}"#)],
            "spec.livenessProbe.tcpSocket.port: `70000` is not allowed; allowed: 1 to 65535",
        ),
        (
            &[("/livenessProbe", r#"{"tcpSocket": {"port": "ssh"}}"#)],
            "spec.livenessProbe.tcpSocket.port: `ssh` is not allowed; allowed: a number, or the name",
        ),
        (
            &[(
                "/livenessProbe",
                r#"{"httpGet": {"port": 80, "scheme": "GOPHER"}, "periodSeconds": -1}"#,
            )],
            "spec.livenessProbe.httpGet.scheme: `GOPHER` is not allowed; allowed: HTTP, HTTPS; \
             spec.livenessProbe.periodSeconds: `-1` is not allowed",
        ),
        (
            &[(
                "/readinessProbe",
                r#"{"httpGet": {"port": 80, "httpHeaders": [{"name": "X-A", "value": "b"}, {"name": "a: b", "value": ""}]}}"#,
            )],
            "spec.readinessProbe.httpGet.httpHeaders[1].name: `a: b` is not allowed; allowed: an HTTP header name",
        ),
        (
            &[
                ("/networks", "[]"),
                ("/domain/devices/interfaces", "[]"),
                ("/domain/devices/autoattachPodInterface", "false"),
                ("/readinessProbe", r#"{"tcpSocket": {"port": 22}}"#),
            ],
            "spec.readinessProbe cannot be set together with a network configuration without a pod network",
        ),
    ]);
}

#[test]
fn scheduling() {
    check(&[
        (
            &[("/nodeSelector", r#"{"a b": "c"}"#)],
            "spec.nodeSelector: `a b` is not allowed; allowed: an optional DNS subdomain",
        ),
        (
            &[("/nodeSelector", r#"{"a": "c/d"}"#)],
            "spec.nodeSelector.a: `c/d` is not allowed; allowed: up to 63",
        ),
        (
            &[("/nodeSelector", r#"{"guest.node.drydock.dev/5b0a": "true"}"#)],
            "spec.nodeSelector: `guest.node.drydock.dev/5b0a` is not allowed; allowed: a node label that does not start with guest.node.drydock.dev/",
        ),
        (
            &[(
                "/affinity",
                r#"{"nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "guest.node.drydock.dev/5b0a", "operator": "DoesNotExist"}]}]},
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "preference": {"matchExpressions": [{"key": "guest.node.drydock.dev/x", "operator": "Exists"}]}}]}}"#,
            )],
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key: \
             `guest.node.drydock.dev/5b0a` is not allowed; allowed: a node label that does not start with guest.node.drydock.dev/; \
             spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key: \
             `guest.node.drydock.dev/x` is not allowed",
        ),
        (
            &[(
                "/tolerations",
                r#"[{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5}]"#,
            )],
            "",
        ),
        (
            &[("/tolerations", r#"[{"key": "a", "operator": "Exists", "value": "b"}]"#)],
            "spec.tolerations[0].value: `b` is not allowed; allowed: no value with the operator Exists",
        ),
        (
            &[("/tolerations", r#"[{"value": "b"}]"#)],
            "spec.tolerations[0].operator: `Equal` is not allowed; allowed: Exists, because key is not set",
        ),
        (
            &[("/tolerations", r#"[{"key": "a", "effect": "Never"}]"#)],
            "spec.tolerations[0].effect: `Never` is not allowed; allowed: NoSchedule, PreferNoSchedule, NoExecute",
        ),
        (
            &[("/tolerations", r#"[{"key": "a", "tolerationSeconds": 5}]"#)],
            "spec.tolerations[0].tolerationSeconds: `5` is not allowed",
        ),
    ]);
}

#[test]
fn affinity_and_topology_spread_are_checked_by_term() {
    check(&[
        (
            &[(
                "/affinity",
                r#"{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}"#,
            )],
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms must be set",
        ),
        (
            &[(
                "/affinity",
                r#"{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}]}}}"#,
            )],
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: `x`",
        ),
        (
            &[(
                "/affinity",
                r#"{"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "podAffinityTerm": {"topologyKey": ""}}]}}"#,
            )],
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: `0` is not allowed; allowed: 1 to 100; \
             spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.topologyKey must be set",
        ),
        (
            &[(
                "/topologySpreadConstraints",
                r#"[{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "Perhaps"}]"#,
            )],
            "spec.topologySpreadConstraints[0].maxSkew: `0` is not allowed; allowed: 1 or more; \
             spec.topologySpreadConstraints[0].whenUnsatisfiable: `Perhaps` is not allowed",
        ),
    ]);
}

#[test]
fn names_and_dns_settings_of_the_pod_are_checked() {
    check(&[
        (
            &[("/hostname", r#""db.shop""#)],
            "spec.hostname: `db.shop` is not allowed; allowed: up to 63",
        ),
        (&[("/subdomain", r#""-a""#)], "spec.subdomain: `-a` is not allowed"),
        (
            &[("/priorityClassName", r#""A""#)],
            "spec.priorityClassName: `A` is not allowed",
        ),
        (
            &[("/terminationGracePeriodSeconds", "-1")],
            "spec.terminationGracePeriodSeconds: `-1` is not allowed; allowed: 0 to 86400",
        ),
        (
            &[("/dnsPolicy", r#""Whatever""#)],
            "spec.dnsPolicy: `Whatever` is not allowed; allowed: ClusterFirst",
        ),
        (
            &[("/dnsPolicy", r#""None""#)],
            "spec.dnsConfig.nameservers must be set: dnsPolicy None",
        ),
        (
            &[("/dnsConfig", r#"{"nameservers": ["ten"], "searches": ["a b"]}"#)],
            "spec.dnsConfig.nameservers[0]: `ten` is not allowed; allowed: an IP address; \
             spec.dnsConfig.searches[0]: `a b` is not allowed",
        ),
    ]);
}

#[test]
fn names_of_objects_become_labels() {
    let mut object = instance();
    put(&mut object, "/metadata/name", json!("x".repeat(64)));
    assert!(refusal_text(&object, AdmittedKind::Instance).contains("metadata.name: `xxx"));
    put(&mut object, "/metadata/name", json!("x".repeat(63)));
    assert_eq!(refusal_text(&object, AdmittedKind::Instance), "");
}

#[test]
fn machines_run_by_one_rule() {
    let mut object = machine(instance());
    put(&mut object, "/spec/running", json!(true));
    let conflict = "spec.running cannot be set together with spec.runStrategy";
    assert_eq!(refusal_text(&object, AdmittedKind::Machine), conflict);
    object["spec"].as_object_mut().unwrap().remove("running");
    object["spec"].as_object_mut().unwrap().remove("runStrategy");
    assert!(refusal_text(&object, AdmittedKind::Machine).starts_with("spec.runStrategy must be set: one of Always"));
}

#[test]
fn replica_set_selector_must_match_the_template_labels() {
    let mut object = json!({
        "metadata": {"name": "set"},
        "spec": {
            "selector": {"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["web"]}]},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": instance()["spec"]},
        },
    });
    assert_eq!(refusal_text(&object, AdmittedKind::ReplicaSet), "");
    put(
        &mut object,
        "/spec/template/metadata/labels",
        json!({"app": "db", "tier": "web"}),
    );
    assert_eq!(
        refusal_text(&object, AdmittedKind::ReplicaSet),
        "spec.template.metadata.labels: `app=db,tier=web` is not allowed; allowed: labels that spec.selector selects"
    );
    put(&mut object, "/spec/selector", json!({}));
    assert!(
        refusal_text(&object, AdmittedKind::ReplicaSet).starts_with("spec.selector must be set: an empty selector")
    );
    put(
        &mut object,
        "/spec/selector",
        json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
    );
    assert!(refusal_text(&object, AdmittedKind::ReplicaSet).starts_with(
        "spec.selector.matchExpressions[0].operator: `Is` is not allowed; allowed: In, NotIn, Exists, DoesNotExist"
    ));
}

#[test]
fn files_of_objects() {
    check(&[
        (
            &[("/volumes/-", r#"{"name": "a", "configMap": {"name": "settings"}}"#)],
            "",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "secret": {"secretName": "s", "optional": true, "volumeLabel": "my-LABEL_1"}}"#,
            )],
            "",
        ),
        (
            &[("/volumes/-", r#"{"name": "a", "sysprep": {"secret": {"name": "s"}}}"#)],
            "",
        ),
        (
            &[("/volumes/-", r#"{"name": "a", "sysprep": {}}"#)],
            "spec.volumes[1].sysprep must be set: one of configMap and secret",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "sysprep": {"secret": {"name": "s"}, "configMap": {"name": "c"}}}"#,
            )],
            "spec.volumes[1].sysprep.secret cannot be set together with spec.volumes[1].sysprep.configMap",
        ),
        (
            &[("/volumes/-", r#"{"name": "a", "configMap": {"name": "No"}}"#)],
            "spec.volumes[1].configMap.name: `No` is not allowed",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "secret": {"secretName": "s", "volumeLabel": "a b"}}"#,
            )],
            "spec.volumes[1].secret.volumeLabel: `a b` is not allowed; allowed: up to 32",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "secret": {"secretName": "s"}, "emptyDisk": {"capacity": "1Gi"}}"#,
            )],
            "spec.volumes[1].secret cannot be set together with",
        ),
    ]);
}

#[test]
fn service_accounts_are_mounted_once_and_read_only() {
    check(&[
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "serviceAccount": {"serviceAccountName": "s"}}"#,
            )],
            "",
        ),
        (
            &[
                (
                    "/volumes/-",
                    r#"{"name": "a", "serviceAccount": {"serviceAccountName": "s"}}"#,
                ),
                ("/domain/devices/disks/-", r#"{"name": "a", "disk": {"bus": "sata"}}"#),
            ],
            "spec.domain is invalid: disk `a` cannot be read-only on bus sata; supported: virtio, scsi",
        ),
        (
            &[("/volumes/-", r#"{"name": "a", "serviceAccount": {}}"#)],
            "spec.volumes[1].serviceAccount.serviceAccountName: `` is not allowed",
        ),
        (
            &[
                (
                    "/volumes/-",
                    r#"{"name": "a", "serviceAccount": {"serviceAccountName": "s"}}"#,
                ),
                (
                    "/volumes/-",
                    r#"{"name": "b", "serviceAccount": {"serviceAccountName": "s"}}"#,
                ),
            ],
            "spec.volumes[2].serviceAccount cannot be set together with spec.volumes[1].serviceAccount",
        ),
    ]);
}

#[test]
fn files_of_the_downward_api() {
    check(&[
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "downwardAPI": {"fields": [
                    {"path": "all/labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "one", "fieldRef": {"fieldPath": "metadata.annotations['a.example/b']"}},
                    {"path": "cpu", "resourceFieldRef": {"containerName": "compute", "resource": "limits.cpu", "divisor": "1m"}},
                    {"path": "memory", "resourceFieldRef": {"containerName": "compute", "resource": "limits.memory", "divisor": 1}}]}}"#,
            )],
            "",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "downwardAPI": {"fields": [{"path": "x"}]}}"#,
            )],
            "spec.volumes[1].downwardAPI.fields[0] must be set: one of fieldRef and resourceFieldRef",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "downwardAPI": {"fields": [{"path": "../x", "fieldRef": {"fieldPath": "metadata.name"}}]}}"#,
            )],
            "spec.volumes[1].downwardAPI.fields[0].path: `../x` is not allowed",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "downwardAPI": {"fields": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}]}}"#,
            )],
            "spec.volumes[1].downwardAPI.fields[0].fieldRef.fieldPath: `status.podIP` is not allowed; allowed: one of metadata.name",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "downwardAPI": {"fields": [
                    {"path": "x", "resourceFieldRef": {"containerName": "compute", "resource": "limits.memory", "divisor": "1m"}}]}}"#,
            )],
            "spec.volumes[1].downwardAPI.fields[0].resourceFieldRef.divisor: `1m` is not allowed; allowed: one of 1, 1k",
        ),
        (
            &[(
                "/volumes/-",
                r#"{"name": "a", "downwardAPI": {"fields": [
                    {"path": "x", "resourceFieldRef": {"containerName": "other", "resource": "limits.memory"}}]}}"#,
            )],
            "spec.volumes[1].downwardAPI.fields[0].resourceFieldRef.containerName: `other` is not allowed; allowed: compute",
        ),
    ]);
}

#[test]
fn drives_without_volume_are_empty_cd_rom_drives() {
    check(&[
        (
            &[(
                "/domain/devices/disks/-",
                r#"{"name": "drive", "cdrom": {"bus": "sata"}}"#,
            )],
            "",
        ),
        (
            &[("/domain/devices/disks/-", r#"{"name": "drive", "disk": {}}"#)],
            "spec.domain.devices.disks[1].name: `drive` is not allowed",
        ),
    ]);
}

/// A change that adds a volume for cloud-init.
const DRIVE: (&str, &str) = (
    "/volumes/-",
    r#"{"name": "drive", "cloudInitConfigDrive": {"userData": "x"}}"#,
);

#[test]
fn access_credentials() {
    check(&[
        (
            &[
                DRIVE,
                (
                    "/accessCredentials",
                    r#"[{"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": {"configDrive": {}}}}]"#,
                ),
            ],
            "",
        ),
        (
            &[
                DRIVE,
                (
                    "/accessCredentials",
                    r#"[{"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}, "propagationMethod": {"noCloud": {}}}}]"#,
                ),
            ],
            "spec.volumes must be set: spec.accessCredentials[0].sshPublicKey.propagationMethod.noCloud needs a volume \
             with cloudInitNoCloud",
        ),
        (
            &[
                DRIVE,
                (
                    "/accessCredentials",
                    r#"[{"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"configDrive": {}, "noCloud": {}}}}]"#,
                ),
            ],
            "spec.accessCredentials[0].sshPublicKey.propagationMethod.configDrive cannot be set together with",
        ),
        (
            &[("/accessCredentials", r#"[{"sshPublicKey": {"propagationMethod": {}}}]"#)],
            "spec.accessCredentials[0].sshPublicKey.source.secret must be set",
        ),
        (
            &[(
                "/accessCredentials",
                r#"[{"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"qemuGuestAgent": {}}}}]"#,
            )],
            "spec.accessCredentials[0].sshPublicKey.propagationMethod.qemuGuestAgent.users must be set: at least one",
        ),
        (
            &[(
                "/accessCredentials",
                r#"[{"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"qemuGuestAgent": {"users": ["root", "a/b"]}}}}]"#,
            )],
            "spec.accessCredentials[0].sshPublicKey.propagationMethod.qemuGuestAgent.users[1]: `a/b` is not allowed",
        ),
        (
            &[("/accessCredentials", "[{}]")],
            "spec.accessCredentials[0] must be set: one of sshPublicKey and userPassword",
        ),
    ]);
}

#[test]
fn passwords_are_set_by_the_guest_agent_from_a_secret() {
    check(&[
        (
            &[(
                "/accessCredentials",
                r#"[{"sshPublicKey": {"source": {"secret": {"secretName": "k"}}, "propagationMethod": {"qemuGuestAgent": {"users": ["root"]}}}},
                    {"userPassword": {"source": {"secret": {"secretName": "p"}}, "propagationMethod": {"qemuGuestAgent": {}}}}]"#,
            )],
            "",
        ),
        (
            &[(
                "/accessCredentials",
                r#"[{"userPassword": {"source": {"secret": {"secretName": "p"}}}}]"#,
            )],
            "spec.accessCredentials[0].userPassword.propagationMethod.qemuGuestAgent must be set",
        ),
        (
            &[(
                "/accessCredentials",
                r#"[{"userPassword": {"propagationMethod": {"qemuGuestAgent": {}}}}]"#,
            )],
            "spec.accessCredentials[0].userPassword.source.secret must be set",
        ),
        (
            &[("/accessCredentials", r#"[{"userPassword": {}}]"#)],
            "spec.accessCredentials[0].userPassword.source.secret must be set",
        ),
    ]);
}

#[test]
fn features_and_firmware() {
    check(&[
        (&[("/domain/firmware", r#"{"bootloader": {"efi": {}}}"#)], ""),
        (
            &[
                ("/domain/firmware", r#"{"bootloader": {"efi": {"secureBoot": false}}}"#),
                ("/domain/features", r#"{"smm": {"enabled": false}}"#),
            ],
            "",
        ),
        (
            &[
                ("/domain/firmware", r#"{"bootloader": {"efi": {}}}"#),
                ("/domain/features", r#"{"smm": {"enabled": false}}"#),
            ],
            "spec.domain.features.smm.enabled: `false` is not allowed; allowed: true, as \
             spec.domain.firmware.bootloader.efi.secureBoot is not false",
        ),
        (
            &[("/domain/firmware", r#"{"bootloader": {"efi": {}, "bios": {}}}"#)],
            "spec.domain.firmware.bootloader.efi",
        ),
        (
            &[("/domain/firmware", r#"{"bootloader": {"efi": {"persistent": true}}}"#)],
            "spec.domain.firmware.bootloader.efi.persistent",
        ),
        (
            &[(
                "/domain/features",
                r#"{"hyperv": {"synictimer": {"direct": {}}, "vendorid": {"vendorid": "Drydock"}, "spinlocks": {}}}"#,
            )],
            "",
        ),
        (
            &[(
                "/domain/features",
                r#"{"hyperv": {"ipi": {}, "vpindex": {"enabled": false}}}"#,
            )],
            "spec.domain.features.hyperv.vpindex.enabled: `false` is not allowed; allowed: true, as \
             spec.domain.features.hyperv.ipi needs it",
        ),
        (
            &[(
                "/domain/features",
                r#"{"hyperv": {"synictimer": {}, "synic": {"enabled": false}}}"#,
            )],
            "spec.domain.features.hyperv.synic.enabled: `false` is not allowed; allowed: true, as \
             spec.domain.features.hyperv.synictimer needs it",
        ),
        (
            &[
                ("/domain/features", r#"{"hyperv": {"synictimer": {}}}"#),
                ("/domain/clock", r#"{"timer": {"hyperv": {"present": false}}}"#),
            ],
            "spec.domain.clock.timer.hyperv.present: `false` is not allowed; allowed: true, as \
             spec.domain.features.hyperv.synictimer needs it",
        ),
        (
            &[("/domain/features", r#"{"hyperv": {"spinlocks": {"spinlocks": 100}}}"#)],
            "spec.domain.features.hyperv.spinlocks.spinlocks: `100` is not allowed; allowed: 4095 or more",
        ),
        (
            &[("/domain/features", r#"{"hyperv": {"vendorid": {}}}"#)],
            "spec.domain.features.hyperv.vendorid.vendorid must be set: up to 12",
        ),
        (
            &[("/domain/features", r#"{"hyperv": {"vendorid": {"vendorid": "a,b"}}}"#)],
            "spec.domain.features.hyperv.vendorid.vendorid: `a,b` is not allowed; allowed: up to 12",
        ),
        (
            &[("/domain/features", r#"{"hyperv": {"reenlightenment": {}}}"#)],
            "spec.domain.features.hyperv.reenlightenment is not supported",
        ),
    ]);
}
