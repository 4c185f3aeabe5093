//! Checks of the API server, and of Drydock's objects that are registered with it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{Finding, Rule, RuleContext, name_of};

/// Oldest and newest minor version of Kubernetes 1 that Drydock supports. The oldest is the first with image volumes,
/// which hold the disks of guests. The newest is the one against whose API Drydock was built.
const OLDEST_MINOR: u32 = 35;
const NEWEST_MINOR: u32 = 37;
/// First major and minor version of containerd that mounts images as volumes (`deploy/README.md`).
const OLDEST_CONTAINERD: (u32, u32) = (2, 1);
/// Custom resources, each with the version that Drydock reads and writes (`deploy/crds/`).
pub const DEFINITIONS: [(&str, &str); 8] = [
    ("hypervisors.drydock.dev", "v1alpha1"),
    ("hyperconvergeds.hco.kubevirt.io", "v1beta1"),
    ("virtualmachineinstances.kubevirt.io", "v1"),
    ("virtualmachines.kubevirt.io", "v1"),
    ("virtualmachineinstancereplicasets.kubevirt.io", "v1"),
    ("virtualmachineinstancemigrations.kubevirt.io", "v1"),
    ("nodemaintenances.nodemaintenance.medik8s.io", "v1beta1"),
    ("nodemaintenances.nodemaintenance.kubevirt.io", "v1beta1"),
];
/// Names of the admission policies (`deploy/policies/`).
pub(super) const POLICIES: [&str; 11] = [
    "drydock-agent-events",
    "drydock-agent-hypervisors",
    "drydock-agent-instances",
    "drydock-agent-leases",
    "drydock-agent-migrations",
    "drydock-agent-nodes",
    "drydock-agent-pods",
    "drydock-controller-launchers",
    "drydock-controller-pods",
    "drydock-controller-image-probes",
    "drydock-instance-labels",
];

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "the API server has a supported version",
        needs: &["version"],
        find: version,
    },
    Rule {
        name: "nodes have supported versions",
        needs: &["nodes"],
        find: nodes,
    },
    Rule {
        name: "custom resources are served",
        needs: &["customresourcedefinitions"],
        find: served,
    },
    Rule {
        name: "admission policies are in force",
        needs: &["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
        find: policies,
    },
];

/// Parses the major and minor version from a text like `v1.36.3`, `2.1.4` or `1.36+`.
fn parsed(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().ok()
    });
    Some((parts.next()??, parts.next()??))
}

fn version(context: &RuleContext<'_>) -> Vec<Finding> {
    let version = context.survey.version.as_deref().unwrap_or_default();
    let found = match parsed(version) {
        Some(found) if found < (1, OLDEST_MINOR) => Finding::error(format!(
            "the API server has version {version}: pods of virtual machines use image volumes, which this version does \
             not support"
        ))
        .helps(format!("upgrade Kubernetes to 1.{OLDEST_MINOR} or newer")),
        Some(found) if found > (1, NEWEST_MINOR) => Finding::warning(format!(
            "the API server has version {version}, newer than 1.{NEWEST_MINOR}, the newest version with which Drydock \
             was tested"
        ))
        .helps("install a release of Drydock that supports this version"),
        Some(_) => return Vec::new(),
        None => Finding::warning(format!("the version {version:?} of the API server cannot be parsed")),
    };
    vec![found]
}

fn nodes(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for node in &context.snapshot.nodes {
        let Some(info) = node.status.as_ref().and_then(|status| status.node_info.as_ref()) else {
            continue;
        };
        if info.operating_system != "linux" {
            continue;
        }
        let name = name_of(&node.metadata);
        if parsed(&info.kubelet_version).is_some_and(|version| version < (1, OLDEST_MINOR)) {
            let message = format!(
                "the kubelet of {name} has the version {}: guests with container disks do not start on this node",
                info.kubelet_version
            );
            found.push(Finding::warning(message).helps(format!("upgrade the kubelet to 1.{OLDEST_MINOR} or newer")));
        }
        let runtime = info.container_runtime_version.strip_prefix("containerd://");
        if runtime
            .and_then(parsed)
            .is_some_and(|version| version < OLDEST_CONTAINERD)
        {
            let message = format!(
                "the container runtime of {name} is {}: guests with container disks do not start on this node",
                info.container_runtime_version
            );
            let (major, minor) = OLDEST_CONTAINERD;
            found.push(Finding::warning(message).helps(format!("upgrade to containerd {major}.{minor} or newer")));
        }
    }
    found
}

fn served(context: &RuleContext<'_>) -> Vec<Finding> {
    let present = |name: &str| {
        let mut all = context.survey.definitions.iter();
        all.find(|definition| name_of(&definition.metadata) == name)
    };
    let mut found = Vec::new();
    for (name, version) in DEFINITIONS {
        let Some(definition) = present(name) else {
            let message = format!("the CustomResourceDefinition {name} and all objects of this kind are missing");
            found.push(Finding::error(message).helps_to_apply());
            continue;
        };
        let mut versions = definition.spec.versions.iter();
        if !versions.any(|other| other.name == version && other.served) {
            let message = format!("{name} is not served in the version {version}, which Drydock reads and writes");
            found.push(Finding::error(message).helps_to_apply());
        }
        if let Some(why) = not_established(definition) {
            let message = format!("{name} is not established: {why}");
            found.push(Finding::error(message).helps_by(
                "remove the conflicting CustomResourceDefinition",
                format!("kubectl get crd {name} -o jsonpath='{{.status.conditions}}'"),
            ));
        }
    }
    found
}

/// Returns why a definition is not served. Returns `None` if it is served.
fn not_established(definition: &CustomResourceDefinition) -> Option<String> {
    let conditions = definition.status.as_ref()?.conditions.as_ref()?;
    let of = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    if of("Established").is_some_and(|condition| condition.status == "True") {
        return None;
    }
    let refused = of("NamesAccepted").filter(|condition| condition.status != "True");
    let message = refused.and_then(|condition| condition.message.clone());
    Some(message.unwrap_or_else(|| "the API server has not processed the definition".into()))
}

fn policies(context: &RuleContext<'_>) -> Vec<Finding> {
    let survey = context.survey;
    let has_policy = |name: &str| survey.policies.iter().any(|policy| name_of(&policy.metadata) == name);
    let is_bound = |name: &str| {
        let mut specs = survey
            .policy_bindings
            .iter()
            .filter_map(|binding| binding.spec.as_ref());
        specs.any(|spec| spec.policy_name.as_deref() == Some(name))
    };
    let missing = POLICIES.iter().filter_map(|&name| {
        let what = if !has_policy(name) {
            "is missing"
        } else if !is_bound(name) {
            "has no binding"
        } else {
            return None;
        };
        let message = format!(
            "the ValidatingAdmissionPolicy {name} {what}: requests of agents, controllers or users that the policy \
             would deny are allowed"
        );
        Some(Finding::warning(message).helps_to_apply())
    });
    missing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_those_of_the_api() {
        let all = drydock_api::definitions();
        assert_eq!(all.len(), DEFINITIONS.len());
        for definition in all {
            let mut versions = definition.spec.versions.iter().filter(|version| version.served);
            let name = definition.metadata.name.unwrap();
            assert!(
                versions.any(|version| DEFINITIONS.contains(&(name.as_str(), version.name.as_str()))),
                "{name}"
            );
        }
    }

    #[test]
    fn versions_are_read_up_to_the_minor_part() {
        for (text, expected) in [
            ("v1.36.3", Some((1, 36))),
            ("1.35+", Some((1, 35))),
            ("v1.37.0-alpha.1+k3s1", Some((1, 37))),
            ("2.1.4-k3s1", Some((2, 1))),
            ("", None),
            ("v1", None),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }
}
