//! A libvirtd for the tests, and the disks of its guests.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use drydock_api::{
    kubevirt::VirtualMachineInstanceSpec,
    launcher::{BackingImage, DiskFormat, PreparedDisk},
};
use drydock_host::private_libvirtd::PrivateLibvirtd;

const NEEDED: [&str; 4] = ["libvirtd", "virsh", "qemu-system-x86_64", "qemu-img"];

/// Size of every disk, in bytes.
const SIZE: u64 = 8 << 20;

/// Returns whether to skip a test, and prints that it is skipped.
pub(crate) fn skipped(test: &str) -> bool {
    let found = |program: &str| {
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"]
            .iter()
            .any(|folder| Path::new(folder).join(program).exists())
    };
    let missing = NEEDED.into_iter().find(|program| !found(program));
    if let Some(program) = missing {
        eprintln!("skipped: {test}: {program} is not installed");
    }
    missing.is_some() || !cfg!(target_arch = "x86_64")
}

/// A libvirtd, and a folder for the files of its guests.
pub(crate) struct Host {
    daemon: PrivateLibvirtd,
    folder: PathBuf,
    passt: bool,
}

impl Host {
    pub(crate) fn start() -> Self {
        let daemon = PrivateLibvirtd::start(Path::new("libvirtd"), &std::env::temp_dir()).unwrap();
        daemon.wait_until_open(Duration::from_secs(20)).unwrap();
        let folder = std::env::temp_dir().join(format!("drydock-define-{}", daemon.pid()));
        fs::create_dir(&folder).unwrap();
        let mut host = Self {
            daemon,
            folder,
            passt: true,
        };
        host.hand_over(&host.folder);
        host.passt = host.defined(WITH_PASST).is_ok();
        if !host.passt {
            eprintln!("libvirt has no passt here: interfaces are tried without");
        }
        host
    }

    /// Returns the folder with the files of the guests.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a file or folder accessible to the account of libvirt.
    pub(crate) fn hand_over(&self, path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }

    /// Returns the domain's XML, without passt if this libvirt does not support passt.
    pub(crate) fn understood(&self, xml: &str) -> String {
        if self.passt {
            return xml.to_owned();
        }
        let mut inside = false;
        let passt = |line: &&str| {
            let line = line.trim();
            let whole =
                line == r#"<backend type="passt"/>"# || (line.starts_with("<portForward") && line.ends_with("/>"));
            let first = line.starts_with("<portForward") && !whole;
            let last = line == "</portForward>";
            let within = inside;
            inside = (inside || first) && !last;
            !(whole || first || within)
        };
        let mut passt = passt;
        xml.lines().filter(|line| passt(line)).collect::<Vec<_>>().join("\n")
    }

    /// Defines the domain, reads back its inactive XML, and undefines it.
    ///
    /// # Errors
    /// libvirt's error message.
    pub(crate) fn defined(&self, xml: &str) -> Result<String, String> {
        let file = self.written(xml);
        let name = name_in(xml);
        let text = self.virsh(&format!("define {file}; dumpxml --inactive {name}; undefine {name}"))?;
        Ok(domain_in(&text))
    }

    /// Starts the domain paused, and returns its live XML.
    ///
    /// # Errors
    /// The error message of libvirt or QEMU.
    pub(crate) fn started(&self, xml: &str) -> Result<String, String> {
        let file = self.written(xml);
        let name = name_in(xml);
        let text = self.virsh(&format!("define {file}; start --paused {name}; dumpxml {name}"))?;
        Ok(domain_in(&text))
    }

    /// Stops a domain that was started, and undefines it.
    pub(crate) fn ended(&self, name: &str) {
        self.virsh(&format!("destroy {name}; undefine {name}")).unwrap();
    }

    /// Creates every disk of the spec. Disks alternate between an image with a layer above it and an image alone.
    pub(crate) fn prepare(&self, spec: &VirtualMachineInstanceSpec) -> Vec<PreparedDisk> {
        let base = self.folder.join("base.img").to_str().unwrap().to_owned();
        if !Path::new(&base).exists() {
            fs::File::create(&base).unwrap().set_len(SIZE).unwrap();
        }
        let disks = spec.domain.devices.disks.iter().enumerate();
        disks
            .map(|(index, disk)| {
                let layered = index % 2 == 0;
                let path = self.folder.join(format!("{index}.img"));
                let path = path.to_str().unwrap().to_owned();
                let format = if layered { DiskFormat::Qcow2 } else { DiskFormat::Raw };
                let mut command = Command::new("qemu-img");
                command.args(["create", "-q", "-f", format.as_str()]);
                if layered {
                    command.args(["-b", &base, "-F", "raw"]);
                }
                assert!(command.args([&path, "8M"]).status().unwrap().success());
                self.hand_over(Path::new(&path));
                PreparedDisk {
                    name: disk.name.clone(),
                    path,
                    format,
                    virtual_size: SIZE,
                    backing: layered.then(|| BackingImage {
                        path: base.clone(),
                        format: DiskFormat::Raw,
                        virtual_size: SIZE,
                    }),
                }
            })
            .collect()
    }

    fn written(&self, xml: &str) -> String {
        let file = self.folder.join("domain.xml");
        fs::write(&file, xml).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Runs virsh commands, one after the other.
    fn virsh(&self, commands: &str) -> Result<String, String> {
        let output = Command::new("virsh")
            .args(["-c", &self.daemon.uri(), commands])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() && !errors.contains("error:") {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(errors.into_owned())
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// A minimal domain that only a libvirt with passt accepts.
const WITH_PASST: &str = "<domain type='qemu'><name>passt</name><memory unit='MiB'>64</memory>\
    <os><type arch='x86_64' machine='q35'>hvm</type></os>\
    <devices><interface type='user'><portForward proto='tcp'/><backend type='passt'/></interface></devices></domain>";

fn name_in(xml: &str) -> &str {
    let from = xml.find("<name>").unwrap() + "<name>".len();
    let to = xml.find("</name>").unwrap();
    &xml[from..to]
}

fn domain_in(text: &str) -> String {
    let from = text.find("<domain").unwrap();
    let to = text.rfind("</domain>").unwrap() + "</domain>".len();
    text[from..to].to_owned()
}
