//! Checks of virtual machines, and of obstacles to their migration.

use std::{collections::BTreeMap, sync::Arc};

use drydock_api::{
    hyperconverged::EvictionStrategy,
    kubevirt::{Phase, VirtualMachineInstance, names::conditions as types},
};
use drydock_core::{
    eviction::{Migratable, falls_back, is_finished, own_pdb},
    placement::{Newcomer, PodMoves, ResourceAmounts, fit},
    quantity,
    vm_conditions::find,
};
use k8s_openapi::{api::core::v1::ResourceQuota, apimachinery::pkg::api::resource::Quantity};

use super::{CheckOutcome, Finding, Rule, RuleContext, full_name, name_of, namespace_of};
use crate::{explain, plan::Remedy};

/// Number of other nodes that a message names with the reasons why they cannot take a guest.
const NAMED_NODES: usize = 3;
/// Number of guests that one message names.
const NAMED_GUESTS: usize = 3;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "guests that have to move can be migrated",
        needs: &["virtualmachineinstances", "virtualmachines", "hyperconvergeds"],
        find: migratable,
    },
    Rule {
        name: "each guest finds another node",
        needs: &[
            "nodes",
            "hypervisors",
            "pods",
            "virtualmachineinstances",
            "virtualmachines",
            "persistentvolumes",
            "persistentvolumeclaims",
            "configmaps",
            "hyperconvergeds",
        ],
        find: placed,
    },
    Rule {
        name: "virtual machines that are to start find a node",
        needs: &[
            "nodes",
            "hypervisors",
            "pods",
            "virtualmachineinstances",
            "configmaps",
            "hyperconvergeds",
        ],
        find: startable,
    },
    Rule {
        name: "guests have an eviction strategy",
        needs: &["virtualmachineinstances", "virtualmachines", "hyperconvergeds"],
        find: strategies,
    },
    Rule {
        name: "no other PodDisruptionBudget selects guests' pods",
        needs: &["virtualmachineinstances", "pods", "poddisruptionbudgets"],
        find: budgets,
    },
    Rule {
        name: "quotas leave room for the pod that a guest moves to",
        needs: &["virtualmachineinstances", "pods", "resourcequotas"],
        find: quotas,
    },
    Rule {
        name: "no guest waits for its node to be fenced",
        needs: &["virtualmachineinstances"],
        find: fenced,
    },
];

/// Returns the instances that are running.
fn running<'a>(context: &RuleContext<'a>) -> impl Iterator<Item = &'a VirtualMachineInstance> {
    let all = context.snapshot.instances.iter().map(|instance| &**instance);
    all.filter(|instance| {
        let phase = instance.phase();
        phase == Some(Phase::Running) && !is_finished(instance)
    })
}

/// Adds the remedy for a guest that blocks a drain.
fn with_remedy(mut found: Finding, reason: &str, instance: &VirtualMachineInstance) -> Finding {
    let metadata = &instance.metadata;
    found.remedy = Remedy::of(reason, instance, namespace_of(metadata), name_of(metadata));
    found
}

fn migratable(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = running(context).filter_map(|instance| {
        if context.world.strategy(instance) != EvictionStrategy::LiveMigrate || falls_back(instance) {
            return None;
        }
        let Migratable::No { reason, message } = Migratable::of(instance) else {
            return None;
        };
        let name = full_name(&instance.metadata);
        let node = instance.node_name().unwrap_or_default();
        let message = format!("{name} cannot be migrated ({reason}: {message}), and blocks a drain of {node}");
        Some(with_remedy(Finding::error(message), "NotMigratable", instance))
    });
    found.collect()
}

fn placed(context: &RuleContext<'_>) -> Vec<Finding> {
    let world = &context.world;
    let views = world.views(&context.snapshot.nodes);
    let found = running(context).filter_map(|instance| {
        let strategy = world.strategy(instance);
        let outcome = match strategy {
            EvictionStrategy::LiveMigrate if falls_back(instance) => CheckOutcome::Warning,
            EvictionStrategy::LiveMigrate => CheckOutcome::Error,
            EvictionStrategy::LiveMigrateIfPossible => CheckOutcome::Warning,
            EvictionStrategy::None | EvictionStrategy::External => return None,
        };
        if Migratable::of(instance) != Migratable::Yes {
            return None;
        }
        let nodes = explain::nodes(world, instance, &views);
        // Another check reports a cluster of one node.
        if nodes.is_empty() || nodes.iter().any(|node| node.reasons.is_empty()) {
            return None;
        }
        let shown = nodes.iter().take(NAMED_NODES);
        let mut why: Vec<String> = shown
            .map(|node| format!("{} {}", node.name, node.reasons.join(", ")))
            .collect();
        if let Some(more) = nodes.len().checked_sub(NAMED_NODES).filter(|more| *more > 0) {
            why.push(format!("{more} more"));
        }
        let follows = match outcome {
            CheckOutcome::Error => format!(
                "the guest blocks a drain of {}",
                instance.node_name().unwrap_or_default()
            ),
            _ => format!(
                "a drain of {} shuts the guest down",
                instance.node_name().unwrap_or_default()
            ),
        };
        let message = format!(
            "no other node can run {} ({}): {follows}",
            full_name(&instance.metadata),
            why.join("; ")
        );
        let found = Finding::new(outcome, message);
        Some(if outcome == CheckOutcome::Error {
            with_remedy(found, "NoTargetAvailable", instance)
        } else {
            found.helps("free resources on another node, or change the requirements of the guest")
        })
    });
    found.collect()
}

fn startable(context: &RuleContext<'_>) -> Vec<Finding> {
    let world = &context.world;
    let views = world.views(&context.snapshot.nodes);
    let waiting = context.snapshot.instances.iter().filter(|instance| {
        let status = instance.status.as_ref();
        status.is_none_or(|status| status.node_name.is_none()) && !is_finished(instance)
    });
    let found = waiting.filter_map(|instance| {
        let needs = world.requirements(instance, None, &views);
        let labels = world.next_labels(instance);
        let newcomer = Newcomer {
            namespace: namespace_of(&instance.metadata),
            labels: &labels,
            spec: &instance.spec,
            needs: &needs,
            excluded: &[],
        };
        let rules = world.rules(&newcomer, &PodMoves::default(), &views);
        let found = fit(&needs, &instance.spec, &rules, &views);
        if !found.fits.is_empty() {
            return None;
        }
        let message = format!("{} does not start: {}", full_name(&instance.metadata), found.sentence());
        Some(Finding::error(message).helps("free resources, add a node, or change the requirements of the guest"))
    });
    found.collect()
}

/// Returns the first names of a list and the number of the others.
fn named(names: &[String]) -> String {
    let shown = names
        .iter()
        .take(NAMED_GUESTS)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    match names.len().checked_sub(NAMED_GUESTS).filter(|more| *more > 0) {
        Some(more) => format!("{shown} and {more} more"),
        None => shown,
    }
}

fn strategies(context: &RuleContext<'_>) -> Vec<Finding> {
    let without = running(context).filter(|instance| {
        instance.spec.eviction_strategy.is_none() && context.world.strategy(instance) == EvictionStrategy::None
    });
    let names: Vec<String> = without.map(|instance| full_name(&instance.metadata)).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "no eviction strategy is set in {} or in the configuration: a drain shuts these virtual machines down",
        named(&names)
    );
    let mut configured = context.snapshot.hyperconvergeds.iter();
    let found = Finding::warning(message);
    let text = "set evictionStrategy of a HyperConverged to LiveMigrate, so that guests without a strategy move";
    vec![match configured.next() {
        Some(object) => found.helps_by(
            text,
            format!(
                "kubectl patch -n {} hyperconverged {} --type=merge -p '{{\"spec\":{{\"evictionStrategy\":\"LiveMigrate\"}}}}'",
                namespace_of(&object.metadata),
                name_of(&object.metadata)
            ),
        ),
        None => found.helps(text),
    }]
}

fn budgets(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut selected: BTreeMap<String, (CheckOutcome, Vec<String>)> = BTreeMap::new();
    let foreign: Vec<_> = context
        .snapshot
        .budgets
        .iter()
        .filter(|other| !own_pdb::is_ours(other))
        .collect();
    for instance in running(context) {
        for pod in context.world.pods_of(instance) {
            for foreign in foreign.iter().filter(|other| own_pdb::selects(other, pod)) {
                // A guest that moves does not need an eviction of its pod. A guest that is to be shut down is evicted.
                let blocks =
                    own_pdb::is_holding(foreign, pod) && context.world.strategy(instance) == EvictionStrategy::None;
                let (outcome, guests) = selected
                    .entry(full_name(&foreign.metadata))
                    .or_insert((CheckOutcome::Warning, Vec::new()));
                if blocks {
                    *outcome = CheckOutcome::Error;
                }
                guests.push(full_name(&instance.metadata));
            }
        }
    }
    let found = selected.into_iter().map(|(name, (outcome, guests))| {
        let follows = match outcome {
            CheckOutcome::Error => "the budget allows no eviction, and blocks a drain",
            _ => "Drydock creates no budget of its own, so these guests are not protected while no controller runs",
        };
        let message = format!(
            "the PodDisruptionBudget {name} selects the pods of {}: {follows}",
            named(&guests)
        );
        let namespace = name.split('/').next().unwrap_or_default();
        Finding::new(outcome, message).helps_by(
            "change the selector so that it excludes pods with the label kubevirt.io=virt-launcher",
            format!(
                "kubectl edit -n {namespace} pdb {}",
                name.split('/').next_back().unwrap_or_default()
            ),
        )
    });
    found.collect()
}

fn quotas(context: &RuleContext<'_>) -> Vec<Finding> {
    // The target pod of a migration is assumed to request as much as the largest present pod in the namespace.
    let mut largest: BTreeMap<&str, (String, ResourceAmounts)> = BTreeMap::new();
    for instance in running(context) {
        if matches!(
            context.world.strategy(instance),
            EvictionStrategy::None | EvictionStrategy::External
        ) {
            continue;
        }
        for pod in context.world.pods_of(instance) {
            let requests = ResourceAmounts::of_pod(pod);
            let entry = largest.entry(namespace_of(&instance.metadata));
            let (name, most) = entry.or_insert_with(|| (full_name(&instance.metadata), requests.clone()));
            if requests.get("memory") > most.get("memory") {
                (*name, *most) = (full_name(&instance.metadata), requests);
            }
        }
    }
    let found = context.survey.quotas.iter().filter_map(|quota| {
        let (guest, requests) = largest.get(namespace_of(&quota.metadata))?;
        let (resource, used, hard) = exceeded(quota, requests)?;
        let name = full_name(&quota.metadata);
        let message = format!(
            "the ResourceQuota {name} does not allow the target pod of a migration of {guest} ({resource}: {used} of \
             {hard} are used): a drain waits until the quota allows the pod"
        );
        Some(Finding::error(message).helps_by(
            format!("raise {resource} by at least the amount that one guest needs"),
            format!(
                "kubectl edit -n {} resourcequota {}",
                namespace_of(&quota.metadata),
                name_of(&quota.metadata)
            ),
        ))
    });
    found.collect()
}

/// Returns the first resource of a quota that one more pod with these requests, or its migration, would exceed. The
/// result is the resource, its used amount and its hard limit. Quotas with scopes are ignored, because they may not
/// count the pod.
fn exceeded<'a>(quota: &'a ResourceQuota, requests: &ResourceAmounts) -> Option<(&'a str, &'a str, &'a str)> {
    let spec = quota.spec.as_ref()?;
    if spec.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty()) || spec.scope_selector.is_some() {
        return None;
    }
    let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
    spec.hard.iter().flatten().find_map(|(resource, hard)| {
        let more = match resource.as_str() {
            "pods" | "count/pods" | "count/virtualmachineinstancemigrations.kubevirt.io" => 1,
            "cpu" | "requests.cpu" => requests.get("cpu"),
            "memory" | "requests.memory" => requests.get("memory"),
            other => requests.get(other.strip_prefix("requests.")?),
        };
        let is_cpu = matches!(resource.as_str(), "cpu" | "requests.cpu");
        let amount = |text: &str| {
            if is_cpu {
                quantity::milli_cpus(text)
            } else {
                quantity::bytes(text)
            }
        };
        let used = used
            .and_then(|used| used.get(resource))
            .map_or("0", |Quantity(text)| text);
        let (taken, all) = (amount(used)?, amount(&hard.0)?);
        (more > 0 && taken.saturating_add(more) > all).then_some((resource.as_str(), used, hard.0.as_str()))
    })
}

fn fenced(context: &RuleContext<'_>) -> Vec<Finding> {
    let instances: &[Arc<VirtualMachineInstance>] = &context.snapshot.instances;
    let found = instances.iter().filter_map(|instance| {
        let status = instance.status.as_ref()?;
        let condition =
            find(&status.conditions, types::FENCING_REQUIRED).filter(|condition| condition.status == "True")?;
        let node = instance.node_name().unwrap_or_default();
        let why = condition.message.as_deref().unwrap_or_default();
        let message = format!(
            "{} does not start on another node: {why}",
            full_name(&instance.metadata)
        );
        Some(Finding::error(message).helps_by(
            format!("switch {node} off, or make sure that it is off, and then add the taint"),
            format!("kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"),
        ))
    });
    found.collect()
}
