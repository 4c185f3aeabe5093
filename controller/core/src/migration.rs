//! How a running guest gets to another node.
//!
//! - [`purpose`]: what a migration is for.
//! - [`queue`]: who may go next.



pub mod cluster;


pub mod purpose;
pub mod queue;
pub mod record;
pub mod source;
pub mod target;
pub mod hand_over;
