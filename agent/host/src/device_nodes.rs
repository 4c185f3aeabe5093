//! Device nodes that an unprivileged libvirtd may open.
//!
//! A guest gets /dev/kvm from a device plugin. The libvirtd that is queried on its behalf needs the device too, because
//! it would otherwise describe emulation. The host's node belongs to root. Making it writable for all users, as
//! KubeVirt's node-labeller does, would open it to all processes on the node. Therefore the calling thread gets its own
//! mount namespace, in which its own device nodes cover the host's nodes.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::Path,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::stat::{Mode, SFlag, mknod},
};

/// Devices that QEMU opens to determine the host's capabilities.
const DEVICES: [&str; 2] = ["kvm", "sev"];

/// Gives the calling thread and its child processes device nodes that any user may open.
///
/// `folder` is an empty folder that the caller provides.
///
/// # Errors
/// If the system does not permit this. The devices then stay as they are on the host.
pub(crate) fn unlock_for_this_thread(folder: &Path) -> io::Result<()> {
    let present: Vec<_> = DEVICES
        .iter()
        .map(|name| (*name, Path::new("/dev").join(name)))
        .filter_map(|(name, path)| Some((name, fs::metadata(&path).ok()?, path)))
        .filter(|(_, metadata, _)| metadata.file_type().is_char_device())
        .collect();
    if present.is_empty() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Without this call, the mounts below would propagate to the host.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )?;
    // The folder may be on a file system mounted with `nodev`, so the nodes get their own tmpfs.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("drydock"), folder, Some("tmpfs"), flags, Some("size=64k,mode=755"))?;
    for (name, metadata, path) in present {
        let node = folder.join(name);
        mknod(&node, SFlag::S_IFCHR, Mode::from_bits_truncate(0o600), metadata.rdev())?;
        fs::set_permissions(&node, Permissions::from_mode(0o666))?;
        // If the container must not use the device, the new node cannot be opened either.
        match File::options().read(true).write(true).open(&node) {
            Ok(_) => mount(Some(&node), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?,
            Err(error) => tracing::debug!(device = %path.display(), %error, "device node left unchanged"),
        }
    }
    Ok(())
}
