//! Reads certificates, keys and bundles, as far as they are usable. None of this input is trusted.

use std::{collections::BTreeMap, sync::Arc};

use drydock_core::certificates::{Authority, HeldCertificates, Id, Serving};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use rcgen::{KeyPair, PublicKeyData};
use rustls::{
    crypto::ring::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, parse_x509_certificate};

use super::{BUNDLE, CERTIFICATE, KEY, SIGNER_KEY, made::AUTHORITY_NAME};

/// Reason why a part of the Secret is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unusable {
    /// The Secret does not have the key.
    Missing,
    /// The value is not PEM, or contains no valid certificate or private key.
    Unreadable,
    /// The private key does not belong to the certificate.
    KeyOfAnotherCertificate,
    /// No known authority of Drydock has signed the certificate.
    UnknownAuthority,
    /// The certificate is for other names.
    OtherNames,
    /// The certificate is valid for servers only, as in earlier versions.
    OtherUse,
}

impl Unusable {
    /// Returns the CamelCase reason.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Missing => "Missing",
            Self::Unreadable => "Unreadable",
            Self::KeyOfAnotherCertificate => "KeyOfAnotherCertificate",
            Self::UnknownAuthority => "UnknownAuthority",
            Self::OtherNames => "OtherNames",
            Self::OtherUse => "OtherUse",
        }
    }

    /// Returns the human-readable reason.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Missing => "a required key of the Secret is missing",
            Self::Unreadable => "a certificate or private key cannot be parsed or is of the wrong kind",
            Self::KeyOfAnotherCertificate => "the private key does not belong to the certificate",
            Self::UnknownAuthority => "no known authority has signed the certificate",
            Self::OtherNames => "the certificate is not valid for the names of the Service",
            Self::OtherUse => "the certificate is valid for servers only, but agents require a client certificate",
        }
    }
}

/// A certificate with its key, ready to be served.
#[derive(Debug)]
pub(crate) struct Servable {
    /// Properties of the certificate.
    pub(super) facts: Serving,
    /// Certificate as in the Secret.
    pub(super) certificate: Vec<u8>,
    /// Private key of the certificate, as in the Secret.
    pub(super) key: Vec<u8>,
    /// Certificate and private key for TLS.
    pub(super) certified: Arc<CertifiedKey>,
}

/// The contents of a Secret.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    /// Usable certificates.
    pub(super) held: HeldCertificates,
    /// Private key of the signing authority.
    pub(super) signer_key: Option<String>,
    /// Certificate to serve.
    pub(super) serving: Option<Arc<Servable>>,
    /// Parts that are not usable, each with the reason.
    pub(super) unusable: Vec<(&'static str, Unusable)>,
}

/// Reads a Secret; `None` means that it does not exist. Its certificate may be signed by an authority of the Secret or
/// by one of `others`.
pub(super) fn secret<'a>(
    data: Option<&BTreeMap<String, ByteString>>,
    names: &[String],
    others: impl Iterator<Item = &'a Authority>,
) -> Contents {
    let mut contents = Contents::default();
    let Some(data) = data else {
        return contents;
    };
    let value = |key: &str| data.get(key).map(|value| value.0.as_slice());
    contents.held.bundle = value(BUNDLE).map(|pem| bundle(pem).0).unwrap_or_default();
    match signer(value(BUNDLE), value(SIGNER_KEY)) {
        Ok((signer, key)) => (contents.held.signer, contents.signer_key) = (Some(signer), Some(key)),
        Err(why) => contents.unusable.push((SIGNER_KEY, why)),
    }
    let mut authorities = contents.held.bundle.clone();
    authorities.extend(others.cloned());
    match servable(value(CERTIFICATE), value(KEY), names, &authorities) {
        Ok(servable) => {
            contents.held.serving = Some(servable.facts.clone());
            contents.serving = Some(Arc::new(servable));
        }
        Err(why) => contents.unusable.push((CERTIFICATE, why)),
    }
    contents
}

/// Returns Drydock's authorities in a bundle, and whether the bundle has other content.
pub(super) fn bundle(pem: &[u8]) -> (Vec<Authority>, bool) {
    let mut authorities: Vec<Authority> = Vec::new();
    let mut has_foreign = false;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        match certificate.ok().as_ref().and_then(authority) {
            Some(authority) if !authorities.contains(&authority) => authorities.push(authority),
            _ => has_foreign = true,
        }
    }
    (authorities, has_foreign)
}

fn authority(der: &CertificateDer<'_>) -> Option<Authority> {
    let certificate = whole(der)?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    let ours = name.starts_with(AUTHORITY_NAME) && certificate.is_ca();
    if !ours || certificate.verify_signature(None).is_err() {
        return None;
    }
    let (from, until) = validity(&certificate)?;
    Some(Authority {
        id: Id::new(der),
        from,
        until,
    })
}

/// Returns the first authority of a bundle with its private key, if the key belongs to it.
fn signer(bundle: Option<&[u8]>, key: Option<&[u8]>) -> Result<(Authority, String), Unusable> {
    let (bundle, key) = bundle.zip(key).ok_or(Unusable::Missing)?;
    let first = CertificateDer::from_pem_slice(bundle).map_err(|_| Unusable::Unreadable)?;
    let authority = authority(&first).ok_or(Unusable::Unreadable)?;
    let key = str::from_utf8(key).map_err(|_| Unusable::Unreadable)?;
    let pair = KeyPair::from_pem(key).map_err(|_| Unusable::Unreadable)?;
    let certificate = whole(&first).ok_or(Unusable::Unreadable)?;
    if certificate.public_key().raw != pair.subject_public_key_info() {
        return Err(Unusable::KeyOfAnotherCertificate);
    }
    Ok((authority, key.to_owned()))
}

fn servable(
    certificate: Option<&[u8]>,
    key: Option<&[u8]>,
    names: &[String],
    authorities: &[Authority],
) -> Result<Servable, Unusable> {
    let (pem, key) = certificate.zip(key).ok_or(Unusable::Missing)?;
    let der = CertificateDer::from_pem_slice(pem).map_err(|_| Unusable::Unreadable)?;
    let private = PrivateKeyDer::from_pem_slice(key).map_err(|_| Unusable::Unreadable)?;
    let signing = any_supported_type(&private).map_err(|_| Unusable::Unreadable)?;
    let certified = CertifiedKey::new(vec![der.clone()], signing);
    let parsed = whole(&der).ok_or(Unusable::Unreadable)?;
    certified.keys_match().map_err(|_| Unusable::KeyOfAnotherCertificate)?;
    let alternatives = parsed.subject_alternative_name().ok().flatten();
    let has = |name: &String| {
        let is = |general: &GeneralName<'_>| matches!(general, GeneralName::DNSName(dns) if *dns == name.as_str());
        alternatives
            .as_ref()
            .is_some_and(|names| names.value.general_names.iter().any(is))
    };
    if !names.iter().all(has) {
        return Err(Unusable::OtherNames);
    }
    let usage = parsed.extended_key_usage().ok().flatten();
    if !usage.is_some_and(|usage| usage.value.server_auth && usage.value.client_auth) {
        return Err(Unusable::OtherUse);
    }
    let signed_by = |authority: &&Authority| {
        let issuer = parse_x509_certificate(authority.id.der());
        issuer.is_ok_and(|(_, issuer)| {
            issuer.subject() == parsed.issuer() && parsed.verify_signature(Some(issuer.public_key())).is_ok()
        })
    };
    let authority = authorities.iter().find(signed_by).ok_or(Unusable::UnknownAuthority)?;
    let (from, until) = validity(&parsed).ok_or(Unusable::Unreadable)?;
    let facts = Serving {
        id: Id::new(&der),
        authority: authority.id.clone(),
        from,
        until,
    };
    Ok(Servable {
        facts,
        certificate: pem.to_vec(),
        key: key.to_vec(),
        certified: Arc::new(certified),
    })
}

/// Parses a certificate that has no data after it.
fn whole<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, certificate) = parse_x509_certificate(der).ok()?;
    rest.is_empty().then_some(certificate)
}

fn validity(certificate: &X509Certificate<'_>) -> Option<(Timestamp, Timestamp)> {
    let validity = certificate.validity();
    let at = |time: i64| Timestamp::from_second(time).ok();
    at(validity.not_before.timestamp()).zip(at(validity.not_after.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::made;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(2_000_000_000 + seconds).unwrap()
    }

    fn data(entries: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
            .collect()
    }

    fn names() -> Vec<String> {
        vec!["drydock-webhooks.drydock.svc".to_owned()]
    }

    #[test]
    fn created_certificates_are_read_back_unchanged() {
        let (authority, ca) = made::authority(at(0), at(48 * HOUR)).unwrap();
        let leaf = made::serving(at(0), at(24 * HOUR), &names(), &authority.id, &ca.key).unwrap();
        let data = data(&[
            (BUNDLE, &ca.certificate),
            (SIGNER_KEY, &ca.key),
            (CERTIFICATE, &leaf.certificate),
            (KEY, &leaf.key),
        ]);
        let contents = secret(Some(&data), &names(), [].iter());
        assert!(contents.unusable.is_empty(), "{:?}", contents.unusable);
        assert_eq!(contents.held.signer.as_ref(), Some(&authority));
        assert_eq!(contents.held.bundle, std::slice::from_ref(&authority));
        let serving = contents.held.serving.unwrap();
        assert_eq!(serving.authority, authority.id);
        assert_eq!((serving.from, serving.until), (at(-HOUR), at(24 * HOUR)));
    }

    #[test]
    fn unusable_certificates_are_explained_and_others_used() {
        let (authority, ca) = made::authority(at(0), at(48 * HOUR)).unwrap();
        let (_, other) = made::authority(at(0), at(48 * HOUR)).unwrap();
        let leaf = made::serving(at(0), at(24 * HOUR), &names(), &authority.id, &ca.key).unwrap();
        let elsewhere = vec!["elsewhere.drydock.svc".to_owned()];
        let foreign = made::serving(at(0), at(24 * HOUR), &elsewhere, &authority.id, &ca.key).unwrap();
        let read = |changes: &[(&str, Option<&str>)]| {
            let mut data = data(&[
                (BUNDLE, &ca.certificate),
                (SIGNER_KEY, &ca.key),
                (CERTIFICATE, &leaf.certificate),
                (KEY, &leaf.key),
            ]);
            for (key, value) in changes {
                data.remove(*key);
                if let Some(value) = value {
                    data.insert((*key).to_owned(), ByteString(value.as_bytes().to_vec()));
                }
            }
            secret(Some(&data), &names(), [].iter())
        };
        for (changes, expected) in [
            (vec![(SIGNER_KEY, None)], vec![(SIGNER_KEY, Unusable::Missing)]),
            (
                vec![(SIGNER_KEY, Some("garbage"))],
                vec![(SIGNER_KEY, Unusable::Unreadable)],
            ),
            (
                vec![(SIGNER_KEY, Some(other.key.as_str()))],
                vec![(SIGNER_KEY, Unusable::KeyOfAnotherCertificate)],
            ),
            (vec![(CERTIFICATE, None)], vec![(CERTIFICATE, Unusable::Missing)]),
            (vec![(KEY, Some("garbage"))], vec![(CERTIFICATE, Unusable::Unreadable)]),
            (
                vec![(KEY, Some(foreign.key.as_str()))],
                vec![(CERTIFICATE, Unusable::KeyOfAnotherCertificate)],
            ),
            (
                vec![
                    (CERTIFICATE, Some(foreign.certificate.as_str())),
                    (KEY, Some(foreign.key.as_str())),
                ],
                vec![(CERTIFICATE, Unusable::OtherNames)],
            ),
            (
                vec![
                    (BUNDLE, Some(other.certificate.as_str())),
                    (SIGNER_KEY, Some(other.key.as_str())),
                ],
                vec![(CERTIFICATE, Unusable::UnknownAuthority)],
            ),
            (
                vec![(BUNDLE, Some(leaf.certificate.as_str()))],
                vec![
                    (SIGNER_KEY, Unusable::Unreadable),
                    (CERTIFICATE, Unusable::UnknownAuthority),
                ],
            ),
        ] {
            let contents = read(&changes);
            assert_eq!(contents.unusable, expected, "{changes:?}");
            let lost_signer = expected.iter().any(|(key, _)| *key == SIGNER_KEY);
            assert_eq!(contents.held.signer.is_none(), lost_signer);
            let lost_serving = expected.iter().any(|(key, _)| *key == CERTIFICATE);
            assert_eq!(contents.serving.is_none(), lost_serving);
        }
        let lost = read(&[(BUNDLE, Some("garbage"))]);
        assert!(lost.held.bundle.is_empty() && lost.serving.is_none());
        let known = secret(
            Some(&data(&[(CERTIFICATE, &leaf.certificate), (KEY, &leaf.key)])),
            &names(),
            [authority].iter(),
        );
        assert!(known.serving.is_some(), "its authority is known from elsewhere");
    }

    #[test]
    fn only_drydock_authorities_are_read_from_a_bundle() {
        let (authority, ca) = made::authority(at(0), at(48 * HOUR)).unwrap();
        let leaf = made::serving(at(0), at(24 * HOUR), &names(), &authority.id, &ca.key).unwrap();
        assert_eq!(bundle(ca.certificate.as_bytes()), (vec![authority.clone()], false));
        assert_eq!(bundle(b""), (Vec::new(), false));
        let mixed = format!("{}{}", leaf.certificate, ca.certificate);
        assert_eq!(bundle(mixed.as_bytes()), (vec![authority.clone()], true));
        let twice = format!("{0}{0}", ca.certificate);
        assert_eq!(bundle(twice.as_bytes()), (vec![authority], true));
        let cut = &ca.certificate[..ca.certificate.len() / 2];
        assert_eq!(bundle(cut.as_bytes()), (Vec::new(), true));
    }
}
