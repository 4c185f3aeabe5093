//! Shared code of the end-to-end tests: the embedded cluster, waiting for values, and fault injection.
//!
//! Tests are `#[ignore]`d so that `cargo test` needs no cluster; `hack/test cluster` starts one, installs Drydock and
//! runs the tests sequentially. Each test restores the cluster, and first checks that the previous test did.

pub mod agent;
pub mod cluster;
pub mod descheduler;
pub mod display;
mod documents;
pub mod drains;
pub mod faults;
pub mod guests;
pub mod migration_summary;
pub mod migrations;
pub mod oracle;
pub mod own_parts;
pub mod recorder;
pub mod session;
pub mod virtctl;
pub mod watching;

pub use cluster::Cluster;
