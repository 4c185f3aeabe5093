//! Reconciliation of a node's Node and Hypervisor by its agent, as one plan.
//!
//! ```text
//!  Node labels, annotations ─┐
//!  facts, failed inspection ─┼─▶ plan() ─▶ changes of labels, Hypervisor status, events
//!  configuration, CPU map ───┤
//!  launcher pods ────────────┘
//! ```
//!
//! The plan is a pure function of the observation: if nothing observed changes, nothing is planned.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::{
    annotations,
    facts::{KvmState, NodeFacts, Usable},
    hypervisor::{AgentEndpoint, ConfigurationObject, ConfigurationRecord, HypervisorStatus, InspectionRecord},
    labels as keys,
    reasons::{events, hypervisor as types},
};
use jiff::Timestamp;

use crate::{
    conditions::{self, ConditionStatus, condition},
    configuration::{Configuration, GATE_CPU_MANAGER, GATE_CROSS_ARCHITECTURE, Resolution},
    device_offer::DeviceOffer,
    guest_labels::{self, LabelledPods},
    guest_network::{self, GuestNetwork},
    labels::{self, LabelPolicy, Withheld},
    mask::{self, MaskedModels},
    minimum_cpu::{DEFAULT_MODEL, Minimum},
    obsolete::ObsoleteModels,
    readiness::{self, NodeReadiness},
};

/// The agent's observations.
#[derive(Clone, Copy, Debug)]
pub struct ObservedNode<'a> {
    /// The current time.
    pub now: Timestamp,
    /// Labels of the Node.
    pub labels: &'a BTreeMap<String, String>,
    /// Annotations of the Node.
    pub annotations: &'a BTreeMap<String, String>,
    /// Facts and record of the last successful inspection; `None` before the first.
    pub inspected: Option<(&'a NodeFacts, &'a InspectionRecord)>,
    /// Why the last inspection failed, if it did.
    pub failure: Option<&'a InspectionFailure>,
    /// The configuration.
    pub resolution: &'a Resolution,
    /// The minimum CPU model of that configuration.
    pub minimum: &'a Minimum,
    /// Features that this node must not offer.
    pub mask: &'a BTreeSet<String>,
    /// Why the annotation that masks features is refused, if so.
    pub mask_refused: Option<&'a str>,
    /// The models that contain a masked feature.
    pub masked_models: &'a MaskedModels,
    /// Whether to write a label for every name of a model.
    pub label_aliases: bool,
    /// Whether the kubelet pins CPUs.
    pub pins_cpus: bool,
    /// The node's prerequisites for guest networks.
    pub guest_network: &'a guest_network::ObservedNetwork,
    /// The launcher pods of the node.
    pub guests: LabelledPods<'a>,
    /// Whether the agent is about to end and no other agent waits to replace it.
    pub stopping: bool,
    /// Version of the agent.
    pub agent_version: &'a str,
    /// The address at which controllers reach the agent, if it listens.
    pub agent_endpoint: Option<&'a AgentEndpoint>,
    /// The current status of the Hypervisor.
    pub previous: &'a HypervisorStatus,
}

/// Why an inspection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectionFailure {
    /// CamelCase reason.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

/// The agent's actions.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeUpdatePlan {
    /// Changes of the Node's labels; empty if there is nothing to write.
    pub labels: BTreeMap<String, Option<String>>,
    /// The desired status of the Hypervisor.
    pub status: HypervisorStatus,
    /// Events on the Node.
    pub events: Vec<NodeEvent>,
    /// The device plugin's offer to guests' pods.
    pub offer: DeviceOffer,
    /// Pending changes of the labels for launcher pods.
    pub waiting: guest_labels::PendingLabels,
    /// When to plan again if nothing is observed until then.
    pub wake: Option<Timestamp>,
}

/// An event on the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// Whether its type is Warning; otherwise Normal.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// Returns whether the CPU labels are skipped: the annotation `skip-node` has the value `true`, case-insensitively.
pub fn is_skipped(annotations: &BTreeMap<String, String>) -> bool {
    annotations
        .get(annotations::SKIP_NODE)
        .is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
}

/// Returns the label policy of a configuration.
pub fn policy(configuration: &Configuration, minimum: &Minimum, aliases: bool) -> LabelPolicy {
    LabelPolicy {
        obsolete: ObsoleteModels::with(configuration.obsolete_cpu_models.iter().cloned()),
        minimum: minimum.clone(),
        aliases,
        use_emulation: configuration.use_emulation,
        guest_architecture: configuration.gate(GATE_CROSS_ARCHITECTURE),
    }
}

/// Returns the agent's actions.
pub fn plan(observed: &ObservedNode<'_>) -> NodeUpdatePlan {
    let configuration = &observed.resolution.configuration;
    let offered = observed
        .inspected
        .map(|(facts, _)| mask::apply(facts, observed.mask, observed.masked_models));
    let policy = policy(configuration, observed.minimum, observed.label_aliases);
    let desired = match &offered {
        Some(facts) => labels::desired(facts, &policy),
        None => labels::DesiredLabels {
            withheld: Some(Withheld::NotInspected),
            ..Default::default()
        },
    };
    let skipped = is_skipped(observed.annotations);
    let mut changes = if skipped || desired.withheld == Some(Withheld::NotInspected) {
        BTreeMap::new()
    } else {
        labels::changes(observed.labels, &desired.labels, keys::is_owned)
    };
    let events = events(observed, &changes, &desired.labels);

    let readiness = NodeReadiness::of(offered.as_ref(), configuration.use_emulation);
    let accepts = readiness.accepts() && !observed.stopping;
    let truth = |holds: bool| if holds { keys::TRUE } else { keys::FALSE }.to_owned();
    let pins = configuration.gate(GATE_CPU_MANAGER) && observed.pins_cpus;
    // While it is unknown whether guests can have a network, the value from an earlier agent stays.
    let network = match GuestNetwork::of(observed.guest_network).holds() {
        Some(holds) => Some(truth(holds)),
        None => observed.labels.get(keys::GUEST_NETWORK).cloned(),
    };
    let mut ready = BTreeMap::from([
        (keys::SCHEDULABLE.into(), truth(accepts)),
        (keys::CPU_MANAGER.into(), truth(pins)),
    ]);
    ready.extend(network.map(|network| (keys::GUEST_NETWORK.into(), network)));
    changes.extend(labels::changes(observed.labels, &ready, |key| {
        keys::READINESS_KEYS.contains(&key)
    }));
    let write_now = observed.stopping || !changes.is_empty();
    let guests = guest_labels::plan(&observed.guests, observed.labels, write_now, observed.now);
    changes.extend(guests.changes);

    let labelled = labelled(skipped, &desired);
    let count = u32::try_from(desired.labels.len()).unwrap_or(u32::MAX);
    let status = status(observed, offered, readiness, labelled, count);
    NodeUpdatePlan {
        labels: changes,
        status,
        events,
        offer: DeviceOffer::of(readiness),
        waiting: guests.waiting,
        wake: guests.wake,
    }
}

/// Returns status, reason and message of the condition `Labelled`.
fn labelled(skipped: bool, desired: &labels::DesiredLabels) -> (ConditionStatus, &'static str, String) {
    if skipped {
        let message = format!(
            "the CPU labels stay unchanged: the annotation {} is true",
            annotations::SKIP_NODE
        );
        return (ConditionStatus::False, "SkippedByAnnotation", message);
    }
    if let Some(withheld) = desired.withheld {
        return (ConditionStatus::False, withheld.reason(), withheld.sentence().into());
    }
    if desired.invalid.is_empty() {
        return (
            ConditionStatus::True,
            "LabelsCurrent",
            "CPU labels match facts and configuration".into(),
        );
    }
    let shown: Vec<&str> = desired.invalid.iter().take(5).map(String::as_str).collect();
    let message = format!(
        "labels with keys that are not valid in Kubernetes are omitted: {} ({} in total)",
        shown.join(", "),
        desired.invalid.len()
    );
    (ConditionStatus::True, "SomeKeysInvalid", message)
}

fn status(
    observed: &ObservedNode<'_>,
    offered: Option<NodeFacts>,
    readiness: NodeReadiness,
    labelled: (ConditionStatus, &'static str, String),
    labels: u32,
) -> HypervisorStatus {
    let before = &observed.previous.conditions;
    let make = |type_: &str, status, reason: &str, message: String| {
        condition(before, type_, status, reason, message, observed.now)
    };
    let inspection = observed.inspected.map(|(_, record)| InspectionRecord {
        stale: observed.failure.is_some(),
        ..record.clone()
    });
    let (status, reason, message) = inspected(observed.failure, inspection.as_ref());
    let inspected = make(types::INSPECTED, status, reason, message);
    let (status, reason, message) = kvm(offered.as_ref());
    let kvm = make(types::KVM_AVAILABLE, status, reason, message);
    let (status, reason, message) = ready(readiness, observed.stopping);
    let ready = make(types::READY, status, reason, message);
    let accepted = match refusals(observed) {
        None => make(
            types::CONFIGURATION_ACCEPTED,
            ConditionStatus::True,
            "Accepted",
            "the configuration is in force on this node".into(),
        ),
        Some(text) => make(types::CONFIGURATION_ACCEPTED, ConditionStatus::False, "Refused", text),
    };
    let network = GuestNetwork::of(observed.guest_network);
    let network = make(
        types::GUEST_NETWORK,
        network.holds().map_or(ConditionStatus::Unknown, ConditionStatus::from),
        network.reason(),
        network.sentence(observed.guest_network),
    );
    let (status, reason, message) = labelled;
    let labelled = make(types::LABELLED, status, reason, message);
    HypervisorStatus {
        conditions: vec![inspected, labelled, kvm, network, ready, accepted],
        usable_models: offered.as_ref().and_then(usable_models),
        facts: offered.map(Arc::new),
        masked_features: observed.mask.iter().cloned().collect(),
        inspection,
        configuration: Some(record(observed.resolution, observed.minimum)),
        labels: Some(labels),
        agent_version: observed.agent_version.into(),
        agent_endpoint: observed.agent_endpoint.cloned(),
        // Written by the controller.
        drain: None,
        drain_preview: None,
    }
}

/// Returns status, reason and message of the condition `Inspected`.
fn inspected<'a>(
    failure: Option<&'a InspectionFailure>,
    inspection: Option<&InspectionRecord>,
) -> (ConditionStatus, &'a str, String) {
    match (failure, inspection) {
        (None, Some(_)) => (
            ConditionStatus::True,
            "Inspected",
            "the facts describe the current state of this node".into(),
        ),
        (None, None) => not_inspected(),
        (Some(failure), None) => (ConditionStatus::False, &failure.reason, failure.message.clone()),
        (Some(failure), Some(record)) => {
            let message = format!("{}; the facts from {} are kept", failure.message, record.at.0);
            (ConditionStatus::False, &failure.reason, message)
        }
    }
}

/// Returns status, reason and message of a condition that waits for the first inspection.
fn not_inspected() -> (ConditionStatus, &'static str, String) {
    let message = "the node is being inspected".into();
    (ConditionStatus::Unknown, "NotInspected", message)
}

/// Returns status, reason and message of the condition `KVMAvailable`.
fn kvm(facts: Option<&NodeFacts>) -> (ConditionStatus, &'static str, String) {
    let Some(NodeFacts { kvm, .. }) = facts else {
        return not_inspected();
    };
    let message = if kvm.message.is_empty() {
        readiness::kvm_sentence(kvm.state).into()
    } else {
        kvm.message.clone()
    };
    let usable = kvm.state == KvmState::Usable;
    (usable.into(), readiness::kvm_reason(kvm.state), message)
}

/// Returns status, reason and message of the condition `Ready`.
fn ready(readiness: NodeReadiness, stopping: bool) -> (ConditionStatus, &'static str, String) {
    if stopping {
        let message = "the agent of this node has stopped".into();
        return (ConditionStatus::False, "AgentStopped", message);
    }
    (readiness.accepts().into(), readiness.reason(), readiness.sentence())
}

/// Returns the number of CPU models that guests may be able to use.
fn usable_models(facts: &NodeFacts) -> Option<u32> {
    let models = facts.virtualization.as_ref()?.models.iter();
    let usable = models.filter(|model| model.usable != Usable::No).count();
    Some(u32::try_from(usable).unwrap_or(u32::MAX))
}

/// Returns a human-readable list of refused values in configuration and annotations.
fn refusals(observed: &ObservedNode<'_>) -> Option<String> {
    let mut texts = Vec::new();
    for source in &observed.resolution.sources {
        for problem in &source.parsed.problems {
            texts.push(format!(
                "{} {}/{}: {problem}",
                source.kind, source.reference.namespace, source.reference.name
            ));
        }
    }
    if let Some(refused) = observed.mask_refused {
        texts.push(format!("Node annotation {}: {refused}", annotations::MASK_CPU_FEATURES));
    }
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Returns the configuration record for the Hypervisor.
fn record(resolution: &Resolution, minimum: &Minimum) -> ConfigurationRecord {
    let configuration = &resolution.configuration;
    ConfigurationRecord {
        objects: resolution
            .sources
            .iter()
            .map(|source| ConfigurationObject {
                kind: source.kind.into(),
                namespace: source.reference.namespace.clone(),
                name: source.reference.name.clone(),
                revision: source.reference.revision.clone(),
                refused: source.parsed.problems.iter().map(ToString::to_string).collect(),
            })
            .collect(),
        obsolete_cpu_models: configuration.obsolete_cpu_models.iter().cloned().collect(),
        min_cpu_model: configuration.min_cpu_model.clone(),
        min_cpu_features: if minimum.model == DEFAULT_MODEL {
            Vec::new()
        } else {
            minimum.features.iter().cloned().collect()
        },
        use_emulation: configuration.use_emulation,
        feature_gates: configuration
            .feature_gates
            .iter()
            .filter(|(_, on)| **on)
            .map(|(name, _)| name.clone())
            .collect(),
    }
}

/// Returns the part of a recorded configuration that nodes apply: it stays in force if a restarted agent finds a
/// refused object.
pub fn recorded(record: &ConfigurationRecord) -> Configuration {
    Configuration {
        obsolete_cpu_models: record.obsolete_cpu_models.iter().cloned().collect(),
        min_cpu_model: record.min_cpu_model.clone(),
        use_emulation: record.use_emulation,
        feature_gates: record.feature_gates.iter().map(|gate| (gate.clone(), true)).collect(),
        ..Configuration::default()
    }
}

/// Returns the events for the changes in this plan.
fn events(
    observed: &ObservedNode<'_>,
    changes: &BTreeMap<String, Option<String>>,
    desired: &BTreeMap<String, String>,
) -> Vec<NodeEvent> {
    let mut events = Vec::new();
    let warning = |reason, message| NodeEvent {
        warning: true,
        reason,
        message,
    };
    if changes.contains_key(keys::OBSOLETE_HOST_MODEL) && desired.contains_key(keys::OBSOLETE_HOST_MODEL) {
        let name = desired
            .keys()
            .find_map(|key| key.strip_prefix(keys::HOST_MODEL))
            .unwrap_or_default();
        events.push(warning(
            events::HOST_MODEL_OBSOLETE,
            format!(
                "the host model of this node, {name}, is obsolete: guests with the CPU model host-model are not \
                 scheduled on this node"
            ),
        ));
    }
    if !changes.is_empty() {
        let removed = changes.values().filter(|value| value.is_none()).count();
        let changed = changes
            .iter()
            .filter(|(key, value)| value.is_some() && observed.labels.contains_key(*key))
            .count();
        let added = changes.len() - removed - changed;
        events.push(NodeEvent {
            warning: false,
            reason: events::LABELS_CHANGED,
            message: format!("CPU labels: {added} added, {changed} changed, {removed} removed"),
        });
    }
    let before = |type_| conditions::find(&observed.previous.conditions, type_);
    if let Some(failure) = observed.failure {
        let known = before(types::INSPECTED).is_some_and(|c| c.status == "False" && c.reason == failure.reason);
        if !known {
            events.push(warning(events::INSPECTION_FAILED, failure.message.clone()));
        }
    }
    let network = GuestNetwork::of(observed.guest_network);
    if network.holds() == Some(false)
        && before(types::GUEST_NETWORK).is_none_or(|c| c.status != "False" || c.reason != network.reason())
    {
        let message = format!(
            "guests with a network are not scheduled on this node: {}",
            network.sentence(observed.guest_network)
        );
        events.push(warning(events::GUEST_NETWORK_UNAVAILABLE, message));
    }
    if let Some(text) = refusals(observed)
        && before(types::CONFIGURATION_ACCEPTED).is_none_or(|c| c.message != text)
    {
        events.push(warning(events::CONFIGURATION_REFUSED, text));
    }
    events
}

#[cfg(test)]
mod tests;
