//! The identity of one side of a migration: a key that is generated for this migration only, and known to the other
//! side by its certificate's fingerprint.
//!
//! There is no certificate authority and nothing to renew. Each side accepts exactly one certificate, whatever its
//! fields contain. The signature in the handshake, which rustls verifies, proves that the other side holds the key.
//! Keys exist only in memory, and are dropped with the session.

use std::{fmt, str::FromStr, sync::Arc};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms, ring as ring_provider},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    server::{
        NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};
use thiserror::Error;

/// Suffix of sessions' server names: `<UID of the migration>.migration.drydock.dev`.
const DOMAIN: &str = ".migration.drydock.dev";

/// Protocols above TLS (ALPN, RFC 7301), in order of preference. The handshake selects the first of the target's
/// protocols that the source offers too, and fails if there is none. A later version also offers this one, for as
/// long as nodes of both versions are in a cluster.
const PROTOCOLS: [&[u8]; 1] = [b"drydock-migration/1"];

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint([u8; SHA256_OUTPUT_LEN]);

impl Fingerprint {
    /// Returns the fingerprint of a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The text is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a fingerprint is the 64 hexadecimal digits of a SHA-256")]
pub(super) struct NoFingerprint;

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NoFingerprint);
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| NoFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

/// Returns the server name by which a target's tunnel finds the session of a connection.
pub(super) fn server_name(migration: &str) -> String {
    format!("{migration}{DOMAIN}")
}

/// Returns the migration that a server name contains.
pub(super) fn migration_of(server_name: &str) -> Option<&str> {
    server_name.strip_suffix(DOMAIN)
}

/// Why an identity could not be created or used.
#[derive(Debug, Error)]
pub(super) enum IdentityError {
    /// The key pair or its certificate could not be created.
    #[error("could not make a key pair and its certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS could not be set up with it.
    #[error("could not set up TLS")]
    Tls(#[from] Error),
}

/// A key pair and its certificate, generated for one session.
#[derive(Debug)]
pub(super) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    fingerprint: Fingerprint,
}

impl Identity {
    /// Generates an identity for a migration.
    ///
    /// # Errors
    /// If the machine provides no random numbers.
    pub(super) fn new(migration: &str) -> Result<Self, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = CertificateParams::new([server_name(migration)])?.self_signed(&key)?;
        Ok(Self {
            fingerprint: Fingerprint::of(certificate.der()),
            certificate: certificate.der().clone(),
            key: PrivatePkcs8KeyDer::from(key.serialize_der()),
        })
    }

    /// Returns the fingerprint by which the other side knows this identity.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the configuration with which a target accepts only the source with this fingerprint.
    ///
    /// # Errors
    /// If rustls cannot use the key.
    pub(super) fn server(&self, peer: Fingerprint) -> Result<Arc<ServerConfig>, IdentityError> {
        let (provider, pinned) = pinned(peer);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(pinned)
            .with_single_cert(vec![self.certificate.clone()], self.key())?;
        // No resumption: each connection has to prove its identity.
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
    pub(super) fn client(&self, peer: Fingerprint) -> Result<Arc<ClientConfig>, IdentityError> {
        let (provider, pinned) = pinned(peer);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_auth_cert(vec![self.certificate.clone()], self.key())?;
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        config.alpn_protocols = protocols();
        Ok(Arc::new(config))
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }
}

fn protocols() -> Vec<Vec<u8>> {
    PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect()
}

fn pinned(peer: Fingerprint) -> (Arc<CryptoProvider>, Arc<Pinned>) {
    let provider = ring_provider::default_provider();
    let algorithms = provider.signature_verification_algorithms;
    (Arc::new(provider), Arc::new(Pinned { peer, algorithms }))
}

/// Accepts exactly one certificate. Ignores names and dates in it, because it was created for this session.
#[derive(Debug)]
struct Pinned {
    peer: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if Fingerprint::of(certificate) == self.peer {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }
}

/// Returns the error for any use of TLS 1.2, which is disabled.
fn no_tls12() -> Error {
    Error::General("TLS 1.2 is not spoken here".to_owned())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_64_hexadecimal_digits() {
        let identity = Identity::new("0f9a3c1e-6d1b-4c55-9a51-7d1c6a1f2b3c").unwrap();
        let text = identity.fingerprint().to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse(), Ok(identity.fingerprint()));
        assert_eq!(text.to_uppercase().parse(), Ok(identity.fingerprint()));
        for bad in [
            "",
            "00",
            &text[1..],
            &format!("{text}0"),
            &text.replace(&text[..1], "g"),
            &"é".repeat(32),
        ] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(NoFingerprint), "{bad}");
        }
        assert_ne!(
            Identity::new("0").unwrap().fingerprint(),
            Identity::new("0").unwrap().fingerprint()
        );
    }

    #[test]
    fn a_session_is_named_after_its_migration() {
        assert_eq!(server_name("0-1"), "0-1.migration.drydock.dev");
        assert_eq!(migration_of("0-1.migration.drydock.dev"), Some("0-1"));
        assert_eq!(migration_of("migration.drydock.dev"), None);
        assert_eq!(migration_of("0-1.migration.drydock.dev.example.org"), None);
    }
}
