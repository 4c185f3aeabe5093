"""Queries the libvirt of a root file system, which runs like that of guests: unprivileged, in session mode."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oci.progress import Failure, run, step, tail

from recording.roots import Release

USER = 65534
# Device nodes to create in the root file system, because the machine's /dev/kvm may be accessible only to root.
NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "kvm": (10, 232)}
WAIT_SECONDS = 30

# Runs in a separate mount namespace. $1: the root file system; the other arguments: the command to run in it.
ENTER = r"""
set -e
root=$1
shift
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
{nodes}
exec chroot "$root" setpriv --reuid={user} --regid={user} --clear-groups env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C "$@"
"""

# Runs in the root file system. $1: a new folder. If libvirt refuses a request, its message is in a .error file.
REQUEST = r"""
set -eu
home=$1
export HOME=$home/home XDG_RUNTIME_DIR=$home/run XDG_CONFIG_HOME=$home/config XDG_CACHE_HOME=$home/cache
mkdir "$HOME" "$XDG_RUNTIME_DIR" "$XDG_CONFIG_HOME" "$XDG_CACHE_HOME" "$home/out"
cd "$home/out"
libvirtd --timeout 0 > "$home/libvirtd.log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait' EXIT
left={wait}0
until [ -S "$XDG_RUNTIME_DIR/libvirt/libvirt-sock" ]; do
    left=$((left - 1))
    [ $left -gt 0 ] || {{ cat "$home/libvirtd.log"; exit 1; }}
    sleep 0.1
done
query() {{
    file=$1
    shift
    if virsh -c qemu:///session "$@" > "$file" 2> "$file.error"; then
        rm "$file.error"
    else
        rm "$file"
    fi
}}
{queries}
"""


def record(release: Release, root: Path, target: Path, logs: Path) -> list[str]:
    """Write the responses of the libvirt in `root` to the folder `target`; return its error messages."""
    log = logs / f"{release.suite}-session.log"
    with _folder_in(root) as home, step(f"querying the libvirt of Debian {release.suite}"):
        inside = f"/{home.relative_to(root)}"
        nodes = "\n".join(
            f'mknod -m 666 "$root/dev/{name}" c {major} {minor}'
            for name, (major, minor) in NODES.items()
            if Path("/dev", name).exists()
        )
        queries = "\n".join(shlex.join(["query", *arguments]) for arguments in _queries(release))
        script = REQUEST.format(wait=WAIT_SECONDS, queries=queries)
        enter = ENTER.format(nodes=nodes, user=USER)
        command = ["unshare", "--mount", "sh", "-c", enter, "enter", str(root), "sh", "-c", script, "query", inside]
        run(command, log=log, what=f"querying the libvirt of Debian {release.suite}")
        responses = sorted((home / "out").glob("*.xml")) + sorted((home / "out").glob("*.txt"))
        if not responses:
            raise Failure(f"the libvirt of Debian {release.suite} returned nothing; its log ends with:\n{tail(log)}")
        target.mkdir(parents=True, exist_ok=True)
        for old in (*target.glob("*.xml"), *target.glob("*.txt")):
            old.unlink()
        for response in responses:
            shutil.copyfile(response, target / response.name)
        return [
            f"{error.name.removesuffix('.error')}: {error.read_text().strip()}"
            for error in sorted((home / "out").glob("*.error"))
        ]


def _queries(release: Release) -> Iterator[list[str]]:
    """Yield, for each query, the name of the output file and the arguments of virsh."""
    for architecture, machine, virt_type in release.machines:
        name = f"{architecture}-{virt_type}"
        about = ["--arch", architecture, "--machine", machine, "--virttype", virt_type]
        yield [f"{name}.domain-capabilities.xml", "domcapabilities", *about]
        # The input of this query is the output of the previous query.
        baseline = ["hypervisor-cpu-baseline", "--features", *about, f"{name}.domain-capabilities.xml"]
        yield [f"{name}.baseline.xml", *baseline]
    yield ["capabilities.xml", "capabilities"]
    yield ["versions.txt", "version", "--daemon"]


@contextmanager
def _folder_in(root: Path) -> Iterator[Path]:
    """Create a temporary folder in the root file system, owned by the unprivileged user."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir=root / "tmp"))
    try:
        shutil.chown(folder, USER, USER)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
