//! `drydock-agent tunnel`: carries guests from pod to pod of two nodes, and lets them go on there.
//!
//! ```text
//!            source node                                              target node
//!  agent ──local──▶ tunnel                                          tunnel ◀──local── agent
//!  pod: libvirtd ─ migration/libvirt.sock ─▶ │ one TLS connection  │ ─▶ libvirt/libvirt-sock :pod
//!       QEMU ───── migration/memory.sock ──▶ │ for each, and one   │ ─▶ migration/memory.sock
//!       libvirtd ─ migration/disks.sock ───▶ │ for control         │ ─▶ migration/disks.sock
//! ```
//!
//! It is a process of its own so that an agent that ends or crashes cuts no stream. It knows nothing of
//! the cluster: agents make its sessions ([`sessions`]) over a socket ([`local`], [`client`],
//! [`server`]), each with a key of its own ([`identity`]). The source's side dials ([`dialer`]), the
//! target's side listens ([`listener`]), both carry [`streams`], and over the control channel
//! ([`control`]) the guest is handed over: the source finds the proof ([`final_reply`]), the target
//! lets the [`guest`] go on.

#[cfg_attr(
    not(test),
    allow(dead_code, reason = "agents' migrations are carried out through it")
)]
pub(crate) mod client;
mod control;
mod dialer;
mod final_reply;
mod guest;
mod identity;
mod last_call;
mod listener;
pub(crate) mod local;
mod metrics;
mod refusal;
mod run;
mod server;
mod session;
mod sessions;
mod stream_header;
mod streams;
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "agents' migrations are carried out through it")
)]
pub(crate) mod tunnels;

#[cfg(test)]
mod tests;

pub(crate) use run::run;
