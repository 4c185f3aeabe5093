//! A volume of a pod on this machine: an emptyDir, whose content the pod controls, or a Secret.
//!
//! ```text
//!  /var/lib/kubelet/pods / <uid>/volumes/kubernetes.io~empty-dir/<volume> / libvirt/libvirt-sock
//!  └─ the kubelet's ───┘   └─ made and removed by the kubelet ──────────┘   └─ created by the pod
//! ```
//!
//! The pod is hostile. Everything below the kubelet's pods folder is opened with `openat2`, without following links and
//! without leaving that folder. Only regular files are opened for reading, because a FIFO would block the reader, and
//! opening a device can have any effect. Files are read only up to a limit.

mod appearing;
mod listening;
mod secret;
mod watches;

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::{Mode, SFlag, fstat},
};
use thiserror::Error;
use tokio::net::UnixStream;

pub use appearing::WatchedPath;
pub use listening::PodListener;
pub use secret::PodSecret;

/// Maximum size in bytes of a small file that a pod writes for the agent.
pub const SMALL_FILE: u64 = 64 * 1024;

/// Name of the folder of emptyDirs in a pod's folder.
const EMPTY_DIRS: &str = "kubernetes.io~empty-dir";
/// Name of the folder of Secrets in a pod's folder.
const SECRETS: &str = "kubernetes.io~secret";

/// Reason why a file in a pod's folder cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FolderError {
    /// A name is invalid: neither Kubernetes nor the launcher would use it.
    #[error("{value:?} is not {what}")]
    BadName {
        /// Expected kind of name.
        what: &'static str,
        /// Actual value, cut to 100 characters.
        value: String,
    },
    /// A file in the pod's folder, or a folder above it, does not exist.
    #[error("there is no {path}")]
    NotThere {
        /// Path of the missing file or folder.
        path: PathBuf,
    },
    /// A file in the pod's folder is of the wrong kind or too large.
    #[error("{path} cannot be used: {refusal}")]
    Refused {
        /// Path of the refused file.
        path: PathBuf,
        /// Reason of the refusal.
        refusal: PodFileError,
    },
    /// No process listens on a socket in the pod's folder.
    #[error("no process listens on {path}")]
    NotListening {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The kernel cannot open or read a file in the pod's folder.
    #[error("cannot open {path}: {message}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error message of the kernel.
        message: String,
    },
}

/// Reason why a file in a pod's folder is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PodFileError {
    /// The file is a symbolic link, or a folder above it is.
    #[error("the path contains a symbolic link")]
    Link,
    /// The path contains a component above the file that is not a folder.
    #[error("the path contains a component that is not a folder")]
    NotInFolder,
    /// The file is not a regular file, but for example a folder, a FIFO or a device.
    #[error("not a regular file")]
    NotFile,
    /// The file is not a socket.
    #[error("not a socket")]
    NotSocket,
    /// The file is larger than the read limit.
    #[error("the file is larger than {0} bytes")]
    TooLarge(u64),
}

impl FolderError {
    /// Returns a stable identifier for conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadName { .. } => "PodFolderBadName",
            Self::NotThere { .. } => "PodFolderIncomplete",
            Self::Refused { .. } => "PodFolderRefused",
            Self::NotListening { .. } => "LibvirtNotListening",
            Self::Unreadable { .. } => "PodFolderUnreadable",
        }
    }
}

/// Location of a pod's emptyDir or Secret. Creating this value opens no file, and the folder does not have to exist
/// yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFolder {
    /// The kubelet's pods folder.
    pods: PathBuf,
    /// UID of the pod, the folders in between, name of the volume.
    names: [String; 4],
}

impl PodFolder {
    /// Returns the emptyDir `volume` of the pod with this UID. `kubelet` is the root folder of the kubelet
    /// (`/var/lib/kubelet`).
    ///
    /// # Errors
    /// If the UID or the volume name is not valid in Kubernetes.
    pub fn new(kubelet: &Path, pod_uid: &str, volume: &str) -> Result<Self, FolderError> {
        Self::of_kind(kubelet, pod_uid, EMPTY_DIRS, volume)
    }

    fn of_kind(kubelet: &Path, pod_uid: &str, kind: &str, volume: &str) -> Result<Self, FolderError> {
        // Static pods have a hash instead of a UUID.
        if !is_name(pod_uid, |byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(bad_name("a valid pod UID", pod_uid));
        }
        if !is_name(volume, |byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
        }) {
            return Err(bad_name("a valid volume name", volume));
        }
        Ok(Self {
            pods: kubelet.join("pods"),
            names: [pod_uid, "volumes", kind, volume].map(str::to_owned),
        })
    }

    /// Reads a small file.
    ///
    /// # Errors
    /// If the file does not exist, is not a regular file, or is larger than `limit` bytes.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, FolderError> {
        let found = self.open(path)?;
        self.read_found(&found, path, limit)
    }

    /// Reads a file that was opened with O_PATH.
    fn read_found(&self, found: &OwnedFd, path: &str, limit: u64) -> Result<Vec<u8>, FolderError> {
        let refused = |refusal| Err(self.refused(path, refusal));
        if kind(found).map_err(|errno| self.failed(path, errno))? != SFlag::S_IFREG {
            return refused(PodFileError::NotFile);
        }
        // The same file is opened again for reading, even if another file has replaced it in the meantime.
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = open(again.as_str(), flags, Mode::empty()).map_err(|errno| self.failed(path, errno))?;
        let mut bytes = Vec::new();
        let read = File::from(file).take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.unreadable(path, &error))?;
        if bytes.len() as u64 > limit {
            return refused(PodFileError::TooLarge(limit));
        }
        Ok(bytes)
    }

    /// Waits until a file exists, and reads it. There is no time limit: drop the future to stop waiting.
    ///
    /// The file must be renamed to its path when it is complete.
    ///
    /// # Errors
    /// If the file has another type, the path contains a component that is not a folder, or the file is larger than
    /// `limit` bytes.
    pub async fn read_when_there(&self, path: &str, limit: u64) -> Result<Vec<u8>, FolderError> {
        loop {
            self.appeared(path).await?;
            match self.read(path, limit) {
                // The file has disappeared again.
                Err(FolderError::NotThere { .. }) => {}
                read => return read,
            }
        }
    }

    /// Opens a socket. A connection is possible as long as the returned value lives.
    ///
    /// # Errors
    /// If the socket does not exist or is not a socket.
    pub fn open_socket(&self, path: &str) -> Result<PodSocket, FolderError> {
        let found = self.open(path)?;
        if kind(&found).map_err(|errno| self.failed(path, errno))? != SFlag::S_IFSOCK {
            return Err(self.refused(path, PodFileError::NotSocket));
        }
        Ok(PodSocket {
            socket: found,
            path: self.full(path),
        })
    }

    /// Connects to a socket.
    ///
    /// # Errors
    /// If the socket does not exist, is not a socket, or no process is listening.
    pub async fn connect(&self, path: &str) -> Result<UnixStream, FolderError> {
        let found = self.open_socket(path)?;
        let by_descriptor = format!("/proc/self/fd/{}", found.as_raw_fd());
        UnixStream::connect(by_descriptor)
            .await
            .map_err(|_| FolderError::NotListening {
                path: found.path().to_owned(),
            })
    }

    /// Opens a path with O_PATH, which gives no access to the content.
    fn open(&self, path: &str) -> Result<OwnedFd, FolderError> {
        checked(path)?;
        let pods = self.open_pods()?;
        let below: PathBuf = self.names.iter().map(String::as_str).chain([path]).collect();
        find(pods.as_fd(), &below).map_err(|errno| self.failed(path, errno))
    }

    /// Opens the kubelet's pods folder. Links are allowed in its path, because the administrator and not a pod controls
    /// it.
    fn open_pods(&self) -> Result<OwnedFd, FolderError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        open(&self.pods, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ENOENT => FolderError::NotThere {
                path: self.pods.clone(),
            },
            errno => FolderError::Unreadable {
                path: self.pods.clone(),
                message: errno.desc().to_owned(),
            },
        })
    }

    /// Returns the full path, which is used only for messages.
    fn full(&self, path: &str) -> PathBuf {
        let names = self.names.iter().map(String::as_str);
        self.pods.join(names.chain([path]).collect::<PathBuf>())
    }

    fn refused(&self, path: &str, refusal: PodFileError) -> FolderError {
        FolderError::Refused {
            path: self.full(path),
            refusal,
        }
    }

    fn unreadable(&self, path: &str, error: &io::Error) -> FolderError {
        FolderError::Unreadable {
            path: self.full(path),
            message: error.to_string(),
        }
    }

    fn failed(&self, path: &str, errno: Errno) -> FolderError {
        match errno {
            Errno::ENOENT => FolderError::NotThere { path: self.full(path) },
            Errno::ELOOP | Errno::EXDEV => self.refused(path, PodFileError::Link),
            Errno::ENOTDIR => self.refused(path, PodFileError::NotInFolder),
            errno => self.unreadable(path, &errno.into()),
        }
    }
}

/// A socket in the folder of a pod.
#[derive(Debug)]
pub struct PodSocket {
    socket: OwnedFd,
    path: PathBuf,
}

impl PodSocket {
    /// Returns the path of the socket, which is used only for messages. To connect, use `/proc/self/fd/<its
    /// descriptor>`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsRawFd for PodSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Opens a path below a folder with O_PATH.
///
/// No link is followed, not even as the last component, and the result is always below the folder.
fn find(folder: BorrowedFd<'_>, path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    open_below(folder, path, how)
}

/// Opens a path below a folder. Retries if a component was renamed in the meantime.
fn open_below(folder: BorrowedFd<'_>, path: &Path, how: OpenHow) -> nix::Result<OwnedFd> {
    loop {
        match openat2(folder, path, how) {
            // A component was renamed during the lookup.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            found => return found,
        }
    }
}

fn kind(found: &OwnedFd) -> nix::Result<SFlag> {
    let mode = fstat(found)?.st_mode;
    Ok(SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()))
}

/// Checks a path in the folder. Paths come from this program, so an invalid path is a bug and not an attack.
fn checked(path: &str) -> Result<(), FolderError> {
    let is_plain = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains('\0');
    if path.split('/').all(is_plain) {
        Ok(())
    } else {
        Err(bad_name("a valid path in a pod's folder", path))
    }
}

fn is_name(name: &str, allowed: impl Fn(u8) -> bool) -> bool {
    (1..=63).contains(&name.len()) && name.bytes().all(allowed)
}

fn bad_name(what: &'static str, value: &str) -> FolderError {
    FolderError::BadName {
        what,
        value: value.chars().take(100).collect(),
    }
}

#[cfg(test)]
mod tests;
