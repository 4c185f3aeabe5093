//! Detects whether the API server accepts a watch.
//!
//! kube's watcher does not report this: it emits nothing until something changes, which can take days for an object
//! that seldom changes.

use http::{Request, Response};
use kube::{Client, client::Body};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};
use tower::{BoxError, Service};

/// Minimum time between the starts of two watches.
///
/// kube's watcher reconnects immediately when a watch ends. The minimum prevents a busy loop if an intermediary cuts
/// every watch short.
const BETWEEN_WATCHES: Duration = Duration::from_secs(1);

/// Notifies the waiting task when the API server has accepted a watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Acceptance(Arc<Notify>);

impl Acceptance {
    /// Waits until the API server accepts a watch.
    pub(super) async fn given(&self) {
        self.0.notified().await;
    }

    /// Returns a client for one watch that sends via `client` and observes the responses.
    pub(super) fn observing(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        Client::new(
            ObservedClient {
                client,
                acceptance: self.clone(),
                next_watch: None,
            },
            namespace,
        )
    }
}

struct ObservedClient {
    client: Client,
    acceptance: Acceptance,
    next_watch: Option<Instant>,
}

impl Service<Request<Body>> for ObservedClient {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.client.clone();
        if !is_watch(&request) {
            return Box::pin(async move { Ok(client.send(request).await?) });
        }
        let acceptance = (!begins_with_list(&request)).then(|| self.acceptance.clone());
        let now = Instant::now();
        let start = self.next_watch.map_or(now, |next| next.max(now));
        self.next_watch = Some(start + BETWEEN_WATCHES);
        Box::pin(async move {
            if start > now {
                tokio::time::sleep_until(start).await;
            }
            let response = client.send(request).await?;
            if let Some(acceptance) = acceptance.filter(|_| response.status().is_success()) {
                acceptance.0.notify_one();
            }
            Ok(response)
        })
    }
}

/// Returns whether a request opens a watch.
pub(crate) fn is_watch<B>(request: &Request<B>) -> bool {
    has_parameter(request, "watch=true")
}

/// Returns whether a watch starts with a list of all objects. An event marks the end of the list; until then the cache
/// is stale.
fn begins_with_list<B>(request: &Request<B>) -> bool {
    has_parameter(request, "sendInitialEvents=true")
}

fn has_parameter<B>(request: &Request<B>, wanted: &str) -> bool {
    let query = request.uri().query();
    query.is_some_and(|query| query.split('&').any(|part| part == wanted))
}
