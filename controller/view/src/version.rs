//! Versions of the plugin, the controller and the agents, and their differences.

use std::collections::BTreeMap;

use drydock_api::Hypervisor;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use crate::{snapshot::UnreadKind, text::beside};

/// Column at which messages begin.
const MESSAGE: usize = 12;
/// Maximum number of nodes that are named for a version.
const NAMED: usize = 3;

/// Versions of all components.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartVersions {
    /// Version of the plugin.
    pub client: String,
    /// Tags of the images of the controller's pods, with the number of pods.
    pub controller: BTreeMap<String, usize>,
    /// Versions that agents report, with their nodes.
    pub agents: BTreeMap<String, Vec<String>>,
    /// Human-readable differences.
    pub skew: Vec<String>,
    /// Kinds of objects that could not be read.
    pub unread: Vec<UnreadKind>,
}

/// Returns the versions of all components: the plugin (`client`), the pods of the `controller` by the tags of their
/// images, and the agents by their reports.
pub fn versions<'a>(
    client: &str,
    controller: &[Pod],
    hypervisors: impl IntoIterator<Item = &'a Hypervisor>,
    unread: Vec<UnreadKind>,
) -> PartVersions {
    let mut found = PartVersions {
        client: client.to_owned(),
        controller: BTreeMap::new(),
        agents: BTreeMap::new(),
        skew: Vec::new(),
        unread,
    };
    for pod in controller {
        let containers = pod
            .spec
            .as_ref()
            .map(|spec| spec.containers.as_slice())
            .unwrap_or_default();
        if let Some(image) = containers.first().and_then(|container| container.image.as_deref()) {
            *found.controller.entry(tag(image).to_owned()).or_default() += 1;
        }
    }
    for hypervisor in hypervisors {
        let version = hypervisor.status.as_ref().map(|status| status.agent_version.clone());
        let version = version
            .filter(|version| !version.is_empty())
            .unwrap_or_else(|| "not reported".into());
        let nodes = found.agents.entry(version).or_default();
        nodes.extend(hypervisor.metadata.name.clone());
        nodes.sort();
    }
    found.skew = skew(&found);
    found
}

/// Returns the tag or the digest of an image. An image without either has the tag `latest`, which container runtimes
/// assume.
fn tag(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or(image);
    let end = name.split_once('@').or_else(|| name.split_once(':'));
    end.map_or("latest", |(_, tag)| tag)
}

/// Parses the numbers of a version such as `1.2.3` or `v1.2.3-rc.1`. Returns `None` for another format.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let version = version.split(['-', '+']).next().unwrap_or(version);
    let mut parts = version.split('.').map(|part| part.parse().ok());
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}

fn skew(found: &PartVersions) -> Vec<String> {
    let mut skew = Vec::new();
    if found.controller.len() > 1 {
        let tags: Vec<&str> = found.controller.keys().map(String::as_str).collect();
        skew.push(format!(
            "replicas of the controller have different versions ({}): an update is in progress or stuck",
            tags.join(", ")
        ));
    }
    let reported = found.agents.iter().filter(|(version, _)| numbers(version).is_some());
    let newest = reported.clone().max_by_key(|(version, _)| numbers(version));
    if let Some((newest, _)) = newest {
        for (version, nodes) in reported.filter(|(version, _)| numbers(version) < numbers(newest)) {
            let nodes = named(nodes);
            skew.push(format!(
                "agents of {nodes} have version {version}, older than {newest} on other nodes: an update is in \
                 progress or stuck"
            ));
        }
    }
    if let Some(nodes) = found.agents.get("not reported") {
        skew.push(format!("agents of {} have not reported a version", named(nodes)));
    }
    let client = numbers(&found.client);
    let others = found.controller.keys().chain(found.agents.keys());
    let newest = others.filter_map(|version| numbers(version)).max();
    if let Some((client, newest)) = client.zip(newest).filter(|(client, newest)| client != newest) {
        let age = if client < newest { "older" } else { "newer" };
        let [major, minor, patch] = newest;
        skew.push(format!(
            "this plugin is {age} than the cluster's version {major}.{minor}.{patch}: install the plugin of that \
             release"
        ));
    }
    skew
}

fn named(nodes: &[String]) -> String {
    let names = nodes.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(NAMED) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

impl PartVersions {
    /// Returns the versions as text for a terminal with this width.
    pub fn text(&self, width: usize) -> String {
        let mut text = String::new();
        let mut line = |label: &str, message: &str| beside(&mut text, label, message, MESSAGE, width);
        line("client", &self.client);
        let controller: Vec<String> = self
            .controller
            .iter()
            .map(|(tag, count)| format!("{tag} ({count} pods)"))
            .collect();
        let none = |all: Vec<String>, what: &str| {
            if all.is_empty() {
                what.to_owned()
            } else {
                all.join(", ")
            }
        };
        line("controller", &none(controller, "no pod was found"));
        let agents: Vec<String> = self
            .agents
            .iter()
            .map(|(version, nodes)| format!("{version} ({} nodes)", nodes.len()))
            .collect();
        line("agents", &none(agents, "no agent has reported"));
        for (index, sentence) in self.skew.iter().enumerate() {
            line(if index == 0 { "skew" } else { "" }, sentence);
        }
        if !self.unread.is_empty() {
            line("not read", &UnreadKind::list(&self.unread));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(image: &str) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "c"}, "spec": {"containers": [{"name": "c", "image": image}]}}),
        )
        .unwrap()
    }

    fn agent(node: &str, version: &str) -> Hypervisor {
        let status = json!({"agentVersion": version});
        serde_json::from_value(json!({"metadata": {"name": node}, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn one_version_everywhere_has_no_skew() {
        let agents = [agent("a", "0.1.0"), agent("b", "0.1.0")];
        let found = versions(
            "0.1.0",
            &[pod("localhost/drydock/controller:v0.1.0")],
            &agents,
            Vec::new(),
        );
        assert_eq!(found.skew, [""; 0]);
        assert_eq!(
            found.text(80),
            "client      0.1.0\ncontroller  v0.1.0 (1 pods)\nagents      0.1.0 (2 nodes)\n"
        );
    }

    #[test]
    fn skew_is_described() {
        let agents = [
            agent("a", "0.2.0"),
            agent("b", "0.1.0"),
            agent("c", "0.1.0"),
            agent("d", ""),
        ];
        let pods = [
            pod("registry:5000/drydock/controller:0.2.0"),
            pod("registry:5000/drydock/controller:0.1.0"),
        ];
        let unread = UnreadKind {
            resource: "pods".into(),
            why: "forbidden".into(),
        };
        insta::assert_snapshot!(versions("0.1.0", &pods, &agents, vec![unread]).text(80));
    }

    #[test]
    fn versions_are_read_from_tags() {
        for (image, expected, version) in [
            ("localhost/drydock/controller", "latest", None),
            ("registry:5000/drydock/controller", "latest", None),
            ("registry:5000/controller:v1.2.3-rc.1", "v1.2.3-rc.1", Some([1, 2, 3])),
            ("controller@sha256:00ff", "sha256:00ff", None),
            ("controller:1.2", "1.2", None),
        ] {
            assert_eq!((tag(image), numbers(tag(image))), (expected, version), "{image}");
        }
    }
}
