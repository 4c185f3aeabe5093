//! The pod that a migration's guest arrives in.

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
use crate::admission::change::RESERVED_LABELS;

/// Label of a target's pod: UID of the migration. KubeVirt's name.
pub const MIGRATION_UID: &str = "kubevirt.io/migrationJobUID";
/// Annotation of a target's pod: name of the migration. KubeVirt's name.
pub const MIGRATION_NAME: &str = "kubevirt.io/migrationJobName";
/// How much it counts that a node is not full of guests that arrive; the most that there is.
const NOT_FULL: i32 = 100;
/// So many nodes are named at most: a pod is no list of a large cluster's nodes.
const MOST_NAMED: usize = 50;
/// The label by which nodes are told apart.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The migration that a pod is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationTarget<'a> {
    /// UID of the migration.
    pub uid: &'a str,
    /// Its name.
    pub name: &'a str,
    /// How many of its pods kubelets have rejected: each has a name of its own.
    pub rejected: usize,
    /// Nodes that are better left alone, since as many guests arrive there as may at once.
    pub full: &'a [String],
    /// Its images are those of the manifest, whatever these are by now.
    pub by_manifest: bool,
    /// Nodes that are being emptied, and that the pod would otherwise be let on.
    pub leaving: &'a [String],
}

impl MigrationTarget<'_> {
    /// What the name and the libvirt of its pod are made from: the same each time, so that a pod that the controller
    /// has forgotten is met again.
    pub fn identity(&self) -> String {
        match self.rejected {
            0 => self.uid.to_owned(),
            count => format!("{}/{count}", self.uid),
        }
    }
}

/// UID of the migration that a pod was made for, if it was made for one.
pub fn made_for(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(MIGRATION_UID).map(String::as_str)
}

/// The pod for a migration: the instance's, on no node that has a pod of this instance.
///
/// `input` has a suffix and a libvirt of the migration's own.
pub fn target_pod(input: &PodInput<'_>, migration: MigrationTarget<'_>) -> Pod {
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
        let preferred = migration.full.iter().map(|node| PreferredSchedulingTerm {
            weight: NOT_FULL,
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

/// Gives a migration's target the labels that others have put on its source, so that whatever selects by them goes on
/// to. Labels of the target's own, and those by which the system finds pods, stay as they are; annotations often describe
/// one pod (its address, its interfaces) and are not carried.
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

/// Keeps a pod off nodes, whichever of the alternatives that it asks for is met.
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
        // An empty term is met by no node, and stays so.
        if !is_empty(term) {
            term.match_fields.get_or_insert_default().extend(fields.iter().cloned());
        }
    }
}
