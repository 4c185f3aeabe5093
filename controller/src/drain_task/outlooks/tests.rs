use drydock_api::{Hypervisor, hyperconverged::EvictionStrategy};
use drydock_core::drain::NodeMarks;
use drydock_runtime::{AssumeCache, fake::api_server};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;
use crate::{nodes::Nodes, pdbs::Pdbs, rooms::Rooms};

const GIB: u64 = 1 << 30;

fn node(name: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {
            "kubevirt.io/schedulable": "true", "kubernetes.io/arch": "amd64", "drydock.dev/guest-network": "true"}},
        "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110", "devices.kubevirt.io/kvm": "1k"}},
    }))
    .unwrap()
}

fn hypervisor(name: &str) -> Hypervisor {
    serde_json::from_value(json!({
        "apiVersion": "drydock.dev/v1alpha1", "kind": "Hypervisor", "metadata": {"name": name}, "spec": {},
        "status": {"facts": {"virtualization": {
            "virtType": "kvm", "vendor": "AMD", "models": [{"name": "EPYC", "usable": "yes"}]}}},
    }))
    .unwrap()
}

fn instance(name: &str, memory: u64) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"domain": {"memory": {"guest": format!("{memory}Gi")}, "cpu": {"model": "host-passthrough"},
                            "devices": {"autoattachPodInterface": false}}},
        "status": {
            "phase": "Running", "nodeName": "a", "conditions": [{"type": "LiveMigratable", "status": "True"}],
            "drydock": {"virtType": "kvm", "guestCPU": {"model": "EPYC"}},
        },
    }))
    .unwrap()
}

fn pod(name: &str, of: Option<&str>, node: &str, memory: u64) -> Pod {
    let owner = of.map(|name| json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": name, "controller": true}));
    let owners: Vec<Value> = owner.into_iter().collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "ownerReferences": owners, "labels": {"kubevirt.io": "virt-launcher"}},
        "spec": {"nodeName": node, "priority": 0, "containers": [
            {"name": "c", "resources": {"requests": {"memory": (memory * GIB).to_string()}}}]},
        "status": {"phase": "Running"},
    }))
    .unwrap()
}

/// Returns the outlooks of guests of 2 and 3 GiB on node `a`. `taken` is the part of the 8 GiB of node `b` that other
/// pods use.
fn outlooks(taken: Option<u64>) -> Vec<DepartureOutlook> {
    let (client, _server) = api_server();
    let launcher_pods = || [pod("p1", Some("small"), "a", 2), pod("p2", Some("great"), "a", 3)];
    let mut nodes = Nodes::filled(&client, [node("a"), node("b")]);
    nodes.hypervisors = AssumeCache::filled([hypervisor("a"), hypervisor("b")]);
    let mut launchers = Launchers::filled(&client, launcher_pods(), nodes, Pdbs::filled(&client, []));
    if let Some(taken) = taken {
        launchers.rooms = Rooms::filled(launcher_pods().into_iter().chain([pod("other", None, "b", taken)]));
    }
    let guests = [instance("small", 2), instance("great", 3)];
    let marks = NodeMarks {
        tainted: true,
        ..NodeMarks::default()
    };
    let guest = |instance| DrainedGuest {
        instance,
        strategy: EvictionStrategy::LiveMigrate,
        made: None,
        migrations: Vec::new(),
        refused: None,
        circumstances: None,
        outlook: DepartureOutlook::Unknown,
        held_by: None,
    };
    let mut draining = [DrainingNode {
        name: "a",
        marks,
        guests: guests.iter().map(guest).collect(),
        arriving: 0,
        evictable: None,
        before: None,
    }];
    let again = Outlooks::default().apply(&launchers, &mut draining).again;
    let [draining] = draining;
    let found: Vec<DepartureOutlook> = draining.guests.into_iter().map(|guest| guest.outlook).collect();
    let all_fit = found
        .iter()
        .all(|outlook| *outlook == DepartureOutlook::Fits("b".into()));
    assert_eq!(
        again.is_some(),
        !all_fit,
        "evaluated again only where there is no place"
    );
    found
}

#[tokio::test]
async fn guests_compete_for_the_room_left_by_other_pods() {
    let fits = || DepartureOutlook::Fits("b".into());
    assert_eq!(outlooks(Some(0)), [fits(), fits()]);
    // The used resources are not known.
    assert_eq!(outlooks(None), [fits(), fits()]);
    let crowded = outlooks(Some(4));
    assert!(matches!(crowded[0], DepartureOutlook::Crowded(_)), "{crowded:?}");
    assert_eq!(crowded[1], fits());
    let one = outlooks(Some(5));
    assert_eq!(one[0], fits());
    let DepartureOutlook::Nowhere(message) = &one[1] else {
        panic!("{one:?}");
    };
    assert!(
        message.contains("1 node has 3.0 GiB of memory free of the requested 3."),
        "{message}"
    );
}
