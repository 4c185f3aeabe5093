//! Annotation keys on Node objects.

/// Value `true` (in any case) freezes the node's CPU labels: nothing is added, changed or removed.
/// Removed, or with any other value, labelling resumes at once.
pub const SKIP_NODE: &str = "node-labeller.kubevirt.io/skip-node";

/// CPU features, separated by commas or white space, that this node shall not offer to guests.
pub const MASK_CPU_FEATURES: &str = "drydock.dev/mask-cpu-features";

/// By the value `true`: what emptying this node would do is to be said in the status of its Hypervisor.
pub const DRAIN_PREVIEW: &str = "drydock.dev/drain-preview";
