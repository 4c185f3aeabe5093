//! Decides which guests go next: small ones with a low dirty rate first.
//!
//! Guests that move fast empty most of a node soon, and a guest that dirties its memory faster than it can be copied
//! does not hold up the others. Only a few migrations are created at a time: guests that would have to wait anyway are
//! better planned again when a slot is free.

use std::collections::BTreeMap;

use drydock_api::kubevirt::{
    migration::MigrationPriority,
    names::{DESCHEDULER, EVICTION_SOURCE},
    status::DrainRequest,
};
use jiff::Timestamp;

use super::{
    DrainInput, DrainStep, DrainedGuest, DrainingNode,
    guest_steps::{is_refused, memory},
};
use crate::{
    eviction::evacuation_request,
    migration::{queue::TARGET_POD_OVERCOMMIT, record::MigrationRecord},
};

/// Maximum number of migrations of one namespace whose target pods are refused, as a multiple of the cluster's window:
/// the target pod of each is tried again, and a quota belongs to a namespace.
const MAX_REFUSED_WINDOWS: usize = 4;

/// A guest that may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    node: &'a str,
    guest: &'a DrainedGuest<'a>,
}

impl<'a> Candidate<'a> {
    pub(super) fn of(node: &'a DrainingNode<'a>, guest: &'a DrainedGuest<'a>) -> Self {
        Self { node: node.name, guest }
    }

    /// Returns the step that creates the guest's migration.
    pub(super) fn step(&self, order: usize) -> DrainStep {
        let metadata = &self.guest.instance.metadata;
        let annotations = metadata.annotations.as_ref();
        let source = annotations.and_then(|annotations| annotations.get(EVICTION_SOURCE));
        // The descheduler only rebalances pods, and no user waits for that.
        let is_tidying = source.is_some_and(|source| source == DESCHEDULER)
            && evacuation_request::evacuation(self.guest.instance)
                .is_some_and(|mark| mark.requested_by == DrainRequest::Eviction);
        DrainStep::Migrate {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            node: self.node.into(),
            priority: if is_tidying {
                MigrationPriority::SystemMaintenance
            } else {
                MigrationPriority::SystemCritical
            },
            order,
        }
    }
}

/// Returns the sort key of a guest without a migration; lower ones go first. Dirtied memory has to be copied again.
pub(super) fn rank(guest: &DrainedGuest<'_>) -> impl Ord + use<> {
    let requested_at = evacuation_request::evacuation(guest.instance).map_or(Timestamp::MAX, |mark| mark.requested_at);
    (
        memory(guest.instance).saturating_add(dirty_rate(guest).saturating_mul(10)),
        requested_at,
        guest.instance.metadata.uid.clone(),
    )
}

/// Returns a guest's dirty rate in bytes per second, as measured by its last migration; 0 if unknown.
fn dirty_rate(guest: &DrainedGuest<'_>) -> u64 {
    let measured = guest.migrations.iter().filter_map(|migration| {
        let progress = migration.status.as_ref()?.source.as_ref()?.progress.as_ref()?;
        Some((migration.metadata.creation_timestamp.clone(), progress.dirty_rate?))
    });
    measured.max().map_or(0, |(_, rate)| rate)
}

/// Returns the guests that get a migration now, in order.
pub(super) fn next<'a>(mut candidates: Vec<Candidate<'a>>, cluster: &DrainInput<'_>) -> Vec<Candidate<'a>> {
    candidates.sort_by_cached_key(|candidate| rank(candidate.guest));
    let window = |limit: u32| {
        usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .saturating_mul(2 * TARGET_POD_OVERCOMMIT)
    };
    let (of_node, of_cluster) = (
        window(cluster.limits.outbound_per_node),
        window(cluster.limits.per_cluster),
    );
    let most_refused = of_cluster.saturating_mul(MAX_REFUSED_WINDOWS);
    let mut taken = WindowUse::of(cluster);
    candidates.retain(|candidate| {
        let in_node = taken.nodes.entry(candidate.node).or_default();
        let refused = taken.refused.get(candidate.guest.key().0).copied().unwrap_or_default();
        let goes = *in_node < of_node && taken.cluster < of_cluster && refused < most_refused;
        if goes {
            *in_node += 1;
            taken.cluster += 1;
        }
        goes
    });
    candidates
}

/// Returns the steps as chains, in which each step follows the previous one: the migrations of each node form one
/// chain, and each other step is a chain of its own.
pub fn chains<'s>(steps: impl Iterator<Item = &'s DrainStep>) -> Vec<Vec<&'s DrainStep>> {
    let mut chains: Vec<Vec<&DrainStep>> = Vec::new();
    let mut of_nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for step in steps {
        let chain = match step {
            DrainStep::Migrate { node, .. } => *of_nodes.entry(node).or_insert(chains.len()),
            _ => chains.len(),
        };
        match chains.get_mut(chain) {
            Some(known) => known.push(step),
            None => chains.push(vec![step]),
        }
    }
    chains
}

/// Numbers of guests with an unfinished migration.
#[derive(Default)]
struct WindowUse<'a> {
    cluster: usize,
    nodes: BTreeMap<&'a str, usize>,
    /// Guests whose target pods are refused, by namespace. No other count includes them: a refusal has no deadline, so
    /// a few of them would hold up all others.
    refused: BTreeMap<&'a str, usize>,
}

impl<'a> WindowUse<'a> {
    fn of(cluster: &DrainInput<'a>) -> Self {
        let mut taken = Self::default();
        let guests = cluster
            .nodes
            .iter()
            .flat_map(|node| node.guests.iter().map(|guest| (node.name, guest)));
        for (node, guest) in guests {
            let mut migrations = guest.migrations.iter();
            match migrations.find(|migration| !MigrationRecord::of(migration).is_over()) {
                Some(migration) if is_refused(migration) => {
                    *taken.refused.entry(guest.key().0).or_default() += 1;
                }
                Some(_) => {
                    *taken.nodes.entry(node).or_default() += 1;
                    taken.cluster += 1;
                }
                None => {}
            }
        }
        taken
    }
}
