//! The handlers of the webhook paths.

use std::{collections::BTreeMap, fmt, pin::Pin, sync::Arc};

use kube::core::{
    DynamicObject,
    admission::{AdmissionRequest, AdmissionResponse},
};

/// An admission request.
type Asked = AdmissionRequest<DynamicObject>;
/// A pending response.
type Answer = Pin<Box<dyn Future<Output = AdmissionResponse> + Send>>;

/// Handles one kind of review. Created from any `async fn(AdmissionRequest<DynamicObject>) -> AdmissionResponse`.
#[derive(Clone)]
pub(crate) struct Handler(Arc<dyn Fn(Asked) -> Answer + Send + Sync>);

impl<F, A> From<F> for Handler
where
    F: Fn(Asked) -> A + Send + Sync + 'static,
    A: Future<Output = AdmissionResponse> + Send + 'static,
{
    fn from(answer: F) -> Self {
        Self(Arc::new(move |asked| Box::pin(answer(asked))))
    }
}

impl Handler {
    /// Calls the handler.
    pub(crate) fn review(&self, asked: Asked) -> Answer {
        (self.0)(asked)
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
    /// Adds the handlers of other paths.
    pub(crate) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Returns the handler of a path.
    pub(crate) fn get(&self, path: &str) -> Option<(&'static str, &Handler)> {
        self.0.get_key_value(path).map(|(path, handler)| (*path, handler))
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
