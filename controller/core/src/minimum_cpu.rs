//! The minimum CPU model: the features that every node of the cluster is expected to have.
//!
//! The features of the model get no labels of their own. One label, `cpu-minimum.node.drydock.dev/<model>`, means that
//! a node has all of these features; a pod that needs one of them selects on that label. So omitting the features'
//! labels never hides why a guest does not fit a node.

use std::collections::BTreeSet;

use drydock_api::hypervisor::ConfigurationRecord;

/// The default minimum CPU model.
pub const DEFAULT_MODEL: &str = "Penryn";

/// The features of Penryn as listed in the documentation of the HyperConverged configuration. libvirt's own definition
/// of the model may differ by version; this list does not.
pub const PENRYN: [&str; 29] = [
    "apic", "clflush", "cmov", "cx16", "cx8", "de", "fpu", "fxsr", "lahf_lm", "lm", "mca", "mce", "mmx", "msr", "mtrr",
    "nx", "pae", "pat", "pge", "pni", "pse", "pse36", "sep", "sse", "sse2", "sse4.1", "ssse3", "syscall", "tsc",
];

/// A minimum CPU model with its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minimum {
    /// Name of the model.
    pub model: String,
    /// Features of the model.
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

/// The minimum CPU model as the agents of a cluster resolved it. Agents with different versions of libvirt may resolve it
/// differently: the report of the first node by name counts, so that the result is the same each time.
#[derive(Debug)]
pub struct ReportedMinimum<'a, Node> {
    model: &'a str,
    first: Option<(Node, BTreeSet<String>)>,
}

impl<'a, Node: Ord> ReportedMinimum<'a, Node> {
    /// Creates the minimum called `model`, which no agent has reported yet.
    pub fn new(model: &'a str) -> Self {
        Self { model, first: None }
    }

    /// Adds the report of the agent on `node`. A report about another model, or without features, is ignored.
    pub fn add(&mut self, node: Node, report: &ConfigurationRecord) {
        let counts = report.min_cpu_model == self.model && !report.min_cpu_features.is_empty();
        if counts && self.first.as_ref().is_none_or(|(first, _)| node < *first) {
            self.first = Some((node, report.min_cpu_features.iter().cloned().collect()));
        }
    }

    /// Returns the minimum; without features, which every node has, if the model is not the default one and no agent has
    /// reported it.
    pub fn get(self) -> Minimum {
        let features = self.first.map(|(_, features)| features);
        Minimum::resolve(self.model, |_| features).unwrap_or_else(|| Minimum {
            model: self.model.into(),
            features: BTreeSet::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(model: &str, features: &[&str]) -> ConfigurationRecord {
        ConfigurationRecord {
            min_cpu_model: model.into(),
            min_cpu_features: features.iter().map(|&name| name.into()).collect(),
            ..ConfigurationRecord::default()
        }
    }

    #[test]
    fn first_node_that_reports_the_model_decides() {
        let mut minimum = ReportedMinimum::new("Westmere");
        for (node, report) in [
            ("c", report("Westmere", &["aes"])),
            ("b", report("Westmere", &["aes", "sse4.2"])),
            ("a", report("Nehalem", &["sse4.2"])),
            ("d", report("Westmere", &["vmx"])),
            ("0", report("Westmere", &[])),
        ] {
            minimum.add(node, &report);
        }
        assert_eq!(
            minimum.get().features,
            BTreeSet::from(["aes".to_owned(), "sse4.2".to_owned()])
        );
    }

    #[test]
    fn unreported_model_has_no_features() {
        let mut minimum = ReportedMinimum::new("Westmere");
        minimum.add("a", &report("Nehalem", &["sse4.2"]));
        let minimum = minimum.get();
        assert_eq!((minimum.model.as_str(), minimum.features.len()), ("Westmere", 0));
    }

    #[test]
    fn default_model_ignores_reports() {
        let mut minimum = ReportedMinimum::new(DEFAULT_MODEL);
        minimum.add("a", &report(DEFAULT_MODEL, &["aes"]));
        assert_eq!(minimum.get(), Minimum::default());
    }

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
    fn node_meets_the_minimum_cpu_only_with_all_features() {
        let minimum = Minimum::default();
        let mut node: BTreeSet<&str> = PENRYN.into();
        node.insert("avx2");
        assert!(minimum.met_by(&node));
        node.remove("sse4.1");
        assert!(!minimum.met_by(&node));
    }
}
