//! Result of a guest's readiness probe. The launcher executes the probe and writes the result to the pod's folder.

use std::time::Duration;

use drydock_api::launcher::{GuestReadiness, READINESS_FILE};
use drydock_host::pod_folder::{FolderError, PodFolder, SMALL_FILE, WatchedPath};
use drydock_runtime::clock;

/// Minimum interval between two reads of a probe's result, because a pod may change the result continuously.
const READINESS_PAUSE: Duration = Duration::from_millis(200);
/// Maximum length of the launcher's message about the probe, in characters.
const READINESS_MESSAGE: usize = 300;

/// Returns the result of a guest's readiness probe, if there is one yet.
pub(super) fn read(folder: &PodFolder) -> Option<GuestReadiness> {
    let read = match folder.read(READINESS_FILE, SMALL_FILE) {
        Err(FolderError::NotThere { .. }) => return None,
        Err(error) => Err(error.to_string()),
        Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
    };
    Some(match read {
        Ok(GuestReadiness { ready, message }) => GuestReadiness {
            ready,
            message: message
                .chars()
                .filter(|c| !c.is_control())
                .take(READINESS_MESSAGE)
                .collect(),
        },
        Err(why) => GuestReadiness {
            ready: false,
            message: format!("the probe's result cannot be read: {why}"),
        },
    })
}

/// Waits for a change of the watched file, and at least for [`READINESS_PAUSE`].
pub(super) async fn changed(watched: Option<&WatchedPath>) {
    let Some(watched) = watched else {
        return std::future::pending().await;
    };
    let earliest = clock::Instant::now() + READINESS_PAUSE;
    watched.changed().await;
    clock::sleep_until_instant(Some(earliest)).await;
}

#[cfg(test)]
mod tests {
    use std::fs;

    use drydock_api::launcher::RUN_VOLUME;

    use super::*;

    #[test]
    fn readiness_is_read_from_launcher_file_within_limits() {
        let kubelet = tempfile::tempdir().unwrap();
        let folder = PodFolder::new(kubelet.path(), "00-11", RUN_VOLUME).unwrap();
        let run = kubelet
            .path()
            .join("pods/00-11/volumes/kubernetes.io~empty-dir")
            .join(RUN_VOLUME);
        fs::create_dir_all(&run).unwrap();
        assert_eq!(read(&folder), None);
        let long = format!("no\nway {}", "x".repeat(1000));
        for (text, ready, message) in [
            (r#"{"ready": true}"#.to_owned(), true, ""),
            (
                r#"{"ready": false, "message": "status 503"}"#.to_owned(),
                false,
                "status 503",
            ),
            (
                serde_json::json!({"ready": false, "message": long}).to_string(),
                false,
                "noway xxx",
            ),
            ("not JSON".to_owned(), false, "the probe's result cannot be read: "),
        ] {
            fs::write(run.join(READINESS_FILE), &text).unwrap();
            let read = read(&folder).unwrap();
            assert_eq!(read.ready, ready, "{text}");
            assert!(read.message.starts_with(message), "{read:?}");
            assert!(read.message.chars().count() <= READINESS_MESSAGE, "{read:?}");
        }
    }
}
