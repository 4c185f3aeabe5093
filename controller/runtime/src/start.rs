//! The start and the end of a process, from `main` to the exit code.

use crate::{Component, LogArgs, LogHandle, Process, ProcessError, chain, events::cut, logs, process::Name};
use std::{error::Error, fs::OpenOptions, io::Write, path::Path, process::ExitCode, time::Duration};
use thiserror::Error;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

/// File from which the kubelet reads the termination message of a container.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Maximum size of the termination message that the kubelet reads, in bytes.
const TERMINATION_LOG_BYTES: usize = 4096;
/// Time for which blocking calls may continue after the last task has ended.
const BLOCKING_CALLS_END: Duration = Duration::from_secs(1);

/// The number of threads that run the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Only the main thread: minimal memory.
    One,
    /// This number of threads.
    Many(usize),
}

/// The parameters of a process.
#[derive(Clone, Debug)]
pub struct StartParameters {
    /// The process's identity.
    pub component: Component,
    /// The number of threads that run the tasks.
    pub threads: Threads,
    /// The options of the log.
    pub logs: LogArgs,
    /// Time limit for the tasks to stop.
    pub drain: Duration,
}

impl StartParameters {
    /// Default for [`drain`](Self::drain). Less than the grace period of a pod, 30 s.
    pub const DRAIN: Duration = Duration::from_secs(10);

    /// Returns the parameters of a process with one thread that stops within [`Self::DRAIN`].
    pub const fn new(component: Component, logs: LogArgs) -> Self {
        Self {
            component,
            threads: Threads::One,
            logs,
            drain: Self::DRAIN,
        }
    }

    /// Runs the process until it has stopped. `wire` assembles its parts and spawns them on the [`Process`]; the
    /// process continues after `wire` has returned.
    ///
    /// SIGTERM and SIGINT start the drain (also during `wire`, which is then dropped); a second signal ends the
    /// process.
    ///
    /// # Errors
    /// Returns a failure code after any failure. The cause is logged and written to the termination message, which
    /// `kubectl describe pod` shows.
    pub fn run<W, F, E>(self, wire: W) -> ExitCode
    where
        W: FnOnce(Process, LogHandle) -> F,
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let logs = match logs::start(&self.logs) {
            Ok(logs) => logs,
            Err(error) => {
                eprintln!("{}: {}", self.component.name, chain(&error));
                write_termination_message(Path::new(TERMINATION_LOG), &chain(&error).to_string());
                return ExitCode::FAILURE;
            }
        };
        let Component { name, version } = self.component;
        tracing::info!(component = name, version, "starting");
        match self.run_to_end(wire, logs) {
            Ok(()) => {
                tracing::info!("stopped");
                ExitCode::SUCCESS
            }
            Err(error) => {
                let error = chain(&error).to_string();
                tracing::error!(error, "ended");
                write_termination_message(Path::new(TERMINATION_LOG), &error);
                ExitCode::FAILURE
            }
        }
    }

    fn run_to_end<W, F, E>(&self, wire: W, logs: LogHandle) -> Result<(), ProcessError>
    where
        W: FnOnce(Process, LogHandle) -> F,
        F: Future<Output = Result<(), E>>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        install_crypto();
        let runtime = self.runtime().map_err(|error| ProcessError::Start(Box::new(error)))?;
        let result = runtime.block_on(async {
            let signals = signals().map_err(|error| ProcessError::Start(Box::new(error)))?;
            let process = Process::new();
            let wiring = async {
                let stopping = process.stopping();
                if let Some(Err(error)) = stopping.run_until_cancelled(wire(process.clone(), logs)).await {
                    process.fail(ProcessError::Start(error.into()));
                }
            };
            let ((), result) = tokio::join!(wiring, process.run(signals, self.drain));
            result
        });
        // Dropping the runtime would wait for blocking calls, possibly forever.
        runtime.shutdown_timeout(BLOCKING_CALLS_END);
        result
    }

    fn runtime(&self) -> Result<Runtime, StartError> {
        let mut builder = match self.threads {
            Threads::One => Builder::new_current_thread(),
            Threads::Many(threads) => {
                let mut builder = Builder::new_multi_thread();
                builder.worker_threads(threads.max(1));
                builder
            }
        };
        let runtime = builder.thread_name(self.component.name).enable_all().build();
        runtime.map_err(StartError::Threads)
    }
}

/// The reason why a process could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The async runtime could not be created.
    #[error("could not start the threads of the async runtime")]
    Threads(#[source] std::io::Error),
    /// A signal handler could not be installed.
    #[error("could not listen for {0}")]
    Signals(Name, #[source] std::io::Error),
}

/// Installs ring as the crypto provider of this process, for every TLS connection. Repeated calls have no effect.
pub fn install_crypto() {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Returns the stream of received SIGTERM and SIGINT signals.
fn signals() -> Result<impl futures::Stream<Item = &'static str> + Unpin, StartError> {
    let listen = |kind, name: &'static str| signal(kind).map_err(|error| StartError::Signals(name.into(), error));
    let mut term = listen(SignalKind::terminate(), "SIGTERM")?;
    let mut int = listen(SignalKind::interrupt(), "SIGINT")?;
    Ok(futures::stream::poll_fn(move |context| {
        if term.poll_recv(context).is_ready() {
            return std::task::Poll::Ready(Some("SIGTERM"));
        }
        int.poll_recv(context).map(|_| Some("SIGINT"))
    }))
}

/// Writes the reason for the end of the process to the termination message file, if it exists; never creates it.
fn write_termination_message(place: &Path, message: &str) {
    if let Ok(mut file) = OpenOptions::new().write(true).truncate(true).open(place) {
        let _ = file.write_all(cut(message, TERMINATION_LOG_BYTES).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{TERMINATION_LOG_BYTES, write_termination_message};
    use std::fs;

    #[test]
    fn termination_message_is_written_only_to_existing_file() {
        let folder = std::env::temp_dir().join(format!("drydock-last-words-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let place = folder.join("termination-log");
        write_termination_message(&place, "lost");
        assert!(!place.exists());

        fs::write(&place, "older words that are longer").unwrap();
        write_termination_message(&place, "lease failed: refused");
        assert_eq!(fs::read_to_string(&place).unwrap(), "lease failed: refused");

        write_termination_message(&place, &"ä".repeat(TERMINATION_LOG_BYTES));
        assert_eq!(fs::read_to_string(&place).unwrap().len(), TERMINATION_LOG_BYTES);
        fs::remove_dir_all(&folder).unwrap();
    }
}
