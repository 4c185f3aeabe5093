//! `drydock-controller uninstall`: removes everything from the cluster that deleting the manifests does not remove.
//!
//! ```text
//!  in use? ─▶ Deployment, DaemonSet deleted ─▶ no pods left ─▶ in use? ─▶ finalizers of migrations
//!    │ yes: exit code 3, nothing changed                       │
//!    ▼                                                         ▼
//!  a list of remaining objects     nodes labelled ─▶ folders removed by a DaemonSet ─▶ labels, conditions, resources
//! ```
//!
//! Each step can be repeated, and continues after an interrupted run. Usage is read twice from the API server, so that
//! a virtual machine that is created while the controllers stop is not overlooked.

mod in_use;
mod steps;
#[cfg(test)]
mod tests;

use std::{
    error::Error,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drydock_runtime::{
    Backoff, ClientMetrics, ClientOptions, Component, Process, ProcessError, StartParameters, chain,
    clock::{Instant, sleep_until_instant},
    connect,
    metrics::registry,
};
use kube::Client;
use thiserror::Error;
use tracing::{info, warn};

use crate::args::ControllerUninstallArgs;

const COMPONENT: Component = Component {
    name: "drydock-uninstall",
    version: env!("CARGO_PKG_VERSION"),
};
/// Exit code of a refusal. With it, the Job is not retried.
const REFUSED: u8 = 3;
/// First and longest delay before a request is repeated or progress is checked again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Removes Drydock from the nodes. The exit code is 3 if Drydock is in use, and 1 if a step failed.
pub(crate) fn run(args: ControllerUninstallArgs) -> ExitCode {
    let start = StartParameters::new(COMPONENT, args.logs.clone());
    let refused = Arc::new(AtomicBool::new(false));
    let is_refused = Arc::clone(&refused);
    let code = start.run(|process, _| wire(args, process, is_refused));
    if refused.load(Ordering::Relaxed) {
        ExitCode::from(REFUSED)
    } else {
        code
    }
}

async fn wire(
    args: ControllerUninstallArgs,
    process: Process,
    refused: Arc<AtomicBool>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client_metrics = ClientMetrics::register(&mut registry(COMPONENT));
    let options = ClientOptions::new(COMPONENT, args.kubeconfig);
    let uninstall = Uninstall {
        client: connect(&options, &client_metrics).await?,
        namespace: args.namespace,
        folders_namespace: args.folders_namespace,
        deadline: Instant::now() + args.timeout,
    };
    if let Err(failure) = uninstall.all().await {
        refused.store(matches!(failure, UninstallError::InUse(_)), Ordering::Relaxed);
        process.fail(ProcessError::Failed {
            task: "removing Drydock".into(),
            source: failure.into(),
        });
    }
    process.stop();
    Ok(())
}

/// Reason why Drydock was not removed.
#[derive(Debug, Error)]
enum UninstallError {
    /// Other objects need Drydock.
    #[error(
        "Drydock is needed by {0}. Delete these objects and wait until they no longer exist, then try again. For stuck \
         objects, see deploy/docs/uninstall.md"
    )]
    InUse(String),
    /// A request to the API server did not succeed in time.
    #[error("could not {what} in time")]
    Request {
        what: &'static str,
        source: Box<kube::Error>,
    },
    /// An expected state was not reached in time.
    #[error("{what} in time: {}", left.join(", "))]
    Late { what: &'static str, left: Vec<String> },
}

/// Removes Drydock.
struct Uninstall {
    client: Client,
    /// Namespace of Drydock's workloads.
    namespace: String,
    /// Namespace of the pods that remove folders on the nodes.
    folders_namespace: String,
    deadline: Instant,
}

impl Uninstall {
    /// Runs all steps in order.
    async fn all(&self) -> Result<(), UninstallError> {
        self.refuse_if_in_use().await?;
        self.delete_workloads().await?;
        self.refuse_if_in_use().await?;
        self.release_migrations().await?;
        self.remove_folders().await?;
        self.clean_nodes().await?;
        self.delete_hypervisors().await?;
        info!(
            "Drydock is removed from the nodes; next: kubectl delete -k deploy/uninstall, then kubectl delete -k deploy"
        );
        Ok(())
    }

    /// Repeats a step until the API server executes it or the time limit is reached.
    async fn persist<T>(
        &self,
        what: &'static str,
        step: impl AsyncFn() -> kube::Result<T>,
    ) -> Result<T, UninstallError> {
        let mut backoff = Backoff::new(AGAIN.0, AGAIN.1);
        loop {
            let error = match step().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let again = Instant::now() + backoff.delay();
            if again > self.deadline {
                let source = Box::new(error);
                return Err(UninstallError::Request { what, source });
            }
            warn!(error = %chain(&error), "could not {what}, retrying");
            sleep_until_instant(Some(again)).await;
        }
    }

    /// Checks repeatedly until nothing is left or the time limit is reached.
    async fn await_none(
        &self,
        what: &'static str,
        request: &'static str,
        left: impl AsyncFn() -> kube::Result<Vec<String>>,
    ) -> Result<(), UninstallError> {
        let mut before = Vec::new();
        loop {
            let left = self.persist(request, &left).await?;
            if left.is_empty() {
                return Ok(());
            }
            let again = Instant::now() + AGAIN.0;
            if again > self.deadline {
                return Err(UninstallError::Late { what, left });
            }
            if left != before {
                info!(left = left.join(", "), "waiting");
                before = left;
            }
            sleep_until_instant(Some(again)).await;
        }
    }
}
