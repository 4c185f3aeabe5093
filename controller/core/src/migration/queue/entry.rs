//! Builds queue entries: derives a migration's stage from its objects.

use drydock_api::kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration, migration::MigrationPhase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::{QueueStage, QueuedMigration, Urgency, order};
use crate::{
    launcher_pod::pending::pending,
    migration::{
        observed::is_ready,
        record::{MigrationRecord, reached_at},
        sides::{source, target},
    },
};

/// Returns the queue entry of a migration. `None` if the migration is over, or was deleted before it began, or if
/// neither the migration nor its instance names the source node. A migration that has begun holds its slot even without
/// an instance.
///
/// `refused`: the API server has refused the migration's target pod, and the next attempt is not due yet.
pub fn entry(
    migration: &VirtualMachineInstanceMigration,
    instance: Option<&VirtualMachineInstance>,
    pod: Option<&Pod>,
    refused: bool,
    now: Timestamp,
) -> Option<QueuedMigration> {
    let record = MigrationRecord::of(migration);
    if record.is_over() || (record.deleted && !record.has_sides()) {
        return None;
    }
    let recorded = source(migration).and_then(|side| side.node.clone());
    let source = recorded.or_else(|| instance?.status.as_ref()?.node_name.clone())?;
    let metadata = &migration.metadata;
    Some(QueuedMigration {
        uid: metadata.uid.clone()?,
        name: format!(
            "{}/{}",
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default()
        ),
        urgency: Urgency::of(migration),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::MIN, |time| time.0),
        order: order(migration),
        source,
        stage: stage(migration, &record, pod, refused, now),
    })
}

fn stage(
    migration: &VirtualMachineInstanceMigration,
    record: &MigrationRecord,
    pod: Option<&Pod>,
    refused: bool,
    now: Timestamp,
) -> QueueStage {
    if let Some(target) = target(migration).and_then(|side| side.node.clone()) {
        return QueueStage::Holding { target };
    }
    let Some(pod) = pod else {
        return if refused {
            QueueStage::Refused
        } else {
            QueueStage::Waiting
        };
    };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    match node.filter(|_| record.phase == Some(MigrationPhase::Scheduled) || is_ready(pod)) {
        Some(target) => QueueStage::Placed {
            target,
            ready: waits_since(migration),
        },
        None => QueueStage::Placing {
            held_up: pending(pod, now).hindrance.is_some(),
        },
    }
}

/// Returns since when a migration waits for a slot. The transition of a pod that has just become ready is not written
/// yet.
fn waits_since(migration: &VirtualMachineInstanceMigration) -> Timestamp {
    reached_at(migration, MigrationPhase::Scheduled).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(name: &str, state: &Value) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state})
    }

    fn pod(node: Option<&str>, status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "q", "uid": "q"}, "spec": {"nodeName": node, "containers": []}, "status": status,
        }))
        .unwrap()
    }

    fn stage_of(status: &Value, deleted: bool, pod: Option<&Pod>, refused: bool) -> Option<QueueStage> {
        let mut migration = json!({
            "metadata": {"name": "m", "namespace": "shop", "uid": "u"}, "spec": {"vmiName": "web"}, "status": status,
        });
        if deleted {
            migration["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let instance: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"}, "spec": {"domain": {"devices": {}}},
            "status": {"nodeName": "a"},
        }))
        .unwrap();
        let entry = entry(
            &serde_json::from_value(migration).unwrap(),
            Some(&instance),
            pod,
            refused,
            Timestamp::UNIX_EPOCH,
        )?;
        assert_eq!((entry.name.as_str(), entry.source.as_str()), ("shop/m", "a"));
        Some(entry.stage)
    }

    #[test]
    fn stage_follows_target_pod_and_the_compute_container() {
        let (running, waiting) = (
            json!({"running": {}}),
            json!({"waiting": {"reason": "ContainerCreating"}}),
        );
        let containers = |all: &[Value]| json!({"phase": "Pending", "containerStatuses": all});
        let unschedulable = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
        let placing = |held_up| Some(QueueStage::Placing { held_up });
        let placed = |ready| {
            Some(QueueStage::Placed {
                target: "b".into(),
                ready,
            })
        };
        let (compute, sidecar) = (container("compute", &running), container("istio-proxy", &waiting));
        for (name, pod, expected) in [
            ("no pod", None, Some(QueueStage::Waiting)),
            ("no node yet", Some(pod(None, &json!({}))), placing(false)),
            ("no node takes it", Some(pod(None, &unschedulable)), placing(true)),
            (
                "its image cannot be had",
                Some(pod(
                    Some("b"),
                    &containers(&[container(
                        "compute",
                        &json!({"waiting": {"reason": "ImagePullBackOff"}}),
                    )]),
                )),
                placing(true),
            ),
            ("on a node", Some(pod(Some("b"), &json!({}))), placing(false)),
            (
                "its container starts",
                Some(pod(Some("b"), &containers(&[container("compute", &waiting)]))),
                placing(false),
            ),
            (
                "its container runs",
                Some(pod(Some("b"), &containers(std::slice::from_ref(&compute)))),
                placed(Timestamp::MAX),
            ),
            (
                "an injected sidecar starts later",
                Some(pod(Some("b"), &containers(&[compute.clone(), sidecar.clone()]))),
                placed(Timestamp::MAX),
            ),
            (
                "only an injected sidecar runs",
                Some(pod(
                    Some("b"),
                    &containers(&[container("compute", &waiting), container("istio-proxy", &running)]),
                )),
                placing(false),
            ),
        ] {
            assert_eq!(
                stage_of(&json!({"phase": "Scheduling"}), false, pod.as_ref(), false),
                expected,
                "{name}"
            );
        }
        let since = json!({
            "phase": "Scheduled",
            "phaseTransitionTimestamps": [{"phase": "Scheduled", "phaseTransitionTimestamp": "1970-01-01T00:00:09Z"}],
        });
        let bound = pod(Some("b"), &json!({}));
        let ready = Timestamp::from_second(9).unwrap();
        assert_eq!(stage_of(&since, false, Some(&bound), false), placed(ready));
    }

    #[test]
    fn refused_target_pod_holds_no_place_until_the_retry() {
        let pending = json!({"phase": "Pending"});
        assert_eq!(stage_of(&pending, false, None, true), Some(QueueStage::Refused));
        let bound = pod(Some("b"), &json!({}));
        assert_eq!(
            stage_of(&pending, false, Some(&bound), true),
            Some(QueueStage::Placing { held_up: false })
        );
        assert_eq!(stage_of(&pending, true, None, false), None);
        assert_eq!(stage_of(&json!({"phase": "Failed"}), false, None, false), None);
        let named = json!({"phase": "Running", "target": {"node": "b"}});
        assert_eq!(
            stage_of(&named, true, None, false),
            Some(QueueStage::Holding { target: "b".into() })
        );
    }
}
