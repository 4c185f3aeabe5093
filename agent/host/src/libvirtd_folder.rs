//! Folder of a private libvirtd with all files that it writes, and the last lines of its log.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::unistd::{chown, geteuid, mkdtemp};

use crate::{account::Account, descendants};

/// Prefix of the folders' names.
const PREFIX: &str = "drydock-libvirtd-";

/// File in the folder that is locked as long as the process that owns the folder lives.
const LOCK: &str = "lock";

/// Time limit for ending processes that a killed inspection left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

/// Folder of a private libvirtd. Dropping the value removes the folder.
#[derive(Debug)]
pub(crate) struct LibvirtdFolder {
    path: PathBuf,
    /// Locked file. Dropping it releases the lock.
    _lock: Option<File>,
}

impl LibvirtdFolder {
    /// Creates the folder in `scratch`, with subfolders that are owned by `account`.
    ///
    /// Removes the folders and processes of killed inspections first.
    pub(crate) fn make(scratch: &Path, account: Option<&Account>) -> io::Result<Self> {
        clear_stale(scratch);
        let mut folder = Self {
            path: mkdtemp(&scratch.join(format!("{PREFIX}XXXXXX")))?,
            _lock: None,
        };
        folder._lock = Some(lock(&folder.path)?);
        let own = |path: &Path| match account {
            Some(account) => chown(path, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        };
        // The folder itself stays owned by this process, so that files that are read from it later cannot be replaced.
        fs::set_permissions(&folder.path, Permissions::from_mode(0o711))?;
        for name in ["home", "run", "run/libvirt", "config", "cache", "data", "devices"] {
            let path = folder.path.join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            own(&path)?;
        }
        Ok(folder)
    }

    /// Returns the path of a file in the folder.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for LibvirtdFolder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Creates the lock file of a folder.
///
/// The file is locked before it gets its name, because another process considers a folder stale if its lock is free.
fn lock(folder: &Path) -> io::Result<File> {
    let unnamed = folder.join("lock.new");
    let lock = File::create(&unnamed)?;
    lock.lock()?;
    fs::rename(unnamed, folder.join(LOCK))?;
    Ok(lock)
}

/// Removes a folder and its content.
fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), %error, "libvirtd's folder cannot be removed");
    }
}

/// Ends the processes and removes the folders of killed inspections.
///
/// libvirtd ends with its inspection, but a QEMU that it was querying does not. A folder without a lock file is just
/// being created.
fn clear_stale(scratch: &Path) {
    for entry in fs::read_dir(scratch).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry
                .metadata()
                .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == geteuid().as_raw());
        if is_ours && is_stale(&path) {
            tracing::info!(folder = %path.display(), "removing the leftovers of a killed inspection");
            descendants::end_at_home(&path.join("home"), LEFT_BEHIND);
            remove(&path);
        }
    }
}

/// Returns whether the process that owned a folder has ended.
fn is_stale(folder: &Path) -> bool {
    File::open(folder.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok())
}

/// Returns the last relevant lines of libvirtd's log, joined into one line.
pub(crate) fn last_errors(log: &Path) -> String {
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
    // Other lines are used only if the log contains no error.
    let mut errors: Vec<&str> = lines.iter().copied().filter(|line| line.contains("error")).collect();
    if errors.is_empty() {
        errors = lines;
    }
    errors.split_off(errors.len().saturating_sub(LINES)).join("; ")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn lock_file_is_never_seen_unlocked() {
        let scratch = mkdtemp(&std::env::temp_dir().join("drydock-scratch-XXXXXX")).unwrap();
        let folders: Vec<PathBuf> = (0..500).map(|number| scratch.join(number.to_string())).collect();
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let current = AtomicUsize::new(0);
        let seen_unlocked = std::thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let mut count = 0;
                while let Some(folder) = folders.get(current.load(Ordering::Relaxed)) {
                    count += usize::from(is_stale(folder));
                }
                count
            });
            // The folders stay locked until the other thread has ended.
            let locks: Vec<File> = folders
                .iter()
                .map(|folder| {
                    let lock = lock(folder).unwrap();
                    current.fetch_add(1, Ordering::Relaxed);
                    lock
                })
                .collect();
            let count = observer.join().unwrap();
            drop(locks);
            count
        });
        fs::remove_dir_all(scratch).unwrap();
        assert_eq!(seen_unlocked, 0);
    }

    #[test]
    fn last_errors_are_preferred_to_other_lines() {
        let file = std::env::temp_dir().join(format!("drydock-words-{}", std::process::id()));
        fs::write(&file, "info : a\nx: error : b\n\nwarning : c\ny: error : d\n").unwrap();
        assert_eq!(last_errors(&file), "x: error : b; y: error : d");
        fs::write(&file, b"one\ntwo\nthree\nfour\xff\n").unwrap();
        assert_eq!(last_errors(&file), "two; three; four\u{fffd}");
        fs::remove_file(&file).unwrap();
        assert_eq!(last_errors(&file), "");
    }
}
