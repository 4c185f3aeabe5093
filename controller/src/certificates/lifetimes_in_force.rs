//! The configured lifetimes of certificates.

use std::sync::Arc;

use drydock_api::HyperConverged;
use drydock_core::{
    certificates::Lifetimes,
    configuration::{Configuration, gathering::sources, resolve},
};

/// Returns the lifetimes in force. If any object is refused, the previous lifetimes (`last_good`) stay in force.
pub(super) fn in_force(
    objects: &[Arc<HyperConverged>],
    namespaces: &[String],
    last_good: Option<&Configuration>,
) -> (Lifetimes, Option<Configuration>) {
    // The nodes validate CPU models, so no model is looked up.
    let resolution = resolve(sources(&[], objects, namespaces), |_| None, last_good);
    let lifetimes = Lifetimes::from(&resolution.configuration.certificates);
    let good = if resolution.refused() {
        last_good.cloned()
    } else {
        Some(resolution.configuration)
    };
    (lifetimes, good)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn object(namespace: &str, cert_config: &Value) -> Arc<HyperConverged> {
        let object = json!({
            "apiVersion": "hco.kubevirt.io/v1beta1",
            "kind": "HyperConverged",
            "metadata": {"name": "kubevirt-hyperconverged", "namespace": namespace},
            "spec": {"certConfig": cert_config},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn object_in_force_decides_and_a_refused_object_does_not() {
        let namespaces = ["drydock".to_owned(), "kubevirt".to_owned()];
        let seconds = |spec: Value, last: Option<&Configuration>| {
            let objects = [
                object("kubevirt", &json!({"server": {"duration": "1h"}})),
                object("drydock", &spec),
            ];
            let (lifetimes, good) = in_force(&objects, &namespaces, last);
            (lifetimes.serving.duration, good)
        };
        let (duration, good) = seconds(json!({"server": {"duration": "10s", "renewBefore": "5s"}}), None);
        assert_eq!(duration, Duration::from_secs(10));
        let (duration, good) = seconds(json!({"server": {"duration": "soon"}}), good.as_ref());
        assert_eq!(duration, Duration::from_secs(10), "the last good one stays");
        assert!(good.is_some());
        let (duration, good) = seconds(json!({"server": {"duration": "soon"}}), None);
        assert_eq!((duration, good), (Duration::from_secs(24 * 3600), None));
        let (lifetimes, _) = in_force(&[], &namespaces, None);
        assert_eq!(lifetimes, Lifetimes::from(&Configuration::default().certificates));
    }
}
