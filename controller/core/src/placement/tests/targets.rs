//! Nodes that a running guest could move to.

use drydock_api::{facts::CpuFacts, kubevirt::VirtualMachineInstance};
use serde_json::json;

use super::*;

fn running(cpu: &Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"},
        "spec": {"domain": {}},
        "status": {"nodeName": "here", "drydock": {"guestCPU": cpu, "virtType": "kvm"}},
    }))
    .unwrap()
}

fn targets(instance: &VirtualMachineInstance, nodes: &[(&str, &NodeFacts)]) -> Targets {
    let needs = requirements(&instance.spec, &Configuration::default(), &Minimum::default());
    let plain = labels(&[]);
    let views: Vec<_> = nodes
        .iter()
        .map(|(name, facts)| NodeView {
            name,
            labels: Some(&plain),
            facts: Some(facts),
            ..NodeView::default()
        })
        .collect();
    let source = views.iter().find(|view| view.name == "here");
    let found = migration_targets(instance, &needs, source, &Rules::default(), &views);
    let each = target_misfits(instance, &needs, source, &Rules::default(), &views).unwrap_or_default();
    let fits = each.iter().any(|(_, misfits)| misfits.is_empty());
    assert_eq!(fits, found.available, "{each:?}: {}", found.message);
    found
}

fn with(facts: NodeFacts, change: impl FnOnce(&mut VirtualizationFacts)) -> NodeFacts {
    let mut virtualization = facts.virtualization.unwrap_or_default();
    change(&mut virtualization);
    NodeFacts {
        virtualization: Some(virtualization),
        ..NodeFacts::default()
    }
}

#[test]
fn single_target_is_named_and_several_targets_are_not() {
    let guest = running(&json!({"model": "EPYC", "required": ["avx2"], "disabled": ["svm"]}));
    let (rich, poor) = (facts(&["sse2", "avx2"]), facts(&["sse2"]));
    for (others, message) in [
        (&["c"][..], "node c could run the guest"),
        (&["c", "b"], "several nodes could run the guest"),
        (&["d", "c", "b", "e"], "several nodes could run the guest"),
    ] {
        let mut nodes = vec![("here", &rich), ("poor", &poor)];
        nodes.extend(others.iter().map(|name| (*name, &rich)));
        let found = targets(&guest, &nodes);
        assert_eq!(
            (found.available, found.reason.as_str(), found.message.as_str()),
            (true, "TargetsFound", message)
        );
    }
    let none = targets(&guest, &[("here", &rich), ("poor", &poor)]);
    assert_eq!((none.available, none.reason.as_str()), (false, "CPUFeatureMissing"));
    assert_eq!(
        none.message,
        "no other node can run the guest: 1 node lacks the CPU feature avx2 (poor)"
    );
    assert_eq!(targets(&guest, &[("here", &rich)]).reason, "NoOtherNode");
}

/// Nodes that share their lists in memory and differ in what else decides.
#[test]
fn alike_nodes_have_the_misfits_of_each_alone() {
    let guest = running(&json!({"model": "Odd", "required": ["avx2", "avx512f", "amx"], "disabled": ["hle"]}));
    let needs = requirements(&guest.spec, &Configuration::default(), &Minimum::default());
    let unusable = CpuModel {
        usable: Usable::No,
        ..model("Odd", None, &[])
    };
    let base = with(facts(&["avx2"]), |facts| {
        Arc::make_mut(&mut facts.models).push(unusable);
    });
    let host = |disabled: &[&str]| {
        with(base.clone(), |facts| {
            facts.host_model = Some(HostModel {
                name: "Odd".into(),
                disabled: disabled.iter().map(|&name| name.into()).collect(),
                ..HostModel::default()
            });
        })
    };
    let withholding = with(base.clone(), |facts| facts.withheld = vec!["avx512f".into()]);
    let (hle, rtm) = (host(&["hle"]), host(&["hle", "rtm"]));
    let (plain, mask) = (labels(&[]), ["avx512f", "amx"].map(str::to_owned));
    let view = |name, facts, masked| NodeView {
        name,
        labels: Some(&plain),
        facts: Some(facts),
        masked,
        ..NodeView::default()
    };
    let nodes = [
        view("here", &withholding, &mask[..1]),
        view("alike", &base, &[]),
        view("masking", &base, &mask),
        view("withholding", &withholding, &mask),
        view("hle", &hle, &[]),
        view("rtm", &rtm, &[]),
        view("alike-too", &hle, &[]),
    ];
    let misfits = |nodes: &[NodeView<'_>]| -> BTreeMap<String, BTreeSet<Misfit>> {
        let found = target_misfits(&guest, &needs, None, &Rules::default(), nodes).unwrap();
        found
            .into_iter()
            .map(|(name, found)| (name.to_owned(), found))
            .collect()
    };
    let together = misfits(&nodes);
    // With `here`, which has avx512f, so that amx alone is listed nowhere.
    let alone: BTreeMap<_, _> = nodes[1..]
        .iter()
        .flat_map(|node| misfits(&[nodes[0].clone(), node.clone()]))
        .collect();
    assert_eq!(together, alone);
    assert_eq!(together.values().collect::<BTreeSet<_>>().len(), 5, "{together:?}");
}

#[test]
fn unknown_node_or_guest_cpu_gives_no_target() {
    let mut guest = running(&json!({"model": "EPYC"}));
    let (rich, unknown) = (facts(&[]), NodeFacts::default());
    assert_eq!(
        targets(&guest, &[("here", &rich), ("b", &unknown)]).reason,
        "NodeNotInspected"
    );
    guest.status.as_mut().unwrap().drydock.as_mut().unwrap().guest_cpu = None;
    assert_eq!(
        targets(&guest, &[("here", &rich), ("b", &rich)]).reason,
        "GuestCPUUnknown"
    );
}

#[test]
fn feature_disabled_in_the_guest_is_not_required() {
    let here = facts(&["avx2"]);
    let no_tsx = with(facts(&["avx2"]), |facts| {
        Arc::make_mut(&mut facts.models).push(model("Skylake", Some("Skylake-v1"), &["hle", "rtm"]));
    });
    for (disabled, reason) in [
        (json!(["hle", "rtm"]), "TargetsFound"),
        (json!(["hle"]), "CPUModelMissing"),
        (json!([]), "CPUModelMissing"),
    ] {
        let guest = running(&json!({"model": "Skylake", "disabled": disabled}));
        assert_eq!(
            targets(&guest, &[("here", &here), ("b", &no_tsx)]).reason,
            reason,
            "{disabled}"
        );
    }
    // By either of its names.
    let guest = running(&json!({"model": "Skylake-v1", "disabled": ["hle", "rtm"]}));
    assert_eq!(
        targets(&guest, &[("here", &here), ("b", &no_tsx)]).reason,
        "TargetsFound"
    );
    assert_eq!(
        targets(&running(&json!({"model": "Itanium"})), &[("here", &here), ("b", &here)]).reason,
        "CPUModelMissing"
    );
}

#[test]
fn host_model_misfit_lists_missing_features() {
    let there = with(facts(&[]), |facts| {
        Arc::make_mut(&mut facts.models).push(CpuModel {
            name: "Rome".into(),
            usable: Usable::No,
            ..CpuModel::default()
        });
        facts.host_model = Some(HostModel {
            name: "Rome".into(),
            disabled: vec!["svm".into()],
            ..HostModel::default()
        });
    });
    let here = facts(&[]);
    for (disabled, reason) in [
        (json!(["svm", "npt"]), "TargetsFound"),
        (json!(["npt"]), "CPUModelMissing"),
    ] {
        let guest = running(&json!({"model": "Rome", "disabled": disabled}));
        assert_eq!(
            targets(&guest, &[("here", &here), ("b", &there)]).reason,
            reason,
            "{disabled}"
        );
    }
    let other = with(there.clone(), |facts| facts.host_model = None);
    let guest = running(&json!({"model": "Rome", "disabled": ["svm"]}));
    assert_eq!(
        targets(&guest, &[("here", &here), ("b", &other)]).reason,
        "CPUModelMissing"
    );
}

#[test]
fn a_feature_that_no_inspection_lists_proves_nothing() {
    let guest = running(&json!({"model": "EPYC", "required": ["avx2", "hypervisor"]}));
    let (listing, not) = (facts(&["avx2", "hypervisor"]), facts(&["avx2"]));
    let found = targets(&guest, &[("here", &not), ("b", &not)]);
    assert_eq!((found.available, found.reason.as_str()), (true, "FeatureListedNowhere"));
    assert_eq!(
        found.message,
        "node b could run the guest, provided that libvirt there accepts the guest's CPU: no node lists these CPU \
         features of the guest: hypervisor"
    );
    assert_eq!(
        targets(&guest, &[("here", &listing), ("b", &not)]).reason,
        "CPUFeatureMissing"
    );
    // Nor does it if nothing is known about the source.
    assert_eq!(targets(&guest, &[("b", &not)]).reason, "FeatureListedNowhere");
    // It excuses no other missing feature.
    let poor = facts(&[]);
    assert_eq!(
        targets(&guest, &[("here", &not), ("b", &poor)]).message,
        "no other node can run the guest: 1 node lacks the CPU feature avx2 (b)"
    );
}

/// After an update of its node, a guest still has what the node no longer lists.
#[test]
fn a_feature_lost_by_the_source_is_demanded_of_a_target() {
    let guest = running(&json!({"model": "EPYC", "required": ["avx2", "xsaves"]}));
    let (updated, not_yet) = (facts(&["avx2"]), facts(&["avx2", "xsaves"]));
    let found = targets(&guest, &[("here", &updated), ("b", &updated), ("c", &not_yet)]);
    assert_eq!(
        (found.reason.as_str(), found.message.as_str()),
        ("TargetsFound", "node c could run the guest")
    );
    let mut needs = Requirements::default();
    let (own, other) = (labels(&[]), labels(&[]));
    let view = |name, labels, facts| NodeView {
        name,
        labels: Some(labels),
        facts: Some(facts),
        ..NodeView::default()
    };
    let nodes = [view("here", &own, &updated), view("c", &other, &not_yet)];
    require_recorded_cpu(&mut needs, &guest, &Minimum::default(), Some(&nodes[0]), nodes.clone());
    let selected = |needs: &Requirements, feature: &str| {
        needs
            .node_selector
            .contains_key(&format!("cpu-feature.node.kubevirt.io/{feature}"))
    };
    assert!(selected(&needs, "xsaves") && selected(&needs, "avx2"));
    assert!(needs.node_selector.contains_key("cpu-vendor.node.kubevirt.io/AMD"));

    let mut needs = Requirements::default();
    require_recorded_cpu(
        &mut needs,
        &guest,
        &Minimum::default(),
        Some(&nodes[0]),
        [nodes[0].clone()],
    );
    assert!(
        !selected(&needs, "xsaves") && selected(&needs, "avx2"),
        "no node has the label"
    );
}

#[test]
fn a_named_model_does_not_cross_vendors() {
    let guest = running(&json!({"model": "Nehalem"}));
    let here = facts(&[]);
    let intel = with(facts(&[]), |facts| facts.vendor = "Intel".into());
    let unknown = with(facts(&[]), |facts| facts.vendor = String::new());
    assert_eq!(
        targets(&guest, &[("here", &here), ("b", &intel)]).message,
        "no other node can run the guest: 1 node has a CPU that is not from AMD (b)"
    );
    for (here, there) in [(&here, &unknown), (&unknown, &intel)] {
        assert_eq!(targets(&guest, &[("here", here), ("b", there)]).reason, "TargetsFound");
    }
    // An emulated CPU belongs to the emulator, whatever hardware it runs on.
    let mut emulated = guest;
    emulated.status.as_mut().unwrap().drydock.as_mut().unwrap().virt_type = Some("qemu".into());
    let [one, other] = ["AMD", "Intel"].map(|vendor| {
        with(facts(&[]), |facts| {
            facts.virt_type = VirtType::Qemu;
            facts.vendor = vendor.into();
        })
    });
    assert_eq!(
        targets(&emulated, &[("here", &one), ("b", &other)]).reason,
        "TargetsFound"
    );
}

#[test]
fn fewer_physical_address_bits_are_no_target() {
    let bits = |limit, own| NodeFacts {
        cpu: CpuFacts {
            physical_address_bits: own,
            ..CpuFacts::default()
        },
        ..with(facts(&[]), |facts| facts.physical_address_bits = limit)
    };
    let here = bits(Some(52), Some(52));
    let guest = running(&json!({"model": "EPYC", "physicalAddressBits": 46}));
    for (limit, own, reason) in [
        (Some(46), Some(46), "TargetsFound"),
        (Some(52), None, "TargetsFound"),
        (None, Some(46), "TargetsFound"),
        (None, None, "TargetsFound"),
        (Some(45), Some(52), "AddressBitsMissing"),
        (None, Some(39), "AddressBitsMissing"),
    ] {
        let there = bits(limit, own);
        let found = targets(&guest, &[("here", &here), ("b", &there)]);
        assert_eq!(found.reason, reason, "{limit:?} {own:?}");
    }
    let without = running(&json!({"model": "EPYC"}));
    let small = bits(Some(36), None);
    assert_eq!(
        targets(&without, &[("here", &here), ("b", &small)]).reason,
        "TargetsFound"
    );
}

#[test]
fn the_hosts_own_cpu_moves_to_an_equal_processor() {
    let mut guest = running(&Value::Null);
    guest.spec.domain.cpu = serde_json::from_value(json!({"model": "host-passthrough"})).unwrap();
    let xeon = |stepping, features: &[&str]| {
        let mut facts = with(facts(features), |_| {});
        facts.kernel = "6.12".into();
        facts.cpu = CpuFacts {
            vendor: "GenuineIntel".into(),
            model: Some(85),
            stepping: Some(stepping),
            ..CpuFacts::default()
        };
        facts
    };
    let (here, other, poor) = (xeon(7, &["avx2"]), xeon(4, &["avx2"]), xeon(7, &[]));
    let found = targets(&guest, &[("here", &here), ("b", &here), ("c", &other)]);
    assert_eq!(
        (found.available, found.message.as_str()),
        (true, "node b could run the guest")
    );
    let found = targets(&guest, &[("here", &here), ("c", &other), ("d", &poor)]);
    assert_eq!(
        (found.reason.as_str(), found.message.as_str()),
        (
            "ProcessorDiffers",
            "no other node can run the guest: 2 nodes have a different processor, microcode, kernel or set of CPU \
             features, and the guest uses the CPU of its host (c, d)"
        )
    );
    // Its pod avoids other nodes too.
    let of = ["here", "b", "c"].map(|name| labels(&[(HOSTNAME, name)]));
    let view = |name, labels, facts| NodeView {
        name,
        labels: Some(labels),
        facts: Some(facts),
        ..NodeView::default()
    };
    let nodes = [
        view("here", &of[0], &here),
        view("b", &of[1], &here),
        view("c", &of[2], &other),
    ];
    let mut needs = Requirements::default();
    require_recorded_cpu(&mut needs, &guest, &Minimum::default(), Some(&nodes[0]), nodes.clone());
    let [expression] = needs.expressions.as_slice() else {
        panic!("{:?}", needs.expressions);
    };
    assert_eq!(
        (expression.key.as_str(), expression.operator.as_str()),
        (HOSTNAME, "In")
    );
    assert_eq!(
        expression.values.as_deref(),
        Some(&["b".to_owned(), "here".to_owned()][..])
    );
    // The guest's CPU stays unknown while its node's is unknown.
    let unknown = with(facts(&[]), |_| {});
    assert_eq!(
        targets(&guest, &[("here", &unknown), ("b", &here)]).reason,
        "GuestCPUUnknown"
    );
}

#[test]
fn vendors_and_ways_to_run_have_to_be_alike() {
    let guest = running(&json!({"model": "EPYC", "vendor": "AMD"}));
    let here = facts(&[]);
    let intel = with(facts(&[]), |facts| facts.vendor = "Intel".into());
    let emulating = with(facts(&[]), |facts| {
        facts.virt_type = VirtType::Qemu;
        facts.vendor = "Intel".into();
    });
    assert_eq!(
        targets(&guest, &[("here", &here), ("b", &intel)]).message,
        "no other node can run the guest: 1 node has a CPU that is not from AMD (b)"
    );
    assert_eq!(
        targets(&guest, &[("here", &here), ("b", &emulating)]).message,
        "no other node can run the guest: 1 node does not run guests with KVM (b)"
    );
}
