//! Reviews whether a migration may be created, given the state of its instance in the cluster.
//!
//! ```text
//!  caches ─▶ core: review ─ no objection ─▶ allowed
//!                         └ objection ─▶ read from the API server ─▶ confirmed: refused
//!                                                                  └ not confirmed, or no response: allowed
//! ```
//!
//! The common case needs no request. A cache may be outdated, so it proves neither that an instance is missing nor that
//! a migration is still in flight. An objection is therefore confirmed before it is reported. The controller handles
//! migrations that are admitted by mistake: it also fails the younger one of two migrations that were created at the
//! same time.

use std::time::Duration;

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use drydock_core::admission::{
    AdmissionRefusal,
    migration_requests::{review_in_flight, review_instance},
};
use drydock_runtime::{Key, chain};
use kube::ResourceExt;
use tracing::warn;

use crate::guest_context::GuestContext;

/// Time limit of the confirmation. It is much shorter than the API server's timeout of the webhook.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(4);

/// Returns the reason why this instance cannot be moved by a new migration, if that is confirmed.
pub(super) async fn review(context: &GuestContext, instance: &Key) -> Option<AdmissionRefusal> {
    match tokio::time::timeout(CONFIRMED_WITHIN, confirmed(context, instance)).await {
        Ok(Ok(refusal)) => refusal,
        Ok(Err(error)) => {
            warn!(
                vmi = %instance,
                error = %chain(&error),
                "migration admitted without a check of its instance: a request to the API server failed"
            );
            None
        }
        Err(_) => {
            warn!(
                vmi = %instance,
                "migration admitted without a check of its instance: the API server did not respond in time"
            );
            None
        }
    }
}

async fn confirmed(context: &GuestContext, key: &Key) -> kube::Result<Option<AdmissionRefusal>> {
    let shown = context.instances.get(key);
    if review_instance(&key.name, shown.as_deref()).is_some() {
        let instance = context.api::<VirtualMachineInstance>(key).get_opt(&key.name).await?;
        let refusal = review_instance(&key.name, instance.as_ref());
        if refusal.is_some() {
            return Ok(refusal);
        }
    }
    for shown in context.migrations.of_instance(key) {
        if review_in_flight(&shown).is_none() {
            continue;
        }
        let migrations = context.api::<VirtualMachineInstanceMigration>(key);
        let other = migrations.get_opt(&shown.name_any()).await?;
        let refusal = other
            .filter(|other| *other.spec.vmi_name == *key.name)
            .and_then(|other| review_in_flight(&other));
        if refusal.is_some() {
            return Ok(refusal);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
