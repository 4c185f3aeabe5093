//! Where API servers read which authorities they trust: the bundles of our webhooks.

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::SERVICE;

/// A kind whose objects hold bundles.
pub(super) trait TrustAnchors: ResourceExt {
    /// Its webhooks: the name and how to reach each.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;

    /// The bundles of those webhooks that are ours in `namespace`.
    fn bundles(&self, namespace: &str) -> Vec<Vec<u8>> {
        ours(self.webhooks(), namespace)
            .map(|(_, client)| client.ca_bundle.clone().unwrap_or_default().0)
            .collect()
    }

    /// The patch that puts a bundle where another is; `None`: nowhere is. It names the version that
    /// was looked at: on another it would be refused, rather than bring back what was taken away.
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

/// Puts a bundle into all of our webhooks of these objects that have another.
///
/// A strategic merge patch of the named webhooks alone: what `kubectl apply` wrote stays as it is,
/// and what is written here stays when it is applied again, since manifests do not name the field.
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
    let parameters = PatchParams {
        field_manager: Some(drydock_api::CONTROLLER_FIELD_MANAGER.into()),
        ..PatchParams::default()
    };
    for object in objects {
        let object = object.as_ref();
        if let Some(patch) = object.patch(namespace, bundle) {
            api.patch(&object.name_any(), &parameters, &Patch::Strategic(patch))
                .await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::CONFIGURATION, *};

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

    #[test]
    fn bundles_of_our_own_webhooks_are_read_and_replaced_where_they_differ() {
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
