//! The cluster's configuration: built-in defaults, then the legacy ConfigMap, then HyperConverged; each overrides the
//! previous one, field by field.
//!
//! An object with an invalid value is refused as a whole: it is reported with field, value and the allowed values,
//! and the last configuration in force stays. So no node ever applies half of a change. A process that starts while an
//! object is refused does not know what was in force before: it applies the object's valid values.

pub mod default_model;
pub mod gathering;
pub mod hyperconverged;
pub mod legacy;
pub mod selection;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use drydock_api::hyperconverged::EvictionStrategy;
use serde::{Deserialize, Serialize};

use crate::minimum_cpu;

pub use selection::{NotInForce, ObjectChoice, Reference, choose};

/// The longest downtime of a migration that libvirt accepts: 2,000,000 ms.
pub const LONGEST_DOWNTIME_MS: u64 = 2_000_000;
/// Feature gate: nodes detect the kubelet's static CPU manager (KubeVirt's `CPUManager`).
pub const GATE_CPU_MANAGER: &str = "CPUManager";
/// Feature gate: nodes publish which guest architectures they run (KubeVirt's name).
pub const GATE_CROSS_ARCHITECTURE: &str = "CrossArchitectureVirtualization";

/// The complete configuration in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Obsolete CPU models beyond the built-in ones.
    pub obsolete_cpu_models: BTreeSet<String>,
    /// The minimum CPU model.
    pub min_cpu_model: String,
    /// CPU model of virtual machines that set none.
    pub default_cpu_model: Option<String>,
    /// Eviction strategy of virtual machines that set none.
    pub eviction_strategy: EvictionStrategy,
    /// Configuration of live migration.
    pub migrations: MigrationSettings,
    /// Lifetimes of the certificates that Drydock issues.
    pub certificates: Certificates,
    /// Explicitly set feature gates, by name.
    pub feature_gates: BTreeMap<String, bool>,
    /// Whether guests run in emulation where KVM is not usable.
    pub use_emulation: bool,
}

/// Configuration of live migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationSettings {
    /// Maximum number of parallel migrations in the cluster.
    pub per_cluster: u32,
    /// Maximum number of parallel migrations from a node.
    pub outbound_per_node: u32,
    /// Maximum number of parallel migrations to a node.
    pub inbound_per_node: u32,
    /// Maximum bandwidth of each migration, in bytes per second; `None`: no limit.
    pub bandwidth: Option<u64>,
    /// Time limit of a migration per GiB of data to copy; `None`: no limit.
    pub completion_timeout_per_gib: Option<Duration>,
    /// Time without progress before a migration is aborted; `None`: never.
    pub progress_timeout: Option<Duration>,
    /// Maximum pause of the guest for the switch-over.
    pub max_downtime: Duration,
    /// Whether the guest may be throttled.
    pub auto_converge: bool,
    /// Whether the guest may be switched to the target before all its memory is copied.
    pub post_copy: bool,
    /// Whether the guest may be paused.
    pub workload_disruption: bool,
    /// Key of the taint that drains a node.
    pub drain_taint_key: String,
}

/// Lifetimes of the certificates that Drydock issues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificates {
    /// Lifetime of the certificate authority.
    pub ca: Lifetime,
    /// Lifetime of the serving certificates.
    pub server: Lifetime,
}

/// Lifetime of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    /// Validity of the certificate.
    pub duration: Duration,
    /// Time between the renewal of the certificate and its expiry.
    pub renew_before: Duration,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Default for Configuration {
    /// KubeVirt's built-in values; certificates as in the HyperConverged documentation: the authority is valid for
    /// two days and renewed daily, serving certificates are valid for one day and renewed every half day.
    fn default() -> Self {
        Self {
            obsolete_cpu_models: BTreeSet::new(),
            min_cpu_model: minimum_cpu::DEFAULT_MODEL.into(),
            default_cpu_model: None,
            eviction_strategy: EvictionStrategy::None,
            migrations: MigrationSettings {
                per_cluster: 5,
                outbound_per_node: 2,
                inbound_per_node: 2,
                bandwidth: None,
                completion_timeout_per_gib: Some(Duration::from_secs(150)),
                progress_timeout: Some(Duration::from_secs(150)),
                max_downtime: Duration::from_millis(900),
                auto_converge: false,
                post_copy: false,
                workload_disruption: false,
                drain_taint_key: "kubevirt.io/drain".into(),
            },
            certificates: Certificates {
                ca: Lifetime {
                    duration: HOUR * 48,
                    renew_before: HOUR * 24,
                },
                server: Lifetime {
                    duration: HOUR * 24,
                    renew_before: HOUR * 12,
                },
            },
            feature_gates: BTreeMap::new(),
            use_emulation: false,
        }
    }
}

impl Configuration {
    /// Returns whether a feature gate is on.
    pub fn gate(&self, name: &str) -> bool {
        self.feature_gates.get(name).copied().unwrap_or(false)
    }
}

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// Path of the field in the object.
    pub field: String,
    /// Value of the field, truncated to a readable length.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
}

impl InvalidValue {
    /// Returns a problem of `field` with `value`, of which at most 80 characters are kept.
    pub fn new(field: impl Into<String>, value: impl AsRef<str>, allowed: impl Into<String>) -> Self {
        let value: String = value.as_ref().chars().take(80).collect();
        Self {
            field: field.into(),
            value,
            allowed: allowed.into(),
        }
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: `{}` is not allowed; allowed: {}",
            self.field, self.value, self.allowed
        )
    }
}

/// The settings of one object; unset fields are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    pub(crate) obsolete_cpu_models: BTreeSet<String>,
    pub(crate) min_cpu_model: Option<String>,
    pub(crate) default_cpu_model: Option<String>,
    pub(crate) eviction_strategy: Option<EvictionStrategy>,
    pub(crate) per_cluster: Option<u32>,
    pub(crate) outbound_per_node: Option<u32>,
    pub(crate) inbound_per_node: Option<u32>,
    pub(crate) bandwidth: Option<u64>,
    pub(crate) completion_timeout_per_gib: Option<u32>,
    pub(crate) progress_timeout: Option<u32>,
    pub(crate) max_downtime_ms: Option<u32>,
    pub(crate) auto_converge: Option<bool>,
    pub(crate) post_copy: Option<bool>,
    pub(crate) workload_disruption: Option<bool>,
    pub(crate) drain_taint_key: Option<String>,
    pub(crate) ca: Option<Lifetime>,
    pub(crate) server: Option<Lifetime>,
    pub(crate) feature_gates: BTreeMap<String, bool>,
    pub(crate) use_emulation: Option<bool>,
}

/// A layer as read from an object, with its problems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The valid settings, without the invalid ones.
    pub layer: Layer,
    /// The invalid settings.
    pub problems: Vec<InvalidValue>,
}

impl Parsed {
    /// Returns the minimum CPU model that the object sets.
    pub fn min_cpu_model(&self) -> Option<&str> {
        self.layer.min_cpu_model.as_deref()
    }

    fn refuse(&mut self, field: impl Into<String>, value: impl AsRef<str>, allowed: impl Into<String>) {
        self.problems.push(InvalidValue::new(field, value, allowed));
    }
}

/// Returns the defaults with `layers` applied on top, the last one with the highest precedence. Obsolete models
/// accumulate.
pub fn merge<'a>(layers: impl IntoIterator<Item = &'a Layer>) -> Configuration {
    let mut all = Configuration::default();
    let seconds = |value: u32| (value > 0).then(|| Duration::from_secs(value.into()));
    for layer in layers {
        let layer = layer.clone();
        all.obsolete_cpu_models.extend(layer.obsolete_cpu_models);
        all.feature_gates.extend(layer.feature_gates);
        set(&mut all.min_cpu_model, layer.min_cpu_model);
        set(&mut all.default_cpu_model, layer.default_cpu_model.map(Some));
        set(&mut all.eviction_strategy, layer.eviction_strategy);
        set(&mut all.use_emulation, layer.use_emulation);
        set(&mut all.certificates.ca, layer.ca);
        set(&mut all.certificates.server, layer.server);
        let migrations = &mut all.migrations;
        set(&mut migrations.per_cluster, layer.per_cluster);
        set(&mut migrations.outbound_per_node, layer.outbound_per_node);
        set(&mut migrations.inbound_per_node, layer.inbound_per_node);
        set(
            &mut migrations.bandwidth,
            layer.bandwidth.map(|bytes| (bytes > 0).then_some(bytes)),
        );
        set(
            &mut migrations.completion_timeout_per_gib,
            layer.completion_timeout_per_gib.map(seconds),
        );
        set(&mut migrations.progress_timeout, layer.progress_timeout.map(seconds));
        let milliseconds = |value: u32| Duration::from_millis(value.into());
        set(&mut migrations.max_downtime, layer.max_downtime_ms.map(milliseconds));
        set(&mut migrations.auto_converge, layer.auto_converge);
        set(&mut migrations.post_copy, layer.post_copy);
        // If only post-copy is set, disruption follows it (KubeVirt's rule).
        set(
            &mut migrations.workload_disruption,
            layer.workload_disruption.or(layer.post_copy),
        );
        set(&mut migrations.drain_taint_key, layer.drain_taint_key);
    }
    all
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// An object in force, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationSource {
    /// `HyperConverged` or `ConfigMap`.
    pub kind: &'static str,
    /// Name of the object.
    pub reference: Reference,
    /// Settings and problems of the object.
    pub parsed: Parsed,
}

/// The result of merging all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// The configuration in force.
    pub configuration: Configuration,
    /// The objects that were read, lowest layer first, with their problems.
    pub sources: Vec<ConfigurationSource>,
}

impl Resolution {
    /// Returns whether an object was refused.
    pub fn refused(&self) -> bool {
        self.sources.iter().any(|source| !source.parsed.problems.is_empty())
    }
}

/// Merges the objects in force (lowest layer first).
///
/// `knows_model` returns whether the node's CPU map has a minimum model (`None`: unknown, which is no reason to
/// refuse). If any object is refused, `last_good` stays in force. Without one, all valid values apply: if one typing
/// error voided the others, a restart would undo the eviction strategy, and drains would shut guests down.
pub fn resolve(
    mut sources: Vec<ConfigurationSource>,
    knows_model: impl Fn(&str) -> Option<bool>,
    last_good: Option<&Configuration>,
) -> Resolution {
    for source in &mut sources {
        let Some(model) = source.parsed.layer.min_cpu_model.clone() else {
            continue;
        };
        if knows_model(&model) == Some(false) {
            let field = if source.kind == legacy::KIND {
                format!("data.{}", drydock_api::legacy::KEY_MIN_CPU_MODEL)
            } else {
                "spec.obsoleteCPUs.minCPUModel".into()
            };
            source.parsed.refuse(
                field,
                model,
                "a CPU model of libvirt's CPU map on every node, for example Penryn or Haswell",
            );
            source.parsed.layer.min_cpu_model = None;
        }
    }
    let refused = sources.iter().any(|source| !source.parsed.problems.is_empty());
    let configuration = match last_good.filter(|_| refused) {
        Some(good) => good.clone(),
        None => merge(sources.iter().map(|source| &source.parsed.layer)),
    };
    Resolution { configuration, sources }
}

/// Returns how long a node waits before it applies a changed configuration, so that `nodes` nodes do not all write at
/// the same time: up to `most`, and up to 5 ms per node. `fraction` is the node's own random number from 0 to 1.
pub fn spread(nodes: u64, most: Duration, fraction: f64) -> Duration {
    let share = Duration::from_millis(nodes.saturating_mul(5)).min(most);
    share.mul_f64(fraction.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
