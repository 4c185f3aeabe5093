//! An emptyDir of a pod on this machine, whose content the pod decides.
//!
//! ```text
//!  /var/lib/kubelet/pods / <uid>/volumes/kubernetes.io~empty-dir/<volume> / libvirt/libvirt-sock
//!  └─ the kubelet's ───┘   └─ made and removed by the kubelet ──────────┘   └─ whatever the pod makes
//! ```
//!
//! The pod is hostile. Everything below the kubelet's folder of pods is found by `openat2`, without
//! following any link and without leaving it; what is no regular file is never opened for reading,
//! as a FIFO would make the reader wait and a device may do anything; and files are read up to a limit.

mod appearing;
mod listening;
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

pub use appearing::Watched;
pub use listening::PodListener;

/// Most bytes of a small file that a pod says something by.
pub const SMALL_FILE: u64 = 64 * 1024;

/// The folder of emptyDirs in a pod's.
const EMPTY_DIRS: &str = "kubernetes.io~empty-dir";

/// Why something in a pod's folder cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FolderError {
    /// Not a name that Kubernetes or the launcher would give.
    #[error("{value:?} is not {what}")]
    BadName {
        /// What it should be.
        what: &'static str,
        /// What it is, at most 100 characters of it.
        value: String,
    },
    /// It is not there, or a folder above it is not.
    #[error("there is no {path}")]
    NotThere {
        /// Where it should be.
        path: PathBuf,
    },
    /// There is something else in its place.
    #[error("{path} is not used: {refusal}")]
    Refused {
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        refusal: Refusal,
    },
    /// A socket behind which nobody listens, or nobody accepts.
    #[error("nobody listens at {path}")]
    NotListening {
        /// Where it is.
        path: PathBuf,
    },
    /// The kernel cannot open or read it.
    #[error("cannot open {path}: {message}")]
    Unreadable {
        /// Where it is.
        path: PathBuf,
        /// What the kernel says.
        message: String,
    },
}

/// What is wrong with something that a pod put in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A link, in its place or above it.
    #[error("it is a symbolic link, or behind one")]
    Link,
    /// Something above it is no folder.
    #[error("it is in something that is not a folder")]
    NotInFolder,
    /// No regular file: a folder, a FIFO, a device.
    #[error("it is not a regular file")]
    NotFile,
    /// No socket.
    #[error("it is not a socket")]
    NotSocket,
    /// A file that is larger than what is read of it.
    #[error("it has more than {0} bytes")]
    TooLarge(u64),
}

impl FolderError {
    /// A stable word for it, for conditions and metrics.
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

/// Where an emptyDir of a pod is. Making it opens nothing; the folder need not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFolder {
    /// The kubelet's folder of pods.
    pods: PathBuf,
    /// UID of the pod, the folders between, name of the volume.
    names: [String; 4],
}

impl PodFolder {
    /// The emptyDir `volume` of the pod with that UID, `kubelet` being the kubelet's root
    /// (`/var/lib/kubelet`).
    ///
    /// # Errors
    /// If these are not names that Kubernetes gives.
    pub fn new(kubelet: &Path, pod_uid: &str, volume: &str) -> Result<Self, FolderError> {
        // Static pods have a hash in place of a UUID.
        if !is_name(pod_uid, |byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(bad_name("the UID of a pod", pod_uid));
        }
        if !is_name(volume, |byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
        }) {
            return Err(bad_name("the name of a volume", volume));
        }
        Ok(Self {
            pods: kubelet.join("pods"),
            names: [pod_uid, "volumes", EMPTY_DIRS, volume].map(str::to_owned),
        })
    }

    /// What a small file says.
    ///
    /// # Errors
    /// If it is not there, not a regular file, or larger than `limit`.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, FolderError> {
        let found = self.open(path)?;
        let refused = |refusal| Err(self.refused(path, refusal));
        if kind(&found).map_err(|errno| self.failed(path, errno))? != SFlag::S_IFREG {
            return refused(Refusal::NotFile);
        }
        // The same file again, now for reading: what is in its place meanwhile does not matter.
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = open(again.as_str(), flags, Mode::empty()).map_err(|errno| self.failed(path, errno))?;
        let mut bytes = Vec::new();
        let read = File::from(file).take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.unreadable(path, &error))?;
        if bytes.len() as u64 > limit {
            return refused(Refusal::TooLarge(limit));
        }
        Ok(bytes)
    }

    /// Waits until a file is there, and says what it says. It must appear whole, by renaming.
    /// It has no limit in time; drop it to give up.
    ///
    /// # Errors
    /// If something else is in its place or on the way to it, or it is larger than `limit`.
    pub async fn read_when_there(&self, path: &str, limit: u64) -> Result<Vec<u8>, FolderError> {
        loop {
            self.appeared(path).await?;
            match self.read(path, limit) {
                // It vanished again.
                Err(FolderError::NotThere { .. }) => {}
                read => return read,
            }
        }
    }

    /// A socket, which can be connected to as long as the returned value lives.
    ///
    /// # Errors
    /// If it is not there, or is not a socket.
    pub fn open_socket(&self, path: &str) -> Result<PodSocket, FolderError> {
        let found = self.open(path)?;
        if kind(&found).map_err(|errno| self.failed(path, errno))? != SFlag::S_IFSOCK {
            return Err(self.refused(path, Refusal::NotSocket));
        }
        Ok(PodSocket {
            socket: found,
            path: self.full(path),
        })
    }

    /// Finds what is at a path, without opening it for anything.
    fn open(&self, path: &str) -> Result<OwnedFd, FolderError> {
        checked(path)?;
        let pods = self.open_pods()?;
        let below: PathBuf = self.names.iter().map(String::as_str).chain([path]).collect();
        find(pods.as_fd(), &below).map_err(|errno| self.failed(path, errno))
    }

    /// The kubelet's folder of pods. It may be behind links: the administrator's, not a pod's.
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

    /// The path for people, and for no other use.
    fn full(&self, path: &str) -> PathBuf {
        let names = self.names.iter().map(String::as_str);
        self.pods.join(names.chain([path]).collect::<PathBuf>())
    }

    fn refused(&self, path: &str, refusal: Refusal) -> FolderError {
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
            Errno::ELOOP | Errno::EXDEV => self.refused(path, Refusal::Link),
            Errno::ENOTDIR => self.refused(path, Refusal::NotInFolder),
            errno => self.unreadable(path, &errno.into()),
        }
    }
}

/// A socket in a pod's folder.
#[derive(Debug)]
pub struct PodSocket {
    socket: OwnedFd,
    path: PathBuf,
}

impl PodSocket {
    /// Where it was found, for people. It is connected to by `/proc/self/fd/<its descriptor>`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsRawFd for PodSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Opens what is at a path below a folder, for nothing but to have it: no link is followed, not even
/// the last, and the folder is not left.
fn find(folder: BorrowedFd<'_>, path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    loop {
        match openat2(folder, path, how) {
            // Something was renamed on the way.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            found => return found,
        }
    }
}

fn kind(found: &OwnedFd) -> nix::Result<SFlag> {
    let mode = fstat(found)?.st_mode;
    Ok(SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()))
}

/// Paths in the folder are this program's own; a wrong one is a mistake here, not an attack.
fn checked(path: &str) -> Result<(), FolderError> {
    let is_plain = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains('\0');
    if path.split('/').all(is_plain) {
        Ok(())
    } else {
        Err(bad_name("a path in a pod's folder", path))
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
