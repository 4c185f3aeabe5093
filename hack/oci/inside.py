"""Executes one build step inside its namespaces.

oci.sandbox starts this module in new mount and PID namespaces, with a description
of the step as JSON. The module mounts the layers, gives a RUN step /dev, /proc,
name resolution and apt's mirror, and executes the step. The mounts end with the process.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount(*arguments: str | Path) -> None:
    """Run mount(8); raise CalledProcessError if it fails."""
    subprocess.run(["mount", *map(str, arguments)], check=True)


def assemble(step: dict[str, Any]) -> Path:
    """Mount an overlay of the layers below and the new layer on top, and return its root."""
    root = Path(step["mountpoint"])
    # The topmost layer comes first. Renamed files and files with a changed mode must be
    # complete in the upper folder, or it would not be a valid OCI layer.
    options = f"lowerdir={':'.join(step['lowers'])},upperdir={step['upper']},workdir={step['work']}"
    try:
        mount("-t", "overlay", "overlay", "-o", options + ",redirect_dir=off,metacopy=off,index=off", root)
    except subprocess.CalledProcessError:
        mount("-t", "overlay", "overlay", "-o", options, root)
    return root


def furnish(root: Path, apt: Path | None) -> None:
    """Provide /proc, /dev, /tmp, /run, name resolution and the machine's mirror in the root."""
    if (root / "proc").is_dir():
        try:
            mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", root / "proc")
        except subprocess.CalledProcessError:
            mount("--rbind", "/proc", root / "proc")
    if (root / "dev").is_dir():
        mount("-t", "tmpfs", "-o", "mode=0755,size=1m", "tmpfs", root / "dev")
        for name in DEVICES:
            (root / "dev" / name).touch()
            mount("--bind", f"/dev/{name}", root / "dev" / name)
        for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            (root / "dev" / name).symlink_to(f"/proc/self/{target}")
        (root / "dev" / "shm").mkdir(mode=0o1777)
    for name in ("tmp", "run"):
        if (root / name).is_dir():
            mount("-t", "tmpfs", "-o", "mode=1777" if name == "tmp" else "mode=0755", "tmpfs", root / name)
    for name in ("resolv.conf", "hosts"):
        place = root / "etc" / name
        if place.is_file() and not place.is_symlink() and Path("/etc", name).exists():
            mount("--bind", "-o", "ro", Path("/etc", name).resolve(), place)
    etc_apt = root / "etc" / "apt"
    if apt is not None and etc_apt.is_dir():
        # Keep the image's own settings, and add those of the mirror.
        for kept in etc_apt.glob("apt.conf.d/*"):
            if not (apt / "apt.conf.d" / kept.name).exists():
                shutil.copy(kept, apt / "apt.conf.d" / kept.name)
        mount("--bind", apt, etc_apt)


def identity(user: str) -> tuple[int, int]:
    """Return the UID and GID of a USER or --chown value; names are resolved in the image."""
    name, colon, group = user.partition(":")
    uid, primary = _find("/etc/passwd", name, 2, 3)
    return uid, _find("/etc/group", group, 2, 2)[0] if colon else primary


def _find(path: str, name: str, number: int, other: int) -> tuple[int, int]:
    if name.isdigit():
        return int(name), int(name)
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                fields = line.rstrip("\n").split(":")
                if fields[0] == name:
                    return int(fields[number]), int(fields[other])
    except FileNotFoundError:
        pass
    sys.exit(f"{name} is not in {path} of the image")


def run_command(step: dict[str, Any], root: Path) -> None:
    """Replace this process by the command of a RUN instruction."""
    os.chroot(root)
    os.chdir("/")
    uid, gid = identity(step["user"] or "0:0")
    os.makedirs(step["workdir"], exist_ok=True)
    os.chdir(step["workdir"])
    os.umask(0o022)
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.execvpe(step["command"][0], step["command"], step["env"])


def copy(step: dict[str, Any], root: Path) -> None:
    """Execute a COPY instruction.

    The working directory is the build context and remains outside the new root.
    Absolute links inside the image therefore resolve as in a container, and the
    relative paths of the sources are still valid.
    """
    os.chdir(step["context"])
    os.chroot(root)
    owner = identity(step["chown"]) if step["chown"] else (0, 0)
    mode = int(step["chmod"], 8) if step["chmod"] else None
    target = os.path.join(step["workdir"], step["target"])
    into = step["target"].endswith("/") or len(step["sources"]) > 1 or os.path.isdir(target)
    for source in step["sources"]:
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
            for entry in sorted(os.listdir(source)):
                _copy_tree(os.path.join(source, entry), os.path.join(target, entry), owner, mode)
        else:
            place = os.path.join(target, os.path.basename(source)) if into else target
            os.makedirs(os.path.dirname(place), exist_ok=True)
            _copy_tree(source, place, owner, mode)


def _copy_tree(source: str, target: str, owner: tuple[int, int], mode: int | None) -> None:
    found = os.lstat(source)
    if stat.S_ISDIR(found.st_mode):
        os.makedirs(target, exist_ok=True)
        for entry in sorted(os.listdir(source)):
            _copy_tree(os.path.join(source, entry), os.path.join(target, entry), owner, mode)
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source), target)
    else:
        shutil.copyfile(source, target)
    os.chown(target, *owner, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(target, mode if mode is not None else stat.S_IMODE(found.st_mode))


def make_folder(step: dict[str, Any], root: Path) -> None:
    """Execute a WORKDIR instruction."""
    os.chroot(root)
    os.makedirs(step["workdir"], exist_ok=True)


def main() -> None:
    """Execute the step that the first argument describes."""
    step = json.loads(sys.argv[1])
    os.umask(0o022)
    root = assemble(step)
    if step["kind"] == "run":
        furnish(root, Path(step["apt"]) if step["apt"] else None)
        run_command(step, root)
    elif step["kind"] == "copy":
        copy(step, root)
    else:
        make_folder(step, root)


if __name__ == "__main__":
    main()
