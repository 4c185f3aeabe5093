//! Explanations why guests can or cannot have a CPU model on a node.

use std::fmt;

use drydock_api::facts::{NodeFacts, Usable, VirtType};

use crate::{
    aliases,
    labels::{self, LabelPolicy},
};

/// All information about one model on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelReport {
    /// The requested model.
    pub model: String,
    /// Information about the model; `None` if libvirt does not know the model.
    pub known: Option<ModelInfo>,
    /// Similar names, if the model is unknown.
    pub similar: Vec<String>,
}

/// Information about a model that libvirt knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Usability as reported by libvirt.
    pub usable: Usable,
    /// The virtualization type that the usability applies to.
    pub virt_type: VirtType,
    /// Features that the model needs and that guests on this node cannot have.
    pub missing: Vec<String>,
    /// Whether the model, under any of its names, is on the list of obsolete models.
    pub obsolete: bool,
    /// Other names of the same model.
    pub other_names: Vec<String>,
    /// Whether this is the model of `host-model` guests.
    pub host_model: bool,
    /// Label keys for the model on this node.
    pub labels: Vec<String>,
}

/// Explains `model` for a node with these facts.
pub fn explain(facts: &NodeFacts, policy: &LabelPolicy, model: &str) -> ModelReport {
    let nothing = |similar| ModelReport {
        model: model.into(),
        known: None,
        similar,
    };
    let Some(virtualization) = &facts.virtualization else {
        return nothing(Vec::new());
    };
    let models = &virtualization.models;
    let Some(found) = models.iter().find(|candidate| candidate.name == model) else {
        let wanted = model.to_ascii_lowercase();
        let alike = |name: &str| {
            let name = name.to_ascii_lowercase();
            name.starts_with(&wanted) || wanted.starts_with(&name) || name.contains(&wanted)
        };
        let similar = models
            .iter()
            .map(|m| m.name.clone())
            .filter(|n| !wanted.is_empty() && alike(n))
            .take(8)
            .collect();
        return nothing(similar);
    };
    let names: Vec<&str> = aliases::names_of(model, models).collect();
    let written = labels::desired(facts, policy).labels;
    let known = ModelInfo {
        usable: found.usable,
        virt_type: virtualization.virt_type,
        missing: found.blockers.clone(),
        obsolete: policy.obsolete.covers(model, models),
        other_names: names.iter().skip(1).map(|&name| name.to_owned()).collect(),
        host_model: virtualization
            .host_model
            .as_ref()
            .is_some_and(|host| names.contains(&host.name.as_str())),
        labels: written
            .into_keys()
            .filter(|key| {
                key.split_once('/')
                    .is_some_and(|(prefix, name)| prefix.contains("model") && names.contains(&name))
            })
            .collect(),
    };
    ModelReport {
        model: model.into(),
        known: Some(known),
        similar: Vec::new(),
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(known) = &self.known else {
            write!(f, "{}: libvirt has no such CPU model on this node", self.model)?;
            if !self.similar.is_empty() {
                write!(f, "; did you mean {}?", self.similar.join(", "))?;
            }
            return writeln!(f);
        };
        let how = match known.virt_type {
            VirtType::Kvm => "with KVM",
            VirtType::Qemu => "by emulation",
            VirtType::Unknown => "with a virtualization type that this version does not support",
        };
        match known.usable {
            Usable::Yes => writeln!(f, "{}: usable {how}", self.model)?,
            Usable::Unknown => writeln!(
                f,
                "{}: assumed usable {how}; libvirt does not report the usability",
                self.model
            )?,
            Usable::No if known.missing.is_empty() => {
                writeln!(f, "{}: not usable {how}; libvirt reports no cause", self.model)?;
            }
            Usable::No => {
                writeln!(
                    f,
                    "{}: not usable {how}, {} features are missing",
                    self.model,
                    known.missing.len()
                )?;
                writeln!(f, "  missing:     {}", known.missing.join(" "))?;
            }
        }
        writeln!(
            f,
            "  obsolete:    {}",
            if known.obsolete {
                "yes, so the model gets no label"
            } else {
                "no"
            }
        )?;
        if !known.other_names.is_empty() {
            writeln!(f, "  also called: {}", known.other_names.join(", "))?;
        }
        if known.host_model {
            writeln!(f, "  host model:  yes, host-model guests are based on it")?;
        }
        writeln!(
            f,
            "  labels:      {}",
            if known.labels.is_empty() {
                "none".into()
            } else {
                known.labels.join(", ")
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use drydock_api::facts::{CpuModel, HostModel, VirtualizationFacts};

    use super::*;

    fn facts() -> NodeFacts {
        let model = |name: &str, canonical: Option<&str>, usable, blockers: &[&str]| CpuModel {
            name: name.into(),
            canonical: canonical.map(Into::into),
            usable,
            blockers: blockers.iter().map(|&b| b.into()).collect(),
            ..CpuModel::default()
        };
        NodeFacts {
            architecture: "amd64".into(),
            virtualization: Some(VirtualizationFacts {
                virt_type: VirtType::Kvm,
                models: vec![
                    model("Haswell", Some("Haswell-v1"), Usable::No, &["hle", "rtm"]),
                    model("Haswell-v1", None, Usable::No, &["hle", "rtm"]),
                    model("Haswell-noTSX", None, Usable::Yes, &[]),
                    model("qemu64", None, Usable::Yes, &[]),
                ]
                .into(),
                host_model: Some(HostModel {
                    name: "Haswell".into(),
                    ..HostModel::default()
                }),
                ..VirtualizationFacts::default()
            }),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn model_explanations_are_sentences() {
        let text: Vec<String> = ["Haswell", "Haswell-noTSX", "qemu64", "haswel", "zEC12"]
            .map(|model| explain(&facts(), &LabelPolicy::default(), model).to_string())
            .into();
        insta::assert_snapshot!(text.join("\n"), @r"
        Haswell: not usable with KVM, 2 features are missing
          missing:     hle rtm
          obsolete:    no
          also called: Haswell-v1
          host model:  yes, host-model guests are based on it
          labels:      cpu-model-migration.node.kubevirt.io/Haswell, host-model-cpu.node.kubevirt.io/Haswell

        Haswell-noTSX: usable with KVM
          obsolete:    no
          labels:      cpu-model-migration.node.kubevirt.io/Haswell-noTSX, cpu-model.node.kubevirt.io/Haswell-noTSX

        qemu64: usable with KVM
          obsolete:    yes, so the model gets no label
          labels:      none

        haswel: libvirt has no such CPU model on this node; did you mean Haswell, Haswell-v1, Haswell-noTSX?

        zEC12: libvirt has no such CPU model on this node
        ");
    }
}
