"""Memory overhead of virtual machines: of the processes beside QEMU in their pods, and of the agent for each of them."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from embedded.cluster import Cluster
from embedded.progress import Progress

from .api import Api
from .measurement import SAMPLES, Measurement, median
from .guests import Guest, instance, instances
from .pods import memory, the_process, wait_until

GUESTS = 4
SETTLE = 30
WINDOW = 60

# KubeVirt v1.9's virt-launcher, virtqemud, passt and their helpers, on the same kind of machine.
KUBEVIRT_PSS = 57.0
KUBEVIRT_ANONYMOUS = 39.5

# Prints the memory of all processes beside QEMU in guests' pods, except those of the container runtime.
PROCESSES = """
for p in /proc/[0-9]*; do
  read -r name < $p/comm || continue
  case $name in drydock-launche|libvirtd|virtlogd|virsh|passt*) ;; *) continue ;; esac
  grep -q "$pattern" $p/cgroup || continue
  echo "process $name"
  grep -E '^Pss:' $p/smaps_rollup
  grep -E '^RssAnon:' $p/status
done 2>/dev/null
true
"""


@dataclass
class Beside:
    """Memory of the processes beside QEMU, in MiB, by process name."""

    pss: Counter[str]
    anonymous: Counter[str]


def measure(made: Cluster, api: Api, progress: Progress) -> Iterator[Measurement]:
    """Measure four guests on the first node, half a minute after they have booted."""
    node = made.nodes[0].name
    agent = the_process(made, node, "drydock-agent", "run")
    progress.note(f"agent without guests: samples during {WINDOW} s")
    before = median(list(_agent(made, node, agent)))
    with instances(api) as watch:
        guests = [Guest(api, watch, instance(f"memory-{number}", node)) for number in range(GUESTS)]
        for guest in guests:
            guest.ready()
            guest.line("drydock-guest ready")
        pods = [guest.pod()["metadata"]["uid"] for guest in guests]
        progress.note(f"{GUESTS} guests have booted; waiting for {SETTLE} s, then samples during {WINDOW} s")
        wait_until(time.monotonic() + SETTLE)
        samples, after = [], []
        for anonymous in _agent(made, node, agent):
            after.append(anonymous)
            samples.append(_beside(made, node, pods))
        for guest in guests:
            guest.delete()
    last = samples[-1]
    for name in sorted(last.pss):
        progress.note(
            f"  {name}: {last.pss[name] / GUESTS:.1f} MiB of PSS, {last.anonymous[name] / GUESTS:.1f} MiB of RssAnon per guest"
        )
    pss = median([sample.pss.total() / GUESTS for sample in samples])
    anonymous = median([sample.anonymous.total() / GUESTS for sample in samples])
    yield Measurement("vm.memory.PSS vs kubevirt", pss, "MiB", KUBEVIRT_PSS, 32)
    yield Measurement("vm.memory.RssAnon vs kubevirt", anonymous, "MiB", KUBEVIRT_ANONYMOUS, 24)
    yield Measurement("agent.RssAnon-per-vm", max(0.0, (median(after) - before) / GUESTS), "MiB", None, 1)


def _agent(made: Cluster, node: str, agent: int) -> Iterator[float]:
    """Yield the agent's RssAnon in MiB, several times in one window."""
    begun = time.monotonic()
    for sample in range(SAMPLES):
        wait_until(begun + WINDOW * (sample + 1) / SAMPLES)
        yield memory(made, node, agent).anonymous


def _beside(made: Cluster, node: str, pods: list[str]) -> Beside:
    """Return the total memory of all processes beside QEMU in these pods."""
    # The names of control groups contain the pods' UIDs, in some setups with underscores instead of hyphens.
    pattern = "\\|".join(uid.replace("-", "[-_]") for uid in pods)
    return parse(made.in_node(node, ["sh", "-c", f"pattern='{pattern}'\n{PROCESSES}"]))


def parse(text: str) -> Beside:
    """Add up the values that the script `PROCESSES` printed."""
    beside = Beside(Counter(), Counter())
    for part in text.split("process ")[1:]:
        name = part.split("\n", 1)[0]
        kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", part, re.MULTILINE)}
        # A process that has just exited has no values.
        beside.pss[name] += kib.get("Pss", 0) / 1024
        beside.anonymous[name] += kib.get("RssAnon", 0) / 1024
    return beside
