//! How a running guest gets to another node: the pure steps of controller and agents.
//!
//! - [`record`]: what the objects say, which is all that the three know of each other.
//! - [`cluster`], [`source`], [`target`]: what the controller, and the agents of both nodes, do next.
//! - [`hand_over`]: what the tunnels tell each other when the guest may go on.
//! - [`queue`]: who may go next.
//! - [`purpose`]: what a migration is for.
//! - [`convergence`]: what to do about a guest that moves.
//! - [`deadlines`]: how long each part may take, and when a failed migration is tried again.

pub mod cluster;
pub mod convergence;
pub mod deadlines;
pub mod hand_over;
pub mod observed;
pub mod purpose;
pub mod queue;
pub mod record;
pub mod source;
pub mod status;
pub mod target;
