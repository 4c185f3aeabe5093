//! The fitting nodes are those that a scheduler would choose for the created pod, and that the full sets do not rule
//! out. This is evaluated here independently, from the pod's JSON, one rule after the other.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Taint};
use proptest::{prelude::*, sample::subsequence, strategy::ValueTree};
use serde_json::json;

use super::*;
use crate::launcher_pod::{PodInput, pod};

/// Features, some of which are part of the minimum CPU model (`sse2`, `nx`).
const FEATURES: [&str; 5] = ["sse2", "nx", "avx2", "aes", "svm"];
const MODELS: [&str; 6] = [
    "host-model",
    "host-passthrough",
    "Nehalem",
    "Nehalem-v1",
    "Haswell",
    "qemu64",
];
const LABELS: [(&str, &str); 12] = [
    ("zone", "a"),
    ("rank", "5"),
    (GUEST_NETWORK, "true"),
    (ARCHITECTURE, "amd64"),
    (OBSOLETE_HOST_MODEL, "true"),
    ("cpu-minimum.node.drydock.dev/Penryn", "true"),
    ("cpu-feature.node.kubevirt.io/avx2", "true"),
    ("cpu-feature.node.kubevirt.io/aes", "true"),
    ("cpu-feature.node.kubevirt.io/svm", "true"),
    ("cpu-model.node.kubevirt.io/Nehalem", "true"),
    ("cpu-model.node.kubevirt.io/Haswell", "true"),
    ("machine-type.node.kubevirt.io/q35", "true"),
];

#[derive(Clone, Debug)]
struct Candidate {
    labels: BTreeMap<String, String>,
    facts: Option<NodeFacts>,
    cordoned: bool,
    taints: Vec<Taint>,
    shares: Option<u64>,
}

impl Candidate {
    fn view(&self) -> NodeView<'_> {
        NodeView {
            name: "a",
            labels: Some(&self.labels),
            cordoned: self.cordoned,
            taints: &self.taints,
            facts: self.facts.as_ref(),
            shares: self.shares,
            ..NodeView::default()
        }
    }
}

fn candidate() -> impl Strategy<Value = Candidate> {
    // Mostly the labels of a real node, so that some nodes fit.
    let labels = prop_oneof![
        1 => subsequence(LABELS.to_vec(), 0..=LABELS.len()),
        3 => subsequence(LABELS.to_vec(), LABELS.len() - 3..=LABELS.len()),
    ];
    let schedulable = prop_oneof![8 => Just(Some("true")), 1 => Just(Some("false")), 1 => Just(None)];
    let known = prop_oneof![1 => subsequence(FEATURES.to_vec(), 0..=5), 3 => Just(vec!["sse2", "nx", "avx2", "aes"])];
    let taint = prop_oneof![4 => Just(None), 1 => Just(Some("NoSchedule")), 1 => Just(Some("PreferNoSchedule"))];
    let shares = prop_oneof![4 => Just(None), 4 => Just(Some(3)), 1 => Just(Some(0))];
    let node = (
        labels,
        schedulable,
        prop::option::of(known),
        prop::bool::weighted(0.1),
        taint,
        shares,
    );
    node.prop_map(|(labels, schedulable, known, cordoned, taint, shares)| Candidate {
        labels: labels
            .into_iter()
            .chain(schedulable.map(|value| (SCHEDULABLE, value)))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        facts: known.map(|features| facts(&features)),
        cordoned,
        taints: taint
            .map(|effect| Taint {
                key: "t".into(),
                effect: effect.into(),
                ..Taint::default()
            })
            .into_iter()
            .collect(),
        shares,
    })
}

fn term() -> impl Strategy<Value = Value> {
    let expression = (
        prop::sample::select(vec!["zone", "rank", "none"]),
        prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
        prop::sample::select(vec!["a", "b", "4", "6"]),
    );
    let field = prop::option::weighted(0.2, prop::sample::select(vec!["a", "b"]));
    (prop::collection::vec(expression, 0..2), field).prop_map(|(expressions, field)| {
        let expressions: Vec<_> = expressions
            .into_iter()
            .map(|(key, operator, value)| json!({"key": key, "operator": operator, "values": [value]}))
            .collect();
        let fields: Vec<_> = field
            .map(|name| json!({"key": "metadata.name", "operator": "In", "values": [name]}))
            .into_iter()
            .collect();
        json!({"matchExpressions": expressions, "matchFields": fields})
    })
}

/// A manifest, and the same manifest with one more feature.
fn manifests() -> impl Strategy<Value = (Value, Value)> {
    let policies = vec!["require", "forbid", "optional", "disable", "force"];
    let feature = move || {
        (
            prop::sample::select(FEATURES.to_vec()),
            prop::sample::select(policies.clone()),
        )
    };
    let more = feature();
    (
        prop::sample::select(MODELS.to_vec()),
        prop::collection::btree_map(
            prop::sample::select(FEATURES.to_vec()),
            feature().prop_map(|(_, p)| p),
            0..3,
        ),
        more,
        prop::option::weighted(0.3, prop::collection::vec(term(), 0..3)),
        prop::option::weighted(0.2, prop::sample::select(vec!["a", "b"])),
        prop::option::weighted(0.3, prop::sample::select(vec!["q35", "pc-q35-6.2", "pc-q35-99.0"])),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(model, features, more, terms, zone, machine, network, tolerating)| {
            let all = |features: Vec<(&str, &str)>| {
                let features: Vec<_> = features
                    .iter()
                    .map(|(name, policy)| json!({"name": name, "policy": policy}))
                    .collect();
                let mut value = json!({
                    "domain": {
                        "cpu": {"model": model, "features": features},
                        "devices": {"autoattachPodInterface": network},
                    },
                    "nodeSelector": zone.map_or(json!({}), |zone| json!({"zone": zone})),
                    "tolerations": if tolerating { json!([{"operator": "Exists"}]) } else { json!([]) },
                });
                if let Some(terms) = &terms {
                    value["affinity"] = json!({"nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
                }
                if let Some(machine) = machine {
                    value["domain"]["machine"] = json!({"type": machine});
                }
                value
            };
            let features: Vec<_> = features.into_iter().collect();
            let one_more = features.iter().copied().chain([more]).collect();
            (all(features), all(one_more))
        })
}

/// Name of the label that keeps these pods admitted where they are bound.
const BOUND: &str = "guest.node.drydock.dev/h";

/// Returns the pod of this manifest.
fn made(manifest: &Value) -> Value {
    let instance = serde_json::from_value(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "n", "uid": "u"}, "spec": manifest,
    }))
    .unwrap();
    let pod = pod(&PodInput {
        instance: &instance,
        image: "i",
        requirements: &needs(manifest),
        claims: &BTreeMap::new(),
        suffix: "s",
        host_uuid: "h",
        emulation: false,
        arriving: None,
    });
    serde_json::to_value(&pod).unwrap()
}

/// Returns whether the labels of node `a` match a pod's selector and required node affinity, as both scheduler and
/// kubelet evaluate them.
fn admitted(selector: &Value, required: &Value, labels: &BTreeMap<String, String>) -> bool {
    let labels = serde_json::to_value(labels).unwrap();
    let selector = selector.as_object().cloned().unwrap_or_default();
    let selected = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
    let matches = |expression: &Value, value: Option<Value>| {
        let values = expression["values"].as_array().cloned().unwrap_or_default();
        match expression["operator"].as_str().unwrap() {
            "In" => value.is_some_and(|value| values.contains(&value)),
            "NotIn" => value.is_none_or(|value| !values.contains(&value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => matches!((value.and_then(|v| number(&v)), number(&values[0])), (Some(a), Some(b)) if a > b),
            "Lt" => matches!((value.and_then(|v| number(&v)), number(&values[0])), (Some(a), Some(b)) if a < b),
            other => unreachable!("{other}"),
        }
    };
    let terms = required.get("nodeSelectorTerms").and_then(Value::as_array);
    let list = |term: &Value, key: &str| term.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let met = terms.is_none_or(|terms| {
        terms.iter().any(|term| {
            let (expressions, fields) = (list(term, "matchExpressions"), list(term, "matchFields"));
            (!expressions.is_empty() || !fields.is_empty())
                && expressions
                    .iter()
                    .all(|expression| matches(expression, labels.get(expression["key"].as_str().unwrap()).cloned()))
                && fields.iter().all(|field| matches(field, Some(json!("a"))))
        })
    });
    selected && met
}

/// Returns what the pod of a manifest requires: a selector and the required node affinity.
fn required(pod: &Value) -> [&Value; 2] {
    let node = &pod["spec"]["affinity"]["nodeAffinity"];
    [
        &pod["spec"]["nodeSelector"],
        &node["requiredDuringSchedulingIgnoredDuringExecution"],
    ]
}

/// Returns whether a scheduler would place the pod of this manifest on the node.
fn scheduled(manifest: &Value, node: &Candidate) -> bool {
    let pod = made(manifest);
    let [selector, affinity] = required(&pod);
    let tolerates = pod["spec"].get("tolerations").is_some();
    let tainted = node.taints.iter().any(|taint| taint.effect == "NoSchedule");
    admitted(selector, affinity, &node.labels) && (tolerates || !(tainted || node.cordoned)) && node.shares != Some(0)
}

/// Returns whether the full sets, where known, have everything that the manifest requests.
fn can(manifest: &Value, node: &Candidate) -> bool {
    let Some(facts) = node.facts.as_ref().and_then(|facts| facts.virtualization.as_ref()) else {
        return true;
    };
    let cpu = &manifest["domain"]["cpu"];
    let features = cpu["features"].as_array().unwrap();
    let all = features.iter().all(|feature| {
        let has = facts.features.iter().any(|name| feature["name"] == name.as_str());
        match feature["policy"].as_str().unwrap() {
            "require" => has,
            "forbid" => !has,
            _ => true,
        }
    });
    let machine = manifest["domain"]["machine"]["type"].as_str();
    all && cpu["model"] != "Haswell" && machine != Some("pc-q35-99.0")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fitting_nodes_are_those_of_the_scheduler((manifest, _) in manifests(), node in candidate()) {
        let found = fit(&needs(&manifest), &spec(&manifest), &Rules::default(), &[node.view()]);
        prop_assert_eq!(!found.fits.is_empty(), scheduled(&manifest, &node) && can(&manifest, &node), "{}", found);
        // Every node that does not fit has a reason.
        prop_assert_eq!(found.fits.is_empty(), !found.misfits.is_empty());
    }

    #[test]
    fn unbound_pod_requires_manifest_and_computed_terms((manifest, _) in manifests(), node in candidate()) {
        let pod = made(&manifest);
        let [selector, affinity] = required(&pod);
        prop_assert!(selector.is_null(), "nothing that can change is required of a bound pod");
        // By definition: a selector, and an affinity whose terms each contain the computed expressions.
        let needs = needs(&manifest);
        let own = &manifest["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let computed = needs.expressions.iter();
        let computed = computed.map(|one| json!({"key": one.key, "operator": one.operator, "values": one.values}));
        let computed = json!({"nodeSelectorTerms": [{"matchExpressions": computed.collect::<Vec<_>>()}]});
        let computed = if needs.expressions.is_empty() { &Value::Null } else { &computed };
        let selected = serde_json::to_value(&needs.node_selector).unwrap();
        let expected = admitted(&selected, own, &node.labels) && admitted(&Value::Null, computed, &node.labels);
        prop_assert_eq!(admitted(selector, affinity, &node.labels), expected);
        // Once the pod is bound, no other label counts.
        let mut labels = node.labels.clone();
        labels.insert(BOUND.into(), "true".into());
        prop_assert!(admitted(selector, affinity, &labels));
        prop_assert!(admitted(selector, affinity, &BTreeMap::from([(BOUND.to_owned(), "true".to_owned())])));
    }

    #[test]
    fn higher_requests_never_make_more_nodes_fit((manifest, more) in manifests(), node in candidate()) {
        let fits = |manifest: &Value| fit(&needs(manifest), &spec(manifest), &Rules::default(), &[node.view()]).fits.len();
        prop_assert!(fits(&more) <= fits(&manifest));
    }

    #[test]
    fn expression_and_opposite_expression_never_agree(
        value in prop::option::of("[0-3]"),
        values in prop::collection::vec("[0-3]", 1..3),
    ) {
        let meets = |operator: &str| affinity::meets(&NodeSelectorRequirement {
            key: "k".into(), operator: operator.into(), values: Some(values.clone()),
        }, value.as_deref());
        prop_assert_ne!(meets("In"), meets("NotIn"));
        prop_assert_ne!(meets("Exists"), meets("DoesNotExist"));
        prop_assert!(!(meets("Gt") && meets("Lt")));
        prop_assert!(!meets("Likes"));
    }
}

/// The candidates above are useless if none of them fits, or all do.
#[test]
fn candidates_are_of_both_kinds() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut counts = [0, 0];
    for _ in 0..1000 {
        let ((manifest, _), node) = (manifests(), candidate()).new_tree(&mut runner).unwrap().current();
        counts[usize::from(scheduled(&manifest, &node) && can(&manifest, &node))] += 1;
    }
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}
