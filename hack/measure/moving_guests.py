"""Guests for migrations: their workloads, and a migration by Drydock with its statistics."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure

from .api import Api
from .guest_start import VIRSH
from .guests import HURRIED, NAMESPACE, PODS, in_pod, instance
from .downtime import Tick, ticks

MIGRATIONS = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstancemigrations"
FINAL = ("Succeeded", "Failed")
# Seconds of ticks before a migration, which show how regular they are without one.
AROUND = 1.0
OUTPUT_TIMEOUT = 30

MEBIBYTES = {"": 1 / (1 << 20), "Ki": 1 / 1024, "Mi": 1.0, "Gi": 1024.0}
PIECE = 16

# Fills the guest's memory with random bytes: pages of zeros would be migrated almost without cost.
FILL = """
mount -o remount,size=95% /tmp
dd if=/dev/urandom of=/tmp/piece bs=1M count={piece} 2> /dev/null
i=0; while [ $i -lt {pieces} ]; do cat /tmp/piece >> /tmp/filled; i=$((i+1)); done
"""
DIRTY = "(while :; do dd if=/tmp/piece of=/tmp/dirty bs=1M conv=notrunc; sleep 0.5; done) > /dev/null 2>&1 &"


@dataclass(frozen=True)
class Kind:
    """A kind of guest: its memory in MiB, how much of it is filled, and whether it keeps dirtying memory."""

    name: str
    memory: int
    filled: int
    dirties: bool = False
    # Interval between numbered lines. Launcher, containerd and kubelet have to process each of them.
    counts: str = "20ms"

    def manifest(self) -> dict[str, Any]:
        """Return the manifest of a guest that prints numbered lines."""
        made = instance(f"mover-{self.name.lower()}", "", HURRIED)
        del made["spec"]["nodeSelector"]
        made["spec"]["domain"]["resources"]["requests"]["memory"] = f"{self.memory}Mi"
        script = FILL.format(piece=PIECE, pieces=self.filled // PIECE) + (DIRTY if self.dirties else "")
        lines = "".join(f"    {line}\n" for line in script.strip().splitlines())
        data = f"#cloud-config\ndrydock: {{count: {self.counts}}}\nruncmd:\n  - |\n{lines}"
        made["spec"]["volumes"].append({"name": "init", "cloudInitNoCloud": {"userData": data}})
        made["spec"]["domain"]["devices"]["disks"].append({"name": "init", "disk": {"bus": "virtio"}})
        return made


@dataclass(frozen=True)
class Job:
    """libvirt's statistics of a migration, in seconds and MiB."""

    elapsed: float
    downtime: float
    processed: float


@dataclass(frozen=True)
class Moved:
    """A migration by Drydock, with its durations in seconds."""

    total: float
    pod: float
    job: Job
    ticks: list[Tick]
    migration: dict[str, Any]
    stages: dict[str, float]

    @property
    def outside(self) -> float:
        """Return the seconds that belong neither to the start of the pod nor to libvirt's job."""
        return self.total - self.pod - self.job.elapsed


def move(made: Cluster, api: Api, name: str) -> Moved:
    """Have Drydock migrate an instance, and wait until the migration has succeeded; fail if it fails."""
    with api.watching(MIGRATIONS) as migrations, api.watching(PODS) as pods:
        begun = time.monotonic()
        requested = {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstanceMigration",
            "metadata": {"generateName": f"{name}-", "namespace": NAMESPACE},
            "spec": {"vmiName": name},
        }
        uid = api.request("POST", MIGRATIONS, requested)["metadata"]["uid"]
        ended, migration = migrations.until(
            lambda _, found: found["metadata"]["uid"] == uid and found.get("status", {}).get("phase") in FINAL
        )
        status = migration["status"]
        if status["phase"] != "Succeeded":
            raise Failure(f"a migration of {name} failed: {status.get('reason')}", str(status.get("conditions")))
        target = status["target"]["podUID"]
        created, _ = pods.until(lambda _, found: found["metadata"]["uid"] == target)
        ready, _ = pods.until(lambda _, found: found["metadata"]["uid"] == target and _containers_ready(found))
        reached = stages((at - begun, found) for at, found in migrations.seen() if found["metadata"]["uid"] == uid)
    job = job_of(made, status["target"]["pod"])
    found = around(api, status["source"]["pod"], status["target"]["pod"], ended - begun)
    return Moved(ended - begun, ready - created, job, found, migration, {**reached, "pod made": created - begun, "pod ready": ready - begun})


def stages(states: Iterable[tuple[float, dict[str, Any]]]) -> dict[str, float]:
    """Return when a migration was first seen in each phase, and each side of it in each state."""
    found: dict[str, float] = {}
    for at, migration in states:
        status = migration.get("status", {})
        printed = [status.get("phase"), *(f"{side} {status.get(side, {}).get('state', '')}" for side in ("source", "target"))]
        for stage in printed:
            if stage and not stage.endswith(" "):
                found.setdefault(stage, at)
    return found


def job_of(made: Cluster, pod: str) -> Job:
    """Return libvirt's statistics of the migration that moved the guest into a pod."""
    text = in_pod(made, pod, f"{VIRSH} domjobinfo $({VIRSH} list --name) --completed --keep-completed")
    return parse_job(text)


def parse_job(text: str) -> Job:
    """Parse the output of `virsh domjobinfo`."""
    milliseconds = {name: int(value) for name, value in re.findall(r"^([^:]+):\s+(\d+)\s+ms\s*$", text, re.MULTILINE)}
    found = re.findall(r"^([^:]+):\s+([\d.]+) ([KMG]i)?B\s*$", text, re.MULTILINE)
    sizes = {name: float(value) * MEBIBYTES[unit] for name, value, unit in found}
    try:
        return Job(milliseconds["Time elapsed"] / 1000, milliseconds["Total downtime"] / 1000, sizes["Data processed"])
    except KeyError as error:
        raise Failure(f"libvirt's record lacks {error}", text) from error


def around(api: Api, source: str, target: str, lasted: float) -> list[Tick]:
    """Return the ticks of a guest from shortly before its migration, which started `lasted` seconds ago, until now.

    Waits until the guest has printed a tick in the target pod.
    """
    begun = time.monotonic() - lasted - AROUND
    until = time.monotonic() + OUTPUT_TIMEOUT
    while True:
        since = math.ceil(time.monotonic() - begun)
        before, after = (log_of(api, pod, since) for pod in (source, target))
        if ticks([], after):
            return ticks(before, after)
        if time.monotonic() > until:
            raise Failure(f"the guest printed nothing in {target} for {OUTPUT_TIMEOUT} s")
        time.sleep(0.2)


def log_of(api: Api, pod: str, seconds: int | None = None) -> list[str]:
    """Return the lines of a pod's log with their timestamps: all of them, or those of the last `seconds`."""
    path = f"{PODS}/{pod}/log?timestamps=true" + (f"&sinceSeconds={seconds}" if seconds else "")
    connection = api.connect()
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        if response.status != 200:
            raise Failure(f"GET {path}: {response.status}", text[:500])
        return text.splitlines()
    finally:
        connection.close()


def _containers_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "ContainersReady" and condition["status"] == "True" for condition in conditions)
