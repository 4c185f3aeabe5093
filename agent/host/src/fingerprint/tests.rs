use std::{fs, time::Instant};

use super::*;

fn changed(old: &FactsFingerprint, new: &FactsFingerprint) -> Vec<String> {
    old.0
        .iter()
        .filter(|(name, value)| new.0.get(*name) != Some(value))
        .map(|(name, _)| name.clone())
        .collect()
}

#[test]
fn fingerprint_parts_change_independently() {
    let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-fingerprint-XXXXXX")).unwrap();
    let write = |path: &str, content: &str| {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    write("proc/sys/kernel/osrelease", "6.1\n");
    write("sys/module/kvm_intel/parameters/nested", "N\n");
    write("qemu", "one");
    write("libvirtd", "one");
    let mut roots = Roots {
        proc: folder.join("proc"),
        sys: folder.join("sys"),
        kvm: folder.join("kvm"),
    };
    let programs = Programs {
        libvirtd: Some(folder.join("libvirtd")),
        qemu: Some(folder.join("qemu")),
        cpu_map: Some(folder.join("cpu_map")),
    };
    let first = fingerprint(&roots, &programs);
    assert_eq!(fingerprint(&roots, &programs), first);
    assert_eq!(first.0["kvm"], "absent");
    assert_eq!(first.0["cpu-map"], "absent");
    let expect = |part: &str, old: &FactsFingerprint, roots: &Roots| {
        let new = fingerprint(roots, &programs);
        assert_eq!(changed(old, &new), [part]);
        new
    };
    write("proc/sys/kernel/osrelease", "6.2\n");
    let now = expect("kernel", &first, &roots);
    write("sys/module/kvm_intel/parameters/nested", "Y\n");
    let now = expect("parameter kvm_intel.nested", &now, &roots);
    write("qemu", "another");
    let now = expect("qemu", &now, &roots);
    write("libvirtd", "another");
    let now = expect("libvirt", &now, &roots);
    write("cpu_map/index.xml", "");
    let now = expect("cpu-map", &now, &roots);
    write("proc/cpuinfo", "microcode : 0x2\n");
    let now = expect("microcode", &now, &roots);
    roots.kvm = "/dev/null".into();
    let now = expect("kvm", &now, &roots);
    assert_eq!(now.0["kvm"], "1:3");
    fs::remove_dir_all(folder).unwrap();
}

/// The time is limited because the fingerprint is taken every few minutes on an idle node.
#[test]
fn fingerprint_takes_less_than_ten_milliseconds() {
    let programs = Programs {
        libvirtd: Some("/usr/sbin/libvirtd".into()),
        ..Programs::default()
    };
    let time = || {
        let start = Instant::now();
        let fingerprint = fingerprint(&Roots::default(), &programs);
        assert!(fingerprint.0.len() > 8);
        start.elapsed()
    };
    let best = (0..20).map(|_| time()).min().unwrap();
    println!("fingerprint: {best:?}");
    // The limit is ten times the target, for an unoptimized build on a busy machine.
    assert!(best.as_millis() < 10, "{best:?}");
}
