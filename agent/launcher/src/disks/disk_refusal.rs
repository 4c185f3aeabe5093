//! Reasons why a disk cannot be prepared.

use std::{fmt, io, path::PathBuf};

/// A disk that cannot be prepared.
#[derive(Debug)]
pub(crate) struct RefusedDisk {
    /// Name of the volume.
    pub(crate) volume: String,
    /// Reason why the disk cannot be prepared.
    pub(crate) refusal: DiskRefusal,
}

impl fmt::Display for RefusedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.refusal.reason();
        write!(f, "{reason}: volume {}: {}", self.volume, self.refusal)?;
        if let Some(source) = std::error::Error::source(&self.refusal) {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

/// Reason why a disk cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DiskRefusal {
    /// The name is not a valid name of a volume.
    #[error("this is no name of a volume")]
    VolumeName,
    /// The image contains no disk.
    #[error("the image has no file in {0}; a disk is expected in /disk, or at the value of the field path")]
    NoDiskInImage(String),
    /// The image contains more than one disk.
    #[error("the image has several files in /disk ({0}); one is expected, or the field path has to name it")]
    SeveralDisksInImage(String),
    /// A file cannot be read.
    #[error("{path} cannot be read as user {uid}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// UID of the user that tried to read the file.
        uid: u32,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The path is neither a file nor a device.
    #[error("{0} is neither a file nor a block device")]
    NotADisk(PathBuf),
    /// The disk is empty.
    #[error("{0} is empty")]
    Empty(PathBuf),
    /// The image has an unsupported format.
    #[error("the disk is {0}; qcow2 and raw are possible")]
    Format(&'static str),
    /// The image is damaged.
    #[error("the disk begins like qcow2 but is damaged: {0}")]
    DamagedImage(&'static str),
    /// The header of the image would make QEMU open another file.
    #[error(
        "the disk names another file as its {0}, and images that do are not opened; flatten it with qemu-img convert"
    )]
    ImageNamesOtherFile(&'static str),
    /// The image is encrypted.
    #[error("the disk is encrypted, and there is no key")]
    EncryptedImage,
    /// qemu-img failed.
    #[error("qemu-img does not make the disk: {0}")]
    QemuImg(String),
    /// The volume has not enough free space.
    #[error("{path} is not there, and the volume has only {free} bytes free to make it")]
    NoRoom {
        /// Path of the disk.
        path: PathBuf,
        /// Number of free bytes in the disk's volume.
        free: u64,
    },
    /// A Secret lacks the expected data.
    #[error("Secret {secret} of the guest's namespace has no key {keys}")]
    NoSuchKey {
        /// Name of the Secret.
        secret: String,
        /// Keys that are accepted, of which the Secret needs one.
        keys: String,
    },
    /// The data is not valid base64.
    #[error("{0} is not valid base64")]
    Base64(&'static str),
    /// The cloud-init data is larger than a disk for it may be.
    #[error("cloud-init's data has {0} bytes, more than the {1} that are possible")]
    TooMuchData(u64, u64),
    /// xorriso failed.
    #[error("the file system was not made: {0}")]
    FileSystem(String),
    /// A disk cannot be written.
    #[error("{path} cannot be made")]
    Unwritable {
        /// Path of the disk.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl DiskRefusal {
    /// Returns the stable identifier of the reason.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::VolumeName => "InvalidVolumeName",
            Self::NoDiskInImage(_) => "NoDiskInImage",
            Self::SeveralDisksInImage(_) => "SeveralDisksInImage",
            Self::Unreadable { .. } => "DiskUnreadable",
            Self::NotADisk(_) => "NotADisk",
            Self::Empty(_) => "DiskEmpty",
            Self::Format(_) => "UnknownImageFormat",
            Self::DamagedImage(_) => "DamagedImage",
            Self::ImageNamesOtherFile(_) => "ImageNamesOtherFile",
            Self::EncryptedImage => "EncryptedImage",
            Self::QemuImg(_) => "DiskNotCreated",
            Self::NoRoom { .. } => "InsufficientDiskSpace",
            Self::NoSuchKey { .. } => "SecretWithoutData",
            Self::Base64(_) => "InvalidBase64",
            Self::TooMuchData(..) => "TooMuchCloudInitData",
            Self::FileSystem(_) => "FileSystemNotCreated",
            Self::Unwritable { .. } => "DiskUnwritable",
        }
    }

    /// Creates the refusal for a file that cannot be read.
    pub(crate) fn unreadable(path: &std::path::Path, source: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            uid: nix::unistd::geteuid().as_raw(),
            source,
        }
    }

    /// Creates the refusal for a file that cannot be written.
    pub(crate) fn unwritable(path: &std::path::Path, source: io::Error) -> Self {
        Self::Unwritable {
            path: path.to_owned(),
            source,
        }
    }
}
