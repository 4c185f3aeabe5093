//! Creation of qcow2 files with qemu-img.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
};

use drydock_api::launcher::BackingImage;

use super::DiskRefusal;

/// QEMU's sector size in bytes. Disk sizes are multiples of the sector size.
const SECTOR: u64 = 512;

/// Creates a layer of `size` bytes on top of a read-only image.
///
/// The format of the image is specified, so that it is not detected again.
///
/// # Errors
/// If qemu-img fails.
pub(crate) fn overlay(path: &Path, image: &BackingImage, size: u64) -> Result<(), DiskRefusal> {
    let size = size.to_string();
    let format = image.format.as_str();
    let arguments = ["create", "-q", "-f", "qcow2", "-F", format, "-b", &image.path];
    run(arguments.map(OsStr::new), path, &size)
}

/// Creates an empty disk, and returns its size in bytes: the capacity, rounded up to whole sectors.
///
/// # Errors
/// If qemu-img fails.
pub(crate) fn empty(path: &Path, capacity: u64) -> Result<u64, DiskRefusal> {
    let size = match capacity.checked_next_multiple_of(SECTOR) {
        None | Some(0) => {
            return Err(DiskRefusal::QemuImg(format!(
                "a capacity of {capacity} bytes is invalid"
            )));
        }
        Some(size) => size,
    };
    run(["create", "-q", "-f", "qcow2"].map(OsStr::new), path, &size.to_string())?;
    Ok(size)
}

fn run<const N: usize>(arguments: [&OsStr; N], path: &Path, size: &str) -> Result<(), DiskRefusal> {
    let output = Command::new("qemu-img")
        .args(arguments)
        .arg(path)
        .arg(size)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| DiskRefusal::QemuImg(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let error_output = String::from_utf8_lossy(&output.stderr);
    let error_output = error_output.trim().trim_start_matches("qemu-img: ");
    Err(DiskRefusal::QemuImg(if error_output.is_empty() {
        output.status.to_string()
    } else {
        error_output.replace('\n', "; ")
    }))
}
