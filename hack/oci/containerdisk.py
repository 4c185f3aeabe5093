"""Packs a disk as a KubeVirt containerDisk: an image with a single file in /disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from oci.builder import Built, LayerCache, content_key, key_of
from oci.layout import Image

# The UID of launcher pods. Only they need to read the disk.
OWNER = 107


def build(cache: LayerCache, disk: Path) -> Built:
    """Build the containerDisk image of a disk."""

    def fill(scratch: Path) -> Path:
        folder = scratch / "root" / "disk"
        folder.mkdir(parents=True)
        target = folder / f"disk{disk.suffix}"
        shutil.copyfile(disk, target)
        for path, mode in ((target, 0o440), (folder, 0o555)):
            os.chown(path, OWNER, OWNER)
            path.chmod(mode)
        return scratch / "root"

    key = key_of("containerdisk", content_key(disk), disk.suffix)
    made = cache.make(key, "disk", fill)
    return Built(Image([made], {}, [{"created_by": f"disk{disk.suffix}"}]), key, [])
