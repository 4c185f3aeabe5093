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

use crate::{chain, clock};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use std::time::Duration;

/// The state of a Lease in the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaseRecord {
    /// The holder's identity; empty if the Lease is free.
    holder: String,
    /// Time for which the holder requests other candidates to wait.
    duration: Duration,
    /// Number of changes of the holder.
    transitions: i32,
    /// The resource version; changes with every write.
    version: String,
}

impl From<Lease> for LeaseRecord {
    fn from(lease: Lease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let seconds = spec.lease_duration_seconds.unwrap_or_default();
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
            transitions: spec.lease_transitions.unwrap_or_default(),
            version: lease.metadata.resource_version.unwrap_or_default(),
        }
    }
}

/// The result of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestOutcome {
    /// The Lease has this state, after the write if the request was one.
    Done(LeaseRecord),
    /// The Lease does not exist.
    Missing,
    /// The Lease has changed since this process read it, or another process has created it in the meantime.
    Conflict,
    /// The request may or may not have been executed, for this reason.
    Unknown(String),
}

/// Waits for the response to a request, at most for `within`.
async fn outcome(within: Duration, request: impl Future<Output = kube::Result<Lease>>) -> RequestOutcome {
    match tokio::time::timeout(within, request).await {
        Ok(Ok(lease)) => RequestOutcome::Done(lease.into()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => RequestOutcome::Missing,
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => RequestOutcome::Conflict,
        Ok(Err(error)) => RequestOutcome::Unknown(chain(&error).to_string()),
        Err(_) => RequestOutcome::Unknown(format!("no response within {within:?}")),
    }
}

/// Returns the spec of a Lease that `holder` takes now for this duration.
fn taken_by(holder: &str, duration: Duration) -> LeaseSpec {
    let now = MicroTime(clock::now());
    LeaseSpec {
        holder_identity: Some(holder.to_owned()),
        lease_duration_seconds: Some(seconds(duration)),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        ..LeaseSpec::default()
    }
}

/// Converts a duration to the unit of a Lease: whole seconds, at least one.
fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs().max(1)).unwrap_or(i32::MAX)
}
