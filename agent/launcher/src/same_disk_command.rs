//! Proof that a container's own image contains the disk with which a guest started.
//!
//! The command runs in a container of the containerDisk's image, which also mounts the image volume on which the
//! guest's disk is based:
//!
//! ```text
//! /disk/*                   layers of the container's image ──┐
//! /images/NAME/disk/*       layers of the volume's image ─────┴─▶ the same file?
//! ```

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
};

use crate::disks::container_disk;

/// Checks whether the disks in the images at `own` and `other` are the same file.
///
/// Fails if they are not, or if this cannot be determined with certainty.
pub(crate) fn run(own: &Path, other: &Path, disk: Option<&str>) -> ExitCode {
    let found = |root| -> Result<Metadata, String> {
        let disk = container_disk::find(root, disk).map_err(|refusal| refusal.to_string())?;
        fs::metadata(&disk.path).map_err(|error| format!("{}: {error}", disk.path))
    };
    let verdict = match (found(own), found(other)) {
        (Ok(own), Ok(other)) => same(&File::of(&own), &File::of(&other)),
        (Err(why), _) | (_, Err(why)) => Err(why),
    };
    match verdict {
        Ok(()) => {
            println!("The disk in this image is the guest's disk.");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("It is unknown whether the disk in this image is the guest's disk: {why}.");
            ExitCode::FAILURE
        }
    }
}

/// Properties that identify a file, regardless of where its layer is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    inode: u64,
    size: u64,
    /// Modification time in seconds and nanoseconds. The next field is the change time in the same format.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl File {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Returns an error unless both are the same file.
///
/// An overlay shows the inode numbers of its layers' file system (`overlayfs`, "Inode properties"), but its own device
/// number. If each image has its own file system, inode numbers can coincide. In this case the ctime distinguishes the
/// files: it is the time at which a file was unpacked, and it cannot be set. In a file system that was built together
/// with the image, the ctime is the ctime of the content and proves nothing.
fn same(own: &File, other: &File) -> Result<(), String> {
    if own != other {
        return Err(format!("the disks differ: {own:?}, {other:?}"));
    }
    if own.changed == own.modified {
        return Err("the node's image store does not record when files were unpacked".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::hard_link, path::PathBuf, time::SystemTime};

    use super::*;

    const FILE: File = File {
        inode: 7,
        size: 1 << 20,
        modified: (1_767_225_600, 0),
        changed: (1_795_431_903, 64_682_474),
    };

    #[test]
    fn file_is_identified_by_all_attributes() {
        assert_eq!(same(&FILE, &FILE), Ok(()));
        for other in [
            File { inode: 8, ..FILE },
            File { size: 1, ..FILE },
            File {
                modified: (0, 0),
                ..FILE
            },
            File {
                changed: (1_795_431_903, 64_682_475),
                ..FILE
            },
        ] {
            assert!(
                same(&FILE, &other).is_err_and(|why| why.contains("differ")),
                "{other:?}"
            );
        }
        let built = File {
            changed: FILE.modified,
            ..FILE
        };
        assert!(same(&built, &built).is_err_and(|why| why.contains("unpacked")));
    }

    /// Creates an image whose disk has this name and this content.
    fn image(root: &Path, disk: &str, content: &[u8]) -> PathBuf {
        let file = root.join("disk").join(disk);
        fs::create_dir_all(root.join("disk")).unwrap();
        fs::write(&file, content).unwrap();
        // Archives preserve the modification time of the content.
        let written = fs::File::options().write(true).open(&file).unwrap();
        written.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        file
    }

    #[test]
    fn images_with_the_same_file_differ_from_those_with_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let [own, volume, copy, empty] = ["own", "volume", "copy", "empty"].map(|name| folder.path().join(name));
        let file = image(&own, "a.img", &[1; 4096]);
        image(&copy, "a.img", &[1; 4096]);
        fs::create_dir_all(volume.join("disk")).unwrap();
        fs::create_dir_all(&empty).unwrap();
        hard_link(&file, volume.join("disk/b.img")).unwrap();
        let verdict = |other: &Path, disk| format!("{:?}", run(&own, other, disk));
        let (yes, no) = (format!("{:?}", ExitCode::SUCCESS), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(verdict(&volume, None), yes);
        assert_eq!(
            verdict(&volume, Some("/disk/a.img")),
            no,
            "there is none of that name in the volume"
        );
        assert_eq!(verdict(&copy, None), no);
        assert_eq!(verdict(&empty, None), no);
    }
}
