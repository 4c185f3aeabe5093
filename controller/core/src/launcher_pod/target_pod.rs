//! The target pod of a migration.

use std::collections::BTreeMap;

use drydock_api::kubevirt::names::CREATED_BY;
use k8s_openapi::{
    api::core::v1::{
        Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm,
        PodAntiAffinity, PreferredSchedulingTerm,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{PodInput, keep_admitted, node_affinity::is_empty, unbound_pod};
use crate::admission::reserved::RESERVED_LABELS;

/// Label of a target pod: UID of the migration. KubeVirt's name.
pub const MIGRATION_UID: &str = "kubevirt.io/migrationJobUID";
/// Annotation of a target pod: name of the migration. KubeVirt's name.
pub const MIGRATION_NAME: &str = "kubevirt.io/migrationJobName";
/// Weight of the preference for nodes that are not to be avoided; the maximum weight.
const NOT_AVOIDED: i32 = 100;
/// Maximum number of node names in a pod's affinity: a pod must not list all nodes of a large cluster.
const MOST_NAMED: usize = 50;
/// The node label with the unique host name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The migration that a pod is created for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetPodInput<'a> {
    /// UID of the migration.
    pub uid: &'a str,
    /// Name of the migration.
    pub name: &'a str,
    /// Number of the migration's pods that kubelets have rejected: each new pod gets a new name.
    pub rejected: usize,
    /// Nodes to avoid if possible: they have the maximum number of incoming migrations, or are reserved for guests with
    /// fewer alternatives.
    pub avoided: &'a [String],
    /// Whether the pod's images are the manifest's references, whatever these resolve to by now.
    pub by_manifest: bool,
    /// Nodes that are being drained and that the pod could otherwise be scheduled on.
    pub leaving: &'a [String],
}

impl TargetPodInput<'_> {
    /// Returns the text that the name and the host UUID of the migration's pod are derived from: the same each time, so
    /// that a controller that does not remember the pod finds it again.
    pub fn identity(&self) -> String {
        match self.rejected {
            0 => self.uid.to_owned(),
            count => format!("{}/{count}", self.uid),
        }
    }
}

/// Returns the UID of the migration that a pod was created for, if any.
pub fn made_for(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(MIGRATION_UID).map(String::as_str)
}

/// Returns the target pod of a migration: the instance's pod, on any node that has no pod of this instance.
///
/// `input` has a suffix and a host UUID of the migration's own.
pub fn target_pod(input: &PodInput<'_>, migration: TargetPodInput<'_>) -> Pod {
    let mut pod = unbound_pod(input);
    let metadata = &mut pod.metadata;
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(MIGRATION_UID.into(), migration.uid.into());
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(MIGRATION_NAME.into(), migration.name.into());
    let instance = input.instance.metadata.uid.clone().unwrap_or_default();
    let apart = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([(CREATED_BY.to_owned(), instance)])),
            match_expressions: None,
        }),
        topology_key: HOSTNAME.into(),
        ..PodAffinityTerm::default()
    };
    if let Some(spec) = &mut pod.spec {
        let affinity = spec.affinity.get_or_insert_with(Affinity::default);
        let anti = affinity.pod_anti_affinity.get_or_insert_with(PodAntiAffinity::default);
        let required = anti
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default();
        required.push(apart);
        if !migration.leaving.is_empty() {
            keep_off(affinity, migration.leaving);
        }
        let preferred = migration.avoided.iter().map(|node| PreferredSchedulingTerm {
            weight: NOT_AVOIDED,
            preference: NodeSelectorTerm {
                match_fields: Some(vec![not_on(node)]),
                match_expressions: None,
            },
        });
        let preferred: Vec<_> = preferred.take(MOST_NAMED).collect();
        if !preferred.is_empty() {
            let nodes = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
            nodes
                .preferred_during_scheduling_ignored_during_execution
                .get_or_insert_default()
                .extend(preferred);
        }
    }
    keep_admitted(&mut pod, input);
    pod
}

/// Copies the labels that other clients have set on the source pod to the target pod, so that their selectors still
/// match. The target's own labels, and those by which Drydock finds pods, stay as they are; annotations often
/// describe one pod (its address, its interfaces) and are not copied.
pub fn carry_labels(target: &mut Pod, source: &Pod) {
    let own = target.metadata.labels.get_or_insert_default();
    for (key, value) in source.metadata.labels.iter().flatten() {
        if !RESERVED_LABELS.contains(&key.as_str()) {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

fn not_on(node: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "NotIn".into(),
        values: Some(vec![node.into()]),
    }
}

/// Keeps a pod off nodes, whichever of its affinity's alternatives matches.
fn keep_off(affinity: &mut Affinity, leaving: &[String]) {
    let fields: Vec<_> = leaving.iter().take(MOST_NAMED).map(|node| not_on(node)).collect();
    let nodes = affinity.node_affinity.get_or_insert_with(NodeAffinity::default);
    let required = &mut nodes.required_during_scheduling_ignored_during_execution;
    let Some(required) = required else {
        *required = Some(NodeSelector {
            node_selector_terms: vec![NodeSelectorTerm {
                match_fields: Some(fields),
                match_expressions: None,
            }],
        });
        return;
    };
    for term in &mut required.node_selector_terms {
        // An empty term matches no node, and must not start to match some.
        if !is_empty(term) {
            term.match_fields.get_or_insert_default().extend(fields.iter().cloned());
        }
    }
}
