//! libvirt's own recordings of machines, parsed by the agent's parsers and judged by Drydock's rules.
//!
//! libvirt's source has domain capabilities of many machines under `tests/domaincapsdata`, and its CPU map under
//! `src/cpu_map`. Their licence differs from the licence of this repository, so the repository does not contain copies
//! of them. The test reads the source in the folder `DRYDOCK_LIBVIRT_SOURCE`, prints a line for each machine and fails
//! if Drydock's verdict differs from libvirt's. `hack/compare-libvirt-verdicts` runs the test.

#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use drydock_api::facts::Usable;
use drydock_core::minimum_cpu::Minimum;
use drydock_host::{
    architecture::Architecture,
    cpu_map::CpuMap,
    domain_capabilities::{self, DomainCapabilities},
};
use roxmltree::Document;

/// The environment variable with the folder of libvirt's source.
const SOURCE: &str = "DRYDOCK_LIBVIRT_SOURCE";
/// The minimum CPU models to judge.
const MINIMA: [&str; 3] = ["Penryn", "Nehalem", "Haswell-noTSX"];

/// Known differences, by recording and model: the emulation of this old QEMU lists a feature of the model that
/// libvirt's CPU map does not have.
const KNOWN: [(&str, &str); 1] = [("qemu_4.2.0-tcg.x86_64", "Nehalem")];

/// A machine that libvirt has recorded.
struct RecordedMachine {
    name: String,
    kind: String,
    architecture: Architecture,
    found: DomainCapabilities,
}

fn machines(folder: &Path) -> Vec<RecordedMachine> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "xml"))
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path).unwrap();
            let document = Document::parse(&text).unwrap();
            let content = |name: &str| {
                let mut children = document.root_element().children();
                let found = children.find(|node| node.has_tag_name(name));
                found.and_then(|node| node.text()).unwrap_or("-").to_owned()
            };
            let architecture = Architecture::from_kernel(&content("arch"));
            RecordedMachine {
                name: path.file_stem().unwrap().to_string_lossy().into_owned(),
                kind: content("domain"),
                found: domain_capabilities::parse(&text, &architecture).unwrap(),
                architecture,
            }
        })
        .collect()
}

/// Returns every CPU feature that a guest can have: the host model, expanded like in libvirt's baseline.
fn features(machine: &RecordedMachine, map: &CpuMap) -> Option<BTreeSet<String>> {
    let host = machine.found.host_model.as_ref()?;
    let mut features = map.features(&host.name)?;
    features.extend(host.required.iter().cloned());
    features.retain(|name| !host.disabled.contains(name));
    Some(features)
}

/// Returns libvirt's verdict and Drydock's verdict on whether the machine satisfies a minimum model.
fn verdicts(machine: &RecordedMachine, map: &CpuMap, model: &str) -> [Option<bool>; 2] {
    let listed = machine.found.models.iter().find(|known| known.name == model);
    let theirs = listed.and_then(|listed| match listed.usable {
        Usable::Yes => Some(true),
        Usable::No => Some(false),
        Usable::Unknown => None,
    });
    let minimum = Minimum::resolve(model, |name| map.features(name)).unwrap();
    let ours = (machine.architecture == Architecture::Amd64)
        .then(|| features(machine, map))
        .flatten()
        .map(|all| minimum.met_by(&all.iter().map(String::as_str).collect()));
    [theirs, ours]
}

fn as_text(verdict: Option<bool>) -> &'static str {
    match verdict {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

#[expect(clippy::disallowed_methods, reason = "a test has no command line of its own")]
fn source() -> Option<PathBuf> {
    std::env::var_os(SOURCE).map(PathBuf::from)
}

#[test]
fn minimum_models_by_libvirt_and_by_drydock_rules() {
    let Some(source) = source() else {
        eprintln!("skipped: minimum_models_by_libvirt_and_by_drydock_rules: {SOURCE} is not set");
        return;
    };
    let map = CpuMap::load(&source.join("src/cpu_map")).unwrap();
    let mut table = format!(
        "{:<36} {:<5} {:<26} {:>9}  minimum met by libvirt's verdict / by ours: {}\n",
        "recording",
        "type",
        "host model",
        "usable/of",
        MINIMA.join(", ")
    );
    let mut differing = Vec::new();
    let machines = machines(&source.join("tests/domaincapsdata"));
    for machine in &machines {
        let models = &machine.found.models;
        let usable = models.iter().filter(|model| model.usable != Usable::No).count();
        let host = machine.found.host_model.as_ref();
        write!(
            table,
            "{:<36} {:<5} {:<26} {:>9} ",
            machine.name,
            machine.kind,
            host.map_or("-", |host| host.name.as_str()),
            format!("{usable}/{}", models.len())
        )
        .unwrap();
        for model in MINIMA {
            let [theirs, ours] = verdicts(machine, &map, model);
            if theirs.zip(ours).is_some_and(|(theirs, ours)| theirs != ours) {
                differing.push((machine.name.as_str(), model));
            }
            write!(table, " {:>3}/{:<3}", as_text(theirs), as_text(ours)).unwrap();
        }
        table.truncate(table.trim_end().len());
        table.push('\n');
    }
    println!("{table}{} recordings", machines.len());
    assert!(!machines.is_empty());
    assert_eq!(differing, KNOWN);
}
