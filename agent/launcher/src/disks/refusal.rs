//! Why a disk is not made.

use std::{fmt, io, path::PathBuf};

/// A disk that is not made.
#[derive(Debug)]
pub(crate) struct RefusedDisk {
    /// Name of its volume.
    pub(crate) volume: String,
    /// Why.
    pub(crate) refusal: Refusal,
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

/// Why a disk is not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// A name that is no name of a volume.
    #[error("this is no name of a volume")]
    VolumeName,
    /// An image without a disk.
    #[error("the image has no file in {0}; a disk is expected in /disk, or where the field path says")]
    NoDiskInImage(String),
    /// An image with several disks.
    #[error("the image has several files in /disk ({0}); one is expected, or the field path has to say which")]
    SeveralDisksInImage(String),
    /// Something that cannot be read.
    #[error("{path} cannot be read as user {uid}")]
    Unreadable {
        /// What.
        path: PathBuf,
        /// As whom.
        uid: u32,
        /// Why.
        source: io::Error,
    },
    /// Something that is neither file nor device.
    #[error("{0} is neither a file nor a block device")]
    NotADisk(PathBuf),
    /// A disk of no size.
    #[error("{0} is empty")]
    Empty(PathBuf),
    /// An image of another format.
    #[error("the disk is {0}; qcow2 and raw are possible")]
    Format(&'static str),
    /// A damaged image.
    #[error("the disk begins like qcow2 but is damaged: {0}")]
    DamagedImage(&'static str),
    /// An image that would make QEMU open other files.
    #[error(
        "the disk names another file as its {0}, and images that do are not opened; flatten it with qemu-img convert"
    )]
    ImageNamesOtherFile(&'static str),
    /// An image that is encrypted.
    #[error("the disk is encrypted, and nobody gives the key")]
    EncryptedImage,
    /// qemu-img did not do it.
    #[error("qemu-img does not make the disk: {0}")]
    QemuImg(String),
    /// The volume has no room.
    #[error("{path} is not there, and the volume has only {free} bytes free to make it")]
    NoRoom {
        /// The disk.
        path: PathBuf,
        /// Free bytes of its volume.
        free: u64,
    },
    /// A Secret without the data it is there for.
    #[error("Secret {secret} of the guest's namespace has no key {keys}")]
    NoSuchKey {
        /// The Secret's name.
        secret: String,
        /// The keys, of which it should have one.
        keys: String,
    },
    /// Data that is not text in base64.
    #[error("{0} is not valid base64")]
    Base64(&'static str),
    /// More data than a disk for it holds.
    #[error("cloud-init's data has {0} bytes, more than the {1} that are possible")]
    TooMuchData(u64, u64),
    /// A disk that cannot be written.
    #[error("{path} cannot be made")]
    Unwritable {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Refusal {
    /// The stable name of the reason.
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
            Self::QemuImg(_) => "DiskNotMade",
            Self::NoRoom { .. } => "NoRoomForDisk",
            Self::NoSuchKey { .. } => "SecretWithoutData",
            Self::Base64(_) => "InvalidBase64",
            Self::TooMuchData(..) => "TooMuchCloudInitData",
            Self::Unwritable { .. } => "DiskUnwritable",
        }
    }

    /// Something cannot be read.
    pub(crate) fn unreadable(path: &std::path::Path, source: io::Error) -> Self {
        Self::Unreadable {
            path: path.to_owned(),
            uid: nix::unistd::geteuid().as_raw(),
            source,
        }
    }

    /// Something cannot be written.
    pub(crate) fn unwritable(path: &std::path::Path, source: io::Error) -> Self {
        Self::Unwritable {
            path: path.to_owned(),
            source,
        }
    }
}
