//! Volumes that are disks already.
//!
//! They are raw, whatever is in them: their content is the guest's.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use drydock_api::launcher::DISK_FILE;
use nix::sys::statvfs::statvfs;

use super::Refusal;

/// What is left free in a volume whose disk is made here, as KubeVirt leaves it.
const RESERVE: u64 = 128 * 1024;
/// A disk that is made has whole mebibytes, which all partitions are aligned to.
const ALIGNMENT: u64 = 1024 * 1024;

/// The disk in a volume with a file system, and its size in bytes.
///
/// One that is not there is made: sparse, raw, as large as the volume has room. One of no size was
/// not finished by whoever began to make it.
///
/// # Errors
/// If it cannot be made, or is not a file that can be written.
pub(crate) fn file(folder: &Path) -> Result<(PathBuf, u64), Refusal> {
    let path = folder.join(DISK_FILE);
    let cannot = |error| Refusal::unwritable(&path, error);
    match fs::symlink_metadata(&path) {
        Ok(found) if !found.is_file() => return Err(Refusal::NotADisk(path)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Refusal::unreadable(&path, error)),
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

/// Makes a sparse file of that size in bytes, for content that comes from elsewhere.
///
/// # Errors
/// If there is a file already, or it cannot be made.
pub(crate) fn blank(path: &Path, size: u64) -> Result<(), Refusal> {
    if size == 0 {
        return Err(Refusal::Empty(path.to_owned()));
    }
    let cannot = |error| Refusal::unwritable(path, error);
    let disk = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(cannot)?;
    disk.set_len(size).map_err(cannot)
}

/// How large a disk the volume has room for.
fn room(folder: &Path, path: &Path) -> Result<u64, Refusal> {
    let volume = statvfs(folder).map_err(|error| Refusal::unreadable(folder, error.into()))?;
    let free = volume.blocks_available().saturating_mul(volume.fragment_size());
    match free.saturating_sub(RESERVE) / ALIGNMENT * ALIGNMENT {
        0 => Err(Refusal::NoRoom {
            path: path.to_owned(),
            free,
        }),
        size => Ok(size),
    }
}

/// The size of a block volume in bytes.
///
/// # Errors
/// If it is no block device or cannot be read.
pub(crate) fn device(path: &Path) -> Result<u64, Refusal> {
    let cannot = |error| Refusal::unreadable(path, error);
    let mut device = File::open(path).map_err(cannot)?;
    if !device.metadata().map_err(cannot)?.file_type().is_block_device() {
        return Err(Refusal::NotADisk(path.to_owned()));
    }
    match device.seek(SeekFrom::End(0)).map_err(cannot)? {
        0 => Err(Refusal::Empty(path.to_owned())),
        size => Ok(size),
    }
}
