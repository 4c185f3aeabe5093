//! Checks of the agents, which run on every node.

use std::collections::{BTreeMap, BTreeSet};

use drydock_api::{
    hypervisor::HypervisorStatus,
    leases::{NODE_LEASE_NAMESPACE, STALE_AFTER},
    reasons,
};
use drydock_core::{conditions::find, removal::progress::is_linux};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Taint, Toleration};

use super::{AGENT, CheckOutcome, Finding, Rule, RuleContext, is_older, is_pod_ready, name_of, renewed_at, since};
use crate::text::seconds;

/// Label of a namespace with the Pod Security Standard that it enforces.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "each node has an agent",
        needs: &["nodes", "pods", "daemonsets", "virtualmachineinstances"],
        find: everywhere,
    },
    Rule {
        name: "agents are ready",
        needs: &["pods"],
        find: ready,
    },
    Rule {
        name: "agents renew their Leases",
        needs: &["pods", "leases"],
        find: leases,
    },
    Rule {
        name: "agents have one version",
        needs: &["hypervisors"],
        find: versions,
    },
    Rule {
        name: "the namespace of agents admits them",
        needs: &["daemonsets", "namespaces"],
        find: admitted,
    },
    Rule {
        name: "nodes accept virtual machines",
        needs: &["nodes", "hypervisors", "pods"],
        find: accepted,
    },
    Rule {
        name: "inspections of nodes succeed",
        needs: &["hypervisors"],
        find: inspected,
    },
    Rule {
        name: "guests can have a network on each node",
        needs: &["hypervisors"],
        find: network,
    },
    Rule {
        name: "CPU labels of nodes are kept up to date",
        needs: &["nodes", "hypervisors"],
        find: labelled,
    },
];

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Returns the pods of agents by node. If a node has two during a rollout, a ready pod is preferred.
fn pods<'a>(context: &RuleContext<'a>) -> BTreeMap<&'a str, &'a Pod> {
    let mut found = BTreeMap::new();
    for pod in context.own_pods(AGENT) {
        let Some(node) = node_of(pod) else { continue };
        if is_pod_ready(pod) || !found.contains_key(node) {
            found.insert(node, pod);
        }
    }
    found
}

fn everywhere(context: &RuleContext<'_>) -> Vec<Finding> {
    let Some(agents) = context.agents() else {
        let message =
            format!("no DaemonSet has the label app.kubernetes.io/name={AGENT}: no node can run virtual machines");
        return vec![Finding::error(message).helps_by("install Drydock", "kubectl apply -k deploy")];
    };
    let spec = agents.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let pods = pods(context);
    let without = context
        .snapshot
        .nodes
        .iter()
        .filter(|node| is_linux(node) && !pods.contains_key(name_of(&node.metadata)));
    let found = without.map(|node| {
        let name = name_of(&node.metadata);
        let guests = context.snapshot.instances.iter().filter(|instance| {
            let status = instance.status.as_ref();
            status.and_then(|status| status.node_name.as_deref()) == Some(name)
        });
        let guests = guests.count();
        let (outcome, follows) = if guests > 0 {
            (
                CheckOutcome::Error,
                format!("the virtual machines on the node ({guests}) cannot be migrated"),
            )
        } else {
            (CheckOutcome::Warning, "the node accepts no virtual machines".to_owned())
        };
        let (why, helps) = unreached(node, spec);
        Finding::new(outcome, format!("{name} has no agent: {why}; {follows}")).helps(helps)
    });
    found.collect()
}

/// Returns why the DaemonSet creates no pod on a node, and the remedy.
fn unreached(node: &Node, spec: Option<&PodSpec>) -> (String, String) {
    let labels = node.metadata.labels.as_ref();
    let selector = spec.and_then(|spec| spec.node_selector.as_ref());
    let mut unmet = selector.into_iter().flatten().filter(|(key, value)| {
        let label = labels.and_then(|labels| labels.get(*key));
        label != Some(*value)
    });
    if let Some((key, value)) = unmet.next() {
        let why = format!("the node does not have the label {key}={value}, which the DaemonSet selects");
        return (
            why,
            "add the label to the node, or change the DaemonSet's nodeSelector".into(),
        );
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let mut untolerated = taints.unwrap_or_default().iter().filter(|taint| {
        taint.effect != "PreferNoSchedule" && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    });
    if let Some(taint) = untolerated.next() {
        let why = format!(
            "the DaemonSet does not tolerate the node's taint {}:{}",
            taint.key, taint.effect
        );
        return (
            why,
            "add a toleration for all taints to the DaemonSet, as in Drydock's manifest".into(),
        );
    }
    (
        "no pod of the DaemonSet is scheduled on the node".into(),
        format!("see the events of the DaemonSet {AGENT}"),
    )
}

/// Returns whether a toleration covers a taint (core/v1).
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let is_any = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && ((is_any && key.is_empty()) || (key == taint.key && (is_any || toleration.value == taint.value)))
}

fn ready(context: &RuleContext<'_>) -> Vec<Finding> {
    let unready = pods(context).into_iter().filter(|(_, pod)| !is_pod_ready(pod));
    let found = unready.map(|(node, pod)| {
        let (namespace, name) = (super::namespace_of(&pod.metadata), name_of(&pod.metadata));
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let mut waiting = statuses.into_iter().flatten().filter_map(|status| {
            let waiting = status.state.as_ref()?.waiting.as_ref()?;
            waiting.reason.as_deref()
        });
        let why = waiting.next().unwrap_or("a container is not ready");
        let message = format!(
            "the agent of {node} is not ready ({why}): virtual machines on the node cannot be migrated or stopped"
        );
        Finding::error(message).helps_by(
            "see the agent's log",
            format!("kubectl -n {namespace} logs {name} --all-containers --previous --ignore-errors"),
        )
    });
    found.collect()
}

fn leases(context: &RuleContext<'_>) -> Vec<Finding> {
    let leases = context.survey.leases.iter();
    let leases: BTreeMap<&str, _> = leases
        .filter(|lease| lease.metadata.namespace.as_deref() == Some(NODE_LEASE_NAMESPACE))
        .map(|lease| (name_of(&lease.metadata), renewed_at(lease)))
        .collect();
    // Another check reports pods that are not ready.
    let ready = pods(context).into_iter().filter(|(_, pod)| is_pod_ready(pod));
    let found = ready.filter_map(|(node, pod)| {
        let stale_after = SignedDuration::try_from(STALE_AFTER).ok()?;
        let message = match leases.get(node).copied().flatten() {
            Some(at) if !is_older(context.now, at, stale_after) => return None,
            Some(at) => format!(
                "the agent of {node} has not renewed its Lease for {}: the node is considered unresponsive",
                seconds(since(context.now, at))
            ),
            None => format!(
                "the agent of {node} has no Lease in {NODE_LEASE_NAMESPACE}: the node is considered unresponsive"
            ),
        };
        let (namespace, name) = (super::namespace_of(&pod.metadata), name_of(&pod.metadata));
        Some(Finding::error(message).helps_by(
            "see why the agent does not reach the API server",
            format!("kubectl -n {namespace} logs {name} -c agent --tail=50"),
        ))
    });
    found.collect()
}

/// Returns the reports of agents by node.
fn reports<'a>(context: &RuleContext<'a>) -> impl Iterator<Item = (&'a str, &'a HypervisorStatus)> {
    let all = context.snapshot.hypervisors.iter();
    all.filter_map(|hypervisor| Some((name_of(&hypervisor.metadata), hypervisor.status.as_ref()?)))
}

fn versions(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut by_version: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (node, report) in reports(context).filter(|(_, report)| !report.agent_version.is_empty()) {
        by_version.entry(&report.agent_version).or_default().insert(node);
    }
    if by_version.len() < 2 {
        return Vec::new();
    }
    let list = by_version.iter().map(|(version, nodes)| {
        let nodes: Vec<&str> = nodes.iter().copied().collect();
        format!("{version} on {}", nodes.join(", "))
    });
    let message = format!(
        "agents have different versions ({}): guests can be migrated between different versions only from one release \
         to the next",
        list.collect::<Vec<_>>().join("; ")
    );
    vec![Finding::warning(message).helps_by(
        "wait until the rollout is complete",
        format!(
            "kubectl -n {} rollout status daemonset/{AGENT}",
            context.agents().map_or(context.namespace(), |agents| super::namespace_of(&agents.metadata))
        ),
    )]
}

fn admitted(context: &RuleContext<'_>) -> Vec<Finding> {
    let Some(agents) = context.agents() else {
        return Vec::new();
    };
    let own = super::namespace_of(&agents.metadata);
    let mut namespaces = context.survey.namespaces.iter();
    let namespace = namespaces.find(|namespace| name_of(&namespace.metadata) == own);
    let labels = namespace.and_then(|namespace| namespace.metadata.labels.as_ref());
    match labels.and_then(|labels| labels.get(ENFORCE)) {
        Some(level) if level != "privileged" => {
            let message = format!(
                "the namespace {own} enforces the Pod Security Standard {level}, which refuses the agents' pods: \
                 running agents continue, but no agent can be started again"
            );
            vec![Finding::error(message).helps_by(
                "set the level to privileged, as in Drydock's manifest",
                format!("kubectl label namespace {own} --overwrite {ENFORCE}=privileged"),
            )]
        }
        _ => Vec::new(),
    }
}

/// Returns the reports in which a condition is not true, with its message.
fn untrue<'a>(context: &RuleContext<'a>, type_: &'static str) -> impl Iterator<Item = (&'a str, String)> {
    reports(context).filter_map(move |(node, report)| {
        let condition = find(&report.conditions, type_).filter(|condition| condition.status != "True")?;
        let text = if condition.message.is_empty() {
            &condition.reason
        } else {
            &condition.message
        };
        Some((node, text.clone()))
    })
}

fn accepted(context: &RuleContext<'_>) -> Vec<Finding> {
    let reported: BTreeMap<&str, &HypervisorStatus> = reports(context).collect();
    let is_ready = |node: &str| {
        let report = reported.get(node);
        report.is_some_and(|report| drydock_core::conditions::holds(&report.conditions, reasons::hypervisor::READY))
    };
    let with_agents: Vec<&str> = pods(context).into_keys().collect();
    // If another node accepts guests, a node that accepts none is only a warning.
    let outcome = if with_agents.iter().any(|node| is_ready(node)) {
        CheckOutcome::Warning
    } else {
        CheckOutcome::Error
    };
    let found = with_agents.iter().filter(|node| !is_ready(node)).map(|&node| {
        let condition = reported
            .get(node)
            .and_then(|report| find(&report.conditions, reasons::hypervisor::READY));
        let why = match condition {
            Some(condition) if !condition.message.is_empty() => condition.message.clone(),
            Some(condition) => condition.reason.clone(),
            None => "the agent has not reported".into(),
        };
        Finding::new(outcome, format!("{node} accepts no virtual machines: {why}")).helps_by(
            "see the complete report of the agent",
            format!("kubectl get hypervisor {node} -o yaml"),
        )
    });
    found.collect()
}

fn inspected(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = untrue(context, reasons::hypervisor::INSPECTED).map(|(node, why)| {
        let message = format!("the capabilities of {node} may have changed since the last inspection: {why}");
        Finding::warning(message).helps_by(
            "see the agent's log",
            format!(
                "kubectl -n {} logs ds/{AGENT} --all-pods -c agent --tail=50",
                context.namespace()
            ),
        )
    });
    found.collect()
}

fn network(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = untrue(context, reasons::hypervisor::GUEST_NETWORK).map(|(node, why)| {
        let message = format!("guests with a network are not scheduled on {node}: {why}");
        Finding::warning(message).helps_by(
            "see the complete report of the agent",
            format!("kubectl get hypervisor {node} -o jsonpath='{{.status.conditions}}'"),
        )
    });
    found.collect()
}

fn labelled(context: &RuleContext<'_>) -> Vec<Finding> {
    let skip = drydock_api::annotations::SKIP_NODE;
    let is_skipped = |name: &str| {
        let mut nodes = context.snapshot.nodes.iter();
        let node = nodes.find(|node| name_of(&node.metadata) == name);
        let annotations = node.and_then(|node| node.metadata.annotations.as_ref());
        annotations.is_some_and(drydock_core::node::is_skipped)
    };
    let found = untrue(context, reasons::hypervisor::LABELLED).map(|(node, why)| {
        let found = Finding::warning(format!("the CPU labels of {node} may be wrong: {why}"));
        if is_skipped(node) {
            found.helps_by(
                "remove the annotation, so that the agent updates the labels again",
                format!("kubectl annotate node {node} {skip}-"),
            )
        } else {
            found.helps_by(
                "see the complete report of the agent",
                format!("kubectl get hypervisor {node} -o jsonpath='{{.status.conditions}}'"),
            )
        }
    });
    found.collect()
}
