//! `drydock-agent tunnel`: carries guests from pod to pod of two nodes, and lets them go on there.
#![allow(dead_code, reason = "built before what uses it")]

pub(crate) mod client;
pub(crate) mod local;
