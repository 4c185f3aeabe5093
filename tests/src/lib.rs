//! What end-to-end tests share: the embedded cluster they run on, waiting for values, and ways to
//! break things.
//!
//! Tests are `#[ignore]`d so that `cargo test` needs no cluster; `hack/test cluster` brings one up,
//! installs Drydock and runs them one after the other. Each test puts the cluster back as it found
//! it, and begins by making sure that the one before did.

pub mod agent;
pub mod cluster;
pub mod drains;
pub mod faults;
pub mod guests;
pub mod migrations;
pub mod oracle;
pub mod own_parts;
pub mod recorder;
pub mod virtctl;
pub mod watching;

pub use cluster::Cluster;
