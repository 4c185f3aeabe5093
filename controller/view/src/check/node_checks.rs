//! Checks of nodes that run virtual machines.

use drydock_api::reasons;
use drydock_core::conditions::holds;

use super::{Finding, Rule, RuleContext, name_of};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "kubelets are ready",
        needs: &["nodes"],
        find: kubelets,
    },
    Rule {
        name: "virtual machines have another node to move to",
        needs: &["nodes", "hypervisors"],
        find: several,
    },
    Rule {
        name: "no node is cordoned without a maintenance",
        needs: &["nodes", "nodemaintenances"],
        find: cordoned,
    },
    Rule {
        name: "taints that drain nodes have the effect NoSchedule",
        needs: &["nodes", "configmaps", "hyperconvergeds"],
        find: taints,
    },
    Rule {
        name: "guests run with KVM",
        needs: &["hypervisors", "configmaps", "hyperconvergeds"],
        find: emulation,
    },
];

fn kubelets(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = context.snapshot.nodes.iter().filter_map(|node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        let ready = conditions.find(|condition| condition.type_ == "Ready")?;
        if ready.status == "True" {
            return None;
        }
        let name = name_of(&node.metadata);
        let why = ready.message.as_deref().unwrap_or_default();
        let message =
            format!("{name} is not ready ({why}): guests on the node may still be running, and cannot be migrated");
        Some(Finding::error(message).helps(
            "repair the node; if it is certainly off, add the taint \
             node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
        ))
    });
    found.collect()
}

fn several(context: &RuleContext<'_>) -> Vec<Finding> {
    let takes_guests = |name: &str| {
        let status = context
            .world
            .hypervisor(name)
            .and_then(|hypervisor| hypervisor.status.as_ref());
        status.is_some_and(|status| holds(&status.conditions, reasons::hypervisor::READY))
    };
    let nodes = context.snapshot.nodes.iter().map(|node| name_of(&node.metadata));
    let nodes: Vec<&str> = nodes.filter(|name| takes_guests(name)).collect();
    match nodes.as_slice() {
        // Another check reports that no node accepts guests.
        [only] => vec![
            Finding::warning(format!(
                "only {only} accepts virtual machines: no virtual machine can be migrated"
            ))
            .helps("add a node, or see why the other nodes accept no virtual machines"),
        ],
        _ => Vec::new(),
    }
}

fn cordoned(context: &RuleContext<'_>) -> Vec<Finding> {
    let cordoned = context.snapshot.nodes.iter().filter(|node| {
        let spec = node.spec.as_ref();
        spec.and_then(|spec| spec.unschedulable) == Some(true)
    });
    let cordoned = cordoned.map(|node| name_of(&node.metadata));
    let found = cordoned
        .filter(|name| context.snapshot.maintenances_of(name).next().is_none())
        .map(|name| {
            let message = format!("{name} is cordoned without a NodeMaintenance: the node accepts no virtual machines");
            Finding::warning(message).helps_by(
                "make the node schedulable (uncordon), unless it is being drained",
                format!("kubectl uncordon {name}"),
            )
        });
    found.collect()
}

fn taints(context: &RuleContext<'_>) -> Vec<Finding> {
    let key = &context.world.configuration.migrations.drain_taint_key;
    let mut found = Vec::new();
    for node in &context.snapshot.nodes {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
        let wrong = taints.unwrap_or_default().iter();
        for taint in wrong.filter(|taint| taint.key == *key && taint.effect != "NoSchedule") {
            let name = name_of(&node.metadata);
            let effect = &taint.effect;
            let add = format!("kubectl taint nodes {name} {key}:{effect}- {key}=draining:NoSchedule");
            found.push(if effect == "NoExecute" {
                let message = format!(
                    "{name} has the taint {key} with the effect NoExecute: Kubernetes deletes the pods of guests at \
                     once, which shuts the guests down"
                );
                Finding::error(message).helps_by("change the effect to NoSchedule", add)
            } else {
                let message =
                    format!("{name} has the taint {key} with the effect {effect}, which does not drain the node");
                Finding::warning(message).helps_by("change the effect to NoSchedule, to drain the node", add)
            });
        }
    }
    found
}

fn emulation(context: &RuleContext<'_>) -> Vec<Finding> {
    if !context.world.configuration.use_emulation {
        return Vec::new();
    }
    let nodes = context.snapshot.hypervisors.iter().filter(|hypervisor| {
        let status = hypervisor.status.as_ref();
        status.is_some_and(|status| {
            let kvm = drydock_core::conditions::find(&status.conditions, reasons::hypervisor::KVM_AVAILABLE);
            kvm.is_some_and(|kvm| kvm.status == "False")
        })
    });
    let nodes: Vec<&str> = nodes.map(|hypervisor| name_of(&hypervisor.metadata)).collect();
    if nodes.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "debug.useEmulation is true, and {} cannot use KVM: guests are much slower without KVM",
        nodes.join(", ")
    );
    vec![Finding::warning(message).helps("enable KVM on the nodes, and remove debug.useEmulation from kubevirt-config")]
}
