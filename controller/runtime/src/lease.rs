//! Leases of `coordination.k8s.io/v1`: liveness and leader election.
//!
//! - [`LeaseHolder`] renews one Lease as a heartbeat of the holder of another resource (a lock on the host).
//! - [`Leadership`] belongs to one of several candidates at a time.
//! - [`Staleness`] evaluates the Leases of others.
//!
//! The clocks of two machines are never compared: the criterion is the time, by the clock of *this* process, since it
//! observed the last change of the Lease. The times in the object are for users. The crates `kubert` (0.25) and
//! `kube-lease-manager` (0.13) compare the renewal time with their own clock: a machine whose clock is ahead by more
//! than the duration of a Lease, which is 15 seconds in Drydock, takes it while another one leads.

mod election;
mod elector;
mod holder;
mod metrics;
mod staleness;

pub use elector::{Candidacy, LeaderTerm, Leadership, releases};
pub use holder::{HolderState, Holding, LeaseHolder};
pub use metrics::leader_status;
pub use staleness::Staleness;

use crate::chain;
use std::time::Duration;

/// The result of one request.
enum RequestOutcome<T> {
    Done(T),
    /// The Lease does not exist.
    Missing,
    /// The Lease has changed since this process read it.
    Conflict,
    /// The request may or may not have been executed, for this reason.
    Unknown(String),
}

/// Waits for the response to a request, at most for `within`.
async fn outcome<T>(within: Duration, request: impl Future<Output = Result<T, kube::Error>>) -> RequestOutcome<T> {
    match tokio::time::timeout(within, request).await {
        Ok(Ok(done)) => RequestOutcome::Done(done),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => RequestOutcome::Missing,
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => RequestOutcome::Conflict,
        Ok(Err(error)) => RequestOutcome::Unknown(chain(&error).to_string()),
        Err(_) => RequestOutcome::Unknown(format!("no response within {within:?}")),
    }
}

/// Converts a duration to the unit of a Lease: whole seconds, at least one.
fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs().max(1)).unwrap_or(i32::MAX)
}
