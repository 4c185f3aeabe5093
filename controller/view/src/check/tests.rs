//! Tests that a check finds each misconfiguration, and that no other check reports it.

mod cases;

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::json;

use super::{
    fixture::{changed, healthy, of},
    kubernetes, webhooks, *,
};
use cases::{CASES, daemon_set, deployment};

fn outcomes(report: &CheckReport) -> BTreeMap<&'static str, CheckOutcome> {
    let checks = report.sections.iter().flat_map(|section| &section.checks);
    checks.map(|check| (check.name, check.outcome)).collect()
}

#[test]
fn cluster_in_which_nothing_is_wrong_has_no_finding() {
    let report = check(&healthy());
    let found: Vec<_> = report.sections.iter().flat_map(|section| &section.checks).collect();
    assert!(found.iter().all(|check| check.findings.is_empty()), "{found:#?}");
    insta::assert_snapshot!(text(&report, 80));
}

#[test]
fn each_misconfiguration_is_found_by_a_single_check() {
    let expected = outcomes(&check(&healthy()));
    let mut listed = String::new();
    for (name, outcome, provoke) in CASES.into_iter().flatten() {
        let mut survey = healthy();
        provoke(&mut survey);
        let report = check(&survey);
        let mut expected = expected.clone();
        assert!(expected.insert(name, *outcome).is_some(), "there is no check {name}");
        assert_eq!(outcomes(&report), expected, "{name}: {report:#?}");
        let mut checks = report.sections.iter().flat_map(|section| &section.checks);
        let found = checks.find(|check| check.name == *name).unwrap();
        let _ = writeln!(listed, "{name}: {}", outcome.as_str());
        for finding in &found.findings {
            assert!(finding.remedy.is_some(), "{finding:?}");
            let remedy = finding.remedy.as_ref().unwrap();
            let _ = writeln!(listed, "  {}\n  remedy: {}", finding.message, remedy.text);
            remedy
                .command
                .iter()
                .for_each(|command| listed.push_str(&format!("  $ {command}\n")));
        }
    }
    insta::assert_snapshot!(listed);
}

#[test]
fn missing_webhook_is_reported_with_the_right_effect() {
    for (index, has_effect) in [(0, false), (4, true)] {
        let mut survey = healthy();
        let lost = survey.validating[0].webhooks.as_mut().unwrap().remove(index).name;
        let found = text(&check(&survey), 400);
        let line = found.lines().find(|line| line.contains(&lost)).unwrap();
        assert_eq!(line.contains("do not start migrations"), has_effect, "{line}");
    }
}

/// A case provokes every check, except the check that needs a cluster of one node.
#[test]
fn each_check_has_a_case() {
    let report = check(&healthy());
    let provoked: Vec<&str> = CASES.into_iter().flatten().map(|(name, ..)| *name).collect();
    let mut names: Vec<&str> = outcomes(&report).into_keys().collect();
    names.retain(|name| !provoked.contains(name));
    assert_eq!(names, ["virtual machines have another node to move to"]);
}

#[test]
fn only_node_and_no_node_and_no_drydock_are_found() {
    let mut survey = healthy();
    for name in ["b", "c"] {
        survey
            .snapshot
            .nodes
            .retain(|node| node.metadata.name.as_deref() != Some(name));
        survey.snapshot.instances.retain(|instance| {
            let status = instance.status.as_ref().unwrap();
            status.node_name.as_deref() != Some(name)
        });
    }
    let alone = check(&survey);
    let of = |report: &CheckReport, name: &str| outcomes(report)[name];
    assert_eq!(
        of(&alone, "virtual machines have another node to move to"),
        CheckOutcome::Warning
    );
    assert_eq!(of(&alone, "each guest finds another node"), CheckOutcome::Ok);
    let nothing = check(&Survey::default());
    for name in [
        "a replica of the controller is ready",
        "each node has an agent",
        "webhooks are registered",
        "custom resources are served",
        "the Service of the webhooks has endpoints",
    ] {
        assert_eq!(of(&nothing, name), CheckOutcome::Error, "{name}");
    }
}

#[test]
fn unread_kind_skips_the_dependent_checks() {
    let needed: std::collections::BTreeSet<&str> = rules().flat_map(|rule| rule.needs).copied().collect();
    for resource in needed {
        let mut survey = healthy();
        survey.snapshot.unread.push(UnreadKind {
            resource: resource.into(),
            why: "forbidden".into(),
        });
        for (name, outcome) in outcomes(&check(&survey)) {
            let needs = rules().find(|rule| rule.name == name).unwrap().needs;
            let expected = if needs.contains(&resource) {
                CheckOutcome::Skipped
            } else {
                CheckOutcome::Ok
            };
            assert_eq!(outcome, expected, "{resource}: {name}");
        }
    }
}

fn rules() -> impl Iterator<Item = &'static Rule> {
    SECTIONS.iter().flat_map(|(_, rules)| *rules)
}

#[test]
fn long_reports_are_shortened_and_unread_kinds_are_named() {
    let mut survey = healthy();
    survey.policies.clear();
    survey.snapshot.unread.push(UnreadKind {
        resource: "cronjobs".into(),
        why: "forbidden".into(),
    });
    let report = check(&survey);
    let text = text(&report, 60);
    assert!(text.contains("and 6 more of this kind"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn lease_is_judged_by_the_time_of_the_cluster() {
    // The user's clock is an hour fast, then an hour slow.
    for at in ["2026-11-27T15:02:11Z", "2026-11-27T13:02:11Z"] {
        let mut survey = healthy();
        survey.snapshot.at = at.parse().unwrap();
        assert_eq!(
            outcomes(&check(&survey))["agents renew their Leases"],
            CheckOutcome::Ok,
            "{at}"
        );
    }
}

#[test]
fn names_are_those_of_the_manifests() {
    let webhooks_yaml = include_str!("../../../../deploy/controller/webhooks.yaml");
    for name in webhooks::MUTATING.iter().chain(&webhooks::VALIDATING) {
        assert!(webhooks_yaml.contains(&format!("- name: {name}\n")), "{name}");
    }
    let listed = webhooks::MUTATING.len() + webhooks::VALIDATING.len();
    assert_eq!(webhooks_yaml.matches("    clientConfig:\n").count(), listed);
    let services = include_str!("../../../../deploy/controller/apiservices.yaml");
    for name in webhooks::API_SERVICES {
        assert!(services.contains(&format!("name: {name}\n")), "{name}");
    }
    let policies = include_str!("../../../../deploy/policies/kustomization.yaml");
    for name in kubernetes::POLICIES {
        let file = name.trim_start_matches("drydock-");
        assert!(policies.contains(&format!("- {file}.yaml\n")), "{name}");
    }
    assert_eq!(policies.matches(".yaml\n").count(), kubernetes::POLICIES.len());
    for (manifest, name) in [
        (
            include_str!("../../../../deploy/controller/deployment.yaml"),
            CONTROLLER,
        ),
        (include_str!("../../../../deploy/agent/daemonset.yaml"), AGENT),
        (include_str!("../../../../deploy/controller/service.yaml"), SERVICE),
    ] {
        assert!(manifest.contains(&format!("\n  name: {name}\n")), "{name}");
    }
}

#[test]
fn each_check_is_in_the_table_of_the_documents() {
    let page = include_str!("../../../../deploy/docs/kubectl-drydock.md");
    let missing = rules().filter(|rule| !page.contains(&format!("| {} |", rule.name)));
    assert_eq!(missing.map(|rule| rule.name).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn others_that_leave_guests_alone_are_no_finding() {
    let mut survey = healthy();
    survey.daemon_sets.push(daemon_set(
        "kured",
        &[
            "--force-reboot=false",
            "--blocking-pod-selector=kubevirt.io=virt-launcher",
        ],
    ));
    survey
        .deployments
        .push(deployment("kube-system", "cluster-autoscaler", &json!({})));
    for node in 0..2 {
        let annotations = json!({"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"});
        changed(&mut survey.snapshot.nodes, node).metadata.annotations = of(annotations);
    }
    let job = json!({"metadata": {"namespace": "kube-system", "name": "descheduler"}, "spec": {"schedule": "*/2 * * * *",
        "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "descheduler",
            "args": ["--feature-gates=EvictionsInBackground=true"]}]}}}}}});
    survey.cron_jobs.push(of(job));
    let found = check(&survey);
    assert_eq!(outcomes(&found), outcomes(&check(&healthy())), "{found:#?}");
}
