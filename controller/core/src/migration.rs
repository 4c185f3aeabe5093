//! How a running guest gets to another node.
//!



pub mod cluster;


pub mod record;
pub mod source;
pub mod target;
pub mod hand_over;
