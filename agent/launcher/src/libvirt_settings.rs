//! libvirt's folders and settings in the pod, and the environment of all programs there.
//!
//! The pod is one guest's alone: what protects guests from each other on a host that they share
//! (labels of disks, namespaces, cgroups) is the pod's own, and libvirt needs none of it.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
    process::{Command, Stdio},
};

use drydock_api::launcher::Guest;

use crate::{folders::Folders, lifecycle::Question};

/// Where programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How libvirtd's memory is kept. Reading what a QEMU can do takes 7 MiB of small pieces for a moment;
/// without caches of pieces for each thread, and with one heap for all threads, they are one piece
/// again when they are free, and go back to the kernel (10.3 MiB of its own become 3.2).
const MEMORY: &str = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1:glibc.malloc.trim_threshold=65536";

/// Makes the folders and writes the settings.
///
/// # Errors
/// If something cannot be written, with its path.
pub(crate) fn write(guest: &Guest, folders: &Folders) -> io::Result<()> {
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
        // libvirt finds out by itself what is not there.
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

/// Files with what the node knows of its QEMU, from which libvirt takes what it finds to be true of its own: it asks
/// again if programs, kernel or processor are others.
fn known_capabilities(folders: &Folders) -> Vec<OsString> {
    let entries = fs::read_dir(folders.known_capabilities());
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "xml"))
        .collect()
}

/// One agent and this launcher ask it, one thing at a time, and a migration's other side: few
/// threads do, and each costs memory. Priority workers carry what must not wait for a worker that
/// hangs (destroying, aborting a migration).
fn libvirtd(host_uuid: &str) -> String {
    // In quotes: nothing else may become a setting.
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

/// QEMU's log is a file that libvirtd opens itself, as there is no virtlogd, and its processes keep
/// their names, by which they are told apart when they end. Volumes may be of file systems that libvirt
/// does not know to be shared; whether a claim is, its access modes say, and guests with others are not
/// migrated.
const QEMU: &str = "\
stdio_handler = \"file\"
security_driver = \"none\"
security_default_confined = 0
remember_owner = 0
set_process_name = 0
dump_guest_core = 0
shared_filesystems = [ \"/volumes\" ]
";

/// A program in the environment of the pod's programs: nothing of the launcher's own is in it, which
/// holds what the guest is to keep secret.
pub(crate) fn program(name: &str, folders: &Folders) -> Command {
    let mut command = Command::new(name);
    command
        .current_dir("/")
        .env_clear()
        .env("PATH", PATH)
        // virsh's answers are read.
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

/// libvirtd, in the foreground and for as long as it is let.
pub(crate) fn libvirtd_command(folders: &Folders) -> Command {
    let mut command = program("libvirtd", folders);
    command
        // 0: never ends by itself, which a session's daemon does after two idle minutes.
        .args(["--timeout", "0", "--config"])
        .arg(folders.settings().join("libvirt/libvirtd.conf"))
        .env("GLIBC_TUNABLES", MEMORY);
    command
}

/// virsh, which links libvirt so that process 1 need not.
fn virsh(folders: &Folders) -> Command {
    let mut command = program("virsh", folders);
    command
        .arg("--quiet")
        .arg("--connect")
        .arg(format!("qemu+unix:///session?socket={}", folders.socket().display()))
        // A libvirtd of its own would be the wrong one.
        .env("LIBVIRT_AUTOSTART", "0");
    command
}

/// virsh with a question for which libvirt has to know all of its QEMU. The answer, some tens of
/// kilobytes, is for whoever asks next.
pub(crate) fn learning_command(folders: &Folders) -> Command {
    let mut command = virsh(folders);
    command.arg("domcapabilities");
    command
}

/// virsh with a question about the domain.
pub(crate) fn virsh_command(question: Question, domain: &str, folders: &Folders) -> Command {
    let mut command = virsh(folders);
    match question {
        Question::State => command.args(["domstate", "--reason"]),
        Question::PowerButton => command.args(["shutdown", "--mode", "acpi"]),
        Question::Destroy => command.arg("destroy"),
        // Keys change the domain, so libvirt first waits for whatever else changes it, a migration
        // too, and then finds that there is nothing to press keys of.
        Question::Settled => command.arg("send-key"),
    };
    command.arg("--domain").arg(domain);
    if question == Question::Settled {
        // The key that is none.
        command.arg("0");
    }
    command
}
