"""Drydock's pods, and their processes as /proc shows them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass

from embedded.cluster import Cluster
from embedded.errors import Failure


@dataclass
class Memory:
    """Of one process, in MiB."""

    resident: float
    anonymous: float


def pod_of(made: Cluster, application: str, node: str) -> str:
    """The name of the one pod of an application on a node that is not on its way out."""
    selector = ["-l", f"app.kubernetes.io/name={application}", "--field-selector", f"spec.nodeName={node}"]
    pods = json.loads(made.kubectl("-n", "drydock", "get", "pods", *selector, "-o", "json"))["items"]
    names = [
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
    ]
    if len(names) != 1:
        raise Failure(f"{len(names)} pods of {application} on {node}")
    return names[0]


def processes(made: Cluster, node: str, command: str, task: str | None = None) -> list[int]:
    """Pids, as the node sees them, of the processes with this command name, and this first argument if one is given."""
    # The kernel keeps fifteen characters of a command's name.
    script = f'''
for p in /proc/[0-9]*; do
  [ "$(cat $p/comm 2>/dev/null)" = {command[:15]} ] || continue
  echo "${{p#/proc/}} $(tr '\\0' ' ' < $p/cmdline 2>/dev/null)"
done
true'''
    rows = [line.split() for line in made.in_node(node, ["sh", "-c", script]).splitlines()]
    return [int(row[0]) for row in rows if task is None or row[2:3] == [task]]


def the_process(made: Cluster, node: str, command: str, task: str) -> int:
    """Pid of the one process that does a task."""
    found = processes(made, node, command, task)
    if len(found) != 1:
        raise Failure(f"{len(found)} processes of {command} {task} on {node}")
    return found[0]


def memory(made: Cluster, node: str, pid: int) -> Memory:
    """What a process has in memory."""
    status = made.in_node(node, ["cat", f"/proc/{pid}/status"])
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    return Memory(resident=kib["VmRSS"] / 1024, anonymous=kib["RssAnon"] / 1024)


def resident_together(made: Cluster, node: str, pids: list[int]) -> float:
    """What processes of one program have in memory together, in MiB: pages of a file that several map are there once."""
    return resident([made.in_node(node, ["cat", f"/proc/{pid}/smaps"]) for pid in pids])


def resident(smaps: list[str]) -> float:
    """The same of the kernel's lists of their mappings. Of a file, the process counts that has most of it."""
    anonymous = 0
    files: dict[str, int] = {}
    for text in smaps:
        own: Counter[str] = Counter()
        file = ""
        for line in text.splitlines():
            if mapping := re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+)", line):
                file = mapping[1]
            elif amount := re.match(r"(Rss|Anonymous): +(\d+) kB", line):
                own[file] += int(amount[2]) if amount[1] == "Rss" else -int(amount[2])
                anonymous += int(amount[2]) if amount[1] == "Anonymous" else 0
        for name, kib in own.items():
            files[name] = max(files.get(name, 0), kib)
    return (anonymous + sum(files.values())) / 1024


def processor_seconds(made: Cluster, node: str, pid: int) -> float:
    """CPU time of a process so far, all its threads together, to the nanosecond."""
    threads = made.in_node(node, ["sh", "-c", f"cat /proc/{pid}/task/*/schedstat"])
    return sum(int(line.split()[0]) for line in threads.splitlines()) / 1e9


def wait_until(instant: float) -> None:
    """Sleep until an instant of the monotonic clock: the windows of measurements are times, after all."""
    left = instant - time.monotonic()
    if left > 0:
        time.sleep(left)
