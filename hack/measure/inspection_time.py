"""Duration of an inspection, compared with starting libvirtd and querying the same data with virsh."""

from __future__ import annotations

import time
from collections.abc import Iterator

from embedded.cluster import Cluster
from embedded.progress import Progress
from verify.runner import REPOSITORY

from .api import Api
from .measurement import SAMPLES, Measurement, median
from .pods import pod_of


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure both alternately in the agent's container on the first node."""
    node = made.nodes[0].name
    pod = pod_of(made, "drydock-agent", node)
    raw_script = (REPOSITORY / "tests" / "oracle" / "query_virsh.sh").read_text()
    into = ["-n", "drydock", "exec", "-i", pod, "-c", "agent", "--"]
    ours: list[float] = []
    raw: list[float] = []
    for turn in range(SAMPLES):
        progress.note(f"inspection {turn + 1} of {SAMPLES}")
        begun = time.monotonic()
        made.kubectl(*into, "drydock-agent", "inspect", "--output", "json")
        ours.append(time.monotonic() - begun)
        begun = time.monotonic()
        made.kubectl(*into, "sh", "-s", "brief", input=raw_script)
        raw.append(time.monotonic() - begun)
    yield Measurement("inspect.wall", median(ours), "s", median(raw), 1.2, relative=True)
