"""Builds the busybox image for ordinary test pods from Debian's static busybox."""

from __future__ import annotations

import subprocess
from pathlib import Path

from oci.builder import Built, LayerCache, key_of
from oci.debian import Mirror
from oci.layout import Image
from oci.progress import step

ACCOUNTS = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
}


def static_busybox(suite: str, scratch: Path) -> Path:
    """Download Debian's static busybox and return the path of the program."""
    (package,) = Mirror.of_this_machine(suite).download(["busybox-static"], scratch / "packages", scratch)
    unpacked = scratch / "unpacked"
    subprocess.run(["dpkg-deb", "--extract", str(package), str(unpacked)], check=True)
    return next(path for path in (unpacked / "usr/bin/busybox", unpacked / "bin/busybox") if path.exists())


def install_applets(busybox: Path, folder: Path) -> None:
    """Create a folder with busybox and a symbolic link for each of its applets."""
    folder.mkdir(parents=True)
    program = folder / "busybox"
    program.write_bytes(busybox.read_bytes())
    program.chmod(0o755)
    for applet in subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split():
        if applet != "busybox":
            (folder / applet).symlink_to("busybox")


def build(cache: LayerCache, suite: str) -> Built:
    """Build the image: busybox and its applets in /bin, accounts in /etc, and a few empty folders."""

    def fill(scratch: Path) -> Path:
        with step("busybox: Debian's static build"):
            root = scratch / "root"
            install_applets(static_busybox(suite, scratch), root / "bin")
            for name, mode in (
                ("etc", 0o755),
                ("root", 0o700),
                ("home", 0o755),
                ("tmp", 0o1777),
                ("var", 0o755),
            ):
                (root / name).mkdir()
                (root / name).chmod(mode)
            for name, text in ACCOUNTS.items():
                (root / "etc" / name).write_text(text)
            return root

    key = key_of("busybox", suite, ACCOUNTS)
    made = cache.make(key, "busybox", fill)
    settings = {"Env": ["PATH=/bin"], "Cmd": ["sh"]}
    return Built(Image([made], settings, [{"created_by": "busybox"}]), key, [])
