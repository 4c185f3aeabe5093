//! Human-readable presentation as pure functions: API objects go in, plans and tables come out, as text or JSON.
//!
//! ```text
//!  lists of objects ─▶ Snapshot ─▶ drydock_core's rules ─▶ DrainPlan ─┬─▶ text, for a terminal of any width
//!  what could not be read ─┘                                          └─▶ JSON
//! ```
//!
//! - [`snapshot`]: the objects that a report is derived from, and the kinds of objects that could not be read.
//! - [`plan`]: the effects of draining nodes.
//! - [`drain`]: the course of a drain as events.
//! - [`explain`]: explanations of a virtual machine, a node, a CPU model and a migration.
//! - [`guest_tables`]: tables of all virtual machines and migrations.
//! - [`listing`]: tables that can be sorted.
//! - [`live`]: the course of drains as a block that a terminal redraws.
//! - [`maintenance_summary`]: one NodeMaintenance.
//! - [`check`]: misconfigurations, and their remedies.
//! - [`nodes`]: a table of all nodes.
//! - [`node`]: one node, with its maintenance and its guests.
//! - [`prune`]: the removal of fields that no view needs.
//! - [`text`]: columns, wrapped lines and amounts.
//! - [`version`]: versions of the plugin, the controller and the agents.

#![forbid(unsafe_code)]

pub mod check;
pub mod drain;
pub mod explain;
pub mod guest_tables;
pub mod listing;
pub mod live;
pub mod maintenance_summary;
pub mod node;
pub mod nodes;
pub mod plan;
pub mod prune;
pub mod snapshot;
pub mod text;
pub mod version;
