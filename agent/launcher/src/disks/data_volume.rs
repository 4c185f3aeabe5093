//! Creation of a volume for cloud-init: a FAT file system with the label of its data source, NoCloud or ConfigDrive.
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

use super::{
    DiskRefusal,
    cloud_init::{DataFiles, Format},
};

/// Labels by which cloud-init recognises a volume, padded as FAT requires.
const NO_CLOUD: [u8; 11] = *b"cidata     ";
const CONFIG_DRIVE: [u8; 11] = *b"config-2   ";
/// Serial number of the volume. The number is not used, so it is constant.
const SERIAL: u32 = 0x6472_7964;
/// Allocation unit of the file system in bytes.
const CLUSTER: u64 = 4096;
/// Space for the file system itself in bytes: boot sector, tables, root folder.
const OVERHEAD: u64 = 64 * 1024;
/// Size unit of the volume in bytes. The volume's size is a multiple, so that it reveals little about the content.
const STEP: u64 = 1024 * 1024;
/// Maximum amount of data in bytes.
const MOST: u64 = 8 * 1024 * 1024;

/// Writes the volume to a new file that only this user can read, and returns its size in bytes.
///
/// # Errors
/// If the files exceed the maximum size, or the volume cannot be written.
pub(crate) fn write(path: &Path, files: &DataFiles) -> Result<u64, DiskRefusal> {
    let bytes = sum(files);
    if bytes > MOST {
        return Err(DiskRefusal::TooMuchData(bytes, MOST));
    }
    let cannot = |error| DiskRefusal::unwritable(path, error);
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

/// Returns the content of the files with their paths in the volume.
fn parts(files: &DataFiles) -> impl Iterator<Item = (&'static str, &[u8])> {
    let [meta, user, network] = match files.format {
        Format::NoCloud => ["meta-data", "user-data", "network-config"],
        Format::ConfigDrive => [
            "openstack/latest/meta_data.json",
            "openstack/latest/user_data",
            "openstack/latest/network_data.json",
        ],
    };
    [
        (meta, Some(&files.meta_data)),
        (user, Some(&files.user_data)),
        (network, files.network_config.as_ref()),
    ]
    .into_iter()
    .filter_map(|(name, content)| Some((name, content?.as_slice())))
}

fn sum(files: &DataFiles) -> u64 {
    parts(files).map(|(_, content)| content.len() as u64).sum()
}

/// Returns the content of the volume.
pub(crate) fn volume(files: &DataFiles) -> io::Result<Vec<u8>> {
    let space: u64 = parts(files)
        .map(|(_, content)| (content.len() as u64).next_multiple_of(CLUSTER))
        .sum();
    let size = (space + OVERHEAD).next_multiple_of(STEP);
    let mut volume = Cursor::new(vec![0; usize::try_from(size).map_err(io::Error::other)?]);
    let options = FormatVolumeOptions::new()
        .volume_label(match files.format {
            Format::NoCloud => NO_CLOUD,
            Format::ConfigDrive => CONFIG_DRIVE,
        })
        .volume_id(SERIAL)
        .bytes_per_cluster(u32::try_from(CLUSTER).map_err(io::Error::other)?);
    format_volume(&mut volume, options)?;
    let system = FileSystem::new(&mut volume, FsOptions::new())?;
    for (path, content) in parts(files) {
        let mut folder = system.root_dir();
        let (folders, name) = path
            .rsplit_once('/')
            .map_or((None, path), |(folders, name)| (Some(folders), name));
        for name in folders.into_iter().flat_map(|folders| folders.split('/')) {
            // An existing folder is opened.
            folder = folder.create_dir(name)?;
        }
        let mut file = folder.create_file(name)?;
        file.write_all(content)?;
        file.flush()?;
    }
    system.unmount()?;
    Ok(volume.into_inner())
}
