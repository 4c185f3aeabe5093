//! Evaluates whether other nodes have room for the guests that leave their nodes.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use drydock_api::kubevirt::VirtualMachineInstance;
use drydock_core::{
    drain::{DrainedGuest, DrainingNode, competing},
    placement::{DepartingGuest, DepartureOutlook, PackingResult, name_of, pack},
};
use drydock_runtime::{
    Key,
    clock::{self, Instant},
};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::{launchers::Launchers, nodes::NodePair, reserved_nodes::PlannedNode};

/// Minimum validity of the outlooks if every guest has one.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
/// Validity of the outlooks as a multiple of their evaluation time, so that a large cluster is not evaluated at each
/// change.
const TIMES: u32 = 20;
/// Validity of the outlooks as a multiple of their evaluation time, if a guest has no outlook yet.
const TIMES_FOR_NEW: u32 = 4;
/// Interval at which guests without a target node are evaluated again even without a change, because a pod may have
/// left a node.
const AGAIN: Duration = Duration::from_secs(5);

/// Outlooks of the guests that leave. They are evaluated at intervals.
#[derive(Debug, Default)]
pub(super) struct Outlooks(Mutex<CachedOutlooks>);

#[derive(Debug, Default)]
struct CachedOutlooks {
    /// Outlook of each guest that leaves.
    of: HashMap<Key, DepartureOutlook>,
    /// Time and duration of the last evaluation.
    evaluated: Option<(Instant, Duration)>,
}

/// The result of evaluating the outlooks of the guests that leave.
#[derive(Debug, Default)]
pub(super) struct EvaluatedOutlooks {
    /// Time of the next evaluation, even if nothing changes.
    pub(super) again: Option<jiff::Timestamp>,
    /// The nodes to which the guests are expected to move, if that was evaluated.
    pub(super) planned: Option<Vec<PlannedNode>>,
}

impl Outlooks {
    /// Sets the outlook of each guest that leaves. The outlooks are evaluated if that is due.
    pub(super) fn apply(&self, launchers: &Launchers, nodes: &mut [DrainingNode<'_>]) -> EvaluatedOutlooks {
        let leaving = || {
            let guests = nodes
                .iter()
                .flat_map(|node| node.guests.iter().map(move |guest| (node, guest)));
            guests
                .filter(|(node, guest)| node.leaves(guest))
                .map(|(_, guest)| guest)
        };
        let mut known = self.0.lock();
        let mut planned = leaving().next().is_none().then(Vec::new);
        if known.is_due(leaving()) {
            let began = Instant::now();
            let competing: Vec<_> = leaving().filter_map(|guest| Competitor::of(launchers, guest)).collect();
            let packing = evaluate(launchers, &competing);
            planned = Some(planned_nodes(&competing, &packing));
            known.of = leaving()
                .map(|guest| (Key::of(guest.instance), DepartureOutlook::Unknown))
                .collect();
            known
                .of
                .extend(competing.iter().map(Competitor::key).zip(packing.outlooks));
            known.evaluated = Some((Instant::now(), began.elapsed()));
        }
        for guest in nodes.iter_mut().flat_map(|node| &mut node.guests) {
            guest.outlook = known.of.get(&Key::of(guest.instance)).cloned().unwrap_or_default();
        }
        let has_none =
            |outlook: &DepartureOutlook| matches!(outlook, DepartureOutlook::Crowded(_) | DepartureOutlook::Nowhere(_));
        let any = known.of.values().any(has_none);
        EvaluatedOutlooks {
            again: any.then(|| clock::now().checked_add(AGAIN).ok()).flatten(),
            planned,
        }
    }
}

impl CachedOutlooks {
    fn is_due<'a>(&self, mut leaving: impl Iterator<Item = &'a DrainedGuest<'a>>) -> bool {
        let Some((at, took)) = self.evaluated else {
            return true;
        };
        let is_new = leaving.any(|guest| !self.of.contains_key(&Key::of(guest.instance)));
        let counts = if is_new {
            took * TIMES_FOR_NEW
        } else {
            MIN_INTERVAL.max(took * TIMES)
        };
        at.elapsed() >= counts
    }
}

/// A guest that competes with others for room on nodes.
pub(super) struct Competitor<'a> {
    instance: &'a VirtualMachineInstance,
    pods: Vec<Arc<Pod>>,
    has_migration: bool,
    failures: u32,
}

impl<'a> Competitor<'a> {
    /// Returns `None` if the guest does not compete, because it stays or its target pod already has a node.
    pub(super) fn of(launchers: &Launchers, guest: &DrainedGuest<'a>) -> Option<Self> {
        let pods = launchers.of(guest.instance);
        let here = guest.instance.node_name();
        let has_place = pods.iter().any(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            node.is_some() && node != here
        });
        let competing = competing(guest, has_place)?;
        Some(Self {
            instance: guest.instance,
            pods,
            has_migration: competing.has_migration,
            failures: competing.failures,
        })
    }

    /// Returns namespace and name of the instance.
    pub(super) fn key(&self) -> Key {
        Key::of(self.instance)
    }
}

/// Returns the nodes that guests are expected to move to.
fn planned_nodes(competing: &[Competitor<'_>], packing: &PackingResult) -> Vec<PlannedNode> {
    let results = packing.outlooks.iter().zip(&packing.reserved);
    let planned = competing
        .iter()
        .zip(results)
        .filter_map(|(competitor, (outlook, reserved))| match outlook {
            DepartureOutlook::Fits(node) => Some(PlannedNode {
                guest: competitor.key(),
                node: node.clone(),
                reserved: *reserved,
            }),
            DepartureOutlook::Crowded(_) | DepartureOutlook::Nowhere(_) | DepartureOutlook::Unknown => None,
        });
    planned.collect()
}

/// Evaluates for each of these guests, in their order, whether a node has room for it.
pub(super) fn evaluate(launchers: &Launchers, competing: &[Competitor<'_>]) -> PackingResult {
    if competing.is_empty() {
        return PackingResult::default();
    }
    let (nodes, rooms) = (&launchers.nodes, &launchers.rooms);
    let pairs = nodes.pairs();
    let mut views: Vec<_> = pairs.iter().map(|pair| rooms.complete(pair.view(), &[])).collect();
    views.sort_by_key(|view| view.name);
    let leaving = competing.iter().map(|competitor| {
        let status = competitor.instance.status.as_ref();
        let here = status.and_then(|status| status.node_name.as_deref());
        let source = pairs.iter().map(NodePair::view).find(|view| Some(view.name) == here);
        let mut needs = launchers.requirements(&competitor.instance.spec, source.as_ref());
        let own: Vec<Key> = competitor.pods.iter().map(|pod| Key::of(pod.as_ref())).collect();
        needs.priority = rooms.priority(&own);
        needs.volumes = launchers.claims.bound(competitor.instance);
        let next = launchers.next_pod(competitor.instance, &competitor.pods);
        DepartingGuest {
            instance: competitor.instance,
            needs,
            source,
            has_migration: competitor.has_migration,
            failures: competitor.failures,
            pods: competitor.pods.iter().map(|pod| name_of(&pod.metadata)).collect(),
            labels: next.labels,
            excluded: next.excluded,
        }
    });
    let leaving: Vec<_> = leaving.collect();
    pack(&leaving, &views, &|newcomer, moves| {
        rooms.rules(newcomer, moves, || Cow::Borrowed(&views))
    })
}

#[cfg(test)]
mod tests;
