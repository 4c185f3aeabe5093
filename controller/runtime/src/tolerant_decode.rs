//! Decodes objects so that an unreadable one does not fail the whole list or watch.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource, api::ListParams};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error};
use serde_json::Value;
use std::{borrow::Cow, fmt::Debug};

use crate::Key;

/// An object, or the metadata of an object that does not match its type.
///
/// Equivalent to kube's `DeserializeGuard`, with two differences: it requests only metadata where `K` is metadata only
/// (kube's does not, and would fetch whole Pods), and it drops `managedFields`, about half of an object's metadata,
/// before it builds any struct.
#[derive(Clone, Debug)]
pub(crate) enum TolerantDecode<K> {
    /// The object was decoded.
    Readable(Box<K>),
    /// The object could not be decoded.
    Unreadable {
        /// The decoding error.
        reason: String,
        /// The object's metadata, with its name and namespace.
        metadata: Box<ObjectMeta>,
    },
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for TolerantDecode<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        match K::deserialize(&value) {
            Ok(object) => Ok(Self::Readable(Box::new(object))),
            Err(reason) => {
                // Without metadata the object cannot be identified: the response is malformed.
                let metadata = value.get("metadata").ok_or_else(|| D::Error::custom(&reason))?;
                let metadata = ObjectMeta::deserialize(metadata).map_err(D::Error::custom)?;
                Ok(Self::Unreadable {
                    reason: reason.to_string(),
                    metadata: Box::new(metadata),
                })
            }
        }
    }
}

impl<K: Resource> Resource for TolerantDecode<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn api_version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::api_version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Readable(object) => object.meta(),
            Self::Unreadable { metadata, .. } => metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Readable(object) => object.meta_mut(),
            Self::Unreadable { metadata, .. } => metadata,
        }
    }
}

/// Reads all objects of a kind from the API server, bypassing all caches.
///
/// Like a watch, the function skips an object that cannot be decoded, and logs it.
///
/// # Errors
/// If the request to the API server fails.
pub async fn list_readable<K>(client: Client) -> kube::Result<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
    K::DynamicType: Default,
{
    let list = Api::<TolerantDecode<K>>::all(client)
        .list(&ListParams::default())
        .await?;
    let objects = list.items.into_iter();
    Ok(objects
        .filter_map(|object| match object {
            TolerantDecode::Readable(object) => Some(*object),
            TolerantDecode::Unreadable { reason, metadata } => {
                let key = Key::of_meta(&metadata);
                tracing::warn!(object = %key, reason, "skipped an object that cannot be decoded as its kind");
                None
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::TolerantDecode;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::{Resource, core::PartialObjectMeta, core::WatchEvent};
    use serde_json::json;

    #[test]
    fn managed_fields_are_never_built() {
        let value = json!({"metadata": {"name": "a", "managedFields": [{"manager": "kubectl"}]}, "data": {"k": "v"}});
        let TolerantDecode::Readable(object) = serde_json::from_value::<TolerantDecode<ConfigMap>>(value).unwrap()
        else {
            panic!("it is readable")
        };
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.data.unwrap()["k"], "v");
    }

    #[test]
    fn an_object_that_does_not_fit_still_has_a_name() {
        let text = r#"{"object": {"metadata": {"name": "a"}, "data": 7}, "type": "ADDED"}"#;
        let WatchEvent::Added(object) = serde_json::from_str::<WatchEvent<TolerantDecode<ConfigMap>>>(text).unwrap()
        else {
            panic!("it was added")
        };
        assert_eq!(object.meta().name.as_deref(), Some("a"));
        let TolerantDecode::Unreadable { reason, .. } = object else {
            panic!("it is not readable")
        };
        assert!(reason.contains("invalid type"), "{reason}");
    }

    #[test]
    fn object_without_metadata_is_an_error() {
        assert!(serde_json::from_value::<TolerantDecode<ConfigMap>>(json!({"data": 7})).is_err());
    }

    #[test]
    fn metadata_only_watch_requests_partial_objects() {
        assert!(TolerantDecode::<PartialObjectMeta<Pod>>::metadata_api());
        assert!(!TolerantDecode::<Pod>::metadata_api());
    }
}
