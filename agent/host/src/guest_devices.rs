//! Device nodes for guests' pods.
//!
//! The container runtime creates a pod's device node as a copy of the host's node, with the same mode and owner. The
//! host's nodes belong to root and to a group whose number differs between distributions, so a pod of an ordinary user
//! could not open them. Therefore the agent maintains its own nodes that any user may open, in a folder that only root
//! can enter. The host's nodes are not changed.

use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::sys::stat::{Mode, SFlag, mknod};

/// Creates a node in `folder` for the same device as `device` that any user may open, and returns its path.
///
/// The folder is created if it does not exist. A correct node is left unchanged.
///
/// # Errors
/// If the device does not exist, or the node cannot be created.
pub fn open_to_all(folder: &Path, device: &Path) -> io::Result<PathBuf> {
    let metadata = fs::metadata(device)?;
    if !metadata.file_type().is_char_device() {
        return Err(io::Error::other("not a character device"));
    }
    let name = device
        .file_name()
        .ok_or_else(|| io::Error::other("the device path has no file name"))?;
    let node = folder.join(name);
    let is_right = |found: &fs::Metadata| {
        found.file_type().is_char_device() && found.rdev() == metadata.rdev() && found.mode() & 0o7777 == 0o666
    };
    if fs::symlink_metadata(&node).is_ok_and(|found| is_right(&found)) {
        return Ok(node);
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => fs::set_permissions(folder, Permissions::from_mode(0o700))?,
    }
    // The node is created under another name and then renamed, because a pod may be about to get the node.
    let mut fresh = name.to_owned();
    fresh.push(".new");
    let fresh = folder.join(fresh);
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    mknod(&fresh, SFlag::S_IFCHR, Mode::from_bits_truncate(0o600), metadata.rdev())?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o666))?;
    fs::rename(&fresh, &node)?;
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_made_mended_and_left_alone() {
        let above = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-devices-XXXXXX")).unwrap();
        let folder = above.join("devices");
        let device = Path::new("/dev/null");
        if let Err(error) = open_to_all(&folder, device) {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "only root makes nodes");
            fs::remove_dir_all(above).unwrap();
            return;
        }
        let node = folder.join("null");
        let facts = || {
            let metadata = fs::symlink_metadata(&node).unwrap();
            (metadata.rdev(), metadata.mode() & 0o7777, metadata.ino())
        };
        let first = facts();
        assert_eq!((first.0, first.1), (fs::metadata(device).unwrap().rdev(), 0o666));
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(open_to_all(&folder, device).unwrap(), node);
        assert_eq!(facts(), first);

        fs::set_permissions(&node, Permissions::from_mode(0o600)).unwrap();
        open_to_all(&folder, device).unwrap();
        assert_eq!(facts().1, 0o666);

        fs::remove_file(&node).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &node).unwrap();
        open_to_all(&folder, device).unwrap();
        assert_eq!(facts().0, first.0);
        fs::remove_dir_all(above).unwrap();
    }

    #[test]
    fn path_that_is_no_character_device_is_refused() {
        let error = open_to_all(Path::new("/nowhere"), Path::new("/proc/self/status")).unwrap_err();
        assert_eq!(error.to_string(), "not a character device");
        assert!(open_to_all(Path::new("/nowhere"), Path::new("/dev/no-such-device")).is_err());
    }
}
