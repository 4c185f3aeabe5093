//! The certificates that identify kube-apiserver, as kube-apiserver publishes them.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::HeaderMap;
use drydock_core::subresources::front_proxy::{CONFIG_MAP, FrontProxy, NAMESPACE, RequestUser};
use drydock_runtime::{CacheChange, Watch, WatchStarter, chain, tls_port};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use parking_lot::RwLock;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
    server::{ResolvesServerCert, WebPkiClientVerifier},
};
use thiserror::Error;
use tracing::warn;
use x509_parser::parse_x509_certificate;

use crate::certificates::ServedCertificate;

/// Clients that the port trusts. Clones share one state.
#[derive(Clone)]
pub(super) struct ClientTrust {
    certificate: Arc<dyn ResolvesServerCert>,
    current: Arc<RwLock<TrustedClients>>,
}

struct TrustedClients {
    proxy: FrontProxy,
    config: Arc<ServerConfig>,
}

#[derive(Debug, Error)]
enum ClientTrustError {
    #[error("the certificate authorities are not valid PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("the certificate of an authority cannot be used as a trust anchor")]
    Authority(#[source] rustls::Error),
    #[error("could not create the verifier of client certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("could not set up TLS")]
    Tls(#[source] rustls::Error),
}

impl ClientTrust {
    /// Trusts no client until the ConfigMap exists, and then the clients in its current version.
    pub(super) fn start(client: &Client, watches: &WatchStarter, certificate: ServedCertificate) -> Self {
        let trust = Self::new(Arc::new(certificate));
        let follower = trust.clone();
        let watch = Watch::<ConfigMap>::namespaced(client.clone(), NAMESPACE, "front proxy client CA")
            .fields(format!("metadata.name={CONFIG_MAP}"))
            .on_change(move |change| {
                if let CacheChange::Object { new, .. } = change {
                    let data = new.as_ref().and_then(|map| map.data.clone()).unwrap_or_default();
                    follower.follow(&data);
                }
            });
        watches.start(watch);
        trust
    }

    /// Creates a state that trusts no client.
    pub(super) fn new(certificate: Arc<dyn ResolvesServerCert>) -> Self {
        let nobody = FrontProxy::default();
        #[expect(
            clippy::expect_used,
            reason = "the provider supports TLS 1.2 and 1.3, and nothing else can fail"
        )]
        let config = config(&nobody, &certificate).expect("a configuration without trust");
        Self {
            certificate,
            current: Arc::new(RwLock::new(TrustedClients {
                proxy: nobody,
                config: Arc::new(config),
            })),
        }
    }

    /// Trusts the clients in the ConfigMap. If its authorities cannot be used, logs a warning and trusts no client.
    pub(super) fn follow(&self, data: &BTreeMap<String, String>) {
        let mut proxy = FrontProxy::read(data);
        if proxy == self.current.read().proxy {
            return;
        }
        let config = config(&proxy, &self.certificate).or_else(|error| {
            warn!(
                configmap = CONFIG_MAP,
                error = %chain(&error),
                "the certificate authorities of the API servers cannot be used, no client is trusted"
            );
            proxy = FrontProxy::default();
            config(&proxy, &self.certificate)
        });
        if let Ok(config) = config {
            *self.current.write() = TrustedClients {
                proxy,
                config: Arc::new(config),
            };
        }
    }

    /// Returns the configuration of the next handshake.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().config)
    }

    /// Returns the user of a request that kube-apiserver has sent: the handshake has verified the client's certificate,
    /// and its name is one of kube-apiserver.
    pub(super) fn user(&self, peer: Option<&CertificateDer<'_>>, headers: &HeaderMap) -> Option<RequestUser> {
        let (_, certificate) = parse_x509_certificate(peer?).ok()?;
        let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
        let current = self.current.read();
        if current.proxy.authorities.is_empty() || !current.proxy.allows(name) {
            return None;
        }
        let texts = headers
            .iter()
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        current.proxy.user(&texts.collect::<Vec<_>>())
    }
}

/// Returns a TLS configuration in which a client certificate is optional. One of the authorities must have signed it.
fn config(proxy: &FrontProxy, certificate: &Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, ClientTrustError> {
    let builder = tls_port::builder().map_err(ClientTrustError::Tls)?;
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(proxy.authorities.as_bytes()) {
        let authority = authority.map_err(ClientTrustError::Pem)?;
        roots.add(authority).map_err(ClientTrustError::Authority)?;
    }
    let builder = if roots.is_empty() {
        builder.with_no_client_auth()
    } else {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), ring::default_provider().into())
            .allow_unauthenticated()
            .build()?;
        builder.with_client_cert_verifier(verifier)
    };
    Ok(tls_port::finish(builder.with_cert_resolver(Arc::clone(certificate))))
}
