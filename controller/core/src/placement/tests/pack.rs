//! Guests that leave together.

use std::{borrow::Cow, sync::Arc};

use drydock_api::kubevirt::VirtualMachineInstance;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// A guest on node `here` with these requests of memory in GiB and CPUs.
struct Sized {
    name: String,
    gib: u64,
    cpus: u64,
    feature: Option<&'static str>,
    /// Topology key of its required anti-affinity to all guests.
    apart: Option<&'static str>,
    change: fn(&mut DepartingGuest<'_>),
}

fn sized(name: &str, gib: u64) -> Sized {
    Sized {
        name: name.into(),
        gib,
        cpus: 0,
        feature: None,
        apart: None,
        change: |_| {},
    }
}

/// Returns the label of all guests' pods.
fn app() -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), "db".to_owned())])
}

fn affinity(key: &str) -> Value {
    json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": key, "labelSelector": {"matchLabels": app()}}]}})
}

/// Returns the pods in which the guests run, all on node `here`.
fn neighbors_of(guests: &[Sized]) -> Neighbors {
    let mut neighbors = Neighbors::default();
    for guest in guests {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("{}-pod", guest.name), "namespace": "n", "labels": app()},
            "spec": {"nodeName": "here", "containers": [], "affinity": guest.apart.map(affinity)},
        }))
        .unwrap();
        neighbors.set(&pod);
    }
    neighbors
}

fn instance(guest: &Sized) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": guest.name, "namespace": "n"},
        "spec": {"domain": {}, "affinity": guest.apart.map(affinity)},
        "status": {"nodeName": "here", "drydock": {"virtType": "kvm", "guestCPU": {
            "model": "EPYC", "required": guest.feature.into_iter().collect::<Vec<_>>()}}},
    }))
    .unwrap()
}

fn gib(gib: u64, cpus: u64) -> ResourceAmounts {
    let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {
        "memory": format!("{gib}Gi"), "cpu": cpus.to_string()}}}]}}))
    .unwrap();
    ResourceAmounts::of_pod(&pod)
}

fn packed(guests: &[Sized], nodes: &[(&str, u64, u64, &'static str)]) -> Vec<DepartureOutlook> {
    packing(guests, nodes).outlooks
}

/// Returns the packing onto nodes that offer these amounts of memory in GiB and CPUs, and have this CPU feature.
fn packing(guests: &[Sized], nodes: &[(&str, u64, u64, &'static str)]) -> PackingResult {
    // Nodes are in two zones.
    let zone = |name: &str| if name < "y" { "west" } else { "east" };
    let plain: Vec<_> = nodes
        .iter()
        .map(|(name, ..)| labels(&[(HOSTNAME, name), ("zone", zone(name))]))
        .collect();
    let offered: Vec<BTreeMap<String, Quantity>> = nodes
        .iter()
        .map(|(_, gib, cpus, _)| {
            serde_json::from_value(json!({"memory": format!("{gib}Gi"), "cpu": cpus.to_string(), "pods": "110"}))
                .unwrap()
        })
        .collect();
    let all: Vec<NodeFacts> = nodes.iter().map(|(.., feature)| facts(&["sse2", *feature])).collect();
    let views: Vec<_> = nodes
        .iter()
        .zip(offered.iter().zip(&all))
        .zip(&plain)
        .map(|(((name, ..), (offered, facts)), labels)| NodeView {
            name,
            labels: Some(labels),
            facts: Some(facts),
            allocatable: Some(offered),
            room: Some(Arc::default()),
            ..NodeView::default()
        })
        .collect();
    let instances: Vec<_> = guests.iter().map(instance).collect();
    let neighbors = neighbors_of(guests);
    let leaving = guests.iter().zip(&instances).map(|(guest, instance)| {
        let mut needs = requirements(&instance.spec, &Configuration::default(), &Minimum::default());
        needs.requests = gib(guest.gib, guest.cpus);
        needs.priority = Some(0);
        let mut leaving = DepartingGuest {
            instance,
            needs,
            source: None,
            has_migration: false,
            failures: 0,
            pods: vec![("n".into(), format!("{}-pod", guest.name))],
            labels: app(),
            excluded: Vec::new(),
        };
        (guest.change)(&mut leaving);
        leaving
    });
    pack(&leaving.collect::<Vec<_>>(), &views, &|newcomer, moves| {
        neighbors.rules(newcomer, moves, || Cow::Borrowed(&views))
    })
}

fn fits(node: &str) -> DepartureOutlook {
    DepartureOutlook::Fits(node.into())
}

#[test]
fn greater_guests_are_placed_first() {
    let found = packed(
        &[sized("a", 2), sized("b", 6), sized("c", 4)],
        &[("here", 100, 10, ""), ("x", 8, 10, ""), ("y", 4, 10, "")],
    );
    assert_eq!(found, [fits("x"), fits("x"), fits("y")]);
}

#[test]
fn guest_that_others_leave_no_room_is_crowded_out() {
    let found = packed(
        &[sized("a", 5), sized("b", 6)],
        &[("here", 100, 10, ""), ("x", 8, 10, "")],
    );
    let message = "no other node has room for the guest in addition to the other guests that leave: \
                   1 node has 2.0 GiB of memory free of the requested 5.0 GiB (x)";
    assert_eq!(found, [DepartureOutlook::Crowded(message.into()), fits("x")]);
    let found = packed(&[sized("a", 9)], &[("here", 100, 10, ""), ("x", 8, 10, "")]);
    let DepartureOutlook::Nowhere(message) = &found[0] else {
        panic!("{found:?}");
    };
    assert!(
        message.starts_with("no other node can run the guest: 1 node has "),
        "{message}"
    );
}

#[test]
fn guest_that_few_nodes_have_room_for_goes_before_others() {
    let guest = |name, gib| Sized {
        cpus: 2,
        ..sized(name, gib)
    };
    // CPU is scarcer, and both guests request the same; the node that the larger one needs comes first.
    let nodes = [("here", 100, 1, ""), ("x", 6, 3, ""), ("y", 2, 10, "")];
    let found = packed(&[guest("a", 1), guest("z", 5)], &nodes);
    assert_eq!(found, [fits("y"), fits("x")]);
    // Both have room on both nodes; the larger one goes first all the same.
    let nodes = [("here", 100, 1, ""), ("x", 6, 3, ""), ("y", 4, 3, "")];
    let found = packed(&[guest("a", 3), guest("z", 4)], &nodes);
    assert_eq!(found, [fits("y"), fits("x")]);
}

#[test]
fn guest_that_few_nodes_suit_goes_before_others() {
    let constrained = Sized {
        feature: Some("avx2"),
        ..sized("z", 4)
    };
    let nodes = [("here", 100, 10, "avx2"), ("x", 6, 10, "avx2"), ("y", 6, 10, "aes")];
    let found = packed(&[sized("a", 5), constrained], &nodes);
    assert_eq!(found, [fits("y"), fits("x")]);
}

#[test]
fn guest_with_a_migration_goes_first_and_failed_guest_last() {
    let nodes = [("here", 100, 10, ""), ("x", 8, 10, "")];
    let begun = Sized {
        change: |guest| guest.has_migration = true,
        ..sized("begun", 3)
    };
    assert_eq!(packed(&[sized("great", 6), begun], &nodes)[1], fits("x"));
    let failed = Sized {
        change: |guest| guest.failures = 1,
        ..sized("failed", 6)
    };
    let found = packed(&[failed, sized("small", 3)], &nodes);
    assert!(matches!(found[0], DepartureOutlook::Crowded(_)), "{found:?}");
    assert_eq!(found[1], fits("x"));
}

#[test]
fn guests_that_stay_apart_get_different_nodes() {
    let apart = |name: &str, key: &'static str| Sized {
        apart: Some(key),
        ..sized(name, 1)
    };
    let three = [("here", 100, 10, ""), ("x", 8, 10, ""), ("y", 8, 10, "")];
    let by_host = |names: &[&str]| -> Vec<Sized> { names.iter().map(|name| apart(name, HOSTNAME)).collect() };
    assert_eq!(packed(&by_host(&["a", "b"]), &three), [fits("x"), fits("y")]);
    let found = packed(&by_host(&["a", "b", "c"]), &three);
    let message = "no other node has room for the guest in addition to the other guests that leave: \
                   2 nodes have pods that conflict by pod anti-affinity, such as n/b (x, y)";
    assert_eq!(found, [fits("x"), fits("y"), DepartureOutlook::Crowded(message.into())]);
}

#[test]
fn guest_kept_away_by_the_own_pod_has_no_target() {
    let alone = Sized {
        apart: Some("zone"),
        ..sized("a", 1)
    };
    // Its own pod is in the zone west, like node x.
    let found = packed(&[alone], &[("here", 100, 10, ""), ("x", 8, 10, "")]);
    let message = "no other node can run the guest: \
                   1 node is in the same zone as the pod n/a-pod, which conflicts by pod anti-affinity (x)";
    assert_eq!(found, [DepartureOutlook::Nowhere(message.into())]);
}

#[test]
fn guest_that_waits_for_others_to_leave_is_crowded_out() {
    let apart = |name: &str, key: &'static str, gib| Sized {
        apart: Some(key),
        ..sized(name, gib)
    };
    // While the pod of `b` is in the zone west, `a` cannot go to x; and y is too small.
    let found = packed(
        &[apart("b", "zone", 1), apart("a", HOSTNAME, 2)],
        &[("here", 100, 10, ""), ("x", 8, 10, ""), ("y", 1, 10, "")],
    );
    assert_eq!(found[0], fits("y"));
    assert!(matches!(found[1], DepartureOutlook::Crowded(_)), "{found:?}");
}

#[test]
fn guest_without_a_place_beside_others_has_none_in_the_end() {
    let eventual = |guests: &[Sized], nodes: &[_]| packing(guests, nodes).eventual().collect::<Vec<_>>();
    let found = eventual(
        &[sized("a", 5), sized("b", 6)],
        &[("here", 100, 10, ""), ("x", 8, 10, "")],
    );
    assert!(matches!(found[0], DepartureOutlook::Nowhere(_)), "{found:?}");
    assert_eq!(found[1], fits("x"));
    let apart = |name: &str, key: &'static str, gib| Sized {
        apart: Some(key),
        ..sized(name, gib)
    };
    // Once the pod of `b` has left the zone west, `a` can go to x.
    let found = eventual(
        &[apart("b", "zone", 1), apart("a", HOSTNAME, 2)],
        &[("here", 100, 10, ""), ("x", 8, 10, ""), ("y", 1, 10, "")],
    );
    assert_eq!(found, [fits("y"), fits("x")]);
}

#[test]
fn resource_that_is_scarcer_decides_which_guest_is_greater() {
    let guest = |name: &str, gib, cpus| Sized {
        cpus,
        ..sized(name, gib)
    };
    // Sorted by memory, `wide` would be placed first, and `deep` nowhere.
    let found = packed(
        &[guest("wide", 4, 1), guest("deep", 2, 3)],
        &[("here", 100, 1, ""), ("x", 100, 3, ""), ("y", 100, 1, "")],
    );
    assert_eq!(found, [fits("y"), fits("x")]);
}

#[test]
fn guest_with_an_unknown_cpu_is_not_judged() {
    let unknown = Sized {
        change: |guest| guest.failures = 0,
        ..sized("a", 1)
    };
    let mut instance = instance(&unknown);
    instance.status.as_mut().unwrap().drydock.as_mut().unwrap().guest_cpu = None;
    let leaving = DepartingGuest {
        instance: &instance,
        needs: Requirements::default(),
        source: None,
        has_migration: false,
        failures: 0,
        pods: Vec::new(),
        labels: BTreeMap::new(),
        excluded: Vec::new(),
    };
    let found = pack(&[leaving], &[], &|_, _| Rules::default());
    assert_eq!(
        (found.outlooks, found.reserved),
        (vec![DepartureOutlook::Unknown], vec![false])
    );
}

#[test]
fn nodes_of_guests_with_few_alternatives_are_reserved() {
    let names = ["l", "m", "n", "o", "p", "q"];
    let nodes: Vec<_> = names.iter().map(|name| (*name, 4, 10, "")).collect();
    let with = |others: &[(&'static str, u64, u64, &'static str)]| [&nodes[..], others].concat();
    let reserved = |guests: &[Sized], nodes: &[_]| packing(guests, nodes).reserved;
    // Six nodes have room for the one, and one for the other.
    assert_eq!(
        reserved(&[sized("a", 4), sized("b", 8)], &with(&[("x", 8, 10, "")])),
        [false, true]
    );
    // Nodes of others that are too small do not count, however many suit it.
    assert_eq!(
        reserved(&[sized("a", 5)], &with(&[("x", 8, 10, ""), ("y", 8, 10, "")])),
        [true]
    );
    // A guest that has no place has none that is reserved.
    assert_eq!(reserved(&[sized("a", 9)], &nodes), [false]);
    let four: Vec<_> = ["u", "v", "w", "x"].map(|name| (name, 8, 10, "")).into();
    assert_eq!(reserved(&[sized("a", 8)], &with(&four)), [true]);
    assert_eq!(
        reserved(&[sized("a", 8)], &with(&[&four[..], &[("y", 8, 10, "")]].concat())),
        [false]
    );
}

proptest! {
    #[test]
    fn packed_guests_never_exceed_a_node(
        guests in prop::collection::vec((1_u64..9, 1_u64..4), 0..12),
        nodes in prop::collection::vec((1_u64..20, 1_u64..8), 1..5),
    ) {
        let names = ["a", "b", "c", "d"];
        let nodes: Vec<_> = nodes.iter().zip(names).map(|((gib, cpus), name)| (name, *gib, *cpus, "")).collect();
        let guests: Vec<_> = guests.iter().enumerate().map(|(index, (gib, cpus))| Sized { cpus: *cpus, ..sized(&index.to_string(), *gib) }).collect();
        let found = packed(&guests, &nodes);
        for (name, gib, cpus, _) in &nodes {
            let on: Vec<_> = guests.iter().zip(&found).filter(|(_, outlook)| **outlook == fits(name)).map(|(guest, _)| guest).collect();
            prop_assert!(on.iter().map(|guest| guest.gib).sum::<u64>() <= *gib);
            prop_assert!(on.iter().map(|guest| guest.cpus).sum::<u64>() <= *cpus);
        }
        for (guest, outlook) in guests.iter().zip(&found) {
            let alone = nodes.iter().any(|(_, gib, cpus, _)| guest.gib <= *gib && guest.cpus <= *cpus);
            prop_assert_eq!(matches!(outlook, DepartureOutlook::Nowhere(_)), !alone);
        }
    }
}
