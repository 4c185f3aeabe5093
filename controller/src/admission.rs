//! Reviews admissions of virtual machines and the objects around them.
//!
//! ```text
//!  /mutate/virtualmachineinstances          ─▶ core: defaults ─▶ JSON patch
//!  /mutate/virtualmachineinstancemigrations ─▶ core: prepared ─▶ JSON patch
//!  /validate/<plural>                       ─▶ core: review   ─▶ allowed, or every refusal at once
//!  /validate/virtualmachineinstancemigrations  also reviews the state of the instance: [`migrations`]
//!  /validate/pods/eviction                  ─▶ [`evictions`]: allowed, or refused and the instance marked
//!  /validate/nodemaintenances               ─▶ [`maintenances`]
//!  /validate/removal                        ─▶ [`removal`]
//! ```
//!
//! The defaulting webhooks admit an object that cannot be read, because validation reports the error.

pub(crate) mod evictions;
pub(crate) mod maintenance_reviews;
pub(crate) mod migration_reviews;
pub(crate) mod removal_reviews;
#[cfg(test)]
mod tests;

use drydock_core::{
    admission::{
        AdmissionRefusal, AdmittedKind, MAX_REFUSALS,
        change::review_change,
        defaults::{Named, defaulted},
        migration_requests::{prepared, review_requester},
        review, sentence,
    },
    eviction::holding::REVIEW_DEADLINE,
};
use drydock_runtime::{Key, chain};
use kube::core::{
    DynamicObject,
    admission::{AdmissionResponse, Operation},
    response::{StatusCause, StatusDetails, StatusSummary},
};
use serde_json::Value;
use tracing::error;

use self::evictions::EvictionReviews;
use crate::{
    configuration_in_force::ConfigurationInForce,
    guest_context::GuestContext,
    launchers::native_architecture,
    webhook_server::{
        Handlers,
        handlers::{Handler, ReviewRequest},
    },
};

/// Status code and reason of refusals, as in KubeVirt and Kubernetes.
const INVALID: (u16, &str) = (422, "Invalid");

/// Returns the handlers of all paths.
pub(crate) fn handlers(
    configuration: ConfigurationInForce,
    context: GuestContext,
    evictions: EvictionReviews,
) -> Handlers {
    let instances = Handler::from(move |request: ReviewRequest| {
        let configuration = configuration.clone();
        async move { fill_in(&request, &configuration) }
    });
    let migrations = Handler::from(|request: ReviewRequest| async move {
        // The finalizer is added only to new migrations, so that a removed finalizer is not added again.
        let is_new = request.operation == Operation::Create;
        patched(&request, |raw| prepared(raw).filter(|_| is_new))
    });
    let migration = Handler::from(move |request: ReviewRequest| {
        let context = context.clone();
        async move { validate_migration(&request, &context).await }
    });
    let eviction = Handler::from(move |request: ReviewRequest| {
        let evictions = evictions.clone();
        async move { evictions.review(&request).await }
    })
    .within(REVIEW_DEADLINE);
    Handlers::from_iter([
        ("/validate/pods/eviction", eviction),
        ("/mutate/virtualmachineinstances", instances),
        ("/mutate/virtualmachineinstancemigrations", migrations),
        ("/validate/virtualmachines", validator(AdmittedKind::Machine)),
        ("/validate/virtualmachineinstances", validator(AdmittedKind::Instance)),
        (
            "/validate/virtualmachineinstancereplicasets",
            validator(AdmittedKind::ReplicaSet),
        ),
        ("/validate/virtualmachineinstancemigrations", migration),
    ])
}

fn validator(kind: AdmittedKind) -> Handler {
    Handler::from(move |request: ReviewRequest| async move { validate(&request, kind) })
}

/// Sets defaults for new and changed objects. Applying a manifest again replaces whole lists, and must not change their
/// content.
fn fill_in(request: &ReviewRequest, configuration: &ConfigurationInForce) -> AdmissionResponse {
    let configuration = configuration.get();
    patched(request, |raw| {
        let named = Named {
            namespace: request.namespace.as_deref().unwrap_or_default(),
            name: raw.pointer("/metadata/name").and_then(Value::as_str),
        };
        defaulted(raw, named, &configuration, native_architecture())
    })
}

/// Returns a response with a patch for the changes to an object.
fn patched(request: &ReviewRequest, change: impl Fn(&Value) -> Option<Value>) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some((raw, wanted)) = raw(request.object.as_ref()).and_then(|raw| change(&raw).map(|wanted| (raw, wanted)))
    else {
        return response;
    };
    match response.clone().with_patch(json_patch::diff(&raw, &wanted)) {
        Ok(patched) => patched,
        Err(error) => {
            error!(
                error = %chain(&error),
                "could not create the patch with the defaults; the controller will set the defaults"
            );
            response
        }
    }
}

fn validate(request: &ReviewRequest, kind: AdmittedKind) -> AdmissionResponse {
    response(request, &refusals(request, kind))
}

/// Validates a migration like other kinds, and checks its requester. A new migration is also refused if its instance
/// cannot be migrated now.
async fn validate_migration(request: &ReviewRequest, context: &GuestContext) -> AdmissionResponse {
    let mut refusals = refusals(request, AdmittedKind::Migration);
    if let Some(new) = raw(request.object.as_ref()) {
        let user = request.user_info.username.as_deref().unwrap_or_default();
        refusals.extend(review_requester(raw(request.old_object.as_ref()).as_ref(), &new, user));
    }
    if let (Operation::Create, Some(new)) = (&request.operation, raw(request.object.as_ref())) {
        // A migration that is refused in any case needs no lookup of its instance.
        if refusals.is_empty()
            && let Some(name) = new.pointer("/spec/vmiName").and_then(Value::as_str)
        {
            let instance = Key::namespaced(request.namespace.as_deref().unwrap_or_default(), name);
            refusals.extend(migration_reviews::review(context, &instance).await);
        }
    }
    response(request, &refusals)
}

fn refusals(request: &ReviewRequest, kind: AdmittedKind) -> Vec<AdmissionRefusal> {
    let user = request.user_info.username.as_deref().unwrap_or_default();
    match (
        &request.operation,
        raw(request.object.as_ref()),
        raw(request.old_object.as_ref()),
    ) {
        (Operation::Create, Some(new), _) => review(&new, kind),
        (Operation::Update, Some(new), Some(old)) => review_change(&old, &new, kind, user),
        // Deletions are never refused.
        _ => Vec::new(),
    }
}

fn response(request: &ReviewRequest, refusals: &[AdmissionRefusal]) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    if refusals.is_empty() {
        response
    } else {
        denied(response, refusals)
    }
}

/// Returns a denial with this message, status code and reason.
fn denied_with(response: AdmissionResponse, message: impl ToString, (code, reason): (u16, &str)) -> AdmissionResponse {
    let mut response = response.deny(message);
    response.result.status = Some(StatusSummary::Failure);
    response.result.code = code;
    response.result.reason = reason.into();
    response
}

fn denied(response: AdmissionResponse, refusals: &[AdmissionRefusal]) -> AdmissionResponse {
    let mut response = denied_with(response, sentence(refusals), INVALID);
    let causes = refusals.iter().take(MAX_REFUSALS).map(|refusal| StatusCause {
        reason: refusal.reason.as_str().into(),
        message: refusal.cause().into(),
        field: refusal.field.clone(),
    });
    response.result.details = Some(StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: causes.collect(),
        retry_after_seconds: 0,
    });
    response
}

/// Returns the object as the API server has sent it.
fn raw(object: Option<&DynamicObject>) -> Option<Value> {
    object.and_then(|object| serde_json::to_value(object).ok())
}
