"""Third part of the demonstration: a running guest is migrated to another node."""

from __future__ import annotations

import time
from typing import Any

from embedded.errors import Failure
from measure.downtime import longest_gap, ticks

from .stage import BOOTED, PATIENCE, POLL, Stage

GUEST = "traveller"
# Label selector for virtctl's migrations of the guest, because the API server generates their names.
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

# Without this limit, the migration of such a small guest on one machine would be too fast to watch.
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
    """Show the scene; the guest keeps running on the second node."""
    stage.scene(
        "Live migration",
        """A guest that prints twenty numbers a second is migrated to the other node while it runs. Its memory and its disks
        are transferred through a tunnel with keys for this migration only, limited to 10 MiB a second so that the progress is
        visible. The guest continues counting on the other node: no number is missing, and none is printed twice.""",
    )
    stage.kubectl("apply", "-f", "-", input=CONFIGURATION)
    try:
        with stage.only_on(stage.cluster.nodes[0].name):
            stage.kubectl("apply", "-f", "-", input=MACHINE)
            stage.until(f"{GUEST} to run", lambda: bool(stage.pod(GUEST)), "a counting guest was started")
        stage.follow(stage.pod(GUEST), BOOTED, "the guest has booted and counts", quiet=True)
        stage.cluster.kubectl("wait", "hyperconverged", "--all", "-n", "drydock", "--for=condition=InForce", "--timeout=60s")
        stage.virtctl("migrate", GUEST)
        _judge(stage, *_watched(stage))
    finally:
        stage.cluster.kubectl("delete", "hyperconverged", "--all", "-n", "drydock")


def _watched(stage: Stage) -> tuple[dict[str, Any], float]:
    """Print the migration's progress until it has ended; return it with its duration in seconds."""
    begun, shown = time.monotonic(), ""
    while True:
        (migration,) = stage.read("vmim", "-l", OF_GUEST)["items"]  # type: ignore[misc]
        if (text := progress(migration)) != shown:
            shown = text
            print(f"  {time.monotonic() - begun:5.1f} s  {text}", flush=True)
        if migration.get("status", {}).get("phase") in FINAL:
            return migration, time.monotonic() - begun
        if time.monotonic() - begun > PATIENCE:
            raise Failure(f"timeout after {PATIENCE} s: {GUEST} has not migrated: {text}")
        time.sleep(POLL)


def progress(migration: dict[str, Any]) -> str:
    """Return a line with the phase, the target and the progress of a migration."""
    status = migration.get("status", {})
    parts = [status.get("phase", "new")]
    if node := status.get("target", {}).get("node"):
        parts.append(f"to {node}")
    if summary := status.get("source", {}).get("progress", {}).get("summary"):
        parts.append(summary)
    if status.get("phase") == "Failed":
        parts.append(status.get("reason", "reason unknown"))
    return ", ".join(parts)


def _judge(stage: Stage, migration: dict[str, Any], lasted: float) -> None:
    """Check in the guest's output that no number is missing, and print the downtime."""
    status = migration["status"]
    if status["phase"] != "Succeeded":
        raise Failure(f"the migration of {GUEST} failed: {status.get('reason')}", str(status.get("conditions")))
    source, target = (status[side]["pod"] for side in ("source", "target"))
    stage.until(
        f"{GUEST} to continue counting on {status['target']['node']}",
        lambda: bool(ticks([], stage.log(target))),
        f"a running guest was migrated to {status['target']['node']}",
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
        f"the migration took {lasted:.1f} s, with a downtime of {gap * 1000:.0f} ms; "
        f"none of the guest's {len(found)} numbers is missing"
    )
