//! Whether the process is ready, and whether it is alive: what the admin port answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Takes a lock that a panic elsewhere may have poisoned: what these locks guard is whole between any two statements,
/// and after a panic the process ends anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ready means: everything that a handle was given out for has been released.
///
/// # Guarantees
/// A handle that is dropped without being released still holds: what it stood for never happened.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    waiting: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Readiness {
    /// Ready until a handle is given out.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something that has to happen before the process is ready.
    pub fn handle(&self, name: impl Into<String>) -> ReadyHandle {
        let name = name.into();
        *lock(&self.waiting).entry(name.clone()).or_default() += 1;
        ReadyHandle {
            name,
            readiness: self.clone(),
        }
    }

    /// What is waited for, by name.
    pub fn waiting(&self) -> Vec<String> {
        lock(&self.waiting).keys().cloned().collect()
    }

    /// Whether nothing is waited for.
    pub fn is_ready(&self) -> bool {
        lock(&self.waiting).is_empty()
    }
}

/// Keeps the process from being ready until it is [released](Self::release).
#[derive(Debug)]
#[must_use = "the process gets ready only once this is released"]
pub struct ReadyHandle {
    name: String,
    readiness: Readiness,
}

impl ReadyHandle {
    /// It has happened.
    pub fn release(self) {
        let mut waiting = lock(&self.readiness.waiting);
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

/// Alive means: no part of the process says that it cannot go on. The kubelet restarts a container that says so.
#[derive(Clone, Debug, Default)]
pub struct Liveness {
    failing: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Liveness {
    /// Alive.
    pub fn new() -> Self {
        Self::default()
    }

    /// `part` cannot go on, because of `reason`, and only a new process can help.
    pub fn fail(&self, part: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::error!(part, reason, "no longer alive");
        lock(&self.failing).insert(part, reason);
    }

    /// `part` goes on after all.
    pub fn recover(&self, part: &'static str) {
        if lock(&self.failing).remove(part).is_some() {
            tracing::info!(part, "alive again");
        }
    }

    /// Who cannot go on, and why.
    pub fn failing(&self) -> Vec<(&'static str, String)> {
        lock(&self.failing)
            .iter()
            .map(|(part, reason)| (*part, reason.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Liveness, Readiness};

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

    #[test]
    fn a_part_that_cannot_go_on_is_named() {
        let liveness = Liveness::new();
        liveness.fail("libvirt", "has not answered for 5 minutes");
        assert_eq!(
            liveness.failing(),
            [("libvirt", "has not answered for 5 minutes".to_owned())]
        );
        liveness.recover("libvirt");
        assert!(liveness.failing().is_empty());
    }
}
