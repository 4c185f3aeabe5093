"""Makes a registry serve another image under a tag.

    retag.py REGISTRY REPOSITORY like FROM TO     serves the image with the tag FROM under the tag TO too
    retag.py REGISTRY REPOSITORY garbage TO       serves a containerDisk like those of the tests' guests, but with every
                                                  bit of the disk set, under the tag TO
"""

import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

from embedded.registry import PackedFile, TinyImage  # noqa: E402

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# Path in the image and size in bytes of the disk of the tests' guests.
PATH, SIZE = "disk/disk.qcow2", 64 << 20


def like(base: str, name: str, other: str) -> None:
    """Serve the image with the tag `name` under the tag `other` too."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    requested = urllib.request.Request(f"{base}/manifests/{name}", headers={"Accept": MANIFEST})
    with opener.open(requested, timeout=60) as response:
        manifest = response.read()
    put = urllib.request.Request(
        f"{base}/manifests/{other}", data=manifest, method="PUT", headers={"Content-Type": MANIFEST}
    )
    opener.open(put, timeout=60).close()


def garbage() -> bytes:
    """Return a qcow2 image in which every bit of the disk is set."""
    with tempfile.TemporaryDirectory() as folder:
        raw, packed = Path(folder) / "raw", Path(folder) / "packed"
        raw.write_bytes(b"\xff" * SIZE)
        subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, packed], check=True)
        return packed.read_bytes()


def main() -> None:
    """Run the command that the command line specifies."""
    registry, repository, what, *names = sys.argv[1:]
    if what == "like":
        like(f"http://{registry}/v2/{repository}", *names)
    elif what == "garbage":
        (name,) = names
        TinyImage({PATH: PackedFile(garbage())}, []).push(registry, repository, name)
    else:
        sys.exit(f"{what!r} is not allowed; allowed: like, garbage")


if __name__ == "__main__":
    main()
