//! The handlers of the webhook paths.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionResponse},
};

/// An admission request.
pub(crate) type ReviewRequest = AdmissionRequest<DynamicObject>;
/// A pending response.
type ReviewFuture = Pin<Box<dyn Future<Output = AdmissionResponse> + Send>>;

/// Handles one kind of review. Created from any `async fn(AdmissionRequest<DynamicObject>) -> AdmissionResponse`.
#[derive(Clone)]
pub(crate) struct Handler {
    respond: Arc<dyn Fn(ReviewRequest) -> ReviewFuture + Send + Sync>,
    deadline: Option<Duration>,
}

impl<F, A> From<F> for Handler
where
    F: Fn(ReviewRequest) -> A + Send + Sync + 'static,
    A: Future<Output = AdmissionResponse> + Send + 'static,
{
    fn from(respond: F) -> Self {
        Self {
            respond: Arc::new(move |request| Box::pin(respond(request))),
            deadline: None,
        }
    }
}

impl Handler {
    /// Sets the deadline of the handler, which replaces the server's.
    pub(crate) fn within(self, deadline: Duration) -> Self {
        Self {
            deadline: Some(deadline),
            ..self
        }
    }

    /// Returns the deadline of the handler; `None` means the server's deadline.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Calls the handler.
    pub(crate) fn review(&self, request: ReviewRequest) -> ReviewFuture {
        (self.respond)(request)
    }
}

/// Handlers by path, such as `/validate/virtualmachines`.
#[derive(Clone, Default)]
pub(crate) struct Handlers(BTreeMap<&'static str, Handler>);

impl FromIterator<(&'static str, Handler)> for Handlers {
    fn from_iter<T: IntoIterator<Item = (&'static str, Handler)>>(handlers: T) -> Self {
        Self(handlers.into_iter().collect())
    }
}

impl Handlers {
    /// Adds other handlers.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Returns the handler of a path.
    pub(crate) fn get(&self, path: &str) -> Option<(&'static str, &Handler)> {
        self.0.get_key_value(path).map(|(path, handler)| (*path, handler))
    }
}
