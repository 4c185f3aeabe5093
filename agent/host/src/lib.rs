//! Facts about this machine and access to its guests: cpuid, `/proc`, `/sys`, KVM and libvirt.
//!
//! The entry point is [`inspection::inspect`]. It collects [`NodeFacts`](drydock_api::facts::NodeFacts) and never fails
//! as a whole. The facts from the processor and the kernel are always available. libvirt's facts are added if libvirt
//! can be queried. Otherwise, a [`problem::HostProblem`] contains the reason. [`fingerprint::fingerprint`] and
//! [`watch::HostWatch`] show when a new inspection is needed.
//!
//! ```text
//!  cpuid / cpuinfo ─┐
//!  kernel          ─┼─► NodeFacts ◄── libvirt_probe ◄──── domain_capabilities, baseline,
//!  kvm, hyperv     ─┘                      ▲              capabilities (pure parsers)
//!                                          │
//!                        libvirt (client) ─┴─ private_libvirtd (started per inspection)
//! ```
//!
//! Guests run under the libvirt in their pods: [`pod_folder`] reads the files and sockets of a pod, and [`domain`]
//! calls its libvirt. [`rpc`] splits the traffic between two libvirts into frames.
//!
//! The crate also provides what guests' pods need on the machine: [`seccomp`] and [`app_armor`] profiles,
//! [`guest_devices`], [`user_namespaces`].
//!
//! This is the only crate that links C or contains `unsafe`. Each `unsafe` block documents why it is needed and why it
//! is sound.

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
mod libvirt_probe;
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
