//! Detects the format of an image from its content, and checks whether the image may be opened.
//!
//! ```text
//! qcow2   0 "QFI\xfb"   4 version   8 backing file: offset   16 its length   24 virtual size
//!        32 encryption  72 incompatible features   100 header length   then extensions
//! ```
//!
//! The layout of qcow2 follows QEMU's documentation (docs/interop/qcow2.txt). An image may come from any source. If its
//! header refers to a backing file or a data file, QEMU would open that file in the pod, so the image is refused. This
//! module does not check the remaining content, which QEMU reads.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use drydock_api::launcher::DiskFormat;

use super::DiskRefusal;

const QCOW2: &[u8; 4] = b"QFI\xfb";
/// Incompatible feature: the data is in another file.
const EXTERNAL_DATA: u64 = 1 << 2;
/// Number of bytes of an image that are read. It exceeds every signature and the fixed part of the header.
const HEAD: u64 = 512;
/// QEMU's sector size in bytes. Disk sizes are multiples of the sector size.
const SECTOR: u64 = 512;

/// Other formats: offset of the signature, signature, description.
///
/// If such an image were read as raw, its disk would have no meaningful content.
const OTHERS: [(usize, &[u8], &str); 11] = [
    (0, b"KDMV", "a VMDK image"),
    (0, b"# Disk DescriptorFile", "a description of a VMDK image"),
    (0, b"vhdxfile", "a VHDX image"),
    (0, b"conectix", "a VHD image"),
    (64, &[0x7f, 0x10, 0xda, 0xbe], "a VDI image"),
    (0, b"QED\0", "a QED image"),
    (0, &[0x1f, 0x8b, 0x08], "compressed with gzip"),
    (0, &[0xfd, b'7', b'z', b'X', b'Z', 0x00], "compressed with xz"),
    (0, &[0x28, 0xb5, 0x2f, 0xfd], "compressed with zstd"),
    (0, b"BZh", "compressed with bzip2"),
    (0, b"LUKS\xba\xbe", "encrypted with LUKS"),
];

/// Format and size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageInfo {
    /// Image format.
    pub(crate) format: DiskFormat,
    /// Size of the disk that the guest sees, in bytes.
    pub(crate) virtual_size: u64,
}

/// Detects the format and size of an image.
///
/// # Errors
/// If the image cannot be read or must not be opened.
pub(crate) fn detect(path: &Path, file: &File) -> Result<ImageInfo, DiskRefusal> {
    let cannot = |error| DiskRefusal::unreadable(path, error);
    let length = file.metadata().map_err(cannot)?.len();
    if length == 0 {
        return Err(DiskRefusal::Empty(path.to_owned()));
    }
    let mut head = Vec::new();
    read_head(file, &mut head).map_err(cannot)?;
    if let Some((.., what)) = OTHERS
        .iter()
        .find(|(at, signature, _)| head.get(*at..).is_some_and(|rest| rest.starts_with(signature)))
    {
        return Err(DiskRefusal::Format(what));
    }
    if head.starts_with(QCOW2) {
        return Ok(ImageInfo {
            format: DiskFormat::Qcow2,
            virtual_size: qcow2_size(&head)?,
        });
    }
    Ok(ImageInfo {
        format: DiskFormat::Raw,
        virtual_size: length.next_multiple_of(SECTOR),
    })
}

fn read_head(mut file: &File, head: &mut Vec<u8>) -> io::Result<usize> {
    Read::by_ref(&mut file).take(HEAD).read_to_end(head)
}

/// Returns the virtual size of a qcow2 image that needs no other file.
fn qcow2_size(head: &[u8]) -> Result<u64, DiskRefusal> {
    const SHORT: DiskRefusal = DiskRefusal::DamagedImage("the header is truncated");
    let word = |at: usize| -> Option<u32> { Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?)) };
    let long = |at: usize| -> Option<u64> { Some(u64::from_be_bytes(head.get(at..at + 8)?.try_into().ok()?)) };
    let version = word(4).ok_or(SHORT)?;
    if !(2..=3).contains(&version) {
        return Err(DiskRefusal::DamagedImage("the version is neither 2 nor 3"));
    }
    if long(8).ok_or(SHORT)? != 0 || word(16).ok_or(SHORT)? != 0 {
        return Err(DiskRefusal::ImageNamesOtherFile("backing file"));
    }
    if word(32).ok_or(SHORT)? != 0 {
        return Err(DiskRefusal::EncryptedImage);
    }
    if version == 3 && long(72).ok_or(SHORT)? & EXTERNAL_DATA != 0 {
        return Err(DiskRefusal::ImageNamesOtherFile("data file"));
    }
    match long(24).ok_or(SHORT)? {
        0 => Err(DiskRefusal::DamagedImage("the virtual size is 0")),
        size if size > i64::MAX.unsigned_abs() - SECTOR => {
            Err(DiskRefusal::DamagedImage("the virtual size is too large"))
        }
        size => Ok(size.next_multiple_of(SECTOR)),
    }
}
