//! Sockets and marker files that this process creates in a pod's folder, for the programs in the pod.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat},
    unistd::{Gid, Uid, UnlinkatFlags, fchownat, unlinkat},
};

use super::{FolderError, PodFileError, PodFolder, bad_name, checked, find, kind};

/// A listening socket of this process in a pod's folder.
///
/// Dropping the value removes the socket, unless the pod has replaced it.
#[derive(Debug)]
pub struct PodListener {
    listener: UnixListener,
    folder: OwnedFd,
    name: String,
    /// Device and inode of the socket.
    identity: (u64, u64),
}

impl PodFolder {
    /// Listens at `path` for processes of `owner`. `path` is a name in a subfolder of the pod's folder.
    ///
    /// Creates the subfolder if it is missing. Removes a file with the socket's name, which is the socket of a process
    /// that has ended. Whatever the pod does in the meantime, no file outside its folder is changed, and only a socket
    /// is given to `owner`.
    ///
    /// # Errors
    /// If the pod's folder does not exist, the path contains a component that is not a folder, or a folder has the
    /// socket's name.
    pub fn listen(&self, path: &str, owner: u32) -> Result<PodListener, FolderError> {
        checked(path)?;
        let (folder, name) = path
            .split_once('/')
            .ok_or_else(|| bad_name("a path of the form FOLDER/NAME", path))?;
        if name.contains('/') {
            return Err(bad_name("a path of the form FOLDER/NAME", path));
        }
        let folder = self.open_or_make(folder, owner)?;
        match unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::EISDIR) => return Err(self.refused(path, PodFileError::NotSocket)),
            Err(errno) => return Err(self.failed(path, errno)),
        }
        self.bind(folder, path, name, owner)
    }

    /// Creates an empty file at `path` as a marker for the pod's processes. `path` is a name in a subfolder of the
    /// pod's folder.
    ///
    /// An existing file of any kind is accepted.
    ///
    /// # Errors
    /// If the pod's folder or the subfolder does not exist, or the path contains a component that is not a folder.
    pub fn mark(&self, path: &str) -> Result<(), FolderError> {
        checked(path)?;
        let (folder, name) = path
            .split_once('/')
            .filter(|(_, name)| !name.contains('/'))
            .ok_or_else(|| bad_name("a path of the form FOLDER/NAME", path))?;
        let folder = self.open(folder)?;
        if kind(&folder).map_err(|errno| self.failed(path, errno))? != SFlag::S_IFDIR {
            return Err(self.refused(path, PodFileError::NotInFolder));
        }
        // With O_EXCL, a file that the pod has created is neither followed nor opened.
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        match openat(&folder, name, flags, Mode::from_bits_truncate(0o644)) {
            Ok(_) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(self.failed(path, errno)),
        }
    }

    fn bind(&self, folder: OwnedFd, path: &str, name: &str, owner: u32) -> Result<PodListener, FolderError> {
        // The path under /proc avoids the length limit of socket addresses. The kernel does not follow a link in the
        // last component.
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| self.unreadable(path, &error))?;
        let failed = |errno| self.failed(path, errno);
        let socket = find(folder.as_fd(), Path::new(name)).map_err(failed)?;
        let stat = fstat(&socket).map_err(failed)?;
        if kind(&socket).map_err(failed)? != SFlag::S_IFSOCK {
            return Err(self.refused(path, PodFileError::NotSocket));
        }
        give(&socket, owner).map_err(failed)?;
        Ok(PodListener {
            listener,
            folder,
            name: name.to_owned(),
            identity: identity(&stat),
        })
    }

    fn open_or_make(&self, folder: &str, owner: u32) -> Result<OwnedFd, FolderError> {
        let found = match self.open(folder) {
            Err(FolderError::NotThere { .. }) => {
                let volume = self.open_volume()?;
                let made = mkdirat(&volume, folder, Mode::S_IRWXU);
                let found = self.open(folder)?;
                match made {
                    Ok(()) => give(&found, owner).map_err(|errno| self.failed(folder, errno))?,
                    // The pod has created the folder first.
                    Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(self.failed(folder, errno)),
                }
                found
            }
            found => found?,
        };
        if kind(&found).map_err(|errno| self.failed(folder, errno))? != SFlag::S_IFDIR {
            return Err(self.refused(folder, PodFileError::NotInFolder));
        }
        Ok(found)
    }

    /// Opens the folder of the emptyDir.
    fn open_volume(&self) -> Result<OwnedFd, FolderError> {
        let pods = self.open_pods()?;
        let names: std::path::PathBuf = self.names.iter().collect();
        find(pods.as_fd(), &names).map_err(|errno| self.failed("", errno))
    }
}

/// Changes the owner of the opened file to a user and the group with the same number.
///
/// A file that has replaced the opened file is not changed.
fn give(opened: &OwnedFd, owner: u32) -> nix::Result<()> {
    let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
    fchownat(opened, "", Some(user), Some(group), AtFlags::AT_EMPTY_PATH)
}

fn identity(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl PodListener {
    /// Returns another handle to the listening socket, which is non-blocking.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl AsFd for PodListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for PodListener {
    fn drop(&mut self) {
        let is_ours = find(self.folder.as_fd(), Path::new(&self.name))
            .and_then(fstat)
            .is_ok_and(|stat| identity(&stat) == self.identity);
        if is_ours && let Err(errno) = unlinkat(&self.folder, self.name.as_str(), UnlinkatFlags::NoRemoveDir) {
            tracing::debug!(
                name = self.name,
                error = errno.desc(),
                "could not remove a socket in a pod's folder"
            );
        }
    }
}
