//! The kubelets of all nodes, as far as launcher pods are concerned.
//!
//! ```text
//!  bound ─▶ runs ─▶ ready once its agent reports that a guest runs in it
//!            ├─ its guest has left ─▶ Succeeded, with the launcher's termination message
//!            └─ deleted ───────────▶ ended ─▶ removed
//! ```

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use drydock_api::{
    kubevirt::{Phase, names::GUEST_RUNNING},
    launcher::{CONTAINER, Ending, GuestOutcome},
};
use drydock_core::instance::ending::ended;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{latest::Latest, requests::Requests};

/// Delay from the binding of a pod to the start of its container: images are already present.
const STARTS_AFTER: Duration = Duration::from_millis(500);
/// Delay from the end of a container to the removal of its deleted pod.
///
/// A kubelet cleans up the pod before it removes it. In the meantime, the controller reads the end of the container; if
/// the pod were removed earlier, the agents would have to report it.
const REMOVED_AFTER: Duration = Duration::from_millis(700);
/// Time limit for the controller to read the end of a container.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// Pause after a failed write.
const RETRY: Duration = Duration::from_millis(200);

/// The kubelets of all nodes.
pub(crate) struct Kubelets {
    requests: Arc<Requests>,
    latest: Arc<Latest>,
    busy: Busy,
    /// UIDs of pods whose guests have left.
    left: Mutex<HashSet<String>>,
    addresses: AtomicU32,
}

/// Keys that are being processed, each with whether it has changed in the meantime.
#[derive(Default)]
pub(crate) struct Busy(Mutex<HashMap<String, bool>>);

impl Busy {
    /// Claims a key for the caller.
    ///
    /// Returns false if another caller processes the key, which then processes it again.
    pub(crate) fn begin(&self, key: &str) -> bool {
        let mut keys = self.0.lock();
        match keys.get_mut(key) {
            Some(again) => {
                *again = true;
                false
            }
            None => keys.insert(key.to_owned(), false).is_none(),
        }
    }

    /// Returns whether the caller has to process the key again; otherwise, releases the key.
    pub(crate) fn again(&self, key: &str) -> bool {
        let mut keys = self.0.lock();
        match keys.get_mut(key) {
            Some(again) if *again => {
                *again = false;
                true
            }
            _ => {
                keys.remove(key);
                false
            }
        }
    }
}

/// A kubelet's next action for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Todo {
    Start,
    MakeReady,
    End(GuestOutcome),
    Remove,
}

impl Kubelets {
    /// Creates the kubelets; they do nothing before [`Self::run`].
    pub(crate) fn new(requests: &Arc<Requests>, latest: &Arc<Latest>) -> Self {
        Self {
            requests: Arc::clone(requests),
            latest: Arc::clone(latest),
            busy: Busy::default(),
            left: Mutex::default(),
            addresses: AtomicU32::new(0),
        }
    }

    /// Reconciles all pods forever.
    pub(crate) async fn run(self: &Arc<Self>) {
        let mut changes = self.latest.pods.subscribe();
        while let Ok(uid) = changes.recv().await {
            self.reconcile(&uid);
        }
    }

    /// Records that the guest of a pod has left the pod for good.
    pub(crate) fn guest_left(self: &Arc<Self>, pod: &str) {
        let mut left = self.left.lock();
        left.insert(pod.to_owned());
        drop(left);
        self.reconcile(pod);
    }

    fn reconcile(self: &Arc<Self>, uid: &str) {
        if !self.busy.begin(uid) {
            return;
        }
        let (kubelets, uid) = (Arc::clone(self), uid.to_owned());
        tokio::spawn(async move {
            loop {
                kubelets.work(&uid).await;
                if !kubelets.busy.again(&uid) {
                    return;
                }
            }
        });
    }

    async fn work(&self, uid: &str) {
        while let Some(pod) = self.latest.pods.get(uid) {
            let left = self.left.lock().contains(uid);
            let Some(todo) = todo(&pod, left) else { return };
            match self.carry_out(todo, &pod).await {
                Ok(()) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => return,
                Err(error) => {
                    eprintln!("{todo:?} of pod {} failed: {error}", pod.name_any());
                    tokio::time::sleep(RETRY).await;
                }
            }
            if todo == Todo::Remove {
                return;
            }
        }
    }

    async fn carry_out(&self, todo: Todo, pod: &Pod) -> kube::Result<()> {
        let now = whole_seconds();
        match todo {
            Todo::Start => {
                tokio::time::sleep(STARTS_AFTER).await;
                let number = self.addresses.fetch_add(1, Ordering::Relaxed);
                let [_, b, c, d] = number.to_be_bytes();
                let address = format!("10.{}.{c}.{d}", 64 + b);
                let spec = pod.spec.as_ref();
                let image = spec.and_then(|spec| spec.containers.first()?.image.clone());
                let status = json!({
                    "phase": "Running", "startTime": now, "podIP": address, "podIPs": [{"ip": address}],
                    "conditions": [
                        condition("Initialized", true, &now), condition("ContainersReady", true, &now),
                        condition("PodReadyToStartContainers", true, &now), condition("Ready", false, &now),
                    ],
                    "containerStatuses": [{
                        "name": CONTAINER, "ready": true, "started": true, "restartCount": 0, "image": image, "imageID": "sha256:0",
                        "containerID": format!("containerd://{}", pod.uid().unwrap_or_default()),
                        "state": {"running": {"startedAt": now}},
                    }],
                });
                self.write(pod, status).await
            }
            Todo::MakeReady => {
                self.write(pod, json!({"conditions": [condition("Ready", true, &now)]}))
                    .await
            }
            Todo::End(outcome) => {
                let message = serde_json::to_string(&Ending {
                    outcome,
                    message: "as simulated".into(),
                    requested: None,
                });
                let status = json!({
                    "phase": "Succeeded",
                    "conditions": [condition("ContainersReady", false, &now), condition("Ready", false, &now)],
                    "containerStatuses": [{
                        "name": CONTAINER, "ready": false, "started": false,
                        "state": {"running": null, "terminated": {
                            "exitCode": 0, "reason": "Completed", "finishedAt": now, "message": message.unwrap_or_default(),
                        }},
                    }],
                });
                self.write(pod, status).await
            }
            Todo::Remove => {
                tokio::time::sleep(REMOVED_AFTER).await;
                let read = async {
                    while self.is_unread(pod) {
                        tokio::time::sleep(RETRY).await;
                    }
                };
                let _ = tokio::time::timeout(READ_WITHIN, read).await;
                let parameters = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: pod.uid(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default().grace_period(0)
                };
                self.requests.count("kubelets");
                self.api(pod).delete(&pod.name_any(), &parameters).await.map(drop)
            }
        }
    }

    /// Returns whether the phase of a pod's instance does not show the end of the guest yet.
    fn is_unread(&self, pod: &Pod) -> bool {
        let uid = self.latest.instance_of(&pod.uid().unwrap_or_default());
        let instance = uid.and_then(|uid| self.latest.instances.get(&uid));
        let status = instance.as_ref().and_then(|instance| instance.status.as_ref());
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        status.is_some_and(|status| status.node_name.as_deref() == node && !status.phase.is_some_and(Phase::is_final))
    }

    async fn write(&self, pod: &Pod, status: Value) -> kube::Result<()> {
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid()}, "status": status}));
        self.requests.count("kubelets");
        let mut response = self
            .api(pod)
            .patch_status(&pod.name_any(), &PatchParams::default(), &patch)
            .await?;
        response.managed_fields_mut().clear();
        self.latest.pods.store_response(response);
        Ok(())
    }

    fn api(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.requests.client.clone(), &pod.namespace().unwrap_or_default())
    }
}

fn todo(pod: &Pod, guest_left: bool) -> Option<Todo> {
    pod.spec.as_ref()?.node_name.as_ref()?;
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let holds = |type_: &str| {
        conditions
            .iter()
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    let started = status.container_statuses.as_ref().is_some_and(|all| !all.is_empty());
    if ended(pod).is_some() {
        return deleted.then_some(Todo::Remove);
    }
    match (started, guest_left, deleted) {
        (_, true, _) => Some(Todo::End(GuestOutcome::Migrated)),
        (true, false, true) => Some(Todo::End(GuestOutcome::Shutdown)),
        (false, false, true) => Some(Todo::Remove),
        (false, false, false) => Some(Todo::Start),
        (true, false, false) => (holds(GUEST_RUNNING) && !holds("Ready")).then_some(Todo::MakeReady),
    }
}

fn condition(type_: &str, holds: bool, now: &Timestamp) -> Value {
    json!({"type": type_, "status": if holds { "True" } else { "False" }, "lastTransitionTime": now})
}

/// Returns the current time in whole seconds, the precision of most times in API objects.
pub(crate) fn whole_seconds() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
