//! Explains one node: whether it accepts new guests, the effect of a drain, and the CPU models that guests can have.

use drydock_api::{
    facts::{Usable, VirtualizationFacts},
    hypervisor::HypervisorStatus,
    kubevirt::VirtualMachineInstanceSpec,
    leases::STALE_AFTER,
};
use drydock_core::{
    aliases,
    obsolete::ObsoleteModels,
    placement::{Misfit, NodeView, Rules, fit, requirements},
};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    nodes::{NodeRow, row_in},
    plan::plan_in,
    snapshot::{ClusterObjects, Snapshot, UnreadKind},
    text::{beside, bytes, seconds},
};

/// Column at which messages begin.
const MESSAGE: usize = 16;

/// State of the Lease that an agent renews as its heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The agent renewed the Lease at this time.
    Renewed(Timestamp),
    /// The Lease does not exist.
    Missing,
    /// The Lease could not be read, for this reason.
    Unread(String),
}

/// The explanation of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    /// Row of the node in the table of all nodes.
    pub row: NodeRow,
    /// Reasons why no new guest without special requirements could start on the node, each the predicate of a sentence
    /// about the node.
    pub refuses: Vec<String>,
    /// State of the node's agent, as text.
    pub agent: String,
    /// Conditions of the node's Hypervisor that are not true, as text.
    pub conditions: Vec<String>,
    /// Effect of a drain.
    pub drain: Option<DrainInShort>,
    /// Processor of the node; `None` if no agent has reported it.
    pub cpu: Option<NodeCpu>,
    /// Kinds of objects that were not considered.
    pub unread: Vec<UnreadKind>,
}

/// Numbers of guests by the effect of a drain on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainInShort {
    /// Number of guests that would move.
    pub moves: usize,
    /// Number of guests that would be shut down.
    pub stops: usize,
    /// Guests that would block the drain, as NAMESPACE/NAME.
    pub blocks: Vec<String>,
    /// Pods that would wait for a PodDisruptionBudget, as NAMESPACE/NAME.
    pub pods_waiting: Vec<String>,
}

/// Properties of a node's processor that guests can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCpu {
    /// Vendor of the processor.
    pub vendor: String,
    /// CPU model of guests with `host-model`.
    pub host_model: Option<String>,
    /// CPU models that guests can have, each under one name, without obsolete ones.
    pub usable: Vec<String>,
    /// CPU models that guests cannot have.
    pub not_usable: Vec<String>,
    /// CPU features that the node withholds from guests.
    pub masked: Vec<String>,
}

/// Returns the explanation of a node. Returns `None` if no node has this name.
pub fn node(snapshot: &Snapshot, name: &str, lease: &Lease) -> Option<NodeExplanation> {
    snapshot.node(name)?;
    let world = ClusterObjects::of(snapshot);
    let status = world.hypervisor(name).and_then(|hypervisor| hypervisor.status.clone());
    let views = world.views(&snapshot.nodes);
    let view = views.iter().find(|view| view.name == name)?;
    let plan = plan_in(&world, &[name.to_owned()]).nodes.into_iter().next();
    let obsolete = ObsoleteModels::with(world.configuration.obsolete_cpu_models.iter().cloned());
    let virtualization = view.facts.and_then(|facts| facts.virtualization.as_ref());
    Some(NodeExplanation {
        row: row_in(&world, name)?,
        refuses: refuses(&world, view),
        agent: agent(status.as_ref(), lease, snapshot.at),
        conditions: conditions(status.as_ref()),
        drain: plan.map(|plan| DrainInShort {
            moves: plan.moves.len(),
            stops: plan.stops.len(),
            blocks: plan
                .blocks
                .iter()
                .map(|guest| format!("{}/{}", guest.namespace, guest.name))
                .collect(),
            pods_waiting: plan
                .pods_waiting
                .iter()
                .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                .collect(),
        }),
        cpu: virtualization.map(|facts| cpu(facts, &obsolete, view.masked)),
        unread: snapshot.unread.clone(),
    })
}

/// Returns the reasons why a guest without special requirements would not start on a node.
fn refuses(world: &ClusterObjects<'_>, view: &NodeView<'_>) -> Vec<String> {
    let architecture = view.labels.and_then(|labels| labels.get("kubernetes.io/arch"));
    let spec = VirtualMachineInstanceSpec {
        architecture: architecture.cloned(),
        ..VirtualMachineInstanceSpec::default()
    };
    let needs = requirements(&spec, &world.configuration, world.minimum());
    let found = fit(&needs, &spec, &Rules::default(), std::slice::from_ref(view));
    found.misfits.keys().map(Misfit::of_node).collect()
}

fn agent(status: Option<&HypervisorStatus>, lease: &Lease, now: Timestamp) -> String {
    let version = status
        .map(|status| status.agent_version.as_str())
        .filter(|version| !version.is_empty());
    let version = version.map_or_else(|| "no report".into(), |version| format!("version {version}"));
    let lease = match lease {
        Lease::Renewed(at) => {
            let ago = u64::try_from(now.duration_since(*at).as_secs()).unwrap_or(0);
            if ago > STALE_AFTER.as_secs() {
                format!(
                    "its Lease was not renewed for {}: the agent does not respond; guests may still be running",
                    seconds(ago)
                )
            } else {
                format!("its Lease was renewed {} ago", seconds(ago))
            }
        }
        Lease::Missing => "no Lease exists: no agent runs on the node".into(),
        Lease::Unread(why) => format!("its Lease could not be read ({why})"),
    };
    format!("{version}; {lease}")
}

fn conditions(status: Option<&HypervisorStatus>) -> Vec<String> {
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let unmet = conditions.iter().filter(|condition| condition.status != "True");
    unmet
        .map(|condition| {
            let reason = match (condition.reason.as_str(), condition.message.as_str()) {
                (reason, "") => reason.to_owned(),
                (reason, message) => format!("{message} ({reason})"),
            };
            format!("{} is {}: {reason}", condition.type_, condition.status)
        })
        .collect()
}

fn cpu(facts: &VirtualizationFacts, obsolete: &ObsoleteModels, masked: &[String]) -> NodeCpu {
    let current = |name: &str| !obsolete.covers(name, &facts.models);
    let (usable, not_usable): (Vec<_>, Vec<_>) = facts
        .models
        .iter()
        .filter(|model| current(&model.name))
        .partition(|model| model.usable != Usable::No);
    let names = |models: &[_]| -> Vec<String> {
        aliases::published(models, false)
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    NodeCpu {
        vendor: facts.vendor.clone(),
        host_model: facts.host_model.as_ref().map(|model| model.name.clone()),
        usable: names(&usable),
        not_usable: names(&not_usable),
        masked: masked.to_vec(),
    }
}

impl NodeExplanation {
    /// Returns the explanation as text for a terminal with this width.
    pub fn text(&self, width: usize) -> String {
        let mut text = String::new();
        let mut line = |label: &str, message: &str| beside(&mut text, label, message, MESSAGE, width);
        let row = &self.row;
        let why = row.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        line(&row.name, &format!("{}{why}", row.state.as_str()));
        let (requested, all) = (bytes(row.requested_bytes), bytes(row.allocatable_bytes));
        line(
            "",
            &format!("{} guests; {requested} of {all} of memory are requested", row.guests),
        );
        if self.refuses.is_empty() {
            line("new guests", "may start if they have no special requirements");
        }
        for (index, reason) in self.refuses.iter().enumerate() {
            line(
                if index == 0 { "new guests" } else { "" },
                &format!("may not start: the node {reason}"),
            );
        }
        line("agent", &self.agent);
        for (index, condition) in self.conditions.iter().enumerate() {
            line(if index == 0 { "conditions" } else { "" }, condition);
        }
        if let Some(drain) = &self.drain {
            line("a drain", &drain.sentence());
            line("", &format!("kubectl drydock plan {}", row.name));
        }
        if let Some(cpu) = &self.cpu {
            cpu.append(&row.name, &mut line);
        }
        if !self.unread.is_empty() {
            line("not considered", &UnreadKind::list(&self.unread));
        }
        text
    }
}

impl DrainInShort {
    fn sentence(&self) -> String {
        let of = |names: &[String]| {
            let names = names.join(", ");
            if names.is_empty() { names } else { format!(" ({names})") }
        };
        format!(
            "moves {}, stops {}, is blocked by {}{}; {} pods wait{}",
            self.moves,
            self.stops,
            self.blocks.len(),
            of(&self.blocks),
            self.pods_waiting.len(),
            of(&self.pods_waiting)
        )
    }
}

impl NodeCpu {
    fn append(&self, node: &str, line: &mut impl FnMut(&str, &str)) {
        let host_model = self.host_model.as_ref().map(|model| format!(", host model {model}"));
        line("CPU", &format!("{}{}", self.vendor, host_model.unwrap_or_default()));
        line(
            "usable models",
            &format!("{}: {}", self.usable.len(), self.usable.join(", ")),
        );
        if let Some(first) = self.not_usable.first() {
            line(
                "not usable",
                &format!("{}: {}", self.not_usable.len(), self.not_usable.join(", ")),
            );
            line("", &format!("kubectl drydock explain model {first} --node {node}"));
        }
        if !self.masked.is_empty() {
            line("masked", &self.masked.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use drydock_api::facts::CpuModel;
    use serde_json::json;

    use super::*;
    use crate::plan::fixture::cluster;

    const RENEWED: &str = "2026-11-27T14:02:08Z";

    /// Returns a cluster in which an agent has reported a version, a condition that is not true, and a model that is
    /// not usable.
    fn reported() -> Snapshot {
        let mut snapshot = cluster();
        for hypervisor in &mut snapshot.hypervisors {
            let condition = |type_: &str, status: &str, message: &str| json!({"type": type_, "status": status, "reason": "Any", "message": message, "lastTransitionTime": RENEWED});
            let status = Arc::make_mut(hypervisor).status.as_mut().unwrap();
            let all = json!([
                condition("Ready", "True", ""),
                condition("GuestNetwork", "False", "no bridge")
            ]);
            status.conditions = serde_json::from_value(all).unwrap();
            status.agent_version = "0.1.0".into();
            let facts = Arc::make_mut(status.facts.as_mut().unwrap());
            Arc::make_mut(&mut facts.virtualization.as_mut().unwrap().models).push(CpuModel {
                name: "Skylake-Server".into(),
                usable: Usable::No,
                ..CpuModel::default()
            });
        }
        snapshot
    }

    #[test]
    fn open_node_is_explained_with_a_drain_in_short() {
        let lease = Lease::Renewed(RENEWED.parse().unwrap());
        let found = node(&reported(), "a", &lease).unwrap();
        assert_eq!(found.refuses, [""; 0]);
        let drain = found.drain.clone().unwrap();
        assert_eq!(
            (drain.moves, drain.stops, drain.blocks),
            (2, 1, vec!["shop/cache".to_owned()])
        );
        insta::assert_snapshot!(format!("{}\n{}", found.text(80), found.text(40)));
        assert_eq!(node(&reported(), "z", &lease), None);
    }

    #[test]
    fn node_that_takes_no_guests_has_every_reason() {
        let mut snapshot = reported();
        let object = Arc::make_mut(&mut snapshot.nodes[0]);
        object.spec.get_or_insert_default().unschedulable = Some(true);
        let taint = json!([{"key": "dedicated", "effect": "NoSchedule"}]);
        object.spec.get_or_insert_default().taints = serde_json::from_value(taint).unwrap();
        let labels = object.metadata.labels.as_mut().unwrap();
        labels.insert("kubevirt.io/schedulable".into(), "false".into());
        labels.remove("drydock.dev/guest-network");
        let found = node(&snapshot, "a", &Lease::Missing).unwrap();
        assert_eq!(
            found.refuses,
            [
                "has no network for guests",
                "is not ready for virtual machines",
                "has the taint dedicated",
                "is unschedulable"
            ]
        );
    }

    #[test]
    fn unresponsive_agent_is_reported() {
        let now: Timestamp = "2026-11-27T14:02:11Z".parse().unwrap();
        let ago = |seconds| Lease::Renewed(now - jiff::SignedDuration::from_secs(seconds));
        for (lease, expected) in [
            (ago(40), "no report; its Lease was renewed 40 s ago"),
            (
                ago(41),
                "no report; its Lease was not renewed for 41 s: the agent does not respond; guests may still be \
                 running",
            ),
            (Lease::Missing, "no report; no Lease exists: no agent runs on the node"),
            (
                Lease::Unread("forbidden".into()),
                "no report; its Lease could not be read (forbidden)",
            ),
        ] {
            assert_eq!(agent(None, &lease, now), expected);
        }
    }
}
