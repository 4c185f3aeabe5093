//! The documents by which kube-apiserver and clients find the API.
//!
//! kube-apiserver aggregates the documents. While they are not served, it considers the group unavailable, and
//! namespaces cannot be deleted. So serving them depends on no other component.

use serde_json::{Value, json};

use super::{GROUP, KUBEVIRT_VERSION, PublicDocument, VERSIONS};

/// Subresources of machines, as KubeVirt lists them.
const OF_MACHINES: [&str; 7] = [
    "start",
    "stop",
    "restart",
    "migrate",
    "expand-spec",
    "objectgraph",
    "evacuate/cancel",
];
/// Subresources of instances.
const OF_INSTANCES: [&str; 23] = [
    "vnc",
    "vnc/screenshot",
    "console",
    "portforward",
    "backup",
    "redefine-checkpoint",
    "pause",
    "unpause",
    "freeze",
    "unfreeze",
    "reset",
    "softreboot",
    "guestosinfo",
    "userlist",
    "filesystemlist",
    "addvolume",
    "removevolume",
    "objectgraph",
    "sev/fetchcertchain",
    "sev/querylaunchmeasurement",
    "sev/setupsession",
    "sev/injectlaunchsecret",
    "evacuate/cancel",
];

/// Returns a document that all users may read; `release` is Drydock's version. `None` for [`PublicDocument::Health`],
/// which depends on the API server.
pub fn document(document: &PublicDocument, release: &str) -> Option<Value> {
    Some(match document {
        PublicDocument::Root => root(),
        PublicDocument::Groups => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}),
        PublicDocument::Group => group(),
        PublicDocument::Resources(version) => resources(version),
        PublicDocument::OpenApi => open_api(release),
        PublicDocument::Version => version(release),
        PublicDocument::Guestfs => json!({
            "registry": "quay.io/kubevirt",
            "tag": KUBEVIRT_VERSION,
            "digest": "",
            "imagePrefix": "",
            "gsImage": "",
        }),
        PublicDocument::Health => return None,
    })
}

/// Returns the result of a check of the API's health: whether the API server responds, with its version.
pub fn health(api_server: Result<Value, String>) -> Value {
    match api_server {
        Ok(version) => json!({"apiserver": {"connectivity": "ok", "version": version}}),
        Err(error) => json!({"apiserver": {"connectivity": "failed", "error": error}}),
    }
}

fn root() -> Value {
    let mut paths = vec![
        "/apis".to_owned(),
        format!("/apis/{GROUP}"),
        "/healthz".to_owned(),
        "/openapi/v2".to_owned(),
    ];
    for version in VERSIONS {
        paths.push(format!("/apis/{GROUP}/{version}"));
    }
    json!({"paths": paths})
}

fn group() -> Value {
    let version = |version: &str| json!({"groupVersion": format!("{GROUP}/{version}"), "version": version});
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": VERSIONS.map(version),
        "preferredVersion": version(VERSIONS[0]),
    })
}

/// Returns the resources of a version. They have no verbs, as in KubeVirt: `kubectl api-resources`, the garbage
/// collector and the namespace controller ignore resources without verbs.
fn resources(version: &str) -> Value {
    let resource =
        |name: String| json!({"name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": null});
    let machines = OF_MACHINES.iter().map(|name| format!("virtualmachines/{name}"));
    let instances = OF_INSTANCES
        .iter()
        .map(|name| format!("virtualmachineinstances/{name}"));
    let names = ["expand-vm-spec".to_owned()]
        .into_iter()
        .chain(machines)
        .chain(instances);
    let resources: Vec<Value> = names.map(resource).collect();
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{version}"),
        "resources": resources,
    })
}

/// Returns the document with the version. `virtctl` prints a warning if its own major or minor version differs; build
/// metadata does not count.
fn version(release: &str) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "gitVersion": format!("{KUBEVIRT_VERSION}+drydock.{release}"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "gc",
        "platform": format!("{}/{architecture}", std::env::consts::OS),
    })
}

/// Returns the Swagger 2.0 document with the paths of each subresource, for the merged document of kube-apiserver.
fn open_api(release: &str) -> Value {
    let mut paths = serde_json::Map::new();
    for version in VERSIONS {
        let base = format!("/apis/{GROUP}/{version}");
        let machines = OF_MACHINES.iter().map(|sub| ("virtualmachines", *sub));
        let instances = OF_INSTANCES.iter().map(|sub| ("virtualmachineinstances", *sub));
        for (resource, sub) in machines.chain(instances) {
            let method = if reads(sub) { "get" } else { "put" };
            let id = format!("{version}{resource}-{}", sub.replace('/', "-"));
            let operation = operation(method, &id);
            paths.insert(
                format!("{base}/namespaces/{{namespace}}/{resource}/{{name}}/{sub}"),
                operation,
            );
        }
        for path in ["version", "guestfs", "healthz"] {
            let id = format!("{version}{path}");
            paths.insert(
                format!("{base}/{path}"),
                json!({"get": {"operationId": id, "responses": responses()}}),
            );
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Drydock subresources API", "version": release},
        "paths": paths,
    })
}

fn reads(subresource: &str) -> bool {
    [
        "vnc",
        "vnc/screenshot",
        "console",
        "portforward",
        "guestosinfo",
        "userlist",
        "filesystemlist",
        "expand-spec",
        "objectgraph",
        "sev/fetchcertchain",
        "sev/querylaunchmeasurement",
    ]
    .contains(&subresource)
}

fn operation(method: &str, id: &str) -> Value {
    let parameter =
        |name: &str| json!({"name": name, "in": "path", "required": true, "type": "string", "uniqueItems": true});
    json!({
        method: {"operationId": format!("{method}{id}"), "responses": responses()},
        "parameters": [parameter("name"), parameter("namespace")],
    })
}

fn responses() -> Value {
    json!({"200": {"description": "OK"}, "401": {"description": "Unauthorized"}})
}
