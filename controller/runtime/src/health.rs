//! Readiness of the process, as served by the admin port.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// The process is ready once every handle that was issued has been released.
///
/// # Guarantees
/// A handle that is dropped without being released keeps the process unready: its precondition was never met.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    waiting: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Readiness {
    /// Creates a state that is ready until a handle is issued.
    pub fn new() -> Self {
        Self::default()
    }

    /// Issues a handle for a precondition of readiness.
    pub fn handle(&self, name: impl Into<String>) -> ReadyHandle {
        let name = name.into();
        *self.waiting.lock().entry(name.clone()).or_default() += 1;
        ReadyHandle {
            name,
            readiness: self.clone(),
        }
    }

    /// Returns the names of the preconditions that are not met yet.
    pub fn waiting(&self) -> Vec<String> {
        self.waiting.lock().keys().cloned().collect()
    }

    /// Returns whether all preconditions are met.
    #[cfg(any(test, feature = "fake"))]
    pub fn is_ready(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

/// Keeps the process from being ready until it is [released](Self::release).
#[derive(Debug)]
#[must_use = "the process becomes ready only when this handle is released"]
pub struct ReadyHandle {
    name: String,
    readiness: Readiness,
}

impl ReadyHandle {
    /// Marks the precondition as met.
    pub fn release(self) {
        let mut waiting = self.readiness.waiting.lock();
        if let Some(count) = waiting.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.name);
            }
        }
        if waiting.is_empty() {
            tracing::info!("ready");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Readiness;

    #[test]
    fn ready_once_every_handle_is_released() {
        let readiness = Readiness::new();
        let (nodes, more_nodes, lease) = (
            readiness.handle("nodes"),
            readiness.handle("nodes"),
            readiness.handle("lease"),
        );
        assert_eq!(readiness.waiting(), ["lease", "nodes"]);
        nodes.release();
        lease.release();
        assert_eq!(readiness.waiting(), ["nodes"]);
        assert!(!readiness.is_ready());
        more_nodes.release();
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_handle_that_is_merely_dropped_still_holds() {
        let readiness = Readiness::new();
        drop(readiness.handle("nodes"));
        assert_eq!(readiness.waiting(), ["nodes"]);
    }
}
