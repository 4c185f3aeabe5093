//! File with the result of the guest's readiness probe. The agent reads the file.

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use drydock_api::launcher::GuestReadiness;

/// Pause before a result that could not be written is written again, for example when the disk is full.
const RETRY: Duration = Duration::from_secs(1);

/// The readiness file, and the result that has not been written to it yet.
#[derive(Debug)]
pub(crate) struct ReadinessFile {
    path: PathBuf,
    /// The result that could not be written, and the time of the next attempt.
    unwritten: Option<(GuestReadiness, Instant)>,
}

impl ReadinessFile {
    /// Creates the value for the file at this path, which does not have to exist.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, unwritten: None }
    }

    /// Atomically replaces the file with a file that contains this result.
    ///
    /// # Errors
    /// If the file cannot be written. The result is kept for [`retry`](Self::retry).
    pub(crate) fn publish(&mut self, readiness: GuestReadiness, now: Instant) -> io::Result<()> {
        let unfinished = self.path.with_extension("new");
        let written = serde_json::to_vec(&readiness)
            .map_err(io::Error::other)
            .and_then(|text| fs::write(&unfinished, text))
            .and_then(|()| fs::rename(&unfinished, &self.path));
        self.unwritten = written.is_err().then(|| (readiness, now + RETRY));
        written
    }

    /// Writes the unwritten result when it is due. Returns whether it was written.
    pub(crate) fn retry(&mut self, now: Instant) -> bool {
        let due = self.unwritten.take_if(|(_, at)| *at <= now);
        due.is_some_and(|(readiness, _)| self.publish(readiness, now).is_ok())
    }

    /// Returns the time of the next call of [`retry`](Self::retry).
    pub(crate) fn wake(&self) -> Option<Instant> {
        self.unwritten.as_ref().map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn readiness(ready: bool) -> GuestReadiness {
        GuestReadiness {
            ready,
            message: String::new(),
        }
    }

    #[test]
    fn result_that_cannot_be_written_is_written_later() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("readiness.json");
        let read = || serde_json::from_slice::<GuestReadiness>(&fs::read(&path).unwrap()).unwrap();
        let (mut file, now) = (ReadinessFile::new(path.clone()), Instant::now());
        file.publish(readiness(true), now).unwrap();
        assert_eq!(file.wake(), None);
        // A folder at the path prevents the file from being written.
        let obstacle = path.with_extension("new");
        fs::create_dir(&obstacle).unwrap();
        file.publish(readiness(false), now).unwrap_err();
        assert_eq!((read(), file.wake()), (readiness(true), Some(now + RETRY)));
        assert!(!file.retry(now + RETRY), "it still cannot be written");
        fs::remove_dir(&obstacle).unwrap();
        let due = file.wake().unwrap();
        assert!(!file.retry(due - RETRY / 2), "it is not due yet");
        assert!(file.retry(due));
        assert_eq!((read(), file.wake()), (readiness(false), None));
    }

    #[test]
    fn next_readiness_result_replaces_an_unwritten_result() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("readiness.json");
        let (mut file, now) = (ReadinessFile::new(path.clone()), Instant::now());
        let obstacle = path.with_extension("new");
        fs::create_dir(&obstacle).unwrap();
        file.publish(readiness(false), now).unwrap_err();
        fs::remove_dir(&obstacle).unwrap();
        file.publish(readiness(true), now).unwrap();
        assert!(!file.retry(now + RETRY));
        assert!(fs::read_to_string(&path).unwrap().contains("true"));
    }
}
