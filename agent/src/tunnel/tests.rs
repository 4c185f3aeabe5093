//! Tests with two tunnels in one process, with temporary folders as pods and with fake guests.

mod hand_over;
mod local_api;
mod node;
mod refusals;
mod streams;
mod versions;
mod world;
