//! Where the kernel's files are, so that tests can give recorded ones.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Most bytes read of one of the kernel's files. Of `/proc/cpuinfo` the first CPU is enough, and
/// the kernel takes its time for each; it has 2 KiB at most on x86, 3 with all of s390x's header.
const LIMIT: u64 = 8 * 1024;

/// Folders and nodes of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// procfs.
    pub proc: PathBuf,
    /// sysfs.
    pub sys: PathBuf,
    /// The device node of KVM.
    pub kvm: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            kvm: "/dev/kvm".into(),
        }
    }
}

impl Roots {
    /// The trimmed text of a file below /proc; `None` if it cannot be read.
    pub(crate) fn proc_text(&self, path: &str) -> Option<String> {
        text(&self.proc.join(path)).ok()
    }

    /// The trimmed text of a file below /sys; `None` if it cannot be read.
    pub(crate) fn sys_text(&self, path: &str) -> Option<String> {
        text(&self.sys.join(path)).ok()
    }
}

/// The trimmed text of a file, as far as the limit.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    use io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
