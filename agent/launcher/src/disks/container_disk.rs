//! Disk in the image of a containerDisk, which is mounted read-only.
//!
//! As in KubeVirt's images, the disk is the only file in `/disk`, or the file at the manifest's `path`. Links in an
//! image are resolved within the image and never lead out of it.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use drydock_api::launcher::BackingImage;
use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

use super::{DiskRefusal, image_format};

/// Folder of the disk in an image.
const FOLDER: &str = "/disk";
/// Flags for opening a disk. Without O_NONBLOCK, opening a FIFO would block.
const READING: OFlag = OFlag::O_RDONLY.union(OFlag::O_NONBLOCK);

/// Finds the disk in the image whose root is `root`.
///
/// # Errors
/// If there is no disk or more than one disk, or the disk must not be opened.
pub(crate) fn find(root: &Path, path: Option<&str>) -> Result<BackingImage, DiskRefusal> {
    let wanted = match path {
        Some(path) => path.to_owned(),
        None => only_file(root)?,
    };
    let file = File::from(open_in(root, &wanted, READING).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DiskRefusal::NoDiskInImage(wanted.clone()),
        _ => DiskRefusal::unreadable(Path::new(&wanted), error),
    })?);
    let cannot = |error| DiskRefusal::unreadable(Path::new(&wanted), error);
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(DiskRefusal::NotADisk(wanted.into()));
    }
    let found = image_format::detect(Path::new(&wanted), &file)?;
    Ok(BackingImage {
        path: real_path(&file).map_err(cannot)?.display().to_string(),
        format: found.format,
        virtual_size: found.virtual_size,
    })
}

/// Returns the path of the only file in the disk folder of an image.
fn only_file(root: &Path) -> Result<String, DiskRefusal> {
    let none = || DiskRefusal::NoDiskInImage(FOLDER.into());
    let folder = match open_in(root, FOLDER, OFlag::O_PATH | OFlag::O_DIRECTORY) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(none()),
        Err(error) => return Err(DiskRefusal::unreadable(Path::new(FOLDER), error)),
    };
    let cannot = |error| DiskRefusal::unreadable(Path::new(FOLDER), error);
    let entries = fs::read_dir(real_path(&folder).map_err(cannot)?).map_err(cannot)?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(cannot)?.file_name().to_string_lossy().into_owned();
        // Hidden files are remains of image builders.
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    match names.as_slice() {
        [] => Err(none()),
        [name] => Ok(format!("{FOLDER}/{name}")),
        _ => Err(DiskRefusal::SeveralDisksInImage(names.join(", "))),
    }
}

/// Opens a path that is resolved within the image.
fn open_in(root: &Path, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
    let root = open(
        root,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(openat2(root, path, how)?)
}

/// Returns the real path of an open file.
fn real_path(file: &impl AsRawFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
