"""Takes inventories of the resources that a cluster could leave behind on a machine, for comparison."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

from . import cgroups, processes, sysctls
from .commands import run
from .layout import state_root


@dataclass(frozen=True)
class Inventory:
    """The names of a machine's resources, by kind."""

    processes: frozenset[str]
    mounts: frozenset[str]
    network_namespaces: frozenset[str]
    control_groups: frozenset[str]
    links: frozenset[str]
    routes: frozenset[str]
    firewall_rules: frozenset[str]
    settings: frozenset[str]
    folders: frozenset[str]

    def added_since(self, before: "Inventory") -> list[str]:
        """Return a line for each resource that is missing from `before`, the earlier inventory."""
        lines = []
        for kind in fields(self):
            new = getattr(self, kind.name) - getattr(before, kind.name)
            lines += [f"{kind.name.replace('_', ' ')}: {thing}" for thing in sorted(new)]
        return lines


def take() -> Inventory:
    """Take the inventory of the whole machine. No other cluster should be created or removed meanwhile."""
    return Inventory(
        processes=frozenset(_processes()),
        mounts=frozenset(
            " ".join(line.split()[4:5]) for line in _lines("/proc/self/mountinfo")
        ),
        network_namespaces=frozenset(_names("/run/netns")),
        control_groups=frozenset(_groups()),
        links=frozenset(_names("/sys/class/net")),
        routes=frozenset(
            f"{route['dst']} {route.get('dev')}"
            for route in json.loads(run("ip", "-json", "-4", "route", "show", "table", "all"))
        ),
        firewall_rules=frozenset(_firewall_rules()),
        settings=frozenset(_settings()),
        folders=frozenset(
            str(path)
            for parent in ("/", "/etc", "/opt", "/run", "/usr/libexec", "/var/lib", "/var/log")
            for path in Path(parent).glob("*")
            if path != state_root() or any(path.iterdir())
        ),
    )


def _processes() -> list[str]:
    """Return every process that a cluster has started or that is in a cluster's cgroup."""
    found = []
    grouped = cgroups.pids("/drydock-embedded")
    for pid in processes.all_pids():
        mark = processes.read_environment(pid).get(processes.MARK_CLUSTER)
        if mark or pid in grouped:
            found.append(f"{pid} {processes.command_name(pid)} {mark or ''}".rstrip())
    return found


def _groups() -> list[str]:
    return [
        folder
        for root in cgroups.hierarchies()
        for folder, _, _ in os.walk(root)
        if "drydock" in folder or "kubepods" in folder
    ]


def _firewall_rules() -> list[str]:
    rules = []
    for command in ("iptables-save", "ip6tables-save"):
        done = subprocess.run([command], capture_output=True, text=True)
        rules += [line for line in done.stdout.splitlines() if line.startswith("-A")]
    return rules


def _settings() -> list[str]:
    found = []
    for name in (*sysctls.WANTED, *sysctls.CHANGED_BY_KUBELETS, *sysctls.AT_LEAST):
        path = sysctls.ROOT / name
        if path.exists():
            found.append(f"{name} = {path.read_text().strip()}")
    return found


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
