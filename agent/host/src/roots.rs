//! Paths of the kernel's files. Tests replace them with recorded files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Maximum number of bytes that are read from a kernel file.
///
/// For `/proc/cpuinfo`, the first CPU is enough, and the kernel needs time for each CPU. One CPU takes at most 2 KiB on
/// x86, and at most 3 KiB on s390x, including the whole header.
const LIMIT: u64 = 8 * 1024;

/// Folders and device nodes of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Mount point of procfs.
    pub proc: PathBuf,
    /// Mount point of sysfs.
    pub sys: PathBuf,
    /// Device node of KVM.
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
    /// Returns the trimmed text of a file below /proc; `None` if it cannot be read.
    pub(crate) fn proc_text(&self, path: &str) -> Option<String> {
        text(&self.proc.join(path)).ok()
    }

    /// Returns the trimmed text of a file below /sys; `None` if it cannot be read.
    pub(crate) fn sys_text(&self, path: &str) -> Option<String> {
        text(&self.sys.join(path)).ok()
    }
}

/// Returns the trimmed text of a file, up to the maximum size.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    use io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
