"""Latency of node labels after a change, number of labels, and size of the Node object."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from embedded.cluster import Cluster
from embedded.progress import Progress

from .api import Api, Watch
from .measurement import SAMPLES, Measurement, median

# KubeVirt v1.9's virt-handler, on the same kind of machine.
KUBEVIRT_START = 3.4
KUBEVIRT_LABELS = 263
KUBEVIRT_NODE_BYTES = 26_000

SECONDS = 2.0
HYPERCONVERGED = "/apis/hco.kubevirt.io/v1beta1/namespaces/drydock/hyperconvergeds"
OWNED = (".node.kubevirt.io/", "cpu-minimum.node.drydock.dev/", "node-labeller.kubevirt.io/")


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure the reactions on the first node with a watch."""
    node = made.nodes[0].name
    path = f"/api/v1/nodes/{node}"
    labels = api.get(path)["metadata"]["labels"]
    model = next(key for key in labels if key.startswith("cpu-model.node.kubevirt.io/"))
    yield from _size(api, path)
    with api.watching(f"/api/v1/nodes?fieldSelector=metadata.name%3D{node}") as watch:
        reactions = {
            "configuration": (lambda: _obsolete(api, model.split("/")[1]), lambda: _obsolete(api, None), model),
            "annotation": (
                lambda: _annotate(api, path, "avx2"),
                lambda: _annotate(api, path, None),
                "cpu-feature.node.kubevirt.io/avx2",
            ),
        }
        for name, (change, undo, key) in reactions.items():
            progress.note(f"reaction to {name}")
            times = []
            for _ in range(SAMPLES):
                times.append(_timed(watch, change, lambda kind, found, key=key: key not in found["metadata"]["labels"]))
                times.append(_timed(watch, undo, lambda kind, found, key=key: key in found["metadata"]["labels"]))
            yield Measurement(f"react.{name}", median(times), "s", None, SECONDS)
        progress.note("reaction to tampering")
        times = []
        for _ in range(SAMPLES):
            mark = watch.mark()
            api.merge(path, {"metadata": {"labels": {model: None}}})
            gone, _found = watch.until(lambda kind, found: model not in found["metadata"]["labels"], mark)
            back, _found = watch.until(
                lambda kind, found: model in found["metadata"]["labels"], watch_after(watch, mark, model)
            )
            times.append(back - gone)
        yield Measurement("react.tampering", median(times), "s", None, SECONDS)
        yield from _start(made, api, watch, path, progress)


def watch_after(watch: Watch, mark: int, key: str) -> int:
    """Return the number of the event after the first one, from `mark` on, in which the label `key` is missing."""
    seen = [mark]

    def lacks(kind: str, found: dict[str, Any]) -> bool:
        seen[0] += 1
        return key not in found["metadata"]["labels"]

    watch.until(lacks, mark)
    return seen[0]


def _timed(watch: Watch, change: Callable[[], object], holds: Callable[[str, dict[str, Any]], bool]) -> float:
    mark = watch.mark()
    begun = time.monotonic()
    change()
    at, _ = watch.until(holds, mark)
    return at - begun


def _obsolete(api: Api, model: str | None) -> None:
    if model is None:
        api.request("DELETE", f"{HYPERCONVERGED}/kubevirt-hyperconverged")
        return
    body = {
        "apiVersion": "hco.kubevirt.io/v1beta1",
        "kind": "HyperConverged",
        "metadata": {"name": "kubevirt-hyperconverged"},
        "spec": {"obsoleteCPUs": {"cpuModels": [model]}},
    }
    api.request("POST", HYPERCONVERGED, body)


def _annotate(api: Api, path: str, mask: str | None) -> None:
    api.merge(path, {"metadata": {"annotations": {"drydock.dev/mask-cpu-features": mask}}})


def _size(api: Api, path: str) -> Iterator[Measurement]:
    found = api.get(path)
    labels = [key for key in found["metadata"]["labels"] if any(part in key for part in OWNED)]
    found["metadata"].pop("managedFields", None)
    size = len(json.dumps(found, separators=(",", ":")))
    yield Measurement("node.labels vs kubevirt", len(labels), "labels", KUBEVIRT_LABELS, 0.5, relative=True)
    yield Measurement("node.size vs kubevirt", size, "bytes", KUBEVIRT_NODE_BYTES, 0.5, relative=True)


def _start(made: Cluster, api: Api, watch: Watch, path: str, progress: Progress) -> Iterator[Measurement]:
    """Measure the time from the creation of an agent's pod until the node, initially without labels, has all of them."""
    wanted = {key for key in api.get(path)["metadata"]["labels"] if any(part in key for part in OWNED)}
    node = made.nodes[0].name
    pods = (
        "/api/v1/namespaces/drydock/pods"
        f"?fieldSelector=spec.nodeName%3D{node}&labelSelector=app.kubernetes.io%2Fname%3Ddrydock-agent"
    )
    times = []
    for turn in range(SAMPLES):
        progress.note(f"start of an agent {turn + 1} of {SAMPLES}")
        _run_agents(api, False)
        with api.watching(pods) as created:
            if api.get(pods)["items"]:
                created.until(lambda kind, found: kind == "DELETED")
            api.merge(path, {"metadata": {"labels": dict.fromkeys(wanted)}})
            mark = watch.mark()
            _run_agents(api, True)
            born, _ = created.until(lambda kind, found: kind == "ADDED")
            done, _ = watch.until(
                lambda kind, found: wanted <= found["metadata"]["labels"].keys()
                and found["metadata"]["labels"].get("kubevirt.io/schedulable") == "true",
                mark,
            )
            times.append(done - born)
    yield Measurement("start.labels-complete vs kubevirt", median(times), "s", KUBEVIRT_START, KUBEVIRT_START)


def _run_agents(api: Api, wanted: bool) -> None:
    """Have the agent's DaemonSet run on all nodes, or on none."""
    selector = {"example.com/no-agent": None if wanted else "here"}
    patch = {"spec": {"template": {"spec": {"nodeSelector": selector}}}}
    api.merge("/apis/apps/v1/namespaces/drydock/daemonsets/drydock-agent", patch)
