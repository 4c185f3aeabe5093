"""Drydock is removed as deploy/docs/uninstall.md describes it, and installed again.

    a machine runs ──▶ kubectl delete -k deploy: refused ──▶ the Job: refused ──▶ kubectl apply -k deploy
        │ machine deleted
        ▼
    the Job ──▶ kubectl delete -k ──▶ nothing is left ──▶ installed again, a machine runs
        │ controllers deleted, machine deleted: it is stuck
        ▼
    kubectl patch ──▶ it is gone

It takes a cluster away from all other tests, so it runs on the first one that has no more of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any

from embedded import cluster as clusters
from embedded import waiting
from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from .install import apply, overlay, uninstall_overlay
from .outcome import Outcome

# All kinds whose objects need Drydock, as the page names them.
IN_USE = "vm,vmirs,vmi,vmim,nodemaintenances.nodemaintenance.medik8s.io,nodemaintenances.nodemaintenance.kubevirt.io"
# Kinds of the parts that no user may delete meanwhile.
PROTECTED = (
    "namespaces,customresourcedefinitions,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,services,"
    "deployments,daemonsets"
)
# Kinds of the parts that are deleted all the same: no webhook is called for them.
POLICIES = (
    "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingwebhookconfigurations,"
    "validatingwebhookconfigurations"
)
PARTS = "app.kubernetes.io/part-of=drydock"
FOLDERS = ("/var/lib/drydock", "/var/lib/kubelet/seccomp/drydock", "/var/lib/kubelet/device-plugins/drydock-kvm.sock")
CONDITIONS = {"DrainInProgress", "Drained", "MaintenanceInProgress", "MaintenancePlanned"}
RELEASE = '{"metadata":{"finalizers":null}}'

MACHINE = """
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s, namespace: default}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 10
      domain:
        resources: {requests: {memory: 96Mi}}
        devices: {disks: [{name: root, disk: {bus: virtio}}]}
      volumes:
        - name: root
          containerDisk: {image: "localhost/drydock/bare-guest:dev", imagePullPolicy: IfNotPresent}
"""

Test = Callable[[Cluster, Progress], None]


def left_on(node: dict[str, Any]) -> list[str]:
    """What a node still has of Drydock: a line for each label, annotation, taint, condition and resource. A device resource
    of which nothing can be allocated is the kubelet's memory of it: its capacity stays for five minutes."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})

    def is_ours(key: str) -> bool:
        prefix = key.partition("/")[0]
        return any(prefix == domain or prefix.endswith(f".{domain}") for domain in ("kubevirt.io", "drydock.dev", "medik8s.io"))

    found = [f"label {key}" for key in metadata.get("labels", {}) if is_ours(key)]
    found += [f"annotation {key}" for key in metadata.get("annotations", {}) if is_ours(key)]
    found += [f"taint {taint['key']}" for taint in spec.get("taints", []) if is_ours(taint["key"])]
    found += [f"condition {one['type']}" for one in status.get("conditions", []) if one["type"] in CONDITIONS]
    allocatable = status.get("allocatable", {})
    found += [f"allocatable {key}={amount}" for key, amount in allocatable.items() if is_ours(key) and amount != "0"]
    return sorted(found)


def leaving(items: Iterable[dict[str, Any]]) -> list[str]:
    """Objects that are being deleted."""
    return [
        f"{item['kind']} {item['metadata']['name']}" for item in items if item["metadata"].get("deletionTimestamp") is not None
    ]


def names(items: Iterable[dict[str, Any]]) -> set[str]:
    """Objects by kind, namespace and name."""
    return {"/".join((item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])) for item in items}


def is_wanted(word: str) -> bool:
    """Whether a word selects one of the steps."""
    return any(word in name for name, _ in TESTS)


def run(cluster: str, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """All steps in their order on a cluster with Drydock. After one that fails, the others are not run."""
    outcome = Outcome()
    wanted = [name for name, _ in TESTS if arguments.only in name]
    if not wanted:
        return outcome
    made = clusters.load(cluster, progress)
    for name, test in TESTS:
        if outcome.failed:
            if name in wanted:
                outcome.failed.append(f"{name}: not run, as an earlier step failed")
            continue
        try:
            with progress.step(f"{name} on {cluster}", announce=True):
                test(made, progress)
        except Failure as failure:
            outcome.failed.append(name)
            outcome.reasons[name] = str(failure)
        else:
            # Each step needs those before it, also if only this one is requested.
            outcome.passed += name in wanted
        if name == wanted[-1]:
            break
    return outcome


def _items(made: Cluster, *arguments: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(made.kubectl("get", *arguments, "-o", "json"))["items"]
    return items


def _parts(made: Cluster, kinds: str) -> list[dict[str, Any]]:
    return _items(made, kinds, "--all-namespaces", "-l", PARTS)


def _require(holds: bool, what: str, detail: str = "") -> None:
    if not holds:
        raise Failure(what, detail)


def _start(made: Cluster, name: str) -> None:
    made.kubectl("apply", "-f", "-", input=MACHINE % name)
    made.kubectl("wait", "vm", name, "--for=condition=Ready", "--timeout=120s")


def _delete_users(made: Cluster) -> None:
    """Delete the objects that the page lists to be deleted first."""
    for kind in IN_USE.split(","):
        made.kubectl("delete", kind, "--all", "--all-namespaces", "--timeout=60s")


def _job(made: Cluster, condition: str) -> str:
    """Run the Job anew until it is `complete` or `failed`; return its log."""
    job = ("-n", "drydock-uninstall", "job/drydock-uninstall")
    made.kubectl("-n", "drydock-uninstall", "delete", "job", "drydock-uninstall", "--ignore-not-found")
    made.kubectl("apply", "-k", str(uninstall_overlay(made)))
    try:
        made.kubectl("wait", *job, f"--for=condition={condition}", "--timeout=120s")
    except Failure as failure:
        raise Failure(f"the Job is not {condition}", made.kubectl("logs", *job, check=False)) from failure
    return made.kubectl("logs", *job)


def _refused(made: Cluster, progress: Progress) -> None:
    # Other tests may have left some.
    _delete_users(made)
    _start(made, "left")
    before, policies = _parts(made, PROTECTED), _parts(made, POLICIES)
    instance = made.kubectl("get", "vmi", "left", "-o", "jsonpath={.metadata.uid}")
    # The first attempt deletes the webhook configurations of the manifests: the second must not succeed because of that.
    for attempt in ("first", "second"):
        printed = made.kubectl("delete", "-k", str(overlay(made)), "--wait=false", check=False)
        for words in ("1 VirtualMachine (default/left)", "1 VirtualMachineInstance (default/left)", "deploy/docs/uninstall.md"):
            _require(words in printed, f"the {attempt} attempt is not refused with {words!r}", printed)
        now = _parts(made, PROTECTED)
        _require(names(now) == names(before), f"the {attempt} attempt deleted parts", ", ".join(names(before) - names(now)))
        _require(not leaving(now), f"the {attempt} attempt deletes parts", ", ".join(leaving(now)))
    printed = _job(made, "failed")
    _require("1 VirtualMachine (default/left)" in printed, "the Job does not name the machine", printed)
    made.kubectl("apply", "-k", str(overlay(made)))
    now = _parts(made, POLICIES)
    _require(names(now) == names(policies), "policies are not restored", ", ".join(names(policies) ^ names(now)))
    made.kubectl("wait", "vm", "left", "--for=condition=Ready", "--timeout=30s")
    same = made.kubectl("get", "vmi", "left", "-o", "jsonpath={.metadata.uid}")
    _require(same == instance, "the machine was started anew")


def _nothing_on_nodes(made: Cluster) -> None:
    for node in _items(made, "nodes"):
        name = node["metadata"]["name"]
        _require(not left_on(node), f"something is left on {name}", ", ".join(left_on(node)))
        for folder in FOLDERS:
            found = made.in_node(name, ["sh", "-c", f"test -e {folder} && echo there || true"])
            _require(not found.strip(), f"{folder} is left on {name}")


def _removed(made: Cluster, progress: Progress) -> None:
    before = [left_on(node) for node in _items(made, "nodes")]
    _require(all(len(lines) > 2 for lines in before), "nodes have nothing of Drydock", repr(before))
    parts = names(_parts(made, f"{PROTECTED},{POLICIES}"))
    _require(any(part.endswith("/drydock-removal") for part in parts), "there is no drydock-removal", ", ".join(sorted(parts)))
    _delete_users(made)
    _job(made, "complete")
    _nothing_on_nodes(made)
    made.kubectl("delete", "-k", str(uninstall_overlay(made)), "--timeout=60s")
    # The Job has deleted the workloads.
    made.kubectl("delete", "-k", str(overlay(made)), "--ignore-not-found", "--timeout=90s")
    # Kubernetes' garbage collector deletes what belonged to a deleted object.
    waiting.until(lambda: not _parts(made, f"{PROTECTED},{POLICIES}"), "Drydock's parts to be gone", patience=30)
    everything = names(_items(made, f"{PROTECTED},{POLICIES}", "--all-namespaces"))
    left = {name for name in everything if name in parts or name.rpartition("/")[2].startswith("drydock")}
    _require(not left, "objects are left", ", ".join(sorted(left)))
    budgets = _items(made, "poddisruptionbudgets", "--all-namespaces", "-l", "drydock.dev/launcher")
    _require(not budgets, "budgets are left", ", ".join(sorted(names(budgets))))
    _nothing_on_nodes(made)


def _installed_again(made: Cluster, progress: Progress) -> None:
    apply(made, progress)
    _start(made, "again")


def _released(made: Cluster, progress: Progress) -> None:
    deployment = ("-n", "drydock", "deployment", "drydock-controller")
    made.kubectl("annotate", *deployment, "drydock.dev/confirm-removal=true")
    made.kubectl("delete", *deployment, "--cascade=foreground")
    made.kubectl("delete", "vm", "again", "--wait=false")
    stuck = made.kubectl("get", "vm", "again", "-o", "jsonpath={.metadata.deletionTimestamp}")
    _require(bool(stuck), "the machine is not stuck")
    for kind in ("vm", "vmi"):
        made.kubectl("patch", kind, "again", "--type=merge", "-p", RELEASE)
    made.kubectl("delete", "vmi", "again", "--ignore-not-found", "--timeout=30s")
    gone = ("--all-namespaces", "-o", "name")
    waiting.until(
        lambda: not made.kubectl("get", "vm,vmi,pods", *gone, "-l", "kubevirt.io=virt-launcher").strip()
        and not made.kubectl("get", "vm,vmi", *gone).strip(),
        "the machine and its pod to be gone",
        patience=60,
    )
    apply(made, progress)


TESTS: tuple[tuple[str, Test], ...] = (
    ("removal_is_refused_while_a_machine_runs", _refused),
    ("removal_leaves_nothing_on_nodes_and_no_object", _removed),
    ("removal_is_followed_by_another_installation", _installed_again),
    ("removal_of_stuck_machines_takes_plain_patches", _released),
)
