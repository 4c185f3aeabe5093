//! What this machine is and runs: cpuid, `/proc`, `/sys`, KVM and libvirt.
//!
//! The door is [`inspection::inspect`]: it gathers [`NodeFacts`](drydock_api::facts::NodeFacts)
//! and never fails as a whole. What the processor and the kernel say stands by itself; what libvirt
//! says is added if libvirt can be asked, and otherwise a [`problem::Problem`] says why not.
//! [`fingerprint::fingerprint`] and [`watch::HostWatch`] tell when it is worth asking again.
//!
//! ```text
//!  cpuid / cpuinfo ─┐
//!  kernel          ─┼─► NodeFacts ◄── libvirt_answers ◄── domain_capabilities, baseline,
//!  kvm, hyperv     ─┘                      ▲              capabilities (pure parsers)
//!                                          │
//!                        libvirt (client) ─┴─ private_libvirtd (started for the question)
//! ```
//!
//! Guests are run through the libvirt in their pods: [`pod_folder`] finds what a pod says and offers,
//! [`domain`] asks its libvirt. [`rpc`] cuts what two libvirts send each other into frames.
//!
//! What guests' pods need of the machine is here too: [`seccomp`] and [`app_armor`] profiles,
//! [`guest_devices`], [`user_namespaces`].
//!
//! This is the only crate that links C or holds `unsafe`; each such block says why it is needed
//! and why it is sound.

mod account;
pub mod app_armor;
pub mod architecture;
mod background;
pub mod baseline;
pub mod capabilities;
#[cfg(target_arch = "x86_64")]
mod cpu_flags;
pub mod cpu_map;
#[cfg(target_arch = "x86_64")]
pub mod cpuid;
pub mod cpuinfo;
mod descendants;
mod device_nodes;
pub mod document;
pub mod domain;
pub mod domain_capabilities;
pub mod fake;
pub mod fingerprint;
pub mod guest_devices;
pub mod hyperv;
pub mod inspection;
pub mod kernel;
pub mod kvm;
pub mod libvirt;
mod libvirt_answers;
mod libvirtd_folder;
pub mod memory;
pub mod pod_folder;
pub mod private_libvirtd;
pub mod problem;
mod qemu_capabilities;
pub mod roots;
pub mod rpc;
pub mod seccomp;
pub mod unread;
pub mod user_namespaces;
pub mod watch;
