"""hack/record-domcapabilities FOLDER: records what real libvirts report about this machine.

The libvirt and QEMU of several Debian releases are installed, each in its own root file system. The recordings
are virsh's output: domain capabilities and CPU baselines of the machine types that nodes use, and the host's
capabilities. A request that libvirt refuses (a baseline on an architecture without host-model) creates no file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from oci import tools
from oci.progress import Failure, note

from recording.roots import RELEASES, root_of
from recording.session import record


def main() -> int:
    """Record all releases."""
    parser = argparse.ArgumentParser(prog="hack/record-domcapabilities", description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder for the recordings, with a subfolder for each release")
    options = parser.parse_args()
    cache = Path(os.environ.get("DRYDOCK_CACHE", "/var/cache/drydock")).absolute() / "recording"
    try:
        if os.geteuid() != 0:
            raise Failure("creating a Debian root file system requires root privileges")
        tools.ensure(cache / "logs")
        for release in RELEASES:
            root = root_of(release, cache)
            for refusal in record(release, root, options.folder / release.suite, cache / "logs"):
                note(f"        refused: {refusal}")
    except Failure as failure:
        print(f"hack/record-domcapabilities: {failure}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
