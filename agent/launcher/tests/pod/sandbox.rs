//! A launcher with its own folders, like in a pod, and the operations of an agent.

use std::{
    ffi::OsString,
    fs::{self, Permissions},
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use drydock_api::launcher::{Ending, GuestProbes, LauncherDisk, PodGuest, Ready};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, User, chown, geteuid},
};
use tempfile::TempDir;

use super::guest::{Manners, disk};

/// Time limit for every wait. A test that waits longer has failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// A launcher and its folders.
pub(crate) struct Sandbox {
    root: TempDir,
    launcher: Child,
    lines: Receiver<String>,
    /// Lines that were read so far.
    pub(crate) seen: Vec<String>,
}

/// Returns the user that runs the launcher. libvirt has sessions for all users except root.
fn unprivileged() -> Option<User> {
    geteuid()
        .is_root()
        .then(|| User::from_name("nobody").unwrap().expect("the user nobody"))
}

fn give_away(path: &Path) {
    if let Some(user) = unprivileged() {
        chown(path, Some(user.uid), Some(user.gid)).unwrap();
    }
}

impl Sandbox {
    /// Starts a launcher for a guest with this behaviour that boots from a containerDisk.
    pub(crate) fn start(manners: Manners, grace_period_seconds: u64) -> Self {
        Self::start_with(&disk(manners), grace_period_seconds)
    }

    /// Starts a launcher for a guest with this image.
    pub(crate) fn start_with(image: &[u8], grace_period_seconds: u64) -> Self {
        Self::start_on(&[], image, grace_period_seconds)
    }

    /// Starts a launcher on a node with these QEMU capabilities, given as file names and contents.
    pub(crate) fn start_on(known: &[(OsString, Vec<u8>)], image: &[u8], grace_period_seconds: u64) -> Self {
        Self::start_probing(GuestProbes::default(), known, image, grace_period_seconds)
    }

    /// Starts a launcher like [`Self::start_on`], with probes of its guest.
    pub(crate) fn start_probing(
        probes: GuestProbes,
        known: &[(OsString, Vec<u8>)],
        image: &[u8],
        grace_period_seconds: u64,
    ) -> Self {
        let root = TempDir::new().unwrap();
        fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        for folder in ["run/drydock", "var/lib/drydock/disks", "images/root/disk", "dev"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
            give_away(&root.path().join(folder));
        }
        fs::write(root.path().join("images/root/disk/disk.img"), image).unwrap();
        let folder = root.path().join("var/lib/drydock/capabilities");
        fs::create_dir(&folder).unwrap();
        for (name, text) in known {
            fs::write(folder.join(name), text).unwrap();
        }
        let guest = PodGuest {
            domain: "default_vm1".into(),
            host_uuid: fs::read_to_string("/proc/sys/kernel/random/uuid")
                .unwrap()
                .trim()
                .into(),
            grace_period_seconds,
            disks: vec![LauncherDisk {
                name: "root".into(),
                source: drydock_api::launcher::DiskSource::ContainerDisk { path: None, size: None },
            }],
            probes,
        };
        // The program is copied, because not every user may access the build folder.
        let program = root.path().join("drydock-launcher");
        // Another process copies the program, because a child of another test would inherit a descriptor that is open
        // for writing.
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_drydock-launcher"))
            .arg(&program)
            .status();
        assert!(copied.unwrap().success());
        let mut command = Command::new(program);
        command
            .arg("--root")
            .arg(root.path())
            .arg("--termination-log")
            .arg(root.path().join("dev/termination-log"))
            .env("DRYDOCK_GUEST", serde_json::to_string(&guest).unwrap())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(user) = unprivileged() {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        let mut launcher = command.spawn().unwrap();
        let (sender, lines) = channel();
        read_lines(launcher.stdout.take().unwrap(), sender.clone());
        read_lines(launcher.stderr.take().unwrap(), sender);
        Self {
            root,
            launcher,
            lines,
            seen: Vec::new(),
        }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Waits for a line that contains this text, and skips earlier lines.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(error) => panic!("no {text:?} ({error}) after\n{}", self.seen.join("\n")),
            }
        }
    }

    /// Waits until the pod is ready, and returns the content of its ready file.
    pub(crate) fn ready(&mut self) -> Ready {
        self.expect("launcher: ready for the guest");
        self.ready_file()
    }

    /// Returns the content of the ready file.
    pub(crate) fn ready_file(&self) -> Ready {
        serde_json::from_slice(&fs::read(self.path("run/drydock/ready.json")).unwrap()).unwrap()
    }

    /// Defines the domain once the pod is ready, as an agent does.
    pub(crate) fn define(&mut self) {
        let ready = self.ready();
        let disk = &ready.disks[0];
        let backing = disk.backing.as_ref().expect("a containerDisk has an image");
        let xml = format!(
            "<domain type='qemu'><name>default_vm1</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>\
             <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><devices>\
             <emulator>/usr/bin/qemu-system-x86_64</emulator>\
             <disk type='file' device='disk'><driver name='qemu' type='{}'/><source file='{}'/>\
             <backingStore type='file'><format type='{}'/><source file='{}'/><backingStore/></backingStore>\
             <target dev='vda' bus='virtio'/></disk>\
             <serial type='unix'><source mode='connect' path='{}'><reconnect enabled='yes' timeout='1'/></source>\
             </serial><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>",
            disk.format.as_str(),
            disk.path,
            backing.format.as_str(),
            backing.path,
            self.path("run/drydock/console.sock").display(),
        );
        let file = self.path("domain.xml");
        fs::write(&file, xml).unwrap();
        self.virsh(&["define", file.to_str().unwrap()]);
    }

    /// Defines and starts the domain, and waits until the guest is running.
    pub(crate) fn boot(&mut self) {
        self.define();
        self.virsh(&["start", "default_vm1"]);
        self.expect("guest: tick");
    }

    /// Runs virsh with this pod's libvirt. Panics if virsh fails.
    pub(crate) fn virsh(&self, arguments: &[&str]) -> String {
        let output = self.try_virsh(arguments);
        assert!(
            output.status.success(),
            "virsh {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs virsh with this pod's libvirt, and returns its output even if it fails.
    pub(crate) fn try_virsh(&self, arguments: &[&str]) -> Output {
        Command::new("virsh")
            .args(["--quiet", "--connect", &self.uri()])
            .args(arguments)
            .env("LC_ALL", "C")
            .output()
            .expect("virsh")
    }

    /// Returns the URI of this pod's libvirt, for other programs on this machine.
    pub(crate) fn uri(&self) -> String {
        let socket = self.path("run/drydock/libvirt/libvirt-sock");
        format!("qemu+unix:///session?socket={}", socket.display())
    }

    /// Sends SIGTERM to the launcher.
    pub(crate) fn terminate(&self) {
        kill(Pid::from_raw(self.launcher.id().cast_signed()), Signal::SIGTERM).unwrap();
    }

    /// Returns the launcher's child process with this name.
    pub(crate) fn child(&self, name: &str) -> Pid {
        let launcher = self.launcher.id();
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
        children
            .split_whitespace()
            .find(|pid| {
                let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                comm.starts_with(name)
            })
            .map_or_else(
                || panic!("no {name} among {children}"),
                |pid| Pid::from_raw(pid.parse().unwrap()),
            )
    }

    /// Kills the child process with this name.
    pub(crate) fn kill(&self, name: &str) {
        kill(self.child(name), Signal::SIGKILL).unwrap();
    }

    /// Waits until the launcher exits. Returns the guest's ending and the exit code.
    pub(crate) fn ended(&mut self) -> (Ending, i32) {
        while let Ok(line) = self.lines.recv_timeout(TEST_TIMEOUT) {
            self.seen.push(line);
        }
        let code = self.launcher.wait().unwrap().code().expect("it ends by itself");
        let message = fs::read(self.path("dev/termination-log")).unwrap();
        let ending = serde_json::from_slice(&message).unwrap();
        (ending, code)
    }
}

impl Drop for Sandbox {
    /// Kills all remaining processes if a test has failed. The launcher's processes are recognised by their folder.
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
        let home = format!("HOME={}", self.path("run/drydock").display());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let of_this = |variable: &[u8]| {
                variable == home.as_bytes()
                    || (variable.starts_with(b"XDG_")
                        && contains(variable, self.root.path().as_os_str().as_encoded_bytes()))
            };
            if environment.split(|&byte| byte == 0).any(of_this) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    all.windows(part.len()).any(|window| window == part)
}

fn read_lines(from: impl Read + Send + 'static, to: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            // The test stops receiving lines once it has the lines that it needs.
            let Ok(line) = line else { return };
            if to.send(line).is_err() {
                return;
            }
        }
    });
}
