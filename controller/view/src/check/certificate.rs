//! Reads the expiry of certificates. Only the necessary part of X.509 is implemented.

use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde::{
    Deserialize as _,
    de::value::{Error, StrDeserializer},
};

/// DER tags (ITU-T X.690).
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Tag of the version field of a certificate (RFC 5280, 4.1). Certificates of version 1 do not have this field.
const VERSION: u8 = 0xa0;
/// Number of fields between the version and the validity of a certificate: serial number, signature algorithm, issuer.
const BEFORE_VALIDITY: usize = 3;

/// Returns the expiry times of the certificates in a PEM bundle. Blocks that cannot be parsed are left out.
pub(super) fn ends(bundle: &[u8]) -> Vec<Timestamp> {
    let bundle = String::from_utf8_lossy(bundle);
    let blocks = bundle.split("-----BEGIN CERTIFICATE-----").skip(1);
    let blocks = blocks.filter_map(|block| block.split("-----END CERTIFICATE-----").next());
    blocks.filter_map(|block| end(&decoded(block)?)).collect()
}

/// Decodes base64 that may contain line breaks.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    let deserializer = StrDeserializer::<Error>::new(&text);
    Some(ByteString::deserialize(deserializer).ok()?.0)
}

/// Returns the expiry time of a certificate in DER encoding.
fn end(der: &[u8]) -> Option<Timestamp> {
    let (SEQUENCE, certificate, _) = element(der)? else {
        return None;
    };
    let (SEQUENCE, mut rest, _) = element(certificate)? else {
        return None;
    };
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    for _ in 0..BEFORE_VALIDITY {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, _) = element(rest)? else {
        return None;
    };
    let (_, _, after) = element(validity)?;
    let (tag, text, _) = element(after)?;
    let text = str::from_utf8(text).ok()?;
    let digits = match tag {
        // `UTCTime` has two digits for the year, up to 2049 (RFC 5280, 4.1.2.5.1).
        UTC_TIME if text.get(..2)? < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let part = |range| digits.get(range);
    let time = format!(
        "{}-{}-{}T{}:{}:{}Z",
        part(0..4)?,
        part(4..6)?,
        part(6..8)?,
        part(8..10)?,
        part(10..12)?,
        part(12..14)?
    );
    time.parse().ok()
}

/// Splits off the first DER element. Returns its tag, its content and the remaining bytes.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        // A longer length field would mean a certificate of more than 4 GiB.
        let bytes = bytes.len().le(&4).then_some(bytes)?;
        (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::fixture::AUTHORITY;

    /// A certificate of version 1, which has no version field.
    const FIRST_VERSION: &str = "\
-----BEGIN CERTIFICATE-----
MIIBCzCBsgIBATAKBggqhkjOPQQDAjASMRAwDgYDVQQDDAdkcnlkb2NrMB4XDTI2
MTEyNzEyMDAwMFoXDTI2MTEyOTEyMDAwMFowEjEQMA4GA1UEAwwHZHJ5ZG9jazBZ
MBMGByqGSM49AgEGCCqGSM49AwEHA0IABEjXhh7WNYiuXuQ5+1NrORF9qX9VJdMs
s4JQAlCPFnXMO1eTa7Dge5Grqim3yFkkEDOZDxmLS9SOq9KSpNxKMb0wCgYIKoZI
zj0EAwIDSAAwRQIhANpW1Y5L5MGLiABmkrRr7g7VXVFwFIm5HyoQfRUYo0waAiAz
2QKfS1NnT18hf4qrsvKcfCRVHTIzCuVNyv6jyajfcQ==
-----END CERTIFICATE-----
";

    #[test]
    fn ends_of_all_certificates_are_read_and_garbage_is_not() {
        let one: Timestamp = "2026-11-29T12:00:00Z".parse().unwrap();
        let two = format!("{AUTHORITY}{AUTHORITY}");
        let cut: String = AUTHORITY.lines().take(2).collect::<Vec<_>>().join("\n");
        for (bundle, expected) in [
            (AUTHORITY, vec![one]),
            (FIRST_VERSION, vec![one]),
            (two.as_str(), vec![one, one]),
            ("", vec![]),
            ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", vec![]),
            (cut.as_str(), vec![]),
        ] {
            assert_eq!(ends(bundle.as_bytes()), expected, "{bundle}");
        }
    }

    #[test]
    fn certificate_that_is_cut_anywhere_has_no_end() {
        let der = decoded(
            AUTHORITY
                .lines()
                .filter(|line| !line.starts_with('-'))
                .collect::<String>()
                .as_str(),
        )
        .unwrap();
        assert!(end(&der).is_some());
        for length in 0..der.len() {
            assert_eq!(end(&der[..length]), None, "{length}");
        }
    }
}
