//! Live migration of a running guest to another node: the pure step functions of the controller and the agents.
//!
//! - [`record`]: the state of a migration as its objects show it. The three parties share no other knowledge.
//! - [`cluster`], [`source`], [`target`]: the next steps of the controller and of both nodes' agents.
//! - [`hand_over`]: the messages between the tunnels that decide when the guest may run on the target.
//! - [`queue`]: which migrations start next.
//! - [`purpose`]: why a migration was created.
//! - [`convergence`]: how to react to the progress of a running migration.
//! - [`deadlines`]: how long each phase may take, and when a failed migration is retried.
//! - [`waiting`]: why a migration waits, and when it is reconciled again without a change.
//! - [`coalescing`]: which phases are not written by themselves.
//! - [`retention`]: which ended migrations are deleted.
//! - [`named_sides`], [`failure_detail`]: the parts of the status about both sides, and about a failure.
//!
//! ```text
//!                           controller
//!        names both sides, ▲ │ abort; sourceGone
//!          phases, the end │ ▼
//!   ┌────────────── VirtualMachineInstanceMigration ──────────────┐
//!   │ source: Migrating, Halted, Released,     target: Prepared,  │
//!   │ Stopped or HandedOver | Stayed | Ended   Complete, Running  │
//!   │                                          | Gone | Ended     │
//!   └────▲───────────────────────────────────────────▲────────────┘
//!   source's agent                             target's agent
//!        │ start, abort, resume                      │ resume, destroy
//!     libvirt ══ tunnel ══ memory, disks ══ tunnel ═▶ libvirt: complete, paused
//!        ▲          ├── 1. last reply ◀─────────┤
//!        └ 2. read ─┤                           │
//!                   ├── 3. release ────────────▶├── 4. resume
//!                   │◀─ 5. taken over ──────────┤
//! ```
//!
//! The three parties know each other's state only from the object. No party withdraws a reported state; the API server
//! rejects that. Each party's view may be stale, and each party may crash and restart at any time. The hand-over runs
//! directly between the tunnels, so it waits for no other component. If a tunnel is lost together with its proof, the
//! object replaces it: a source whose guest is paused with no job reports `Halted`. The target responds with
//! `Complete`, after which the source releases the guest, or with `Gone`, after which the source resumes it.
//!
//! Invariants that hold whatever is lost, checked by `tests/migration_search`:
//!
//! - The guest runs on at most one node, and never resumes from a state after which it ran elsewhere.
//! - A copy that may be the only one alive is destroyed only on the user's request. If the source's node is gone
//!   without a report, or both the tunnel and the target are gone, the outcome cannot be known, and the guest counts as
//!   lost.
//! - Each migration ends. Then the guest runs on one side, unless it was ended, and nothing is left on the other: no
//!   pod, no session, no finalizer.
//! - A migration has succeeded only if the guest ran on the target and cannot run on the source. It has failed only if
//!   the guest does not run on the target, or was lost there.
//! - The VMI's node changes at most once, when the source can never run the guest again.
//! - Phases never go back, so a slot is taken once and released once.
//!
//! Obligations of the callers: an agent closes the session of a migration whose object is deleted, reads its view in
//! the order documented on [`source::SourceView`] and [`target::TargetView`], and executes steps in order. A controller
//! writes with the resourceVersion on which it decided.

pub mod awaited_agent;
pub mod cluster;
pub mod coalescing;
pub mod convergence;
pub mod deadlines;
pub mod failure_detail;
pub mod hand_over;
pub mod named_sides;
pub mod observed;
pub mod purpose;
pub mod queue;
pub mod record;
pub mod rejected;
pub mod retention;
pub mod sides;
pub mod source;
pub mod status;
pub mod target;
pub mod target_pods;
pub mod unsent;
pub mod waiting;
