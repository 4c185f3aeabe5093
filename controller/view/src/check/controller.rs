//! Checks of the controller's replicas.

use std::collections::BTreeSet;

use drydock_api::leases::CONTROLLER_LEASE;
use jiff::SignedDuration;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PodSpec};

use super::{
    AGENT, CONTROLLER, Finding, Rule, RuleContext, full_name, is_older, is_pod_ready, name_of, renewed_at, since,
};
use crate::text::seconds;

/// Age of the leader's Lease from which no replica is considered the leader. This is twice the term of 15 s, which a
/// leader renews every 2 s (`controller/runtime/src/lease/election.rs`), so that a change of leaders is not reported.
const LEADERLESS_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// Number of replicas with which one replica can take over from the other (`deploy/controller/deployment.yaml`).
const REPLICAS: i32 = 2;
/// Environment variable of the controller that has the image of launcher pods.
const LAUNCHER_IMAGE: &str = "DRYDOCK_LAUNCHER_IMAGE";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "a replica of the controller is ready",
        needs: &["deployments"],
        find: runs,
    },
    Rule {
        name: "another replica can take over",
        needs: &["deployments"],
        find: standby,
    },
    Rule {
        name: "replicas are on different nodes",
        needs: &["nodes", "pods"],
        find: apart,
    },
    Rule {
        name: "one replica leads",
        needs: &["leases"],
        find: leads,
    },
    Rule {
        name: "Drydock is installed once",
        needs: &["deployments"],
        find: once,
    },
    Rule {
        name: "images have one version",
        needs: &["deployments", "daemonsets"],
        find: images,
    },
];

fn ready(deployment: &Deployment) -> i32 {
    let status = deployment.status.as_ref();
    status.and_then(|status| status.ready_replicas).unwrap_or(0)
}

fn runs(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut all = context.controllers().peekable();
    if all.peek().is_none() {
        let message = format!(
            "no Deployment has the label app.kubernetes.io/name={CONTROLLER}: virtual machines cannot be started, \
             migrated or stopped"
        );
        return vec![Finding::error(message).helps_by("install Drydock", "kubectl apply -k deploy")];
    }
    let idle = all.filter(|deployment| ready(deployment) < 1).map(|deployment| {
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        let message = format!(
            "no replica of {} is ready: no migration starts, and no virtual machine can be created or changed",
            full_name(&deployment.metadata)
        );
        Finding::error(message).helps_by(
            "see the controller's pods and their logs",
            format!("kubectl -n {namespace} get pods -l app.kubernetes.io/name={CONTROLLER}"),
        )
    });
    idle.collect()
}

fn standby(context: &RuleContext<'_>) -> Vec<Finding> {
    // Another check reports a Deployment without a ready replica.
    let alone = context
        .controllers()
        .filter(|deployment| (1..REPLICAS).contains(&ready(deployment)));
    let alone = alone.map(|deployment| {
        let (namespace, name) = (
            deployment.metadata.namespace.as_deref().unwrap_or_default(),
            name_of(&deployment.metadata),
        );
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let found = Finding::warning(format!(
            "{namespace}/{name} has {} of {wanted} replicas ready: when the node of this replica is drained, no \
             migration starts until another replica has started",
            ready(deployment)
        ));
        if wanted < REPLICAS {
            found.helps_by(
                "run two replicas",
                format!("kubectl -n {namespace} scale deployment {name} --replicas={REPLICAS}"),
            )
        } else {
            found.helps_by(
                "see why the other replica is not ready",
                format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name={CONTROLLER}"),
            )
        }
    });
    alone.collect()
}

fn apart(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut pods = 0;
    let mut nodes = BTreeSet::new();
    for pod in context.own_pods(CONTROLLER).filter(|pod| is_pod_ready(pod)) {
        pods += 1;
        nodes.extend(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()));
    }
    let mut open = context.snapshot.nodes.iter().filter(|node| {
        let spec = node.spec.as_ref();
        let is_cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        let taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        !is_cordoned
            && taints.iter().all(|taint| taint.effect == "PreferNoSchedule")
            && !nodes.contains(name_of(&node.metadata))
    });
    match (nodes.first(), open.next()) {
        (Some(node), Some(free)) if pods > 1 && nodes.len() == 1 => {
            let message = format!(
                "all replicas run on {node}, although {} is schedulable: a drain of {node} stops the leader, which \
                 carries out the drain",
                name_of(&free.metadata)
            );
            vec![Finding::warning(message).helps(
                "wait: the leader moves the other replica 30 s after all replicas are ready, if a node has enough free \
                 resources",
            )]
        }
        _ => Vec::new(),
    }
}

fn leads(context: &RuleContext<'_>) -> Vec<Finding> {
    let namespace = context.namespace();
    let mut leases = context.survey.leases.iter();
    let lease = leases.find(|lease| {
        name_of(&lease.metadata) == CONTROLLER_LEASE && lease.metadata.namespace.as_deref() == Some(namespace)
    });
    let holder = lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref());
    let message = match lease
        .and_then(renewed_at)
        .filter(|_| holder.is_some_and(|holder| !holder.is_empty()))
    {
        Some(at) if !is_older(context.now, at, LEADERLESS_AFTER) => return Vec::new(),
        Some(at) => format!(
            "the Lease {namespace}/{CONTROLLER_LEASE} was last renewed {} ago: no replica is the leader, and no \
             migration starts",
            seconds(since(context.now, at))
        ),
        None => format!(
            "the Lease {namespace}/{CONTROLLER_LEASE} has no holder: no replica is the leader, and no migration starts"
        ),
    };
    vec![Finding::error(message).helps_by(
        "see the controller's logs",
        format!("kubectl -n {namespace} logs deployment/{CONTROLLER} --all-pods"),
    )]
}

fn once(context: &RuleContext<'_>) -> Vec<Finding> {
    let all: Vec<String> = context
        .controllers()
        .map(|object| full_name(&object.metadata))
        .collect();
    if all.len() < 2 {
        return Vec::new();
    }
    let message = format!(
        "{} controllers are installed ({}): each has a leader in its own namespace, and all act on the same virtual \
         machines",
        all.len(),
        all.join(", ")
    );
    vec![Finding::error(message).helps("remove all controllers except one")]
}

/// Returns the tag of an image. Returns `None` if the image has no tag or is identified by a digest.
fn tag(image: &str) -> Option<&str> {
    let name = image.rsplit('/').next()?;
    let (_, tag) = name.split_once(':')?;
    (!image.contains('@')).then_some(tag)
}

fn images(context: &RuleContext<'_>) -> Vec<Finding> {
    let mut found = BTreeSet::new();
    let mut add = |spec: Option<&PodSpec>| {
        for container in spec.into_iter().flat_map(|spec| &spec.containers) {
            let environment = container.env.iter().flatten();
            let launcher = environment.filter(|variable| variable.name == LAUNCHER_IMAGE);
            found.extend(launcher.filter_map(|variable| variable.value.clone()));
            found.extend(container.image.clone());
        }
    };
    for deployment in context.controllers() {
        add(deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()));
    }
    let agents = context.agents().and_then(|agents| agents.spec.as_ref());
    add(agents.and_then(|spec| spec.template.spec.as_ref()));
    let tags: BTreeSet<&str> = found.iter().filter_map(|image| tag(image)).collect();
    if tags.len() < 2 {
        return Vec::new();
    }
    let images = found.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let message = format!(
        "{CONTROLLER}, {AGENT} and launcher pods have images of different versions ({images}): only two \
         consecutive releases are supported together, during a rollout"
    );
    vec![Finding::warning(message).helps_by(
        "set all images to one version, and apply the manifests",
        "kubectl apply -k deploy",
    )]
}
