//! Whether the configured default CPU model can be used.
//!
//! Any name matches the schema's pattern. Only the nodes know whether a model exists: each lists all models that its
//! libvirt knows, whether or not guests can use them. A name that no node lists is a typing error, or belongs to
//! nodes that have not joined yet; until they do, the last good model stays in force.

use std::collections::BTreeSet;

use drydock_api::facts::{NodeFacts, Usable};

use super::{Configuration, InvalidValue};
use crate::{admission::nearest::nearest, aliases, conditions::ConditionStatus, default_cpu, obsolete::ObsoleteModels};

/// Path of the field in the object.
const FIELD: &str = "spec.defaultCPUModel";
/// Maximum number of suggested names.
const SUGGESTED: usize = 3;

/// The condition `DefaultCPUModelOffered` for the configured model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelVerdict {
    /// Whether the configured model is in force. Otherwise, the last good model is in force.
    pub accepted: bool,
    /// Whether a node offers the configured model.
    pub status: ConditionStatus,
    /// CamelCase reason.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// The model in force, and the verdict on the configured one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelChoice {
    /// The model of virtual machines that set none; `None`: their architecture's default.
    pub model: Option<String>,
    /// The verdict on the configured model; `None` if no model is configured whose existence could be checked.
    pub verdict: Option<ModelVerdict>,
}

/// Chooses the model from the configuration, the model in force before (`last_good`) and the facts of all nodes. A
/// model that some nodes know but none offers only causes a warning: nodes that offer it may join.
pub fn choose<'a>(
    configuration: &Configuration,
    last_good: Option<&str>,
    nodes: impl IntoIterator<Item = &'a NodeFacts>,
) -> ModelChoice {
    let named = configuration.default_cpu_model.as_deref();
    let Some(model) = named.filter(|name| *name != default_cpu::HOST_MODEL && !default_cpu::is_hosts_own(name)) else {
        return ModelChoice {
            model: named.map(Into::into),
            verdict: None,
        };
    };
    let mut verdict = judge(model, configuration, nodes);
    if verdict.accepted {
        return ModelChoice {
            model: Some(model.into()),
            verdict: Some(verdict),
        };
    }
    // The same model may have been accepted while no node had reported its models.
    let last_good = last_good.filter(|good| *good != model);
    verdict.message += &match last_good {
        Some(good) => format!("; virtual machines without a CPU model still get {good}"),
        None => "; virtual machines without a CPU model get the default model of their architecture".into(),
    };
    ModelChoice {
        model: last_good.map(Into::into),
        verdict: Some(verdict),
    }
}

fn judge<'a>(
    model: &str,
    configuration: &Configuration,
    nodes: impl IntoIterator<Item = &'a NodeFacts>,
) -> ModelVerdict {
    let obsolete = ObsoleteModels::with(configuration.obsolete_cpu_models.iter().cloned());
    let (mut inspected, mut offering, mut known, mut is_obsolete) = (0, 0, false, obsolete.lists(model));
    let mut names = BTreeSet::new();
    // arm64 has no named models.
    let facts = nodes.into_iter().filter(|facts| facts.architecture != "arm64");
    for virtualization in facts.filter_map(|facts| facts.virtualization.as_ref()) {
        let models = &virtualization.models;
        inspected += 1;
        is_obsolete |= obsolete.covers(model, models);
        let mut found = aliases::names_of(model, models).filter_map(|name| models.iter().find(|m| m.name == name));
        let mut usable = false;
        known |= found.any(|found| {
            usable = found.usable != Usable::No;
            true
        });
        offering += u32::from(usable);
        names.extend(models.iter().map(|model| model.name.as_str()));
    }
    let refused = |reason, allowed: String| ModelVerdict {
        accepted: false,
        status: ConditionStatus::False,
        reason,
        message: InvalidValue::new(FIELD, model, allowed).to_string(),
    };
    if is_obsolete {
        return refused("CPUModelObsolete", "a CPU model that is not obsolete".into());
    }
    if inspected == 0 {
        return ModelVerdict {
            accepted: true,
            status: ConditionStatus::Unknown,
            reason: "NoNodes",
            message: format!("no node has reported its CPU models, so it is unknown whether {model} exists"),
        };
    }
    if !known {
        names.retain(|name| !obsolete.lists(name));
        let suggested = suggestions(model, names);
        let near = if suggested.is_empty() {
            String::new()
        } else {
            format!(" (did you mean {}?)", suggested.join(", "))
        };
        let allowed = format!("a CPU model that libvirt lists on at least one node{near}");
        return refused("CPUModelUnknown", allowed);
    }
    let (status, reason) = if offering == 0 {
        (ConditionStatus::False, "NoNodeOffersModel")
    } else {
        (ConditionStatus::True, "NodesOfferModel")
    };
    let message = if offering == 0 {
        format!(
            "no node offers the default CPU model {model}; virtual machines without a CPU model start once a node \
             offers the default model"
        )
    } else {
        format!("{offering} of {inspected} nodes offer the CPU model {model}")
    };
    ModelVerdict {
        accepted: true,
        status,
        reason,
        message,
    }
}

/// Returns suggested names, the nearest first.
fn suggestions<'a>(model: &str, mut names: BTreeSet<&'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    while found.len() < SUGGESTED
        && let Some(name) = nearest(model, names.iter().copied())
    {
        names.remove(name);
        found.push(name);
    }
    found
}

#[cfg(test)]
mod tests {
    use drydock_api::facts::{CpuModel, VirtualizationFacts};

    use super::*;

    fn node(architecture: &str, models: &[(&str, Option<&str>, Usable)]) -> NodeFacts {
        let models: Vec<CpuModel> = models
            .iter()
            .map(|(name, canonical, usable)| CpuModel {
                name: (*name).into(),
                canonical: canonical.map(Into::into),
                usable: *usable,
                ..CpuModel::default()
            })
            .collect();
        NodeFacts {
            architecture: architecture.into(),
            virtualization: Some(VirtualizationFacts {
                models: models.into(),
                ..VirtualizationFacts::default()
            }),
            ..NodeFacts::default()
        }
    }

    fn chosen(model: &str, last_good: Option<&str>, nodes: &[NodeFacts]) -> String {
        let configuration = Configuration {
            default_cpu_model: Some(model.into()),
            obsolete_cpu_models: ["Westmere".to_owned()].into(),
            ..Configuration::default()
        };
        let ModelChoice { model, verdict } = choose(&configuration, last_good, nodes);
        let verdict = verdict.map_or_else(
            || "no verdict".to_owned(),
            |verdict| format!("{} {}: {}", verdict.status.as_str(), verdict.reason, verdict.message),
        );
        format!("{} | {verdict}", model.as_deref().unwrap_or("-"))
    }

    #[test]
    fn default_model_is_judged_by_reported_nodes() {
        use Usable::{No, Yes};
        let xeon = node(
            "amd64",
            &[
                ("Icelake-Server", Some("Icelake-Server-v1"), Yes),
                ("Icelake-Server-v1", None, Yes),
                ("Icelake-Server-noTSX", Some("Icelake-Server-v2"), Yes),
                ("SapphireRapids", None, No),
                ("Westmere", None, Yes),
                ("qemu64", None, Yes),
            ],
        );
        let old = node("amd64", &[("Icelake-Server", None, No), ("Penryn", None, Yes)]);
        let arm = node("arm64", &[("cortex-a57", None, Usable::Unknown)]);
        let nodes = [xeon, old, arm.clone(), NodeFacts::default()];
        let rows = [
            chosen("Icelake-Server", None, &nodes),
            chosen("Icelake-Server-v1", None, &nodes),
            chosen("Icelake-Sever", None, &nodes),
            chosen("Icelake-Sever", Some("Penryn"), &nodes),
            chosen("Icelake-Sever", Some("Icelake-Sever"), &nodes),
            chosen("Itanium", None, &nodes),
            chosen("cortex-a57", None, &nodes),
            chosen("SapphireRapids", Some("Penryn"), &nodes),
            chosen("qemu64", Some("Penryn"), &nodes),
            chosen("Westmere", None, &nodes),
            chosen("Icelake-Sever", None, &[arm]),
            chosen("Icelake-Sever", None, &[]),
            chosen("host-model", Some("Penryn"), &nodes),
            chosen("max", None, &nodes),
        ];
        insta::assert_snapshot!(rows.join("\n"), @r"
        Icelake-Server | True NodesOfferModel: 1 of 2 nodes offer the CPU model Icelake-Server
        Icelake-Server-v1 | True NodesOfferModel: 1 of 2 nodes offer the CPU model Icelake-Server-v1
        - | False CPUModelUnknown: spec.defaultCPUModel: `Icelake-Sever` is not allowed; allowed: a CPU model that libvirt lists on at least one node (did you mean Icelake-Server?); virtual machines without a CPU model get the default model of their architecture
        Penryn | False CPUModelUnknown: spec.defaultCPUModel: `Icelake-Sever` is not allowed; allowed: a CPU model that libvirt lists on at least one node (did you mean Icelake-Server?); virtual machines without a CPU model still get Penryn
        - | False CPUModelUnknown: spec.defaultCPUModel: `Icelake-Sever` is not allowed; allowed: a CPU model that libvirt lists on at least one node (did you mean Icelake-Server?); virtual machines without a CPU model get the default model of their architecture
        - | False CPUModelUnknown: spec.defaultCPUModel: `Itanium` is not allowed; allowed: a CPU model that libvirt lists on at least one node; virtual machines without a CPU model get the default model of their architecture
        - | False CPUModelUnknown: spec.defaultCPUModel: `cortex-a57` is not allowed; allowed: a CPU model that libvirt lists on at least one node; virtual machines without a CPU model get the default model of their architecture
        SapphireRapids | False NoNodeOffersModel: no node offers the default CPU model SapphireRapids; virtual machines without a CPU model start once a node offers the default model
        Penryn | False CPUModelObsolete: spec.defaultCPUModel: `qemu64` is not allowed; allowed: a CPU model that is not obsolete; virtual machines without a CPU model still get Penryn
        - | False CPUModelObsolete: spec.defaultCPUModel: `Westmere` is not allowed; allowed: a CPU model that is not obsolete; virtual machines without a CPU model get the default model of their architecture
        Icelake-Sever | Unknown NoNodes: no node has reported its CPU models, so it is unknown whether Icelake-Sever exists
        Icelake-Sever | Unknown NoNodes: no node has reported its CPU models, so it is unknown whether Icelake-Sever exists
        host-model | no verdict
        max | no verdict
        ");
    }

    #[test]
    fn default_model_that_is_not_configured_needs_no_verdict() {
        let choice = choose(&Configuration::default(), Some("Penryn"), &[]);
        assert_eq!(choice, ModelChoice::default());
    }
}
