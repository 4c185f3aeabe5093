//! Creates certificates and their keys. They use ECDSA on P-256, which every TLS client supports.

use std::time::Duration;

use drydock_core::certificates::{Authority, Id};
use jiff::Timestamp;
use pem::{EncodeConfig, LineEnding, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use thiserror::Error;

/// Prefix of the names of Drydock's authorities. The time of their creation follows.
pub(super) const AUTHORITY_NAME: &str = "drydock-webhooks@";
/// Time before its creation from which a certificate is valid, because clocks differ.
const BACKDATED: Duration = Duration::from_secs(3600);

/// Error: a certificate cannot be created.
#[derive(Debug, Error)]
#[error("could not create {what}")]
pub(crate) struct MakeError {
    what: &'static str,
    source: rcgen::Error,
}

/// A certificate and its key as PEM, as the Secret contains them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Creates an authority.
pub(super) fn authority(now: Timestamp, until: Timestamp) -> Result<(Authority, Made), MakeError> {
    let failed = |source| MakeError {
        what: "a certificate authority",
        source,
    };
    let mut parameters = parameters(now, until);
    parameters.distinguished_name = name(&format!("{AUTHORITY_NAME}{}", now.as_millisecond()));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = parameters.self_signed(&key).map_err(failed)?;
    let authority = Authority {
        id: Id::new(certificate.der()),
        from: begin(now),
        until,
    };
    let made = Made {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    };
    Ok((authority, made))
}

/// Creates a certificate to serve under these names. An authority with this key signs it.
pub(super) fn serving(
    now: Timestamp,
    until: Timestamp,
    names: &[String],
    signer: &Id,
    signer_key: &str,
) -> Result<Made, MakeError> {
    let failed = |source| MakeError {
        what: "a serving certificate",
        source,
    };
    let signer_key = KeyPair::from_pem(signer_key).map_err(failed)?;
    let issuer = Issuer::from_ca_cert_der(&CertificateDer::from(signer.der()), signer_key).map_err(failed)?;
    let mut parameters = CertificateParams::new(names).map_err(failed)?;
    let CertificateParams {
        not_before, not_after, ..
    } = self::parameters(now, until);
    (parameters.not_before, parameters.not_after) = (not_before, not_after);
    parameters.distinguished_name = name(names.first().map_or("drydock-webhooks", String::as_str));
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Agents authenticate controllers as clients with this certificate.
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = parameters.signed_by(&key, &issuer).map_err(failed)?;
    Ok(Made {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn parameters(now: Timestamp, until: Timestamp) -> CertificateParams {
    let at = |time: Timestamp| {
        let seconds = u64::try_from(time.as_second()).unwrap_or_default();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    let mut parameters = CertificateParams::default();
    (parameters.not_before, parameters.not_after) = (at(begin(now)), at(until));
    parameters
}

/// Returns the time from which a certificate created now is valid, in whole seconds.
fn begin(now: Timestamp) -> Timestamp {
    let begin = now.checked_sub(BACKDATED).unwrap_or(Timestamp::UNIX_EPOCH);
    Timestamp::from_second(begin.as_second()).unwrap_or(begin)
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

/// Returns a certificate as PEM.
pub(super) fn pem(der: &[u8]) -> String {
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", der), lines)
}
