"""Records which clusters exist on this machine, and their settings."""

from __future__ import annotations

from dataclasses import replace

from . import files, locks, network
from .errors import Failure
from .layout import MAX_NODES, Layout, Settings, check_name, choose_index, state_root
from .progress import Progress

_SETTINGS = "settings.json"


def names() -> list[str]:
    """Return the names of all clusters that have a folder, running or not."""
    root = state_root()
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def settings(name: str) -> Settings | None:
    """Return the recorded settings of a cluster, or None if there are none."""
    try:
        return Settings.from_json((state_root() / name / _SETTINGS).read_text())
    except FileNotFoundError:
        return None


def find(name: str) -> Layout:
    """Return the layout of an existing cluster. Raise Failure if it does not exist."""
    found = settings(check_name(name))
    if found is None:
        known = ", ".join(names()) or "none"
        raise Failure(f"there is no cluster {name!r} (existing clusters: {known}); hack/up creates one")
    return Layout(name, found)


def reserve(name: str, nodes: int | None, kvm: bool | None, progress: Progress) -> Layout:
    """Record a cluster's settings and return its layout. Arguments other than None replace recorded values."""
    check_name(name)
    if nodes is not None and not 0 <= nodes <= MAX_NODES:
        raise Failure(f"--nodes {nodes}: must be from 0 to {MAX_NODES}")
    with locks.held("", progress):
        old = settings(name)
        if old is None:
            taken = [found.index for other in names() if (found := settings(other))]
            index = choose_index(taken, network.host_networks())
            new = Settings(index=index, nodes=2 if nodes is None else nodes, kvm=bool(kvm))
        else:
            if nodes is not None and nodes < old.nodes:
                raise Failure(
                    f"cluster {name} has {old.nodes} nodes; to reduce the number, delete the cluster with hack/down first"
                )
            new = replace(
                old,
                nodes=old.nodes if nodes is None else nodes,
                kvm=old.kvm if kvm is None else kvm,
            )
        files.write(state_root() / name / _SETTINGS, new.to_json())
    return Layout(name, new)
