//! The bearer token of a request.

use std::fmt;

use axum::http::{HeaderMap, header::AUTHORIZATION};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use thiserror::Error;

/// Maximum length of a token in bytes. Tokens of OIDC providers that list hundreds of groups have about 10 KiB.
const LONGEST: usize = 32 << 10;

/// A bearer token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(String);

/// Digest that identifies a token. Comparing digests instead of tokens reveals nothing about a guess by the duration of
/// the comparison.
pub(super) type Digest = [u8; 32];

/// Reason why a request has no usable token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NoToken {
    #[error("the request has no token: the header Authorization with a bearer token is required")]
    Missing,
    #[error("the request has more than one header Authorization")]
    Several,
    #[error("the header Authorization has credentials of another type, and no bearer token")]
    OtherScheme,
    #[error(
        "the token in the header Authorization is empty, longer than {LONGEST} bytes, or contains invalid characters"
    )]
    Malformed,
}

impl Token {
    /// Returns the token of a request.
    ///
    /// # Errors
    /// If the request does not have exactly one valid token.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, NoToken> {
        let mut all = headers.get_all(AUTHORIZATION).iter();
        let first = all.next().ok_or(NoToken::Missing)?;
        if all.next().is_some() {
            return Err(NoToken::Several);
        }
        let text = first.to_str().map_err(|_| NoToken::Malformed)?.trim();
        let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(NoToken::OtherScheme);
        }
        let token = token.trim();
        // Characters of RFC 6750, section 2.1.
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if token.is_empty() || token.len() > LONGEST || !token.bytes().all(good) {
            return Err(NoToken::Malformed);
        }
        Ok(Self(token.to_owned()))
    }

    /// Returns the token as a string, for requests to the API server.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }

    /// Returns the digest of the token.
    pub(super) fn digest(&self) -> Digest {
        let mut bytes = Digest::default();
        bytes.copy_from_slice(digest(&SHA256, self.0.as_bytes()).as_ref());
        bytes
    }

    /// Returns the expiry time from the token if it is a JSON Web Token (RFC 7519). The time is not verified and only
    /// shown to users whose token the API server has rejected.
    pub(super) fn expiry(&self) -> Option<Timestamp> {
        #[derive(Deserialize)]
        struct Claims {
            exp: f64,
        }
        let payload = URL_SAFE_NO_PAD.decode(self.0.split('.').nth(1)?).ok()?;
        let claims: Claims = serde_json::from_slice(&payload).ok()?;
        // Whole seconds are sufficient. The conversion saturates, and times outside of the calendar are rejected.
        Timestamp::from_second(claims.exp as i64).ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Result<Token, NoToken> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        Token::of(&headers)
    }

    #[test]
    fn request_has_one_bearer_token_or_none() {
        let long = format!("Bearer {}", "a".repeat(LONGEST + 1));
        for (values, expected) in [
            (&["Bearer a.b-c_d~+/="][..], Ok("a.b-c_d~+/=")),
            (&["bearer  abc "], Ok("abc")),
            (&[], Err(NoToken::Missing)),
            (&["Bearer a", "Bearer a"], Err(NoToken::Several)),
            (&["Basic YTpi"], Err(NoToken::OtherScheme)),
            (&["abc"], Err(NoToken::OtherScheme)),
            (&["Bearer"], Err(NoToken::Malformed)),
            (&["Bearer a b"], Err(NoToken::Malformed)),
            (&["Bearer a\u{e4}"], Err(NoToken::Malformed)),
            (&[&long], Err(NoToken::Malformed)),
        ] {
            let token = of(values);
            assert_eq!(
                token.as_ref().map(Token::secret),
                expected.as_ref().copied(),
                "{values:?}"
            );
        }
    }

    #[test]
    fn token_is_printed_nowhere() {
        let token = of(&["Bearer abc"]).unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_eq!(format!("{:?}", Some(&token)), "Some(Token(..))");
        assert_ne!(token.digest(), of(&["Bearer abd"]).unwrap().digest());
    }

    #[test]
    fn expiry_is_that_of_the_claims() {
        let jwt = |claims: &str| of(&[&format!("Bearer e30.{}.x", URL_SAFE_NO_PAD.encode(claims))]).unwrap();
        let expiry = |claims| jwt(claims).expiry().map(Timestamp::as_second);
        assert_eq!(expiry(r#"{"exp": 1796000000, "sub": "a"}"#), Some(1_796_000_000));
        assert_eq!(expiry(r#"{"exp": 1796000000.5}"#), Some(1_796_000_000));
        for bad in ["{}", r#"{"exp": "soon"}"#, r#"{"exp": 1e300}"#, "no JSON"] {
            assert_eq!(expiry(bad), None, "{bad}");
        }
        assert_eq!(of(&["Bearer opaque"]).unwrap().expiry(), None);
    }
}
