//! TLS with a peer that is identified by its certificate alone.
//!
//! There is no certificate authority, and no certificate has to be renewed. A process creates a key, and publishes the
//! fingerprint of its certificate in an object that only this process can write. Its peers accept the certificate by
//! this fingerprint, regardless of the certificate's fields. The signature in the handshake, which rustls verifies,
//! proves that the peer holds the key.

use std::{fmt, str::FromStr, sync::Arc};

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms, ring as ring_provider},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use thiserror::Error;

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CertificateFingerprint([u8; SHA256_OUTPUT_LEN]);

impl CertificateFingerprint {
    /// Returns the fingerprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl fmt::Display for CertificateFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CertificateFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The text is not the fingerprint of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a fingerprint must be the 64 hexadecimal digits of a SHA-256 hash")]
pub struct NoFingerprint;

impl FromStr for CertificateFingerprint {
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

/// Accepts exactly one certificate, with TLS 1.3 only. Ignores the names and dates in the certificate.
#[derive(Debug)]
pub struct Pinned {
    peer: CertificateFingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    /// Creates the verifier of a peer, and the crypto provider to use with it.
    pub fn new(peer: CertificateFingerprint) -> (Arc<CryptoProvider>, Arc<Self>) {
        let provider = ring_provider::default_provider();
        let algorithms = provider.signature_verification_algorithms;
        (Arc::new(provider), Arc::new(Self { peer, algorithms }))
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if CertificateFingerprint::of(certificate) == self.peer {
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
    Error::General("TLS 1.2 is disabled".to_owned())
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
    fn fingerprint_is_64_hexadecimal_digits() {
        let fingerprint = CertificateFingerprint::of(&CertificateDer::from(vec![1, 2, 3]));
        let text = fingerprint.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse(), Ok(fingerprint));
        assert_eq!(text.to_uppercase().parse(), Ok(fingerprint));
        for bad in [
            "",
            "00",
            &text[1..],
            &format!("{text}0"),
            &text.replace(&text[..1], "g"),
            &"é".repeat(32),
        ] {
            assert_eq!(bad.parse::<CertificateFingerprint>(), Err(NoFingerprint), "{bad}");
        }
    }
}
