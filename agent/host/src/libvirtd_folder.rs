//! The folder of a private libvirtd: everything it writes, and its last words.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::unistd::{chown, mkdtemp};

use crate::account::Account;

/// libvirtd's folder; removed unless it is kept.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Makes it in `scratch`, with what libvirtd needs, owned by `account`.
    pub(crate) fn make(scratch: &Path, account: Option<&Account>) -> io::Result<Self> {
        let folder = Self(mkdtemp(&scratch.join("drydock-libvirtd-XXXXXX"))?);
        let own = |path: &Path| match account {
            Some(account) => chown(path, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        };
        // The folder itself stays this process's: what it reads there later cannot be replaced.
        fs::set_permissions(&folder.0, Permissions::from_mode(0o711))?;
        for name in ["home", "run", "run/libvirt", "config", "cache", "data", "devices"] {
            let path = folder.0.join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            own(&path)?;
        }
        Ok(folder)
    }

    /// Gives it to the caller, who removes it.
    pub(crate) fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            remove(&self.0);
        }
    }
}

/// Removes a folder and all in it.
pub(crate) fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), %error, "libvirtd's folder cannot be removed");
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
