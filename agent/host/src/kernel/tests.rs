use std::path::PathBuf;

use super::*;

/// Folder with recorded files. It is removed at the end of the test.
struct Recorded(PathBuf);

impl Recorded {
    fn new(files: &[(&str, &str)]) -> (Self, Roots) {
        let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-kernel-XXXXXX")).unwrap();
        for (path, content) in files {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let roots = Roots {
            proc: folder.join("proc"),
            sys: folder.join("sys"),
            kvm: folder.join("kvm"),
        };
        (Self(folder), roots)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_machine() {
    let (_files, roots) = Recorded::new(&[
        ("proc/sys/kernel/osrelease", "6.12.48+deb13-amd64\n"),
        ("proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
        (
            "proc/cpuinfo",
            "processor\t: 0\nmicrocode\t: 0xf0\n\nprocessor\t: 1\nmicrocode\t: 0xee\n",
        ),
        ("sys/devices/system/cpu/online", "0-3,8-11\n"),
        ("sys/module/kvm/parameters/tdp_mmu", "Y\n"),
        ("sys/module/kvm_intel/parameters/nested", "Y\n"),
        ("sys/module/kvm_intel/parameters/long", &"x".repeat(1000)),
        ("sys/module/kvm_pvm/refcnt", "0\n"),
        ("sys/module/kvmgt/parameters/x", "1\n"),
    ]);
    assert_eq!(release(&roots), "6.12.48+deb13-amd64");
    assert!(real_time(&roots));
    assert_eq!(microcode(&roots).as_deref(), Some("0xf0"));
    assert_eq!(online(&roots), Some(8));
    assert_eq!(kvm_modules(&roots), ["kvm", "kvm_intel", "kvm_pvm"]);
    let parameters = kvm_parameters(&roots);
    assert_eq!(
        parameters.keys().collect::<Vec<_>>(),
        ["kvm.tdp_mmu", "kvm_intel.long", "kvm_intel.nested"]
    );
    assert_eq!(parameters["kvm_intel.nested"], "Y");
    assert_eq!(parameters["kvm_intel.long"].len(), MAX_VALUE);
}

#[test]
fn missing_kernel_files_give_empty_values() {
    let (_files, roots) = Recorded::new(&[("proc/sys/kernel/sched_rt_runtime_us", "950000\n")]);
    assert_eq!(release(&roots), "");
    assert!(!real_time(&roots));
    assert_eq!(microcode(&roots), None);
    assert_eq!(online(&roots), None);
    assert!(kvm_parameters(&roots).is_empty());
}

#[test]
fn lists_of_cpus() {
    for (list, expected) in [
        ("0", Some(1)),
        ("0-1", Some(2)),
        ("0-3,8,10-11", Some(7)),
        ("", None),
        ("3-1", None),
        ("x", None),
        ("0-4294967295", None),
    ] {
        assert_eq!(count(list), expected, "{list}");
    }
}
