//! Decides which requests are served, according to their headers alone.
//!
//! The console acts with the credentials of its user, so it must not act for anyone else: another user of the machine,
//! another web site in the same browser, or a name of another site that resolves to the address of the console.
//!
//! | request | status code of the refusal |
//! |---|---|
//! | `Host` is not `127.0.0.1:PORT` or `localhost:PORT`, in a cluster none of [`Hosts`] (DNS rebinding) | 421 |
//! | a method other than GET and POST | 405 |
//! | `Sec-Fetch-Site` is present and neither `same-origin` nor `none` | 403 |
//! | `Origin` is present and differs from the console's | 403 |
//! | a POST whose `Content-Type` is not `application/json`, which forms cannot send | 415 |
//! | on the user's machine: anything under `/api/` without the key of a session, except the exchange of a link's key | 403 |
//! | in a cluster: anything under `/api/` without the header [`SESSION`], whatever its value | 403 |
//!
//! # In a cluster
//!
//! The bearer token of a request identifies its user (`incluster`). A proxy adds the token to every request of a
//! browser, so the token does not prove that the user wants the request. The proof is the header that only the
//! console's own script sets:
//!
//! | threat | defence |
//! |---|---|
//! | a form or an image of another site, with the token that the proxy adds (CSRF) | it cannot set the header, and `Sec-Fetch-Site`, `Origin` and `Content-Type` are checked |
//! | a script of another site that sets the header | its browser sends OPTIONS first, which is refused and has no header that would allow it |
//! | a link on another site, or the sign-in of a proxy | a navigation receives only the document, which is the same for everybody and has no data |
//! | another site shows the console in a frame, and its user clicks | `frame-ancestors 'none'` |
//! | a site of the same domain with another port or host | another origin: `Origin` and `Sec-Fetch-Site: same-site` are refused |
//! | a name of another site that resolves to the Service or the user's machine | its `Host` is not served |
//! | markup in names and messages takes the token from `sessionStorage` | HTML is escaped, and the policy runs no inline script |

use axum::http::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_TYPE, HOST, ORIGIN},
};
use thiserror::Error;

use super::sessions::ConsoleSessions;

/// Header with the key of the session. A request of another site cannot set it without a preflight, which is refused.
pub(super) const SESSION: &str = "x-drydock-session";
/// Path at which the key of a link is exchanged for a session.
pub(super) const EXCHANGE: &str = "/api/session";
/// Names of the user's own machine, which `kubectl port-forward` uses. No other site can have these names.
const OWN_MACHINE: [&str; 2] = ["localhost", "127.0.0.1"];

/// Reason why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum GuardRefusal {
    #[error("the console is not served under this host name: use the link that the console has printed")]
    OtherHost,
    #[error("the console does not serve this host; the option --host of the console sets the served hosts")]
    UnknownHost,
    #[error("the console accepts only GET and POST")]
    Method,
    #[error("requests from other sites are refused")]
    OtherSite,
    #[error("the content type of the body must be application/json")]
    ContentType,
    #[error("the session does not exist: use the link that the console has printed")]
    NoSession,
    #[error("the request lacks the header {SESSION}, which the console's own pages send")]
    NoHeader,
}

impl GuardRefusal {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::OtherHost | Self::UnknownHost => StatusCode::MISDIRECTED_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::OtherSite | Self::NoSession | Self::NoHeader => StatusCode::FORBIDDEN,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

/// Decides on a request to the console at this port of the user's machine.
///
/// # Errors
/// If the request is not served.
pub(super) fn admit(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    port: u16,
    sessions: &ConsoleSessions,
) -> Result<(), GuardRefusal> {
    let host = host(headers).filter(|host| OWN_MACHINE.iter().any(|own| *host == format!("{own}:{port}")));
    let host = host.ok_or(GuardRefusal::OtherHost)?;
    same_site(method, headers, false, |origin| origin == format!("http://{host}"))?;
    let needs_session = path.starts_with("/api/") && path != EXCHANGE;
    if needs_session && !text(headers, SESSION).is_some_and(|key| sessions.knows(key)) {
        return Err(GuardRefusal::NoSession);
    }
    Ok(())
}

/// Host names of a console in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hosts {
    /// Configured host names. A name with a port is valid for that port only.
    configured: Vec<String>,
    /// Host names of the Service.
    service: Vec<String>,
}

impl Hosts {
    /// Returns the configured names, the names of the Service `drydock-console` in a namespace, and the names of the
    /// user's own machine.
    pub(super) fn new(configured: &[String], namespace: &str) -> Self {
        let service = "drydock-console";
        Self {
            configured: configured.iter().map(|host| host.to_ascii_lowercase()).collect(),
            service: vec![
                service.into(),
                format!("{service}.{namespace}"),
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
            ],
        }
    }

    /// Returns whether requests with this host are served.
    fn serve(&self, host: &str) -> bool {
        let name = without_port(host);
        let any_port = self.service.iter().map(String::as_str).chain(OWN_MACHINE);
        any_port.into_iter().any(|own| own == name) || self.configured.iter().any(|own| own == host || own == name)
    }

    /// Returns whether a page of this origin belongs to the console, given the host of the request. A proxy may have
    /// replaced the host that the browser sent.
    fn is_origin(&self, origin: &str, host: &str) -> bool {
        let named = origin.strip_prefix("https://");
        named.is_some_and(|named| named == host || self.configured.iter().any(|own| own == named))
    }
}

/// Returns whether the host of a request is the user's own machine, with any port.
pub(super) fn is_own_machine(headers: &HeaderMap) -> bool {
    host(headers).is_some_and(|host| OWN_MACHINE.contains(&without_port(&host)))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Decides on a request to a console in a cluster. The user of the request is determined elsewhere.
///
/// # Errors
/// If the request is not served.
pub(super) fn admit_in_cluster(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    hosts: &Hosts,
) -> Result<(), GuardRefusal> {
    let host = host(headers)
        .filter(|host| hosts.serve(host))
        .ok_or(GuardRefusal::UnknownHost)?;
    let is_api = path.starts_with("/api/");
    let navigates = method == Method::GET && !is_api && text(headers, "sec-fetch-mode") == Some("navigate");
    same_site(method, headers, navigates, |origin| hosts.is_origin(origin, &host))?;
    if is_api && !headers.contains_key(SESSION) {
        return Err(GuardRefusal::NoHeader);
    }
    Ok(())
}

/// Rejects requests of other sites. A request that `navigates` is exempt, because it may come from a link.
fn same_site(
    method: &Method,
    headers: &HeaderMap,
    navigates: bool,
    is_own: impl Fn(&str) -> bool,
) -> Result<(), GuardRefusal> {
    if method != Method::GET && method != Method::POST {
        return Err(GuardRefusal::Method);
    }
    let site = text(headers, "sec-fetch-site");
    if !navigates && site.is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(GuardRefusal::OtherSite);
    }
    if text(headers, ORIGIN.as_str()).is_some_and(|origin| !is_own(origin)) {
        return Err(GuardRefusal::OtherSite);
    }
    if method == Method::POST && text(headers, CONTENT_TYPE.as_str()) != Some("application/json") {
        return Err(GuardRefusal::ContentType);
    }
    Ok(())
}

/// Returns the host of a request if the request has exactly one.
fn host(headers: &HeaderMap) -> Option<String> {
    let mut named = headers.get_all(HOST).iter();
    let host = named.next()?.to_str().ok()?.to_ascii_lowercase();
    named.next().is_none().then_some(host)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method, path and headers of a request, and the expected decision.
    type Case<'a> = (&'a Method, &'a str, &'a [(&'static str, &'a str)], Option<GuardRefusal>);

    /// Returns the decision on a request to port 7000 with these headers.
    fn decide(method: &Method, path: &str, headers: &[(&'static str, &str)]) -> Option<GuardRefusal> {
        let sessions = ConsoleSessions::default();
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
    fn local_request_is_decided_by_the_headers() {
        use GuardRefusal as Refused;

        const HOST: (&str, &str) = ("host", "127.0.0.1:7000");
        const JSON: (&str, &str) = ("content-type", "application/json");
        const SESSION: (&str, &str) = ("x-drydock-session", "SESSION");
        let (get, post) = (&Method::GET, &Method::POST);
        let cases: [Case<'_>; 22] = [
            (get, "/", &[HOST], None),
            (get, "/nodes", &[("host", "localhost:7000")], None),
            (get, "/", &[], Some(Refused::OtherHost)),
            (get, "/", &[("host", "127.0.0.1")], Some(Refused::OtherHost)),
            (get, "/", &[("host", "evil.example:7000")], Some(Refused::OtherHost)),
            (get, "/", &[("host", "127.0.0.1:7001")], Some(Refused::OtherHost)),
            (
                get,
                "/",
                &[HOST, ("host", "evil.example:7000")],
                Some(Refused::OtherHost),
            ),
            (get, "/", &[HOST, ("sec-fetch-site", "none")], None),
            (get, "/", &[HOST, ("sec-fetch-site", "same-origin")], None),
            (
                get,
                "/",
                &[HOST, ("sec-fetch-site", "same-site")],
                Some(Refused::OtherSite),
            ),
            (
                get,
                "/",
                &[HOST, ("sec-fetch-site", "cross-site")],
                Some(Refused::OtherSite),
            ),
            (&Method::OPTIONS, "/api/live", &[HOST, SESSION], Some(Refused::Method)),
            (&Method::PUT, "/api/live", &[HOST, SESSION], Some(Refused::Method)),
            (get, "/api/live", &[HOST], Some(Refused::NoSession)),
            (
                get,
                "/api/live",
                &[HOST, ("x-drydock-session", "guess")],
                Some(Refused::NoSession),
            ),
            (get, "/api/live", &[HOST, SESSION], None),
            (post, "/api/session", &[HOST, JSON], None),
            (post, "/api/start", &[HOST, SESSION], Some(Refused::ContentType)),
            (
                post,
                "/api/start",
                &[HOST, SESSION, ("content-type", "text/plain")],
                Some(Refused::ContentType),
            ),
            (
                post,
                "/api/start",
                &[HOST, SESSION, JSON, ("origin", "http://evil.example")],
                Some(Refused::OtherSite),
            ),
            (
                post,
                "/api/start",
                &[HOST, SESSION, JSON, ("origin", "null")],
                Some(Refused::OtherSite),
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

    /// Checks decisions on requests to a console that is served in a cluster.
    fn check_in_cluster(cases: &[Case<'_>]) {
        let configured = ["Console.example.org".to_owned(), "fixed.example.org:8443".to_owned()];
        let hosts = Hosts::new(&configured, "drydock");
        for (method, path, headers, expected) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in *headers {
                map.append(*name, value.parse().unwrap());
            }
            let refusal = admit_in_cluster(method, path, &map, &hosts).err();
            assert_eq!(refusal, *expected, "{method} {path} {headers:?}");
        }
    }

    const HOST: (&str, &str) = ("host", "console.example.org");
    const JSON: (&str, &str) = ("content-type", "application/json");
    const OWN: (&str, &str) = ("x-drydock-session", "token");

    #[test]
    fn request_in_a_cluster_is_admitted_for_served_hosts_only() {
        let get = &Method::GET;
        check_in_cluster(&[
            (get, "/", &[HOST], None),
            (get, "/", &[("host", "CONSOLE.example.org:443")], None),
            (get, "/", &[("host", "fixed.example.org:8443")], None),
            (
                get,
                "/",
                &[("host", "fixed.example.org")],
                Some(GuardRefusal::UnknownHost),
            ),
            (get, "/", &[("host", "drydock-console.drydock.svc")], None),
            (
                get,
                "/",
                &[("host", "drydock-console.drydock.svc.cluster.local:443")],
                None,
            ),
            (get, "/", &[("host", "drydock-console")], None),
            (
                get,
                "/",
                &[("host", "drydock-console.other.svc")],
                Some(GuardRefusal::UnknownHost),
            ),
            (get, "/", &[("host", "localhost:8443")], None),
            (get, "/", &[("host", "127.0.0.1:1")], None),
            (get, "/", &[("host", "10.0.0.7:8443")], Some(GuardRefusal::UnknownHost)),
            (get, "/", &[("host", "evil.example")], Some(GuardRefusal::UnknownHost)),
            (
                get,
                "/",
                &[("host", "console.example.org.evil.example")],
                Some(GuardRefusal::UnknownHost),
            ),
            (
                get,
                "/",
                &[("host", "evil.example:localhost")],
                Some(GuardRefusal::UnknownHost),
            ),
            (get, "/", &[HOST, HOST], Some(GuardRefusal::UnknownHost)),
            (get, "/", &[], Some(GuardRefusal::UnknownHost)),
        ]);
    }

    #[test]
    fn in_cluster_request_is_decided_by_the_headers() {
        const CROSS: (&str, &str) = ("sec-fetch-site", "cross-site");
        const NAVIGATES: (&str, &str) = ("sec-fetch-mode", "navigate");
        let (get, post) = (&Method::GET, &Method::POST);
        check_in_cluster(&[
            // A link or the sign-in of a proxy can only request the document.
            (get, "/nodes", &[HOST, CROSS, NAVIGATES], None),
            (get, "/nodes", &[HOST, CROSS], Some(GuardRefusal::OtherSite)),
            (
                get,
                "/api/live",
                &[HOST, OWN, CROSS, NAVIGATES],
                Some(GuardRefusal::OtherSite),
            ),
            (
                post,
                "/nodes",
                &[HOST, JSON, CROSS, NAVIGATES],
                Some(GuardRefusal::OtherSite),
            ),
            (
                get,
                "/api/live",
                &[HOST, OWN, ("sec-fetch-site", "same-site")],
                Some(GuardRefusal::OtherSite),
            ),
            (get, "/api/live", &[HOST], Some(GuardRefusal::NoHeader)),
            // A token alone is not sufficient, because a proxy adds it.
            (
                get,
                "/api/live",
                &[HOST, ("authorization", "Bearer a")],
                Some(GuardRefusal::NoHeader),
            ),
            (get, "/api/live", &[HOST, OWN], None),
            (&Method::OPTIONS, "/api/start", &[HOST, OWN], Some(GuardRefusal::Method)),
        ]);
    }

    #[test]
    fn change_in_a_cluster_needs_header_json_and_own_origin() {
        let post = &Method::POST;
        let origin = |value| ("origin", value);
        check_in_cluster(&[
            (post, "/api/start", &[HOST, JSON], Some(GuardRefusal::NoHeader)),
            (
                post,
                "/api/start",
                &[HOST, OWN, ("content-type", "text/plain")],
                Some(GuardRefusal::ContentType),
            ),
            (
                post,
                "/api/start",
                &[HOST, OWN, JSON, origin("https://console.example.org")],
                None,
            ),
            (
                post,
                "/api/start",
                &[HOST, OWN, JSON, origin("http://console.example.org")],
                Some(GuardRefusal::OtherSite),
            ),
            (
                post,
                "/api/start",
                &[HOST, OWN, JSON, origin("https://console.example.org:444")],
                Some(GuardRefusal::OtherSite),
            ),
            (
                post,
                "/api/start",
                &[HOST, OWN, JSON, origin("null")],
                Some(GuardRefusal::OtherSite),
            ),
            // A proxy has replaced the host.
            (
                post,
                "/api/start",
                &[
                    ("host", "drydock-console.drydock.svc"),
                    OWN,
                    JSON,
                    origin("https://console.example.org"),
                ],
                None,
            ),
            (
                post,
                "/api/start",
                &[("host", "localhost:8443"), OWN, JSON, origin("https://localhost:9000")],
                Some(GuardRefusal::OtherSite),
            ),
        ]);
    }
}
