//! Identity of this process, and trust in controllers.

use std::sync::Arc;

use drydock_api::node_api::TRUST_ANCHOR;
use drydock_runtime::{CacheChange, Watch, WatchStarter, chain, pinned_tls::CertificateFingerprint};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use parking_lot::RwLock;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use thiserror::Error;
use tracing::warn;

/// Name in the certificate, which controllers ignore.
const NAME: &str = "agent.drydock.dev";

/// Error: the certificate of the process could not be created.
#[derive(Debug, Error)]
#[error("could not generate a key pair and its certificate")]
pub(crate) struct OwnCertificateError(#[from] rcgen::Error);

/// Reason why controllers cannot be verified.
#[derive(Debug, Error)]
enum ControllerTrustError {
    #[error("the CA bundle of the APIService {TRUST_ANCHOR} is not valid PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("a CA certificate of the APIService {TRUST_ANCHOR} is invalid")]
    Authority(#[source] rustls::Error),
    #[error("clients cannot be verified with the CA certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("could not set up TLS")]
    Tls(#[from] rustls::Error),
}

/// Identity of the process, and the controllers that it trusts. Clones share one state.
#[derive(Clone, Debug)]
pub(super) struct ControllerTrust(Arc<ServerIdentity>);

#[derive(Debug)]
struct ServerIdentity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    current: RwLock<TrustedBundle>,
}

#[derive(Debug, Default)]
struct TrustedBundle {
    bundle: Vec<u8>,
    /// TLS configuration for the bundle; `None` if no controller is trusted.
    config: Option<Arc<ServerConfig>>,
}

impl ControllerTrust {
    /// Creates an identity. Trusts the controllers that API servers trust, once the watch shows their bundle.
    ///
    /// # Errors
    /// If the machine provides no random numbers.
    pub(super) fn start(client: &Client, watches: &WatchStarter) -> Result<Self, OwnCertificateError> {
        let trust = Self::new()?;
        let follower = trust.clone();
        let watch = Watch::<APIService>::one(client.clone(), TRUST_ANCHOR, "authorities of controllers")
            .optional()
            .prune(|object| object.status = None)
            .on_change(move |change| {
                if let CacheChange::Object { new, .. } = change {
                    let spec = new.as_ref().and_then(|object| object.spec.as_ref());
                    let bundle = spec.and_then(|spec| spec.ca_bundle.as_ref());
                    follower.follow(bundle.map(|bundle| bundle.0.as_slice()).unwrap_or_default());
                }
            });
        watches.start(watch);
        Ok(trust)
    }

    /// Creates an identity that trusts no controller.
    ///
    /// # Errors
    /// If the machine provides no random numbers.
    pub(super) fn new() -> Result<Self, OwnCertificateError> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([NAME.to_owned()])?;
        Ok(Self(Arc::new(ServerIdentity {
            certificate: cert.into(),
            key: signing_key.into(),
            current: RwLock::default(),
        })))
    }

    /// Returns the fingerprint by which controllers know this process.
    pub(super) fn fingerprint(&self) -> CertificateFingerprint {
        CertificateFingerprint::of(&self.0.certificate)
    }

    /// Trusts the authorities of a bundle from now on. If the bundle is empty or invalid, no controller is trusted.
    pub(super) fn follow(&self, bundle: &[u8]) {
        let mut current = self.0.current.write();
        if current.bundle == bundle {
            return;
        }
        current.bundle = bundle.to_vec();
        current.config = self.config_of(bundle).unwrap_or_else(|error| {
            warn!(error = %chain(&error), "controllers cannot be verified");
            None
        });
    }

    /// Returns the TLS configuration of the next handshake; `None` if no controller is trusted.
    pub(super) fn config(&self) -> Option<Arc<ServerConfig>> {
        let current = self.0.current.read();
        current.config.clone()
    }

    fn config_of(&self, bundle: &[u8]) -> Result<Option<Arc<ServerConfig>>, ControllerTrustError> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(bundle) {
            let authority = authority.map_err(ControllerTrustError::Pem)?;
            roots.add(authority).map_err(ControllerTrustError::Authority)?;
        }
        if roots.is_empty() {
            return Ok(None);
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.0.certificate.clone()], self.0.key.clone_key())?;
        // Resumption is disabled: each connection is verified by the authorities that are current at that time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Some(Arc::new(config)))
    }
}
