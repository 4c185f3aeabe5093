"""Has a registry serve something else under a name.

    retag.py REGISTRY REPOSITORY like FROM TO     what FROM names, TO names too
    retag.py REGISTRY REPOSITORY garbage TO       TO names a containerDisk in which every bit is set
"""

import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack"))

from embedded.registry import PackedFile, TinyImage  # noqa: E402

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# As large as the disk of the tests' guests.
SIZE = 64 << 20


def like(base: str, name: str, other: str) -> None:
    """One more name for the same."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    asked = urllib.request.Request(f"{base}/manifests/{name}", headers={"Accept": MANIFEST})
    with opener.open(asked, timeout=60) as answer:
        manifest = answer.read()
    put = urllib.request.Request(
        f"{base}/manifests/{other}", data=manifest, method="PUT", headers={"Content-Type": MANIFEST}
    )
    opener.open(put, timeout=60).close()


def main() -> None:
    """Do what the command line says."""
    registry, repository, what, *names = sys.argv[1:]
    if what == "like":
        like(f"http://{registry}/v2/{repository}", *names)
    elif what == "garbage":
        (name,) = names
        disk = PackedFile(b"\xff" * SIZE)
        TinyImage({"disk/disk.img": disk}, []).push(registry, repository, name)
    else:
        sys.exit(f"{what!r} is neither like nor garbage")


if __name__ == "__main__":
    main()
