//! The objects from which API servers read the trusted authorities: bundles of Drydock's webhooks and of its
//! APIServices.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
};
use kube::{Api, Client, ResourceExt, api::Patch};
use serde_json::{Value, json};

use super::SERVICE;
use crate::requests::patching;

/// A kind of objects that contain bundles.
pub(super) trait TrustAnchors: ResourceExt {
    /// Returns the webhooks of the object, each with its name and client configuration.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;

    /// Returns the bundles of the webhooks that belong to Drydock in `namespace`.
    fn bundles(&self, namespace: &str) -> Vec<Vec<u8>> {
        ours(self.webhooks(), namespace)
            .map(|(_, client)| client.ca_bundle.clone().unwrap_or_default().0)
            .collect()
    }

    /// Returns the patch that replaces the bundle. Returns `None` if no webhook has to be changed. The patch requires
    /// the observed version, so that it does not restore webhooks that have been removed since.
    fn patch(&self, namespace: &str, bundle: &[u8]) -> Option<Value> {
        let differs = |client: &WebhookClientConfig| client.ca_bundle.as_ref().is_none_or(|held| held.0 != bundle);
        let webhooks: Vec<Value> = ours(self.webhooks(), namespace)
            .filter(|(_, client)| differs(client))
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": ByteString(bundle.to_vec())}}))
            .collect();
        let version = self.resource_version();
        (!webhooks.is_empty()).then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": webhooks}))
    }
}

fn ours<'a>(
    webhooks: Vec<(&'a str, &'a WebhookClientConfig)>,
    namespace: &str,
) -> impl Iterator<Item = (&'a str, &'a WebhookClientConfig)> {
    webhooks.into_iter().filter(move |(_, client)| {
        let service = client.service.as_ref();
        service.is_some_and(|service| service.name == SERVICE && service.namespace == namespace)
    })
}

impl TrustAnchors for MutatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
    }
}

impl TrustAnchors for ValidatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
    }
}

/// Writes a bundle into all of Drydock's webhooks in these objects that have another one.
///
/// A strategic merge patch of the named webhooks keeps all fields that `kubectl apply` wrote. Manifests do not contain
/// the field, so the bundle stays when they are applied again.
///
/// # Errors
/// The first error of a request to the API server, after the other objects were patched.
pub(super) async fn publish<K>(
    client: &Client,
    objects: &[impl AsRef<K>],
    namespace: &str,
    bundle: &[u8],
) -> kube::Result<()>
where
    K: TrustAnchors + kube::Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()> + Clone,
    K: serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api = Api::<K>::all(client.clone());
    let parameters = patching();
    let mut result = Ok(());
    for object in objects {
        let object = object.as_ref();
        if let Some(patch) = object.patch(namespace, bundle) {
            let (name, patch) = (object.name_any(), Patch::Strategic(patch));
            result = result.and(api.patch(&name, &parameters, &patch).await.map(drop));
        }
    }
    result
}

/// Returns the bundle of an APIService, which may be empty. Returns `None` if the APIService does not belong to Drydock
/// in `namespace`.
pub(super) fn bundle_of(object: &APIService, namespace: &str) -> Option<Vec<u8>> {
    let bundle = object.spec.as_ref()?.ca_bundle.clone().unwrap_or_default();
    is_served_by(object, namespace).then_some(bundle.0)
}

/// Returns whether the controllers of `namespace` serve this API.
pub(crate) fn is_served_by(object: &APIService, namespace: &str) -> bool {
    let service = object.spec.as_ref().and_then(|spec| spec.service.as_ref());
    service.is_some_and(|service| {
        service.name.as_deref() == Some(SERVICE) && service.namespace.as_deref() == Some(namespace)
    })
}

/// Writes a bundle into those of Drydock's APIServices that have another one.
///
/// A merge patch of this field keeps all fields that `kubectl apply` wrote.
///
/// # Errors
/// The first error of a request to the API server, after the other objects were patched.
pub(super) async fn publish_to_api_services(
    client: &Client,
    objects: &[impl AsRef<APIService>],
    namespace: &str,
    bundle: &[u8],
) -> kube::Result<()> {
    let api = Api::<APIService>::all(client.clone());
    let parameters = patching();
    let mut result = Ok(());
    for object in objects {
        let object = object.as_ref();
        if bundle_of(object, namespace).is_some_and(|held| held != bundle) {
            let patch = json!({
                "metadata": {"resourceVersion": object.resource_version()},
                "spec": {"caBundle": ByteString(bundle.to_vec())},
            });
            let (name, patch) = (object.name_any(), Patch::Merge(patch));
            result = result.and(api.patch(&name, &parameters, &patch).await.map(drop));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use drydock_runtime::fake::api_server;

    use super::{super::CONFIGURATION, *};

    fn api_service(namespace: &str, bundle: Option<&str>) -> APIService {
        let mut object = json!({
            "metadata": {"name": "v1.subresources.kubevirt.io", "resourceVersion": "7"},
            "spec": {"groupPriorityMinimum": 1000, "versionPriority": 15, "service": {"name": SERVICE, "namespace": namespace}},
        });
        if let Some(bundle) = bundle {
            object["spec"]["caBundle"] = json!(ByteString(bundle.as_bytes().to_vec()));
        }
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test]
    async fn bundle_of_own_api_services_is_replaced_if_different() {
        for (namespace, bundle, held, patched) in [
            ("drydock", None, Some(&b""[..]), true),
            ("drydock", Some("old"), Some(b"old"), true),
            ("drydock", Some("new"), Some(b"new"), false),
            ("elsewhere", Some("theirs"), None, false),
        ] {
            let object = api_service(namespace, bundle);
            assert_eq!(bundle_of(&object, "drydock").as_deref(), held, "{namespace} {bundle:?}");
            let (client, mut server) = api_server();
            let objects = [std::sync::Arc::new(object)];
            let publish = publish_to_api_services(&client, &objects, "drydock", b"new");
            let serve = async {
                if !patched {
                    return;
                }
                let request = server.next_request().await;
                assert!(
                    request.path().ends_with("/apiservices/v1.subresources.kubevirt.io"),
                    "{}",
                    request.path()
                );
                let expected = json!({"metadata": {"resourceVersion": "7"}, "spec": {"caBundle": "bmV3"}});
                assert_eq!(request.body, expected);
                request.with(&json!(objects[0]));
            };
            let (published, ()) = tokio::join!(publish, serve);
            published.unwrap();
        }
    }

    fn configuration() -> ValidatingWebhookConfiguration {
        let ours = |name: &str, bundle: Option<&str>| {
            let mut client = json!({"service": {"name": SERVICE, "namespace": "drydock", "path": "/validate/x"}});
            if let Some(bundle) = bundle {
                client["caBundle"] = json!(ByteString(bundle.as_bytes().to_vec()));
            }
            json!({"name": name, "clientConfig": client, "admissionReviewVersions": ["v1"], "sideEffects": "None"})
        };
        let mut foreign = ours("foreign.example.org", Some("their bundle"));
        foreign["clientConfig"]["service"]["namespace"] = json!("elsewhere");
        let object = json!({
            "metadata": {"name": CONFIGURATION, "resourceVersion": "7"},
            "webhooks": [ours("a.drydock.dev", None), ours("b.drydock.dev", Some("bundle")), foreign],
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test]
    async fn object_that_refuses_the_bundle_holds_up_no_other() {
        let (mut first, second) = (configuration(), configuration());
        first.metadata.name = Some("refusing".into());
        let objects = [std::sync::Arc::new(first), std::sync::Arc::new(second)];
        let (client, mut server) = api_server();
        let serve = async {
            let refused = server.next_request().await;
            assert!(refused.path().ends_with("/refusing"), "{}", refused.path());
            refused.refuse(403, "Forbidden");
            let patched = server.next_request().await;
            assert!(patched.path().ends_with(CONFIGURATION), "{}", patched.path());
            patched.with(&json!(objects[1]));
        };
        let publish = publish(&client, &objects, "drydock", b"new");
        let (published, ()) = tokio::join!(publish, serve);
        assert!(published.is_err());
    }

    #[test]
    fn bundles_of_own_webhooks_are_replaced_if_different() {
        let object = configuration();
        assert_eq!(object.bundles("drydock"), [b"".to_vec(), b"bundle".to_vec()]);
        let patch = object.patch("drydock", b"bundle").unwrap();
        let expected = json!({
            "metadata": {"resourceVersion": "7"},
            "webhooks": [{"name": "a.drydock.dev", "clientConfig": {"caBundle": "YnVuZGxl"}}],
        });
        assert_eq!(patch, expected);
        assert_eq!(
            object.patch("drydock", b"new").unwrap()["webhooks"]
                .as_array()
                .unwrap()
                .len(),
            2
        );
        assert_eq!(object.patch("nowhere", b"new"), None);
        let mut well = object;
        for webhook in well.webhooks.iter_mut().flatten() {
            webhook.client_config.ca_bundle = Some(ByteString(b"bundle".to_vec()));
        }
        assert_eq!(well.patch("drydock", b"bundle"), None);
    }
}
