//! Obsolete CPU models: models that no node offers, although hosts could run them.

use std::collections::BTreeSet;

use drydock_api::facts::CpuModel;

use crate::aliases;

/// The built-in obsolete models. The first 15 are the list that KubeVirt has documented since its first node
/// labeller; `Opteron_G1` and `Opteron_G2` were added by KubeVirt 1.3. The `-v1` alias of each name is obsolete too
/// (KubeVirt 1.6).
pub const BUILT_IN: [&str; 17] = [
    "486",
    "Conroe",
    "athlon",
    "core2duo",
    "coreduo",
    "kvm32",
    "kvm64",
    "n270",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "phenom",
    "qemu32",
    "qemu64",
    "Opteron_G1",
    "Opteron_G2",
];

/// The obsolete models: the built-in ones and those that the configuration adds. A built-in one cannot be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObsoleteModels {
    additions: BTreeSet<String>,
}

impl ObsoleteModels {
    /// Returns the built-in models and `additions`.
    pub fn with(additions: impl IntoIterator<Item = String>) -> Self {
        Self {
            additions: additions.into_iter().collect(),
        }
    }

    /// Returns whether `name` itself is listed. Names are compared exactly.
    pub fn lists(&self, name: &str) -> bool {
        let base = name.strip_suffix("-v1").unwrap_or(name);
        BUILT_IN.contains(&base) || self.additions.contains(name)
    }

    /// Returns whether the model called `name` is obsolete among `models`: it, or any other name of the same model,
    /// is listed. Otherwise a listed alias would still be offered under its versioned name.
    pub fn covers(&self, name: &str, models: &[CpuModel]) -> bool {
        self.lists(name) || aliases::names_of(name, models).any(|twin| self.lists(twin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str, canonical: Option<&str>) -> CpuModel {
        CpuModel {
            name: name.into(),
            canonical: canonical.map(Into::into),
            ..CpuModel::default()
        }
    }

    #[test]
    fn obsolete_models_are_built_in_with_v1_aliases() {
        let obsolete = ObsoleteModels::default();
        for name in BUILT_IN {
            assert!(obsolete.lists(name), "{name}");
            assert!(obsolete.lists(&format!("{name}-v1")), "{name}-v1");
        }
        for name in ["Penryn", "Penryn-v1", "Haswell", "qemu64-v2", "Conroe2", ""] {
            assert!(!obsolete.lists(name), "{name}");
        }
    }

    #[test]
    fn the_configuration_adds_and_never_removes() {
        let obsolete = ObsoleteModels::with(["Haswell".to_owned()]);
        assert!(obsolete.lists("Haswell"));
        assert!(obsolete.lists("486"));
        assert!(!obsolete.lists("Haswell-noTSX"));
    }

    #[test]
    fn every_name_of_a_listed_model_is_obsolete() {
        let models = [
            model("Haswell", Some("Haswell-v1")),
            model("Haswell-v1", None),
            model("Haswell-noTSX", Some("Haswell-v2")),
            model("Haswell-v2", None),
        ];
        let by_alias = ObsoleteModels::with(["Haswell".to_owned()]);
        assert!(by_alias.covers("Haswell-v1", &models));
        assert!(!by_alias.covers("Haswell-v2", &models));
        let by_version = ObsoleteModels::with(["Haswell-v2".to_owned()]);
        assert!(by_version.covers("Haswell-noTSX", &models));
        assert!(!by_version.covers("Haswell", &models));
    }
}
