//! Scheduling fields, checked as the API server checks them in a pod. So a mistake is reported when the virtual
//! machine is created, not when its pod cannot be created.

use drydock_api::kubevirt::VirtualMachineInstanceSpec;
use k8s_openapi::{
    api::core::v1::{Affinity, NodeAffinity, NodeSelectorTerm, PodAffinityTerm, Toleration, TopologySpreadConstraint},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

use super::{name_rules, networks};
use crate::admission::{At, RefusalList};

const DNS_POLICIES: [&str; 4] = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const UNSATISFIABLE: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
/// Longest accepted grace period, in seconds: a day.
const GRACE: i64 = 86400;

pub(super) fn check(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    networks::host_names(spec, at, refusals);
    name_rules::node_selector(&spec.node_selector, &at.field("nodeSelector"), refusals);
    for (index, found) in spec.tolerations.iter().enumerate() {
        toleration(found, &at.field("tolerations").index(index), refusals);
    }
    if let Some(found) = &spec.affinity {
        affinity(found, &at.field("affinity"), refusals);
    }
    spread(
        &spec.topology_spread_constraints,
        &at.field("topologySpreadConstraints"),
        refusals,
    );
    if let Some(class) = &spec.priority_class_name {
        name_rules::reference(class, &at.field("priorityClassName"), refusals);
    }
    if let Some(scheduler) = &spec.scheduler_name {
        name_rules::reference(scheduler, &at.field("schedulerName"), refusals);
    }
    if let Some(seconds) = spec.termination_grace_period_seconds
        && !(0..=GRACE).contains(&seconds)
    {
        let allowed = format_args!("0 to {GRACE}");
        refusals.not_allowed(&at.field("terminationGracePeriodSeconds"), seconds, allowed);
    }
    dns(spec, at, refusals);
}

fn dns(spec: &VirtualMachineInstanceSpec, at: &At, refusals: &mut RefusalList) {
    if let Some(policy) = &spec.dns_policy {
        one_of(policy, &DNS_POLICIES, &at.field("dnsPolicy"), refusals);
    }
    let config = spec.dns_config.clone().unwrap_or_default();
    let at = at.field("dnsConfig");
    let servers = config.nameservers.unwrap_or_default();
    let at_servers = at.field("nameservers");
    if spec.dns_policy.as_deref() == Some("None") && servers.is_empty() {
        refusals.required(&at_servers, "dnsPolicy None requires at least one name server");
    }
    if servers.len() > 3 {
        refusals.not_allowed(&at_servers, servers.len(), "at most 3");
    }
    for (index, server) in servers.iter().enumerate() {
        if server.parse::<std::net::IpAddr>().is_err() {
            refusals.not_allowed(&at_servers.index(index), server, "an IP address");
        }
    }
    let searches = config.searches.unwrap_or_default();
    let at_searches = at.field("searches");
    if searches.len() > 32 {
        refusals.not_allowed(&at_searches, searches.len(), "at most 32");
    }
    for (index, search) in searches.iter().enumerate() {
        let name = search.strip_suffix('.').unwrap_or(search);
        if search != "." && !name_rules::is_dns_subdomain(&name.replace('_', "a")) {
            refusals.not_allowed(&at_searches.index(index), search, name_rules::DNS_SUBDOMAIN);
        }
    }
    for (index, option) in config.options.unwrap_or_default().iter().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            let at = at.field("options").index(index).field("name");
            refusals.required(&at, "each DNS option must have a name");
        }
    }
}

fn one_of(found: &str, allowed: &[&str], at: &At, refusals: &mut RefusalList) {
    if !allowed.contains(&found) {
        refusals.not_allowed(at, found, allowed.join(", "));
    }
}

fn toleration(found: &Toleration, at: &At, refusals: &mut RefusalList) {
    let key = found.key.as_deref().unwrap_or_default();
    let operator = found
        .operator
        .as_deref()
        .filter(|operator| !operator.is_empty())
        .unwrap_or("Equal");
    let value = found.value.as_deref().unwrap_or_default();
    let effect = found.effect.as_deref().unwrap_or_default();
    one_of(operator, &["Exists", "Equal"], &at.field("operator"), refusals);
    if key.is_empty() {
        if operator != "Exists" {
            refusals.not_allowed(&at.field("operator"), operator, "Exists, because key is not set");
        }
    } else {
        name_rules::label_key(key, &at.field("key"), refusals);
    }
    if operator == "Exists" && !value.is_empty() {
        refusals.not_allowed(&at.field("value"), value, "no value with the operator Exists");
    } else {
        name_rules::label_value(value, &at.field("value"), refusals);
    }
    if !effect.is_empty() {
        one_of(effect, &EFFECTS, &at.field("effect"), refusals);
    }
    if let Some(seconds) = found.toleration_seconds
        && effect != "NoExecute"
    {
        let allowed = "no value without the effect NoExecute";
        refusals.not_allowed(&at.field("tolerationSeconds"), seconds, allowed);
    }
}

fn affinity(found: &Affinity, at: &At, refusals: &mut RefusalList) {
    if let Some(node) = &found.node_affinity {
        node_affinity(node, &at.field("nodeAffinity"), refusals);
    }
    let pod = found.pod_affinity.as_ref().map(|pod| {
        (
            "podAffinity",
            &pod.required_during_scheduling_ignored_during_execution,
            &pod.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let anti = found.pod_anti_affinity.as_ref().map(|pod| {
        (
            "podAntiAffinity",
            &pod.required_during_scheduling_ignored_during_execution,
            &pod.preferred_during_scheduling_ignored_during_execution,
        )
    });
    for (name, required, preferred) in pod.into_iter().chain(anti) {
        let at = at.field(name);
        for (index, term) in required.iter().flatten().enumerate() {
            pod_term(term, &at.field(REQUIRED).index(index), refusals);
        }
        for (index, weighted) in preferred.iter().flatten().enumerate() {
            let at = at.field(PREFERRED).index(index);
            weight(weighted.weight, &at, refusals);
            pod_term(&weighted.pod_affinity_term, &at.field("podAffinityTerm"), refusals);
        }
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn node_affinity(found: &NodeAffinity, at: &At, refusals: &mut RefusalList) {
    if let Some(required) = &found.required_during_scheduling_ignored_during_execution {
        let at = at.field(REQUIRED).field("nodeSelectorTerms");
        if required.node_selector_terms.is_empty() {
            refusals.required(&at, "without a term no node is selected");
        }
        for (index, term) in required.node_selector_terms.iter().enumerate() {
            node_term(term, &at.index(index), refusals);
        }
    }
    let preferred = found
        .preferred_during_scheduling_ignored_during_execution
        .iter()
        .flatten();
    for (index, term) in preferred.enumerate() {
        let at = at.field(PREFERRED).index(index);
        weight(term.weight, &at, refusals);
        node_term(&term.preference, &at.field("preference"), refusals);
    }
}

fn node_term(term: &NodeSelectorTerm, at: &At, refusals: &mut RefusalList) {
    for (index, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let at = at.field("matchExpressions").index(index);
        name_rules::node_label_key(&requirement.key, &at.field("key"), refusals);
        let values = requirement.values.as_deref().unwrap_or_default();
        let at_values = at.field("values");
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                refusals.required(&at_values, "the operators In and NotIn require values");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                refusals.not_allowed(&at_values, values.join(","), "no values with this operator");
            }
            "Gt" | "Lt" if !matches!(values, [one] if one.parse::<i64>().is_ok()) => {
                refusals.not_allowed(&at_values, values.join(","), "one whole number");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => {
                refusals.not_allowed(&at.field("operator"), other, "In, NotIn, Exists, DoesNotExist, Gt, Lt");
            }
        }
        if matches!(requirement.operator.as_str(), "In" | "NotIn") {
            for (index, value) in values.iter().enumerate() {
                name_rules::label_value(value, &at_values.index(index), refusals);
            }
        }
    }
    for (index, requirement) in term.match_fields.iter().flatten().enumerate() {
        let at = at.field("matchFields").index(index);
        one_of(&requirement.key, &["metadata.name"], &at.field("key"), refusals);
        one_of(&requirement.operator, &["In", "NotIn"], &at.field("operator"), refusals);
        let values = requirement.values.as_deref().unwrap_or_default();
        if values.len() != 1 {
            refusals.not_allowed(&at.field("values"), values.join(","), "the name of one node");
        }
    }
}

fn weight(weight: i32, at: &At, refusals: &mut RefusalList) {
    if !(1..=100).contains(&weight) {
        refusals.not_allowed(&at.field("weight"), weight, "1 to 100");
    }
}

fn pod_term(term: &PodAffinityTerm, at: &At, refusals: &mut RefusalList) {
    if term.topology_key.is_empty() {
        refusals.required(&at.field("topologyKey"), "a node label such as kubernetes.io/hostname");
    } else {
        name_rules::label_key(&term.topology_key, &at.field("topologyKey"), refusals);
    }
    if let Some(selector) = &term.label_selector {
        selector_expressions(selector, &at.field("labelSelector"), refusals);
    }
    if let Some(selector) = &term.namespace_selector {
        selector_expressions(selector, &at.field("namespaceSelector"), refusals);
    }
}

/// Checks the expressions of a label selector.
pub(super) fn selector_expressions(selector: &LabelSelector, at: &At, refusals: &mut RefusalList) {
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let at = at.field("matchExpressions").index(index);
        name_rules::label_key(&requirement.key, &at.field("key"), refusals);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                refusals.required(&at.field("values"), "the operators In and NotIn require values");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                refusals.not_allowed(&at.field("values"), values.join(","), "no values with this operator");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => refusals.not_allowed(&at.field("operator"), other, "In, NotIn, Exists, DoesNotExist"),
        }
    }
}

fn spread(constraints: &[TopologySpreadConstraint], at: &At, refusals: &mut RefusalList) {
    for (index, constraint) in constraints.iter().enumerate() {
        let at_constraint = at.index(index);
        if constraint.max_skew < 1 {
            refusals.not_allowed(&at_constraint.field("maxSkew"), constraint.max_skew, "1 or more");
        }
        if constraint.topology_key.is_empty() {
            refusals.required(&at_constraint.field("topologyKey"), "a label of nodes");
        } else {
            name_rules::label_key(&constraint.topology_key, &at_constraint.field("topologyKey"), refusals);
        }
        let unsatisfiable = &constraint.when_unsatisfiable;
        one_of(
            unsatisfiable,
            &UNSATISFIABLE,
            &at_constraint.field("whenUnsatisfiable"),
            refusals,
        );
        if let Some(least) = constraint.min_domains
            && (least < 1 || unsatisfiable != "DoNotSchedule")
        {
            let allowed = "1 or more, and only with whenUnsatisfiable DoNotSchedule";
            refusals.not_allowed(&at_constraint.field("minDomains"), least, allowed);
        }
        let same = |other: &TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key && other.when_unsatisfiable == *unsatisfiable
        };
        if let Some(first) = constraints[..index].iter().position(same) {
            let key = &constraint.topology_key;
            refusals.duplicate(&at_constraint.field("topologyKey"), key, &at.index(first));
        }
        if let Some(selector) = &constraint.label_selector {
            selector_expressions(selector, &at_constraint.field("labelSelector"), refusals);
        }
    }
}
