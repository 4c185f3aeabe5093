//! Folders and settings of libvirt in the pod, and the environment of the pod's programs.
//!
//! The pod contains a single guest. The pod provides the isolation that libvirt needs between guests on a shared host
//! (labels of disks, namespaces, cgroups).

use std::{
    ffi::OsString,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
    process::{Command, Stdio},
};

use drydock_api::launcher::PodGuest;

use crate::{folders::Folders, lifecycle::LibvirtCall};

/// Search path of all programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// glibc's malloc settings for libvirtd.
///
/// Parsing QEMU's capabilities temporarily needs 7 MiB of small allocations. Without per-thread caches, and with one
/// heap for all threads, freed memory is coalesced and returned to the kernel (libvirtd's own memory shrinks from 10.3
/// MiB to 3.2 MiB).
const MEMORY: &str = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=65536";

/// Creates the folders of libvirt and writes the settings.
///
/// # Errors
/// If a folder or file cannot be written. The error contains its path.
pub(crate) fn write(guest: &PodGuest, folders: &Folders) -> io::Result<()> {
    let settings = folders.settings().join("libvirt");
    for folder in [
        &folders.domains(),
        &folders.logs(),
        &folders.capabilities(),
        &folders.data(),
        &folders.scratch(),
        &folders.migration(),
        &settings,
    ] {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
    }
    for name in known_capabilities(folders) {
        // libvirt probes missing capabilities itself.
        let _ = fs::copy(
            folders.known_capabilities().join(&name),
            folders.capabilities().join(&name),
        );
    }
    for (name, text) in [
        ("libvirtd.conf", libvirtd(&guest.host_uuid)),
        ("qemu.conf", QEMU.to_owned()),
    ] {
        let path = settings.join(name);
        fs::write(&path, text).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// Returns the names of the files with the node's QEMU capabilities.
///
/// libvirt validates the files, and probes again if programs, kernel or processor differ.
fn known_capabilities(folders: &Folders) -> Vec<OsString> {
    let entries = fs::read_dir(folders.known_capabilities());
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "xml"))
        .collect()
}

/// Returns the settings of libvirtd.
///
/// The clients of libvirtd are one agent and this launcher, each with one call at a time, and the other side of a
/// migration. Therefore libvirtd needs few threads, and each thread costs memory. Priority workers handle calls that
/// must not wait for a worker that hangs (destroying a guest, aborting a migration).
fn libvirtd(host_uuid: &str) -> String {
    // Other characters are removed: the value is quoted, and must not be able to add other settings.
    let host_uuid: String = host_uuid
        .chars()
        .filter(|c| c.is_ascii_hexdigit() || *c == '-')
        .collect();
    format!(
        "\
host_uuid = \"{host_uuid}\"
log_level = 3
log_outputs = \"3:stderr\"
audit_level = 0
min_workers = 1
max_workers = 8
prio_workers = 2
admin_min_workers = 1
admin_max_workers = 1
"
    )
}

/// Settings of QEMU.
///
/// libvirtd opens QEMU's log file itself, because there is no virtlogd. Processes keep their names, by which the
/// launcher recognises them when they end. Volumes may be on file systems that libvirt does not know to be shared.
/// Whether a claim is shared depends on its access modes, and guests with other claims are not migrated.
const QEMU: &str = "\
stdio_handler = \"file\"
security_driver = \"none\"
security_default_confined = 0
remember_owner = 0
set_process_name = 0
dump_guest_core = 0
shared_filesystems = [ \"/volumes\" ]
";

/// Returns a command with the environment of the pod's programs.
///
/// The command inherits nothing from the launcher's own environment, which contains secrets of the guest.
pub(crate) fn program(name: &str, folders: &Folders) -> Command {
    let mut command = Command::new(name);
    command
        .current_dir("/")
        .env_clear()
        .env("PATH", PATH)
        // The output of virsh is parsed, so it must not be translated.
        .env("LC_ALL", "C")
        .env("HOME", folders.run())
        .env("XDG_RUNTIME_DIR", folders.run())
        .env("XDG_CONFIG_HOME", folders.settings())
        .env("XDG_CACHE_HOME", folders.cache())
        .env("XDG_DATA_HOME", folders.data())
        .env("TMPDIR", folders.scratch())
        .stdin(Stdio::null());
    command
}

/// Returns the command for libvirtd, which runs in the foreground without a time limit.
pub(crate) fn libvirtd_command(folders: &Folders) -> Command {
    let mut command = program("libvirtd", folders);
    command
        // With 0, libvirtd never exits when it is idle. By default, a session daemon exits after two idle minutes.
        .args(["--timeout", "0", "--config"])
        .arg(folders.settings().join("libvirt/libvirtd.conf"))
        .env("GLIBC_TUNABLES", MEMORY);
    command
}

/// Returns a virsh command. virsh links libvirt, so that process 1 does not have to.
fn virsh(folders: &Folders) -> Command {
    let mut command = program("virsh", folders);
    command
        .arg("--quiet")
        .arg("--connect")
        .arg(format!("qemu+unix:///session?socket={}", folders.socket().display()))
        // virsh must not start its own libvirtd.
        .env("LIBVIRT_AUTOSTART", "0");
    command
}

/// Returns a virsh command for which libvirt must probe QEMU completely.
///
/// The output of some tens of kilobytes is discarded. libvirt caches the probed capabilities for later calls.
pub(crate) fn learning_command(folders: &Folders) -> Command {
    let mut command = virsh(folders);
    command.arg("domcapabilities");
    command
}

/// Returns a virsh command for the domain.
pub(crate) fn virsh_command(call: LibvirtCall, domain: &str, folders: &Folders) -> Command {
    let mut command = virsh(folders);
    match call {
        LibvirtCall::State => command.args(["domstate", "--reason"]),
        LibvirtCall::PowerButton => command.args(["shutdown", "--mode", "acpi"]),
        LibvirtCall::Destroy => command.arg("destroy"),
        // send-key changes the domain. Therefore libvirt first waits for every other job of the domain, including a
        // migration, and then fails because the domain is off.
        LibvirtCall::Settled => command.arg("send-key"),
    };
    command.arg("--domain").arg(domain);
    if call == LibvirtCall::Settled {
        // Key code 0 is not a key.
        command.arg("0");
    }
    command
}
