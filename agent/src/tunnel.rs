//! `drydock-agent tunnel`: carries migrations between pods of two nodes, and resumes the guests at the target.
//!
//! ```text
//!            source node                                              target node
//!  agent ──local──▶ tunnel                                          tunnel ◀──local── agent
//!  pod: libvirtd ─ migration/libvirt.sock ─▶ │ one TLS connection  │ ─▶ libvirt/libvirt-sock :pod
//!       QEMU ───── migration/memory.sock ──▶ │ for each, and one   │ ─▶ migration/memory.sock
//!       libvirtd ─ migration/disks.sock ───▶ │ for control         │ ─▶ migration/disks.sock
//! ```
//!
//! The tunnel is a process of its own, so that its streams survive the end or crash of an agent. It has no knowledge
//! of the cluster: agents create its sessions ([`sessions`]) over a socket ([`local`], [`client`], [`server`]), each
//! with a key of its own ([`identity`]). The source's side dials ([`dialer`]), the target's side listens
//! ([`listener`]), and both carry [`streams`]. The control channel ([`control`]) hands the guest over: the source
//! finds the proof ([`final_reply`]), and the target resumes the guest ([`take_over`]).

pub(crate) mod client;
mod control;
mod dialer;
mod final_reply;
mod guest_access;
mod identity;
mod last_call;
mod listener;
pub(crate) mod local;
mod metrics;
mod run_tunnel;
mod server;
mod session;
mod sessions;
mod stream_header;
mod streams;
mod take_over;
mod tunnel_refusal;
pub(crate) mod tunnels;

#[cfg(test)]
mod mutated_lines;
#[cfg(test)]
mod tests;

pub(crate) use run_tunnel::run;
