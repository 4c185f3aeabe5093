//! How Drydock's processes start, log, watch, hold a Lease, retry and stop. Knows nothing of virtual machines.
//!
//! ```text
//! main ─▶ Start::run ─▶ wire(Process, LogHandle): puts the parts together and returns
//!                         ├─ metrics::registry, *Metrics::register      what is counted
//!                         ├─ Admin::serve                               /livez /readyz /metrics /log-level
//!                         ├─ connect ─▶ kube::Client                    counted, bounded, never retried in silence
//!                         ├─ Watches::start(Watch) ─▶ Cache, Trigger     what is known, and that it changed
//!                         ├─ lease::{LeaseHolder, Leadership}           alive; the one who acts
//!                         ├─ Events::start                              told to people
//!                         ├─ WorkQueue::run                             many objects: one look at a time at each
//!                         └─ Process::spawn_critical(loop)              waits for a Trigger or clock::sleep_until, plans, acts
//! ```
//!
//! `examples/idle.rs` is such a process, whole.

mod admin;
mod cache;
mod chain;
mod client;
pub mod clock;
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod health;
pub mod lease;
mod logs;
pub mod metrics;
mod newer;
mod process;
mod refusal;
mod retry;
mod start;
mod tolerant_decode;
mod watch;
mod work_queue;

pub use admin::{Admin, AdminError};
pub use cache::{Cache, Change, Key, Problem, SyncState, Trigger};
pub use chain::{Chain, chain};
pub use client::{ANSWER_WITHIN, ClientError, ClientMetrics, ClientOptions, SILENT_FOR, connect};
pub use events::{Event, EventMetrics, Events, Reporter, Severity};
pub use health::{Liveness, Readiness, ReadyHandle};
pub use logs::{LogError, LogFormat, LogHandle, UnknownFormat, UnknownLevel};
pub use newer::{has_shown, newer};
pub use process::{Name, Process, ProcessError};
pub use refusal::is_refusal;
pub use retry::{Backoff, jittered};
pub use start::{Start, StartError, Threads, install_crypto};
pub use watch::{Listing, Watch, WatchMetrics, Watches};
pub use work_queue::{Requeue, WorkQueue};

pub use prometheus_client::registry::Registry;
pub use tokio_util::sync::CancellationToken;
