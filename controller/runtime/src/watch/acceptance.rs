//! Whether the API server accepts a watch, which kube's watcher does not tell: it shows nothing until something
//! changes, and on a quiet object that may take days.

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

/// The least time between the starts of two watches. kube's watcher asks again at once when one ends; this keeps it from
/// doing nothing else when something on the way cuts every watch short.
const BETWEEN_WATCHES: Duration = Duration::from_secs(1);

/// Says when a watch was accepted.
#[derive(Clone, Debug, Default)]
pub(super) struct Acceptance(Arc<Notify>);

impl Acceptance {
    /// Waits until a watch is accepted.
    pub(super) async fn given(&self) {
        self.0.notified().await;
    }

    /// The same way to the API server, for one watch, with an eye on it.
    pub(super) fn observing(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        Client::new(
            Observed {
                client,
                acceptance: self.clone(),
                next_watch: None,
            },
            namespace,
        )
    }
}

struct Observed {
    client: Client,
    acceptance: Acceptance,
    next_watch: Option<Instant>,
}

impl Service<Request<Body>> for Observed {
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

/// Whether a request opens a watch.
pub(crate) fn is_watch<B>(request: &Request<B>) -> bool {
    asks(request, "watch=true")
}

/// Whether a watch begins with all that there is. Its end is told by an event, and until then what is known is old.
fn begins_with_list<B>(request: &Request<B>) -> bool {
    asks(request, "sendInitialEvents=true")
}

fn asks<B>(request: &Request<B>, wanted: &str) -> bool {
    let query = request.uri().query();
    query.is_some_and(|query| query.split('&').any(|part| part == wanted))
}
