"""Has a registry serve something else under a name.

    retag.py REGISTRY REPOSITORY like FROM TO     what FROM names, TO names too
    retag.py REGISTRY REPOSITORY garbage TO       TO names a containerDisk, like those of tests' guests, with every bit set
"""

import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

from embedded.registry import PackedFile, TinyImage  # noqa: E402

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# The disk of the tests' guests.
PATH, SIZE = "disk/disk.qcow2", 64 << 20


def like(base: str, name: str, other: str) -> None:
    """One more name for the same."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    requested = urllib.request.Request(f"{base}/manifests/{name}", headers={"Accept": MANIFEST})
    with opener.open(requested, timeout=60) as response:
        manifest = response.read()
    put = urllib.request.Request(
        f"{base}/manifests/{other}", data=manifest, method="PUT", headers={"Content-Type": MANIFEST}
    )
    opener.open(put, timeout=60).close()


def garbage() -> bytes:
    """A qcow2 that is full."""
    with tempfile.TemporaryDirectory() as folder:
        raw, packed = Path(folder) / "raw", Path(folder) / "packed"
        raw.write_bytes(b"\xff" * SIZE)
        subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, packed], check=True)
        return packed.read_bytes()


def main() -> None:
    """Do what the command line requests."""
    registry, repository, what, *names = sys.argv[1:]
    if what == "like":
        like(f"http://{registry}/v2/{repository}", *names)
    elif what == "garbage":
        (name,) = names
        TinyImage({PATH: PackedFile(garbage())}, []).push(registry, repository, name)
    else:
        sys.exit(f"{what!r} is neither like nor garbage")


if __name__ == "__main__":
    main()
