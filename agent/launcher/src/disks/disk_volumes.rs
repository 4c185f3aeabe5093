//! Volumes whose content already is a disk.
//!
//! These disks are raw, regardless of their content, because the guest controls the content.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use drydock_api::launcher::DISK_FILE;
use nix::sys::statvfs::statvfs;

use super::DiskRefusal;

/// Number of bytes that are left free in a volume whose disk is created. KubeVirt uses the same number.
const RESERVE: u64 = 128 * 1024;
/// Size unit of a created disk in bytes. Partitions are aligned to whole mebibytes.
const ALIGNMENT: u64 = 1024 * 1024;

/// Returns the disk in a volume with a file system, and its size in bytes.
///
/// A missing disk is created as a sparse raw file that is as large as the volume's free space allows. An empty file is
/// treated as missing, because its creation was interrupted.
///
/// # Errors
/// If the disk cannot be created, or is not a writable file.
pub(crate) fn file(folder: &Path) -> Result<(PathBuf, u64), DiskRefusal> {
    let path = folder.join(DISK_FILE);
    let cannot = |error| DiskRefusal::unwritable(&path, error);
    match fs::symlink_metadata(&path) {
        Ok(found) if !found.is_file() => return Err(DiskRefusal::NotADisk(path)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(DiskRefusal::unreadable(&path, error)),
    }
    let disk = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o660)
        .open(&path)
        .map_err(cannot)?;
    let mut size = disk.metadata().map_err(cannot)?.len();
    if size == 0 {
        size = room(folder, &path)?;
        disk.set_len(size).map_err(cannot)?;
    }
    Ok((path, size))
}

/// Creates a sparse file of `size` bytes, whose content a migration provides later.
///
/// # Errors
/// If the file already exists, or cannot be created.
pub(crate) fn blank(path: &Path, size: u64) -> Result<(), DiskRefusal> {
    if size == 0 {
        return Err(DiskRefusal::Empty(path.to_owned()));
    }
    let cannot = |error| DiskRefusal::unwritable(path, error);
    let disk = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(cannot)?;
    disk.set_len(size).map_err(cannot)
}

/// Returns the size in bytes of the largest disk that fits into the volume.
fn room(folder: &Path, path: &Path) -> Result<u64, DiskRefusal> {
    let volume = statvfs(folder).map_err(|error| DiskRefusal::unreadable(folder, error.into()))?;
    let free = volume.blocks_available().saturating_mul(volume.fragment_size());
    match free.saturating_sub(RESERVE) / ALIGNMENT * ALIGNMENT {
        0 => Err(DiskRefusal::NoRoom {
            path: path.to_owned(),
            free,
        }),
        size => Ok(size),
    }
}

/// Returns the size of a block volume in bytes.
///
/// # Errors
/// If the path is not a block device, or the device cannot be read.
pub(crate) fn device(path: &Path) -> Result<u64, DiskRefusal> {
    let cannot = |error| DiskRefusal::unreadable(path, error);
    let mut device = File::open(path).map_err(cannot)?;
    if !device.metadata().map_err(cannot)?.file_type().is_block_device() {
        return Err(DiskRefusal::NotADisk(path.to_owned()));
    }
    match device.seek(SeekFrom::End(0)).map_err(cannot)? {
        0 => Err(DiskRefusal::Empty(path.to_owned())),
        size => Ok(size),
    }
}
