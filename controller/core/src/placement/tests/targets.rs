//! Where a running guest could go.

use drydock_api::kubevirt::VirtualMachineInstance;
use serde_json::json;

use super::*;
use crate::instance::Targets;

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
    migration_targets(instance, &needs, source, views.clone())
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
fn one_target_is_named_and_several_are_not() {
    let guest = running(&json!({"model": "EPYC", "required": ["avx2"], "disabled": ["svm"]}));
    let (rich, poor) = (facts(&["sse2", "avx2"]), facts(&["sse2"]));
    for (others, message) in [
        (&["c"][..], "node c could take it"),
        (&["c", "b"], "several nodes could take it"),
        (&["d", "c", "b", "e"], "several nodes could take it"),
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
        "no other node can take it: 1 node lacks the CPU feature avx2 (poor)"
    );
    assert_eq!(targets(&guest, &[("here", &rich)]).reason, "NoOtherNode");
}

#[test]
fn what_is_not_known_is_no_target() {
    let mut guest = running(&json!({"model": "EPYC"}));
    let (rich, silent) = (facts(&[]), NodeFacts::default());
    assert_eq!(
        targets(&guest, &[("here", &rich), ("b", &silent)]).reason,
        "NodeNotInspected"
    );
    guest.status.as_mut().unwrap().drydock.as_mut().unwrap().guest_cpu = None;
    assert_eq!(
        targets(&guest, &[("here", &rich), ("b", &rich)]).reason,
        "GuestCPUUnknown"
    );
}

#[test]
fn a_guest_may_do_without_what_it_lacks_anyway() {
    let here = facts(&["avx2"]);
    let no_tsx = with(facts(&["avx2"]), |facts| {
        facts.models.push(model("Skylake", Some("Skylake-v1"), &["hle", "rtm"]));
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
fn a_host_model_says_what_it_lacks_where_the_model_does_not() {
    let there = with(facts(&[]), |facts| {
        facts.models.push(CpuModel {
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
    let listing = facts(&["avx2", "hypervisor"]);
    let not = facts(&["avx2"]);
    assert_eq!(targets(&guest, &[("here", &not), ("b", &not)]).reason, "TargetsFound");
    assert_eq!(
        targets(&guest, &[("here", &listing), ("b", &not)]).reason,
        "CPUFeatureMissing"
    );
    // Where nothing is known of the source, each of them counts.
    assert_eq!(targets(&guest, &[("b", &not)]).reason, "CPUFeatureMissing");
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
        "no other node can take it: 1 node has a CPU that is not of AMD (b)"
    );
    assert_eq!(
        targets(&guest, &[("here", &here), ("b", &emulating)]).message,
        "no other node can take it: 1 node does not run guests by KVM (b)"
    );
}
