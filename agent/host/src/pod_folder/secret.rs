//! A Secret that the kubelet has mounted for a pod.
//!
//! ```text
//!  pods/<uid>/volumes/kubernetes.io~secret/<volume> / <key>      ─▶ ..data/<key>
//!                                                   / ..data     ─▶ ..2026_11_27_01_49_16.123
//!                                                   / ..2026_11_27_01_49_16.123 / <key>
//! ```
//!
//! The kubelet replaces `..data` by renaming, so all files are from one version of the Secret
//! (`pkg/volume/util/atomic_writer.go` of Kubernetes). The pod cannot write to the volume.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag};

use super::{FolderError, PodFileError, PodFolder, SECRETS, WatchedPath, find, open_below};

/// Name of the link to the folder with the current content.
const DATA: &str = "..data";
/// Maximum size of a Secret in bytes (Kubernetes' `MaxSecretSize`).
const LARGEST: u64 = 1 << 20;

/// A Secret of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSecret(PodFolder);

impl PodSecret {
    /// Returns the Secret of the `volume` of the pod with this UID. `kubelet` is the root folder of the kubelet
    /// (`/var/lib/kubelet`).
    ///
    /// # Errors
    /// If the UID or the volume name is not valid in Kubernetes.
    pub fn new(kubelet: &Path, pod_uid: &str, volume: &str) -> Result<Self, FolderError> {
        PodFolder::of_kind(kubelet, pod_uid, SECRETS, volume).map(Self)
    }

    /// Reads all files of the Secret, which are of the same version.
    ///
    /// # Errors
    /// If the Secret is not mounted, or is larger than a Secret can be.
    pub fn read(&self) -> Result<BTreeMap<String, Vec<u8>>, FolderError> {
        let folder = &self.0;
        let failed = |errno| folder.failed(DATA, errno);
        let pods = folder.open_pods()?;
        let volume = find(pods.as_fd(), &folder.names.iter().collect::<PathBuf>()).map_err(failed)?;
        // The kubelet's link leads to a folder beside the link.
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let data = open_below(volume.as_fd(), Path::new(DATA), how).map_err(failed)?;
        let failed_read = |error: io::Error| folder.unreadable(DATA, &error);
        let entries = fs::read_dir(format!("/proc/self/fd/{}", data.as_raw_fd())).map_err(failed_read)?;
        let (mut files, mut left) = (BTreeMap::new(), LARGEST);
        for entry in entries {
            let name = entry.map_err(failed_read)?.file_name().to_string_lossy().into_owned();
            let found = find(data.as_fd(), Path::new(&name)).map_err(|errno| folder.failed(&name, errno))?;
            let content = folder.read_found(&found, &name, left)?;
            left = left
                .checked_sub(content.len() as u64)
                .ok_or_else(|| folder.refused(&name, PodFileError::TooLarge(LARGEST)))?;
            files.insert(name, content);
        }
        Ok(files)
    }

    /// Watches the content of the Secret.
    ///
    /// # Errors
    /// If the path contains a component that is not a folder, or the kubelet has no pods folder.
    pub fn watch(&self) -> Result<WatchedPath, FolderError> {
        self.0.watch_entry(DATA)
    }
}
