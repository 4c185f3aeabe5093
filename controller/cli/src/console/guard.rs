//! Which requests are served, by their headers alone.
//!
//! The console acts with its user's kubeconfig, so it must not act for anybody else: another user of the machine, another
//! web site in the same browser, or a name of another site that resolves to this address.
//!
//! | the request | is refused with |
//! |---|---|
//! | `Host` is not `127.0.0.1:PORT` or `localhost:PORT` (DNS rebinding) | 421 |
//! | a method other than GET and POST | 405 |
//! | `Sec-Fetch-Site` is there and neither `same-origin` nor `none` | 403 |
//! | `Origin` is there and another one than the console's | 403 |
//! | a POST whose `Content-Type` is not `application/json`, which forms cannot send | 415 |
//! | anything under `/api/` without the key of a session, but the exchange of a link's key for it | 403 |

use axum::http::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_TYPE, HOST, ORIGIN},
};
use thiserror::Error;

use super::sessions::Sessions;

/// Header with the key of the session. A request of another site cannot have it without a preflight, which is refused.
pub(super) const SESSION: &str = "x-drydock-session";
/// Path at which the key of a link is exchanged for a session.
pub(super) const EXCHANGE: &str = "/api/session";

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Refusal {
    #[error("this console has another name: use the link that it has printed")]
    OtherHost,
    #[error("the console reads with GET and writes with POST")]
    Method,
    #[error("a request of another site is not served")]
    OtherSite,
    #[error("the body has to be application/json")]
    ContentType,
    #[error("there is no such session: use the link that the console has printed")]
    NoSession,
}

impl Refusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::OtherHost => StatusCode::MISDIRECTED_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::OtherSite | Self::NoSession => StatusCode::FORBIDDEN,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

/// Decides on a request to the console at this port.
///
/// # Errors
/// If it is not served.
pub(super) fn admit(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    port: u16,
    sessions: &Sessions,
) -> Result<(), Refusal> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let mut named = headers.get_all(HOST).iter();
    let host = named.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !hosts.iter().any(|own| own == host) || named.next().is_some() {
        return Err(Refusal::OtherHost);
    }
    if method != Method::GET && method != Method::POST {
        return Err(Refusal::Method);
    }
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(Refusal::OtherSite);
    }
    if text(ORIGIN.as_str()).is_some_and(|origin| origin != format!("http://{host}")) {
        return Err(Refusal::OtherSite);
    }
    if method == Method::POST && text(CONTENT_TYPE.as_str()) != Some("application/json") {
        return Err(Refusal::ContentType);
    }
    let needs_session = path.starts_with("/api/") && path != EXCHANGE;
    if needs_session && !text(SESSION).is_some_and(|key| sessions.knows(key)) {
        return Err(Refusal::NoSession);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the decision on a request to port 7000 with these headers.
    fn decide(method: &Method, path: &str, headers: &[(&'static str, &str)]) -> Option<Refusal> {
        let sessions = Sessions::default();
        let link = sessions.link().unwrap();
        let session = sessions.exchange(&link).unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let value = if *value == "SESSION" { session.as_str() } else { value };
            map.append(*name, value.parse().unwrap());
        }
        admit(method, path, &map, 7000, &sessions).err()
    }

    #[test]
    fn request_is_decided_on_by_its_headers() {
        const HOST: (&str, &str) = ("host", "127.0.0.1:7000");
        const JSON: (&str, &str) = ("content-type", "application/json");
        const SESSION: (&str, &str) = ("x-drydock-session", "SESSION");
        let (get, post) = (&Method::GET, &Method::POST);
        type Case<'a> = (&'a Method, &'a str, &'a [(&'static str, &'a str)], Option<Refusal>);
        let cases: [Case<'_>; 22] = [
            (get, "/", &[HOST], None),
            (get, "/nodes", &[("host", "localhost:7000")], None),
            (get, "/", &[], Some(Refusal::OtherHost)),
            (get, "/", &[("host", "127.0.0.1")], Some(Refusal::OtherHost)),
            (get, "/", &[("host", "evil.example:7000")], Some(Refusal::OtherHost)),
            (get, "/", &[("host", "127.0.0.1:7001")], Some(Refusal::OtherHost)),
            (
                get,
                "/",
                &[HOST, ("host", "evil.example:7000")],
                Some(Refusal::OtherHost),
            ),
            (get, "/", &[HOST, ("sec-fetch-site", "none")], None),
            (get, "/", &[HOST, ("sec-fetch-site", "same-origin")], None),
            (
                get,
                "/",
                &[HOST, ("sec-fetch-site", "same-site")],
                Some(Refusal::OtherSite),
            ),
            (
                get,
                "/",
                &[HOST, ("sec-fetch-site", "cross-site")],
                Some(Refusal::OtherSite),
            ),
            (&Method::OPTIONS, "/api/live", &[HOST, SESSION], Some(Refusal::Method)),
            (&Method::PUT, "/api/live", &[HOST, SESSION], Some(Refusal::Method)),
            (get, "/api/live", &[HOST], Some(Refusal::NoSession)),
            (
                get,
                "/api/live",
                &[HOST, ("x-drydock-session", "guess")],
                Some(Refusal::NoSession),
            ),
            (get, "/api/live", &[HOST, SESSION], None),
            (post, "/api/session", &[HOST, JSON], None),
            (post, "/api/start", &[HOST, SESSION], Some(Refusal::ContentType)),
            (
                post,
                "/api/start",
                &[HOST, SESSION, ("content-type", "text/plain")],
                Some(Refusal::ContentType),
            ),
            (
                post,
                "/api/start",
                &[HOST, SESSION, JSON, ("origin", "http://evil.example")],
                Some(Refusal::OtherSite),
            ),
            (
                post,
                "/api/start",
                &[HOST, SESSION, JSON, ("origin", "null")],
                Some(Refusal::OtherSite),
            ),
            (
                post,
                "/api/start",
                &[HOST, SESSION, JSON, ("origin", "http://127.0.0.1:7000")],
                None,
            ),
        ];
        for (method, path, headers, expected) in cases {
            assert_eq!(decide(method, path, headers), expected, "{method} {path} {headers:?}");
        }
    }
}
