//! A simulated pod with a libvirtd: a folder like the folder that the kubelet creates for a pod, and an unprivileged
//! libvirtd that is restarted whenever it exits.
//!
//! ```text
//!  unshare (ends with the thread that started it, and all below ends with it)
//!   └─ sh, process 1 of a PID namespace: reaps, and restarts libvirtd
//!       ├─ libvirtd
//!       └─ qemu
//! ```

use std::{
    fs::{self, File, Permissions},
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use drydock_host::pod_folder::PodFolder;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid, mkdtemp},
};

/// UID of the pod, in the format of Kubernetes.
pub(crate) const UID: &str = "0f9a3c1e-6d1b-4c55-9a51-7d1c6a1f2b3c";

/// Path of the socket in the volume.
pub(crate) const SOCKET: &str = "libvirt/libvirt-sock";

/// User and group of a pod's processes, as in launcher pods. They need not exist on this machine.
const ACCOUNT: u32 = 107;

/// Path at which libvirtd and QEMU find the pod's scratch folder, the same in every pod.
pub(crate) const MOUNT: &str = "/mnt";

/// The device that QEMU needs to wait for memory in post-copy.
pub(crate) const USERFAULTFD: &str = "/dev/userfaultfd";

/// A simulated pod.
pub(crate) struct Pod {
    /// Folder with all files of the pod's processes, as a path on this machine.
    ///
    /// The link `run` in this folder leads to the volume, with a path that is short enough for sockets.
    pub(crate) scratch: PathBuf,
    processes: Option<Child>,
}

impl Pod {
    /// Creates the kubelet's folder without a pod.
    pub(crate) fn none() -> Self {
        let scratch = mkdtemp(&std::env::temp_dir().join("drydock-pod-XXXXXX")).unwrap();
        fs::set_permissions(&scratch, Permissions::from_mode(0o711)).unwrap();
        fs::create_dir_all(scratch.join("kubelet/pods")).unwrap();
        Self {
            scratch,
            processes: None,
        }
    }

    /// Creates the kubelet's folder with a pod whose volume is empty.
    pub(crate) fn empty() -> Self {
        let pod = Self::none();
        fs::create_dir_all(pod.volume()).unwrap();
        pod
    }

    /// Creates a pod with libvirtd, which may not be listening yet.
    pub(crate) fn with_libvirtd() -> Self {
        let mut pod = Self::empty();
        pod.start_libvirtd();
        pod
    }

    /// Returns the folder of the pod's volume.
    pub(crate) fn volume(&self) -> PathBuf {
        let pods = self.scratch.join("kubelet/pods");
        pods.join(UID).join("volumes/kubernetes.io~empty-dir/run")
    }

    /// Returns the pod's folder as a [`PodFolder`], the agent's type for it.
    pub(crate) fn folder(&self) -> PodFolder {
        PodFolder::new(&self.scratch.join("kubelet"), UID, "run").unwrap()
    }

    /// Starts libvirtd, and restarts it whenever it exits.
    pub(crate) fn start_libvirtd(&mut self) {
        for name in ["home", "config", "cache", "data"] {
            self.own(&self.scratch.join(name));
        }
        self.own(&self.volume());
        // The link provides a short path, as in a pod. The long path exceeds the limit for socket addresses.
        symlink(self.volume(), self.scratch.join("run")).unwrap();
        let settings = self.scratch.join("libvirtd.conf");
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        fs::write(&settings, format!("host_uuid = \"{}\"\n", uuid.trim())).unwrap();
        // libvirt looks up the names of its user and group.
        let names = "root:x:0:0::/:/bin/sh\nguest:x:107:107::/:/bin/false\n";
        fs::write(self.scratch.join("passwd"), names).unwrap();
        fs::write(self.scratch.join("group"), "root:x:0:\nguest:x:107:\n").unwrap();
        // All paths are the same in both pods, as a migration requires.
        let script = format!(
            "mount --bind {scratch} {MOUNT} && mount --bind {scratch}/passwd /etc/passwd && \
             mount --bind {scratch}/group /etc/group && {userfaultfd} && while :; do \
             setpriv --reuid={ACCOUNT} --regid={ACCOUNT} --clear-groups --no-new-privs --inh-caps=-all \
             libvirtd --timeout 0 --config {settings}; done",
            settings = settings.display(),
            scratch = self.scratch.display(),
            userfaultfd = self.userfaultfd(),
        );
        let log = File::create(self.scratch.join("log")).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args([
                "--pdeathsig",
                "KILL",
                "unshare",
                "--pid",
                "--fork",
                "--mount-proc",
                "--kill-child",
            ])
            .args(["sh", "-c", &script])
            .current_dir("/")
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C")
            .env("HOME", self.scratch.join("home"))
            .env("XDG_RUNTIME_DIR", self.scratch.join("run"))
            .env("XDG_CONFIG_HOME", self.scratch.join("config"))
            .env("XDG_CACHE_HOME", self.scratch.join("cache"))
            .env("XDG_DATA_HOME", self.scratch.join("data"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0);
        self.processes = Some(command.spawn().unwrap());
    }

    /// Returns shell code that creates, for the pod's processes, the device that QEMU needs for post-copy.
    ///
    /// The device plugin provides the same device to real pods. The code does nothing if this machine does not have the
    /// device.
    fn userfaultfd(&self) -> String {
        let device = self.scratch.join("userfaultfd");
        let device = device.display();
        format!(
            "if [ -c {USERFAULTFD} ]; then cp -a {USERFAULTFD} {device} && chmod 666 {device} && \
             mount --bind {device} {USERFAULTFD}; fi"
        )
    }

    /// Creates a folder owned by the pod's processes, or changes the owner of an existing file.
    pub(crate) fn own(&self, path: &Path) {
        if !path.exists() {
            fs::create_dir_all(path).unwrap();
        }
        chown(path, Some(ACCOUNT), Some(ACCOUNT)).unwrap();
    }

    /// Returns the process that listens on libvirt's socket.
    pub(crate) async fn libvirtd(&self) -> Pid {
        let stream = tokio::net::UnixStream::connect(self.scratch.join("run").join(SOCKET)).await;
        Pid::from_raw(stream.unwrap().peer_cred().unwrap().pid().unwrap())
    }

    /// Sends a signal to libvirtd.
    pub(crate) async fn signal_libvirtd(&self, signal: Signal) {
        kill(self.libvirtd().await, signal).unwrap();
    }

    /// Sends a signal to the only QEMU of the pod.
    #[allow(dead_code, reason = "not every file of tests has a guest that it ends so")]
    pub(crate) async fn signal_qemu(&self, signal: Signal) {
        let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
        let own = namespace(&Path::new("/proc").join(self.libvirtd().await.to_string()));
        let mut found = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            name.starts_with("qemu-system") && namespace(&entry.path()) == own
        });
        let qemu = found.next().unwrap().file_name();
        let pid = qemu.to_str().and_then(|name| name.parse().ok());
        kill(Pid::from_raw(pid.unwrap()), signal).unwrap();
    }

    /// Returns the logs of libvirtd and QEMU.
    pub(crate) fn log(&self) -> String {
        let qemu = self.scratch.join("cache/libvirt/qemu/log");
        let mut logs = vec![self.scratch.join("log")];
        logs.extend(
            fs::read_dir(qemu)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path()),
        );
        logs.iter()
            .map(|log| fs::read_to_string(log).unwrap_or_default())
            .collect()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some(mut processes) = self.processes.take() {
            // The end of this process also ends process 1 of the PID namespace, and thereby all other processes.
            let _ = processes.kill();
            let _ = processes.wait();
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Returns whether to skip a test, and prints that it is skipped.
pub(crate) fn skipped(test: &str) -> bool {
    let programs = [
        "libvirtd",
        "qemu-system-x86_64",
        "qemu-img",
        "qemu-io",
        "unshare",
        "setpriv",
    ];
    let folders = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"];
    let found = |program: &&str| folders.iter().any(|folder| Path::new(folder).join(program).exists());
    if let Some(program) = programs.iter().find(|program| !found(program)) {
        eprintln!("skipped: {test}: {program} is not installed");
        return true;
    }
    if !geteuid().is_root() {
        eprintln!("skipped: {test}: only root can run a pod's libvirtd as another user");
        return true;
    }
    false
}
