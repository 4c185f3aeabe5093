"""Growth of an agent's memory with virtual machines on other nodes: expected to be zero, whatever their number.

The objects belong to a node that does not exist. The controller would create pods for them, so it is scaled to zero. Its
webhooks, without which no instance can be created, then do not respond, so they are configured to exclude the namespace.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from embedded.cluster import Cluster
from embedded.progress import Progress

from .api import MERGE_PATCH, Api, send
from .measurement import SAMPLES, Measurement, median
from .guests import instance
from .pods import memory, the_process, wait_until

OBJECTS = 5000
CLIENTS = 8
NAMESPACE = "elsewhere"
NODE = "no-node"
INSTANCES = f"/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances"
TAKING_AWAY = 600
SETTLE = 30
WINDOW = 60
# Budget in MiB. The API server sends some KiB for each object.
GROWTH = 1

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
WEBHOOKS = (f"{ADMISSION}/mutatingwebhookconfigurations/drydock", f"{ADMISSION}/validatingwebhookconfigurations/drydock")
ELSEWHERE_NOT = {
    "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [NAMESPACE]}]
}
JSON_PATCH = "application/json-patch+json"
DEPLOYMENT = "deployment/drydock-controller"


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure RssAnon of the first node's agent before and after the creation of the objects."""
    node = made.nodes[0].name
    agent = the_process(made, node, "drydock-agent", "run")
    progress.note(f"agent without instances on other nodes: waiting for {SETTLE} s, then samples during {WINDOW} s")
    before = _anonymous(made, node, agent)
    with _without_controller(made, api):
        made.kubectl("create", "namespace", NAMESPACE)
        try:
            with progress.step(f"creating {OBJECTS} instances on another node"), ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(lambda first: _create(api, range(first, OBJECTS, CLIENTS)), range(CLIENTS)))
            after = _anonymous(made, node, agent)
        finally:
            with progress.step("deleting the instances"):
                made.kubectl("delete", "--raw", INSTANCES, timeout=TAKING_AWAY)
    # Kubernetes cannot finish deleting a namespace while an aggregated API is unavailable; the controller serves two of them.
    made.kubectl("delete", "namespace", NAMESPACE, "--wait=true", timeout=TAKING_AWAY)
    progress.note(f"agent: {before:.2f} MiB of RssAnon before, {after:.2f} MiB with {OBJECTS} instances on another node")
    yield Measurement("agent.RssAnon-growth-by-5000-vmis-elsewhere", max(0.0, after - before), "MiB", None, GROWTH)


def _anonymous(made: Cluster, node: str, agent: int) -> float:
    wait_until(time.monotonic() + SETTLE)
    begun, found = time.monotonic(), []
    for sample in range(SAMPLES):
        wait_until(begun + WINDOW * (sample + 1) / SAMPLES)
        found.append(memory(made, node, agent).anonymous)
    return median(found)


def _create(api: Api, numbers: range) -> None:
    """Create instances that run on a node that does not exist, over one connection."""
    connection = api.connect()
    status = {"status": {"phase": "Running", "nodeName": NODE}}
    with contextlib.closing(connection):
        for number in numbers:
            made = instance(f"elsewhere-{number}", NODE)
            made["metadata"]["namespace"] = NAMESPACE
            send(connection, "POST", INSTANCES, made)
            send(connection, "PATCH", f"{INSTANCES}/elsewhere-{number}/status", status, MERGE_PATCH)


@contextlib.contextmanager
def _without_controller(made: Cluster, api: Api) -> Iterator[None]:
    replicas = json.loads(made.kubectl("-n", "drydock", "get", DEPLOYMENT, "-o", "json"))["spec"]["replicas"]
    before = {path: selectors(api.get(path)) for path in WEBHOOKS}
    made.kubectl("-n", "drydock", "scale", DEPLOYMENT, "--replicas=0")
    try:
        made.kubectl(
            "-n", "drydock", "wait", "pod", "-l", "app.kubernetes.io/name=drydock-controller", "--for=delete", "--timeout=90s"
        )
        for path, were in before.items():
            api.request("PATCH", path, selectors_patch([ELSEWHERE_NOT] * len(were)), JSON_PATCH)
        yield
    finally:
        for path, were in before.items():
            api.request("PATCH", path, selectors_patch(were), JSON_PATCH)
        made.kubectl("-n", "drydock", "scale", DEPLOYMENT, f"--replicas={replicas}")
        made.kubectl("-n", "drydock", "rollout", "status", DEPLOYMENT, "--timeout=120s")


def selectors(configuration: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the namespace selector of each webhook of a configuration."""
    return [webhook.get("namespaceSelector", {}) for webhook in configuration["webhooks"]]


def selectors_patch(wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the JSON patch that sets the namespace selector of each webhook of a configuration."""
    return [
        {"op": "add", "path": f"/webhooks/{number}/namespaceSelector", "value": selector}
        for number, selector in enumerate(wanted)
    ]
