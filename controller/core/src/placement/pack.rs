//! Placement of all leaving guests together: they compete for the same resources.
//!
//! ```text
//!  fewest nodes with room, then fewest that suit it, then first-fit decreasing by the scarcer resource
//!  guest ─▶ first node that suits it and has room beside those placed before ─▶ Fits
//!        └▶ none: it would fit without the others, or once they have moved ─▶ Crowded, and the missing amounts
//!                 no node can take it                                      ─▶ Nowhere, and why
//! ```
//!
//! First-fit decreasing is a heuristic: it may leave out a guest that a better packing would place. So a crowded-out
//! guest waits for the guests that it competes with, and is evaluated again once they have moved.
//!
//! The scheduler places each target pod by itself and does not know the pods to come: it may give the only node that
//! suits one guest to another guest that has alternatives. So the nodes of guests with few alternatives are reserved:
//! target pods of other guests avoid them if they can.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceSpec, status::DrydockStatus};

use super::{
    Newcomer, NodeView, PodMoves, Requirements, Rules,
    fit::{Fit, add_by_pods, judge},
    misfit::Misfit,
    neighbors::{PodName, name_of},
    room::{PODS, ResourceAmounts, lacks, shortages},
    targets::{unlisted_features, unsuitable},
};

/// A guest is not constrained if more nodes than this suit it: other guests need not make way for it.
const MANY: usize = 16;

/// The resources by which guests are ordered: those that guests request in different ratios.
const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// A guest has few alternatives if at most this many nodes suit it and have room for it.
const FEW: usize = 4;

/// A guest that has to leave its node.
#[derive(Clone, Debug)]
pub struct DepartingGuest<'a> {
    /// The instance.
    pub instance: &'a VirtualMachineInstance,
    /// The guest's requirements on a node.
    pub needs: Requirements,
    /// The guest's present node.
    pub source: Option<NodeView<'a>>,
    /// Whether the guest's migration exists and the target pod has no node yet: such a guest comes before others.
    pub has_migration: bool,
    /// Number of failed attempts: guests with failures come after others.
    pub failures: u32,
    /// The guest's pods.
    pub pods: Vec<PodName>,
    /// Labels of the guest's target pod.
    pub labels: BTreeMap<String, String>,
    /// Nodes that the guest's target pod excludes in addition to its requirements.
    pub excluded: Vec<String>,
}

/// The expected result for a guest that leaves together with others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DepartureOutlook {
    /// Another node, for example this one, has room for the guest.
    Fits(String),
    /// The guest would fit alone, but other guests take the room. The text is a human-readable list of the missing
    /// resources.
    Crowded(String),
    /// No other node can run the guest. The text is the human-readable reason.
    Nowhere(String),
    /// The result is unknown.
    #[default]
    Unknown,
}

/// The expected results for guests that leave together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackingResult {
    /// The expected result for each guest, in the order of the guests.
    pub outlooks: Vec<DepartureOutlook>,
    /// For each guest, whether its node is reserved for it because it has few alternatives.
    pub reserved: Vec<bool>,
    /// For each guest that others crowd out, the node that it can have once the others have moved, if there is one.
    pub later: Vec<Option<String>>,
}

impl PackingResult {
    /// Returns the expected result for each guest in the end, when the guests that crowd it out have moved. A guest
    /// without room even then has no node at all.
    pub fn eventual(self) -> impl Iterator<Item = DepartureOutlook> {
        self.outlooks
            .into_iter()
            .zip(self.later)
            .map(|(outlook, later)| match (outlook, later) {
                (DepartureOutlook::Crowded(_), Some(node)) => DepartureOutlook::Fits(node),
                (DepartureOutlook::Crowded(message), None) => DepartureOutlook::Nowhere(message),
                (outlook, _) => outlook,
            })
    }
}

/// Returns the rules that pods, after these moves, impose on the node of a new pod:
/// [`Neighbors::rules`](super::Neighbors::rules) of all nodes.
pub type RulesOf<'f> = &'f dyn Fn(&Newcomer<'_>, &PodMoves) -> Rules;

/// Returns the outlook for each of these guests, in their order. `nodes` are all nodes.
pub fn pack(guests: &[DepartingGuest<'_>], nodes: &[NodeView<'_>], rules_of: RulesOf<'_>) -> PackingResult {
    let mut places = PackedNodes::new(nodes, rules_of);
    let mut packing = PackingResult {
        outlooks: vec![DepartureOutlook::Unknown; guests.len()],
        reserved: vec![false; guests.len()],
        later: vec![None; guests.len()],
    };
    let scarcer = scarcer(guests, &places);
    let mut order: Vec<(usize, usize, NodeChoice)> = Vec::new();
    for (index, guest) in guests.iter().enumerate() {
        if let Some(class) = places.class(guest) {
            order.push((index, class, places.choice(guest, class)));
        }
    }
    order.sort_by_cached_key(|(index, _, choice)| {
        let guest = &guests[*index];
        let metadata = &guest.instance.metadata;
        (
            !guest.has_migration,
            guest.failures,
            choice.with_room.min(FEW + 1),
            choice.suited,
            Reverse(guest.needs.requests.get(scarcer)),
            Reverse(guest.needs.requests.get(other_than(scarcer))),
            metadata.namespace.clone(),
            metadata.name.clone(),
        )
    });
    let mut unplaced = Vec::new();
    for (index, class, choice) in order {
        match places.place(&guests[index], class, Time::Now) {
            Some(node) => {
                packing.outlooks[index] = DepartureOutlook::Fits(node.into());
                packing.reserved[index] = choice.with_room <= FEW;
            }
            None => unplaced.push((index, class)),
        }
    }
    for (index, class) in &unplaced {
        packing.outlooks[*index] = places.explain(&guests[*index], *class);
    }
    for (index, class) in unplaced {
        if matches!(packing.outlooks[index], DepartureOutlook::Crowded(_)) {
            packing.later[index] = places.place(&guests[index], class, Time::Later).map(Into::into);
        }
    }
    packing
}

/// When a guest is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    /// Together with the others, whose present pods still exist.
    Now,
    /// Once the others have moved.
    Later,
}

/// Numbers of nodes that a guest can choose from.
#[derive(Clone, Copy, Debug)]
struct NodeChoice {
    /// Number of nodes that suit the guest, however full they are, counted up to [`MANY`].
    suited: usize,
    /// Number of those nodes that have room before any guest has moved.
    with_room: usize,
}

/// Returns the scarcer of CPU and memory: the one with the larger ratio of requested to free.
fn scarcer(guests: &[DepartingGuest<'_>], places: &PackedNodes<'_>) -> &'static str {
    let share = |resource: &str| {
        let requested: u128 = guests
            .iter()
            .map(|guest| u128::from(guest.needs.requests.get(resource)))
            .sum();
        let free: u128 = (0..places.nodes.len())
            .map(|node| u128::from(places.free(node, resource)))
            .sum();
        (requested, free.max(1))
    };
    let ((cpu, free_cpu), (memory, free_memory)) = (share(CPU), share(MEMORY));
    if cpu.saturating_mul(free_memory) > memory.saturating_mul(free_cpu) {
        CPU
    } else {
        MEMORY
    }
}

/// Returns memory for CPU, and CPU for memory.
fn other_than(resource: &str) -> &'static str {
    if resource == CPU { MEMORY } else { CPU }
}

/// The nodes, and the guests that have been placed on them so far.
struct PackedNodes<'a> {
    nodes: &'a [NodeView<'a>],
    offered: Vec<ResourceAmounts>,
    placed: Vec<ResourceAmounts>,
    classes: Vec<Class>,
    rules_of: RulesOf<'a>,
    /// Target pods of the guests placed so far.
    arrivals: PodMoves,
    /// Target pods of the guests placed so far, after the guests' other pods have left.
    moves: PodMoves,
}

/// Guests that are suited by the same nodes.
struct Class {
    key: ClassKey,
    /// For each node, whether it suits these guests; `None` if that has not been evaluated.
    suits: Vec<Option<bool>>,
    /// Features of these guests that no node lists.
    unlisted: Vec<String>,
}

/// Everything that decides which nodes suit a guest, however full they are.
#[derive(PartialEq)]
struct ClassKey {
    needs: Requirements,
    spec: VirtualMachineInstanceSpec,
    record: DrydockStatus,
    node: Option<String>,
}

impl ClassKey {
    /// Returns the key of a guest; `None` if its CPU is unknown.
    fn of(guest: &DepartingGuest<'_>) -> Option<Self> {
        let status = guest.instance.status.as_ref()?;
        let record = status.drydock.as_ref()?;
        let mut needs = guest.needs.clone();
        (needs.requests, needs.priority) = (ResourceAmounts::default(), None);
        Some(Self {
            needs,
            spec: VirtualMachineInstanceSpec {
                affinity: guest.instance.spec.affinity.clone(),
                tolerations: guest.instance.spec.tolerations.clone(),
                ..VirtualMachineInstanceSpec::default()
            },
            record: DrydockStatus {
                guest_cpu: Some(record.guest_cpu.clone()?),
                virt_type: record.virt_type.clone(),
                ..DrydockStatus::default()
            },
            node: status.node_name.clone(),
        })
    }
}

impl<'a> PackedNodes<'a> {
    fn new(nodes: &'a [NodeView<'a>], rules_of: RulesOf<'a>) -> Self {
        Self {
            nodes,
            offered: nodes
                .iter()
                .map(|node| ResourceAmounts::from_quantities(node.allocatable))
                .collect(),
            placed: vec![ResourceAmounts::default(); nodes.len()],
            classes: Vec::new(),
            rules_of,
            arrivals: PodMoves::default(),
            moves: PodMoves::default(),
        }
    }

    /// Returns the class of a guest; `None` if its CPU is unknown.
    fn class(&mut self, guest: &DepartingGuest<'_>) -> Option<usize> {
        let key = ClassKey::of(guest)?;
        if let Some(known) = self.classes.iter().position(|class| class.key == key) {
            return Some(known);
        }
        self.classes.push(Class {
            key,
            suits: vec![None; self.nodes.len()],
            unlisted: unlisted_features(guest.instance, guest.source.iter().chain(self.nodes)),
        });
        Some(self.classes.len() - 1)
    }

    /// Returns whether a node suits the guests of a class, however full it is.
    fn suits(&mut self, guest: &DepartingGuest<'_>, class: usize, node: usize) -> bool {
        if let Some(known) = self.classes[class].suits[node] {
            return known;
        }
        let suits = static_misfits(guest, &self.classes[class].unlisted, &self.nodes[node])
            .is_some_and(|found| found.is_empty());
        self.classes[class].suits[node] = Some(suits);
        suits
    }

    /// Returns how many nodes a guest can choose from.
    fn choice(&mut self, guest: &DepartingGuest<'_>, class: usize) -> NodeChoice {
        let rules = (self.rules_of)(&guest.newcomer(), &PodMoves::default());
        let mut choice = NodeChoice {
            suited: 0,
            with_room: 0,
        };
        for node in 0..self.nodes.len() {
            let is_counted = choice.suited >= MANY;
            if is_counted && choice.with_room > FEW {
                break;
            }
            // In a crowded cluster a guest that suits many nodes may fit on few, so full nodes do not end the count.
            let has_room = self.lacks(guest, node).next().is_none();
            if (has_room || !is_counted) && self.suits(guest, class, node) && rules.admit(&self.nodes[node]) {
                choice.suited += 1;
                choice.with_room += usize::from(has_room);
            }
        }
        choice.suited = choice.suited.min(MANY);
        choice
    }

    /// Returns how much of a resource is free on a node, not counting the guests placed here.
    fn free(&self, node: usize, resource: &str) -> u64 {
        let taken = self.nodes[node]
            .room
            .as_ref()
            .map_or(0, |room| room.requested(resource, i32::MIN));
        self.offered[node].get(resource).saturating_sub(taken)
    }

    /// Yields the resources that a node lacks for a guest, in addition to the guests placed on the node.
    fn lacks(&self, guest: &DepartingGuest<'_>, node: usize) -> impl Iterator<Item = Misfit> {
        let (view, placed) = (&self.nodes[node], &self.placed[node]);
        let taken = move |resource: &str| {
            let before = match (&view.room, guest.needs.priority) {
                (Some(room), Some(priority)) => room.requested(resource, priority),
                _ => 0,
            };
            before.saturating_add(placed.get(resource))
        };
        let offered = &self.offered[node];
        lacks(offered, &guest.needs.requests, taken).map(|(resource, free, requested)| Misfit::NoRoom {
            resource: resource.into(),
            requested,
            free,
        })
    }

    /// Places a guest on the first node that suits it and has room.
    fn place(&mut self, guest: &DepartingGuest<'_>, class: usize, time: Time) -> Option<&'a str> {
        let newcomer = guest.newcomer();
        let moves = match time {
            Time::Now => &self.arrivals,
            Time::Later => &self.moves,
        };
        let rules = (self.rules_of)(&newcomer, moves);
        for node in 0..self.nodes.len() {
            // Comparing free resources is faster than evaluating suitability.
            let has_room = self.lacks(guest, node).next().is_none();
            if has_room && self.suits(guest, class, node) && rules.admit(&self.nodes[node]) {
                let mut taken = guest.needs.requests.clone();
                taken.set(PODS, 1);
                self.placed[node].add(&taken);
                let name = self.nodes[node].name;
                for moves in [&mut self.arrivals, &mut self.moves] {
                    moves.arrive(name_of(&guest.instance.metadata), &newcomer, name);
                }
                for pod in &guest.pods {
                    self.moves.leave(pod.clone());
                }
                return Some(name);
            }
        }
        None
    }

    /// Returns why a guest was not placed, after all others have been. The guest can wait for the others if it would
    /// fit without them, or once they have moved.
    fn explain(&mut self, guest: &DepartingGuest<'_>, class: usize) -> DepartureOutlook {
        let newcomer = guest.newcomer();
        let rules = |moves: &PodMoves| (self.rules_of)(&newcomer, moves);
        let (alone, beside, after) = (rules(&PodMoves::default()), rules(&self.arrivals), rules(&self.moves));
        let mut crowded = Fit::default();
        let mut can_wait = false;
        for node in 0..self.nodes.len() {
            if !self.suits(guest, class, node) {
                continue;
            }
            let view = &self.nodes[node];
            can_wait |= shortages(&guest.needs, view).is_empty() && alone.admit(view);
            can_wait |= self.lacks(guest, node).next().is_none() && after.admit(view);
            let mut found: BTreeSet<Misfit> = self.lacks(guest, node).collect();
            beside.add_misfits(view, &mut found);
            for misfit in found {
                crowded.note(misfit, view.name);
            }
        }
        if can_wait {
            let reasons = crowded.reasons();
            return DepartureOutlook::Crowded(format!(
                "no other node has room for the guest in addition to the other guests that leave: {reasons}"
            ));
        }
        let unlisted = &self.classes[class].unlisted;
        let nodes = self
            .nodes
            .iter()
            .filter(|node| Some(node.name) != guest.instance.node_name());
        let fit = judge(nodes, 1, |node| {
            let mut found = static_misfits(guest, unlisted, node).unwrap_or_default();
            add_by_pods(&guest.needs, &alone, node, &mut found);
            found
        });
        DepartureOutlook::Nowhere(format!("no other node can run the guest: {}", fit.reasons()))
    }
}

impl DepartingGuest<'_> {
    /// Returns the guest's target pod.
    fn newcomer(&self) -> Newcomer<'_> {
        Newcomer {
            namespace: self.instance.metadata.namespace.as_deref().unwrap_or_default(),
            labels: &self.labels,
            spec: &self.instance.spec,
            needs: &self.needs,
            excluded: &self.excluded,
        }
    }
}

/// Returns everything that prevents a guest from running on a node, however full the node is; `None` for its present
/// node.
fn static_misfits(guest: &DepartingGuest<'_>, unlisted: &[String], node: &NodeView<'_>) -> Option<BTreeSet<Misfit>> {
    if guest.instance.node_name() == Some(node.name) {
        return None;
    }
    unsuitable(guest.instance, &guest.needs, guest.source.as_ref(), unlisted, node)
}
