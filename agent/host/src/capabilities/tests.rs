use super::*;

const TRIXIE: &str = include_str!("../../testdata/trixie/capabilities.xml");
const BOOKWORM: &str = include_str!("../../testdata/bookworm/capabilities.xml");

#[test]
fn recorded() {
    let found = parse(TRIXIE, &Architecture::Amd64).unwrap();
    assert_eq!(
        found.tsc,
        Some(TscCounter {
            frequency_hz: 2_600_000_000,
            scalable: false
        })
    );
    assert_eq!(
        found.topology,
        Some(HostTopology {
            sockets: 1,
            cores: 2,
            threads: 1,
            numa_cells: 1
        })
    );
    let machine = |name: &str| found.machine_types.iter().find(|machine| machine.name == name).cloned();
    assert_eq!(machine("q35").unwrap().canonical.as_deref(), Some("pc-q35-10.0"));
    assert!(machine("pc-i440fx-2.6").unwrap().deprecated);
    assert!(!machine("pc-q35-10.0").unwrap().deprecated);
    // The machine type of a foreign architecture is left out, although its emulator is installed.
    assert_eq!(machine("s390-ccw-virtio"), None);
    insta::assert_json_snapshot!("trixie_amd64_machine_types", found.machine_types);
    insta::assert_json_snapshot!(
        "trixie_s390x_machine_types",
        parse(TRIXIE, &Architecture::S390x).unwrap().machine_types
    );
    assert!(
        parse(TRIXIE, &Architecture::Other("vax".into()))
            .unwrap()
            .machine_types
            .is_empty()
    );
    assert_eq!(
        parse(BOOKWORM, &Architecture::Amd64).unwrap().topology.unwrap().cores,
        2
    );
}

#[test]
fn time_stamp_counters() {
    for (counter, expected) in [
        ("<counter name='tsc' frequency='5' scaling='yes'/>", Some((5, true))),
        ("<counter name='tsc' frequency='5' scaling='no'/>", Some((5, false))),
        ("<counter name='tsc' frequency='5'/>", Some((5, false))),
        (
            "<counter name='other' frequency='5'/><counter name='tsc' frequency='6'/>",
            Some((6, false)),
        ),
        ("<counter name='other' frequency='5'/>", None),
        ("<counter name='tsc' frequency='fast'/>", None),
        ("<counter name='tsc'/>", None),
        ("", None),
    ] {
        let text = format!("<capabilities><host><cpu>{counter}</cpu></host></capabilities>");
        let tsc = parse(&text, &Architecture::Amd64).unwrap().tsc;
        assert_eq!(tsc.map(|tsc| (tsc.frequency_hz, tsc.scalable)), expected, "{counter}");
    }
}

#[test]
fn topologies() {
    for (topology, expected) in [
        ("sockets='2' cores='8' threads='2'", Some((2, 8, 2))),
        ("sockets='1' dies='2' cores='8' threads='1'", Some((1, 16, 1))),
        (
            "sockets='1' dies='2' clusters='3' cores='4' threads='1'",
            Some((1, 24, 1)),
        ),
        (
            "sockets='1' cores='4294967295' dies='4294967295' threads='1'",
            Some((1, u32::MAX, 1)),
        ),
        ("sockets='1' cores='x' threads='1'", None),
        ("", None),
    ] {
        let text = format!(
            "<capabilities><host><cpu><topology {topology}/></cpu><topology><cells num='9'><cell id='0'/><cell id='1'/>\
            </cells></topology></host></capabilities>"
        );
        let found = parse(&text, &Architecture::Amd64).unwrap().topology;
        assert_eq!(
            found.as_ref().map(|t| (t.sockets, t.cores, t.threads)),
            expected,
            "{topology}"
        );
        assert!(found.is_none_or(|found| found.numa_cells == 2));
    }
}

#[test]
fn machines_of_one_virt_type_count() {
    let text = "<capabilities><guest><arch name='x86_64'><machine>a</machine><domain type='qemu'/>
        <domain type='kvm'><machine>a</machine><machine canonical='a' deprecated='yes'>b</machine></domain></arch></guest>
        </capabilities>";
    let names: Vec<_> = parse(text, &Architecture::Amd64)
        .unwrap()
        .machine_types
        .into_iter()
        .map(|m| m.name)
        .collect();
    assert_eq!(names, ["a", "b"]);
}
