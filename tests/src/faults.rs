//! Faults during migrations: every kind of fault, on every process and link involved in a migration, in every phase.
//!
//! ```text
//!  kind     ×  part                                     ×  side    ×  phase
//!  kill        agent tunnel libvirtd launcher QEMU         source     scheduling
//!  freeze      controller API server                       target     preparing-target
//!  cut         node-to-node node-to-API                               running
//!                                                                     hand-over
//! ```
//!
//! [`every_case`] returns all combinations, [`pairwise`] a small subset that contains each pair of two dimensions
//! once. [`strike`] injects and undoes faults, [`judge`] checks the result.

pub mod judge;
pub mod strike;

use std::{collections::BTreeSet, fmt};

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// `kill -9`.
    Kill,
    /// Stopped for longer than the deadlines of the test, then continued.
    Freeze,
    /// No packet passes for the same time.
    Cut,
}

/// The component that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The agent of a side's node.
    Agent,
    /// The tunnel of a side's node.
    Tunnel,
    /// The libvirtd in a side's pod.
    Libvirtd,
    /// Process 1 of a side's pod.
    Launcher,
    /// The QEMU of the target's pod. That of the source is the guest itself.
    Qemu,
    /// The leading controller.
    Controller,
    /// The API server.
    ApiServer,
    /// The link between the nodes.
    NodeToNode,
    /// The link between a side's node and the API server.
    NodeToApi,
}

/// The side of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The side that the guest leaves.
    Source,
    /// The side to which the guest moves.
    Target,
    /// The component belongs to the cluster.
    Neither,
}

/// The phase in which the fault is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    /// The target pod is not scheduled yet.
    Scheduling,
    /// The nodes of both sides are known, and the target is not prepared.
    PreparingTarget,
    /// The guest is being transferred, and runs on the source.
    Running,
    /// The guest has just been stopped on the source, and is about to continue on the target.
    HandOver,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case {
    /// The phase.
    pub moment: Moment,
    /// The component.
    pub part: Component,
    /// The component's side.
    pub side: Side,
    /// The kind.
    pub kind: FaultKind,
}

const KINDS: [FaultKind; 3] = [FaultKind::Kill, FaultKind::Freeze, FaultKind::Cut];
const PARTS: [Component; 9] = [
    Component::Agent,
    Component::Tunnel,
    Component::Libvirtd,
    Component::Launcher,
    Component::Qemu,
    Component::Controller,
    Component::ApiServer,
    Component::NodeToNode,
    Component::NodeToApi,
];
const SIDES: [Side; 3] = [Side::Source, Side::Target, Side::Neither];
const MOMENTS: [Moment; 4] = [
    Moment::Scheduling,
    Moment::PreparingTarget,
    Moment::Running,
    Moment::HandOver,
];

impl Component {
    fn is_link(self) -> bool {
        matches!(self, Self::NodeToNode | Self::NodeToApi)
    }

    fn has_sides(self) -> bool {
        !matches!(self, Self::Controller | Self::ApiServer | Self::NodeToNode)
    }

    /// Returns whether the component is in a launcher pod.
    fn is_in_pod(self) -> bool {
        matches!(self, Self::Libvirtd | Self::Launcher | Self::Qemu)
    }
}

impl Case {
    /// Returns whether the component exists in this phase on this side, and the kind of fault applies to it.
    fn is_possible(self) -> bool {
        let there = match (self.part, self.side) {
            // This QEMU is the guest itself, which would not survive a freeze.
            (Component::Qemu, Side::Source) => self.kind == FaultKind::Kill && self.moment == Moment::Running,
            // This QEMU exists once the transfer has started.
            (Component::Qemu, Side::Target) => self.moment >= Moment::Running,
            (part, Side::Target) if part.is_in_pod() => self.moment >= Moment::PreparingTarget,
            (part, side) => part.has_sides() == (side != Side::Neither),
        };
        there && self.part.is_link() == (self.kind == FaultKind::Cut)
    }

    /// Returns whether the fault may hit the running guest itself and end it.
    ///
    /// A pod ends with its first process, and during the hand-over the guest may run on either side.
    pub fn may_end_the_guest(self) -> bool {
        match (self.kind, self.part, self.side) {
            (FaultKind::Kill, Component::Launcher | Component::Qemu, Side::Source) => true,
            (FaultKind::Kill, Component::Launcher | Component::Qemu, Side::Target) => self.moment == Moment::HandOver,
            _ => false,
        }
    }

    /// Returns the pairs of dimensions of a case, each of which has to be covered at least once.
    fn pairs(self) -> [String; 6] {
        let Self {
            moment,
            part,
            side,
            kind,
        } = self;
        [
            format!("{kind:?} {part:?}"),
            format!("{part:?} {moment:?}"),
            format!("{kind:?} {moment:?}"),
            format!("{part:?} {side:?}"),
            format!("{side:?} {moment:?}"),
            format!("{kind:?} {side:?}"),
        ]
    }
}

/// Formats a case, such as `kill agent source running`.
impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FaultKind::Kill => "kill",
            FaultKind::Freeze => "freeze",
            FaultKind::Cut => "cut",
        };
        let part = match self.part {
            Component::Agent => "agent",
            Component::Tunnel => "tunnel",
            Component::Libvirtd => "libvirtd",
            Component::Launcher => "launcher",
            Component::Qemu => "QEMU",
            Component::Controller => "controller",
            Component::ApiServer => "API-server",
            Component::NodeToNode => "node-to-node",
            Component::NodeToApi => "node-to-API",
        };
        let side = match self.side {
            Side::Source => " source",
            Side::Target => " target",
            Side::Neither => "",
        };
        let moment = match self.moment {
            Moment::Scheduling => "scheduling",
            Moment::PreparingTarget => "preparing-target",
            Moment::Running => "running",
            Moment::HandOver => "hand-over",
        };
        write!(formatter, "{kind} {part}{side} {moment}")
    }
}

/// Returns all possible cases, in the order of a migration's phases.
pub fn every_case() -> Vec<Case> {
    let mut all = Vec::new();
    for moment in MOMENTS {
        for part in PARTS {
            for side in SIDES {
                let kinds = KINDS.map(|kind| Case {
                    moment,
                    part,
                    side,
                    kind,
                });
                all.extend(kinds.into_iter().filter(|case| case.is_possible()));
            }
        }
    }
    all
}

/// Returns a small set of cases that covers each possible pair of kind, part, side and moment at least once.
///
/// The seed determines the selection. The cases that cover the most pairs come first. Among cases that cover equally
/// many pairs, a kill is preferred, since it takes the least time.
pub fn pairwise(seed: u64) -> Vec<Case> {
    let mut left = every_case();
    shuffle(&mut left, seed);
    let mut open: BTreeSet<String> = left.iter().flat_map(|case| case.pairs()).collect();
    let mut chosen = Vec::new();
    let gain = |case: &Case, open: &BTreeSet<String>| case.pairs().iter().filter(|pair| open.contains(*pair)).count();
    while !open.is_empty() {
        let best = left
            .iter()
            .copied()
            .max_by_key(|case| (gain(case, &open), case.kind == FaultKind::Kill));
        let Some(best) = best.filter(|case| gain(case, &open) > 0) else {
            break;
        };
        for pair in best.pairs() {
            open.remove(&pair);
        }
        chosen.push(best);
    }
    chosen
}

/// Shuffles a slice by a seed (Fisher-Yates, with the numbers of splitmix64).
fn shuffle<T>(things: &mut [T], seed: u64) {
    let mut state = seed;
    for end in (1..things.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = state;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^= number >> 31;
        let span = end as u64 + 1;
        things.swap(end, usize::try_from(number % span).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_cover_every_fault_of_parts_that_exist_in_a_phase() {
        let all: BTreeSet<String> = every_case().iter().map(Case::to_string).collect();
        assert_eq!(all.len(), every_case().len(), "two cases have the same name");
        // The processes of both sides, those of the cluster, and the links, minus the components that do not exist yet.
        assert_eq!(all.len(), 2 * 4 * (4 * 2 + 2 + 1) + 4 * 3 - 2 * (2 + 2) + 1);
        for case in [
            "kill agent source scheduling",
            "freeze libvirtd target hand-over",
            "kill QEMU source running",
            "kill QEMU target running",
            "freeze API-server preparing-target",
            "cut node-to-node running",
            "cut node-to-API target hand-over",
        ] {
            assert!(all.contains(case), "{case}");
        }
        for case in [
            "kill libvirtd target scheduling",
            "kill QEMU target preparing-target",
            "kill QEMU source hand-over",
        ] {
            assert!(!all.contains(case), "{case}");
        }
    }

    #[test]
    fn few_cases_cover_every_pair_for_any_seed() {
        let wanted: BTreeSet<String> = every_case().iter().flat_map(|case| case.pairs()).collect();
        let mut different = BTreeSet::new();
        for seed in 0..50 {
            let chosen = pairwise(seed);
            let covered: BTreeSet<String> = chosen.iter().flat_map(|case| case.pairs()).collect();
            assert_eq!(covered, wanted, "seed {seed}");
            assert!(chosen.len() <= 40, "seed {seed}: {}", chosen.len());
            assert_eq!(chosen, pairwise(seed), "seed {seed} is not deterministic");
            assert!(chosen.iter().all(|case| case.is_possible()));
            different.insert(chosen);
        }
        assert!(
            different.len() > 40,
            "seeds select too few different sets: {}",
            different.len()
        );
    }

    #[test]
    fn first_cases_have_all_moments_kinds_and_sides() {
        for seed in 0..50 {
            let first = &pairwise(seed)[..9];
            let moments: BTreeSet<Moment> = first.iter().map(|case| case.moment).collect();
            let kinds: BTreeSet<FaultKind> = first.iter().map(|case| case.kind).collect();
            let sides: BTreeSet<Side> = first.iter().map(|case| case.side).collect();
            assert_eq!(
                (moments.len(), kinds.len(), sides.len()),
                (4, 3, 3),
                "seed {seed}: {first:?}"
            );
        }
    }

    #[test]
    fn only_faults_of_the_running_guest_may_end_a_guest() {
        let may: Vec<String> = every_case()
            .into_iter()
            .filter(|case| case.may_end_the_guest())
            .map(|case| case.to_string())
            .collect();
        assert_eq!(
            may,
            [
                "kill launcher source scheduling",
                "kill launcher source preparing-target",
                "kill launcher source running",
                "kill QEMU source running",
                "kill launcher source hand-over",
                "kill launcher target hand-over",
                "kill QEMU target hand-over",
            ]
        );
    }
}
