//! Server-side apply of an object's status.

use kube::{
    Api, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

/// Applies the fields of `status` as the field manager `manager`, which takes over fields of other managers. Returns
/// the stored object.
///
/// `metadata` names the object. [`identity_of`] and [`version_of`] restrict the write.
///
/// # Errors
/// If the request to the API server fails.
pub async fn apply_status<K>(
    api: &Api<K>,
    metadata: ObjectMeta,
    manager: &str,
    status: impl Serialize,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let apply = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": metadata,
        "status": status,
    });
    let name = metadata.name.unwrap_or_default();
    let parameters = PatchParams::apply(manager).force();
    api.patch_status(&name, &parameters, &Patch::Apply(apply)).await
}

/// Returns the metadata of a write to this object. The API server rejects the write if another object has replaced it.
pub fn identity_of(object: &impl ResourceExt) -> ObjectMeta {
    ObjectMeta {
        name: Some(object.name_any()),
        uid: object.uid(),
        ..ObjectMeta::default()
    }
}

/// Returns the metadata of a write to this object. The API server rejects the write if the object has changed since
/// it was read.
pub fn version_of(object: &impl ResourceExt) -> ObjectMeta {
    ObjectMeta {
        resource_version: object.resource_version(),
        ..identity_of(object)
    }
}
