//! Creation of a NoCloud volume: a FAT file system with the label `cidata`.
//!
//! The same files result in the same bytes: the volume contains no timestamps, its serial number is fixed, and its
//! size depends on the files only.

use std::{
    fs::OpenOptions,
    io::{self, Cursor, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions, format_volume};

use super::{Refusal, cloud_init::NoCloud};

/// The label by which cloud-init recognises the volume, padded as FAT requires.
const LABEL: [u8; 11] = *b"cidata     ";
/// Serial number of the volume. It is not used, so it is constant.
const SERIAL: u32 = 0x6472_7964;
/// Allocation unit of the file system in bytes.
const CLUSTER: u64 = 4096;
/// Space in bytes for the file system itself: boot sector, tables, root folder.
const OVERHEAD: u64 = 64 * 1024;
/// The volume's size is a multiple of this number of bytes, so that it reveals little about the content.
const STEP: u64 = 1024 * 1024;
/// Maximum amount of data in bytes.
const MOST: u64 = 8 * 1024 * 1024;

/// Writes the volume to a new file that only this user can read, and returns its size in bytes.
///
/// # Errors
/// If there is too much data, or it cannot be written.
pub(crate) fn write(path: &Path, files: &NoCloud) -> Result<u64, Refusal> {
    let bytes = sum(files);
    if bytes > MOST {
        return Err(Refusal::TooMuchData(bytes, MOST));
    }
    let cannot = |error| Refusal::unwritable(path, error);
    let volume = volume(files).map_err(cannot)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(cannot)?;
    file.write_all(&volume).map_err(cannot)?;
    Ok(volume.len() as u64)
}

fn parts(files: &NoCloud) -> impl Iterator<Item = (&'static str, &[u8])> {
    [
        ("meta-data", Some(&files.meta_data)),
        ("user-data", Some(&files.user_data)),
        ("network-config", files.network_config.as_ref()),
    ]
    .into_iter()
    .filter_map(|(name, content)| Some((name, content?.as_slice())))
}

fn sum(files: &NoCloud) -> u64 {
    parts(files).map(|(_, content)| content.len() as u64).sum()
}

/// Returns the bytes of the volume.
pub(crate) fn volume(files: &NoCloud) -> io::Result<Vec<u8>> {
    let space: u64 = parts(files)
        .map(|(_, content)| (content.len() as u64).next_multiple_of(CLUSTER))
        .sum();
    let size = (space + OVERHEAD).next_multiple_of(STEP);
    let mut volume = Cursor::new(vec![0; usize::try_from(size).map_err(io::Error::other)?]);
    let options = FormatVolumeOptions::new()
        .volume_label(LABEL)
        .volume_id(SERIAL)
        .bytes_per_cluster(u32::try_from(CLUSTER).map_err(io::Error::other)?);
    format_volume(&mut volume, options)?;
    let system = FileSystem::new(&mut volume, FsOptions::new())?;
    for (name, content) in parts(files) {
        let mut file = system.root_dir().create_file(name)?;
        file.write_all(content)?;
        file.flush()?;
    }
    system.unmount()?;
    Ok(volume.into_inner())
}
