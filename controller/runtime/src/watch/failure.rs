//! Classifies the errors of a watch.

use crate::{cache::WatchProblem, chain, metrics::Label};
use kube::{core::Status, runtime::watcher};

/// An error of a watch, as reported to readers of the cache and to metrics.
pub(super) struct WatchFailure {
    /// The problem to record in the cache; `None` for errors that occur in the normal life of a watch.
    pub(super) problem: Option<WatchProblem>,
    /// The label of the metric.
    pub(super) name: Label,
}

pub(super) fn classify(error: &watcher::Error) -> WatchFailure {
    let failing = |name| WatchFailure {
        problem: Some(WatchProblem::Failing(chain(error).to_string())),
        name,
    };
    let status = match error {
        watcher::Error::WatchError(status) => status,
        watcher::Error::NoResourceVersion => return failing("malformed"),
        watcher::Error::InitialListFailed(source)
        | watcher::Error::WatchStartFailed(source)
        | watcher::Error::WatchFailed(source) => match source {
            kube::Error::Api(status) => status,
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => return failing("malformed"),
            kube::Error::Auth(_) => return failing("unauthorized"),
            _ => return failing("connection"),
        },
    };
    by_status(status).unwrap_or_else(|| {
        failing(match status.code {
            401 => "unauthorized",
            429 => "throttled",
            500.. => "server",
            _ => "refused",
        })
    })
}

/// Returns whether the API server has refused to send a list as the initial events of a watch because its feature gate
/// is off. The error then names the parameter (`ValidateListOptions` in its `metainternalversion/validation`).
pub(super) fn refuses_to_stream(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            matches!(status.code, 400 | 422) && status.message.contains("sendInitialEvents")
        }
        _ => false,
    }
}

fn by_status(status: &Status) -> Option<WatchFailure> {
    let (problem, name) = match status.code {
        403 => (Some(WatchProblem::Forbidden), "forbidden"),
        404 => (Some(WatchProblem::KindMissing), "kind_missing"),
        // The API server keeps history for some minutes; older resource versions require a new list.
        410 => (None, "expired"),
        _ => return None,
    };
    Some(WatchFailure { problem, name })
}

#[cfg(test)]
mod tests {
    use super::{WatchProblem, classify};
    use kube::{core::Status, runtime::watcher::Error};

    #[test]
    fn each_error_has_a_name_and_a_meaning() {
        let api = |code| Box::new(Status::failure("broken", "Reason").with_code(code));
        let listing = |code| Error::InitialListFailed(kube::Error::Api(api(code)));
        for (error, name, problem) in [
            (listing(404), "kind_missing", Some(WatchProblem::KindMissing)),
            (listing(403), "forbidden", Some(WatchProblem::Forbidden)),
            (Error::WatchError(api(410)), "expired", None),
        ] {
            let failure = classify(&error);
            assert_eq!((failure.name, failure.problem), (name, problem));
        }
        for (code, name) in [
            (401, "unauthorized"),
            (429, "throttled"),
            (503, "server"),
            (422, "refused"),
        ] {
            let failure = classify(&listing(code));
            let text = "failed to perform initial object list: ApiError: broken: Reason".to_owned();
            assert_eq!(
                (failure.name, failure.problem),
                (name, Some(WatchProblem::Failing(text)))
            );
        }
        assert_eq!(classify(&Error::NoResourceVersion).name, "malformed");
        let lost = kube::Error::ReadEvents(std::io::Error::other("reset"));
        assert_eq!(classify(&Error::WatchFailed(lost)).name, "connection");
    }
}
