//! The fate of each pod of an instance, and the pod that the guest is in.

use std::collections::BTreeSet;

use drydock_api::kubevirt::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;

use super::{
    ending::{EndedGuest, ended},
    observed_instance::{ObservedInstance, arrivals},
    uid,
};

/// The fate of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The container of the pod may be running.
    Alive,
    /// The container of the pod has ended.
    Ended(EndedGuest),
    /// The node of the pod is gone for good.
    GoneWithItsNode,
    /// The pod no longer exists, and no component has reported the end of its container.
    Vanished,
}

/// The pods of an instance and their fates.
pub(super) struct PodsView<'a> {
    pub(super) fates: Vec<(String, Fate)>,
    /// The pod that the guest runs, or will run, in.
    pub(super) main: Option<(Option<&'a Pod>, Fate)>,
}

impl<'a> PodsView<'a> {
    pub(super) fn of(observed: &ObservedInstance<'a>) -> Self {
        let status = observed.instance.status.as_ref();
        let here = (observed.moving.moved_to).or(status.and_then(|status| status.node_name.as_deref()));
        let recorded_uids: BTreeSet<&str> = status
            .and_then(|status| status.drydock.as_ref())
            .map(|drydock| drydock.ended_pods.iter().map(String::as_str).collect())
            .unwrap_or_default();
        let is_here = |node: Option<&str>| here.is_some() && node == here;
        let gone = |node: Option<&str>| node.is_some_and(|node| observed.state_of(node).is_gone_for_good());
        // Of several pods on its node, the guest is in the live one. The others are leftovers of earlier migrations:
        // pods that it has left, and pods that it never reached.
        let rank = |pod: &Pod, fate: &Fate| {
            let made = pod.metadata.creation_timestamp.clone();
            (*fate == Fate::Alive, is_known(observed, here, pod), made)
        };
        let mut fates = Vec::new();
        let mut main: Option<(Option<&Pod>, Fate)> = None;
        let mut best = None;
        for pod in observed.pods {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let reported = pod
                .metadata
                .uid
                .as_deref()
                .is_some_and(|uid| recorded_uids.contains(uid));
            let fate = match ended(pod) {
                Some(mut ended) => {
                    // The agent has pressed the power button, which the launcher does not know.
                    ended.evicted |= reported || node.is_some_and(|node| observed.state_of(node).is_without_object());
                    // The user deleted the instance, upon which the controller deleted the pod.
                    ended.evicted &= observed.instance.metadata.deletion_timestamp.is_none();
                    Fate::Ended(ended)
                }
                // The agent reports the end before the kubelet writes it, or while the kubelet cannot.
                None if reported => reported_end(observed.instance, &uid(pod)),
                None if gone(node) => Fate::GoneWithItsNode,
                None => Fate::Alive,
            };
            let rank = Some(rank(pod, &fate));
            if (is_here(node) || here.is_none()) && rank >= best {
                best = rank;
                main = Some((Some(pod.as_ref()), fate.clone()));
            }
            fates.push((uid(pod), fate));
        }
        let recorded = status.map(|status| status.active_pods.clone()).unwrap_or_default();
        for (uid, node) in recorded.into_iter().chain(arrivals(observed.moving.migrations)) {
            if fates.iter().any(|(known, _)| *known == uid) {
                continue;
            }
            let fate = if recorded_uids.contains(uid.as_str()) || observed.moving.have_emptied(&uid) {
                reported_end(observed.instance, &uid)
            } else if gone(Some(&node)) {
                Fate::GoneWithItsNode
            } else {
                Fate::Vanished
            };
            if is_here(Some(&node)) && !matches!(main, Some((_, Fate::Alive))) {
                main = Some((None, fate.clone()));
            }
            fates.push((uid, fate));
        }
        Self { fates, main }
    }
}

/// Returns whether the guest is or was in this pod: its agent has reported that, or a migration has brought it into the
/// pod and its agent has not reported it yet.
fn is_known(observed: &ObservedInstance<'_>, here: Option<&str>, pod: &Pod) -> bool {
    let drydock = observed
        .instance
        .status
        .as_ref()
        .and_then(|status| status.drydock.as_ref());
    let recorded = drydock.and_then(|drydock| drydock.pod_uid.as_deref());
    let brought = observed.moving.state.filter(|state| {
        let arrived = state.completed || observed.moving.moved_to.is_some();
        arrived && !state.failed && state.target_node.as_deref() == here
    });
    let name = brought.and_then(|state| state.target_pod.as_deref());
    (recorded.is_some() && recorded == pod.metadata.uid.as_deref())
        || (name.is_some() && name == pod.metadata.name.as_deref())
}

/// Returns the end of a guest as reported by its node's agent, or by the agent of either side of its migration.
fn reported_end(instance: &VirtualMachineInstance, pod_uid: &str) -> Fate {
    let drydock = instance.status.as_ref().and_then(|status| status.drydock.as_ref());
    let ending = drydock.and_then(|drydock| drydock.ending.as_ref());
    Fate::Ended(match ending.filter(|ending| ending.pod_uid == pod_uid) {
        Some(ending) => EndedGuest {
            outcome: Some(ending.outcome),
            message: ending.message.clone(),
            evicted: ending.evicted,
            by_kubelet: ending.by_kubelet,
        },
        None => EndedGuest {
            outcome: None,
            message: "the guest's pod or Node was deleted; the node's agent reported the end of the guest".into(),
            evicted: true,
            by_kubelet: false,
        },
    })
}
