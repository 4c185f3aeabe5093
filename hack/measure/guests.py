"""Virtual machines for measurements: created, observed and deleted through the API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from embedded.cluster import Cluster
from embedded.errors import Failure

from .api import Api, Watch

NAMESPACE = "default"
INSTANCES = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
IMAGE = "localhost/drydock/guest:dev"
# Name of the volume, which the names of the disk's files in the pod contain.
DISK = "root"
# Grace periods in seconds. A guest that is still booting does not react to its power button.
HURRIED = 2
PATIENT = 30
OUTPUT_TIMEOUT = 90


def instance(name: str, node: str, grace: int = PATIENT) -> dict[str, Any]:
    """Return the manifest of a guest with 96 MiB and one open port, on one node."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "terminationGracePeriodSeconds": grace,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "domain": {
                "resources": {"requests": {"memory": "96Mi"}},
                "devices": {
                    "disks": [{"name": DISK, "disk": {"bus": "virtio"}}],
                    "interfaces": [{"name": "default", "masquerade": {}, "ports": [{"port": 80}]}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": DISK, "containerDisk": {"image": IMAGE, "imagePullPolicy": "IfNotPresent"}}],
        },
    }


class Guest:
    """A virtual machine, which the constructor creates."""

    def __init__(self, api: Api, watch: Watch, manifest: dict[str, Any]) -> None:
        self.api = api
        self.name: str = manifest["metadata"]["name"]
        self._watch = watch
        self._mark = watch.mark()
        self.created = datetime.now(timezone.utc)
        self._begun = time.monotonic()
        self._uid: str = api.request("POST", INSTANCES, manifest)["metadata"]["uid"]

    def running(self) -> float:
        """Wait until the watch has the phase Running; return the seconds since the creation."""
        at, _ = self._watch.until(
            lambda kind, found: self._is(found) and found.get("status", {}).get("phase") == "Running", self._mark
        )
        return at - self._begun

    def ready(self) -> None:
        """Wait until the instance is Ready, so that Services route traffic to it."""
        self._watch.until(lambda kind, found: self._is(found) and _condition(found, "Ready") == "True", self._mark)

    def pod(self) -> dict[str, Any]:
        """Return the guest's pod; fail unless there is exactly one."""
        found = self.api.get(f"{PODS}?labelSelector=kubevirt.io%2Fcreated-by%3D{self._uid}")["items"]
        if len(found) != 1:
            raise Failure(f"expected one pod of {self.name}, found {len(found)}")
        return found[0]

    def line(self, words: str = "") -> datetime:
        """Wait for the first line of the console that contains `words` and a letter or digit; return its time in the pod's log.

        Fail if the guest prints nothing for `OUTPUT_TIMEOUT` seconds.
        """
        connection = self.api.connect(timeout=OUTPUT_TIMEOUT)
        path = f"{PODS}/{self.pod()['metadata']['name']}/log?timestamps=true&follow=true"
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status != 200:
                raise Failure(f"GET {path}: {response.status}", response.read().decode(errors="replace")[:500])
            for raw in response:
                found = printed(raw.decode(errors="replace"))
                # Skip the firmware's empty lines.
                if found and words in found[1] and any(letter.isalnum() for letter in found[1]):
                    return found[0]
        except TimeoutError as error:
            raise Failure(f"{self.name} has not printed {words!r}, and no other output for {OUTPUT_TIMEOUT} s") from error
        finally:
            connection.close()
        raise Failure(f"{self.name} ended without having printed {words!r}")

    def delete(self) -> None:
        """Delete the instance, and wait until the instance and its pod are deleted."""
        with self.api.watching(f"{PODS}?labelSelector=kubevirt.io%2Fcreated-by%3D{self._uid}") as pods:
            mark = self._watch.mark()
            there = self.api.get(f"{PODS}?labelSelector=kubevirt.io%2Fcreated-by%3D{self._uid}")["items"]
            self.api.request("DELETE", f"{INSTANCES}/{self.name}")
            if there:
                pods.until(lambda kind, found: kind == "DELETED")
            self._watch.until(lambda kind, found: self._is(found) and kind == "DELETED", mark)

    def _is(self, found: dict[str, Any]) -> bool:
        return found.get("metadata", {}).get("uid") == self._uid


@contextmanager
def instances(api: Api) -> Iterator[Watch]:
    """Watch all instances of the namespace, and delete the remaining ones at the end."""
    with api.watching(INSTANCES) as watch:
        try:
            yield watch
        finally:
            for found in api.get(INSTANCES)["items"]:
                api.request("DELETE", f"{INSTANCES}/{found['metadata']['name']}")


def run_folder(made: Cluster, pod: dict[str, Any]) -> Path:
    """Return the folder that launcher and agent share, as a path in this machine's root file system."""
    nodes: Any = made.description["nodes"]
    (root,) = (f"/proc/{node['pid']}/root" for node in nodes if node["name"] == pod["spec"]["nodeName"])
    return Path(f"{root}/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~empty-dir/run")


def printed(line: str) -> tuple[datetime, str] | None:
    """Return the guest's output in a line of a pod's log, with its time; None for a line of another origin.

    Other lines are from the launcher or from the kubelet. The kubelet's errors have no timestamp; one of them ends the log of
    a removed container.
    """
    at, _, text = line.rstrip("\n").partition(" ")
    if not text.startswith("guest: "):
        return None
    return datetime.fromisoformat(at.replace("Z", "+00:00")), text.removeprefix("guest: ")


def in_pod(made: Cluster, pod: str, script: str, *arguments: str, timeout: float = 120, check: bool = True) -> str:
    """Run a shell script in the container of a guest's pod, and return its output."""
    command = ("-n", NAMESPACE, "exec", "-i", pod, "--", "sh", "-s", *arguments)
    return made.kubectl(*command, input=script, timeout=timeout, check=check)


def file_in_pod(made: Cluster, pod: str, path: str) -> str:
    """Return the content of a file in the container of a guest's pod."""
    return made.kubectl("-n", NAMESPACE, "exec", pod, "--", "cat", path)


def _condition(found: dict[str, Any], kind: str) -> str | None:
    conditions = found.get("status", {}).get("conditions", [])
    return next((condition["status"] for condition in conditions if condition["type"] == kind), None)


def ready_disk(made: Cluster, pod: str) -> dict[str, Any]:
    """Return the launcher's description of the disk that it prepared for the guest."""
    return json.loads(file_in_pod(made, pod, "/run/drydock/ready.json"))["disks"][0]
