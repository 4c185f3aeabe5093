//! Writes of the Secret.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ObjectMeta};

use super::certificate_keeper::Data;
use crate::requests::writing;

/// Writes the Secret with this name if it has not changed since it was `seen`. Creates the Secret if it did not exist,
/// otherwise replaces it. The API server refuses the request (409) if the Secret has changed.
pub(super) async fn write(api: &Api<Secret>, name: &str, seen: Option<&Secret>, data: Data) -> kube::Result<()> {
    let parameters = writing();
    match seen {
        None => {
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(name.into()),
                    ..ObjectMeta::default()
                },
                data: Some(data),
                // The type is not `kubernetes.io/tls`, because the API server refuses Secrets of that type without both
                // of its keys, and the type of a Secret cannot be changed.
                type_: Some("Opaque".into()),
                ..Secret::default()
            };
            api.create(&parameters, &secret).await.map(drop)
        }
        Some(seen) => {
            let mut secret = seen.clone();
            secret.data = Some(data);
            api.replace(name, &parameters, &secret).await.map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SECRET;
    use drydock_runtime::fake::api_server;
    use k8s_openapi::ByteString;
    use serde_json::{Value, json};

    use super::*;

    /// Writes to an API server that returns what it receives. Returns the request's method, path and body.
    async fn written_request(seen: Option<Secret>) -> (String, String, Value) {
        let (client, mut server) = api_server();
        let api = Api::<Secret>::namespaced(client, "drydock");
        let data = Data::from([("tls.crt".to_owned(), ByteString(b"x".to_vec()))]);
        let serve = async {
            let request = server.next_request().await;
            let seen = (
                request.method.to_string(),
                request.path().to_owned(),
                request.body.clone(),
            );
            request.with(&seen.2);
            seen
        };
        let (written, recorded) = tokio::join!(write(&api, SECRET, seen.as_ref(), data), serve);
        written.unwrap();
        recorded
    }

    #[tokio::test]
    async fn a_secret_that_is_not_there_is_made() {
        let (method, path, body) = written_request(None).await;
        assert_eq!(
            (method.as_str(), path.as_str()),
            ("POST", "/api/v1/namespaces/drydock/secrets")
        );
        assert_eq!(body["data"], json!({"tls.crt": "eA=="}));
        assert_eq!(body["metadata"]["name"], SECRET);
        assert_eq!(body["type"], "Opaque");
    }

    #[tokio::test]
    async fn existing_secret_is_replaced_at_the_seen_version() {
        let seen = json!({
            "metadata": {"name": SECRET, "namespace": "drydock", "resourceVersion": "5", "labels": {"a": "b"}},
            "data": {"garbage": "eA=="},
            "type": "kubernetes.io/tls",
        });
        let (method, path, body) = written_request(Some(serde_json::from_value(seen).unwrap())).await;
        let expected = format!("/api/v1/namespaces/drydock/secrets/{SECRET}");
        assert_eq!((method.as_str(), path), ("PUT", expected));
        assert_eq!(body["data"], json!({"tls.crt": "eA=="}));
        assert_eq!(body["metadata"]["resourceVersion"], "5");
        assert_eq!(body["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(body["type"], "kubernetes.io/tls");
    }
}
