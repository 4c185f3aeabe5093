//! Manifests from KubeVirt's documentation are admitted unchanged.

use super::{super::AdmittedKind, manifest, refusal_text};

/// The instance from KubeVirt's documentation page on node drain.
const DOCUMENTED: &str = include_str!("documented.yaml");

#[test]
fn the_documented_instance_is_admitted_unchanged() {
    assert_eq!(refusal_text(&manifest(DOCUMENTED), AdmittedKind::Instance), "");
}

#[test]
fn documented_machine_is_admitted_for_each_run_strategy() {
    let machine = super::machine(manifest(DOCUMENTED));
    for strategy in ["Always", "RerunOnFailure", "Manual", "Once", "Halted"] {
        let mut machine = machine.clone();
        super::put(&mut machine, "/spec/runStrategy", strategy.into());
        assert_eq!(refusal_text(&machine, AdmittedKind::Machine), "", "{strategy}");
    }
    let mut machine = machine;
    machine["spec"].as_object_mut().unwrap().remove("runStrategy");
    super::put(&mut machine, "/spec/running", true.into());
    assert_eq!(refusal_text(&machine, AdmittedKind::Machine), "");
}

#[test]
fn misspelt_strategy_is_refused_with_the_closest_strategy() {
    let allowed = "allowed: Always, RerunOnFailure, Manual, Once, Halted";
    for (expected_part, expected) in [
        (
            "Running",
            format!("spec.runStrategy: `Running` is not allowed; {allowed}; did you mean Always?"),
        ),
        (
            "always",
            format!("spec.runStrategy: `always` is not allowed; {allowed}; did you mean Always?"),
        ),
        (
            "RunOnFailure",
            format!("spec.runStrategy: `RunOnFailure` is not allowed; {allowed}; did you mean RerunOnFailure?"),
        ),
        (
            "Stopped",
            format!("spec.runStrategy: `Stopped` is not allowed; {allowed}; did you mean Halted?"),
        ),
        (
            "Sometimes",
            format!("spec.runStrategy: `Sometimes` is not allowed; {allowed}"),
        ),
        (
            "WaitAsReceiver",
            format!(
                "spec.runStrategy: `WaitAsReceiver` is not supported by Drydock {}; {allowed}",
                super::super::VERSION
            ),
        ),
    ] {
        let mut machine = super::machine(super::instance());
        super::put(&mut machine, "/spec/runStrategy", expected_part.into());
        assert_eq!(refusal_text(&machine, AdmittedKind::Machine), expected);
    }
}
