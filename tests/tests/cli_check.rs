//! `kubectl drydock check` on a real cluster: it finds misconfigurations, its remedies fix them, and it reports nothing
//! else.

use std::{collections::BTreeMap, thread};

use anyhow::{Context, Result, ensure};
use drydock_cli::{Exit, Terminal};
use drydock_tests::{
    Cluster,
    drains::{clean_for_drains, counting, started_on_the_first},
    guests::NAMESPACE,
    watching::{until_ok, until_some},
};
use serde_json::Value;

/// Runs the command with options, and returns its exit code and its output.
fn check(cluster: &Cluster, options: &[&str]) -> Result<(Exit, String)> {
    let mut line = vec!["kubectl-drydock".to_owned(), "check".to_owned()];
    line.extend(options.iter().map(|&argument| argument.to_owned()));
    line.extend(["--kubeconfig".to_owned(), cluster.kubeconfig().display().to_string()]);
    // A thread is necessary, since the command line has its own async runtime.
    let running = thread::spawn(move || {
        let mut out = Vec::new();
        let exit = drydock_cli::run(line, &Terminal { width: 80 }, &mut out);
        (exit, String::from_utf8_lossy(&out).into_owned())
    });
    running.join().ok().context("the command panicked")
}

/// Returns the exit code and the checks by name.
fn checks(cluster: &Cluster) -> Result<(Exit, BTreeMap<String, Value>)> {
    let (exit, text) = check(cluster, &["-o", "json"])?;
    let report: Value = serde_json::from_str(&text).with_context(|| format!("{exit:?}: {text}"))?;
    ensure!(
        report["kind"] == "CheckReport" && report["apiVersion"] == "cli.drydock.dev/v1",
        "{report}"
    );
    let sections = report["sections"].as_array().into_iter().flatten();
    let all = sections.flat_map(|section| section["checks"].as_array().into_iter().flatten());
    let named = all.filter_map(|check| Some((check["name"].as_str()?.to_owned(), check.clone())));
    Ok((exit, named.collect()))
}

/// Returns the outcome of each check.
fn outcomes(checks: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let outcomes = checks
        .iter()
        .map(|(name, check)| (name.clone(), check["outcome"].clone()));
    outcomes.collect()
}

/// A misconfiguration that the test creates.
struct Case {
    /// The check that finds the misconfiguration.
    check: &'static str,
    /// The expected outcome of the check.
    outcome: &'static str,
    /// A part of the expected message.
    finds: String,
    /// Arguments of kubectl that create the misconfiguration, and the input of kubectl.
    provoked: (String, String),
    /// Arguments of kubectl that fix the misconfiguration.
    mended: String,
    /// Whether these arguments are those of the remedy that the check reports.
    is_remedy: bool,
}

impl Case {
    /// Returns a misconfiguration that one command creates, and another one, that of the remedy, fixes.
    fn new(check: &'static str, outcome: &'static str, finds: &str, provoked: &str, mended: String) -> Self {
        Self {
            check,
            outcome,
            finds: finds.to_owned(),
            provoked: (provoked.to_owned(), String::new()),
            mended,
            is_remedy: true,
        }
    }

    /// Creates the misconfiguration by applying a manifest.
    fn by(self, manifest: String) -> Self {
        Self {
            provoked: ("apply".to_owned(), manifest),
            ..self
        }
    }

    /// Declares that the remedy leaves a choice to users, so the command that fixes the misconfiguration is not that of
    /// the remedy.
    fn otherwise(self) -> Self {
        Self {
            is_remedy: false,
            ..self
        }
    }

    fn provoke(&self, cluster: &Cluster) -> Result<()> {
        let (line, input) = &self.provoked;
        if input.is_empty() {
            kubectl(cluster, line)
        } else {
            cluster.kubectl_with(&[line], input).map(drop)
        }
    }

    /// Waits until the check finds the misconfiguration, and returns the command of the remedy.
    async fn until_found(&self, cluster: &Cluster) -> Result<String> {
        until_ok(self.check, || async {
            let (exit, checks) = checks(cluster)?;
            let check = checks.get(self.check).context("the check does not exist")?;
            let finding = &check["findings"][0];
            let message = finding["message"].as_str().unwrap_or_default();
            if check["outcome"] != self.outcome || !message.contains(&self.finds) {
                return Ok(Err(check.to_string()));
            }
            ensure!(exit == Exit::Blocked || self.outcome != "error", "{exit:?}: {check}");
            ensure!(finding["remedy"]["text"].is_string(), "{check}");
            let remedy = finding["remedy"]["command"].as_str().unwrap_or_default();
            Ok(Ok(remedy.to_owned()))
        })
        .await
    }
}

fn kubectl(cluster: &Cluster, line: &str) -> Result<()> {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    cluster.kubectl(&arguments).map(drop)
}

fn workload(kind: &str, name: &str, more: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {NAMESPACE}}}\nspec:\n  {more}\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      \
         nodeSelector: {{drydock.dev/no-such: node}}\n      containers: [{{name: a, image: none.example/a}}]\n"
    )
}

fn hyperconverged(namespace: &str) -> String {
    format!(
        "apiVersion: hco.kubevirt.io/v1beta1\nkind: HyperConverged\n\
         metadata: {{name: kubevirt-hyperconverged, namespace: {namespace}}}\nspec: {{}}\n"
    )
}

fn deleted(what: &str) -> String {
    format!("delete -n {NAMESPACE} {what}")
}

/// Returns the misconfigurations of nodes and of Drydock's own objects, on a cluster with a guest on its first node.
fn node_cases(second: &str) -> Vec<Case> {
    let cordon = format!("cordon {second}");
    vec![
        Case::new(
            "no node is cordoned without a maintenance",
            "warning",
            second,
            &cordon,
            format!("uncordon {second}"),
        ),
        Case::new(
            "each guest finds another node",
            "error",
            "is unschedulable",
            &cordon,
            format!("uncordon {second}"),
        )
        .otherwise(),
        Case::new(
            "taints that drain nodes have the effect NoSchedule",
            "warning",
            second,
            &format!("taint nodes {second} kubevirt.io/drain=a:PreferNoSchedule"),
            format!("taint nodes {second} kubevirt.io/drain-"),
        )
        .otherwise(),
        Case::new(
            "CPU labels of nodes are kept up to date",
            "warning",
            second,
            &format!("annotate node {second} node-labeller.kubevirt.io/skip-node=true"),
            format!("annotate node {second} node-labeller.kubevirt.io/skip-node-"),
        ),
        Case::new(
            "the namespace of agents admits them",
            "error",
            "baseline",
            "label namespace drydock --overwrite pod-security.kubernetes.io/enforce=baseline",
            "label namespace drydock --overwrite pod-security.kubernetes.io/enforce=privileged".into(),
        ),
        Case::new(
            "another replica can take over",
            "warning",
            "1 of 1 replicas",
            "-n drydock scale deployment drydock-controller --replicas=1",
            "-n drydock scale deployment drydock-controller --replicas=2".into(),
        ),
    ]
}

/// Returns misconfigurations by other objects: budgets, quotas, configurations and other operators.
fn object_cases() -> Vec<Case> {
    vec![
        Case::new(
            "no other PodDisruptionBudget selects guests' pods",
            "warning",
            "default/kept",
            "",
            deleted("pdb everything"),
        )
        .otherwise()
        .by(format!(
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: everything, namespace: {NAMESPACE}}}\n\
             spec: {{maxUnavailable: 1, selector: {{matchLabels: {{kubevirt.io: virt-launcher}}}}}}\n"
        )),
        Case::new(
            "quotas leave room for the pod that a guest moves to",
            "error",
            "default/small",
            "",
            deleted("resourcequota small"),
        )
        .otherwise()
        .by(format!(
            "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: small, namespace: {NAMESPACE}}}\n\
             spec: {{hard: {{count/virtualmachineinstancemigrations.kubevirt.io: \"0\"}}}}\n"
        )),
        Case::new(
            "one object of each kind configures the cluster",
            "warning",
            "default/kubevirt-hyperconverged",
            "",
            deleted("hyperconverged kubevirt-hyperconverged"),
        )
        .by(hyperconverged(NAMESPACE)),
        Case::new(
            "no legacy configuration is mixed with a HyperConverged",
            "warning",
            "drydock/kubevirt-config",
            "",
            "delete -n drydock hyperconverged kubevirt-hyperconverged".into(),
        )
        .otherwise()
        .by(hyperconverged("drydock")),
        Case::new(
            "kured does not reboot nodes by itself",
            "warning",
            "default/kured",
            "",
            deleted("daemonset kured"),
        )
        .otherwise()
        .by(workload("DaemonSet", "kured", "")),
        Case::new(
            "no node maintenance operator is installed",
            "error",
            "default/node-maintenance-operator",
            "",
            deleted("deployment node-maintenance-operator"),
        )
        .by(workload("Deployment", "node-maintenance-operator", "replicas: 0")),
    ]
}

/// Creates a misconfiguration, waits until it is found, and fixes it.
async fn found_and_mended(cluster: &Cluster, case: &Case) -> Result<()> {
    case.provoke(cluster)?;
    let remedy = case.until_found(cluster).await;
    // The fix comes before the check of the result, because other tests need the unchanged cluster.
    kubectl(cluster, &case.mended)?;
    let remedy = remedy?;
    if case.is_remedy {
        assert_eq!(remedy, format!("kubectl {}", case.mended));
    }
    until_ok("the check to find nothing", || async {
        let (_, found) = checks(cluster)?;
        let check = found.get(case.check).context("the check does not exist")?;
        Ok(if check["outcome"] == "ok" {
            Ok(())
        } else {
            Err(check.to_string())
        })
    })
    .await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn misconfigurations_are_found_and_mended() -> Result<()> {
    let cluster = clean_for_drains().await?;
    started_on_the_first(&cluster, &[("kept", counting("kept", "LiveMigrate"), "True")]).await?;
    let mut cases = node_cases(cluster.second());
    cases.extend(object_cases());
    // Earlier tests may have left a replica that is not ready, both replicas on one node, or an agent that does not
    // report yet.
    let before = until_ok("a cluster without any of these misconfigurations", || async {
        let (exit, found) = checks(&cluster)?;
        let before = outcomes(&found);
        let wrong: Vec<_> = cases
            .iter()
            .map(|case| case.check)
            .filter(|name| before[*name] != "ok")
            .collect();
        Ok(if exit == Exit::Done && wrong.is_empty() {
            Ok(before)
        } else {
            Err(format!("{exit:?}, {wrong:?}"))
        })
    })
    .await?;
    for case in cases {
        found_and_mended(&cluster, &case).await?;
    }
    until_some("the initial outcomes of all checks", || async {
        let (exit, found) = checks(&cluster)?;
        // Leftovers of earlier tests may have been fixed in the meantime.
        let mut found = outcomes(&found);
        found.retain(|name, outcome| *outcome != "ok" && before.get(name) != Some(outcome));
        Ok((exit == Exit::Done && found.is_empty()).then_some(()))
    })
    .await?;
    cluster.no_guests().await
}

#[tokio::test]
#[ignore = "needs a cluster: hack/test cluster"]
async fn user_without_rights_has_skipped_checks() -> Result<()> {
    let cluster = Cluster::connect().await?;
    let (exit, text) = check(&cluster, &["--as", "nobody"])?;
    assert_eq!(exit, Exit::NotAllowed, "{text}");
    ensure!(
        text.contains("- skipped  each node has an agent") && text.contains("nodes (forbidden)"),
        "{text}"
    );
    ensure!(
        text.contains("√ ok       the API server has a supported version")
            && text.contains("missing rights: create nodemaintenances.nodemaintenance.medik8s.io"),
        "{text}"
    );
    Ok(())
}
