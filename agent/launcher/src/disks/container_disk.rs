//! The disk in a containerDisk's image, which is mounted read-only.
//!
//! As in KubeVirt's images, it is the only file in `/disk`, or where the manifest's `path` says.
//! Links in an image lead to what they lead to in the image, never out of it.

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

use super::{Refusal, image_format};

/// The folder of the disk in an image.
const FOLDER: &str = "/disk";
/// How a disk is opened; a pipe would otherwise let nobody go on.
const READING: OFlag = OFlag::O_RDONLY.union(OFlag::O_NONBLOCK);

/// Finds the disk in the image whose root is at `root`.
///
/// # Errors
/// If there is none, or several, or one that is not to be opened.
pub(crate) fn find(root: &Path, path: Option<&str>) -> Result<BackingImage, Refusal> {
    let wanted = match path {
        Some(path) => path.to_owned(),
        None => only_file(root)?,
    };
    let file = File::from(open_in(root, &wanted, READING).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Refusal::NoDiskInImage(wanted.clone()),
        _ => Refusal::unreadable(Path::new(&wanted), error),
    })?);
    let cannot = |error| Refusal::unreadable(Path::new(&wanted), error);
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(Refusal::NotADisk(wanted.into()));
    }
    let found = image_format::look(Path::new(&wanted), &file)?;
    Ok(BackingImage {
        path: real_path(&file).map_err(cannot)?.display().to_string(),
        format: found.format,
        virtual_size: found.virtual_size,
    })
}

/// The path in the image of the only file in its folder of disks.
fn only_file(root: &Path) -> Result<String, Refusal> {
    let none = || Refusal::NoDiskInImage(FOLDER.into());
    let folder = match open_in(root, FOLDER, OFlag::O_PATH | OFlag::O_DIRECTORY) {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(none()),
        Err(error) => return Err(Refusal::unreadable(Path::new(FOLDER), error)),
    };
    let cannot = |error| Refusal::unreadable(Path::new(FOLDER), error);
    let entries = fs::read_dir(real_path(&folder).map_err(cannot)?).map_err(cannot)?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(cannot)?.file_name().to_string_lossy().into_owned();
        // What builders leave behind is no disk.
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    match names.as_slice() {
        [] => Err(none()),
        [name] => Ok(format!("{FOLDER}/{name}")),
        _ => Err(Refusal::SeveralDisksInImage(names.join(", "))),
    }
}

/// Opens a path as it is in the image.
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

/// Where something that is open really is.
fn real_path(file: &impl AsRawFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
