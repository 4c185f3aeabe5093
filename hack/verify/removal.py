"""Tests that Drydock can be removed as deploy/docs/uninstall.md describes, and installed again.

    a machine runs ──▶ kubectl delete -k deploy: refused ──▶ the Job: refused ──▶ kubectl apply -k deploy
        │ machine deleted
        ▼
    the Job ──▶ kubectl delete -k ──▶ nothing is left ──▶ installed again, README.md's first machine runs, and another
        │ controllers deleted, machines deleted: they are stuck
        ▼
    kubectl patch ──▶ they are deleted

The commands are read from the pages.

No other test can use the cluster meanwhile, so these steps run on the first cluster that has no other tests left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from typing import Any

from embedded import cluster as clusters
from embedded import commands, waiting
from embedded.cluster import Cluster
from embedded.errors import Failure
from embedded.progress import Progress

from . import pages
from .install import apply, overlay, uninstall_overlay
from .outcome import Outcome
from .runner import REPOSITORY

PAGE = "deploy/docs/uninstall.md"
START = "README.md"
RENAMED = "deploy/docs/renamed.md"
# Kinds of Drydock's parts that no user may delete while the removal is refused.
PROTECTED = (
    "namespaces,customresourcedefinitions,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,services,"
    "deployments,daemonsets"
)
# Kinds of Drydock's parts that are deleted nevertheless: the API server calls no webhook for them.
POLICIES = (
    "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingwebhookconfigurations,"
    "validatingwebhookconfigurations"
)
PARTS = "app.kubernetes.io/part-of=drydock"
FOLDERS = ("/var/lib/drydock", "/var/lib/kubelet/seccomp/drydock", "/var/lib/kubelet/device-plugins/drydock-kvm.sock")
CONDITIONS = {"DrainInProgress", "Drained", "MaintenanceInProgress", "MaintenancePlanned"}
# The guest of README.md's image prints this once it has booted. Until then, it ignores its power button.
BOOTED = "drydock-guest ready"

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

# A policy of an earlier version, which an update does not delete. This policy applies to no object.
LEFT_BY_UPDATE = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: drydock-controller-witnesses}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [none.drydock.dev], apiVersions: [v1], operations: [CREATE], resources: [nothing]}]
  validations: [{expression: "true"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: drydock-controller-witnesses}
spec: {policyName: drydock-controller-witnesses, validationActions: [Deny]}
"""

Test = Callable[[Cluster, Progress], None]


def left_on(node: dict[str, Any]) -> list[str]:
    """Return a line for each label, annotation, taint, condition and resource that Drydock left on a node.

    A device resource of which nothing is allocatable does not count: the kubelet keeps its capacity for five minutes.
    """
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
    """Return the kind and name of each object that is being deleted."""
    return [
        f"{item['kind']} {item['metadata']['name']}" for item in items if item["metadata"].get("deletionTimestamp") is not None
    ]


def names(items: Iterable[dict[str, Any]]) -> set[str]:
    """Return each object as `kind/namespace/name`."""
    return {"/".join((item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])) for item in items}


def is_wanted(word: str) -> bool:
    """Return whether a word is part of the name of a step."""
    return any(word in name for name, _ in TESTS)


def run(cluster: str, arguments: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the steps in order on a cluster with Drydock, up to the last selected one. After a failure, run no further steps."""
    outcome = Outcome()
    wanted = [name for name, _ in TESTS if arguments.only in name]
    if not wanted:
        return outcome
    made = clusters.load(cluster, progress)
    for name, test in TESTS:
        if outcome.failed:
            if name in wanted:
                outcome.failed.append(f"{name}: not run: an earlier step failed")
            continue
        try:
            with progress.step(f"{name} on {cluster}", announce=True):
                test(made, progress)
        except Failure as failure:
            outcome.failed.append(name)
            outcome.reasons[name] = str(failure)
        else:
            # Each step needs the earlier ones: these run even if they are not selected, but do not count.
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


def _shell(made: Cluster, script: str, timeout: float = 90) -> str:
    """Run a command of a page in a shell, as its reader does, and return its output."""
    folder = os.path.dirname(str(made.description["kubectl"]))
    environment = {**made.environment(), "PATH": f"{folder}:{os.environ['PATH']}"}
    return commands.run("bash", "-ec", script, environment=environment, timeout=timeout)


def _delete_users(made: Cluster) -> None:
    """Delete the objects that, according to the page, must be deleted first."""
    _shell(made, pages.script(PAGE, "kubectl delete vm,vmirs"), timeout=180)
    _shell(made, pages.script(PAGE, "kubectl delete nodemaintenances"))


def _begin_job(made: Cluster) -> None:
    made.kubectl("-n", "drydock-uninstall", "delete", "job", "drydock-uninstall", "--ignore-not-found")
    _shell(made, pages.script(PAGE, "kubectl apply -k deploy/uninstall", {"deploy/uninstall": str(uninstall_overlay(made))}))


def _job_fails(made: Cluster) -> str:
    """Run the Job, wait until it has failed, and return its log."""
    _begin_job(made)
    job = ("-n", "drydock-uninstall", "job/drydock-uninstall")
    try:
        made.kubectl("wait", *job, "--for=condition=failed", "--timeout=120s")
    except Failure as failure:
        raise Failure("the Job has not failed", made.kubectl("logs", *job, check=False)) from failure
    return made.kubectl("logs", *job)


def _job_completes(made: Cluster) -> None:
    """Run the Job, follow its log and wait until it is complete, with the commands of the page."""
    _begin_job(made)
    printed = _shell(made, pages.script(PAGE, "kubectl -n drydock-uninstall logs"), timeout=240)
    complete = "--for=condition=Complete"
    try:
        _shell(made, pages.script(PAGE, "kubectl -n drydock-uninstall wait", {complete: f"{complete} --timeout=120s"}), timeout=150)
    except Failure as failure:
        raise Failure("the Job is not complete", printed) from failure


def _refused(made: Cluster, progress: Progress) -> None:
    # Other tests may have left such objects.
    _delete_users(made)
    _start(made, "left")
    before, policies = _parts(made, PROTECTED), _parts(made, POLICIES)
    instance = made.kubectl("get", "vmi", "left", "-o", "jsonpath={.metadata.uid}")
    # The first attempt deletes the webhook configurations in the manifests. The second attempt must be refused nevertheless.
    for attempt in ("first", "second"):
        printed = made.kubectl("delete", "-k", str(overlay(made)), "--wait=false", check=False)
        for words in ("1 VirtualMachine (default/left)", "1 VirtualMachineInstance (default/left)", "deploy/docs/uninstall.md"):
            _require(words in printed, f"the refusal of the {attempt} attempt does not contain {words!r}", printed)
        now = _parts(made, PROTECTED)
        _require(names(now) == names(before), f"the {attempt} attempt deleted parts of Drydock", ", ".join(names(before) - names(now)))
        _require(not leaving(now), f"the {attempt} attempt marked parts of Drydock for deletion", ", ".join(leaving(now)))
    printed = _job_fails(made)
    _require("1 VirtualMachine (default/left)" in printed, "the log of the Job does not name the machine", printed)
    made.kubectl("apply", "-k", str(overlay(made)))
    now = _parts(made, POLICIES)
    _require(names(now) == names(policies), "the policies were not restored", ", ".join(names(policies) ^ names(now)))
    made.kubectl("wait", "vm", "left", "--for=condition=Ready", "--timeout=30s")
    same = made.kubectl("get", "vmi", "left", "-o", "jsonpath={.metadata.uid}")
    _require(same == instance, "the instance of the machine was replaced")


def _nothing_on_nodes(made: Cluster) -> None:
    for node in _items(made, "nodes"):
        name = node["metadata"]["name"]
        _require(not left_on(node), f"Drydock left changes on node {name}", ", ".join(left_on(node)))
        for folder in FOLDERS:
            found = made.in_node(name, ["sh", "-c", f"test -e {folder} && echo there || true"])
            _require(not found.strip(), f"{folder} still exists on node {name}")


def _removed(made: Cluster, progress: Progress) -> None:
    before = [left_on(node) for node in _items(made, "nodes")]
    _require(all(len(lines) > 2 for lines in before), "a node has almost no labels of Drydock before the removal", repr(before))
    parts = names(_parts(made, f"{PROTECTED},{POLICIES}"))
    _require(any(part.endswith("/drydock-removal") for part in parts), "the object drydock-removal does not exist", ", ".join(sorted(parts)))
    _delete_users(made)
    _job_completes(made)
    _nothing_on_nodes(made)
    _shell(made, pages.script(PAGE, "kubectl delete -k deploy/uninstall", {"deploy/uninstall": str(uninstall_overlay(made))}))
    _shell(made, pages.script(PAGE, "kubectl delete -k deploy/console", {"deploy/console": str(REPOSITORY / "deploy" / "console")}))
    # The Job has deleted the workloads.
    _shell(made, pages.script(PAGE, "kubectl delete -k deploy --ignore-not-found", {"deploy": str(overlay(made))}), timeout=120)
    for node in made.nodes:
        _shell(made, pages.script(PAGE, "kubectl patch node NODE", {"NODE": node.name}))
    # Kubernetes' garbage collector deletes the dependents of deleted objects.
    waiting.until(lambda: not _parts(made, f"{PROTECTED},{POLICIES}"), "Drydock's parts to be deleted", patience=30)
    everything = names(_items(made, f"{PROTECTED},{POLICIES}", "--all-namespaces"))
    left = {name for name in everything if name in parts or name.rpartition("/")[2].startswith("drydock")}
    _require(not left, "objects of Drydock still exist", ", ".join(sorted(left)))
    budgets = _items(made, "poddisruptionbudgets", "--all-namespaces", "-l", "drydock.dev/launcher")
    _require(not budgets, "PodDisruptionBudgets of Drydock still exist", ", ".join(sorted(names(budgets))))
    _nothing_on_nodes(made)


def _installed_again(made: Cluster, progress: Progress) -> None:
    apply(made, progress)
    made.kubectl("apply", "-f", "-", input=LEFT_BY_UPDATE)
    _shell(made, pages.script(RENAMED, "kubectl delete --ignore-not-found"))
    left = names(_items(made, POLICIES))
    _require(not [name for name in left if name.endswith("/drydock-controller-witnesses")], "the policy of the earlier version still exists")
    _shell(made, pages.script(START, "kubectl apply -f -"))
    _shell(made, pages.script(START, "kubectl wait vm/web"), timeout=900)
    listed = _shell(made, pages.script(START, "kubectl get vm,vmi"))
    _require("virtualmachineinstance.kubevirt.io/web" in listed, "the machine of README.md is not listed", listed)
    _follow(made, pages.arguments(START, "kubectl logs -f"), BOOTED)
    _shell(made, pages.script(START, "kubectl create service"))
    try:
        endpoints = ("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].addresses}")
        waiting.until(lambda: bool(made.kubectl(*endpoints)), "the Service to have the guest's address", patience=30)
    finally:
        made.kubectl("delete", "service", "web")


def _follow(made: Cluster, arguments: list[str], text: str, patience: float = 120) -> None:
    """Follow a log with kubectl until it prints `text`; fail after `patience` seconds."""
    argv = [str(made.description["kubectl"]), *arguments]
    with subprocess.Popen(argv, env=made.environment(), stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        impatience = threading.Timer(patience, following.kill)
        impatience.start()
        try:
            _require(any(text in line for line in following.stdout), f"{text!r} was not printed within {patience:.0f} s")
        finally:
            impatience.cancel()
            following.kill()


def _released(made: Cluster, progress: Progress) -> None:
    _start(made, "other")
    deployment = ("-n", "drydock", "deployment", "drydock-controller")
    made.kubectl("annotate", *deployment, "drydock.dev/confirm-removal=true")
    made.kubectl("delete", *deployment, "--cascade=foreground")
    made.kubectl("delete", "vm", "web", "other", "--wait=false")
    for name in ("web", "other"):
        stuck = made.kubectl("get", "vm", name, "-o", "jsonpath={.metadata.deletionTimestamp}")
        _require(bool(stuck), f"the machine {name} is not being deleted")
    _shell(made, pages.script(PAGE, "kubectl delete pods"), timeout=120)
    _shell(made, pages.script(PAGE, "kubectl -n default patch vm web"))
    _shell(made, pages.script(PAGE, "kubectl -n default patch vmi web"))
    # Wait until the instance is deleted: the next command cannot patch an object that is deleted while it runs.
    made.kubectl("delete", "vmi", "web", "--ignore-not-found", "--timeout=30s")
    _shell(made, pages.script(PAGE, "for kind in vm vmirs"))
    made.kubectl("delete", "vmi", "other", "--ignore-not-found", "--timeout=30s")
    gone = ("--all-namespaces", "-o", "name")
    waiting.until(
        lambda: not made.kubectl("get", "vm,vmi,pods", *gone, "-l", "kubevirt.io=virt-launcher").strip()
        and not made.kubectl("get", "vm,vmi", *gone).strip(),
        "the machines and their pods to be deleted",
        patience=60,
    )
    apply(made, progress)


TESTS: tuple[tuple[str, Test], ...] = (
    ("removal_is_refused_while_a_machine_runs", _refused),
    ("removal_leaves_nothing_on_nodes_and_no_object", _removed),
    ("removal_is_followed_by_another_installation", _installed_again),
    ("removal_of_stuck_machines_takes_plain_patches", _released),
)
