//! KubeVirt's subresources API (`subresources.kubevirt.io`), which `virtctl` calls.
//!
//! ```text
//!  method, path ─▶ ApiPath::parse ─▶ PublicDocument     discovery and version, for all users
//!                      └▶ SubresourceTarget ─▶ authorize ─▶ operation() ─▶ machine_commands ─▶ Effect or SubresourceError
//!                                                                        └▶ guest_commands ─▶ the agent's port
//! ```
//!
//! The checks, their order and the messages of failures are KubeVirt's (`pkg/virt-api/rest`, v1.9.0), because clients
//! match on codes and messages. Where Drydock differs, the function's documentation states it.

pub mod discovery;
mod effect;
mod error_status;
pub mod evacuation;
pub mod front_proxy;
pub mod guest_commands;
pub mod machine_commands;
mod operation;
pub mod options;
mod path;

pub use effect::{Effect, JsonPatch, PatchedPart};
pub use error_status::SubresourceError;
pub use operation::{SubresourceOperation, operation};
pub use path::{ApiPath, GroupResource, PublicDocument, SubresourceTarget, verb};

/// The API group.
pub const GROUP: &str = "subresources.kubevirt.io";
/// Versions of the group, the version that clients prefer first.
pub const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];
/// The release of KubeVirt whose API Drydock serves, as `virtctl version` and `virtctl guestfs` compare and use it.
pub const KUBEVIRT_VERSION: &str = "v1.9.0";

#[cfg(test)]
mod tests;
