//! The ConfigMap that configured KubeVirt before it had a custom resource.

/// Name of the ConfigMap, in the first searched namespace that has one.
pub const CONFIG_MAP: &str = "kubevirt-config";
/// YAML mapping of migration settings (`nodeDrainTaintKey`, `parallelMigrationsPerCluster`, ...).
pub const KEY_MIGRATIONS: &str = "migrations";
/// Feature gates separated by commas.
pub const KEY_FEATURE_GATES: &str = "feature-gates";
/// Additional obsolete CPU models, separated by commas or line breaks.
pub const KEY_OBSOLETE_CPU_MODELS: &str = "obsolete-cpu-models";
/// The minimum CPU model.
pub const KEY_MIN_CPU_MODEL: &str = "min-cpu-model";
/// `true` lets virtual machines use emulation on nodes without usable KVM.
pub const KEY_USE_EMULATION: &str = "debug.useEmulation";
