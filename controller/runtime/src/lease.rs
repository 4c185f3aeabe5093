//! Leases of `coordination.k8s.io/v1`: who is alive and who leads.
//!
//! - [`LeaseHolder`] keeps one Lease, as the sign of life of who holds something else (a lock on the host).
//! - [`Leadership`] is had by one of several candidates at a time.
//! - [`Staleness`] judges the Leases of others.
//!
//! Nowhere are the clocks of two machines compared: what counts is how long a Lease has not changed by *our* clock since
//! we saw it change. The times in the object are for people.

mod election;
mod elector;
mod holder;
mod staleness;

pub use elector::{Candidacy, Leadership, Term, releases};
pub use holder::{Held, Holding, LeaseHolder};
pub use staleness::Staleness;

use crate::chain;
use std::time::Duration;

/// What one request came to.
enum Outcome<T> {
    Done(T),
    /// There is no such Lease.
    Missing,
    /// It changed since we saw it.
    Conflict,
    /// Nobody knows whether it was done; why.
    Unknown(String),
}

/// Waits for the answer to a request for so long.
async fn outcome<T>(within: Duration, request: impl Future<Output = Result<T, kube::Error>>) -> Outcome<T> {
    match tokio::time::timeout(within, request).await {
        Ok(Ok(done)) => Outcome::Done(done),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Outcome::Missing,
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Outcome::Conflict,
        Ok(Err(error)) => Outcome::Unknown(chain(&error).to_string()),
        Err(_) => Outcome::Unknown(format!("no answer within {within:?}")),
    }
}

/// A duration as a Lease has it: whole seconds, at least one.
fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs().max(1)).unwrap_or(i32::MAX)
}
