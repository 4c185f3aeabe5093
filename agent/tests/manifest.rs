//! Tests the settings of the DaemonSet on which its containers depend.

use std::{fs, path::Path};

use k8s_openapi::api::apps::v1::DaemonSet;

/// A grace period in seconds. A pod that is stuck for longer prevents another agent on its node.
const SHORT: i64 = 60;

#[test]
fn containers_with_a_long_grace_period_delay_the_signal() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/agent/daemonset.yaml");
    let set: DaemonSet = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let pod = set.spec.unwrap().template.spec.unwrap();
    assert!(pod.termination_grace_period_seconds.unwrap() > SHORT);
    let names: Vec<&str> = pod
        .containers
        .iter()
        .filter(|container| {
            let hook = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref());
            hook.and_then(|hook| hook.sleep.as_ref())
                .is_some_and(|sleep| sleep.seconds >= 1)
        })
        .map(|container| container.name.as_str())
        .collect();
    assert_eq!(names, ["agent", "tunnel"]);
}
