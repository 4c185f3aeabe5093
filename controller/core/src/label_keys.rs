//! Validation of Kubernetes label keys.

/// Returns whether Kubernetes accepts `key`: an optional DNS subdomain prefix of at most 253 characters and a slash,
/// then a name of 1 to 63 characters that begins and ends with a letter or digit and contains only letters, digits,
/// `-`, `_` and `.` (apimachinery `IsQualifiedName`).
pub fn is_valid(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_subdomain(prefix: &str) -> bool {
    prefix.len() <= 253
        && prefix.split('.').all(|part| {
            let bytes = part.as_bytes();
            let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
            bytes.first().is_some_and(inner)
                && bytes.last().is_some_and(inner)
                && bytes.iter().all(|b| inner(b) || *b == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_judged_as_the_api_server_does() {
        let long = format!("a.b/{}", "x".repeat(63));
        let too_long = format!("a.b/{}", "x".repeat(64));
        for good in [
            "a",
            "cpu-model.node.kubevirt.io/Haswell-noTSX",
            "x.y/sse4.1",
            "x/a_b",
            long.as_str(),
        ] {
            assert!(is_valid(good), "{good}");
        }
        for bad in [
            "",
            "x/",
            "/x",
            "x.y/a b",
            "x.y/-a",
            "x.y/a.",
            "X.y/a",
            "x..y/a",
            "x/y/z",
            "x.y/ä",
            too_long.as_str(),
        ] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
