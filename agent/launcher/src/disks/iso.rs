//! Creation of a read-only file system with the files of a Secret or ConfigMap: ISO 9660 with the names of Rock Ridge and
//! Joliet, as KubeVirt makes it, by xorriso.

use std::{
    ffi::OsString,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use super::Refusal;

/// Time that all files have, in seconds since 1970: the same files result in the same bytes.
const TIME: &str = "0";

/// Writes the files of a folder to a new file system, and returns its size in bytes.
///
/// # Errors
/// If the folder cannot be read, or xorriso fails.
pub(crate) fn write(path: &Path, label: &str, folder: &Path) -> Result<u64, Refusal> {
    let cannot = |error| Refusal::unreadable(folder, error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        // The kubelet keeps the content in folders whose names begin so.
        if !name.to_string_lossy().starts_with("..") {
            let mut graft = OsString::from("/");
            graft.push(&name);
            graft.push("=");
            graft.push(folder.join(&name));
            files.push(graft);
        }
    }
    files.sort();
    let mut command = Command::new("xorrisofs");
    command
        .args(["-quiet", "-follow-links", "-joliet", "-rational-rock", "-volid", label])
        .arg("-output")
        .arg(path)
        .env("SOURCE_DATE_EPOCH", TIME)
        .stdin(Stdio::null());
    let output = if files.is_empty() {
        // An optional object that does not exist. xorrisofs needs a folder to copy.
        let empty = path.with_extension("empty");
        fs::create_dir(&empty).map_err(|error| Refusal::unwritable(&empty, error))?;
        let output = command.arg(&empty).output();
        fs::remove_dir(&empty).map_err(|error| Refusal::unwritable(&empty, error))?;
        output
    } else {
        command.arg("-graft-points").args(files).output()
    };
    let output = output.map_err(|error| Refusal::FileSystem(error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        let status = output.status.to_string();
        return Err(Refusal::FileSystem(last.unwrap_or(&status).trim().to_owned()));
    }
    let size = fs::metadata(path)
        .map_err(|error| Refusal::unreadable(path, error))?
        .len();
    Ok(size)
}
