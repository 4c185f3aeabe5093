use std::collections::BTreeMap;

use attempt::EvictionResult;
use drydock_api::maintenance::IN_PROGRESS;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::conditions::find;

fn at(seconds: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds)
}

/// A cluster of one node, in which plans are executed immediately.
struct MaintenanceWorld {
    now: Timestamp,
    group: Group,
    object: Option<NodeMaintenance>,
    node: Option<Node>,
    lease: Option<Lease>,
    lease_fails: bool,
    /// Whether the API server refuses the Lease when it fails, instead of failing itself.
    lease_is_refused: bool,
    pods: BTreeMap<String, Arc<Pod>>,
    blocked: bool,
    attempts: BTreeMap<String, Attempt>,
    events: Vec<MaintenanceEvent>,
    evictions: BTreeMap<String, usize>,
    has_conflict: bool,
}

impl MaintenanceWorld {
    fn new(spec: &Value, cordoned: bool) -> Self {
        let mut spec = spec.clone();
        spec["nodeName"] = "n".into();
        Self {
            now: at(0),
            group: Group::Medik8s,
            object: Some(serde_json::from_value(json!({"metadata": {"name": "m", "uid": "m"}, "spec": spec})).unwrap()),
            node: Some(
                serde_json::from_value(
                    json!({"metadata": {"name": "n", "uid": "n1"}, "spec": {"unschedulable": cordoned}}),
                )
                .unwrap(),
            ),
            lease: None,
            lease_fails: false,
            lease_is_refused: true,
            pods: BTreeMap::new(),
            blocked: false,
            attempts: BTreeMap::new(),
            events: Vec::new(),
            evictions: BTreeMap::new(),
            has_conflict: false,
        }
    }

    fn add_pod(&mut self, name: &str) {
        let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "status": {"phase": "Running"}});
        self.pods
            .insert(name.into(), Arc::new(serde_json::from_value(pod).unwrap()));
    }

    fn turn(&self, lease_failure: Option<&LeaseFailure>) -> Option<Turn> {
        let pods: Vec<_> = self.pods.values().cloned().collect();
        let pdbs: [Arc<PodDisruptionBudget>; 0] = [];
        let known = PodContext {
            daemon_set_is_gone: &|_, _| false,
            pdbs: &pdbs,
        };
        let attempts = |uid: &str| self.attempts.get(uid).cloned();
        Some(next(&ObservedMaintenance {
            now: self.now,
            group: self.group,
            object: self.object.as_ref()?,
            node: self.node.as_ref(),
            lease: self.lease.as_ref(),
            lease_failure,
            has_conflict: self.has_conflict,
            pods: Some(&pods),
            pods_are_current: true,
            known,
            attempts: &attempts,
        }))
    }

    /// Executes plans until nothing is left to do now. Fails if that never ends.
    fn settle(&mut self) {
        let mut lease_failure = None;
        for _ in 0..40 {
            let Some(turn) = self.turn(lease_failure.as_ref()) else {
                return;
            };
            if turn.next == MaintenanceStep::Wait {
                return;
            }
            let evicts_nothing = matches!(&turn.next, MaintenanceStep::Evict(targets, _) if targets.is_empty());
            let evicts = matches!(turn.next, MaintenanceStep::Evict(..));
            if matches!(turn.next, MaintenanceStep::WriteLease(_)) && self.lease_fails {
                lease_failure = Some(LeaseFailure {
                    why: "no".into(),
                    is_refused: self.lease_is_refused,
                });
                continue;
            }
            self.carry_out(turn.next);
            self.events.extend(turn.events);
            if evicts_nothing && lease_failure.is_some() {
                return;
            }
            // The next reconcile begins.
            if evicts {
                lease_failure = None;
            }
        }
        panic!("it never settles: {:?}", self.turn(lease_failure.as_ref()));
    }

    fn carry_out(&mut self, next: MaintenanceStep) {
        match next {
            MaintenanceStep::Wait => {}
            MaintenanceStep::AddFinalizer => {
                self.edit(|object| object.metadata.finalizers = Some(vec![FINALIZER.into()]));
            }
            MaintenanceStep::RemoveFinalizer => {
                let finalizers = self
                    .object
                    .iter_mut()
                    .flat_map(|object| &mut object.metadata.finalizers);
                finalizers.for_each(|names| names.retain(|name| name != FINALIZER));
                self.object = self.object.take().filter(|object| {
                    let names = object.metadata.finalizers.iter().flatten();
                    names.count() > 0
                });
            }
            MaintenanceStep::Report(status) => self.edit(|object| object.status = Some(*status)),
            MaintenanceStep::WriteLease(write) => {
                assert_eq!(write.exists, self.lease.is_some());
                self.lease = Some(write.lease);
            }
            MaintenanceStep::ReleaseLease(release) => {
                assert!(
                    maintenance_lease::is_ours(self.lease.as_ref()),
                    "a foreign Lease is left alone"
                );
                self.lease = match release {
                    LeaseRelease::Delete => None,
                    LeaseRelease::Empty(empty) => Some(*empty),
                };
            }
            MaintenanceStep::WriteNode(patch) => self.patch_node(&patch),
            MaintenanceStep::WriteCondition(stage) => {
                let condition = node_changes::condition(stage, "m", self.now);
                let mut value = serde_json::to_value(self.node.as_ref().unwrap()).unwrap();
                value["status"] = json!({"conditions": [condition]});
                self.node = Some(serde_json::from_value(value).unwrap());
            }
            MaintenanceStep::Evict(targets, status) => {
                for target in targets {
                    self.evict(&target);
                }
                if let Some(status) = status {
                    self.edit(|object| object.status = Some(*status));
                }
            }
        }
    }

    fn evict(&mut self, target: &EvictionTarget) {
        let pod = &self.pods[&target.name];
        assert!(
            pod.metadata.deletion_timestamp.is_none(),
            "it is on its way out already"
        );
        let result = if self.blocked {
            EvictionResult::BlockedByPdb("the budget allows none".into())
        } else {
            *self.evictions.entry(target.uid.clone()).or_default() += 1;
            let mut pod = pod.as_ref().clone();
            pod.metadata.deletion_timestamp = Some(crate::conditions::whole_seconds(at(3600)));
            self.pods.insert(target.name.clone(), Arc::new(pod));
            EvictionResult::Accepted
        };
        let attempt = Attempt {
            at: self.now,
            result: Some(result),
            in_flight: false,
            unblocked: false,
        };
        self.attempts.insert(target.uid.clone(), attempt);
    }

    fn edit(&mut self, edit: impl FnOnce(&mut NodeMaintenance)) {
        edit(self.object.as_mut().unwrap());
    }

    fn patch_node(&mut self, patch: &Value) {
        let mut value = serde_json::to_value(self.node.as_ref().unwrap()).unwrap();
        for part in ["metadata", "spec"] {
            for (key, wanted) in patch[part].as_object().into_iter().flatten() {
                if key == "labels" {
                    for (label, wanted) in wanted.as_object().unwrap() {
                        if !value["metadata"]["labels"].is_object() {
                            value["metadata"]["labels"] = json!({});
                        }
                        let labels = value["metadata"]["labels"].as_object_mut().unwrap();
                        if wanted.is_null() {
                            labels.remove(label);
                        } else {
                            labels.insert(label.clone(), wanted.clone());
                        }
                    }
                } else {
                    value[part][key] = wanted.clone();
                }
            }
        }
        self.node = Some(serde_json::from_value(value).unwrap());
    }

    fn uncordon(&mut self) {
        self.patch_node(&json!({"spec": {"unschedulable": false, "taints": []}}));
    }

    /// Ends the pods that were evicted.
    fn end_pods(&mut self) {
        self.pods.retain(|_, pod| pod.metadata.deletion_timestamp.is_none());
    }

    fn delete(&mut self) {
        let now = self.now;
        self.edit(|object| object.metadata.deletion_timestamp = Some(crate::conditions::whole_seconds(now)));
    }

    fn steal_lease(&mut self) {
        let mut lease = self.lease.clone().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some("somebody".into());
        spec.renew_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(self.now));
        spec.lease_duration_seconds = Some(3600);
        self.lease = Some(lease);
    }

    fn status(&self) -> NodeMaintenanceStatus {
        self.object
            .as_ref()
            .and_then(|object| object.status.clone())
            .unwrap_or_default()
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap_or_default()
    }

    fn reason(&self) -> String {
        find(&self.status().conditions, report::DRAINED).map_or_else(String::new, |drained| drained.reason.clone())
    }

    fn cordoned(&self) -> bool {
        self.node.as_ref().is_some_and(node_changes::is_unschedulable)
    }

    fn event_count(&self, reason: &str) -> usize {
        self.events.iter().filter(|event| event.reason == reason).count()
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// Returns whether the node has no trace of the maintenance.
    fn is_given_back(&self, cordoned: bool) -> bool {
        let node = self.node.as_ref().unwrap();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let ours = |key: &str| key == self.group.drain_taint() || (!cordoned && key.contains("unschedulable"));
        let tainted = taints.is_some_and(|taints| taints.iter().any(|taint| ours(&taint.key)));
        let labels = node.metadata.labels.as_ref();
        self.cordoned() == cordoned
            && !tainted
            && labels.is_none_or(BTreeMap::is_empty)
            && !node_changes::is_announced(node)
            && maintenance_lease::release(self.group, self.lease.as_ref()).is_none()
    }
}

#[test]
fn deleted_maintenance_kept_by_others_reports_the_end() {
    for group in Group::ALL {
        let mut world = MaintenanceWorld::new(&json!({}), false);
        world.group = group;
        world.add_pod("a");
        world.settle();
        world.edit(|object| {
            object
                .metadata
                .finalizers
                .get_or_insert_default()
                .push("example.com/x".into());
        });
        world.delete();
        world.settle();
        assert!(world.is_given_back(false), "{group:?}");
        assert!(world.object.as_ref().is_some_and(is_over));
        assert_eq!(world.reason(), "Ended");
        let status = world.status();
        assert!(status.conditions[0].message.contains("example.com/x"));
        assert_eq!(
            (status.pending, status.last_error, status.estimated_end),
            (None, None, None)
        );
    }
}

#[test]
fn maintenance_is_overdue_after_thirty_seconds_not_empty() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    assert_eq!(report::overdue_at(&NodeMaintenanceStatus::default()), None);
    world.add_pod("a");
    world.blocked = true;
    world.settle();
    assert_eq!(report::overdue_at(&world.status()), Some(at(30)));
    let wake = |world: &MaintenanceWorld| world.turn(None).unwrap().wake;
    assert!(wake(&world).is_some_and(|wake| wake <= at(30)));
    world.blocked = false;
    world.pass(31);
    world.settle();
    world.end_pods();
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
    assert_eq!(report::overdue_at(&world.status()), None);
}

#[test]
fn a_node_is_closed_emptied_and_given_back() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.add_pod("a");
    world.add_pod("b");
    world.settle();
    assert!(world.cordoned());
    assert_eq!(
        (world.phase().as_str(), world.reason().as_str()),
        ("Running", "Terminating")
    );
    let status = world.status();
    assert_eq!(
        (status.total_pods, status.eviction_pods, status.pending),
        (Some(2), Some(2), Some(2))
    );
    assert_eq!(status.pending_pods, ["a", "b"]);
    assert!(status.estimated_end.is_some());
    world.end_pods();
    world.pass(1);
    world.settle();
    let status = world.status();
    assert_eq!(
        (world.phase().as_str(), status.drain_progress),
        ("Succeeded", Some(100))
    );
    assert_eq!(
        (status.last_error, status.pending, status.pods),
        (None, Some(0), vec![])
    );
    world.settle();
    world.delete();
    world.settle();
    assert!(world.object.is_none() && world.is_given_back(false));
    for (reason, times) in [
        ("BeginMaintenance", 1),
        ("SucceedMaintenance", 1),
        ("UncordonNode", 1),
        ("RemovedMaintenance", 1),
        ("FailedMaintenance", 0),
        ("CordonedAgain", 0),
    ] {
        assert_eq!(world.event_count(reason), times, "{reason}");
    }
    assert!(world.evictions.values().all(|times| *times == 1));
}

#[test]
fn a_cordon_from_before_stays() {
    let mut world = MaintenanceWorld::new(&json!({}), true);
    world.settle();
    assert_eq!(world.status().node_was_unschedulable, Some(true));
    world.delete();
    world.settle();
    assert!(world.object.is_none() && world.is_given_back(true));
    assert_eq!(world.event_count("UncordonNode"), 0);
}

#[test]
fn maintenance_of_another_operator_is_continued_and_ended() {
    let mut world = MaintenanceWorld::new(&json!({}), true);
    world.edit(|object| {
        object.metadata.finalizers = Some(vec![FINALIZER.into()]);
        object.status =
            Some(serde_json::from_value(json!({"phase": "Running", "evictionPods": 4, "drainProgress": 50})).unwrap());
    });
    world.add_pod("a");
    world.settle();
    let status = world.status();
    assert_eq!(
        (status.node_was_unschedulable, status.eviction_pods),
        (Some(false), Some(4))
    );
    assert_eq!(status.drain_progress, Some(75));
    assert_eq!(world.event_count("BeginMaintenance"), 0);
}

#[test]
fn late_pods_leave_and_a_node_opened_by_hand_is_closed_again() {
    let mut world = MaintenanceWorld::new(&json!({"timeout": "1m"}), false);
    world.settle();
    assert_eq!(world.phase(), "Succeeded");
    let completed = world.status().completion_time;
    // A node that has been empty has no deadline any more.
    world.pass(600);
    world.uncordon();
    world.add_pod("late");
    world.settle();
    assert!(world.cordoned());
    assert_eq!(
        (world.phase().as_str(), world.event_count("CordonedAgain")),
        ("Running", 1)
    );
    assert_eq!(world.status().drain_progress, Some(100), "progress never goes back");
    world.end_pods();
    world.pass(1);
    world.settle();
    assert_eq!(
        (world.phase().as_str(), world.status().completion_time),
        ("Succeeded", completed)
    );
    assert_eq!(world.event_count("SucceedMaintenance"), 2);
}

#[test]
fn blocked_pod_is_reported_until_gone() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.blocked = true;
    world.add_pod("a");
    world.settle();
    assert_eq!(world.reason(), "BlockedByBudget");
    assert_eq!(
        world.status().last_error.as_deref(),
        Some("error when evicting pods/\"a\" -n \"d\": the budget allows none")
    );
    assert_eq!(
        world.status().pods[0].last_refusal.as_deref(),
        Some("the budget allows none")
    );
    let wake = world.turn(None).unwrap().wake;
    assert_eq!(wake, Some(world.now + attempt::RETRY));
    world.blocked = false;
    world.pass(5);
    world.settle();
    world.end_pods();
    world.pass(1);
    world.settle();
    assert_eq!((world.phase().as_str(), world.status().last_error), ("Succeeded", None));
}

#[test]
fn maintenance_past_the_timeout_fails_and_uncordons_the_node() {
    let mut world = MaintenanceWorld::new(&json!({"timeout": "1m30s"}), false);
    world.blocked = true;
    world.add_pod("a");
    world.settle();
    world.pass(89);
    world.settle();
    assert_eq!(world.phase(), "Running");
    world.pass(1);
    world.settle();
    assert_eq!(
        (world.phase().as_str(), world.reason().as_str()),
        ("Failed", "TimedOut")
    );
    let error = world.status().last_error.unwrap();
    assert!(
        error.starts_with("maintenance failed: the node was not empty after 1m30s: error when evicting"),
        "{error}"
    );
    assert!(world.is_given_back(false));
    assert_eq!(world.event_count("FailedMaintenance"), 1);
    // Later changes by other clients are left alone, even when the object is deleted.
    world.patch_node(&json!({"spec": {"unschedulable": true}}));
    world.settle();
    world.delete();
    world.settle();
    assert!(world.object.is_none() && world.cordoned());
}

#[test]
fn foreign_lease_delays_start_and_ends_running_maintenance() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.steal_lease();
    world.settle();
    assert!(!world.cordoned(), "nothing is done to the node");
    assert!(
        node_changes::is_planned(world.node.as_ref().unwrap()),
        "but it is announced"
    );
    assert_eq!(
        (world.phase().as_str(), world.reason().as_str()),
        ("Running", "WaitingForLease")
    );
    assert_eq!(
        world.status().last_error.as_deref(),
        Some(
            "failed to obtain a lease that is not owned by us : can't update or invalidate the lease because it is held \
             by different owner: somebody errorOnLeaseCount 0"
        )
    );
    world.pass(3601);
    world.settle();
    assert_eq!((world.phase().as_str(), world.cordoned()), ("Succeeded", true));
    assert!(!node_changes::is_planned(world.node.as_ref().unwrap()), "it has begun");
    assert_eq!(
        world.lease.as_ref().unwrap().spec.as_ref().unwrap().lease_transitions,
        Some(1)
    );
    world.steal_lease();
    world.settle();
    assert_eq!(
        (world.phase().as_str(), world.reason().as_str()),
        ("Failed", "LeaseLost")
    );
    assert!(world.lease.is_some(), "a foreign Lease is left alone");
    assert!(!world.cordoned());
    let error = world.status().last_error.unwrap();
    assert!(
        error.starts_with("maintenance failed: lease could not be extended after 1 attempts"),
        "{error}"
    );
}

#[test]
fn maintenance_deleted_while_waiting_is_not_announced() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.steal_lease();
    world.settle();
    assert!(node_changes::is_announced(world.node.as_ref().unwrap()));
    world.delete();
    world.settle();
    assert!(world.object.is_none());
    assert!(!node_changes::is_announced(world.node.as_ref().unwrap()) && !world.cordoned());
    assert!(world.lease.is_some(), "a foreign Lease is left alone");
}

#[test]
fn node_change_before_the_lease_is_held_stays() {
    for (group, cordoned) in Group::ALL.map(|group| [(group, false), (group, true)]).concat() {
        for is_deleted_while_waiting in [false, true] {
            for lease_fails in [false, true] {
                let mut world = MaintenanceWorld::new(&json!({}), cordoned);
                (world.group, world.lease_fails) = (group, lease_fails);
                if !lease_fails {
                    world.steal_lease();
                }
                world.settle();
                assert_eq!(
                    (world.reason().as_str(), world.cordoned()),
                    ("WaitingForLease", cordoned)
                );
                world.patch_node(&json!({"spec": {"unschedulable": !cordoned}}));
                world.pass(3601);
                world.lease_fails = false;
                if !is_deleted_while_waiting {
                    world.settle();
                    assert_eq!((world.phase().as_str(), world.cordoned()), ("Succeeded", true));
                }
                world.delete();
                world.settle();
                let case = format!("{group:?} {cordoned} {is_deleted_while_waiting} {lease_fails}");
                assert!(world.object.is_none() && world.is_given_back(!cordoned), "{case}");
            }
        }
    }
}

#[test]
fn node_closed_before_the_lease_was_lost_is_opened() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.settle();
    // The maintenance had closed the node, and had not reported yet that it had the Lease.
    world.edit(|object| {
        let conditions = &mut object.status.get_or_insert_default().conditions;
        conditions.retain(|condition| condition.type_ != report::LEASE_HELD);
    });
    world.steal_lease();
    world.settle();
    assert_eq!(world.reason(), "WaitingForLease");
    world.pass(3601);
    world.settle();
    assert_eq!(world.status().node_was_unschedulable, Some(false));
    world.delete();
    world.settle();
    assert!(world.object.is_none() && world.is_given_back(false));
}

#[test]
fn failing_lease_is_written_once_in_each_interval() {
    let interval = maintenance_lease::RETRY.as_secs();
    for held_before in [false, true] {
        let mut world = MaintenanceWorld::new(&json!({}), false);
        if held_before {
            world.settle();
            world.pass(1200);
        }
        world.lease_fails = true;
        let began = world.now;
        for attempt in 1..4 {
            world.settle();
            for _ in 0..2 {
                assert_eq!(world.status().error_on_lease_count, Some(attempt));
                let turn = world.turn(None).unwrap();
                let next = began + SignedDuration::from_secs(interval * attempt);
                assert_eq!(
                    (turn.next, turn.wake),
                    (MaintenanceStep::Wait, Some(next)),
                    "{held_before}"
                );
                world.pass(1);
                world.settle();
            }
            world.pass(interval - 2);
        }
        // The clock is set back.
        world.pass(-3600);
        world.settle();
        assert_eq!(world.status().error_on_lease_count, Some(4));
        world.lease_fails = false;
        world.pass(interval);
        world.settle();
        assert_eq!(
            (world.phase().as_str(), world.status().error_on_lease_count),
            ("Succeeded", None)
        );
    }
}

#[test]
fn reports_of_pods_do_not_delay_a_failing_lease() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.settle();
    world.pass(1200);
    world.lease_fails = true;
    for second in 0..60 {
        world.add_pod(&format!("pod-{second}"));
        world.settle();
        world.pass(1);
    }
    assert_eq!(world.status().error_on_lease_count, Some(4));
}

#[test]
fn lease_is_lost_by_time_not_by_failed_renewals() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.settle();
    world.lease_fails = true;
    world.pass(1200);
    for attempt in 1..=20 {
        world.settle();
        assert_eq!(world.status().error_on_lease_count, Some(attempt));
        assert_eq!(world.phase(), "Succeeded", "{attempt}");
        world.pass(29);
    }
    world.pass(20);
    world.settle();
    assert_eq!(
        (world.phase().as_str(), world.reason().as_str()),
        ("Failed", "LeaseLost")
    );
    let mut renewed = MaintenanceWorld::new(&json!({}), false);
    renewed.settle();
    for _ in 0..100 {
        renewed.pass(1200);
        renewed.settle();
    }
    assert_eq!(
        (renewed.phase().as_str(), renewed.status().error_on_lease_count),
        ("Succeeded", None)
    );
}

#[test]
fn maintenance_outlasts_an_overloaded_api_server() {
    let interval = maintenance_lease::RETRY.as_secs();
    for group in Group::ALL {
        let mut world = MaintenanceWorld::new(&json!({}), false);
        (world.group, world.lease_fails) = (group, false);
        world.settle();
        world.pass(1200);
        world.lease_fails = true;
        let held = |world: &MaintenanceWorld| {
            let status = world.status();
            let held = find(&status.conditions, report::LEASE_HELD).unwrap();
            (held.status.clone(), held.reason.clone())
        };
        // Nine minutes of refusals before two hours of overload do not count with those after that.
        for (is_refused, minutes, expected) in [
            (true, 9, ("False", "RenewalFailed")),
            (false, 120, ("Unknown", "RenewalDelayed")),
            (true, 9, ("False", "RenewalFailed")),
        ] {
            world.lease_is_refused = is_refused;
            let before = world.status().error_on_lease_count.unwrap_or_default();
            for _ in 0..minutes * 60 / interval {
                world.settle();
                assert_eq!(world.phase(), "Succeeded", "{group:?}");
                world.pass(interval);
            }
            let (status, reason) = held(&world);
            assert_eq!((status.as_str(), reason.as_str()), expected);
            let count = world.status().error_on_lease_count.unwrap_or_default();
            assert_eq!(count - before, minutes * 60 / interval, "attempts");
        }
        let mut renewed = world;
        renewed.lease_fails = false;
        renewed.settle();
        assert_eq!(held(&renewed), ("True".into(), "Held".into()));
        assert_eq!(renewed.status().error_on_lease_count, None);
    }
}

#[test]
fn missing_node_fails_a_maintenance_until_the_node_returns() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.settle();
    let node = world.node.take();
    world.settle();
    assert_eq!(
        (world.phase().as_str(), world.reason().as_str()),
        ("Failed", "NodeNotFound")
    );
    assert_eq!(world.status().last_error.as_deref(), Some("nodes \"n\" not found"));
    assert!(world.lease.is_none());
    let mut again = node.unwrap();
    again.metadata.uid = Some("n2".into());
    again.spec = None;
    again.metadata.labels = None;
    again.status = None;
    world.node = Some(again);
    world.settle();
    assert_eq!((world.phase().as_str(), world.cordoned()), ("Succeeded", true));
    assert_eq!(world.status().node_uid.as_deref(), Some("n2"));
    world.node = None;
    world.delete();
    world.settle();
    assert!(world.object.is_none());
}

#[test]
fn conflicting_maintenance_does_not_change_the_node() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.has_conflict = true;
    world.settle();
    assert_eq!(
        (world.phase().as_str(), world.reason().as_str()),
        ("Failed", "AnotherMaintenance")
    );
    assert!(!world.cordoned() && world.lease.is_none());
    world.has_conflict = false;
    world.settle();
    assert_eq!(
        (world.phase().as_str(), world.event_count("BeginMaintenance")),
        ("Succeeded", 1)
    );
}

#[test]
fn pods_that_are_not_known_are_not_taken_for_none() {
    let mut world = MaintenanceWorld::new(&json!({}), false);
    world.settle();
    let known = PodContext {
        daemon_set_is_gone: &|_, _| false,
        pdbs: &[],
    };
    let seen = |pods: Option<&'static [Arc<Pod>]>, current: bool| {
        let turn = next(&ObservedMaintenance {
            now: world.now,
            group: world.group,
            object: world.object.as_ref().unwrap(),
            node: world.node.as_ref(),
            lease: world.lease.as_ref(),
            lease_failure: None,
            has_conflict: false,
            pods,
            pods_are_current: current,
            known,
            attempts: &|_| None,
        });
        match turn.next {
            MaintenanceStep::Evict(_, Some(status)) => status.phase,
            MaintenanceStep::Wait => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(seen(None, false).as_deref(), Some("Running"));
    assert_eq!(seen(Some(&[]), false).as_deref(), Some("Running"));
    // The first list of a new leader is in flight, and the report of the previous leader stays.
    assert_eq!(world.phase(), "Succeeded");
    assert_eq!(seen(None, true), None);
}

#[test]
fn counts_are_written_once_a_second_and_transitions_at_once() {
    let before = NodeMaintenanceStatus {
        phase: Some("Running".into()),
        last_update: Some(crate::conditions::whole_seconds(at(0))),
        ..NodeMaintenanceStatus::default()
    };
    let mut after = before.clone();
    assert_eq!(report::worth_writing(&before, after.clone(), at(0)), (None, None));
    after.pending = Some(3);
    assert_eq!(
        report::worth_writing(&before, after.clone(), at(0)),
        (None, Some(at(1)))
    );
    assert!(report::worth_writing(&before, after.clone(), at(1)).0.is_some());
    after.phase = Some("Succeeded".into());
    assert!(report::worth_writing(&before, after, at(0)).0.is_some());
}

/// An event in the world.
#[derive(Clone, Copy, Debug)]
enum Happens {
    AddPod(u8),
    EndPods,
    Block,
    Unblock,
    Uncordon,
    ForgetAttempts,
    Pass(u16),
    LeaseFails(bool),
    LeaseWorks,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0..6u8).prop_map(Happens::AddPod),
        Just(Happens::EndPods),
        Just(Happens::Block),
        Just(Happens::Unblock),
        Just(Happens::Uncordon),
        Just(Happens::ForgetAttempts),
        (0..2000u16).prop_map(Happens::Pass),
        any::<bool>().prop_map(Happens::LeaseFails),
        Just(Happens::LeaseWorks),
    ]
}

proptest! {
    #[test]
    fn maintenance_always_settles_and_gives_the_node_back(
        cordoned: bool,
        kubevirt: bool,
        all in prop::collection::vec(happens(), 0..30),
    ) {
        let mut world = MaintenanceWorld::new(&json!({}), cordoned);
        if kubevirt {
            world.group = Group::KubeVirt;
        }
        world.settle();
        let mut progress = 0;
        for (index, happens) in all.into_iter().enumerate() {
            match happens {
                Happens::AddPod(name) => world.add_pod(&format!("{name}-{index}")),
                Happens::EndPods => world.end_pods(),
                Happens::Block => world.blocked = true,
                Happens::Unblock => world.blocked = false,
                // Changes to a node that has been restored are ignored.
                Happens::Uncordon if world.phase() == "Failed" => {}
                Happens::Uncordon => world.uncordon(),
                // Another controller takes over.
                Happens::ForgetAttempts => world.attempts.clear(),
                Happens::Pass(seconds) => world.pass(seconds.into()),
                Happens::LeaseFails(is_refused) => (world.lease_fails, world.lease_is_refused) = (true, is_refused),
                Happens::LeaseWorks => world.lease_fails = false,
            }
            world.settle();
            let status = world.status();
            let now = status.drain_progress.unwrap_or_default();
            prop_assert!(now >= progress && now <= 100);
            progress = now;
            if world.phase() == "Succeeded" {
                prop_assert!(world.cordoned() && world.pods.is_empty());
                prop_assert_eq!(now, 100);
            }
            let count = usize::try_from(status.pending.unwrap_or_default()).unwrap();
            prop_assert_eq!(count, status.pods.len());
        }
        prop_assert!(world.evictions.values().all(|times| *times == 1), "nothing is evicted twice");
        world.lease_fails = false;
        if world.object.is_some() {
            world.delete();
            world.settle();
        }
        prop_assert!(world.object.is_none());
        prop_assert!(world.is_given_back(cordoned));
        let in_progress = world.node.as_ref().and_then(|node| node.status.clone());
        for condition in in_progress.and_then(|status| status.conditions).into_iter().flatten() {
            prop_assert_eq!((condition.type_.as_str(), condition.status.as_str()), (IN_PROGRESS, "False"));
        }
    }
}
