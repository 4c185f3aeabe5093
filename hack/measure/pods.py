"""Drydock's pods and their processes: pids, memory and CPU time from the nodes' /proc."""

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
    """Memory of one process, in MiB."""

    resident: float
    anonymous: float


def pod_of(made: Cluster, application: str, node: str) -> str:
    """Return the name of the running pod of an application on a node; fail unless there is exactly one.

    Pods that are being deleted do not count.
    """
    selector = ["-l", f"app.kubernetes.io/name={application}", "--field-selector", f"spec.nodeName={node}"]
    pods = json.loads(made.kubectl("-n", "drydock", "get", "pods", *selector, "-o", "json"))["items"]
    names = [
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"
    ]
    if len(names) != 1:
        raise Failure(f"expected one running pod of {application} on {node}, found {len(names)}")
    return names[0]


def processes(made: Cluster, node: str, command: str, task: str | None = None) -> list[int]:
    """Return the pids, in the node's pid namespace, of processes with this command name and, if given, this first argument."""
    # The kernel truncates command names to fifteen characters.
    script = f'''
for p in /proc/[0-9]*; do
  [ "$(cat $p/comm 2>/dev/null)" = {command[:15]} ] || continue
  echo "${{p#/proc/}} $(tr '\\0' ' ' < $p/cmdline 2>/dev/null)"
done
true'''
    rows = [line.split() for line in made.in_node(node, ["sh", "-c", script]).splitlines()]
    return [int(row[0]) for row in rows if task is None or row[2:3] == [task]]


def the_process(made: Cluster, node: str, command: str, task: str) -> int:
    """Return the pid of the process with this command name and first argument; fail unless there is exactly one."""
    found = processes(made, node, command, task)
    if len(found) != 1:
        raise Failure(f"expected one process {command} {task} on {node}, found {len(found)}")
    return found[0]


def memory(made: Cluster, node: str, pid: int) -> Memory:
    """Return the memory of a process."""
    status = made.in_node(node, ["cat", f"/proc/{pid}/status"])
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE)}
    return Memory(resident=kib["VmRSS"] / 1024, anonymous=kib["RssAnon"] / 1024)


def resident_together(made: Cluster, node: str, pids: list[int]) -> float:
    """Return the resident memory of several processes in MiB; pages of a file that several of them map count once."""
    return resident([made.in_node(node, ["cat", f"/proc/{pid}/smaps"]) for pid in pids])


def resident(smaps: list[str]) -> float:
    """Return the resident memory, in MiB, of processes with these texts of `/proc/PID/smaps`.

    The pages of a file count once, with the largest amount that one process has resident.
    """
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
    """Return the CPU time of a process so far, in seconds, summed over all its threads."""
    threads = made.in_node(node, ["sh", "-c", f"cat /proc/{pid}/task/*/schedstat"])
    return sum(int(line.split()[0]) for line in threads.splitlines()) / 1e9


def wait_until(instant: float) -> None:
    """Sleep until an instant of the monotonic clock."""
    left = instant - time.monotonic()
    if left > 0:
        time.sleep(left)
