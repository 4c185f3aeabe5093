use std::fs;

use super::*;

struct WatchModel {
    folder: PathBuf,
    roots: Roots,
}

impl WatchModel {
    fn new() -> Self {
        let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-watch-XXXXXX")).unwrap();
        for part in ["dev", "sys/module", "kubelet"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        let roots = Roots {
            proc: folder.join("proc"),
            sys: folder.join("sys"),
            kvm: folder.join("dev/kvm"),
        };
        Self { folder, roots }
    }

    fn write(&self, path: &str) {
        let path = self.folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
}

impl Drop for WatchModel {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

#[test]
fn host_watch_reports_only_relevant_changes() {
    let machine = WatchModel::new();
    let file = machine.folder.join("kubelet/cpu_manager_state");
    let mut watch = HostWatch::with_roots(&machine.roots, &[file]).unwrap();
    assert!(!watch.drain().unwrap());

    machine.write("dev/other");
    machine.write("kubelet/other");
    assert!(!watch.drain().unwrap());

    machine.write("dev/kvm");
    assert!(watch.drain().unwrap());
    // Guests that use the device cause no wake-up.
    machine.write("dev/kvm");
    assert!(!watch.drain().unwrap());
    fs::set_permissions(
        machine.folder.join("dev/kvm"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    assert!(watch.drain().unwrap());
    fs::remove_file(machine.folder.join("dev/kvm")).unwrap();
    assert!(watch.drain().unwrap());

    machine.write("kubelet/cpu_manager_state");
    assert!(watch.drain().unwrap());
    machine.write("kubelet/.new");
    fs::rename(
        machine.folder.join("kubelet/.new"),
        machine.folder.join("kubelet/cpu_manager_state"),
    )
    .unwrap();
    assert!(watch.drain().unwrap());
    assert!(!watch.drain().unwrap());
}

#[test]
fn module_parameters_are_watched_once_the_module_loads() {
    let machine = WatchModel::new();
    let mut watch = HostWatch::with_roots(&machine.roots, &[]).unwrap();
    machine.write("sys/module/kvm_intel/parameters/nested");
    assert!(!watch.drain().unwrap());
    // The device appears together with the module.
    machine.write("dev/kvm");
    assert!(watch.drain().unwrap());
    machine.write("sys/module/kvm_intel/parameters/nested");
    assert!(watch.drain().unwrap());
    fs::remove_dir_all(machine.folder.join("sys/module/kvm_intel")).unwrap();
    assert!(watch.drain().unwrap());
    machine.write("sys/module/kvm_intel/parameters/nested");
    machine.write("dev/kvm");
    fs::remove_file(machine.folder.join("dev/kvm")).unwrap();
    assert!(watch.drain().unwrap());
    machine.write("sys/module/kvm_intel/parameters/nested");
    assert!(watch.drain().unwrap());
}

#[test]
fn missing_folders_are_fine() {
    let roots = Roots {
        proc: "/nowhere".into(),
        sys: "/nowhere".into(),
        kvm: "/nowhere/kvm".into(),
    };
    let mut watch = HostWatch::with_roots(&roots, &["/nowhere/file".into(), "/".into()]).unwrap();
    assert!(!watch.drain().unwrap());
    assert!(watch.as_raw_fd() >= 0);
}
