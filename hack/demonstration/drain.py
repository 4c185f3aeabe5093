"""Last part of the demonstration: a node is drained for maintenance, and reports the virtual machines and pods that are left."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from embedded.errors import Failure
from measure.downtime import longest_gap, ticks
from verify import pages

from .machines import LASTING, ONCE
from .migration import GUEST
from .stage import BOOTED, PATIENCE, POLL, Stage

# Exit code of a plan in which a guest would block the drain or a pod would wait.
WOULD_BLOCK = 3

GUARDED = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: guarded}
spec:
  replicas: 1
  selector: {matchLabels: {app: guarded}}
  template:
    metadata: {labels: {app: guarded}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: busybox, imagePullPolicy: IfNotPresent, command: [sleep, inf]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guarded}
spec:
  minAvailable: 1
  selector: {matchLabels: {app: guarded}}
"""


def show(stage: Stage) -> None:
    """Show the last two scenes."""
    stage.scene(
        "Draining a node",
        """Three virtual machines and a pod with a disruption budget run on one node. The first machine counts and is
        migrated. The second has a ReadWriteOnce disk, so it is shut down and started on the other node. The third has the
        eviction strategy None and is shut down. The node reports the machines and pods that are left, and when the node is
        safe to switch off.""",
    )
    there, here = (node.name for node in stage.cluster.nodes)
    with stage.only_on(here):
        stage.kubectl("apply", "-f", "-", input=GUARDED, quiet=True)
        stage.cluster.kubectl("rollout", "status", "deployment/guarded", "--timeout=60s")
    for name in (LASTING, ONCE):
        stage.follow(stage.pod(name), BOOTED, f"{name} has booted", quiet=True)
    stage.kubectl("get", "vmis", "-o", "wide")
    stage.plugin("plan", here, codes=(WOULD_BLOCK,))
    # Follow the pod's log, because it is deleted with the pod.
    with _followed(stage, stage.pod(GUEST)) as kept:
        _drain(stage, here)
    stage.kubectl("get", "nm")
    stage.kubectl("get", "vms,vmis", "-o", "wide")
    _judge(stage, kept, there)
    stage.plugin("maintenance", "stop", here)
    stage.until(
        f"{here} to accept pods again",
        lambda: "unschedulable" not in stage.read("node", here)["spec"],  # type: ignore[operator]
        "pods can be scheduled to the node again",
    )
    _goes(stage)


def _goes(stage: Stage) -> None:
    stage.scene("Deleting virtual machines", "Deletion presses a guest's power button, and leaves nothing behind.")
    stage.kubectl("delete", f"vm/{GUEST}", f"vmi/{ONCE}")
    stage.until("its pod to be deleted", lambda: not stage.pod(GUEST), "a virtual machine and its pod were deleted")


def _drain(stage: Stage, node: str) -> None:
    """Drain a node with the plugin, which shows the progress; delete the budget once it blocks the last pod."""
    begun, released, text = time.monotonic(), False, ""
    arguments = pages.arguments("README.md", "kubectl drydock drain", {"worker-1": node})
    print(f"\n$ kubectl {shlex.join(arguments)}", flush=True)
    with subprocess.Popen([stage.plugin_path, *arguments[1:]], env=stage.cluster.environment(), stdin=subprocess.DEVNULL) as draining:
        try:
            while draining.poll() is None:
                found = stage.cluster.kubectl("get", "nm", node, "--ignore-not-found", "-o", "json")
                maintenance = json.loads(found) if found else {}
                text = printed(maintenance, stage.read("hypervisor", node))
                status: dict[str, Any] = maintenance.get("status", {})
                if time.monotonic() - begun > PATIENCE:
                    raise Failure(f"{node} is not drained after {time.monotonic() - begun:.0f} s: {text}", str(status))
                pods = status.get("pods", [])
                if not released and len(pods) == 1 and pods[0].get("reason") == "BlockedByBudget":
                    stage.cluster.kubectl("delete", "pdb", "guarded")
                    released = True
                time.sleep(POLL)
        finally:
            draining.kill()
    if draining.returncode != 0:
        raise Failure(f"kubectl drydock drain ended with exit code {draining.returncode}: {text}")
    if released:
        stage.note("the last pod was blocked by its disruption budget, and was evicted after the budget's deletion")
    stage.until(
        f"{node} to be Drained",
        lambda: any(
            condition["type"] == "Drained" and condition["status"] == "True"
            for condition in stage.read("node", node)["status"]["conditions"]  # type: ignore[index]
        ),
        f"the node was drained in {time.monotonic() - begun:.1f} s, and reports that it is safe to switch off",
    )


def printed(maintenance: dict[str, Any], hypervisor: dict[str, Any]) -> str:
    """Return a line with the phase, the progress, and the remaining guests and pods with their reasons."""
    status = maintenance.get("status", {})
    parts = [f"{status.get('phase', 'new')} {status.get('drainProgress', 0)} %"]
    guests = hypervisor.get("status", {}).get("drain", {}).get("remaining", [])
    parts += [f"{guest['name']}: {guest['state']} ({guest['reason']})" for guest in guests]
    parts += [
        f"pod {pod['name']}: {pod['reason']}" for pod in status.get("pods", []) if not pod["name"].startswith("virt-launcher-")
    ]
    return ", ".join(parts)


@contextmanager
def _followed(stage: Stage, pod: str) -> Iterator[list[str]]:
    """Follow the log of a pod; the yielded list is complete when the context is left."""
    lines: list[str] = []
    argv = [str(stage.cluster.description["kubectl"]), "logs", "--follow", "--timestamps", pod]
    with subprocess.Popen(argv, env=stage.cluster.environment(), stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        reading = threading.Thread(target=lines.extend, args=(following.stdout,))
        reading.start()
        try:
            yield lines
        finally:
            impatience = threading.Timer(10, following.kill)
            impatience.start()
            reading.join()
            impatience.cancel()
            following.kill()


def _judge(stage: Stage, source: list[str], there: str) -> None:
    """Check that the migrated guest has lost no number, and wait until the other machine runs again."""
    if _node(stage, GUEST) != there:
        raise Failure(f"{GUEST} is not on {there}")
    target = stage.pod(GUEST)
    stage.until(f"{GUEST} to continue on {there}", lambda: bool(ticks([], stage.log(target))), "the counting guest was migrated")
    found = ticks(source, stage.log(target))
    gap = longest_gap(found)
    stage.note(f"none of the counting guest's {len(found)} numbers is missing; the guest's downtime was {gap * 1000:.0f} ms")
    stage.until(f"{LASTING} to run again", lambda: _node(stage, LASTING) == there, f"the other machine was restarted on {there}")


def _node(stage: Stage, name: str) -> str:
    return str(stage.read("vmi", name).get("status", {}).get("nodeName", ""))  # type: ignore[attr-defined]
