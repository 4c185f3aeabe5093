//! CPU models with two names: QEMU's versioned name (`Haswell-v1`) and the name in manifests (`Haswell`). libvirt
//! reports the versioned name as the `canonical` attribute of the unversioned model.

use std::collections::BTreeSet;

use drydock_api::facts::CpuModel;

/// Returns the versioned name of the model called `name`: its canonical name, or the name itself.
pub fn canonical<'a>(name: &'a str, models: &'a [CpuModel]) -> &'a str {
    models
        .iter()
        .find(|model| model.name == name)
        .and_then(|model| model.canonical.as_deref())
        .unwrap_or(name)
}

/// Returns all names of the model called `name`, including `name`.
pub fn names_of<'a>(name: &'a str, models: &'a [CpuModel]) -> impl Iterator<Item = &'a str> {
    let version = canonical(name, models);
    std::iter::once(name).chain(
        models
            .iter()
            .filter(move |other| {
                other.name != name && (other.name == version || other.canonical.as_deref() == Some(version))
            })
            .map(|other| other.name.as_str()),
    )
}

/// Returns the names of `chosen` under which labels are written: a model with an unversioned name is written under
/// that name only, unless `all` is set.
pub fn published<'a>(chosen: &[&'a CpuModel], all: bool) -> BTreeSet<&'a str> {
    let shadowed: BTreeSet<&str> = if all {
        BTreeSet::new()
    } else {
        chosen.iter().filter_map(|model| model.canonical.as_deref()).collect()
    };
    chosen
        .iter()
        .map(|model| model.name.as_str())
        .filter(|name| !shadowed.contains(name))
        .collect()
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
    fn versioned_alias_is_omitted_beside_the_unversioned_name() {
        let models = [
            model("Haswell", Some("Haswell-v1")),
            model("Haswell-v1", None),
            model("Haswell-noTSX", Some("Haswell-v2")),
            model("Haswell-v2", None),
            model("Skylake-Client-v4", None),
        ];
        let chosen: Vec<&CpuModel> = models.iter().collect();
        assert_eq!(
            published(&chosen, false),
            BTreeSet::from(["Haswell", "Haswell-noTSX", "Skylake-Client-v4"])
        );
        assert_eq!(published(&chosen, true).len(), 5);
    }

    #[test]
    fn versioned_model_without_alias_keeps_the_versioned_name() {
        let only_version = model("Haswell-v1", None);
        assert_eq!(published(&[&only_version], false), BTreeSet::from(["Haswell-v1"]));
    }

    #[test]
    fn all_model_names_are_found_from_each_name() {
        let models = [
            model("Haswell", Some("Haswell-v1")),
            model("Haswell-v1", None),
            model("Penryn", Some("Penryn-v1")),
        ];
        for start in ["Haswell", "Haswell-v1"] {
            let names: BTreeSet<&str> = names_of(start, &models).collect();
            assert_eq!(names, BTreeSet::from(["Haswell", "Haswell-v1"]), "{start}");
        }
        assert_eq!(names_of("unheard-of", &models).collect::<Vec<_>>(), ["unheard-of"]);
    }
}
