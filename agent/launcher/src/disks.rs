//! Preparation of a guest's disks before its start, in a separate process.
//!
//! ```text
//! containerDisk   /images/NAME/disk/*     ◀── read-only ── /var/lib/drydock/disks/NAME.qcow2
//! cloud-init      /secrets/NAME, manifest ───────────────▶ /var/lib/drydock/disks/NAME.img
//! files           /secrets/NAME ─────────────────────────▶ /var/lib/drydock/disks/NAME.img
//! emptyDisk                                                /var/lib/drydock/disks/NAME.qcow2
//! blank           filled by a migration                    /var/lib/drydock/disks/NAME.img
//! volume          /volumes/NAME/disk.img  as it is, created if it does not exist
//! block volume    /devices/NAME           as it is
//! ```
//!
//! The format of a disk that the guest can write is never detected from its content, because a guest could write a
//! qcow2 header that refers to other files. The disk is either raw, or a qcow2 file that the launcher created.

pub(crate) mod cloud_init;
pub(crate) mod container_disk;
pub(crate) mod data_volume;
mod disk_refusal;
pub(crate) mod disk_volumes;
pub(crate) mod image_format;
pub(crate) mod iso;
pub(crate) mod qemu_img;

use std::{
    fs,
    path::{Path, PathBuf},
};

use drydock_api::launcher::{DiskFormat, DiskSource, LauncherDisk, PodGuest, PreparedDisk, SECRET_FILES};

pub(crate) use disk_refusal::{DiskRefusal, RefusedDisk};

use crate::folders::Folders;

/// Prepares all disks of the guest.
///
/// # Errors
/// Returns the first disk that cannot be prepared, with the reason.
pub(crate) fn prepare(guest: &PodGuest, folders: &Folders) -> Result<Vec<PreparedDisk>, RefusedDisk> {
    let disks = guest.disks.iter().map(|disk| {
        prepare_one(disk, folders).map_err(|refusal| RefusedDisk {
            volume: disk.name.clone(),
            refusal,
        })
    });
    disks.collect()
}

fn prepare_one(disk: &LauncherDisk, folders: &Folders) -> Result<PreparedDisk, DiskRefusal> {
    // The name becomes a part of paths.
    if disk.name.is_empty() || disk.name.starts_with('.') || disk.name.contains('/') {
        return Err(DiskRefusal::VolumeName);
    }
    let own = |ending: &str| folders.disks().join(format!("{}.{ending}", disk.name));
    match &disk.source {
        DiskSource::ContainerDisk { path, size } => {
            let image = container_disk::find(&folders.image(&disk.name), path.as_deref())?;
            let path = own("qcow2");
            let virtual_size = size.unwrap_or(image.virtual_size);
            qemu_img::overlay(&path, &image, virtual_size)?;
            Ok(PreparedDisk {
                name: disk.name.clone(),
                path: path.display().to_string(),
                format: DiskFormat::Qcow2,
                virtual_size,
                backing: Some(image),
            })
        }
        DiskSource::EmptyDisk { capacity } => {
            let path = own("qcow2");
            let virtual_size = qemu_img::empty(&path, *capacity)?;
            Ok(PreparedDisk {
                name: disk.name.clone(),
                path: path.display().to_string(),
                format: DiskFormat::Qcow2,
                virtual_size,
                backing: None,
            })
        }
        DiskSource::CloudInitNoCloud(data) => {
            let files = cloud_init::files(data, &folders.secrets(&disk.name))?;
            let path = own("img");
            let size = data_volume::write(&path, &files)?;
            Ok(raw(disk, path.display().to_string(), size))
        }
        DiskSource::Files { label } => {
            let path = own("img");
            let size = iso::write(&path, label, &folders.secrets(&disk.name).join(SECRET_FILES))?;
            Ok(raw(disk, path.display().to_string(), size))
        }
        DiskSource::Blank { size } => {
            let path = own("img");
            disk_volumes::blank(&path, *size)?;
            Ok(raw(disk, path.display().to_string(), *size))
        }
        DiskSource::Filesystem {} => {
            let (path, size) = disk_volumes::file(&folders.volume(&disk.name))?;
            Ok(raw(disk, path.display().to_string(), size))
        }
        DiskSource::Block {} => {
            let path = folders.device(&disk.name);
            let size = disk_volumes::device(&path)?;
            Ok(raw(disk, path.display().to_string(), size))
        }
    }
}

/// Returns the files of a mounted Secret or ConfigMap, by name.
///
/// # Errors
/// If the folder cannot be read.
fn mounted_files(folder: &Path) -> Result<Vec<PathBuf>, DiskRefusal> {
    let cannot = |error| DiskRefusal::unreadable(folder, error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        // The kubelet keeps the content in folders whose names begin with two dots.
        if !name.to_string_lossy().starts_with("..") {
            files.push(folder.join(name));
        }
    }
    files.sort();
    Ok(files)
}

fn raw(disk: &LauncherDisk, path: String, virtual_size: u64) -> PreparedDisk {
    PreparedDisk {
        name: disk.name.clone(),
        path,
        format: DiskFormat::Raw,
        virtual_size,
        backing: None,
    }
}

#[cfg(test)]
mod tests;
