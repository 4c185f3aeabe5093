"""Tests a cluster's life cycle: creation, crashes, repair, a second cluster, and removal without leftovers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import cluster as clusters
from . import leftovers, processes, registered
from .cluster import Cluster
from .errors import Failure
from .progress import Progress

_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
_MENDING_BUDGET = 40.0

# Seconds after which `up` is killed: in its first steps, and while parts start.
_CRASHES = (0.3, 0.7, 1.2, 2.0, 3.0)


def names(name: str) -> tuple[str, str]:
    """Return the names of the test's two clusters: its main cluster and the second one."""
    return name, f"{name}2"


def left_behind(name: str) -> list[str]:
    """Return the clusters that a killed test of this name left behind, or none while a command with this name runs."""
    commands = (set(processes.command_line(pid)) for pid in processes.all_pids() if pid != os.getpid())
    if any("-m" in words and words & {name, f"--name={name}"} for words in commands):
        return []
    there = registered.names()
    return [one for one in names(name) if one in there]


def run(name: str, check: Callable[[Cluster, Progress], int], progress: Progress) -> int:
    """Run the test and return the number of failures. The clusters must not exist before, and are removed afterwards."""
    for one in names(name):
        if one in registered.names():
            raise Failure(f"cluster {one} exists: choose another --name, or delete the cluster with hack/down first")
    before = leftovers.take()
    failed = 0
    try:
        for delay in _CRASHES:
            _crash(name, delay, progress)
        cluster, _ = _timed_up(name, "up after crashes", progress)
        failed += check(cluster, progress)
        _timed_up(name, "up of a healthy cluster", progress, _MENDING_BUDGET)
        _kill_parts(cluster, progress)
        _timed_up(name, "up of a cluster with dead parts", progress, _MENDING_BUDGET)
        _kill_node(cluster, progress)
        _timed_up(name, "up of a cluster with a dead node", progress, _MENDING_BUDGET)
        failed += _beside(names(name)[1], cluster, check, progress)
    finally:
        kept = clusters.down_each(names(name), progress)
        for line in kept:
            progress.note(f"FAILED  {line}")
        failed += len(kept)
    return failed + _compare(before, progress)


def _timed_up(
    name: str, what: str, progress: Progress, budget: float | None = None
) -> tuple[Cluster, float]:
    begun = time.monotonic()
    cluster = clusters.up(name, progress=progress)
    took = time.monotonic() - begun
    progress.note(f"ok      {what} took {took:.1f} s")
    if budget is not None and took > budget:
        raise Failure(f"{what} took {took:.1f} s, more than {budget:.0f} s")
    return cluster, took


def _crash(name: str, delay: float, progress: Progress) -> None:
    """Start `up` and kill it after `delay` seconds."""
    environment = {**os.environ, "PYTHONPATH": str(_PACKAGE_FOLDER)}
    child = subprocess.Popen(
        [sys.executable, "-m", "embedded", "up", "--name", name],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=delay)
    finally:
        # Do this after an interruption, too: the child would keep working on a cluster that is being removed.
        child.kill()
        child.wait()
    progress.note(f"ok      killed up after {delay} s")


def _kill_parts(cluster: Cluster, progress: Progress) -> None:
    """Kill parts of the control plane and of the first node."""
    first = cluster.nodes[0]
    victims = ["etcd", "kube-apiserver", "registry", "kube-scheduler"]
    victims += [first.part("kubelet"), first.part("containerd"), first.part("kube-proxy")]
    for part in victims:
        cluster.stop_process(part)
    progress.note(f"ok      killed {', '.join(victims)}")


def _kill_node(cluster: Cluster, progress: Progress) -> None:
    """Switch the last node off, as in a power cut."""
    last = cluster.nodes[-1].name
    cluster.stop_process(last)
    progress.note(f"ok      switched {last} off")


def _beside(
    name: str, first: Cluster, check: Callable[[Cluster, Progress], int], progress: Progress
) -> int:
    """Create, check and remove a second cluster, then check the first one. Return the number of failed checks."""
    second, _ = _timed_up(name, "up of a second cluster", progress)
    failed = check(second, progress)
    clusters.down(name, progress)
    return failed + check(first, progress)


def _compare(before: leftovers.Inventory, progress: Progress) -> int:
    """Report the machine's resources that are missing from `before`, and return their number."""
    added = leftovers.take().added_since(before)
    for line in added:
        progress.note(f"FAILED  left behind: {line}")
    if not added:
        progress.note("ok      nothing is left behind")
    return len(added)
