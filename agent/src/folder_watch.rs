//! What happens to files of one folder, as something a task can wait for.

use std::{ffi::OsString, io, path::Path};

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};

/// Bytes of events that are read at once; one takes at most 272.
const BUFFER: usize = 1024;

/// A watch of a folder. Nothing that happens after it was made is missed.
#[derive(Debug)]
pub(crate) struct FolderWatch {
    events: EventStream<[u8; BUFFER]>,
    /// Files that are watched; all if there is no list.
    names: Option<Vec<OsString>>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// A file of one of the names came, went or was written.
    ToFile,
    /// The folder went: there is nothing more to be heard of it.
    ToFolder,
}

impl FolderWatch {
    /// Watches the files of `folder` that have one of these names.
    ///
    /// # Errors
    /// If there is no such folder, or the kernel gives no watch.
    pub(crate) fn new(folder: &Path, names: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Self> {
        Self::open(folder, Some(names.into_iter().map(Into::into).collect()))
    }

    /// Watches all files of `folder`.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    #[cfg_attr(not(test), allow(dead_code, reason = "tunnels are followed by it"))]
    pub(crate) fn all(folder: &Path) -> io::Result<Self> {
        Self::open(folder, None)
    }

    fn open(folder: &Path, names: Option<Vec<OsString>>) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let to_files = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE | WatchMask::CLOSE_WRITE;
        let to_folder = WatchMask::DELETE_SELF | WatchMask::MOVE_SELF;
        inotify
            .watches()
            .add(folder, to_files | WatchMask::ATTRIB | to_folder | WatchMask::ONLYDIR)?;
        Ok(Self {
            events: inotify.into_event_stream([0; BUFFER])?,
            names,
        })
    }

    /// Waits until something happens. Nothing is lost if the wait is given up.
    ///
    /// # Errors
    /// If the kernel cannot be listened to.
    pub(crate) async fn next(&mut self) -> io::Result<Happened> {
        let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT | EventMask::IGNORED;
        loop {
            let ended = || io::Error::other("the kernel's events have ended");
            let event = self.events.next().await.ok_or_else(ended)??;
            if event.mask.intersects(gone) {
                return Ok(Happened::ToFolder);
            }
            let is_watched = |name| self.names.as_ref().is_none_or(|names| names.contains(&name));
            if event.mask.contains(EventMask::Q_OVERFLOW) || event.name.is_some_and(is_watched) {
                return Ok(Happened::ToFile);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn files_of_the_name_and_the_end_of_the_folder_are_told_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("drydock-folder-watch-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let mut watch = FolderWatch::new(&folder, ["mine"]).unwrap();
        fs::write(folder.join("other"), "x").unwrap();
        // Not told of the other one: what is told next is of a change after it.
        fs::write(folder.join("mine"), "x").unwrap();
        assert_eq!(watch.next().await.unwrap(), Happened::ToFile);
        fs::remove_file(folder.join("other")).unwrap();
        fs::rename(folder.join("mine"), folder.join("away")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let mut told = Vec::new();
        while told.last() != Some(&Happened::ToFolder) {
            told.push(watch.next().await.unwrap());
        }
        // It was closed after it was written, and moved away.
        assert_eq!(told, [Happened::ToFile, Happened::ToFile, Happened::ToFolder]);
        assert!(FolderWatch::new(&folder, ["mine"]).is_err());
    }
}
