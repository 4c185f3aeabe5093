//! CPU features that a node has and shall not offer, to level a mixed cluster.
//!
//! A mask is the statement of an administrator that new guests of a node shall not use a feature. A guest that is
//! started there does without it. A guest that uses it already, because it was started before the mask or elsewhere, keeps
//! it, and has to remain movable: a mask that its own node has too is not in its way on another node.
//!
//! | of a feature that a running guest has | its own node masks it | its own node does not |
//! |---|---|---|
//! | the other node offers it | may go | may go |
//! | the other node has it and masks it | may go | refused: `CPUFeatureMissing`, which names the mask |
//! | the other node does not have it | refused: `CPUFeatureMissing` | refused: `CPUFeatureMissing` |
//! | no node is known to have it, and the other does not mask it | libvirt decides | libvirt decides |
//! | no node is known to have it, and the other masks it | libvirt decides | refused: `CPUFeatureMissing` |
//!
//! So guests do not carry a feature into a part of the cluster that is masked, and leave or move within that part freely.
//! A model with features that are masked is treated as these are, and so is the CPU of a host for guests that have it.
//! What nodes have is compared without their masks.
//!
//! Three parties decide by this table: [`migration_targets`](crate::placement::migration_targets) and
//! [`pack`](crate::placement::pack) by the Hypervisors, the scheduler by what
//! [`require_recorded_cpu`](crate::placement::require_recorded_cpu) requires of a target pod's node, and the target's agent
//! by [`refused`] before it asks libvirt, which knows of no masks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::{
    annotations::MASK_CPU_FEATURES,
    facts::{CpuModel, NodeFacts, Usable, VirtualizationFacts},
    kubevirt::migration::MigratedGuest,
};

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

/// By what a node masks features, for people.
pub fn means() -> String {
    format!("the annotation {MASK_CPU_FEATURES} or the option --mask-features of its agent")
}

/// What libvirt's CPU map says about masked features: model name to the masked features in it.
pub type MaskedModels = BTreeMap<String, BTreeSet<String>>;

/// The facts as the node offers them: masked features that it has are withheld, and each model that contains one
/// is not usable, with the masked features among its blockers. `facts` are those of the inspection.
pub fn apply(facts: &NodeFacts, mask: &BTreeSet<String>, masked_models: &MaskedModels) -> NodeFacts {
    let mut offered = facts.clone();
    if mask.is_empty() {
        return offered;
    }
    let Some(virtualization) = &mut offered.virtualization else {
        return offered;
    };
    let masked = virtualization.features.iter().filter(|feature| mask.contains(*feature));
    virtualization.withheld = masked.cloned().collect::<BTreeSet<_>>().into_iter().collect();
    if !virtualization.withheld.is_empty() {
        Arc::make_mut(&mut virtualization.features).retain(|feature| !mask.contains(feature));
    }
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
        // Of a model that is not usable libvirt may not say what is missing. Then nothing is added: the masked
        // features alone would look like all that is.
        if model.usable == Usable::No && model.blockers.is_empty() {
            continue;
        }
        if let Some(lost) = lost_of(model, masked_models).filter(|lost| !lost.is_empty()) {
            model.usable = Usable::No;
            let more: Vec<String> = lost.iter().filter(|f| !model.blockers.contains(f)).cloned().collect();
            model.blockers.extend(more);
        }
    }
    offered
}

/// The masked features in a model, by either of its names.
fn lost_of<'a>(model: &CpuModel, masked_models: &'a MaskedModels) -> Option<&'a BTreeSet<String>> {
    let canonical = || masked_models.get(model.canonical.as_ref()?);
    masked_models.get(&model.name).or_else(canonical)
}

/// The facts without the mask that they were reported with: what [`apply`] took away is there again, but for the
/// features that the host model requires.
pub fn lift(offered: &mut VirtualizationFacts) {
    let withheld: BTreeSet<String> = std::mem::take(&mut offered.withheld).into_iter().collect();
    if withheld.is_empty() {
        return;
    }
    let features = Arc::make_mut(&mut offered.features);
    features.extend(withheld.iter().cloned());
    features.sort_unstable();
    features.dedup();
    if let Some(host_model) = &mut offered.host_model {
        host_model.disabled.retain(|feature| !withheld.contains(feature));
    }
    for model in Arc::make_mut(&mut offered.models) {
        if !model.blockers.is_empty() {
            model.blockers.retain(|feature| !withheld.contains(feature));
            if model.blockers.is_empty() {
                model.usable = Usable::Yes;
            }
        }
    }
}

/// The mask of a node, as far as guests are concerned that come from other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskHere {
    /// All features that are masked.
    pub features: BTreeSet<String>,
    /// Those of them that guests could have here otherwise.
    pub withheld: BTreeSet<String>,
    /// Those of them that are in models which libvirt knows here, by the name of the model.
    pub models: MaskedModels,
}

impl MaskHere {
    /// The mask by which a node offers what it does.
    pub fn of(offered: &VirtualizationFacts, mask: &BTreeSet<String>) -> Self {
        let in_model = |model: &CpuModel| -> BTreeSet<String> {
            let masked = model.blockers.iter().filter(|feature| mask.contains(*feature));
            masked.cloned().collect()
        };
        let models = offered.models.iter().map(|model| (model.name.clone(), in_model(model)));
        Self {
            features: mask.clone(),
            withheld: offered.withheld.iter().cloned().collect(),
            models: models.filter(|(_, masked)| !masked.is_empty()).collect(),
        }
    }
}

/// Features of a guest that arrives which this node masks, and the one that it comes from does not: the guest is refused
/// for each of them. A guest with its host's own CPU has all that its source does not mask.
pub fn refused(guest: &MigratedGuest, here: &MaskHere) -> BTreeSet<String> {
    let masked: BTreeSet<&String> = match &guest.cpu {
        Some(cpu) => {
            let required = cpu.required.iter().filter(|feature| here.features.contains(*feature));
            let in_model = here.models.get(&cpu.model).into_iter().flatten();
            required
                .chain(in_model.filter(|feature| !cpu.disabled.contains(feature)))
                .collect()
        }
        None => here.withheld.iter().collect(),
    };
    let refused = masked
        .into_iter()
        .filter(|feature| !guest.masked_features.contains(feature));
    refused.cloned().collect()
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
