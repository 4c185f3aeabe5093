//! The minimum CPU model: the features that every node of the cluster is expected to have.
//!
//! Its features get no labels of their own. One label, `cpu-minimum.node.drydock.dev/<model>`, means that a node has
//! all of them; anything that needs one of them selects on that label. So omitting them never hides why a guest does
//! not fit a node.

use std::collections::BTreeSet;

/// The default minimum CPU model.
pub const DEFAULT_MODEL: &str = "Penryn";

/// The features of Penryn as listed in the documentation of the HyperConverged configuration. libvirt's own
/// definition of the model may differ by version; this one does not.
pub const PENRYN: [&str; 29] = [
    "apic", "clflush", "cmov", "cx16", "cx8", "de", "fpu", "fxsr", "lahf_lm", "lm", "mca", "mce", "mmx", "msr", "mtrr",
    "nx", "pae", "pat", "pge", "pni", "pse", "pse36", "sep", "sse", "sse2", "sse4.1", "ssse3", "syscall", "tsc",
];

/// A minimum CPU model with its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minimum {
    /// Name of the model.
    pub model: String,
    /// Its features; never empty.
    pub features: BTreeSet<String>,
}

impl Default for Minimum {
    fn default() -> Self {
        Self {
            model: DEFAULT_MODEL.into(),
            features: PENRYN.iter().map(|&name| name.into()).collect(),
        }
    }
}

impl Minimum {
    /// Returns the minimum model called `model`. For every model except the default one, `lookup` is called for the
    /// features in libvirt's CPU map.
    ///
    /// `None` if the map has no such model: that is a configuration error, and never means that nothing is omitted.
    pub fn resolve(model: &str, lookup: impl FnOnce(&str) -> Option<BTreeSet<String>>) -> Option<Self> {
        if model == DEFAULT_MODEL {
            return Some(Self::default());
        }
        let features = lookup(model).filter(|features| !features.is_empty())?;
        Some(Self {
            model: model.into(),
            features,
        })
    }

    /// Returns whether a node with these features has the whole minimum.
    pub fn met_by(&self, features: &BTreeSet<&str>) -> bool {
        self.features.iter().all(|feature| features.contains(feature.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penryn_is_the_documented_set_for_any_cpu_map() {
        let minimum = Minimum::resolve("Penryn", |_| panic!("the default needs no CPU map")).unwrap();
        assert_eq!(minimum.features.len(), 29);
        assert_eq!(minimum, Minimum::default());
    }

    #[test]
    fn other_models_are_in_the_cpu_map_or_refused() {
        let map = |name: &str| (name == "Westmere").then(|| BTreeSet::from(["aes".to_owned(), "sse4.2".to_owned()]));
        assert_eq!(Minimum::resolve("Westmere", map).unwrap().features.len(), 2);
        assert_eq!(Minimum::resolve("Westmare", map), None);
        assert_eq!(Minimum::resolve("Empty", |_| Some(BTreeSet::new())), None);
    }

    #[test]
    fn a_node_meets_the_minimum_only_with_all_of_it() {
        let minimum = Minimum::default();
        let mut node: BTreeSet<&str> = PENRYN.into();
        node.insert("avx2");
        assert!(minimum.met_by(&node));
        node.remove("sse4.1");
        assert!(!minimum.met_by(&node));
    }
}
