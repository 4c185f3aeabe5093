//! Two tunnels in one process, with pods made of temporary folders and with fake guests.

mod hand_over;
mod local_api;
mod node;
mod refusals;
mod streams;
mod versions;
mod world;
