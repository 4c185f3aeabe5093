//! How a running guest gets to another node.
//!
//! - [`purpose`]: what a migration is for.
//! - [`queue`]: who may go next.
//! - [`convergence`]: what to do about a guest that moves.
//! - [`deadlines`]: how long each part may take, and when a failed migration is tried again.



pub mod cluster;


pub mod convergence;
pub mod deadlines;
pub mod purpose;
pub mod queue;
pub mod record;
pub mod source;
pub mod target;
pub mod hand_over;
