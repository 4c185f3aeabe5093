//! Features that a node has and shall not offer, to level a mixed cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::facts::{NodeFacts, Usable};

/// Most bytes of a mask that are read.
const LIMIT: usize = 16 * 1024;

/// Why a mask is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// A name with characters that no CPU feature has.
    #[error("`{0}` is not the name of a CPU feature: letters, digits, `.`, `-` and `_` are allowed")]
    BadName(String),
    /// More text than any list of features needs.
    #[error("the list has {0} bytes; at most {LIMIT} are allowed")]
    TooLong(usize),
}

/// Reads a list of features separated by commas or white space.
///
/// # Errors
/// If a name has characters that no CPU feature has, or the list is too long.
pub fn parse(text: &str) -> Result<BTreeSet<String>, MaskError> {
    if text.len() > LIMIT {
        return Err(MaskError::TooLong(text.len()));
    }
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|name| !name.is_empty())
        .map(|name| {
            let plain = name.len() <= 63
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
            if plain {
                Ok(name.to_owned())
            } else {
                Err(MaskError::BadName(name.chars().take(63).collect()))
            }
        })
        .collect()
}

/// What libvirt's CPU map says about masked features: model name to the masked features in it.
pub type MaskedModels = BTreeMap<String, BTreeSet<String>>;

/// The facts as the node offers them: masked features are gone, and each model that contains one
/// is not usable, with the masked features among its blockers.
pub fn apply(facts: &NodeFacts, mask: &BTreeSet<String>, masked_models: &MaskedModels) -> NodeFacts {
    let mut offered = facts.clone();
    if mask.is_empty() {
        return offered;
    }
    let Some(virtualization) = &mut offered.virtualization else {
        return offered;
    };
    Arc::make_mut(&mut virtualization.features).retain(|feature| !mask.contains(feature));
    if let Some(host_model) = &mut virtualization.host_model {
        host_model.required.retain(|feature| !mask.contains(feature));
        if let Some(lost) = masked_models.get(&host_model.name) {
            let more: Vec<String> = lost
                .iter()
                .filter(|f| !host_model.disabled.contains(f))
                .cloned()
                .collect();
            host_model.disabled.extend(more);
        }
    }
    for model in Arc::make_mut(&mut virtualization.models) {
        let lost = masked_models.get(&model.name).or_else(|| {
            model
                .canonical
                .as_ref()
                .and_then(|canonical| masked_models.get(canonical))
        });
        if let Some(lost) = lost.filter(|lost| !lost.is_empty()) {
            model.usable = Usable::No;
            let more: Vec<String> = lost.iter().filter(|f| !model.blockers.contains(f)).cloned().collect();
            model.blockers.extend(more);
        }
    }
    offered
}

#[cfg(test)]
mod tests {
    use drydock_api::facts::{CpuModel, HostModel, VirtualizationFacts};

    use super::*;

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|&name| name.into()).collect()
    }

    #[test]
    fn lists_are_read_with_commas_and_white_space() {
        for (text, expected) in [
            ("", &[][..]),
            ("avx2", &["avx2"]),
            ("avx2,avx", &["avx", "avx2"]),
            (" avx2 , \n sse4.1\t", &["avx2", "sse4.1"]),
            (",,", &[]),
        ] {
            assert_eq!(parse(text).unwrap(), names(expected), "{text:?}");
        }
    }

    #[test]
    fn a_name_no_feature_can_have_is_refused_by_name() {
        let error = parse("avx2, a/b").unwrap_err();
        assert_eq!(error, MaskError::BadName("a/b".into()));
        assert!(parse(&"x".repeat(64)).is_err());
        assert!(matches!(parse(&"a,".repeat(LIMIT)), Err(MaskError::TooLong(_))));
    }

    #[test]
    fn masked_features_vanish_and_block_the_models_that_need_them() {
        let facts = NodeFacts {
            virtualization: Some(VirtualizationFacts {
                features: vec!["avx".into(), "avx2".into()].into(),
                host_model: Some(HostModel {
                    name: "Haswell".into(),
                    required: vec!["avx2".into(), "ss".into()],
                    ..HostModel::default()
                }),
                models: vec![
                    CpuModel {
                        name: "Haswell".into(),
                        usable: Usable::Yes,
                        ..CpuModel::default()
                    },
                    CpuModel {
                        name: "Haswell-x".into(),
                        canonical: Some("Haswell".into()),
                        usable: Usable::Yes,
                        ..CpuModel::default()
                    },
                    CpuModel {
                        name: "Penryn".into(),
                        usable: Usable::Yes,
                        ..CpuModel::default()
                    },
                ]
                .into(),
                ..VirtualizationFacts::default()
            }),
            ..NodeFacts::default()
        };
        let map = MaskedModels::from([("Haswell".into(), names(&["avx2"])), ("Penryn".into(), names(&[]))]);
        let offered = apply(&facts, &names(&["avx2"]), &map).virtualization.unwrap();
        assert_eq!(*offered.features, ["avx"]);
        let host_model = offered.host_model.unwrap();
        assert_eq!(
            (host_model.required, host_model.disabled),
            (vec!["ss".to_owned()], vec!["avx2".to_owned()])
        );
        let usable: Vec<_> = offered.models.iter().map(|m| (m.usable, m.blockers.len())).collect();
        assert_eq!(usable, [(Usable::No, 1), (Usable::No, 1), (Usable::Yes, 0)]);
    }
}
