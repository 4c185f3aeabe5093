//! Authentication of requests: kube-apiserver names its users in headers, and authenticates itself by a client
//! certificate.
//!
//! Both are described by the ConfigMap `extension-apiserver-authentication` in `kube-system`, which kube-apiserver writes
//! from its flags `--requestheader-*`.

use std::collections::BTreeMap;

/// Namespace of the ConfigMap.
pub const NAMESPACE: &str = "kube-system";
/// Name of the ConfigMap.
pub const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// The certificates and headers with which kube-apiserver identifies itself and its users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontProxy {
    /// Certificate authorities of kube-apiserver's client certificates, in PEM; empty: none is trusted.
    pub authorities: String,
    allowed_names: Vec<String>,
    username_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
}

/// A user as kube-apiserver has authenticated it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestUser {
    /// Name of the user.
    pub name: String,
    /// UID of the user, if there is one.
    pub uid: Option<String>,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Extra attributes of the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl FrontProxy {
    /// Parses the data of the ConfigMap. A value that is absent or not a list of strings counts as empty. No client is
    /// trusted without authorities, or if the allowed names cannot be parsed; an empty list of names allows any
    /// certificate of the authorities.
    pub fn read(data: &BTreeMap<String, String>) -> Self {
        let list = |key: &str| -> Option<Vec<String>> {
            let text = data.get(&format!("requestheader-{key}"))?;
            serde_json::from_str(text).ok()
        };
        let lower = |key: &str| -> Vec<String> {
            let names = list(key).unwrap_or_default();
            names.iter().map(|name| name.to_ascii_lowercase()).collect()
        };
        let names = list("allowed-names");
        Self {
            // If the names cannot be parsed, no client may be allowed.
            authorities: match (&names, data.contains_key("requestheader-allowed-names")) {
                (None, true) => String::new(),
                _ => data.get("requestheader-client-ca-file").cloned().unwrap_or_default(),
            },
            allowed_names: names.unwrap_or_default(),
            username_headers: lower("username-headers"),
            uid_headers: lower("uid-headers"),
            group_headers: lower("group-headers"),
            extra_prefixes: lower("extra-headers-prefix"),
        }
    }

    /// Returns whether a client certificate with this common name is kube-apiserver's, provided that one of the
    /// authorities has signed it.
    pub fn allows(&self, common_name: &str) -> bool {
        self.allowed_names.is_empty() || self.allowed_names.iter().any(|name| name == common_name)
    }

    /// Returns the user that the headers of a request name; `None` if they name none. Header names are in lower case,
    /// as in HTTP/2.
    pub fn user(&self, headers: &[(&str, &str)]) -> Option<RequestUser> {
        let all = |names: &[String]| -> Vec<String> {
            let mut values = Vec::new();
            for name in names {
                let of_name = headers
                    .iter()
                    .filter(|(header, value)| header == name && !value.is_empty());
                values.extend(of_name.map(|(_, value)| (*value).to_owned()));
            }
            values
        };
        let name = all(&self.username_headers).into_iter().next()?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            let key = self
                .extra_prefixes
                .iter()
                .find_map(|prefix| header.strip_prefix(prefix.as_str()));
            if let Some(key) = key.filter(|key| !key.is_empty()) {
                extra.entry(percent_decoded(key)).or_default().push((*value).to_owned());
            }
        }
        Some(RequestUser {
            name,
            uid: all(&self.uid_headers).into_iter().next(),
            groups: all(&self.group_headers),
            extra,
        })
    }
}

/// Decodes the key of an extra attribute: kube-apiserver percent-encodes the characters that header names cannot
/// contain. Returns the key unchanged if the decoded bytes are not UTF-8.
fn percent_decoded(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).map_or_else(|_| key.to_owned(), |key| key.to_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data(change: impl Fn(&mut BTreeMap<String, String>)) -> FrontProxy {
        let mut data: BTreeMap<String, String> = [
            ("client-ca-file", "users"),
            ("requestheader-client-ca-file", "proxies"),
            ("requestheader-allowed-names", "[\"front-proxy\"]"),
            ("requestheader-username-headers", "[\"X-Remote-User\"]"),
            ("requestheader-uid-headers", "[\"X-Remote-Uid\"]"),
            ("requestheader-group-headers", "[\"X-Remote-Group\"]"),
            ("requestheader-extra-headers-prefix", "[\"X-Remote-Extra-\"]"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        change(&mut data);
        FrontProxy::read(&data)
    }

    #[test]
    fn certificate_counts_by_authority_and_name() {
        let proxy = data(|_| {});
        assert_eq!(proxy.authorities, "proxies");
        assert!(proxy.allows("front-proxy") && !proxy.allows("somebody"));
        let any = data(|data| drop(data.insert("requestheader-allowed-names".into(), "[]".into())));
        assert!(any.allows("somebody") && any.authorities == "proxies");
        let broken = data(|data| drop(data.insert("requestheader-allowed-names".into(), "front-proxy".into())));
        assert_eq!(broken.authorities, "", "names that cannot be read");
        assert_eq!(FrontProxy::read(&BTreeMap::new()).authorities, "");
    }

    #[test]
    fn user_is_read_from_the_headers() {
        let proxy = data(|_| {});
        let headers = [
            ("x-remote-user", "ann"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.com%2Fscopes", "read"),
            ("x-remote-extra-example.com%2Fscopes", "write"),
            ("x-remote-extra-odd%zz", "x"),
            ("x-remote-extra-", "nothing"),
            ("x-other", "y"),
        ];
        let user = proxy.user(&headers).unwrap();
        let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            user,
            RequestUser {
                name: "ann".into(),
                uid: Some("7".into()),
                groups: text(&["dev", "system:authenticated"]),
                extra: [
                    ("example.com/scopes".to_owned(), text(&["read", "write"])),
                    ("odd%zz".to_owned(), text(&["x"])),
                ]
                .into(),
            }
        );
        assert_eq!(proxy.user(&[("x-remote-group", "dev")]), None);
        assert_eq!(proxy.user(&[("x-remote-user", "")]), None);
        assert_eq!(FrontProxy::default().user(&headers), None);
    }

    /// Names of headers: those that are evaluated, and similar ones.
    const NAMES: [&str; 9] = [
        "x-remote-user",
        "x-remote-uid",
        "x-remote-group",
        "x-remote-extra-scopes",
        "x-remote-extra-%2e%zz%",
        "x-remote-extra-",
        "x-remote-userx",
        "x-remote-groups",
        "impersonate-user",
    ];

    proptest! {
        #[test]
        fn forged_headers_add_no_user_and_no_group(
            headers in prop::collection::vec((prop::sample::select(&NAMES[..]), "[ -~]{0,12}"), 0..12)
        ) {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let of = |name: &str| -> Vec<String> {
                let found = headers.iter().filter(|(header, value)| *header == name && !value.is_empty());
                found.map(|(_, value)| (*value).to_owned()).collect()
            };
            let user = data(|_| {}).user(&headers);
            let name = user.as_ref().map(|user| user.name.clone());
            prop_assert_eq!(name, of("x-remote-user").into_iter().next());
            let Some(user) = user else { return Ok(()) };
            prop_assert_eq!(user.groups, of("x-remote-group"));
            prop_assert_eq!(user.uid, of("x-remote-uid").into_iter().next());
            let extra: usize = user.extra.values().map(Vec::len).sum();
            let sent = headers.iter().filter(|(name, _)| name.len() > "x-remote-extra-".len() && name.starts_with("x-remote-extra-"));
            prop_assert_eq!(extra, sent.count());
        }

        #[test]
        fn garbled_front_proxy_config_map_adds_no_trust(names in ".{0,40}", header in ".{0,20}") {
            let proxy = data(|data| {
                data.insert("requestheader-allowed-names".into(), names.clone());
                data.insert("requestheader-username-headers".into(), header.clone());
            });
            let readable = serde_json::from_str::<Vec<String>>(&names).is_ok();
            prop_assert_eq!(proxy.authorities.is_empty(), !readable);
            if serde_json::from_str::<Vec<String>>(&header).is_err() {
                prop_assert_eq!(proxy.user(&[("x-remote-user", "ann")]), None);
            }
        }
    }
}
