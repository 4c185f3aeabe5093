//! The folder of a private libvirtd: everything it writes, and its last words.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::{chown, geteuid, mkdtemp};

use crate::{account::Account, descendants};

/// Start of the names of such folders.
const PREFIX: &str = "drydock-libvirtd-";

/// File in the folder that is locked as long as the folder's process lives.
const LOCK: &str = "lock";

/// How long processes that a killed inspection left behind may take to end.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

/// libvirtd's folder. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Locked.
    _lock: Option<File>,
}

impl Folder {
    /// Makes it in `scratch`, with what libvirtd needs, owned by `account`. Clears away what
    /// inspections that were killed have left there.
    pub(crate) fn make(scratch: &Path, account: Option<&Account>) -> io::Result<Self> {
        clear_stale(scratch);
        let mut folder = Self {
            path: mkdtemp(&scratch.join(format!("{PREFIX}XXXXXX")))?,
            _lock: None,
        };
        let lock = File::create(folder.path.join(LOCK))?;
        lock.lock()?;
        folder._lock = Some(lock);
        let own = |path: &Path| match account {
            Some(account) => chown(path, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        };
        // The folder itself stays this process's: what it reads there later cannot be replaced.
        fs::set_permissions(&folder.path, Permissions::from_mode(0o711))?;
        for name in ["home", "run", "run/libvirt", "config", "cache", "data", "devices"] {
            let path = folder.path.join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            own(&path)?;
        }
        Ok(folder)
    }

    /// A path in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes a folder and all in it.
fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), %error, "libvirtd's folder cannot be removed");
    }
}

/// Ends and removes what inspections have left that were killed: libvirtd ends with its inspection,
/// but a QEMU that it was just asking does not. A folder without a lock is one that is being made.
fn clear_stale(scratch: &Path) {
    for entry in fs::read_dir(scratch).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry
                .metadata()
                .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == geteuid().as_raw());
        if is_ours && File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            tracing::info!(folder = %path.display(), "clearing away what a killed inspection has left");
            descendants::end_at_home(&path.join("home"), LEFT_BEHIND);
            remove(&path);
        }
    }
}

/// The last lines of libvirtd's log that say something, on one line.
pub(crate) fn last_words(log: &Path) -> String {
    const TAIL: u64 = 4096;
    const LINES: usize = 3;
    let tail = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = tail().unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // Warnings and information only if there is no error.
    let mut errors: Vec<&str> = lines.iter().copied().filter(|line| line.contains("error")).collect();
    if errors.is_empty() {
        errors = lines;
    }
    errors.split_off(errors.len().saturating_sub(LINES)).join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_errors() {
        let file = std::env::temp_dir().join(format!("drydock-words-{}", std::process::id()));
        fs::write(&file, "info : a\nx: error : b\n\nwarning : c\ny: error : d\n").unwrap();
        assert_eq!(last_words(&file), "x: error : b; y: error : d");
        fs::write(&file, b"one\ntwo\nthree\nfour\xff\n").unwrap();
        assert_eq!(last_words(&file), "two; three; four\u{fffd}");
        fs::remove_file(&file).unwrap();
        assert_eq!(last_words(&file), "");
    }
}
