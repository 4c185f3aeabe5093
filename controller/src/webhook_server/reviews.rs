//! Converts an HTTP request into a verdict or an error response.

use std::{error::Error, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{
        HeaderValue, Method, StatusCode,
        header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use drydock_runtime::{CancellationToken, chain, clock::Instant};
use futures::FutureExt;
use http_body_util::LengthLimitError;
use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND},
};
use tracing::{error, info, warn};

use super::{
    handlers::{Handler, Handlers},
    metrics::{NO_PATH, WebhookMetrics},
};

/// Maximum size of a review that is read, in bytes. A review may have two versions of an object, which API servers
/// limit to 3 MiB or less, and further fields.
const LARGEST: usize = 8 << 20;

/// Reason why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewFailure {
    /// The path has no handler.
    UnknownPath,
    /// The method is not POST.
    WrongMethod,
    /// The body is larger than [`LARGEST`].
    TooLarge,
    /// The connection ended before the end of the body.
    BrokenOff,
    /// The body is not an AdmissionReview.
    Unreadable,
    /// The body is an AdmissionReview of another version, or a response.
    NotARequest,
    /// The handler exceeded its deadline.
    TooLate,
    /// The handler panicked.
    Failed,
}

impl ReviewFailure {
    /// Returns the stable reason for metrics, logs and responses.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::UnknownPath => "UnknownPath",
            Self::WrongMethod => "WrongMethod",
            Self::TooLarge => "TooLarge",
            Self::BrokenOff => "BrokenOff",
            Self::Unreadable => "Unreadable",
            Self::NotARequest => "NotARequest",
            Self::TooLate => "TooLate",
            Self::Failed => "Failed",
        }
    }

    fn sentence(self) -> &'static str {
        match self {
            Self::UnknownPath => "no webhook exists at this path",
            Self::WrongMethod => "webhooks accept only POST requests",
            Self::TooLarge => "the review is larger than 8 MiB",
            Self::BrokenOff => "the review is incomplete",
            Self::Unreadable => "the body is not a valid AdmissionReview",
            Self::NotARequest => "the body is not a request of admission.k8s.io/v1",
            Self::TooLate => "the webhook returned no verdict in time",
            Self::Failed => "the webhook failed; the controller's log contains the cause",
        }
    }

    fn status(self) -> StatusCode {
        match self {
            Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BrokenOff | Self::Unreadable | Self::NotARequest => StatusCode::BAD_REQUEST,
            Self::TooLate => StatusCode::GATEWAY_TIMEOUT,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// A refusal, and optional details of the error.
struct ReviewRefusal(ReviewFailure, Option<String>);

impl From<ReviewFailure> for ReviewRefusal {
    fn from(refusal: ReviewFailure) -> Self {
        Self(refusal, None)
    }
}

/// Responds to reviews.
pub(super) struct Reviews {
    handlers: Handlers,
    deadline: Duration,
    metrics: WebhookMetrics,
    stopping: CancellationToken,
}

impl Reviews {
    pub(super) fn new(
        handlers: Handlers,
        deadline: Duration,
        metrics: WebhookMetrics,
        stopping: CancellationToken,
    ) -> Self {
        Self {
            handlers,
            deadline,
            metrics,
            stopping,
        }
    }

    pub(super) fn router(self) -> Router {
        Router::new().fallback(serve).with_state(Arc::new(self))
    }
}

/// Responds to one request.
async fn serve(State(reviews): State<Arc<Reviews>>, request: Request) -> Response {
    let began = Instant::now();
    let found = reviews.handlers.get(request.uri().path());
    let path = found.map_or(NO_PATH, |(path, _)| path);
    let verdict = match found {
        None => Err(ReviewFailure::UnknownPath.into()),
        Some((_, handler)) => {
            let judged = tokio::time::timeout(
                handler.deadline().unwrap_or(reviews.deadline),
                AssertUnwindSafe(judge(handler, request)).catch_unwind(),
            );
            match judged.await {
                Ok(Ok(verdict)) => verdict,
                // An object that causes a panic must not end the process. The panic has been logged.
                Ok(Err(_)) => Err(ReviewFailure::Failed.into()),
                Err(_) => Err(ReviewFailure::TooLate.into()),
            }
        }
    };
    let (outcome, mut response) = match verdict {
        Ok(verdict) => {
            let outcome = if verdict.allowed { "Allowed" } else { "Denied" };
            (outcome, written(verdict))
        }
        Err(ReviewRefusal(refusal, detail)) => {
            log(path, refusal, detail.as_deref());
            let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
            let text = format!("{}: {}{detail}\n", refusal.reason(), refusal.sentence());
            (refusal.reason(), (refusal.status(), text).into_response())
        }
    };
    if reviews.stopping.is_cancelled() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    reviews.metrics.count_response(path, outcome, began.elapsed());
    response
}

/// Serializes a verdict as an AdmissionReview.
fn written(verdict: AdmissionResponse) -> Response {
    match serde_json::to_vec(&verdict.into_review()) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            error!(error = %chain(&error), "could not serialize a verdict");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Logs a refusal at a level that depends on whether it needs attention.
fn log(path: &str, refusal: ReviewFailure, detail: Option<&str>) {
    let reason = refusal.reason();
    match refusal {
        ReviewFailure::Failed => error!(path, reason, "{}", refusal.sentence()),
        ReviewFailure::TooLate | ReviewFailure::TooLarge | ReviewFailure::Unreadable | ReviewFailure::NotARequest => {
            warn!(path, reason, detail, "{}", refusal.sentence());
        }
        ReviewFailure::UnknownPath | ReviewFailure::WrongMethod | ReviewFailure::BrokenOff => {
            info!(path, reason, detail, "{}", refusal.sentence());
        }
    }
}

async fn judge(handler: &Handler, request: Request) -> Result<AdmissionResponse, ReviewRefusal> {
    if request.method() != Method::POST {
        return Err(ReviewFailure::WrongMethod.into());
    }
    let admission_request = read(request).await?;
    let uid = admission_request.uid.clone();
    let mut verdict = handler.review(admission_request).await;
    verdict.uid = uid;
    Ok(verdict)
}

/// Reads the admission request from an HTTP request.
async fn read(request: Request<Body>) -> Result<AdmissionRequest<DynamicObject>, ReviewRefusal> {
    let announced = request.headers().get(CONTENT_LENGTH);
    let announced: Option<usize> = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length| length > LARGEST) {
        return Err(ReviewFailure::TooLarge.into());
    }
    let body = to_bytes(request.into_body(), LARGEST).await.map_err(|error| {
        let limit = error.source().is_some_and(<dyn Error>::is::<LengthLimitError>);
        let refusal = if limit {
            ReviewFailure::TooLarge
        } else {
            ReviewFailure::BrokenOff
        };
        ReviewRefusal(refusal, Some(chain(&error).to_string()))
    })?;
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(&body)
        .map_err(|error| ReviewRefusal(ReviewFailure::Unreadable, Some(error.to_string())))?;
    if review.types.api_version != META_API_VERSION_V1 || review.types.kind != META_KIND {
        let found = format!("found {} {}", review.types.api_version, review.types.kind);
        return Err(ReviewRefusal(ReviewFailure::NotARequest, Some(found)));
    }
    review.try_into().map_err(|_| ReviewFailure::NotARequest.into())
}
