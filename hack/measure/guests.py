"""Virtual machines to measure: made, followed and taken away by way of the API."""

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
# The volume, which the disk's files in the pod are named after.
DISK = "root"
# A guest that boots does not listen to its power button yet.
HURRIED = 2
PATIENT = 30
OUTPUT_TIMEOUT = 90


def instance(name: str, node: str, grace: int = PATIENT) -> dict[str, Any]:
    """A guest of 96 MiB that is reached on one port, on one node."""
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
    """One of them, from its creation on."""

    def __init__(self, api: Api, watch: Watch, manifest: dict[str, Any]) -> None:
        self.api = api
        self.name: str = manifest["metadata"]["name"]
        self._watch = watch
        self._mark = watch.mark()
        self.created = datetime.now(timezone.utc)
        self._begun = time.monotonic()
        self._uid: str = api.request("POST", INSTANCES, manifest)["metadata"]["uid"]

    def running(self) -> float:
        """Seconds from its creation until its phase was seen to be Running."""
        at, _ = self._watch.until(
            lambda kind, found: self._is(found) and found.get("status", {}).get("phase") == "Running", self._mark
        )
        return at - self._begun

    def ready(self) -> None:
        """Wait until Services may send it something."""
        self._watch.until(lambda kind, found: self._is(found) and _condition(found, "Ready") == "True", self._mark)

    def pod(self) -> dict[str, Any]:
        """Its pod."""
        found = self.api.get(f"{PODS}?labelSelector=kubevirt.io%2Fcreated-by%3D{self._uid}")["items"]
        if len(found) != 1:
            raise Failure(f"{self.name} has {len(found)} pods")
        return found[0]

    def line(self, words: str = "") -> datetime:
        """When the node's container runtime took the first line of its console that has `words`, if any were given."""
        connection = self.api.connect(timeout=OUTPUT_TIMEOUT)
        path = f"{PODS}/{self.pod()['metadata']['name']}/log?timestamps=true&follow=true"
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status != 200:
                raise Failure(f"GET {path}: {response.status}", response.read().decode(errors="replace")[:500])
            for raw in response:
                found = printed(raw.decode(errors="replace"))
                # The firmware's empty lines are not the guest's words.
                if found and words in found[1] and any(letter.isalnum() for letter in found[1]):
                    return found[0]
        except TimeoutError as error:
            raise Failure(f"{self.name} printed nothing for {OUTPUT_TIMEOUT} s, and {words!r} not before") from error
        finally:
            connection.close()
        raise Failure(f"{self.name} ended without having printed {words!r}")

    def delete(self) -> None:
        """Delete it and wait until it and its pod are gone."""
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
    """Watch all instances of the namespace; what is left of them at the end is deleted."""
    with api.watching(INSTANCES) as watch:
        try:
            yield watch
        finally:
            for found in api.get(INSTANCES)["items"]:
                api.request("DELETE", f"{INSTANCES}/{found['metadata']['name']}")


def run_folder(made: Cluster, pod: dict[str, Any]) -> Path:
    """The folder that launcher and agent share, as this machine sees it."""
    nodes: Any = made.description["nodes"]
    (root,) = (f"/proc/{node['pid']}/root" for node in nodes if node["name"] == pod["spec"]["nodeName"])
    return Path(f"{root}/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~empty-dir/run")


def printed(line: str) -> tuple[datetime, str] | None:
    """Return the guest's output in a line of a pod's log, with its time; None for what others wrote.

    Those are the launcher, and the kubelet, whose errors have no time: it ends the log of a removed container by one.
    """
    at, _, text = line.rstrip("\n").partition(" ")
    if not text.startswith("guest: "):
        return None
    return datetime.fromisoformat(at.replace("Z", "+00:00")), text.removeprefix("guest: ")


def in_pod(made: Cluster, pod: str, script: str, *arguments: str, timeout: float = 120, check: bool = True) -> str:
    """What a shell script printed in the container of a guest's pod."""
    command = ("-n", NAMESPACE, "exec", "-i", pod, "--", "sh", "-s", *arguments)
    return made.kubectl(*command, input=script, timeout=timeout, check=check)


def file_in_pod(made: Cluster, pod: str, path: str) -> str:
    """The content of a file there."""
    return made.kubectl("-n", NAMESPACE, "exec", pod, "--", "cat", path)


def _condition(found: dict[str, Any], kind: str) -> str | None:
    conditions = found.get("status", {}).get("conditions", [])
    return next((condition["status"] for condition in conditions if condition["type"] == kind), None)


def ready_disk(made: Cluster, pod: str) -> dict[str, Any]:
    """What the launcher made of the guest's disk."""
    return json.loads(file_in_pod(made, pod, "/run/drydock/ready.json"))["disks"][0]
