"""Baseline for migrations: `virsh migrate --live --p2p` between pods that Drydock does not manage.

    pod like a guest's ── virsh migrate ─▶ libvirt ─▶ migration/*.sock ─▶ relay ─▶ pod like a migration's target

The relay is a process that copies bytes. QEMU's connections can go through socat with TLS instead, because Drydock's
tunnel encrypts them, too.

The pods are copies of those that Drydock created for a guest and for its migration, without the metadata by which Drydock
identifies its pods. The domain, its disks and the content of its memory are the same. virsh resumes the guest on the target
immediately, as in a usual manual migration: if a reply is lost, two guests can run. Drydock rules this out at the cost of
one message.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure

from . import socat
from .api import PATIENCE, Api
from .guest_start import VIRSH, raw_pod
from .guests import NAMESPACE, PODS, in_pod, run_folder
from .moving_guests import Job, Moved, around, job_of, log_of
from .pods import the_process
from .relay import ROUTES
from .downtime import Tick

HACK = Path(__file__).resolve().parent.parent
VARIABLE = "DRYDOCK_GUEST"
OF_QEMU = ("migration/memory.sock", "migration/disks.sock")
FOLDER = "/run/drydock"
GROUPS = Path("/sys/fs/cgroup")

START = f"""
set -eu
printf %s "$1" > {FOLDER}/tmp/domain.xml
{VIRSH} define {FOLDER}/tmp/domain.xml > /dev/null
{VIRSH} start "$2" > /dev/null
"""

# After its start, libvirt queries the capabilities of QEMU, which takes as long as a small migration. Drydock's agent
# triggers this query before a migration, when it checks whether the guest fits.
ACQUAINT = f"{VIRSH} domcapabilities > /dev/null"

# $1: the domain, $2: the disks to copy, if any, $3: virsh's option for copying them. Prints the times of start and end.
MIGRATE = f"""
set -eu
disks=
[ -z "$2" ] || disks="$3 --disks-uri unix://{FOLDER}/migration/disks.sock --migrate-disks $2"
date +%s.%N
{VIRSH} migrate --live --p2p --persistent --migrateuri unix://{FOLDER}/migration/memory.sock $disks \\
  "$1" "qemu+unix:///session?socket={FOLDER}/migration/libvirt.sock" > /dev/null
date +%s.%N
"""


@dataclass(frozen=True)
class Times:
    """Start and end of a run of virsh, in seconds since the epoch."""

    began: float
    ended: float


@dataclass(frozen=True)
class ByVirsh(Times):
    """Times of a migration, with libvirt's job statistics and the guest's ticks."""

    job: Job
    ticks: list[Tick]


class ByHand:
    """A guest that virsh migrates repeatedly, without Drydock."""

    def __init__(self, made: Cluster, api: Api, name: str, moved: Moved) -> None:
        """Copy the target pod and the disk settings of the migration `moved`."""
        self._made, self._api, self._name = made, api, name
        status = moved.migration["status"]
        self._target = api.get(f"{PODS}/{status['target']['pod']}")
        self._disks = ",".join(status["guest"].get("copiedDisks", []))
        self._copy = "--copy-storage-inc" if status["guest"].get("layersOnly") else "--copy-storage-all"
        self._domain = json.loads(variable(self._target))["domain"]
        self._nodes = [node.name for node in made.nodes]
        self._number = 0
        self._pods: list[dict[str, Any]] = []

    def start(self, source: dict[str, Any], domain: str) -> None:
        """Start the guest in a copy of the pod `source`, from the definition `domain`."""
        in_pod(self._made, self._create(source)["metadata"]["name"], START, domain, self._domain)

    def wait_for(self, words: str) -> None:
        """Wait until the guest has printed `words`."""
        until = time.monotonic() + PATIENCE
        while not any(words in line for line in log_of(self._api, self._pods[-1]["metadata"]["name"])):
            if time.monotonic() > until:
                raise Failure(f"the guest started by virsh has not printed {words!r}")
            time.sleep(1)

    def rest(self) -> None:
        """Pause the guest, so that it does not disturb other measurements."""
        self._virsh("suspend")

    def go_on(self) -> None:
        """Resume the guest."""
        self._virsh("resume")

    def _virsh(self, command: str) -> None:
        in_pod(self._made, self._pods[-1]["metadata"]["name"], f'{VIRSH} {command} "$1" > /dev/null', self._domain)

    def move(self, encrypted: bool = False) -> ByVirsh:
        """Migrate the guest to a new pod on the other node."""
        self.prepare()
        return self.go(encrypted)

    def prepare(self) -> None:
        """Create the target pod of the next migration."""
        in_pod(self._made, self._create(self._target)["metadata"]["name"], ACQUAINT)

    def go(self, encrypted: bool = False) -> ByVirsh:
        """Migrate the guest to the pod that `prepare` created, and delete the source pod."""
        names = [pod["metadata"]["name"] for pod in self._pods[-2:]]
        when, lasted = self._migrate(encrypted)
        job = job_of(self._made, names[1])
        found = around(self._api, *names, lasted)
        self.leave()
        return ByVirsh(when.began, when.ended, job, found)

    def hurry(self) -> Times:
        """Migrate like `go`, but collect no statistics, so that the next migration can start at once.

        The source pod remains; `leave` deletes it.
        """
        return self._migrate()[0]

    def leave(self) -> None:
        """Delete the source pod of the last migration."""
        self._delete(self._pods[-2])

    def _migrate(self, encrypted: bool = False) -> tuple[Times, float]:
        source, target = self._pods[-2:]
        with relay(run_folder(self._made, source), run_folder(self._made, target), self._group_of_tunnel(source), encrypted):
            begun = time.monotonic()
            output = in_pod(self._made, source["metadata"]["name"], MIGRATE, self._domain, self._disks, self._copy, check=False)
            lasted, now = time.monotonic() - begun, time.time()
        return Times(*times(output, now)), lasted

    def end(self) -> None:
        """Delete the remaining pods, and the guest with them."""
        for pod in list(self._pods):
            self._delete(pod)

    def _create(self, like: dict[str, Any]) -> dict[str, Any]:
        node = self._nodes[self._number % len(self._nodes)]
        self._number += 1
        identity = str(uuid.uuid4())
        manifest = lone_pod(like, f"raw-{self._name}-{identity[:8]}", node, identity)
        name = manifest["metadata"]["name"]
        self._pods.append(self._api.request("POST", PODS, manifest))
        self._made.kubectl("-n", NAMESPACE, "wait", "pod", name, "--for=condition=ContainersReady", "--timeout=60s")
        until = time.monotonic() + PATIENCE
        while not any(line.endswith("launcher: ready for the guest") for line in log_of(self._api, name)):
            if time.monotonic() > until:
                raise Failure(f"the launcher of {name} did not become ready")
            time.sleep(0.2)
        self._pods[-1] = self._api.get(f"{PODS}/{name}")
        return self._pods[-1]

    def _delete(self, pod: dict[str, Any]) -> None:
        self._pods.remove(pod)
        self._api.request("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")

    def _group_of_tunnel(self, pod: dict[str, Any]) -> Path:
        """Return the control group of the tunnel on a pod's node, so that the relay gets the same share of the processors."""
        node = pod["spec"]["nodeName"]
        pid = the_process(self._made, node, "drydock-agent", "tunnel")
        return processors_group(self._made.in_node(node, ["cat", f"/proc/{pid}/cgroup"]))


def times(output: str, now: float) -> tuple[float, float]:
    """Return the start and end of virsh from the output of `MIGRATE`; `now` replaces an end that was not printed.

    The launcher exits with its guest and takes the script down with it, possibly before the script prints the end.
    """
    lines = output.splitlines()
    numbers = [float(line) for line in lines if re.fullmatch(r"\d+\.\d+", line)]
    ended_with_launcher = any("exit code 137" in line for line in lines)
    if len(numbers) == 2 or (len(numbers) == 1 and ended_with_launcher):
        return numbers[0], numbers[1] if len(numbers) == 2 else now
    raise Failure("virsh did not migrate the guest", output)


def lone_pod(like: dict[str, Any], name: str, node: str, identity: str) -> dict[str, Any]:
    """Return the manifest of a pod on a node with the same launcher and guest as `like`, which Drydock does not manage."""
    made = raw_pod(like)
    made["metadata"]["name"] = name
    spec = made["spec"]
    spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if "hostname" in like["spec"]:
        spec["hostname"] = like["spec"]["hostname"]
    (container,) = spec["containers"]
    del container["command"]
    # libvirt refuses to migrate to a libvirt with the same host UUID.
    guest = {**json.loads(variable(like)), "hostUuid": identity}
    container["env"] = [{"name": VARIABLE, "value": json.dumps(guest)}]
    return made


def processors_group(text: str, root: Path = GROUPS) -> Path:
    """Return the control group that limits a process's CPU, in cgroup v1 or v2, from the text of `/proc/PID/cgroup`."""
    groups = [line.split(":", 2) for line in text.splitlines()]
    for _, controllers, path in groups:
        if "cpu" in controllers.split(","):
            return root / controllers / path.strip("/")
    (path,) = (path for _, controllers, path in groups if not controllers)
    return root / path.strip("/")


def variable(pod: dict[str, Any]) -> str:
    """Return the description of the guest that a launcher receives in its environment."""
    (value,) = (entry["value"] for entry in pod["spec"]["containers"][0]["env"] if entry["name"] == VARIABLE)
    return value


@contextlib.contextmanager
def relay(source: Path, target: Path, group: Path | None = None, encrypted: bool = False) -> Iterator[None]:
    """Run processes that forward the connections of the source pod's libvirt and QEMU to the target pod.

    The processes are moved into the control group, if one is given. With `encrypted`, QEMU's connections use TLS, as in
    Drydock's tunnel.
    """
    plain = [name for name in ROUTES if not encrypted or name not in OF_QEMU]
    argv = [sys.executable, "-m", "measure.relay", str(source), str(target), *plain]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(argv, cwd=HACK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert process.stdin is not None and process.stdout is not None
        stack.callback(process.stdin.close)
        if process.stdout.readline().strip() != "listening":
            raise Failure("the relay between two pods did not start to listen")
        pids = [process.pid]
        if encrypted:
            pids += stack.enter_context(_encrypted(source, target))
        for pid in pids if group is not None else ():
            (group / "cgroup.procs").write_text(str(pid))
        yield


@contextlib.contextmanager
def _encrypted(source: Path, target: Path) -> Iterator[list[int]]:
    """Run socat processes that forward QEMU's connections over TLS, and yield their pids."""
    with tempfile.TemporaryDirectory(prefix="drydock-bench-") as folder, contextlib.ExitStack() as stack:
        # The paths of pods' volumes are too long for a socket address.
        near, far = Path(folder) / "near", Path(folder) / "far"
        near.symlink_to(source)
        far.symlink_to(target)
        transport = socat.tls(Path(folder))
        pids: list[int] = []
        for name in OF_QEMU:
            pids += stack.enter_context(socat.carrying(near / name, far / ROUTES[name], transport, many=True))
        yield pids
