//! Encoding of names in URLs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that are encoded in a path segment: all except the unreserved characters of RFC 3986, section 2.3.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a name as a path segment.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string()
}
