//! The framework of Drydock's processes: start, logging, watches, Lease, retries and shutdown. Independent of virtual
//! machines.
//!
//! ```text
//! main ─▶ StartParameters::run ─▶ wire(Process, LogHandle): assembles the parts and returns
//!                                   ├─ metrics::registry, *Metrics::register      metrics
//!                                   ├─ Admin::serve                               /livez /readyz /metrics /log-level
//!                                   ├─ connect ─▶ kube::Client                    counted, bounded, no silent retries
//!                                   ├─ WatchStarter::start ─▶ Cache, Trigger      cluster state, and change notifications
//!                                   │    └─ Index, AssumeCache                    by a property; with the process's own writes
//!                                   ├─ lease::{LeaseHolder, Leadership}           liveness; leader election
//!                                   ├─ Events::start                              Kubernetes events for users
//!                                   ├─ WorkQueue::run                             reconciles many objects, each one serially
//!                                   └─ Process::spawn_critical(loop)              waits for a Trigger or a time, plans, acts
//! ```
//!
//! `examples/idle.rs` is a complete process of this kind.

mod admin;
mod apply_status;
mod assume_cache;
mod cache;
mod chain;
mod client;
pub mod clock;
mod component;
mod counts;
mod duration_flag;
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod health;
mod index;
pub mod lease;
mod logs;
pub mod metrics;
pub mod pinned_tls;
mod process;
mod refusal;
mod resource_version;
mod retry;
mod start;
pub mod tcp;
#[cfg(feature = "tls-port")]
pub mod tls_port;
mod tolerant_decode;
mod watch;
mod work_queue;

pub use admin::Admin;
pub use apply_status::{apply_status, identity_of, version_of};
pub use assume_cache::{ASSUMED_FOR, AssumeCache};
pub use cache::{Cache, CacheChange, Key, SyncState, Trigger, WatchProblem};
pub use chain::{Chain, chain};
pub use client::{ClientError, ClientMetrics, ClientOptions, READ_TIMEOUT, RESPONSE_TIMEOUT, connect};
pub use component::Component;
pub use counts::{CountGuard, Counts};
pub use duration_flag::{InvalidDuration, parse_duration};
pub use events::{Event, EventMetrics, EventRecorder, Events, Reporter, Severity};
pub use health::{Readiness, ReadyHandle};
pub use index::Index;
pub use logs::{LogArgs, LogError, LogFormat, LogHandle, UnknownLevel};
pub use process::{Name, Process, ProcessError};
pub use refusal::is_refusal;
pub use resource_version::{has_shown, latest_state};
pub use retry::{Backoff, jittered};
pub use start::{StartError, StartParameters, Threads, install_crypto};
pub use tolerant_decode::list_readable;
pub use watch::{ListMode, Watch, WatchMetrics, WatchStarter};
pub use work_queue::{ReconcileMetrics, Requeue, WorkQueue, WorkQueueMetrics};

pub use prometheus_client::registry::Registry;
pub use tokio_util::sync::CancellationToken;
