//! The tasks of one process: which ones run, which ones must run, and how they stop.
//!
//! ```text
//!  running ──(signal, stop(), or a critical task ended or any task panicked)──▶ draining ──▶ over
//!             `stopping()` is cancelled: every task winds down                      │
//!                                          second signal, or the drain takes too long: over at once
//! ```

use std::{borrow::Cow, error::Error, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, Stream, StreamExt};
use parking_lot::Mutex;
use thiserror::Error;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Counts, logs::panic_text};

/// Name of a task, for logs and for the reason why the process ended.
pub type Name = Cow<'static, str>;

/// Reason why a process ended without a request to stop.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The parts of the process could not be assembled.
    #[error("could not start")]
    Start(#[source] Box<dyn Error + Send + Sync>),
    /// A critical task failed.
    #[error("{task} failed")]
    Failed {
        /// The task's name.
        task: Name,
        /// The task's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A critical task ended.
    #[error("{task} ended although the process was not requested to stop")]
    EndedEarly {
        /// The task's name.
        task: Name,
    },
    /// A task panicked.
    #[error("{task} panicked: {message}")]
    Panicked {
        /// The task's name.
        task: Name,
        /// The message of the panic.
        message: String,
    },
    /// Some tasks did not end within the drain time.
    #[error("tasks still running {after:?} after the request to stop: {}", tasks.join(", "))]
    Overdue {
        /// The names of these tasks.
        tasks: Vec<String>,
        /// The drain time.
        after: Duration,
    },
    /// A second signal aborted the drain.
    #[error("a second signal ({signal}) ended the process before it had stopped")]
    Aborted {
        /// The signal.
        signal: &'static str,
    },
}

/// A handle of the running process; clones refer to the same process.
///
/// # Guarantees
/// - The process ends with its first failure.
/// - A panic in any task ends the process: the panicking task may have left its state inconsistent, and a new process
///   starts from the state in the API server.
/// - Once [`stopping`](Self::stopping) is cancelled a critical task may end; failures are still reported.
#[derive(Clone, Debug, Default)]
pub struct Process(Arc<ProcessState>);

#[derive(Debug, Default)]
struct ProcessState {
    stopping: CancellationToken,
    over: CancellationToken,
    tasks: TaskTracker,
    running: Counts<Name>,
    failure: Mutex<Option<ProcessError>>,
}

impl Process {
    /// Creates a process without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a token that is cancelled when the process begins to stop. Every task with a loop observes it.
    pub fn stopping(&self) -> CancellationToken {
        self.0.stopping.clone()
    }

    /// Begins a graceful stop.
    pub fn stop(&self) {
        self.0.stopping.cancel();
    }

    /// Runs a task that may end at any time; the process waits for it before it ends.
    pub fn spawn(&self, name: impl Into<Name>, task: impl Future<Output = ()> + Send + 'static) {
        let (process, name) = (self.clone(), name.into());
        self.0.tasks.spawn(async move {
            let _running = process.0.running.add(name.clone());
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                process.panicked(name, panic.as_ref());
            }
        });
    }

    /// Runs a task that must not end before the process stops. If it ends earlier, the process stops and reports the
    /// task's name. A task reports its errors with [`fail`](Self::fail).
    pub fn spawn_critical(&self, name: impl Into<Name>, task: impl Future<Output = ()> + Send + 'static) {
        let name = name.into();
        self.spawn(name.clone(), self.clone().run_critical(name, task));
    }

    /// Runs a task that others may need until the end, such as the admin port. The process does not wait for it, but
    /// cancels it when all other tasks have ended.
    #[expect(
        clippy::disallowed_methods,
        reason = "the tracker awaits its own tasks; the token cancels this task after them"
    )]
    pub fn spawn_to_the_end(&self, name: impl Into<Name>, task: impl Future<Output = ()> + Send + 'static) {
        let (process, name) = (self.clone(), name.into());
        tokio::spawn(async move {
            let over = process.0.over.clone();
            if let Some(Err(panic)) = over.run_until_cancelled(AssertUnwindSafe(task).catch_unwind()).await {
                process.panicked(name, panic.as_ref());
            }
        });
    }

    /// Runs a task that must not end before the process stops and that others need while they stop. The process does
    /// not wait for it, but cancels it when all other tasks have ended. If it ends earlier, the process stops and
    /// reports the task's name.
    pub fn spawn_critical_to_the_end(&self, name: impl Into<Name>, task: impl Future<Output = ()> + Send + 'static) {
        let name = name.into();
        self.spawn_to_the_end(name.clone(), self.clone().run_critical(name, task));
    }

    /// Stops the process with `error`, unless it has failed already.
    pub fn fail(&self, error: ProcessError) {
        let mut failure = self.0.failure.lock();
        if failure.is_none() {
            *failure = Some(error);
        } else {
            tracing::error!(error = %crate::chain(&error), "another failure while stopping");
        }
        drop(failure);
        self.stop();
    }

    /// Waits until the process begins to stop, then for its tasks, at most for `drain`.
    pub async fn run(
        &self,
        mut signals: impl Stream<Item = &'static str> + Unpin,
        drain: Duration,
    ) -> Result<(), ProcessError> {
        tokio::select! {
            () = self.0.stopping.cancelled() => {}
            Some(signal) = signals.next() => tracing::info!(signal, "stopping"),
        }
        self.stop();
        self.0.tasks.close();
        let drained = tokio::select! {
            waited = tokio::time::timeout(drain, self.0.tasks.wait()) => {
                waited.map_err(|_| ProcessError::Overdue { tasks: self.running_tasks(), after: drain })
            }
            Some(signal) = signals.next() => Err(ProcessError::Aborted { signal }),
        };
        self.0.over.cancel();
        match (self.0.failure.lock().take(), drained) {
            (Some(failure), Err(late)) => {
                tracing::error!(error = %crate::chain(&late), "the process did not stop cleanly");
                Err(failure)
            }
            (Some(failure), Ok(())) => Err(failure),
            (None, drained) => drained,
        }
    }

    /// Returns the names of the running tasks.
    pub fn running_tasks(&self) -> Vec<String> {
        let name = |(name, count): (Name, usize)| match count {
            1 => name.into_owned(),
            more => format!("{name} ({more})"),
        };
        self.0.running.all().into_iter().map(name).collect()
    }

    async fn run_critical(self, name: Name, task: impl Future<Output = ()>) {
        task.await;
        if !self.0.stopping.is_cancelled() {
            self.fail(ProcessError::EndedEarly { task: name });
        }
    }

    fn panicked(&self, task: Name, panic: &(dyn std::any::Any + Send)) {
        let message = panic_text(panic).to_owned();
        self.fail(ProcessError::Panicked { task, message });
    }
}

#[cfg(test)]
mod tests;
