//! How Drydock's processes start, log, watch, hold a Lease, retry and stop. Knows nothing of virtual machines.

mod chain;
pub mod clock;
mod health;
mod logs;
mod process;
mod retry;
mod start;

pub use chain::{Chain, chain};
pub use health::{Liveness, Readiness, ReadyHandle};
pub use logs::{LogError, LogFormat, LogHandle, UnknownFormat, UnknownLevel};
pub use process::{Name, Process, ProcessError};
pub use retry::{Backoff, jittered};
pub use start::{Start, StartError, Threads, install_crypto};
