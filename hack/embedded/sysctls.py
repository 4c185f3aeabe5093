"""Sets kernel settings of the host that clusters need, and restores the previous values.

The first cluster records the previous values of all settings that clusters and
kubelets change. Removing the last cluster restores them.
"""

from __future__ import annotations

import json
from pathlib import Path

from . import files
from .commands import succeeds
from .errors import Failure

ROOT = Path("/proc/sys")

# Modules that are not loaded automatically, and the paths that exist once they are loaded.
_MODULES = {"br_netfilter": Path("/proc/sys/net/bridge"), "overlay": Path("/sys/module/overlay")}

WANTED = {"net/ipv4/ip_forward": "1"}

# Kubelets set these for the whole machine.
CHANGED_BY_KUBELETS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)

# Each guest and each kubelet watches many files; Debian's limits are low.
AT_LEAST = {"fs/inotify/max_user_instances": 1024, "fs/inotify/max_user_watches": 524288}


def load_modules() -> None:
    """Load missing modules. Debian's kernel has them as modules; other kernels have them built in."""
    for name, sign in _MODULES.items():
        if not sign.exists():
            succeeds("modprobe", name)


def apply(record: Path, root: Path = ROOT) -> None:
    """Record the current values unless there is a record, then set the values that clusters need."""
    if not record.exists():
        names = (*WANTED, *CHANGED_BY_KUBELETS, *AT_LEAST)
        found = {name: (root / name).read_text().strip() for name in names if (root / name).exists()}
        files.write(record, json.dumps(found, indent=2) + "\n")
    for name, value in WANTED.items():
        _set(root / name, value)
    for name, least in AT_LEAST.items():
        path = root / name
        if path.exists() and int(path.read_text()) < least:
            _set(path, str(least))


def restore(record: Path, root: Path = ROOT) -> None:
    """Restore the recorded values and delete the record."""
    if not record.exists():
        return
    for name, value in json.loads(record.read_text()).items():
        path = root / name
        if path.exists() and path.read_text().strip() != value:
            _set(path, value)
    record.unlink()


def _set(path: Path, value: str) -> None:
    if path.read_text().strip() == value:
        return
    try:
        path.write_text(value)
    except OSError as error:
        raise Failure(f"cannot set {path} to {value}: {error.strerror}") from error
