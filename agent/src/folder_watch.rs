//! Awaitable notifications of changes to the files of one folder.

use std::{ffi::OsString, io, path::Path};

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};

/// Buffer for events, in bytes; one event takes at most 272.
const BUFFER: usize = 1024;

/// A watch of a folder. It reports every event that happens after its creation.
#[derive(Debug)]
pub(crate) struct FolderWatch {
    events: EventStream<[u8; BUFFER]>,
    /// Names of the watched files; `None` watches all files.
    names: Option<Vec<OsString>>,
}

/// Kind of an event in a watched folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderEventKind {
    /// A watched file was created, removed, renamed or written.
    ToFile,
    /// The folder was removed or moved. No further events follow.
    ToFolder,
}

impl FolderWatch {
    /// Watches the files in `folder` that have one of these names.
    ///
    /// # Errors
    /// If the folder does not exist, or the kernel refuses the watch.
    pub(crate) fn new(folder: &Path, names: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Self> {
        Self::open(folder, Some(names.into_iter().map(Into::into).collect()))
    }

    /// Watches all files in `folder`.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
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

    /// Waits for the next event. Cancel safe: no event is lost if the future is dropped.
    ///
    /// # Errors
    /// If reading events from the kernel fails.
    pub(crate) async fn next(&mut self) -> io::Result<FolderEventKind> {
        let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT | EventMask::IGNORED;
        loop {
            let ended = || io::Error::other("the stream of inotify events has ended");
            let event = self.events.next().await.ok_or_else(ended)??;
            if event.mask.intersects(gone) {
                return Ok(FolderEventKind::ToFolder);
            }
            let is_watched = |name| self.names.as_ref().is_none_or(|names| names.contains(&name));
            if event.mask.contains(EventMask::Q_OVERFLOW) || event.name.is_some_and(is_watched) {
                return Ok(FolderEventKind::ToFile);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn watch_reports_files_of_the_name_and_the_folders_end_only() {
        let folder = std::env::temp_dir().join(format!("drydock-folder-watch-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let mut watch = FolderWatch::new(&folder, ["mine"]).unwrap();
        fs::write(folder.join("other"), "x").unwrap();
        // The watch does not report the other file: the next event is for a change after that file was written.
        fs::write(folder.join("mine"), "x").unwrap();
        assert_eq!(watch.next().await.unwrap(), FolderEventKind::ToFile);
        fs::remove_file(folder.join("other")).unwrap();
        fs::rename(folder.join("mine"), folder.join("away")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let mut seen = Vec::new();
        while seen.last() != Some(&FolderEventKind::ToFolder) {
            seen.push(watch.next().await.unwrap());
        }
        // The file was closed after the write, then moved away.
        assert_eq!(
            seen,
            [
                FolderEventKind::ToFile,
                FolderEventKind::ToFile,
                FolderEventKind::ToFolder
            ]
        );
        assert!(FolderWatch::new(&folder, ["mine"]).is_err());
    }
}
