//! How a running guest gets to another node: the pure steps of controller and agents.
//!
//! - [`record`]: what the objects say, which is all that the three know of each other.
//! - [`cluster`], [`source`], [`target`]: what the controller, and the agents of both nodes, do next.
//! - [`hand_over`]: what the tunnels tell each other when the guest may go on.
//! - [`queue`]: who may go next.
//! - [`purpose`]: what a migration is for.
//! - [`convergence`]: what to do about a guest that moves.
//! - [`deadlines`]: how long each part may take, and when a failed migration is tried again.
//!
//! ```text
//!                           controller
//!        names both sides, ▲ │ "give up"; "the source's node is gone"
//!          phases, the end │ ▼
//!   ┌────────────── VirtualMachineInstanceMigration ──────────────┐
//!   │ source: Migrating, Halted, Released,     target: Prepared,  │
//!   │ Stopped or HandedOver | Stayed | Ended   Complete, Running  │
//!   │                                          | Gone | Ended     │
//!   └────▲───────────────────────────────────────────▲────────────┘
//!   source's agent                             target's agent
//!        │ start, give up, let go on                 │ take over, end
//!     libvirt ══ tunnel ══ memory, disks ══ tunnel ═▶ libvirt: complete, paused
//!        ▲          ├── 1. last reply ◀─────────┤
//!        └ 2. read ─┤                           │
//!                   ├── 3. release ────────────▶├── 4. resume
//!                   │◀─ 5. taken over ──────────┤
//! ```
//!
//! The three know of each other only what the object says; nobody takes back what it has said (the API
//! server refuses that). What they see may be old, and each may be lost and begin anew at any time. The
//! hand-over goes from tunnel to tunnel, so that it waits for nobody. If a tunnel is lost with its proof,
//! the object takes its place: a source that stands still with nothing at work on it says `Halted`, and
//! the target answers `Complete`, after which the source lets go, or `Gone`, after which it goes on.
//!
//! What holds whatever is lost, and is tried in `tests/migration_search`:
//!
//! - The guest runs on one node at most, and goes on nowhere from a state after which it ran elsewhere.
//! - No copy is ended that may be the only one alive, but by its user's wish. Where the source's node is
//!   gone without a word, or both tunnel and target are, nobody can know, and the guest counts as lost.
//! - Each migration ends; then the guest runs on one side, unless it was ended, and nothing is left on the
//!   other: no pod, no session, no finalizer.
//! - It has succeeded only if the guest ran on the target and cannot run on the source; it has failed
//!   only if the guest does not run on the target, or was lost there.
//! - The instance's node changes once at most, when the source can never run the guest again.
//! - Phases never go back, so a slot is taken once and given back once.
//!
//! What the callers owe: an agent closes the session of a migration whose object is gone, reads what it
//! sees in the order that [`source::SourceView`] and [`target::TargetView`] say, and carries out steps in
//! their order; a controller writes with the version that it looked at.

pub mod cluster;
pub mod convergence;
pub mod deadlines;
pub mod hand_over;
pub mod observed;
pub mod purpose;
pub mod queue;
pub mod record;
pub mod rejected;
pub mod source;
pub mod status;
pub mod target;
