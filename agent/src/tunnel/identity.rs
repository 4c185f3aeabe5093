//! Identity of one side of a migration.
//!
//! The identity is a key that is generated for this migration only. The other side knows it by the fingerprint of its
//! certificate.
//!
//! There is no certificate authority and no renewal. Each side accepts exactly one certificate, whatever its fields
//! contain. The signature in the handshake, which rustls verifies, proves that the other side has the key. Keys exist
//! only in memory, and are dropped with the session.

use std::sync::Arc;

use drydock_runtime::pinned_tls::Pinned;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{
    ClientConfig, Error, ServerConfig,
    client::Resumption,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::NoServerSessionStorage,
    version::TLS13,
};
use thiserror::Error;

pub(super) use drydock_runtime::pinned_tls::CertificateFingerprint;

/// Suffix of sessions' server names: `<UID of the migration>.migration.drydock.dev`.
const DOMAIN: &str = ".migration.drydock.dev";

/// Protocols above TLS (ALPN, RFC 7301), in order of preference.
///
/// The handshake selects the first of the target's protocols that the source offers too, and fails if there is none. A
/// later version must also offer this protocol as long as a cluster has nodes of both versions.
const PROTOCOLS: [&[u8]; 1] = [b"drydock-migration/1"];

/// Returns the server name by which a target's tunnel finds the session of a connection.
pub(super) fn server_name(migration: &str) -> String {
    format!("{migration}{DOMAIN}")
}

/// Returns the migration that a server name contains.
pub(super) fn migration_of(server_name: &str) -> Option<&str> {
    server_name.strip_suffix(DOMAIN)
}

/// Reason why an identity could not be created or used.
#[derive(Debug, Error)]
pub(super) enum SessionIdentityError {
    /// The key pair or its certificate could not be created.
    #[error("could not generate a key pair and its certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS could not be set up with the key pair and its certificate.
    #[error("could not set up TLS")]
    Tls(#[from] Error),
}

/// A key pair and its certificate, generated for one session.
#[derive(Debug)]
pub(super) struct SessionIdentity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl SessionIdentity {
    /// Generates an identity for a migration.
    ///
    /// # Errors
    /// If the machine provides no random numbers.
    pub(super) fn new(migration: &str) -> Result<Self, SessionIdentityError> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([server_name(migration)])?;
        Ok(Self {
            certificate: cert.into(),
            key: signing_key.into(),
        })
    }

    /// Returns the fingerprint by which the other side knows this identity.
    pub(super) fn fingerprint(&self) -> CertificateFingerprint {
        CertificateFingerprint::of(&self.certificate)
    }

    /// Returns the configuration with which a target accepts only the source with this fingerprint.
    ///
    /// # Errors
    /// If rustls cannot use the key.
    pub(super) fn server(&self, peer: CertificateFingerprint) -> Result<Arc<ServerConfig>, SessionIdentityError> {
        let (provider, pinned) = Pinned::new(peer);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(pinned)
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        // Resumption is disabled: each connection has to prove its identity.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.alpn_protocols = protocols();
        Ok(Arc::new(config))
    }

    /// Returns the configuration with which a source connects only to the target with this fingerprint.
    ///
    /// # Errors
    /// If rustls cannot use the key.
    pub(super) fn client(&self, peer: CertificateFingerprint) -> Result<Arc<ClientConfig>, SessionIdentityError> {
        let (provider, pinned) = Pinned::new(peer);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.alpn_protocols = protocols();
        Ok(Arc::new(config))
    }
}

fn protocols() -> Vec<Vec<u8>> {
    PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_different() {
        let [one, other] = [(); 2].map(|()| SessionIdentity::new("0").unwrap().fingerprint());
        assert_ne!(one, other);
    }

    #[test]
    fn session_server_name_contains_the_migration() {
        assert_eq!(server_name("0-1"), "0-1.migration.drydock.dev");
        assert_eq!(migration_of("0-1.migration.drydock.dev"), Some("0-1"));
        assert_eq!(migration_of("migration.drydock.dev"), None);
        assert_eq!(migration_of("0-1.migration.drydock.dev.example.org"), None);
    }
}
