//! CPU features that a node has and does not offer, to level a mixed cluster.
//!
//! With a mask, an administrator forbids new guests of a node to use a CPU feature. A guest that is started on the node
//! runs without the feature. A guest that already uses the feature, because it was started before the mask or on
//! another node, keeps the feature and must remain migratable: a mask that the guest's own node also has does not
//! prevent it from moving to another node.
//!
//! | feature of a running guest | its own node masks it | its own node does not |
//! |---|---|---|
//! | the other node offers it | may move | may move |
//! | the other node has it and masks it | may move | refused: `CPUFeatureMissing`, which names the mask |
//! | the other node does not have it | refused: `CPUFeatureMissing` | refused: `CPUFeatureMissing` |
//! | no node is known to have it, and the other does not mask it | libvirt decides | libvirt decides |
//! | no node is known to have it, and the other masks it | libvirt decides | refused: `CPUFeatureMissing` |
//!
//! So guests do not carry a feature into a masked part of the cluster, and leave that part or move within it freely. A
//! model that contains masked features is treated like these features, and so is the host's own CPU for guests that
//! have that CPU. The hardware of nodes is compared without their masks.
//!
//! Three components decide by this table: [`migration_targets`](crate::placement::migration_targets) and
//! [`pack`](crate::placement::pack) by the Hypervisors, the scheduler by the requirements that
//! [`require_recorded_cpu`](crate::placement::require_recorded_cpu) adds to a target pod, and the target's agent by
//! [`refused`] before it queries libvirt, which has no notion of masks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drydock_api::{
    annotations::MASK_CPU_FEATURES,
    facts::{CpuModel, NodeFacts, Usable, VirtualizationFacts},
    kubevirt::migration::MigratedGuest,
};

/// Maximum accepted length of a mask, in bytes.
const LIMIT: usize = 16 * 1024;

/// Why a mask is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// A name has characters that no CPU feature contains.
    #[error("`{0}` is not the name of a CPU feature: letters, digits, `.`, `-` and `_` are allowed")]
    BadName(String),
    /// The mask is longer than any list of features needs to be.
    #[error("the list has {0} bytes; at most {LIMIT} are allowed")]
    TooLong(usize),
}

/// Parses a list of features separated by commas or white space.
///
/// # Errors
/// If a name has characters that no CPU feature contains, or the list is too long.
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

/// Returns a human-readable text on how a node masks features.
pub fn means() -> String {
    format!("the annotation {MASK_CPU_FEATURES} or the option --mask-features of the node's agent")
}

/// The masked features in libvirt's CPU map: model name to the masked features in the model.
pub type MaskedModels = BTreeMap<String, BTreeSet<String>>;

/// Returns the facts as the node offers them: the masked features that it has are withheld, and each model that
/// contains a masked feature is unusable, with the feature among its blockers. `facts` are those of the inspection.
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
        // libvirt may not report the features that an unusable model lacks. Then nothing is added: the masked features
        // would look like the only missing ones.
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

/// Returns the masked features in a model, by either of its names.
fn lost_of<'a>(model: &CpuModel, masked_models: &'a MaskedModels) -> Option<&'a BTreeSet<String>> {
    let canonical = || masked_models.get(model.canonical.as_ref()?);
    masked_models.get(&model.name).or_else(canonical)
}

/// Removes the mask from reported facts: the features that [`apply`] has withheld are restored, except for the features
/// that the host model requires.
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

/// A node's mask, as it affects guests that arrive from other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaskHere {
    /// All masked features.
    pub features: BTreeSet<String>,
    /// The masked features that guests could otherwise have on this node.
    pub withheld: BTreeSet<String>,
    /// The masked features in models that libvirt knows on this node, by the name of the model.
    pub models: MaskedModels,
}

impl MaskHere {
    /// Returns the mask that was applied to the facts that a node offers.
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

/// Returns the features of an arriving guest that this node masks and the source node does not: the guest is refused
/// because of each of them. A guest with its host's own CPU has all features that its source does not mask.
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
    fn masked_features_vanish_and_block_dependent_models() {
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
