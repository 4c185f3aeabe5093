//! Checks of other components that act on nodes or on virtual machines, and of their effects on a drain.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        batch::v1::CronJob,
        core::v1::PodSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Finding, KUBEVIRT_DEFINITION, Rule, RuleContext, full_name, name_of};

/// Names of KubeVirt's workloads.
const KUBEVIRT: [&str; 4] = ["virt-operator", "virt-controller", "virt-handler", "virt-api"];
/// Label that KubeVirt's operator sets on its workloads. The value is the name of the workload.
const KUBEVIRT_LABEL: &str = "kubevirt.io";
/// Option with which kured reboots a node even if the drain has failed.
const FORCE_REBOOT: &str = "--force-reboot";
/// Option with which kured does not reboot nodes that run certain pods.
const BLOCKING_SELECTOR: &str = "--blocking-pod-selector";
/// Feature gate with which the descheduler waits for evictions in progress.
const IN_BACKGROUND: &str = "EvictionsInBackground=true";
/// Autoscalers, each with the annotation of nodes that it must not remove.
const AUTOSCALERS: [(&str, &str); 2] = [
    (
        "cluster-autoscaler",
        "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    ),
    ("karpenter", "karpenter.sh/do-not-disrupt"),
];

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "no other KubeVirt is installed",
        needs: &["deployments", "daemonsets", "customresourcedefinitions"],
        find: kubevirt,
    },
    Rule {
        name: "no node maintenance operator is installed",
        needs: &["deployments"],
        find: maintenance_operator,
    },
    Rule {
        name: "kured does not reboot nodes by itself",
        needs: &["daemonsets"],
        find: kured,
    },
    Rule {
        name: "the descheduler waits for guests to move",
        needs: &["deployments", "cronjobs"],
        find: descheduler,
    },
    Rule {
        name: "no autoscaler removes nodes with guests",
        needs: &["deployments", "nodes", "virtualmachineinstances"],
        find: autoscaler,
    },
];

/// A workload of any kind.
struct Workload<'a> {
    metadata: &'a ObjectMeta,
    spec: Option<&'a PodSpec>,
}

impl<'a> Workload<'a> {
    fn of_deployment(object: &'a Deployment) -> Self {
        let spec = object.spec.as_ref();
        Self {
            metadata: &object.metadata,
            spec: spec.and_then(|spec| spec.template.spec.as_ref()),
        }
    }

    fn of_daemon_set(object: &'a DaemonSet) -> Self {
        let spec = object.spec.as_ref();
        Self {
            metadata: &object.metadata,
            spec: spec.and_then(|spec| spec.template.spec.as_ref()),
        }
    }

    fn of_cron_job(object: &'a CronJob) -> Self {
        let spec = object.spec.as_ref().and_then(|spec| spec.job_template.spec.as_ref());
        Self {
            metadata: &object.metadata,
            spec: spec.and_then(|spec| spec.template.spec.as_ref()),
        }
    }

    /// Returns whether the workload is this component, according to the label `app.kubernetes.io/name` or the start or
    /// end of its name.
    fn is(&self, component: &str) -> bool {
        let label = |key: &str| self.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        let name = name_of(self.metadata);
        let named = name == component
            || name.strip_suffix(component).is_some_and(|rest| rest.ends_with('-'))
            || name.strip_prefix(component).is_some_and(|rest| rest.starts_with('-'));
        named || label(super::NAME).is_some_and(|value| value == component)
    }

    /// Returns whether an argument of a container contains this option, either alone or among the values of another
    /// option.
    fn has_option(&self, option: &str) -> bool {
        let containers = self.spec.into_iter().flat_map(|spec| &spec.containers);
        let mut arguments = containers.flat_map(|container| container.command.iter().chain(&container.args).flatten());
        arguments.any(|argument| argument.contains(option))
    }

    fn name(&self) -> String {
        full_name(self.metadata)
    }
}

fn deployments<'a>(context: &RuleContext<'a>) -> impl Iterator<Item = Workload<'a>> {
    context.survey.deployments.iter().map(Workload::of_deployment)
}

fn daemon_sets<'a>(context: &RuleContext<'a>) -> impl Iterator<Item = Workload<'a>> {
    context.survey.daemon_sets.iter().map(Workload::of_daemon_set)
}

fn kubevirt(context: &RuleContext<'_>) -> Vec<Finding> {
    let is_theirs = |workload: &Workload<'_>| {
        let labels = workload.metadata.labels.as_ref();
        KUBEVIRT.contains(&name_of(workload.metadata))
            || labels
                .and_then(|labels| labels.get(KUBEVIRT_LABEL))
                .is_some_and(|value| KUBEVIRT.contains(&value.as_str()))
    };
    let workloads = deployments(context).chain(daemon_sets(context)).filter(is_theirs);
    let names: Vec<String> = workloads.map(|workload| workload.name()).collect();
    let mut definitions = context.survey.definitions.iter();
    let is_defined = definitions.any(|definition| name_of(&definition.metadata) == KUBEVIRT_DEFINITION);
    if !names.is_empty() {
        let message = format!(
            "KubeVirt is installed in addition to Drydock ({}): both act on the same virtual machines, and overwrite \
             each other's changes",
            names.join(", ")
        );
        return vec![Finding::error(message).helps_by(
            "remove KubeVirt, or install Drydock in a cluster without KubeVirt",
            "kubectl get kubevirt -A",
        )];
    }
    if is_defined {
        let message = format!(
            "the CustomResourceDefinition {KUBEVIRT_DEFINITION} remains from a KubeVirt installation that no longer \
             exists"
        );
        return vec![Finding::warning(message).helps_by(
            "delete the CustomResourceDefinition",
            format!("kubectl delete crd {KUBEVIRT_DEFINITION}"),
        )];
    }
    Vec::new()
}

fn maintenance_operator(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = deployments(context)
        .filter(|workload| workload.is("node-maintenance-operator"))
        .map(|workload| {
            let message = format!(
                "{} acts on the same NodeMaintenance objects: the operator evicts pods at the same time, and uncordons \
                 nodes that Drydock is still draining",
                workload.name()
            );
            let namespace = super::namespace_of(workload.metadata);
            Finding::error(message).helps_by(
                "remove the operator: Drydock continues the maintenances that the operator has started",
                format!(
                    "kubectl delete -n {namespace} deployment {}",
                    name_of(workload.metadata)
                ),
            )
        });
    found.collect()
}

fn kured(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = daemon_sets(context).filter(|workload| workload.is("kured")).filter_map(|workload| {
        let name = workload.name();
        let namespace = super::namespace_of(workload.metadata);
        let edit = format!("kubectl edit -n {namespace} daemonset {}", name_of(workload.metadata));
        if workload.has_option(FORCE_REBOOT) && !workload.has_option("--force-reboot=false") {
            let message = format!(
                "{name} has the option {FORCE_REBOOT}: when a drain fails or takes too long, kured reboots the node \
                 although guests are still running"
            );
            return Some(Finding::error(message).helps_by("remove the option", edit));
        }
        if workload.has_option(BLOCKING_SELECTOR) {
            return None;
        }
        let message = format!(
            "{name} drains each node with evictions before a reboot, one node at a time with a lock of its own: a \
             guest that blocks a drain delays all reboots, and kured ignores NodeMaintenances"
        );
        Some(Finding::warning(message).helps_by(
            format!("set the option {BLOCKING_SELECTOR}=kubevirt.io=virt-launcher to exempt nodes with guests"),
            edit,
        ))
    });
    found.collect()
}

fn descheduler(context: &RuleContext<'_>) -> Vec<Finding> {
    let jobs = context.survey.cron_jobs.iter().map(Workload::of_cron_job);
    let found = deployments(context)
        .chain(jobs)
        .filter(|workload| workload.is("descheduler") && !workload.has_option(IN_BACKGROUND))
        .map(|workload| {
            let message = format!(
                "{} runs without the feature gate EvictionsInBackground: an eviction that is delayed while a guest \
                 migrates is considered failed, and another pod is evicted instead",
                workload.name()
            );
            Finding::warning(message).helps(format!("set the option --feature-gates={IN_BACKGROUND}"))
        });
    found.collect()
}

fn autoscaler(context: &RuleContext<'_>) -> Vec<Finding> {
    let found = deployments(context).filter_map(|workload| {
        let (_, annotation) = AUTOSCALERS.iter().find(|(component, _)| workload.is(component))?;
        let exposed = used_without(context, annotation);
        let first = exposed.first()?;
        let message = format!(
            "{} removes nodes with low utilization, including guests that have not migrated in time: {} may be next; \
             no node is added for a guest that waits for free resources, because the guest has no pending pod",
            workload.name(),
            exposed.join(", ")
        );
        Some(Finding::warning(message).helps_by(
            "prevent the autoscaler from removing nodes with virtual machines",
            format!("kubectl annotate node {first} {annotation}=true"),
        ))
    });
    found.collect()
}

/// Returns the nodes that have guests but not this annotation with the value `true`.
fn used_without<'a>(context: &RuleContext<'a>, annotation: &str) -> Vec<&'a str> {
    let instances = context.snapshot.instances.iter();
    let used: BTreeSet<&str> = instances.filter_map(|instance| instance.node_name()).collect();
    let nodes = context.snapshot.nodes.iter().filter(|node| {
        let annotations = node.metadata.annotations.as_ref();
        let value = annotations.and_then(|annotations| annotations.get(annotation));
        used.contains(name_of(&node.metadata)) && value.is_none_or(|value| value != "true")
    });
    nodes.map(|node| name_of(&node.metadata)).collect()
}
