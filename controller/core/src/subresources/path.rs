//! The target of a request's path.

use super::{GROUP, VERSIONS};

/// The target of a request's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiPath {
    /// A document that all users may read.
    Open(PublicDocument),
    /// A subresource, which requires permission.
    Target(SubresourceTarget),
    /// An unknown path.
    Unknown,
}

/// A document that all users may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicDocument {
    /// `/`: the list of paths.
    Root,
    /// `/apis`: the only group.
    Groups,
    /// `/apis/GROUP`.
    Group,
    /// `/apis/GROUP/VERSION`: the resources.
    Resources(&'static str),
    /// `/openapi/v2`.
    OpenApi,
    /// The version, as `virtctl` compares it with its own.
    Version,
    /// The location of the image for `virtctl guestfs`.
    Guestfs,
    /// The health of the API.
    Health,
}

/// A resource of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupResource {
    /// `virtualmachines`
    Machine,
    /// `virtualmachineinstances`
    Instance,
    /// `expand-vm-spec`
    ExpandSpec,
}

impl GroupResource {
    /// The name in paths and roles.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Machine => "virtualmachines",
            Self::Instance => "virtualmachineinstances",
            Self::ExpandSpec => "expand-vm-spec",
        }
    }

    /// The name in messages.
    pub fn singular(self) -> &'static str {
        match self {
            Self::Machine => "virtualmachine",
            Self::Instance => "virtualmachineinstance",
            Self::ExpandSpec => "expand-vm-spec",
        }
    }
}

/// One subresource of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubresourceTarget {
    /// Version of the API.
    pub version: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// Resource of the object.
    pub resource: GroupResource,
    /// Name of the object; empty for [`GroupResource::ExpandSpec`].
    pub name: String,
    /// The subresource, as roles name it: of `portforward` without port and protocol.
    pub subresource: String,
    /// The rest of the path after the subresource.
    pub rest: Vec<String>,
}

impl ApiPath {
    /// Reads the path of a request, without its query.
    pub fn parse(path: &str) -> Self {
        let Some(path) = path.strip_prefix('/') else {
            return Self::Unknown;
        };
        let parts: Vec<&str> = path.strip_suffix('/').unwrap_or(path).split('/').collect();
        match parts.as_slice() {
            [""] => Self::Open(PublicDocument::Root),
            ["healthz"] => Self::Open(PublicDocument::Health),
            ["openapi", "v2"] => Self::Open(PublicDocument::OpenApi),
            ["apis"] => Self::Open(PublicDocument::Groups),
            ["apis", group] if *group == GROUP => Self::Open(PublicDocument::Group),
            ["apis", group, version, rest @ ..] if *group == GROUP => {
                let Some(version) = VERSIONS.into_iter().find(|known| known == version) else {
                    return Self::Unknown;
                };
                of_version(version, rest)
            }
            _ => Self::Unknown,
        }
    }
}

fn of_version(version: &'static str, parts: &[&str]) -> ApiPath {
    let (namespace, parts) = match parts {
        [] => return ApiPath::Open(PublicDocument::Resources(version)),
        ["version"] => return ApiPath::Open(PublicDocument::Version),
        ["guestfs"] => return ApiPath::Open(PublicDocument::Guestfs),
        ["healthz"] => return ApiPath::Open(PublicDocument::Health),
        ["namespaces", namespace, parts @ ..] if !namespace.is_empty() => (*namespace, parts),
        _ => return ApiPath::Unknown,
    };
    let target = |resource, name: &str, subresource: String, rest: &[&str]| {
        ApiPath::Target(SubresourceTarget {
            version,
            namespace: namespace.into(),
            resource,
            name: name.into(),
            subresource,
            rest: rest.iter().map(|part| (*part).to_owned()).collect(),
        })
    };
    let (resource, name, parts) = match parts {
        ["expand-vm-spec"] => return target(GroupResource::ExpandSpec, "", String::new(), &[]),
        ["virtualmachines", name, parts @ ..] => (GroupResource::Machine, *name, parts),
        ["virtualmachineinstances", name, parts @ ..] => (GroupResource::Instance, *name, parts),
        _ => return ApiPath::Unknown,
    };
    if name.is_empty() || parts.is_empty() || parts.contains(&"") {
        return ApiPath::Unknown;
    }
    match parts {
        ["portforward", rest @ ..] => target(resource, name, "portforward".into(), rest),
        parts => target(resource, name, parts.join("/"), &[]),
    }
}

/// Returns the RBAC verb of a method (kube-apiserver's `RequestInfo`); `None` for a method without one.
pub fn verb(method: &str, has_name: bool) -> Option<&'static str> {
    Some(match (method, has_name) {
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("PUT", _) => "update",
        ("POST", _) => "create",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parts of paths.
    const PARTS: [&str; 16] = [
        "apis",
        "subresources.kubevirt.io",
        "v1",
        "v1alpha3",
        "namespaces",
        "ns",
        "virtualmachines",
        "virtualmachineinstances",
        "vm",
        "portforward",
        "expand-vm-spec",
        "",
        "..",
        "%2e%2e",
        "console",
        "vnc",
    ];

    proptest! {
        #[test]
        fn target_of_any_path_is_part_of_the_path(parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..10)) {
            // Most begin like a path that means something.
            for beginning in ["", "/apis/subresources.kubevirt.io/v1/namespaces/ns"] {
                let path = format!("{beginning}/{}", parts.join("/"));
                let ApiPath::Target(target) = ApiPath::parse(&path) else { continue };
                prop_assert!(!target.namespace.is_empty() && !target.namespace.contains('/'));
                prop_assert_eq!(target.name.is_empty(), target.resource == GroupResource::ExpandSpec);
                let mut segments = vec!["", "apis", GROUP, target.version, "namespaces", &target.namespace, target.resource.plural()];
                segments.extend([target.name.as_str(), &target.subresource].into_iter().filter(|segment| !segment.is_empty()));
                segments.extend(target.rest.iter().map(String::as_str));
                prop_assert_eq!(segments.join("/"), path.strip_suffix('/').unwrap_or(&path));
            }
        }
    }
}
