//! Requirements on a node that depend on other pods: pod affinity, anti-affinity and topology spread.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::placement::fit::is_selected;

/// Label of nodes with their zone.
const ZONE: &str = "zone";

/// Returns nodes by name and zone; an empty zone is none.
fn nodes(zones: &[(&str, &str)]) -> Vec<(String, BTreeMap<String, String>)> {
    zones
        .iter()
        .map(|(name, zone)| {
            let mut labels = labels(&[(HOSTNAME, name)]);
            if !zone.is_empty() {
                labels.insert(ZONE.into(), (*zone).into());
            }
            ((*name).to_owned(), labels)
        })
        .collect()
}

fn views(nodes: &[(String, BTreeMap<String, String>)]) -> Vec<NodeView<'_>> {
    let views = nodes.iter().map(|(name, labels)| NodeView {
        name,
        labels: Some(labels),
        ..NodeView::default()
    });
    views.collect()
}

/// Returns a running pod.
fn pod(namespace: &str, name: &str, node: &str, more: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": namespace, "labels": more.get("labels").cloned().unwrap_or_default()},
        "spec": {"nodeName": node, "containers": [], "affinity": more.get("affinity")},
        "status": {"phase": more.get("phase").cloned().unwrap_or(json!("Running"))},
    });
    if more.get("deleted").is_some() {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    serde_json::from_value(pod).unwrap()
}

fn neighbors(pods: &[Pod]) -> Neighbors {
    let mut all = Neighbors::default();
    for pod in pods {
        all.set(pod);
    }
    all
}

fn near(key: &str, term: &Value) -> Value {
    json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [with_key(key, term)]}})
}

fn apart(key: &str, term: &Value) -> Value {
    json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [with_key(key, term)]}})
}

fn with_key(key: &str, term: &Value) -> Value {
    let mut term = term.clone();
    term["topologyKey"] = json!(key);
    term
}

fn app(value: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"app": value}}})
}

/// Returns the names of the nodes that fit, and the reasons of the others. The pod is in the namespace `n` and has the
/// label `app=db`.
fn judged(manifest: &Value, nodes: &[(&str, &str)], pods: &[Pod]) -> (Vec<String>, String) {
    let mut manifest = manifest.clone();
    manifest["domain"] = json!({});
    let spec = spec(&manifest);
    let needs = requirements(&spec, &Configuration::default(), &Minimum::default());
    let nodes = self::nodes(nodes);
    let views = views(&nodes);
    let newcomer = Newcomer {
        namespace: "n",
        labels: &BTreeMap::from([("app".to_owned(), "db".to_owned())]),
        spec: &spec,
        needs: &needs,
        excluded: &[],
    };
    let rules = neighbors(pods).rules(&newcomer, &PodMoves::default(), || Cow::Borrowed(&views));
    let found = fit(&needs, &spec, &rules, &views);
    let reasons = if found.misfits.is_empty() {
        String::new()
    } else {
        found.reasons()
    };
    (found.fits, reasons)
}

/// Description, manifest, nodes with their zones, pods, the nodes that fit, and the reasons of the others.
type Case<T> = (
    &'static str,
    Value,
    &'static [(&'static str, &'static str)],
    Vec<Pod>,
    &'static [&'static str],
    T,
);

/// Nodes in two zones.
const THREE: [(&str, &str); 3] = [("a", "x"), ("b", "x"), ("c", "y")];

fn labelled(value: &str) -> Value {
    json!({"labels": {"app": value}})
}

fn web() -> Pod {
    pod("n", "web", "a", &labelled("web"))
}

/// Returns a pod that stays apart from those with `app=db`.
fn guard() -> Pod {
    pod("n", "guard", "a", &json!({"affinity": apart(ZONE, &app("db"))}))
}

/// Anti-affinity: which pods and nodes count.
fn anti_affinity_cases() -> Vec<Case<&'static str>> {
    vec![
        (
            "anti-affinity by host",
            json!({"affinity": apart(HOSTNAME, &app("web"))}),
            &THREE,
            vec![web()],
            &["b", "c"],
            "1 node has the pod n/web, which conflicts by pod anti-affinity (a)",
        ),
        (
            "anti-affinity by zone",
            json!({"affinity": apart(ZONE, &app("web"))}),
            &THREE,
            vec![web(), pod("n", "other", "b", &labelled("web"))],
            &["c"],
            "2 nodes are in the same zone as pods that conflict by pod anti-affinity, such as n/other (a, b)",
        ),
        (
            "anti-affinity does not concern a node without a domain",
            json!({"affinity": apart(ZONE, &app("web"))}),
            &[("a", "x"), ("b", "")],
            vec![web()],
            &["b"],
            "1 node is in the same zone as the pod n/web, which conflicts by pod anti-affinity (a)",
        ),
        (
            "a pod on a node without a domain keeps nobody away",
            json!({"affinity": apart(ZONE, &app("web"))}),
            &[("a", ""), ("b", "x")],
            vec![web()],
            &["a", "b"],
            "",
        ),
        (
            "a finished pod does not count",
            json!({"affinity": apart(HOSTNAME, &app("web"))}),
            &THREE,
            vec![pod(
                "n",
                "web",
                "a",
                &json!({"labels": {"app": "web"}, "phase": "Succeeded"}),
            )],
            &["a", "b", "c"],
            "",
        ),
        (
            "a pod that is being deleted counts",
            json!({"affinity": apart(HOSTNAME, &app("web"))}),
            &THREE,
            vec![pod(
                "n",
                "web",
                "a",
                &json!({"labels": {"app": "web"}, "deleted": true}),
            )],
            &["b", "c"],
            "1 node has the pod n/web, which conflicts by pod anti-affinity (a)",
        ),
        (
            "an unbound pod does not count",
            json!({"affinity": apart(HOSTNAME, &app("web"))}),
            &THREE,
            vec![pod("n", "web", "", &labelled("web"))],
            &["a", "b", "c"],
            "",
        ),
    ]
}

/// Anti-affinity: the namespaces of a term.
fn namespace_cases() -> Vec<Case<&'static str>> {
    vec![
        (
            "other namespaces do not count",
            json!({"affinity": apart(HOSTNAME, &app("web"))}),
            &THREE,
            vec![pod("m", "web", "a", &labelled("web"))],
            &["a", "b", "c"],
            "",
        ),
        (
            "unless they are named",
            json!({"affinity": apart(HOSTNAME, &json!({"namespaces": ["m"], "labelSelector": {"matchLabels": {"app": "web"}}}))}),
            &THREE,
            vec![
                pod("m", "web", "a", &labelled("web")),
                pod("n", "web", "b", &labelled("web")),
            ],
            &["b", "c"],
            "1 node has the pod m/web, which conflicts by pod anti-affinity (a)",
        ),
        (
            "or selected by name",
            json!({"affinity": apart(HOSTNAME, &json!({
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "m"}},
                "labelSelector": {"matchLabels": {"app": "web"}}}))}),
            &THREE,
            vec![
                pod("m", "web", "a", &labelled("web")),
                pod("n", "web", "b", &labelled("web")),
            ],
            &["b", "c"],
            "1 node has the pod m/web, which conflicts by pod anti-affinity (a)",
        ),
        (
            "or all selected",
            json!({"affinity": apart(HOSTNAME, &json!({"namespaceSelector": {}, "labelSelector": {}}))}),
            &THREE,
            vec![pod("m", "one", "a", &json!({})), pod("o", "two", "b", &json!({}))],
            &["c"],
            "2 nodes have pods that conflict by pod anti-affinity, such as o/two (a, b)",
        ),
        (
            "a term by unknown labels of namespaces is not evaluated",
            json!({"affinity": apart(HOSTNAME, &json!({
                "namespaceSelector": {"matchLabels": {"team": "x"}}, "labelSelector": {}}))}),
            &THREE,
            vec![web()],
            &["a", "b", "c"],
            "",
        ),
    ]
}

/// Anti-affinity: the label selector of a term.
fn selector_cases() -> Vec<Case<&'static str>> {
    vec![
        (
            "without a selector nothing matches",
            json!({"affinity": apart(HOSTNAME, &json!({}))}),
            &THREE,
            vec![web()],
            &["a", "b", "c"],
            "",
        ),
        (
            "its own labels are added to the selector",
            json!({"affinity": apart(HOSTNAME, &json!({"labelSelector": {}, "matchLabelKeys": ["app", "absent"]}))}),
            &THREE,
            vec![web(), pod("n", "db", "b", &labelled("db"))],
            &["a", "c"],
            "1 node has the pod n/db, which conflicts by pod anti-affinity (b)",
        ),
        (
            "its own labels are excluded from the selector",
            json!({"affinity": apart(HOSTNAME, &json!({"labelSelector": {}, "mismatchLabelKeys": ["app"]}))}),
            &THREE,
            vec![web(), pod("n", "db", "b", &labelled("db"))],
            &["b", "c"],
            "1 node has the pod n/web, which conflicts by pod anti-affinity (a)",
        ),
    ]
}

/// Anti-affinity of other pods.
fn guard_cases() -> Vec<Case<&'static str>> {
    vec![
        (
            "another pod's anti-affinity",
            json!({}),
            &THREE,
            vec![guard()],
            &["c"],
            "2 nodes are in the same zone as pods that conflict by pod anti-affinity, such as n/guard (a, b)",
        ),
        (
            "another pod's anti-affinity to others",
            json!({}),
            &THREE,
            vec![
                pod("n", "guard", "a", &json!({"affinity": apart(ZONE, &app("web"))})),
                pod("m", "guard", "c", &json!({"affinity": apart(ZONE, &app("db"))})),
            ],
            &["a", "b", "c"],
            "",
        ),
    ]
}

/// Affinity.
fn affinity_cases() -> Vec<Case<&'static str>> {
    vec![
        (
            "affinity by zone",
            json!({"affinity": near(ZONE, &app("web"))}),
            &[("a", "x"), ("b", "x"), ("c", "y"), ("d", "")],
            vec![web()],
            &["a", "b"],
            "2 nodes are in no zone with a pod that matches the required pod affinity (app=web) (c, d)",
        ),
        (
            "affinity to nobody",
            json!({"affinity": near(HOSTNAME, &app("web"))}),
            &THREE,
            vec![],
            &[],
            "3 nodes have no pod that matches the required pod affinity (app=web) (a, b, c)",
        ),
        (
            "affinity to its own kind, as the first",
            json!({"affinity": near(ZONE, &app("db"))}),
            &[("a", "x"), ("d", "")],
            vec![web()],
            &["a"],
            "1 node is in no zone with a pod that matches the required pod affinity (app=db) (d)",
        ),
        (
            "affinity to its own kind, as the second",
            json!({"affinity": near(HOSTNAME, &app("db"))}),
            &THREE,
            vec![pod("n", "db", "b", &labelled("db"))],
            &["b"],
            "2 nodes have no pod that matches the required pod affinity (app=db) (a, c)",
        ),
    ]
}

#[test]
fn affinity_each_rule_decides_as_the_scheduler_does() {
    let groups = [
        anti_affinity_cases(),
        namespace_cases(),
        selector_cases(),
        guard_cases(),
        affinity_cases(),
    ];
    for (case, manifest, nodes, pods, fits, reasons) in groups.into_iter().flatten() {
        let (found, why) = judged(&manifest, nodes, &pods);
        assert_eq!(found, fits, "{case}");
        assert_eq!(why, reasons, "{case}");
    }
}

#[test]
fn affinity_of_several_terms_needs_one_pod_that_matches_all() {
    let both = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        with_key(ZONE, &app("web")),
        {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"tier": "front"}}},
    ]}}});
    let nodes = [("a", "x"), ("b", "x")];
    let half = [
        pod("n", "one", "a", &json!({"labels": {"app": "web"}})),
        pod("n", "two", "b", &json!({"labels": {"tier": "front"}})),
    ];
    assert_eq!(judged(&both, &nodes, &half).0, Vec::<String>::new());
    let whole = [pod(
        "n",
        "one",
        "b",
        &json!({"labels": {"app": "web", "tier": "front"}}),
    )];
    assert_eq!(judged(&both, &nodes, &whole).0, ["b"]);
}

/// Returns a spread constraint of pods with `app=db` over zones.
fn spread(more: &Value) -> Value {
    let mut constraint = json!({"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}}});
    for (key, value) in more.as_object().unwrap() {
        constraint[key] = value.clone();
    }
    json!({"topologySpreadConstraints": [constraint]})
}

/// Returns a pod with `app=db`.
fn db(name: &str, node: &str) -> Pod {
    pod("n", name, node, &labelled("db"))
}

fn skewed(nodes: &str) -> String {
    format!("{nodes} would have more pods per zone than the maximum skew of 1 allows")
}

/// Returns a spread constraint of a pod that selects the zone `x`.
fn spread_in_zone_x(more: &Value) -> Value {
    let mut manifest = spread(more);
    manifest["nodeSelector"] = json!({ZONE: "x"});
    manifest
}

/// Topology spread: the difference, and which pods count.
fn skew_cases() -> Vec<Case<String>> {
    vec![
        (
            "equal",
            spread(&json!({})),
            &THREE,
            vec![db("1", "a"), db("2", "c")],
            &["a", "b", "c"],
            String::new(),
        ),
        (
            "one more",
            spread(&json!({})),
            &THREE,
            vec![db("1", "b")],
            &["c"],
            format!("{} (a, b)", skewed("2 nodes")),
        ),
        (
            "more skew",
            spread(&json!({"maxSkew": 2})),
            &THREE,
            vec![db("1", "b")],
            &["a", "b", "c"],
            String::new(),
        ),
        (
            "a preference only",
            spread(&json!({"whenUnsatisfiable": "ScheduleAnyway"})),
            &THREE,
            vec![db("1", "b")],
            &["a", "b", "c"],
            String::new(),
        ),
        (
            "the pod itself does not match",
            spread(&json!({"labelSelector": {"matchLabels": {"app": "web"}}})),
            &THREE,
            vec![pod("n", "1", "b", &json!({"labels": {"app": "web"}}))],
            &["a", "b", "c"],
            String::new(),
        ),
        (
            "pods of other namespaces and deleted ones do not count",
            spread(&json!({})),
            &THREE,
            vec![
                pod("m", "1", "a", &json!({"labels": {"app": "db"}})),
                pod("n", "2", "a", &json!({"labels": {"app": "db"}, "deleted": true})),
            ],
            &["a", "b", "c"],
            String::new(),
        ),
        (
            "its own labels are added to the selector",
            spread(&json!({"labelSelector": {}, "matchLabelKeys": ["app"]})),
            &THREE,
            vec![db("1", "a"), pod("n", "2", "c", &json!({"labels": {"app": "web"}}))],
            &["c"],
            format!("{} (a, b)", skewed("2 nodes")),
        ),
    ]
}

/// Topology spread: which nodes are domains.
fn domain_cases() -> Vec<Case<String>> {
    vec![
        (
            "a node without a domain does not fit and does not count",
            spread(&json!({})),
            &[("a", "x"), ("d", "")],
            vec![db("1", "d"), db("2", "d")],
            &["a"],
            "1 node does not have the label zone with the selected value (d)".into(),
        ),
        (
            "too few domains",
            spread(&json!({"minDomains": 3})),
            &THREE,
            vec![db("1", "a"), db("2", "c")],
            &[],
            format!("{} (a, b, c)", skewed("3 nodes")),
        ),
        (
            "domains that the node selector excludes do not count",
            spread_in_zone_x(&json!({})),
            &THREE,
            vec![db("1", "a"), db("2", "b")],
            &["a", "b"],
            "1 node does not have the label zone with the selected value (c)".into(),
        ),
        (
            "unless the policy ignores it",
            spread_in_zone_x(&json!({"nodeAffinityPolicy": "Ignore"})),
            &THREE,
            vec![db("1", "a"), db("2", "b")],
            &[],
            format!(
                "{} (a, b), 1 does not have the label zone with the selected value (c)",
                skewed("2 nodes")
            ),
        ),
    ]
}

#[test]
fn spread_each_rule_decides_as_the_scheduler_does() {
    for (case, manifest, nodes, pods, fits, reasons) in skew_cases().into_iter().chain(domain_cases()) {
        let (found, why) = judged(&manifest, nodes, &pods);
        assert_eq!(found, fits, "{case}");
        assert_eq!(why, reasons, "{case}");
    }
}

#[test]
fn spread_excluded_nodes_are_no_domain() {
    let spec = spec(&{
        let mut manifest = spread(&json!({}));
        manifest["domain"] = json!({});
        manifest
    });
    let needs = requirements(&spec, &Configuration::default(), &Minimum::default());
    let nodes = nodes(&[("a", "x"), ("b", "y")]);
    let views = views(&nodes);
    let labels = BTreeMap::from([("app".to_owned(), "db".to_owned())]);
    let pods = neighbors(&[pod("n", "1", "b", &json!({"labels": {"app": "db"}}))]);
    let fits = |excluded: &[String]| {
        let newcomer = Newcomer {
            namespace: "n",
            labels: &labels,
            spec: &spec,
            needs: &needs,
            excluded,
        };
        let rules = pods.rules(&newcomer, &PodMoves::default(), || Cow::Borrowed(&views));
        rules.admit(&views[1])
    };
    assert!(!fits(&[]), "zone x has no pod");
    assert!(fits(&["a".to_owned()]), "zone x has no node for it");
}

#[test]
fn neighbors_follow_each_change_of_a_pod() {
    let mut all = Neighbors::default();
    let plain = pod("n", "a", "x", &json!({"labels": {"app": "db"}}));
    let other = |more: &Value| pod("n", "a", "x", more);
    assert!(all.set(&plain));
    assert!(!all.set(&plain));
    assert!(all.set(&other(&json!({"labels": {"app": "web"}}))));
    assert!(all.set(&other(
        &json!({"labels": {"app": "web"}, "affinity": apart(ZONE, &app("web"))})
    )));
    assert!(all.set(&other(&json!({"labels": {"app": "web"}}))));
    assert!(all.set(&other(&json!({"labels": {"app": "web"}, "deleted": true}))));
    assert!(all.set(&other(&json!({"phase": "Failed"}))), "it has finished");
    assert!(!all.remove("n", "a"));
    assert!(all.set(&plain) && all.remove("n", "a") && !all.remove("n", "a"));
    assert!(!all.set(&pod("n", "a", "", &json!({}))), "it is on no node");
}

#[test]
fn pruned_affinity_keeps_anti_affinity_to_other_pods() {
    let affinity = |value: Value| serde_json::from_value(value).unwrap();
    let own = apart(
        HOSTNAME,
        &json!({"labelSelector": {"matchLabels": {"kubevirt.io/created-by": "u"}}}),
    );
    assert_eq!(prune_affinity(None), None);
    assert_eq!(prune_affinity(Some(affinity(own.clone()))), None);
    assert_eq!(prune_affinity(Some(affinity(near(ZONE, &app("a"))))), None);
    let mut both = own;
    let terms = &mut both["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    terms.as_array_mut().unwrap().push(with_key(ZONE, &app("a")));
    both["podAffinity"] = near(ZONE, &app("b"))["podAffinity"].clone();
    assert_eq!(
        prune_affinity(Some(affinity(both))),
        Some(affinity(apart(ZONE, &app("a"))))
    );
}

/// A pod of the property test: node, value of `app`, and what it must stay apart from, by topology key.
type Random = (usize, &'static str, Option<(&'static str, &'static str)>);

fn random_pod() -> impl Strategy<Value = Random> {
    let app = || prop::sample::select(vec!["db", "web"]);
    let key = prop::sample::select(vec![HOSTNAME, ZONE]);
    (0..4_usize, app(), prop::option::weighted(0.3, (key, app())))
}

proptest! {
    /// The scheduler's documented rules, evaluated node by node and pod by pod.
    #[test]
    fn placement_rules_match_the_scheduler_definition(
        zones in prop::collection::vec(prop::sample::select(vec!["", "x", "y"]), 4),
        pods in prop::collection::vec(random_pod(), 0..6),
        own in random_pod(),
        near_app in prop::option::of((prop::sample::select(vec![HOSTNAME, ZONE]), prop::sample::select(vec!["db", "web"]))),
        skew in prop::option::of((1..3_u64, prop::sample::select(vec![HOSTNAME, ZONE]))),
    ) {
        let names = ["a", "b", "c", "d"];
        let named: Vec<(&str, &str)> = names.iter().copied().zip(zones).collect();
        let nodes = nodes(&named);
        let views = views(&nodes);
        let domain = |node: usize, key: &str| nodes[node].1.get(key).cloned();
        let bound: Vec<Pod> = pods.iter().enumerate().map(|(index, (node, value, guard))| {
            let affinity = guard.map(|(key, other)| apart(key, &app(other)));
            pod("n", &index.to_string(), names[*node], &json!({"labels": {"app": value}, "affinity": affinity}))
        }).collect();
        let mut affinity = json!({});
        if let Some((key, other)) = own.2 {
            affinity["podAntiAffinity"] = apart(key, &app(other))["podAntiAffinity"].clone();
        }
        if let Some((key, other)) = near_app {
            affinity["podAffinity"] = near(key, &app(other))["podAffinity"].clone();
        }
        let mut manifest = json!({"domain": {}, "affinity": affinity});
        if let Some((max_skew, key)) = skew {
            manifest["topologySpreadConstraints"] = json!([{"maxSkew": max_skew, "topologyKey": key,
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "db"}}}]);
        }
        let spec = spec(&manifest);
        let needs = requirements(&spec, &Configuration::default(), &Minimum::default());
        let labels = BTreeMap::from([("app".to_owned(), own.1.to_owned())]);
        let newcomer = Newcomer { namespace: "n", labels: &labels, spec: &spec, needs: &needs, excluded: &[] };
        let rules = neighbors(&bound).rules(&newcomer, &PodMoves::default(), || Cow::Borrowed(&views));
        for (here, view) in views.iter().enumerate() {
            let is_beside = |other: usize, key: &str| domain(here, key).is_some() && domain(here, key) == domain(other, key);
            let kept_apart = own.2.is_some_and(|(key, other)| pods.iter().any(|pod| pod.1 == other && is_beside(pod.0, key)));
            let kept_away = pods.iter().any(|pod| pod.2.is_some_and(|(key, other)| own.1 == other && is_beside(pod.0, key)));
            let is_near = near_app.is_none_or(|(key, other)| {
                // Pods on nodes without a domain are in none.
                let anywhere = pods.iter().any(|pod| pod.1 == other && domain(pod.0, key).is_some());
                pods.iter().any(|pod| pod.1 == other && is_beside(pod.0, key))
                    || (!anywhere && own.1 == other && domain(here, key).is_some())
            });
            let is_spread = skew.is_none_or(|(max_skew, key)| {
                let count = |at: usize| {
                    let beside = pods.iter().filter(|pod| pod.1 == "db" && domain(pod.0, key) == domain(at, key));
                    beside.count() as u64
                };
                let counted = (0..4).filter(|at| domain(*at, key).is_some() && is_selected(&needs, &spec, &views[*at]));
                let least = counted.map(count).min().unwrap_or(0);
                domain(here, key).is_some() && count(here) + u64::from(own.1 == "db") <= max_skew + least
            });
            let expected = !kept_apart && !kept_away && is_near && is_spread;
            prop_assert_eq!(rules.admit(view), expected, "node {}: {:?}", view.name, rules);
        }
    }
}
