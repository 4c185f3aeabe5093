//! Annotation keys on Node objects.

/// The value `true` (in upper or lower case) freezes the node's CPU labels: no label is added, changed or removed.
/// Without the annotation, or with any other value, labelling resumes immediately.
pub const SKIP_NODE: &str = "node-labeller.kubevirt.io/skip-node";

/// CPU features, separated by commas or white space, that the node must not offer to guests.
pub const MASK_CPU_FEATURES: &str = "drydock.dev/mask-cpu-features";

/// With the value `true`, the status of the node's Hypervisor previews a drain of the node.
pub const DRAIN_PREVIEW: &str = "drydock.dev/drain-preview";
