//! Parts that requests of several tasks have in common.

use drydock_api::CONTROLLER_FIELD_MANAGER;
use kube::{
    ResourceExt,
    api::{DeleteParams, PatchParams, PostParams, Preconditions},
};

/// Returns the parameters of a creation or a replacement.
pub(crate) fn writing() -> PostParams {
    PostParams {
        field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

/// Returns the parameters of a merge patch or a JSON patch.
pub(crate) fn patching() -> PatchParams {
    PatchParams {
        field_manager: Some(CONTROLLER_FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}

/// Returns the parameters for deleting the object with this UID, but not another object with the same name.
pub(crate) fn deleting(uid: Option<String>) -> DeleteParams {
    deleting_version(uid, None)
}

/// Returns the parameters for deleting the object with this UID if it still has this resourceVersion.
pub(crate) fn deleting_version(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version }),
        ..DeleteParams::default()
    }
}

/// Returns the response to a request; `None` if the object or its kind does not exist.
pub(crate) fn unless_missing<T>(response: kube::Result<T>) -> kube::Result<Option<T>> {
    match response {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the response to a write with preconditions; `None` if the object was deleted, replaced or changed.
pub(crate) fn unless_changed<T>(response: kube::Result<T>) -> kube::Result<Option<T>> {
    match response {
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
        result => unless_missing(result),
    }
}

/// Returns the finalizers of an object, including this one.
pub(crate) fn with_finalizer(object: &impl ResourceExt, finalizer: &str) -> Vec<String> {
    let mut finalizers = without_finalizer(object, finalizer);
    finalizers.push(finalizer.into());
    finalizers
}

/// Returns the finalizers of an object without this one.
pub(crate) fn without_finalizer(object: &impl ResourceExt, finalizer: &str) -> Vec<String> {
    let others = object.finalizers().iter().filter(|name| *name != finalizer);
    others.cloned().collect()
}
