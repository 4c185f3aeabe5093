"""Third part of the main job: a running guest goes to another node."""

from __future__ import annotations

import time
from typing import Any

from embedded.errors import Failure
from measure.downtime import longest_gap, ticks

from .stage import BOOTED, PATIENCE, POLL, Stage

GUEST = "traveller"
# By it virtctl's migrations of a guest are found: their names are made up by the API server.
OF_GUEST = f"kubevirt.io/vmi-name={GUEST}"

MACHINE = f"""
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: {GUEST}
spec:
  runStrategy: Always
  template:
    spec:
      evictionStrategy: LiveMigrate
      domain:
        resources: {{requests: {{memory: 96Mi}}}}
      volumes:
        - name: root
          containerDisk: {{image: "kubevirt/fedora-cloud-container-disk-demo:latest"}}
        - name: init
          cloudInitNoCloud:
            userData: |
              #cloud-config
              drydock: {{ count: 50ms }}
"""

# On one machine a guest this small would have moved before it could be seen.
CONFIGURATION = """
apiVersion: hco.kubevirt.io/v1beta1
kind: HyperConverged
metadata:
  name: kubevirt-hyperconverged
  namespace: drydock
spec:
  liveMigrationConfig: {bandwidthPerMigration: 10Mi}
"""

FINAL = ("Succeeded", "Failed")


def show(stage: Stage) -> None:
    """The one scene; the guest stays, on the second node."""
    stage.scene(
        "It moves",
        """A guest that counts, twenty numbers a second, goes to the other node while it runs. Its memory and its disks
        follow through a tunnel with keys made for this one move, at 10 MiB a second, so that it can be watched. It counts
        on there: no number is left out, and none comes twice.""",
    )
    stage.kubectl("apply", "-f", "-", input=CONFIGURATION)
    try:
        with stage.only_on(stage.cluster.nodes[0].name):
            stage.kubectl("apply", "-f", "-", input=MACHINE)
            stage.until(f"{GUEST} to run", lambda: bool(stage.pod(GUEST)), "a guest that counts was started")
        stage.follow(stage.pod(GUEST), BOOTED, "it booted and counts", quiet=True)
        stage.cluster.kubectl("wait", "hyperconverged", "--all", "-n", "drydock", "--for=condition=InForce", "--timeout=60s")
        stage.virtctl("migrate", GUEST)
        _judge(stage, *_watched(stage))
    finally:
        stage.cluster.kubectl("delete", "hyperconverged", "--all", "-n", "drydock")


def _watched(stage: Stage) -> tuple[dict[str, Any], float]:
    """Show how far the migration is until it is over, and how many seconds that took."""
    begun, shown = time.monotonic(), ""
    while True:
        (migration,) = stage.read("vmim", "-l", OF_GUEST)["items"]  # type: ignore[misc]
        if (text := progress(migration)) != shown:
            shown = text
            print(f"  {time.monotonic() - begun:5.1f} s  {text}", flush=True)
        if migration.get("status", {}).get("phase") in FINAL:
            return migration, time.monotonic() - begun
        if time.monotonic() - begun > PATIENCE:
            raise Failure(f"waited {PATIENCE} s in vain for {GUEST} to move: {text}")
        time.sleep(POLL)


def progress(migration: dict[str, Any]) -> str:
    """Phase, target, and how much has moved, of a migration."""
    status = migration.get("status", {})
    parts = [status.get("phase", "new")]
    if node := status.get("target", {}).get("node"):
        parts.append(f"to {node}")
    if summary := status.get("source", {}).get("progress", {}).get("summary"):
        parts.append(summary)
    if status.get("phase") == "Failed":
        parts.append(status.get("reason", "for no known reason"))
    return ", ".join(parts)


def _judge(stage: Stage, migration: dict[str, Any], lasted: float) -> None:
    """Check by the guest's output that it has lost nothing."""
    status = migration["status"]
    if status["phase"] != "Succeeded":
        raise Failure(f"{GUEST} has not moved: {status.get('reason')}", str(status.get("conditions")))
    source, target = (status[side]["pod"] for side in ("source", "target"))
    stage.until(
        "it to count on there",
        lambda: bool(ticks([], stage.log(target))),
        f"a guest that runs moved to {status['target']['node']}",
    )
    found = ticks(stage.log(source), stage.log(target))
    print(f"\n$ kubectl logs {source} | tail -n 2; kubectl logs {target} | grep tick | head -n 2")
    there = ticks([], stage.log(target))[0].number
    for tick in found:
        if there - 2 <= tick.number < there + 2:
            print(f"  {tick.at:%H:%M:%S.%f}  tick {tick.number}")
    gap = longest_gap(found)
    stage.kubectl("get", "vmim", "-o", "wide")
    stage.note(
        f"the move took {lasted:.1f} s, and the guest stood still for {gap * 1000:.0f} ms; "
        f"of its {len(found)} numbers none is missing"
    )
