//! Creation of a read-only file system that contains the files of a Secret or ConfigMap.
//!
//! The format is ISO 9660 with the names of Rock Ridge and Joliet, as in KubeVirt. xorriso creates the file system.

use std::{
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use super::{DiskRefusal, mounted_files};

/// Timestamp of all files, in seconds since 1970. It is constant, so that the same files result in the same bytes.
///
/// The value is the beginning of 1980, because xorriso interprets 0 as no time.
const TIME: &str = "315532800";

/// Writes the files of a folder to a new file system, and returns its size in bytes.
///
/// # Errors
/// If the folder cannot be read, or xorriso fails.
pub(crate) fn write(path: &Path, label: &str, folder: &Path) -> Result<u64, DiskRefusal> {
    let files = mounted_files(folder)?;
    let grafts = files.iter().filter_map(|path| {
        let mut graft = OsString::from("/");
        graft.push(path.file_name()?);
        graft.push("=");
        graft.push(path);
        Some(graft)
    });
    let mut command = Command::new("xorrisofs");
    command
        .args(["-quiet", "-follow-links", "-joliet", "-rational-rock", "-volid", label])
        .args(["--set_all_file_dates", &format!("={TIME}")])
        .arg("-output")
        .arg(path)
        .env("SOURCE_DATE_EPOCH", TIME)
        .stdin(Stdio::null());
    let output = if files.is_empty() {
        // An optional object does not exist, so there are no files. xorrisofs needs a folder to copy.
        let empty = path.with_extension("empty");
        fs::create_dir(&empty).map_err(|error| DiskRefusal::unwritable(&empty, error))?;
        let output = command.arg(&empty).output();
        fs::remove_dir(&empty).map_err(|error| DiskRefusal::unwritable(&empty, error))?;
        output
    } else {
        command.arg("-graft-points").args(grafts).output()
    };
    let output = output.map_err(|error| DiskRefusal::FileSystem(error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        let status = output.status.to_string();
        return Err(DiskRefusal::FileSystem(last.unwrap_or(&status).trim().to_owned()));
    }
    let size = fs::metadata(path)
        .map_err(|error| DiskRefusal::unreadable(path, error))?
        .len();
    Ok(size)
}
