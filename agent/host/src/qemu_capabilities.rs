//! QEMU capabilities that libvirt has probed, stored for the libvirts in guests' pods.
//!
//! When libvirt starts, it runs its QEMU and probes all its capabilities, which takes some tenths of a second, and
//! caches the result in files. A libvirt that starts later with the same QEMU on the same kernel and processor reads
//! these files. libvirt compares the timestamps of both programs, their versions, the kernel, the microcode and
//! `/dev/kvm`, and probes again if any of them differs. The private libvirtd of an inspection and the libvirtds of
//! guests use the same program files.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use nix::fcntl::OFlag;

/// Maximum size of a capabilities file in bytes. The file of a QEMU with all its machine types has about 150 KiB.
const LARGEST: u64 = 4 * 1024 * 1024;
/// Maximum number of files: one for each architecture that has a QEMU.
const MOST: usize = 64;

/// Copies all capabilities files from libvirt's folder `from` to `into`, readable by all users.
///
/// Each file is replaced atomically. All other files in `into`, such as those of an earlier QEMU, are removed.
///
/// # Errors
/// If the files cannot be read or written, or exceed the limits.
pub(crate) fn keep(from: &Path, into: &Path) -> io::Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if is_one(&entry.file_name()) {
            found.push(entry.file_name());
        }
    }
    if found.len() > MOST {
        return Err(io::Error::other(format!(
            "{} files found; at most {MOST} are expected",
            found.len()
        )));
    }
    DirBuilder::new().recursive(true).mode(0o755).create(into)?;
    for name in &found {
        let bytes = read(&from.join(name))?;
        let mut unfinished = OsString::from(".");
        unfinished.push(name);
        let unfinished = into.join(unfinished);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .open(&unfinished)?;
        file.write_all(&bytes)?;
        fs::rename(&unfinished, into.join(name))?;
    }
    for entry in fs::read_dir(into)? {
        let entry = entry?;
        if !found.contains(&entry.file_name()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns whether a file is a capabilities file. libvirt names these files after the SHA-256 of QEMU's path.
fn is_one(name: &OsString) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "xml")
}

/// Reads a regular file. A link is refused, because it may refer to a file of another user.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is not a regular file", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other(format!(
            "{} has more than {LARGEST} bytes",
            path.display()
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Two folders that are removed on drop.
    struct Scene(std::path::PathBuf);

    impl Scene {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("drydock-capabilities-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join("from")).unwrap();
            Self(folder)
        }

        fn learned(&self, name: &str, text: &str) {
            fs::write(self.0.join("from").join(name), text).unwrap();
        }

        fn keep(&self) -> io::Result<()> {
            keep(&self.0.join("from"), &self.0.join("into"))
        }

        fn kept(&self) -> Vec<(String, String)> {
            let mut kept: Vec<_> = fs::read_dir(self.0.join("into"))
                .unwrap()
                .map(|entry| {
                    let entry = entry.unwrap();
                    let text = fs::read_to_string(entry.path()).unwrap();
                    (entry.file_name().into_string().unwrap(), text)
                })
                .collect();
            kept.sort();
            kept
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn new_cache_replaces_the_old_and_is_readable_by_all() {
        let scene = Scene::new("replaces");
        scene.learned("a.xml", "old");
        scene.learned("other", "something else");
        scene.keep().unwrap();
        assert_eq!(scene.kept(), [("a.xml".to_owned(), "old".to_owned())]);
        let mode = fs::metadata(scene.0.join("into/a.xml")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);

        scene.learned("b.xml", "new");
        fs::remove_file(scene.0.join("from/a.xml")).unwrap();
        scene.keep().unwrap();
        assert_eq!(scene.kept(), [("b.xml".to_owned(), "new".to_owned())]);
    }

    #[test]
    fn link_folder_or_oversized_file_is_refused() {
        let scene = Scene::new("link");
        symlink("/etc/hostname", scene.0.join("from/a.xml")).unwrap();
        assert!(scene.keep().is_err());
        fs::remove_file(scene.0.join("from/a.xml")).unwrap();
        fs::create_dir(scene.0.join("from/a.xml")).unwrap();
        assert!(scene.keep().unwrap_err().to_string().contains("not a regular file"));
        fs::remove_dir(scene.0.join("from/a.xml")).unwrap();

        let large = File::create(scene.0.join("from/a.xml")).unwrap();
        large.set_len(LARGEST + 1).unwrap();
        assert!(scene.keep().unwrap_err().to_string().contains("more than"));
        assert_eq!(scene.kept(), []);
    }
}
