//! The run strategy of a VirtualMachine.

use drydock_api::kubevirt::RunStrategy;
use serde_json::Value;

use crate::admission::{At, RefusalList, nearest::nearest};

/// Common wrong values for a run strategy, and the intended strategy.
const STRATEGIES_MEANT: [(&str, RunStrategy); 8] = [
    ("running", RunStrategy::Always),
    ("run", RunStrategy::Always),
    ("true", RunStrategy::Always),
    ("onfailure", RunStrategy::RerunOnFailure),
    ("restartonfailure", RunStrategy::RerunOnFailure),
    ("stopped", RunStrategy::Halted),
    ("never", RunStrategy::Halted),
    ("false", RunStrategy::Halted),
];
/// KubeVirt's strategy that waits for a guest from another cluster.
const RECEIVER: &str = "WaitAsReceiver";

pub(super) fn check(raw: &Value, refusals: &mut RefusalList) {
    let at = At::root("spec");
    let value = raw.pointer("/spec/runStrategy").filter(|value| !value.is_null());
    let running = raw.pointer("/spec/running").filter(|running| !running.is_null());
    match (running, value) {
        (Some(_), Some(_)) => refusals.conflict(&at.field("running"), at.field("runStrategy")),
        (None, None) => refusals.required(&at.field("runStrategy"), format_args!("one of {}", strategies())),
        _ => {}
    }
    let Some(value) = value else { return };
    let value = value.as_str().unwrap_or_default();
    let at = at.field("runStrategy");
    if value == RECEIVER {
        refusals.value_not_supported(&at, value, &strategies());
    } else if !RunStrategy::ALL.iter().any(|strategy| strategy.as_str() == value) {
        let meant = meant(value)
            .map(|meant| format!("; did you mean {meant}?"))
            .unwrap_or_default();
        refusals.not_allowed(&at, value, format_args!("{}{meant}", strategies()));
    }
}

fn strategies() -> String {
    RunStrategy::ALL.map(RunStrategy::as_str).join(", ")
}

fn meant(value: &str) -> Option<&'static str> {
    let folded = value.to_lowercase();
    let known = STRATEGIES_MEANT.iter().find(|(other, _)| *other == folded);
    known
        .map(|(_, strategy)| strategy.as_str())
        .or_else(|| nearest(value, RunStrategy::ALL.map(RunStrategy::as_str)))
}
