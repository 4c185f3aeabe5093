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
    #[error("the name is not a valid volume name")]
    VolumeName,
    /// The image contains no disk.
    #[error("the image contains no disk at {0}; the disk must be in /disk or at the path in the field path")]
    NoDiskInImage(String),
    /// The image contains more than one disk.
    #[error("the image has several files in /disk ({0}); only one is allowed unless the field path names the disk")]
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
    #[error("the disk is {0}; the supported formats are qcow2 and raw")]
    Format(&'static str),
    /// The image is damaged.
    #[error("the disk is a damaged qcow2 image: {0}")]
    DamagedImage(&'static str),
    /// The header of the image would make QEMU open another file.
    #[error(
        "the disk refers to another file as its {0}, which is not supported; flatten the disk with qemu-img convert"
    )]
    ImageNamesOtherFile(&'static str),
    /// The image is encrypted.
    #[error("the disk is encrypted, and no key is available")]
    EncryptedImage,
    /// qemu-img failed.
    #[error("qemu-img could not create the disk: {0}")]
    QemuImg(String),
    /// The volume does not have enough free space.
    #[error("{path} does not exist, and the volume has too little free space to create the disk: {free} bytes")]
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
    /// The cloud-init data exceeds the maximum size.
    #[error("the cloud-init data has {0} bytes, which exceeds the maximum of {1}")]
    TooMuchData(u64, u64),
    /// xorriso failed to create the file system.
    #[error("the file system could not be created: {0}")]
    FileSystem(String),
    /// A disk cannot be written.
    #[error("{path} cannot be created")]
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
