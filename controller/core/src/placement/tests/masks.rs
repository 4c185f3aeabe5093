//! Masks and running guests: placement, the affinity of the target pod and the target's agent decide alike.

use drydock_api::{facts::CpuFacts, kubevirt::VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;
use crate::{
    labels::{LabelPolicy, desired},
    mask::{MaskHere, MaskedModels, apply, means, refused},
    migration::named_sides::guest,
    placement::targets::unsuitable,
    processor,
};

const FEATURE: &str = "avx2";

/// Why a guest uses [`FEATURE`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum FeatureUse {
    /// The guest has its host's model, plus the feature.
    HostModel,
    /// The guest has its host's model, which contains the feature.
    PartOfHostModel,
    /// The guest's manifest requires the feature.
    Demanded,
    /// The guest's manifest requires the feature, which is part of the minimum CPU model.
    DemandedMinimum,
    /// The guest's manifest names a model with the feature.
    Model,
    /// The guest's manifest names a model with the feature, and disables another feature that neither node has.
    PartialModel,
    /// The guest has its host's own CPU.
    HostsOwn,
}

const GUESTS: [FeatureUse; 7] = [
    FeatureUse::HostModel,
    FeatureUse::PartOfHostModel,
    FeatureUse::Demanded,
    FeatureUse::DemandedMinimum,
    FeatureUse::Model,
    FeatureUse::PartialModel,
    FeatureUse::HostsOwn,
];

impl FeatureUse {
    fn instance(self) -> VirtualMachineInstance {
        let demand = json!({"features": [{"name": FEATURE, "policy": "require"}]});
        let without = json!({"model": "Haswell", "features": [{"name": "rtm", "policy": "disable"}]});
        let (manifest, recorded) = match self {
            Self::HostModel => (json!({}), json!({"model": "EPYC", "required": [FEATURE]})),
            Self::PartOfHostModel => (json!({}), json!({"model": "Haswell", "disabled": ["rtm"]})),
            Self::Demanded | Self::DemandedMinimum => (demand, json!({"model": "EPYC", "required": [FEATURE]})),
            Self::Model => (json!({"model": "Whole"}), json!({"model": "Whole"})),
            Self::PartialModel => (without, json!({"model": "Haswell", "disabled": ["rtm"]})),
            Self::HostsOwn => (json!({"model": "host-passthrough"}), Value::Null),
        };
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
            "spec": {"domain": {"cpu": manifest}},
            "status": {"nodeName": "here", "drydock": {"guestCPU": recorded, "virtType": "kvm"}},
        }))
        .unwrap()
    }

    fn minimum(self) -> Minimum {
        match self {
            Self::DemandedMinimum => Minimum {
                model: "Least".into(),
                features: ["sse2".to_owned(), FEATURE.into()].into(),
            },
            _ => Minimum::default(),
        }
    }
}

/// A node with its hardware and its mask.
struct Host {
    name: &'static str,
    hardware: NodeFacts,
    mask: Vec<String>,
    offered: NodeFacts,
    labels: BTreeMap<String, String>,
}

impl Host {
    fn new(name: &'static str, has: bool, masks: bool, minimum: &Minimum) -> Self {
        let mut hardware = facts(if has { &["avx2", "sse2"] } else { &["sse2"] });
        let lacks: &[&str] = if has { &[] } else { &[FEATURE] };
        hardware.architecture = "amd64".into();
        hardware.kernel = "6.12".into();
        hardware.cpu = CpuFacts {
            vendor: "AuthenticAMD".into(),
            model: Some(49),
            ..CpuFacts::default()
        };
        let virtualization = hardware.virtualization.as_mut().unwrap();
        let partial = [&["rtm"], lacks].concat();
        let models = Arc::make_mut(&mut virtualization.models);
        models.retain(|model| model.name != "Haswell");
        models.extend([model("Whole", None, lacks), model("Haswell", None, &partial)]);
        let mask: Vec<String> = masks.then(|| FEATURE.to_owned()).into_iter().collect();
        let contained = BTreeSet::from([FEATURE.to_owned()]);
        let contain = MaskedModels::from([("Whole".into(), contained.clone()), ("Haswell".into(), contained)]);
        let contain = if masks { contain } else { MaskedModels::new() };
        let offered = apply(&hardware, &mask.iter().cloned().collect(), &contain);
        let policy = LabelPolicy {
            minimum: minimum.clone(),
            ..LabelPolicy::default()
        };
        let mut all = labels(&[(HOSTNAME, name)]);
        all.extend(desired(&offered, &policy).labels);
        Self {
            name,
            hardware,
            mask,
            offered,
            labels: all,
        }
    }

    fn view(&self) -> NodeView<'_> {
        NodeView {
            name: self.name,
            labels: Some(&self.labels),
            facts: Some(&self.offered),
            masked: &self.mask,
            ..NodeView::default()
        }
    }

    /// Returns whether its agent, and then libvirt, would admit the guest.
    fn admits_on_arrival(&self, instance: &VirtualMachineInstance, source: &Host) -> bool {
        let migrated = guest(instance, &Pod::default(), Some(&source.view()));
        let mask = self.mask.iter().cloned().collect();
        let offered = self.offered.virtualization.as_ref().unwrap();
        if !refused(&migrated, &MaskHere::of(offered, &mask)).is_empty() {
            return false;
        }
        if migrated.cpu.is_none() {
            let here = processor::identity(&self.hardware);
            return processor::refusal(migrated.processor.as_deref(), here.as_deref()).is_none();
        }
        let hardware = self.hardware.virtualization.as_ref().unwrap();
        hardware.features.iter().any(|feature| feature == FEATURE)
    }
}

/// Returns the requirements on another node.
fn needs_to_move(kind: FeatureUse, hosts: &[Host]) -> Requirements {
    let source = hosts[0].view();
    let views = || hosts.iter().map(Host::view);
    let mut needs = requirements(&kind.instance().spec, &Configuration::default(), &kind.minimum());
    lift_masks(&mut needs, &source);
    admit_partial_models(&mut needs, views());
    admit_masked(&mut needs, &source, views());
    needs
}

/// Returns whether the affinity of a target pod admits a node.
fn is_admitted(kind: FeatureUse, hosts: &[Host], host: &Host) -> bool {
    let mut needs = needs_to_move(kind, hosts);
    let views = hosts.iter().map(Host::view);
    require_recorded_cpu(
        &mut needs,
        &kind.instance(),
        &kind.minimum(),
        Some(&hosts[0].view()),
        views,
    );
    let label = |key: &str| host.labels.get(key).map(String::as_str);
    let selected = needs
        .node_selector
        .iter()
        .all(|(key, value)| label(key) == Some(value.as_str()));
    let mut expressions = needs.expressions.iter();
    selected && expressions.all(|expression| affinity::meets(expression, label(&expression.key)))
}

#[test]
fn masks_count_alike_in_placement_affinity_and_agent() {
    // Whether the source masks the feature, the target has it, and the target masks it; whether the guest may move, and
    // whether the mask is named.
    for (source_masks, target_has, target_masks, goes, names_mask) in [
        (false, true, false, true, false),
        (true, true, false, true, false),
        (false, true, true, false, true),
        (true, true, true, true, false),
        (false, false, false, false, false),
        (true, false, false, false, false),
        (false, false, true, false, false),
        (true, false, true, false, false),
    ] {
        for kind in GUESTS {
            let row = format!("{kind:?} {source_masks} {target_has} {target_masks}");
            let instance = kind.instance();
            let hosts = [
                Host::new("here", true, source_masks, &kind.minimum()),
                Host::new("b", target_has, target_masks, &kind.minimum()),
            ];
            let [source, target] = &hosts;
            let views: Vec<_> = hosts.iter().map(Host::view).collect();
            let needs = needs_to_move(kind, &hosts);
            let found = migration_targets(&instance, &needs, Some(&views[0]), &Rules::default(), &views);
            assert_eq!(found.available, goes, "{row}: {}", found.message);
            assert_eq!(found.message.contains(&means()), names_mask, "{row}: {}", found.message);
            let together = unsuitable(&instance, &needs, Some(&views[0]), &[], &views[1]).unwrap();
            assert_eq!(together.is_empty(), goes, "{row}: {together:?}");
            assert_eq!(is_admitted(kind, &hosts, target), goes, "{row}: affinity");
            assert_eq!(target.admits_on_arrival(&instance, source), goes, "{row}: agent");
        }
    }
}

#[test]
fn feature_that_no_node_lists_is_left_to_libvirt_unless_masked() {
    let instance = FeatureUse::HostModel.instance();
    for (source_masks, target_masks, goes) in [
        (false, false, true),
        (true, false, true),
        (true, true, true),
        (false, true, false),
    ] {
        let hosts = [("here", source_masks), ("b", target_masks)]
            .map(|(name, masks)| Host::new(name, false, masks, &Minimum::default()));
        let views: Vec<_> = hosts.iter().map(Host::view).collect();
        let needs = needs_to_move(FeatureUse::HostModel, &hosts);
        let found = migration_targets(&instance, &needs, Some(&views[0]), &Rules::default(), &views);
        let row = format!("{source_masks} {target_masks}: {}", found.message);
        assert_eq!(found.available, goes, "{row}");
        let each = target_misfits(&instance, &needs, Some(&views[0]), &Rules::default(), &views).unwrap();
        assert_eq!(each[0].1.is_empty(), goes, "{row}: {each:?}");
        assert_eq!(found.message.contains(&means()), !goes, "{row}");
        assert_eq!(is_admitted(FeatureUse::HostModel, &hosts, &hosts[1]), goes, "{row}");
        let migrated = guest(&instance, &Pod::default(), Some(&views[0]));
        let offered = hosts[1].offered.virtualization.as_ref().unwrap();
        let mask = hosts[1].mask.iter().cloned().collect();
        assert_eq!(
            refused(&migrated, &MaskHere::of(offered, &mask)).is_empty(),
            goes,
            "{row}"
        );
    }
}

#[test]
fn of_many_nodes_those_are_kept_off_that_lack_the_feature() {
    for kind in GUESTS {
        let minimum = kind.minimum();
        let hosts = [
            Host::new("here", true, true, &minimum),
            Host::new("masked", true, true, &minimum),
            Host::new("open", true, false, &minimum),
            Host::new("poor", false, false, &minimum),
            Host::new("poor-masked", false, true, &minimum),
        ];
        let admitted: Vec<_> = hosts[1..]
            .iter()
            .filter(|host| is_admitted(kind, &hosts, host))
            .map(|host| host.name)
            .collect();
        assert_eq!(admitted, ["masked", "open"], "{kind:?}");
    }
}

#[test]
fn new_guest_avoids_masked_nodes_and_reports_the_mask() {
    let hosts = [("a", true), ("b", true)].map(|(name, masks)| Host::new(name, true, masks, &Minimum::default()));
    let views: Vec<_> = hosts.iter().map(Host::view).collect();
    for (manifest, sentence) in [
        (
            json!({"features": [{"name": FEATURE}]}),
            format!(
                "no node can run the virtual machine: 2 nodes mask the CPU feature avx2 by {} (a, b)",
                means()
            ),
        ),
        (
            json!({"model": "Whole"}),
            format!(
                "no node can run the virtual machine: 2 nodes lack the CPU model Whole because of missing avx2, masked \
                 by {} (a, b)",
                means()
            ),
        ),
    ] {
        let spec = spec(&json!({"domain": {"cpu": manifest}}));
        let needs = requirements(&spec, &Configuration::default(), &Minimum::default());
        assert_eq!(fit(&needs, &spec, &Rules::default(), &views).sentence(), sentence);
    }
}

#[test]
fn lifted_mask_restores_the_inspected_facts() {
    let host = Host::new("a", true, true, &Minimum::default());
    let mut lifted = host.offered.virtualization.clone().unwrap();
    assert_eq!(
        (lifted.withheld.as_slice(), lifted.features.as_slice()),
        (&[FEATURE.to_owned()][..], &["sse2".to_owned()][..])
    );
    crate::mask::lift(&mut lifted);
    assert_eq!(Some(lifted), host.hardware.virtualization);
}
